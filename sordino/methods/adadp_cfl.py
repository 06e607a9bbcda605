"""AdaDP-CFL (clustered federated learning with adaptive differential privacy, a fork of PACFL).

Before training, clients are grouped by how their data lie: subspaces of their records, principal angles between them,
hierarchical clustering at an angle. Each cluster has a model, averaged over its members; after each round a proximal
step lets every cluster's model learn from the similar ones. Clients train with DP-SGD, each with its own clipping
threshold, chosen by a DDPG agent from how its loss and accuracy develop.

`sound`: for the grouping each client releases the noisy second-moment matrix of its records after a public random
projection; the agent reads noised means over validation records that are disjoint from the training records; both are
charged. Thresholds follow from what was paid for.

`paper`: singular vectors, losses and accuracies leave as they are, so epsilon is infinite; what the noisy gradients
alone would cost, if thresholds were public, is printed beside it. The published noise, calibrated to a sensitivity in
parameter space but added to a sum of gradients, is far too small for its epsilon.

Departures: subspaces are orthonormal and angles true principal angles (the released code takes the smallest angle of
single vectors, sign included); one agent is shared by all clients, which take part about ten times each; the critic's
target uses the target policy's next action (the released code uses the last one); the proximal step's first
coefficient is 1 (1/(2 eta) = 50 would pin the model). Averages are uniform, since sizes are private.

| paper | code |
|---|---|
| U_p, gamma | `describe`, `angle` |
| G_s, lambda_sj, L (Eq. 4.4 to 4.6) | `server.models`, `parts/clustering.py: proximal`, `proximity` |
| C_i^t, (loss, acc), r | `server.threshold`: `parts/record_thresholds.py` |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from sordino.learning.descent import InPlace
from sordino.message import Each
from sordino.method import Count, Federation, Message, NotNegative, Result, Share, State, Variant
from sordino.methods.bases import RecordLevel
from sordino.named import Named
from sordino.parts import clustering
from sordino.parts.record_thresholds import Fixed, Learned, Percentile, RecordThreshold
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.release import Bare, Follows, Gradients, Matrix, Releases, sends

Clipping = Annotated[RecordThreshold, Named({"ddpg": Learned, "fixed": Fixed, "percentile": Percentile})]


@dataclass(frozen=True)
class AdaDPCFL(RecordLevel):
    """Clusters of clients, and thresholds chosen by DDPG."""

    title: ClassVar[str] = "clients are clustered by their data's subspaces; an agent chooses each client's threshold"
    paper: ClassVar[str] = "AdaDP-CFL, clustered federated learning with adaptive differential privacy"
    caveats: ClassVar[dict[Variant, str]] = {
        "paper": "singular vectors, losses and accuracies leave as they are, and thresholds follow from them",
    }

    clipping: Clipping = Learned()
    """How thresholds are chosen: `ddpg` (the paper's), `fixed`, or `percentile` of a client's noisy gradient norms
    over its last participations (DP-AGR)."""
    angle: NotNegative | None = None
    """Where clusters are kept apart: gamma. An angle in degrees (`paper`; without one, in the largest gap), or a
    distance in units of what noise and the draw of records explain (`sound`; without one, just above 1)."""
    vectors: Count = 3
    """Singular vectors of a subspace: p. PACFL's script: 3."""
    dimensions: Count = 8
    """To how many dimensions records are projected before their second moments are released."""
    cluster_share: Share = 0.2
    """The share of epsilon that the grouping costs. On Fashion-MNIST groups are found from an epsilon of about 0.5 with
    600 records a client, and of 1 with 300."""
    proximity: NotNegative = 0.1
    """How strongly clusters learn from each other: L. 0: not at all (PACFL). Paper: 1, 0.1, 0.01."""

    def run(self, fed: Federation, model: Tensor) -> None:
        clients = fed.schedule.clients
        server = fed.state(
            models=model.unsqueeze(0),
            clusters=torch.zeros(clients, dtype=torch.int64),
            distances=torch.zeros(clients, clients),
            threshold=self.clipping.begin(fed, self.clip),
        )
        for t in fed.rounds(server):
            if t == 0:
                self._group(fed, server, model)
            who = torch.as_tensor(list(fed.sample()))
            for cluster in range(len(server.models)):
                members = who[server.clusters[who] == cluster].tolist()
                if members:
                    message = {"global": server.models[cluster], "clip": Each(server.threshold["clips"])}
                    got = fed.ask(members, self.local, message)
                    change = got.mean("update").unsqueeze(0)
                    server.models = server.models.index_add(0, torch.tensor([cluster]), change)
                    server.threshold = self.clipping.following(server.threshold, members, got, fed)
            if self.proximity > 0:
                server.models = clustering.proximal(server.models, self.proximity)  # Eq. 4.4 to 4.6

    @sends(lambda self: self._description())
    def describe(self, message: Message, me: dict[str, Tensor], data: PrivateRecords) -> Result:
        """What the grouping is made of; nothing is trained."""
        if self.variant == "paper":
            x, y = data.raw()
            return Result(send={"subspace": self._subspace(x, y, message["width"])})
        return Result(send={"moments": data.projected(message["directions"])})

    @sends(lambda self: self._trained())
    def local(self, message: Message, me: dict[str, Tensor], data: PrivateRecords) -> Result:
        start = message["global"]
        model, optimizer = start.clone(), InPlace(self.optimizer, self.rate, self.momentum)
        norms = []
        for _ in range(data.steps):
            gradient = data.gradient(model)
            norms.append(without_noise(gradient, data))
            model = optimizer.step(model, gradient)
        sent: dict[str, Any] = {"update": model - start, "norm": torch.stack(norms).mean()}
        sent |= self.clipping.tell(model, data, bare=self.variant == "paper")
        return Result(send=sent, keep={"model": model}, start=start)

    def shared_models(self, state: State, clients: int) -> tuple[Tensor, Tensor]:
        return state.models, state.clusters

    def pictures(self, state: State, folder: Path) -> None:
        unit = "angle in degrees" if self.variant == "paper" else "distance"
        clustering.draw(state.distances.numpy(), state.clusters.numpy(), folder / "clusters.png", unit)

    def published_multiplier(self, epsilon: float, delta: float, rounds: int, records: int) -> float:
        """s / C with the released s = (2 eta C / B) sqrt(2 ln(1.25/delta)) T / epsilon."""
        return 2 * self.rate / self.batch * math.sqrt(2 * math.log(1.25 / delta)) * rounds / epsilon

    def _description(self) -> Releases:
        if self.variant == "paper":
            return {"subspace": Bare("singular vectors of the records leave for the clustering")}
        return {"moments": Matrix(share=self.cluster_share)}

    def _trained(self) -> Releases:
        made = {"update": Gradients(clip="clip"), "norm": Follows("update")}
        return {**made, **self.clipping.releases(bare=self.variant == "paper")}

    def _group(self, fed: Federation, server: State, model: Tensor) -> None:
        """Find the clusters from what the clients describe."""
        everyone, features, cut = fed.everyone(), fed.features, self.angle
        if self.variant == "paper":
            width = min(features, self.vectors * fed.classes)
            got = fed.ask(everyone, self.describe, {"width": width})
            distances = clustering.angles([row.reshape(features, -1) for row in got.rows("subspace")])
        else:
            directions = clustering.directions(features, self.dimensions, fed.random("directions"))
            width = directions.shape[1]
            got = fed.ask(everyone, self.describe, {"directions": directions})
            moments = got.rows("moments").reshape(len(everyone), width, width)
            noise = torch.as_tensor(fed.record_plan.matrix_multipliers)
            distances = clustering.moment_distances(moments, noise)
            cut = clustering.moment_threshold(width) if cut is None else cut
        labels = clustering.clusters(distances, cut)
        server.distances = torch.as_tensor(distances, dtype=torch.float32)
        server.clusters = torch.as_tensor(labels, dtype=torch.int64)
        server.models = model.repeat(int(server.clusters.max()) + 1, 1)

    def _subspace(self, x: Tensor, y: Tensor, width: int) -> Tensor:
        """A basis of the first singular vectors of all classes, filled up with zeros to so many columns."""
        basis = clustering.class_subspace(x.flatten(1), y, self.vectors)[:, :width].float()
        return torch.cat([basis, basis.new_zeros(len(basis), width - basis.shape[1])], dim=1)


def without_noise(gradient: Tensor, data: PrivateRecords) -> Tensor:
    """An estimate of the gradient's norm from the noisy gradient alone: its energy less that of the noise."""
    energy = gradient.square().sum() - len(gradient) * data.deviation**2
    return energy.clamp(min=(0.05 * data.clip) ** 2).sqrt()
