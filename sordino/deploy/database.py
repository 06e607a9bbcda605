"""SQLite files whose rows carry digests, so that damage or tampering is found when a row is read.

The last column of a row is the SHA-256 of its table's name and of all its other values. There is no write-ahead log:
SQLite silently drops a log whose first bytes are damaged, and the charges in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from sordino.errors import UserError
from sordino.store.database import CANNOT_WRITE

DIGEST = "digest"
LOCK_TIMEOUT_SECONDS = 30.0
"""Seconds to wait for another process that writes."""


class DatabaseError(UserError):
    """A database file that cannot be written or read."""


class AlteredError(DatabaseError):
    """A database file that was damaged or altered since it was written."""


@dataclass(frozen=True)
class CheckedTable:
    """Schema of a table whose rows carry digests."""

    name: str
    columns: Mapping[str, str]
    """SQL type of each column."""
    key: Sequence[str]
    """Columns of the primary key."""

    def creation_sql(self, if_not_exists: bool = False) -> str:
        """SQL statement that creates the table; with `if_not_exists` an existing table is left as it is."""
        columns = ", ".join(f"{name} {kind}" for name, kind in self.columns.items())
        name = f"if not exists {self.name}" if if_not_exists else self.name
        return f"create table {name} ({columns}, {DIGEST} blob not null, primary key ({', '.join(self.key)}))"

    def digest(self, row: Mapping[str, Any]) -> bytes:
        """SHA-256 of a row's values, each with its column's name, type and length."""
        made = hashlib.sha256(self.name.encode())
        for name in self.columns:
            content = row[name] if isinstance(row[name], bytes) else json.dumps(row[name]).encode()
            made.update(f"\0{name} {type(row[name]).__name__} {len(content)} ".encode())
            made.update(content)
        return made.digest()


class CheckedDatabase:
    """A connection to a SQLite file whose rows are checked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self.report_errors():
            self._connection = sqlite3.connect(path, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None)
            # A charge must outlive a power cut: the folder is synced too once SQLite has removed its journal.
            self._connection.execute("pragma synchronous = extra")
            self._connection.execute("pragma secure_delete = on")  # a key that is deleted must be gone from the file

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Write everything in the block or nothing, while no other process writes."""
        with self.report_errors():
            self._connection.execute("begin immediate")
            try:
                yield
                self._commit()
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("rollback")
                raise

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read everything in the block as it was at one instant, while another process may be writing."""
        with self.report_errors():
            self._connection.execute("begin")
            try:
                yield
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("rollback")

    def _commit(self) -> None:
        self._connection.execute("commit")

    def upsert(self, table: CheckedTable, **row: Any) -> None:
        """Insert or update a row."""
        values = [row[name] for name in table.columns]
        names = [*table.columns, DIGEST]
        changed = ", ".join(f"{name} = excluded.{name}" for name in names if name not in table.key)
        marks = ", ".join("?" * len(names))
        known = f"on conflict ({', '.join(table.key)}) do update set {changed}"
        self.execute(
            f"insert into {table.name} ({', '.join(names)}) values ({marks}) {known}", *values, table.digest(row)
        )

    def select(self, table: CheckedTable, where: str = "", *values: Any) -> list[dict[str, Any]]:
        """Rows of a table as dictionaries, oldest first; a row that does not match its digest raises `AlteredError`.

        `where` is SQL behind the table's name, with `values` for its question marks; it may set another order.
        """
        names = [*table.columns, DIGEST]
        order = "" if "order by" in where else "order by rowid"
        found = []
        for values_of in self.query(f"select {', '.join(names)} from {table.name} {where} {order}", *values):
            row = dict(zip(names, values_of, strict=True))
            if row.pop(DIGEST) != table.digest(row):
                raise AlteredError(
                    f"{self.path} is damaged or was altered: a row of its table {table.name} is not as written."
                )
            found.append(row)
        return found

    def delete(self, table: CheckedTable, where: str, *values: Any) -> None:
        """Delete the rows that the SQL `where` selects."""
        self.execute(f"delete from {table.name} {where}", *values)

    def execute(self, statement: str, *values: Any) -> None:
        """Execute a SQL statement that returns nothing."""
        with self.report_errors():
            self._connection.execute(statement, values)

    def query(self, query: str, *values: Any) -> list[Any]:
        """Rows of a SQL query as tuples, unchecked."""
        with self.report_errors():
            return self._connection.execute(query, values).fetchall()

    @contextlib.contextmanager
    def report_errors(self) -> Iterator[None]:
        """Turn a failure to write or read the file into a `DatabaseError`."""
        try:
            yield
        except OSError as error:
            raise self._cannot_write(error.strerror or str(error)) from error
        except sqlite3.ProgrammingError as error:  # a mistake of this program
            raise DatabaseError(f"{self.path} cannot be written or read ({error}).") from error
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF  # the rest are details
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise DatabaseError(
                    f"{self.path} is busy: another process has been writing to it for {LOCK_TIMEOUT_SECONDS:g} seconds "
                    "or more. End that process, or wait for it, and try again."
                ) from error
            if code in CANNOT_WRITE:
                raise self._cannot_write(str(error)) from error
            raise DatabaseError(f"{self.path} is damaged ({error}): put the newest folder back.") from error

    def _cannot_write(self, reason: str) -> DatabaseError:
        return DatabaseError(
            f"{self.path} cannot be written ({reason}): free disk space, and check that its folder is there and "
            "belongs to the user who gave this command."
        )
