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

from sordino.deploy.database import AlteredError, Database, DatabaseError, Table
from sordino.privacy.ledger import FIRST_LINK, Row
from sordino.util.files import KeptFile, sync_folder

LINK_BYTES = 32
"""Length of a SHA-256 digest in bytes."""


@dataclass(frozen=True)
class Head:
    """Where a ledger ends: it stands for all of it."""

    position: int
    """How many rows there are."""
    link: bytes

    def packed(self) -> list[Any]:
        """Fields in the order in which they are sent."""
        return [self.position, self.link]

    def said(self) -> tuple[str, bytes, bytes]:
        """Parts that a site signs of its head."""
        return "head", self.position.to_bytes(8, "big"), self.link

    @classmethod
    def read(cls, value: Any) -> Head:
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

    def document(self) -> list[Any]:
        """As it stands in a ledger."""
        return [self.run, *self.order]


@dataclass(frozen=True)
class Entry:
    """A row of a site's ledger."""

    kind: str
    """`begin`, `data`, `rules`, `start`, `reserve`, `confirmed`, `release`, `opened`, `misfit`, `accepted` or
    `spoiled`."""
    content: dict[str, Any]

    def written(self) -> str:
        """As it is stored and chained."""
        return json.dumps({"kind": self.kind, **self.content}, sort_keys=True)

    @classmethod
    def read(cls, text: str) -> Entry:
        """The inverse of `written`."""
        values = json.loads(text)
        return cls(values.pop("kind"), values)


def noted_last(entries: Sequence[Entry], what: str) -> str | None:
    """The digest of a site's `data` or `rules` that its ledger noted last; None where it has none."""
    return next((entry.content[what] for entry in reversed(entries) if what in entry.content), None)


def linked(previous: bytes, content: str) -> bytes:
    """The SHA-256 that binds a row to all rows before it."""
    return hashlib.sha256(previous + content.encode()).digest()


def released(ask: Ask, unit: str, row: Row) -> Entry:
    """The ledger's row of a release. It holds random bytes for its draw, so that another draw has another row even
    where question and cost are the same."""
    values = {name: value.hex() if isinstance(value, bytes) else value for name, value in asdict(row).items()}
    return Entry("release", {"ask": ask.document(), "unit": unit, "row": values, "draw": secrets.token_hex(16)})


def row_of(entry: Entry) -> Row:
    """What a release cost, from the ledger."""
    kinds = {field.name: field.type for field in fields(Row)}
    values: dict[str, Any] = entry.content["row"]
    read: dict[str, Any] = {n: bytes.fromhex(value) if kinds[n] == "bytes" else value for n, value in values.items()}
    return Row(**read)


FILE = "site.db"
VERSION = 2
LEDGER = "create table ledger (position integer primary key, content text not null, link blob not null)"
QUESTION = {"run": "text", "round": "integer", "place": "integer", "attempt": "integer"}
FACTS = Table("facts", {"name": "text", "value": "blob"}, ("name",))
RUNS = Table(
    "runs",
    {
        **{"run": "text", "experiment": "text", "identity": "text", "number": "integer", "key": "blob"},
        **{"state": "text", "personal": "real", "shared": "real", "model": "text", "digest_of_model": "text"},
    },
    ("run",),
)
ASKS = Table(
    "asks",
    {**QUESTION, "hash": "blob", "parties": "blob", "reply": "blob", "survivors": "blob", "opening": "blob"},
    tuple(QUESTION),
)
MEMORY = Table(
    "memory", {"run": "text", "round": "integer", "place": "integer", "state": "blob"}, ("run", "round", "place")
)
ROUNDS = Table("rounds", {"run": "text", "round": "integer", "personal": "real", "start": "real"}, ("run", "round"))
SEEN = Table("seen", {"identity": "blob", "position": "integer", "head": "blob", "signature": "blob"}, ("identity",))
TABLES = (FACTS, RUNS, ASKS, MEMORY, ROUNDS, SEEN)
WITNESSED = "witness"
"""Name of the fact that a witness exists outside of the folder; earlier versions had none."""
HEAD = "head"
"""The fact that says where the ledger ends: rows that are missing there leave no gap."""
THIS = "where run = ? and round = ? and place = ? and attempt = ?"
NEWEST = "order by round desc, place desc limit 1"


class Book(Database):
    """A connection to a site's book: one for each message that is answered, so that none is carried over a fork."""

    def __init__(self, folder: Path) -> None:
        if not (folder / FILE).exists():
            raise DatabaseError(f"There is no site in {folder}: `sordino site init` makes one.")
        super().__init__(folder / FILE)
        self._read: list[Entry] = []
        """The ledger's rows as far as this connection has checked them; a long one is read once for a message."""
        self._link = FIRST_LINK
        ((version,),) = self.all("pragma user_version")
        if version != VERSION:
            raise DatabaseError(f"The book {self.path} was written by another version of Sordino, or is damaged.")

    @classmethod
    def create(cls, folder: Path, facts: Mapping[str, bytes], first: Entry) -> None:
        """A new book with the first row of its ledger."""
        if (folder / FILE).exists():
            raise DatabaseError(f"There is a site in {folder} already: its ledger must not be lost.")
        temporary = folder / f"{FILE}.new"
        temporary.unlink(missing_ok=True)
        with Database(temporary) as database, database.saving():
            with database.transaction():
                for statement in (LEDGER, *(table.statement() for table in TABLES)):
                    database.do(statement)
                for name, value in facts.items():
                    database.put(FACTS, name=name, value=value)
                _append(database, Head(0, FIRST_LINK), [first])
            database.do(f"pragma user_version = {VERSION}")
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
            self._read, self._link = [], FIRST_LINK
            raise

    def check(self) -> None:
        """Read everything once: what is damaged is found before anybody counts on it."""
        self.entries()
        for table in TABLES:
            self.find(table)

    def known(self, name: str) -> bytes:
        """A fact by its name: the site's `identity` or its `secret`."""
        found = self.find(FACTS, "where name = ?", name)
        if not found:
            raise AlteredError(f"The book {self.path} has lost the site's {name}: enrol a new site.")
        return bytes(found[0]["value"])

    def know(self, name: str, value: bytes) -> None:
        """Store a fact."""
        self.put(FACTS, name=name, value=value)

    def is_witnessed(self) -> bool:
        """Whether there has been a witness of this book."""
        return bool(self.find(FACTS, "where name = ?", WITNESSED))

    # ---- the ledger

    def entries(self) -> list[Entry]:
        """The whole ledger; one that was altered is refused."""
        rest = self.all("select * from ledger where position >= ? order by position", len(self._read))
        for position, (place, content, stored) in enumerate(rest, len(self._read)):
            link = linked(self._link, content)
            if place != position or link != stored:
                raise AlteredError(
                    f"The ledger in {self.path} has been altered at row {position}: this site is closed."
                )
            self._read.append(Entry.read(content))  # it is what was written
            self._link = link
        if _stored(Head(len(self._read), self._link)) != self.known(HEAD):
            raise AlteredError(f"Rows of the ledger in {self.path} are gone: this site is closed.")
        return list(self._read)

    def append(self, entries: list[Entry]) -> None:
        """Add rows behind the last one."""
        _append(self, self.head(), entries)

    def head(self) -> Head:
        """Where the ledger ends."""
        found = self.known(HEAD)
        return Head(int.from_bytes(found[:8], "big"), found[8:])

    def link(self, position: int) -> bytes | None:
        """The link after so many rows; None where there are fewer."""
        found = self.all("select link from ledger where position = ?", position - 1)
        return bytes(found[0][0]) if found else None

    def links(self, since: int) -> bytes:
        """Links of the ledger: the one after the first `since` rows, then one for each later row."""
        rows = self.all("select link from ledger where position >= ? order by position", since - 1)
        return b"".join([FIRST_LINK] * (since == 0) + [bytes(link) for (link,) in rows])

    # ---- runs

    def run(self, run: str) -> dict[str, Any] | None:
        """What is known of a run."""
        return _first(self.find(RUNS, "where run = ?", run))

    def runs(self) -> list[dict[str, Any]]:
        """All runs, oldest first."""
        return self.find(RUNS)

    def enrol(self, run: str, experiment: str, identity: str, number: int, key: bytes) -> None:
        """Write down a new run."""
        known = {"run": run, "experiment": experiment, "identity": identity, "number": number, "key": key}
        self.put(RUNS, **known, state="open", personal=None, shared=None, model=None, digest_of_model=None)

    def end(self, run: dict[str, Any], personal: float | None, shared: float | None, model: KeptFile) -> None:
        """A run is over: its keys and its outbox are destroyed. What is kept are the models' file and the accuracies of
        what the site predicts with, and of the server's model."""
        found = {"personal": personal, "shared": shared, "model": model.name, "digest_of_model": model.digest}
        self.put(RUNS, **run | found | {"key": None, "state": "done"})
        self.remove(ASKS, "where run = ?", run["run"])

    # ---- the outbox

    def ask(self, ask: Ask) -> dict[str, Any] | None:
        """What is kept of a question that was answered."""
        return _first(self.find(ASKS, THIS, *ask.document()))

    def last(self, run: str) -> tuple[int, int, int] | None:
        """The last question of a run that was answered: what is kept of it, and what was paid for it, agree."""
        kept = [(row["round"], row["place"], row["attempt"]) for row in self.find(ASKS, "where run = ?", run)]
        paid = [entry.content["ask"] for entry in self.entries() if entry.kind == "release"]
        return max([*kept, *((r, p, a) for of, r, p, a in paid if of == run)], default=None)

    def keep(self, ask: Ask, hash: bytes, parties: bytes, reply: bytes) -> None:
        """Put an answer into the outbox; what it leaves behind is no longer asked for."""
        self.remove(ASKS, "where run = ? and round < ?", ask.run, ask.round)
        self.remove(ASKS, "where run = ? and round = ? and place = ? and attempt < ?", *ask.document())
        values = dict(zip(QUESTION, ask.document(), strict=True))
        self.put(ASKS, **values, hash=hash, parties=parties, reply=reply, survivors=None, opening=None)

    def open(self, kept: dict[str, Any], survivors: bytes, opening: bytes) -> None:
        """Write down for whom a sum was opened."""
        self.put(ASKS, **kept | {"survivors": survivors, "opening": opening})

    # ---- memory

    def memory(self, ask: Ask) -> bytes | None:
        """What the site remembered before a question, whichever attempt at it this is."""
        found = _first(self._before(ask))
        return None if found is None else bytes(found["state"])

    def latest(self, run: str) -> bytes | None:
        """What the site remembers of a run now."""
        found = _first(self.find(MEMORY, f"where run = ? {NEWEST}", run))
        return None if found is None else bytes(found["state"])

    def remember(self, ask: Ask, state: bytes) -> None:
        """Write down what the site remembers after a question; what it remembered before it stays until the next."""
        before = _first(self._before(ask))
        if before is not None:
            older = "where run = ? and (round, place) < (?, ?)"
            self.remove(MEMORY, older, ask.run, before["round"], before["place"])
        self.put(MEMORY, run=ask.run, round=ask.round, place=ask.place, state=state)

    def _before(self, ask: Ask) -> list[dict[str, Any]]:
        where = f"where run = ? and (round, place) < (?, ?) {NEWEST}"
        return self.find(MEMORY, where, ask.run, ask.round, ask.place)

    # ---- accuracies, and what is known of others

    def evaluated(self, run: str, round: int, personal: float | None, start: float | None) -> None:
        """Write down how the models of a round do on the site's own test records."""
        self.put(ROUNDS, run=run, round=round, personal=personal, start=start)

    def curve(self, run: str) -> list[dict[str, Any]]:
        """Round by round: the accuracy of the `personal` model and of the model at the round's `start`."""
        return self.find(ROUNDS, "where run = ? order by round", run)

    def see(self, identity: bytes, head: Head, signature: bytes) -> None:
        """Remember how far another site's ledger was."""
        known = self.seen(identity)
        if known is None:
            self.know(f"began {identity.hex()}", head.position.to_bytes(8, "big"))
        if known is None or known[0].position < head.position:
            self.put(SEEN, identity=identity, position=head.position, head=head.link, signature=signature)

    def seen(self, identity: bytes) -> tuple[Head, bytes] | None:
        """How far another site's ledger was when it was last heard of, with its signature."""
        found = _first(self.find(SEEN, "where identity = ?", identity))
        return None if found is None else (Head(found["position"], found["head"]), found["signature"])

    def began(self, identity: bytes) -> int:
        """Position at which another site's ledger was first heard of; 0 where an earlier version heard of it."""
        found = self.find(FACTS, "where name = ?", f"began {identity.hex()}")
        return int.from_bytes(found[0]["value"], "big") if found else 0


def _append(database: Database, head: Head, entries: Iterable[Entry]) -> None:
    position, link = head.position, head.link
    for entry in entries:
        content = entry.written()
        link = linked(link, content)
        database.do("insert into ledger values (?, ?, ?)", position, content, link)
        position += 1
    database.put(FACTS, name=HEAD, value=_stored(Head(position, link)))


def _stored(head: Head) -> bytes:
    return head.position.to_bytes(8, "big") + head.link


def _first(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    return rows[0] if rows else None
