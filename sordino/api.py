"""Python interface: each function does what the command of the same name does. For example::

    import sordino

    result = sordino.run(data="digits", method="feddpa", clients=100, epsilon=8)
    print(result["accuracy"]["personal"], result["epsilon"]["outsider"])

Keywords are the keys of an experiment file; `set` holds hyper-parameters: `set={"tau": 0.3}`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.auditing.suite import ALL_TIERS, TRIALS
from sordino.auditing.suite import audit as audit_claims
from sordino.cluster.study import connect_cluster
from sordino.cluster.team import hosting
from sordino.data.federate import DEFAULT_CLIENTS, DEFAULT_PARTITION
from sordino.data.handed import partition, take
from sordino.data.own import DEFAULT_LABEL
from sordino.errors import UserError, quoted
from sordino.experiment.config import Experiment
from sordino.experiment.defaults import DEFAULT_STORE
from sordino.experiment.prepare import prepare
from sordino.experiment.run import on_this_machine, start
from sordino.experiment.run import resume as resume_run
from sordino.federation.rounds import RoundReport, RoundWatch
from sordino.privacy.budget.client_level_plan import Plan, plan
from sordino.report.html.make import make_report
from sordino.report.logs import log_runs
from sordino.report.result import ComparisonResult, RunResult
from sordino.report.terminal.progress import Place, in_notebook, watching
from sordino.store.store import Store
from sordino.study.compare import compare as compare_methods
from sordino.study.sweep import contender
from sordino.trained.models import Models, load_models
from sordino.util.display import Display

__all__ = [
    "ComparisonResult",
    "Models",
    "Plan",
    "RunResult",
    "audit",
    "compare",
    "load_models",
    "make_report",
    "partition",
    "plan",
    "resume",
    "run",
]

HANDED = "data"
"""Folder of a store for records that Python handed over."""


def run(
    experiment: str | Path | None = None,
    *,
    watch: Callable[[RoundReport], None] | None = None,
    log: str | None = None,
    cluster: str | None = None,
    progress: bool | None = None,
    **keys: Any,
) -> RunResult:
    """Run an experiment and return its summary.

    Args:
        experiment: Name of a TOML file; keywords win over what it says.
        watch: Called with a `RoundReport` after each round.
        log: Where rounds are logged: "tensorboard", "mlflow" or "wandb".
        cluster: Ray cluster that computes: "auto", "ray://HOST:PORT" or "local:N"; by default this machine alone does.
        progress: Whether a progress bar is shown; by default in notebooks only.
        keys: Keys of an experiment file, such as `data`, `method`, `epsilon`, `rounds`, `set`. `data` may also be
            records: a dictionary `{client: (x, y)}`, arrays `(x, y)` or `(x, y, x_test, y_test)`, a torch data set of
            pairs, or a Hugging Face data set; `{"x": x, "y": y, "person": codes}` in the place of a pair names persons,
            with `person="person"`. They are written into the store, where a resumed run finds them.
    """
    prepared = prepare(_experiment(experiment, keys))
    where = contextlib.nullcontext((on_this_machine, "")) if cluster is None else hosting(cluster, prepared)
    with (
        where as (host, _),
        _display(progress) as screen,
        log_runs(screen, log, prepared.experiment.store) as display,
    ):
        place = Place(display, prepared)
        result = start(prepared, watch=_Both(place, watch), begun=place.begin, host=host)
        place.end(result.accuracy["personal"])
        return RunResult(result)


def resume(
    run: str,
    store: str | Path = DEFAULT_STORE,
    *,
    watch: Callable[[RoundReport], None] | None = None,
    budget_over_runs: float | None = None,
) -> RunResult:
    """Resume a stopped run and return its summary, which is the same as if the run had never been stopped.

    Args:
        run: Name of the run.
        store: Folder of the store.
        watch: Called with a `RoundReport` after each round.
        budget_over_runs: Limit on the epsilon of all runs on the same people, instead of the run's own.
    """
    found = Store(Path(store), must_exist=True)
    watching_rounds = None if watch is None else RoundWatch(watch)
    return RunResult(resume_run(run, found, watching_rounds, budget_over_runs=budget_over_runs))


def compare(
    experiment: str | Path | None = None,
    *,
    methods: Sequence[str],
    seeds: int = 3,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    jobs: int | None = 1,
    cluster: str | None = None,
    per_run: str | None = None,
    tune: Mapping[str, Sequence[Any]] | None = None,
    judge: str | None = None,
    devices: Sequence[str] = (),
    progress: bool | None = None,
    **keys: Any,
) -> ComparisonResult:
    """Run several methods with several seeds at equal epsilon, and test their differences.

    Args:
        experiment: Name of a TOML file; keywords win over what it says.
        methods: Names of methods, with hyper-parameters in brackets: "feddpa[tau=0.8]".
        seeds: Number of seeds.
        sweep: Values of keys to go through, such as `{"clients": [20, 100]}`.
        jobs: Number of runs at a time; None chooses it by the size of the runs.
        cluster: Ray cluster that makes the runs: "auto", "ray://HOST:PORT" or "local:N"; by default this machine does.
        per_run: Part of a node that each run has for itself there: "cpus=2,gpus=0.5".
        judge: Figure that methods are ranked by, best first: "personal", "global", "worst-tenth" or "AUC"; by default
            the verdict is about personal accuracy, and methods keep their order.
        devices: Torch devices, such as ["cuda:0", "cuda:1"], to which runs are dealt in turn; with `jobs=None` there is
            one run at a time on each.
        tune: Values of hyper-parameters to choose from on seeds that are not reported: `{"rate": [0.01, 0.1]}`.
        progress: Whether a progress bar is shown; by default in notebooks only.
        keys: Keys of an experiment file; `epsilon` may be a list of budgets.
    """
    if isinstance(methods, str) or not all(isinstance(name, str) for name in methods):
        raise UserError(f"methods is a list of names, not {quoted(methods)}: for example ['local', 'dp-fedavg'].")
    if not isinstance(seeds, int):
        raise UserError(f"seeds is the number of seeds, not {quoted(seeds)}.")
    if isinstance(keys.get("epsilon"), list | tuple):
        if "epsilon" in (sweep or {}):
            raise UserError("'epsilon' is swept twice: name its values once.")
        sweep = {"epsilon": keys.pop("epsilon"), **(sweep or {})}
    names = [contender(text)[0] for text in methods]
    chosen = _experiment(experiment, keys, names)
    with connect_cluster(cluster, per_run) as crew, _display(progress) as display:
        found = compare_methods(
            chosen,
            methods,
            seeds,
            display,
            sweep=sweep,
            jobs=jobs,
            grid=tune,
            judge=judge,
            devices=devices,
            crew=crew,
        )
    return ComparisonResult(found, chosen.store)


@dataclass(frozen=True)
class _Both:
    """A watch that tells a display, and a user's function of the rounds."""

    place: Place
    told: Callable[[RoundReport], None] | None

    def __call__(self, report: RoundReport) -> None:
        self.place(report)
        if self.told is not None:
            self.told(report)

    def blending(self, done: int, clients: int) -> None:
        self.place.blending(done, clients)


def _display(progress: bool | None) -> AbstractContextManager[Display]:
    """Return the progress display: by default in notebooks only."""
    return watching(quiet=not (in_notebook() if progress is None else progress))


def audit(
    experiment: str | Path | None = None,
    *,
    trials: int = TRIALS,
    tiers: Collection[int] = ALL_TIERS,
    **keys: Any,
) -> dict[str, Any]:
    """Attack what a method claims and return the document that `sordino audit --json` prints.

    Args:
        experiment: Name of a TOML file; keywords win over what it says.
        trials: Number of trials of attacks that repeat a mechanism.
        tiers: Kinds of attack, 0 to 3.
        keys: Keys of an experiment file.
    """
    return audit_claims(_experiment(experiment, keys), trials, tiers).asdict()


def _experiment(file: str | Path | None, keys: dict[str, Any], methods: Sequence[str] = ()) -> Experiment:
    """Experiment that a file and keywords describe. Records that are handed over are written into its store first."""
    data = keys.get("data")
    if data is None or isinstance(data, str | Path):
        return _described(file, keys, methods)
    rest = {key: value for key, value in keys.items() if key != "data"}
    described = _described(file, rest, methods)
    handed = take(data, described.label or DEFAULT_LABEL)
    rest["data"] = str(handed.write(described.store / HANDED))
    if handed.names is not None and described.labels is None:
        rest["labels"] = handed.names
    if not handed.owned:
        if described.partition == "natural":
            raise UserError("These records belong to no client yet: name a partition that deals them, such as 'iid'.")
        rest["partition"] = described.partition or DEFAULT_PARTITION
        rest["clients"] = described.clients or DEFAULT_CLIENTS
    return _described(file, rest, methods)


def _described(file: str | Path | None, keys: dict[str, Any], methods: Sequence[str]) -> Experiment:
    if file is None:
        return Experiment.make(keys, methods=methods)
    if not isinstance(file, str | Path):
        raise UserError(
            f"An experiment is the name of a TOML file, not {quoted(file)}; write keys by name, as in rounds=5."
        )
    return Experiment.read(Path(file), keys, methods=methods)
