"""FedAvg's weighted mean, the mean of server models over rounds, and the step length that SCAFFOLD divides by."""

from __future__ import annotations

from torch import Tensor

LATER = 3
"""Exponent of the mean over rounds: a round's weight grows about with this power of its number (eta in Shamir and
Zhang's polynomial-decay averaging). experiments/blend.toml lists the values that were tried."""


def by_records(records: Tensor, rows: Tensor) -> Tensor:
    """Return the mean of the rows, weighted by the clients' numbers of records (FedAvg)."""
    return (records / records.sum() * rows).sum(dim=0)


def over_rounds(before: Tensor | None, models: Tensor, number: int) -> Tensor:
    """Return the running mean of the server's models over the rounds.

    Noise of single rounds averages out, and only the last mean is stored (Shamir and Zhang 2013; under differential
    privacy Shejwalkar and others 2022). It restarts from `models` where the number of models changes or the mean is not
    finite.

    Args:
        before: The mean before this round; None before the first.
        models: The models after this round, one row each.
        number: The number of this round: 1, 2, ....
    """
    if before is None or before.shape != models.shape or not before.isfinite().all():
        return models.clone()
    return before + (LATER + 1) / (LATER + number) * (models - before)


def reach(steps: Tensor | int, rate: float, momentum: float) -> Tensor | float:
    """Return the effective step length of K `steps` of SGD, by which SCAFFOLD divides a model's change: K eta without
    momentum.

    With momentum m the k-th last gradient counts (1 - m^k) / (1 - m) times. A model's total change divided by this
    distance is a weighted mean of its gradients.
    """
    repeated = momentum * (1 - momentum**steps) / (1 - momentum)
    return rate * (steps - repeated) / (1 - momentum)
