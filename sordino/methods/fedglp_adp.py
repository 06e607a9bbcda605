"""FedGLP-ADP (Xiao, Jiang, Li: "FedGLP-ADP: Federated Learning with Gradient-Based Layer-Wise Personalization and
Adaptive Differential Privacy", Computers, Materials & Continua 87(3), 2026).

Each client's mask of personal parameters grows from round to round: of the shared parameters, those that changed
most in training become personal, layer by layer, until the share beta is reached. beta is larger when there is
more noise. Personal and shared parameters are trained under two constraints, as in FedDPA. Updates are clipped and
noised layer by layer; the layers' thresholds C_l^2 = C^2 tw_l follow the trend of their norms in log-odds space.

`sound`: masks never leave the client, noise is dense, the server divides by the public n (1 - rho_t) instead of by
counts (rho_t is the mean of what the masks of the n clients have come to, each at its own last turn), all clients share
thresholds that follow the noisy sum, and the noise of the layers is spread so that its energy is smallest at equal
cost. A mask grows from the perturbed change, as published, but perturbed for this purpose alone: clipped as the
client's message is, with noise of the same size that is drawn once more and never leaves. A mask made of the message
itself would let the next sums tell of the client's share of the noise in this one, and its sum would hide less than is
paid for. Masks that follow the message in law and not in fact cost nothing: epsilon is exactly that of the update.
`masks = "exact"` takes the change as it is, which costs nothing either. Where federation pays, it does much harm:
personal and global accuracy are 71.6 and 31.3 % with it, 76.3 and 77.2 % with perturbed changes
(experiments/fedglp-adp-ablations.toml, 3 seeds). Where it does not, keeping to oneself may help: with ten clients at
epsilon 8 they are 48.7 and 10.0 against 44.5 and 15.8 %, within the spread (experiments/fedglp-adp-10-clients.toml).

Noise is dense, so that the whole update is sent: the saving of traffic that the paper claims is not there.

`paper`: each client's mask and thresholds come from its own noisy message, noise goes to shared positions only,
and masks are uploaded for the average's counts. These counts are functions of single messages, so everybody
learns what the server learns: that is the epsilon printed, about sqrt(n) times the mu of the published claim. It is an
upper bound: what counts tell is less than the messages that they follow from. The published tables cannot be reproduced
(lambdas and partitions are not given).

Departures: "layer" is a module, weight and bias together; both groups move in the same pass over the records, each
under its own constraint (Eq. 9, 10 lost their bars in print and are read as FedDPA's); the norm whose trend steers a
layer is that of the perturbed update for each shared coordinate, since the raw norm would leak, and in units of the
layer's threshold, since its noise is proportional to that and would make every trend go on for ever. Algorithm 1 is an
image in print: its text fixes log-odds, the first weights, the step gamma by the direction alone and renormalization;
that log-odds are taken of the renormalized weights, and the floor tw_l >= tw_l^0 / 100 before they are renormalized,
are ours. Changes are compared in steps of 1.1 % (64 to a factor of two), and of equal ones the first become personal,
so that rounding hardly ever decides. A coordinate that is personal everywhere keeps its value. Clients take turns where
not all take part in a round. sigma and sigma_0 are those of exact accounting, smaller than Opacus's (at epsilon 6,
delta 0.1 and 20 rounds 1.71, not 1.96). Eq. 11 has no bound; here beta is at most 0.95, which small deltas reach, and
the user is told. The divisor 1 - rho_t is at least 1/2: a smaller one would multiply the noise of the sum by up to
twenty.

| paper | code |
|---|---|
| m_i, not m_i | `personal`, `shared` |
| u, v | the entries under `shared`, under `personal` |
| the perturbed change | `_rehearsed`; in `paper` the message |
| beta, beta_0, a, sigma_0 (Eq. 11) | `self.share`, `beta0`, `growth`, the multiplier at epsilon 6 |
| p% per round | `schedule(beta, t, T)` |
| C, tw_l, gamma (Eq. 14, Alg. 1) | `clip`, `step_weights`, `gamma` |
| lambda_1, lambda_2 | `lambda1`, `lambda2` |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from sordino.learning.network import Records
from sordino.learning.parameters import Layout
from sordino.method import Budget, Epsilon, Federation, Message, NotNegative, Result, Schedule, Share, Variant
from sordino.methods.bases import Clipped, Clipping
from sordino.parts.masks import grow_mask, schedule
from sordino.parts.thresholds import LayerWise, first_weights, step_weights, whole
from sordino.privacy.budget.client_level_plan import multiplier_for
from sordino.privacy.release import Derived, Releases, Update, sends

MOST_PERSONAL = 0.95
"""The largest share of personal parameters that is given room to."""
LEAST_CONTRIBUTING = 0.5
"""The least share of clients that is taken to contribute to a coordinate of the sum, whose noise they divide."""


@dataclass(frozen=True)
class FedGLPADP(Clipped):
    """Growing layer-wise masks, layer-wise adaptive clipping and noise."""

    title: ClassVar[str] = "masks of personal parameters grow by layer; each layer has its own threshold and noise"
    paper: ClassVar[str] = "Xiao, Jiang, Li, Computers, Materials & Continua 2026"
    caveats: ClassVar[dict[Variant, str]] = {
        "paper": "masks computed from single messages are published in the average's counts, so an outsider learns "
        "what the server learns; the published epsilon is that of the sum alone",
    }

    masks: Literal["perturbed", "exact"] = "perturbed"
    """Change from which the masks of `sound` grow: the `perturbed` change, as published, or the `exact` one."""
    clipping: Clipping = LayerWise()
    """`layer-wise` is the paper's; `fixed` leaves the masks only (its ablation)."""
    beta0: Share = 0.3
    """The share of personal parameters in the end, at moderate noise. Paper: 0.3."""
    growth: NotNegative = 0.2
    """Growth of that share with the noise multiplier (Eq. 11's a). Paper: 0.2. 0: the share is fixed."""
    moderate_epsilon: Epsilon = 6.0
    """The budget at which noise is called moderate: sigma_0 is its multiplier. Paper: 6."""
    lambda1: NotNegative = 0.05
    """Strength with which personal parameters are held near their start. Not given; FedDPA's best."""
    lambda2: NotNegative = 0.1
    """Strength with which the shared update's norm is drawn to C. Not given; FedDPA's best."""

    def run(self, fed: Federation, model: Tensor) -> None:
        beta, layers, rounds = self.share(fed.schedule, fed.budget), fed.layout.layers, fed.schedule.rounds
        grown_in = torch.zeros(fed.schedule.clients, dtype=torch.int64)  # when each mask grew last, counted from one
        server = fed.state(
            model=model,
            motion=self.server.begin(model),
            threshold=self.threshold.begin(fed, self.clip),
            grown_in=grown_in,
        )
        for t in fed.rounds(server):
            message: dict[str, Any] = {"global": server.model, "clip": server.threshold["clip"]}
            message["growing"] = schedule(beta, t + 1, rounds, layers)
            if self.variant == "sound":
                message["noise"] = fed.deviation(self.local, "update", message)
            got = fed.ask(fed.sample(), self.local, message)
            if self.variant == "paper":  # Eq. 12
                contributors = got.rows("shared").sum(dim=0)
                change = len(got.who) * got.mean("update") / contributors.clamp(min=1)
            else:  # a public divisor: counts of who contributes to a coordinate would be functions of single messages
                counts = [schedule(beta, done, rounds, layers) for done in server.grown_in[list(got.who)].tolist()]
                parts = zip(got.mean("update").split(layers), personal_shares(counts, layers), strict=True)
                change = torch.cat([part * scale(rho) for part, rho in parts])
            server.model, server.motion = self.server.step(server.model, change, server.motion)
            server.grown_in = server.grown_in.index_fill(0, torch.as_tensor(list(got.who)), t + 1)
            if not self._own_thresholds:
                server.threshold = self.threshold.following(server.threshold, got, fed, server.model)

    @sends(lambda self: self._releases())
    def local(self, message: Message, me: dict[str, Tensor], data: Records) -> Result:
        received = message["global"]
        personal = 1 - me["shared"] if self.variant == "paper" else me["personal"]
        own = torch.where(me["participations"] > 0, me["model"], received)
        start = personal * own + (1 - personal) * received  # Eq. 7

        descent, pull = self.descent(data), self._penalty(start, personal, whole(message["clip"]))
        model = start
        for _ in range(self.epochs):
            model = descent.epoch(model, pull=pull)  # Eq. 9, 10
        change = (model - start) * (1 - personal)

        sent = {"update": change} if self._own_thresholds else self.threshold.tell(change, model, message, data)
        if self.variant == "paper":  # `learn` grows the mask
            return Result(send=sent, keep={"model": model}, start=start)
        seen = change if self.masks == "exact" else self._rehearsed(change, message, data)
        mask = grow_mask(personal, seen, message["growing"], data.layout.layers)
        return Result(send=sent, keep={"model": model, "personal": mask}, start=start)

    def _rehearsed(self, change: Tensor, message: Message, data: Records) -> Tensor:
        """Return the client's message with the same clipping and other noise of the same size; it never leaves."""
        clips = torch.as_tensor(message["clip"]).reshape(-1)
        parts = change.split(data.layout.layers if len(clips) > 1 else len(change))
        pairs = zip(parts, clips, strict=True)
        clipped = torch.cat([part * (clip / part.norm().clamp(min=1e-12)).clamp(max=1) for part, clip in pairs])
        return clipped + message["noise"] * data.normals(len(change))

    def learn(
        self, public: dict[str, Tensor], message: Message, sent: dict[str, Tensor], layout: Layout
    ) -> dict[str, Tensor]:
        """Return the paper's mask and thresholds, from the client's own noisy message."""
        layers, perturbed = layout.layers, sent["update"]
        gamma = self.clipping.gamma if isinstance(self.clipping, LayerWise) else 0.0
        # The noise of a layer is proportional to its threshold: norms are compared in its units, or it would rise and
        # fall with itself for ever.
        shared = 1 - grow_mask(1 - public["shared"], perturbed, message["growing"], layers)
        counts = torch.stack([part.sum() for part in public["shared"].split(layers)]).clamp(min=1)
        norms = torch.stack([part.norm() for part in perturbed.split(layers)]) / counts.sqrt() / public["clips"]
        weights = (public["clips"] / self.clip).square()
        direction = torch.where(norms > public["norms"], 1.0, -1.0)
        began = bool((public["norms"] >= 0).all())
        moved = step_weights(weights, direction, gamma, first_weights(layers).to(weights)) if began else weights
        return {"shared": shared, "clips": self.clip * moved.sqrt(), "norms": norms}

    def memory(self, model: Tensor) -> dict[str, Tensor]:
        if self.variant == "paper":
            return {"model": model}
        return {"model": model, "personal": torch.zeros_like(model)}

    def public_memory(self, model: Tensor, layout: Layout) -> dict[str, Tensor]:
        if self.variant == "sound":
            return {}
        clips = self.clip * first_weights(layout.layers).sqrt()
        return {"shared": torch.ones_like(model), "clips": clips, "norms": torch.full_like(clips, -1.0)}

    def share(self, schedule: Schedule, budget: Budget) -> float:
        """Return the final share of personal parameters: that of Eq. 11, limited so that something is shared."""
        return min(MOST_PERSONAL, self.wanted_share(schedule, budget))

    def wanted_share(self, schedule: Schedule, budget: Budget) -> float:
        """beta = beta_0 exp(a (sigma - sigma_0)) (Eq. 11)."""
        moderate = multiplier_for(self.moderate_epsilon, budget.delta, schedule.turns)
        exponent = min(self.growth * (budget.multiplier - moderate), 100.0)  # beyond it beta is at its end anyway
        return self.beta0 * math.exp(exponent)

    def notes(self, schedule: Schedule, budget: Budget) -> list[str]:
        asked = self.wanted_share(schedule, budget)
        if self.privacy == "none" or asked <= MOST_PERSONAL:
            return super().notes(schedule, budget)
        return [
            *super().notes(schedule, budget),
            f"Eq. 11 asks for {asked:.3g} times all parameters to become personal at this noise (multiplier "
            f"{budget.multiplier:.3g}); they are held to {MOST_PERSONAL:.0%}, and little is shared in the end: for a "
            "share that does not depend on the noise write --set growth=0.",
        ]

    @property
    def _own_thresholds(self) -> bool:
        """Whether each client has thresholds of its own, as published: `clips`, which `learn` moves."""
        return self.variant == "paper" and isinstance(self.clipping, LayerWise)

    def _releases(self) -> Releases:
        if self.variant == "sound":
            return self.threshold.releases()
        own: Releases = {"update": Update(clip="clips", layered=True, spread="proportional", at="shared")}
        sent = own if self._own_thresholds else self.threshold.releases(at="shared")
        return {**sent, "shared": Derived("shared", bits=1)}

    def _penalty(self, start: Tensor, personal: Tensor, clip: float | Tensor) -> Callable[[Tensor], Tensor]:
        """The gradients of (lambda1/2) |v - v0| on personal and (lambda2/2) | |u - u0| - C | on shared entries."""

        def pull(model: Tensor) -> Tensor:
            difference = model - start
            squares = difference.square()
            total, own = squares.sum(), (squares * personal).sum()
            common = (total - own).clamp(min=0).sqrt()
            hold = self.lambda1 / 2 / own.sqrt().clamp(min=1e-12)
            draw = self.lambda2 / 2 * torch.sign(common - clip) / common.clamp(min=1e-12)
            return difference * (draw + (hold - draw) * personal)

        return pull


def personal_shares(counts: list[list[int]], layers: list[int]) -> list[float]:
    """rho of each layer: the share of its parameters that are personal, in the mean over clients. `counts` has one row
    for each client: how many are personal in each layer."""
    return [sum(each) / len(counts) / size for each, size in zip(zip(*counts, strict=True), layers, strict=True)]


def scale(personal: float) -> float:
    """1 / (1 - rho): makes the mean over all clients one over those that share a coordinate, rho of which do not.

    Held to 1 / LEAST_CONTRIBUTING, because it multiplies the noise of the sum too.
    """
    return 1 / max(1 - personal, LEAST_CONTRIBUTING)
