"""A method's script without anybody who answers: what it may not do on real machines shows before anybody is asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.deploy.terms import DeployedTerms
from sordino.errors import UserError
from sordino.federation.client import Question
from sordino.federation.message import Each
from sordino.federation.rounds import RoundReport
from sordino.federation.run_state import Restored
from sordino.federation.server import Ground, Server
from sordino.federation.transport import Answer
from sordino.privacy.gate import Gate
from sordino.privacy.ledger import Ledger, Row
from sordino.privacy.mechanism import MECHANISMS
from sordino.privacy.noise import Seeded
from sordino.privacy.release import Matrix, Public, Release, due
from sordino.util.processes import single_threaded

ROUNDS = 2


def rehearse(terms: DeployedTerms, ground: Ground) -> None:
    """Run the first rounds of a method's script with answers that say nothing; what it must not do raises."""
    schedule = dataclasses.replace(terms.schedule, rounds=min(ROUNDS, terms.schedule.rounds))
    stage = _Stage(terms)
    gate = Gate(terms.allowance, Seeded(terms.experiment.seed, terms.identity), MECHANISMS["integers"])
    server = Server(terms.method, schedule, terms.budget, gate, stage, stage, ground)
    with single_threaded():
        terms.method.run(server, terms.initial)


class _Stage:
    """A transport to nobody, and books in which nothing is written."""

    def __init__(self, terms: DeployedTerms) -> None:
        self._terms, self._steps = terms, terms.method.steps()
        self.ledger = Ledger(terms.schedule.clients, terms.method.unit)
        self.restored: Restored | None = None

    def ask(self, question: Question, evaluate: bool, charge: Callable[[], None]) -> Answer:
        charge()
        releases = due(self._steps[question.step], question.round)
        summed, who = self._terms.is_summed(releases), list(question.clients)
        if summed and any(isinstance(value, Each) for value in question.message.values()):
            raise UserError(
                f"{self._terms.experiment.method} tells each client something of its own, but the secure sum adds up "
                'answers to one question only: simulate it with `sordino run`, or set protect_from = "server".'
            )
        public = Public(question.message, who, {}, self._terms.learner.layout.layers)
        values = {name: self._nothing(release, public, summed) for name, release in releases.items()}
        return Answer(values, np.full((len(who), 3), np.nan), 0, 0, who=who, summed=summed)

    def _nothing(self, release: Release, public: Public, summed: bool) -> Tensor:
        """Zeros in the shape of what a release would bring."""
        size = release.width(public)
        if size is None:
            size = release.most_entries(public) if isinstance(release, Matrix) else sum(public.layers)
        kind = torch.int64 if release.unit == "client" else torch.float32
        return torch.zeros(1 if summed else len(public.clients), size, dtype=kind)

    def public_states(self, clients: Sequence[int], names: Collection[str]) -> dict[str, Tensor]:
        return {}

    def accuracies(self, clients: Sequence[int], model: Tensor | None) -> np.ndarray:
        return np.full(len(clients), np.nan)

    def charge(self, rows: Sequence[Row]) -> None:
        """The ledger is thrown away; what sites would have to pay is looked at."""
        self._terms.check_reserved(rows)

    def answered(self, question: int, drawn: int) -> None:
        """Nothing to store: nobody drew noise."""

    def note(self, report: RoundReport, accuracies: Mapping[int, Sequence[float]]) -> None:
        """Nothing happened."""

    def check(self, state: dict[str, Any]) -> None:
        """Nothing is kept."""

    def save(self, now: Restored) -> None:
        """Nothing is saved."""
