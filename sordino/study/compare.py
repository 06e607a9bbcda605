"""Several methods on the same data, at the same true epsilon, over several seeds and, if wanted, values of any key."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sordino.errors import UserError
from sordino.experiment.config import Experiment, check_seeds
from sordino.experiment.result import Against, Summary
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS, View
from sordino.store.spending import OverRuns, over_runs, sentence
from sordino.store.store import Store
from sordino.study.parallel import results_of
from sordino.study.sweep import Cell, Sweep, cells, points
from sordino.study.tuning import Ground, Tuned, tune
from sordino.study.verdict import Difference, verdicts
from sordino.util.display import Display, Silent

FIGURES = ("personal", "personal_worst", "start", "global")


@dataclass(frozen=True, repr=False)
class Comparison:
    """What came of a comparison."""

    rows: list[dict[str, Any]]
    """One for each method, in the order asked for, at each point of the sweep."""
    verdict: list[str]
    """What the rows say, in sentences."""
    over_runs: list[OverRuns]
    """What all runs of the store on the same people have come to, for each unit that was protected."""
    sweep: list[str] = field(default_factory=list)
    """The keys that it goes through; a row's `at` has their values."""
    differences: list[Difference] = field(default_factory=list)
    """The tests behind the verdict."""
    tuned: list[Tuned] = field(default_factory=list)
    """What was chosen for each method, and what choosing would have cost."""
    same: dict[str, str] = field(default_factory=dict)
    """Names that were asked for and have no rows, each with that of a row whose runs are the same."""

    def together(self, view: View) -> list[str]:
        """What all runs on the same people have come to, in sentences, for one observer."""
        found = [sentence(total, view) for total in self.over_runs]
        return [one for one in found if one is not None]

    def document(self) -> dict[str, Any]:
        """All of it for machines, but the curves, which the store has."""
        rows = [{key: value for key, value in row.items() if key != "curves"} for row in self.rows]
        return {**{part.name: getattr(self, part.name) for part in dataclasses.fields(self)}, "rows": rows}

    def __repr__(self) -> str:
        names = list(dict.fromkeys(row["method"] for row in self.rows))
        seeds = self.rows[0]["seeds"] if self.rows else 0
        over = f" over {', '.join(self.sweep)}" if self.sweep else ""
        return f"<Comparison of {', '.join(names)}{over}, {seeds} seed{'s' if seeds != 1 else ''}>"


def compare(
    experiment: Experiment,
    methods: Sequence[str],
    seeds: int = 3,
    display: Display | None = None,
    *,
    sweep: Sweep | None = None,
    jobs: int | None = 1,
    grid: Sweep | None = None,
    tuning_seeds: int = 1,
) -> Comparison:
    """Run each method with each of `seeds` seeds, at each point of a `sweep`, and put the results side by side.

    A method may come with hyper-parameters of its own, as in `feddpa[tau=2,lambda1=0]`, for ablations. Runs that the
    store already holds are taken from there; stopped ones are resumed. `jobs` runs go on at once; None lets sizes
    decide, and results do not depend on it. With a `grid`, every method is first tuned on seeds that are not reported.
    """
    if not methods:
        raise UserError("Name at least one method to compare, for example --methods local,dp-fedavg,feddpa.")
    check_seeds(seeds)
    display, sweep, methods = display or Silent(), sweep or {}, list(dict.fromkeys(methods))
    reported = range(experiment.seed, experiment.seed + seeds)
    tuned: list[Tuned] = []
    if grid:
        others = range(reported.stop, reported.stop + tuning_seeds)
        ground = Ground(
            cells=lambda texts: cells(experiment, texts, {}, others),
            run=lambda wanted: _made(wanted, display, jobs, experiment),
        )
        tuned = tune(ground, methods, grid)
        methods = list(dict.fromkeys(one["chosen"] for one in tuned))
    wanted = cells(experiment, methods, sweep, reported)
    same = _same(methods, wanted)
    for name, first in same.items():
        display.say(f"{name} is the same as {first} here: it is shown once.")
    results = _made(wanted, display, jobs, experiment)
    with contextlib.closing(Store(experiment.store, must_exist=True)) as store:
        rows = [
            _row(name, at, [results[cell.key] for cell in wanted if (cell.method, cell.at) == (name, at)], store)
            for at in points(sweep)
            for name in methods
            if name not in same
        ]
        return replace(_compared(rows, store, experiment.protect_from, sweep), tuned=tuned, same=same)


def side_by_side(results: Mapping[str, list[Summary]], store: Store, protect_from: str) -> Comparison:
    """Finished runs of a store, those of each method under its name, which differ by their seeds alone."""
    return _compared([_row(name, {}, found, store) for name, found in results.items()], store, protect_from, {})


def _compared(rows: list[dict[str, Any]], store: Store, protect_from: str, sweep: Sweep) -> Comparison:
    """What comes of rows."""
    spent = [over_runs(store, _people(rows, store), unit, delta) for unit, delta in _protected(rows)]
    sentences, differences = _verdicts(rows, sweep, protect_from)
    return Comparison(rows, sentences, spent, list(sweep), differences)


def _made(wanted: Sequence[Cell], display: Display, jobs: int | None, experiment: Experiment) -> dict[str, Summary]:
    """The summaries of all cells, by their keys."""
    different: dict[str, Cell] = {}
    for cell in wanted:  # what is the same at several points of a sweep is told as none of them
        different[cell.key] = replace(cell, at={}) if cell.key in different else cell
    return dict(zip(different, results_of(list(different.values()), display, jobs, experiment), strict=True))


def _same(methods: Sequence[str], wanted: Sequence[Cell]) -> dict[str, str]:
    """The methods whose runs are the same as those of an earlier one, each with that one."""
    first: dict[tuple[str, ...], str] = {}
    found = {
        name: first.setdefault(tuple(cell.key for cell in wanted if cell.method == name), name) for name in methods
    }
    return {name: other for name, other in found.items() if other != name}


def _verdicts(rows: list[dict[str, Any]], sweep: Sweep, protect_from: str) -> tuple[list[str], list[Difference]]:
    """What the rows say at each point of a sweep."""
    sentences, differences = [], []
    for at in points(sweep):
        told, found = verdicts([row for row in rows if row["at"] == at], protect_from)
        where = ", ".join(f"{key} {value}" for key, value in at.items())
        sentences += [f"{where}: {one}" if where else one for one in told]
        differences += found
    return sentences, differences


def _people(rows: list[dict[str, Any]], store: Store) -> str:
    return store.get(rows[0]["runs"][0]).people


def _protected(rows: list[dict[str, Any]]) -> list[tuple[Unit, float]]:
    """The units that private rows protect, each with its delta."""
    private = [row for row in rows if any(value != 0 for value in row["epsilon"].values())]
    return list({Unit(row["unit"]): row["delta"] for row in private}.items())


def _row(name: str, at: dict[str, Any], results: list[Summary], store: Store) -> dict[str, Any]:
    accuracy = {figure: _spread([result["accuracy"][figure] for result in results]) for figure in FIGURES}
    first = results[0]
    return {
        "method": name,
        "at": at,
        "variant": first["variant"],
        "unit": first["unit"],
        "seeds": len(results),
        "accuracy": accuracy,
        "against_local": _against_local(results),
        "epsilon": {view: _highest([result["epsilon"][view] for result in results]) for view in VIEWS},
        # Without a given delta it follows from the clients' sizes, which seeds deal: every seed's epsilon holds here.
        "delta": max(result["delta"] for result in results),
        "not_covered": list(dict.fromkeys(reason for result in results for reason in result["not_covered"])),
        "notes": first["notes"],
        "seconds": float(np.mean([result["seconds"] for result in results])),
        "runs": [result["run"] for result in results],
        "by_seed": [{"seed": result["seed"], "run": result["run"], **result["accuracy"]} for result in results],
        "curves": [store.curve(result["run"]) for result in results],
    }


def _against_local(results: Sequence[Summary]) -> Against | None:
    """How many clients gain and lose by blending, over all seeds; None where they do not blend, or runs do not tell."""
    told = [result["blend"].get("against_local") for result in results if "blend" in result]
    known = [one for one in told if one is not None]
    if len(known) < len(results):
        return None
    return {key: sum(one[key] for one in known) for key in known[0]}


def _spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """Mean and standard deviation over seeds; None where the figure does not exist."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {"mean": float(np.mean(known)), "spread": float(np.std(known, ddof=1)) if len(known) > 1 else 0.0}


def _highest(values: Sequence[float | None]) -> float | None:
    """The largest epsilon over seeds; None (infinite) if any is."""
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None
