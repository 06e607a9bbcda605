"""Tuning: the same grid for every method, chosen on seeds that are not reported.

A study that chooses a rate or a threshold by looking at results spends privacy each time it looks. What is reported
afterwards is the cost of the last run alone, so the cost of choosing is told beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import numpy as np

from sordino.errors import UserError
from sordino.experiment.config import KEYS, Experiment
from sordino.experiment.hyperparameters import concerns
from sordino.experiment.lifetime import composed, spends
from sordino.experiment.summary import Summary
from sordino.experiment.sweep import Cell, Sweep, cells, check_keys, contender, points
from sordino.privacy.views import View
from sordino.rounding import rounded_up


class Tuned(TypedDict):
    """What was chosen for a method."""

    method: str
    chosen: str
    """The method with the best values, as a comparison takes it."""
    tries: int
    """How many points of the grid make a difference to it."""
    runs: int
    accuracy: float
    """Of the best point, on the seeds that chose it: better than it will be on others."""
    epsilon: dict[View, float | None]
    """What all tries together cost, had they been made on the people whose data they were."""


def tune(
    experiment: Experiment,
    methods: Sequence[str],
    grid: Sweep,
    seeds: Sequence[int],
    run: Callable[[list[Cell]], dict[str, Summary]],
) -> list[Tuned]:
    """The best point of a grid for each method, by the mean personal accuracy over seeds that are not reported.

    A method's own brackets win over the grid: what is named there is not tuned.
    """
    if not seeds:
        raise UserError("Tuning needs at least one seed.")
    check_keys(grid, methods)
    tried = {text: [_with(text, at) for at in points(_own(text, grid))] for text in methods}
    wanted = cells(experiment, [one for texts in tried.values() for one in texts], {}, seeds)
    found = run(wanted)
    results = {
        text: [found[cell.key] for cell in wanted if cell.method == text] for texts in tried.values() for text in texts
    }
    return [_chosen(text, {one: results[one] for one in tried[text]}) for text in methods]


def _own(text: str, grid: Sweep) -> dict[str, Sequence[Any]]:
    """The part of a grid that concerns a method and that it does not say itself."""
    name, settings = contender(text)
    return {key: values for key, values in grid.items() if key not in settings and (key in KEYS or concerns(key, name))}


def _with(text: str, at: dict[str, Any]) -> str:
    """A contender with more settings in its brackets."""
    name, settings = contender(text)
    pairs = [f"{key}={value}" for key, value in (settings | at).items()]
    return f"{name}[{','.join(pairs)}]" if pairs else name


def _chosen(text: str, results: dict[str, list[Summary]]) -> Tuned:
    means = {one: float(np.mean([r["accuracy"]["personal"] for r in found])) for one, found in results.items()}
    best = max(means, key=lambda one: means[one])
    everything = [result for found in results.values() for result in found]
    first = everything[0]
    costly = [result["spent"] for result in everything if spends(result["spent"])]
    return {
        "method": text,
        "chosen": best,
        "tries": len(results),
        "runs": len(everything),
        "accuracy": means[best],
        "epsilon": composed(costly, first["unit"], first["delta"]),
    }


def sentences(tuned: Sequence[Tuned], view: View) -> list[str]:
    """What was chosen and what that would have cost, in words."""
    told = []
    for one in tuned:
        epsilon = one["epsilon"][view]
        figure = "an infinite epsilon" if epsilon is None else f"epsilon {rounded_up(epsilon)}"
        cost = "nothing" if epsilon == 0 else figure
        told.append(
            f"Tuned {one['method']}: {one['chosen']} is the best of {one['tries']} on seeds that are not reported. On "
            f"the same people its {one['runs']} run{'s' if one['runs'] != 1 else ''} would have cost {cost} for the "
            f"{view}, besides the runs above."
        )
    return told
