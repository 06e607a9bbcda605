"""Tuning: the same grid for every method, chosen on seeds that are not reported.

A study that chooses a rate or a threshold by looking at results spends privacy each time it looks. What is reported
afterwards is the cost of the last run alone, so the cost of choosing is printed beside it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from sordino.errors import UserError
from sordino.experiment.hyperparameters import bracketed, concerns, make_method
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

    Settings in a method's own brackets win over the grid and are not tuned, nor are keys that change nothing for it.

    Args:
        ground: runs on which contenders are tried.
        methods: contenders.
        grid: values to choose from.
        further: gives, for the best contender, the contender and the grid of a second search; the best of both is
            taken, and both are paid for.
        extensions: how often a grid grows at most, while the best value of a method lies on its edge. All methods then
            get as many tries, with values further out or between those that they have.
    """
    check_keys(grid, methods)
    if further is not None:  # what the second go cannot make is refused before the first has been run
        ground.cells([one for text in methods for one in _points(*further(text))])
    searches = [_Search(text, ground) for text in dict.fromkeys(methods)]
    _try_grids({one: (one.text, grid) for one in searches}, extensions)
    if further is not None:
        _try_grids({one: further(one.best) for one in searches}, extensions)
    chosen = {one.text: one for one in searches}
    return [_choice(chosen[text], tuple(chosen[text].edges()) if extensions else ()) for text in methods]


class _Search:
    """Search for the best settings of one contender."""

    def __init__(self, text: str, ground: TuningRuns) -> None:
        self.text = text
        self.ground = ground
        self.axes: dict[str, list[float]] = {}
        """Values of each key that can be extended: those of at least two positive numbers."""
        self.tried: Results = {}

    @property
    def best(self) -> str:
        """Contender with the highest accuracy so far."""
        return self.ground.best(self.tried)

    def begin(self, start: str, grid: Sweep) -> list[str]:
        """Points of a grid around a contender that differ from all that was tried; its axes are extended."""
        for key, values in _own(start, grid).items():
            if len(values) > 1 and all(isinstance(one, int | float) and one > 0 for one in values):
                tried = {_value(one, key) for one in self.tried}
                self.axes[key] = sorted({*(one for one in tried if one > 0), *map(float, values)})
        known = [_made(one) for one in self.tried]
        return [one for one in _points(start, grid) if _made(one) not in known]

    def edges(self) -> list[str]:
        """Keys whose best value is the smallest or the largest that was tried, although there are values beyond it."""
        best = self.best
        return [key for key, values in self.axes.items() if self._beyond(best, key, values)]

    def _beyond(self, best: str, key: str, values: Sequence[float]) -> float | None:
        """Value beyond that of a contender on the edge of an axis, as far off as its neighbour; None where it lies
        inside, or at the end of what the key may be."""
        at = _value(best, key)
        if at not in (values[0], values[-1]):
            return None
        fresh = _rounded(at * at / (values[1] if at == values[0] else values[-2]))
        try:
            self.ground.cells([with_settings(best, {key: fresh})])
        except UserError:
            return None
        return fresh

    def more(self, count: int) -> list[str]:
        """So many contenders that were not tried, each with one more value of one key, which is noted in `axes`: beyond
        the best value where that lies on the edge, else halfway to the neighbour that is further off."""
        best, edges = self.best, self.edges()
        found: list[str] = []
        turns = [*edges, *(key for key in self.axes if key not in edges and _value(best, key) in self.axes[key])]
        while turns and len(found) < count:
            key = turns.pop(0)
            values = self.axes[key]
            fresh = self._beyond(best, key, values) or _between(_value(best, key), values)
            if fresh not in values:
                self.axes[key] = sorted([*values, fresh])
                found.append(with_settings(best, {key: fresh}))
                turns.append(key)
        return found


def _try_grids(grids: dict[_Search, tuple[str, Sweep]], extensions: int) -> None:
    """Try every point of each contender's grid; with `extensions`, then as many for all, and more while a best value
    lies on an edge. What is tried next is run at once."""
    _try({one: one.begin(*start) for one, start in grids.items()})
    if not extensions:
        return
    most = max(len(one.tried) for one in grids)
    _try({one: one.more(most - len(one.tried)) for one in grids})
    for _ in range(extensions):
        wanted = max(len(one.edges()) for one in grids)
        if not wanted:
            return
        _try({one: one.more(wanted) for one in grids})


def _try(wanted: dict[_Search, list[str]]) -> None:
    """Run contenders of several searches."""
    different = list(dict.fromkeys(one for texts in wanted.values() for one in texts))
    if not different:
        return
    results = next(iter(wanted)).ground.results(different)
    for search, texts in wanted.items():
        search.tried |= {one: results[one] for one in texts}


def _between(at: float, values: Sequence[float]) -> float:
    """Value halfway, by ratio, between one of an axis and that neighbour of it which is further off."""
    place = values.index(at)
    neighbours = [values[one] for one in (place - 1, place + 1) if 0 <= one < len(values)]
    return _rounded(math.sqrt(at * max(neighbours, key=lambda one: max(one / at, at / one))))


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _points(text: str, grid: Sweep) -> list[str]:
    """A contender at every point of a grid."""
    return [with_settings(text, at) for at in points(_own(text, grid))]


def _own(text: str, grid: Sweep) -> dict[str, Sequence[Any]]:
    """Part of a grid that changes something for a contender and that its brackets do not set."""
    name, settings = contender(text)
    fixed = {*settings, *idle_keys(text)}
    free = {key: values for key, values in grid.items() if key not in fixed}
    return {key: values for key, values in free.items() if is_of_experiment(key) or concerns(key, name)}


READ_CLIP = ("blur-lus", "fedaddp", "feddpa", "fedglp-adp")
"""Methods whose training reads the threshold, also where nothing is clipped."""


def idle_keys(text: str) -> set[str]:
    """Hyper-parameters that change nothing for a contender, because of its other settings: a search over their values
    would draw other noise for one and the same method."""
    name, settings = contender(text)
    curve = name == "pac-dp" and "curve" in settings and settings.get("curve_sets") != "weights"
    unclipped = settings.get("privacy") == "none" and name not in READ_CLIP
    return {"clip"} if curve or unclipped else set()


def _value(text: str, key: str) -> float:
    """Value of a number among a contender's settings, which a method may have without being told; NaN where it has
    none."""
    given = contender(text)[1].get(key)
    if given is None and not is_of_experiment(key):
        given = functools.reduce(lambda value, name: getattr(value, name, None), key.split("."), _made(text)[0])
    return float(given) if isinstance(given, int | float) else math.nan


def _made(text: str) -> tuple[Any, dict[str, Any]]:
    """Method that a contender stands for, and its keys of the experiment: equal where it is the same in other words."""
    name, settings = contender(text)
    of_experiment = {key: value for key, value in settings.items() if is_of_experiment(key)}
    own = {key: value for key, value in settings.items() if key not in of_experiment}
    of_network = {key: value for key, value in own.items() if key.startswith("model.")}
    return make_method(name, "sound", "dp", own), of_experiment | of_network


def with_settings(text: str, at: dict[str, Any]) -> str:
    """Contender with more settings in its brackets, sorted, so that their order does not depend on when they were
    added."""
    name, settings = contender(text)
    return bracketed(name, dict(sorted((settings | at).items())))


def _choice(search: _Search, on_edge: tuple[str, ...]) -> Tuned:
    best, results = search.best, search.tried
    everything = list({result.run: result for found in results.values() for result in found}.values())
    first = everything[0]
    total = sum_up([{**result.spent, "together": NATURAL} for result in everything], first.unit, first.delta)
    return Tuned(
        method=search.text,
        chosen=best,
        tries=len(results),
        runs=len(everything),
        accuracy=search.ground.accuracy(results[best]),
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
