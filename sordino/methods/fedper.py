"""FedPer (Arivazhagan, Aggarwal, Singh, Choudhary: "Federated Learning with Personalization Layers",
2019 (arXiv 1912.00818)).

The network's last layers are personal: each client keeps its own, and they never leave. All layers are trained
together; only what changed in the body is sent, clipped and noised, and averaged.

Departures: the paper has no privacy, which is added here as in DP-FedAvg; the average is uniform. For
records: `fedper-record`.

Privacy: which entries are shared is public and the same for all clients, whatever their data. Entries that do not leave
need no noise and use nothing of the clipping threshold: the epsilon is that of the shared entries alone. The head of
the server's own model stays as it began, so that the accuracy of the global model means little here.

| paper | code |
|---|---|
| W_B, W_P | the entries under `shared`, the others |
| K_P, the number of personalization layers | `personal_layers` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sordino.learning.network import Records
from sordino.method import Federation, Message, Result
from sordino.methods.bases import Clipped
from sordino.parts.masks import PersonalLayers, body
from sordino.privacy.release import sends


@dataclass(frozen=True)
class FedPer(Clipped):
    """A shared body, and personal last layers."""

    title: ClassVar[str] = "the last layers are personal and never leave; the others are shared"
    paper: ClassVar[str] = "Arivazhagan, Aggarwal, Singh, Choudhary, 2019"

    personal_layers: PersonalLayers = 1
    """Number of the last layers that are personal; of a network with one layer the bias. Paper: 1 to 4 blocks of a
    ResNet; ACDP-pFSD's FedPer: 2. 0 is DP-FedAvg."""

    def run(self, fed: Federation, model: Tensor) -> None:
        shared = body(fed.layout, self.personal_layers)
        server = fed.state(model=model, motion=self.server.begin(model), threshold=self.threshold.begin(fed, self.clip))
        for _ in fed.rounds(server):
            message = {"global": server.model, "clip": server.threshold["clip"], "shared": shared}
            got = fed.ask(fed.sample(), self.local, message)
            server.model, server.motion = self.server.step(server.model, got.mean("update"), server.motion)
            server.threshold = self.threshold.following(server.threshold, got, fed, server.model)

    @sends(lambda self: self.threshold.releases(at="shared"))
    def local(self, message: Message, me: dict[str, Tensor], data: Records) -> Result:
        shared = message["shared"]
        start = model = torch.where(shared > 0, message["global"], me["model"])
        descent = self.descent(data)
        for _ in range(self.epochs):
            model = descent.epoch(model)
        sent = self.threshold.tell((model - start) * shared, model, message, data)
        return Result(send=sent, keep={"model": model}, start=start)
