"""A site's context and its sessions: one `SiteContext` for an open site, one `Session` for each run it takes part in.

A session decides what a question may release, with which other sites the answer is masked, and what it costs.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sordino.data import FederatedData
from sordino.deploy import accuracies
from sordino.deploy.protocol import keys
from sordino.deploy.protocol.roster import Member
from sordino.deploy.protocol.secure_sum import Cohort, Masker, MaskingError, Party
from sordino.deploy.site.data import SiteFile
from sordino.deploy.site.ledger import Entry, SiteLedger, last_noted, release_entry
from sordino.deploy.site.requests import ReceivedQuestion
from sordino.deploy.site.rules import RefusedError, SitePolicy
from sordino.deploy.terms import DeployedTerms
from sordino.errors import UserError
from sordino.federation.client import MODEL, STEP, Clients, Outcome, Question
from sordino.federation.execution import EXECUTIONS
from sordino.federation.message import Each, Message
from sordino.learning.metrics import sums_on_test_records
from sordino.privacy.gate import Gate
from sordino.privacy.ledger import Row, number_of_attempt
from sordino.privacy.mechanism import MECHANISMS
from sordino.privacy.noise import Secure, Seeded, Source
from sordino.privacy.release import Public, Releases, due, same_turns
from sordino.privacy.unit import Unit
from sordino.util.files import rotate
from sordino.util.processes import note_signals

LOG = "site.log"
MISMATCH = "misfit"
"""Kind of the ledger's rows that count refusals which depend on the data."""


@dataclass
class SiteContext:
    """Everything that an open site answers from."""

    folder: Path
    policy: SitePolicy
    file: SiteFile
    private: bytes
    """Lasting Ed25519 private key."""
    secret: bytes
    """Seed of everything random that needs no fresh noise, such as the choice of test records."""
    tell: Callable[[str], None] = lambda sentence: None
    """Shows a line to the site's owner."""
    train: Callable[[Message], Tensor] | None = None
    """Trains an update for a server's message, where an app does that; None elsewhere."""
    sessions: dict[str, Session] = field(default_factory=dict)
    """Sessions of the runs that the server has asked about since the site was opened."""
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    """Random bytes drawn when the site is opened. A note that signs them was written since."""
    is_fresh: bool = False
    """Whether enough other sites have confirmed the ledger since the site was opened."""
    held: dict[bytes, int] = field(default_factory=dict)
    """Position of the newest head of this ledger that each other site is known to hold."""

    @property
    def identity(self) -> bytes:
        """Lasting Ed25519 public key."""
        return keys.public_identity(self.private)

    @property
    def others(self) -> list[Member]:
        """Other sites of the pinned roster; empty without a roster, since the server could invent sites."""
        return [one for one in self.policy.roster or () if one.identity != self.identity]

    @property
    def quorum(self) -> int:
        """Number of other sites that must confirm the ledger."""
        named = self.policy.rules.witnesses
        return len(self.others) if named is None else named

    @contextlib.contextmanager
    def log_errors(self, what: str) -> Iterator[None]:
        """Write any error into the site's log, under the heading `what`, and continue.

        Nobody else learns of the error: whether a step fails depends on the records.
        """
        signals: list[int] = []
        try:
            with note_signals(signals):
                yield
        except BaseException as error:
            if signals and isinstance(error, KeyboardInterrupt):  # the owner stops the site
                raise
            self.log(f"{what}:\n{traceback.format_exc()}")

    def log(self, text: str) -> None:
        """Show the first line of `text`, and append all of it to the site's log if that can be written."""
        # The text may quote the server: control characters must not reach a terminal or start a new line of the log.
        lines = ["".join(one if one.isprintable() else "?" for one in line) for line in text.splitlines()]
        self.tell(lines[0])
        rotate(self.folder / LOG)
        with contextlib.suppress(OSError), (self.folder / LOG).open("a") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} " + "\n    ".join(lines) + "\n")


@contextlib.contextmanager
def limit_data_refusals(ledger: SiteLedger, policy: SitePolicy, about: str) -> Iterator[None]:
    """Count refusals that depend on the data, and refuse to look at the data after `max_misfits` of them.

    Each such refusal tells the server something about the records, without noise. `about` identifies what was asked:
    asking for the same again, on the same data, is counted once.
    """
    entries = ledger.entries()
    told = {entry.content["about"] for entry in entries if entry.kind == MISMATCH}
    this = f"{about} {last_noted(entries, 'data')}"
    if this not in told and len(told) >= policy.rules.max_misfits:
        raise RefusedError("misfits", f"max_misfits is {policy.rules.max_misfits}")
    try:
        yield
    except Exception as error:
        if this not in told:
            with ledger.transaction():
                ledger.append([Entry(MISMATCH, {"about": this})])
        if isinstance(error, RefusedError):
            raise
        raise RefusedError("failed", traceback.format_exc()) from error


@dataclass(frozen=True)
class Session:
    """One run, as this site takes part in it."""

    run: str
    terms: DeployedTerms
    number: int
    """Client number of this site."""
    key: bytes
    """Private X25519 key of the site for this run."""
    clients: Clients
    blank: dict[str, Tensor]
    """State before the first round."""
    _agreed: dict[bytes, bytes] = field(default_factory=dict)
    """Secrets that `key` has agreed on with other sites' X25519 keys, by key."""
    _signed: set[tuple[Party, bytes]] = field(default_factory=set)
    """Other sites' X25519 keys whose signatures have been verified."""

    @classmethod
    def of(cls, run: str, terms: DeployedTerms, number: int, key: bytes, data: FederatedData, secret: bytes) -> Session:
        """Open a session.

        Args:
            run: The run's name, as the server sends it.
            terms: Terms that the site derived itself from the enrolled experiment.
            number: Client number of this site.
            key: Private X25519 key of the site for this run.
            data: The site's records, under every client's number.
            secret: The site's secret, from which everything random but noise is drawn.
        """
        allowance = terms.at_site(number, int(data.train.units[number]))
        gate = Gate(allowance, noise_source(terms, secret), MECHANISMS["integers"])
        clients = Clients(
            terms.method, terms.learner, data, gate, EXECUTIONS["one-by-one"], evaluation=terms.evaluation
        )
        blank = terms.method.memory(terms.initial) | {"participations": torch.zeros(())}
        return cls(run, terms, number, key, clients, blank)

    @property
    def gate(self) -> Gate:
        """Gate through which everything leaves."""
        return self.clients.gate

    @property
    def unlimited(self) -> bool:
        """Whether the run may spend until the site's budget is used up. Only record-level runs reserve their cost."""
        return not self.terms.method.unit.record_level

    def check_question(self, question: ReceivedQuestion, policy: SitePolicy) -> tuple[Releases, Public]:
        """Releases of a question and the public values that bound them; a question outside the rules is refused."""
        terms, steps = self.terms, self.terms.steps()
        behind = question.step in (accuracies.STEP, STEP)
        if question.step not in steps or (question.id.round >= terms.schedule.rounds) != behind:
            raise RefusedError("message", "the experiment has no such step or round")
        releases = due(steps[question.step], question.id.round)
        public = Public(question.message, [self.number], {}, terms.learner.layout.layers)
        if question.step == STEP and not isinstance(question.message.get(MODEL), Tensor):
            raise RefusedError("message", "test records are counted by the scores of a model, and it has none")
        if terms.is_summed(releases) and any(isinstance(value, Each) for value in question.message.values()):
            raise RefusedError("bounds", "answers are summed, so all sites must get the same question")
        policy.check_question(terms, releases, public, self.gate)
        return releases, public

    def cohort(
        self, question: ReceivedQuestion, releases: Releases, policy: SitePolicy, identity: bytes
    ) -> Cohort | None:
        """Cohort U1 that masks the answer; None where answers are not summed.

        Refused unless its sites are distinct, in the roster, include this one, and signed their keys.

        Args:
            question: the server's message.
            releases: releases of its step.
            policy: this site's rules and roster.
            identity: public identity of this site.
        """
        terms = self.terms
        if not terms.is_summed(releases):
            if question.parties:
                raise RefusedError("message", "it names a cohort, but its answers are not summed")
            return None
        parties = [party for party, _ in question.parties]
        if not terms.minimum <= len(parties) <= terms.schedule.cohort:
            raise RefusedError(
                "cohort", f"it has {len(parties)} sites, but must have {terms.minimum} to {terms.schedule.cohort}"
            )
        policy.check_members([party.identity for party in parties])
        about = (self.run.encode(), terms.identity.encode())
        for party, signature in question.parties:
            if (party, signature) in self._signed:
                continue
            if not keys.is_signed(party.identity, signature, "run key", *about, party.key):
                raise RefusedError("roster", "a site of the cohort has not signed its key")
            self._signed.add((party, signature))
        try:
            cohort = Cohort(question.hash, tuple(parties), terms.minimum)
            self.masker(cohort, identity)
        except MaskingError as error:
            raise RefusedError("roster", error) from error
        return cohort

    def masker(self, cohort: Cohort, identity: bytes) -> Masker:
        """This site's part, as `identity`, in the secure sum of a cohort."""
        return Masker(cohort, identity, self.key, self._agreed)

    def price(self, question: ReceivedQuestion, releases: Releases, public: Public) -> list[Entry]:
        """Ledger rows that charge for a question, computed by this site's own code."""
        ledger = self.terms.ledger()
        about = (question.number, question.id.round, question.step)
        rows = ledger.charge(releases, *about, self.gate.allowance, public)
        try:
            self.terms.check_reserved(rows)
        except UserError as error:
            raise RefusedError("bounds", error) from error
        return [release_entry(question.id, self.terms.unit, row) for row in rows]

    def reservation(self) -> Entry:
        """Ledger row that reserves the most that the run may cost records; written with its first release of them."""
        return reservation_entry(self.run, self.terms, self.number)

    def turns_left(self, row: Row, paid: Sequence[Row]) -> int:
        """Number of times that the release of `row` may still leave, as reserved, after the `paid` rows of this run."""
        steps = self.clients.steps
        most = 1 if steps[row.step][row.release].once else int(self.gate.allowance.of_records.turns[self.number])
        names = same_turns(steps, row.step, row.release)
        return most - sum(one.release in names for one in paid)

    def answer(self, question: ReceivedQuestion, state: dict[str, Tensor]) -> Outcome:
        """Run the client's part of the round (step, gate, learn) from its `state` before the question."""
        if question.step == accuracies.STEP:
            model = question.message.get("global")
            own = state["model"] if bool(state["participations"] > 0) else model
            return self._share_accuracies(question, [self.accuracy(own), self.accuracy(model)])
        return self.clients.answer(self._question(question), {name: rows.unsqueeze(0) for name, rows in state.items()})

    def answer_with_noise_alone(self, question: ReceivedQuestion, state: dict[str, Tensor]) -> Outcome:
        """Contribute nothing but the full noise, where the site's part of the round failed on its records."""
        if question.step == accuracies.STEP:
            return self._share_accuracies(question, [None, None])
        return self.clients.absent(self._question(question), {name: rows.unsqueeze(0) for name, rows in state.items()})

    def _question(self, question: ReceivedQuestion) -> Question:
        return Question(self._draw_number(question), question.id.round, question.step, question.message, [self.number])

    def _draw_number(self, question: ReceivedQuestion) -> int:
        """Question number that noise from the seed is keyed by: each attempt has its own, so that no draw is reused."""
        return number_of_attempt(question.number, question.id.attempt)

    def _share_accuracies(self, question: ReceivedQuestion, figures: list[float | None]) -> Outcome:
        """Release accuracies of the personal and of the server's model; None where the site has no such model."""
        public = Public(question.message, [self.number], {}, self.terms.learner.layout.layers)
        return accuracies.answer(
            self.gate, self.terms.steps()[question.step], self._draw_number(question), public, figures
        )

    def evaluate_round(self, question: ReceivedQuestion, outcome: Outcome) -> list[float | None] | None:
        """Accuracies of the personal model and of the model at the round's start, on the site's own test records.

        A site that keeps nothing of a round predicts with the server's model. None where `evaluate_every` skips the
        round, or there is no model.
        """
        round = question.id.round
        last = round == self.terms.schedule.rounds - 1
        models = (outcome.kept.get("model"), outcome.start) if outcome.kept else (question.message.get("global"), None)
        if round >= self.terms.schedule.rounds:  # nothing was trained
            return None
        is_due = last or (round + 1) % self.terms.experiment.evaluate_every == 0
        if not is_due or (not outcome.kept and models[0] is None):
            return None
        return [self.accuracy(one) for one in models]

    def metrics(self, models: Tensor | None) -> np.ndarray:
        """Metrics of a model on the site's own test records; `nan` without a model."""
        data = self.clients.data
        if models is None:
            return np.full(len(data.task.metrics), np.nan)
        rows = models.detach().reshape(1, -1)
        with self.clients.unchanged("evaluation"):
            said = self.clients.execution.outputs(self.clients, rows, data.test, [self.number])
        return np.asarray(data.task.figures(sums_on_test_records(data, [self.number], said))[0])

    def accuracy(self, models: Tensor | None) -> float | None:
        """Accuracy of a model on the site's own test records; None without a model or without test records."""
        if models is None:
            return None
        rows = models.detach().reshape(1, -1)
        with self.clients.unchanged("evaluation"):
            found = float(self.clients.execution.judged(self.clients, rows, [self.number])[0, 0])
        return found if math.isfinite(found) else None


def reservation_entry(run: str, terms: DeployedTerms, number: int) -> Entry:
    """Ledger row that reserves the most that a run may cost the records of client `number`.

    Where observers meet different noise, `views` has what each of them may learn, and `epsilon` is the largest of it.
    Where persons are protected, and not records, `unit` says so and `person` is the column that tells them apart;
    `sites` is there where several sites may know one.
    """
    found = terms.reserved(number)
    differ = {"views": found} if len(set(found.values())) > 1 else {}
    whom: dict[str, object] = {}
    if terms.unit is Unit.PERSON and terms.persons is not None:
        whom = {"unit": str(Unit.PERSON), "person": terms.persons.column}
    whom |= {"sites": terms.sites} if terms.sites > 1 else {}
    content = {"run": run, "epsilon": max(found.values()), "delta": terms.budget.delta}
    return Entry("reserve", {**content, **differ, **whom})


def noise_source(terms: DeployedTerms, secret: bytes) -> Source:
    """Source of a run's noise: the operating system, with other random choices drawn from the site's `secret`.

    In a trial with noise from the public seed no epsilon holds, and everything is drawn from that seed.
    """
    if terms.seeded:
        return Seeded(terms.experiment.seed, terms.identity)
    return Secure(Seeded(int.from_bytes(secret, "big")))
