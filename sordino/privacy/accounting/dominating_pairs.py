"""Dominating pairs of one Poisson-sampled Gaussian step: the two distributions that are easiest to tell apart.

One step samples records at rate q and adds N(0, z^2 I) to a sum that each record moves by at most one. Neighbouring
data give two distributions of the noisy sum. A pair (P, Q) on the line dominates them where the hockey stick
H_a(P || Q) = sup_S P(S) - a Q(S) is nowhere below theirs, for all a > 0; it stays so under adaptive composition (Zhu,
Dong, Wang 2022, theorem 10). H is jointly convex, so the coins of all other records may be taken for known: they only
move both distributions. Below, N(m) has variance z^2.

**Lemma.** H_c(N(0, z^2 I) || sum_i w_i N(m_i, z^2 I)) <= H_c(N(0) || sum_i w_i N(b_i)) for c > 0 and all b_i >= |m_i|.
The left side is the mean of f(y) = (1 - c sum_i w_i exp(y_i))_+ over a Gaussian y whose variances and means follow from
|m_i| and whose covariances are <m_i, m_j> / z^2. The mixed derivatives of f are not negative, so the mean grows with
the covariances (Slepian, Kahane): it is largest where all m_i point the same way. There f is positive below one point
x0, and its mean does not fall with b_i: the derivative is -c w_i / z^2 times the mean of (x - b_i) 1[x < x0] over
N(b_i), which is not positive.

**A record, or several, emptied** (`RecordPair`, `RowsPair`). With k contributions, each drawn by its own coin, the sum
is seen from a mixture of N(s), where s is the sum over those that were drawn, or from N(0). By the lemma
P = sum_i Binomial(k, q)(i) N(i) and Q = N(0) dominate: H_a(Q || P) directly, and
H_a(P || Q) = 1 - a + a H_{1/a}(Q || P) with it. A coin with a smaller rate costs no more: the derivative of H by its
rate is c (A(x < x0) - B(x < x0)), where B is A moved to the right by one.

**A record replaced** (`ReplacedPair`): u by v, both of length at most one. For a >= 1,
H_a((1-q) N(0) + q N(u) || (1-q) N(0) + q N(v)) = q H_c(N(u) || (a/c) N(v) + (1 - a/c) N(0)), c = 1 + (a - 1) / q. Seen
from u, the other two lie at distances of at most 2 and 1. By the lemma P = (1-q) N(0) + q N(1) and
Q = (1-q) N(0) + q N(-1) dominate, and for a < 1 by exchanging u and v. Opposite contributions attain them: no
smaller figure is true. If N(0), too, is moved to a distance of 2, the curve of a record removed at z / 2 results for
a >= 1 and that of one added for a < 1. The larger of both is therefore never below the truth either, but several times
too large at small q; one of them alone does not dominate.

In all pairs the privacy loss log(P(x) / Q(x)) grows with x.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import logsumexp

ROUNDOFF = 2.0**-53
NODES = 2049
"""Points between which Newton's method looks for the place of a loss."""
MAX_ITERATIONS = 64
LARGE = 300.0
"""Logarithm from which on arsinh(x) is log(2 x)."""
Mixture = tuple[tuple[float, float], ...]
"""Weights and means of normal distributions of equal variance."""


@dataclass(frozen=True)
class Pair(ABC):
    """Dominating pair (P, Q) of one step."""

    rate: float
    """Sampling rate q."""
    multiplier: float
    """Noise multiplier z: standard deviation of the noise over the length of a record's contribution."""

    @property
    @abstractmethod
    def mixtures(self) -> tuple[Mixture, Mixture]:
        """P and Q."""

    @abstractmethod
    def loss(self, x: np.ndarray | float) -> np.ndarray:
        """Privacy loss log(P(x) / Q(x))."""

    @abstractmethod
    def find(self, losses: np.ndarray, begin: float, end: float) -> np.ndarray:
        """Places between `begin` and `end` at which the loss is each of `losses`, which grow."""

    @cached_property
    def means(self) -> tuple[float, float]:
        """Smallest and largest mean of the normal distributions of both mixtures."""
        means = [mean for mixture in self.mixtures for _, mean in mixture]
        return min(means), max(means)

    @property
    def distance(self) -> float:
        """Distance of the Gaussians that the step is between if coins are known: never more private than it."""
        return self.means[1] - self.means[0]


@dataclass(frozen=True)
class RecordPair(Pair):
    """One record, present or with its contribution replaced by zero."""

    @property
    def mixtures(self) -> tuple[Mixture, Mixture]:
        return ((1 - self.rate, 0.0), (self.rate, 1.0)), ((1.0, 0.0),)

    def loss(self, x: np.ndarray | float) -> np.ndarray:
        exponent = (2 * np.asarray(x) - 1) / (2 * self.multiplier**2)
        return exponent if self.rate == 1 else np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + exponent)

    def find(self, losses: np.ndarray, begin: float, end: float) -> np.ndarray:
        exponents = losses
        if self.rate < 1:
            large, small = np.maximum(losses, 1.0), np.minimum(losses, 1.0)
            by_ratio = large + np.log1p((self.rate - 1) * np.exp(-large)) - math.log(self.rate)
            by_difference = np.log1p(np.maximum(np.expm1(small) / self.rate, -1 + ROUNDOFF))
            exponents = np.where(losses > 1, by_ratio, by_difference)
        return np.clip(self.multiplier**2 * exponents + 0.5, begin, end)


@dataclass(frozen=True)
class ReplacedPair(Pair):
    """One record, replaced by another."""

    @property
    def mixtures(self) -> tuple[Mixture, Mixture]:
        absent = (1 - self.rate, 0.0)
        return (absent, (self.rate, 1.0)), (absent, (self.rate, -1.0))

    def loss(self, x: np.ndarray | float) -> np.ndarray:
        one = RecordPair(self.rate, self.multiplier)
        return one.loss(x) - one.loss(-np.asarray(x))

    def find(self, losses: np.ndarray, begin: float, end: float) -> np.ndarray:
        # Solved for w = exp(x / z^2 - loss / 2): w - 1 / w = 2 ratio sinh(loss / 2).
        half = losses / 2
        if self.rate < 1:
            log_ratio = math.log1p(-self.rate) - math.log(self.rate) + 1 / (2 * self.multiplier**2)
            with np.errstate(divide="ignore"):
                log_sinh = np.abs(half) + np.log(-np.expm1(-2 * np.abs(half)) / 2)
            log_size = log_ratio + log_sinh
            large = np.arcsinh(np.exp(np.minimum(log_size, LARGE)))
            half = half + np.sign(half) * np.where(log_size > LARGE, log_size + math.log(2), large)
        return np.clip(self.multiplier**2 * half, begin, end)


@dataclass(frozen=True)
class RowsPair(Pair):
    """Several contributions of one person to the same sum, all present or all replaced by zero."""

    contributions: int
    """Number k of contributions."""

    @cached_property
    def mixtures(self) -> tuple[Mixture, Mixture]:
        count, rate = self.contributions, self.rate
        chances = [math.comb(count, drawn) * rate**drawn * (1 - rate) ** (count - drawn) for drawn in range(count + 1)]
        return tuple((chance, float(drawn)) for drawn, chance in enumerate(chances) if chance), ((1.0, 0.0),)

    def loss(self, x: np.ndarray | float) -> np.ndarray:
        return logsumexp(self._terms(np.asarray(x)), axis=0)

    def _terms(self, x: np.ndarray) -> np.ndarray:
        """Logarithms of the ratios of each normal distribution of P, times its weight, to Q."""
        ratios = [
            math.log(chance) + mean * (2 * x - mean) / (2 * self.multiplier**2) for chance, mean in self.mixtures[0]
        ]
        return np.stack(ratios)

    def find(self, losses: np.ndarray, begin: float, end: float) -> np.ndarray:
        # The loss is convex, so Newton's method comes down to it from any place above, and a first step from below
        # leads above.
        nodes = np.linspace(begin, end, NODES)
        known = self.loss(nodes)
        x = np.interp(losses, known, nodes)
        above = nodes[np.minimum(np.searchsorted(known, losses), NODES - 1)]
        means = np.array([mean for _, mean in self.mixtures[0]])[:, None]
        for _ in range(MAX_ITERATIONS):
            terms = self._terms(x)
            found = logsumexp(terms, axis=0)
            if (np.abs(found - losses) <= 32 * ROUNDOFF * (1 + np.abs(terms).max(axis=0))).all():
                break
            slopes = (means * np.exp(terms - found)).sum(axis=0) / self.multiplier**2
            with np.errstate(divide="ignore", invalid="ignore"):
                x = np.clip(np.nan_to_num(x - (found - losses) / slopes, nan=0), begin, above)
        return x
