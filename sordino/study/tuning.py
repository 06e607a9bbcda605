"""Tuning: the same grid for every method, chosen on seeds that are not reported.

A study that chooses a rate or a threshold by looking at results spends privacy each time it looks. What is reported
afterwards is the cost of the last run alone, so the cost of choosing is printed beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from sordino.errors import UserError
from sordino.experiment.hyperparameters import bracketed, concerns
from sordino.privacy.unit import Unit
from sordino.privacy.views import View
from sordino.store.run_summary import Summary
from sordino.store.spending import NATURAL, sum_up
from sordino.study.sweep import Cell, Sweep, check_keys, contender, is_of_experiment, points
from sordino.util.formatting import round_up

Accuracy = Literal["personal", "start", "global"]
"""Models whose accuracy decides."""
Results = dict[str, list[Summary]]
"""Runs of each contender, one per seed."""


@dataclass(frozen=True)
class Tuned:
    """Settings chosen for a method."""

    method: str
    chosen: str
    """Method with the best values, as a comparison takes it."""
    tries: int
    """Number of points of the grid that make a difference to the method."""
    runs: int
    accuracy: float
    """Accuracy of the best point on the seeds that chose it, which is better than it will be on others."""
    unit: Unit
    """Unit that `epsilon` protects: one record where the tries deal the records to clients in different ways."""
    epsilon: dict[View, float | None]
    """Cost of all tries together, as if they had been made on the people whose data these are."""
    on_edge: tuple[str, ...] = ()
    """Keys whose best value is the smallest or the largest that was tried, although the grid was extended."""

    def to_dict(self) -> dict[str, Any]:
        """JSON document of the choice."""
        return asdict(self)


@dataclass(frozen=True)
class TuningRuns:
    """Runs on which contenders are tried."""

    cells: Callable[[list[str]], list[Cell]]
    """Cells of some contenders, on seeds that are not reported."""
    run: Callable[[list[Cell]], dict[str, Summary]]
    """Runs cells; returns their summaries by the cells' keys."""
    by: Accuracy = "personal"
    """Models whose accuracy decides; where a method has no such model, its personal ones do."""

    def results(self, texts: list[str]) -> Results:
        """Results of some contenders."""
        wanted = self.cells(texts)
        if not wanted:
            raise UserError("Tuning needs at least one seed.")
        found = self.run(wanted)
        return {text: [found[cell.key] for cell in wanted if cell.method == text] for text in texts}

    def accuracy(self, found: list[Summary]) -> float:
        """Mean over seeds of the accuracy that decides."""
        told = [result.accuracy for result in found]
        figures = [one["personal"] if one[self.by] is None else one[self.by] for one in told]
        known = [figure for figure in figures if figure is not None]
        if not known:
            raise UserError("No client has records to test models on, so nothing can be tuned: give clients more.")
        return float(np.mean(known))

    def best(self, results: Results) -> str:
        """Contender with the highest accuracy."""
        return max(results, key=lambda text: self.accuracy(results[text]))


def tune(
    ground: TuningRuns,
    methods: Sequence[str],
    grid: Sweep,
    further: Callable[[str], tuple[str, Sweep]] | None = None,
    extensions: int = 0,
) -> list[Tuned]:
    """Choose the best point of a grid for each method.

    Settings in a method's own brackets win over the grid and are not tuned.

    Args:
        ground: runs on which contenders are tried.
        methods: contenders.
        grid: values to choose from.
        further: gives, for the best contender, the contender and the grid of a second search; the best of both is
            taken, and both are paid for.
        extensions: how often a grid grows at most, while the best value of a method lies on its edge. All methods get
            as many further tries: where the best one lies inside, one between it and its neighbour.
    """
    check_keys(grid, methods)
    if further is not None:  # what the second go cannot make is refused before the first has been run
        ground.cells([one for text in methods for one in _points(*further(text))])
    tried = _run_grids(ground, {text: (text, grid) for text in methods})
    axes = {text: _axes(text, grid) for text in methods}
    for _ in range(extensions):
        bests = {text: ground.best(found) for text, found in tried.items()}
        if not any(_edges(bests[text], axes[text]) for text in methods):
            break
        more = {text: _grow(bests[text], axes[text]) for text in methods}
        results = ground.results(list(dict.fromkeys(one for texts in more.values() for one in texts)))
        tried = {text: tried[text] | {one: results[one] for one in more[text]} for text in methods}
    edges = {text: _edges(ground.best(found), axes[text]) for text, found in tried.items()} if extensions else {}
    if further is not None:
        again = _run_grids(ground, {text: further(ground.best(found)) for text, found in tried.items()})
        tried = {text: tried[text] | again[text] for text in methods}
    return [_choice(text, ground, tried[text], tuple(edges.get(text, ()))) for text in methods]


def _run_grids(ground: TuningRuns, grids: dict[str, tuple[str, Sweep]]) -> dict[str, Results]:
    """Results at every point of each method's grid; all of them are run at once."""
    tried = {text: _points(*start) for text, start in grids.items()}
    results = ground.results(list(dict.fromkeys(one for texts in tried.values() for one in texts)))
    return {text: {one: results[one] for one in texts} for text, texts in tried.items()}


def _axes(text: str, grid: Sweep) -> dict[str, list[float]]:
    """Values of the keys that concern a contender and can be extended: those of at least two positive numbers."""
    found: dict[str, list[float]] = {}
    for key, values in _own(text, grid).items():
        if len(values) > 1 and all(isinstance(one, int | float) and one > 0 for one in values):
            found[key] = sorted(float(one) for one in values)
    return found


def _edges(best: str, axes: dict[str, list[float]]) -> list[str]:
    """Keys whose value in a contender is the smallest or the largest that was tried."""
    settings = contender(best)[1]
    return [key for key, values in axes.items() if float(settings[key]) in (values[0], values[-1])]


def _grow(best: str, axes: dict[str, list[float]]) -> list[str]:
    """Contenders with one more value of each key, which is noted in `axes`: beyond the best one where that lies on the
    edge, as far as its neighbour; else halfway to the neighbour that is further off."""
    found = []
    for key, values in axes.items():
        place = values.index(float(contender(best)[1][key]))
        at = values[place]
        if place == 0:
            fresh = at * at / values[1]
        elif place == len(values) - 1:
            fresh = at * at / values[-2]
        else:
            below, above = values[place - 1], values[place + 1]
            fresh = math.sqrt(at * (above if above / at > at / below else below))
        fresh = float(f"{fresh:.3g}")
        if fresh not in values:
            values.append(fresh)
            values.sort()
            found.append(with_settings(best, {key: fresh}))
    return found


def _points(text: str, grid: Sweep) -> list[str]:
    """A contender at every point of a grid."""
    return [with_settings(text, at) for at in points(_own(text, grid))]


def _own(text: str, grid: Sweep) -> dict[str, Sequence[Any]]:
    """Part of a grid that concerns a method and that its brackets do not set."""
    name, settings = contender(text)
    free = {key: values for key, values in grid.items() if key not in settings}
    return {key: values for key, values in free.items() if is_of_experiment(key) or concerns(key, name)}


def with_settings(text: str, at: dict[str, Any]) -> str:
    """Contender with more settings in its brackets, sorted, so that their order does not depend on when they were
    added."""
    name, settings = contender(text)
    return bracketed(name, dict(sorted((settings | at).items())))


def _choice(text: str, ground: TuningRuns, results: Results, on_edge: tuple[str, ...]) -> Tuned:
    best = ground.best(results)
    everything = list({result.run: result for found in results.values() for result in found}.values())
    first = everything[0]
    total = sum_up([{**result.spent, "together": NATURAL} for result in everything], first.unit, first.delta)
    return Tuned(
        method=text,
        chosen=best,
        tries=len(results),
        runs=len(everything),
        accuracy=ground.accuracy(results[best]),
        unit=total["unit"],
        epsilon=total["epsilon"],
        on_edge=on_edge,
    )


def sentences(tuned: Sequence[Tuned], view: View) -> list[str]:
    """Sentences on what was chosen and what choosing would have cost."""
    told = []
    for one in tuned:
        epsilon = one.epsilon[view]
        figure = "an infinite epsilon" if epsilon is None else f"epsilon {round_up(epsilon)}"
        cost = "nothing" if epsilon == 0 else f"one {one.unit} {figure}"
        told.append(
            f"Tuned {one.method}: {one.chosen} is the best of {one.tries} on seeds that are not reported. On "
            f"the same people its {one.runs} run{'s' if one.runs != 1 else ''} would have cost {cost} for the "
            f"{view}, besides the runs above."
        )
    return told
