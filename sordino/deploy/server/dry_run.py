"""Dry run before a deployment: the first rounds of a method's server code, with answers that are all zero.

It raises what a deployment would refuse (a per-client message under a secure sum, a charge above what is reserved)
before any site is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from sordino.assembly import assemble
from sordino.deploy.terms import DeployedTerms
from sordino.errors import UserError
from sordino.federation.client import Question
from sordino.federation.message import Each
from sordino.federation.run_state import TransientState
from sordino.federation.server import Ground
from sordino.federation.transport import Answer
from sordino.privacy.gate import Gate
from sordino.privacy.ledger import Ledger, Row
from sordino.privacy.release import Matrix, Public, Release, due
from sordino.util.processes import single_threaded

ROUNDS = 2
"""Number of rounds that are tried."""


def try_script(terms: DeployedTerms, gate: Gate, ground: Ground, rounds: int = ROUNDS) -> list[Question]:
    """Run the first rounds of a method with answers that are all zero, and return the questions that it asked; raise
    what a deployment refuses."""
    terms = replace(terms, schedule=replace(terms.schedule, rounds=min(rounds, terms.schedule.rounds)))
    run_state, nobody = _Unpaid(terms.ledger(), terms), _Nobody(terms)
    server = assemble(terms, nobody, run_state, gate=gate, ground=ground, evaluate=False)
    with single_threaded():
        server.run_script(terms.initial)
    return nobody.asked


class _Unpaid(TransientState):
    """Run state that checks each charge against the reserved budget and records none of them."""

    def __init__(self, ledger: Ledger, terms: DeployedTerms) -> None:
        super().__init__(ledger)
        self._terms = terms

    def charge(self, rows: Sequence[Row]) -> None:
        self._terms.check_reserved(rows)


@dataclass(frozen=True)
class _Nobody:
    """A transport to no site: all answers are zero."""

    terms: DeployedTerms
    memory: None = None
    asked: list[Question] = field(default_factory=list)

    def ask(self, question: Question, evaluate: bool, charge: Callable[[], None]) -> Answer:
        charge()
        self.asked.append(question)
        releases = due(self.terms.method.steps()[question.step], question.round)
        summed, who = self.terms.is_summed(releases), list(question.clients)
        if summed and any(isinstance(value, Each) for value in question.message.values()):
            raise UserError(
                f"{self.terms.experiment.method} tells each client something of its own, but the secure sum adds up "
                'answers to one question only: simulate it with `sordino run`, or set protect_from = "server".'
            )
        public = Public(question.message, who, {}, self.terms.learner.layout.layers)
        values = {name: _zeros(release, public, summed) for name, release in releases.items()}
        return Answer(values, np.full((len(who), 3), np.nan), 0, 0, who=who, summed=summed)

    def public_states(self, clients: Sequence[int], names: Collection[str]) -> dict[str, Tensor]:
        return {}

    def accuracies(self, clients: Sequence[int], model: Tensor | None) -> np.ndarray:
        return np.full(len(clients), np.nan)


def _zeros(release: Release, public: Public, summed: bool) -> Tensor:
    """Zeros in the shape of what a release would bring."""
    size = release.width(public)
    if size is None:
        size = release.most_entries(public) if isinstance(release, Matrix) else sum(public.layers)
    kind = torch.int64 if release.summed else torch.float32
    return torch.zeros(1 if summed else len(public.clients), size, dtype=kind)
