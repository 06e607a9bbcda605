"""Runs on disk: one SQLite file per store folder, and a folder of checkpoints for each run.

Rounds, clients' accuracies and ledger rows are written together with the checkpoint they belong to, in one
transaction, so that a run killed at any instant continues from a consistent state. A simulation is a function
of its configuration: what was not written yet is computed again, and its charges stand in its journal.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.errors import UserError, unknown
from sordino.experiment.defaults import AT_SITES, RunState, in_store
from sordino.privacy.unit import Unit
from sordino.store.database import COLUMNS, DATABASE, DETAILS, NO_ROWS, Database, damaged, run_folders, saving
from sordino.store.lock import HeldError, holding, is_held
from sordino.store.run_summary import Summary
from sordino.util.files import KeptFile, sync_folder

if TYPE_CHECKING:  # a list of runs is on the screen before torch would be loaded
    from sordino.privacy.ledger import Row


LOCK = "lock"
"""Lock file: in a run's folder, of the process that advances it; in a store's, of one that admits a new run."""
PLANNED = "planned"
"""Key beside those of the configuration: the most that the run will spend."""
JOURNAL = "journal"
"""Key beside those of the configuration: whether the run's journal has been created."""
GIVEN_UP = "given_up"
"""Key beside those of the configuration: most attempts at a question that were given up."""
FAILED = "failed"
"""Key beside those of the configuration: the first failure of a step at a client, in words."""
NOTES = "notes"
"""Key beside those of the configuration: the notes told before the run."""
NONCE = "nonce"
"""Key beside those of the configuration: the run's nonce, in hexadecimal digits."""
SENT = "sent"
"""Key beside those of the configuration: whether the run was sent to a cluster, or is being merged, so that what it has
done is elsewhere."""
MERGED = "merged"
"""Key beside those of the configuration: whether the run was admitted to another store, whose `budget_over_runs` did
not watch over the runs here."""
FIRST_NAME = "first_name"
"""Key beside those of the configuration: the run's name in the store in which it was made, where that is another."""
IMPORTED = "imported"
"""Key in the summary of an imported run: its name in the store in which it was made."""
LINKS = "links"
"""Key in the summary of an imported run: beginnings of its ledger's links, which tell its releases from others."""
PATIENCE = 30.0
"""Seconds to wait while other processes admit runs, before an error."""


@dataclass(frozen=True)
class RunRow:
    """One run as the store knows it."""

    run: str
    method: str
    configuration: dict[str, Any]
    identity: str
    """SHA-256 of everything that decides the run's results."""
    people: str
    """Fingerprint of the people whom its records are about."""
    unit: Unit
    """Unit that its epsilon protects."""
    state: RunState
    rounds: int
    rounds_done: int
    checkpoint: KeptFile | None
    models: KeptFile | None
    seconds: float
    created: float
    """Time of creation, in seconds since 1970."""
    summary: dict[str, Any] | None
    """Document of its `result` as it is stored; of a run that was removed unfinished or imported, its spending."""
    planned: dict[str, Any] | None = None
    """The most that it was going to spend when it was admitted; None where that was not stored."""
    begun: bool | None = None
    """Whether its journal has been created, before which nothing is charged; None where an earlier version of Sordino
    did not store that."""
    notes: list[str] | None = None
    """Notes told to the user before the run began, some of which depend on that machine at that time; None likewise."""
    nonce: bytes = b""
    """Random bytes in the keys of this run's coins; empty where values follow from the seed."""
    given_up: int = 0
    """Most attempts at a question that were given up and followed by another; each may have asked the whole plan."""
    failed: str | None = None
    """First failure at a client, in words; None without one. A failure may tell of records."""
    sent: bool = False
    """Whether it was sent to a cluster, or is being merged, so that what it has done is elsewhere."""
    first_name: str | None = None
    """Name in the store in which it was made; None where that is its name here."""
    merged: bool = False
    """Whether it was admitted to another store, whose `budget_over_runs` did not watch over the runs here."""

    @property
    def gone(self) -> bool:
        """Whether only its spending, and perhaps its result, are left."""
        return self.state in ("removed", "imported")

    @property
    def origin(self) -> tuple[str, float, str]:
        """First name, time of beginning and identity of a run, which tell it from all others in any store."""
        first = (self.summary or {}).get(IMPORTED) or self.first_name or self.run
        return first, self.created, self.identity

    @property
    def has_result(self) -> bool:
        """Whether the run was finished; of one that was removed before, `summary` holds only its spending."""
        return self.summary is not None and "accuracy" in self.summary

    @property
    def result(self) -> Summary | None:
        """Result of a finished run; None where it was never finished."""
        return Summary.from_dict(self.summary) if self.summary is not None and self.has_result else None


@dataclass(frozen=True)
class NewRun:
    """A run before it begins."""

    method: str
    configuration: dict[str, Any]
    identity: str
    people: str
    unit: Unit
    rounds: int
    planned: Mapping[str, Any] | None = None
    """The most that it will spend."""
    notes: list[str] | None = None
    """Notes told to the user before the run."""
    nonce: bytes = b""


@dataclass(frozen=True)
class Progress:
    """Rows since the last checkpoint, to be written with the next one."""

    rounds: list[tuple[Any, ...]]
    clients: list[tuple[Any, ...]]
    ledger: list[tuple[int, Row, bytes]]
    """Position, row, and the link that binds it to the rows before."""


def gone(row: RunRow) -> UserError:
    """Make the error for a run of which only its spending is known."""
    if row.state == "imported":
        return UserError(f"The run {row.run!r} was imported from another store: only what it spent is known here.")
    return UserError(f"The run {row.run!r} was removed: only what it spent is still known.")


def unfinished(row: RunRow, folder: Path) -> UserError:
    """Make the error for a run that has no result."""
    if row.gone:
        return gone(row)
    if row.state == "failed":
        return UserError(f"The run {row.run!r} is not finished: {row.failed}. Correct the code, and start a new run.")
    again = f"{row.run}{in_store(folder)}`"
    if row.configuration.get("data") == AT_SITES:
        return UserError(
            f"The run {row.run!r} is not finished: `sordino serve --resume {again} takes it up, and a trial "
            f"`sordino deploy --resume {again}."
        )
    return UserError(f"The run {row.run!r} is not finished: `sordino resume {again} takes it up.")


class Store:
    """A folder of runs."""

    def __init__(self, folder: Path, must_exist: bool = False, earlier: bool = False, watched: bool = False) -> None:
        """Open a store; one of an `earlier` version, and one that is `watched` by a board, is only read."""
        self.folder = folder
        if folder.exists() and not folder.is_dir():
            raise UserError(f"The store {folder} is a file, but must be a folder: choose another with --store.")
        # Folders first: whoever makes a store meanwhile makes its database before any of them.
        folders = run_folders(folder)
        there = (folder / DATABASE).exists()
        if folders and not there:
            raise damaged(folder, "it is gone")
        if must_exist and not there:
            raise UserError(f"There is no store in {folder}: `sordino run` makes one; --store names another folder.")
        self._database = Database(folder, earlier, watched)
        self.lacking = self._database.lacking
        """Fields that rows of its ledgers lacked when they were written."""

    def create(self, name: str, about: NewRun, number: int | None = None) -> str:
        """Register a new run and return its name: `name` and a `number`, or the next free one where it is taken."""
        with self._database.transaction("immediate"):
            number = self._free(number)
            run = f"{name}-{number}"
            given = {"number": number, "run": run, "created": time.time()}
            given |= {f"{table}_chain": NO_ROWS for table in DETAILS}
            given |= {name: value for name, value in vars(about).items() if name not in (PLANNED, NOTES, NONCE)}
            beside = {PLANNED: about.planned, JOURNAL: False, NOTES: about.notes, NONCE: about.nonce.hex()}
            given["configuration"] = json.dumps({**about.configuration, **beside})
            self._insert(given)
        # Only now, so that a folder without a row always means that the database has lost it.
        with saving(self.folder):
            self._make_folder(run)
        return run

    def take_over(self, row: RunRow, spent: Mapping[str, Any], links: str | None, known: RunRow | None) -> str:
        """Store the spending of another store's run and the `links` of its ledger, and return its name here; `known` is
        its row from an earlier import, which is updated."""
        summary: dict[str, Any] = {IMPORTED: row.origin[0], "spent": spent, LINKS: links}
        summary |= {key: value for key, value in (row.summary or {}).items() if key == "epsilon"}
        with self._database.transaction("immediate"):
            if known is not None:
                values = (json.dumps({"run": known.run, **summary}), row.seconds, known.run)
                self._database.execute("update runs set summary = ?, seconds = ? where run = ?", values)
                self._database.seal(known.run)
                return known.run
            number = self._free()
            run = f"{row.origin[0]}-imported-{number}"
            # A limit watched over the other store's runs, not over those here.
            configuration = {**row.configuration, "budget_over_runs": None, PLANNED: row.planned}
            given = {"number": number, "run": run, "summary": json.dumps({"run": run, **summary})}
            given |= {f"{table}_chain": NO_ROWS for table in DETAILS}
            given |= {"configuration": json.dumps(configuration)}
            given |= {key: getattr(row, key) for key in ("method", "identity", "people", "unit", "created")}
            given |= {key: getattr(row, key) for key in ("rounds", "rounds_done", "seconds")}
            self._insert(given)
        return run

    def receive(self, row: RunRow, source: Store) -> str:
        """Register a run of another store, and return its name here: its own, unless another run has it. What it has
        done follows with `replace`; of a run of which only the spending is left, all is stored at once."""
        (stored,) = source._database.runs(row.run)
        details = {table: source._database.details(row.run, table) for table in DETAILS} if row.gone else {}
        with self._database.transaction("immediate"):
            number, run = self._free(stored["number"]), row.run
            taken = {name for (name,) in self._database.execute("select run from runs").fetchall()}
            if run in taken:
                run = next(name for name in _numbered(row.run, number) if name not in taken)
            given = {**stored, "number": number, "run": run, "digest": None}
            given |= {f"{table}_chain": NO_ROWS for table in DETAILS}
            given |= {"configuration": _received(stored["configuration"], row, run, merged=True)}
            if row.gone:
                given["summary"] = _called(stored["summary"], run)
            else:
                given["configuration"] = json.dumps({**json.loads(given["configuration"]), SENT: True})
                given |= {"rounds_done": 0, "seconds": 0.0, "summary": None}
                given |= dict.fromkeys(("checkpoint", "checkpoint_digest", "models", "models_digest"))
            self._insert(given)
            self._fill(run, details)
        return run

    def replace(self, run: str, row: RunRow, source: Store) -> None:
        """Put what a run of another store has done in the place of what the run of this store, the same one, had; its
        files must be in its folder."""
        (stored,) = source._database.runs(row.run)
        details = {table: source._database.details(row.run, table) for table in DETAILS}
        with self._database.transaction("immediate"):
            merged = self.get(run).merged  # a limit that admitted it here still watches over it
            for table in DETAILS:
                self._database.clear(run, table)
            given = {key: stored[key] for key in ("rounds_done", "seconds", "checkpoint", "checkpoint_digest")}
            given |= {key: stored[key] for key in ("models", "models_digest")}
            given |= {"configuration": _received(stored["configuration"], row, run, merged)}
            given |= {"summary": _called(stored["summary"], run)}
            assigned = ", ".join(f"{key} = ?" for key in given)
            self._database.execute(f"update runs set {assigned} where run = ?", (*given.values(), run))
            self._fill(run, details)

    def _fill(self, run: str, details: Mapping[str, list[dict[str, Any]]]) -> None:
        """Add a run's rows of other tables, within a transaction."""
        for table, rows in details.items():
            self._database.insert(run, table, [tuple(row.values())[1:] for row in rows])
        self._database.seal(run)

    def _free(self, wanted: int | None = None) -> int:
        """The `wanted` number of a run if no run has it, else the next one, within a transaction."""
        taken = {number for (number,) in self._database.execute("select number from runs").fetchall()}
        return wanted if wanted is not None and wanted not in taken else 1 + max(taken, default=0)

    def _insert(self, given: Mapping[str, Any]) -> None:
        """Add a row to the table `runs`, within a transaction."""
        if not _is_name(given["run"]):
            raise UserError(f"A run cannot be called {given['run']!r}, which is no name of a folder.")
        self._database.check_runs()
        places = ",".join("?" * len(given))
        self._database.execute(f"insert into runs ({', '.join(given)}) values ({places})", tuple(given.values()))
        self._database.seal(given["run"])

    def begin(self, run: str) -> None:
        """Store that a run's journal has been created: if it is ever missing, it has been lost."""

        def begun(configuration: dict[str, Any]) -> dict[str, Any]:
            return {key: value for key, value in configuration.items() if key != SENT} | {JOURNAL: True}

        self._write_beside(run, begun)

    def send(self, run: str) -> None:
        """Store that a run goes to a cluster: from now on it counts as planned, whatever becomes of it there."""
        self._write_beside(run, lambda configuration: configuration | {JOURNAL: True, SENT: True})

    def give_up(self, run: str, attempts: int) -> None:
        """Store that questions of a run had so many attempts before they are asked again: the journal, which has their
        rows, may be lost."""
        self._write_beside(run, lambda configuration: configuration | {GIVEN_UP: attempts})

    def fail(self, run: str, what: str) -> None:
        """Store that something failed at a client; the first such sentence stays, whatever becomes of the run."""
        self._write_beside(run, lambda configuration: {FAILED: what} | configuration)

    def _write_beside(self, run: str, changed: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Change keys beside those of a run's configuration."""
        with self._database.transaction("immediate"):
            (row,) = self._database.runs(run)
            configuration = json.dumps(changed(json.loads(row["configuration"])))
            self._database.execute("update runs set configuration = ? where run = ?", (configuration, run))
            self._database.seal(run)

    def path(self, run: str) -> Path:
        """Return the folder of a run's files; a name that leads elsewhere, as in a store made by others, is refused."""
        if not _is_name(run):
            raise damaged(self.folder, f"it names a run {run!r}, which is no name of a folder")
        return self.folder / "runs" / run

    def get(self, run: str) -> RunRow:
        """Return a run by its name; an unknown name is refused."""
        found = self._database.runs(run)
        if found:
            return self._run_row(found[0])
        names = [row.run for row in self.all()]
        if not names:
            raise UserError(f"There is no run {run!r}: the store {self.folder} is empty.")
        raise unknown("run", run, names)

    def all(self) -> list[RunRow]:
        """Return all runs, newest first."""
        folders = run_folders(self.folder)  # before the rows, which are there before their folders
        found = [self._run_row(row) for row in reversed(self._database.runs())]
        lost = folders - {row.run for row in found}
        if lost:
            raise damaged(self.folder, f"it has lost the run {min(lost)!r}, whose folder is there")
        return found

    @contextlib.contextmanager
    def lock(self, run: str) -> Iterator[None]:
        """Lock a run: only one process may advance it, and others see it as running."""
        with contextlib.ExitStack() as held:
            with saving(self.folder):
                self._make_folder(run)
                try:
                    held.enter_context(holding(self.path(run) / LOCK))
                except HeldError as error:
                    raise UserError(f"The run {run!r} is already running in another process.") from error
            yield

    @contextlib.contextmanager
    def admitting(self) -> Iterator[None]:
        """Lock the store while a run is admitted, so that two runs cannot be admitted without knowing of each other."""
        patience = time.monotonic() + PATIENCE
        with contextlib.ExitStack() as held:
            while True:
                try:
                    with saving(self.folder):
                        held.enter_context(holding(self.folder / LOCK))
                    break
                except HeldError as error:
                    if time.monotonic() > patience:
                        raise UserError(f"The store {self.folder} is busy: another run is being let in.") from error
            yield

    def advance(
        self,
        run: str,
        rounds_done: int,
        checkpoint: KeptFile,
        seconds: float,
        progress: Progress,
        summary: dict[str, Any] | None = None,
        models: KeptFile | None = None,
    ) -> None:
        """Write all progress up to a checkpoint in one transaction; at the end of a run with its summary and models."""
        with self._database.transaction("immediate"):
            self._database.insert(run, "rounds", progress.rounds)
            self._database.insert(run, "clients", progress.clients)
            self._database.insert(run, "ledger", [_ledger_values(*item) for item in progress.ledger])
            self._database.execute(
                "update runs set rounds_done = ?, checkpoint = ?, checkpoint_digest = ?, seconds = ?, summary = ?, "
                "models = ?, models_digest = ? where run = ?",
                (
                    *(rounds_done, checkpoint.name, checkpoint.digest, seconds),
                    json.dumps(summary) if summary else None,
                    *((models.name, models.digest) if models else (None, None)),
                    run,
                ),
            )
            self._database.seal(run)

    def resummarize(self, run: str, summary: dict[str, Any]) -> None:
        """Replace the summary of a finished run by one with more figures; its spending must be the same."""
        if (self.get(run).summary or {}).get("spent") != json.loads(json.dumps(summary["spent"])):
            raise ValueError(f"the new summary of {run} has another spending, or the run has none")
        with self._database.transaction("immediate"):
            self._database.execute("update runs set summary = ? where run = ?", (json.dumps(summary), run))
            self._database.seal(run)

    def remove(self, run: str, summed_up: Callable[[], dict[str, Any]]) -> None:
        """Delete a run's files, rounds and clients' accuracies; its row, summary and ledger stay, with its spending.

        `summed_up` makes the summary; it is called while the run is locked. A removal that was interrupted is
        completed.
        """
        with self.lock(run):
            if self.get(run).state != "removed":
                self._forget(run, summed_up())
            with saving(self.folder):
                shutil.rmtree(self.path(run))

    def _forget(self, run: str, summary: dict[str, Any]) -> None:
        """Delete a run's rounds and clients' accuracies."""
        with self._database.transaction("immediate"):
            for table in ("rounds", "clients"):
                self._database.clear(run, table)
            self._database.execute(
                "update runs set summary = ?, checkpoint = null, checkpoint_digest = null, models = null, "
                "models_digest = null where run = ?",
                (json.dumps(summary | {"removed": True}), run),
            )
            self._database.seal(run)

    def check(self, run: str, *tables: str) -> None:
        """Refuse a run whose rows in the database are not as they were written: those of `tables`, or of all."""
        self._database.check_pages()
        for table in tables or DETAILS:
            self._database.details(run, table)

    def ledger(self, run: str) -> list[Row]:
        """Return the ledger rows of a run, in order; refuse a broken chain."""
        return [row for row, _ in self.linked_rows(run)]

    def linked_rows(self, run: str) -> Iterator[tuple[Row, bytes]]:
        """The ledger rows of a run, in order, each with the link that binds it to the rows before; a broken chain
        raises."""
        from sordino.privacy.ledger import FIRST_LINK, Row

        previous = FIRST_LINK
        for position, found in enumerate(self._database.details(run, "ledger")):
            fields = {field.name: found[field.name] for field in dataclasses.fields(Row) if field.name in found}
            row = Row(**fields | {"exposed": bool(fields["exposed"])})
            previous = row.link(previous, self.lacking)
            if previous != found["link"]:
                raise UserError(f"The ledger of {run!r} has been altered: row {position} breaks the chain.")
            yield row, previous

    def curve(self, run: str) -> list[dict[str, Any]]:
        """Return the rounds of a run, oldest first."""
        return self._database.details(run, "rounds")

    def clients(self, run: str) -> list[dict[str, Any]]:
        """Return the accuracies of a run's clients in each round."""
        return sorted(self._database.details(run, "clients"), key=lambda row: (row["round"], row["client"]))

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _run_row(self, row: dict[str, Any]) -> RunRow:
        """Make a run from its row of the table `runs`."""
        summary = json.loads(row["summary"]) if row["summary"] else None
        configuration = json.loads(row["configuration"])
        planned, begun, notes, failed = (configuration.pop(key, None) for key in (PLANNED, JOURNAL, NOTES, FAILED))
        nonce, given_up = bytes.fromhex(configuration.pop(NONCE, "")), configuration.pop(GIVEN_UP, 0)
        sent, first_name = configuration.pop(SENT, False), configuration.pop(FIRST_NAME, None)
        merged = configuration.pop(MERGED, False)
        ended: RunState = "stopped" if failed is None else "failed"
        state: RunState = "running" if is_held(self.path(row["run"]) / LOCK) else ended
        if summary is not None:
            state = "imported" if IMPORTED in summary else "removed" if summary.get("removed") else "done"
        return RunRow(
            configuration=configuration,
            planned=planned,
            begun=begun,
            notes=notes,
            nonce=nonce,
            given_up=given_up,
            failed=failed,
            sent=sent,
            first_name=first_name,
            merged=merged,
            state=state,
            checkpoint=KeptFile(row["checkpoint"], row["checkpoint_digest"]) if row["checkpoint"] else None,
            models=KeptFile(row["models"], row["models_digest"]) if row["models"] else None,
            summary=summary,
            **{key: row[key] for key in ("run", "method", "identity", "people")},
            unit=Unit(row["unit"]),
            **{key: row[key] for key in ("rounds", "rounds_done", "seconds", "created")},
        )

    def _make_folder(self, run: str) -> None:
        path = self.path(run)
        if not path.is_dir():
            path.mkdir(parents=True, exist_ok=True)
            sync_folder(path.parent)
            sync_folder(self.folder)


def runs_in(folder: Path) -> list[RunRow]:
    """Return the runs of a store, newest first; none where there is no store. No store is created."""
    if not folder.is_file() and not (folder / DATABASE).exists() and not run_folders(folder):
        return []
    return Store(folder, must_exist=True).all()


def _is_name(run: str) -> bool:
    """Whether a run's name is that of a folder, which leads nowhere else."""
    return Path(run).name == run and run != ".."


def _numbered(run: str, number: int) -> Iterator[str]:
    """Names for a run whose own is taken: its number replaced by another, then with one more behind it."""
    stem = run.rpartition("-")[0] or run
    yield f"{stem}-{number}"
    yield from (f"{stem}-{number}-{more}" for more in itertools.count(2))


def _received(configuration: str, row: RunRow, run: str, merged: bool) -> str:
    """Configuration of a run of another store that is called `run` here, as the database keeps it."""
    keys: dict[str, Any] = json.loads(configuration)
    keys |= {FIRST_NAME: None if row.origin[0] == run else row.origin[0], MERGED: merged or None}
    return json.dumps(
        {key: value for key, value in keys.items() if value is not None or key not in (FIRST_NAME, MERGED)}
    )


def _called(summary: str | None, run: str) -> str | None:
    """Stored summary of a run that is called `run`."""
    return None if summary is None else json.dumps({**json.loads(summary), "run": run})


def _ledger_values(position: int, row: Row, link: bytes) -> tuple[Any, ...]:
    return position, *(getattr(row, name) for name in COLUMNS["ledger"][2:-1]), link
