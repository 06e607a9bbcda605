"""Figures, names and sentences that all reports share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from sordino.privacy.unit import Unit
from sordino.util.formatting import delta_text, percent_up, round_up

if TYPE_CHECKING:
    from sordino.store.run_summary import Summary
    from sordino.study.compare import ComparisonRow

UNPROTECTED = "Nothing is protected, because epsilon is infinite for every observer"
"""Sentence in place of the protected unit and delta, where nothing is protected."""


def protects_nothing(epsilon: Mapping[Any, float | None]) -> bool:
    """Whether epsilon is infinite (None) for every observer."""
    return all(value is None for value in epsilon.values())


def observer_of_figures(epsilon: Mapping[Any, float | None], protect_from: str) -> str | None:
    """Observer whom figures of which there is one alone are for: the one whom noise was planned against, or None where
    all observers have the same epsilon and the figures hold for all."""
    return None if len(set(epsilon.values())) == 1 else protect_from


SCORES = {"accuracy": "accuracy", "r2": "R²", "concordance": "concordance"}
"""Names of the metrics by which clients are compared (`Task.score`), for people."""


SOURCES = {"accuracy": "Accuracies", "r2": "R² and errors", "concordance": "Figures of concordance"}


def score_of(summary: Summary) -> str:
    """Name of the metric that a run's clients are compared by."""
    return SCORES[summary.score]


def accuracy_source(summary: Summary) -> str:
    """Sentence on where the accuracies of a run come from."""
    what = SOURCES[summary.score]
    if not summary.deployed:
        return f"{what} are measured by the simulation on the clients' raw test records: no client would send them."
    if summary.accuracy_noise is not None:
        return f"{what} are what the sites share, with noise; `sordino site status` shows an owner its own."
    if summary.trial_of is not None:
        return f"{what} are those that the trial's sites keep: on real machines they stay there."
    return f"{what} stay at the sites: `sordino site status` shows an owner its own."


def neighbour_words(
    unit: Unit, epsilon_rows: Mapping[str, float | None] | None = None, observer: str | None = None
) -> list[str]:
    """Sentences on the two worlds that the epsilons of a run or plan compare and, where records are protected, on rows
    and persons.

    Args:
        unit: what is protected.
        epsilon_rows: epsilon of a person by the number of its rows at one client, where it is known.
        observer: `observer_of_figures` for these.
    """
    return [f"Neighbours: {unit.neighbours}.", *unit.caveats(epsilon_rows, observer)]


def epsilon_words(value: float | None, infinite: str = "∞") -> str:
    """Format an epsilon, rounded up so that it is never understated; None and infinity become `infinite`."""
    return infinite if value is None or math.isinf(value) else round_up(value)


def replacement_words(epsilon: float | None, at: float | None, delta: float, infinite: str = "∞") -> str:
    """Format the epsilon of a record that is replaced by another, with the delta `at` which it holds where that is not
    the run's."""
    figure = epsilon_words(epsilon, infinite)
    return figure if epsilon is None or at in (None, delta) else f"{figure} at delta = {delta_text(float(at or 0))}"


def bound_words(value: float | None) -> str:
    """Format a lower bound of epsilon, rounded down so that it is never overstated."""
    return "–" if value is None else f"{math.floor(value * 100 + 1e-9) / 100:.2f}"


def attack_words(accuracy: float, unit: str = "%") -> str:
    """Format the accuracy of the best attack in percent, rounded up so that it is never understated."""
    return percent_up(accuracy, unit)


def percent(value: float | None) -> str:
    """Format an accuracy in percent; a dash where it is None."""
    return "–" if value is None else f"{value:.1%}"


def against_words(counts: Mapping[str, int], seeds: int = 1) -> str:
    """Clause on the number of clients that gain, lose and see no difference, counted over `seeds` seeds."""
    gain = "1 client gains" if counts["gain"] == 1 else f"{counts['gain']:,} clients gain"
    lose = "1 loses" if counts["lose"] == 1 else f"{counts['lose']:,} lose"
    same = "1 sees" if counts["same"] == 1 else f"{counts['same']:,} see"
    over = "" if seeds == 1 else f", counted over {seeds} seeds"
    return f"{gain}, {lose} and {same} no difference{over}"


def method_name(row: ComparisonRow) -> str:
    """Name of a row: its method, and its variant where that is not `sound`."""
    return row.method if row.variant == "sound" else f"{row.method} ({row.variant})"


def sentences_of(rows: Sequence[ComparisonRow], key: Literal["not_covered", "notes"]) -> list[str]:
    """Sentences of the rows' field `key`, each once. A sentence that is not about all rows begins with the methods, or
    the points of the sweep, that it is about."""
    found = []
    for sentence in dict.fromkeys(sentence for row in rows for sentence in getattr(row, key)):
        whose = _whose([row for row in rows if sentence in getattr(row, key)], rows)
        found.append(f"{whose}: {sentence}" if whose else sentence)
    return found


def gains_of(rows: Sequence[ComparisonRow]) -> list[str]:
    """Sentences on the clients that gain and lose by blending or recalibrating against their own local models, one per
    row in which clients do so."""
    found = []
    for row in rows:
        if row.against_local is not None:
            whose = ", ".join(filter(None, (method_name(row), _place(row))))
            counts = against_words(row.against_local, row.seeds)
            found.append(f"{whose}: against the local models of the mixture alone, {counts}.")
    return found


def _whose(some: Sequence[ComparisonRow], rows: Sequence[ComparisonRow]) -> str:
    """Words that single out `some` of the rows: their methods, or their points of the sweep; empty for all rows."""
    if len(some) == len(rows):
        return ""
    methods, places = (dict.fromkeys(called(row) for row in some) for called in (method_name, _place))
    if len(some) == sum(method_name(row) in methods for row in rows):
        return ", ".join(methods)
    if len(some) == sum(_place(row) in places for row in rows):
        return "; ".join(places)
    return "; ".join(f"{method_name(row)}, {_place(row)}" for row in some)


def _place(row: ComparisonRow) -> str:
    """Point of the sweep at which a row lies, in words."""
    return ", ".join(f"{key} {value}" for key, value in row.at.items())


def with_full_stop(sentence: str) -> str:
    """End a sentence with one full stop."""
    return sentence.rstrip(".") + "."


def markdown_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Format a table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *body))


def latex_text(text: str) -> str:
    """Escape the characters that LaTeX would read as commands."""
    return "".join(f"\\{letter}" if letter in "_%&#$" else letter for letter in text)
