"""Training that happens elsewhere: what Sordino knows of an app, such as Flower's, that trains with code of its own.

A run of an app is an experiment like any other, of which noise, cost and masks follow: its method sends one clipped
update of each site, and its network is as many parameters as the app's arrays have numbers. How an update comes about
is the app's business; how it leaves is the gate's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from sordino.errors import UserError
from sordino.learning.network import Records
from sordino.method import Federation, Message, Method, Positive, Result
from sordino.privacy.release import Update, sends

METHOD, NETWORK = "sordino.deploy.app:AppUpdate", "sordino.deploy.app:Arrays"
"""Names of method and network in experiments, and in the rules of a site that takes part with an app."""
DECLARED: dict[str, Any] = {"shape": [1], "labels": ["0", "1"], "method": METHOD, "model": NETWORK}
"""Keys of an app's experiment that are always the same: nobody but the app knows its records."""


class Conductor(Protocol):
    """The app's side at the server: what it tells sites, and what it makes of the mean of their updates."""

    def configure(self, round: int, model: Tensor) -> Message:
        """Return what sites are told in a round besides the model."""

    def aggregate(self, round: int, model: Tensor, mean: Tensor) -> Tensor:
        """Return the model after a round, from the one before it and the mean update."""


@dataclass(frozen=True)
class AppUpdate(Method):
    """Clipped and noised updates of sites that train with an app's own code."""

    title: ClassVar[str] = "clipped and noised updates of an app that trains with code of its own, client level"
    paper: ClassVar[str] = "McMahan et al., ICLR 2018"

    clip: Positive = 1.0
    """The clipping threshold C of an update, over all of its arrays together."""

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(model=model)
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model, "clip": self.clip})
            server.model = server.model + got.mean("update")

    @sends(lambda self: {"update": Update(clip="clip")})
    def local(self, message: Message, me: dict[str, Tensor], data: Records) -> Result:
        raise UserError("An app's update is trained by the app, at real sites alone: see sordino.flower.mod.")


@dataclass(frozen=True)
class ConductedUpdate(AppUpdate):
    """An app's method as its server runs it."""

    conductor: Conductor | None = None

    def run(self, fed: Federation, model: Tensor) -> None:
        assert self.conductor is not None
        server = fed.state(model=model)
        for round in fed.rounds(server):
            told = self.conductor.configure(round, server.model)
            got = fed.ask(fed.sample(), self.local, {**told, "global": server.model, "clip": self.clip})
            server.model = self.conductor.aggregate(round, server.model, got.mean("update"))


class Arrays(nn.Module):
    """As many parameters as an app's arrays have numbers; what it computes means nothing."""

    def __init__(self, classes: int, sizes: str = "1") -> None:
        """`sizes` lists the numbers of each array, as in 640,10."""
        super().__init__()
        self.classes = classes
        self.arrays = nn.ParameterList(torch.zeros(size) for size in read_sizes(sizes))

    def forward(self, x: Tensor) -> Tensor:
        found = x.flatten(1).sum(dim=1, keepdim=True) * sum(array.sum() for array in self.arrays)
        return found.expand(-1, self.classes)


def read_sizes(text: str) -> Sequence[int]:
    """Sizes of an app's arrays, from a list such as 640,10."""
    parts = str(text).split(",")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"model.sizes = {text!r} is not understood: list the numbers in each array, as in 640,10.")
    return [int(part) for part in parts]
