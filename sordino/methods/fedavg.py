"""FedAvg (McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017).

Clients start from the global model, train for E epochs and send what changed; the server adds the average,
weighted by the clients' numbers of records. Nothing is private: epsilon is infinite, and says so.

| paper | code |
|---|---|
| w_t | `server.model` |
| n_k / n | the weights of `by_records` |
| E, B, eta | `epochs`, `batch`, `rate` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sordino.learning.network import Records
from sordino.method import Federation, Message, Result
from sordino.methods.bases import Averaging
from sordino.parts.averaging import by_records
from sordino.privacy.release import Bare, sends


@dataclass(frozen=True)
class FedAvg(Averaging):
    """Federated averaging without privacy."""

    title: ClassVar[str] = "federated averaging without privacy"
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(model=model, motion=self.server.begin(model))
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model})
            change = by_records(got.rows("records"), got.rows("update"))
            server.model, server.motion = self.server.step(server.model, change, server.motion)

    @sends(
        lambda self: {
            "update": Bare("FedAvg sends each client's update as it is"),
            "records": Bare("FedAvg sends each client's number of records"),
        }
    )
    def local(self, message: Message, me: dict[str, Tensor], data: Records) -> Result:
        descent = self.descent(data)
        start = model = message["global"]
        for _ in range(self.epochs):
            model = descent.epoch(model)
        return Result(send={"update": model - start, "records": data.count}, keep={"model": model}, start=start)
