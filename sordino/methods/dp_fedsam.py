"""DP-FedSAM (Shi, Liu, Wei, Shen, Wang, Tao: "Make Landscape Flatter in Differentially Private Federated Learning",
CVPR 2023).

DP-FedAvg whose clients train with sharpness-aware minimization: each step takes its gradient not at the model but a
distance rho uphill from it. Clients then end in flat minima, whose updates are shorter and suffer less from clipping
and noise.

`sound`: the whole update is clipped to C, and epsilon is exactly that of DP-FedAvg.

`paper`: as in the released code, each tensor is clipped to C by itself, with noise for one vector of norm C. A client
can then move the sum by C sqrt(L), for L tensors: the true mu is sqrt(L) times the published one (2 tensors: 1.4
times; the 62 of ResNet-18: 7.9 times), and its epsilon is printed.

Departures: the average is uniform; who takes part is not treated as secret, so that no sampling amplifies; the point
uphill is that of the paper (the released code scales it by the squared weights: `adaptive`); rate decay and
weight decay of the released code are left out, and its optimizer is this project's usual one.

| paper | code |
|---|---|
| w + rho g / norm(g) | `uphill` |
| rho | `rho` |
| C, sigma | `server.threshold["clip"]`, the run's noise multiplier |
| K, eta | `epochs`, `rate` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sordino.learning.network import Records
from sordino.method import Federation, Message, NotNegative, Result, Variant
from sordino.methods.bases import Clipped
from sordino.privacy.release import Releases, Update, sends


@dataclass(frozen=True)
class DPFedSAM(Clipped):
    """Sharpness-aware clients, clipped and noised."""

    title: ClassVar[str] = "clients look for flat minima, whose updates suffer less from clipping and noise"
    paper: ClassVar[str] = "Shi et al., CVPR 2023"
    caveats: ClassVar[dict[Variant, str]] = {
        "paper": "the released code clips each tensor to C and adds noise for one vector of norm C: with L tensors the "
        "true mu is sqrt(L) times the published one",
    }

    rho: NotNegative = 0.05
    """Distance uphill at which the gradient is taken. Released code: 0.5, with `adaptive`; 0: DP-FedAvg."""
    adaptive: bool = False
    """Whether the step uphill is scaled by the weights, as in the released code."""

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(model=model, motion=self.server.begin(model), threshold=self.threshold.begin(fed, self.clip))
        for _ in fed.rounds(server):
            message = {"global": server.model, "clip": server.threshold["clip"], "tensors": fed.layout.sizes}
            got = fed.ask(fed.sample(), self.local, message)
            server.model, server.motion = self.server.step(server.model, got.mean("update"), server.motion)
            server.threshold = self.threshold.following(server.threshold, got, fed, server.model)

    @sends(lambda self: self._releases())
    def local(self, message: Message, me: dict[str, Tensor], data: Records) -> Result:
        descent = self.descent(data)
        start = model = message["global"]
        for _ in range(self.epochs):
            model = descent.epoch(model, probe=self.uphill if self.rho > 0 else None)
        sent = self.threshold.tell(model - start, model, message, data)
        return Result(send=sent, keep={"model": model}, start=start)

    def uphill(self, model: Tensor, gradient: Tensor) -> Tensor:
        """Return the point at distance rho where the loss is largest, to first order."""
        scale = model.abs() if self.adaptive else torch.ones_like(model)
        length = torch.linalg.vector_norm(scale * gradient).clamp(min=1e-12)
        return model + self.rho / length * scale.square() * gradient

    def settled(self, clients: int) -> Clipped:
        if self.variant == "paper":
            self.check_threshold_stays()
        return super().settled(clients)

    def _releases(self) -> Releases:
        if self.variant == "sound":
            return self.threshold.releases()
        return {"update": Update(clip="clip", layered=True, spread="alone", sizes="tensors")}
