"""Other sites as witnesses: whether this ledger is the newest, and the only one, of these data.

A backup of the whole machine brings a site's witness back together with its folder, so sites remember for each other
how far their ledgers were. Before anything leaves for a run, and again after every restart, a site commits the run's
beginning with all that it reserves, states where its ledger ends, and waits for the notes of others:

| message | from | says |
|---|---|---|
| statement | the site | a fresh nonce, its head, and the links by which the ledger came there, signed |
| note | another site | the head of that ledger which it holds now, with that owner's signature; signed over the nonce |

Whoever gets a statement keeps its head, unless it holds one that the ledger did not pass: then it keeps that one for
good. A note on such a head closes the site, since it bears the site's own signature. The server carries both; it can
withhold, and then the site waits, but it can neither forge a note nor let one be forgotten.

Before a run and after a restart, w = `witnesses` of the other sites must confirm. Of n sites, two such groups share at
least 2 w - (n - 1). One of these neither colludes nor was restored itself, and so remembers, if 2 w is at least n +
`colluders` + r, where r others were restored. `read_rules` refuses a w below (n + `colluders`) / 2, which allows for r
= 0; each further witness allows for two restored sites more.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sordino.deploy import copies, keys, reading
from sordino.deploy.book import Book
from sordino.deploy.desk import Desk
from sordino.deploy.entries import LINK_BYTES, Entry, Head
from sordino.deploy.paying import payable
from sordino.deploy.roster import IDENTITY_BYTES
from sordino.deploy.rules import RefusedError
from sordino.deploy.session import Session

UNCONFIRMED = "unconfirmed"
"""The refusal of a site that waits until others confirm its ledger; its statement goes with it."""
SIGNATURE_BYTES = 64
NONCE_BYTES = 32
MOST_STATEMENTS = 1000
"""Most statements in one message."""
BEGINNING = ("start", "reserve")
"""Kinds of rows with which a run begins."""


@dataclass(frozen=True)
class LedgerStatement:
    """A site's signed statement of where its ledger ends, with the links that lead there."""

    nonce: bytes
    since: int
    links: bytes
    """Links of the ledger: the one after the first `since` rows, then one for each later row."""
    heads_signature: bytes
    """Signature over the head alone, which others keep and show."""
    signature: bytes
    """Signature over all of the statement."""

    @classmethod
    def made(cls, private: bytes, nonce: bytes, since: int, links: bytes) -> LedgerStatement:
        """Sign a statement with the owner's key."""
        head = _last(since, links)
        return cls(
            nonce, since, links, keys.signed(private, *head.said()), keys.signed(private, *_said(nonce, since, links))
        )

    @property
    def head(self) -> Head:
        """The ledger's end."""
        return _last(self.since, self.links)

    def packed(self) -> list[Any]:
        """Fields in the order in which they are sent."""
        return [self.nonce, self.since, self.links, self.heads_signature, self.signature]

    @classmethod
    def read(cls, value: Any) -> LedgerStatement:
        """The inverse of `packed`; anything else raises `ValueError`."""
        if not isinstance(value, list) or [type(part) for part in value] != [bytes, int, bytes, bytes, bytes]:
            raise ValueError("a statement is a nonce, a position, links and two signatures")
        found = cls(*value)
        sizes = (len(found.nonce), len(found.heads_signature), len(found.signature))
        if sizes != (NONCE_BYTES, SIGNATURE_BYTES, SIGNATURE_BYTES) or not 0 <= found.since < 2**53:
            raise ValueError("a part of a statement has another size")
        if not found.links or len(found.links) % LINK_BYTES:
            raise ValueError("a statement's links are none")
        return found

    def is_signed(self, owner: bytes) -> bool:
        """Whether both signatures are the owner's."""
        return keys.is_signed(owner, self.heads_signature, *self.head.said()) and keys.is_signed(
            owner, self.signature, *_said(self.nonce, self.since, self.links)
        )

    def passed(self, head: Head) -> bool:
        """Whether a head is among the statement's links."""
        begin = (head.position - self.since) * LINK_BYTES
        return begin >= 0 and self.links[begin : begin + LINK_BYTES] == head.link


@dataclass(frozen=True)
class Note:
    """Another site's signed confirmation of the newest head that it holds of a ledger."""

    head: Head
    heads_signature: bytes
    """Signature of the ledger's owner over the head."""
    began: int
    """Position of the ledger when the confirming site first heard of it."""
    signature: bytes
    """Signature of the confirming site."""

    @classmethod
    def made(cls, private: bytes, nonce: bytes, owner: bytes, head: Head, heads_signature: bytes, began: int) -> Note:
        """Sign a note for the owner of a ledger, who has sent a nonce."""
        about = _noted(nonce, owner, head, heads_signature, began)
        return cls(head, heads_signature, began, keys.signed(private, "note", *about))

    def packed(self) -> list[Any]:
        """Fields in the order in which they are sent."""
        return [*self.head.packed(), self.heads_signature, self.began, self.signature]

    @classmethod
    def read(cls, value: Any) -> Note:
        """The inverse of `packed`; anything else raises `ValueError`."""
        if not isinstance(value, list) or [type(part) for part in value] != [int, bytes, bytes, int, bytes]:
            raise ValueError("a note is a head, a position and two signatures")
        position, link, heads_signature, began, signature = value
        if not 0 <= began < 2**53:
            raise ValueError("a position is no such number")
        return cls(Head.read([position, link]), heads_signature, began, signature)

    def is_signed(self, sender: bytes, nonce: bytes, owner: bytes) -> bool:
        """Whether the sender signed it over this nonce, for a head that the owner signed."""
        about = _noted(nonce, owner, self.head, self.heads_signature, self.began)
        return keys.is_signed(sender, self.signature, "note", *about) and keys.is_signed(
            owner, self.heads_signature, *self.head.said()
        )


# ---- the site whose ledger it is


def check_confirmed(desk: Desk, book: Book, session: Session, cost: list[Entry], message: Mapping[str, Any]) -> None:
    """Refuse a question that cannot be paid for, or whose run others have not confirmed since this process began."""
    # An accepted ledger counts on the others: nothing leaves before they have confirmed it.
    assumed = [Entry("confirmed", {})] if desk.others else []
    entries = book.entries()
    rows = payable([*entries, *assumed], session, cost, desk.allowed)
    if not desk.others:
        return
    reserved = [row for row in rows if row.kind == "reserve"]
    if reserved or not _beginning(entries, session.run):
        _begin(book, session, reserved)
        entries = book.entries()
    begun = sorted(_beginning(entries, session.run).values())
    if any(entry.kind == "accepted" for entry in entries[begun[0] :]):
        raise RefusedError("closed", "the run had begun before the ledger was accepted")
    confirmed = any(one.kind == "confirmed" and one.content["run"] == session.run for one in entries[begun[-1] :])
    if not (confirmed and desk.is_fresh):
        _confirm(desk, book, entries, session.run, begun[-1] + 1, message.get("notes"))


def _beginning(entries: Sequence[Entry], run: str) -> dict[str, int]:
    """Where the rows stand with which a run begins, by their kinds."""
    rows = enumerate(entries)
    return {one.kind: place for place, one in rows if one.kind in BEGINNING and one.content["run"] == run}


def _begin(book: Book, session: Session, reserved: list[Entry]) -> None:
    """Commit the beginning of a run and what it reserves, before anybody confirms it."""
    with book.transaction():
        there = _beginning(book.entries(), session.run)
        # Random, so that a ledger that is restored and begins the run again comes to another head.
        about = {"run": session.run, "unlimited": session.unlimited, "random": secrets.token_hex(16)}
        start = Entry("start", about)
        book.append([row for row in (start, *reserved) if row.kind not in there])


def _confirm(desk: Desk, book: Book, entries: Sequence[Entry], run: str, needed: int, notes: Any) -> None:
    """Record which sites confirm this ledger from the row `needed` on; refuse, with a statement, while they are too
    few."""
    first: dict[str, int] = {}
    for entry in entries:
        for one, position in entry.content.get("by", {}).items():
            first.setdefault(one, position)
            desk.held.setdefault(bytes.fromhex(one), position)
    counted: dict[str, int] = {}
    for member in desk.others:
        note = _read(notes, member.identity, desk)
        if note is None:
            continue
        position, name = note.head.position, member.identity.hex()
        if book.link(position) != note.head.link:
            why = f"row {position - 1} of this ledger is missing, or is not the one that {member.name} has seen"
            copies.spoil(book, why)
            raise RefusedError("restored", why)
        desk.held[member.identity] = position
        forgot = note.began > first.get(name, note.began)  # that site was restored itself: it is no witness
        if position >= needed and not forgot:
            counted[name] = position
    if len(counted) < desk.quorum:
        missing = [one.name for one in desk.others if one.identity.hex() not in counted] if notes else []
        detail = f"missing: {', '.join(missing)}" if missing else ""
        raise RefusedError(UNCONFIRMED, detail, statement=_statement(desk, book).packed())
    with book.transaction():
        book.append([Entry("confirmed", {"run": run, "by": counted})])
    desk.is_fresh = True


def _read(notes: Any, sender: bytes, desk: Desk) -> Note | None:
    """The valid note of a site; None where it sent none, or one that is not signed for this site and nonce."""
    try:
        found = Note.read(notes[sender])
    except (ValueError, KeyError, TypeError):
        return None
    return found if found.is_signed(sender, desk.nonce, desk.identity) else None


def _statement(desk: Desk, book: Book) -> LedgerStatement:
    """State where this ledger ends, with its links from the oldest head that another site is known to hold."""
    since = min([desk.held.get(one.identity, book.head().position) for one in desk.others])
    return LedgerStatement.made(desk.private, desk.nonce, since, book.links(since))


# ---- those who confirm it


def note(desk: Desk, message: Mapping[str, Any]) -> bytes:
    """Keep the heads that other sites state, and answer with a signed note on each."""
    statements = message.get("statements")
    if not isinstance(statements, dict) or len(statements) > MOST_STATEMENTS:
        raise RefusedError("message", "it has no statements, or too many")
    known = None if desk.allowed.roster is None else {one.identity for one in desk.others}
    notes = {}
    with Book(desk.folder) as book, book.transaction():
        for owner, value in statements.items():
            if not isinstance(owner, bytes) or len(owner) != IDENTITY_BYTES or not (known is None or owner in known):
                continue
            try:
                statement = LedgerStatement.read(value)
            except ValueError as error:
                raise RefusedError("message", error) from error
            if statement.is_signed(owner):
                notes[owner] = _hold(desk, book, owner, statement).packed()
    return reading.answered(notes=notes)


def _hold(desk: Desk, book: Book, owner: bytes, statement: LedgerStatement) -> Note:
    held = book.seen(owner)
    if held is None or statement.passed(held[0]):  # else it is another branch, which no longer one may hide
        book.see(owner, statement.head, statement.heads_signature)
    head, signature = book.seen(owner) or (statement.head, statement.heads_signature)
    return Note.made(desk.private, statement.nonce, owner, head, signature, book.began(owner))


def _last(since: int, links: bytes) -> Head:
    return Head(since + len(links) // LINK_BYTES - 1, links[-LINK_BYTES:])


def _said(nonce: bytes, since: int, links: bytes) -> tuple[str, bytes, bytes, bytes]:
    """Parts that a site signs of its statement."""
    return "statement", nonce, since.to_bytes(8, "big"), links


def _noted(nonce: bytes, owner: bytes, head: Head, signature: bytes, began: int) -> tuple[bytes, ...]:
    """Parts that a site signs of its note."""
    return nonce, owner, head.position.to_bytes(8, "big"), head.link, signature, began.to_bytes(8, "big")
