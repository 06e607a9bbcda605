"""DP-FedAvg, client level (McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018).

Clients start from the global model, train for E epochs and send what changed, clipped to C and noised; the
server adds the plain average. The threshold is fixed, or follows a quantile of the update norms (Andrew et
al., "Differentially Private Learning with Adaptive Clipping", NeurIPS 2021), which costs a share of the budget.

Departures: the average is uniform, because weights by data size raise the sensitivity to C max p_i; who
takes part is not treated as secret, because the server knows it.

| paper | code |
|---|---|
| theta_t | `server.model` |
| S (or C) | `server.threshold["clip"]` |
| z | the run's noise multiplier, from its budget |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sordino.learning.network import Records
from sordino.method import Federation, Message, Result
from sordino.methods.bases import Clipped
from sordino.privacy.release import sends


@dataclass(frozen=True)
class DPFedAvg(Clipped):
    """Federated averaging of clipped and noised updates."""

    title: ClassVar[str] = "federated averaging of clipped and noised updates, client level"
    paper: ClassVar[str] = "McMahan et al., ICLR 2018; adaptive clipping: Andrew et al., NeurIPS 2021"

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(model=model, motion=self.server.begin(model), threshold=self.threshold.begin(fed, self.clip))
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model, "clip": server.threshold["clip"]})
            server.model, server.motion = self.server.step(server.model, got.mean("update"), server.motion)
            server.threshold = self.threshold.following(server.threshold, got, fed, server.model)

    @sends(lambda self: self.threshold.releases())
    def local(self, message: Message, me: dict[str, Tensor], data: Records) -> Result:
        descent = self.descent(data)
        start = model = message["global"]
        for _ in range(self.epochs):
            model = descent.epoch(model)
        sent = self.threshold.tell(model - start, model, message, data)
        return Result(send=sent, keep={"model": model}, start=start)
