"""A run as one site takes part in it: what a question would let leave, among whom it would be masked, what it costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sordino.data import FederatedData
from sordino.deploy import accuracies
from sordino.deploy.protocol import keys
from sordino.deploy.protocol.secure_sum import Cohort, Masker, MaskingError
from sordino.deploy.site.ledger import Entry, released
from sordino.deploy.site.requests import Work
from sordino.deploy.site.rules import Allowed, RefusedError
from sordino.deploy.terms import Terms
from sordino.errors import UserError
from sordino.federation.client import Clients, Outcome, Question
from sordino.federation.execution import EXECUTIONS
from sordino.federation.message import Each
from sordino.learning.metrics import sums_on_test_records
from sordino.privacy.gate import Gate
from sordino.privacy.ledger import Ledger, Row, attempt
from sordino.privacy.mechanism import MECHANISMS
from sordino.privacy.noise import Secure, Seeded, Source
from sordino.privacy.release import Public, Releases, due, same_turns


@dataclass(frozen=True)
class Session:
    """A run, and this site's part in it."""

    run: str
    terms: Terms
    number: int
    key: bytes
    """Its private X25519 key of this run."""
    clients: Clients
    blank: dict[str, Tensor]
    """What is remembered before the first round."""

    @classmethod
    def of(cls, run: str, terms: Terms, number: int, key: bytes, data: FederatedData, secret: bytes) -> Session:
        """The run `run` at the site that is client `number`."""
        allowance = terms.at_site(number, int(data.train.sizes[number]))
        gate = Gate(allowance, source_of(terms, secret), MECHANISMS["integers"])
        clients = Clients(terms.method, terms.learner, data, gate, EXECUTIONS["one-by-one"])
        blank = terms.method.memory(terms.initial) | {"participations": torch.zeros(())}
        return cls(run, terms, number, key, clients, blank)

    @property
    def gate(self) -> Gate:
        """The exit."""
        return self.clients.gate

    @property
    def unlimited(self) -> bool:
        """Whether the run may spend as long as the site's budget lasts: only at record level is its cost reserved."""
        return any(one.unit == "client" for releases in self.terms.steps().values() for one in releases.values())

    def checked(self, work: Work, allowed: Allowed) -> tuple[Releases, Public]:
        """What a question would let leave, and on which public values that depends, if the rules allow it."""
        terms, steps = self.terms, self.terms.steps()
        behind = work.step == accuracies.STEP
        if work.step not in steps or (work.ask.round >= terms.schedule.rounds) != behind:
            raise RefusedError("message", "there is no such step or round")
        releases = due(steps[work.step], work.ask.round)
        public = Public(work.message, [self.number], {}, terms.learner.layout.layers)
        if terms.is_summed(releases) and any(isinstance(value, Each) for value in work.message.values()):
            raise RefusedError("bounds", "what is summed must be asked of all sites alike")
        allowed.check_question(terms, releases, public, self.gate)
        return releases, public

    def cohort(self, work: Work, releases: Releases, allowed: Allowed, identity: bytes) -> Cohort | None:
        """U1, if it may be: distinct sites of the roster, this one among them, each with a key that it signed."""
        terms = self.terms
        if not terms.is_summed(releases):
            if work.parties:
                raise RefusedError("message", "a cohort is named for what is not summed")
            return None
        parties = [party for party, _ in work.parties]
        if not terms.minimum <= len(parties) <= terms.schedule.cohort:
            raise RefusedError("cohort", f"it has {len(parties)} sites")
        allowed.check_members([party.identity for party in parties])
        about = (self.run.encode(), terms.identity.encode())
        for party, signature in work.parties:
            if not keys.is_signed(party.identity, signature, "run key", *about, party.key):
                raise RefusedError("roster", "a key is not signed by its site")
        try:
            cohort = Cohort(work.hash, tuple(parties), terms.minimum)
            Masker(cohort, identity, self.key)
        except MaskingError as error:
            raise RefusedError("roster", error) from error
        return cohort

    def charged(self, work: Work, releases: Releases, public: Public) -> list[Entry]:
        """What a question costs, by this site's own code, as rows for its ledger."""
        ledger = Ledger(self.terms.schedule.clients, self.terms.method.unit)
        about = (work.number, work.ask.round, work.step)
        rows = ledger.charge(releases, *about, self.gate.allowance, public)
        try:
            self.terms.check_reserved(rows)
        except UserError as error:
            raise RefusedError("bounds", error) from error
        return [released(work.ask, self.terms.method.unit, row) for row in rows]

    def reservation(self) -> Entry:
        """What the run may cost records at the most, to be set aside with its first release of them."""
        plan = self.gate.allowance.of_records
        epsilon = math.inf if self.terms.seeded else float(plan.budgets[self.number])
        return Entry("reserve", {"run": self.run, "epsilon": epsilon, "delta": self.terms.budget.delta})

    def left(self, row: Row, paid: Sequence[Row]) -> int:
        """How often what a row charges for may still leave, after the rows of this run that are `paid`: as often as was
        reserved for."""
        steps = self.clients.steps
        most = 1 if steps[row.step][row.release].once else int(self.gate.allowance.of_records.turns[self.number])
        names = same_turns(steps, row.step, row.release)
        return most - sum(one.release in names for one in paid)

    def answered(self, work: Work, state: dict[str, Tensor]) -> Outcome:
        """The client's part of the round: step, gate, learn.

        Where noise comes from the seed, another attempt at a question has another number: no draw is used twice.
        """
        if work.step == accuracies.STEP:
            model = work.message.get("global")
            own = state["model"] if bool(state["participations"] > 0) else model
            return self._shared(work, [self.accuracy(own), self.accuracy(model)])
        return self.clients.answer(self._question(work), {name: rows.unsqueeze(0) for name, rows in state.items()})

    def absent(self, work: Work, state: dict[str, Tensor]) -> Outcome:
        """A null contribution with all of its noise, where the site's part of the round failed on its records."""
        if work.step == accuracies.STEP:
            return self._shared(work, [None, None])
        return self.clients.absent(self._question(work), {name: rows.unsqueeze(0) for name, rows in state.items()})

    def _question(self, work: Work) -> Question:
        return Question(self._number(work), work.ask.round, work.step, work.message, [self.number])

    def _number(self, work: Work) -> int:
        return attempt(work.number, work.ask.attempt)

    def _shared(self, work: Work, figures: list[float | None]) -> Outcome:
        """The accuracies that the site shares: of its personal model and of the server's."""
        public = Public(work.message, [self.number], {}, self.terms.learner.layout.layers)
        return accuracies.answered(self.gate, self.terms.steps()[work.step], self._number(work), public, figures)

    def accuracies(self, round: int, outcome: Outcome) -> list[float | None] | None:
        """Of the personal model and of the model at the round's start, on the site's own test records; None where the
        round is not evaluated."""
        last = round == self.terms.schedule.rounds - 1
        if not outcome.kept or not (last or (round + 1) % self.terms.experiment.evaluate_every == 0):
            return None
        return [self.accuracy(models) for models in (outcome.kept.get("model"), outcome.start)]

    def metrics(self, models: Tensor | None) -> np.ndarray:
        """Of a model on the site's own test records; `nan` without one."""
        data = self.clients.data
        if models is None:
            return np.full(len(data.task.metrics), np.nan)
        rows = models.detach().reshape(1, -1)
        said = self.clients.execution.outputs(self.clients, rows, data.test, [self.number])
        return np.asarray(data.task.figures(sums_on_test_records(data, [self.number], said))[0])

    def accuracy(self, models: Tensor | None) -> float | None:
        """Of a model on the site's own test records; None without one."""
        if models is None:
            return None
        rows = models.detach().reshape(1, -1)
        found = float(self.clients.execution.judged(self.clients, rows, [self.number])[0, 0])
        return found if math.isfinite(found) else None


def source_of(terms: Terms, secret: bytes) -> Source:
    """The operating system's randomness; what looks at no noise, as the choice of validation records, comes from a
    secret of the site. In a trial with noise from the seed, in which no epsilon holds, the seed's."""
    if terms.seeded:
        return Seeded(terms.experiment.seed, terms.identity)
    return Secure(Seeded(int.from_bytes(secret, "big")))
