"""What sampled Gaussian steps cost, without any of the package's own code."""

from __future__ import annotations

import math

from scipy.special import ndtr

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
