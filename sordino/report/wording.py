"""Figures and names as all reports write them, whatever they are written into."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sordino.rounding import delta_text, percent_up, rounded_up


def epsilon_words(value: float | None, infinite: str = "∞") -> str:
    """An epsilon for people, rounded up so that it is never understated; None and infinity are called `infinite`."""
    return infinite if value is None or math.isinf(value) else rounded_up(value)


def replaced_words(epsilon: float | None, at: float | None, delta: float, infinite: str = "∞") -> str:
    """The epsilon of a record that is replaced by another, and its delta where that is not the run's."""
    figure = epsilon_words(epsilon, infinite)
    return figure if epsilon is None or at in (None, delta) else f"{figure} at delta = {delta_text(float(at or 0))}"


def bound_words(value: float | None) -> str:
    """What an attack shows epsilon to be at least, rounded down so that it is never overstated."""
    return "–" if value is None else f"{math.floor(value * 100 + 1e-9) / 100:.2f}"


def attack_words(accuracy: float, unit: str = "%") -> str:
    """What the best attack achieves, rounded up so that it is never understated."""
    return percent_up(accuracy, unit)


def percent(value: float | None) -> str:
    """An accuracy for people."""
    return "–" if value is None else f"{value:.1%}"


def method_name(row: Mapping[str, Any]) -> str:
    """What a comparison's row is called: its method, and its variant where that is not the usual one."""
    return str(row["method"]) if row["variant"] == "sound" else f"{row['method']} ({row['variant']})"


def markdown_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *body))


def latex_text(text: str) -> str:
    """Text in which LaTeX finds no commands."""
    return "".join(f"\\{letter}" if letter in "_%&#$" else letter for letter in text)
