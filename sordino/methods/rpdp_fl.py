"""rPDP-FL, record level (Liu et al., "Cross-silo Federated Learning with Record-level Personalized Differential
Privacy", CCS 2024).

Budgets differ, noise does not: whoever allows less is sampled more rarely. The noise is what the largest budget asks
for; the smaller a client's budget, the smaller the rate at which its records enter batches. All clients take equally
many local steps of DP-SGD on Poisson-sampled batches; the server averages.

`sound`: a rate is found by search with the accountant itself, and never exceeds its budget.

`paper`: the noise is what an accountant of Renyi divergences asks for, and rates are read off a curve
eps(q) = exp(a q + b) + c that is fitted to its values ("Simulation-CurveFitting"). Nobody pays for the error of the
fit: where the curve lies below the accountant, as at the smallest budgets, records are sampled too often. The true
figures are printed, and who exceeds its budget.

Departures: budgets are those of clients, so that all records of a client have the same rate; the paper also lets each
record have its own. The largest budget's rate is `batch` over the mean number of records; the paper's is 1, which is a
`batch` of all records. `paper` fits its curve to parts of that rate, the same ones as the released code; over few
steps, where epsilon bends the other way and the released code finds no curve, it is a line. A client for which the
curve has no rate gets a millionth of the largest one; in the released code it gets none. Sampling of clients earns
nothing, because the server knows who takes part. Averages are uniform.

| paper | code |
|---|---|
| epsilon_j, q_j | `fed.record_plan.budgets`, `.sampling`: `privacy/accounting/calibration.py: record_rate` |
| eps(q), its inverse | `privacy/accounting/published_rates.py: fitted_rate` |
| sigma | the multiplier of the plan: the same for all; `privacy/accounting/published_rates.py: quick_multiplier` |
| C, tau, eta | `clip`, `data.steps`, `rate` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sordino.method import Federation, Message, Result, Variant
from sordino.methods.bases import RecordLevel
from sordino.privacy.budget.record_level_plan import Varied
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.release import Gradients, sends


@dataclass(frozen=True)
class RPDPFL(RecordLevel):
    """Each client's budget is kept by how often its records are sampled."""

    title: ClassVar[str] = "each client has its own budget, kept by how often its records are sampled"
    paper: ClassVar[str] = "Liu et al., CCS 2024"
    caveats: ClassVar[dict[Variant, str]] = {
        "paper": "sampling rates are read off a curve that was fitted to an accountant's values, and its error is not "
        "paid for: the smallest budgets may be exceeded, and the true figures are printed",
    }

    @property
    def varied(self) -> Varied:  # type: ignore[override]
        return "fitted" if self.variant == "paper" else "sampling"

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(model=model, motion=self.server.begin(model))
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model, "clip": self.clip})
            server.model, server.motion = self.server.step(server.model, got.mean("update"), server.motion)

    @sends(lambda self: {"update": Gradients(clip="clip")})
    def local(self, message: Message, me: dict[str, Tensor], data: PrivateRecords) -> Result:
        start = message["global"]
        model = self.trained(start, data)
        return Result(send={"update": model - start}, keep={"model": model}, start=start)

    def discloses(self) -> list[str]:
        public = "A client's budget shows in its sampling rate and its noise: budgets are treated as public."
        return [*super().discloses(), public]
