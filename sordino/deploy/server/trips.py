"""Reading what sites answer: every answer is what the step and the protocol ask for, or raises `ValueError`."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.deploy.protocol import wire
from sordino.deploy.protocol.carrier import Carrier, Failure
from sordino.deploy.protocol.secure_sum import Cohort, MaskingError, Opening
from sordino.deploy.server.journal import Enrolled
from sordino.deploy.server.presence import PAUSE, Presence, accepted, replies, said
from sordino.deploy.site.freshness import UNCONFIRMED, LedgerStatement
from sordino.deploy.site.ledger import Ask, Head
from sordino.errors import UserError
from sordino.federation.client import Question
from sordino.federation.message import Each
from sordino.federation.transport import OutOfBudgetError
from sordino.privacy.release import Public, Releases


@dataclass(frozen=True)
class Work:
    """What a site answered to a question."""

    content: Any
    """Values, or a masked vector with its shares."""
    size: int
    """Bytes of what left the site."""
    head: Head
    """Where its ledger ends, by its own account."""

    @classmethod
    def read(cls, reply: Mapping[str, Any], content: Any) -> Work:
        """From a reply whose content has been read."""
        return cls(content, _size(reply), Head.read(reply.get("head")))


def values(reply: Mapping[str, Any], releases: Releases, public: Public, parameters: int) -> dict[str, Tensor]:
    """What a site sent where each message is protected by itself; the network has so many `parameters`."""
    found = reply.get("values")
    if not isinstance(found, dict) or set(found) != set(releases):
        raise ValueError("it is not what the step sends")
    for name, release in releases.items():
        value, width = found[name], release.width(public)
        whole = release.summed
        if not isinstance(value, Tensor) or value.ndim != 2 or len(value) != 1:
            raise ValueError(f"{name} is not one row")
        if value.dtype != (torch.int64 if whole else torch.float32) or (width or value.shape[1]) != value.shape[1]:
            raise ValueError(f"{name} has another type or width")
        if release.made_of_gradients and value.shape[1] != parameters:
            raise ValueError(f"{name} has another width")
        if not whole and not bool(torch.isfinite(value).all()):
            raise ValueError(f"{name} is not finite")
    return found


def masked(
    reply: Mapping[str, Any], cohort: Cohort, width: int, kind: np.dtype
) -> tuple[np.ndarray, dict[bytes, bytes]]:
    """A site's masked vector of so many numbers, and its shares for all."""
    vector, shares = reply.get("vector"), reply.get("shares")
    if not isinstance(vector, np.ndarray) or vector.shape != (width,) or vector.dtype != kind:
        raise ValueError("a vector has another length or width")
    wanted = {party.identity for party in cohort.parties}
    if not isinstance(shares, dict) or set(shares) != wanted or not all(isinstance(s, bytes) for s in shares.values()):
        raise ValueError("shares are missing")
    return vector, shares


def opening(reply: Mapping[str, Any], survivors: Sequence[bytes], dropped: Sequence[bytes]) -> Opening:
    """What a site gives to open a sum."""
    shares, seeds = reply.get("shares"), reply.get("seeds")
    if not isinstance(shares, dict) or not isinstance(seeds, dict):
        raise ValueError("an opening has shares and seeds")
    if set(shares) != set(survivors) or set(seeds) != set(dropped):
        raise ValueError("an opening is for others")
    if not all(isinstance(one, bytes) for one in (*shares.values(), *seeds.values())):
        raise ValueError("an opening holds bytes")
    return Opening(shares, seeds)


def _size(reply: Mapping[str, Any]) -> int:
    found = reply.get("values")
    if isinstance(found, dict):
        return sum(value.numel() * value.element_size() for value in found.values() if isinstance(value, Tensor))
    vector = reply.get("vector")
    return int(vector.nbytes) if isinstance(vector, np.ndarray) else 0


Reader = Callable[[bytes, Mapping[str, Any]], Any]
"""Reads a site's answer; one that is none raises."""


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


@dataclass(frozen=True)
class Deadlines:
    """How long sites are waited for, in seconds, and how often a question is put."""

    hello: float = 60.0
    work: float = 600.0
    open: float = 120.0
    attempts: int = 3


class Trips:
    """The trips of a run."""

    def __init__(
        self,
        presence: Presence,
        carrier: Carrier,
        deadlines: Deadlines,
        least: int,
        tell: Callable[[str], None],
    ) -> None:
        """`least` is with how many sites that can pay the run goes on."""
        self.presence, self.deadlines, self.tell = presence, deadlines, tell
        self._carrier, self._least = carrier, least
        self._broke: set[bytes] = set()
        """Sites whose budget is used up."""
        self._notes: dict[bytes, dict[bytes, Any]] = {}
        """Notes of other sites, by site that waits until its ledger is confirmed."""
        self._waited = ""
        """Last sentence on who waits for whom."""

    def work(self, put: Put, asked: Sequence[bytes], read: Reader, patient: bool) -> dict[bytes, Work]:
        """What sites answer to a question, its content by `read`; `patient`: nobody of them can be done without."""

        def request(one: bytes) -> bytes:
            return put.request(self.presence.number[one], self.presence.echo(one), self._notes.pop(one, {}))

        def answered(one: bytes, reply: Mapping[str, Any]) -> Work:
            return Work.read(reply, read(one, reply))

        got: dict[bytes, Work] = self.answers(asked, request, answered, self.deadlines.work, len(asked), patient)
        for one, found in got.items():
            self.presence.saw(one, found.head)
        if self._broke and len(self.presence.roster) - len(self._broke) < self._least:
            raise OutOfBudgetError
        return got

    def answers(
        self,
        sites: Sequence[bytes],
        request: Callable[[bytes], bytes],
        read: Reader,
        seconds: float,
        needed: int,
        patient: bool = True,
    ) -> dict[bytes, Any]:
        """What sites answer, until as many as are `needed` have, nobody is left, or the time is over.

        Who cannot be reached is looked for again while there is time, or once, where others can do without. Who waits
        until others confirm its ledger is brought their notes.
        """
        until = time.monotonic() + seconds
        got: dict[bytes, Any] = {}
        refused: set[bytes] = set()
        looked = 0
        unsure: dict[bytes, Any] = {}
        while len(got) < needed:
            waiting = [one for one in sites if one not in got and one not in refused]
            left = until - time.monotonic()
            enough = not patient and (not unsure or len(got) >= self._least)
            if not waiting or left <= 0 or (looked > 1 and enough):
                break
            if looked:
                time.sleep(min(PAUSE * (looked > 1), left))
                self.presence.find()
            looked += 1
            unsure = {}
            back = {self.presence.nodes[one]: one for one in waiting if one in self.presence.nodes}
            for node, reply in replies(self._carrier, {n: request(one) for n, one in back.items()}, left):
                if isinstance(reply, Failure):
                    continue
                if reply.get("code") == UNCONFIRMED:
                    unsure[back[node]] = reply.get("statement")
                    continue
                answer = self._read(back[node], reply, read)
                if answer is None:
                    refused.add(back[node])
                else:
                    got[back[node]] = answer
                if len(got) >= needed:
                    break
            self._collect(unsure, min(until - time.monotonic(), self.deadlines.open))
        return got

    def _collect(self, unsure: Mapping[bytes, Any], seconds: float) -> None:
        """Bring the statements of sites to all others, keep the notes that these return, and tell whom a site waits
        for."""
        known = {one: statement for one, statement in unsure.items() if _is_statement(statement)}
        if not known:
            return
        back = {node: one for one, node in self.presence.reached.items()}
        requests = {
            node: wire.request("note", statements={owner: said for owner, said in known.items() if owner != one})
            for node, one in back.items()
        }
        silent = {member.identity for member in self.presence.roster}
        for node, reply in accepted(self._carrier, requests, seconds, self.presence.telling(back)):
            found = reply.get("notes")
            notes = found if isinstance(found, dict) else {}
            silent.discard(back[node])
            for owner in known:
                if owner in notes:
                    self._notes.setdefault(owner, {})[back[node]] = notes[owner]
        if silent:
            owners = ", ".join(self.presence.name(one) for one in known)
            missing = ", ".join(self.presence.name(one) for one in silent)
            self._tell_once(f"Waiting until other sites confirm the ledger of {owners}; no answer yet from {missing}.")

    def _tell_once(self, sentence: str) -> None:
        if sentence != self._waited:
            self._waited = sentence
            self.tell(sentence)

    def _read(self, one: bytes, reply: Mapping[str, Any], read: Reader) -> Any:
        """What a site answered; None, and a sentence, where it is a refusal or no answer."""
        name = self.presence.name(one)
        if reply.get("ok") is not True:
            if reply.get("code") == "budget":
                self._broke.add(one)
            self.tell(f"{name}: {said(reply)}")
            return None
        try:
            return read(one, reply)
        except (ValueError, KeyError, TypeError, MaskingError):
            self.tell(f"{name} sent something that is no answer: it is left out.")
            return None


def _is_statement(value: Any) -> bool:
    """Whether a reply of a waiting site holds its statement, for which others can be asked."""
    try:
        LedgerStatement.read(value)
    except ValueError:
        return False
    return True
