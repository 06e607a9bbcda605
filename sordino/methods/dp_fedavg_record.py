"""DP-FedAvg, record level: DP-SGD at each client (Abadi et al. 2016), plain averaging at the server.

The common baseline of AdaDP-CFL and PAC-DP. Each client takes noisy gradient steps on Poisson-sampled batches of its
records; what it sends is made of these, so the epsilon holds against the server too. All local steps are charged.

Departures: models are averaged uniformly over the cohort. A client's number of records decides its sampling rate and
its number of steps, so it is treated as public: the epsilon does not hide it.
Batches are Poisson-sampled in both variants, since shuffled ones earn no amplification.

| paper | code |
|---|---|
| C, sigma, q | `clip`, the multiplier of each client's plan, `batch / records` |
| E | `epochs`: each has 1/q steps |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sordino.method import Federation, Message, Result
from sordino.methods.bases import RecordLevel
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.release import Gradients, sends


@dataclass(frozen=True)
class DPFedAvgRecord(RecordLevel):
    """Federated averaging of models trained with DP-SGD."""

    title: ClassVar[str] = "federated averaging of models trained with DP-SGD, record level"
    paper: ClassVar[str] = "Abadi et al., CCS 2016; McMahan et al., AISTATS 2017"

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(model=model)
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model, "clip": self.clip})
            server.model = server.model + got.mean("update")

    @sends(lambda self: {"update": Gradients(clip="clip")})
    def local(self, message: Message, me: dict[str, Tensor], data: PrivateRecords) -> Result:
        start = message["global"]
        model = self.trained(start, data)
        return Result(send={"update": model - start}, keep={"model": model}, start=start)
