"""FedRep (Collins, Hassani, Mokhtari, Shakkottai: "Exploiting Shared Representations for Personalized Federated
Learning", ICML 2021).

As in FedPer each client keeps its own last layers, and the body is shared. They are trained one after the other: first
the head alone, to its best on the received body, then the body alone under that head. What changed in the body is
sent, clipped and noised, and averaged.

Departures: the paper has no privacy, which is added here as in DP-FedAvg; the average is uniform. There is no version
for records: there each noisy gradient is paid for whole, and FedRep's order would throw its body away in the head's
steps and its head away in the body's. FedPer's version uses both (`fedper-record`).

Privacy: which entries are shared is public and the same for all clients, whatever their data. The head's epochs cost
nothing, since the head never leaves; the epsilon is that of the shared entries alone. The head of the server's own
model stays as it began, so that the accuracy of the global model means little here.

| paper | code |
|---|---|
| phi, h_i | the entries under `shared`, the others |
| tau, the head's local updates | `head_epochs` |
| the representation's local updates | `epochs` |
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
from sordino.parts.masks import PersonalLayers, body
from sordino.privacy.release import sends


@dataclass(frozen=True)
class FedRep(Clipped):
    """A shared body, and personal last layers that are trained before it."""

    title: ClassVar[str] = "the last layers are personal and trained first; then the shared ones"
    paper: ClassVar[str] = "Collins, Hassani, Mokhtari, Shakkottai, ICML 2021"

    personal_layers: PersonalLayers = 1
    """Number of the last layers that are personal; of a network with one layer the bias. Paper: 1. 0 is DP-FedAvg."""
    head_epochs: Annotated[int, Field(ge=0, le=100_000)] = 5
    """Passes in which the personal layers alone are trained; `epochs` then train the body alone. Paper: 10 to 15, and 1
    to 5 for the body."""

    def passes(self) -> int:
        return self.epochs + self.head_epochs

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
        split = self.personal_layers > 0
        train_head, train_body = self.descent(data), self.descent(data)
        for _ in range(self.head_epochs if split else 0):
            model = train_head.epoch(model, mask=1 - shared)
        for _ in range(self.epochs):
            model = train_body.epoch(model, mask=shared if split else None)
        sent = self.threshold.tell((model - start) * shared, model, message, data)
        return Result(send=sent, keep={"model": model}, start=start)
