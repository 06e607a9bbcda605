"""Import of the spending of another store's runs, so that it still counts for the same people.

Models, curves and ledgers stay where they are. Every run's spending becomes a row that counts in sums over runs and
against `budget_over_runs`: whose data it used, what it protected, how it dealt the records if that is known, and what
it counts as. A run that was not finished counts as planned; where an earlier version of Sordino kept no plan, as if it
had gone on for all of its rounds as it did.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from sordino.data import load
from sordino.data.federate import fingerprint
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.privacy.unit import Unit
from sordino.store.database import DATABASE, VERSION, version_of
from sordino.store.spending import Spent, larger, spending_of_run, spends
from sordino.store.store import RunRow, Store

READING = ("label", "labels", "shape", "table", "drop", "categorical")
"""Keys of an experiment that say how a user's own files are read."""


class Imported(TypedDict):
    """One run whose spending was imported."""

    run: str
    """Its name in the other store."""
    name: str
    """Its name here."""
    unit: Unit
    as_planned: bool
    """Whether it was not finished there, and counts as planned."""


Source = TypedDict("Source", {"from": str})
"""The store that runs were imported from."""


class Importing(Source):
    """Outcome of an import."""

    store: str
    imported: list[Imported]
    known: list[str]
    """Runs whose spending this store had already counted in full."""
    without_cost: list[str]
    """Runs that cost nobody anything."""


def import_spending(old: Path, new: Path) -> Importing:
    """Import the spending of all runs of the store `old` into the store `new`; runs that it has already stay as they
    are."""
    if not (old / DATABASE).is_file():
        raise UserError(f"There is no store in {old}: name the folder of one, in which {DATABASE} lies.")
    if old.resolve() == new.resolve():
        raise UserError(f"The store {old} cannot be imported into itself: name another one with --store.")
    with contextlib.ExitStack() as closing:
        source = Store(old, must_exist=True, earlier=version_of(old) < VERSION)
        closing.callback(source.close)
        # All of it is read before anything is written.
        rows = [(replace(row, people=_people(row)), spending_of_run(row, source)) for row in reversed(source.all())]
        store = Store(new)
        closing.callback(store.close)
        with store.admitting():
            return _take_over(rows, old, store)


def _people(row: RunRow) -> str:
    """Fingerprint of the people whose data a run used, as this version computes it. Up to version 0.3 a user's own
    files were known by a digest of the records read from them: where the files still give the same records, they are
    the same people."""
    folder = row.configuration.get("data")
    if " " not in row.people and isinstance(folder, str) and Path(folder).is_dir():
        with contextlib.suppress(UserError):
            given = {key: row.configuration[key] for key in READING if row.configuration.get(key) is not None}
            experiment = Experiment.make({"data": folder, "method": "local"}, given)
            found = load(folder, None, experiment.reading())
            if fingerprint([], [found.x]) == row.people:
                return found.people
    return row.people


def _take_over(rows: list[tuple[RunRow, Spent]], old: Path, store: Store) -> Importing:
    """Store runs that are new to a store, or that have spent more than it knows."""
    known = {row.origin: row for row in store.all()}
    found = Importing({"from": str(old), "store": str(store.folder), "imported": [], "known": [], "without_cost": []})
    for row, spent in rows:
        here = known.get(row.origin)
        counted = spent if here is None else spending_of_run(here, store)
        most = larger(counted, spent)
        if here is not None and (here.state != "imported" or most == larger(counted, counted)):
            found["known"].append(row.run)
            continue
        if not spends(spent):
            found["without_cost"].append(row.run)
            continue
        name = store.take_over(row, {**most, "deal": spent.get("deal")}, here)
        found["imported"].append({"run": row.run, "name": name, "unit": row.unit, "as_planned": not row.has_result})
    return found
