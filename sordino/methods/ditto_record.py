"""Ditto, record level (Li, Hu, Beirami, Smith: "Ditto: Fair and Robust Federated Learning Through Personalization",
ICML 2021).

Two models at each client, both trained with DP-SGD: a global one, which is sent and averaged, and a personal one, held
near the global model that the client received. The pull looks at no record and costs nothing.

Privacy: a step sees its client's records through noisy gradients alone, and only so many of them are paid for. The two
models therefore share a round's steps: `personal_share` of them train the personal model, the others the global one.
Everything is charged, also what trains the personal model, although that stays at the client: it may thus be published
under the same epsilon.

Departures: those of DP-FedAvg at record level (Poisson batches, uniform average, public sizes), and the shared steps:
the paper trains both models on all records. Where a round's steps cannot be split evenly, the shares come right over
the rounds.

| paper | code |
|---|---|
| w^t | `server.model` |
| v_k | `me["model"]` |
| lambda | `strength` |
| (lambda/2) abs(v - w^t)^2 | `pull_to(received, strength)` |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from sordino.federation.message import Each
from sordino.method import Federation, Message, NotNegative, Result
from sordino.methods.bases import RecordClipped
from sordino.parts.proximal import pull_to
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.release import Gradients, sends


@dataclass(frozen=True)
class DittoRecord(RecordClipped):
    """A global model, and a personal one held near it, both trained with DP-SGD."""

    title: ClassVar[str] = "a personal model is held near a global one, both trained with DP-SGD, record level"
    paper: ClassVar[str] = "Li, Hu, Beirami, Smith, ICML 2021"

    strength: NotNegative = 1.0
    """Strength with which the personal model is held near the global one: lambda; 0 is local training. Paper: the best
    of values from 0.01 to 2. From 2 / rate on, steps overshoot."""
    personal_share: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.5
    """The share of the noisy gradients that trains the personal model; 0 leaves DP-FedAvg, 1 local training."""

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(model=model, motion=self.server.begin(model), threshold=self.clipping.begin(fed, self.clip))
        for _ in fed.rounds(server):
            message = {"global": server.model, "clip": Each(server.threshold["clips"])}
            got = fed.ask(fed.sample(), self.local, message)
            server.model, server.motion = self.server.step(server.model, got.mean("update"), server.motion)
            server.threshold = self.clipping.following(server.threshold, got, fed)

    @sends(lambda self: {"update": Gradients(clip="clip"), **self.clipping.releases(bare=False)})
    def local(self, message: Message, me: dict[str, Tensor], data: PrivateRecords) -> Result:
        received = message["global"]
        steps = self.personal_steps(data.steps, int(me["participations"]))
        model = self.trained(received, data, steps=data.steps - steps)
        personal = self.trained(me["model"], data, pull_to(received, self.strength), steps)
        sent = {"update": model - received, **self.clipping.tell(received, model, data, bare=False)}
        return Result(send=sent, keep={"model": personal}, start=me["model"])

    def personal_steps(self, steps: int, participations: int) -> int:
        """Return the number of a round's steps that train the personal model of a client, which has taken part
        `participations` times before."""
        before, now = (math.ceil(self.personal_share * steps * turns) for turns in (participations, participations + 1))
        return now - before
