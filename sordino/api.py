"""The Python interface: each function does what the command of the same name does. For example::

    import sordino

    result = sordino.run(data="digits", method="feddpa", clients=100, epsilon=8)
    print(result["accuracy"]["personal"], result["epsilon"]["outsider"])

Keywords are the keys of an experiment file; `set` holds hyper-parameters: `set={"tau": 0.3}`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from sordino.audit.suite import ALL_TIERS, TRIALS
from sordino.audit.suite import audit as audit_claims
from sordino.errors import UserError, quoted
from sordino.experiment.config import Experiment
from sordino.experiment.defaults import DEFAULT_STORE
from sordino.experiment.prepare import prepare
from sordino.experiment.run import resume as resume_run
from sordino.experiment.run import start
from sordino.federation.rounds import RoundReport, Watch
from sordino.privacy.budget.client_plan import Plan, plan
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
    "plan",
    "resume",
    "run",
]


def run(
    experiment: str | Path | None = None,
    *,
    watch: Watch | None = None,
    log: str | None = None,
    progress: bool | None = None,
    **keys: Any,
) -> RunResult:
    """Run an experiment (a TOML file, keywords, or both) and return its summary.

    `watch` is called with a `RoundReport` after each round. `log` names a board that is told of them: "tensorboard",
    "mlflow" or "wandb". `progress` shows a bar; by default in notebooks only.
    """
    prepared = prepare(_experiment(experiment, keys))
    with _display(progress) as screen, log_runs(screen, log, prepared.experiment.store) as display:
        place = Place(display, prepared)

        def tell(report: RoundReport) -> None:
            place(report)
            if watch is not None:
                watch(report)

        result = start(prepared, watch=tell, begun=place.begin)
        place.end(result.accuracy["personal"])
        return RunResult(result)


def resume(
    run: str, store: str | Path = DEFAULT_STORE, *, watch: Watch | None = None, budget_over_runs: float | None = None
) -> RunResult:
    """Take up a stopped run and return its summary: the same as if it had never been stopped. `budget_over_runs` is
    another limit for all runs on its people than its own."""
    found = Store(Path(store), must_exist=True)
    return RunResult(resume_run(run, found, watch, budget_over_runs=budget_over_runs))


def compare(
    experiment: str | Path | None = None,
    *,
    methods: Sequence[str],
    seeds: int = 3,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    jobs: int | None = 1,
    tune: Mapping[str, Sequence[Any]] | None = None,
    progress: bool | None = None,
    **keys: Any,
) -> ComparisonResult:
    """Run several methods with several seeds at equal epsilon.

    `epsilon=[1, 2, 4, 8]` goes through several budgets, `sweep={"clients": [20, 100]}` through the values of any keys;
    `tune={"rate": [0.01, 0.1]}` first chooses among values on seeds that are not reported; `jobs` runs go on at once,
    or, with None, as many as sizes suggest.
    """
    if isinstance(methods, str) or not all(isinstance(name, str) for name in methods):
        raise UserError(f"methods is a list of names, not {quoted(methods)}: for example ['local', 'dp-fedavg'].")
    if not isinstance(seeds, int):
        raise UserError(f"seeds is how many there are, not {quoted(seeds)}.")
    if isinstance(keys.get("epsilon"), list | tuple):
        if "epsilon" in (sweep or {}):
            raise UserError("'epsilon' is given twice: name its values once.")
        sweep = {"epsilon": keys.pop("epsilon"), **(sweep or {})}
    names = [contender(text)[0] for text in methods]
    chosen = _experiment(experiment, keys, names)
    with _display(progress) as display:
        found = compare_methods(chosen, methods, seeds, display, sweep=sweep, jobs=jobs, grid=tune)
    return ComparisonResult(found)


def _display(progress: bool | None) -> AbstractContextManager[Display]:
    """Where progress is shown: in notebooks, unless it is wanted elsewhere or nowhere."""
    return watching(quiet=not (in_notebook() if progress is None else progress))


def audit(
    experiment: str | Path | None = None,
    *,
    trials: int = TRIALS,
    tiers: Collection[int] = ALL_TIERS,
    **keys: Any,
) -> dict[str, Any]:
    """Attack what a method claims; the document that `sordino audit --json` prints."""
    return audit_claims(_experiment(experiment, keys), trials, tiers).asdict()


def _experiment(file: str | Path | None, keys: dict[str, Any], methods: Sequence[str] = ()) -> Experiment:
    if file is None:
        return Experiment.make(keys, methods=methods)
    if not isinstance(file, str | Path):
        raise UserError(f"An experiment is the name of a TOML file, not {quoted(file)}: give keys by their names.")
    return Experiment.read(Path(file), keys, methods=methods)
