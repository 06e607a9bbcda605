"""IFCA (Ghosh et al., "An Efficient Framework for Clustered Federated Learning", NeurIPS 2020), without privacy.

The server has k models. In each round every client takes the one of the least loss on its own training records, trains
it and sends what changed; each model moves by the average over those who chose it. Nothing is private: epsilon is
infinite, and says so.

Departures: averages are weighted by numbers of records, as FedAvg's are, so that one model is FedAvg. All models but
the first start from the first one's entries, shuffled within each tensor: other draws of the same initialisation,
without the paper's restarts. The choice is by training loss, as in the paper (PACFL's version looks at test records).

| paper | code |
|---|---|
| k | `clusters` |
| theta_j | `server.models` |
| j-hat | `chosen` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sordino.learning.network import Records
from sordino.method import Count, Federation, Message, Result, State
from sordino.methods.bases import Averaging
from sordino.parts.averaging import by_records
from sordino.parts.clustering import check_count, least_loss, starts
from sordino.privacy.release import Bare, sends


@dataclass(frozen=True)
class IFCA(Averaging):
    """Every client trains the model that suits it best."""

    title: ClassVar[str] = "k models; every client trains the one of least loss, without privacy"
    paper: ClassVar[str] = "Ghosh et al., NeurIPS 2020"

    clusters: Count = 2
    """Number of models: k. Paper: 2 to 4, as many as there are groups."""

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(
            models=lambda: starts(model, self.clusters, fed.layout, fed.random("starts")),
            motion=self.server.begin(model.repeat(self.clusters, 1)),
            chosen=torch.zeros(fed.schedule.clients, dtype=torch.int64),
        )
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"models": server.models})
            records, updates = got.rows("records"), got.rows("update")
            chosen = got.rows("chosen").squeeze(1).long()
            server.chosen = server.chosen.index_copy(0, torch.as_tensor(list(got.who)), chosen)
            for number in chosen.unique().tolist():
                change = by_records(records[chosen == number], updates[chosen == number])
                server.models, server.motion = self.server.step_row(server.models, number, change, server.motion)

    @sends(
        lambda self: {
            "update": Bare("IFCA sends each client's update as it is"),
            "records": Bare("IFCA sends each client's number of records"),
            "chosen": Bare("IFCA sends which model suits a client best"),
        }
    )
    def local(self, message: Message, me: dict[str, Tensor], data: Records) -> Result:
        descent = self.descent(data)
        start, chosen = least_loss(message["models"], data)
        model = start
        for _ in range(self.epochs):
            model = descent.epoch(model)
        sent = {"update": model - start, "records": data.count, "chosen": chosen}
        return Result(send=sent, keep={"model": model}, start=start)

    def settled(self, clients: int) -> IFCA:
        check_count(self.clusters, clients)
        return self

    def shared_models(self, state: State, clients: int) -> tuple[Tensor, Tensor]:
        return state.models, state.chosen
