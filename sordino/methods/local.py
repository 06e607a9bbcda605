"""Local training: no federation at all.

Every client trains its own model on its own records, as many rounds and epochs as the federated methods do.
Nothing leaves, so epsilon is zero for everybody. It is the honest rival of every private federation: a
federated method that does not beat it has cost privacy for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sordino.learning.network import Records
from sordino.method import Federation, Message, Method, Result
from sordino.privacy.release import sends


@dataclass(frozen=True)
class Local(Method):
    """Every client alone."""

    title: ClassVar[str] = "every client trains alone; nothing leaves"
    paper: ClassVar[str] = "the baseline of every paper in this field"

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state()
        for _ in fed.rounds(server):
            fed.ask(fed.sample(), self.local, {})

    @sends(lambda self: {})
    def local(self, message: Message, me: dict[str, Tensor], data: Records) -> Result:
        descent = self.descent(data)
        model = me["model"]
        for _ in range(self.epochs):
            model = descent.epoch(model)
        return Result(keep={"model": model}, start=me["model"])
