"""Averages of what clients sent, one row each."""

from __future__ import annotations

from torch import Tensor


def by_records(records: Tensor, rows: Tensor) -> Tensor:
    """The mean of the rows, weighted by the clients' numbers of records (FedAvg); zero where there are none."""
    return (records / records.sum() * rows).sum(dim=0)
