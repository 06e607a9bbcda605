"""What sampled Gaussian steps cost, without any of the package's own code."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import brentq
from scipy.special import logsumexp, ndtr
from scipy.stats import norm

Sampled = tuple[float, float, int]
"""Sampling rate, noise multiplier, and how many times."""


def by_google(recipe: tuple[Sampled, ...], delta: float, pessimistic: bool, grid: float) -> float:
    """Epsilon by Google's accountant, rounded up or down, in steps of `grid`."""
    from dp_accounting.pld.common import DifferentialPrivacyParameters  # noqa: F401 (the module must be whole)
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    whole = None
    for rate, multiplier, count in recipe:
        one = from_gaussian_mechanism(
            multiplier,
            sampling_prob=rate,
            value_discretization_interval=grid,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
        ).self_compose(count)
        whole = one if whole is None else whole.compose(one)
    assert whole is not None
    return float(whole.get_epsilon_for_delta(delta))


def true_delta(rate: float, multiplier: float, epsilon: float, direction: int) -> float:
    """Of one step, for a removed (0) or an added (1) record: a difference of normal distribution functions."""
    sign = (1, -1)[direction]
    ratio = 1 + math.expm1(sign * epsilon) / rate  # of the unsampled densities where the loss is epsilon
    x = -math.inf if ratio <= 0 else multiplier**2 * math.log(ratio) + 0.5
    absent, present = (float(ndtr(sign * (mean - x) / multiplier)) for mean in (0, 1))
    mixed = (1 - rate) * absent + rate * present
    return max(0.0, mixed - math.exp(epsilon) * absent if direction == 0 else absent - math.exp(epsilon) * mixed)


Mixture = Sequence[tuple[float, float]]
"""Weights and means of normal distributions of equal deviation."""


def replaced_mixtures(rate: float) -> tuple[Mixture, Mixture]:
    """The two worlds of a record that moves a sum by one, and is replaced by one that moves it back by one."""
    return ((1 - rate, 0.0), (rate, 1.0)), ((1 - rate, 0.0), (rate, -1.0))


def rows_mixtures(rate: float, rows: int) -> tuple[Mixture, Mixture]:
    """The two worlds of a person's rows, each of which moves a sum by one if its own coin says so."""
    chances = [math.comb(rows, k) * rate**k * (1 - rate) ** (rows - k) for k in range(rows + 1)]
    return tuple((chance, float(k)) for k, chance in enumerate(chances)), ((1.0, 0.0),)


def log_density(x: np.ndarray, mixture: Mixture, deviation: float) -> np.ndarray:
    """Logarithm of a mixture's density."""
    parts = [math.log(weight) + norm.logpdf(x, mean, deviation) for weight, mean in mixture if weight]
    return np.asarray(logsumexp(parts, axis=0))


def mixture_delta(present: Mixture, absent: Mixture, deviation: float, epsilon: float) -> float:
    """Delta of two mixtures between whose densities the ratio only grows or only falls: beyond the place where it is
    exp(epsilon), a difference of normal distribution functions."""

    def excess(x: float) -> float:
        at = np.array([x])
        return float(log_density(at, present, deviation)[0] - log_density(at, absent, deviation)[0]) - epsilon

    low, high = -20 - 40 * deviation, 20 + 40 * deviation
    if excess(low) * excess(high) > 0:
        return 0.0 if excess(0.0) < 0 else -math.expm1(epsilon)
    x, side = brentq(excess, low, high, xtol=1e-13), 1 if excess(high) > 0 else -1
    first, second = (sum(w * float(ndtr(side * (m - x) / deviation)) for w, m in one) for one in (present, absent))
    return first - math.exp(epsilon) * second


def integrated_delta(present: Mixture, absent: Mixture, deviation: float, epsilon: float) -> float:
    """Integral of the part of the first density that is above exp(epsilon) times the second."""
    x = np.linspace(-2 - 9 * deviation, 2 + 9 * deviation, 100_001)
    first, second = (np.exp(log_density(x, mixture, deviation)) for mixture in (present, absent))
    return float(np.trapezoid(np.maximum(first - math.exp(epsilon) * second, 0.0), x))


def least_epsilon(steps: Sequence[tuple[Mixture, Mixture, float, int]], delta: float, grid: float) -> float:
    """Lower bound of epsilon: losses are rounded down to multiples of `grid`. Each kind of step is given by the mixture
    from which x comes, the one with which it is compared, the noise's deviation, and the number of steps; its loss
    grows with x."""
    size, whole, lowest = 2**20, np.ones(2**19 + 1, dtype=complex), 0
    for present, absent, deviation, count in steps:
        means = [mean for _, mean in (*present, *absent)]
        x = np.linspace(min(means) - 6 * deviation, max(means) + 6 * deviation, 50_001)  # what lies outside is left out
        mass = np.diff(np.sum([weight * norm.cdf(x, mean, deviation) for weight, mean in present], axis=0))
        losses = (log_density(x, present, deviation) - log_density(x, absent, deviation))[:-1]
        places = np.floor(losses / grid).astype(int)
        one = np.bincount(places - places[0], weights=mass, minlength=size)
        assert (places[-1] - places[0]) * sum(count for *_, count in steps) < size, "too fine a grid"
        whole, lowest = whole * np.fft.rfft(one) ** count, lowest + count * int(places[0])
    mass = np.maximum(np.fft.irfft(whole, n=size) - 1e-15, 0.0)
    losses = (lowest + np.arange(size)) * grid

    def excess(epsilon: float) -> float:
        return float(mass @ np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0)) - delta

    return 0.0 if excess(0.0) <= 0 else float(brentq(excess, 0.0, float(losses[-1]), xtol=1e-9))
