"""Sums over test records of how far predicted numbers err, and the figures that follow from them, noise included.

With an error e and a target y in scaled units, both held to LIMIT (half the declared range, or three deviations where
one is declared), t = e / LIMIT and s = y / LIMIT, the row of a record has the entries 1, |t|, t^2, t^4, t, s and s^2,
and one that says whether the error is at most NEAR, each times the root of its share of the norm: no row is longer
than one. A record within NEAR has small errors, which leaves room for that entry.

95 % intervals hold the noise (to first order) and what few records leave open, of which they say more where noise
hides it: fourth powers bound how much squares vary.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from sordino.tasks.intervals import DROWNED, SURE, UNCOUNTED, Figure, Released, noise_variance, share_with_noise

LIMIT = 3.0
"""Scaled error, and scaled target, from which on larger ones count as this."""
NEAR = 0.6
"""Scaled error up to which a prediction counts as near: a tenth of the range, unless a deviation is declared."""
SHARES = np.array([0.04, 0.1, 0.36, 0.05, 0.08, 0.07, 0.3])
"""Shares of a row's squared norm for 1, |t|, t^2, t^4, t, s and s^2, where all of them are as large as they can be."""
ROOM = float((1 - (NEAR / LIMIT) ** 2) * SHARES[1:5].sum())
"""Share that is left for the last entry, in records of which t is at most NEAR / LIMIT."""
WEIGHTS = np.sqrt(np.append(SHARES, ROOM))
ENTRIES = len(WEIGHTS)
FEW = 0.2
"""Noise on the number of records, over that number, from which on no figure is told: all are divided by it, and those
with more would be told only where it came out too large."""


def rows_of(errors: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """float32 (records, ENTRIES): rows of scaled errors and targets."""
    t, s = (np.clip(one / LIMIT, -1, 1) for one in (errors, targets))
    columns = (np.ones_like(t), np.abs(t), t**2, t**4, t, s, s**2, np.abs(errors) <= NEAR)
    return (np.stack(columns, axis=1) * WEIGHTS).astype(np.float32)


def records_of(sums: np.ndarray) -> float:
    """Number of records in a noisy sum of rows."""
    return float(sums[0] / WEIGHTS[0])


def true_figures(errors: np.ndarray, targets: np.ndarray, weights: np.ndarray, size: float) -> dict[str, float | None]:
    """Figures of all errors as they are; arguments as those of `rows_of`, `size` is the unit of one scaled unit."""
    whole = weights / weights.sum()
    squares = float((whole * errors**2).sum())
    varies = float((whole * (targets - (whole * targets).sum()) ** 2).sum())
    return {
        "r2": 1 - squares / varies if varies > 0 else None,
        "rmse": math.sqrt(squares) * size,
        "mae": float((whole * np.abs(errors)).sum()) * size,
        "bias": float((whole * errors).sum()) * size,
        "near": float(whole[np.abs(errors) <= NEAR].sum()),
    }


def figures_of(released: Released, size: float) -> dict[str, Figure | None]:
    """Figures from noisy sums of rows; None where the noise drowns what a figure is about."""
    found: dict[str, Figure | None] = dict.fromkeys(("r2", "rmse", "mae", "bias", "near"))
    if not released.deviation < FEW * released.counts[0]:
        return found
    records = records_of(released.counts) if released.records else UNCOUNTED

    def moment(place: int) -> Callable[[np.ndarray], float]:
        return lambda sums: float(sums[place] / WEIGHTS[place] / (sums[0] / WEIGHTS[0]))

    value = [moment(place)(released.counts) for place in range(ENTRIES)]
    noise = [noise_variance(released, moment(place)) for place in range(ENTRIES)]
    # |t| <= 1: each power is at most the one before.
    most_squares = min(1.0, max(0.0, value[2]) + SURE * math.sqrt(noise[2]))
    most_fourths = min(most_squares, max(0.0, value[3]) + SURE * math.sqrt(noise[3]))
    found["bias"] = _figure(value[4], noise[4] + most_squares / records, LIMIT * size)
    found["near"] = share_with_noise(value[7], records, noise[7])
    if math.sqrt(noise[1]) < DROWNED * value[1]:
        spread = noise[1] + max(0.0, most_squares - value[1] ** 2) / records
        found["mae"] = _figure(value[1], spread, LIMIT * size, least=0.0)
    if not math.sqrt(noise[2]) < DROWNED * value[2]:
        return found
    varies = max(0.0, most_fourths - value[2] ** 2) / records
    squares = _figure(value[2], noise[2] + varies, 1.0, least=0.0)
    found["rmse"] = Figure(*(math.sqrt(end) * LIMIT * size for end in (squares.value, squares.low, squares.high)))
    found["r2"] = _explained(released, varies, records)
    return found


def _explained(released: Released, varies: float, records: float) -> Figure | None:
    """R^2 with its interval; `varies` is the variance of the mean square that few records leave open."""

    def variance(sums: np.ndarray) -> float:
        mean, squares = (sums[place] / WEIGHTS[place] / (sums[0] / WEIGHTS[0]) for place in (5, 6))
        return float(squares - mean**2)

    def explained(sums: np.ndarray) -> float:
        return 1 - float(sums[2] / WEIGHTS[2] / (sums[0] / WEIGHTS[0])) / variance(sums)

    held = variance(released.counts)
    if not math.sqrt(noise_variance(released, variance)) < DROWNED * held:
        return None
    mean = released.counts[5] / WEIGHTS[5] / (released.counts[0] / WEIGHTS[0])
    value = explained(released.counts)
    # Squared distances from the mean lie between 0 and this, and vary most at the two ends (Bhatia and Davis 2000).
    farthest = (1 + min(1.0, abs(float(mean)))) ** 2
    open_ = math.sqrt(varies) / held + (1 - value) / held * math.sqrt(held * max(0.0, farthest - held) / records)
    return _figure(value, noise_variance(released, explained) + open_**2, 1.0, most=1.0)


def _figure(value: float, variance: float, unit: float, least: float = -math.inf, most: float = math.inf) -> Figure:
    """A figure with an interval of 1.96 deviations, held to its limits, in a unit."""
    away = SURE * math.sqrt(variance)
    value = min(most, max(least, value))
    return Figure(value * unit, max(least, value - away) * unit, min(most, value + away) * unit)
