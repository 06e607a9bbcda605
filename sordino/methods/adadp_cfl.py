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
| C_i^t, (loss, acc), r | `server.clips`, `server.seen`, reward in `_choose` |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from sordino.descent import InPlace
from sordino.method import Count, Federation, Message, NotNegative, Positive, Replies, Result, Share, State, Variant
from sordino.parts import clustering
from sordino.parts.ddpg import Ddpg, threshold
from sordino.parts.ppo import observation
from sordino.parts.record_level import RecordLevel
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.release import Average, Bare, Gradients, Matrix, Releases, sends

PATIENCE = 5
"""Over how many participations the percentile rule looks back."""


@dataclass(frozen=True)
class AdaDPCFL(RecordLevel):
    """Clusters of clients, and thresholds chosen by DDPG."""

    title: ClassVar[str] = "clients are clustered by their data's subspaces; an agent chooses each client's threshold"
    paper: ClassVar[str] = "AdaDP-CFL, clustered federated learning with adaptive differential privacy"
    caveats: ClassVar[dict[Variant, str]] = {
        "paper": "singular vectors, losses and accuracies leave as they are, and thresholds follow from them",
    }

    clipping: Literal["ddpg", "fixed", "percentile"] = "ddpg"
    """How thresholds are chosen: `ddpg` (the paper's), `fixed`, or `percentile` of a client's noisy gradient norms
    over its last participations (DP-AGR)."""
    clip_low: Positive = 0.1
    """The smallest threshold that the agent may choose."""
    clip_high: Positive = 10.0
    """The largest."""
    agents: Literal["shared", "own"] = "shared"
    """One agent for all clients, or one for each."""
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
    validation: Share = 0.2
    """The share of a client's records set aside for the agent's metrics."""
    loss_bound: Positive = 4.0
    """Losses are held to [0, this] before they are averaged."""

    def run(self, fed: Federation, model: Tensor) -> None:
        clients = fed.budget.clients
        server = fed.state(
            models=model.unsqueeze(0),
            clusters=torch.zeros(clients, dtype=torch.int64),
            distances=torch.zeros(clients, clients),
            clips=torch.full((clients,), self.clip),
            seen=torch.full((clients, 2), torch.nan),
            actions=torch.zeros(clients),
            norms=torch.full((clients, PATIENCE), torch.nan),
            agents={},
        )
        for t in fed.rounds(server):
            if t == 0:
                self._group(fed, server, model)
            who = torch.as_tensor(list(fed.sample()))
            for cluster in range(len(server.models)):
                members = who[server.clusters[who] == cluster].tolist()
                if members:
                    message = {"global": server.models[cluster], "clips": server.clips}
                    got = fed.ask(members, self.local, message)
                    change = got.mean("update")[:-1]
                    server.models = server.models.index_add(0, torch.tensor([cluster]), change.unsqueeze(0))
                    self._choose(fed, server, members, got)
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
            norms.append(self._without_noise(gradient, data))
            model = optimizer.step(model, gradient)
        # The norm is a function of the noisy gradients, so it leaves with what else was made of them.
        sent = {"update": torch.cat([model - start, torch.stack(norms).mean().reshape(1)])}
        if self.clipping == "ddpg":
            losses, right = data.judged(model)
            bare = self.variant == "paper"
            sent |= {"loss": losses.mean() if bare else losses, "accuracy": right.mean() if bare else right}
        return Result(send=sent, keep={"model": model}, start=start)

    def shared_models(self, state: State, clients: int) -> tuple[Tensor, Tensor]:
        return state.models, state.clusters

    def pictures(self, state: State, folder: Path) -> None:
        unit = "angle in degrees" if self.variant == "paper" else "distance"
        clustering.draw(state.distances.numpy(), state.clusters.numpy(), folder / "clusters.png", unit)

    def matrix_share(self) -> float:
        return self.cluster_share if self.variant == "sound" else 0.0

    def metrics(self) -> int:
        return 2 if self.variant == "sound" and self.clipping == "ddpg" else 0

    def validation_share(self) -> float:
        return self.validation if self.clipping == "ddpg" else 0.0

    def published_multiplier(self, epsilon: float, delta: float, rounds: int, records: int) -> float:
        """s / C with the released s = (2 eta C / B) sqrt(2 ln(1.25/delta)) T / epsilon."""
        return 2 * self.rate / self.batch * math.sqrt(2 * math.log(1.25 / delta)) * rounds / epsilon

    def _description(self) -> Releases:
        if self.variant == "paper":
            return {"subspace": Bare("singular vectors of the records leave for the clustering")}
        return {"moments": Matrix(share=self.cluster_share)}

    def _trained(self) -> Releases:
        update: Releases = {"update": Gradients(clip="clips", by_client=True)}
        if self.clipping != "ddpg":
            return update
        if self.variant == "paper":
            why = "the agent reads each client's {} as it is"
            return {**update, "loss": Bare(why.format("loss")), "accuracy": Bare(why.format("accuracy"))}
        return {**update, "loss": Average(0.0, self.loss_bound, 0.5), "accuracy": Average(0.0, 1.0, 0.5)}

    def _group(self, fed: Federation, server: State, model: Tensor) -> None:
        """Find the clusters from what the clients describe."""
        everyone, features, cut = fed.everyone(), fed.features, self.angle
        if self.variant == "paper":
            width = min(features, self.vectors * fed.classes)
            got = fed.ask(everyone, self.describe, {"width": width})
            distances = clustering.angles([row.reshape(features, -1) for row in got["subspace"]])
        else:
            directions = clustering.directions(features, self.dimensions, fed.random("directions"))
            width = directions.shape[1]
            got = fed.ask(everyone, self.describe, {"directions": directions})
            moments = got["moments"].reshape(len(everyone), width, width)
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
        return torch.cat([basis, torch.zeros(len(basis), width - basis.shape[1])], dim=1)

    def _without_noise(self, gradient: Tensor, data: PrivateRecords) -> Tensor:
        """An estimate of the gradient's norm from the noisy gradient alone: its energy less that of the noise."""
        whole = torch.linalg.vector_norm(data.clip)
        noise = len(gradient) * (data.multiplier * whole / data.expected_batch).square()
        return torch.maximum(gradient.square().sum() - noise, (0.05 * whole).square()).sqrt().float()

    def _choose(self, fed: Federation, server: State, members: list[int], got: Replies) -> None:
        """Each member's threshold for its next participation."""
        for place, client in enumerate(members):
            if self.clipping == "percentile":
                server.norms[client] = server.norms[client].roll(1)
                server.norms[client, 0] = got["update"][place, -1]
                known = server.norms[client][~server.norms[client].isnan()]
                server.clips[client] = known.quantile(0.9).clamp(self.clip_low, self.clip_high)
            elif self.clipping == "ddpg":
                now = observation(got["loss"][place], got["accuracy"][place], self.loss_bound)
                self._act(fed, server, client, now)

    def _act(self, fed: Federation, server: State, client: int, now: Tensor) -> None:
        """Reward the last action, learn from it, and choose the next."""
        shared = self.agents == "shared"
        # An agent of one's own has ten participations or so to learn from: it may explore at random twice.
        agent, name = (Ddpg(), "shared") if shared else (Ddpg(warm=2), str(client))
        random = fed.random("agent", client)
        mind: dict[str, Any] = server.agents.get(name) or agent.begin(fed.random("begin", name))
        before = server.seen[client].clone()
        if not before.isnan().any():
            reward = float((before[0] - now[0]) + (now[1] - before[1]))
            mind = agent.remember(mind, before, float(server.actions[client]), reward, now, random)
        action, mind = agent.act(mind, now, random)
        server.agents = {**server.agents, name: mind}
        server.actions[client], server.seen[client] = action, now
        server.clips[client] = threshold(action, self.clip_low, self.clip_high)
