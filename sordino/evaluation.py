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
    logarithms of probabilities. Whoever trains on too much noise may overflow, and then knows nothing: all classes are
    as likely."""
    labels = [data.test.part(client)[1] for client in who]
    trained = [np.bincount(data.train.part(client)[1].numpy(), minlength=data.classes) for client in who]
    probabilities = torch.softmax(torch.cat(list(said)).cpu().double(), dim=1)
    return sums_of(
        Judged(
            probabilities=probabilities.nan_to_num(nan=1 / data.classes).numpy(),
            labels=torch.cat(labels).numpy(),
            sizes=np.array([len(mine) for mine in labels]),
            trained=np.stack(trained),
        )
    )
