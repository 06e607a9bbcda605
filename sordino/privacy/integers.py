"""Gaussian noise in whole numbers: grid, rounding, an exact sampler, and what it adds to epsilon.

Numbers in floating point lie on a grid that depends on their size, which can give away what noise should hide. A
deployment therefore sends whole multiples of a public grid g = s / S, where s is the deviation of a message's noise and
S the same deviation in steps of the grid.

**One table, one noise.** X ~ N_Z(0, 4096^2), P(X = x) in proportion to exp(-x^2 / 2^25), is drawn from an alias table
of 2^17 columns of 64 bits each, so that every mass is a whole number of 2^-81. Masses are rounded up and the surplus is
taken from |x| <= 4096: a draw is within 3.6e-20 of the ideal (total variation), no mass is below (1 - 2e-17) of the
ideal one, and 1.3e-57 lies outside of the table. Noise is m X1 + X2, which is N_Z(0, S^2) with S^2 = 4096^2 (m^2 + 1):
its masses are off by a factor of 1 +- exp(-2 pi^2 4096^2 / (m^2 + 1)), which is 10^-559000 for m = 16 and 10^-2000 for
m = 256.

**Clients** (m = 16). A contribution is rounded to the grid and, where that made it longer than its bound C, shortened
and rounded again: in whole numbers its norm is never above C / g. With noise of deviation S = s / g the ratio of bound
to noise is C / s exactly, as it is charged.

**Records** (m = 256). Only the sum over records can be rounded, so one record may move it by C + g sqrt(d):
`charged_multiplier`.

**Epsilon.** q + round(N(0, V - 1/12)) is a function of the Gaussian mechanism's output, where q are whole numbers and V
the variance of the noise. N_Z(0, V) is within 4.87e-4 / V^2 of that noise and nowhere below (1 - 2.1e-3 / V^2) of it.
`Gap` turns this into what is added to epsilon and delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from sordino.errors import UserError

Words = Callable[[int], np.ndarray]
"""Function from a count to that many random words of 64 bits, never the same ones twice."""
TABLE_DEVIATION = 4096
"""Standard deviation of one draw of the table."""
HALF = 2**16
"""Draws of the table lie in [-2^16, 2^16): sixteen deviations to each side."""
COLUMNS = 2 * HALF
WORD = 2**64
"""Mass of one column, in units of 2^-81."""
PRECISION = 320
"""Bits behind the point with which the table's masses are worked out."""
DRAWS_TOGETHER = 2**13
"""Numbers drawn together: what is computed of them stays in the cache."""
MAX_WHOLE = 2**52
"""The largest whole number that a contribution may come to."""
ROUNDING_ATTEMPTS = 10
"""Attempts to shorten and round again a contribution that rounding made too long."""


class GridError(UserError):
    """Noise and bounds with which whole numbers cannot hide anything, or could not show anything."""


@dataclass(frozen=True)
class Grid:
    """Noise made of two draws of the table: `factor` X1 + X2."""

    factor: int

    @property
    def variance(self) -> int:
        """Variance S^2 of the noise, in steps of the grid."""
        return TABLE_DEVIATION**2 * (self.factor**2 + 1)

    @property
    def deviation(self) -> float:
        """Standard deviation S of the noise, in steps of the grid."""
        return math.sqrt(self.variance)

    def step(self, deviation: float) -> float:
        """Distance g of the grid's points where the noise has this `deviation`."""
        return deviation / self.deviation

    def noise(self, words: Words, count: int) -> np.ndarray:
        """`count` independent whole numbers of N_Z(0, S^2)."""
        made = np.empty(count, dtype=np.int64)
        for start in range(0, count, DRAWS_TOGETHER):
            part = made[start : start + DRAWS_TOGETHER]
            drawn = draws(words, 2 * len(part))
            np.multiply(drawn[: len(part)], self.factor, out=part)
            part += drawn[len(part) :]
        return made

    def longest(self, bound: float, deviation: float) -> int:
        """floor((C / g)^2): the largest sum of squares of whole numbers that stands for a norm of at most C."""
        if not (0 < bound < math.inf and 0 < deviation < math.inf):
            raise GridError("Whole numbers need a bound and a deviation that are finite numbers above 0.")
        return math.floor(Fraction(bound) ** 2 * self.variance / Fraction(deviation) ** 2)


CLIENTS = Grid(16)
"""Grid of what whole clients send: S = 65,664."""
RECORDS = Grid(256)
"""Grid of sums and means over a client's records: S = 1,048,584."""


# ---- the table


@dataclass(frozen=True)
class SamplingTable:
    """Columns of which each holds the rest of its own number and part of another's."""

    thresholds: np.ndarray
    """Part of each column that belongs to its own number, in units of 2^-64 of the column."""
    aliases: np.ndarray
    """The place of the number to which the rest belongs."""


def weights() -> list[int]:
    """exp(-x^2 / 2^25) for x = 0 ... 2^16, as whole numbers of 2^-320, to within 2^-280."""
    one = 1 << PRECISION
    root, term, count = 0, one, 0
    while term:  # exp(-2^-25) by its series
        root += -term if count % 2 else term
        count += 1
        term = (term >> 25) // count
    squared = root * root >> PRECISION
    found, ratio = [one], root
    for _ in range(HALF):  # exp(-(x + 1)^2 / 2^25) is exp(-x^2 / 2^25) times root^(2x + 1)
        found.append(found[-1] * ratio >> PRECISION)
        ratio = ratio * squared >> PRECISION
    return found


def masses() -> list[int]:
    """P(X = x) for x = -2^16 ... 2^16 - 1 in units of 2^-81, which add up to 2^81: rounded up, and the surplus taken
    from |x| <= 4096, where a few units are least."""
    side = weights()
    whole = 2 * sum(side) - side[0]
    unit = COLUMNS * WORD
    up = [-(-weight * unit // whole) for weight in side]
    found = [up[abs(x)] for x in range(-HALF, HALF)]
    middle = sorted(range(-TABLE_DEVIATION, TABLE_DEVIATION + 1), key=abs)
    each, more = divmod(sum(found) - unit, len(middle))
    for place, x in enumerate(middle):
        found[x + HALF] -= each + (place < more)
    return found


def columns(wanted: list[int]) -> SamplingTable:
    """Divide masses that add up to a whole number of columns among them, by Walker's and Vose's method."""
    left = list(wanted)
    thresholds, aliases = [0] * len(left), list(range(len(left)))  # a column that is left is all its own number's
    short = [place for place, mass in enumerate(left) if mass < WORD]
    long = [place for place, mass in enumerate(left) if mass >= WORD]
    while short:
        place, giver = short.pop(), long[-1]
        thresholds[place], aliases[place] = left[place], giver
        left[giver] -= WORD - left[place]
        if left[giver] < WORD:
            short.append(long.pop())
    return SamplingTable(np.array(thresholds, dtype=np.uint64), np.array(aliases, dtype=np.int32))


def table_masses(table: SamplingTable) -> list[int]:
    """Mass that the columns of a table hold of each number: the masses of which they were made."""
    found = table.thresholds.tolist()
    for threshold, alias in zip(table.thresholds.tolist(), table.aliases.tolist(), strict=True):
        found[alias] += WORD - threshold
    return found


@lru_cache(maxsize=1)
def gaussian_table() -> SamplingTable:
    """The table of N_Z(0, 4096^2); it takes half a second, once in a process."""
    wanted = masses()
    table = columns(wanted)
    if table_masses(table) != wanted:
        raise AssertionError("the columns of the noise's table do not add up to its masses")
    return table


def draws(words: Words, count: int) -> np.ndarray:
    """`count` independent draws of N_Z(0, 4096^2): 64 bits and 17 of another 32 for each."""
    table = gaussian_table()
    raw = words(count + (count + 1) // 2)
    column = raw[count:].view(np.uint32)[:count] & np.uint32(COLUMNS - 1)
    own = raw[:count] < table.thresholds.take(column)
    drawn = np.where(own, column.view(np.int32), table.aliases.take(column))
    drawn -= HALF
    return drawn


# ---- rounding


def round_contribution(values: np.ndarray, bound: float, deviation: float, grid: Grid = CLIENTS) -> np.ndarray:
    """Round one contribution to steps of the grid, so that its norm is at most C / g, whatever `values` are.

    Args:
        values: entries of the contribution.
        bound: C, the largest norm, in the units of `values`.
        deviation: standard deviation of the noise, in the same units.
        grid: grid to round to.

    A contribution that is not finite becomes zero. Where rounding makes it too long it is scaled down by what it is too
    long, a little more each time, and rounded again; what ten times do not achieve is truncated, or becomes zero.
    """
    limit = grid.longest(bound, deviation)
    check_signal(limit, values.size)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is not finite, and becomes zero
        scaled = values.astype(np.float64) * (1 / grid.step(deviation))
        length = float(np.linalg.norm(scaled))
    if not math.isfinite(length):
        return np.zeros(values.shape, dtype=np.int64)
    factor = 1.0 if length * length <= limit else math.sqrt(limit) / length
    for attempt in range(ROUNDING_ATTEMPTS):
        found = np.rint(scaled * factor).astype(np.int64)
        squares = sum_of_squares(found)
        if squares <= limit:
            return found
        factor *= math.sqrt(limit / squares) * (1 - 2.0**-10 * attempt)
    found = np.trunc(scaled * factor).astype(np.int64)
    return found if sum_of_squares(found) <= limit else np.zeros_like(found)


def round_sum(values: np.ndarray, deviation: float, grid: Grid = RECORDS) -> np.ndarray:
    """Round a sum over records to steps of the grid; no bound is enforced, since bounds hold for each record and not
    for the sum."""
    with np.errstate(over="ignore"):
        scaled = np.nan_to_num(values.astype(np.float64) * (1 / grid.step(deviation)), nan=0.0)
    return np.rint(scaled.clip(-MAX_WHOLE, MAX_WHOLE)).astype(np.int64)


def sum_of_squares(values: np.ndarray) -> int:
    """The exact sum of squares of whole numbers of at most 53 bits."""
    flat = values.reshape(-1)
    if not flat.size:
        return 0
    high, low = flat >> 26, flat & (2**26 - 1)
    return (_sum(high * high) << 52) + (_sum(high * low) << 27) + _sum(low * low)


def _sum(values: np.ndarray) -> int:
    """The exact sum of whole numbers of at most 54 bits: 256 of them fit into 63."""
    return sum(np.add.reduceat(values, np.arange(0, len(values), 256)).tolist())


def check_signal(limit: int, entries: int) -> None:
    """Refuse a contribution of which rounding would leave nothing, or which does not fit into whole numbers; `limit` is
    the largest sum of squares."""
    if limit < 16 * entries:  # C / g < 4 sqrt(d)
        raise GridError(
            f"The noise is so large that rounding to whole numbers would eat the signal of {entries} entries: send "
            "fewer, have more clients, or give a larger epsilon."
        )
    if limit > MAX_WHOLE**2:
        raise GridError("The noise is so small that contributions do not fit into whole numbers: give more of it.")


def width(cohort: int, limit: int, grid: Grid = CLIENTS) -> int:
    """Bits of the whole numbers in which a sum over a cohort is made: 32 or 64, modulo 2^bits.

    Every entry of the sum has to fit, its sign included: n C / g and twelve deviations of the noise. `limit` is the
    largest sum of squares of one contribution.
    """
    largest = cohort * (math.isqrt(limit) + 1) + 12 * grid.deviation * math.sqrt(cohort)
    for bits in (32, 64):
        if largest < 2 ** (bits - 1):
            return bits
    raise GridError("The noise is so small that a sum does not fit into 64 bits: give more of it.")


# ---- epsilon


def charged_multiplier(multiplier: float, entries: int, grid: Grid = RECORDS) -> float:
    """Noise multiplier that a rounded sum over records is charged for: noise over C + g sqrt(d) instead of over C.

    Args:
        multiplier: noise over sensitivity C of the sum before rounding.
        entries: d, the number of entries of the sum.
        grid: grid to which the sum is rounded.
    """
    rounded = multiplier / (1 + multiplier * math.sqrt(entries) / grid.deviation)
    return rounded * math.sqrt(1 - 1 / (12 * grid.variance))


def multiplier_charged_as(multiplier: float, entries: int, grid: Grid = RECORDS) -> float:
    """Noise multiplier for which `charged_multiplier` gives at least `multiplier`."""
    wanted = multiplier / math.sqrt(1 - 1 / (12 * grid.variance)) * (1 + 1e-12)
    taken = wanted * math.sqrt(entries) / grid.deviation
    if taken > 0.5:
        raise GridError(f"A noise multiplier of {multiplier:g} is too large for {entries} entries in whole numbers.")
    return wanted / (1 - taken)


@dataclass(frozen=True)
class Gap:
    """Distance of noise in whole numbers from the Gaussian mechanism, whose epsilon is known in closed form."""

    coordinates: int
    """Noisy numbers that an observer meets: entries of a vector times the vectors (at record level the steps)."""
    shares: int = 1
    """Independent draws in each of them: the honest ones of a sum; one where messages are seen by themselves."""
    grid: Grid = CLIENTS

    @property
    def variance(self) -> int:
        """Variance V of the noise that the observer meets, in steps of the grid."""
        return self.grid.variance * self.shares

    @property
    def epsilon(self) -> float:
        """Amount that is added to epsilon."""
        return self.coordinates * (2.1e-3 / self.variance**2 + self.shares * 4e-17)

    def delta(self, epsilon: float) -> float:
        """Amount that is added to delta beside the closed form's `epsilon`."""
        outside = math.exp(min(epsilon, 500.0)) * self.shares * 2.6e-57
        return self.coordinates * (4.87e-4 / self.variance**2 + self.shares * 7.2e-20 + outside)

    def multiplier(self, multiplier: float) -> float:
        """z': the noise multiplier for which the closed form is asked."""
        return multiplier * math.sqrt(1 - 1 / (12 * self.variance))

    def mu(self, mu: float) -> float:
        """The mu for which the closed form is asked."""
        return mu / math.sqrt(1 - 1 / (12 * self.variance))

    def spent(self, closed: Callable[[float], float], delta: float) -> float:
        """The epsilon that holds at `delta`; infinity where the added delta leaves nothing of it.

        `closed` maps a delta to the closed form's epsilon, for multipliers as `multiplier` gives them.
        """
        return total_epsilon([self], closed, delta)


def total_epsilon(gaps: Sequence[Gap], closed: Callable[[float], float], delta: float) -> float:
    """Epsilon that holds at `delta` for releases with several kinds of noise; infinity where the added deltas leave
    nothing.

    Args:
        gaps: what whole numbers add, for each kind of noise.
        closed: function from a delta to the closed form's epsilon of all releases together.
        delta: delta at which the result holds.
    """
    if not gaps:
        return closed(delta)
    epsilon = 0.0
    while True:
        left = delta - sum(gap.delta(epsilon) for gap in gaps)
        found = closed(left) if left > 0 else math.inf
        if math.isinf(found):
            return math.inf
        if found <= epsilon:  # what it adds to delta has been subtracted
            return found + sum(gap.epsilon for gap in gaps)
        epsilon = found * (1 + 1e-9)
