"""A site's database `site.db`: its ledger (a hash chain of all that left it, with its cost), keys, runs and answers.

Answers are kept to be sent again if they are asked for again. The file also holds the method's state between rounds,
the site's accuracies, and the heads of other sites' ledgers.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from sordino.deploy.database import AlteredError, CheckedDatabase, CheckedTable, DatabaseError
from sordino.privacy.ledger import FIRST_LINK, Row
from sordino.util.files import KeptFile, sync_folder
from sordino.version import VERSION as PROGRAM

LINK_BYTES = 32
"""Length of a SHA-256 digest in bytes."""


@dataclass(frozen=True)
class Head:
    """End of a ledger. Its link depends on every row, so a head identifies a whole ledger."""

    position: int
    """Number of rows."""
    link: bytes
    """SHA-256 over the last row's content and the link before it."""

    def to_list(self) -> list[Any]:
        """Fields in the order in which they are sent."""
        return [self.position, self.link]

    def signed_parts(self) -> tuple[str, bytes, bytes]:
        """Purpose and parts of a site's signature over its head."""
        return "head", self.position.to_bytes(8, "big"), self.link

    @classmethod
    def from_list(cls, value: Any) -> Head:
        """Inverse of `to_list`; anything else raises `ValueError`."""
        if not isinstance(value, list) or len(value) != 2:
            raise ValueError("a head is a position and a link")
        position, link = value
        if (
            type(position) is not int
            or not 0 <= position < 2**53
            or not isinstance(link, bytes)
            or len(link) != LINK_BYTES
        ):
            raise ValueError("a head is a position and a link")
        return cls(position, link)


@dataclass(frozen=True)
class QuestionId:
    """Identifies one attempt at one question of a run."""

    run: str
    round: int
    place: int
    """Index of the question within its round."""
    attempt: int

    @property
    def order(self) -> tuple[int, int, int]:
        """Sort key within the run."""
        return self.round, self.place, self.attempt

    def to_list(self) -> list[Any]:
        """Fields as they are stored in ledgers."""
        return [self.run, *self.order]


@dataclass(frozen=True)
class Entry:
    """A row of a site's ledger."""

    kind: str
    """`begin` (site made), `data`, `rules` (digests when they change), `start`, `reserve` (a run begins, its budget),
    `confirmed` (by other sites), `release` (a charge), `opened` (a secure sum), `misfit` (a refusal that depended on
    the data), `accepted` (by the owner without a witness) or `spoiled` (closed for good)."""
    content: dict[str, Any]

    def to_json(self) -> str:
        """Content as it is stored and hashed."""
        return json.dumps({"kind": self.kind, **self.content}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Entry:
        """Inverse of `to_json`."""
        values = json.loads(text)
        return cls(values.pop("kind"), values)


def last_noted(entries: Sequence[Entry], what: str) -> str | None:
    """Latest digest of the site's `data` or `rules` (`what`) among a ledger's rows; None where there is none."""
    return next((entry.content[what] for entry in reversed(entries) if what in entry.content), None)


def chain_link(previous: bytes, content: str) -> bytes:
    """Link of a row: SHA-256 over the `previous` link and the row's content."""
    return hashlib.sha256(previous + content.encode()).digest()


def release_entry(question: QuestionId, unit: str, row: Row) -> Entry:
    """Ledger row that charges for a release of a question.

    It holds random bytes, so that two draws of noise have different rows even where question and cost are equal.
    """
    values = {name: value.hex() if isinstance(value, bytes) else value for name, value in asdict(row).items()}
    return Entry("release", {"ask": question.to_list(), "unit": unit, "row": values, "draw": secrets.token_hex(16)})


def row_from(entry: Entry) -> Row:
    """Cost of a release, read back from its ledger row."""
    kinds = {field.name: field.type for field in fields(Row)}
    values: dict[str, Any] = entry.content["row"]
    read: dict[str, Any] = {n: bytes.fromhex(value) if kinds[n] == "bytes" else value for n, value in values.items()}
    return Row(**read)


FILE = "site.db"
VERSION = 3
"""Version of the file. Version 2 (Sordino 0.4) has the same tables but not all kinds of rows, so that a program of its
time would overlook spending: once a ledger is upgraded, that program refuses it."""
EARLIEST = 2
LEDGER = "create table ledger (position integer primary key, content text not null, link blob not null)"
QUESTION = {"run": "text", "round": "integer", "place": "integer", "attempt": "integer"}
FACTS = CheckedTable("facts", {"name": "text", "value": "blob"}, ("name",))
RUNS = CheckedTable(
    "runs",
    {
        **{"run": "text", "experiment": "text", "identity": "text", "number": "integer", "key": "blob"},
        **{"state": "text", "personal": "real", "shared": "real", "model": "text", "digest_of_model": "text"},
    },
    ("run",),
)
ASKS = CheckedTable(
    "asks",
    {**QUESTION, "hash": "blob", "parties": "blob", "reply": "blob", "survivors": "blob", "opening": "blob"},
    tuple(QUESTION),
)
MEMORY = CheckedTable(
    "memory", {"run": "text", "round": "integer", "place": "integer", "state": "blob"}, ("run", "round", "place")
)
ROUNDS = CheckedTable(
    "rounds", {"run": "text", "round": "integer", "personal": "real", "start": "real"}, ("run", "round")
)
SEEN = CheckedTable(
    "seen", {"identity": "blob", "position": "integer", "head": "blob", "signature": "blob"}, ("identity",)
)
TABLES = (FACTS, RUNS, ASKS, MEMORY, ROUNDS, SEEN)
WITNESSED = "witness"
"""Key of the fact that a witness file was written outside the folder (`sordino.deploy.site.witness`)."""
HEAD = "head"
"""Name of the fact that holds the ledger's head. Without it, rows cut off at the end would leave no gap."""
THIS_QUESTION = "where run = ? and round = ? and place = ? and attempt = ?"
NEWEST = "order by round desc, place desc limit 1"


class SiteLedger(CheckedDatabase):
    """A connection to a site's ledger file. Each message opens its own, so that none is carried over a fork."""

    def __init__(self, folder: Path) -> None:
        if not (folder / FILE).exists():
            raise DatabaseError(f"There is no site in {folder}: `sordino site init` makes one.")
        super().__init__(folder / FILE)
        self._entries: list[Entry] = []
        """Rows that this connection has read and checked already."""
        self._link = FIRST_LINK
        ((version,),) = self.query("pragma user_version")
        self._version: int = version
        if version > VERSION:
            raise DatabaseError(
                f"The site's ledger {self.path} was written by a newer version of Sordino (its format is {version}; "
                f"Sordino {PROGRAM} reads up to {VERSION}): install that version here. Nothing has been changed."
            )
        if version < EARLIEST:
            raise DatabaseError(
                f"The site's ledger {self.path} is damaged, or was made before version 0.4 of Sordino (its format is "
                f"{version}): put the newest folder back."
            )

    @classmethod
    def create(cls, folder: Path, facts: Mapping[str, bytes], first: Entry) -> None:
        """Create the ledger file of a new site, with `facts` (its keys) and its first row."""
        if (folder / FILE).exists():
            raise DatabaseError(f"There is a site in {folder} already: its ledger must not be lost.")
        temporary = folder / f"{FILE}.new"
        temporary.unlink(missing_ok=True)
        with CheckedDatabase(temporary) as database, database.report_errors():
            with database.transaction():
                for statement in (LEDGER, *(table.creation_sql() for table in TABLES)):
                    database.execute(statement)
                for name, value in facts.items():
                    database.upsert(FACTS, name=name, value=value)
                _append_rows(database, Head(0, FIRST_LINK), [first])
            database.execute(f"pragma user_version = {VERSION}")
            temporary.chmod(0o600)  # it holds the site's keys
            temporary.rename(folder / FILE)
            sync_folder(folder)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Write everything in the block or nothing, while no other process writes."""
        try:
            with super().transaction():
                yield
        except BaseException:  # rows that were rolled back must not count as read
            self._entries, self._link = [], FIRST_LINK
            raise

    def upgrade(self) -> None:
        """Mark the file as one of this version, from which on earlier versions refuse it."""
        if self._version < VERSION:
            with self.transaction():
                self.execute(f"pragma user_version = {VERSION}")
            self._version = VERSION

    def check(self) -> None:
        """Read and check every row of every table."""
        self.entries()
        for table in TABLES:
            self.select(table)

    def fact(self, name: str) -> bytes:
        """Value of a fact, such as the site's private `identity` key or its `secret`."""
        found = self.select(FACTS, "where name = ?", name)
        if not found:
            raise AlteredError(f"The site's ledger {self.path} has lost its {name}: make a new site.")
        return bytes(found[0]["value"])

    def set_fact(self, name: str, value: bytes) -> None:
        """Set a fact."""
        self.upsert(FACTS, name=name, value=value)

    def is_witnessed(self) -> bool:
        """Whether a witness of this ledger was ever written."""
        return bool(self.select(FACTS, "where name = ?", WITNESSED))

    # ---- the ledger

    def entries(self) -> list[Entry]:
        """All rows of the ledger; an altered ledger raises `AlteredError`."""
        rest = self.query("select * from ledger where position >= ? order by position", len(self._entries))
        for position, (place, content, stored) in enumerate(rest, len(self._entries)):
            link = chain_link(self._link, content)
            if place != position or link != stored:
                raise AlteredError(f"The ledger in {self.path} was altered at row {position}: this site is closed.")
            self._entries.append(Entry.from_json(content))
            self._link = link
        if _head_bytes(Head(len(self._entries), self._link)) != self.fact(HEAD):
            raise AlteredError(f"Rows are gone from the end of the ledger in {self.path}: this site is closed.")
        return list(self._entries)

    def append(self, entries: list[Entry]) -> None:
        """Append rows."""
        _append_rows(self, self.head(), entries)

    def head(self) -> Head:
        """Head of the ledger."""
        found = self.fact(HEAD)
        return Head(int.from_bytes(found[:8], "big"), found[8:])

    def link(self, position: int) -> bytes | None:
        """Link after the first `position` rows; None where there are fewer."""
        found = self.query("select link from ledger where position = ?", position - 1)
        return bytes(found[0][0]) if found else None

    def links(self, since: int) -> bytes:
        """Links of the ledger, concatenated: the one after the first `since` rows, then one for each later row."""
        rows = self.query("select link from ledger where position >= ? order by position", since - 1)
        return b"".join([FIRST_LINK] * (since == 0) + [bytes(link) for (link,) in rows])

    # ---- runs

    def run(self, run: str) -> dict[str, Any] | None:
        """Row of a run; None where the site is not enrolled in it."""
        return _first(self.select(RUNS, "where run = ?", run))

    def runs(self) -> list[dict[str, Any]]:
        """Rows of all runs, oldest first."""
        return self.select(RUNS)

    def enrol(self, run: str, experiment: str, identity: str, number: int, key: bytes) -> None:
        """Add a run.

        Args:
            run: The run's name, as the server sends it.
            experiment: The carried experiment, as JSON.
            identity: Hash of the run's terms.
            number: Client number of this site.
            key: Private X25519 key of this site for the run.
        """
        known = {"run": run, "experiment": experiment, "identity": identity, "number": number, "key": key}
        self.upsert(RUNS, **known, state="open", personal=None, shared=None, model=None, digest_of_model=None)

    def end_run(self, run: dict[str, Any], personal: float | None, shared: float | None, model: KeptFile) -> None:
        """End a run: destroy its key and kept answers, and keep its models and accuracies.

        Args:
            run: The run's row.
            personal: Accuracy of the model that the site predicts with.
            shared: Accuracy of the server's model.
            model: File with the models.
        """
        found = {"personal": personal, "shared": shared, "model": model.name, "digest_of_model": model.digest}
        self.upsert(RUNS, **run | found | {"key": None, "state": "done"})
        self.delete(ASKS, "where run = ?", run["run"])

    # ---- kept answers

    def kept_answer(self, question: QuestionId) -> dict[str, Any] | None:
        """Row of a question that was answered; None where it was not, or is no longer kept."""
        return _first(self.select(ASKS, THIS_QUESTION, *question.to_list()))

    def last_question(self, run: str) -> tuple[int, int, int] | None:
        """Order of the last question of a run that was answered or paid for; None where none was."""
        kept = [(row["round"], row["place"], row["attempt"]) for row in self.select(ASKS, "where run = ?", run)]
        paid = [entry.content["ask"] for entry in self.entries() if entry.kind == "release"]
        return max([*kept, *((r, p, a) for of, r, p, a in paid if of == run)], default=None)

    def keep_answer(self, question: QuestionId, hash: bytes, parties: bytes, reply: bytes) -> None:
        """Keep an answer, and drop answers to earlier rounds and attempts, which no server asks for again.

        Args:
            question: The question.
            hash: SHA-256 of its content, which another content under the same id does not have.
            parties: Its packed cohort; empty where answers are not summed.
            reply: The answer's bytes.
        """
        self.delete(ASKS, "where run = ? and round < ?", question.run, question.round)
        self.delete(ASKS, "where run = ? and round = ? and place = ? and attempt < ?", *question.to_list())
        values = dict(zip(QUESTION, question.to_list(), strict=True))
        self.upsert(ASKS, **values, hash=hash, parties=parties, reply=reply, survivors=None, opening=None)

    def keep_opening(self, kept: dict[str, Any], survivors: bytes, opening: bytes) -> None:
        """Keep the survivors for whom a sum was opened, and the reply that opened it."""
        self.upsert(ASKS, **kept | {"survivors": survivors, "opening": opening})

    # ---- memory

    def memory_before(self, question: QuestionId) -> bytes | None:
        """State before a question, the same for every attempt at it; None before the first."""
        found = _first(self._before(question))
        return None if found is None else bytes(found["state"])

    def latest_memory(self, run: str) -> bytes | None:
        """State after the last question of a run; None before the first."""
        found = _first(self.select(MEMORY, f"where run = ? {NEWEST}", run))
        return None if found is None else bytes(found["state"])

    def remember(self, question: QuestionId, state: bytes) -> None:
        """Store the state after a question. The state before it is kept until the next, for another attempt."""
        before = _first(self._before(question))
        if before is not None:
            older = "where run = ? and (round, place) < (?, ?)"
            self.delete(MEMORY, older, question.run, before["round"], before["place"])
        self.upsert(MEMORY, run=question.run, round=question.round, place=question.place, state=state)

    def _before(self, question: QuestionId) -> list[dict[str, Any]]:
        where = f"where run = ? and (round, place) < (?, ?) {NEWEST}"
        return self.select(MEMORY, where, question.run, question.round, question.place)

    # ---- accuracies, and heads of other sites' ledgers

    def keep_accuracies(self, run: str, round: int, personal: float | None, start: float | None) -> None:
        """Store the accuracies of a round: of the personal model and of the model at the round's start."""
        self.upsert(ROUNDS, run=run, round=round, personal=personal, start=start)

    def curve(self, run: str) -> list[dict[str, Any]]:
        """Accuracies by round, of the `personal` model and of the model at the round's `start`."""
        return self.select(ROUNDS, "where run = ? order by round", run)

    def note_head(self, identity: bytes, head: Head, signature: bytes) -> None:
        """Keep the newest head of another site's ledger, with the `signature` of its owner."""
        known = self.head_of(identity)
        if known is None:
            self.set_fact(f"began {identity.hex()}", head.position.to_bytes(8, "big"))
        if known is None or known[0].position < head.position:
            self.upsert(SEEN, identity=identity, position=head.position, head=head.link, signature=signature)

    def head_of(self, identity: bytes) -> tuple[Head, bytes] | None:
        """Newest known head of another site's ledger, with its signature; None where none is known."""
        found = _first(self.select(SEEN, "where identity = ?", identity))
        return None if found is None else (Head(found["position"], found["head"]), found["signature"])

    def first_position(self, identity: bytes) -> int:
        """Position of another site's ledger when this site first heard of it; 0 where an early version did."""
        found = self.select(FACTS, "where name = ?", f"began {identity.hex()}")
        return int.from_bytes(found[0]["value"], "big") if found else 0


def _append_rows(database: CheckedDatabase, head: Head, entries: Iterable[Entry]) -> None:
    position, link = head.position, head.link
    for entry in entries:
        content = entry.to_json()
        link = chain_link(link, content)
        database.execute("insert into ledger values (?, ?, ?)", position, content, link)
        position += 1
    database.upsert(FACTS, name=HEAD, value=_head_bytes(Head(position, link)))


def _head_bytes(head: Head) -> bytes:
    return head.position.to_bytes(8, "big") + head.link


def _first(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    return rows[0] if rows else None
