"""How well models predict on clients' test records."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sordino.data.dataset import FederatedData
from sordino.learning.metrics import Judged, sums_of


def evaluated(data: FederatedData, who: Sequence[int], said: Sequence[Tensor]) -> np.ndarray:
    """(clients, sums), as `sums_of` gives them, from what models say of each client's test records: logits, or
    logarithms of probabilities."""
    labels = [data.test.part(client)[1] for client in who]
    trained = [np.bincount(data.train.part(client)[1].numpy(), minlength=data.classes) for client in who]
    return sums_of(
        Judged(
            probabilities=torch.softmax(torch.cat(list(said)).cpu().double(), dim=1).numpy(),
            labels=torch.cat(labels).numpy(),
            sizes=np.array([len(mine) for mine in labels]),
            trained=np.stack(trained),
        )
    )
