"""SQLite file of a store: tables whose rows are chained by digests, and its failures as errors for users.

Whatever is read is compared with a digest that was written with it: a damaged store is refused, never half believed.
Each row of the table `runs` has a digest of its own, and the table `totals` has one of all of them: a removed or
imported run has no folder that would tell of it if its row were lost.
"""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from sordino.errors import UserError
from sordino.util.files import sync_folder

VERSION = 4
"""Version of the tables below: a store of another version is refused."""
WITHOUT_TOTALS = 3
"""Version of tables that lack `totals` alone (Sordino 0.4): they get it when they are first written to."""
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
    "totals": ("runs integer not null", "digests text not null"),
}
"""Each table's columns. A row of `runs` ends with a digest of all that it holds; among that are, for each other table,
the end of a chain of digests over the run's rows there, so that a row which was changed, lost or added shows. The one
row of `totals` has the number of all runs, and the sum of their rows' digests (`_sum_digests`)."""
COLUMNS = {
    table: tuple(column.split()[0] for column in columns if not column.startswith("primary key"))
    for table, columns in TABLES.items()
}


def _statements(tables: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return the statements that create tables, word for word as SQLite stores them."""
    return {table: f"CREATE TABLE {table} ({', '.join(columns)})" for table, columns in tables.items()}


CREATED = _statements(TABLES)
EARLIER = {table: statement for table, statement in CREATED.items() if table != "totals"}
"""Tables of a store of Sordino 0.4."""
MODULUS = 1 << 256
DETAILS = ("rounds", "clients", "ledger")
LACKING: dict[int, dict[str, tuple[str, ...]]] = {
    2: {"rounds": ("loss",), "ledger": ("entries", "shares")},
    WITHOUT_TOTALS: {},
}
"""Columns that the tables of earlier versions lack, for each version that can be read (2: Sordino 0.3). All of them
lack `totals`."""
PATIENCE, PATIENCE_OF_WATCHERS = 30.0, 2.0
"""Seconds to wait for another process that writes: of whoever works with a store, and of whoever only watches it."""
NO_ROWS = ""
"""Beginning of a chain of digests."""


class _Connection(sqlite3.Connection):
    """A connection to a database that may be so damaged that SQLite's own message cannot be decoded."""

    def execute(self, *statement: Any) -> sqlite3.Cursor:
        try:
            return super().execute(*statement)
        except UnicodeDecodeError as error:
            raise sqlite3.DatabaseError("its names are no text") from error


class Database:
    """A connection to the database of a store's folder."""

    lacking: tuple[str, ...] = ()
    """Columns that the ledger of a store of an earlier version lacks."""
    _has_totals = True

    def __init__(self, folder: Path, earlier: bool = False, watched: bool = False) -> None:
        """Open the database, or create it with its tables. One of an `earlier` version must exist, and is only read;
        one that is `watched` likewise, and nobody waits long for it."""
        self._folder, self._columns, self._watched = folder, COLUMNS, watched
        if earlier:
            self._open_earlier()
            return
        with saving(folder):
            if not watched:
                folder.mkdir(parents=True, exist_ok=True)
            where = f"{(folder / DATABASE).resolve().as_uri()}?mode={'rw' if watched else 'rwc'}"
            timeout = PATIENCE_OF_WATCHERS if watched else PATIENCE
            self._connection = sqlite3.connect(
                where, timeout=timeout, isolation_level=None, factory=_Connection, uri=True
            )
            # Not a write-ahead log: one whose first bytes are damaged is dropped by SQLite without a word, and
            # everything in it. What is committed stands in the database file, after a power cut too.
            self._connection.execute("pragma synchronous = extra")
            if watched:  # what a killed process left half written is still rolled back, as for any reader
                self._connection.execute("pragma query_only = on")
            self._open()

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        """Execute a statement."""
        return self._connection.execute(statement, values)

    @contextlib.contextmanager
    def transaction(self, kind: Literal["immediate", "deferred"]) -> Iterator[None]:
        """Open a transaction: `immediate` to write, `deferred` to read one state of the store in several queries."""
        with saving(self._folder):
            self._connection.execute(f"begin {kind}")
            try:
                if kind == "immediate" and not self._has_totals:
                    self._add_totals()
                yield
                self._connection.execute("commit")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("rollback")
                raise

    def select(self, table: str, where: str = "true", values: tuple[Any, ...] = ()) -> list[dict[str, Any]]:
        """Return rows of a table as dictionaries, in the order in which they were written."""
        columns = self._columns[table]
        query = f"select {', '.join(columns)} from {table} where {where} order by rowid"
        with saving(self._folder):
            return [dict(zip(columns, row, strict=True)) for row in self.execute(query, values).fetchall()]

    def runs(self, run: str | None = None) -> list[dict[str, Any]]:
        """Return the rows of the table `runs`, oldest first, or that of one run; refuse one that was altered."""
        with self._one_state():
            found = self.select("runs")
            rows = [row for row in found if run is None or row["run"] == run]
            for row in rows:
                if row["digest"] != _row_digest(row):
                    raise damaged(self._folder, f"the row of the run {row['run']!r} has been altered")
            self._check_totals([row["digest"] for row in found])
        return rows

    def details(self, run: str, table: str) -> list[dict[str, Any]]:
        """Return a run's rows of a table; refuse them if they were altered."""
        with self.transaction("deferred"):
            runs = self.select("runs")
            self._check_totals([row["digest"] for row in runs])
            rows = self.select(table, "run = ?", (run,))
        whole = [row for row in runs if row["run"] == run and row["digest"] == _row_digest(row)]
        if not whole or whole[0][f"{table}_chain"] != _chain(NO_ROWS, rows):
            raise damaged(self._folder, f"what it says of {run!r} under {table!r} has been altered")
        return rows

    def insert(self, run: str, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Add rows to a run and to its chain of digests, computed from the rows as the database returns them."""
        (last,) = self.execute(f"select coalesce(max(rowid), 0) from {table}").fetchone()
        places = ",".join("?" * len(COLUMNS[table]))
        self._connection.executemany(f"insert into {table} values ({places})", [(run, *row) for row in rows])
        (chain,) = self.execute(f"select {table}_chain from runs where run = ?", (run,)).fetchone()
        chain = _chain(chain, self.select(table, "rowid > ?", (last,)))
        self.execute(f"update runs set {table}_chain = ? where run = ?", (chain, run))

    def clear(self, run: str, table: str) -> None:
        """Delete a run's rows of a table."""
        self.execute(f"delete from {table} where run = ?", (run,))
        self.execute(f"update runs set {table}_chain = ? where run = ?", (NO_ROWS, run))

    def seal(self, run: str) -> None:
        """Write the digest of a run's row, and add it to that of all rows in place of the former one."""
        (row,) = self.select("runs", "run = ?", (run,))
        digest, (runs, digests) = _row_digest(row), self._totals()
        former = [] if row["digest"] is None else [row["digest"]]
        self.execute("update runs set digest = ? where run = ?", (digest, run))
        left = int(digests, 16) - int(_sum_digests(former), 16)
        totals = (runs + 1 - len(former), _sum_digests([f"{left % MODULUS:x}", digest]))
        self.execute("update totals set runs = ?, digests = ?", totals)

    def check_runs(self) -> None:
        """Refuse a table `runs` that has lost or gained rows."""
        with self._one_state():
            self._check_totals([digest for (digest,) in self.execute("select digest from runs").fetchall()])

    def _one_state(self) -> contextlib.AbstractContextManager[None]:
        """Return a transaction to read one state of the store, unless there is one already."""
        return contextlib.nullcontext() if self._connection.in_transaction else self.transaction("deferred")

    def _check_totals(self, digests: list[str | None]) -> None:
        """Refuse a table `runs` whose rows have other digests than all that were written."""
        if self._has_totals and self._totals() != (len(digests), _sum_digests(digests)):
            raise damaged(self._folder, "runs that it had are missing, or are not those that were written")

    def _totals(self) -> tuple[int, str]:
        """Return the number of all runs, and the sum of their rows' digests."""
        found = self.select("totals")
        if len(found) != 1:
            raise damaged(self._folder, "the number of its runs is missing")
        return found[0]["runs"], found[0]["digests"]

    def _add_totals(self) -> None:
        """Add the table `totals` to a store of an earlier version, within a transaction; another process may have done
        so meanwhile."""
        version, _ = self._tables()
        if version == WITHOUT_TOTALS:
            digests = [row["digest"] for row in self.runs()]
            self._create_totals(digests)
        self._has_totals = True

    def _create_totals(self, digests: list[str | None]) -> None:
        self.execute(CREATED["totals"])
        self.execute("insert into totals values (?, ?)", (len(digests), _sum_digests(digests)))
        self.execute(f"pragma user_version = {VERSION}")

    def check_pages(self) -> None:
        """Refuse a file that SQLite finds damaged."""
        with saving(self._folder):
            (answer,) = self.execute("pragma quick_check(1)").fetchone()
        if answer != "ok":
            raise damaged(self._folder, str(answer))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _open(self) -> None:
        """Check that the tables are those of this version, and create them in a new database."""
        with self.transaction("deferred"):
            version, tables = self._tables()
        if not version and not tables:
            if self._watched:
                raise damaged(self._folder, "it has no tables, or another process is making them")
            with self.transaction("immediate"):
                # Another process may have made the tables meanwhile, and a run with them.
                if not self._tables()[1]:
                    if run_folders(self._folder):
                        raise damaged(self._folder, "it has lost its tables")
                    for statement in EARLIER.values():
                        self._connection.execute(statement)
                    self._create_totals([])
            sync_folder(self._folder)
        elif (version, tables) == (WITHOUT_TOTALS, EARLIER):
            self._has_totals = False
        elif version in LACKING and version != WITHOUT_TOTALS:
            raise UserError(
                f"The store {self._folder} was written by an earlier version of Sordino (its tables are of version "
                f"{version}, not {VERSION}). What its runs have cost people still counts: `sordino runs --import "
                f"{shlex.quote(str(self._folder))} --store NEW` takes it over into another store; use that from then "
                "on."
            )
        elif version not in (VERSION, WITHOUT_TOTALS):
            newer = version > VERSION
            raise UserError(
                f"The store {self._folder} was written by {'a newer' if newer else 'another'} version of Sordino (its "
                f"tables are of version {version}, not {VERSION}), or its database is damaged: "
                f"{'install that version, or ' if newer else ''}choose another folder with --store. Nothing has been "
                "changed."
            )
        elif tables != CREATED:
            raise damaged(self._folder, "its tables are not as they were made")

    def _open_earlier(self) -> None:
        """Open a store of an earlier version, without writing anything."""
        with saving(self._folder):
            where = f"{(self._folder / DATABASE).resolve().as_uri()}?mode=ro"
            self._connection = sqlite3.connect(where, timeout=30, isolation_level=None, factory=_Connection, uri=True)
            version, tables = self._tables()
        if version not in LACKING:
            raise UserError(
                f"The store {self._folder} has tables of version {version}, of which nothing can be imported: known "
                f"are {', '.join(map(str, sorted(LACKING)))} and {VERSION}. Stores before version 2 did not "
                "record whose data a run used."
            )
        lacking, self._has_totals = LACKING[version], False
        self.lacking = lacking.get("ledger", ())
        self._columns = {
            table: tuple(column for column in columns if column not in lacking.get(table, ()))
            for table, columns in COLUMNS.items()
        }
        made = {
            table: tuple(column for column in columns if column.split()[0] not in lacking.get(table, ()))
            for table, columns in TABLES.items()
            if table in EARLIER
        }
        if tables != _statements(made):
            raise damaged(self._folder, "its tables are not as they were made")

    def _tables(self) -> tuple[int, dict[str, str]]:
        """Return the version of the tables, and the statement that created each."""
        (version,) = self._connection.execute("pragma user_version").fetchone()
        query = "select name, sql from sqlite_schema where type = 'table'"
        return version, dict(self._connection.execute(query).fetchall())


def version_of(folder: Path) -> int:
    """Return the version of the tables of an existing store."""
    with saving(folder), contextlib.closing(sqlite3.connect(folder / DATABASE, timeout=30)) as connection:
        return int(connection.execute("pragma user_version").fetchone()[0])


def run_folders(folder: Path) -> set[str]:
    """Return the names of the runs that have a folder in the store, whatever its database says."""
    with saving(folder):
        return {path.name for path in (folder / "runs").glob("*") if path.is_dir()}


def _row_digest(row: dict[str, Any]) -> str:
    """Return the digest of a row of the table `runs`, without the stored digest itself."""
    return _digest({**row, "digest": None})


def _sum_digests(digests: Iterable[str | None]) -> str:
    """Return the sum of digests modulo 2^256, in hexadecimal; what is no digest counts as zero."""
    total = 0
    for digest in digests:
        with contextlib.suppress(TypeError, ValueError):
            total += int(digest, 16)  # type: ignore[arg-type]
    return f"{total % MODULUS:064x}"


def _chain(head: str, rows: Iterable[dict[str, Any]]) -> str:
    """Return the end of a chain of digests that begins at `head` and continues over `rows`."""
    for row in rows:
        head = _digest((head, *row.values()))
    return head


def _digest(value: object) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=32).hexdigest()


def damaged(folder: Path, reason: str) -> UserError:
    """Make the error for a damaged database; `reason` says what is wrong."""
    reason = "".join(letter if letter.isprintable() else "?" for letter in reason)
    return UserError(
        f"The database {folder / DATABASE} is damaged ({reason}): put it back from a copy, or choose another folder "
        "with --store."
    )


CANNOT_WRITE = {
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM),
}


@contextlib.contextmanager
def saving(folder: Path, of_run: Path | None = None) -> Iterator[None]:
    """Turn failures to write or read the store in `folder` into errors for the user; `of_run` is the folder of the run
    that is under way."""
    try:
        yield
    except ConnectionError:  # a worker process that is gone, not a file
        raise
    except OSError as error:
        if of_run is not None and not of_run.is_dir():
            raise UserError(
                f"The folder {of_run} is gone: it was removed while its run was under way. All that the run was going "
                "to spend counts as spent; start it anew with `sordino run`."
            ) from error
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
