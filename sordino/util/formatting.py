"""Figures for people and for machines. It imports nothing, so that a list of runs is on the screen at once."""

from __future__ import annotations

import math


def rounded_up(figure: float) -> str:
    """An epsilon for people, never below the truth: to two places behind the point, or, below 0.01, to two digits."""
    # Rounded far behind the point first: a calibrated 8 may come as 8.000000000000002.
    if figure >= 1000:
        return f"{math.ceil(round(figure, 6)):,}"
    if 1e-300 < figure < 0.01:
        return _digits_up(figure, 2)
    return f"{math.ceil(round(figure * 100, 8)) / 100:.2f}"


def none(value: float) -> float | None:
    """`nan` and infinity as None, for databases and JSON."""
    return float(value) if math.isfinite(value) else None


def delta_text(delta: float) -> str:
    """A delta for people, to three digits and never below the one for which an epsilon was worked out."""
    return _digits_up(delta, 3) if delta > 1e-300 else f"{delta:.3g}"


def _digits_up(figure: float, digits: int) -> str:
    """A figure to so many digits that is not below it."""
    unit = 10.0 ** (math.floor(math.log10(figure)) - digits + 1)
    return f"{math.ceil(round(figure / unit, 6)) * unit:.{digits}g}"


def percent_up(share: float, unit: str = "%") -> str:
    """A share that must not be understated, in percent."""
    return f"{math.ceil(round(share * 1000, 8)) / 10:.1f}{unit}"
