"""PAC-DP (Zhou, Cai, Dai, Yang, Luo, Cai: "PAC-DP: Personalized Adaptive Clipping for Differentially Private Federated
Learning", 2026 (arXiv 2603.24003)).

Every client has its own budget epsilon_i. Its clipping threshold follows from the budget by a curve F that was fitted
beforehand by simulating on public data which threshold is best at which budget, times a schedule that holds and then
falls: C_i^t = F(epsilon_i) lambda(t). Thresholds never look at a client's data: they cost nothing. Each client is told
its own threshold only; the server, and whoever sees that client's noise, learns its budget.

`sound`: each client's noise is calibrated to its budget over all its local steps, on Poisson-sampled batches; a client
whose budget would be exceeded takes no further part. Budgets outside of the range that the curve was fitted on are
refused.

`paper`: noise is calibrated as published, with one release for each round and RDP orders 2 to 64, although every local
step releases a noisy gradient; the true figures are printed. The paper claims no amplification by sampling. It deals
batches anew in each epoch (`batches = "shuffled"`), so that a record pays for one release an epoch. Budgets below 0.183
cannot come from that accountant (its bound for infinite noise at delta = 1e-5), and are refused.

`curve_sets = "weights"` is a control, not the paper's: a client with a larger threshold also counts more in the mean,
and by the curve that is a client with less noise. The control keeps the second and leaves out the first: every client
clips at `clip`, and its update is weighed by F(epsilon_i). Where every record is clipped and a round is one step, the
two are the same method.

Departures: weights p_i are uniform (the paper's weights over the sampled clients do not sum to one, and would change
with a record that leaves). Clients take turns, where the paper draws each round's clients at random. `hot_start`, which
the paper uses but does not define, trains the first model on the public records. The curve's outliers are found by
interquartile ranges of what is left beside the trend of log C over log epsilon (the paper: of C itself, where the ends
of a steep curve are outliers); the curve is a power law or piecewise linear where that predicts left-out points better
than the paper's quadratic. It is not forced to rise with the budget (`sordino curve fit --monotone` does that).

| paper | code |
|---|---|
| epsilon_i, z_i | the client's plan |
| F, lambda(t) (Eq. 8, 9) | `parts/curves.py`: `Curve`, `plateau_then_cosine`; fitted by `study/curve_fitting.py` |
| r_s, lambda_min | `plateau`, `floor` |
| T, B, eta | rounds, `batch`, `rate` |
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from sordino.data.people import same_people
from sordino.errors import UserError
from sordino.federation.message import Each
from sordino.method import Budget, Federation, Message, Replies, Result, Schedule, Share, Variant
from sordino.methods.bases import RecordLevel
from sordino.parts.curves import curve_called, is_file, plateau_then_cosine
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.release import Gradients, sends


@dataclass(frozen=True)
class PACDP(RecordLevel):
    """Per-client budgets, and thresholds from a curve fitted on public data."""

    title: ClassVar[str] = "each client has its own budget; thresholds follow from it by a curve fitted on public data"
    paper: ClassVar[str] = "Zhou, Cai, Dai, Yang, Luo, Cai, 2026 (arXiv 2603.24003)"
    caveats: ClassVar[dict[Variant, str]] = {
        "paper": "the published accounting charges one release for each round although every local step releases one, "
        "and its sensitivity holds for a removed record, not for a replaced one",
    }

    curve: str | None = None
    """The curve F: a file made by `sordino curve fit` or its contents, or a published curve: `mnist`, `cifar10`.
    Without one, `clip` is every client's threshold."""
    curve_sets: Literal["thresholds", "weights"] = "thresholds"
    """Use of the curve: every client's threshold (the paper), or, as a control, the weight of its update,
    while every client clips at `clip`."""
    plateau: Share = 0.6
    """The share of rounds before the threshold falls: r_s. Paper: 0.6."""
    floor: Share = 0.1
    """Share to which the threshold falls: lambda_min. Paper: 0.1."""
    hot_start: bool = False
    """Train the first model on public records."""
    hot_start_epochs: Annotated[int, Field(ge=0, le=100_000)] = 5
    """Passes over the public records."""

    def run(self, fed: Federation, model: Tensor) -> None:
        budgets = fed.record_plan.budgets
        thresholds, weights = self._thresholds(budgets), self._weights(budgets)
        server = fed.state(
            model=lambda: self._hot(fed, model) if self.hot_start else model, motion=self.server.begin(model)
        )
        for t in fed.rounds(server):
            clips = thresholds * plateau_then_cosine(t, fed.schedule.rounds, self.plateau, self.floor)  # Eq. 8
            got = fed.ask(fed.sample(), self.local, {"global": server.model, "clip": Each(clips)})
            server.model, server.motion = self.server.step(server.model, _average(got, weights), server.motion)

    @sends(lambda self: {"update": Gradients(clip="clip")})
    def local(self, message: Message, me: dict[str, Tensor], data: PrivateRecords) -> Result:
        start = message["global"]
        model = self.trained(start, data)
        return Result(send={"update": model - start}, keep={"model": model}, start=start)

    def needs_public(self) -> bool:
        return self.hot_start

    def check_data(self, people: str) -> None:
        fitted_on = None if self.curve is None else curve_called(self.curve).people
        if people and fitted_on is not None and same_people(people, fitted_on):
            raise UserError(
                f"The curve {self.curve} was fitted on data of the people whom it would help to protect, and its "
                "thresholds would disclose them: fit one on other, public data (`sordino curve fit --data ...`)."
            )

    def files(self) -> tuple[str, ...]:
        return () if self.curve is None or not is_file(self.curve) else ("curve",)

    def file_contents(self) -> dict[str, Any]:
        return {name: asdict(curve_called(getattr(self, name))) for name in self.files()}

    def notes(self, schedule: Schedule, budget: Budget) -> list[str]:
        if self.curve is None and self.privacy == "dp":
            return [f"No curve is given: every client clips at {self.clip:g}. Fit one with `sordino curve fit`."]
        return []

    def discloses(self) -> list[str]:
        public = "A client's budget shows in its threshold and its noise: budgets are treated as public."
        found = [*super().discloses(), public]
        if self.curve is not None and curve_called(self.curve).people is None:
            found.append("The curve does not say which data it was fitted on; thresholds disclose something of those.")
        return found

    def published_multiplier(self, epsilon: float, delta: float, rounds: int, records: int) -> float:
        """The smallest z with min over orders 2..64 of T a / (2 z^2) + ln(1/delta) / (a - 1) at most epsilon."""
        least = math.log(1 / delta) / 63
        if epsilon <= least:
            raise UserError(
                f"The published accountant (orders 2 to 64) cannot print epsilon = {epsilon:g} at delta = {delta:g}: "
                f"even infinite noise costs {least:.3f} there. Use --variant sound."
            )
        needed = [
            math.sqrt(rounds * order / 2 / (epsilon - math.log(1 / delta) / (order - 1)))
            for order in range(2, 65)
            if epsilon > math.log(1 / delta) / (order - 1)
        ]
        return min(needed)

    def _thresholds(self, budgets: np.ndarray) -> Tensor:
        """Return each client's threshold before the schedule."""
        if self.curve is None or self.curve_sets == "weights" or self.privacy == "none":
            return torch.full((len(budgets),), self.clip)
        return self._along_the_curve(self.curve, budgets)

    def _weights(self, budgets: np.ndarray) -> Tensor | None:
        """Return the weight of each client's update, one in the mean over all clients; None where all are equal."""
        if self.curve is None or self.curve_sets == "thresholds" or self.privacy == "none":
            return None
        found = self._along_the_curve(self.curve, budgets)
        return found / found.mean()

    def _along_the_curve(self, name: str, budgets: np.ndarray) -> Tensor:
        """Return F(epsilon_i) for each client."""
        curve = curve_called(name)
        return torch.tensor([curve(float(epsilon)) for epsilon in budgets])

    def _hot(self, fed: Federation, model: Tensor) -> Tensor:
        descent = self.descent(fed.public())
        for _ in range(self.hot_start_epochs):
            model = descent.epoch(model)
        return model


def _average(got: Replies, weights: Tensor | None) -> Tensor:
    """Return the mean update, weighted where there are weights."""
    if weights is None:
        return got.mean("update")
    return weights[list(got.who)] @ got.rows("update") / len(got.who)
