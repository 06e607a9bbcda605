"""FedADDP (Guo, Zhang, Mu, Li, Dong, Li: "FedADDP: Privacy-Preserving Personalized Federated Learning with Adaptive
Dimensional Differential Privacy", ICA3PP 2024).

Clients keep the parameters that carry most Fisher information and train under two constraints, as in FedDPA. What is
new is that every coordinate has its own bound and its own noise, both in proportion to the size of its weight: large
weights may move far and carry much noise, small ones neither.

`sound`: bounds follow the broadcast model, which is public, so they cost nothing. A client divides its update by the
axes m_j (the global weights' magnitudes, brought to a mean square of one), the gate clips the result to C and noises
it, and the server multiplies by m_j again: bound and noise of coordinate j are C m_j and z C m_j, and the epsilon is
exactly that of one clipped vector.

`paper`: coordinate j is held to q_j = (beta/2) |w_j| around its start, where w is the client's own trained model, and
gets noise of deviation sqrt(M) sigma_0 2 q_j, for M tensors. q_j shows in the noise and depends on private weights
without noise of its own: it leaves bare here, and epsilon is infinite. (Were q public, the true mu would still be
about sqrt(d/M)/2 times the published one for d parameters, since one client moves all coordinates at once. The order
alpha of the published accounting mixes log2 and ln.) Its noise is meant for a server that sees every message: plan
with `protect_from = "server"` to repeat it.

Departures: both groups of parameters move in the same step (the released code takes one step for each); what leaves
is the change, not the model; the average is uniform; in `sound` the paper's box of bounds is an ellipsoid with the
same axes, whose cost does not grow with the number of parameters, and `evenness` keeps weights near zero from being
stuck there.

| paper | code |
|---|---|
| tau, lambda_1, lambda_2 | `tau`, `lambda1`, `lambda2` |
| q, beta | `bounds`, `beta` |
| sigma_0 | `published_multiplier` |
| M | `len(fed.layout.sizes)` |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from sordino.learning.descent import Tether
from sordino.learning.network import Records
from sordino.method import Federation, Message, NotNegative, Positive, Result, Variant
from sordino.methods.bases import Clipped
from sordino.parts.masks import scale_to_unit
from sordino.parts.thresholds import whole
from sordino.privacy.release import Bare, Releases, Update, sends
from sordino.privacy.views import FOR_THE_SERVER


@dataclass(frozen=True)
class FedADDP(Clipped):
    """Fisher masks, and a bound and noise for each coordinate."""

    title: ClassVar[str] = "Fisher masks, and bounds and noise for each coordinate in proportion to its weight"
    paper: ClassVar[str] = "Guo et al., ICA3PP 2024"
    caveats: ClassVar[dict[Variant, str]] = {
        "paper": "bounds and noise are those of the client's own weights, which show in them without any noise: the "
        f"published epsilon covers neither them nor that one client moves all coordinates at once; {FOR_THE_SERVER}",
    }

    tau: NotNegative = 0.4
    """The Fisher value, scaled to [0, 1] in each tensor, from which a parameter is personal. Released code: 0.4."""
    lambda1: NotNegative = 0.1
    """Strength with which personal parameters are held near their start. Released code: 0.1."""
    lambda2: NotNegative = 0.05
    """Strength with which the shared update's norm is drawn to its bound. Released code: 0.05."""
    beta: Positive = 0.1
    """In `paper`: the width of a coordinate's bounds, relative to its weight. Released code: 0.1."""
    evenness: Annotated[float, Field(ge=1e-3, le=1)] = 0.5
    """In `sound`: 1 gives all coordinates the same bound and noise, 0 (as published) in proportion to weights only."""

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(model=model, motion=self.server.begin(model), threshold=self.threshold.begin(fed, self.clip))
        for _ in fed.rounds(server):
            message = {"global": server.model, "clip": server.threshold["clip"]}
            if self.variant == "paper":
                # Noise of sqrt(M) sigma_0 on the whole width of a bound is 2 sqrt(M) sigma_0 times half of it.
                alone = {"excess": 2 * math.sqrt(len(fed.layout.sizes)), "entries": torch.ones(fed.layout.size)}
                got = fed.ask(fed.sample(), self.local, message | alone)
                change = (2 * got.rows("bounds") * got.rows("update")).mean(dim=0)
            else:
                got = fed.ask(fed.sample(), self.local, message)
                change = self.axes(server.model) * got.mean("update")
            server.model, server.motion = self.server.step(server.model, change, server.motion)
            server.threshold = self.threshold.following(server.threshold, got, fed, server.model)

    @sends(lambda self: self._releases())
    def local(self, message: Message, me: dict[str, Tensor], data: Records) -> Result:
        received = message["global"]
        own = torch.where(me["participations"] > 0, me["model"], received)
        personal = (scale_to_unit(data.fisher(own), data.layout) > self.tau).to(own.dtype)
        start = model = personal * own + (1 - personal) * received

        if self.variant == "sound":
            bound = whole(message["clip"])
        else:  # the sum over tensors of the last round's bounds
            bound = torch.stack([self.beta * piece.norm() for piece in data.layout.tensors(own)]).sum()
        hold = Tether(start, personal, lambda distance: self.lambda1 / 2)
        draw = Tether(start, 1 - personal, lambda distance: self.lambda2 / 2 * torch.sign(distance - bound))
        descent = self.descent(data)
        for _ in range(self.epochs):
            model = descent.epoch(model, pull=lambda at: hold(at) + draw(at))

        if self.variant == "paper":
            bounds = self.beta / 2 * model.abs()
            within = ((model - start) / (2 * bounds).clamp(min=1e-12)).clamp(-0.5, 0.5)
            return Result(send={"update": within, "bounds": bounds}, keep={"model": model}, start=start)
        sent = self.threshold.tell((model - start) / self.axes(received), model, message, data)
        return Result(send=sent, keep={"model": model}, start=start)

    def settled(self, clients: int) -> Clipped:
        if self.variant == "paper":
            self.check_threshold_stays()
        return super().settled(clients)

    def axes(self, model: Tensor) -> Tensor:
        """Return the bound and noise of each coordinate, in units of C; their mean square is one."""
        sizes = model.abs() / model.square().mean().sqrt().clamp(min=1e-12)
        mixed = self.evenness + (1 - self.evenness) * sizes
        return mixed / mixed.square().mean().sqrt()

    def _releases(self) -> Releases:
        if self.variant == "sound":
            return self.threshold.releases()
        return {
            "update": Update(clip=0.5, layered=True, spread="alone", sizes="entries", excess="excess"),
            "bounds": Bare("each coordinate's bound, a function of the client's own weights, shows in its noise"),
        }

    def published_multiplier(self, epsilon: float, delta: float, rounds: int, records: int) -> float:
        """sigma_0 = sqrt(T a / (2 (epsilon + ln delta / (a - 1)))), a = ceil(log2(1/delta) / epsilon + 1)."""
        order = math.ceil(math.log2(1 / delta) / epsilon + 1)
        return math.sqrt(rounds * order / 2 / (epsilon + math.log(delta) / (order - 1)))
