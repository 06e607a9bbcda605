"""Where the progress of long work is shown, whoever shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Telling(Protocol):
    """One run's place in the display. Called with a `RoundReport` after each round."""

    def __call__(self, report: Any) -> None: ...

    def blending(self, done: int, clients: int) -> None:
        """So many clients have blended their models, once the rounds are over."""

    def end(self, personal: float | None = None) -> None:
        """End the run's display; `personal` is the mean accuracy of the models that clients predict with, if known."""


class Display(Protocol):
    """Where progress is shown."""

    def run(self, name: str | None, rounds: int, configuration: Mapping[str, Any] | None = None) -> Telling:
        """Open the display of a run of so many rounds with this `configuration`."""

    def say(self, sentence: str) -> None:
        """A line that stays."""

    def total(self, done: int, runs: int) -> None:
        """How many of all runs are done."""


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
