"""The Python interface: each function does what the command of the same name does.

    import sordino

    result = sordino.run(data="digits", method="feddpa", clients=100, epsilon=8)
    print(result["accuracy"]["personal"], result["epsilon"]["outsider"])

Keywords are the keys of an experiment file; `set` holds hyper-parameters: `set={"tau": 0.3}`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from sordino.experiment.compare import Comparison, contender
from sordino.experiment.compare import compare as compare_methods
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.experiment.run import resume as resume_run
from sordino.experiment.run import start
from sordino.experiment.store import Store
from sordino.experiment.summary import Summary
from sordino.experiment.trained import Models, load_models
from sordino.privacy.audit.whole import ALL_TIERS, TRIALS
from sordino.privacy.audit.whole import audit as audit_claims
from sordino.privacy.plan import Plan, plan
from sordino.report.page.make import make_report
from sordino.server import Watch

__all__ = ["Comparison", "Models", "Plan", "audit", "compare", "load_models", "make_report", "plan", "resume", "run"]


def run(experiment: str | Path | None = None, *, watch: Watch | None = None, **keys: Any) -> Summary:
    """Run an experiment (a TOML file, keywords, or both) and return its summary.

    `watch` is called with a `RoundReport` after each round.
    """
    return start(prepare(_experiment(experiment, keys)), watch=watch)


def resume(run: str, store: str | Path = ".sordino", *, watch: Watch | None = None) -> Summary:
    """Take up a stopped run and return its summary: the same as if it had never been stopped."""
    return resume_run(run, Store(Path(store), must_exist=True), watch)


def compare(experiment: str | Path | None = None, *, methods: Sequence[str], seeds: int = 3, **keys: Any) -> Comparison:
    """Run several methods with several seeds at equal epsilon."""
    names = [contender(text)[0] for text in methods]
    return compare_methods(_experiment(experiment, keys, names), methods, seeds)


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
    return Experiment.read(Path(file), keys, methods=methods)
