"""DP-SCAFFOLD, record level (Noble et al., "Differentially Private Federated Learning on Heterogeneous Data",
AISTATS 2022).

SCAFFOLD whose local gradients are clipped for each record and noised. Model and control variate are made of these noisy
gradients alone, so sending both costs what the gradients cost, and the epsilon holds against the server too.

`sound`: one threshold for a record's whole gradient, fixed or by a rule of one's choice; every step is charged.

`paper`: as in the released code, each tensor of a record's gradient is clipped at a median norm of its own, with noise
in proportion to that median alone. Such a threshold is a function of the records: epsilon is infinite. What the noisy
gradients would cost if thresholds were public is printed beside it, and is more than published: a record can move each
of L tensors by as much as its noise covers, so that the true mu of a step is sqrt(L) times the published one (2
tensors: 1.4 times; the 4 of a perceptron: twice). Here a client's medians are those of all its records at the end of
its last participation, instead of each batch's, and leave as they are; in its first participation all tensors together
have `clip`.

Departures: batches are Poisson-sampled, K is 1/q steps for each epoch, and sampling of clients earns nothing, since the
server knows who takes part. Noise is calibrated for one record whose contents are replaced by nothing (the paper adds
twice as much, for one replaced by another; that epsilon is printed too). The step size is `rate` for any K (the
released code divides by K). There is no warm start: the released one leaves all variates at zero.

| paper | code |
|---|---|
| x, c | `server.model`, `server.variate` |
| y_i, c_i | `model`, `me["variate"]` |
| C, sigma_g, s | `clip`, the multiplier of each client's plan, `batch / records` |
| eta_l, eta_g, K | `rate`, `server.rate`, `data.steps` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sordino.errors import UserError
from sordino.federation.message import Each
from sordino.learning.descent import InPlace
from sordino.method import Federation, Message, Result, Variant
from sordino.methods.bases import RecordClipped
from sordino.parts.averaging import reach
from sordino.parts.record_thresholds import Fixed, RecordThreshold, TensorMedians
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.release import Follows, Gradients, sends


@dataclass(frozen=True)
class DPScaffold(RecordClipped):
    """Noisy local training that is corrected for its drift."""

    title: ClassVar[str] = "SCAFFOLD with DP-SGD at the clients, record level"
    paper: ClassVar[str] = "Noble et al., AISTATS 2022"
    caveats: ClassVar[dict[Variant, str]] = {
        "paper": "every tensor is clipped at the median norm of the client's own records, and has noise for that "
        "alone: with L tensors the true mu is sqrt(L) times the published one",
    }

    optimizer: Literal["sgd"] = "sgd"
    """Control variates are made of steps of SGD."""

    @property
    def threshold(self) -> RecordThreshold:
        """The rule for the clients' thresholds."""
        return TensorMedians() if self.variant == "paper" else self.clipping

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(
            model=model,
            motion=self.server.begin(model),
            variate=torch.zeros_like(model),
            threshold=self.threshold.begin(fed, self.clip),
        )
        for _ in fed.rounds(server):
            message = {"global": server.model, "variate": server.variate, "clip": Each(server.threshold["clips"])}
            got = fed.ask(fed.sample(), self.local, message)
            server.model, server.motion = self.server.step(server.model, got.mean("update"), server.motion)
            server.variate = server.variate + got.mean("change") * (len(got.who) / fed.schedule.clients)
            server.threshold = self.threshold.following(server.threshold, got, fed)

    @sends(
        lambda self: {
            "update": Gradients(clip="clip", separate=self.variant == "paper"),
            "change": Follows("update"),
            **self.threshold.releases(bare=self.variant == "paper"),
        }
    )
    def local(self, message: Message, me: dict[str, Tensor], data: PrivateRecords) -> Result:
        start, correction = message["global"], message["variate"] - me["variate"]
        model, optimizer = start.clone(), InPlace(self.optimizer, self.rate, self.momentum)
        for _ in range(data.steps):
            model = optimizer.step(model, data.gradient(model) + correction)
        change = -message["variate"] - (model - start) / reach(data.steps, self.rate, self.momentum)
        told = self.threshold.tell(start, model, data, bare=self.variant == "paper")
        sent = {"update": model - start, "change": change, **told}
        return Result(send=sent, keep={"model": model, "variate": me["variate"] + change}, start=start)

    def settled(self, clients: int) -> DPScaffold:
        if self.variant == "paper" and not isinstance(self.clipping, Fixed):
            raise UserError(
                "DP-SCAFFOLD was published with the medians of each tensor: in the variant `paper` leave `clipping` "
                "out, or take the variant `sound`."
            )
        return self

    def memory(self, model: Tensor) -> dict[str, Tensor]:
        return {"model": model, "variate": torch.zeros_like(model)}
