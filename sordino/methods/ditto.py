"""Ditto, client level (Li, Hu, Beirami, Smith: "Ditto: Fair and Robust Federated Learning Through Personalization",
ICML 2021).

Two models at each client. The global one is trained as in DP-FedAvg. Beside it each client trains a personal model of
its own on its records, held near the global model that it received; it never leaves. With lambda = 0 the personal model
is trained alone, and with a large lambda it stays near the global one.

Departures: the paper has no privacy, which is added here as in DP-FedAvg; the average is uniform. Both models see the
same batches.

Privacy: the personal model stays at the client and enters no message, so that only the global model's update is paid
for, and the global model is the very one of DP-FedAvg.

| paper | code |
|---|---|
| w^t | `server.model` |
| v_k | `me["model"]` |
| lambda | `strength` |
| h_k(v; w^t) = F_k(v) + (lambda/2) abs(v - w^t)^2 | cross-entropy, and `pull_to(received, strength)` |
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
class Ditto(Clipped):
    """A global model by DP-FedAvg, and a personal one held near it."""

    title: ClassVar[str] = "a personal model that never leaves is held near a global one trained by DP-FedAvg"
    paper: ClassVar[str] = "Li, Hu, Beirami, Smith, ICML 2021"

    strength: NotNegative = 1.0
    """Strength with which the personal model is held near the global one: lambda; 0 is local training. Paper: the best
    of values from 0.01 to 2. From 2 / rate on, steps overshoot."""

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(model=model, motion=self.server.begin(model), threshold=self.threshold.begin(fed, self.clip))
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model, "clip": server.threshold["clip"]})
            server.model, server.motion = self.server.step(server.model, got.mean("update"), server.motion)
            server.threshold = self.threshold.following(server.threshold, got, fed, server.model)

    @sends(lambda self: self.threshold.releases())
    def local(self, message: Message, me: dict[str, Tensor], data: Records) -> Result:
        received = message["global"]
        model, personal = received, me["model"]
        train, train_personal = self.descent(data), self.descent(data.afresh())
        for _ in range(self.epochs):
            model = train.epoch(model)
            personal = train_personal.epoch(personal, pull=pull_to(received, self.strength))
        sent = self.threshold.tell(model - received, model, message, data)
        return Result(send=sent, keep={"model": personal}, start=me["model"])
