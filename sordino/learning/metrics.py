"""Container for metrics per client (`ClientMetrics`), with the sums from which a task derives the pooled metrics.

The metrics themselves are defined by each `Task`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sordino.data.dataset import FederatedData
from sordino.tasks import Task


@dataclass(frozen=True)
class ClientMetrics:
    """Metrics of some clients."""

    each: np.ndarray
    """(clients, metrics), with the columns `Task.metrics`."""
    sums: np.ndarray
    """(sums,): those of `Task.sums`, added up over the clients."""

    def overall(self, task: Task) -> np.ndarray:
        """(metrics,) over all records of the clients together."""
        return np.asarray(task.figures(self.sums[np.newaxis])[0])

    @classmethod
    def joined(cls, parts: Sequence[ClientMetrics]) -> ClientMetrics:
        """The metrics of several groups of clients as one, rows in the given order."""
        return cls(np.concatenate([part.each for part in parts]), np.sum([part.sums for part in parts], axis=0))


def sums_on_test_records(data: FederatedData, who: Sequence[int], outputs: Sequence[Tensor]) -> np.ndarray:
    """(clients, sums): `Task.sums` on the test records of the clients `who`.

    `outputs` holds for each of them what its model gives for its test records, (records, width).
    """
    targets = [data.test.part(client)[1] for client in who]
    return data.task.sums(
        torch.cat(list(outputs)).cpu(),
        torch.cat(targets),
        np.array([len(mine) for mine in targets]),
        [data.train.part(client)[1].numpy() for client in who],
    )
