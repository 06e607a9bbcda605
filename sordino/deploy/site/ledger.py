"""What stands in a site's ledger, and where it ends."""

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
from sordino.privacy.ledger import BLANK, Row
from sordino.util.files import KeptFile, sync_folder

LINK_BYTES = 32
"""Length of a SHA-256 digest in bytes."""


@dataclass(frozen=True)
class Head:
    """Where a ledger ends: it stands for all of it."""

    position: int
    """How many rows there are."""
    link: bytes

    def to_list(self) -> list[Any]:
        """Fields in the order in which they are sent."""
        return [self.position, self.link]

    def signed_parts(self) -> tuple[str, bytes, bytes]:
        """Parts that a site signs of its head."""
        return "head", self.position.to_bytes(8, "big"), self.link

    @classmethod
    def from_list(cls, value: Any) -> Head:
        """The inverse of `packed`; anything else raises `ValueError`."""
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

    def to_list(self) -> list[Any]:
        """As it stands in a ledger."""
        return [self.run, *self.order]


@dataclass(frozen=True)
class Entry:
    """A row of a site's ledger."""

    kind: str
    """`begin`, `data`, `rules`, `start`, `reserve`, `confirmed`, `release`, `opened`, `misfit`, `accepted` or
    `spoiled`."""
    content: dict[str, Any]

    def to_json(self) -> str:
        """As it is stored and chained."""
        return json.dumps({"kind": self.kind, **self.content}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Entry:
        """The inverse of `written`."""
        values = json.loads(text)
        return cls(values.pop("kind"), values)


def last_noted(entries: Sequence[Entry], what: str) -> str | None:
    """The digest of a site's `data` or `rules` that its ledger noted last; None where it has none."""
    return next((entry.content[what] for entry in reversed(entries) if what in entry.content), None)


def chain_link(previous: bytes, content: str) -> bytes:
    """The SHA-256 that binds a row to all rows before it."""
    return hashlib.sha256(previous + content.encode()).digest()


def release_entry(question: QuestionId, unit: str, row: Row) -> Entry:
    """The ledger's row of a release. It holds random bytes for its draw, so that another draw has another row even
    where question and cost are the same."""
    values = {name: value.hex() if isinstance(value, bytes) else value for name, value in asdict(row).items()}
    return Entry("release", {"ask": question.to_list(), "unit": unit, "row": values, "draw": secrets.token_hex(16)})


def row_from(entry: Entry) -> Row:
    """What a release cost, from the ledger."""
    kinds = {field.name: field.type for field in fields(Row)}
    values: dict[str, Any] = entry.content["row"]
    read: dict[str, Any] = {n: bytes.fromhex(value) if kinds[n] == "bytes" else value for n, value in values.items()}
    return Row(**read)


FILE = "site.db"
VERSION = 2
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
"""Name of the fact that a witness exists outside of the folder; earlier versions had none."""
HEAD = "head"
"""The fact that says where the ledger ends: rows that are missing there leave no gap."""
THIS_QUESTION = "where run = ? and round = ? and place = ? and attempt = ?"
NEWEST = "order by round desc, place desc limit 1"


class SiteLedger(CheckedDatabase):
    """A connection to a site's ledger: one for each message that is answered, so that none is carried over a fork."""

    def __init__(self, folder: Path) -> None:
        if not (folder / FILE).exists():
            raise DatabaseError(f"There is no site in {folder}: `sordino site init` makes one.")
        super().__init__(folder / FILE)
        self._entries: list[Entry] = []
        """The ledger's rows as far as this connection has checked them; a long one is read once for a message."""
        self._link = BLANK
        ((version,),) = self.query("pragma user_version")
        if version != VERSION:
            raise DatabaseError(f"The ledger {self.path} was written by another version of Sordino, or is damaged.")

    @classmethod
    def create(cls, folder: Path, facts: Mapping[str, bytes], first: Entry) -> None:
        """A new ledger with the first row of its ledger."""
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
                _append_rows(database, Head(0, BLANK), [first])
            database.execute(f"pragma user_version = {VERSION}")
            temporary.chmod(0o600)  # it holds the site's keys
            temporary.rename(folder / FILE)
            sync_folder(folder)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, and nobody else writes meanwhile; rows of a ledger that were not written were never read."""
        try:
            with super().transaction():
                yield
        except BaseException:
            self._entries, self._link = [], BLANK
            raise

    def check(self) -> None:
        """Read everything once: what is damaged is found before anybody counts on it."""
        self.entries()
        for table in TABLES:
            self.select(table)

    def fact(self, name: str) -> bytes:
        """A fact by its name: the site's `identity` or its `secret`."""
        found = self.select(FACTS, "where name = ?", name)
        if not found:
            raise AlteredError(f"The ledger {self.path} has lost the site's {name}: enrol a new site.")
        return bytes(found[0]["value"])

    def set_fact(self, name: str, value: bytes) -> None:
        """Store a fact."""
        self.upsert(FACTS, name=name, value=value)

    def is_witnessed(self) -> bool:
        """Whether there has been a witness of this ledger."""
        return bool(self.select(FACTS, "where name = ?", WITNESSED))

    # ---- the ledger

    def entries(self) -> list[Entry]:
        """The whole ledger; one that was altered is refused."""
        rest = self.query("select * from ledger where position >= ? order by position", len(self._entries))
        for position, (place, content, stored) in enumerate(rest, len(self._entries)):
            link = chain_link(self._link, content)
            if place != position or link != stored:
                raise AlteredError(
                    f"The ledger in {self.path} has been altered at row {position}: this site is closed."
                )
            self._entries.append(Entry.from_json(content))  # it is what was written
            self._link = link
        if _head_bytes(Head(len(self._entries), self._link)) != self.fact(HEAD):
            raise AlteredError(f"Rows of the ledger in {self.path} are gone: this site is closed.")
        return list(self._entries)

    def append(self, entries: list[Entry]) -> None:
        """Add rows behind the last one."""
        _append_rows(self, self.head(), entries)

    def head(self) -> Head:
        """Where the ledger ends."""
        found = self.fact(HEAD)
        return Head(int.from_bytes(found[:8], "big"), found[8:])

    def link(self, position: int) -> bytes | None:
        """The link after so many rows; None where there are fewer."""
        found = self.query("select link from ledger where position = ?", position - 1)
        return bytes(found[0][0]) if found else None

    def links(self, since: int) -> bytes:
        """Links of the ledger: the one after the first `since` rows, then one for each later row."""
        rows = self.query("select link from ledger where position >= ? order by position", since - 1)
        return b"".join([BLANK] * (since == 0) + [bytes(link) for (link,) in rows])

    # ---- runs

    def run(self, run: str) -> dict[str, Any] | None:
        """What is known of a run."""
        return _first(self.select(RUNS, "where run = ?", run))

    def runs(self) -> list[dict[str, Any]]:
        """All runs, oldest first."""
        return self.select(RUNS)

    def enrol(self, run: str, experiment: str, identity: str, number: int, key: bytes) -> None:
        """Write down a new run."""
        known = {"run": run, "experiment": experiment, "identity": identity, "number": number, "key": key}
        self.upsert(RUNS, **known, state="open", personal=None, shared=None, model=None, digest_of_model=None)

    def end_run(self, run: dict[str, Any], personal: float | None, shared: float | None, model: KeptFile) -> None:
        """A run is over: its keys and its outbox are destroyed. What is kept are the models' file and the accuracies of
        what the site predicts with, and of the server's model."""
        found = {"personal": personal, "shared": shared, "model": model.name, "digest_of_model": model.digest}
        self.upsert(RUNS, **run | found | {"key": None, "state": "done"})
        self.delete(ASKS, "where run = ?", run["run"])

    # ---- the outbox

    def kept_answer(self, question: QuestionId) -> dict[str, Any] | None:
        """What is kept of a question that was answered."""
        return _first(self.select(ASKS, THIS_QUESTION, *question.to_list()))

    def last_question(self, run: str) -> tuple[int, int, int] | None:
        """The last question of a run that was answered: what is kept of it, and what was paid for it, agree."""
        kept = [(row["round"], row["place"], row["attempt"]) for row in self.select(ASKS, "where run = ?", run)]
        paid = [entry.content["ask"] for entry in self.entries() if entry.kind == "release"]
        return max([*kept, *((r, p, a) for of, r, p, a in paid if of == run)], default=None)

    def keep_answer(self, question: QuestionId, hash: bytes, parties: bytes, reply: bytes) -> None:
        """Put an answer into the outbox; what it leaves behind is no longer asked for."""
        self.delete(ASKS, "where run = ? and round < ?", question.run, question.round)
        self.delete(ASKS, "where run = ? and round = ? and place = ? and attempt < ?", *question.to_list())
        values = dict(zip(QUESTION, question.to_list(), strict=True))
        self.upsert(ASKS, **values, hash=hash, parties=parties, reply=reply, survivors=None, opening=None)

    def keep_opening(self, kept: dict[str, Any], survivors: bytes, opening: bytes) -> None:
        """Write down for whom a sum was opened."""
        self.upsert(ASKS, **kept | {"survivors": survivors, "opening": opening})

    # ---- memory

    def memory_before(self, question: QuestionId) -> bytes | None:
        """What the site remembered before a question, whichever attempt at it this is."""
        found = _first(self._before(question))
        return None if found is None else bytes(found["state"])

    def latest_memory(self, run: str) -> bytes | None:
        """What the site remembers of a run now."""
        found = _first(self.select(MEMORY, f"where run = ? {NEWEST}", run))
        return None if found is None else bytes(found["state"])

    def remember(self, question: QuestionId, state: bytes) -> None:
        """Write down what the site remembers after a question; what it remembered before it stays until the next."""
        before = _first(self._before(question))
        if before is not None:
            older = "where run = ? and (round, place) < (?, ?)"
            self.delete(MEMORY, older, question.run, before["round"], before["place"])
        self.upsert(MEMORY, run=question.run, round=question.round, place=question.place, state=state)

    def _before(self, question: QuestionId) -> list[dict[str, Any]]:
        where = f"where run = ? and (round, place) < (?, ?) {NEWEST}"
        return self.select(MEMORY, where, question.run, question.round, question.place)

    # ---- accuracies, and what is known of others

    def keep_accuracies(self, run: str, round: int, personal: float | None, start: float | None) -> None:
        """Write down how the models of a round do on the site's own test records."""
        self.upsert(ROUNDS, run=run, round=round, personal=personal, start=start)

    def curve(self, run: str) -> list[dict[str, Any]]:
        """Round by round: the accuracy of the `personal` model and of the model at the round's `start`."""
        return self.select(ROUNDS, "where run = ? order by round", run)

    def note_head(self, identity: bytes, head: Head, signature: bytes) -> None:
        """Remember how far another site's ledger was."""
        known = self.head_of(identity)
        if known is None:
            self.set_fact(f"began {identity.hex()}", head.position.to_bytes(8, "big"))
        if known is None or known[0].position < head.position:
            self.upsert(SEEN, identity=identity, position=head.position, head=head.link, signature=signature)

    def head_of(self, identity: bytes) -> tuple[Head, bytes] | None:
        """How far another site's ledger was when it was last heard of, with its signature."""
        found = _first(self.select(SEEN, "where identity = ?", identity))
        return None if found is None else (Head(found["position"], found["head"]), found["signature"])

    def first_position(self, identity: bytes) -> int:
        """Position at which another site's ledger was first heard of; 0 where an earlier version heard of it."""
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
