"""Epsilon of a record over several runs, where each run only tells which recipes its records may have gone through.

A recipe is a list of (sampling rate, noise multiplier, number of steps). The result is the worst case over all choices.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from sordino.privacy.accounting.gaussian import epsilon_of
from sordino.privacy.accounting.loss_distribution import (
    MAX_EXPONENT,
    ROUNDOFF,
    Losses,
    Masses,
    compose,
    compose_masses,
)
from sordino.privacy.accounting.sampled_gaussian import Recipe, record_epsilon

MAX_COMBINATIONS = 64
"""Largest number of combinations of recipes that are worked out one by one."""
BINS = 2**14
"""Number of grid steps into which the largest losses of all runs, squared and added up, are divided."""
MAX_ENVELOPE_LOSS = MAX_EXPONENT / 2
"""The largest loss of an envelope: the exponentials of its losses, times the smallest masses, are numbers too."""
UNBOUNDED = Losses(np.ones(1), np.zeros(1), 1.0)
"""Losses without a bound."""
Run = tuple[Recipe, ...]
"""Possible recipes of the records of one run: each record went through one of them."""


@functools.lru_cache(maxsize=1024)
def dearest_epsilon(runs: tuple[Run, ...], delta: float) -> float:
    """Largest epsilon of one record (zero-out neighbours) over all choices of one recipe from each run."""
    runs = tuple(tuple(sorted({merge_recipes([recipe]) for recipe in run})) for run in runs)
    runs = tuple(run for run in runs if any(run))
    if len(runs) == 1 or math.prod(len(run) for run in runs) <= MAX_COMBINATIONS:
        return max(record_epsilon(merge_recipes(chosen), delta) for chosen in itertools.product(*runs))
    if any(multiplier == 0 for run in runs for recipe in run for _, multiplier, _ in recipe):
        return math.inf
    enveloped = max(losses.epsilon(delta) for losses in _compose_envelopes(runs, delta))
    if math.isinf(enveloped):  # epsilons and deltas add up
        enveloped = sum(max(record_epsilon(recipe, delta / len(runs)) for recipe in run) for run in runs)
    return min(_unsampled_epsilon(runs, delta), enveloped)


def merge_recipes(recipes: Sequence[Recipe]) -> Recipe:
    """Merge several recipes into one, as if one followed the other."""
    counts: dict[tuple[float, float], int] = {}
    for rate, multiplier, count in (charge for recipe in recipes for charge in recipe if charge[2]):
        counts[rate, multiplier] = counts.get((rate, multiplier), 0) + int(count)
    return tuple((rate, multiplier, count) for (rate, multiplier), count in sorted(counts.items()))


def _unsampled_epsilon(runs: Sequence[Run], delta: float) -> float:
    """Epsilon if every record entered every batch: each run is then dominated by its dearest Gaussian."""
    squares = [max(sum(count / z**2 for _, z, count in recipe) for recipe in run) for run in runs]
    return epsilon_of(math.sqrt(math.fsum(squares)), delta)


def _compose_envelopes(runs: Sequence[Run], delta: float) -> list[Losses]:
    """Losses of all runs' envelopes together, for a removed and for an added record."""
    certain = merge_recipes([run[0] for run in runs if len(run) == 1])
    kinds = Counter(run for run in (*(run for run in runs if len(run) > 1), (certain,)) if any(run))
    known = [[compose(recipe, delta / len(runs)) for recipe in run if recipe] for run in kinds]
    widest = [max(float(one.loss[-1]) for pair in pairs for one in pair) for pairs in known]
    grid = math.sqrt(sum(count * wide**2 for wide, count in zip(widest, kinds.values(), strict=True))) / BINS
    if max(widest) > MAX_ENVELOPE_LOSS:
        return [UNBOUNDED]
    both = [_envelopes(pairs, wide, grid) for pairs, wide in zip(known, widest, strict=True)]
    directions = [[pair[direction] for pair in both] for direction in (0, 1)]
    if any(one.infinite >= 1 for masses in directions for one in masses):
        return [UNBOUNDED]
    return [compose_masses(masses, list(kinds.values()), grid, delta) for masses in directions]


def _envelopes(pairs: Sequence[tuple[Losses, Losses]], widest: float, grid: float) -> tuple[Masses, Masses]:
    """Envelope of a run's recipes for a removed and for an added record."""
    steps = math.ceil(widest / grid)
    at = np.arange(steps + 1) * grid
    removed, added = (np.max([upper_deltas(pair[direction], at) for pair in pairs], axis=0) for direction in (0, 1))
    removed[0] = added[0] = min(removed[0], added[0])  # at epsilon = 0 the two are one: the total variation
    return _envelope(removed, added, grid), _envelope(added, removed, grid)


def upper_deltas(losses: Losses, at: np.ndarray) -> np.ndarray:
    """Delta for each epsilon of `at`, roundings included."""
    deltas, doubt = _deltas(losses.loss, losses.mass, at)
    return np.minimum(losses.infinite + deltas + doubt, 1.0)


def _deltas(loss: np.ndarray, mass: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Part of delta that finite losses make, for each epsilon of `at`, and the largest error of rounding in it.

    It is A - exp(epsilon) B, with A the mass of losses above epsilon and B what that is under Q. The second term is
    never above the first, and roundings are in proportion to that.
    """
    above, other = (np.append(np.cumsum(part[::-1])[::-1], 0.0) for part in (mass, mass * np.exp(-loss)))
    place = np.searchsorted(loss, at, side="right")
    return above[place] - np.exp(at) * other[place], ROUNDOFF * (4 * len(loss) + 16 * MAX_EXPONENT) * above[place]


def _envelope(deltas: np.ndarray, opposite: np.ndarray, grid: float) -> Masses:
    """Masses whose delta is nowhere below `deltas`, which are those of the grid's multiples from zero on; `opposite`
    are the same with P and Q exchanged."""
    steps, infinite = len(deltas) - 1, float(deltas[-1])
    at = np.arange(-steps, steps + 1) * grid
    upper, lower = _bends(deltas, grid), _bends(opposite, grid)[::-1] * np.exp(at[:steps])
    middle = max(0.0, 1 - infinite - math.fsum(upper) - math.fsum(lower))
    mass = np.concatenate([lower, [middle], upper])
    wanted = np.concatenate([[1.0], 1 - np.exp(at[:steps]) * (1 - opposite[:0:-1]), deltas])
    made, doubt = _deltas(at, mass, at)
    lacking = wanted - infinite - np.append(mass.sum(), made)
    return Masses(-steps, mass, infinite + max(0.0, float(lacking.max())) + float(doubt.max()))


def _bends(deltas: np.ndarray, grid: float) -> np.ndarray:
    """Mass at each grid point but the first that changes the slope of the delta curve there, which is linear in
    exp(epsilon) between grid points and constant beyond the last."""
    rises = np.diff(deltas)
    return np.maximum(np.append(rises[1:], 0.0) / math.expm1(grid) + rises / math.expm1(-grid), 0.0)
