"""What is measured: the workloads, each as data, a network and the keys of an experiment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from sordino import models
from sordino.data import FederatedData
from sordino.data.dataset import Dealt, Split
from sordino.tasks import Classification

CLASSES = 10


@dataclass(frozen=True)
class Workload:
    """Local training at some of many clients, again and again."""

    name: str
    about: str
    clients: int
    records: int
    """Training records of each client."""
    shape: tuple[int, ...]
    cohort: int
    """Clients in a round."""
    network: str
    batch: int
    optimizer: str
    rate: float
    rounds: int
    """How many rounds one measurement takes."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of the network."""
    method: str = "dp-fedavg"
    epochs: int = 1

    @property
    def samples(self) -> int:
        """Records trained on in one round."""
        return self.cohort * self.records * self.epochs

    def module(self) -> nn.Module:
        """The network, freshly made."""
        torch.manual_seed(0)
        return models.build(self.network, self.shape, CLASSES, **self.options)

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Generated records: (clients, records, *shape) and their labels."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(self.clients, self.records, *self.shape, generator=generator)
        return x, torch.randint(0, CLASSES, (self.clients, self.records), generator=generator)

    def data(self) -> FederatedData:
        """The same records, dealt to clients; each has two for testing."""
        x, y = self.tensors()
        starts = np.arange(self.clients) * self.records
        train, test = (
            Split(x.flatten(0, 1), y.flatten(), starts, np.full(self.clients, count)) for count in (self.records, 2)
        )
        people = Dealt([f"client-{place}" for place in range(self.clients)], train, test)
        return FederatedData(
            "generated",
            people,
            Classification.numbered(CLASSES),
            self.shape,
            f"generated-{self.clients}x{self.records}",
        )

    def keys(self) -> dict[str, Any]:
        """Those of the experiment: client-level privacy, and evaluated at the end only, as the bare loops are not."""
        settings = {"epochs": self.epochs, "batch": self.batch, "optimizer": self.optimizer, "rate": self.rate}
        return {
            "method": self.method,
            "model": self.network,
            "participation": self.cohort / self.clients,
            "rounds": self.rounds,
            "noise_multiplier": 1.0,
            "evaluate_every": 10**9,
            "set": settings | {f"model.{name}": value for name, value in self.options.items()},
        }


W1 = Workload(
    name="W1",
    about="100 clients x 300 images 1x28x28, 10 a round, LeNet, batch 20, SGD, one epoch",
    clients=100,
    records=300,
    shape=(1, 28, 28),
    cohort=10,
    network="lenet",
    batch=20,
    optimizer="sgd",
    rate=0.05,
    rounds=20,
)
W2 = Workload(
    name="W2",
    about="10 clients x 600 images 1x28x28, all a round, CNN 32/64 + fc 9216-128-10, batch 16, Adam, one epoch",
    clients=10,
    records=600,
    shape=(1, 28, 28),
    cohort=10,
    network="cnn",
    batch=16,
    optimizer="adam",
    rate=1e-3,
    rounds=3,
    options={"dropout": False},
)
W3 = Workload(
    name="W3",
    about="1000 clients x 20 rows of 64 features, 100 a round, MLP 64-64-10, batch 10, SGD, one epoch",
    clients=1000,
    records=20,
    shape=(64,),
    cohort=100,
    network="mlp",
    batch=10,
    optimizer="sgd",
    rate=0.05,
    rounds=300,
)
WORKLOADS = {workload.name: workload for workload in (W1, W2, W3)}
