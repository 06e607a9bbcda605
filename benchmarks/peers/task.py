"""A workload as a peer sees it: what arrived as JSON, the records it stands for, its network and its optimizer."""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch
from networks import CLASSES, NETWORKS
from torch import nn

NOISE_MULTIPLIER = 1.0
CLIP = 0.5
"""The largest L2 norm of a client's update."""
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


@dataclass(frozen=True)
class Task:
    """The fields of `workloads.Workload` that local training depends on, under the same names."""

    clients: int
    records: int
    shape: tuple[int, ...]
    cohort: int
    network: str
    batch: int
    optimizer: str
    rate: float
    epochs: int

    @classmethod
    def read(cls, text: str) -> Task:
        """From a JSON object."""
        given = json.loads(text)
        return cls(**given | {"shape": tuple(given["shape"])})

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The records of all clients, (clients, records, *shape), and their labels: those of `Workload.tensors`."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(self.clients, self.records, *self.shape, generator=generator)
        return x, torch.randint(0, CLASSES, (self.clients, self.records), generator=generator)

    def module(self) -> nn.Module:
        """The network, freshly made."""
        torch.manual_seed(0)
        return NETWORKS[self.network]()
