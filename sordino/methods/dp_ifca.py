"""IFCA, client level: clustered averaging (Ghosh et al., "An Efficient Framework for Clustered Federated Learning",
NeurIPS 2020) of clipped and noised updates (McMahan et al., "Learning Differentially Private Recurrent Language
Models", ICLR 2018).

Every client takes the model of the least loss on its own training records and sends one vector with a part for each of
the k models: its clipped update where it chose, zeros elsewhere. The noise covers all parts, so nobody learns from the
message which model was chosen, and the vector costs what a single clipped update costs: k times as much noise energy
is the price of k models.

Departures: as in option I of the paper's algorithm each model moves by the sum over those who chose it divided by a
public number, here the cohort's k-th part, because how many chose a model is private; a model that fewer choose moves
less. No one but the client knows its choice, so the server has no model for any one client: the accuracy at round start
is that of the chosen one. Averages are uniform; models start as in `ifca`.

| paper | code |
|---|---|
| k | `clusters` |
| theta_j | `server.models` |
| j-hat | `chosen` |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from sordino.learning.network import Records
from sordino.method import Count, Federation, Message, Result
from sordino.methods.bases import Clipped
from sordino.parts.clustering import check_count, least_loss, starts
from sordino.parts.thresholds import Fixed, Median, Quantile, Threshold
from sordino.privacy.release import Releases, Update, sends
from sordino.util.selectable import Named

Whole = Annotated[Threshold, Named({"fixed": Fixed, "quantile": Quantile, "median": Median})]


@dataclass(frozen=True)
class DPIFCA(Clipped):
    """Every client trains the model that suits it best, and nobody learns which."""

    title: ClassVar[str] = "IFCA with clipped and noised updates; which model a client chose never leaves"
    paper: ClassVar[str] = "Ghosh et al., NeurIPS 2020; clipped updates: McMahan et al., ICLR 2018"

    clusters: Count = 2
    """Number of models: k. Paper: 2 to 4, as many as there are groups."""
    clipping: Whole = Fixed()
    """Rule for the threshold: `fixed`, `quantile` or `median`, each with its own settings."""

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(
            models=lambda: starts(model, self.clusters, fed.layout, fed.random("starts")),
            motion=self.server.begin(model.repeat(self.clusters, 1)),
            threshold=self.threshold.begin(fed, self.clip),
        )
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"models": server.models, "clip": server.threshold["clip"]})
            changes = self.clusters * got.mean("update").reshape(self.clusters, -1)
            server.models, server.motion = self.server.step(server.models, changes, server.motion)
            server.threshold = self.threshold.following(server.threshold, got, fed, server.models[0])

    @sends(lambda self: self._releases())
    def local(self, message: Message, me: dict[str, Tensor], data: Records) -> Result:
        descent = self.descent(data)
        start, chosen = least_loss(message["models"], data)
        model = start
        for _ in range(self.epochs):
            model = descent.epoch(model)
        place = torch.arange(self.clusters, device=model.device) == chosen
        parts = torch.where(place.unsqueeze(1), model - start, torch.zeros_like(model))
        sent = self.threshold.tell(parts.flatten(), model, message, data)
        return Result(send=sent, keep={"model": model}, start=start)

    def settled(self, clients: int) -> Clipped:
        check_count(self.clusters, clients)
        return super().settled(clients)

    def _releases(self) -> Releases:
        releases = self.threshold.releases()
        update = releases["update"]
        assert isinstance(update, Update)
        return {**releases, "update": replace(update, times=self.clusters)}
