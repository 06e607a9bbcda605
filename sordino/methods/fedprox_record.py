"""FedProx, record level (Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in Heterogeneous
Networks", MLSys 2020).

DP-SGD at each client, with a proximal term that holds it near the model it received; plain averaging at the server. The
term looks at no record, so that its gradient is added after clipping and noise and costs nothing. It also draws the
noise of earlier steps back. With mu = 0 this is DP-FedAvg at record level.

Departures: those of DP-FedAvg at record level (Poisson batches, uniform average, public sizes); all clients do the same
number of epochs.

| paper | code |
|---|---|
| w^t | `server.model` |
| mu | `mu` |
| (mu/2) abs(w - w^t)^2 | `pull_to(start, mu)` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sordino.federation.message import Each
from sordino.method import Federation, Message, NotNegative, Result
from sordino.methods.bases import RecordClipped
from sordino.parts.proximal import pull_to
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.release import Gradients, sends


@dataclass(frozen=True)
class FedProxRecord(RecordClipped):
    """Federated averaging of models trained with DP-SGD and a proximal term."""

    title: ClassVar[str] = "DP-SGD with a proximal term that holds clients near the global model, record level"
    paper: ClassVar[str] = "Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020"

    mu: NotNegative = 0.1
    """The weight of the proximal term; 0 is DP-FedAvg. Paper: the best of 0.001, 0.01, 0.1 and 1. From 2 / rate on,
    steps overshoot."""

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(model=model, motion=self.server.begin(model), threshold=self.clipping.begin(fed, self.clip))
        for _ in fed.rounds(server):
            message = {"global": server.model, "clip": Each(server.threshold["clips"])}
            got = fed.ask(fed.sample(), self.local, message)
            server.model, server.motion = self.server.step(server.model, got.mean("update"), server.motion)
            server.threshold = self.clipping.following(server.threshold, got, fed)

    @sends(lambda self: {"update": Gradients(clip="clip"), **self.clipping.releases(bare=False)})
    def local(self, message: Message, me: dict[str, Tensor], data: PrivateRecords) -> Result:
        start = message["global"]
        model = self.trained(start, data, pull_to(start, self.mu))
        sent = {"update": model - start, **self.clipping.tell(start, model, data, bare=False)}
        return Result(send=sent, keep={"model": model}, start=start)
