"""Readers of a server's messages: each returns a field of the right type and size, or refuses the message."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sordino.deploy.protocol import wire
from sordino.deploy.protocol.roster import IDENTITY_BYTES
from sordino.deploy.protocol.secure_sum import Party
from sordino.deploy.site.ledger import QuestionId
from sordino.deploy.site.rules import RefusedError
from sordino.federation.message import Each, Message

MAX_COUNT = 2**31
"""Exclusive upper limit of the numbers of rounds, questions and attempts."""


@dataclass(frozen=True)
class ReceivedQuestion:
    """A question as a site received it."""

    id: QuestionId
    hash: bytes
    """SHA-256 of all of its content."""
    number: int
    """Index of the question within the run."""
    step: str
    message: Message
    parties: tuple[tuple[Party, bytes], ...]
    """Cohort, each site with its signature of its key; empty where answers are not summed."""


def ok_reply(**content: Any) -> bytes:
    """Reply that answers a message."""
    return wire.pack({"ok": True, **content})


def read_question_id(message: Mapping[str, Any]) -> QuestionId:
    """Read which question of which run a message belongs to."""
    return QuestionId(read_text(message, "run"), *(read_count(message, name) for name in ("round", "place", "attempt")))


def read_question(message: Mapping[str, Any]) -> ReceivedQuestion:
    """Read the part of a question that all sites get."""
    content = read_array(message, "ask").tobytes()
    asked = wire.unpack(content)
    told = asked.get("message")
    if not isinstance(told, dict) or not all(isinstance(name, str) for name in told):
        raise RefusedError("message", "its content is not a table of names")
    if any(isinstance(value, Each) for value in told.values()):
        raise RefusedError("message", "it holds values for other sites")
    hash = hashlib.sha256(content).digest()
    return ReceivedQuestion(
        read_question_id(asked),
        hash,
        read_count(asked, "question"),
        read_text(asked, "step"),
        told,
        read_parties(asked),
    )


def read_parties(asked: Mapping[str, Any]) -> tuple[tuple[Party, bytes], ...]:
    """Read a cohort: its sites, each with the signature of its key."""
    parties = asked.get("parties")
    if not isinstance(parties, list) or not all(isinstance(one, list) and len(one) == 3 for one in parties):
        raise RefusedError("message", "its cohort is not a list of identities, keys and signatures")
    if not all(isinstance(part, bytes) for one in parties for part in one):
        raise RefusedError("message", "its cohort holds something other than bytes")
    if not all(len(identity) == len(key) == IDENTITY_BYTES for identity, key, _ in parties):
        raise RefusedError("message", f"a key or identity of its cohort does not have {IDENTITY_BYTES} bytes")
    return tuple((Party(identity, key), signature) for identity, key, signature in parties)


def pack_parties(question: ReceivedQuestion) -> bytes:
    """Pack a question's cohort for `read_parties`; empty where it has none."""
    if not question.parties:
        return b""
    return wire.pack({"parties": [[party.identity, party.key, signature] for party, signature in question.parties]})


def are_identities(value: object) -> bool:
    """Whether a value is a list of sites' public keys."""
    return isinstance(value, list) and all(isinstance(one, bytes) and len(one) == IDENTITY_BYTES for one in value)


def read_text(message: Mapping[str, Any], name: str) -> str:
    """Read a printable text of one line and at most 200 characters, which may be logged and shown."""
    value = message.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 200 or not value.isprintable():
        raise RefusedError("message", f"{name} is not a printable text of 1 to 200 characters")
    return value


def read_count(message: Mapping[str, Any], name: str) -> int:
    """Read a whole number from 0 to below `MAX_COUNT`."""
    value = message.get(name)
    if type(value) is not int or not 0 <= value < MAX_COUNT:
        raise RefusedError("message", f"{name} is not a whole number from 0 to {MAX_COUNT - 1}")
    return value


def read_bytes(message: Mapping[str, Any], name: str, length: int) -> bytes:
    """Read exactly `length` bytes."""
    value = message.get(name)
    if not isinstance(value, bytes) or len(value) != length:
        raise RefusedError("message", f"{name} is not {length} bytes")
    return value


def read_array(message: Mapping[str, Any], name: str) -> np.ndarray:
    """Read an array of bytes."""
    value = message.get(name)
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
        raise RefusedError("message", f"{name} is missing, or is not an array of bytes")
    return value
