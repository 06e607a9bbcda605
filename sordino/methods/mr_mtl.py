"""MR-MTL, client level: mean-regularized multi-task learning (Liu, Hu, Wu, Smith: "On Privacy and Personalization in
Cross-Silo Federated Learning", NeurIPS 2022).

Every client keeps a model of its own and minimises its loss plus (lambda/2) |w_k - mean|^2; the server keeps the mean.
lambda leads from local training (0) to federated averaging (very large), and the best lies between: enough to learn
from others, and not so much as to take over all of the noise.

Departures: the paper protects records, with DP-SGD at each silo (`mr-mtl-record`). Here each client's way from the
mean, w_k - mean, leaves clipped and noised as in DP-FedAvg. The penalty acts by default once in a round, by its
proximal step, before the client trains: that is stable for every lambda and truly ends at DP-FedAvg. Its gradient in
each local step, as published (`penalty="step"`), does not: a large lambda pins clients to the mean, and from 2 / rate
on it diverges.

Privacy: a client's own model stays there; what leaves of it is bounded around the mean, which is public.

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

from sordino.learning.network import Records
from sordino.method import Federation, Message, NotNegative, Result
from sordino.methods.bases import Clipped
from sordino.parts.proximal import When, regularize
from sordino.privacy.release import sends


@dataclass(frozen=True)
class MRMTL(Clipped):
    """Models of one's own, drawn to their noisy mean."""

    title: ClassVar[str] = "every client's own model is drawn to the noisy mean of all"
    paper: ClassVar[str] = "Liu, Hu, Wu, Smith, NeurIPS 2022"

    strength: NotNegative = 3.0
    """Strength with which models are drawn to the mean: lambda; 0 is local training, a very large one DP-FedAvg. Paper:
    tuned for each budget."""
    penalty: When = "round"
    """Whether the penalty acts once before each round's training, or by its gradient in each step (paper)."""

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(model=model, motion=self.server.begin(model), threshold=self.threshold.begin(fed, self.clip))
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model, "clip": server.threshold["clip"]})
            server.model, server.motion = self.server.step(server.model, got.mean("update"), server.motion)
            server.threshold = self.threshold.following(server.threshold, got, fed, server.model)

    @sends(lambda self: self.threshold.releases())
    def local(self, message: Message, me: dict[str, Tensor], data: Records) -> Result:
        mean = message["global"]
        start, pull = regularize(me["model"], mean, self.strength, self.penalty)
        descent, model = self.descent(data), start
        for _ in range(self.epochs):
            model = descent.epoch(model, pull=pull)
        sent = self.threshold.tell(model - mean, model, message, data)
        return Result(send=sent, keep={"model": model}, start=start)
