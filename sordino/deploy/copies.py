"""How a ledger of which there may be two is noticed: restored from a backup, or running elsewhere as well.

Where a ledger ended is told to everybody whom the site works with. The server repeats it to the site; as it may lie,
sites repeat it to each other too, in notes that go with the shares of a sum, encrypted to their receivers. A ledger
that lacks a row which somebody has seen is not the only one: the site gives no more away, for good. Heads in notes are
signed by their owners, so that no other site can close one with a row that there never was.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from sordino.deploy import keys
from sordino.deploy.book import Book
from sordino.deploy.entries import Entry, Head
from sordino.deploy.masking import Cohort, MaskingError
from sordino.deploy.rules import RefusedError

NOTE = struct.Struct(">Q32s64sQ32s64s")
"""What goes with a share, unseen by the server: the sender's head with its signature, and what it has last seen of the
receiver's, with that one's signature; zeros where it has seen nothing."""


class BehindError(Exception):
    """Others know more of this site's ledger than it does itself."""


def check_only_one(book: Book, message: Mapping[str, Any]) -> None:
    """Refuse where this ledger may not be the only one of these data."""
    if any(entry.kind == "spoiled" for entry in book.entries()):
        raise RefusedError("closed", "there may be another ledger of these data")
    if message.get("echo") is None:
        return
    try:
        echo = Head.read(message["echo"])
    except ValueError as error:
        raise RefusedError("message", error) from error
    if echo.position and book.link(echo.position) != echo.link:
        raise RefusedError(
            "restored", f"row {echo.position - 1} of this ledger is not the one that the server has seen"
        )


def notes(book: Book, cohort: Cohort, head: Head, private: bytes) -> dict[bytes, bytes]:
    """For each site of a cohort: where this ledger ends, signed with the `private` key, and where that one's did when
    it was last heard of."""
    signature, found = keys.signed(private, *head.said()), {}
    for party in cohort.parties:
        seen, theirs = book.seen(party.identity) or (Head(0, bytes(32)), b"")
        found[party.identity] = NOTE.pack(head.position, head.link, signature, seen.position, seen.link, theirs)
    return found


def check_note(book: Book, own: bytes, sender: bytes, note: bytes) -> None:
    """Compare what another site has seen of this ledger, whose owner is `own`, with it, and remember what it says of
    its own."""
    if len(note) != NOTE.size:
        raise MaskingError("A share's note is not of the right length.")
    position, link, signature, place, known, mine = NOTE.unpack(note)
    head, seen = Head(position, link), Head(place, known)
    if not keys.is_signed(sender, signature, *head.said()):
        raise MaskingError("A site did not sign what it says of its ledger.")
    if place and not keys.is_signed(own, mine, *seen.said()):
        raise MaskingError("A site tells of a ledger that this one never had.")
    if place and book.link(place) != known:
        raise BehindError(f"row {place - 1} of this ledger is missing, or is not the one that another site has seen")
    book.see(sender, head, signature)


def spoil(book: Book, why: object) -> None:
    """Close the site for good."""
    with book.transaction():
        book.append([Entry("spoiled", {"why": str(why)})])
