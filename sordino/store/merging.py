"""Merge of stores: runs of other stores become runs of one, with their models, curves, ledgers and spending.

A run is known by its first name, the time of its beginning and its identity. One that is in both stores stays one run:
where it has been taken further in the other store, what it did there takes the place of what this store has of it.
Where that cannot be decided, because each store has releases of it that the other lacks, or where a store has its
spending alone, the spending is imported (`sordino.store.importing`), so that all of it counts, once.

A merge that was interrupted is repeated: the run that it was at counts as planned until it is there as a whole.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypedDict

from sordino.errors import UserError
from sordino.experiment.defaults import AT_SITES, in_store
from sordino.store.checkpoint import remove_leftovers
from sordino.store.database import DATABASE, saving
from sordino.store.importing import Branch, contains, import_branches, links_of
from sordino.store.journal import has_journal, renamed
from sordino.store.spending import spending_of_run
from sordino.store.store import LOCK, RunRow, Store
from sordino.util.files import sync_folder

ARRIVING = ".tmp-arriving-"
"""Beginning of the name of a file while it is copied into a run's folder; what an interrupted merge left is removed
with the run's other leftovers."""


class MergedRun(TypedDict):
    """One run that a merge brought."""

    run: str
    """Its name in the other store."""
    name: str
    """Its name here."""


class Merged(TypedDict):
    """Outcome of a merge."""

    store: str
    merged: list[MergedRun]
    """Runs that are here now, whole."""
    spending: list[MergedRun]
    """Runs whose spending alone was imported."""
    known: list[str]
    """Runs that were here before, by their names there."""


def merge(sources: Sequence[Path], target: Path) -> Merged:
    """Bring all runs of the stores `sources` into the store `target`, which is made where there is none."""
    for folder in sources:
        if not (folder / DATABASE).is_file():
            raise UserError(f"There is no store in {folder}: name the folder of one, in which {DATABASE} lies.")
        if folder.resolve() == target.resolve():
            raise UserError(f"The store {folder} cannot be merged into itself: name another one with --store.")
    found = Merged(store=str(target), merged=[], spending=[], known=[])
    with contextlib.closing(Store(target)) as store, store.admitting():
        for folder in sources:
            with contextlib.closing(Store(folder, must_exist=True)) as source:
                for row in reversed(source.all()):
                    _merge_run(row, source, store, found)
    return found


def _merge_run(row: RunRow, source: Store, store: Store, found: Merged) -> None:
    """Merge one run of another store."""
    if row.state == "running":
        raise UserError(
            f"The run {row.run!r} of {source.folder} is under way: wait for its end, or stop it, and merge again."
        )
    here = [one for one in store.all() if one.origin == row.origin]
    if not here:
        name = store.receive(row, source)
        if not row.gone:
            bring(row, source, store, name)
        found["merged"].append({"run": row.run, "name": name})
        return
    links = links_of(row, source)
    for one in here:
        if not (row.gone or one.gone) and _goes_on(row, links, one, store):
            bring(row, source, store, one.run)
            found["merged"].append({"run": row.run, "name": one.run})
            return
        if row.failed is not None and one.failed is None and one.summary is None:
            store.fail(one.run, row.failed)  # it may tell of records, whichever copy goes on
    branch: Branch = (row, spending_of_run(row, source), links)
    told = import_branches([branch], source.folder, store)
    found["known"] += [*told["known"], *told["without_cost"]]
    found["spending"] += [{"run": one["run"], "name": one["name"]} for one in told["imported"]]


def _goes_on(row: RunRow, links: str | None, here: RunRow, store: Store) -> bool:
    """Whether the run `row` of another store is the unfinished run `here`, taken further."""
    if here.summary is not None:
        return False
    if here.failed is not None and here.failed != row.failed:  # that it failed must stay known
        return False
    if here.sent and here.checkpoint is None and not has_journal(store.path(here.run), 0):  # nothing of it is here
        # A copy from before it was sent to a cluster knows nothing of what it may have done there.
        return not here.begun or row.sent or row.has_result or bool(links)
    mine = links_of(here, store)
    if row.sent and not mine and here.begun is False:  # it was sent from there, and here nothing had been done yet
        return True
    return (row.has_result or links != mine) and contains(row, links, here, mine)


def bring(row: RunRow, source: Store, store: Store, name: str) -> None:
    """Copy a run of another store, its files first, in the place of the run `name`, which is the same one.

    A kill leaves either the run as it was, whose files are all there still, or the run as it is in the other store.
    """
    with contextlib.ExitStack() as held:
        if row.summary is None:  # nobody writes to a finished run
            held.enter_context(source.lock(row.run))
        held.enter_context(store.lock(name))
        put(row, source, store, name)


def put(row: RunRow, source: Store, store: Store, name: str) -> None:
    """`bring` a run whose locks are held."""
    there, here = source.path(row.run), store.path(name)
    if name != row.run and row.summary is None and row.configuration.get("data") == AT_SITES:
        raise UserError(
            f"The run {row.run!r} of {source.folder} is a deployment that is not finished, and its sites know it by a "
            "name that another run has here: finish it there first."
        )
    files = [path.relative_to(there) for path in sorted(there.rglob("*")) if path.is_file() and path.name != LOCK]
    before = store.get(name)
    with saving(store.folder, here):
        for file in files:
            final = here / file
            if _referenced(final, before) and not filecmp.cmp(there / file, final, shallow=False):
                raise UserError(
                    f"The run {row.run!r} was stopped both in {source.folder} and in {store.folder}, at different "
                    f"places: finish it in one of them (`sordino resume {row.run}{in_store(source.folder)}`), and "
                    "merge again."
                )
        for file in files:
            _copy(there / file, here / file, name)
        for folder in {(here / file).parent for file in files}:
            sync_folder(folder)
    store.replace(name, row, source)
    with saving(store.folder, here):
        remove_leftovers(here, *(file.name for file in files))


def _referenced(file: Path, row: RunRow) -> bool:
    """Whether the last checkpoint of a run may refer to a file in its folder."""
    if row.checkpoint is None or not file.exists():
        return False
    return file.name == row.checkpoint.name or file.name.startswith("memory")


def _copy(file: Path, final: Path, name: str) -> None:
    """Copy a run's file durably; journals say whose they are, and learn the run's `name`."""
    final.parent.mkdir(parents=True, exist_ok=True)
    arriving = final.with_name(f"{ARRIVING}{final.name}")
    if file.suffix == ".journal":
        arriving.write_bytes(renamed(file.read_bytes(), name))
    else:
        shutil.copyfile(file, arriving)
    with arriving.open("rb") as copied:
        os.fsync(copied.fileno())
    arriving.replace(final)


@contextlib.contextmanager
def alone(run: str, store: Store, folder: Path) -> Iterator[Store]:
    """A new store in `folder` that has one run of a `store` alone, as far as it has come; its lock must be held."""
    row = store.get(run)
    with contextlib.closing(Store(folder)) as made:
        name = made.receive(row, store)
        with made.lock(name):
            put(row, store, made, name)
        yield made
