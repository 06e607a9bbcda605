"""How a site answers to `open`, the second trip of a sum: to one list of survivors, ever."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sordino.deploy import copies, reading, wire
from sordino.deploy.book import Book
from sordino.deploy.desk import Desk
from sordino.deploy.enrolling import session_of
from sordino.deploy.entries import Ask, Entry
from sordino.deploy.masking import Cohort, Masker, MaskingError
from sordino.deploy.rules import RefusedError
from sordino.deploy.session import Session


@dataclass(frozen=True)
class Request:
    """What the server wants opened."""

    ask: Ask
    hash: bytes
    survivors: list[bytes]
    shares: dict[bytes, bytes]
    """Of each survivor, its share for this site."""

    @classmethod
    def read(cls, message: Mapping[str, Any]) -> Request:
        """From a message, if it is one."""
        ask, hash = reading.ask(message), reading.bytes_of(message, "hash", 32)
        survivors, shares = message.get("survivors"), message.get("shares")
        if not reading.are_identities(survivors) or not isinstance(shares, dict):
            raise RefusedError("message", "it names no survivors or has no shares")
        if not all(isinstance(one, bytes) and isinstance(share, bytes) for one, share in shares.items()):
            raise RefusedError("message", "its shares are none")
        assert isinstance(survivors, list)
        return cls(ask, hash, survivors, shares)


def open_sum(desk: Desk, message: Mapping[str, Any]) -> bytes:
    """What opens the survivors' sum."""
    request = Request.read(message)
    with Book(desk.folder) as book:
        session = session_of(desk, book, request.ask.run)
        copies.check_only_one(book, message)
        try:
            with book.transaction():
                return _opened(desk, book, request, session)
        except copies.BehindError as behind:
            copies.spoil(book, behind)
            raise RefusedError("restored", behind) from behind


def _opened(desk: Desk, book: Book, request: Request, session: Session) -> bytes:
    kept = book.ask(request.ask)
    if kept is None:
        raise RefusedError("old", "nothing is kept of this question")
    if bytes(kept["hash"]) != request.hash or not kept["parties"]:
        raise RefusedError("other")
    parties = reading.parties(wire.unpacked(bytes(kept["parties"])))
    cohort = Cohort(request.hash, tuple(party for party, _ in parties), session.terms.minimum)
    survivors = request.survivors
    try:
        cohort.check_survivors(survivors)
        named = b"".join(one.identity for one in cohort.parties if one.identity in survivors)
    except MaskingError as error:
        raise RefusedError("survivors", error) from error
    if kept["survivors"] is not None:
        if bytes(kept["survivors"]) != named:
            raise RefusedError("survivors", "others were named before")
        return bytes(kept["opening"])
    masker = Masker(cohort, desk.identity, session.key)
    try:
        for one in survivors:
            copies.check_note(book, desk.identity, one, masker.share_from(one, request.shares.get(one, b"")).note)
        opening = masker.opening(survivors, request.shares)
    except MaskingError as error:
        raise RefusedError("share", error) from error
    reply = reading.answered(shares=opening.shares, seeds=opening.seeds)
    book.open(kept, named, reply)
    # In the ledger too: one that was restored would answer to other survivors.
    book.append([Entry("opened", {"ask": request.ask.document(), "survivors": hashlib.sha256(named).hexdigest()})])
    return reply
