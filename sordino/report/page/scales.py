"""From numbers to places on a picture, and the numbers that its axes show."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
"""What the distance between two ticks may be, times a power of ten."""


@dataclass(frozen=True)
class Scale:
    """An axis: numbers from `low` to `high` lie between the places `start` and `end`."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """The place of a number; one beyond the axis lies at its end."""
        low, high, value = (self._moved(one) for one in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Round numbers on the axis."""
        if self.logarithmic:
            return _powers(self.low, self.high, wanted)
        span = (self.high - self.low) / wanted
        if span <= 0:
            return [self.low]
        power = 10 ** math.floor(math.log10(span))
        step = next(step * power for step in STEPS if step * power >= span * (1 - 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        return [round(place * step, 12) for place in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _moved(self, value: float) -> float:
        return math.log(max(value, math.ulp(0.0))) if self.logarithmic else value


def around(values: Sequence[float], start: float, end: float, logarithmic: bool = False) -> Scale:
    """An axis that holds all of the numbers, with a little air."""
    low, high = min(values), max(values)
    if logarithmic:
        air = (high / low) ** 0.05 if high > low else 1.5
        return Scale(low / air, high * air, start, end, True)
    air = 0.05 * (high - low) or 0.05 * abs(high) or 0.5
    return Scale(low - air, high + air, start, end)


def spread_out(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places moved apart, in their order, until each is `gap` from the next, within `low` to `high` if they fit."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    moved = list(places)
    for before, after in itertools.pairwise(order):
        moved[after] = max(moved[after], moved[before] + gap)
    ceiling = high
    for index in reversed(order):
        moved[index] = min(moved[index], ceiling)
        ceiling = moved[index] - gap
    shift = max(0.0, low - moved[order[0]]) if order else 0.0
    return [place + shift for place in moved]


def number(value: float) -> str:
    """A tick in few characters."""
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def _powers(low: float, high: float, wanted: int) -> list[float]:
    """Powers of ten on a logarithmic axis, with 2 and 5 between them where there is room."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
        found = [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if len(found) <= wanted + 2:
            return found
    every = math.ceil(len(found) / wanted)
    return found[::every]
