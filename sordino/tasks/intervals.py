"""Figures with 95 % intervals, of records and of noisy sums over records.

Intervals of figures of records are Wilson's for shares (Wilson 1927) and Newcombe's for the area under the curve
(method 5, Newcombe 2006). Those of noisy sums hold the noise, too, to first order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

SURE = 1.959963984540054
"""Standard deviations on both sides of a normal's mean that hold 95 % of it."""
DROWNED = 0.5
"""Noise on the number of records that a figure is about, over that number, from which on the figure is withheld."""

UNCOUNTED = 1e9
"""Records that a figure is taken to be about where clients count as one each: what few leave open is not told."""


@dataclass(frozen=True)
class Figure:
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Released:
    """Sums over records of the entries of their rows, or means, with noise: of classes, counts of cells."""

    counts: np.ndarray
    """(entries,)."""
    deviation: float
    """Standard deviation of the noise on each."""
    records: bool
    """Whether these are sums over records; else they are means, each client's records counting as one."""


def wilson(hits: float, total: float) -> Figure:
    """Share of hits with Wilson's interval; of no records, nothing is known: 0 to 1."""
    if total <= 0:
        return Figure(math.nan, 0.0, 1.0)
    share, square = hits / total, SURE**2
    middle = (share + square / (2 * total)) / (1 + square / total)
    half = SURE / (1 + square / total) * math.sqrt(share * (1 - share) / total + square / (4 * total**2))
    return Figure(share, max(0.0, min(middle - half, share)), min(1.0, max(middle + half, share)))


def auc_figure(value: float, inside: float, outside: float, more: float = 0.0) -> Figure:
    """Area under the curve with Newcombe's interval (method 5), which has a width for an area of 1, too: its ends are
    the areas that lie 1.96 of their own standard deviations away.

    Args:
        value: The area.
        inside: Number of records of the class.
        outside: Number of other records.
        more: Variance that comes on top, as of noise on the counts.
    """
    middle = (inside + outside) / 2 - 1

    def away(area: float) -> float:
        spread = 1 + middle * (1 - area) / (2 - area) + middle * area / (1 + area)
        return (value - area) ** 2 - SURE**2 * (area * (1 - area) * spread / (inside * outside) + more)

    return Figure(value, _root(away, 0.0, value), _root(away, 1.0, value))


def _root(away: Callable[[float], float], far: float, near: float) -> float:
    """Point between `near`, where `away` is not positive, and `far` at which it becomes zero; `far` where it stays
    below."""
    if away(far) <= 0:
        return far
    for _ in range(60):
        middle = (near + far) / 2
        near, far = (middle, far) if away(middle) <= 0 else (near, middle)
    return (near + far) / 2


def area(scores: np.ndarray, members: np.ndarray) -> float:
    """Share of pairs in which a member has a higher score than another record; equal scores count half (Mann and
    Whitney 1947)."""
    order, inside = np.sort(scores[~members]), scores[members]
    below, up_to = np.searchsorted(order, inside, "left"), np.searchsorted(order, inside, "right")
    return float((below + up_to).mean() / (2 * len(order)))


def is_known(released: Released, cells: Sequence[int]) -> bool:
    """Whether the noise on the sum of some cells is small against it."""
    total = float(released.counts[list(cells)].sum())
    return released.deviation * math.sqrt(len(cells)) < DROWNED * total


def share_figure(released: Released, figure: Callable[[np.ndarray], float], cells: Sequence[int]) -> Figure | None:
    """A share of the records in some cells, with an interval like Wilson's that holds the noise, too; None where noise
    drowns them."""
    if not is_known(released, cells):
        return None
    total = float(released.counts[list(cells)].sum()) if released.records else UNCOUNTED
    return share_with_noise(figure(released.counts), total, noise_variance(released, figure))


def share_with_noise(share: float, total: float, noise: float) -> Figure:
    """A share of so many records, with an interval like Wilson's that holds noise of a variance, too."""
    value, square = min(1.0, max(0.0, share)), SURE**2
    # The shares that lie 1.96 of their own deviations away: (value - q)^2 = SURE^2 (q (1 - q) / n + noise).
    middle = (value + square / (2 * total)) / (1 + square / total)
    rest = (value**2 - square * noise) / (1 + square / total)
    half = math.sqrt(max(0.0, middle**2 - rest))
    return Figure(value, max(0.0, min(value, middle - half)), min(1.0, max(value, middle + half)))


def noise_variance(released: Released, figure: Callable[[np.ndarray], float]) -> float:
    """Variance of a figure by the noise on the counts, to first order."""
    if not released.deviation:
        return 0.0
    counts = released.counts
    step = 1e-4 * max(released.deviation, 1e-9)
    slopes = []
    for cell in range(len(counts)):
        moved = counts.copy()
        moved[cell] += step
        back = counts.copy()
        back[cell] -= step
        slopes.append((figure(moved) - figure(back)) / (2 * step))
    return float(np.square(slopes).sum()) * released.deviation**2
