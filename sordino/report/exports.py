"""A comparison's rows for other programs and for papers: flat records, CSV, Markdown, LaTeX."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sordino.errors import writing
from sordino.report.terminal.results import OBSERVERS
from sordino.report.wording import epsilon_words, latex_text, markdown_table, method_name
from sordino.study.compare import FAIRNESS, FIGURES, ComparisonRow, OverSeeds

Rows = Sequence[ComparisonRow]


def records(rows: Rows, sweep: Sequence[str], by_seed: bool = False) -> list[dict[str, Any]]:
    """Flat records, one per row, or one per run where `by_seed` is set. An infinite epsilon is the number infinity."""
    found = []
    for row in rows:
        about = {"method": row.method, "variant": row.variant, "unit": row.unit}
        about |= {key: row.at[key] for key in sweep}
        cost = {f"epsilon_{view}": _number(row.epsilon[view]) for view in OBSERVERS} | {"delta": row.delta}
        if by_seed:
            found += [{**about, **one.to_dict(), **_budget(cost, about)} for one in row.by_seed]
            continue
        figures: dict[str, Any] = {}
        for name in FIGURES:
            figure = row.accuracy[name]
            figures[f"{name}_mean"] = None if figure is None else figure.mean
            figures[f"{name}_spread"] = None if figure is None else figure.spread
        for name in ("auc", *FAIRNESS):
            figure = row.auc if name == "auc" else row.fairness.get(name)
            figures[f"{name}_mean"] = None if figure is None else figure.mean
            figures[f"{name}_spread"] = None if figure is None else figure.spread
        sent = {"upload_bytes": row.upload_bytes, "download_bytes": row.download_bytes, "seconds": row.seconds}
        found.append({**about, "seeds": row.seeds, **figures, **cost, **sent, "runs": " ".join(row.runs)})
    return found


def _budget(cost: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in cost.items() if key not in about}


def _number(epsilon: float | None) -> float:
    return float("inf") if epsilon is None else epsilon


def write_csv(rows: Rows, sweep: Sequence[str], path: Path) -> None:
    """Write the flat records of a comparison into a CSV file."""
    found = records(rows, sweep)
    with writing(path), path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(found[0]))
        writer.writeheader()
        writer.writerows(found)


def markdown(rows: Rows, sweep: Sequence[str]) -> str:
    """Format a comparison as a Markdown table."""
    head, body = cells(rows, sweep, plus_minus="±", infinity="∞", name=lambda text: f"`{text}`")
    return markdown_table(head, body)


def latex(rows: Rows, sweep: Sequence[str]) -> str:
    """Format a comparison as a LaTeX table with the rules of the package booktabs."""
    head, body = cells(rows, sweep, plus_minus=r"$\pm$", infinity=r"$\infty$", name=latex_text, nothing="--")
    columns = "l" * (1 + len(sweep)) + "r" * (len(head) - 1 - len(sweep))
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", " & ".join(map(latex_text, head)) + r" \\", r"\midrule"]
    lines += [" & ".join(line) + r" \\" for line in body]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def cells(
    rows: Rows,
    sweep: Sequence[str],
    plus_minus: str,
    infinity: str,
    name: Callable[[str], str],
    nothing: str = "–",
) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of a table: accuracies in percent, mean and spread over seeds, then epsilons.

    Args:
        rows: rows of the comparison.
        sweep: keys that the comparison goes through, each a column.
        plus_minus: sign between mean and spread.
        infinity: text for an infinite epsilon.
        name: formats names of methods and values of keys.
        nothing: text for a model that does not exist.
    """
    head = ["method", *sweep, "personal", "worst", "start", "global", *(f"epsilon {view}" for view in OBSERVERS)]

    def accuracy(figure: OverSeeds | None) -> str:
        return nothing if figure is None else f"{100 * figure.mean:.1f}{plus_minus}{100 * figure.spread:.1f}"

    body = []
    for row in rows:
        figures = [accuracy(row.accuracy[figure]) for figure in FIGURES]
        costs = [epsilon_words(row.epsilon[view], infinity) for view in OBSERVERS]
        body.append([name(method_name(row)), *(name(str(row.at[key])) for key in sweep), *figures, *costs])
    return head, body
