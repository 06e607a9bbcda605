"""Everything that a paper needs of a comparison, in one folder: tidy tables, pictures and a bibliography.

Each table is a CSV file and, where pyarrow is installed, a Parquet file of the same name: one line for each method,
run, round, client, or client and round. A field is empty where the figure does not exist; an infinite epsilon is `inf`.
"""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sordino.errors import UserError, check_writable, writing
from sordino.privacy.views import VIEWS
from sordino.report.citations import bibliography
from sordino.report.exports import records
from sordino.report.figures import check_picture, clients_picture, comparison_picture
from sordino.report.wording import method_name
from sordino.store.run_summary import Summary
from sordino.store.store import Store
from sordino.study.compare import Comparison, ComparisonRow
from sordino.study.sweep import contender
from sordino.trained.models import metrics_in

BIBLIOGRAPHY = "results.bib"
PICTURES = ("pdf", "png")
"""Formats of the pictures, where matplotlib is installed."""
Table = list[dict[str, Any]]


def check_folder(folder: Path | None) -> None:
    """Refuse a folder that cannot be written into, before the work that it is for. No file is left there."""
    check_writable(None if folder is None else folder / BIBLIOGRAPHY)


def export_study(found: Comparison, store: Store, folder: Path) -> list[Path]:
    """Write a comparison into a folder; returns the files.

    Args:
        found: the comparison.
        store: store that holds its runs.
        folder: folder, which is made; files of an earlier export are replaced.
    """
    clients = _clients(found, store)
    tables = {
        "methods": records(found.rows, found.sweep),
        "runs": list(_runs(found, store)),
        "rounds": list(_rounds(found)),
        "clients": clients,
        "client_rounds": list(_client_rounds(found, store)),
        "differences": [_flat(one.to_dict(), found.sweep) for one in found.differences],
    }
    written = []
    for name, lines in tables.items():
        if lines:  # one method alone has no differences
            written += _write_table(lines, folder / name)
    bib = folder / BIBLIOGRAPHY
    with writing(bib):
        bib.write_text(bibliography([contender(row.method)[0] for row in found.rows]), encoding="utf-8")
    return [*written, bib, *_draw(found, clients, folder)]


def _about(row: ComparisonRow, sweep: Sequence[str]) -> dict[str, Any]:
    """Columns that tell the rows of a comparison apart."""
    return {"method": row.method, "variant": row.variant, "unit": str(row.unit)} | {key: row.at[key] for key in sweep}


def _each_run(found: Comparison) -> Iterator[tuple[ComparisonRow, int, dict[str, Any]]]:
    """Each run: its row, its place among the row's seeds, and the columns that tell it apart."""
    for row in found.rows:
        for place, one in enumerate(row.by_seed):
            yield row, place, {**_about(row, found.sweep), "seed": one.seed, "run": one.run}


def _runs(found: Comparison, store: Store) -> Iterator[dict[str, Any]]:
    """One line for each run."""
    for row, place, about in _each_run(found):
        summary = Summary.from_dict(store.get(row.runs[place]).summary or {})
        one = row.by_seed[place]
        epsilon = {f"epsilon_{view}": _epsilon(summary.epsilon[view]) for view in VIEWS}
        figures = {key: value for key, value in one.to_dict().items() if key not in about}
        size = {"clients": summary.clients, "parameters": summary.parameters, "rounds_planned": summary.rounds}
        rest = {"rounds": summary.rounds_done, "noise_multiplier": summary.noise_multiplier, "delta": summary.delta}
        yield about | figures | epsilon | rest | size


def _rounds(found: Comparison) -> Iterator[dict[str, Any]]:
    """One line for each round of each run, counted from one."""
    for row, place, about in _each_run(found):
        for one in row.curves[place]:
            figures = {key: value for key, value in one.items() if key not in ("run", "round", "bytes", "clip")}
            yield about | {"round": one["round"] + 1, "threshold": one["clip"], "upload_bytes": one["bytes"]} | figures


def _clients(found: Comparison, store: Store) -> Table:
    """One line for each client of each run: all metrics of what it predicts with in the end, and as `score` the one by
    which its task compares clients."""
    lines = []
    for row, place, about in _each_run(found):
        run = store.get(row.runs[place])
        if run.models is None or run.gone:
            raise UserError(f"The models of {run.run!r} have been removed, and with them the clients' figures.")
        described, metrics = metrics_in(run.models.check(store.path(run.run), "The file of models"), run.run)
        task = described.meaning.task
        for name, figures in zip(described.clients, metrics, strict=True):
            known = zip(task.metrics, figures.tolist(), strict=True)
            measured = {metric: None if np.isnan(value) else value for metric, value in known}
            lines.append(about | {"client": name, "score": measured[task.score]} | measured)
    return lines


def _client_rounds(found: Comparison, store: Store) -> Iterator[dict[str, Any]]:
    """One line for each client and evaluated round of each run: accuracies of its personal model after training, of the
    model at the start of the round and of the server's model."""
    for row, place, about in _each_run(found):
        for one in store.clients(row.runs[place]):
            figures = {key: value for key, value in one.items() if key not in ("run", "round", "client")}
            yield about | {"round": one["round"] + 1, "client_number": one["client"]} | figures


def _flat(document: dict[str, Any], sweep: Sequence[str]) -> dict[str, Any]:
    """Document of a difference with the swept keys in columns of their own."""
    at = document.pop("at")
    return {key: at[key] for key in sweep} | document


def _epsilon(value: float | None) -> float:
    return float("inf") if value is None else value


def _write_table(lines: Table, path: Path) -> list[Path]:
    """Write a table as CSV and, where pyarrow is installed, as Parquet; `path` has no suffix."""
    columns = list(dict.fromkeys(key for line in lines for key in line))
    written = [path.with_suffix(".csv")]
    with writing(written[0]), written[0].open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(lines)
    if importlib.util.find_spec("pyarrow") is not None:
        import pyarrow as pa
        from pyarrow import parquet

        written.append(path.with_suffix(".parquet"))
        with writing(written[1]):
            content = {name: _column([line.get(name) for line in lines]) for name in columns}
            parquet.write_table(pa.table(content), written[1])
    return written


def _column(values: list[Any]) -> list[Any]:
    """Values of one type: texts where a swept key has values of several."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} or len(kinds) <= 1:
        return [float(value) if value is not None and float in kinds else value for value in values]
    return [None if value is None else str(value) for value in values]


def _draw(found: Comparison, clients: Table, folder: Path) -> list[Path]:
    """Draw accuracies over the rounds or a sweep, and those of all clients; nothing where matplotlib is missing."""
    if not check_picture(folder / f"comparison.{PICTURES[0]}"):
        return []
    groups: dict[str, list[float]] = {}
    names = {(row.method, *map(str, row.at.values())): row for row in found.rows}
    for line in clients:
        row = names[line["method"], *(str(line[key]) for key in found.sweep)]
        at = "".join(f", {key} {value}" for key, value in row.at.items())
        if line["score"] is not None:
            groups.setdefault(f"{method_name(row)}{at}", []).append(line["score"])
    made = []
    for kind in PICTURES:
        comparison_picture(found.rows, found.sweep, folder / f"comparison.{kind}")
        clients_picture(groups, folder / f"clients.{kind}")
        made += [folder / f"comparison.{kind}", folder / f"clients.{kind}"]
    return made
