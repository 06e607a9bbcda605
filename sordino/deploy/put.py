"""A question as it is put to sites: what all of them are told, what each alone, and the hash that stands for both."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sordino.client import Question
from sordino.deploy import wire
from sordino.deploy.entries import Ask
from sordino.deploy.journal import Enrolled
from sordino.errors import UserError
from sordino.message import Each
from sordino.privacy.release import Public, Releases


@dataclass(frozen=True)
class Put:
    """A question as it is put to sites."""

    question: Question
    ask: Ask
    releases: Releases
    cohort: list[Enrolled]
    content: bytes
    """What all of them are told."""

    @classmethod
    def of(cls, question: Question, ask: Ask, releases: Releases, cohort: list[Enrolled], summed: bool) -> Put:
        """A question to a cohort, whose answers are `summed` or read one by one."""
        told = {name: value for name, value in question.message.items() if not isinstance(value, Each)}
        if summed and len(told) < len(question.message):
            raise UserError(
                "The method tells each client something of its own, but the secure sum adds up answers to one question "
                'only: simulate it with `sordino run`, or deploy it with protect_from = "server".'
            )
        content = wire.packed(
            {
                **{"run": ask.run, "round": ask.round, "place": ask.place, "attempt": ask.attempt},
                **{"question": question.number, "step": question.step, "message": told},
                "parties": [[one.identity, one.key, one.signature] for one in cohort] if summed else [],
            }
        )
        return cls(question, ask, releases, cohort, content)

    @property
    def identities(self) -> list[bytes]:
        """Of the sites that are asked."""
        return [one.identity for one in self.cohort]

    def public(self, layers: Sequence[int]) -> Public:
        """What bounds and widths depend on; `layers` are the network's."""
        return Public(self.question.message, self.question.clients, {}, layers)

    def own(self, number: int) -> bytes:
        """What client `number` alone is told; nothing where all are told the same."""
        rows = {name: value for name, value in self.question.message.items() if isinstance(value, Each)}
        if not rows:
            return b""
        return wire.packed({name: value.values[number : number + 1] for name, value in rows.items()})

    def request(self, number: int, echo: list[Any] | None, notes: Mapping[bytes, Any]) -> bytes:
        """The message to client `number`, with the `notes` of others on its ledger."""
        arrays = {
            name: np.frombuffer(part, np.uint8) for name, part in (("ask", self.content), ("own", self.own(number)))
        }
        return wire.request("work", echo=echo, notes=notes, **arrays)

    def hash(self) -> bytes:
        """Of all that a site is told, where all are told the same: what masks are bound to."""
        return hashlib.sha256(hashlib.sha256(self.content).digest() + hashlib.sha256(b"").digest()).digest()
