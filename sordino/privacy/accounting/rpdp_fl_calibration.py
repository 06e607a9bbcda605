"""Calibration as in rPDP-FL: noise multipliers by its accountant, sampling rates by a curve fitted to the accountant.

Neither guarantees the budget: the error of the fit shows in the epsilon that is charged.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy.optimize import curve_fit

from sordino.errors import UserError
from sordino.privacy.accounting.calibration import (
    FINE,
    LAST_INDEX,
    MIN_RATE_SHARE,
    excess_over,
    first_within,
    likely_index,
)
from sordino.privacy.accounting.sampled_gaussian import quick_record_epsilon

FITTED_AT = np.concatenate([np.arange(1, 100) / 1000, np.arange(10, 101) / 100])
"""The parts of the largest sampling rate at which the published curve is fitted: those of the released code."""
STRAIGHT, BENT = 1e-6, 100.0
"""Least and largest bend of a fitted curve over all rates: nearly straight, and more than any published one."""


def quick_multiplier(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """Noise multiplier that rPDP-FL publishes: the smallest, to a quarter of a percent, with which the quick bound of
    `steps` sampled steps is within a budget. But for the orders, which go up to 994 there, that bound is the accountant
    of the released code.

    Args:
        epsilon: budget of one record.
        delta: delta of the budget.
        rate: probability with which a record enters a batch.
        steps: number of noisy sums over all rounds.
    """

    def excess(index: int) -> float:
        return excess_over(((rate, FINE**index, steps),), epsilon, delta, quick_record_epsilon)

    index = first_within(excess, likely_index(epsilon, delta, rate, steps, ()), -LAST_INDEX, LAST_INDEX)
    if index is None:
        raise UserError(
            f"The published accountant cannot print epsilon = {epsilon:g} at delta = {delta:g}, however much noise "
            "there is: use --variant sound."
        )
    return FINE**index


def fitted_rate(epsilon: float, delta: float, multiplier: float, steps: int, most: float = 1.0) -> float:
    """Sampling rate up to `most` that rPDP-FL publishes for a budget: where a curve fitted to the quick bound of
    `steps` steps crosses it. The true cost of the records is not looked at, and may be higher.

    Args:
        epsilon: budget of one record.
        delta: delta of the budget.
        multiplier: noise over sensitivity of one sum.
        steps: number of noisy sums over all rounds.
        most: largest sampling rate.

    Budgets that the bound reaches at `most`, or exceeds at the least rate, get these; so do those that the curve
    crosses beyond them, or nowhere.
    """
    if epsilon * (1 + 1e-9) >= quick_record_epsilon(((most, multiplier, steps),), delta):
        return most
    if epsilon <= quick_record_epsilon(((most * MIN_RATE_SHARE, multiplier, steps),), delta):
        return most * MIN_RATE_SHARE
    bend, slope, start = _fitted_curve(delta, multiplier, steps, most)
    grown = bend * (epsilon - start) / slope
    part = math.log1p(grown) / bend if grown > -1 else 0.0
    return most * min(max(part, MIN_RATE_SHARE), 1.0)


@functools.lru_cache(maxsize=1024)
def _fitted_curve(delta: float, multiplier: float, steps: int, most: float) -> tuple[float, float, float]:
    """The published curve epsilon(q) = exp(a q + b) + c as (bend, slope, start), in parts of the largest rate:
    start + slope (exp(bend part) - 1) / bend.

    This form is numerically stable where the curve is nearly straight. Over few steps epsilon is concave in q: the best
    fit then tends to a line, and the released code finds none.
    """
    costs = np.array([quick_record_epsilon(((most * part, multiplier, steps),), delta) for part in FITTED_AT.tolist()])

    def curve(part: np.ndarray, bend: float, slope: float, start: float) -> np.ndarray:
        return start + slope * np.expm1(bend * part) / bend

    limits = ([STRAIGHT, 0.0, -np.inf], [BENT, np.inf, np.inf])
    try:
        (bend, slope, start), _ = curve_fit(curve, FITTED_AT, costs / costs[-1], p0=(1.0, 1.0, 0.0), bounds=limits)
    except RuntimeError as error:  # no curve comes close enough
        raise UserError(
            f"rPDP-FL takes sampling rates from a fitted curve, and none fits the epsilon of {steps} steps with "
            f"a noise multiplier of {multiplier:g}: use --variant sound."
        ) from error
    return float(bend), float(slope * costs[-1]), float(start * costs[-1])
