"""Runs on disk: one SQLite file per store folder, and a folder of checkpoints for each run.

Rounds, clients' accuracies and ledger rows are written together with the checkpoint they belong to, in one
transaction, so that a run killed at any instant continues from a consistent state. A simulation is a function
of its configuration: what was not written yet is simply computed again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from sordino.errors import UserError, unknown
from sordino.privacy.ledger import Row

RunState = Literal["running", "stopped", "done"]
LOCK_ATTEMPTS = 20
"""How often to try for a run that seems to be running: who looks at its state holds it for an instant."""

SCHEMA = """
create table if not exists runs (
    number integer primary key autoincrement,
    run text unique not null,
    method text not null,
    created real not null,
    configuration text not null,
    experiment text not null,
    rounds integer not null,
    rounds_done integer not null default 0,
    checkpoint text,
    seconds real not null default 0,
    summary text
);
create table if not exists rounds (
    run text not null, round integer not null, personal real, personal_worst real, start real, global real,
    clip real, cohort integer not null, rejected integer not null, bytes integer not null, seconds real not null,
    epsilon_outsider real, epsilon_peer real, epsilon_server real,
    primary key (run, round)
);
create table if not exists clients (
    run text not null, round integer not null, client integer not null, personal real, start real, global real,
    primary key (run, round, client)
);
create table if not exists ledger (
    run text not null, position integer not null, round integer not null, step text not null,
    release text not null, owners blob not null, sensitivity real not null, deviation real not null,
    colluders integer not null, exposed integer not null, reason text not null,
    charges blob not null, pool text not null, link blob not null,
    primary key (run, position)
);
"""


@dataclass(frozen=True)
class RunRow:
    """One run as the store knows it."""

    run: str
    method: str
    configuration: dict[str, Any]
    experiment: str
    """SHA-256 of everything that decides the run's results."""
    state: RunState
    rounds: int
    rounds_done: int
    checkpoint: str | None
    seconds: float
    summary: dict[str, Any] | None


@dataclass(frozen=True)
class Progress:
    """What has happened since the last checkpoint, to be written with the next one."""

    rounds: list[tuple[Any, ...]]
    clients: list[tuple[Any, ...]]
    ledger: list[tuple[int, Row, bytes]]
    """Position, row, and the link that binds it to the rows before."""


class Store:
    """A folder of runs."""

    def __init__(self, folder: Path, must_exist: bool = False) -> None:
        self.folder = folder
        if folder.exists() and not folder.is_dir():
            raise UserError(f"The store {folder} is a file, but must be a folder: choose another with --store.")
        if must_exist and not (folder / "sordino.db").exists():
            raise UserError(f"There is no store in {folder}: `sordino run` makes one; --store names another folder.")
        with saving(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(folder / "sordino.db", timeout=30)
            self._database.execute("pragma journal_mode = wal")
            self._database.executescript(SCHEMA)

    def create(self, name: str, method: str, configuration: dict[str, Any], experiment: str, rounds: int) -> str:
        """Register a new run and return its name: `name` with the lowest free number behind it."""
        with saving(self.folder), self._database:
            self._database.execute("begin immediate")
            number = 1 + (self._database.execute("select max(number) from runs").fetchone()[0] or 0)
            run = f"{name}-{number}"
            self._database.execute(
                "insert into runs (run, method, created, configuration, experiment, rounds) values (?,?,?,?,?,?)",
                (run, method, time.time(), json.dumps(configuration), experiment, rounds),
            )
            self.path(run).mkdir(parents=True, exist_ok=True)
        return run

    def path(self, run: str) -> Path:
        """The folder of a run's files."""
        return self.folder / "runs" / run

    def get(self, run: str) -> RunRow:
        """A run by its name."""
        found = [row for row in self.all() if row.run == run]
        if not found:
            names = [row.run for row in self.all()]
            if not names:
                raise UserError(f"There is no run {run!r}: the store {self.folder} is empty.")
            raise unknown("run", run, names)
        return found[0]

    def all(self) -> list[RunRow]:
        """All runs, newest first."""
        columns = "run, method, configuration, experiment, rounds, rounds_done, checkpoint, seconds, summary"
        rows = self._database.execute(f"select {columns} from runs order by number desc").fetchall()
        return [
            RunRow(
                run=run,
                method=method,
                configuration=json.loads(configuration),
                experiment=experiment,
                state="done" if summary else ("running" if self._is_locked(run) else "stopped"),
                rounds=rounds,
                rounds_done=rounds_done,
                checkpoint=checkpoint,
                seconds=seconds,
                summary=json.loads(summary) if summary else None,
            )
            for run, method, configuration, experiment, rounds, rounds_done, checkpoint, seconds, summary in rows
        ]

    @contextlib.contextmanager
    def lock(self, run: str) -> Iterator[None]:
        """Hold a run: only one process may advance it, and others see it as running."""
        with saving(self.folder):
            file = self._lock_file(run)
        with file:
            for attempt in range(1, LOCK_ATTEMPTS + 1):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:  # perhaps only somebody who looks whether it is running
                    if attempt == LOCK_ATTEMPTS:
                        raise UserError(f"The run {run!r} is already running in another process.") from error
                    time.sleep(0.01)
            # Worker processes inherit the open file; kept open there, it would outlive a killed run.
            os.register_at_fork(after_in_child=file.close)
            yield

    def advance(
        self,
        run: str,
        rounds_done: int,
        checkpoint: str,
        seconds: float,
        progress: Progress,
        summary: dict[str, Any] | None = None,
    ) -> None:
        """Write, in one transaction, what has happened up to a checkpoint."""
        with saving(self.folder), self._database:
            self._insert("rounds", 14, [(run, *values) for values in progress.rounds])
            self._insert("clients", 6, [(run, *values) for values in progress.clients])
            self._insert("ledger", 14, [_ledger_values(run, *item) for item in progress.ledger])
            self._database.execute(
                "update runs set rounds_done = ?, checkpoint = ?, seconds = ?, summary = ? where run = ?",
                (rounds_done, checkpoint, seconds, json.dumps(summary) if summary else None, run),
            )

    def ledger(self, run: str) -> list[Row]:
        """The ledger rows of a run, in order; a broken chain raises."""
        columns = (
            "round, step, release, owners, sensitivity, deviation, colluders, exposed, reason, charges, pool, link"
        )
        query = f"select {columns} from ledger where run = ? order by position"
        rows: list[Row] = []
        previous = bytes(32)
        for *fields, exposed, reason, charges, pool, link in self._database.execute(query, (run,)):
            row = Row(*fields, bool(exposed), reason, charges, pool)  # type: ignore[misc, call-arg]
            previous = row.link(previous)
            if previous != link:
                raise UserError(f"The ledger of {run!r} has been altered: row {len(rows)} breaks the chain.")
            rows.append(row)
        return rows

    def curve(self, run: str) -> list[dict[str, Any]]:
        """The rounds of a run, oldest first."""
        return self._dictionaries("select * from rounds where run = ? order by round", run)

    def clients(self, run: str) -> list[dict[str, Any]]:
        """The accuracies of a run's clients in each round."""
        return self._dictionaries("select * from clients where run = ? order by round, client", run)

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _dictionaries(self, query: str, run: str) -> list[dict[str, Any]]:
        cursor = self._database.execute(query, (run,))
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, values, strict=True)) for values in cursor]

    def _insert(self, table: str, columns: int, rows: Iterable[tuple[Any, ...]]) -> None:
        places = ",".join("?" * columns)
        self._database.executemany(f"insert into {table} values ({places})", rows)

    def _lock_file(self, run: str) -> IO[str]:
        return (self.path(run) / "lock").open("w")

    def _is_locked(self, run: str) -> bool:
        try:
            with self._lock_file(run) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a folder that was removed, or a store that may only be read
            return False
        return False


def _ledger_values(run: str, position: int, row: Row, link: bytes) -> tuple[Any, ...]:
    return (
        *(run, position, row.round, row.step, row.release, row.owners),
        *(row.sensitivity, row.deviation, row.colluders, row.exposed, row.reason),
        *(row.charges, row.pool, link),
    )


@contextlib.contextmanager
def saving(folder: Path) -> Iterator[None]:
    """Turn a failure to write into a sentence for the user."""
    try:
        yield
    except ConnectionError:  # a worker process that is gone, not a file
        raise
    except (OSError, sqlite3.OperationalError) as error:
        if "locked" in str(error):
            raise UserError(f"The store {folder} is busy: another process has been writing for long.") from error
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UserError(
            f"Cannot write to the store {folder}: {reason}. Free space or choose another folder with --store; "
            "a run that was under way can be resumed."
        ) from error
    except sqlite3.DatabaseError as error:
        if "not a database" not in str(error) and "malformed" not in str(error):
            raise
        raise UserError(
            f"The database {folder / 'sordino.db'} is damaged ({error}): choose another folder with --store."
        ) from error


def replace_file(temporary: Path, final: Path) -> None:
    """Put a finished file in place so that a crash leaves either the old one or the new one."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(final)
