"""The server's way to the sites: it finds them, asks them in one trip or two, and hands back what left.

Where messages are summed, trip 1 brings masked vectors and trip 2 opens their sum; where each message is protected by
itself, there is one trip. What is asked is decided by `Server`, as in a simulation.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.client import Question
from sordino.deploy import keys, masking, summing, wire
from sordino.deploy.book import Ask, Head
from sordino.deploy.carrier import Carrier, Failure
from sordino.deploy.journal import Enrolled, Journal
from sordino.deploy.masking import Cohort, MaskingError, Opening, Party
from sordino.deploy.roster import Member
from sordino.deploy.site import PROTOCOL
from sordino.deploy.terms import Terms
from sordino.errors import UserError
from sordino.message import Each
from sordino.privacy.gate import Gate
from sordino.privacy.release import Public, Releases, due
from sordino.transport import Answer

PAUSE = 0.5
"""Seconds between two looks for sites that are missing."""


@dataclass(frozen=True)
class Deadlines:
    """How long sites are waited for, in seconds, and how often a question is put."""

    hello: float = 60.0
    work: float = 600.0
    open: float = 120.0
    attempts: int = 3


class OutOfBudgetError(Exception):
    """So many sites have no budget left that no question can be answered any more: the run is over."""


@dataclass(frozen=True)
class Put:
    """A question as it is put to sites."""

    question: Question
    ask: Ask
    releases: Releases
    cohort: list[Enrolled]
    content: bytes
    """What all of them are told."""

    def hash(self, own: bytes) -> bytes:
        """Of all that a site is told."""
        return hashlib.sha256(hashlib.sha256(self.content).digest() + hashlib.sha256(own).digest()).digest()


class Sites:
    """The transport of a deployment."""

    def __init__(
        self,
        terms: Terms,
        roster: Sequence[Member],
        carrier: Carrier,
        journal: Journal,
        gate: Gate,
        tell: Callable[[str], None],
        deadlines: Deadlines,
    ) -> None:
        self._terms, self._roster, self._carrier, self._journal, self._gate = terms, roster, carrier, journal, gate
        self._tell, self._deadlines = tell, deadlines
        self._steps = terms.method.steps()
        self._run = str(journal.fact("run"))
        self._number = {member.identity: number for number, member in enumerate(roster)}
        self._nodes: dict[bytes, int] = {}
        self._greeted: set[int] = set()
        self._broke: set[bytes] = set()
        """Sites whose budget is used up."""
        self._round, self._place = -1, -1

    def names(self) -> list[str]:
        """What the sites are called, in the order of their numbers."""
        return [member.name for member in self._roster]

    # ---- finding sites

    def gather(self) -> None:
        """Wait until all sites of the roster take part, or, when the time is over, enough of them."""
        until = time.monotonic() + self._deadlines.hello
        while True:
            self._find()
            missing = [one for one in self._roster if one.identity not in self._nodes]
            if not missing:
                return
            if time.monotonic() > until:
                break
            time.sleep(PAUSE)
        there = len(self._roster) - len(missing)
        if there < self._terms.minimum:
            raise UserError(
                f"{there} of {len(self._roster)} sites take part, but {self._terms.minimum} are needed; missing: "
                f"{', '.join(one.name for one in missing)}."
            )
        self._tell(f"Not there yet: {', '.join(one.name for one in missing)}.")

    def _find(self) -> None:
        """Greet nodes that are new, and enrol the sites of the roster among them."""
        online = set(self._carrier.nodes())
        self._nodes = {identity: node for identity, node in self._nodes.items() if node in online}
        self._greeted &= online
        challenge = secrets.token_bytes(32)
        hello = _packed("hello", challenge=challenge)
        new = dict.fromkeys(online - self._greeted, hello)
        found: dict[bytes, int] = {}
        for node, reply in self._answers(new, self._deadlines.hello):
            identity, signature = reply.get("identity"), reply.get("signature")
            self._greeted.add(node)
            if not isinstance(identity, bytes) or identity not in self._number or not isinstance(signature, bytes):
                continue
            if keys.is_signed(identity, signature, "hello", challenge):
                found[identity] = node
                if reply.get("package") != keys.package_hash():
                    self._tell(f"{self._name(identity)} runs other code of Sordino than this server.")
        self._enrol(found)

    def _enrol(self, found: Mapping[bytes, int]) -> None:
        about = {"run": self._run, "identity": self._terms.identity, "experiment": self._terms.carried()}
        back = {node: identity for identity, node in found.items()}
        requests = {
            node: _packed("enrol", number=self._number[identity], echo=self._echo(identity), **about)
            for identity, node in found.items()
        }
        for node, reply in self._answers(requests, self._deadlines.hello, back):
            identity = back[node]
            try:
                site, head = self._enrolled(identity, reply)
            except ValueError:
                self._tell(f"{self._name(identity)} gave no key that it has signed: it is left out.")
                continue
            if identity not in {one.identity for one in self._journal.enrolled()}:
                self._journal.enrol(site, head)
                self._tell(f"{self._name(identity)} takes part.")
            self._nodes[identity] = node

    def _enrolled(self, identity: bytes, reply: Mapping[str, Any]) -> tuple[Enrolled, Head]:
        key, signature = reply.get("key"), reply.get("signature")
        if not isinstance(key, bytes) or not isinstance(signature, bytes):
            raise ValueError("a key is missing")
        about = (self._run.encode(), self._terms.identity.encode())
        if not keys.is_signed(identity, signature, "run key", *about, key):
            raise ValueError("a key is not signed")
        known = [one for one in self._journal.enrolled() if one.identity == identity]
        if known and known[0].key != key:
            raise ValueError("a key has changed")
        return Enrolled(identity, key, signature), Head.read(reply.get("head"))

    # ---- asking

    def ask(self, question: Question, evaluate: bool, charge: Callable[[], None]) -> Answer:
        """Put a question, as often as it takes; each time is charged, and a time that a killed server had begun goes on
        where it was."""
        self._place = self._place + 1 if question.round == self._round else 0
        self._round = question.round
        releases, tried = due(self._steps[question.step], question.round), 0
        attempt = 0
        while tried < self._deadlines.attempts:
            ask = Ask(self._run, question.round, self._place, attempt)
            charge()
            before = self._journal.asked(ask)
            attempt += 1
            if before is not None and before.state == "failed":
                continue
            tried += 1
            answer = self._attempt(question, ask, releases)
            if answer is not None:
                return answer
            self._journal.fail(ask)
            self._tell(f"Round {question.round + 1} could not be used: it is tried again, and paid for again.")
        raise UserError(
            f"Round {question.round + 1} was tried {tried} times, and too few sites answered: the run can be resumed "
            "when they are there."
        )

    def _attempt(self, question: Question, ask: Ask, releases: Releases) -> Answer | None:
        summed = self._terms.is_summed(releases)
        before = self._journal.asked(ask)
        enrolled = {one.identity: one for one in self._journal.enrolled()}
        if before is None:
            asked = [self._roster[number].identity for number in question.clients]
            cohort = [enrolled[one] for one in asked if one in enrolled]
            if len(cohort) < (self._terms.minimum if summed else 1):
                return None
            self._journal.begin(ask, [[one.identity, one.key, one.signature] for one in cohort])
            before = self._journal.asked(ask)
        assert before is not None
        put = self._put(question, ask, releases, [Enrolled(*one) for one in before.cohort], summed)
        return self._summed(put) if summed else self._plain(put)

    def _put(self, question: Question, ask: Ask, releases: Releases, cohort: list[Enrolled], summed: bool) -> Put:
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
        return Put(question, ask, releases, cohort, content)

    # ---- one trip: each message is protected by itself

    def _plain(self, put: Put) -> Answer | None:
        before = self._journal.asked(put.ask)
        assert before is not None
        asked = before.survivors or [one.identity for one in put.cohort]
        everybody = bool(before.survivors) or any(release.once for release in put.releases.values())
        public = Public(put.question.message, put.question.clients, {}, self._terms.learner.layout.layers)
        got = self._work(put, asked, lambda reply: self._values(reply, put.releases, public), everybody)
        needed = len(asked) if everybody else self._needed(len(put.question.clients))
        if len(got) < needed:
            return None
        who = sorted(got, key=self._number.__getitem__)
        if not before.survivors:
            self._journal.fix(put.ask, who)
        values = {name: torch.cat([got[one][0][name] for one in who]) for name in put.releases}
        return self._answer(values, who, [size for _, size, _ in got.values()], got[who[0]][2], False)

    def _needed(self, asked: int) -> int:
        """How many of those asked must answer: as many of a hundred as of a whole cohort."""
        return max(1, -(-asked * self._terms.minimum // self._terms.schedule.cohort))

    def _values(self, reply: Mapping[str, Any], releases: Releases, public: Public) -> dict[str, Tensor]:
        """What a site sent, if it is what its step sends."""
        values = reply.get("values")
        if not isinstance(values, dict) or set(values) != set(releases):
            raise ValueError("it is not what the step sends")
        for name, release in releases.items():
            value, width = values[name], release.width(public)
            whole = release.unit == "client"
            if not isinstance(value, Tensor) or value.ndim != 2 or len(value) != 1:
                raise ValueError(f"{name} is not one row")
            if value.dtype != (torch.int64 if whole else torch.float32) or (width or value.shape[1]) != value.shape[1]:
                raise ValueError(f"{name} has another type or width")
            if release.made_of_gradients and value.shape[1] != self._terms.learner.layout.size:
                raise ValueError(f"{name} has another width")
            if not whole and not bool(torch.isfinite(value).all()):
                raise ValueError(f"{name} is not finite")
        return values

    # ---- two trips: the secure sum

    def _summed(self, put: Put) -> Answer | None:
        before = self._journal.asked(put.ask)
        assert before is not None
        if before.state == "done":
            return self._restored(put, before.survivors, before.result)
        cohort = Cohort(put.hash(b""), tuple(Party(one.identity, one.key) for one in put.cohort), self._terms.minimum)
        public = Public(put.question.message, put.question.clients, {}, self._terms.learner.layout.layers)
        shape = (
            sum(summing.widths(put.releases, public).values()),
            masking.UNSIGNED[summing.bits(put.releases, self._gate, public, len(put.cohort))],
        )
        asked = before.survivors or [one.identity for one in put.cohort]
        got = self._work(put, asked, lambda reply: _masked(reply, cohort, shape), bool(before.survivors))
        if len(got) < (len(before.survivors) or self._terms.minimum):
            return None
        survivors = before.survivors or [one.identity for one in cohort.parties if one.identity in got]
        if not before.survivors:
            self._journal.fix(put.ask, survivors)
        shares = {one: got[one][0][1] for one in survivors}
        openings = self._openings(put, cohort, survivors, shares)
        try:
            vectors = {one: got[one][0][0] for one in survivors}
            total = masking.opened_sum(cohort, vectors, survivors, openings)
            sums = summing.from_row(total, put.releases, public)
            summing.check_total(sums, put.releases, self._gate, public, len(survivors))
        except MaskingError as error:
            self._tell(str(error))
            return None
        kept = got[survivors[0]][2]
        size = sum(got[one][1] for one in survivors)
        self._journal.done(put.ask, wire.packed({"sums": sums, "kept": kept, "bytes": size}))
        return self._answer(sums, survivors, [size], kept, True)

    def _restored(self, put: Put, survivors: list[bytes], result: bytes | None) -> Answer:
        content = wire.unpacked(bytes(result or b""))
        return self._answer(content["sums"], survivors, [content["bytes"]], content["kept"], True)

    def _openings(
        self, put: Put, cohort: Cohort, survivors: list[bytes], shares: Mapping[bytes, Mapping[bytes, bytes]]
    ) -> dict[bytes, Opening]:
        """What opens the survivors' sum: of as many as are needed."""
        about = {"run": put.ask.run, "round": put.ask.round, "place": put.ask.place, "attempt": put.ask.attempt}

        def request(one: bytes) -> bytes:
            mine = {other: shares[other][one] for other in survivors}
            common = {"hash": cohort.ask, "survivors": survivors, "shares": mine, "echo": self._echo(one)}
            return _packed("open", **about, **common)

        needed = len(survivors) if cohort.dropped(survivors) else cohort.minimum
        dropped = cohort.dropped(survivors)
        return self._asked(survivors, request, lambda r: _opening(r, survivors, dropped), self._deadlines.open, needed)

    # ---- trips

    def _work(
        self, put: Put, asked: Sequence[bytes], read: Callable[[Mapping[str, Any]], Any], everybody: bool
    ) -> dict[bytes, tuple[Any, int, bool]]:
        """What sites answer to a question, with its size and whether they remember something."""

        def request(one: bytes) -> bytes:
            rows = {name: value for name, value in put.question.message.items() if isinstance(value, Each)}
            number = self._number[one]
            own = (
                wire.packed({name: value.values[number : number + 1] for name, value in rows.items()}) if rows else b""
            )
            arrays = {"ask": _array(put.content), "own": _array(own)}
            return _packed("work", echo=self._echo(one), **arrays)

        def checked(reply: Mapping[str, Any]) -> tuple[Any, int, bool, Head]:
            head, kept = Head.read(reply.get("head")), reply.get("kept")
            if not isinstance(kept, bool):
                raise ValueError("it does not say whether it remembers anything")
            return (read(reply), _size(reply), kept, head)

        needed = len(asked)
        got = self._asked(asked, request, checked, self._deadlines.work, needed, patient=everybody)
        for one, (*_, head) in got.items():
            self._journal.saw(one, head)
        self._check_budgets(len(asked))
        return {one: (value, size, kept) for one, (value, size, kept, _) in got.items()}

    def _check_budgets(self, asked: int) -> None:
        """End the run where those who still have budget are too few."""
        if self._broke and len(self._roster) - len(self._broke) < self._terms.minimum:
            raise OutOfBudgetError

    def _asked(
        self,
        sites: Sequence[bytes],
        request: Callable[[bytes], bytes],
        read: Callable[[Mapping[str, Any]], Any],
        seconds: float,
        needed: int,
        patient: bool = True,
    ) -> dict[bytes, Any]:
        """What sites answer, until as many as are `needed` have, nobody is left, or the time is over.

        Who cannot be reached is looked for again while there is time, or once, where others can do without.
        """
        until = time.monotonic() + seconds
        got: dict[bytes, Any] = {}
        refused: set[bytes] = set()
        looked = 0
        while len(got) < needed:
            waiting = [one for one in sites if one not in got and one not in refused]
            left = until - time.monotonic()
            if not waiting or left <= 0 or (looked > 1 and not patient):
                break
            if looked:
                time.sleep(min(PAUSE * (looked > 1), left))
                self._find()
            looked += 1
            back = {self._nodes[one]: one for one in waiting if one in self._nodes}
            for node, reply in self._replies({n: request(one) for n, one in back.items()}, left):
                one = back[node]
                if isinstance(reply, Failure):
                    continue
                try:
                    got[one] = read(self._accepted(one, reply))
                except _RefusedByError as error:
                    refused.add(one)
                    if error.code == "budget":
                        self._broke.add(one)
                    self._tell(f"{self._name(one)}: {error}")
                except (ValueError, KeyError, TypeError):
                    refused.add(one)
                    self._tell(f"{self._name(one)} sent something that is no answer: it is left out.")
                if len(got) >= needed:
                    break
        return got

    def _accepted(self, one: bytes, reply: Mapping[str, Any]) -> Mapping[str, Any]:
        if reply.get("ok") is not True:
            raise _RefusedByError(str(reply.get("code"))[:50], str(reply.get("sentence"))[:300])
        return reply

    def _replies(self, requests: Mapping[int, bytes], seconds: float) -> Iterable[tuple[int, Any]]:
        """Answers as messages, or failures; bytes that are no message are a failure."""
        if not requests:
            return
        for node, content in self._carrier.trip(requests, seconds):
            if isinstance(content, Failure):
                yield node, content
                continue
            try:
                yield node, wire.unpacked(content)
            except wire.WireError as error:
                yield node, Failure(str(error))

    def _answers(
        self, requests: Mapping[int, bytes], seconds: float, who: Mapping[int, bytes] | None = None
    ) -> Iterable[tuple[int, Mapping[str, Any]]]:
        """Answers that are none of a refusal; of that people are told."""
        for node, reply in self._replies(requests, seconds):
            if isinstance(reply, Failure):
                continue
            if reply.get("ok") is True:
                yield node, reply
            elif who is not None:
                self._tell(f"{self._name(who[node])}: {str(reply.get('sentence'))[:300]}")

    def end(self, models: Callable[[int], Tensor | None]) -> bool:
        """Tell every site that the run is over, and give it the model that is its own; whether all have heard it."""
        self._find()
        requests = {
            node: _packed("end", run=self._run, model=models(self._number[identity]))
            for identity, node in self._nodes.items()
        }
        ended = dict(self._answers(requests, self._deadlines.open, {n: one for one, n in self._nodes.items()}))
        return len(ended) == len(self._journal.enrolled())

    # ---- what a server does not know

    def public_states(self, clients: Sequence[int], names: Collection[str]) -> dict[str, Tensor]:
        return {}

    def accuracies(self, clients: Sequence[int], model: Tensor | None) -> np.ndarray:
        """Accuracies stay at the sites."""
        return np.full(len(clients), np.nan)

    def _answer(
        self, values: dict[str, Tensor], who: Sequence[bytes], sizes: Sequence[int], kept: bool, summed: bool
    ) -> Answer:
        numbers = [self._number[one] for one in who]
        return Answer(values, np.full((len(who), 3), np.nan), 0, sum(sizes), kept, numbers, summed)

    def _echo(self, identity: bytes) -> list[Any] | None:
        head = self._journal.head(identity)
        return None if head is None else head.packed()

    def _name(self, identity: bytes) -> str:
        return self._roster[self._number[identity]].name


class _RefusedByError(Exception):
    """A site that does not answer, and its sentence."""

    def __init__(self, code: str, sentence: str) -> None:
        self.code = code
        super().__init__(sentence)


def _packed(kind: str, **content: Any) -> bytes:
    return wire.packed({"kind": kind, "protocol": PROTOCOL, **content})


def _array(content: bytes) -> np.ndarray:
    return np.frombuffer(content, dtype=np.uint8)


def _size(reply: Mapping[str, Any]) -> int:
    """Bytes of what left a site."""
    values = reply.get("values")
    if isinstance(values, dict):
        return sum(value.numel() * value.element_size() for value in values.values() if isinstance(value, Tensor))
    vector = reply.get("vector")
    return int(vector.nbytes) if isinstance(vector, np.ndarray) else 0


def _masked(
    reply: Mapping[str, Any], cohort: Cohort, shape: tuple[int, np.dtype]
) -> tuple[np.ndarray, dict[bytes, bytes]]:
    """A site's masked vector and its shares for all, if they are what the protocol asks for."""
    vector, shares = reply.get("vector"), reply.get("shares")
    if not isinstance(vector, np.ndarray) or vector.shape != shape[:1] or vector.dtype != shape[1]:
        raise ValueError("a vector has another length or width")
    wanted = {party.identity for party in cohort.parties}
    if not isinstance(shares, dict) or set(shares) != wanted or not all(isinstance(s, bytes) for s in shares.values()):
        raise ValueError("shares are missing")
    return vector, shares


def _opening(reply: Mapping[str, Any], survivors: Sequence[bytes], dropped: Sequence[bytes]) -> Opening:
    """What a site gives to open a sum, if it is what the protocol asks for."""
    shares, seeds = reply.get("shares"), reply.get("seeds")
    if not isinstance(shares, dict) or not isinstance(seeds, dict):
        raise ValueError("an opening has shares and seeds")
    if set(shares) != set(survivors) or set(seeds) != set(dropped):
        raise ValueError("an opening is for others")
    if not all(isinstance(one, bytes) for one in (*shares.values(), *seeds.values())):
        raise ValueError("an opening holds bytes")
    return Opening(shares, seeds)
