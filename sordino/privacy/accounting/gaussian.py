"""Epsilon of Gaussian releases, in closed form."""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from sordino.errors import UserError

OPACUS_ORDERS: tuple[float, ...] = tuple(1 + x / 10 for x in range(1, 100)) + tuple(range(12, 64))
"""The RDP orders with which the papers' figures were computed (Opacus' defaults)."""

MAX_USEFUL_MULTIPLIER = 1e6
"""Noise multiplier of a whole run beyond which more noise changes no figure."""


def delta_of(mu: float, epsilon: float) -> float:
    """The smallest delta for which mu-GDP implies (epsilon, delta)-differential privacy."""
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    log_first = float(log_ndtr(-epsilon / mu + mu / 2))
    log_second = epsilon + float(log_ndtr(-epsilon / mu - mu / 2))
    return max(0.0, math.exp(log_first) * -math.expm1(min(0.0, log_second - log_first)))


@functools.lru_cache(maxsize=1024)  # asked after every round, in most of which nobody's mu has become the largest
def epsilon_of(mu: float, delta: float) -> float:
    """The smallest epsilon >= 0 for which mu-GDP implies (epsilon, delta)-differential privacy."""
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    if math.isinf(mu) or delta <= 0:
        return math.inf
    # Beyond mu^2/2 the loss is a Gaussian tail: forty standard deviations leave less than any float delta.
    high = mu * mu / 2 + 40 * mu
    root = brentq(lambda epsilon: delta_of(mu, epsilon) - delta, 0.0, high, xtol=1e-12, rtol=1e-13)
    return float(root)


def mu_of(epsilon: float, delta: float) -> float:
    """The largest mu whose (epsilon, delta) is within the given one."""
    high = 1.0
    while delta_of(high, epsilon) < delta:
        high *= 2
    return float(brentq(lambda mu: delta_of(mu, epsilon) - delta, 0.0, high, xtol=1e-13, rtol=1e-13))


def share_of(epsilon: float, delta: float, share: float) -> float:
    """Epsilon of Gaussian releases that have `share` of a budget's mu^2, at the same delta; the mu^2 of all releases
    add up."""
    return epsilon_of(math.sqrt(share) * mu_of(epsilon, delta), delta)


def remaining(budget: float, spent: float, delta: float) -> float:
    """Epsilon of Gaussian releases that come to the `budget` together with others, which cost `spent` by themselves,
    all at the same delta; zero where nothing is left."""
    whole, used = mu_of(budget, delta), mu_of(spent, delta)
    return epsilon_of(math.sqrt(max(0.0, whole**2 - used**2)), delta)


def attack_accuracy(mu: float) -> float:
    """The balanced accuracy of the best attacker who must tell one client's (or record's) presence."""
    return float(ndtr(mu / 2))


def rdp_epsilon(noise_multiplier: float, releases: int, delta: float, rate: float = 1.0) -> float:
    """The epsilon that Opacus' RDP accountant prints for `releases` Gaussians, Poisson-sampled at `rate`.

    Args:
        noise_multiplier: noise over sensitivity of one Gaussian.
        releases: number of Gaussians.
        delta: delta at which epsilon is printed.
        rate: sampling rate; 1 without sampling.

    An upper bound of the true figure, for comparison with papers: the minimum over `OPACUS_ORDERS` of
    rdp(a) - (ln delta + ln a) / (a - 1) + ln((a - 1) / a).
    """
    if rate < 1.0:
        import dp_accounting
        from dp_accounting.rdp import RdpAccountant

        event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise_multiplier))
        return float(RdpAccountant(orders=list(OPACUS_ORDERS)).compose(event, releases).get_epsilon(delta))
    orders = np.array(OPACUS_ORDERS)
    divergence = releases * orders / (2 * noise_multiplier**2)
    epsilon = divergence - (math.log(delta) + np.log(orders)) / (orders - 1) + np.log((orders - 1) / orders)
    return max(0.0, float(epsilon.min()))


def rdp_multiplier(epsilon: float, releases: int, delta: float, rate: float = 1.0) -> float:
    """The noise multiplier at which `rdp_epsilon` is `epsilon`."""
    low, high = 0.05, 1.0
    if rdp_epsilon(MAX_USEFUL_MULTIPLIER * math.sqrt(releases), 1, delta) > epsilon:
        raise UserError(
            f"The accountant of the papers cannot print epsilon = {epsilon:g} at delta = {delta:g}, however much noise "
            "there is: give a larger epsilon, or use --variant sound."
        )
    while rdp_epsilon(high, releases, delta, rate) > epsilon:
        high *= 2
    while rdp_epsilon(low, releases, delta, rate) < epsilon:
        low /= 2
    return float(brentq(lambda z: rdp_epsilon(z, releases, delta, rate) - epsilon, low, high, xtol=1e-4, rtol=1e-5))
