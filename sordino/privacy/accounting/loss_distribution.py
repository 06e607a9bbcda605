"""Privacy loss distribution (PLD) accountant of Poisson-sampled Gaussians: FFT composition, upper bounds of epsilon.

A step is a dominating pair of distributions P and Q on the line (`dominating_pairs`). With x drawn from P, the privacy
loss is log(P(x) / Q(x)), which grows with x; in the other direction it is the negative, with x drawn from Q. For a
record these are the two directions of removing and adding it. Epsilon is the larger one of the two.

**Grid** (Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022: "connect the dots"). Losses lie on multiples of a step h. A
bin between two of them has a mass under P and one under Q; both are put on its two ends so that each keeps its sum.
The curve delta(epsilon) is then a chord of the true one in every bin, and equal to it at the ends: never below, and a
curve that is nowhere below stays so under composition. Each bin adds about h^2 / 6 to the variance of the loss of a
step, so h is a small part of that loss's deviation (`FINENESS`).

**Ends.** What is cut off below counts as the first multiple above it; what is cut off above as infinite.

**Composition** is a product of Fourier transforms over a window as wide as Chernoff bounds say (`TAIL` of delta on
either side). What falls out of the window above counts as infinite; what falls out below comes back at the top, where
it counts for more than it is.

**Rounding.** Each entry of a transform of N masses that add up to at most one is made of these by log2(N) stages of a
few roundings each, and off by at most e = 8 u log2(2 N), u = 2^-53. The k-th power of an entry f is then off by
k e |f|^(k - 1), and the masses that come back are, summed up, off by no more than the length of all these errors
(Parseval and Cauchy-Schwarz). That much counts as infinite loss. Masses of bins are differences of normal distribution
functions and off by some u; sharing them out between the ends divides that by h, so the dearer end gets that much more
than its share (`_dearer_share`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import fft
from scipy.special import ndtr, ndtri

from sordino.privacy.accounting.dominating_pairs import ROUNDOFF, Mixture, Pair, RecordPair

Sampled = tuple[float, float, int]
"""Sampling rate, noise multiplier (noise over sensitivity), and number of steps."""
Steps = tuple[Pair, int]
"""Dominating pair of a kind of step, and number of steps."""

FINENESS, FEWEST = 0.07, 2**-9
"""The grid's step, as a share of the deviation of one step's loss and, where steps are few, of all steps' together: the
deviation of their sum then grows by less than 0.05 %, and epsilon with it."""
TAIL = 1e-4
"""The part of delta that each kind of cut may cost."""
FADED = -60.0
"""Frequencies whose logarithm is below this after composition are taken for zero."""
MAX_BINS, MAX_LOSSES = 2**16, 2**21
"""Largest numbers of bins of a single step and of losses of all steps together; the grid is made coarser to keep to
them."""
MAX_EXPONENT = 700.0
"""The largest loss whose exponential is a number."""


class Masses(NamedTuple):
    """One step's losses on the grid, in one direction."""

    first: int
    """The lowest loss, in steps of the grid."""
    mass: np.ndarray
    infinite: float
    """The probability of a loss above the grid."""


@dataclass(frozen=True)
class Losses:
    """The losses above zero of everything together, in one direction."""

    loss: np.ndarray
    mass: np.ndarray
    infinite: float
    """The probability of losses that are infinite, or that cannot be told from that."""

    def delta(self) -> float:
        """An upper bound of the delta with which epsilon = 0 holds."""
        return min(1.0, self.infinite + float((self.mass * -np.expm1(-self.loss)).sum()))

    def epsilon(self, delta: float) -> float:
        """An upper bound of the smallest epsilon >= 0 that holds with `delta`."""
        allowed = delta - self.infinite
        if allowed < 0:
            return math.inf
        if self.delta() <= delta:
            return 0.0
        # Delta is A - exp(epsilon) B, with A the mass of losses above epsilon and B what that is under Q. Losses too
        # large to have an exponential count as infinite.
        above = np.cumsum(self.mass[::-1])[::-1]
        other = np.cumsum((self.mass * np.exp(-self.loss))[::-1])[::-1]
        at_loss = np.append(above[1:], 0.0) - np.exp(np.minimum(self.loss, MAX_EXPONENT)) * np.append(other[1:], 0.0)
        place = int(np.argmax(at_loss <= allowed))
        highest = float(self.loss[place])
        if other[place] <= 0:
            return highest
        return min(max(0.0, math.log((above[place] - allowed) / other[place])), highest)


def compose(recipe: Sequence[Sampled], delta: float) -> tuple[Losses, Losses]:
    """Compose sampled Gaussian steps: losses for a removed and for an added record, precise enough to be asked about
    `delta`."""
    return compose_pairs([(RecordPair(rate, multiplier), count) for rate, multiplier, count in recipe], delta)


def compose_pairs(steps: Sequence[Steps], delta: float) -> tuple[Losses, Losses]:
    """Compose steps of several kinds: losses in both directions, precise enough to be asked about `delta`."""
    parts = _merge_unsampled(steps)
    whole = sum(count for _, count in parts)
    cut = min(TAIL * delta / whole, 1e-3)
    reach = float(-ndtri(cut))
    grid, counts = _grid(parts, whole, reach), [count for _, count in parts]
    while True:
        both = [_masses(pair, grid, reach) for pair, _ in parts]
        removed, added = ([one[direction] for one in both] for direction in (0, 1))
        windows = [_window(masses, counts, TAIL * delta) for masses in (removed, added)]
        wide = max(high - low for low, high in windows) / MAX_LOSSES
        if wide <= 1:
            break
        grid *= 2 * wide
    return (
        _compose_in_window(removed, counts, grid, windows[0], delta),
        _compose_in_window(added, counts, grid, windows[1], delta),
    )


def _merge_unsampled(steps: Sequence[Steps]) -> list[Steps]:
    """Replace all unsampled Gaussians by the one that they come to."""
    whole = math.fsum(count / pair.multiplier**2 * pair.distance**2 for pair, count in steps if pair.rate == 1)
    sampled = [(pair, count) for pair, count in steps if pair.rate < 1]
    return [*sampled, *([(RecordPair(1.0, 1 / math.sqrt(whole)), 1)] if whole else [])]


def _grid(parts: Sequence[Steps], steps: int, reach: float) -> float:
    """The grid's step, from the mean variance of a step's loss and from how far losses reach."""
    spread = sum(count * _variance(pair, reach) for pair, count in parts)
    widest = max(float(pair.loss(end) - pair.loss(begin)) for pair, _ in parts for begin, end in [_range(pair, reach)])
    return float(max(min(FINENESS / math.sqrt(steps), FEWEST) * math.sqrt(spread), widest / MAX_BINS))


def _range(pair: Pair, reach: float) -> tuple[float, float]:
    """Ends of the part of the line that is divided into bins: `reach` standard deviations beyond all means."""
    return pair.means[0] - reach * pair.multiplier, pair.means[1] + reach * pair.multiplier


def _variance(pair: Pair, reach: float) -> float:
    """The variance of one step's loss, roughly."""
    x = np.linspace(*_range(pair, reach), 301)
    weights = np.exp(-np.square(x / pair.multiplier) / 2)
    losses = pair.loss(x)
    mean = np.average(losses, weights=weights)
    return float(np.average(np.square(losses - mean), weights=weights))


def _masses(pair: Pair, grid: float, reach: float) -> tuple[Masses, Masses]:
    """One step's losses in both directions."""
    begin, end = _range(pair, reach)
    lowest, highest = (float(pair.loss(x)) for x in (begin, end))
    first, last = math.floor(lowest / grid), math.ceil(highest / grid)
    # Where the loss is each inner multiple; rounding must not lead out of the range.
    x = np.concatenate([[begin], pair.find(np.arange(first + 1, last) * grid, begin, end), [end]])
    z, (present, absent) = pair.multiplier, pair.mixtures
    upper, lower = _mixture_masses(x, present, z), _mixture_masses(x, absent, z)
    multiples = np.arange(first, last) * grid
    furthest = max(map(abs, pair.means))
    doubt = 64 + 4 * np.abs(multiples) + np.square(np.abs(x[1:]) / z + furthest / z)
    to_upper = _dearer_share(upper, lower, multiples, doubt, grid)
    removed = np.append(upper - to_upper, 0.0) + np.append(0.0, to_upper)
    removed[1] += _below(begin, absent, z)  # under P less than that
    to_lower = _dearer_share(lower, upper, -multiples - grid, doubt, grid)
    added = np.append(0.0, lower - to_lower) + np.append(to_lower, 0.0)
    added[-2] += _above(end, absent, z)
    return (
        Masses(first, removed, _above(end, present, z)),
        Masses(-last, added[::-1], _below(begin, absent, z)),
    )


def _mixture_masses(x: np.ndarray, mixture: Mixture, deviation: float) -> np.ndarray:
    """Mass between neighbours of `x`."""
    return np.sum([weight * _normal_masses((x - mean) / deviation) for weight, mean in mixture], axis=0)


def _below(x: float, mixture: Mixture, deviation: float) -> float:
    """Probability of less than `x`."""
    return float(sum(weight * ndtr((x - mean) / deviation) for weight, mean in mixture))


def _above(x: float, mixture: Mixture, deviation: float) -> float:
    """Probability of more than `x`."""
    return float(sum(weight * ndtr((mean - x) / deviation) for weight, mean in mixture))


def _dearer_share(
    whole: np.ndarray, other: np.ndarray, cheaper: np.ndarray, doubt: np.ndarray, grid: float
) -> np.ndarray:
    """Mass that goes to the end of each bin with the larger loss, rounded up.

    Args:
        whole: mass of each bin.
        other: mass of each bin under the second distribution.
        cheaper: loss at the cheaper end of each bin.
        doubt: number of roundings by which the masses may be off.
        grid: width of a bin.

    At least the true share, roundings included, and no more than `whole`.
    """
    large = cheaper > MAX_EXPONENT
    share = whole - np.exp(np.where(large, 0.0, cheaper)) * other
    share = (np.maximum(share, 0.0) + ROUNDOFF * (16 + doubt * whole)) / -math.expm1(-grid)
    return np.where(large, whole, np.minimum(share, whole))


def _normal_masses(x: np.ndarray) -> np.ndarray:
    """Standard normal mass between neighbours of `x`, from whichever tail is smaller."""
    below, above = ndtr(x), ndtr(-x)
    return np.maximum(np.where(x[1:] <= 0, np.diff(below), -np.diff(above)), 0.0)


def compose_masses(masses: Sequence[Masses], counts: Sequence[int], grid: float, delta: float) -> Losses:
    """Compose steps on one grid.

    Args:
        masses: losses of each kind of step.
        counts: number of steps of each kind.
        grid: width of a bin.
        delta: delta about which the result will be asked.
    """
    return _compose_in_window(masses, counts, grid, _window(masses, counts, TAIL * delta), delta)


def _compose_in_window(
    masses: Sequence[Masses], counts: Sequence[int], grid: float, window: tuple[int, int], delta: float
) -> Losses:
    """Compose `counts` steps of each kind over a `window` of the grid: its lowest and highest multiple."""
    low, high = window
    size = fft.next_fast_len(max(2, high - low + 1), real=True)
    transforms = []
    for one in masses:
        places = (one.first + np.arange(len(one.mass))) % size
        transforms.append(fft.rfft(np.bincount(places, weights=one.mass, minlength=size)))
    with np.errstate(divide="ignore"):
        lengths = sum(count * np.log(np.abs(one)) for one, count in zip(transforms, counts, strict=True))
    seen = np.flatnonzero(lengths > FADED)
    logs = [np.log(transform[seen]) for transform in transforms]
    whole = np.exp(sum(count * log for log, count in zip(logs, counts, strict=True)))
    off = sum(count * np.exp(-log.real) for log, count in zip(logs, counts, strict=True)) + 1
    doubt = 8 * ROUNDOFF * math.log2(2 * size) * math.sqrt(2 * float(np.square(np.abs(whole) * off).sum()))
    filled = np.zeros(size // 2 + 1, dtype=complex)
    filled[seen] = whole
    losses = np.arange(low, low + size)
    losses, mass = losses[losses > 0], fft.irfft(filled, n=size)
    finite = sum(count * math.log1p(-one.infinite) for one, count in zip(masses, counts, strict=True))
    infinite = -math.expm1(finite) + TAIL * delta + doubt + size * (math.exp(FADED) + 4 * ROUNDOFF)
    return Losses(losses * grid, np.maximum(mass[losses % size], 0.0), infinite)


def _window(masses: Sequence[Masses], counts: Sequence[int], tail: float) -> tuple[int, int]:
    """Lowest and highest multiple of the grid between which the composed loss lies, but for a probability of `tail` on
    either side: Chernoff's bound, with whichever of some exponents is best."""
    log_tail, spread = math.log(1 / tail), 0.0
    for one, count in zip(masses, counts, strict=True):
        at = np.arange(len(one.mass))
        spread += count * max(float(one.mass @ np.square(at)) - float(one.mass @ at) ** 2, 0.0)
    tilts = math.sqrt(2 * log_tail / max(spread, 1e-9)) * np.geomspace(1 / 32, 4, 8)
    tilts = np.minimum(tilts, MAX_EXPONENT / max(len(one.mass) for one in masses))
    ends = []
    for sign in (1, -1):
        logs = sum(count * _cumulants(one, sign * tilts) for one, count in zip(masses, counts, strict=True))
        # The moments themselves are off by less than one part in 10^9.
        ends.append(float(((logs + log_tail + 1e-9 * sum(counts)) / tilts).min()))
    return math.floor(-ends[1]), math.ceil(ends[0])


def _cumulants(one: Masses, tilts: np.ndarray) -> np.ndarray:
    """The logarithm of the mean of exp(tilt loss) for each tilt, losses counted in steps of the grid."""
    places = np.arange(len(one.mass))
    highest = np.where(tilts > 0, places[-1], 0) * tilts
    return np.log(np.exp(np.outer(tilts, places) - highest[:, None]) @ one.mass) + highest + tilts * one.first
