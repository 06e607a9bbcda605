"""PPSGD (Bietti, Wei, Dudik, Langford, Wu: "Personalization Improves Privacy-Accuracy Tradeoffs in Federated
Learning", ICML 2022).

Every client predicts with shared features and a head that is the sum of a shared and a personal part: w + theta_i. In
a round each client moves theta_i by its own gradient, which nobody sees, and sends the gradient of the shared
parameters, clipped and noised. The ratio of the two rates says how much is learned together and how much alone.

Only the shared gradient leaves, so epsilon is exactly that of one clipped and noised vector a round; `paper` and
`sound` are the same. A client's personal model is covered against all others (joint differential privacy).

Departures: cross-entropy (the released code fits centred labels by squared loss); the shared gradient is that of all
of a client's records instead of one batch; theta_i moves for E epochs instead of one step, and its steps are not
multiplied by the size of the cohort. Both gradients start from the round's start, as in the paper's Algorithm 1. A
model is one flat vector, so theta_i is one too, and zero outside of the last layer: `model` is shared + theta_i. The
average is uniform, and who takes part is not treated as secret.

| paper | code |
|---|---|
| w (and the features phi) | `server.model` |
| theta_i | `me["theta"]` |
| eta_w, eta_theta, alpha | `rate`, `personal_rate`, their ratio |
| C, sigma | `server.threshold["clip"]`, the run's noise multiplier |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from sordino.learning.descent import Descent
from sordino.learning.network import Records
from sordino.learning.parameters import Layout
from sordino.method import Federation, Message, NotNegative, Positive, Result
from sordino.methods.bases import Clipped
from sordino.privacy.release import sends


@dataclass(frozen=True)
class PPSGD(Clipped):
    """A head of two parts, of which one is personal."""

    title: ClassVar[str] = "a personal part is added to the shared head; only the shared gradient leaves"
    paper: ClassVar[str] = "Bietti et al., ICML 2022"

    rate: Positive = 4.0
    """The rate of the shared parameters: eta_w. Paper: tuned. Steps this long are mostly clipped to C."""
    personal_rate: NotNegative = 0.01
    """The rate of the personal part: eta_theta. 0: there is none. Paper: rate / personal_rate is one of 0, 0.1 to 100,
    and infinity, with one step of theta a round. A theta that learns fast fits its client's records alone and leaves no
    gradient to share: with the first seed of experiments/demo.toml 0.1 reaches 81 %, 0.01 94 %."""

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(model=model, motion=self.server.begin(model), threshold=self.threshold.begin(fed, self.clip))
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model, "clip": server.threshold["clip"]})
            server.model, server.motion = self.server.step(server.model, got.mean("update"), server.motion)
            server.threshold = self.threshold.following(server.threshold, got, fed, server.model)

    @sends(lambda self: self.threshold.releases())
    def local(self, message: Message, me: dict[str, Tensor], data: Records) -> Result:
        shared = message["global"]
        start = model = shared + me["theta"]
        whole = replace(self.descent(data), optimizer="sgd", batch=len(data.y), momentum=0.0)
        step = whole.epoch(start) - start

        alone, mask = self._personal(data), head(data.layout).to(shared)
        for _ in range(self.epochs if self.personal_rate > 0 else 0):
            model = alone.epoch(model, mask=mask)
        sent = self.threshold.tell(step, model, message, data)
        return Result(send=sent, keep={"model": model, "theta": model - shared}, start=start)

    def _personal(self, data: Records) -> Descent:
        """Return local training of the personal part."""
        return replace(self.descent(data), rate=self.personal_rate)

    def memory(self, model: Tensor) -> dict[str, Tensor]:
        return {"model": model, "theta": torch.zeros_like(model)}


def head(layout: Layout) -> Tensor:
    """Return the mask of the last layer: one for its entries, zero for the others."""
    mask = torch.zeros(layout.size)
    mask[-layout.layers[-1] :] = 1
    return mask
