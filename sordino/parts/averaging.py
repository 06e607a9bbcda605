"""Averages: of what clients sent, one row each, and of the server's models over the rounds."""

from __future__ import annotations

from torch import Tensor

LATER = 3
"""How strongly later rounds count in a mean over rounds: a round's weight grows about with this power of its number."""


def by_records(records: Tensor, rows: Tensor) -> Tensor:
    """The mean of the rows, weighted by the clients' numbers of records (FedAvg); zero where there are none."""
    return (records / records.sum() * rows).sum(dim=0)


def over_rounds(average: Tensor | None, models: Tensor, rounds: int) -> Tensor:
    """The mean of models over `rounds` rounds, from the mean before the last one and the `models` of the last.

    Noise of single rounds cancels out in it, and nothing but the last mean has to be kept (Shamir and Zhang 2013; under
    differential privacy Shejwalkar and others 2022). Where a server begins to have another number of models, all rounds
    before count as if it had had these.
    """
    if average is None or average.shape != models.shape:
        return models.clone()
    return average + (LATER + 1) / (LATER + rounds) * (models - average)
