"""SCAFFOLD (Karimireddy et al., "Stochastic Controlled Averaging for Federated Learning", ICML 2020), without privacy.

Clients whose data differ drift apart while they train. Each keeps a control variate c_i, the mean gradient on its last
way, and the server c, the mean of all c_i; every local step is corrected by c - c_i, so that all move in everybody's
direction. Nothing is private: epsilon is infinite, and says so.

Departures: the change of c_i follows from the update, c and the number of steps (option II of the paper), so the server
computes it instead of being sent it. With momentum c_i is divided by what momentum really adds up to, not by K eta:
PACFL's implementation, which does not, makes c_i too large by 1 / (1 - momentum). The server's c moves by the sum of
changes over all N clients; PACFL's divides by those who took part. The global step size is 1 by default, as in
the paper's experiments.

| paper | code |
|---|---|
| x, c | `server.model`, `server.variate` |
| y_i, c_i | `model`, `me["variate"]` |
| eta_l, eta_g, K | `rate`, `server.rate`, `steps` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sordino.learning.network import Records
from sordino.method import Federation, Message, Result
from sordino.methods.bases import Averaging
from sordino.parts.averaging import reach
from sordino.privacy.release import Bare, sends


@dataclass(frozen=True)
class Scaffold(Averaging):
    """Local training that is corrected for its drift."""

    title: ClassVar[str] = "control variates keep clients from drifting apart, without privacy"
    paper: ClassVar[str] = "Karimireddy et al., ICML 2020"

    optimizer: Literal["sgd"] = "sgd"
    """Control variates are made of steps of SGD."""

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(model=model, motion=self.server.begin(model), variate=torch.zeros_like(model))
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model, "variate": server.variate})
            updates = got.rows("update")
            changes = self._change(updates, server.variate, got.rows("steps"))
            server.model, server.motion = self.server.step(server.model, updates.mean(dim=0), server.motion)
            server.variate = server.variate + changes.sum(dim=0) / fed.schedule.clients

    @sends(
        lambda self: {
            "update": Bare("SCAFFOLD sends each client's update as it is"),
            "steps": Bare("how many steps a client takes tells how many records it has"),
        }
    )
    def local(self, message: Message, me: dict[str, Tensor], data: Records) -> Result:
        descent, correction = self.descent(data), message["variate"] - me["variate"]
        start = model = message["global"]
        for _ in range(self.epochs):
            model = descent.epoch(model, pull=lambda _: correction)
        steps = self.epochs * torch.ceil(data.count / self.batch)
        variate = me["variate"] + self._change(model - start, message["variate"], steps)
        sent = {"update": model - start, "steps": steps}
        return Result(send=sent, keep={"model": model, "variate": variate}, start=start)

    def memory(self, model: Tensor) -> dict[str, Tensor]:
        return {"model": model, "variate": torch.zeros_like(model)}

    def _change(self, update: Tensor, variate: Tensor, steps: Tensor) -> Tensor:
        """Return c_i^+ - c_i = -c + (x - y_i) / (K eta_l)."""
        return -variate - update / reach(steps, self.rate, self.momentum)
