"""What stands in a site's ledger, and where it ends."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from sordino.privacy.ledger import Row

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
