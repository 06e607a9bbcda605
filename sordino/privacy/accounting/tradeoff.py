"""Trade-off of the best attack: how many units it finds, at a given rate of false alarms.

Somebody who guesses whether a unit took part makes two errors. The *false alarms* are the share of absent units that
are taken to be there; the *hits* are the share of present units that are found. A guarantee (epsilon, delta) bounds the
hits of every attack with false alarms a (Wasserman and Zhou 2010; Kairouz, Oh and Viswanath 2015):

    hits <= exp(epsilon) a + delta    and    hits <= 1 - exp(-epsilon) (1 - delta - a)

and so does the smallest of these bounds over all pairs (epsilon, delta) that hold at once. A Gaussian mechanism has the
closed form Phi(Phi^-1(a) + mu) (Dong, Roth and Su 2022, equation 6).

What noise in whole numbers adds (`integers.Gap`: less than 1e-12 for a billion numbers) is left out: whoever prints a
share rounds it up by far more.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy.special import ndtr, ndtri

from sordino.privacy.accounting.across_runs import upper_deltas
from sordino.privacy.accounting.gaussian import delta_of, mu_of
from sordino.privacy.accounting.loss_distribution import compose
from sordino.privacy.accounting.sampled_gaussian import Recipe

EPSILONS = np.linspace(0.0, 30.0, 1501)
"""Epsilons at which guarantees are asked for; any choice of them gives true bounds."""
PRECISION = 1e-5
"""Delta for which loss distributions are precise enough; shares are printed to a thousandth."""


def hits(recipe: Recipe, false_alarms: float, promise: tuple[float, float] = (0.0, 0.0)) -> float:
    """Largest share of present units that any attack finds.

    Args:
        recipe: noise that the unit has met: sampling rate, noise multiplier and number of steps of each kind. A
            Gaussian mechanism of mu is ((1.0, 1 / mu, 1),); an empty recipe costs nothing.
        false_alarms: share of absent units that the attack takes to be there, between 0 and 1.
        promise: an epsilon and its delta that the unit has paid besides, where nothing more is known.
    """
    recipe = tuple(step for step in recipe if step[2] > 0)
    epsilon, delta = promise
    if math.isinf(epsilon) or any(multiplier == 0 for _, multiplier, _ in recipe):
        return 1.0
    if epsilon == delta == 0 and all(rate == 1 for rate, _, _ in recipe):
        return float(ndtr(ndtri(false_alarms) + _gaussian_mu(recipe)))
    deltas = np.minimum(_deltas(recipe) + delta, 1.0)
    slopes = np.exp(EPSILONS + epsilon)
    bounds = np.minimum(slopes * false_alarms + deltas, 1 - (1 - deltas - false_alarms) / slopes)
    return min(1.0, max(false_alarms, float(bounds.min())))


def _gaussian_mu(recipe: Recipe) -> float:
    """The mu of a recipe if every record entered every step: exact without sampling, and never below the truth."""
    return math.sqrt(math.fsum(count / multiplier**2 for _, multiplier, count in recipe))


@functools.lru_cache(maxsize=4096)
def _deltas(recipe: Recipe) -> np.ndarray:
    """Delta of a recipe at each of `EPSILONS`, the larger one of a unit that comes and of one that goes."""
    if not recipe:
        return np.zeros(len(EPSILONS))
    mu = _gaussian_mu(recipe)
    unsampled = np.array([delta_of(mu, float(epsilon)) for epsilon in EPSILONS])
    if all(rate == 1 for rate, _, _ in recipe):
        return unsampled
    return np.minimum(unsampled, np.max([upper_deltas(one, EPSILONS) for one in compose(recipe, PRECISION)], axis=0))


def presumed(promise: tuple[float, float], false_alarms: float) -> Recipe:
    """Gaussian mechanism with the epsilon of a promise at its delta, as a recipe that stands for the promise.

    Noise that keeps a promise is Gaussian, with or without sampling. At the same epsilon and delta, sampled Gaussians
    have fewer hits than this one at false alarms of ten times delta and more; below that nothing is presumed, and the
    recipe is empty.
    """
    epsilon, delta = promise
    if math.isinf(epsilon) or not 0 < 10 * delta <= false_alarms:
        return ()
    return ((1.0, 1 / mu_of(epsilon, delta), 1),)
