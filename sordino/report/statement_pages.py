"""Pages of a privacy statement: Markdown, or HTML that needs no network."""

from __future__ import annotations

import html
import math
from collections.abc import Callable
from dataclasses import astuple
from typing import Any

from markupsafe import Markup

from sordino.methods.bases import SIZES, SIZES_IN_SUMS
from sordino.report.html import page
from sordino.report.statement import UNBOUNDED, Leaving, Observer, Statement, sentences
from sordino.report.wording import attack_words, epsilon_words, markdown_table

BAR = 40
"""Length of a bar in plain text, in characters."""
PERCENT = " %"


COLUMNS = ["column", "kind", "values", "without a value", "source"]
"""Head of the table of a record's columns."""


def _times(one: Leaving) -> str:
    return f"{one.most} times" if one.most != 1 else "once"


def _observer(one: Observer) -> list[str]:
    """Cells of one observer: name, who that is, epsilon, best attack."""
    return [one.name, one.who, epsilon_words(one.epsilon, UNBOUNDED), attack_words(one.attack, PERCENT)]


def markdown(found: Statement) -> str:
    """Write a statement as Markdown."""
    parts = [f"# Privacy statement: {found.run}", ""]
    for heading, paragraphs in sentences(found).items():
        parts += [f"## {heading}", ""]
        for paragraph in paragraphs:
            parts += [paragraph, ""]
        if heading.startswith("What a record") and found.columns:
            parts += [markdown_table(COLUMNS, [[_cell(text) for text in astuple(one)] for one in found.columns]), ""]
        if heading.startswith("What left") and found.leaving:
            parts += [
                "| what | how it is made | per client, at most | clients | covered by noise |",
                "|---|---|---|---|---|",
            ]
            parts += [
                f"| {one.name} | {one.what} | {_times(one)} | {one.clients} | {'yes' if one.covered else 'no'} |"
                for one in found.leaving
            ] + [""]
        if heading.startswith("What somebody"):
            parts += ["| observer | who that is | epsilon | best attack |", "|---|---|---:|---:|"]
            parts += [f"| {' | '.join(_observer(one))} |" for one in found.observers]
            parts += ["", "```", *_bars(found), "```", ""]
    parts += ["## What these figures do not cover", ""]
    parts += [f"- {one}" for one in found.not_covered + _always(found)] + [""]
    if found.notes:
        parts += ["## Notes", "", *(f"- {note}" for note in found.notes), ""]
    parts += ["## How to check it", "", *_check(found), ""]
    return "\n".join(parts)


def _bars(found: Statement) -> list[str]:
    """Bars of the best attacks, between a coin and certainty."""
    lines = [f"{'':10}50 % (a coin){'100 % (certainty)':>{BAR - 13}}"]
    for one in found.observers:
        length = math.ceil((one.attack - 0.5) * 2 * BAR)
        lines.append(f"{one.name:10}{'#' * length}{'.' * (BAR - length)} {attack_words(one.attack, PERCENT)}")
    return lines


def _cell(text: str) -> str:
    """Text that stays in its cell of a table in Markdown."""
    return " ".join(text.split()).replace("|", "\\|")


def _always(found: Statement) -> list[str]:
    """Sentences on what no epsilon covers in any run."""
    shown = (
        "In the simulation, accuracies were measured on the clients' raw test records, some notes follow from these "
        "records, and training records were counted. On real machines no client sends any of this."
    )
    return [
        "A personal model stays at its client. Anybody who is given one may learn more about that client's records.",
        *([SIZES] if found.unit.record_level and {SIZES, SIZES_IN_SUMS}.isdisjoint(found.not_covered) else []),
        *([shown] if found.simulated else []),
    ]


def _check(found: Statement) -> list[str]:
    return [
        f"The run was started on {found.date} with Sordino {found.version}. Its ledger has {found.rows} rows; their "
        "chain of hashes ends with",
        "",
        f"`{found.head}`",
        "",
        f"`sordino ledger {found.run} --verify` checks that no row was altered or removed, and that the figures above "
        "follow from the rows. `--csv` prints them.",
    ]


def hypertext(found: Statement) -> str:
    """Write a statement as one HTML file that needs no network and prints well."""
    parts = [f"<h1>Privacy statement: {_html(found.run)}</h1>"]
    for heading, paragraphs in sentences(found).items():
        parts += [f"<h2>{_html(heading)}</h2>", *(f"<p>{_html(paragraph)}</p>" for paragraph in paragraphs)]
        if heading.startswith("What a record") and found.columns:
            parts.append(_table(COLUMNS, [list(astuple(one)) for one in found.columns]))
        if heading.startswith("What left") and found.leaving:
            head = ["what", "how it is made", "per client, at most", "clients", "covered by noise"]
            rows = [
                [one.name, one.what, _times(one), str(one.clients), "yes" if one.covered else "no"]
                for one in found.leaving
            ]
            parts.append(_table(head, rows))
        if heading.startswith("What somebody"):
            rows = [_observer(one) for one in found.observers]
            parts += [_table(["observer", "who that is", "epsilon", "best attack"], rows), _picture(found)]
    parts += ["<h2>What these figures do not cover</h2>", _list(found.not_covered + _always(found))]
    parts += ["<h2>Notes</h2>", _list(found.notes)] if found.notes else []
    first, _, link, _, check = _check(found)
    parts += [
        "<h2>How to check it</h2>",
        f"<p>{_html(first)} <code>{_html(link.strip('`'))}</code>.</p>",
        f"<p>{_with_code(check)}</p>",
        '<p class="signature">Place, date, signature</p>',
    ]
    body = ['<article class="sheet">', *parts, "</article>"]
    return page(f"Privacy statement: {found.run}", Markup("\n".join(body)))


def _html(text: Any) -> str:
    return html.escape(str(text))


def _with_code(text: str) -> str:
    """HTML of a text whose parts in backquotes are code."""
    parts = text.split("`")
    return "".join(f"<code>{_html(part)}</code>" if place % 2 else _html(part) for place, part in enumerate(parts))


def _table(head: list[str], rows: list[list[str]]) -> str:
    def line(cells: list[str], tag: str) -> str:
        return "<tr>" + "".join(f'<{tag} class="text">{_html(cell)}</{tag}>' for cell in cells) + "</tr>"

    return '<div class="wide"><table>' + line(head, "th") + "".join(line(row, "td") for row in rows) + "</table></div>"


def _list(items: list[str]) -> str:
    return '<ul class="words">' + "".join(f"<li>{_with_code(item)}</li>" for item in items) + "</ul>"


def _picture(found: Statement) -> str:
    """Bars of the best attacks, between a coin and certainty."""
    left, width, row = 90, 420, 34
    height = 30 + row * len(found.observers)
    parts = [
        f'<svg viewBox="0 0 600 {height}" role="img" aria-label="The best attack of each observer" '
        'style="max-width: 38rem; width: 100%; font-size: 13px; fill: var(--ink)">',
        f'<text x="{left}" y="14">50 % (a coin)</text>',
        f'<text x="{left + width}" y="14" text-anchor="end">100 % (certainty)</text>',
    ]
    for place, one in enumerate(found.observers):
        top = 24 + row * place
        length = max(1.0, (one.attack - 0.5) * 2 * width)
        parts += [
            f'<text x="0" y="{top + 16}">{_html(one.name)}</text>',
            f'<rect style="fill: var(--rule)" x="{left}" y="{top}" width="{width}" height="22" rx="3"/>',
            f'<rect class="bar" style="fill: var(--s1)" x="{left}" y="{top}" width="{length:.1f}" height="22" rx="3"/>',
            f'<text x="{left + width + 10}" y="{top + 16}">{attack_words(one.attack, PERCENT)}</text>',
        ]
    return "".join(parts) + "</svg>"


FORMATS: dict[str, Callable[[Statement], str]] = {".md": markdown, ".html": hypertext}
"""Writers of a statement, by the suffix of the file."""
