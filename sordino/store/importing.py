"""Import of the spending of another store's runs, so that it still counts for the same people.

Models, curves and ledgers stay where they are. Every run's spending becomes a row that counts in sums over runs and
against `budget_over_runs`: whose data it used, what it protected, how it dealt the records if that is known, and what
it counts as. A run that was not finished counts as planned; where an earlier version of Sordino kept no plan, as if it
had gone on for all of its rounds as it did.

A run that was resumed in two copies of a store may have made different releases in each: both count. They are the same
where one ledger begins with the other and the run repeats itself, or where one end was copied.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, cast

from sordino.data import load
from sordino.data.federate import fingerprint
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.privacy.unit import Unit
from sordino.store.database import DATABASE, VERSION, version_of
from sordino.store.journal import DamagedJournalError
from sordino.store.ledger_rows import ledger_of
from sordino.store.spending import Spent, larger, spending_of_run, spends, within
from sordino.store.store import LINKS, RunRow, Store

READING = ("label", "labels", "shape", "table", "drop", "categorical")
"""Keys of an experiment that say how a user's own files are read."""
LINK_DIGITS = 8
Branch = tuple[RunRow, Spent, str | None]
"""A run of another store, its spending, and the beginnings of its ledger's links."""


class Imported(TypedDict):
    """One run whose spending was imported."""

    run: str
    """Its name in the other store."""
    name: str
    """Its name here."""
    unit: Unit
    as_planned: bool
    """Whether it was not finished there, and counts as planned."""
    beside: list[str]
    """Names of runs here that are the same run with other releases, resumed in another copy of its store: all count."""


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
    """Import the spending of all runs of the store `old` into the store `new`; runs that it has already, with the same
    releases, stay as they are."""
    if not (old / DATABASE).is_file():
        raise UserError(f"There is no store in {old}: name the folder of one, in which {DATABASE} lies.")
    if old.resolve() == new.resolve():
        raise UserError(f"The store {old} cannot be imported into itself: name another one with --store.")
    with contextlib.ExitStack() as closing:
        source = Store(old, must_exist=True, earlier=version_of(old) < VERSION)
        closing.callback(source.close)
        # All of it is read before anything is written.
        rows = [
            (replace(row, people=_people(row)), spending_of_run(row, source), links_of(row, source))
            for row in reversed(source.all())
        ]
        store = Store(new)
        closing.callback(store.close)
        with store.admitting():
            return import_branches(rows, old, store)


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


def links_of(row: RunRow, store: Store) -> str | None:
    """Beginnings of the links of a run's ledger, in hexadecimal; None where they are not known. Two ledgers are equal
    as far as these are: each link depends on all rows before, and these on what earlier rounds released."""
    if row.state == "imported":
        return cast(str | None, (row.summary or {}).get(LINKS))
    try:
        return "".join(link.hex()[:LINK_DIGITS] for link in ledger_of(row, store).links)
    except DamagedJournalError:
        return None


def contains(row: RunRow, links: str | None, other: RunRow, others: str | None) -> bool:
    """Whether all releases of the `other` branch of a run are among those of the branch `row`.

    Branches arise where a run is resumed in several copies of a store. Equal rows mean equal releases only where the
    run repeats itself. Otherwise only one and the same end does, which its time tells.
    """
    if _finished(row) and _finished(other) and row.seconds == other.seconds:
        return True
    repeats = not (row.nonce or other.nonce) and row.configuration.get("noise", "float") == "float"
    return repeats and links is not None and others is not None and links.startswith(others)


def _finished(row: RunRow) -> bool:
    """Whether a run has ended; an imported one has an epsilon only then."""
    return row.has_result or (row.state == "imported" and "epsilon" in (row.summary or {}))


def _covers(counted: Spent, spent: Spent) -> bool:
    """Whether a run counts here for at least what it has spent."""
    promised = [one.get("promised", [0.0, 0.0]) for one in (spent, counted)]
    return within(spent, counted) and all(less <= more for less, more in zip(*promised, strict=True))


def import_branches(rows: list[Branch], old: Path, store: Store) -> Importing:
    """Store runs that are new to a store, that have spent more than it knows, or that have made other releases."""
    known: dict[tuple[str, float, str], list[RunRow]] = {}
    for row in store.all():
        known.setdefault(row.origin, []).append(row)
    found = Importing({"from": str(old), "store": str(store.folder), "imported": [], "known": [], "without_cost": []})
    for row, spent, links in rows:
        here = known.get(row.origin, [])
        if not spends(spent):
            found["known" if here else "without_cost"].append(row.run)
            continue
        branches = [(one, links_of(one, store), spending_of_run(one, store)) for one in here]
        # What an earlier version imported, which did not keep the links, is taken for the same branch.
        less = [(one, counted) for one, mine, counted in branches if contains(row, links, one, mine) or mine is None]
        # A branch that was stopped before another one counts as planned; it released no more than that.
        earlier = not _finished(row) and any(contains(one, mine, row, links) for one, mine, _ in branches)
        if earlier or any(_covers(counted, spent) for _, counted in less):
            found["known"].append(row.run)
            continue
        former = next(((one, counted) for one, counted in less if one.state == "imported"), None)
        counted = spent if former is None else larger(former[1], spent)
        name = store.take_over(row, {**counted, "deal": spent.get("deal")}, links, former and former[0])
        others = [one.run for one in here if one.run != name]
        found["imported"].append(
            {"run": row.run, "name": name, "unit": row.unit, "as_planned": not row.has_result, "beside": others}
        )
    return found
