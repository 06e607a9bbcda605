"""Detection of a second ledger: one that was restored from a backup, or that runs elsewhere as well.

A site tells the head of its ledger to the server and to the other sites, and they repeat it. The server's echo comes
with its messages. The server may lie, so sites also repeat heads to each other: in notes that travel with the shares
of a sum, encrypted to their receivers, and in signed notes that a site collects before a run and after a restart. A
ledger that lacks a row which somebody has seen is not the only one, and its site closes for good. Owners sign their
heads, so that no other site can close one by inventing a row.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sordino.deploy.protocol import keys
from sordino.deploy.protocol.roster import IDENTITY_BYTES
from sordino.deploy.protocol.secure_sum import Cohort, MaskingError
from sordino.deploy.site import requests
from sordino.deploy.site.ledger import LINK_BYTES, Entry, Head, SiteLedger
from sordino.deploy.site.rules import RefusedError
from sordino.deploy.site.session import Session, SiteContext
from sordino.deploy.site.spending import authorize_payment

NOTE = struct.Struct(">Q32s64sQ32s64s")
"""Note that goes with a share, unseen by the server: position, link and signature of the sender's head, then of the
newest head of the receiver that the sender knows; zeros where it knows none."""


class LedgerBehindError(Exception):
    """Another site has seen a row that this site's ledger lacks."""


def check_single_ledger(ledger: SiteLedger, message: Mapping[str, Any]) -> None:
    """Refuse a message where another ledger of these data may exist; the server's `echo` in it may show that."""
    if any(entry.kind == "spoiled" for entry in ledger.entries()):
        raise RefusedError("closed", "another ledger of these data may exist")
    if message.get("echo") is None:
        return
    try:
        echo = Head.from_list(message["echo"])
    except ValueError as error:
        raise RefusedError("message", error) from error
    if echo.position and ledger.link(echo.position) != echo.link:
        raise RefusedError(
            "restored", f"row {echo.position - 1} of this ledger is missing, or is not the one that the server has seen"
        )


def write_notes(ledger: SiteLedger, cohort: Cohort, head: Head, private: bytes) -> dict[bytes, bytes]:
    """Write a note for each site of a cohort, by identity.

    Args:
        ledger: This site's ledger, which holds the heads of the others.
        cohort: The cohort of a sum.
        head: Head of this ledger.
        private: Key with which this site signs its head.
    """
    signature, found = keys.sign(private, *head.signed_parts()), {}
    for party in cohort.parties:
        seen, theirs = ledger.head_of(party.identity) or (Head(0, bytes(32)), b"")
        found[party.identity] = NOTE.pack(head.position, head.link, signature, seen.position, seen.link, theirs)
    return found


def check_note(ledger: SiteLedger, own: bytes, sender: bytes, note: bytes) -> None:
    """Compare another site's note with this ledger, and keep the head of its own that it states.

    Args:
        ledger: This site's ledger.
        own: Public key of this site.
        sender: Public key of the site that wrote the note.
        note: The note's bytes.
    """
    if len(note) != NOTE.size:
        raise MaskingError(f"A note has {len(note)} bytes, but must have {NOTE.size}.")
    position, link, signature, place, known, mine = NOTE.unpack(note)
    head, seen = Head(position, link), Head(place, known)
    if not keys.is_signed(sender, signature, *head.signed_parts()):
        raise MaskingError("A site has not signed the head of its ledger.")
    if place and not keys.is_signed(own, mine, *seen.signed_parts()):
        raise MaskingError("A site shows a head of this ledger that this site never signed.")
    if place and ledger.link(place) != known:
        raise LedgerBehindError(
            f"row {place - 1} of this ledger is missing, or is not the one that another site has seen"
        )
    ledger.note_head(sender, head, signature)


def spoil(ledger: SiteLedger, why: object) -> None:
    """Close the site for good, with the reason `why` in its ledger."""
    with ledger.transaction():
        ledger.append([Entry("spoiled", {"why": str(why)})])


UNCONFIRMED = "unconfirmed"
"""Code of the refusal of a site that waits until others confirm its ledger; its statement is part of the reply."""
SIGNATURE_BYTES = 64
NONCE_BYTES = 32
MAX_STATEMENTS = 1000
"""Largest number of statements in one message."""
START_KINDS = ("start", "reserve")
"""Kinds of the ledger's rows with which a run starts."""


@dataclass(frozen=True)
class LedgerStatement:
    """A site's signed statement of its ledger's head, with the links that lead there."""

    nonce: bytes
    """Random bytes of the stating site; notes that sign them are answers to this statement."""
    since: int
    """Number of rows before the first link."""
    links: bytes
    """Links of the ledger, concatenated: the one after the first `since` rows, then one for each later row."""
    heads_signature: bytes
    """Signature over the head alone; other sites keep it as proof."""
    signature: bytes
    """Signature over the whole statement."""

    @classmethod
    def sign(cls, private: bytes, nonce: bytes, since: int, links: bytes) -> LedgerStatement:
        """Sign a statement.

        Args:
            private: private key of the ledger's owner.
            nonce: random bytes, never the same twice: an old note confirms no new statement.
            since: number of rows before the first link.
            links: links of the ledger, concatenated.
        """
        head = _last_head(since, links)
        return cls(
            nonce,
            since,
            links,
            keys.sign(private, *head.signed_parts()),
            keys.sign(private, *_statement_parts(nonce, since, links)),
        )

    @property
    def head(self) -> Head:
        """Head that is stated."""
        return _last_head(self.since, self.links)

    def to_list(self) -> list[Any]:
        """Fields in the order in which they are sent."""
        return [self.nonce, self.since, self.links, self.heads_signature, self.signature]

    @classmethod
    def from_list(cls, value: Any) -> LedgerStatement:
        """Inverse of `to_list`; anything else raises `ValueError`."""
        if not isinstance(value, list) or [type(part) for part in value] != [bytes, int, bytes, bytes, bytes]:
            raise ValueError("a statement is a nonce, a position, links and two signatures")
        found = cls(*value)
        sizes = (len(found.nonce), len(found.heads_signature), len(found.signature))
        if sizes != (NONCE_BYTES, SIGNATURE_BYTES, SIGNATURE_BYTES) or not 0 <= found.since < 2**53:
            raise ValueError("a field of a statement has the wrong size")
        if not found.links or len(found.links) % LINK_BYTES:
            raise ValueError("a statement needs at least one link, and links have 32 bytes")
        return found

    def is_signed(self, owner: bytes) -> bool:
        """Whether both signatures are the owner's."""
        return keys.is_signed(owner, self.heads_signature, *self.head.signed_parts()) and keys.is_signed(
            owner, self.signature, *_statement_parts(self.nonce, self.since, self.links)
        )

    def includes(self, head: Head) -> bool:
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
    def sign(cls, private: bytes, nonce: bytes, owner: bytes, head: Head, heads_signature: bytes, began: int) -> Note:
        """Sign a note.

        Args:
            private: Key of the confirming site.
            nonce: Random bytes from the statement that the note answers.
            owner: Public key of the ledger's owner.
            head: Newest head of that ledger that the confirming site holds.
            heads_signature: The owner's signature over the head.
            began: Position of the ledger when the confirming site first heard of it.
        """
        about = _note_parts(nonce, owner, head, heads_signature, began)
        return cls(head, heads_signature, began, keys.sign(private, "note", *about))

    def to_list(self) -> list[Any]:
        """Fields in the order in which they are sent."""
        return [*self.head.to_list(), self.heads_signature, self.began, self.signature]

    @classmethod
    def from_list(cls, value: Any) -> Note:
        """Inverse of `to_list`; anything else raises `ValueError`."""
        if not isinstance(value, list) or [type(part) for part in value] != [int, bytes, bytes, int, bytes]:
            raise ValueError("a note is a head, a position and two signatures")
        position, link, heads_signature, began, signature = value
        if not 0 <= began < 2**53:
            raise ValueError("a position is not a number from 0 to below 2^53")
        return cls(Head.from_list([position, link]), heads_signature, began, signature)

    def is_signed(self, sender: bytes, nonce: bytes, owner: bytes) -> bool:
        """Whether the sender signed the note over this nonce, for a head that the owner signed."""
        about = _note_parts(nonce, owner, self.head, self.heads_signature, self.began)
        return keys.is_signed(sender, self.signature, "note", *about) and keys.is_signed(
            owner, self.heads_signature, *self.head.signed_parts()
        )


# ---- the site whose ledger is confirmed


def check_confirmed(
    context: SiteContext, ledger: SiteLedger, session: Session, cost: list[Entry], message: Mapping[str, Any]
) -> None:
    """Refuse a question until enough other sites have confirmed this ledger, for its run and since the site was opened.

    A question that the budget does not cover is refused first.

    Args:
        context: The site's context.
        ledger: The site's ledger.
        session: Session of the question's run.
        cost: Ledger rows that charge for the question.
        message: The question, which may carry other sites' notes.
    """
    # A ledger that its owner accepted can pay once others have confirmed it; nothing leaves before that, see below.
    assumed = [Entry("confirmed", {})] if context.others else []
    entries = ledger.entries()
    rows = authorize_payment([*entries, *assumed], session, cost, context.policy)
    if not context.others:
        return
    reserved = [row for row in rows if row.kind == "reserve"]
    if reserved or not _start_rows(entries, session.run):
        _write_start(ledger, session, reserved)
        entries = ledger.entries()
    begun = sorted(_start_rows(entries, session.run).values())
    if any(entry.kind == "accepted" for entry in entries[begun[0] :]):
        raise RefusedError("closed", "the run started before the owner accepted this ledger")
    confirmed = any(one.kind == "confirmed" and one.content["run"] == session.run for one in entries[begun[-1] :])
    if not (confirmed and context.is_fresh):
        _confirm(context, ledger, entries, session.run, begun[-1] + 1, message.get("notes"))


def _start_rows(entries: Sequence[Entry], run: str) -> dict[str, int]:
    """Positions of the rows with which a run starts, by kind."""
    rows = enumerate(entries)
    return {one.kind: place for place, one in rows if one.kind in START_KINDS and one.content["run"] == run}


def _write_start(ledger: SiteLedger, session: Session, reserved: list[Entry]) -> None:
    """Commit the start of a run and its reservation, before any site is asked to confirm it."""
    with ledger.transaction():
        there = _start_rows(ledger.entries(), session.run)
        # Random, so that a restored ledger that starts the run again gets a different head.
        about = {"run": session.run, "unlimited": session.unlimited, "random": secrets.token_hex(16)}
        start = Entry("start", about)
        ledger.append([row for row in (start, *reserved) if row.kind not in there])


def _confirm(
    context: SiteContext, ledger: SiteLedger, entries: Sequence[Entry], run: str, needed: int, notes: Any
) -> None:
    """Record which sites confirm this ledger; refuse, with a statement for the others, while they are too few.

    Args:
        context: The site's context.
        ledger: The site's ledger.
        entries: Its rows.
        run: Run that is to be confirmed.
        needed: Smallest position that a confirmed head must have.
        notes: The message's notes, by identity of the site that wrote them; not checked yet.
    """
    first: dict[str, int] = {}
    for entry in entries:
        for one, position in entry.content.get("by", {}).items():
            first.setdefault(one, position)
            context.held.setdefault(bytes.fromhex(one), position)
    counted: dict[str, int] = {}
    for member in context.others:
        note = _valid_note(notes, member.identity, context)
        if note is None:
            continue
        position, name = note.head.position, member.identity.hex()
        if ledger.link(position) != note.head.link:
            why = f"row {position - 1} of this ledger is missing, or is not the one that {member.name} has seen"
            spoil(ledger, why)
            raise RefusedError("restored", why)
        context.held[member.identity] = position
        forgot = note.began > first.get(
            name, note.began
        )  # that site was restored itself, and cannot vouch for this one
        if position >= needed and not forgot:
            counted[name] = position
    if len(counted) < context.quorum:
        missing = [one.name for one in context.others if one.identity.hex() not in counted] if notes else []
        detail = f"missing: {', '.join(missing)}" if missing else ""
        raise RefusedError(UNCONFIRMED, detail, statement=_make_statement(context, ledger).to_list())
    with ledger.transaction():
        ledger.append([Entry("confirmed", {"run": run, "by": counted})])
    context.is_fresh = True


def _valid_note(notes: Any, sender: bytes, context: SiteContext) -> Note | None:
    """Note of the site `sender`; None where there is none, or it is not signed for this site and nonce."""
    try:
        found = Note.from_list(notes[sender])
    except (ValueError, KeyError, TypeError):
        return None
    return found if found.is_signed(sender, context.nonce, context.identity) else None


def _make_statement(context: SiteContext, ledger: SiteLedger) -> LedgerStatement:
    """Statement of this ledger's head, with the links since the oldest head that another site is known to hold."""
    since = min([context.held.get(one.identity, ledger.head().position) for one in context.others])
    return LedgerStatement.sign(context.private, context.nonce, since, ledger.links(since))


# ---- the sites that confirm it


def answer_note(context: SiteContext, message: Mapping[str, Any]) -> bytes:
    """Answer `note`: keep the heads that other sites state, and sign a note on each."""
    statements = message.get("statements")
    if not isinstance(statements, dict) or len(statements) > MAX_STATEMENTS:
        raise RefusedError("message", f"it has no statements, or more than {MAX_STATEMENTS}")
    known = None if context.policy.roster is None else {one.identity for one in context.others}
    notes = {}
    with SiteLedger(context.folder) as ledger, ledger.transaction():
        for owner, value in statements.items():
            if not isinstance(owner, bytes) or len(owner) != IDENTITY_BYTES or not (known is None or owner in known):
                continue
            try:
                statement = LedgerStatement.from_list(value)
            except ValueError as error:
                raise RefusedError("message", error) from error
            if statement.is_signed(owner):
                notes[owner] = _keep_and_sign(context, ledger, owner, statement).to_list()
    return requests.ok_reply(notes=notes)


def _keep_and_sign(context: SiteContext, ledger: SiteLedger, owner: bytes, statement: LedgerStatement) -> Note:
    """Keep the head that a site states if it continues the one held, and sign a note on the one held then."""
    held = ledger.head_of(owner)
    # A statement on another branch does not replace the head that this site holds: a longer branch must not hide it.
    if held is None or statement.includes(held[0]):
        ledger.note_head(owner, statement.head, statement.heads_signature)
    head, signature = ledger.head_of(owner) or (statement.head, statement.heads_signature)
    return Note.sign(context.private, statement.nonce, owner, head, signature, ledger.first_position(owner))


def _last_head(since: int, links: bytes) -> Head:
    return Head(since + len(links) // LINK_BYTES - 1, links[-LINK_BYTES:])


def _statement_parts(nonce: bytes, since: int, links: bytes) -> tuple[str, bytes, bytes, bytes]:
    """Purpose and parts of a site's signature over its statement."""
    return "statement", nonce, since.to_bytes(8, "big"), links


def _note_parts(nonce: bytes, owner: bytes, head: Head, signature: bytes, began: int) -> tuple[bytes, ...]:
    """Parts of a site's signature over its note."""
    return nonce, owner, head.position.to_bytes(8, "big"), head.link, signature, began.to_bytes(8, "big")
