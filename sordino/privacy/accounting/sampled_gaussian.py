"""Epsilon of Poisson-sampled noisy gradients, for one record."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np
from scipy.special import gammaln, logsumexp

from sordino.privacy.accounting.gaussian import attack_accuracy, epsilon_of
from sordino.privacy.accounting.loss_distribution import Sampled, compose

Recipe = tuple[Sampled, ...]
ORDERS = np.array([*range(2, 64), 96, 160, 320, 640])
"""Orders of the Renyi divergences of the quick bound."""
ROWS = (3, 5)
"""Numbers of rows of one person for which reports give an upper bound of epsilon."""


@functools.lru_cache(maxsize=65536)
def record_epsilon(recipe: Recipe, delta: float) -> float:
    """Epsilon of one record of a client, there or emptied, whose records went through `recipe`."""
    recipe = tuple(charge for charge in recipe if charge[2] > 0)
    if not recipe:
        return 0.0
    if any(multiplier == 0 for _, multiplier, _ in recipe):
        return math.inf
    unsampled = epsilon_of(_mu_without_sampling(recipe), delta)
    if all(rate == 1 for rate, _, _ in recipe):
        return unsampled
    exact = _by_distribution(recipe, delta)
    # Where delta is too small for the rounding of Fourier transforms, the quicker bound is given.
    return min(unsampled, exact if math.isfinite(exact) else quick_record_epsilon(recipe, delta))


def quick_record_epsilon(recipe: Recipe, delta: float) -> float:
    """An upper bound of `record_epsilon` by Renyi divergences: at once for a kind of step that was seen before, a few
    percent larger."""
    kinds = [(rate, multiplier, count) for rate, multiplier, count in recipe if count > 0]
    if not kinds:
        return 0.0
    divergence = sum(count * _divergences(rate, multiplier) for rate, multiplier, count in kinds)
    # Canonne, Kamath, Steinke 2020, Proposition 12.
    found = divergence + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return max(0.0, float(found.min()))


@functools.lru_cache(maxsize=65536)
def _divergences(rate: float, multiplier: float) -> np.ndarray:
    """The Renyi divergence of one sampled Gaussian at each of `ORDERS` (Mironov, Talwar, Zhang 2019, section 3.3)."""
    if rate == 1:
        return ORDERS / (2 * multiplier**2)
    order, hits = ORDERS[:, None], np.arange(ORDERS[-1] + 1)
    with np.errstate(invalid="ignore"):
        ways = gammaln(order + 1) - gammaln(hits + 1) - gammaln(order - hits + 1)
        terms = ways + hits * math.log(rate) + (order - hits) * math.log1p(-rate)
        terms = terms + (hits * hits - hits) / (2 * multiplier**2)
    moments = logsumexp(np.where(hits <= order, terms, -np.inf), axis=1)
    return np.maximum(moments, 0.0) / (ORDERS - 1)


def replace_one(recipe: Recipe) -> Recipe:
    """The recipe whose `record_epsilon` holds for one replaced record."""
    return tuple((rate, multiplier / 2, count) for rate, multiplier, count in recipe)


def rows_epsilon(pools: Sequence[Recipe], rows: int, delta: float) -> float:
    """An upper bound of the epsilon of one person's `rows` rows at one client, all of them emptied at once.

    `pools` are the recipes of the client's pools of records; which rows lie in which is not known. The noise of a step
    is the sum of k draws with variance z^2 / k, one beside each of k rows' contributions: k sampled steps of multiplier
    z / sqrt(k) tell all that it does.
    """
    ways = itertools.combinations_with_replacement(pools, rows)
    whole = ([_of_rows(pool, way.count(pool)) for pool in dict.fromkeys(way)] for way in ways)
    return max((record_epsilon(tuple(itertools.chain(*one)), delta) for one in whole), default=0.0)


def _of_rows(recipe: Recipe, rows: int) -> Recipe:
    return tuple((rate, multiplier / math.sqrt(rows), count * rows) for rate, multiplier, count in recipe)


@functools.lru_cache(maxsize=65536)
def record_attack_accuracy(recipe: Recipe) -> float:
    """The balanced accuracy of the best attacker who must tell whether a record is there: (1 + delta(0)) / 2."""
    recipe = tuple(charge for charge in recipe if charge[2] > 0)
    if not recipe:
        return 0.5
    if any(multiplier == 0 for _, multiplier, _ in recipe):
        return 1.0
    unsampled = attack_accuracy(_mu_without_sampling(recipe))
    if all(rate == 1 for rate, _, _ in recipe):
        return unsampled
    return min(unsampled, max((1 + losses.delta()) / 2 for losses in compose(recipe, 1e-5)))


def _mu_without_sampling(recipe: Recipe) -> float:
    """The mu of the recipe if every record entered every batch: never smaller than the truth."""
    return math.sqrt(sum(count / multiplier**2 for _, multiplier, count in recipe))


def _by_distribution(recipe: Recipe, delta: float) -> float:
    return max(losses.epsilon(delta) for losses in compose(recipe, delta))
