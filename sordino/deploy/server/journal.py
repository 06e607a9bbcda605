"""What the server of a deployment keeps besides its run's books: who takes part, and how far each question is.

For a question it keeps the cohort, the list of survivors, which is on disk before anybody is told of it, and the sum;
single messages are never written. A server that is killed goes on with the same cohort and the same survivors; the
sites send again what they sent.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sordino.deploy.database import AlteredError, Database, Table
from sordino.deploy.site.ledger import Ask, Head
from sordino.experiment.run import DEPLOYMENT

FILE = DEPLOYMENT
HEADS_FILE = "heads.db"
VERSION = 3
State = Literal["asked", "fixed", "done", "failed"]
FACTS = Table("facts", {"name": "text", "value": "text"}, ("name",))
SITES = Table("sites", {"identity": "blob", "key": "blob", "signature": "blob"}, ("identity",))
SITES_OF_2 = Table("sites", {**SITES.columns, "position": "integer", "head": "blob"}, SITES.key)
"""As journals of version 2 have them, with where each ledger ended; that is kept for all runs together (`Heads`)."""
HEADS = Table("heads", {"identity": "blob", "position": "integer", "head": "blob"}, ("identity",))
ASKS = Table(
    "asks",
    {
        **{"round": "integer", "place": "integer", "attempt": "integer", "content": "text", "state": "text"},
        **{"survivors": "text", "result": "blob"},
    },
    ("round", "place", "attempt"),
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


class Journal(Database):
    """The journal of one deployed run."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / FILE)
        ((version,),) = self.all("pragma user_version")
        if version == 0:
            with self.transaction():
                for table in (FACTS, SITES, ASKS):
                    self.do(table.statement())
                self.do(f"pragma user_version = {VERSION}")
        elif version == 2:
            self._bring_up_to_date()
        elif version != VERSION:
            raise AlteredError(f"The journal {self.path} was written by another version of Sordino, or is damaged.")

    def _bring_up_to_date(self) -> None:
        """Rows have digests over all of their columns: they are read as they were written, and written anew."""
        with self.transaction():
            sites = self.find(SITES_OF_2)
            self.do(f"drop table {SITES.name}")
            self.do(SITES.statement())
            for site in sites:
                self.put(SITES, **site)
            self.do(f"pragma user_version = {VERSION}")

    def fact(self, name: str) -> Any:
        """Something that was decided when the run began; None where nothing was."""
        found = self.find(FACTS, "where name = ?", name)
        return json.loads(found[0]["value"]) if found else None

    def decide(self, name: str, value: Any) -> None:
        """Write down what is decided once."""
        self.put(FACTS, name=name, value=json.dumps(value))

    def enrolled(self) -> list[Enrolled]:
        """The sites that take part."""
        return [Enrolled(row["identity"], row["key"], row["signature"]) for row in self.find(SITES)]

    def enrol(self, site: Enrolled) -> None:
        """Write down a site."""
        self.put(SITES, identity=site.identity, key=site.key, signature=site.signature)

    def asked(self, ask: Ask) -> Asked | None:
        """An attempt at a question, if it was made."""
        row = self._row(ask)
        if row is None:
            return None
        survivors = _read(row["survivors"]) if row["survivors"] else []
        return Asked(_read(row["content"]), row["state"], survivors, row["result"])

    def begin(self, ask: Ask, cohort: list[Any]) -> Asked:
        """Write down an attempt before anybody is asked."""
        self.remove(ASKS, "where round < ?", ask.round - 1)
        known = {"round": ask.round, "place": ask.place, "attempt": ask.attempt, "content": _written(cohort)}
        self.put(ASKS, **known, state="asked", survivors=None, result=None)
        return Asked(cohort, "asked", [], None)

    def fix(self, ask: Ask, survivors: list[bytes]) -> None:
        """Write down who answered, before any of them is told."""
        self._set(ask, state="fixed", survivors=_written(survivors))

    def done(self, ask: Ask, result: bytes) -> None:
        """Write down the sum."""
        self._set(ask, state="done", result=result)

    def fail(self, ask: Ask) -> None:
        """Give an attempt up."""
        self._set(ask, state="failed")

    def _row(self, ask: Ask) -> dict[str, Any] | None:
        found = self.find(ASKS, "where round = ? and place = ? and attempt = ?", *ask.order)
        return found[0] if found else None

    def _set(self, ask: Ask, **changes: Any) -> None:
        row = self._row(ask)
        if row is not None:
            self.put(ASKS, **row | changes)


class Heads(Database):
    """Last known head of each site's ledger, over all runs of a store."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / HEADS_FILE)
        self.do(HEADS.statement(unless_there=True))

    def saw(self, identity: bytes, head: Head) -> None:
        """Store the head of a site's ledger, as the site reports it."""
        known = self.head(identity)
        if known is None or known.position < head.position:
            self.put(HEADS, identity=identity, position=head.position, head=head.link)

    def head(self, identity: bytes) -> Head | None:
        """Last known head of a site's ledger; None where there is none."""
        found = self.find(HEADS, "where identity = ?", identity)
        return Head(found[0]["position"], found[0]["head"]) if found else None


def _written(value: list[Any]) -> str:
    return json.dumps([one.hex() if isinstance(one, bytes) else [part.hex() for part in one] for one in value])


def _read(text: str) -> list[Any]:
    return [
        bytes.fromhex(one) if isinstance(one, str) else [bytes.fromhex(part) for part in one]
        for one in json.loads(text)
    ]
