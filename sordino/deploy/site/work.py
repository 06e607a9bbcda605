"""A site's answers to `work` and `open`: rules, training, gate, and one list of survivors, ever."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from safetensors.torch import load as loaded
from safetensors.torch import save as saved
from torch import Tensor

from sordino.deploy.protocol import integer_rows, wire
from sordino.deploy.protocol.secure_sum import Cohort, Masker, MaskingError
from sordino.deploy.site import freshness, requests
from sordino.deploy.site import freshness as copies
from sordino.deploy.site.context import Desk
from sordino.deploy.site.enrol import session_of
from sordino.deploy.site.ledger import Ask, Book, Entry
from sordino.deploy.site.requests import Work
from sordino.deploy.site.rules import RefusedError
from sordino.deploy.site.session import Session
from sordino.deploy.site.spending import payable
from sordino.deploy.site.status import telling
from sordino.federation.client import Outcome
from sordino.federation.message import Each
from sordino.privacy.release import Public, Releases
from sordino.util.processes import single_threaded


@dataclass(frozen=True)
class Task:
    """A question that the rules allow."""

    work: Work
    session: Session
    releases: Releases
    public: Public
    cohort: Cohort | None
    """U1, where messages are summed."""


@dataclass(frozen=True)
class Made:
    """What came of it at this site; nothing of it has left."""

    outcome: Outcome
    state: dict[str, Tensor]
    """What the site remembered before."""
    accuracies: list[float | None] | None


def work(desk: Desk, message: Mapping[str, Any]) -> bytes:
    """The answer to a question: the same bytes, however often it is asked."""
    asked, begun = requests.work(message), time.monotonic()
    with Book(desk.folder) as book:
        session = session_of(desk, book, asked.ask.run)
        asked = _as_asked(asked, message, session)
        kept = _kept(book, asked)
        if kept is not None:
            return kept
        copies.check_only_one(book, message)
        releases, public = session.checked(asked, desk.allowed)
        cohort = session.cohort(asked, releases, desk.allowed, desk.identity)
        freshness.check_confirmed(desk, book, session, session.charged(asked, releases, public), message)
        state = _state(book, asked.ask, session)
        with single_threaded(), telling(book, desk.allowed, asked.hash.hex()):
            made = _made(desk, session, asked, state)
        reply = _committed(desk, book, Task(asked, session, releases, public, cohort), made)
    desk.note(f"answered {asked.step} of round {asked.ask.round + 1} in {time.monotonic() - begun:.1f} s")
    return reply


def _made(desk: Desk, session: Session, work: Work, state: dict[str, Tensor]) -> Made:
    """Run the site's step. If it fails, noise alone leaves and the error stays in the site's log: a visible failure
    would tell of the records."""
    outcome = None
    where = f"{work.step} of round {work.ask.round + 1}"
    with desk.keeping_errors(f"{where} failed on these records and contributes noise alone"):
        outcome = session.answered(work, state)
    if outcome is None:
        return Made(session.absent(work, state), state, None)
    accuracies = None
    with desk.keeping_errors(f"the models of {where} cannot be evaluated"):
        accuracies = session.accuracies(work.ask.round, outcome)
    return Made(outcome, state, accuracies)


def _as_asked(work: Work, message: Mapping[str, Any], session: Session) -> Work:
    """The question with what this client alone is told."""
    content = requests.array(message, "own").tobytes()
    own = wire.unpacked(content) if content else {}
    if not all(isinstance(value, Tensor) and len(value) == 1 for value in own.values()):
        raise RefusedError("message", "what it tells this site alone is not one row each")
    many = session.terms.schedule.clients
    rows = {name: Each(value.expand(many, *value.shape[1:])) for name, value in own.items()}
    hash = hashlib.sha256(work.hash + hashlib.sha256(content).digest()).digest()
    return Work(work.ask, hash, work.number, work.step, {**work.message, **rows}, work.parties)


def _kept(book: Book, work: Work) -> bytes | None:
    """The answer that was given to this question before."""
    kept = book.ask(work.ask)
    if kept is not None:
        if bytes(kept["hash"]) != work.hash:
            raise RefusedError("other")
        return bytes(kept["reply"])
    last = book.last(work.ask.run)
    if last is not None and work.ask.order <= last:  # paid for, but lost: it is not drawn again
        raise RefusedError("old", f"{work.ask.order} after {last}")
    return None


def _state(book: Book, ask: Ask, session: Session) -> dict[str, Tensor]:
    """What the site remembered before this question."""
    content = book.memory(ask)
    return dict(session.blank) if content is None else loaded(content)


def _committed(desk: Desk, book: Book, task: Task, made: Made) -> bytes:
    """Charge, keep and remember in one transaction; then, and only then, there is an answer.

    Whoever finds that another process has answered meanwhile drops its own draw.
    """
    work, session, outcome = task.work, task.session, made.outcome
    with book.transaction():
        kept = _kept(book, work)
        if kept is not None:
            return kept
        cost = session.charged(work, task.releases, task.public)
        book.append(payable(book.entries(), session, cost, desk.allowed))
        reply = requests.answered(**_content(desk, book, task, outcome))
        book.keep(work.ask, work.hash, requests.written_parties(work), reply)
        if outcome.kept:
            times = made.state["participations"] + 1
            rows = {name: value[0].cpu().contiguous() for name, value in outcome.kept.items()}
            book.remember(work.ask, saved({**rows, "participations": times}))
        if made.accuracies is not None:
            book.evaluated(work.ask.run, work.ask.round, *made.accuracies)
    return reply


def _content(desk: Desk, book: Book, task: Task, outcome: Outcome) -> dict[str, Any]:
    """What leaves: values that are protected by themselves, or numbers under masks."""
    head = book.head()
    content: dict[str, Any] = {"head": head.packed()}
    if task.cohort is None:
        return content | {"values": outcome.passed.values}
    masked = Masker(task.cohort, desk.identity, task.session.key).masked(
        integer_rows.as_row(outcome.passed.values, task.releases),
        integer_rows.bits(task.releases, task.session.gate, task.public, len(task.cohort.parties)),
        copies.notes(book, task.cohort, head, desk.private),
    )
    return content | {"vector": masked.vector, "shares": masked.shares}


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
        ask, hash = requests.ask(message), requests.bytes_of(message, "hash", 32)
        survivors, shares = message.get("survivors"), message.get("shares")
        if not requests.are_identities(survivors) or not isinstance(shares, dict):
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
        freshness.check_only_one(book, message)
        try:
            with book.transaction():
                return _opened(desk, book, request, session)
        except freshness.BehindError as behind:
            freshness.spoil(book, behind)
            raise RefusedError("restored", behind) from behind


def _opened(desk: Desk, book: Book, request: Request, session: Session) -> bytes:
    kept = book.ask(request.ask)
    if kept is None:
        raise RefusedError("old", "nothing is kept of this question")
    if bytes(kept["hash"]) != request.hash or not kept["parties"]:
        raise RefusedError("other")
    parties = requests.parties(wire.unpacked(bytes(kept["parties"])))
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
            freshness.check_note(book, desk.identity, one, masker.share_from(one, request.shares.get(one, b"")).note)
        opening = masker.opening(survivors, request.shares)
    except MaskingError as error:
        raise RefusedError("share", error) from error
    reply = requests.answered(shares=opening.shares, seeds=opening.seeds)
    book.open(kept, named, reply)
    # In the ledger too: one that was restored would answer to other survivors.
    book.append([Entry("opened", {"ask": request.ask.document(), "survivors": hashlib.sha256(named).hexdigest()})])
    return reply
