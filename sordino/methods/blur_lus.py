"""BLUR+LUS (Cheng, Wang, Zhang, Cheng: "Differentially Private Federated Learning with Local Regularization and
Sparsification", CVPR 2022).

DP-FedAvg whose clients prepare their update for clipping and noise. Bounded local update regularization (BLUR) holds
the model near the ball of radius C around the received one while it is trained. Local update sparsification (LUS)
then sets all but the largest entries of the update to zero: what is left of it survives clipping better.

Both happen at the client and precede the clip, so epsilon is exactly that of DP-FedAvg; `paper` and `sound` are the
same. Noise goes to all coordinates: which entries a client kept depends on its data, and would leak.

Departures: no code is public. The penalty is read as (lambda/2) max(0, |w - w_g| - C)^2, which begins where clipping
does; entries are kept by magnitude, over all tensors together; entries within a percent of each other count as equal,
so that rounding decides nothing. The average is uniform, and who takes part is not treated as secret.

| paper | code |
|---|---|
| lambda | `strength` |
| S (or C) | `server.threshold["clip"]` |
| the share that LUS keeps | `keep` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from sordino.learning.descent import Tether
from sordino.learning.network import Records
from sordino.method import Federation, Message, NotNegative, Result
from sordino.methods.bases import Clipped
from sordino.parts.masks import grow_mask
from sordino.parts.thresholds import whole
from sordino.privacy.release import sends


@dataclass(frozen=True)
class BlurLus(Clipped):
    """Updates held near the threshold and made sparse."""

    title: ClassVar[str] = "clients hold their update near the clipping threshold and keep its largest entries only"
    paper: ClassVar[str] = "Cheng et al., CVPR 2022"

    strength: NotNegative = 0.1
    """Strength with which the update is held within C: lambda. 0: not at all. Paper: not known; usual: 0.1."""
    keep: Annotated[float, Field(gt=0, le=1)] = 0.7
    """The share of the update's entries that are kept. 1: all. Usual: 0.4 to 0.7."""

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(model=model, motion=self.server.begin(model), threshold=self.threshold.begin(fed, self.clip))
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model, "clip": server.threshold["clip"]})
            server.model, server.motion = self.server.step(server.model, got.mean("update"), server.motion)
            server.threshold = self.threshold.following(server.threshold, got, fed, server.model)

    @sends(lambda self: self.threshold.releases())
    def local(self, message: Message, me: dict[str, Tensor], data: Records) -> Result:
        start = model = message["global"]
        bound = whole(message["clip"])

        def beyond(distance: Tensor) -> Tensor:
            """Return the norm of the gradient of (lambda/2) max(0, distance - C)^2."""
            return self.strength * (distance - bound).clamp(min=0)

        pull = Tether(start, torch.ones_like(start), beyond) if self.strength > 0 else None
        descent = self.descent(data)
        for _ in range(self.epochs):
            model = descent.epoch(model, pull=pull)
        sent = self.threshold.tell(self.sparse(model - start), model, message, data)
        return Result(send=sent, keep={"model": model}, start=start)

    def sparse(self, update: Tensor) -> Tensor:
        """Return the update with only the share `keep` of its entries, the largest ones; the others are zero."""
        size = len(update)
        count = max(1, round(self.keep * size))
        return update if count == size else update * grow_mask(torch.zeros_like(update), update, [count], [size])
