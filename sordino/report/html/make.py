"""`make_report`: one HTML file about the runs, the comparison or the audit that a user names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sordino.errors import UserError, quoted, writing
from sordino.experiment.defaults import DEFAULT_STORE
from sordino.report.html.audits import audit_page, is_audit
from sordino.report.html.gather import read_document, runs_of_comparison
from sordino.report.html.runs import runs_page
from sordino.store.database import DATABASE
from sordino.store.store import Store
from sordino.study.verdict import PERSONAL
from sordino.util.files import write_whole


def make_report(*what: str | Path, output: str | Path = "report.html", store: str | Path | None = None) -> Path:
    """Write one self-contained HTML file about runs of a store, a comparison, or an audit, and return its path.

    `what` are names of finished runs, or one file of `sordino compare --json` or `sordino audit --json`. The runs of a
    comparison are looked for in the store that they were made in, unless another is named.
    """
    path = Path(output)
    with writing(path):  # a bad path is reported before the work
        if path.is_dir():
            raise ValueError("it is a folder")
    text = page_about([str(one) for one in what], None if store is None else Path(store))
    with writing(path):
        write_whole(path, text)
    return path


def page_about(what: list[str], store: Path | None) -> str:
    """Write the page about what `make_report` is given; a comparison names its `store`, unless one is given."""
    if not what:
        raise UserError("Name a run, or a file of `sordino compare --json`: `sordino runs` lists the runs.")
    files = [one for one in what if one.endswith(".json")]
    if not files:
        return runs_page(what, store or DEFAULT_STORE)
    if len(what) > 1:
        raise UserError("Name either runs or a single .json file: a page cannot show both, or several files.")
    path = Path(files[0])
    if not path.is_file():
        raise UserError(f"There is no file {path}: `sordino compare --json > {path.name}` makes one.")
    document = read_document(path)
    if is_audit(document):
        return audit_page(document, path)
    runs = runs_of_comparison(path)
    if not runs:
        raise UserError(f"{path} holds no comparison and no audit: make one with `sordino compare --json`.")
    folder = store or _store_of(document, path)
    _check_same(document["rows"], folder, path)
    return runs_page(runs, folder, str(document.get("judge") or PERSONAL.name))


def _check_same(rows: list[Mapping[str, Any]], folder: Path, path: Path) -> None:
    """Refuse a store whose runs have the names of the comparison's but other results."""
    store = Store(folder, must_exist=True)
    for row in rows:
        try:
            said, method = float(row["accuracy"]["personal"]["mean"]), str(row["method"])
        except (KeyError, TypeError, ValueError):  # a row that tells nothing to compare
            continue
        results = [store.get(str(run)).result for run in row["runs"]]
        figures = [None if result is None else result.accuracy["personal"] for result in results]
        found = [figure for figure in figures if figure is not None]
        if len(found) < len(results) or not found:  # told of later
            continue
        if not math.isclose(said, sum(found) / len(found), rel_tol=1e-6):
            raise UserError(
                f"The runs of {quoted(method)} in the store {folder} are not those of {path}: their results "
                "differ. Name the comparison's store with --store."
            )


def _store_of(document: Mapping[str, Any], path: Path) -> Path:
    """Find the store of a comparison: the one that it names, or the folder of its file. Another store may have other
    runs of the same names, so only a comparison that names none is looked for in the default one."""
    named = document.get("store")
    places = [path.parent] if named is None else [Path(str(named)), path.parent]
    for folder in places:
        if (folder / DATABASE).exists():
            return folder
    if named is not None:
        raise UserError(f"The store {quoted(named)} of the comparison {path} is not there: name it with --store.")
    return DEFAULT_STORE
