"""A user's own methods, whose servers keep what a method may keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sordino.learning.network import Records
from sordino.method import Federation, Message, Method, Result
from sordino.privacy.release import Update, sends


@dataclass(frozen=True)
class Plain(Method):
    """Averages clipped updates, and gives up after `last` rounds."""

    title: ClassVar[str] = "averages clipped updates"
    paper: ClassVar[str] = "none"

    last: int = 1000

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(model=model)
        for number in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model})
            server.model = server.model + got.mean("update")
            if number + 1 == self.last:
                break

    @sends(lambda self: {"update": Update(clip=0.5)})
    def local(self, message: Message, me: dict[str, Tensor], data: Records) -> Result:
        descent, model = self.descent(data), message["global"]
        for _ in range(self.epochs):
            model = descent.epoch(model)
        return Result(send={"update": model - message["global"]}, keep={"model": model}, start=message["global"])


@dataclass(frozen=True)
class Odd(Plain):
    """The same with a server that keeps dictionaries in an order of its own, and reads them by position."""

    def run(self, fed: Federation, model: Tensor) -> None:
        history = {"z": torch.zeros(3), "a": torch.ones(3), "m": torch.full((3,), 2.0)}
        server = fed.state(model=model, history=history, nothing={}, momentum=torch.zeros_like(model))
        for number in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model})
            first, second, third = server.history.values()
            weight = float(first.mean()) + 10 * float(second.mean()) + 100 * float(third.mean())
            if server.nothing != {}:
                raise TypeError(f"An empty dictionary came back as {server.nothing!r}.")
            server.momentum = 0.5 * server.momentum + got.mean("update")
            server.model = server.model + server.momentum / (1 + weight / 1000)
            server.history = {"z": second + 0.01 * number, "a": third, "m": first}


@dataclass(frozen=True)
class Rare(Plain):
    """The same with a server that keeps names with dots, numbers as names, numpy's numbers and one tensor twice."""

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(model=model, before=model, counts={2: 0, 1: 0}, rates={"a.b": np.float64(0.5)})
        for number in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model})
            server.counts = {2: server.counts[2] + 1, 1: server.counts[1] + number}
            server.rates = {"a.b": np.float64(server.rates["a.b"] * 0.9)}
            server.model = server.before = server.model + server.rates["a.b"] * got.mean("update")


class Branching(torch.nn.Module):
    """A network whose path depends on its records: clients cannot be stacked."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(int(np.prod(shape)), classes)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x.flatten(1))
        return found if found.sum() > 0 else -found
