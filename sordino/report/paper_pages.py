"""A repeated table for people: Markdown, CSV, LaTeX, and the index of all that a store has."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sordino.errors import UserError, writing
from sordino.experiment.sweep import contender
from sordino.files import write_whole
from sordino.papers.description import SCALES, Paper
from sordino.report.wording import epsilon_words, latex_text, markdown_table

Document = dict[str, Any]
WHAT = {
    "personal": "accuracy of the clients' own models in %",
    "global": "accuracy of the common model in %",
    "start": "accuracy of the model at round start in %",
    "loss": "cross-entropy of the clients' own models on their test records",
    "rounds": "rounds to the target accuracy",
    "seconds": "time of a round, as a multiple",
}
FIELDS = (
    *("row", "column", "method", "measure", "nominal", "published", "paper", "paper_low", "paper_high"),
    *("paper_epsilon", "sound", "sound_low", "sound_high", "epsilon", "delta", "unit", "seeds", "runs"),
)
NEVER = "not reached"
BEGIN, END = "<!-- index -->", "<!-- end of index -->"
"""The marks of a page between which the index stands."""


def folder_of(store: Path, paper: str) -> Path:
    """Where a store keeps what came of a paper."""
    return store / "papers" / paper


def write(document: Document, store: Path) -> Path:
    """Write a repeated table's document, page, CSV and LaTeX; the path of the page."""
    stem = folder_of(store, document["paper"]) / f"{document['table']}-{document['scale']}"
    page = stem.with_suffix(".md")
    with writing(page):
        write_whole(page, markdown(document))
        write_whole(stem.with_suffix(".json"), json.dumps(document, indent=1))
        write_whole(stem.with_suffix(".tex"), latex(document))
        with stem.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(_record(row, document["seeds"]) for row in document["rows"])
    return page


def markdown(document: Document) -> str:
    """The page of a repeated table."""
    paper, table, scale = document["paper"], document["table"], document["scale"]
    what = WHAT[document["measure"]]
    lines = [
        f"# {paper}, {table}: {document['title']}",
        f"The paper's claim: {document['claim']}",
        f"**{document['verdict']}**",
        f"Scale `{scale}`: {_scale(document)} Printed: {what}. "
        + (f"{document['published_note']} " if document["published_note"] else "")
        + f"`as published` is the published mechanism at the published noise, with its true epsilon for the "
        f"{document['observer']}; `sound` is ours at equal true epsilon, mean and 95 % interval over "
        f"{document['seeds']} seeds. Version {document['version']}.",
        f"    {document['command']}",
        *(_table(document, column) for column in _columns(document)),
    ]
    if document["differences"]:
        lines += ["## The tests", _differences(document)]
    if document["figures"]:
        lines += ["## Printed numbers that follow from formulas", _figures(document["figures"])]
    if document["tuning"]:
        lines += ["## What tuning would have cost", *document["tuning"]]
    lines += [f"![{table}]({table}-{scale}.png)"]
    return "\n\n".join(lines) + "\n"


def _scale(document: Document) -> str:
    if document["scale"] == "paper":
        return "the published setting."
    departs = [one["departs"] for one in document["settings"].values() if one["departs"]]
    return " ".join(dict.fromkeys(departs)) or "the published setting."


def _columns(document: Document) -> list[str]:
    return list(dict.fromkeys(row["column"] for row in document["rows"]))


def _table(document: Document, column: str) -> str:
    """One column of the paper's table, a line for each of its rows."""
    head = ["", "published", "as published", "true epsilon", "sound", "interval", "epsilon"]
    body = [
        [
            f"**{row['row']}**" if row["ours"] else row["row"],
            figure(row["published"], row["measure"]),
            "-" if row["not_as_published"] else _figure_or_never(row, "paper"),
            "-" if row["not_as_published"] else epsilon_text(row["paper_epsilon"]),
            _figure_or_never(row, "sound"),
            interval(row["sound_interval"], row["measure"]),
            epsilon_text(row["epsilon"]),
        ]
        for row in document["rows"]
        if row["column"] == column
    ]
    reasons = dict.fromkeys(
        row["not_as_published"] for row in document["rows"] if row["column"] == column and row["not_as_published"]
    )
    answer = document["answers"].get(column, "not tested")
    told = f"Claim at equal true epsilon: {answer}."
    return "\n\n".join(
        [f"## {column}", markdown_table(head, body), told, *(f"Not as published: {one}." for one in reasons)]
    )


def _differences(document: Document) -> str:
    lower = document["measure"] in ("loss", "rounds")
    head = ["column", "method", "against", "better by" if lower else "above by", "95 % interval", "verdict"]
    body = [
        [
            found["at"]["column"],
            found["method"],
            found["against"],
            f"{100 * found['mean']:+.2f}",
            "-" if found["low"] is None else f"{100 * found['low']:+.2f} to {100 * found['high']:+.2f}",
            f"{found['verdict']} ({found['seeds']} seed{'s' if found['seeds'] != 1 else ''})",
        ]
        for found in document["differences"]
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
    """A number as its table prints it."""
    if value is None:
        return "-"
    if measure == "loss":
        return f"{value:.3f}"
    if measure == "seconds":
        return f"{value:.2f}x"
    return f"{value:.1f}"


def interval(found: Sequence[float] | None, measure: str) -> str:
    """An interval as a table prints it."""
    return "-" if found is None else f"{figure(found[0], measure)} to {figure(found[1], measure)}"


def epsilon_text(epsilon: float | None) -> str:
    """A true epsilon, never below the truth."""
    return epsilon_words(epsilon, "infinite")


def _figure_or_never(row: Document, variant: str) -> str:
    if row["measure"] == "rounds" and row[variant] is None and row[f"{variant}_by_seed"]:
        return NEVER
    return figure(row[variant], row["measure"])


def _record(row: Document, seeds: int) -> Document:
    """A row of the CSV; an infinite epsilon is written inf."""
    ends = {
        f"{variant}_{end}": None if row[f"{variant}_interval"] is None else row[f"{variant}_interval"][place]
        for variant in ("sound", "paper")
        for place, end in enumerate(("low", "high"))
    }
    infinite: dict[str, float | None] = {"epsilon": _infinite(row["epsilon"])}
    infinite["paper_epsilon"] = None if row["not_as_published"] else _infinite(row["paper_epsilon"])
    found = {**row, **ends, **infinite, "seeds": seeds, "runs": " ".join(row["runs"])}
    return {name: found[name] for name in FIELDS}


def _infinite(epsilon: float | None) -> float:
    return math.inf if epsilon is None else epsilon


def latex(document: Document) -> str:
    """The table for a paper, with the package booktabs."""
    columns = _columns(document)
    rows = list(dict.fromkeys(row["row"] for row in document["rows"]))
    at = {(row["row"], row["column"]): row for row in document["rows"]}
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


def _tex_cell(row: Document) -> str:
    measure = row["measure"]
    paper = "--" if row["not_as_published"] else figure(row["paper"], measure)
    if not row["not_as_published"]:
        paper += " (" + epsilon_words(row["paper_epsilon"], r"$\infty$") + ")"
    sound = figure(row["sound"], measure)
    if row["sound_interval"] is not None:
        low, high = row["sound_interval"]
        sound += rf" $\pm$ {figure((high - low) / 2, measure)}"
    return f"{figure(row['published'], measure)} / {paper} / {sound}"


def documents(store: Path) -> dict[tuple[str, str], Document]:
    """What a store has of each paper's table: of the largest scale that was run."""
    found: dict[tuple[str, str], Document] = {}
    for scale in SCALES:  # larger ones win
        for path in sorted((store / "papers").glob(f"*/*-{scale}.json")):
            try:
                document = json.loads(path.read_text(encoding="utf-8"))
                _line(document)  # what the index will tell of it
                found[document["paper"], document["table"]] = document
            except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
                raise UserError(f"{path} cannot be read: delete it and repeat the table.") from error
    return found


def index(papers: dict[str, Paper], store: Path) -> str:
    """The page of all papers: claim, published, ours as published, ours at equal true epsilon, verdict, command."""
    found = documents(store)
    parts = []
    for name, paper in papers.items():
        mine = [(table, found.get((name, table))) for table in paper.tables]
        head = ["", "claim", "published", "as published (true epsilon)", "sound, at equal true epsilon", "verdict"]
        body = [_line(document) for _, document in mine if document is not None]
        lacking = [table for table, document in mine if document is None]
        parts.append(f"### {paper.title}\n\n{paper.citation}")
        if body:
            parts.append(markdown_table(head, body))
            main = found.get((name, paper.main))
            if main is not None:
                parts.append(f"    {main['command']}")
        if lacking:
            parts.append(f"Not run in this store: {', '.join(lacking)}.")
    return "\n\n".join(parts) + "\n"


def _line(document: Document) -> list[str]:
    """A repeated table in one line of the index."""
    name = f"{document['table']} (`{document['scale']}`)"
    cells = [name, document["claim"], *_headline(document), document["verdict"]]
    return [cell.replace("|", r"\|") for cell in cells]


def placed(text: str, written: str) -> str:
    """A page with the index in the place that it marks; a page without marks is the index alone."""
    before, begin, rest = written.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n\n{text}\n{end}{after}" if begin and end else text


def _headline(document: Document) -> list[str]:
    """The column by which a table is told in one line: the proposed method and the best of its rivals, three times."""
    rows = [row for row in document["rows"] if row["column"] == document["headline"]]
    ours = next((row for row in rows if row["ours"]), rows[0])
    told = []
    lower = ours["measure"] in ("loss", "rounds", "seconds")
    for key in ("published", "paper", "sound"):
        rivals = [row for row in rows if not row["ours"] and row[key] is not None and not _alone(row)]
        best = sorted(rivals, key=lambda row: row[key] if lower else -row[key])[:1]
        shown = [_told(row, key) for row in (ours, *best)]
        told.append(f"{document['headline']}: {'; '.join(shown)}" if ours[key] is not None else "-")
    return told


def _alone(row: Document) -> bool:
    """Whether a row is training alone, which is no rival, tuned or not."""
    return contender(row["method"])[0] == "local"


def _told(row: Document, key: str) -> str:
    text = f"{row['row']} {figure(row[key], row['measure'])}"
    if key == "paper":
        return f"{text} ({epsilon_text(row['paper_epsilon'])})"
    if key == "sound" and row["sound_interval"] is not None:
        return f"{text} [{interval(row['sound_interval'], row['measure'])}], epsilon {epsilon_text(row['epsilon'])}"
    return text
