"""FedPer, record level (Arivazhagan, Aggarwal, Singh, Choudhary: "Federated Learning with Personalization Layers",
2019 (arXiv 1912.00818)).

DP-SGD at each client, all layers together. The network's last layers are personal: each client keeps its own, and only
what changed in the others is sent and averaged.

Privacy: the personal layers are trained by the same noisy gradients as the shared ones, so that they cost nothing more,
and a client's whole model may be published under the same epsilon. Unlike where whole clients are protected, they carry
noise: a record's gradient is clipped with its personal entries, and the noise covers them. Which entries are shared is
public and the same for all clients, whatever their data.

Departures: those of DP-FedAvg at record level (Poisson batches, uniform average, public sizes). The head of the
server's own model stays as it began, so that the accuracy of the global model means little here.

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

from sordino.federation.message import Each
from sordino.method import Federation, Message, Result
from sordino.methods.bases import RecordClipped
from sordino.parts.masks import PersonalLayers, body
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.release import Gradients, sends


@dataclass(frozen=True)
class FedPerRecord(RecordClipped):
    """A shared body and personal last layers, trained together with DP-SGD."""

    title: ClassVar[str] = "the last layers are personal, the others are shared; all trained with DP-SGD, record level"
    paper: ClassVar[str] = "Arivazhagan, Aggarwal, Singh, Choudhary, 2019"

    personal_layers: PersonalLayers = 1
    """Number of the last layers that are personal; of a network with one layer the bias. Paper: 1 to 4 blocks of a
    ResNet. 0 is DP-FedAvg."""

    def run(self, fed: Federation, model: Tensor) -> None:
        shared = body(fed.layout, self.personal_layers)
        server = fed.state(model=model, motion=self.server.begin(model), threshold=self.clipping.begin(fed, self.clip))
        for _ in fed.rounds(server):
            message = {"global": server.model, "clip": Each(server.threshold["clips"]), "shared": shared}
            got = fed.ask(fed.sample(), self.local, message)
            server.model, server.motion = self.server.step(server.model, got.mean("update"), server.motion)
            server.threshold = self.clipping.following(server.threshold, got, fed)

    @sends(lambda self: {"update": Gradients(clip="clip"), **self.clipping.releases(bare=False)})
    def local(self, message: Message, me: dict[str, Tensor], data: PrivateRecords) -> Result:
        shared = message["shared"]
        start = torch.where(shared > 0, message["global"], me["model"])
        model = self.trained(start, data)
        sent = {"update": (model - start) * shared, **self.clipping.tell(start, model, data, bare=False)}
        return Result(send=sent, keep={"model": model}, start=start)
