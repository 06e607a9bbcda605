"""A site's answers to `work` (a question: check, train, release, charge) and `open` (a sum: give shares of masks).

A question is answered once: asking again brings the same bytes. A sum is opened for one list of survivors only.
"""

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
from sordino.deploy.protocol.secure_sum import Cohort, MaskingError
from sordino.deploy.site import freshness, requests
from sordino.deploy.site.enrol import get_session
from sordino.deploy.site.ledger import Entry, QuestionId, SiteLedger
from sordino.deploy.site.requests import ReceivedQuestion
from sordino.deploy.site.rules import RefusedError
from sordino.deploy.site.session import Session, SiteContext, limit_data_refusals
from sordino.deploy.site.spending import authorize_payment
from sordino.federation.client import Outcome
from sordino.federation.message import Each
from sordino.privacy.release import Public, Releases
from sordino.util.processes import single_threaded


@dataclass(frozen=True)
class AllowedQuestion:
    """A question that the rules allow."""

    question: ReceivedQuestion
    session: Session
    releases: Releases
    public: Public
    cohort: Cohort | None
    """Cohort U1, where answers are summed."""


@dataclass(frozen=True)
class StepResult:
    """Result of the site's step; nothing of it has left yet."""

    outcome: Outcome
    state: dict[str, Tensor]
    """State before the question."""
    accuracies: list[float | None] | None


def answer_work(context: SiteContext, message: Mapping[str, Any]) -> bytes:
    """Answer a question, with the same bytes however often it is asked."""
    question, begun = requests.read_question(message), time.monotonic()
    with SiteLedger(context.folder) as ledger:
        session = get_session(context, ledger, question.id.run)
        question = _with_own_part(question, message, session)
        kept = _kept_reply(ledger, question)
        if kept is not None:
            return kept
        freshness.check_single_ledger(ledger, message)
        releases, public = session.check_question(question, context.policy)
        cohort = session.cohort(question, releases, context.policy, context.identity)
        freshness.check_confirmed(context, ledger, session, session.price(question, releases, public), message)
        state = _state_before(ledger, question.id, session)
        with single_threaded(), limit_data_refusals(ledger, context.policy, question.hash.hex()):
            made = _run_step(context, session, question, state)
        reply = _commit(context, ledger, AllowedQuestion(question, session, releases, public, cohort), made)
    context.log(f"answered {question.step} of round {question.id.round + 1} in {time.monotonic() - begun:.1f} s")
    return reply


def _run_step(
    context: SiteContext, session: Session, question: ReceivedQuestion, state: dict[str, Tensor]
) -> StepResult:
    """Run the site's step from its `state`.

    If the step fails, noise alone leaves and the error stays in the site's log: a visible failure would depend on the
    records.
    """
    outcome = None
    where = f"{question.step} of round {question.id.round + 1}"
    with context.log_errors(f"{where} failed on these records and contributes noise alone"):
        outcome = session.answer(question, state)
    if outcome is None:
        return StepResult(session.answer_with_noise_alone(question, state), state, None)
    accuracies = None
    with context.log_errors(f"the models of {where} cannot be evaluated"):
        accuracies = session.evaluate_round(question, outcome)
    return StepResult(outcome, state, accuracies)


def _with_own_part(question: ReceivedQuestion, message: Mapping[str, Any], session: Session) -> ReceivedQuestion:
    """Add to a question the values that this client alone gets."""
    content = requests.read_array(message, "own").tobytes()
    own = wire.unpack(content) if content else {}
    if not all(isinstance(value, Tensor) and len(value) == 1 for value in own.values()):
        raise RefusedError("message", "a value for this site alone is not one row")
    many = session.terms.schedule.clients
    rows = {name: Each(value.expand(many, *value.shape[1:])) for name, value in own.items()}
    hash = hashlib.sha256(question.hash + hashlib.sha256(content).digest()).digest()
    return ReceivedQuestion(
        question.id, hash, question.number, question.step, {**question.message, **rows}, question.parties
    )


def _kept_reply(ledger: SiteLedger, question: ReceivedQuestion) -> bytes | None:
    """Answer that was given to this question before; None where it is new."""
    kept = ledger.kept_answer(question.id)
    if kept is not None:
        if bytes(kept["hash"]) != question.hash:
            raise RefusedError("other")
        return bytes(kept["reply"])
    last = ledger.last_question(question.id.run)
    # Paid for, but the answer is no longer kept: it must not be drawn again.
    if last is not None and question.id.order <= last:
        raise RefusedError("old", f"(round, place, attempt) {question.id.order} was asked after {last}")
    return None


def _state_before(ledger: SiteLedger, id: QuestionId, session: Session) -> dict[str, Tensor]:
    """State of the site before a question."""
    content = ledger.memory_before(id)
    return dict(session.blank) if content is None else loaded(content)


def _commit(context: SiteContext, ledger: SiteLedger, allowed: AllowedQuestion, made: StepResult) -> bytes:
    """Charge for the answer, keep it and store the state in one transaction; only then may the answer leave.

    If another process has answered meanwhile, its answer is returned and this draw is dropped.
    """
    question, session, outcome = allowed.question, allowed.session, made.outcome
    with ledger.transaction():
        kept = _kept_reply(ledger, question)
        if kept is not None:
            return kept
        cost = session.price(question, allowed.releases, allowed.public)
        ledger.append(authorize_payment(ledger.entries(), session, cost, context.policy))
        reply = requests.ok_reply(**_reply_content(context, ledger, allowed, outcome))
        ledger.keep_answer(question.id, question.hash, requests.pack_parties(question), reply)
        if outcome.kept:
            times = made.state["participations"] + 1
            rows = {name: value[0].cpu().contiguous() for name, value in outcome.kept.items()}
            ledger.remember(question.id, saved({**rows, "participations": times}))
        if made.accuracies is not None:
            ledger.keep_accuracies(question.id.run, question.id.round, *made.accuracies)
    return reply


def _reply_content(
    context: SiteContext, ledger: SiteLedger, allowed: AllowedQuestion, outcome: Outcome
) -> dict[str, Any]:
    """Content of the reply: the released values, or, where answers are summed, a masked vector and shares."""
    head = ledger.head()  # with the rows that charge for this answer
    content: dict[str, Any] = {"head": head.to_list()}
    if allowed.cohort is None:
        return content | {"values": outcome.passed.values}
    masked = allowed.session.masker(allowed.cohort, context.identity).mask(
        integer_rows.to_row(outcome.passed.values, allowed.releases),
        integer_rows.bits(allowed.releases, allowed.session.gate, allowed.public, len(allowed.cohort.parties)),
        freshness.write_notes(ledger, allowed.cohort, head, context.private),
    )
    return content | {"vector": masked.vector, "shares": masked.shares}


@dataclass(frozen=True)
class OpenRequest:
    """The server's request to open a sum."""

    id: QuestionId
    hash: bytes
    survivors: list[bytes]
    shares: dict[bytes, bytes]
    """Encrypted share of each survivor's mask, for this site."""

    @classmethod
    def read(cls, message: Mapping[str, Any]) -> OpenRequest:
        """Read a request from a message, or refuse the message."""
        question, hash = requests.read_question_id(message), requests.read_bytes(message, "hash", 32)
        survivors, shares = message.get("survivors"), message.get("shares")
        if not requests.are_identities(survivors) or not isinstance(shares, dict):
            raise RefusedError("message", "its survivors are not a list of identities, or its shares are not a table")
        if not all(isinstance(one, bytes) and isinstance(share, bytes) for one, share in shares.items()):
            raise RefusedError("message", "its shares are not bytes")
        assert isinstance(survivors, list)
        return cls(question, hash, survivors, shares)


def answer_open(context: SiteContext, message: Mapping[str, Any]) -> bytes:
    """Answer `open` with the shares and seeds that unmask the survivors' sum."""
    request = OpenRequest.read(message)
    with SiteLedger(context.folder) as ledger:
        session = get_session(context, ledger, request.id.run)
        freshness.check_single_ledger(ledger, message)
        try:
            with ledger.transaction():
                return _open_once(context, ledger, request, session)
        except freshness.LedgerBehindError as behind:
            freshness.spoil(ledger, behind)
            raise RefusedError("restored", behind) from behind


def _open_once(context: SiteContext, ledger: SiteLedger, request: OpenRequest, session: Session) -> bytes:
    """Open a sum for the first list of survivors; the same list gets the same reply, another is refused."""
    kept = ledger.kept_answer(request.id)
    if kept is None:
        raise RefusedError("old", "no answer to this question is kept")
    if bytes(kept["hash"]) != request.hash or not kept["parties"]:
        raise RefusedError("other")
    parties = requests.read_parties(wire.unpack(bytes(kept["parties"])))
    cohort = Cohort(request.hash, tuple(party for party, _ in parties), session.terms.minimum)
    survivors = request.survivors
    try:
        cohort.check_survivors(survivors)
        named = b"".join(one.identity for one in cohort.parties if one.identity in survivors)
    except MaskingError as error:
        raise RefusedError("survivors", error) from error
    if kept["survivors"] is not None:
        if bytes(kept["survivors"]) != named:
            raise RefusedError("survivors", "it named other survivors before")
        return bytes(kept["opening"])
    masker = session.masker(cohort, context.identity)
    try:
        for one in survivors:
            freshness.check_note(
                ledger, context.identity, one, masker.decrypt_share(one, request.shares.get(one, b"")).note
            )
        opening = masker.make_opening(survivors, request.shares)
    except MaskingError as error:
        raise RefusedError("share", error) from error
    reply = requests.ok_reply(shares=opening.shares, seeds=opening.seeds)
    ledger.keep_opening(kept, named, reply)
    # In the ledger too, so that a ledger restored to before this would be noticed: it could open for other survivors.
    ledger.append([Entry("opened", {"ask": request.id.to_list(), "survivors": hashlib.sha256(named).hexdigest()})])
    return reply
