"""A site's part in a run whose updates an app trains: everything but the training is as in any other run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.deploy.site.requests import ReceivedQuestion
from sordino.deploy.site.rules import RefusedError, SitePolicy
from sordino.deploy.site.session import Session, SiteContext
from sordino.federation.client import Outcome
from sordino.privacy.release import Public, Releases, due


@dataclass(frozen=True)
class AppSession(Session):
    """A run, as a site takes part in it with an app."""

    context: SiteContext | None = None

    @classmethod
    def over(cls, session: Session, context: SiteContext) -> AppSession:
        """Take a session over whose updates the app of a context trains."""
        about = (session.run, session.terms, session.number, session.key, session.clients, session.blank)
        return cls(*about, context=context)

    def check_question(self, question: ReceivedQuestion, policy: SitePolicy) -> tuple[Releases, Public]:
        """Releases of a question; refused where no app is there to train."""
        if self.context is None or self.context.train is None:
            raise RefusedError("experiment", "an app trains its updates, but this process runs none")
        return super().check_question(question, policy)

    def answer(self, question: ReceivedQuestion, state: dict[str, Tensor]) -> Outcome:
        """Have the app train, and pass its update through the gate."""
        assert self.context is not None
        assert self.context.train is not None
        update = self.context.train(question.message)
        size = self.terms.learner.layout.size
        if update.shape != (size,):
            raise ValueError(f"the app's update has {update.numel():,} numbers, but its arrays have {size:,}")
        return self._released(question, update)

    def answer_with_noise_alone(self, question: ReceivedQuestion, state: dict[str, Tensor]) -> Outcome:
        """Contribute nothing but the full noise, where the app failed."""
        return self._released(question, torch.zeros(self.terms.learner.layout.size))

    def evaluate_round(self, question: ReceivedQuestion, outcome: Outcome) -> list[float | None] | None:
        """No accuracies: only the app knows how well a model does."""
        return None

    def _released(self, question: ReceivedQuestion, update: Tensor) -> Outcome:
        releases = due(self.terms.steps()[question.step], question.id.round)
        public = Public(question.message, [self.number], {}, self.terms.learner.layout.layers)
        wanted = {"update": update.detach().float().reshape(1, -1)}
        return Outcome(self.gate.passes(releases, wanted, self._draw_number(question), public), {}, None)
