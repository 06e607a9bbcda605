"""AdaDP-CFL (Yang, Ma: "AdaDP-CFL: Cluster Federated Learning with Adaptive Clipping Threshold Differential Privacy",
IWQoS 2024), clustered federated learning, a fork of PACFL.

Before training, clients are grouped by how their data lie: subspaces of their records, principal angles between them,
hierarchical clustering at an angle. Each cluster has a model, averaged over its members; after each round a proximal
step lets every cluster's model learn from the similar ones. Clients train with DP-SGD, each with its own clipping
threshold, chosen by a DDPG agent from how its loss and accuracy develop.

`sound`: for the grouping each client releases the noisy second-moment matrix of its records after a public random
projection; the agent reads noised means over validation records that are disjoint from the training records; both are
charged. Thresholds follow from what was paid for. What a budget cannot pay for is left out, and a note before the run
says so: where no affordable share of epsilon lets a gap between clients show, all stay in one cluster; where the noise
hides how thresholds differ, there is no agent and C stays fixed.

`paper`: singular vectors, losses and accuracies leave as they are, so epsilon is infinite; what the noisy gradients
alone would cost, if thresholds were public, is printed beside it. The published noise, calibrated to a sensitivity in
parameter space but added to a sum of gradients, is far too small for its epsilon.

Departures.
- Grouping: subspaces are orthonormal, of each class (the paper: of all records at once), and angles are true principal
  angles (the released code takes the smallest angle of single vectors, sign included). `sound` has no subspaces: in the
  place of angles it compares the Frobenius distance of second moments in k = 8 dimensions (the noise of k x k
  entries grows with k) and cuts it at 1 + 2.4/k times what chance explains. Linkage is by
  the mean over pairs, the released code's by the mean of two rows. `paper` puts no noise on the singular vectors: the
  paper says Gaussian noise, without a size or a sensitivity, the released code adds none, and none that is honest
  leaves groups.
- Proximal step: its first coefficient is 1 as in the released code (the paper's 1/(2 eta) = 50 would pin the model);
  its anchor is the cluster's average before the step (Eq. 4.5 prints G_s^{t-1}, the model of the round before); it is
  ten steps of SGD, as in the released code (Eq. 4.4 prints one); cosines are cut at 0 and divided by their sum over the
  other clusters (the paper's Eq. 4.6 has a sum too many, the released code takes exp(-distance)). A cluster of which
  nobody took part keeps its model, and the others still learn from it.
- Agent: one is shared by all clients, which take part about ten times each. The critic's target uses the target
  policy's next action (the released code: the last one). Adam's rate is 1e-2 for the critic (released: 1e-3), with 4
  steps for each new transition on 16 of them (released: 1 step on 2), because otherwise the agent ends at an end of
  its range. Thresholds lie on a logarithmic scale from 0.1 to 10 (the published scale is lost). Every client's first
  action is random: one cycle (the paper: the actions of the first two rounds). The reward counts accuracy from 0 to 1,
  not in percent; its weights beta_1 and beta_2 (`clipping.loss_weight`, `clipping.accuracy_weight`), which the paper
  does not print, are 1 as in the released code.
- ResNet-9 has two residual blocks as in the released code; the paper's text names three groups, each of them with one.
- Noise: Algorithm 1, line 16, adds N(0, sigma^2 C^2) to the mean of a batch's L clipped gradients. One record moves
  that mean by C / L, so that the noise is L sigma times the sensitivity. Ours and the released code's is N(0, (z C)^2)
  on the sum, which is then divided: the same mechanism at z = L sigma (`noise_multiplier`). No sigma is printed.
- Records are drawn by coins, ceil(1/q) Poisson batches an epoch, in `paper` too. The released code makes one pass over
  shuffled batches, which earns no amplification: `batches = "shuffled"` (its batches are equally large, within one
  record; the code's last one may be smaller). At the published settings, with z = 0.4344, 0.0869 and 0.0434 for nominal
  epsilons of 1, 5 and 10, the gradients then cost 192, 3,612 and 13,878.
- Clients take turns, where the paper draws each round's clients at random; averages are uniform, because weights by
  numbers of records would change with a record that leaves.
- DP-AGR, a rival in the paper, is the rule `dp-agr`. It reads norms of noisy gradients, in `paper` too, and costs
  nothing. Its five rounds are the last five in which a client took part, each told by 20 norms.

| paper | code |
|---|---|
| U_p, gamma | `describe`, `angle` |
| G_s, lambda_sj, L (Eq. 4.4 to 4.6) | `server.models`, `parts/clustering.py: proximal`, `proximity` |
| C_i^t, (loss, acc), r | `server.threshold`: `parts/record_thresholds.py` |
| beta_1, beta_2 | `clipping.loss_weight`, `clipping.accuracy_weight` |
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from sordino.federation.message import Each
from sordino.method import LEAST_SHARE, Count, Federation, Message, NotNegative, Positive, Result, State, Variant
from sordino.methods.bases import RecordLevel
from sordino.parts import clustering
from sordino.parts.clustering import LARGEST_CLUSTER_SHARE, affordable_share
from sordino.parts.record_thresholds import RULES, Learned, RecordThreshold
from sordino.privacy.budget.allowance import Outlook
from sordino.privacy.budget.record_level_plan import held_out_count
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.release import Bare, Gradients, Matrix, Releases, sends
from sordino.tasks import Task
from sordino.util.selectable import Named

Clipping = Annotated[RecordThreshold, Named({"ddpg": Learned, **RULES})]
CLUSTERING = "The clustering of AdaDP-CFL as published"
"""Purpose for which classes are needed."""


@dataclass(frozen=True)
class AdaDPCFL(RecordLevel):
    """Clusters of clients, and thresholds chosen by DDPG."""

    title: ClassVar[str] = "clients are clustered by their data's subspaces; an agent chooses each client's threshold"
    paper: ClassVar[str] = "Yang, Ma, IWQoS 2024"
    counts_all_rounds: ClassVar[bool] = True
    caveats: ClassVar[dict[Variant, str]] = {
        "paper": "singular vectors leave as they are, and with clipping=ddpg losses and accuracies too, from which "
        "thresholds follow",
    }

    clipping: Clipping = Learned()
    """Rule for the thresholds: `ddpg` (the paper's), `fixed`, `quantile`, `median`, `dp-agr` (a percentile of the norms
    of a client's noisy gradients), or near a `percentile` of single records' norms."""
    angle: NotNegative | None = None
    """Distance at which clusters are kept apart: gamma. An angle in degrees (`paper`; without one, in the largest gap),
    or a distance in units of what noise and the draw of records explain (`sound`; without one, just above 1)."""
    vectors: Count = 3
    """Singular vectors of a subspace: p. PACFL's script: 3."""
    dimensions: Count = 8
    """Number of dimensions to which records are projected before their second moments are released."""
    cluster_share: Annotated[float, Field(ge=0, le=1 - LEAST_SHARE, allow_inf_nan=False)] | None = None
    """The share of epsilon that the grouping costs; 0: clients are not grouped. Without one, as much as it takes for
    clients that are `gap` apart to be told apart; where that is more than half, clients are not grouped."""
    gap: Positive = 0.35
    """Expected difference of clients: the distance (Frobenius) of the second moments of their projected
    records, each divided by its trace. Clients with two labels each and none in common are 0.49 apart in the median on
    Fashion-MNIST and 0.34 on MNIST."""
    proximity: NotNegative = 0.1
    """Strength with which clusters learn from each other: L. 0: not at all (PACFL). Paper: 1, 0.1, 0.01."""

    def check_task(self, task: Task) -> None:
        if self.variant == "paper":
            task.class_names(CLUSTERING)

    def run(self, fed: Federation, model: Tensor) -> None:
        clients = fed.schedule.clients
        server = fed.state(
            models=model.unsqueeze(0),
            motion=self.server.begin(model.unsqueeze(0)),
            clusters=torch.zeros(clients, dtype=torch.int64),
            distances=torch.zeros(clients, clients),
            threshold=self.clipping.begin(fed, self.clip),
        )
        for t in fed.rounds(server):
            if t == 0 and self._groups:
                self._group(fed, server, model)
            who = torch.as_tensor(list(fed.sample()))
            for cluster in range(len(server.models)):
                members = who[server.clusters[who] == cluster].tolist()
                if members:
                    message = {"global": server.models[cluster], "clip": Each(server.threshold["clips"])}
                    got = fed.ask(members, self.local, message)
                    change = got.mean("update")
                    server.models, server.motion = self.server.step_row(server.models, cluster, change, server.motion)
                    server.threshold = self.clipping.following(server.threshold, got, fed)
            if self.proximity > 0:
                server.models = clustering.proximal(server.models, self.proximity)  # Eq. 4.4 to 4.6

    @sends(lambda self: self._description())
    def describe(self, message: Message, me: dict[str, Tensor], data: PrivateRecords) -> Result:
        """Describe the client's records for the grouping; nothing is trained."""
        if self.variant == "paper":
            x, y = data.raw()
            return Result(send={"subspace": self._subspace(x, y, message["width"])})
        return Result(send={"moments": data.projected(message["directions"])})

    @sends(lambda self: self._trained())
    def local(self, message: Message, me: dict[str, Tensor], data: PrivateRecords) -> Result:
        start = message["global"]
        model = self.trained(start, data)
        sent: dict[str, Any] = {"update": model - start}
        sent |= self.clipping.tell(start, model, data, bare=self.variant == "paper")
        return Result(send=sent, keep={"model": model}, start=start)

    def planned(self, outlook: Outlook) -> tuple[AdaDPCFL, list[str]]:
        if self.variant == "paper":  # what leaves bare has no noise to learn or to group in spite of
            return self, []
        clipping, notes = self.clipping.planned(outlook)
        chosen = replace(self, clipping=clipping)
        if self.cluster_share is not None:
            return chosen, notes
        trained = max(1, outlook.records - held_out_count(outlook.records, chosen.record_needs().held_out))
        share, note = affordable_share(outlook, trained, self.dimensions, self.gap)
        return replace(chosen, cluster_share=share), [*notes, note]

    def switched_off(self) -> list[str]:
        off = [] if isinstance(self.clipping, Learned) else ["the agent that chooses thresholds"]
        return off if self._groups else [*off, "the clusters"]

    def shared_models(self, state: State, clients: int) -> tuple[Tensor, Tensor]:
        return state.models, state.clusters

    def pictures(self, state: State, folder: Path) -> None:
        if not self._groups:
            return
        unit = "angle in degrees" if self.variant == "paper" else "distance"
        clustering.draw(state.distances.numpy(), state.clusters.numpy(), folder / "clusters.png", unit)

    def published_multiplier(self, epsilon: float, delta: float, rounds: int, records: int) -> float:
        """Return s / C with the released s = (2 eta C / B) sqrt(2 ln(1.25/delta)) T / epsilon."""
        return 2 * self.rate / self.batch * math.sqrt(2 * math.log(1.25 / delta)) * rounds / epsilon

    def _description(self) -> Releases:
        if self.variant == "paper":
            return {"subspace": Bare("singular vectors of the records leave for the clustering")}
        if not self._groups:
            return {}
        share = LARGEST_CLUSTER_SHARE if self.cluster_share is None else self.cluster_share
        return {"moments": Matrix(share, side=self.dimensions)}

    def _trained(self) -> Releases:
        return {"update": Gradients(clip="clip"), **self.clipping.releases(bare=self.variant == "paper")}

    @property
    def _groups(self) -> bool:
        return self.variant == "paper" or self.cluster_share != 0

    def _group(self, fed: Federation, server: State, model: Tensor) -> None:
        """Find the clusters from what the clients describe."""
        everyone, features, cut = fed.everyone(), fed.features, self.angle
        if self.variant == "paper":
            classes = fed.task.class_names(CLUSTERING)
            width = min(features, self.vectors * len(classes))
            got = fed.ask(everyone, self.describe, {"width": width})
            distances = clustering.angles([row.reshape(features, -1) for row in got.rows("subspace")])
        else:
            directions = clustering.directions(features, self.dimensions, fed.random("directions"))
            width = directions.shape[1]
            got = fed.ask(everyone, self.describe, {"directions": directions})
            moments = got.rows("moments").reshape(len(got.who), width, width)
            noise = torch.as_tensor(fed.record_plan.matrix_multipliers)[list(got.who)]
            distances = clustering.moment_distances(moments, noise)
            cut = clustering.moment_threshold(width) if cut is None else cut
        server.distances, server.clusters = clustering.of_all(distances, cut, got.who, fed.schedule.clients)
        server.models = model.repeat(int(server.clusters.max()) + 1, 1)
        server.motion = self.server.begin(server.models)

    def _subspace(self, x: Tensor, y: Tensor, width: int) -> Tensor:
        """Return a basis of the first singular vectors of all classes, padded with zeros to a fixed number of
        columns."""
        basis = clustering.class_subspace(x.flatten(1), y, self.vectors)[:, :width].float()
        return torch.cat([basis, basis.new_zeros(len(basis), width - basis.shape[1])], dim=1)
