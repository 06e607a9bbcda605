"""NbAFL, noising before aggregation (Wei et al.: "Federated Learning with Differential Privacy: Algorithms and
Performance Analysis", IEEE TIFS 15, 2020).

Clients train with a proximal term that holds them near the received model, hold their weights within a ball of radius
C, add Gaussian noise and upload them; the server averages.

`sound`: the ball lies around the received model, so that C bounds the change, and the noise is that of this project's
accountant for whole clients. No noise is added to the broadcast: what follows from noised sums costs nothing more.

`paper`: the ball lies around zero, and the noise is the published sigma_U = c T (2 C / m) / epsilon with
c = sqrt(2 ln(1.25/delta)), for m records at the client with fewest. One record is thus taken to move a trained model
by 2 C / m only, as if training were a mean over records; but whoever trains may end anywhere in the ball. The true
figure for whole clients, whose models differ by up to 2 C, is printed; for a single record nothing better is known.
Another public implementation bounds the broadcast only and uploads weights unbounded: no epsilon would be true there.
The published noise is meant for a server that sees every message: plan with `protect_from = "server"` to repeat it.

Departures: what leaves is not the weights but their difference from the received model, which is public. In `paper`
that model too is drawn into the ball first: no difference is then longer than 2 C, and the noisy average is that of the
weights. Every round counts as an exposure (L = T), with which no noise on the downlink is asked for. The average is
uniform.

| paper | code |
|---|---|
| mu | `mu` |
| C | `clip` (`sound`), `ball` (`paper`) |
| c L (2 C / m) / epsilon | `published_multiplier` times 2 C |
| m | `smallest` times all records |
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from sordino.learning.network import Records
from sordino.method import Federation, Message, NotNegative, Positive, Result, Share, Variant
from sordino.methods.bases import Clipped
from sordino.parts.proximal import pull_to
from sordino.privacy.release import sends
from sordino.privacy.views import FOR_THE_SERVER


@dataclass(frozen=True)
class NbAFL(Clipped):
    """Proximal clients whose bounded weights are noised before they leave."""

    title: ClassVar[str] = "clients are held near the received model; bounded weights are noised and averaged"
    paper: ClassVar[str] = "Wei et al., IEEE TIFS 2020"
    caveats: ClassVar[dict[Variant, str]] = {
        "paper": "the published noise presumes that one of m records moves a trained model by 2C/m only; what the "
        f"noise is worth for a whole client, whose model may lie anywhere in the ball, is printed; {FOR_THE_SERVER}",
    }

    mu: NotNegative = 0.1
    """Strength with which clients are held near the received model. 0: not at all. Paper: not known; FedProx: 0.01 to
    1."""
    ball: Positive = 2.0
    """In `paper`: the largest norm of a client's weights, C. Paper: not known; on the digits 2 does better than 5."""
    smallest: Share | None = None
    """In `paper`: the share of all records that the client with fewest has, which decides the noise. Without one, an
    equal share."""

    def run(self, fed: Federation, model: Tensor) -> None:
        first = self.clip if self.variant == "sound" else 2 * self.ball
        server = fed.state(model=model, motion=self.server.begin(model), threshold=self.threshold.begin(fed, first))
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model, "clip": server.threshold["clip"]})
            start = self._bounded(server.model)
            server.model, server.motion = self.server.step(start, got.mean("update"), server.motion)
            server.threshold = self.threshold.following(server.threshold, got, fed, server.model)

    @sends(lambda self: self.threshold.releases())
    def local(self, message: Message, me: dict[str, Tensor], data: Records) -> Result:
        start = model = message["global"]
        descent = self.descent(data)
        for _ in range(self.epochs):
            model = descent.epoch(model, pull=pull_to(start, self.mu))
        sent = self.threshold.tell(self._bounded(model) - self._bounded(start), model, message, data)
        return Result(send=sent, keep={"model": model}, start=start)

    def _bounded(self, model: Tensor) -> Tensor:
        """Return the model, in `paper` projected into the ball around zero."""
        return model if self.variant == "sound" else model * (self.ball / model.norm()).clamp(max=1)

    def settled(self, clients: int) -> NbAFL:
        if self.variant == "paper":
            self.check_threshold_stays()
        return replace(self, clipping=self.clipping.settled(clients), smallest=self.smallest or 1 / clients)

    def discloses(self) -> list[str]:
        if self.variant == "sound":
            return []
        return ["The published noise follows from the number of records of the client with fewest, which it discloses."]

    def published_multiplier(self, epsilon: float, delta: float, rounds: int, records: int) -> float:
        """sigma_U over the largest change, 2 C: c T / (m epsilon)."""
        fewest = max(1.0, (self.smallest or 1.0) * records)
        return math.sqrt(2 * math.log(1.25 / delta)) * rounds / (fewest * epsilon)
