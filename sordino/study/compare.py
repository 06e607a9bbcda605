"""Comparison of methods on the same data, at the same true epsilon, over several seeds and, if wanted, values of any
key."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from sordino.errors import UserError
from sordino.experiment.config import Experiment, check_seeds
from sordino.experiment.prepare import check_device
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS, View
from sordino.store.run_summary import Accuracies, Against, Fairness, Summary
from sordino.store.spending import OverRuns, over_runs, sentence
from sordino.store.store import Store
from sordino.study.run_cells import Crew, results_of
from sordino.study.sweep import Cell, Shard, Sweep, cells, points
from sordino.study.tuning import Tuned, TuningRuns, tune
from sordino.study.verdict import PERSONAL, Difference, RankingMetric, Sample, judge_of, verdicts
from sordino.util.display import Display, Silent

FIGURES = ("personal", "personal_worst", "start", "global")
FAIRNESS = ("worst_tenth", "gini", "variance")
"""Figures on the spread over clients of the accuracy of what they predict with."""


@dataclass(frozen=True)
class OverSeeds:
    """One figure over the seeds of a row."""

    mean: float
    spread: float
    """Standard deviation over seeds; 0 where there is one seed."""


@dataclass(frozen=True)
class SeedFigures:
    """Figures of one run of a row."""

    seed: int
    run: str
    accuracy: Accuracies
    """By the names of `FIGURES`."""
    auc: float | None = None
    """Area under the curve of personal models, where there are two classes."""
    fairness: Fairness | None = None
    """Spread of accuracy over clients."""
    upload_bytes: int = 0
    """Bytes that all clients sent."""
    download_bytes: int | None = None
    """Bytes that the server sent to all clients; None where nobody counted them."""
    seconds: float = 0.0
    """Duration of the run."""

    def judged(self, judge: RankingMetric) -> float | None:
        """Figure that methods are judged by; None where the run does not have it."""
        if judge.name == "AUC":
            return self.auc
        if judge.name == "worst-tenth":
            return None if self.fairness is None else self.fairness.worst_tenth
        return self.accuracy[judge.name]

    def to_dict(self) -> dict[str, Any]:
        """JSON document: all figures stand beside seed and run."""
        spread = {name: None if self.fairness is None else getattr(self.fairness, name) for name in FAIRNESS}
        cost = {name: getattr(self, name) for name in ("upload_bytes", "download_bytes", "seconds")}
        return {"seed": self.seed, "run": self.run, **self.accuracy, "auc": self.auc, **spread, **cost}


@dataclass(frozen=True)
class ComparisonRow:
    """Figures of one method at one point of a sweep, over all seeds."""

    method: str
    """Method, with its own hyper-parameters in brackets, as it was asked for."""
    at: dict[str, Any]
    """Values of the keys that the comparison goes through."""
    variant: str
    """`sound`, or `paper` for the mechanism as published."""
    unit: Unit
    """Unit that epsilon protects."""
    seeds: int
    """Number of seeds."""
    accuracy: dict[str, OverSeeds | None]
    """By the names of `FIGURES`; None where there is no such model."""
    against_local: Against | None
    """Clients that gain and lose by blending or recalibrating against the models that they trained alone, counted over
    all seeds; None where clients do neither."""
    epsilon: dict[View, float | None]
    """Largest epsilon over seeds for each observer; None where one is infinite."""
    delta: float
    """Largest delta over seeds."""
    not_covered: list[str]
    """Sentences on what epsilon does not cover, over all seeds."""
    notes: list[str]
    """Notes of the first run."""
    seconds: float
    """Mean duration of a run in seconds."""
    runs: list[str]
    """Names of the runs, in the order of their seeds."""
    by_seed: list[SeedFigures]
    """Accuracies of each run."""
    curves: list[list[dict[str, Any]]]
    """Rounds of each run, as the store has them."""
    score: str = "accuracy"
    """Metric that `accuracy` holds, as in `Summary.score`."""
    auc: OverSeeds | None = None
    """Area under the curve of personal models, the mean over clients with both outcomes in their test records; None
    where there are not two classes, or no run has it."""
    fairness: dict[str, OverSeeds | None] = field(default_factory=dict)
    """Spread of accuracy over clients, by the names of `FAIRNESS`."""
    upload_bytes: float = 0.0
    """Bytes that all clients of a run sent, the mean over runs."""
    download_bytes: float | None = None
    """Bytes that the server of a run sent to all clients, the mean over runs; None where nobody counted them."""

    def judged(self, judge: RankingMetric) -> OverSeeds | None:
        """Figure that methods are judged by, over the seeds that have it; None where none has."""
        return _spread([one.judged(judge) for one in self.by_seed])

    def sample(self, judge: RankingMetric = PERSONAL) -> Sample:
        """Figure that methods are judged by, for each seed that has it."""
        known = [(one.seed, one.judged(judge)) for one in self.by_seed]
        return Sample(self.method, {seed: value for seed, value in known if value is not None}, self.at, judge.name)

    def to_dict(self) -> dict[str, Any]:
        """JSON document of the row, curves included."""
        found = {part.name: getattr(self, part.name) for part in dataclasses.fields(self)}
        if self.score == "accuracy":
            del found["score"]
        return found | {
            "accuracy": {name: None if one is None else dataclasses.asdict(one) for name, one in self.accuracy.items()},
            "auc": None if self.auc is None else dataclasses.asdict(self.auc),
            "fairness": {n: None if one is None else dataclasses.asdict(one) for n, one in self.fairness.items()},
            "by_seed": [one.to_dict() for one in self.by_seed],
        }


@dataclass(frozen=True, repr=False)
class Comparison:
    """Result of a comparison."""

    rows: list[ComparisonRow]
    """One for each method at each point of the sweep: in the order asked for or, where a figure to judge by was named,
    best first."""
    verdict: list[str]
    """Sentences on what the rows show."""
    over_runs: list[OverRuns]
    """Cost of all runs of the store on the same people together, for each unit that was protected."""
    sweep: list[str] = field(default_factory=list)
    """Keys that the comparison goes through; a row's `at` has their values."""
    differences: list[Difference] = field(default_factory=list)
    """Tests behind the verdict."""
    tuned: list[Tuned] = field(default_factory=list)
    """Settings chosen for each method, and what choosing them would have cost."""
    same: dict[str, str] = field(default_factory=dict)
    """Requested names that have no rows, each with the name of a row whose runs are the same."""
    judge: str = PERSONAL.name
    """Name of the figure that the verdict is about, one of `sordino.study.verdict.JUDGES`."""

    def together(self, view: View) -> list[str]:
        """Sentences on what all runs on the same people cost together, for one observer."""
        found = [sentence(total, view) for total in self.over_runs]
        return [one for one in found if one is not None]

    def document(self) -> dict[str, Any]:
        """JSON document of the comparison, without the curves, which the store has."""
        rows = [{key: value for key, value in row.to_dict().items() if key != "curves"} for row in self.rows]
        found = {part.name: getattr(self, part.name) for part in dataclasses.fields(self)}
        return found | {
            "rows": rows,
            "differences": [one.to_dict() for one in self.differences],
            "tuned": [one.to_dict() for one in self.tuned],
        }

    def __repr__(self) -> str:
        names = list(dict.fromkeys(row.method for row in self.rows))
        seeds = self.rows[0].seeds if self.rows else 0
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
    judge: str | None = None,
    devices: Sequence[str] = (),
    crew: Crew | None = None,
) -> Comparison:
    """Run each method with each of several seeds, at each point of a sweep, and put the results side by side.

    Runs that the store already holds are taken from there; stopped ones are resumed.

    Args:
        experiment: keys that all runs share; its seed is the first one.
        methods: names, each with hyper-parameters of its own if wanted, as in `feddpa[tau=2,lambda1=0]`.
        seeds: number of seeds.
        display: progress display.
        sweep: values of each key that the comparison goes through.
        jobs: number of runs at once; None lets sizes decide. Results do not depend on it.
        grid: values among which settings are first chosen for every method, on seeds that are not reported.
        tuning_seeds: number of those seeds.
        judge: name of the figure that methods are ranked by, best first; without one the verdict is about personal
            accuracy, and rows stand in the order asked for.
        devices: torch devices to which runs are dealt in turn, instead of that of `experiment`. Where `jobs` is None
            there is one run at a time on each.
        crew: who makes the runs, in the place of so many jobs; results do not depend on it.
    """
    ranked_by = PERSONAL if judge is None else judge_of(judge)
    jobs = _jobs_on(devices, jobs, crew)
    display, sweep, methods = display or Silent(), sweep or {}, list(dict.fromkeys(methods))
    reported = _reported(experiment, methods, seeds)
    tuned: list[Tuned] = []
    if grid:
        others = range(reported.stop, reported.stop + tuning_seeds)
        tuned = tune(_ground(experiment, others, display, jobs, devices, crew), methods, grid)
        methods = list(dict.fromkeys(one.chosen for one in tuned))
    wanted = cells(experiment, methods, sweep, reported)
    same = _same(methods, wanted)
    for name, first in same.items():
        display.say(f"{name} makes the same runs as {first}: the table shows them once.")
    results = _run_cells(wanted, display, jobs, experiment, devices, crew)
    with contextlib.closing(Store(experiment.store, must_exist=True)) as store:
        rows = [
            _row(name, at, [results[cell.key] for cell in wanted if (cell.method, cell.at) == (name, at)], store)
            for at in points(sweep)
            for name in methods
            if name not in same
        ]
        if judge is not None:
            rows = _best_first(rows, sweep, ranked_by)
        return replace(_comparison(rows, store, experiment.protect_from, sweep, ranked_by), tuned=tuned, same=same)


def compare_part(
    experiment: Experiment,
    methods: Sequence[str],
    seeds: int,
    shard: Shard,
    display: Display | None = None,
    *,
    sweep: Sweep | None = None,
    jobs: int | None = 1,
    devices: Sequence[str] = (),
    crew: Crew | None = None,
) -> ComparisonShard:
    """Make the runs of one part of a comparison; the other arguments are those of `compare`. Once the stores of all
    parts are merged, `compare` finds all runs there."""
    jobs = _jobs_on(devices, jobs, crew)
    reported = _reported(experiment, methods, seeds)
    if experiment.budget_over_runs is not None:
        raise UserError("Runs in several stores cannot watch over `budget_over_runs`: leave out either it or --shard.")
    different = _different(cells(experiment, list(dict.fromkeys(methods)), sweep or {}, reported))
    mine = shard.part(different)
    made = results_of(_dealt(mine, devices), display or Silent(), jobs, experiment, crew) if mine else []
    return ComparisonShard(f"{shard.number}/{shard.of}", len(different), [one.run for one in made])


@dataclass(frozen=True)
class ComparisonShard:
    """Runs of one part of a comparison."""

    shard: str
    """Which part, of how many."""
    cells: int
    """Number of runs of the whole comparison."""
    runs: list[str]
    """Names of the runs of this part."""


def _reported(experiment: Experiment, methods: Sequence[str], seeds: int) -> range:
    """Seeds of a comparison; refuse one of no methods or no seeds."""
    if not methods:
        raise UserError("Name at least one method to compare, for example --methods local,dp-fedavg,feddpa.")
    check_seeds(seeds)
    return range(experiment.seed, experiment.seed + seeds)


def side_by_side(
    results: Mapping[str, list[Summary]], store: Store, protect_from: View, judge: RankingMetric = PERSONAL
) -> Comparison:
    """Compare finished runs of a store; those of each method, under its name, differ by their seeds alone."""
    rows = [_row(name, {}, found, store) for name, found in results.items()]
    return _comparison(rows, store, protect_from, {}, judge)


def _best_first(rows: list[ComparisonRow], sweep: Sweep, judge: RankingMetric) -> list[ComparisonRow]:
    """Rows at each point of a sweep by the figure that they are judged by; those without it come last."""

    def key(row: ComparisonRow) -> float:
        figure = row.judged(judge)
        return float("inf") if figure is None else -figure.mean

    return [row for at in points(sweep) for row in sorted((one for one in rows if one.at == at), key=key)]


def _comparison(
    rows: list[ComparisonRow], store: Store, protect_from: View, sweep: Sweep, judge: RankingMetric = PERSONAL
) -> Comparison:
    """Comparison of these rows."""
    spent = [over_runs(store, _people(rows, store), unit, delta) for unit, delta in _protected_units(rows)]
    sentences, differences = _verdicts(rows, sweep, protect_from, judge)
    return Comparison(rows, sentences, spent, list(sweep), differences, judge=judge.name)


def _ground(
    experiment: Experiment,
    seeds: range,
    display: Display,
    jobs: int | None,
    devices: Sequence[str],
    crew: Crew | None,
) -> TuningRuns:
    """Runs of contenders on seeds that are not reported."""
    return TuningRuns(
        cells=lambda texts: cells(experiment, texts, {}, seeds),
        run=lambda wanted: _run_cells(wanted, display, jobs, experiment, devices, crew),
    )


def _run_cells(
    wanted: Sequence[Cell],
    display: Display,
    jobs: int | None,
    experiment: Experiment,
    devices: Sequence[str],
    crew: Crew | None,
) -> dict[str, Summary]:
    """Run all cells, dealt to the devices where there are some; returns their summaries by the cells' keys."""
    different = _different(wanted)
    made = results_of(_dealt(different, devices), display, jobs, experiment, crew)
    return {cell.key: summary for cell, summary in zip(different, made, strict=True)}


def _different(wanted: Sequence[Cell]) -> list[Cell]:
    """Cells without those that are the same run as an earlier one."""
    found: dict[str, Cell] = {}
    for cell in wanted:  # what is the same at several points of a sweep is told as none of them
        found[cell.key] = replace(cell, at={}) if cell.key in found else cell
    return list(found.values())


def _dealt(different: list[Cell], devices: Sequence[str]) -> list[Cell]:
    """Cells dealt to devices in turn; the device is no part of a cell's key, nor of a run's identity."""
    if not devices:
        return different
    turns = zip(different, itertools.cycle(devices), strict=False)
    return [replace(cell, experiment=cell.experiment.model_copy(update={"device": device})) for cell, device in turns]


def _jobs_on(devices: Sequence[str], jobs: int | None, crew: Crew | None) -> int | None:
    """Number of runs at once, by default one on each of the devices, which must be there."""
    if devices and crew is not None:
        raise UserError("--devices is for cards of this machine; on a cluster --per-run gpus=1 gives each run one.")
    for device in devices:
        check_device(device)
    return len(devices) if devices and jobs is None else jobs


def _same(methods: Sequence[str], wanted: Sequence[Cell]) -> dict[str, str]:
    """Methods whose runs are the same as those of an earlier one, each with that one."""
    first: dict[tuple[str, ...], str] = {}
    found = {
        name: first.setdefault(tuple(cell.key for cell in wanted if cell.method == name), name) for name in methods
    }
    return {name: other for name, other in found.items() if other != name}


def _verdicts(
    rows: list[ComparisonRow], sweep: Sweep, protect_from: View, judge: RankingMetric
) -> tuple[list[str], list[Difference]]:
    """Sentences and tests at each point of a sweep."""
    sentences, differences = [], []
    for at in points(sweep):
        told, found = verdicts([row for row in rows if row.at == at], protect_from, judge)
        where = ", ".join(f"{key} {value}" for key, value in at.items())
        sentences += [f"{where}: {one}" if where else one for one in told]
        differences += found
    return sentences, differences


def _people(rows: list[ComparisonRow], store: Store) -> str:
    return store.get(rows[0].runs[0]).people


def _protected_units(rows: list[ComparisonRow]) -> list[tuple[Unit, float]]:
    """Units that private rows protect, each with its delta."""
    private = [row for row in rows if any(value != 0 for value in row.epsilon.values())]
    return list({row.unit: row.delta for row in private}.items())


def _row(name: str, at: dict[str, Any], results: list[Summary], store: Store) -> ComparisonRow:
    first = results[0]
    by_seed = [_figures_of(result) for result in results]
    received = [result.download_bytes for result in results]
    return ComparisonRow(
        method=name,
        at=at,
        variant=first.variant,
        unit=first.unit,
        seeds=len(results),
        accuracy={figure: _spread([result.accuracy[figure] for result in results]) for figure in FIGURES},
        against_local=_against_local(results),
        epsilon={view: _highest([result.epsilon[view] for result in results]) for view in VIEWS},
        # Without a given delta it follows from the clients' sizes, which seeds deal: every seed's epsilon holds here.
        delta=max(result.delta for result in results),
        not_covered=list(dict.fromkeys(reason for result in results for reason in result.not_covered)),
        notes=first.notes,
        seconds=float(np.mean([result.seconds for result in results])),
        runs=[result.run for result in results],
        by_seed=by_seed,
        curves=[store.curve(result.run) for result in results],
        score=first.score,
        auc=_spread([one.auc for one in by_seed]),
        fairness={name: _spread([_fairness(one, name) for one in by_seed]) for name in FAIRNESS},
        upload_bytes=float(np.mean([result.upload_bytes for result in results])),
        download_bytes=None if None in received else float(np.mean(cast(list[int], received))),
    )


def _figures_of(result: Summary) -> SeedFigures:
    """Figures of one run."""
    return SeedFigures(
        seed=result.seed,
        run=result.run,
        accuracy=result.accuracy,
        auc=None if result.positive is None or not result.metrics else result.metrics["auc"].mean,
        fairness=result.fairness,
        upload_bytes=result.upload_bytes,
        download_bytes=result.download_bytes,
        seconds=result.seconds,
    )


def _fairness(one: SeedFigures, name: str) -> float | None:
    return None if one.fairness is None else getattr(one.fairness, name)


def _against_local(results: Sequence[Summary]) -> Against | None:
    """Number of clients that gain and lose by their mixtures, over all seeds; None where they have none, or runs do not
    tell."""
    told = [result.mixture.against_local for result in results if result.mixture is not None]
    known = [one for one in told if one is not None]
    if len(known) < len(results):
        return None
    return {key: sum(one[key] for one in known) for key in known[0]}


def _spread(values: Sequence[float | None]) -> OverSeeds | None:
    """Mean and standard deviation over seeds; None where the figure does not exist."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return OverSeeds(float(np.mean(known)), float(np.std(known, ddof=1)) if len(known) > 1 else 0.0)


def _highest(values: Sequence[float | None]) -> float | None:
    """Largest epsilon over seeds; None (infinite) if any is infinite."""
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None
