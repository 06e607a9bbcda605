"""The journal of a deployed run: the sites that take part, and the progress of each question.

For a question it holds the cohort, the list of survivors, which is on disk before any site learns of it, and the sum.
Single messages are never written. A killed server continues with the same cohort and the same survivors, and the sites
send the same answers again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sordino.deploy.database import AlteredError, CheckedDatabase, CheckedTable
from sordino.deploy.site.ledger import Head, QuestionId
from sordino.experiment.run import DEPLOYMENT
from sordino.version import VERSION as PROGRAM

FILE = DEPLOYMENT
HEADS_FILE = "heads.db"
HEADS_VERSION = 1
VERSION = 3
State = Literal["asked", "fixed", "done", "failed"]
FACTS = CheckedTable("facts", {"name": "text", "value": "text"}, ("name",))
SITES = CheckedTable("sites", {"identity": "blob", "key": "blob", "signature": "blob"}, ("identity",))
SITES_OF_2 = CheckedTable("sites", {**SITES.columns, "position": "integer", "head": "blob"}, SITES.key)
"""Sites in journals of version 2 (Sordino 0.4), with the head of each ledger; `Heads` now keeps those of all runs."""
FORMER_HEADS = "heads"
"""Fact of a journal that was of version 2: the heads that it had."""
HEADS = CheckedTable("heads", {"identity": "blob", "position": "integer", "head": "blob"}, ("identity",))
ASKS = CheckedTable(
    "asks",
    {
        **{"round": "integer", "place": "integer", "attempt": "integer", "content": "text", "state": "text"},
        **{"survivors": "text", "result": "blob"},
    },
    ("round", "place", "attempt"),
)


@dataclass(frozen=True)
class EnrolledSite:
    """A site that takes part in the run."""

    identity: bytes
    key: bytes
    """Public X25519 key of the site for this run."""
    signature: bytes
    """Signature of the site over that key."""


@dataclass(frozen=True)
class Attempt:
    """An attempt at a question."""

    cohort: list[Any]
    """Identity, key and signature of each site that was asked."""
    state: State
    survivors: list[bytes]
    result: bytes | None
    """Packed sum, once it is known."""


class DeploymentJournal(CheckedDatabase):
    """The journal of one deployed run."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / FILE)
        ((version,),) = self.query("pragma user_version")
        if version == 0:
            with self.transaction():
                for table in (FACTS, SITES, ASKS):
                    self.execute(table.creation_sql())
                self.execute(f"pragma user_version = {VERSION}")
        elif version == 2:
            self._migrate_from_2()
        elif version > VERSION:
            raise AlteredError(
                f"The journal {self.path} was written by a newer version of Sordino (its format is {version}; Sordino "
                f"{PROGRAM} reads up to {VERSION}), or is damaged: install that version here. Nothing has been changed."
            )
        elif version != VERSION:
            raise AlteredError(f"The journal {self.path} is damaged: its format is {version}, which there never was.")

    def _migrate_from_2(self) -> None:
        """Move the heads of ledgers into a fact. Digests cover all columns, so every row is read and written anew."""
        with self.transaction():
            sites = self.select(SITES_OF_2)
            self.execute(f"drop table {SITES.name}")
            self.execute(SITES.creation_sql())
            for site in sites:
                self.upsert(SITES, **site)
            known = [[one["identity"].hex(), one["position"], one["head"].hex()] for one in sites]
            self.set_fact(FORMER_HEADS, known)
            self.execute(f"pragma user_version = {VERSION}")

    def former_heads(self) -> dict[bytes, Head]:
        """Heads of the sites' ledgers, by identity, where an earlier version kept them in the journal."""
        known = self.fact(FORMER_HEADS) or []
        return {bytes.fromhex(identity): Head(position, bytes.fromhex(link)) for identity, position, link in known}

    def fact(self, name: str) -> Any:
        """Value of a fact about the run; None where it is not set."""
        found = self.select(FACTS, "where name = ?", name)
        return json.loads(found[0]["value"]) if found else None

    def set_fact(self, name: str, value: Any) -> None:
        """Set a fact about the run."""
        self.upsert(FACTS, name=name, value=json.dumps(value))

    def enrolled_sites(self) -> list[EnrolledSite]:
        """Sites that take part in the run."""
        return [EnrolledSite(row["identity"], row["key"], row["signature"]) for row in self.select(SITES)]

    def enrol(self, site: EnrolledSite) -> None:
        """Add a site that takes part."""
        self.upsert(SITES, identity=site.identity, key=site.key, signature=site.signature)

    def attempt(self, question: QuestionId) -> Attempt | None:
        """Progress of an attempt at a question; None where it was not begun."""
        row = self._row(question)
        if row is None:
            return None
        survivors = _from_json(row["survivors"]) if row["survivors"] else []
        return Attempt(_from_json(row["content"]), row["state"], survivors, row["result"])

    def begin_attempt(self, question: QuestionId, cohort: list[Any]) -> Attempt:
        """Store an attempt before any site is asked; `cohort` lists identity, key and signature of each."""
        known = {
            "round": question.round,
            "place": question.place,
            "attempt": question.attempt,
            "content": _to_json(cohort),
        }
        with self.transaction():
            self.delete(ASKS, "where round < ?", question.round - 1)
            self.upsert(ASKS, **known, state="asked", survivors=None, result=None)
        return Attempt(cohort, "asked", [], None)

    def fix_survivors(self, question: QuestionId, survivors: list[bytes]) -> None:
        """Store the identities of the survivors, before any site learns of them."""
        self._set(question, state="fixed", survivors=_to_json(survivors))

    def keep_sum(self, question: QuestionId, result: bytes) -> None:
        """Store the packed sum and end the attempt."""
        self._set(question, state="done", result=result)

    def give_up(self, question: QuestionId) -> None:
        """Mark an attempt as failed."""
        self._set(question, state="failed")

    def _row(self, question: QuestionId) -> dict[str, Any] | None:
        found = self.select(ASKS, "where round = ? and place = ? and attempt = ?", *question.order)
        return found[0] if found else None

    def _set(self, question: QuestionId, **changes: Any) -> None:
        row = self._row(question)
        if row is not None:
            self.upsert(ASKS, **row | changes)


class Heads(CheckedDatabase):
    """Newest known head of each site's ledger, over all runs of a store."""

    def __init__(self, folder: Path) -> None:
        """Open the heads of the store in `folder`. Those that an earlier version kept in its runs' journals are taken
        over first: a site that was restored since then is noticed all the same."""
        super().__init__(folder / HEADS_FILE)
        ((version,),) = self.query("pragma user_version")
        if version > HEADS_VERSION:
            raise AlteredError(
                f"{self.path} was written by a newer version of Sordino than {PROGRAM}, or is damaged: install that "
                "version here. Nothing has been changed."
            )
        if version < HEADS_VERSION:
            former = [_read_former_heads(path.parent) for path in sorted(folder.glob(f"runs/*/{FILE}"))]
            self.execute(HEADS.creation_sql(if_not_exists=True))
            for heads in former:
                self.update(heads)
            self.execute(f"pragma user_version = {HEADS_VERSION}")

    def update(self, heads: Mapping[bytes, Head]) -> None:
        """Store the heads of ledgers that sites report, by identity, as far as they are newer than those known."""
        with self.transaction():
            for identity, head in heads.items():
                known = self.head(identity)
                # Never back: an older head would hide that a ledger was restored from a backup.
                if known is None or known.position < head.position:
                    self.upsert(HEADS, identity=identity, position=head.position, head=head.link)

    def head(self, identity: bytes) -> Head | None:
        """Newest known head of a site's ledger; None where none is known."""
        found = self.select(HEADS, "where identity = ?", identity)
        return Head(found[0]["position"], found[0]["head"]) if found else None


def _read_former_heads(folder: Path) -> dict[bytes, Head]:
    """Heads that an earlier version kept in the journal of the run in `folder`. A damaged one has none: it is refused
    when its run is taken up, and must not keep other runs from beginning."""
    with contextlib.suppress(AlteredError), DeploymentJournal(folder) as journal:
        return journal.former_heads()
    return {}


def _to_json(value: list[Any]) -> str:
    """Encode a list of bytes, or of lists of bytes."""
    return json.dumps([one.hex() if isinstance(one, bytes) else [part.hex() for part in one] for one in value])


def _from_json(text: str) -> list[Any]:
    """Inverse of `_to_json`."""
    return [
        bytes.fromhex(one) if isinstance(one, str) else [bytes.fromhex(part) for part in one]
        for one in json.loads(text)
    ]
