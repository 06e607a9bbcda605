"""Epsilon of Poisson-sampled noisy gradients, for one record and for several of one person."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import gammaln, logsumexp

from sordino.privacy.accounting.dominating_pairs import RecordPair, ReplacedPair, RowsPair
from sordino.privacy.accounting.gaussian import attack_accuracy, epsilon_of
from sordino.privacy.accounting.loss_distribution import Sampled, Steps, compose, compose_pairs

Recipe = tuple[Sampled, ...]
ORDERS = np.array([*range(2, 64), 96, 160, 320, 640])
"""Orders of the Renyi divergences of the quick bound."""
ROWS = (3, 5)
"""Numbers of rows of one person for which reports give epsilon."""


@functools.lru_cache(maxsize=65536)
def record_epsilon(recipe: Recipe, delta: float) -> float:
    """Epsilon of one record, present or with its contribution replaced by zero, of a client whose records went through
    `recipe`."""
    steps = [(RecordPair(rate, multiplier), count) for rate, multiplier, count in recipe]
    return _epsilon(steps, delta, lambda: quick_record_epsilon(recipe, delta))


@functools.lru_cache(maxsize=65536)
def replaced_epsilon(recipe: Recipe, delta: float) -> float:
    """Epsilon of one record replaced by another, of a client whose records went through `recipe`.

    Each step is (1-q) N(0, z^2) + q N(1, z^2) against (1-q) N(0, z^2) + q N(-1, z^2), which is the truth for two
    opposite contributions and dominates all others (`dominating_pairs`). Without sampling, mu is doubled.
    """
    steps = [(ReplacedPair(rate, multiplier), count) for rate, multiplier, count in recipe]
    return _epsilon(steps, delta, lambda: _quick_replaced_epsilon(recipe, delta))


@functools.lru_cache(maxsize=65536)
def person_epsilon(parts: tuple[tuple[Recipe, int], ...], delta: float) -> float:
    """Epsilon of one person, all of whose contributions are replaced by zero at once.

    Args:
        parts: recipes that the person's contributions went through, each with the largest number k of them that may
            enter one of its sums. All k share the noise of a step, and each enters by a coin of its own with the
            recipe's rate or a smaller one. Parts have noise of their own, and compose.
        delta: delta at which epsilon holds.

    A person with k rows at a client, or known to k clients whose contributions are summed up under one noise, is
    ((recipe, k),): each step costs a mixture of Gaussians with means 0 to k and weights Binomial(k, q)
    (`dominating_pairs`), which is exact. For an observer who sees each of k clients' messages it is k parts
    (recipe, 1).
    """
    steps = [
        (RowsPair(rate, multiplier, contributions) if contributions > 1 else RecordPair(rate, multiplier), count)
        for recipe, contributions in parts
        for rate, multiplier, count in recipe
        if contributions
    ]
    spread = tuple(itertools.chain(*(spread_noise(recipe, contributions) for recipe, contributions in parts)))
    return _epsilon(steps, delta, lambda: quick_record_epsilon(spread, delta))


@functools.lru_cache(maxsize=65536)
def sites_epsilon(recipes: tuple[Recipe, ...], sites: int, delta: float) -> float:
    """Epsilon of one person who is known to up to `sites` clients, all of whose contributions are replaced by zero at
    once.

    Args:
        recipes: recipes that contributions of the person may have gone through, of all clients and of all pools: which
            clients know it, and in which pool it is there, nobody says.
        sites: largest number of clients that know it.
        delta: delta at which epsilon holds.

    Observers see either the sum of all contributions under one noise, or each client's message by itself: the larger of
    the two costs counts.
    """
    if sites == 1:
        return max((record_epsilon(recipe, delta) for recipe in recipes), default=0.0)
    return min((_at_sites(recipe, sites, delta) for recipe in cover_recipes(recipes)), default=0.0)


def _at_sites(recipe: Recipe, sites: int, delta: float) -> float:
    """Epsilon of a person, each of whose contributions at `sites` clients goes through the same recipe."""
    apart = tuple((rate, multiplier, count * sites) for rate, multiplier, count in recipe)
    return max(person_epsilon(((recipe, sites),), delta), record_epsilon(apart, delta))


def cover_recipes(recipes: Sequence[Recipe]) -> list[Recipe]:
    """Recipes each of which costs no less than any of `recipes`: one with all of their kinds of steps, each as often as
    it occurs in any of them, and one with the largest rate, the least noise and the most steps."""
    different = sorted({recipe for recipe in recipes if recipe})
    if len(different) < 2:
        return different
    counts: dict[tuple[float, float], int] = {}
    for recipe in different:
        mine: dict[tuple[float, float], int] = {}
        for rate, multiplier, count in recipe:
            mine[rate, multiplier] = mine.get((rate, multiplier), 0) + count
        for kind, count in mine.items():
            counts[kind] = max(counts.get(kind, 0), count)
    every = tuple((*kind, count) for kind, count in sorted(counts.items()))
    most = max(sum(count for _, _, count in recipe) for recipe in different)
    return [every, ((max(rate for rate, _ in counts), min(z for _, z in counts), most),)]


def spread_noise(recipe: Recipe, contributions: int) -> Recipe:
    """Recipe of one record that costs no less than several contributions of one person to each sum.

    The noise of a step is the sum of k draws with variance z^2 / k, one beside each of k contributions: k sampled steps
    with multiplier z / sqrt(k) tell all that it does.
    """
    return tuple(
        (rate, z / math.sqrt(contributions), count * contributions) for rate, z, count in recipe if contributions
    )


def _epsilon(steps: Sequence[Steps], delta: float, quick: Callable[[], float]) -> float:
    """Epsilon of a composition: in closed form without sampling, else by loss distributions; `quick` is another upper
    bound."""
    steps = [(pair, count) for pair, count in steps if count > 0]
    if not steps:
        return 0.0
    if any(pair.multiplier == 0 for pair, _ in steps):
        return math.inf
    unsampled = epsilon_of(_mu_without_sampling(steps), delta)
    if all(pair.rate == 1 for pair, _ in steps):
        return unsampled
    exact = _by_distribution(steps, delta)
    # Where delta is too small for the rounding of Fourier transforms, the quicker bound is given.
    return min(unsampled, exact if math.isfinite(exact) else quick())


def quick_record_epsilon(recipe: Recipe, delta: float) -> float:
    """Upper bound of `record_epsilon` by Renyi divergences: a few percent larger, and immediate for a kind of step that
    was seen before."""
    kinds = [(rate, multiplier, count) for rate, multiplier, count in recipe if count > 0]
    if not kinds:
        return 0.0
    divergence = np.sum([count * _divergences(rate, multiplier) for rate, multiplier, count in kinds], axis=0)
    return _from_divergences(divergence, ORDERS, delta)


def _quick_replaced_epsilon(recipe: Recipe, delta: float) -> float:
    """Upper bound of `replaced_epsilon` by Renyi divergences: the record is removed and another added (Mironov 2017,
    proposition 11, with p = q = 2). Adding has the smaller divergence (Mironov, Talwar, Zhang 2019, theorem 5)."""
    divergence = np.sum([count * _divergences(rate, z) for rate, z, count in recipe if count > 0], axis=0)
    half = np.arange(2, 32)
    removed, added = (divergence[np.searchsorted(ORDERS, orders)] for orders in (2 * half, 2 * half - 1))
    return _from_divergences((half - 0.5) / (half - 1) * removed + added, half, delta)


def _from_divergences(divergence: np.ndarray, orders: np.ndarray, delta: float) -> float:
    """Epsilon from the Renyi divergences at some `orders` (Canonne, Kamath, Steinke 2020, Proposition 12)."""
    found = divergence + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
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
    # Rounding may fall a little short of zero, and many such steps would then lower the epsilon of others.
    return np.maximum(moments, 0.0) / (ORDERS - 1)


def rows_epsilon(pools: Sequence[Recipe], rows: int, delta: float) -> float:
    """Epsilon of one person's `rows` rows at one client, the contributions of all replaced by zero at once.

    `pools` are the recipes of the client's pools of records; which rows lie in which is not known, so it is the largest
    one over all ways to spread them.
    """
    ways = itertools.combinations_with_replacement(sorted(set(pools)), rows)
    parts = (tuple((pool, way.count(pool)) for pool in dict.fromkeys(way)) for way in ways)
    return max((person_epsilon(one, delta) for one in parts), default=0.0)


@functools.lru_cache(maxsize=65536)
def record_attack_accuracy(recipe: Recipe) -> float:
    """The balanced accuracy of the best attacker who must tell whether a record is there: (1 + delta(0)) / 2."""
    recipe = tuple(charge for charge in recipe if charge[2] > 0)
    if not recipe:
        return 0.5
    if any(multiplier == 0 for _, multiplier, _ in recipe):
        return 1.0
    unsampled = attack_accuracy(_mu_without_sampling([(RecordPair(rate, z), count) for rate, z, count in recipe]))
    if all(rate == 1 for rate, _, _ in recipe):
        return unsampled
    return min(unsampled, max((1 + losses.delta()) / 2 for losses in compose(recipe, 1e-5)))


@functools.lru_cache(maxsize=65536)
def sites_attack_accuracy(recipes: tuple[Recipe, ...], sites: int) -> float:
    """The balanced accuracy of the best attacker who must tell whether a person is there; arguments are those of
    `sites_epsilon`."""
    if sites == 1:
        return max((record_attack_accuracy(recipe) for recipe in recipes), default=0.5)
    found = [0.5]
    for recipe in cover_recipes(recipes)[:1]:
        if any(multiplier == 0 for _, multiplier, _ in recipe):
            return 1.0
        together: list[Steps] = [(RowsPair(rate, z, sites), count) for rate, z, count in recipe]
        apart: list[Steps] = [(RecordPair(rate, z), count * sites) for rate, z, count in recipe]
        for steps in (together, apart):
            unsampled = attack_accuracy(_mu_without_sampling(steps))
            sampled = any(rate < 1 for rate, _, _ in recipe)
            exact = max((1 + one.delta()) / 2 for one in compose_pairs(steps, 1e-5)) if sampled else unsampled
            found.append(min(unsampled, exact))
    return max(found)


def _mu_without_sampling(steps: Sequence[Steps]) -> float:
    """The mu of a composition if every record entered every batch: never smaller than the truth."""
    return math.sqrt(sum(count / pair.multiplier**2 * pair.distance**2 for pair, count in steps))


def _by_distribution(steps: Sequence[Steps], delta: float) -> float:
    return max(losses.epsilon(delta) for losses in compose_pairs(steps, delta))
