"""APFL (Deng, Kamani, Mahdavi: "Adaptive Personalized Federated Learning", 2020 (arXiv 2003.13461)).

Each client predicts with a mixture of two models, alpha v + (1 - alpha) w: v is its own, w its copy of the global one.
Batch by batch w is trained as in FedAvg and v so that the mixture gets better. alpha is fixed, or takes one gradient
step before each round, held to [0, 1] (`learned`).

Departures: the paper has no privacy, which is added here as in DP-FedAvg; the average is uniform. alpha's gradient is
taken on the first batch of a round, as in the released code. By default alpha is fixed: its gradient looks at records
that v has been trained on, and where clients have few of them v knows these by heart and alpha goes to 1. On the
digits of `experiments/demo.toml` a learned alpha ends with 73.1 % (local training: 73.2), a fixed one of 0.5 with 78.5
and of 0.25 with 87.9 (2 seeds each). There is no version for records: w, v and alpha would each need noisy
gradients, and would have to divide what the budget pays for. `ditto-record` divides them between two models.

Privacy: v and alpha stay at the client and enter no message, so that only w's update is paid for, and the global model
is the one of DP-FedAvg.

| paper | code |
|---|---|
| w_i, v_i, v bar_i | `shared`, `own`, `mixture` |
| alpha_i (Eq. 10) | `me["alpha"]`, `adapted` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from sordino.learning.network import Records
from sordino.method import Federation, Message, Result
from sordino.methods.bases import Clipped
from sordino.privacy.release import sends


@dataclass(frozen=True)
class APFL(Clipped):
    """A mixture of a global and an own model."""

    title: ClassVar[str] = (
        "each client predicts with a mixture of the global model and one of its own that never leaves"
    )
    paper: ClassVar[str] = "Deng, Kamani, Mahdavi, 2020"

    alpha: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.25
    """The own model's weight in the mixture, or where it begins if it is learned. Paper: 0.25, 0.5 and 0.75. Not
    learned, 1 is local training and 0 DP-FedAvg."""
    learned: bool = False
    """Whether each client learns its alpha. Paper: both."""

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(model=model, motion=self.server.begin(model), threshold=self.threshold.begin(fed, self.clip))
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model, "clip": server.threshold["clip"]})
            server.model, server.motion = self.server.step(server.model, got.mean("update"), server.motion)
            server.threshold = self.threshold.following(server.threshold, got, fed, server.model)

    @sends(lambda self: self.threshold.releases())
    def local(self, message: Message, me: dict[str, Tensor], data: Records) -> Result:
        received = message["global"]
        shared, own = received.clone(), me["own"].clone()
        start = mixture(me["alpha"], own, shared)
        alpha = self.adapted(me["alpha"], own, shared, data) if self.learned else me["alpha"]

        train_shared, train_own = self.descent(data), self.descent(data)
        for _ in range(self.epochs):
            for batch in train_shared.batches():
                slope = data.gradient(mixture(alpha, own, shared), batch)
                shared = train_shared.step(shared, data.gradient(shared, batch), batch)
                own = train_own.step(own, alpha * slope, batch)

        sent = self.threshold.tell(shared - received, shared, message, data)
        return Result(send=sent, keep={"model": mixture(alpha, own, shared), "own": own, "alpha": alpha}, start=start)

    def adapted(self, alpha: Tensor, own: Tensor, shared: Tensor, data: Records) -> Tensor:
        """Return alpha after a gradient step on the mixture's loss: its derivative is <v - w, gradient at the
        mixture>."""
        batch = next(self.descent(data.afresh()).batches())
        slope = data.gradient(mixture(alpha, own, shared), batch)
        return (alpha - self.rate * torch.dot(own - shared, slope)).clamp(0, 1)

    def memory(self, model: Tensor) -> dict[str, Tensor]:
        return {"model": model, "own": model, "alpha": torch.full((1,), self.alpha)}


def mixture(alpha: Tensor, own: Tensor, shared: Tensor) -> Tensor:
    """Return the model that the client predicts with: alpha v + (1 - alpha) w."""
    return alpha * own + (1 - alpha) * shared
