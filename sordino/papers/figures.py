"""Figure of a reproduced table: the paper's numbers beside ours, as published and at equal true epsilon, or curves."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from sordino.errors import writing
from sordino.papers.claims import Kind, TableRow, rows_of
from sordino.papers.description import PaperColumn, PaperRow
from sordino.papers.judgement import ClaimJudgement
from sordino.papers.pages import WHAT
from sordino.papers.table_runs import ReproducedTable
from sordino.report.figures import COLOURS, DASHES
from sordino.util.plotting import pyplot

PANELS: dict[Kind, str] = {
    "published": "as the paper prints it",
    "paper": "ours, as published",
    "sound": "ours, at equal true epsilon",
}
MOST_PANELS = 4


def draw(done: ReproducedTable, path: Path) -> None:
    """Draw a reproduced table into a file."""
    drawing, judgement = pyplot(), ClaimJudgement(done)
    figure = _curves(drawing, done, judgement) if done.table.curves else _bars(drawing, judgement.document())
    title = f"{done.paper.title}, {done.table.name}: {done.table.title} (scale {done.options.scale})"
    title += ". Solid: at equal true epsilon; dotted: as published" if done.table.curves else ""
    fitting = int(8.5 * figure.get_figwidth())  # letters of this size in a line
    figure.suptitle("\n".join(textwrap.wrap(title, fitting)), fontsize=11)
    with writing(path):
        figure.savefig(path, dpi=110)
    drawing.close(figure)


def _bars(drawing: Any, document: dict[str, Any]) -> Any:
    """Draw a panel for each kind of figure that there is, with a mark for each row at each column."""
    everything = rows_of(document)
    rows = list(dict.fromkeys(row.row for row in everything))
    columns = list(dict.fromkeys(row.column for row in everything))
    at = {(row.row, row.column): row for row in everything}
    kinds = [kind for kind in PANELS if any(row.figure(kind) is not None for row in everything)]
    height = 2.2 + 0.3 * len(rows) + 0.12 * len(columns) * len(rows)
    figure, axes = drawing.subplots(
        1,
        max(1, len(kinds)),
        figsize=(13, min(12.0, height)),
        sharey=True,
        sharex=True,
        layout="constrained",
        squeeze=False,
    )
    for axis, kind in zip(axes[0], kinds, strict=False):
        for place, row in enumerate(rows):
            spread = 0.8 / len(rows)
            for number, column in enumerate(columns):
                found = at[row, column]
                y = number + (place - (len(rows) - 1) / 2) * spread
                _mark(axis, found, kind, y, COLOURS[place % len(COLOURS)], row if number == 0 else None)
        axis.set_title(PANELS[kind], fontsize=10)
        axis.grid(alpha=0.3)
        axis.set_yticks(range(len(columns)), ["\n".join(textwrap.wrap(column, 22)) for column in columns], fontsize=8)
        axis.set_xlabel(WHAT[document["measure"]], fontsize=8)
        for edge in range(len(columns) - 1):
            axis.axhline(edge + 0.5, color="#cccccc", lw=0.6)
    axes[0][0].set_ylim(len(columns) - 0.5, -0.7)  # the first row on top, with room for its figures
    _legend(figure, axes[0])
    return figure


def _mark(axis: Any, found: TableRow, kind: Kind, y: float, colour: str, name: str | None) -> None:
    """Draw one figure with its interval; the mark of the proposed method is filled."""
    value = found.figure(kind)
    if value is None:
        axis.errorbar([], [], fmt="o", color=colour, mfc=colour if found.ours else "white", label=name)
        return
    interval = found.interval(kind)
    error = None if interval is None else [[value - interval[0]], [interval[1] - value]]
    look = {"color": colour, "markersize": 6, "capsize": 2, "lw": 1.2}
    axis.errorbar([value], [y], xerr=error, fmt="o", mfc=colour if found.ours else "white", label=name, **look)
    shown = f"{value:.2f}" if found.measure in ("loss", "seconds", "personal-share") else f"{value:.1f}"
    axis.annotate(shown, (value, y), xytext=(0, 4), textcoords="offset points", fontsize=6.5, ha="center", color=colour)


def _curves(drawing: Any, done: ReproducedTable, judgement: ClaimJudgement) -> Any:
    """Draw a panel for each column, with a line for each row over the rounds: solid where sound, dotted where as
    published."""
    kept = judgement.columns[:MOST_PANELS]
    figure, axes = drawing.subplots(
        1, len(kept), figsize=(max(7.0, 4.6 * len(kept)), 4.8), layout="constrained", squeeze=False
    )
    for axis, column in zip(axes[0], kept, strict=True):
        for place, row in enumerate(judgement.rows):
            _line(axis, done, judgement, row, column, place)
        axis.set_title("\n".join(textwrap.wrap(column.name, 40)), fontsize=10)
        axis.set_xlabel("round")
        axis.set_ylabel(WHAT[_over_rounds(done, column)], fontsize=8)
        axis.grid(alpha=0.3)
        if column.target is not None:
            axis.axhline(column.target, color="#777777", lw=0.8, ls="--")
    _legend(figure, axes[0])
    return figure


def _over_rounds(done: ReproducedTable, column: PaperColumn) -> str:
    """Figure that is drawn over the rounds: where rounds to a target are counted, the accuracy that must reach it."""
    measure = done.table.measured(column)
    return "global" if measure == "rounds" else measure


def _line(
    axis: Any, done: ReproducedTable, judgement: ClaimJudgement, row: PaperRow, column: PaperColumn, place: int
) -> None:
    measure = _over_rounds(done, column)
    factor = 1.0 if measure == "loss" else 100.0
    for variant, width in (("sound", 1.6), ("paper", 0.9)):
        outcome = judgement.outcome(row, column, variant)  # type: ignore[arg-type]
        series = (
            []
            if outcome is None
            else [
                [(point["round"] + 1, factor * point[measure]) for point in curve if point[measure] is not None]
                for curve in outcome.curves
            ]
        )
        if not series or not all(series):
            continue
        length = min(len(one) for one in series)
        x = [point[0] for point in series[0][:length]]
        mean = np.array([[point[1] for point in one[:length]] for one in series]).mean(axis=0)
        dash = DASHES[place // len(COLOURS) % len(DASHES)] if variant == "sound" else ":"
        name = row.name if variant == "sound" else None
        axis.plot(
            x,
            mean,
            color=COLOURS[place % len(COLOURS)],
            ls=dash,
            lw=width,
            label=name,
            marker="." if length < 4 else None,
        )


def _legend(figure: Any, axes: Any) -> None:
    handles, names = axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, names, loc="outside lower center", ncols=min(5, len(names)), frameon=False, fontsize=8)
