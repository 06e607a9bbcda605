"""What the server of a deployment keeps besides its run's books: who takes part, and how far each question is.

For a question it keeps the cohort, the list of survivors, which is on disk before anybody is told of it, and the sum;
single messages are never written. A server that is killed goes on with the same cohort and the same survivors; the
sites send again what they sent.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sordino.deploy.book import Ask, Head
from sordino.errors import UserError
from sordino.experiment.run import DEPLOYMENT

FILE = DEPLOYMENT
State = Literal["asked", "fixed", "done", "failed"]
TABLES = (
    "create table if not exists facts (name text primary key, value text not null)",
    "create table if not exists sites (identity blob primary key, key blob not null, signature blob not null, "
    "position integer not null, head blob not null)",
    "create table if not exists asks (round integer not null, place integer not null, attempt integer not null, "
    "content blob not null, state text not null, survivors blob, result blob, primary key (round, place, attempt))",
)


@dataclass(frozen=True)
class Enrolled:
    """A site that takes part in the run."""

    identity: bytes
    key: bytes
    """Its public X25519 key of this run."""
    signature: bytes
    """With which it signed that key."""


@dataclass(frozen=True)
class Asked:
    """An attempt at a question."""

    cohort: list[Any]
    """Identity, key and signature of each site that was asked; for what is not summed, identities only."""
    state: State
    survivors: list[bytes]
    result: bytes | None
    """The sum, once it is known."""


class Journal:
    """The journal of one deployed run."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        with self._saving():
            self._database = sqlite3.connect(self.path, timeout=30, isolation_level=None)
            self._database.execute("pragma synchronous = extra")
            for statement in TABLES:
                self._database.execute(statement)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def fact(self, name: str) -> Any:
        """Something that was decided when the run began; None where nothing was."""
        row = self._one("select value from facts where name = ?", name)
        return None if row is None else json.loads(row[0])

    def decide(self, name: str, value: Any) -> None:
        """Write down what is decided once."""
        self._do("insert into facts values (?, ?)", name, json.dumps(value))

    def enrolled(self) -> list[Enrolled]:
        """The sites that take part."""
        return [Enrolled(*row) for row in self._all("select identity, key, signature from sites order by rowid")]

    def enrol(self, site: Enrolled, head: Head) -> None:
        """Write down a site, or how far its ledger is."""
        values = (site.identity, site.key, site.signature, head.position, head.link)
        self._do("insert or replace into sites values (?, ?, ?, ?, ?)", *values)

    def saw(self, identity: bytes, head: Head) -> None:
        """Write down how far a site's ledger is, by its own account."""
        query = "update sites set position = ?, head = ? where identity = ? and position < ?"
        self._do(query, head.position, head.link, identity, head.position)

    def head(self, identity: bytes) -> Head | None:
        """How far a site's ledger was."""
        row = self._one("select position, head from sites where identity = ?", identity)
        return None if row is None else Head(int(row[0]), bytes(row[1]))

    def asked(self, ask: Ask) -> Asked | None:
        """An attempt at a question, if it was made."""
        query = "select content, state, survivors, result from asks where round = ? and place = ? and attempt = ?"
        row = self._one(query, *ask.order)
        if row is None:
            return None
        content, state, survivors, result = row
        return Asked(_read(content), state, _read(survivors) if survivors else [], result)

    def begin(self, ask: Ask, cohort: list[Any]) -> Asked:
        """Write down an attempt before anybody is asked."""
        self._do("delete from asks where round < ?", ask.round - 1)
        values = (*ask.order, _written(cohort))
        self._do("insert into asks (round, place, attempt, content, state) values (?, ?, ?, ?, 'asked')", *values)
        return Asked(cohort, "asked", [], None)

    def fix(self, ask: Ask, survivors: list[bytes]) -> None:
        """Write down who answered, before any of them is told."""
        self._set(ask, "state = 'fixed', survivors = ?", _written(survivors))

    def done(self, ask: Ask, result: bytes) -> None:
        """Write down the sum."""
        self._set(ask, "state = 'done', result = ?", result)

    def fail(self, ask: Ask) -> None:
        """Give an attempt up."""
        self._set(ask, "state = 'failed'")

    def failures(self) -> int:
        """How many attempts were given up, of the rounds that are still kept."""
        return int(self._one("select count(*) from asks where state = 'failed'")[0])

    def _set(self, ask: Ask, what: str, *values: Any) -> None:
        self._do(f"update asks set {what} where round = ? and place = ? and attempt = ?", *values, *ask.order)

    def _do(self, statement: str, *values: Any) -> None:
        with self._saving():
            self._database.execute(statement, values)

    def _one(self, query: str, *values: Any) -> Any:
        with self._saving():
            return self._database.execute(query, values).fetchone()

    def _all(self, query: str, *values: Any) -> list[Any]:
        with self._saving():
            return self._database.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _saving(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise UserError(f"The journal {self.path} cannot be written or read: {error}.") from error


def _written(value: list[Any]) -> str:
    return json.dumps([one.hex() if isinstance(one, bytes) else [part.hex() for part in one] for one in value])


def _read(text: str) -> list[Any]:
    return [
        bytes.fromhex(one) if isinstance(one, str) else [bytes.fromhex(part) for part in one]
        for one in json.loads(text)
    ]
