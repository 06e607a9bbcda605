"""Averages of clients' messages and of the server's models, and control variates (SCAFFOLD)."""

from __future__ import annotations

from torch import Tensor

LATER = 3
"""How strongly later rounds count in a mean over rounds: a round's weight grows about with this power of its number
(eta in Shamir and Zhang's polynomial-decay averaging). experiments/blend.toml says what else was tried."""


def by_records(records: Tensor, rows: Tensor) -> Tensor:
    """The mean of the rows, weighted by the clients' numbers of records (FedAvg); zero where there are none."""
    return (records / records.sum() * rows).sum(dim=0)


def over_rounds(before: Tensor | None, models: Tensor, number: int) -> Tensor:
    """The mean of models over all rounds up to round `number` of 1, 2, ..., from the mean `before` that round and the
    `models` after it.

    Noise of single rounds cancels out in it, and nothing but the last mean has to be kept (Shamir and Zhang 2013; under
    differential privacy Shejwalkar and others 2022). Where a server begins to have another number of models, or the
    mean is not finite, all rounds before count as if it had had these.
    """
    if before is None or before.shape != models.shape or not before.isfinite().all():
        return models.clone()
    return before + (LATER + 1) / (LATER + number) * (models - before)


def reach(steps: Tensor | int, rate: float, momentum: float) -> Tensor | float:
    """How far a constant gradient of length one takes a model in so many steps of SGD: K eta without momentum.

    With momentum the k-th last gradient counts (1 - m^k) / (1 - m) times. The way that a model went, divided by this,
    is a weighted mean of the gradients on the way.
    """
    repeated = momentum * (1 - momentum**steps) / (1 - momentum)
    return rate * (steps - repeated) / (1 - momentum)
