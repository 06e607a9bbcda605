"""Pages of a reproduced table: Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sordino.errors import writing
from sordino.papers.claims import TableRow, rows_of
from sordino.papers.description import Variant
from sordino.report.wording import epsilon_words, latex_text, markdown_table
from sordino.study.verdict import Difference
from sordino.util.files import write_whole

Document = dict[str, Any]
WHAT = {
    "personal": "accuracy of the clients' own models in %",
    "global": "accuracy of the common model in %",
    "start": "accuracy of the model at round start in %",
    "loss": "cross-entropy of the clients' own models on their test records",
    "rounds": "rounds to the target accuracy",
    "seconds": "time of a round, as a multiple",
    "personal-share": "parameters that stay personal in %",
}
FIELDS = (
    *("row", "column", "method", "measure", "nominal", "published", "paper", "paper_low", "paper_high"),
    *("paper_epsilon", "sound", "sound_low", "sound_high", "epsilon", "delta", "unit", "seeds", "runs"),
)
NEVER = "not reached"


def folder_of(store: Path, paper: str) -> Path:
    """Folder in which a store keeps a paper's reproduced tables."""
    return store / "papers" / paper


def write(document: Document, store: Path) -> Path:
    """Write a reproduced table's document, page, CSV and LaTeX; returns the path of the page."""
    stem = folder_of(store, document["paper"]) / f"{document['table']}-{document['scale']}"
    page = stem.with_suffix(".md")
    with writing(page):
        write_whole(page, markdown(document))
        write_whole(stem.with_suffix(".json"), json.dumps(document, indent=1))
        write_whole(stem.with_suffix(".tex"), latex(document))
        with stem.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(_record(row, document["seeds"]) for row in rows_of(document))
    return page


def markdown(document: Document) -> str:
    """Page of a reproduced table in Markdown."""
    paper, table, scale = document["paper"], document["table"], document["scale"]
    what = WHAT[document["measure"]]
    lines = [
        f"# {paper}, {table}: {document['title']}",
        f"The paper's claim: {document['claim']}",
        f"**{document['verdict']}**",
        f"Scale `{scale}`: {_scale(document)} Printed: {what}. "
        + "".join(f"{said} " for said in map(document.get, ("published_note", "note", "epsilon_note")) if said)
        + f"`as published` is the published mechanism at the published noise, with its true epsilon for the "
        f"{document['observer']}; `sound` is ours at equal true epsilon, mean and 95 % interval over "
        f"{document['seeds']} seeds. Version {document['version']}.",
        f"    {document['command']}",
        *(_table(document, column) for column in _columns(document)),
    ]
    if document["differences"]:
        lines += ["## The tests", _differences(document)]
    if document.get("curves"):
        lines += ["## Curves from budgets to thresholds", _curves(document["curves"])]
    if document["figures"]:
        lines += ["## Printed numbers that follow from formulas", _figures(document["figures"])]
    if document["tuning"]:
        lines += ["## What tuning would have cost", *document["tuning"]]
    lines += [f"![{table}]({table}-{scale}.png)"]
    return "\n\n".join(lines) + "\n"


def _scale(document: Document) -> str:
    departs = [one["departs"] for one in document["settings"].values() if one["departs"]]
    return " ".join(dict.fromkeys(departs)) or "the published setting."


def _columns(document: Document) -> list[str]:
    return list(dict.fromkeys(row.column for row in rows_of(document)))


def _table(document: Document, column: str) -> str:
    """One column of the paper's table, a line for each of its rows."""
    head = ["", "published", "as published", "true epsilon", "sound", "interval", "epsilon"]
    body = [
        [
            f"**{row.row}**" if row.ours else row.row,
            printed_text(row),
            "-" if row.not_as_published else measured_text(row, "paper"),
            "-" if row.not_as_published else epsilon_text(row.paper_epsilon),
            measured_text(row, "sound"),
            interval(row.sound_interval, row.measure),
            epsilon_text(row.epsilon),
        ]
        for row in rows_of(document)
        if row.column == column
    ]
    reasons = dict.fromkeys(
        row.not_as_published for row in rows_of(document) if row.column == column and row.not_as_published
    )
    answer = document["answers"].get(column, "not tested")
    why = document["untested"].get(column)
    told = f"Claim at equal true epsilon: {answer}{': ' + why if why else ''}."
    return "\n\n".join(
        [f"## {column}", markdown_table(head, body), told, *(f"Not as published: {one}." for one in reasons)]
    )


def _differences(document: Document) -> str:
    head = ["column", "method", "against", "better by", "95 % interval", "verdict"]
    body = [
        [
            found.at["column"],
            found.method,
            found.against,
            f"{100 * found.mean:+.2f}",
            "-" if found.low is None or found.high is None else f"{100 * found.low:+.2f} to {100 * found.high:+.2f}",
            f"{found.verdict} ({found.seeds} seed{'s' if found.seeds != 1 else ''})",
        ]
        for found in map(Difference.from_dict, document["differences"])
    ]
    return markdown_table(head, body)


def _curves(curves: Sequence[Document]) -> str:
    head = ["row", "curve", "budgets", "R^2", "points", "fitted on"]
    body = [
        [
            one["row"],
            one["kind"],
            f"{one['low']:g} to {one['high']:g}",
            "-" if one["determination"] is None else f"{one['determination']:.4f}",
            ", ".join(f"{epsilon:g}: {clip:g}" for epsilon, clip in one["points"]) if one["points"] else "not printed",
            one["simulated"]["data"] if one["simulated"] else "not printed",
        ]
        for one in curves
    ]
    return markdown_table(head, body)


def _figures(figures: Sequence[Document]) -> str:
    body = [
        [
            one["name"],
            f"{one['published']:g}",
            f"{one['ours']:.6g}",
            "holds" if one["holds"] else "differs",
            one["note"],
        ]
        for one in figures
    ]
    return markdown_table(["what", "printed", "ours", "", ""], body)


def figure(value: float | None, measure: str) -> str:
    """Format a number as its table prints it."""
    if value is None:
        return "-"
    if measure == "loss":
        return f"{value:.3f}"
    if measure == "seconds":
        return f"{value:.2f}x"
    if measure == "personal-share":
        return f"{value:.2f}"
    return f"{value:.1f}"


def printed_text(row: TableRow) -> str:
    """Format the number that the paper prints, with its own digits."""
    if row.published is None:
        return "-"
    return f"{row.published:g}{'x' if row.measure == 'seconds' else ''}"


def interval(found: Sequence[float] | None, measure: str) -> str:
    """Format an interval."""
    return "-" if found is None else f"{figure(found[0], measure)} to {figure(found[1], measure)}"


def epsilon_text(epsilon: float | None) -> str:
    """Format a true epsilon, rounded up."""
    return epsilon_words(epsilon, "infinite")


def measured_text(row: TableRow, variant: Variant) -> str:
    """Format the figure of a row in a variant; a target may not have been reached with every seed."""
    if row.measure == "rounds" and row.figure(variant) is None and row.by_seed(variant):
        return NEVER
    return figure(row.figure(variant), row.measure)


def _record(row: TableRow, seeds: int) -> Document:
    """A row of the CSV; an infinite epsilon is written inf."""
    ends = {
        f"{variant}_{end}": None if (found := row.interval(variant)) is None else found[place]
        for variant in ("sound", "paper")
        for place, end in enumerate(("low", "high"))
    }
    infinite: dict[str, float | None] = {"epsilon": _infinite(row.epsilon)}
    infinite["paper_epsilon"] = None if row.not_as_published else _infinite(row.paper_epsilon)
    record = {**row.to_dict(), **ends, **infinite, "seeds": seeds, "runs": " ".join(row.runs)}
    return {name: record[name] for name in FIELDS}


def _infinite(epsilon: float | None) -> float:
    return math.inf if epsilon is None else epsilon


def latex(document: Document) -> str:
    """Format the table for LaTeX, with the package booktabs."""
    columns = _columns(document)
    rows = list(dict.fromkeys(row.row for row in rows_of(document)))
    at = {(row.row, row.column): row for row in rows_of(document)}
    lines = [
        f"% {document['command']}",
        "% published / as published (true epsilon) / sound (half width of the 95 % interval)",
        rf"\begin{{tabular}}{{l{'c' * len(columns)}}}",
        r"\toprule",
        " & ".join(["", *(latex_text(column) for column in columns)]) + r" \\",
        r"\midrule",
        *(" & ".join([latex_text(row), *(_tex_cell(at[row, column]) for column in columns)]) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _tex_cell(row: TableRow) -> str:
    measure = row.measure
    paper = "--" if row.not_as_published else figure(row.paper, measure)
    if not row.not_as_published:
        paper += " (" + epsilon_words(row.paper_epsilon, r"$\infty$") + ")"
    sound = figure(row.sound, measure)
    if row.sound_interval is not None:
        low, high = row.sound_interval
        sound += rf" $\pm$ {figure((high - low) / 2, measure)}"
    return f"{printed_text(row)} / {paper} / {sound}"
