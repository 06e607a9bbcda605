"""Interfaces for showing the progress of long work: bars, a notebook, a log, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Telling(Protocol):
    """One run's place in the display. Called with a `RoundReport` after each round."""

    def __call__(self, report: Any) -> None: ...

    def blending(self, done: int, clients: int) -> None:
        """Show that `done` of `clients` clients have blended their models, after the last round."""

    def end(self, personal: float | None = None) -> None:
        """End the run's display; `personal` is the mean accuracy of the models that clients predict with, if known."""


class Display(Protocol):
    """A place that shows progress."""

    def run(self, name: str | None, rounds: int, configuration: Mapping[str, Any] | None = None) -> Telling:
        """Open the display of a run called `name`, of `rounds` rounds, with the keys of its `configuration`."""

    def say(self, sentence: str) -> None:
        """Print a sentence that stays on the screen."""

    def total(self, done: int, runs: int) -> None:
        """Show that `done` of all `runs` runs are done."""


class Silent:
    """No display."""

    def run(self, name: str | None, rounds: int, configuration: Mapping[str, Any] | None = None) -> Telling:
        return _Nothing()

    def say(self, sentence: str) -> None:
        return

    def total(self, done: int, runs: int) -> None:
        return


class _Nothing:
    def __call__(self, report: Any) -> None:
        return

    def blending(self, done: int, clients: int) -> None:
        return

    def end(self, personal: float | None = None) -> None:
        return
