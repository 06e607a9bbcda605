"""Trips to the sites: questions as they are sent, answers as they are read, and waiting for enough of them."""

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
from sordino.deploy.protocol.carrier import Carrier, Failure, Waiting
from sordino.deploy.protocol.secure_sum import Cohort, MaskingError, Opening
from sordino.deploy.server.journal import EnrolledSite
from sordino.deploy.server.presence import PAUSE_SECONDS, Presence, exchange, exchange_accepted, refusal_text
from sordino.deploy.site.freshness import UNCONFIRMED, LedgerStatement
from sordino.deploy.site.ledger import Head, QuestionId
from sordino.errors import UserError
from sordino.federation.client import Question
from sordino.federation.message import Each
from sordino.federation.transport import OutOfBudgetError
from sordino.privacy.release import Public, Releases


@dataclass(frozen=True)
class WorkReply:
    """A site's answer to a question."""

    content: Any
    """Released values, or a masked vector with its shares."""
    size: int
    """Size of what left the site, in bytes."""
    head: Head
    """Head of the site's ledger, as the site reports it."""

    @classmethod
    def read(cls, reply: Mapping[str, Any], content: Any) -> WorkReply:
        """Read size and head from a reply whose `content` has been read."""
        return cls(content, _size(reply), Head.from_list(reply.get("head")))


def read_values(reply: Mapping[str, Any], releases: Releases, public: Public, parameters: int) -> dict[str, Tensor]:
    """Read a site's released values, where each message is protected by itself.

    Args:
        reply: The site's reply.
        releases: Releases of the step; the reply must hold exactly these.
        public: Public values that widths depend on.
        parameters: Number of the network's parameters, which gradients must have.
    """
    found = reply.get("values")
    if not isinstance(found, dict) or set(found) != set(releases):
        raise ValueError("the reply does not hold the values that the step releases")
    for name, release in releases.items():
        value, width = found[name], release.width(public)
        whole = release.summed
        if not isinstance(value, Tensor) or value.ndim != 2 or len(value) != 1:
            raise ValueError(f"{name} is not one row")
        if value.dtype != (torch.int64 if whole else torch.float32) or (width or value.shape[1]) != value.shape[1]:
            raise ValueError(f"{name} has the wrong type or width")
        if release.made_of_gradients and value.shape[1] != parameters:
            raise ValueError(f"{name} does not have as many entries as the network has parameters")
        if not whole and not bool(torch.isfinite(value).all()):
            raise ValueError(f"{name} is not finite")
    return found


def read_masked(
    reply: Mapping[str, Any], cohort: Cohort, width: int, kind: np.dtype
) -> tuple[np.ndarray, dict[bytes, bytes]]:
    """Read a site's masked vector and its encrypted shares for all sites of the cohort.

    Args:
        reply: The site's reply.
        cohort: The cohort that was asked.
        width: Length that the vector must have.
        kind: Type that its numbers must have.
    """
    vector, shares = reply.get("vector"), reply.get("shares")
    if not isinstance(vector, np.ndarray) or vector.shape != (width,) or vector.dtype != kind:
        raise ValueError("the masked vector has the wrong length or type")
    wanted = {party.identity for party in cohort.parties}
    if not isinstance(shares, dict) or set(shares) != wanted or not all(isinstance(s, bytes) for s in shares.values()):
        raise ValueError("shares are missing, or are not bytes")
    return vector, shares


def read_opening(reply: Mapping[str, Any], survivors: Sequence[bytes], dropped: Sequence[bytes]) -> Opening:
    """Read a site's part of opening a sum: shares of the survivors' masks, and seeds of those shared with `dropped`."""
    shares, seeds = reply.get("shares"), reply.get("seeds")
    if not isinstance(shares, dict) or not isinstance(seeds, dict):
        raise ValueError("the opening lacks shares or seeds")
    if set(shares) != set(survivors) or set(seeds) != set(dropped):
        raise ValueError("the opening is for other survivors")
    if not all(isinstance(one, bytes) for one in (*shares.values(), *seeds.values())):
        raise ValueError("the opening holds something other than bytes")
    return Opening(shares, seeds)


def _size(reply: Mapping[str, Any]) -> int:
    found = reply.get("values")
    if isinstance(found, dict):
        return sum(value.numel() * value.element_size() for value in found.values() if isinstance(value, Tensor))
    vector = reply.get("vector")
    return int(vector.nbytes) if isinstance(vector, np.ndarray) else 0


Reader = Callable[[bytes, Mapping[str, Any]], Any]
"""Reads the content of a site's reply; raises where the reply is no answer."""


@dataclass(frozen=True)
class OutgoingQuestion:
    """A question as it is sent to a cohort."""

    question: Question
    id: QuestionId
    releases: Releases
    cohort: list[EnrolledSite]
    content: bytes
    """Packed part of the question that is the same for all of them."""

    @classmethod
    def of(
        cls, question: Question, id: QuestionId, releases: Releases, cohort: list[EnrolledSite], summed: bool
    ) -> OutgoingQuestion:
        """Pack a question.

        Args:
            question: The method's question.
            id: Attempt at the question.
            releases: Releases of its step that are due in its round.
            cohort: Sites that are asked.
            summed: Whether answers are summed under masks, or read one by one.
        """
        told = {name: value for name, value in question.message.items() if not isinstance(value, Each)}
        if summed and len(told) < len(question.message):
            raise UserError(
                "The method sends each client values of its own, but the secure sum only adds up answers to the same "
                'question: simulate it with `sordino run`, or deploy it with protect_from = "server".'
            )
        content = wire.pack(
            {
                **{"run": id.run, "round": id.round, "place": id.place, "attempt": id.attempt},
                **{"question": question.number, "step": question.step, "message": told},
                "parties": [[one.identity, one.key, one.signature] for one in cohort] if summed else [],
            }
        )
        return cls(question, id, releases, cohort, content)

    @property
    def identities(self) -> list[bytes]:
        """Identities of the sites that are asked."""
        return [one.identity for one in self.cohort]

    def public(self, layers: Sequence[int]) -> Public:
        """Public values that bounds and widths depend on; `layers` are the sizes of the network's layers."""
        return Public(self.question.message, self.question.clients, {}, layers)

    def own(self, number: int) -> bytes:
        """Packed values for client `number` alone; empty where all clients get the same."""
        rows = {name: value for name, value in self.question.message.items() if isinstance(value, Each)}
        if not rows:
            return b""
        return wire.pack({name: value.values[number : number + 1] for name, value in rows.items()})

    def request(self, number: int, echo: list[Any] | None, notes: Mapping[bytes, Any]) -> bytes:
        """Message to a site.

        Args:
            number: Client number of the site.
            echo: Newest known head of the site's ledger.
            notes: Other sites' notes on its ledger, by identity.
        """
        arrays = {
            name: np.frombuffer(part, np.uint8) for name, part in (("ask", self.content), ("own", self.own(number)))
        }
        return wire.request("work", echo=echo, notes=notes, **arrays)

    def hash(self) -> bytes:
        """SHA-256 of the whole question, where all sites get the same; masks are bound to it."""
        # The second part stands for the values of one site alone, of which there are none here; sites hash them too.
        return hashlib.sha256(hashlib.sha256(self.content).digest() + hashlib.sha256(b"").digest()).digest()


@dataclass(frozen=True)
class Deadlines:
    """Seconds to wait for sites, by kind of message, and the number of attempts at a question."""

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
        """Make trips to the sites of a run.

        Args:
            presence: The run's sites.
            carrier: Way to them.
            deadlines: Seconds to wait for answers.
            least: Number of sites with budget left with which the run continues.
            tell: Shows a sentence to the operator.
        """
        self.presence, self.deadlines, self.tell = presence, deadlines, tell
        self._carrier, self._least = carrier, least
        self._exhausted: set[bytes] = set()
        """Identities of sites whose budget is used up."""
        self._notes: dict[bytes, dict[bytes, Any]] = {}
        """Other sites' notes, for each site that waits until its ledger is confirmed."""
        self._last_told = ""
        """Last sentence that was told about sites that wait."""

    def ask_work(
        self, question: OutgoingQuestion, asked: Sequence[bytes], read: Reader, enough: int
    ) -> dict[bytes, WorkReply]:
        """Ask sites a question, and return the answers by site.

        Args:
            question: The question.
            asked: Identities of the sites to ask.
            read: Reads the content of an answer.
            enough: Number of answers without which unreachable sites are looked for until the deadline.
        """

        def request(one: bytes) -> bytes:
            notes = self._notes.pop(one, {})  # they answer one statement of the site, and confirm no later one
            return question.request(self.presence.number[one], self.presence.echo(one), notes)

        def answered(one: bytes, reply: Mapping[str, Any]) -> WorkReply:
            return WorkReply.read(reply, read(one, reply))

        self.presence.status.asking(question.id.round, question.question.step, question.id.attempt, asked)
        got: dict[bytes, WorkReply] = self.collect(asked, request, answered, self.deadlines.work, len(asked), enough)
        self.presence.record_heads({one: found.head for one, found in got.items()})
        if self._exhausted and len(self.presence.roster) - len(self._exhausted) < self._least:
            raise OutOfBudgetError
        return got

    def collect(
        self,
        sites: Sequence[bytes],
        request: Callable[[bytes], bytes],
        read: Reader,
        seconds: float,
        needed: int,
        enough: int | None = None,
    ) -> dict[bytes, Any]:
        """Ask sites until `needed` of them have answered, none is left to ask, or the time is over.

        A site that waits until others confirm its ledger is asked again with their notes.

        Args:
            sites: Identities of the sites to ask.
            request: Makes the message to a site.
            read: Reads the content of an answer.
            seconds: Seconds to wait.
            needed: Number of answers after which to stop.
            enough: Number of answers without which unreachable sites are looked for until the time is over; with it,
                only once. By default all of them.

        Returns:
            The answers that were read, by site.
        """
        until = time.monotonic() + seconds
        got: dict[bytes, Any] = {}
        refused: set[bytes] = set()
        looked = 0
        unconfirmed: dict[bytes, Any] = {}
        while len(got) < needed:
            waiting = [one for one in sites if one not in got and one not in refused]
            left = until - time.monotonic()
            satisfied = len(got) >= (len(sites) if enough is None else enough)
            if not waiting or left <= 0 or (looked > 1 and satisfied and (not unconfirmed or len(got) >= self._least)):
                break
            if looked:  # the second look is immediate, later ones pause
                time.sleep(min(PAUSE_SECONDS * (looked > 1), left))
                self.presence.find()
            looked += 1
            unconfirmed = {}
            back = {self.presence.nodes[one]: one for one in waiting if one in self.presence.nodes}
            for node, reply in exchange(self._carrier, {n: request(one) for n, one in back.items()}, left):
                if isinstance(reply, Failure):
                    continue
                if self._waits(back[node], reply, unconfirmed):
                    continue
                answer = self._read(back[node], reply, read)
                if answer is None:
                    refused.add(back[node])
                else:
                    got[back[node]] = answer
                    self.presence.status.heard(back[node], "answered")
                if len(got) >= needed:
                    break
            self._collect_notes(unconfirmed, min(until - time.monotonic(), self.deadlines.open))
        return got

    def _waits(self, site: bytes, reply: Any, unconfirmed: dict[bytes, Any]) -> bool:
        """Whether a site is to be asked again: it cannot answer yet, or others have to confirm its ledger first, which
        is noted in `unconfirmed`."""
        if isinstance(reply, Waiting):
            self._tell_once(f"Waiting for {self.presence.name(site)}: {reply.why}.")
            self.presence.status.heard(site, "waits", reply.why)
            return True
        if reply.get("code") == UNCONFIRMED:
            unconfirmed[site] = reply.get("statement")
            self.presence.status.heard(site, "waits", "until other sites confirm its ledger")
            return True
        return False

    def _collect_notes(self, unconfirmed: Mapping[bytes, Any], seconds: float) -> None:
        """Bring the statements of unconfirmed sites to all other sites, and keep the notes that these return.

        The operator is told which sites do not answer.
        """
        known = {one: statement for one, statement in unconfirmed.items() if _is_statement(statement)}
        if not known:
            return
        back = {node: one for one, node in self.presence.reached.items()}
        requests = {
            node: wire.request("note", statements={owner: said for owner, said in known.items() if owner != one})
            for node, one in back.items()
        }
        silent = {member.identity for member in self.presence.roster}
        for node, reply in exchange_accepted(self._carrier, requests, seconds, self.presence.refusal_reporter(back)):
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
        if sentence != self._last_told:
            self._last_told = sentence
            self.tell(sentence)

    def _read(self, one: bytes, reply: Mapping[str, Any], read: Reader) -> Any:
        """Content of a site's answer; None, and a sentence to the operator, where it refuses or gives no answer."""
        name = self.presence.name(one)
        if reply.get("ok") is not True:
            if reply.get("code") == "budget":
                self._exhausted.add(one)
            self.tell(f"{name}: {refusal_text(reply)}")
            self.presence.status.heard(one, "refuses", refusal_text(reply))
            return None
        try:
            return read(one, reply)
        except (ValueError, KeyError, TypeError, MaskingError):
            self.tell(f"{name} sent a reply that is no valid answer: it is left out.")
            self.presence.status.heard(one, "refuses", "its reply is no valid answer")
            return None


def _is_statement(value: Any) -> bool:
    """Whether a value of a waiting site's reply is a statement of its ledger's head."""
    try:
        LedgerStatement.from_list(value)
    except ValueError:
        return False
    return True
