"""Logs of rounds for the boards that people already watch: TensorBoard, MLflow, Weights & Biases.

Each board is an extra, and is imported when it is asked for. Logs get the same reports as the progress display; nothing
of them reaches a run.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from sordino.errors import UserError, unknown
from sordino.util.display import Display, Telling

NAME = re.compile(r"[^A-Za-z0-9._=+-]+")
"""Characters that a folder name should not have."""


class RunLog(Protocol):
    """Log of one run."""

    @staticmethod
    def look(store: Path) -> str:
        """Sentence that says how to open the logs of a store."""

    def round(self, number: int, figures: Mapping[str, float]) -> None:
        """Log the figures of a round; rounds count from 1."""

    def end(self) -> None:
        """Close the log of the run."""


class TensorBoard:
    """Event files under STORE/tensorboard."""

    @staticmethod
    def look(store: Path) -> str:
        return f"Logged: `tensorboard --logdir {store / 'tensorboard'}` shows it."

    def __init__(self, run: str, configuration: Mapping[str, Any], store: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(store / "tensorboard" / NAME.sub("_", run)))
        lines = [f"    {key} = {value}" for key, value in configuration.items() if value is not None]
        self._writer.add_text("experiment", "\n".join(lines))

    def round(self, number: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, number)

    def end(self) -> None:
        self._writer.close()


class MLflow:
    """A run of MLflow, where MLFLOW_TRACKING_URI says, else in STORE/mlflow.db."""

    @staticmethod
    def look(store: Path) -> str:
        where = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(store / 'mlflow.db').resolve()}"
        return f"Logged: `mlflow ui --backend-store-uri {where}` shows it."

    def __init__(self, run: str, configuration: Mapping[str, Any], store: Path) -> None:
        import mlflow

        if not os.environ.get("MLFLOW_TRACKING_URI"):
            mlflow.set_tracking_uri(f"sqlite:///{(store / 'mlflow.db').resolve()}")
        mlflow.set_experiment("sordino")
        self._mlflow = mlflow
        self._run = mlflow.start_run(run_name=run)
        mlflow.log_params({key: str(value)[:250] for key, value in configuration.items() if value is not None})

    def round(self, number: int, figures: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(figures), step=number, run_id=self._run.info.run_id)

    def end(self) -> None:
        self._mlflow.end_run()


class WeightsAndBiases:
    """A run of Weights & Biases in the project `sordino`; WANDB_MODE=offline keeps it in STORE/wandb."""

    @staticmethod
    def look(store: Path) -> str:
        return f"Logged by Weights & Biases; files are in {store / 'wandb'}."

    def __init__(self, run: str, configuration: Mapping[str, Any], store: Path) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "sordino"), name=run, config=dict(configuration), dir=str(store)
        )

    def round(self, number: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=number)

    def end(self) -> None:
        self._run.finish()


KINDS: dict[str, tuple[str, Any]] = {
    "tensorboard": ("tensorboard", TensorBoard),
    "mlflow": ("mlflow", MLflow),
    "wandb": ("wandb", WeightsAndBiases),
}
"""Kinds of logs, each with the package that it needs."""


def check_log(kind: str | None) -> None:
    """Refuse an unknown kind of log, or one whose package is not installed, before any work is done."""
    if kind is None:
        return
    if kind not in KINDS:
        raise unknown("log", kind, KINDS)
    package = KINDS[kind][0]
    if importlib.util.find_spec(package) is None:
        raise UserError(f'Logging to {kind} needs the package {package}: pip install "sordino[{kind}]".')


@contextlib.contextmanager
def log_runs(display: Display, kind: str | None, store: Path) -> Iterator[Display]:
    """Wrap a display so that its runs are logged too."""
    check_log(kind)
    if kind is None:
        yield display
        return
    store.mkdir(parents=True, exist_ok=True)
    both = _Logged(display, KINDS[kind][1], store)
    try:
        yield both
    finally:
        both.close()
    display.say(KINDS[kind][1].look(store))


class _Logged:
    def __init__(self, display: Display, make: Any, store: Path) -> None:
        self._display, self._make, self._store = display, make, store
        self._open: list[_LoggedRun] = []

    def run(self, name: str | None, rounds: int, configuration: Mapping[str, Any] | None = None) -> Telling:
        made = _LoggedRun(
            self._display.run(name, rounds, configuration),
            lambda: self._make(name or "run", configuration or {}, self._store),
        )
        self._open.append(made)
        return made

    def say(self, sentence: str) -> None:
        self._display.say(sentence)

    def total(self, done: int, runs: int) -> None:
        self._display.total(done, runs)

    def close(self) -> None:
        """End the logs of runs that were stopped."""
        for run in self._open:
            run.close()


class _LoggedRun:
    """Display of a run that also logs it, from its first round in this process on: rounds that the store already has
    are not logged again."""

    def __init__(self, telling: Telling, make: Any) -> None:
        self._telling, self._make = telling, make
        self._log: RunLog | None = None

    def __call__(self, report: Any) -> None:
        self._telling(report)
        if self._log is None:
            self._log = self._make()
        self._log.round(report.round + 1, figures(report))

    def blending(self, done: int, clients: int) -> None:
        self._telling.blending(done, clients)

    def end(self, personal: float | None = None) -> None:
        self._telling.end(personal)
        self.close()

    def close(self) -> None:
        """End the log, where there is one."""
        if self._log is not None:
            self._log.end()
            self._log = None


def figures(report: Any) -> dict[str, float]:
    """Figures of a round by the names of a board; missing and infinite ones are left out."""
    found = {
        "accuracy/personal": report.personal,
        "accuracy/worst": report.personal_worst,
        "accuracy/start": report.start,
        "accuracy/global": report.global_,
        **{f"epsilon/{view}": value for view, value in report.epsilon.items()},
        "threshold": math.nan if report.clip is None else report.clip,
        "clients": float(report.cohort),
        "seconds": report.seconds,
    }
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}
