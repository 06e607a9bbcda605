"""Privacy loss distribution (PLD) accountant of Poisson-sampled Gaussians: FFT composition, upper bounds of epsilon.

One step samples a record at rate q and adds N(0, z^2) to a sum that the record moves by one. With x the coordinate that
matters, it is seen from P = (1 - q) N(0, z^2) + q N(1, z^2) if the record is there, and from Q = N(0, z^2) if not. The
privacy loss log(P(x) / Q(x)) = log(1 - q + q exp((2 x - 1) / (2 z^2))) grows with x. For a removed record it is drawn
from P; for an added one it is the negative, drawn from Q. Epsilon is the larger one of the two.

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

Sampled = tuple[float, float, int]
"""Sampling rate, noise multiplier (noise over sensitivity), and number of steps."""

FINENESS, FEWEST = 0.07, 2**-9
"""The grid's step, as a share of the deviation of one step's loss and, where steps are few, of all steps' together: the
deviation of their sum then grows by less than 0.05 %, and epsilon with it."""
TAIL = 1e-4
"""The part of delta that each kind of cut may cost."""
ROUNDOFF = 2.0**-53
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
    parts = _merge_unsampled(recipe)
    steps = sum(count for _, _, count in parts)
    cut = min(TAIL * delta / steps, 1e-3)
    reach = float(-ndtri(cut))
    grid, counts = _grid(parts, steps, reach), [count for _, _, count in parts]
    while True:
        both = [_masses(rate, multiplier, grid, reach) for rate, multiplier, _ in parts]
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


def _merge_unsampled(recipe: Sequence[Sampled]) -> list[Sampled]:
    """Replace all unsampled Gaussians of a recipe by the one that they come to."""
    whole = math.fsum(count / multiplier**2 for rate, multiplier, count in recipe if rate == 1)
    sampled = [(rate, multiplier, count) for rate, multiplier, count in recipe if rate < 1]
    return [*sampled, *([(1.0, 1 / math.sqrt(whole), 1)] if whole else [])]


def _grid(parts: Sequence[Sampled], steps: int, reach: float) -> float:
    """The grid's step, from the mean variance of a step's loss and from how far losses reach."""
    spread = sum(count * _variance(rate, multiplier, reach) for rate, multiplier, count in parts)
    widest = max(_loss(1 + reach * z, rate, z) - _loss(-reach * z, rate, z) for rate, z, _ in parts)
    return float(max(min(FINENESS / math.sqrt(steps), FEWEST) * math.sqrt(spread), widest / MAX_BINS))


def _variance(rate: float, multiplier: float, reach: float) -> float:
    """The variance of one step's loss, roughly."""
    x = np.linspace(-reach * multiplier, 1 + reach * multiplier, 301)
    weights = np.exp(-np.square(x / multiplier) / 2)
    losses = _loss(x, rate, multiplier)
    mean = np.average(losses, weights=weights)
    return float(np.average(np.square(losses - mean), weights=weights))


def _loss(x: np.ndarray | float, rate: float, multiplier: float) -> np.ndarray:
    exponent = (2 * np.asarray(x) - 1) / (2 * multiplier**2)
    return exponent if rate == 1 else np.logaddexp(math.log1p(-rate), math.log(rate) + exponent)


def _exponents(losses: np.ndarray, rate: float) -> np.ndarray:
    """Inverse of `_loss` in its exponent (2 x - 1) / (2 z^2): the exponent at which the loss is each of `losses`."""
    large, small = np.maximum(losses, 1.0), np.minimum(losses, 1.0)
    by_ratio = large + np.log1p((rate - 1) * np.exp(-large)) - math.log(rate)
    return np.where(losses > 1, by_ratio, np.log1p(np.maximum(np.expm1(small) / rate, -1 + ROUNDOFF)))


def _masses(rate: float, multiplier: float, grid: float, reach: float) -> tuple[Masses, Masses]:
    """One step's losses for a removed and for an added record."""
    begin, end = -reach * multiplier, 1 + reach * multiplier
    lowest, highest = (float(_loss(x, rate, multiplier)) for x in (begin, end))
    first, last = math.floor(lowest / grid), math.ceil(highest / grid)
    inner = np.arange(first + 1, last) * grid
    # Where the loss is each inner multiple; rounding must not lead out of the range.
    exponent = inner if rate == 1 else _exponents(inner, rate)
    x = np.concatenate([[begin], np.clip(multiplier**2 * exponent + 0.5, begin, end), [end]])
    absent, present = _normal_masses(x / multiplier), _normal_masses((x - 1) / multiplier)
    mixed = (1 - rate) * absent + rate * present
    lower = np.arange(first, last) * grid
    doubt = 64 + 4 * np.abs(lower) + np.square(np.abs(x[1:]) / multiplier + 1 / multiplier)
    to_upper = _dearer_share(mixed, absent, lower, doubt, grid)
    removed = np.append(mixed - to_upper, 0.0) + np.append(0.0, to_upper)
    removed[1] += ndtr(begin / multiplier)  # under P less than that
    above = (1 - rate) * ndtr(-end / multiplier) + rate * ndtr((1 - end) / multiplier)
    to_lower = _dearer_share(absent, mixed, -lower - grid, doubt, grid)
    added = np.append(0.0, absent - to_lower) + np.append(to_lower, 0.0)
    added[-2] += ndtr(-end / multiplier)
    return (
        Masses(first, removed, float(above)),
        Masses(-last, added[::-1], float(ndtr(begin / multiplier))),
    )


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
