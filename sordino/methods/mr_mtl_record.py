"""MR-MTL, record level: mean-regularized multi-task learning (Liu, Hu, Wu, Smith: "On Privacy and Personalization in
Cross-Silo Federated Learning", NeurIPS 2022).

Every silo keeps a model of its own and minimises its loss plus (lambda/2) |w_k - mean|^2 with DP-SGD; the server
averages the private iterates. lambda leads from local training (0) to federated averaging (very large). The mean has
less noise than any of the models, so that being drawn to it also takes noise away: of all that the authors tried it is
the strongest under privacy of silos' records.

Departures: those of DP-FedAvg at record level (Poisson batches, uniform average, public sizes). The penalty acts by
default once in a round, by its proximal step, before the client trains: that is stable for every lambda and truly ends
at DP-FedAvg. Its gradient in each local step, as published (`penalty="step"`), does not: a large lambda pins clients to
the mean, and from 2 / rate on it diverges.

Privacy: a client's model is made of noisy gradients of this and earlier rounds, all of which were paid for; the penalty
looks at no record.

| paper | code |
|---|---|
| w_k | `me["model"]` |
| w bar | `server.model` |
| lambda | `strength` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sordino.federation.message import Each
from sordino.method import Federation, Message, NotNegative, Result
from sordino.methods.bases import RecordClipped
from sordino.parts.proximal import When, regularize
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.release import Gradients, sends


@dataclass(frozen=True)
class MRMTLRecord(RecordClipped):
    """Models of one's own, trained with DP-SGD and drawn to their mean."""

    title: ClassVar[str] = "every client's own model, trained with DP-SGD, is drawn to the mean of all, record level"
    paper: ClassVar[str] = "Liu, Hu, Wu, Smith, NeurIPS 2022"

    strength: NotNegative = 3.0
    """Strength with which models are drawn to the mean: lambda; 0 is local training, a very large one DP-FedAvg. Paper:
    tuned for each budget."""
    penalty: When = "round"
    """Whether the penalty acts once before each round's training, or by its gradient in each step (paper)."""

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(model=model, motion=self.server.begin(model), threshold=self.clipping.begin(fed, self.clip))
        for _ in fed.rounds(server):
            message = {"global": server.model, "clip": Each(server.threshold["clips"])}
            got = fed.ask(fed.sample(), self.local, message)
            server.model, server.motion = self.server.step(server.model, got.mean("update"), server.motion)
            server.threshold = self.clipping.following(server.threshold, got, fed)

    @sends(lambda self: {"update": Gradients(clip="clip"), **self.clipping.releases(bare=False)})
    def local(self, message: Message, me: dict[str, Tensor], data: PrivateRecords) -> Result:
        mean = message["global"]
        start, pull = regularize(me["model"], mean, self.strength, self.penalty)
        model = self.trained(start, data, pull)
        sent = {"update": model - mean, **self.clipping.tell(start, model, data, bare=False)}
        return Result(send=sent, keep={"model": model}, start=start)
