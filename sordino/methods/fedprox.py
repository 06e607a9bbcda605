"""FedProx, client level (Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in Heterogeneous
Networks", MLSys 2020).

Clients train as in FedAvg, with a proximal term that holds them near the model they received, so that clients with
unlike data drift apart less. What changed leaves clipped and noised; with mu = 0 this is DP-FedAvg. Under privacy the
term has a second use: updates are shorter, so that clipping cuts less of them.

Departures: the paper has no privacy, which is added here as in DP-FedAvg. It lets slow clients do less work
(gamma-inexact solutions); here all do the same number of epochs. A client's personal model is what it has trained with
the term; nothing more is done to fit it to the client.

Privacy: the term is computed at the client from what it received and precedes the clip, so that the epsilon of the
clipped and noised update is all there is.

| paper | code |
|---|---|
| w^t | `server.model` |
| mu | `mu` |
| h_k(w; w^t) = F_k(w) + (mu/2) abs(w - w^t)^2 | cross-entropy, and `pull_to(start, mu)` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sordino.learning.network import Records
from sordino.method import Federation, Message, NotNegative, Result
from sordino.methods.bases import Clipped
from sordino.parts.proximal import pull_to
from sordino.privacy.release import sends


@dataclass(frozen=True)
class FedProx(Clipped):
    """Federated averaging with a proximal term."""

    title: ClassVar[str] = "federated averaging with a proximal term that holds clients near the global model"
    paper: ClassVar[str] = "Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020"

    mu: NotNegative = 0.1
    """The weight of the proximal term; 0 is DP-FedAvg. Paper: the best of 0.001, 0.01, 0.1 and 1. From 2 / rate on,
    steps overshoot."""

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(model=model, motion=self.server.begin(model), threshold=self.threshold.begin(fed, self.clip))
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model, "clip": server.threshold["clip"]})
            server.model, server.motion = self.server.step(server.model, got.mean("update"), server.motion)
            server.threshold = self.threshold.following(server.threshold, got, fed, server.model)

    @sends(lambda self: self.threshold.releases())
    def local(self, message: Message, me: dict[str, Tensor], data: Records) -> Result:
        start = model = message["global"]
        descent = self.descent(data)
        for _ in range(self.epochs):
            model = descent.epoch(model, pull=pull_to(start, self.mu))
        sent = self.threshold.tell(model - start, model, message, data)
        return Result(send=sent, keep={"model": model}, start=start)
