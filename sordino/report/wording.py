"""Figures and names as all reports write them, whatever they are written into."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sordino.privacy.unit import Unit
from sordino.util.formatting import delta_text, percent_up, rounded_up

UNPROTECTED = "Nothing is protected, because epsilon is infinite for every observer"
"""What is said in place of what a run protects, and at which delta."""


def unprotected(epsilon: Mapping[Any, float | None]) -> bool:
    """Whether epsilon, which is None where it is infinite, is so for every observer."""
    return all(value is None for value in epsilon.values())


def compared_words(summary: Mapping[str, Any]) -> list[str]:
    """Sentences on the two worlds that the epsilons of a run or plan compare and, where records are protected, on rows
    and persons."""
    unit = Unit(summary["unit"])
    return [f"Neighbours: {unit.neighbours}.", *unit.caveats(summary.get("epsilon_rows"))]


def epsilon_words(value: float | None, infinite: str = "∞") -> str:
    """An epsilon for people, rounded up so that it is never understated; None and infinity are called `infinite`."""
    return infinite if value is None or math.isinf(value) else rounded_up(value)


def replaced_words(epsilon: float | None, at: float | None, delta: float, infinite: str = "∞") -> str:
    """The epsilon of a record that is replaced by another, and its delta where that is not the run's."""
    figure = epsilon_words(epsilon, infinite)
    return figure if epsilon is None or at in (None, delta) else f"{figure} at delta = {delta_text(float(at or 0))}"


def bound_words(value: float | None) -> str:
    """A lower bound of epsilon, rounded down so that it is never overstated."""
    return "–" if value is None else f"{math.floor(value * 100 + 1e-9) / 100:.2f}"


def attack_words(accuracy: float, unit: str = "%") -> str:
    """What the best attack achieves, rounded up so that it is never understated."""
    return percent_up(accuracy, unit)


def percent(value: float | None) -> str:
    """An accuracy for people."""
    return "–" if value is None else f"{value:.1%}"


def against_words(counts: Mapping[str, int], seeds: int = 1) -> str:
    """How many clients gain and lose against something, counted over so many seeds."""
    gain = "1 client gains" if counts["gain"] == 1 else f"{counts['gain']:,} clients gain"
    lose = "1 loses" if counts["lose"] == 1 else f"{counts['lose']:,} lose"
    same = "1 sees" if counts["same"] == 1 else f"{counts['same']:,} see"
    over = "" if seeds == 1 else f", counted over {seeds} seeds"
    return f"{gain}, {lose} and {same} no difference{over}"


def method_name(row: Mapping[str, Any]) -> str:
    """What a comparison's row is called: its method, and its variant where that is not the usual one."""
    return str(row["method"]) if row["variant"] == "sound" else f"{row['method']} ({row['variant']})"


def sentences_of(rows: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    """The sentences that a comparison's rows have under `key`, each once; where it is not about all rows, with the
    methods, or the places on the way through a sweep, that it is about."""
    found = []
    for sentence in dict.fromkeys(sentence for row in rows for sentence in row[key]):
        whose = _whose([row for row in rows if sentence in row[key]], rows)
        found.append(f"{whose}: {sentence}" if whose else sentence)
    return found


def gains_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each of a comparison's rows in which clients blend, how many gain and lose against what they trained alone
    for it."""
    found = []
    for row in rows:
        if row["against_local"] is not None:
            whose = ", ".join(filter(None, (method_name(row), _place(row))))
            counts = against_words(row["against_local"], row["seeds"])
            found.append(f"{whose}: against the local models of the mixture alone, {counts}.")
    return found


def _whose(some: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> str:
    """What sets some of a comparison's rows apart; nothing where they are all."""
    if len(some) == len(rows):
        return ""
    methods, places = (dict.fromkeys(called(row) for row in some) for called in (method_name, _place))
    if len(some) == sum(method_name(row) in methods for row in rows):
        return ", ".join(methods)
    if len(some) == sum(_place(row) in places for row in rows):
        return "; ".join(places)
    return "; ".join(f"{method_name(row)}, {_place(row)}" for row in some)


def _place(row: Mapping[str, Any]) -> str:
    """Where on the way through a sweep a comparison's row lies."""
    return ", ".join(f"{key} {value}" for key, value in row["at"].items())


def ended(sentence: str) -> str:
    """A sentence with its full stop, whether it came with one or not."""
    return sentence.rstrip(".") + "."


def markdown_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *body))


def latex_text(text: str) -> str:
    """Text in which LaTeX finds no commands."""
    return "".join(f"\\{letter}" if letter in "_%&#$" else letter for letter in text)
