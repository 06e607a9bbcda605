"""Epsilon, delta and percentages as text, rounded up. Imports nothing heavy, so that `sordino runs` answers at once."""

from __future__ import annotations

import math
from collections.abc import Sequence


def canonical(text: str, fold_case: bool = False) -> str:
    """A cell as it is compared: 1, 1.0 and " 1 " are one value in every kind of file."""
    text = text.strip()
    try:
        number = float(text)
    except ValueError:
        number = float("inf")
    if number.is_integer():
        return str(int(number))
    return text.casefold() if fold_case else text


NAMED = 12
"""Names that a sentence lists."""


def join_names(names: Sequence[str]) -> str:
    """Names as a list in a sentence, the first few of many."""
    shown = names[:NAMED]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(shown[:-1]) + f" and {shown[-1]}" if len(shown) > 1 and not more else ", ".join(shown) + more


def round_up(figure: float) -> str:
    """Format an epsilon, rounded up: to two decimals, or to two significant digits if it is below 0.01."""
    # Float errors are rounded off first: a calibrated 8 may come as 8.000000000000002.
    if figure >= 1000:
        return f"{math.ceil(round(figure, 6)):,}"
    if 1e-300 < figure < 0.01:
        return _digits_up(figure, 2)
    return f"{math.ceil(round(figure * 100, 8)) / 100:.2f}"


def finite_or_none(value: float) -> float | None:
    """Return None for `nan` and infinity, which databases and JSON do not hold."""
    return float(value) if math.isfinite(value) else None


def delta_text(delta: float) -> str:
    """Format a delta, rounded up to three significant digits."""
    return _digits_up(delta, 3) if delta > 1e-300 else f"{delta:.3g}"


def _digits_up(figure: float, digits: int) -> str:
    """Format a positive number, rounded up to `digits` significant digits."""
    unit = 10.0 ** (math.floor(math.log10(figure)) - digits + 1)
    return f"{math.ceil(round(figure / unit, 6)) * unit:.{digits}g}"


def percent_up(share: float, unit: str = "%") -> str:
    """Format a share in percent, rounded up to one decimal."""
    return f"{math.ceil(round(share * 1000, 8)) / 10:.1f}{unit}"


def of_part(metric: str, name: str) -> str:
    """Name of a metric of one of several outcomes."""
    return f"{metric}[{name}]"


def split_part(metric: str) -> tuple[str, str | None]:
    """Metric and outcome of a name by `of_part`; None for the outcome of any other name."""
    name, _, part = metric.partition("[")
    return name, part.removesuffix("]") or None
