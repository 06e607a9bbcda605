"""`Study`: makes, reuses and tunes the runs that repeat one table of a paper at one scale, and collects outcomes."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sordino.data.sources import SOURCES, catalogue
from sordino.errors import UserError
from sordino.experiment.config import BUDGETS, Experiment
from sordino.experiment.defaults import DEFAULT_STORE
from sordino.papers.description import Keys, Measure, Paper, PaperColumn, PaperRow, PaperTable, Scale, Variant
from sordino.papers.personal_share import personal_share
from sordino.parts.curves import Curve, curve_called, is_file, load_curve
from sordino.store.run_summary import Summary
from sordino.store.store import Store
from sordino.study.run_cells import Crew, results_of
from sordino.study.sweep import Cell, Sweep, cells, contender, grid_of
from sordino.study.tuning import Accuracy, Tuned, TuningRuns, tune, with_settings
from sordino.util.display import Display

SEEDS = 3
"""Number of reported seeds where neither the command nor the table says another."""
TUNING_SEEDS = 3
"""Number of seeds that settings are chosen on; none of them is reported."""
EXTENSIONS = 4
"""Most times that a grid grows while the best value lies on its edge."""
VARIANTS: tuple[Variant, ...] = ("sound", "paper")


@dataclass(frozen=True)
class ReproduceOptions:
    """Options for repeating a table."""

    scale: Scale = "small"
    seeds: int | None = None
    store: Path = DEFAULT_STORE
    data_dir: Path | None = None
    jobs: int | None = None
    tune: str = ""
    """Grid that is searched for every method in each column, on seeds that are not reported; `paper`: the paper's own
    grid, and then those of methods' own settings."""
    crew: Crew | None = None
    """Who makes the runs, in the place of so many jobs."""

    @property
    def seed_count(self) -> int:
        """Number of reported seeds."""
        return self.seeds or SEEDS

    def command(self, paper: str, table: str) -> str:
        """Command that repeats the table."""
        seeds = f" --seeds {self.seeds}" if self.seeds else ""
        tune = f" --tune {shlex.quote(self.tune)}" if self.tune else ""
        return f"sordino reproduce {paper} {table} --scale {self.scale}{seeds}{tune}"


@dataclass(frozen=True)
class CellOutcome:
    """Outcome of one method in one column, in one variant."""

    values: list[float | None]
    """Figure of each seed; None where there is no such figure, or a target was not reached."""
    epsilon: float | None
    """True epsilon for the paper's observer, the largest over seeds; None where it is infinite."""
    delta: float
    unit: str
    runs: list[str]
    method: str
    """Method, with its tuned settings."""
    not_covered: list[str]
    passes: int
    """Passes over a client's records in a round."""
    planned_away: tuple[str, ...]
    """Parts of the method that the plan switched off, with any seed."""
    curves: list[list[dict[str, Any]]]


@dataclass(frozen=True)
class ReproducedTable:
    """Reproduced table."""

    paper: Paper
    table: PaperTable
    options: ReproduceOptions
    outcomes: dict[tuple[str, str, Variant], CellOutcome]
    """Outcomes by row, column and variant."""
    tuned: dict[str, list[Tuned]]
    """Settings chosen in each column, by its name."""


@dataclass(frozen=True)
class Estimate:
    """Runs and time that a table takes, told before it starts."""

    runs: int
    """Number of reported runs."""
    tuning: int
    """Number of runs on which settings are chosen, before any grid grows."""
    made: int
    """Runs on the same ground that the store has already, tuning included."""
    seconds: float | None
    """Seconds of one core that a run takes; None where nothing tells."""
    cores: int

    def to_dict(self) -> dict[str, Any]:
        """JSON document."""
        return {**asdict(self), "hours": self.hours}

    @property
    def hours(self) -> float | None:
        """Hours that are left on so many cores; None where nothing tells."""
        if self.seconds is None:
            return None
        return max(0, self.runs + self.tuning - self.made) * self.seconds / 3600 / self.cores

    def words(self) -> str:
        """Sentence for people."""
        tuning = f" and at least {self.tuning} to choose settings" if self.tuning else ""
        made = f"; the store has {self.made} of this ground" if self.made else ""
        if self.seconds is None or self.hours is None:
            return f"{self.runs} runs{tuning}{made}."
        cores = f"{self.cores} core{'s' if self.cores > 1 else ''}"
        return (
            f"{self.runs} runs{tuning}{made}; at {self.seconds:.0f} s of one core each, some {self.hours:.1f} hours on "
            f"{cores}. Stop it when you like: the same command goes on."
        )


def cores_here() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


GROUND = ("data", "records", "clients", "partition", "model", "rounds")


def _ground_of(configuration: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys of an experiment that decide how long a run takes, but for its method."""
    return tuple(str(configuration.get(key)) for key in GROUND)


class Study:
    """Runs of one table at one scale."""

    def __init__(self, paper: Paper, table: PaperTable, options: ReproduceOptions) -> None:
        grid, own = (paper.grid, paper.own) if options.tune == "paper" else (options.tune, {})
        if options.scale == "medium":  # a verdict needs settings that were tuned: that is not left to the command
            decisive = table.decisive()
            grid, own = (decisive.grid, {}) if options.tune in ("", "paper") else (grid, {})
            options = replace(options, seeds=options.seeds or decisive.seeds, tune=options.tune or "paper")
        self.paper, self.table, self.options = paper, table, options
        self.rows, self.columns = table.taken(options.scale)
        self._grid: Sweep = grid_of(grid) if grid else {}
        self._own_grids: dict[str, Sweep] = {one: grid_of(text) for one, text in own.items()}

    def missing_data(self) -> list[str]:
        """Data sets that it needs and that are missing."""
        needed = {self.base(column, "sound").data for column in self.columns}
        here = {entry.name for entry in catalogue(self.options.data_dir) if entry.present}
        return sorted(name for name in needed if name in SOURCES and name not in here)

    def count(self) -> int:
        """Number of runs, tuning aside."""
        seeds = range(self.options.seed_count)
        wanted = [self._wanted(self._methods(column), seeds, [column]) for column in self.columns]
        return len({cell.key for of_column in wanted for cell in of_column.values()})

    def estimate(self) -> Estimate:
        """Runs and time of the table, as far as they are known before: `seconds` is that of a table with a decisive
        experiment, or the mean of its runs that the store has."""
        seeds = range(self.options.seed_count)
        wanted = {
            cell.key: cell
            for column in self.columns
            for cell in self._wanted(self._methods(column), seeds, [column]).values()
        }
        # All rows get as many tries as that with the most.
        tries = math.prod(len(values) for values in self._grid.values()) if self._grid else 0
        named = {contender(row.method)[0] for row in self.rows} & set(self._own_grids)
        own = max((math.prod(len(values) for values in self._own_grids[one].values()) for one in named), default=0)
        methods = [len(set(self._methods(column).values())) for column in self.columns]
        tuning = TUNING_SEEDS * (tries + own) * sum(methods)
        measured = self._seconds()
        declared = self.table.decisive().seconds if self.options.scale == "medium" else None
        seconds = sum(measured) / len(measured) if measured else declared
        return Estimate(len(wanted), tuning, len(measured), seconds, self.options.jobs or cores_here())

    def _seconds(self) -> list[float]:
        """Seconds that runs of this table took which the store has: those of its data, clients, network and rounds."""
        if not self.options.store.is_dir():
            return []
        grounds = [_ground_of(self.base(column, "sound").model_dump(mode="json")) for column in self.columns]
        with contextlib.closing(Store(self.options.store)) as store:
            rows = [row for row in store.all() if row.summary and _ground_of(row.configuration) in grounds]
        return [float(row.summary["seconds"]) for row in rows if row.summary]

    def base(self, column: PaperColumn, variant: Variant, at: Keys | None = None) -> Experiment:
        """Setting that a column starts from, or the one `at` a point of it."""
        sources = self.paper.sources(self.table.setting_of(column), self.options.scale)
        place: Keys = {"store": self.options.store, "data_dir": self.options.data_dir, "variant": variant}
        names = [contender(row.method)[0] for row in self.rows]
        return Experiment.make(*sources, place, {"set": at or {}}, methods=names)

    def make(self, display: Display) -> ReproducedTable:
        """Make all runs that the store does not have yet, and read the table off them."""
        absent = self.missing_data()
        if absent:
            raise UserError(
                f"{self.paper.name} {self.table.name} needs {', '.join(absent)}, which is not here: "
                f"`sordino data get {absent[0]}`, or name the folder with --data-dir, or take --scale quick."
            )
        tuned = self._tuned(display) if self._grid else {}
        reported = range(self.options.seed_count)
        outcomes = self._outcomes(tuned, reported, display)
        return ReproducedTable(self.paper, self.table, self.options, outcomes, tuned)

    def _outcomes(
        self, tuned: Mapping[str, list[Tuned]], seeds: Sequence[int], display: Display
    ) -> dict[tuple[str, str, Variant], CellOutcome]:
        wanted: dict[tuple[str, str, Variant, int], Cell] = {}
        methods: dict[tuple[str, str], str] = {}
        for column in self.columns:
            chosen = {one.method: one.chosen for one in tuned.get(column.name, [])}
            named = {name: chosen.get(method, method) for name, method in self._methods(column).items()}
            methods |= {(name, column.name): method for name, method in named.items()}
            wanted |= self._wanted(named, seeds, [column])
        different = {cell.key: cell for cell in wanted.values()}
        found = self._run(list(different.values()), display)
        store = Store(self.options.store, must_exist=True)
        with contextlib.closing(store):
            curves = {key: store.curve(summary.run) for key, summary in found.items()}
        outcomes: dict[tuple[str, str, Variant], CellOutcome] = {}
        columns = {column.name: column for column in self.columns}
        for row, name, variant in dict.fromkeys(key[:3] for key in wanted):
            keys = [wanted[row, name, variant, seed].key for seed in seeds]
            passes = wanted[row, name, variant, seeds[0]].experiment.build_method().passes()
            outcomes[row, name, variant] = self._outcome(
                columns[name], [found[key] for key in keys], [curves[key] for key in keys], methods[row, name], passes
            )
        return outcomes

    def _run(self, different: list[Cell], display: Display) -> dict[str, Summary]:
        made = results_of(different, display, self.options.jobs, different[0].experiment, self.options.crew)
        return {cell.key: summary for cell, summary in zip(different, made, strict=True)}

    def _methods(self, column: PaperColumn) -> dict[str, str]:
        """Method of each row in a column, as `compare` takes it."""
        return {row.name: self._method(row, column) for row in self.rows}

    def _method(self, row: PaperRow, column: PaperColumn) -> str:
        more = row.settings.get(self.options.scale, {})
        if self.options.scale == "paper":
            more = more | row.published_settings.get(self.table.setting_of(column), {})
        method = with_settings(row.method, more) if more else row.method
        if row.times_epochs == 1:
            return method
        (cell,) = cells(self.base(column, "sound"), [method], {}, [0])
        epochs = max(1, round(row.times_epochs * cell.experiment.build_method().epochs))
        return with_settings(method, {"epochs": epochs})

    def _wanted(
        self, methods: Mapping[str, str], seeds: Sequence[int], columns: Sequence[PaperColumn]
    ) -> dict[tuple[str, str, Variant, int], Cell]:
        """Cells by row, column, variant and seed."""
        wanted: dict[tuple[str, str, Variant, int], Cell] = {}
        for column in columns:
            for variant in VARIANTS:
                rows = [row for row in self.rows if variant == "sound" or not (row.unpublished or column.unpublished)]
                keys = column.keys(variant)
                texts = {row.name: methods[row.name] for row in rows}
                there = self._cells(column, variant, keys, list(dict.fromkeys(texts.values())), seeds)
                first = {cell.method: cell.experiment for cell in there}
                private = {text for text, experiment in first.items() if _has_noise(experiment)}
                for cell in there:
                    seed = cell.experiment.seed
                    for name in [name for name, text in texts.items() if text == cell.method]:
                        # What never adds noise is the same as published and sound, and is run once.
                        same = variant == "paper" and cell.method not in private
                        chosen = wanted[name, column.name, "sound", seed] if same else cell
                        wanted[name, column.name, variant, seed] = chosen
        return wanted

    def _cells(
        self, column: PaperColumn, variant: Variant, keys: Keys, methods: list[str], seeds: Sequence[int]
    ) -> list[Cell]:
        """Cells of some methods in one column, on the same ground."""
        made: list[Cell] = []
        for bare in (False, True):  # a run without privacy takes no budget
            mine = [text for text in methods if (contender(text)[1].get("privacy") == "none") == bare]
            sweep = {key: [value] for key, value in keys.items() if not (bare and key in BUDGETS)}
            made += cells(self.base(column, variant), mine, sweep, seeds) if mine else []
        # Records set aside for one method are set aside for all.
        public = next((cell.experiment.public for cell in made if cell.experiment.public is not None), None)
        return [
            replace(cell, experiment=cell.experiment.model_copy(update={"public": public} | self._read_files(cell)))
            for cell in made
        ]

    def _read_files(self, cell: Cell) -> Keys:
        """Hyper-parameters of a cell whose method names a curve beside the paper's tables: what the curve is stands in
        the place of its name, so that the run is the same wherever that folder lies."""
        named = cell.experiment.build_method().files()
        read = {name: self._curve(str(cell.experiment.set[name])) for name in named}
        return {"set": cell.experiment.set | read} if read else {}

    def _curve(self, name: str) -> str:
        """JSON of a curve beside the paper's tables, without the account of how it was fitted."""
        found = curve_of(self.paper, name)
        return json.dumps(asdict(replace(found, provenance={"source": name, "people": found.people})))

    def _tuned(self, display: Display) -> dict[str, list[Tuned]]:
        """Best settings of each method in each column, chosen on seeds that are not reported, by the figure that the
        column prints."""
        chosen: dict[str, list[Tuned]] = {}
        seeds = range(self.options.seed_count, self.options.seed_count + TUNING_SEEDS)
        for column in self.columns:
            ground = self._ground(column, seeds, display)
            methods = list(dict.fromkeys(self._methods(column).values()))
            own = self._own if self._own_grids else None
            chosen[column.name] = tune(ground, methods, self._grid, own, EXTENSIONS)
        return chosen

    def _ground(self, column: PaperColumn, seeds: Sequence[int], display: Display) -> TuningRuns:
        """Ground for tuning in a column."""
        return TuningRuns(
            cells=lambda texts: self._cells(column, "sound", column.keys("sound"), texts, seeds),
            run=lambda wanted: self._run(wanted, display),
            by=accuracy_of(self.table.measured(column)),
        )

    def _own(self, best: str) -> tuple[str, Sweep]:
        """Contender and grid of a method's own settings, searched after the common grid. What a row sets is what the
        table compares, and stays, but for keys of the common grid: a method may have a range of its own for these."""
        name, settings = contender(best)
        own = self._own_grids.get(name, {})
        grid = {key: values for key, values in own.items() if key in self._grid or key not in settings}
        return with_settings(name, {key: value for key, value in settings.items() if key not in grid}), grid

    def _outcome(
        self, column: PaperColumn, found: list[Summary], curves: list[list[dict[str, Any]]], method: str, passes: int
    ) -> CellOutcome:
        epsilons = [summary.epsilon[self.paper.view] for summary in found]
        known = [value for value in epsilons if value is not None]
        return CellOutcome(
            values=[self._value(column, one, curve) for one, curve in zip(found, curves, strict=True)],
            epsilon=max(known) if len(known) == len(epsilons) else None,
            delta=found[0].delta,
            unit=found[0].unit,
            runs=[summary.run for summary in found],
            method=method,
            not_covered=found[0].not_covered,
            passes=passes,
            planned_away=tuple(dict.fromkeys(part for summary in found for part in summary.planned_away)),
            curves=curves,
        )

    def _value(self, column: PaperColumn, summary: Summary, curve: list[dict[str, Any]]) -> float | None:
        measure = self.table.measured(column)
        if measure == "seconds":
            return float(np.median([point["seconds"] for point in curve]))
        if measure == "personal-share":
            return personal_share(summary.run, self.options.store)
        if measure == "rounds":
            reached = [
                p["round"] + 1 for p in curve if p["global"] is not None and 100 * p["global"] >= (column.target or 0.0)
            ]
            return float(min(reached)) if reached else None
        if measure == "loss" or column.round is not None:
            points = [point for point in curve if point[measure] is not None]
            if column.round is not None:
                last = self._scaled(column.round, column, summary.rounds)
                points = [point for point in points if point["round"] < last]
            factor = 1 if measure == "loss" else 100
            return factor * points[-1][measure] if points else None
        value = summary.accuracy[measure]
        return None if value is None else 100 * value

    def _scaled(self, number: int, column: PaperColumn, rounds: int) -> int:
        """Round of the published setting at this scale, as the same share of all rounds."""
        sources = self.paper.sources(self.table.setting_of(column), "paper")
        published = next((keys["rounds"] for keys in reversed(sources) if "rounds" in keys), rounds)
        return max(1, round(number * rounds / published))


def curve_of(paper: Paper, name: str) -> Curve:
    """Curve that a row names: a published one, or a file beside the paper's tables."""
    return load_curve(paper.place / name) if is_file(name) else curve_called(name)


def _has_noise(experiment: Experiment) -> bool:
    """Whether an experiment's method adds noise where privacy is wanted: then its variants differ without privacy, too,
    in how clients are grouped or what is masked."""
    return experiment.model_copy(update={"privacy": "dp"}).build_method().is_private()


def accuracy_of(measure: Measure) -> Accuracy:
    """Which models' accuracy decides the tuning of a table that prints `measure`."""
    accuracies: dict[Measure, Accuracy] = {"global": "global", "rounds": "global", "start": "start"}
    return accuracies.get(measure, "personal")
