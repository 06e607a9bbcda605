"""pFedSD (Jin, Bai, Yao, Ding, Gu, Yu, Luo: "Personalized Edge Intelligence via Federated Self-Knowledge Distillation",
IEEE Transactions on Parallel and Distributed Systems 2023).

Each client starts from the global model and learns from its records and from its own model of the last time that it
took part, its teacher, so that what it knew of its own data is not forgotten. What it ends with is its personal model
and its next teacher. What changed leaves clipped and noised.

Departures: the paper has no privacy, which is added here as in DP-FedAvg; the average is uniform; the teacher speaks
without dropout.

Privacy: the teacher stays at the client and precedes the clip, so that the epsilon of the clipped and noised update is
all there is.

| paper | code |
|---|---|
| the teacher, the student | `me["model"]`, `model` |
| lambda, tau | `weight`, `temperature` |
| L_CE + lambda tau^2 L_KL | `_loss`, with `distillation.classic_loss` = KL(teacher, student) |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sordino.learning.network import Batch, Loss, Records
from sordino.method import Federation, Message, NotNegative, Positive, Result
from sordino.methods.bases import Clipped
from sordino.parts.distillation import classic_loss
from sordino.privacy.release import sends
from sordino.tasks import Task


@dataclass(frozen=True)
class PFedSD(Clipped):
    """Distillation from the own last model."""

    title: ClassVar[str] = "clients start from the global model and distil from their own last one"
    paper: ClassVar[str] = "Jin, Bai, Yao, Ding, Gu, Yu, Luo, IEEE TPDS 2023"

    weight: NotNegative = 1.0
    """The weight of the distillation beside the cross-entropy: lambda. Paper: 1. 0 is DP-FedAvg."""
    temperature: Positive = 1.0
    """Temperature of the softened probabilities. Paper: 3; released code: 1."""

    def check_task(self, task: Task) -> None:
        if self.weight > 0:
            task.class_names("Distillation")

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(model=model, motion=self.server.begin(model), threshold=self.threshold.begin(fed, self.clip))
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model, "clip": server.threshold["clip"]})
            server.model, server.motion = self.server.step(server.model, got.mean("update"), server.motion)
            server.threshold = self.threshold.following(server.threshold, got, fed, server.model)

    @sends(lambda self: self.threshold.releases())
    def local(self, message: Message, me: dict[str, Tensor], data: Records) -> Result:
        start = model = message["global"]
        descent, loss = self.descent(data), self._loss(me, data)
        for _ in range(self.epochs):
            model = descent.epoch(model, loss)
        sent = self.threshold.tell(model - start, model, message, data)
        return Result(send=sent, keep={"model": model}, start=start)

    def _loss(self, me: dict[str, Tensor], data: Records) -> Loss | None:
        """Return cross-entropy plus distillation; cross-entropy alone the first time, without a teacher."""
        if self.weight == 0:
            return None
        teacher = data.logits(me["model"])
        weight = torch.where(me["participations"] > 0, self.weight * self.temperature**2, 0.0)

        def loss(logits: Tensor, batch: Batch) -> Tensor:
            return data.losses(logits, batch.y) + weight * classic_loss(logits, teacher[batch.index], self.temperature)

        return loss
