"""Reading what a server sends: every message is what it should be, or is refused."""

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
"""Numbers of rounds, questions and attempts are below this."""


@dataclass(frozen=True)
class ReceivedQuestion:
    """A question as a site reads it."""

    id: QuestionId
    hash: bytes
    """Of all that it says."""
    number: int
    """Of the question within the run."""
    step: str
    message: Message
    parties: tuple[tuple[Party, bytes], ...]
    """The cohort with each site's signature of its key; empty where messages are not summed."""


def ok_reply(**content: Any) -> bytes:
    return wire.pack({"ok": True, **content})


def read_question_id(message: Mapping[str, Any]) -> QuestionId:
    return QuestionId(read_text(message, "run"), *(read_count(message, name) for name in ("round", "place", "attempt")))


def read_question(message: Mapping[str, Any]) -> ReceivedQuestion:
    """A question, up to what one site alone is told."""
    content = read_array(message, "ask").tobytes()
    asked = wire.unpack(content)
    told = asked.get("message")
    if not isinstance(told, dict) or not all(isinstance(name, str) for name in told):
        raise RefusedError("message", "it tells nothing")
    if any(isinstance(value, Each) for value in told.values()):
        raise RefusedError("message", "it tells this site what concerns others")
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
    parties = asked.get("parties")
    if not isinstance(parties, list) or not all(isinstance(one, list) and len(one) == 3 for one in parties):
        raise RefusedError("message", "it names no cohort")
    if not all(isinstance(part, bytes) for one in parties for part in one):
        raise RefusedError("message", "its cohort has no keys")
    if not all(len(identity) == len(key) == IDENTITY_BYTES for identity, key, _ in parties):
        raise RefusedError("message", "its cohort's keys have another length")
    return tuple((Party(identity, key), signature) for identity, key, signature in parties)


def pack_parties(question: ReceivedQuestion) -> bytes:
    if not question.parties:
        return b""
    return wire.pack({"parties": [[party.identity, party.key, signature] for party, signature in question.parties]})


def are_identities(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, bytes) and len(one) == IDENTITY_BYTES for one in value)


def read_text(message: Mapping[str, Any], name: str) -> str:
    """A text that can be shown to the site's owner and stands on one line of a log."""
    value = message.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 200 or not value.isprintable():
        raise RefusedError("message", f"{name} is no text")
    return value


def read_count(message: Mapping[str, Any], name: str) -> int:
    value = message.get(name)
    if type(value) is not int or not 0 <= value < MAX_COUNT:
        raise RefusedError("message", f"{name} is no number")
    return value


def read_bytes(message: Mapping[str, Any], name: str, length: int) -> bytes:
    value = message.get(name)
    if not isinstance(value, bytes) or len(value) != length:
        raise RefusedError("message", f"{name} is not {length} bytes")
    return value


def read_array(message: Mapping[str, Any], name: str) -> np.ndarray:
    value = message.get(name)
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
        raise RefusedError("message", f"{name} is missing")
    return value
