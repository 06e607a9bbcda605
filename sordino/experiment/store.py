"""Runs on disk: one SQLite file per store folder, and a folder of checkpoints for each run.

Rounds, clients' accuracies and ledger rows are written together with the checkpoint they belong to, in one
transaction, so that a run killed at any instant continues from a consistent state. A simulation is a function
of its configuration: what was not written yet is simply computed again, and what it had charged stands in its journal.
Whatever is read is compared with a digest that was written with it: a damaged store is refused, and never a little
different.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sordino.errors import UserError, unknown
from sordino.files import KeptFile, sync_folder
from sordino.experiment.holding import HeldError, holding, is_held

if TYPE_CHECKING:  # a list of runs is on the screen before torch would be loaded
    from sordino.privacy.ledger import Row
    from sordino.privacy.release import Unit

RunState = Literal["running", "stopped", "done", "removed"]
LOCK = "lock"
"""The file of a run that is held by the process which advances it."""

VERSION = 3
"""Of the tables below: a store of another version is refused."""
DATABASE = "sordino.db"
TABLES = {
    "runs": (
        *("number integer primary key", "run text not null", "method text not null", "created real not null"),
        *("configuration text not null", "identity text not null", "people text not null", "unit text not null"),
        "rounds integer not null",
        *("rounds_done integer not null default 0", "seconds real not null default 0", "summary text"),
        *("checkpoint text", "checkpoint_digest text", "models text", "models_digest text"),
        *("rounds_chain text not null", "clients_chain text not null", "ledger_chain text not null"),
        "digest text",
    ),
    "rounds": (
        *("run text not null", "round integer not null", "personal real", "personal_worst real", "start real"),
        *("global real", "loss real", "clip real"),
        *("cohort integer not null", "rejected integer not null", "bytes integer not null"),
        *("seconds real not null", "epsilon_outsider real", "epsilon_peer real", "epsilon_server real"),
        "primary key (run, round)",
    ),
    "clients": (
        *("run text not null", "round integer not null", "client integer not null"),
        *("personal real", "start real", "global real"),
        "primary key (run, round, client)",
    ),
    "ledger": (
        *("run text not null", "position integer not null", "question integer not null", "round integer not null"),
        *("step text not null", "release text not null", "owners blob not null", "sensitivity blob not null"),
        *("noise blob not null", "told text not null", "exposed integer not null", "reason text not null"),
        "pool text not null",
        *("sampled blob not null", "entries integer not null", "shares integer not null", "link blob not null"),
        "primary key (run, position)",
    ),
}
"""Each table's columns. A row of `runs` ends with a digest of all that it holds; among that are, for each other table,
the end of a chain of digests over the run's rows there, so that a row which was changed, lost or added shows."""
COLUMNS = {
    table: tuple(column.split()[0] for column in columns if not column.startswith("primary key"))
    for table, columns in TABLES.items()
}
CREATED = {table: f"CREATE TABLE {table} ({', '.join(columns)})" for table, columns in TABLES.items()}
"""Word for word as SQLite remembers the tables."""
DETAILS = ("rounds", "clients", "ledger")
NO_ROWS = ""
"""Where a chain of digests begins."""


@dataclass(frozen=True)
class RunRow:
    """One run as the store knows it."""

    run: str
    method: str
    configuration: dict[str, Any]
    identity: str
    """SHA-256 of everything that decides the run's results."""
    people: str
    """SHA-256 of the records of all its clients, before they were dealt."""
    unit: Unit
    """What its epsilon protects."""
    state: RunState
    rounds: int
    rounds_done: int
    checkpoint: KeptFile | None
    models: KeptFile | None
    seconds: float
    created: float
    """When it was begun, in seconds since 1970."""
    summary: dict[str, Any] | None


@dataclass(frozen=True)
class NewRun:
    """What is known of a run before it begins."""

    method: str
    configuration: dict[str, Any]
    identity: str
    people: str
    unit: Unit
    rounds: int


@dataclass(frozen=True)
class Progress:
    """What has happened since the last checkpoint, to be written with the next one."""

    rounds: list[tuple[Any, ...]]
    clients: list[tuple[Any, ...]]
    ledger: list[tuple[int, Row, bytes]]
    """Position, row, and the link that binds it to the rows before."""


class _Connection(sqlite3.Connection):
    """A connection to a database that may be damaged so that SQLite's own complaint is no text."""

    def execute(self, *statement: Any) -> sqlite3.Cursor:
        try:
            return super().execute(*statement)
        except UnicodeDecodeError as error:
            raise sqlite3.DatabaseError("its names are no text") from error


class Store:
    """A folder of runs."""

    def __init__(self, folder: Path, must_exist: bool = False) -> None:
        self.folder = folder
        file = folder / DATABASE
        if folder.exists() and not folder.is_dir():
            raise UserError(f"The store {folder} is a file, but must be a folder: choose another with --store.")
        if not file.exists() and run_folders(self.folder):
            raise damaged(folder, "it is gone")
        if must_exist and not file.exists():
            raise UserError(f"There is no store in {folder}: `sordino run` makes one; --store names another folder.")
        with saving(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(file, timeout=30, isolation_level=None, factory=_Connection)
            # Not a write-ahead log: one whose first bytes are damaged is dropped by SQLite without a word, and
            # everything in it. What is committed stands in the database file, after a power cut too.
            self._database.execute("pragma synchronous = extra")
            self._open()

    def create(self, name: str, about: NewRun) -> str:
        """Register a new run and return its name: `name` with the lowest free number behind it."""
        with saving(self.folder), self._transaction("immediate"):
            number = 1 + (self._database.execute("select max(number) from runs").fetchone()[0] or 0)
            run = f"{name}-{number}"
            columns = ("number", "run", "created", *(f"{table}_chain" for table in DETAILS))
            values: tuple[Any, ...] = (number, run, time.time(), *[NO_ROWS] * len(DETAILS))
            described = dataclasses.asdict(about) | {"configuration": json.dumps(about.configuration)}
            names = ", ".join((*columns, *described))
            places = ",".join("?" * (len(columns) + len(described)))
            self._database.execute(f"insert into runs ({names}) values ({places})", (*values, *described.values()))
            self._seal(run)
        # Only now, so that a folder without a row always means that the database has lost it.
        with saving(self.folder):
            self._make_folder(run)
        return run

    def path(self, run: str) -> Path:
        """The folder of a run's files."""
        return self.folder / "runs" / run

    def get(self, run: str) -> RunRow:
        """A run by its name."""
        with saving(self.folder):
            found = [row for row in self._select("runs") if row["run"] == run]
        if found:
            return self._run_row(found[0])
        names = [row.run for row in self.all()]
        if not names:
            raise UserError(f"There is no run {run!r}: the store {self.folder} is empty.")
        raise unknown("run", run, names)

    def all(self) -> list[RunRow]:
        """All runs, newest first."""
        folders = run_folders(self.folder)  # before the rows, which are there before their folders
        with saving(self.folder):
            rows = self._select("runs")
        found = [self._run_row(row) for row in reversed(rows)]
        lost = folders - {row.run for row in found}
        if lost:
            raise damaged(self.folder, f"it has lost the run {min(lost)!r}, whose folder is there")
        return found

    @contextlib.contextmanager
    def lock(self, run: str) -> Iterator[None]:
        """Hold a run: only one process may advance it, and others see it as running."""
        with contextlib.ExitStack() as held:
            with saving(self.folder):
                self._make_folder(run)
                try:
                    held.enter_context(holding(self.path(run) / LOCK))
                except HeldError as error:
                    raise UserError(f"The run {run!r} is already running in another process.") from error
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
        """Write, in one transaction, what has happened up to a checkpoint; at the end with the summary and models."""
        with saving(self.folder), self._transaction("immediate"):
            self._insert(run, "rounds", progress.rounds)
            self._insert(run, "clients", progress.clients)
            self._insert(run, "ledger", [_ledger_values(*item) for item in progress.ledger])
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
            self._seal(run)

    def remove(self, run: str, summary: dict[str, Any]) -> None:
        """Delete a run's files, rounds and clients' accuracies. What it spent stays: its row with `summary`, which says
        that it was removed, and its ledger."""
        with self.lock(run):
            with saving(self.folder), self._transaction("immediate"):
                for table in ("rounds", "clients"):
                    self._database.execute(f"delete from {table} where run = ?", (run,))
                    self._database.execute(f"update runs set {table}_chain = ? where run = ?", (NO_ROWS, run))
                self._database.execute(
                    "update runs set summary = ?, checkpoint = null, checkpoint_digest = null, models = null, "
                    "models_digest = null where run = ?",
                    (json.dumps(summary | {"removed": True}), run),
                )
                self._seal(run)
            with saving(self.folder):
                shutil.rmtree(self.path(run))

    def check(self, run: str) -> None:
        """Refuse a run of which anything in the database is not as it was written."""
        with saving(self.folder):
            (answer,) = self._database.execute("pragma quick_check(1)").fetchone()
        if answer != "ok":
            raise damaged(self.folder, str(answer))
        for table in DETAILS:
            self._details(run, table)

    def ledger(self, run: str) -> list[Row]:
        """The ledger rows of a run, in order; a broken chain raises."""
        from sordino.privacy.ledger import Row

        rows: list[Row] = []
        previous = bytes(32)
        for found in self._details(run, "ledger"):
            fields = {field.name: found[field.name] for field in dataclasses.fields(Row)}
            row = Row(**fields | {"exposed": bool(fields["exposed"])})
            previous = row.link(previous)
            if previous != found["link"]:
                raise UserError(f"The ledger of {run!r} has been altered: row {len(rows)} breaks the chain.")
            rows.append(row)
        return rows

    def curve(self, run: str) -> list[dict[str, Any]]:
        """The rounds of a run, oldest first."""
        return self._details(run, "rounds")

    def clients(self, run: str) -> list[dict[str, Any]]:
        """The accuracies of a run's clients in each round."""
        return sorted(self._details(run, "clients"), key=lambda row: (row["round"], row["client"]))

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _open(self) -> None:
        """Look whether the tables are those of this version, and make them where there are none."""
        with self._transaction("deferred"):
            version, tables = self._tables()
        if not version and not tables:
            if run_folders(self.folder):
                raise damaged(self.folder, "it has lost its tables")
            with self._transaction("immediate"):
                if not self._tables()[1]:
                    for statement in CREATED.values():
                        self._database.execute(statement)
                    self._database.execute(f"pragma user_version = {VERSION}")
            sync_folder(self.folder)
        elif version != VERSION:
            raise UserError(
                f"The store {self.folder} was written by another version of Sordino (its tables are of version "
                f"{version}, not {VERSION}), or its database is damaged: choose another folder with --store."
            )
        elif tables != CREATED:
            raise damaged(self.folder, "its tables are not as they were made")

    def _tables(self) -> tuple[int, dict[str, str]]:
        """The version of the tables, and how each was made."""
        (version,) = self._database.execute("pragma user_version").fetchone()
        query = "select name, sql from sqlite_schema where type = 'table'"
        return version, dict(self._database.execute(query).fetchall())

    @contextlib.contextmanager
    def _transaction(self, kind: Literal["immediate", "deferred"]) -> Iterator[None]:
        """All or nothing: `immediate` to write, `deferred` to see one state of the store in several questions."""
        self._database.execute(f"begin {kind}")
        try:
            yield
            self._database.execute("commit")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("rollback")
            raise

    def _select(self, table: str, where: str = "true", values: tuple[Any, ...] = ()) -> list[dict[str, Any]]:
        """Rows of a table, by column, in the order in which they were written."""
        columns = COLUMNS[table]
        query = f"select {', '.join(columns)} from {table} where {where} order by rowid"
        return [dict(zip(columns, row, strict=True)) for row in self._database.execute(query, values).fetchall()]

    def _details(self, run: str, table: str) -> list[dict[str, Any]]:
        """A run's rows of a table, if they are what was written."""
        with saving(self.folder), self._transaction("deferred"):
            found = [row for row in self._select("runs") if row["run"] == run]
            rows = self._select(table, "run = ?", (run,))
        whole = [row for row in found if row["digest"] == _row_digest(row)]
        if not whole or whole[0][f"{table}_chain"] != _chain(NO_ROWS, rows):
            raise damaged(self.folder, f"what it says of {run!r} under {table!r} has been altered")
        return rows

    def _insert(self, run: str, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Add rows to a run and to its chain, which is made of them as the database gives them back."""
        (last,) = self._database.execute(f"select coalesce(max(rowid), 0) from {table}").fetchone()
        places = ",".join("?" * len(COLUMNS[table]))
        self._database.executemany(f"insert into {table} values ({places})", [(run, *row) for row in rows])
        (chain,) = self._database.execute(f"select {table}_chain from runs where run = ?", (run,)).fetchone()
        chain = _chain(chain, self._select(table, "rowid > ?", (last,)))
        self._database.execute(f"update runs set {table}_chain = ? where run = ?", (chain, run))

    def _seal(self, run: str) -> None:
        """Write the digest of a run's row."""
        (row,) = self._select("runs", "run = ?", (run,))
        self._database.execute("update runs set digest = ? where run = ?", (_row_digest(row), run))

    def _run_row(self, row: dict[str, Any]) -> RunRow:
        """A row of the table `runs`, if it is what was written."""
        if row["digest"] != _row_digest(row):
            raise damaged(self.folder, f"the row of the run {row['run']!r} has been altered")
        summary = json.loads(row["summary"]) if row["summary"] else None
        state: RunState = "running" if is_held(self.path(row["run"]) / LOCK) else "stopped"
        if summary is not None:
            state = "removed" if summary.get("removed") else "done"
        return RunRow(
            configuration=json.loads(row["configuration"]),
            state=state,
            checkpoint=KeptFile(row["checkpoint"], row["checkpoint_digest"]) if row["checkpoint"] else None,
            models=KeptFile(row["models"], row["models_digest"]) if row["models"] else None,
            summary=summary,
            **{key: row[key] for key in ("run", "method", "identity", "people", "unit")},
            **{key: row[key] for key in ("rounds", "rounds_done", "seconds", "created")},
        )

    def _make_folder(self, run: str) -> None:
        path = self.path(run)
        if not path.is_dir():
            path.mkdir(parents=True, exist_ok=True)
            sync_folder(path.parent)
            sync_folder(self.folder)


def runs_in(folder: Path) -> list[RunRow]:
    """The runs of a store, newest first; none where there is no store, which is not made."""
    if not folder.is_file() and not (folder / DATABASE).exists() and not run_folders(folder):
        return []
    return Store(folder, must_exist=True).all()


def run_folders(folder: Path) -> set[str]:
    """The runs of a store that have a folder, whatever its database says."""
    with saving(folder):
        return {path.name for path in (folder / "runs").glob("*") if path.is_dir()}


def _ledger_values(position: int, row: Row, link: bytes) -> tuple[Any, ...]:
    return position, *(getattr(row, name) for name in COLUMNS["ledger"][2:-1]), link


def _row_digest(row: dict[str, Any]) -> str:
    """Of a row of the table `runs`, without the digest itself."""
    return _digest({**row, "digest": None})


def _chain(head: str, rows: Iterable[dict[str, Any]]) -> str:
    """The end of a chain of digests that begins at `head` and goes on over `rows`."""
    for row in rows:
        head = _digest((head, *row.values()))
    return head


def _digest(value: object) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=32).hexdigest()


def damaged(folder: Path, reason: str) -> UserError:
    """The error for a database that has lost or changed something."""
    reason = "".join(letter if letter.isprintable() else "?" for letter in reason)
    return UserError(
        f"The database {folder / DATABASE} is damaged ({reason}): put it back from a copy, or choose another folder "
        "with --store."
    )


CANNOT_WRITE = {
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM),
}


@contextlib.contextmanager
def saving(folder: Path) -> Iterator[None]:
    """Turn a failure to write or read the store into a sentence for the user."""
    try:
        yield
    except ConnectionError:  # a worker process that is gone, not a file
        raise
    except OSError as error:
        raise _cannot_write(folder, error.strerror or str(error)) from error
    except sqlite3.ProgrammingError:
        raise
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF  # the rest are details
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise UserError(f"The store {folder} is busy: another process has been writing for long.") from error
        raise _cannot_write(folder, str(error)) if code in CANNOT_WRITE else damaged(folder, str(error)) from error


def _cannot_write(folder: Path, reason: str) -> UserError:
    return UserError(
        f"Cannot write to the store {folder}: {reason}. Free space or choose another folder with --store; "
        "a run that was under way can be resumed."
    )
