"""Pages of a privacy statement: Markdown, HTML that needs no network, or JSON for machines."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from markupsafe import Markup

from sordino.report.html import charts, page
from sordino.report.html.charts import Line
from sordino.report.statement_blocks import (
    BLANK,
    Attacks,
    Block,
    Bullets,
    Drawn,
    Section,
    StatementPage,
    Table,
    Tradeoff,
)
from sordino.report.wording import attack_words, markdown_table

BAR = 40
"""Length of a bar in plain text, in characters."""
PERCENT = " %"


class Told(Protocol):
    """A statement, on a run or on a site."""

    def page(self) -> StatementPage:
        """Page for people."""

    def document(self) -> dict[str, Any]:
        """Document for machines."""


def markdown(found: Told) -> str:
    """Write a statement as Markdown."""
    told = found.page()
    parts = [f"# {told.title}", "", told.about, "", "## In half a minute", ""]
    for lead, text in told.glance:
        parts += [f"**{lead}** {text}", ""]
    if told.attacks is not None:
        parts += [f"{_caption(told.attacks)}:", "", "```", *_bars(told.attacks.observers), "```", ""]
        parts += ["Read by (place, date, signature): " + BLANK, ""]
    for section in (*told.sections, *told.annex):
        parts += [f"## {section.heading}", ""]
        for block in section.blocks:
            written = _markdown_block(block)
            parts += [*written, ""] if written else []
    return "\n".join(parts)


def _caption(attacks: Attacks) -> str:
    return f"How often the best attack is right ({attacks.who})"


def _markdown_block(block: Block) -> list[str]:
    if isinstance(block, Table):
        return [markdown_table(block.head, [[_cell(text) for text in row] for row in block.rows])]
    if isinstance(block, Bullets):
        return [f"- {one}" for one in block.items]
    return [] if isinstance(block, Tradeoff) else [block]  # a table says the same


def _bars(observers: Sequence[Drawn]) -> list[str]:
    """Bars of the best attacks, between a coin and certainty."""
    lines = [f"{'':10}50 % (a coin){'100 % (certainty)':>{BAR - 13}}"]
    for one in observers:
        length = math.ceil((one.attack - 0.5) * 2 * BAR)
        lines.append(f"{one.name:10}{'#' * length}{'.' * (BAR - length)} {attack_words(one.attack, PERCENT)}")
    return lines


def _cell(text: str) -> str:
    """Text that stays in its cell of a table in Markdown."""
    return " ".join(text.split()).replace("|", "\\|")


def hypertext(found: Told) -> str:
    """Write a statement as one HTML file that needs no network and prints well: the first sheet is to be signed."""
    told = found.page()
    glance = "".join(f"<p><b>{_html(lead)}</b> {_with_code(text)}</p>" for lead, text in told.glance)
    attacks = told.attacks
    drawn = "" if attacks is None else f"<p><b>{_html(_caption(attacks))}.</b></p>{_picture(attacks.observers)}"
    parts = [
        f'<h1>{_html(told.title)}</h1><p class="soft">{_with_code(told.about)}</p>',
        f'<section class="glance"><h2>In half a minute</h2>{glance}{drawn}</section>',
        "" if attacks is None else '<p class="signature">Read by (place, date, signature)</p>',
        "<div>" if attacks is None else '<div class="rest">',  # on paper, only what is signed has a sheet of its own
        *(_html_section(section) for section in told.sections),
        "</div>",
    ]
    if told.annex:
        parts += ['<div class="annex">', *(_html_section(section) for section in told.annex), "</div>"]
    body = ['<article class="sheet">', *parts, "</article>"]
    return page(told.title, Markup("\n".join(body)))


def _html_section(section: Section) -> str:
    return "\n".join([f"<h2>{_html(section.heading)}</h2>", *(_html_block(block) for block in section.blocks)])


def _html_block(block: Block) -> str:
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Bullets):
        return '<ul class="words">' + "".join(f"<li>{_with_code(item)}</li>" for item in block.items) + "</ul>"
    if isinstance(block, Tradeoff):
        return _tradeoff(block.observers)
    return f"<p>{_with_code(block)}</p>"


def _html(text: Any) -> str:
    return html.escape(str(text))


def _with_code(text: str) -> str:
    """HTML of a text whose parts in backquotes are code."""
    parts = text.split("`")
    return "".join(f"<code>{_html(part)}</code>" if place % 2 else _html(part) for place, part in enumerate(parts))


def _table(block: Table) -> str:
    """HTML of a table. Each cell names its column, which is shown where the columns do not fit side by side."""
    head = "".join(f'<th class="text">{_html(cell)}</th>' for cell in block.head)
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td class="text" data-column="{_html(name)}"><span>{_with_code(cell)}</span></td>'
            for name, cell in zip(block.head, row, strict=True)
        )
        + "</tr>"
        for row in block.rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _picture(observers: Sequence[Drawn]) -> str:
    """Bars of the best attacks, between a coin and certainty."""
    left, width, row = 90, 420, 34
    height = 30 + row * len(observers)
    parts = [
        f'<svg viewBox="0 0 600 {height}" role="img" aria-label="The best attack of each observer" '
        'style="max-width: 38rem; width: 100%; font-size: 13px; fill: var(--ink)">',
        f'<text x="{left}" y="14">50 % (a coin)</text>',
        f'<text x="{left + width}" y="14" text-anchor="end">100 % (certainty)</text>',
    ]
    for place, one in enumerate(observers):
        top = 24 + row * place
        length = max(1.0, (one.attack - 0.5) * 2 * width)
        parts += [
            f'<text x="0" y="{top + 16}">{_html(one.name)}</text>',
            f'<rect style="fill: var(--rule)" x="{left}" y="{top}" width="{width}" height="22" rx="3"/>',
            f'<rect class="bar" style="fill: var(--s1)" x="{left}" y="{top}" width="{length:.1f}" height="22" rx="3"/>',
            f'<text x="{left + width + 10}" y="{top + 16}">{attack_words(one.attack, PERCENT)}</text>',
        ]
    return "".join(parts) + "</svg>"


def _tradeoff(observers: Sequence[Drawn]) -> str:
    """Curves of the share that each observer finds at most over the share that it suspects wrongly."""
    curves = {tuple(map(tuple, one.tradeoff)): one for one in reversed(observers)}
    shared = len(curves) == 1 and len(observers) > 1
    drawn = [
        Line.through([(100 * x, y) for x, y in one.tradeoff], "every observer" if shared else one.name)
        for one in reversed(curves.values())
    ]
    coin = Line("blind guessing", [0.0, 100.0], [0.0, 1.0], colour=6)
    title = "Found at most, over wrong suspicions"
    return str(charts.lines([*drawn, coin], title, "suspected wrongly, in percent", charts.percent, lambda _: ""))


def twin(found: Told) -> str:
    """Write a statement as a JSON document."""
    return json.dumps(found.document(), indent=2) + "\n"


FORMATS: dict[str, Callable[[Told], str]] = {".md": markdown, ".html": hypertext, ".json": twin}
"""Writers of a statement, by the suffix of the file."""
