"""Tables that fit a terminal of any width: columns go, least important first; what they hold is never cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from sordino.report.terminal import terminal_text

GAP = 2
"""Spaces between two columns."""


@dataclass(frozen=True)
class Column:
    """One column of such a table."""

    heading: str
    weight: int = 0
    """Columns of higher weight are dropped first where space is short; those of weight zero never."""
    left: bool = False
    """Whether the column is text, aligned to the left."""


@dataclass(frozen=True)
class Fitting:
    """Table of text that drops columns until it fits. A cell may have several lines."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    title: str = ""

    def kept(self, width: int) -> list[int]:
        """Indices of the columns that fit into `width`."""
        places = list(range(len(self.columns)))
        while sum(self._width(place) + GAP for place in places) - GAP > width:
            heaviest = max(places, key=lambda place: self.columns[place].weight)
            if not self.columns[heaviest].weight:
                break
            places.remove(heaviest)
        return places

    def _width(self, place: int) -> int:
        cells = [self.columns[place].heading, *(row[place] for row in self.rows)]
        return max(len(line) for cell in cells for line in terminal_text(cell).split("\n"))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kept = self.kept(options.max_width)
        # A box without lines leaves one column between two, and padding makes it two.
        table = Table(box=box.SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), pad_edge=False, show_edge=False)
        for place in kept:
            column = self.columns[place]
            table.add_column(
                terminal_text(column.heading),
                justify="left" if column.left else "right",
                overflow="fold",
                no_wrap=False,
            )
        for row in self.rows:
            table.add_row(*(Text(terminal_text(row[place])) for place in kept))
        gone = [column.heading for place, column in enumerate(self.columns) if place not in kept]
        yield Group(*([Text(self.title)] if self.title else []), table)
        if gone:
            yield Text(f"A wider terminal also shows: {', '.join(gone)}.", style="dim")
