"""Lower bounds of epsilon from what an attack got right.

Every bound holds with a stated confidence whatever the attack was: a bad attack gives a low bound, never a false one.
Bounds that presume a curve say so: `gdp` holds for Gaussian mechanisms, whose trade-off curve has one parameter; the
others presume nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, ndtr, ndtri
from scipy.stats import beta, binom, norm

from sordino.privacy.accounting.gaussian import epsilon_of, mu_of

MAX_EPSILON = 1e4
"""Epsilon above which no bound is looked for."""
TOLERANCE = 1e-7
MIN_EPSILON = 1e-9
"""Least epsilon that is looked for."""


def upper_rate(errors: int, trials: int, risk: float) -> float:
    """Upper confidence limit of an error rate (Clopper and Pearson 1934): a higher rate makes so few `errors` with
    probability `risk` at most."""
    return 1.0 if errors >= trials else float(beta.isf(risk, errors + 1, trials - errors))


@dataclass(frozen=True)
class Guesses:
    """Guesses of a test whose threshold was fixed beforehand."""

    missed: int
    """Number of canaries that were there and taken not to be."""
    present: int
    accused: int
    """Number that were not there and taken to be."""
    absent: int

    @classmethod
    def of(cls, inside: np.ndarray, outside: np.ndarray, threshold: float) -> Guesses:
        """Count the guesses of a test that takes whoever scores above the `threshold` to be there."""
        missed, accused = int((inside <= threshold).sum()), int((outside > threshold).sum())
        return cls(missed, len(inside), accused, len(outside))

    def rates(self, confidence: float) -> tuple[float, float]:
        """False positives and false negatives at the most, both at once with this confidence."""
        risk = (1 - confidence) / 2
        return upper_rate(self.accused, self.absent, risk), upper_rate(self.missed, self.present, risk)

    def mu(self, confidence: float) -> float:
        """The mu that a Gaussian mechanism must have at least: how far the two normal curves lie apart."""
        accused, missed = self.rates(confidence)
        return max(0.0, float(ndtri(1 - accused) - ndtri(missed)))

    def gdp(self, delta: float, confidence: float) -> float:
        """The epsilon that a Gaussian mechanism must have at least."""
        return epsilon_of(self.mu(confidence), delta)

    def model_free(self, delta: float, confidence: float) -> float:
        """The epsilon that any mechanism must have at least: ln((TPR - delta) / FPR) and its mirror."""
        accused, missed = self.rates(confidence)
        found = [
            math.log((1 - wrong - delta) / other)
            for wrong, other in ((missed, accused), (accused, missed))
            if 1 - wrong > delta and other > 0
        ]
        return max(0.0, *found) if found else 0.0


def one_run_p_value(epsilon: float, delta: float, canaries: int, guesses: int, right: int) -> float:
    """Upper bound of the probability that an (epsilon, delta) mechanism lets so many guesses be right (Steinke, Nasr,
    Jagielski 2023, Theorem 5.2). Canaries of one run, each there by a coin of its own, may depend on each other.

    Args:
        epsilon: claimed epsilon.
        delta: its delta.
        canaries: number of canaries.
        guesses: number of them about which the attack guesses.
        right: number of right guesses.
    """
    chance = expit(epsilon)
    tail = float(binom.sf(right - 1, guesses, chance))
    if not delta:
        return tail
    fewer = np.arange(1, right + 1)
    likely = (binom.sf(right - fewer - 1, guesses, chance) - tail) / fewer
    return min(1.0, tail + 2 * canaries * delta * float(likely.max(initial=0.0)))


def one_run(
    canaries: int, guesses: int, right: int, delta: float, confidence: float, above: float = MIN_EPSILON
) -> float:
    """Largest epsilon that one run refutes, by `one_run_p_value`; 0 where it is not above `above`.

    Args:
        canaries: number of canaries.
        guesses: number of them about which the attack guesses.
        right: number of right guesses.
        delta: delta of the claim.
        confidence: probability with which the bound holds, at least.
        above: least epsilon that is of interest.
    """

    def refuted(epsilon: float) -> bool:
        return one_run_p_value(epsilon, delta, canaries, guesses, right) <= 1 - confidence

    return _largest_refuted(refuted, above)


def one_run_gaussian(
    canaries: int, guesses: int, right: int, delta: float, confidence: float, above: float = MIN_EPSILON
) -> float:
    """Largest epsilon that one run refutes where the mechanism's trade-off curve is a Gaussian's (Mahloujifar, Melis,
    Chaudhuri 2024, Algorithm 3): larger than `one_run`, because the whole curve is used and not one point of it.

    Args:
        canaries: number of canaries.
        guesses: number of them about which the attack guesses.
        right: number of right guesses.
        delta: delta of the claim.
        confidence: probability with which the bound holds, at least.
        above: least epsilon that is of interest.
    """

    def refuted(epsilon: float) -> bool:
        mu = mu_of(epsilon, delta)
        # If the claim held, no more than these shares of canaries could be guessed right (and wrong) so well with
        # probability 1 - confidence: they are followed down to no right guess at all.
        correct = (1 - confidence) * right / canaries
        wrong = (1 - confidence) * (guesses - right) / canaries
        for count in range(right - 1, -1, -1):
            grown = max(wrong, float(ndtr(ndtri(min(correct, 1.0)) - mu)))
            if grown == wrong:
                break
            correct = min(1.0, correct + count / (guesses - count) * (grown - wrong))
            wrong = grown
        return correct + wrong > guesses / canaries

    return _largest_refuted(refuted, above) if right else 0.0


def best_one_run(
    inside: np.ndarray,
    outside: np.ndarray,
    delta: float,
    confidence: float,
    bound: Callable[[int, int, int, float, float, float], float],
    thresholds: int = 20,
) -> float:
    """Best bound of several thresholds, each at a confidence that lets all of them hold at once.

    Args:
        inside: scores of canaries that were there.
        outside: scores of those that were not.
        delta: delta of the claim.
        confidence: probability with which the bound holds, at least.
        bound: `one_run` or `one_run_gaussian`.
        thresholds: number of thresholds.
    """
    canaries, everybody = len(inside) + len(outside), np.concatenate([inside, outside])
    risk = (1 - confidence) / thresholds
    best = 0.0
    for share in np.linspace(0.02, 0.6, thresholds):
        threshold = float(np.quantile(everybody, 1 - share))
        right, wrong = int((inside > threshold).sum()), int((outside > threshold).sum())
        if right > wrong:
            best = max(best, bound(canaries, right + wrong, right, delta, 1 - risk, max(best, MIN_EPSILON)))
    return best


def mean_difference(inside: np.ndarray, outside: np.ndarray, delta: float, confidence: float) -> tuple[float, float]:
    """An estimate of a Gaussian mechanism's epsilon from one run's scores, and its lower end (Andrew et al. 2023).

    Args:
        inside: scores of canaries that were there.
        outside: scores of those that were not.
        delta: delta of the claim.
        confidence: probability with which the lower end holds.

    mu is the difference of the means in units of the scores' deviation; its standard error is that of the difference
    and of the deviation together. It presumes normal scores: an estimate, not a bound for every mechanism.
    """
    spread = float(np.concatenate([inside - inside.mean(), outside - outside.mean()]).std(ddof=2))
    mu = float(inside.mean() - outside.mean()) / spread
    count = len(inside) + len(outside)
    error = math.sqrt(1 / len(inside) + 1 / len(outside) + mu * mu / (2 * count))
    low = mu - float(norm.isf(1 - confidence)) * error
    return epsilon_of(max(0.0, mu), delta), epsilon_of(max(0.0, low), delta)


def _largest_refuted(refuted: Callable[[float], bool], above: float) -> float:
    """Largest epsilon that is `refuted`, to within `TOLERANCE`; larger epsilons must not be refuted (bisection)."""
    if not refuted(above):
        return 0.0
    low, high = above, 2 * above + 1.0
    while refuted(high):
        low, high = high, 2 * high
        if high > MAX_EPSILON:
            return low
    while high - low > TOLERANCE:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
