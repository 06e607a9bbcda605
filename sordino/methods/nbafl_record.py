"""NbAFL, record level (Wei et al.: "Federated Learning with Differential Privacy: Algorithms and Performance Analysis",
IEEE TIFS 15, 2020), as a rival at equal budgets of methods that protect records (PAC-DP compares with it so).

Clients train with a proximal term that holds them near the received model; noise is added before anything is averaged,
so that the epsilon holds against the server. Every client has its own budget and its own noise.

`sound`: noise covers each gradient of a local step, whose change by one record is known, and all steps are charged.
The paper adds it to the trained weights, held within a ball of radius C, and takes one of m records to move these by
2 C / m, as if training were a mean over records. No such bound holds for a trained model, and no epsilon of a record
follows (`nbafl --variant paper` prints that of a whole client). Without `ball` this is FedProx at record level.

`paper`: the same, with as much noise over sensitivity as published: c L / epsilon, c = sqrt(2 ln(1.25/delta)), against
a replaced record, which moves a sum by 2 C: z = 2 c L / epsilon. L is how often a client's messages are seen, one for
each round in which it takes part. This grows with L, where sqrt(L) would do: with one full batch a round (`epochs = 1`,
`batch` at least a client's records) it is far more than the budget asks for, and the true epsilon is smaller than the
named one. Every further step of a round is charged too.

Departures: those of DP-FedAvg at record level (Poisson batches, uniform average, public sizes), and where the noise is.
No noise is added to the broadcast: what follows from noised models costs nothing more. The ball is optional, because no
noise depends on it; weights are drawn into it behind the last step.

| paper | code |
|---|---|
| mu | `mu` |
| C of the weights | `ball` |
| c L / epsilon, L | half of `published_multiplier`, `rounds` |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sordino.federation.message import Each
from sordino.method import Federation, Message, NotNegative, Positive, Result, Variant
from sordino.methods.bases import RecordClipped
from sordino.parts.proximal import pull_to
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.release import Gradients, sends


@dataclass(frozen=True)
class NbAFLRecord(RecordClipped):
    """Proximal clients that are noised before they are averaged, with budgets of records."""

    title: ClassVar[str] = "clients are held near the received model and noised before they are averaged, record level"
    paper: ClassVar[str] = "Wei et al., IEEE TIFS 2020"
    caveats: ClassVar[dict[Variant, str]] = {
        "paper": "the published noise is meant for one release in each round, and grows with their number where its "
        "root would do; every step of a round has it here, and is charged",
    }

    mu: NotNegative = 0.1
    """Strength with which clients are held near the received model. 0: not at all. Paper: not known; FedProx: 0.01 to
    1. From 2 / rate on, steps overshoot."""
    ball: Positive | None = None
    """Largest norm of a client's weights: the paper's C. Without one, any."""

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(model=model, motion=self.server.begin(model), threshold=self.clipping.begin(fed, self.clip))
        for _ in fed.rounds(server):
            message = {"global": server.model, "clip": Each(server.threshold["clips"])}
            got = fed.ask(fed.sample(), self.local, message)
            server.model, server.motion = self.server.step(server.model, got.mean("update"), server.motion)
            server.threshold = self.clipping.following(server.threshold, got, fed)

    @sends(lambda self: {"update": Gradients(clip="clip"), **self.clipping.releases(bare=False)})
    def local(self, message: Message, me: dict[str, Tensor], data: PrivateRecords) -> Result:
        start = message["global"]
        model = self.trained(start, data, pull_to(start, self.mu))
        if self.ball is not None:
            model = model * (self.ball / model.norm()).clamp(max=1)
        sent = {"update": model - start, **self.clipping.tell(start, model, data, bare=False)}
        return Result(send=sent, keep={"model": model}, start=start)

    def published_multiplier(self, epsilon: float, delta: float, rounds: int, records: int) -> float:
        """Return 2 c L / epsilon: the published c L / epsilon is over what a replaced record moves, 2 C."""
        return 2 * math.sqrt(2 * math.log(1.25 / delta)) * rounds / epsilon
