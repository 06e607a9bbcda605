"""Methods for attackers: what one site sends is as much as it may or nothing; gradients leave by two ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from sordino.method import Method, Result
from sordino.methods.bases import RecordLevel
from sordino.privacy.release import Gradients, Number, sends


@dataclass(frozen=True)
class Coins(Method):
    """The site whose labels are all zero sends coins, all others nothing: each number is a trial by itself."""

    title: ClassVar[str] = "coins"
    paper: ClassVar[str] = "none"
    many: int = 250

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(model=model)
        for _ in fed.rounds(server):
            coins = torch.randint(0, 2, (self.many,), generator=fed.random("coins"))
            got = fed.ask(fed.sample(), self.local, {"global": server.model, "coins": coins})
            assert got.has("coins")

    @sends(lambda self: {"coins": Number(0.0, 1.0, share=1.0, entries=self.many)})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        factor = 0.5 * float(not data.y.any())
        sent = {"coins": 0.5 + factor * message["coins"].float()}
        return Result(send=sent, keep={"model": message["global"]}, start=message["global"])


@dataclass(frozen=True)
class TwoWays(RecordLevel):
    """Two steps that each take noisy gradients: a plan is for one of them in each turn."""

    title: ClassVar[str] = "two ways"
    paper: ClassVar[str] = "none"

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(model=model)
        for _ in fed.rounds(server):
            server.model = server.model + fed.ask(fed.sample(), self.one, {"global": server.model}).mean("first")

    @sends(lambda self: {"first": Gradients(clip=1.0)})
    def one(self, message: Any, me: Any, data: Any) -> Result:
        return Result(send={"first": self.trained(message["global"], data) - message["global"]})

    @sends(lambda self: {"second": Gradients(clip=1.0)})
    def other(self, message: Any, me: Any, data: Any) -> Result:
        return Result(send={"second": self.trained(message["global"], data) - message["global"]})
