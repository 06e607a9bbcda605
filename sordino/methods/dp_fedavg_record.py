"""DP-FedAvg, record level: DP-SGD at each client (Abadi et al., "Deep Learning with Differential Privacy", CCS 2016),
plain averaging at the server (McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017).

The common baseline of AdaDP-CFL and PAC-DP. Each client takes noisy gradient steps on Poisson-sampled batches of its
records; what it sends is made of these, so the epsilon holds against the server too. All local steps are charged.

The threshold is fixed, or each client's follows a private quantile of its records' gradient norms (Andrew et al. 2021),
their median (Geyer et al. 2017: epsilon is then infinite), a high percentile of them, followed quickly, or a percentile
of the norms of its noisy gradients (DP-AGR), which costs nothing.

Departures: models are averaged uniformly over the cohort. A client's number of records decides its sampling rate and
its number of steps, so it is treated as public: the epsilon does not hide it.
Batches are Poisson samples in both variants, ceil(1/q) of them an epoch; with `batches = "shuffled"` an epoch is one
pass over dealt records, as most released code makes it, and epsilon has no amplification.

| paper | code |
|---|---|
| C, sigma, q | `server.threshold["clips"]`, the multiplier of each client's plan, `batch / records` |
| E | `epochs`: each has ceil(1/q) steps |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sordino.federation.message import Each
from sordino.method import Federation, Message, Result
from sordino.methods.bases import RecordClipped
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.release import Gradients, sends


@dataclass(frozen=True)
class DPFedAvgRecord(RecordClipped):
    """Federated averaging of models trained with DP-SGD."""

    title: ClassVar[str] = "federated averaging of models trained with DP-SGD, record level"
    paper: ClassVar[str] = "Abadi et al., CCS 2016; McMahan et al., AISTATS 2017"

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
        model = self.trained(start, data)
        sent = {"update": model - start, **self.clipping.tell(start, model, data, bare=False)}
        return Result(send=sent, keep={"model": model}, start=start)
