"""A site's book: one SQLite file that holds its identity, its ledger, its outbox and what it remembers.

The ledger is chained by SHA-256. Its first row holds 32 random bytes and a keyed fingerprint of the data: the head of
the chain leaves the site, and a bare hash of data would be a release without noise. The identity lies in the same file,
so that a lost ledger is a lost identity.

What leaves is charged, and kept for whoever asks again, in one transaction before it leaves. There is no write-ahead
log: one whose first bytes are damaged is dropped by SQLite without a word, and charges with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from sordino.errors import UserError
from sordino.files import sync_folder
from sordino.privacy.ledger import BLANK, Row

FILE = "site.db"
VERSION = 1
TABLES = (
    "create table facts (name text primary key, value blob not null)",
    "create table ledger (position integer primary key, content text not null, link blob not null)",
    "create table runs (run text primary key, experiment text not null, identity text not null, number integer not "
    "null, key blob, state text not null, final real, model text)",
    "create table asks (run text not null, round integer not null, place integer not null, attempt integer not null, "
    "hash blob not null, parties blob not null, reply blob not null, survivors blob, opening blob, "
    "primary key (run, round, place, attempt))",
    "create table memory (run text not null, round integer not null, place integer not null, state blob not null, "
    "primary key (run, round, place))",
    "create table rounds (run text not null, round integer not null, personal real, start real, "
    "primary key (run, round))",
    "create table seen (identity blob primary key, position integer not null, head blob not null)",
)


class BookError(UserError):
    """A book that cannot be written, or that has been altered."""


class AlteredError(BookError):
    """A ledger that is not as it was written."""


@dataclass(frozen=True)
class Head:
    """Where a ledger ends: it stands for all of it."""

    position: int
    """How many rows there are."""
    link: bytes

    def packed(self) -> list[Any]:
        """As it travels."""
        return [self.position, self.link]

    @classmethod
    def read(cls, value: Any) -> Head:
        """The inverse of `packed`; anything else raises `ValueError`."""
        if not isinstance(value, list) or len(value) != 2:
            raise ValueError("a head is a position and a link")
        position, link = value
        if type(position) is not int or not 0 <= position < 2**53 or not isinstance(link, bytes) or len(link) != 32:
            raise ValueError("a head is a position and a link")
        return cls(position, link)


@dataclass(frozen=True)
class Entry:
    """A row of a site's ledger."""

    kind: str
    """`begin`, `data`, `reserve`, `release`, or `spoiled`."""
    content: dict[str, Any]


@dataclass(frozen=True)
class Ask:
    """Which question of which run a message belongs to."""

    run: str
    round: int
    place: int
    """Of the question within its round."""
    attempt: int

    @property
    def order(self) -> tuple[int, int, int]:
        """Within its run."""
        return self.round, self.place, self.attempt


class Book:
    """A connection to a site's book: one for each message that is answered, so that none is carried over a fork."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        if not self.path.exists():
            raise BookError(f"There is no site in {folder}: `sordino site init` makes one.")
        with saving(self.path):
            self._database = sqlite3.connect(self.path, timeout=30, isolation_level=None)
            self._database.execute("pragma synchronous = extra")
            (version,) = self._database.execute("pragma user_version").fetchone()
        if version != VERSION:
            raise BookError(f"The book {self.path} was written by another version of Sordino, or is damaged.")

    @classmethod
    def create(cls, folder: Path, facts: Mapping[str, bytes], first: Entry) -> None:
        """A new book with the first row of its ledger."""
        path = folder / FILE
        if path.exists():
            raise BookError(f"There is a site in {folder} already: its ledger must not be lost.")
        with saving(path):
            temporary = folder / f"{FILE}.new"
            temporary.unlink(missing_ok=True)
            database = sqlite3.connect(temporary, isolation_level=None)
            database.execute("pragma synchronous = extra")
            database.execute("begin immediate")
            for statement in TABLES:
                database.execute(statement)
            database.executemany("insert into facts values (?, ?)", facts.items())
            content = written(first)
            database.execute("insert into ledger values (0, ?, ?)", (content, linked(BLANK, content)))
            database.execute("commit")
            database.execute(f"pragma user_version = {VERSION}")
            database.close()
            temporary.chmod(0o600)  # it holds the site's keys
            temporary.rename(path)
            sync_folder(folder)

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def __enter__(self) -> Book:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, and nobody else writes meanwhile."""
        with saving(self.path):
            self._database.execute("begin immediate")
            try:
                yield
                self._commit()
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("rollback")
                raise

    def _commit(self) -> None:
        self._database.execute("commit")

    # ---- facts

    def known(self, name: str) -> bytes:
        """A fact by its name: the site's `identity` or its `secret`."""
        row = self._one("select value from facts where name = ?", name)
        if row is None:
            raise BookError(f"The book {self.path} has lost the site's {name}: enrol a new site.")
        return bytes(row[0])

    # ---- the ledger

    def entries(self) -> list[Entry]:
        """The whole ledger; one that was altered is refused."""
        found, previous = [], BLANK
        for position, (place, content, link) in enumerate(self._all("select * from ledger order by position")):
            previous = linked(previous, content)
            if place != position or previous != link:
                raise AlteredError(
                    f"The ledger in {self.path} has been altered at row {position}: this site is closed."
                )
            values = json.loads(content)  # it is what was written
            found.append(Entry(values.pop("kind"), values))
        if not found:
            raise AlteredError(f"The ledger in {self.path} is gone: this site is closed.")
        return found

    def append(self, entries: list[Entry]) -> None:
        """Add rows behind the last one."""
        head = self.head()
        link = head.link
        for position, entry in enumerate(entries, head.position):
            content = written(entry)
            link = linked(link, content)
            self._do("insert into ledger values (?, ?, ?)", position, content, link)

    def head(self) -> Head:
        """Where the ledger ends."""
        row = self._one("select position, link from ledger order by position desc limit 1")
        return Head(0, BLANK) if row is None else Head(int(row[0]) + 1, bytes(row[1]))

    def link(self, position: int) -> bytes | None:
        """The link after so many rows; None where there are fewer."""
        row = self._one("select link from ledger where position = ?", position - 1)
        return None if row is None else bytes(row[0])

    # ---- runs

    def run(self, run: str) -> dict[str, Any] | None:
        """What is known of a run."""
        found = [one for one in self.runs() if one["run"] == run]
        return found[0] if found else None

    def runs(self) -> list[dict[str, Any]]:
        """All runs, oldest first."""
        names = ("run", "experiment", "identity", "number", "key", "state", "final", "model")
        rows = self._all(f"select {', '.join(names)} from runs order by rowid")
        return [dict(zip(names, row, strict=True)) for row in rows]

    def enrol(self, run: str, experiment: str, identity: str, number: int, key: bytes) -> None:
        """Write down a new run."""
        added = "insert into runs (run, experiment, identity, number, key, state) values (?, ?, ?, ?, ?, 'open')"
        self._do(added, run, experiment, identity, number, key)

    def end(self, run: str, final: float | None, model: str) -> None:
        """A run is over: its keys and its outbox are destroyed."""
        self._do("update runs set key = null, state = 'done', final = ?, model = ? where run = ?", final, model, run)
        self._do("delete from asks where run = ?", run)

    # ---- the outbox

    def ask(self, ask: Ask) -> dict[str, Any] | None:
        """What is kept of a question that was answered."""
        names = ("hash", "parties", "reply", "survivors", "opening")
        query = f"select {', '.join(names)} from asks where run = ? and round = ? and place = ? and attempt = ?"
        row = self._one(query, ask.run, *ask.order)
        return None if row is None else dict(zip(names, row, strict=True))

    def last(self, run: str) -> tuple[int, int, int] | None:
        """The last question of a run that was answered."""
        query = "select round, place, attempt from asks where run = ? order by round desc, place desc, attempt desc"
        row = self._one(f"{query} limit 1", run)
        return None if row is None else tuple(row)

    def keep(self, ask: Ask, hash: bytes, parties: bytes, reply: bytes) -> None:
        """Put an answer into the outbox; what it leaves behind is no longer asked for."""
        self._do("delete from asks where run = ? and round < ?", ask.run, ask.round)
        older = "delete from asks where run = ? and round = ? and place = ? and attempt < ?"
        self._do(older, ask.run, *ask.order)
        added = "insert into asks (run, round, place, attempt, hash, parties, reply) values (?, ?, ?, ?, ?, ?, ?)"
        self._do(added, ask.run, *ask.order, hash, parties, reply)

    def open(self, ask: Ask, survivors: bytes, opening: bytes) -> None:
        """Write down for whom a sum was opened."""
        query = "update asks set survivors = ?, opening = ? where run = ? and round = ? and place = ? and attempt = ?"
        self._do(query, survivors, opening, ask.run, *ask.order)

    # ---- memory

    def memory(self, ask: Ask) -> bytes | None:
        """What the site remembered before a question, whichever attempt at it this is."""
        query = "select state from memory where run = ? and (round, place) < (?, ?) order by round desc, place desc"
        row = self._one(f"{query} limit 1", ask.run, ask.round, ask.place)
        return None if row is None else bytes(row[0])

    def latest(self, run: str) -> bytes | None:
        """What the site remembers of a run now."""
        row = self._one("select state from memory where run = ? order by round desc, place desc limit 1", run)
        return None if row is None else bytes(row[0])

    def remember(self, ask: Ask, state: bytes) -> None:
        """Write down what the site remembers after a question; what it remembered before it stays until the next."""
        before = "select round, place from memory where run = ? and (round, place) < (?, ?)"
        row = self._one(f"{before} order by round desc, place desc limit 1", ask.run, ask.round, ask.place)
        if row is not None:
            self._do("delete from memory where run = ? and (round, place) < (?, ?)", ask.run, *row)
        self._do("insert or replace into memory values (?, ?, ?, ?)", ask.run, ask.round, ask.place, state)

    # ---- accuracies, and what is known of others

    def evaluated(self, run: str, round: int, personal: float | None, start: float | None) -> None:
        """Write down how the models of a round do on the site's own test records."""
        self._do("insert or replace into rounds values (?, ?, ?, ?)", run, round, personal, start)

    def curve(self, run: str) -> list[tuple[int, float | None, float | None]]:
        """Round, accuracy of the personal model and of the model at the round's start."""
        return self._all("select round, personal, start from rounds where run = ? order by round", run)

    def see(self, identity: bytes, head: Head) -> None:
        """Remember how far another site's ledger was."""
        known = self.seen(identity)
        if known is None or known.position < head.position:
            self._do("insert or replace into seen values (?, ?, ?)", identity, head.position, head.link)

    def seen(self, identity: bytes) -> Head | None:
        """How far another site's ledger was when it was last heard of."""
        row = self._one("select position, head from seen where identity = ?", identity)
        return None if row is None else Head(int(row[0]), bytes(row[1]))

    def _do(self, statement: str, *values: Any) -> None:
        with saving(self.path):
            self._database.execute(statement, values)

    def _one(self, query: str, *values: Any) -> Any:
        with saving(self.path):
            return self._database.execute(query, values).fetchone()

    def _all(self, query: str, *values: Any) -> list[Any]:
        with saving(self.path):
            return self._database.execute(query, values).fetchall()


def written(entry: Entry) -> str:
    """A row of the ledger as it is stored and chained."""
    return json.dumps({"kind": entry.kind, **entry.content}, sort_keys=True)


def linked(previous: bytes, content: str) -> bytes:
    """The SHA-256 that binds a row to all rows before it."""
    return hashlib.sha256(previous + content.encode()).digest()


def released(ask: Ask, unit: str, row: Row) -> Entry:
    """The ledger's row of a release."""
    values = {name: value.hex() if isinstance(value, bytes) else value for name, value in asdict(row).items()}
    return Entry("release", {"ask": list(asdict(ask).values()), "unit": unit, "row": values})


def row_of(entry: Entry) -> Row:
    """What a release cost, from the ledger."""
    kinds = {field.name: field.type for field in fields(Row)}
    values: dict[str, Any] = entry.content["row"]
    read: dict[str, Any] = {n: bytes.fromhex(value) if kinds[n] == "bytes" else value for n, value in values.items()}
    return Row(**read)


@contextlib.contextmanager
def saving(path: Path) -> Iterator[None]:
    """Turn a failure to write or read the book into a sentence."""
    try:
        yield
    except (OSError, sqlite3.DatabaseError) as error:
        raise BookError(f"The book {path} cannot be written or read: {error}.") from error
