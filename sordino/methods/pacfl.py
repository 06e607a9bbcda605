"""PACFL (Vahidian et al., "Efficient Distribution Similarity Identification in Clustered Federated Learning via
Principal Angles between Client Data Subspaces", AAAI 2023), without privacy.

Before training, every client describes its records by the first left singular vectors of each class; clients are
grouped by the smallest principal angle between what these span, with hierarchical clustering cut at an angle. Each
cluster then trains by FedAvg. Nothing is private: epsilon is infinite, and says so. It is AdaDP-CFL without its
thresholds, noise and proximal step, and stands for its "No-Prox" rows.

Departures: angles are true principal angles of the spans (the released code takes the smallest angle of two single
vectors, sign included); linkage is average linkage (the released one averages rows whatever their weight); without an
angle the cut is in the largest gap. A class is described by at most `sample` of its records, which three vectors do not
miss.

| paper | code |
|---|---|
| U_p, p, beta (gamma in AdaDP-CFL) | `describe`, `vectors`, `angle` |
| theta_z | `server.models`, `server.clusters` |
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from sordino.learning.network import Records
from sordino.method import Count, Federation, Message, NotNegative, Result, State
from sordino.methods.bases import Averaging
from sordino.parts import clustering
from sordino.parts.averaging import by_records
from sordino.privacy.release import Bare, sends
from sordino.tasks import Task

CLUSTERING = "The clustering of PACFL"
"""Purpose for which classes are needed."""


@dataclass(frozen=True)
class PACFL(Averaging):
    """Clusters of clients whose records span nearby subspaces."""

    title: ClassVar[str] = "clients are clustered by the angles between their data's subspaces, without privacy"
    paper: ClassVar[str] = "Vahidian et al., AAAI 2023"

    angle: NotNegative | None = None
    """Angle at which clusters are kept apart, in degrees; without one, in the largest gap. Released scripts: 3.5 and
    4.9."""
    vectors: Count = 3
    """Singular vectors of a class: p. Released scripts: 3 and 5."""
    sample: Count = 100
    """Largest number of records of a class from which they are computed. Paper: all."""

    def check_task(self, task: Task) -> None:
        task.class_names(CLUSTERING)

    def run(self, fed: Federation, model: Tensor) -> None:
        clients = fed.schedule.clients
        server = fed.state(
            models=model.unsqueeze(0),
            motion=self.server.begin(model.unsqueeze(0)),
            clusters=torch.zeros(clients, dtype=torch.int64),
            distances=torch.zeros(clients, clients),
        )
        for t in fed.rounds(server):
            if t == 0:
                self._group(fed, server, model)
            who = torch.as_tensor(list(fed.sample()))
            for number in range(len(server.models)):
                members = who[server.clusters[who] == number].tolist()
                if members:
                    got = fed.ask(members, self.local, {"global": server.models[number]})
                    moved = by_records(got.rows("records"), got.rows("update"))
                    server.models, server.motion = self.server.step_row(server.models, number, moved, server.motion)

    @sends(lambda self: {"subspace": Bare("singular vectors of the records leave for the clustering")})
    def describe(self, message: Message, me: dict[str, Tensor], data: Records) -> Result:
        """Describe the client's records for the grouping; nothing is trained."""
        vectors = [
            clustering.first_vectors(data.x, (data.y == label) & (data.weight > 0), self.vectors, self.sample)
            for label in range(message["classes"])
        ]
        return Result(send={"subspace": torch.cat(vectors, dim=1).flatten()})

    @sends(
        lambda self: {
            "update": Bare("PACFL sends each client's update as it is"),
            "records": Bare("PACFL sends each client's number of records"),
        }
    )
    def local(self, message: Message, me: dict[str, Tensor], data: Records) -> Result:
        descent = self.descent(data)
        start = model = message["global"]
        for _ in range(self.epochs):
            model = descent.epoch(model)
        return Result(send={"update": model - start, "records": data.count}, keep={"model": model}, start=start)

    def shared_models(self, state: State, clients: int) -> tuple[Tensor, Tensor]:
        return state.models, state.clusters

    def pictures(self, state: State, folder: Path) -> None:
        clustering.draw(state.distances.numpy(), state.clusters.numpy(), folder / "clusters.png")

    def _group(self, fed: Federation, server: State, model: Tensor) -> None:
        """Find the clusters from what the clients describe."""
        got = fed.ask(fed.everyone(), self.describe, {"classes": len(fed.task.class_names(CLUSTERING))})
        distances = clustering.angles([row.reshape(fed.features, -1) for row in got.rows("subspace")])
        server.distances, server.clusters = clustering.of_all(distances, self.angle, got.who, fed.schedule.clients)
        server.models = model.repeat(int(server.clusters.max()) + 1, 1)
        server.motion = self.server.begin(server.models)
