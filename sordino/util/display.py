"""Protocols for progress displays (`Display`, and `Telling` for one run), the display that shows nothing (`Silent`),
and the progress of feature extraction. Displays that show something implement these protocols elsewhere."""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

extraction_watch: contextvars.ContextVar[Callable[[int, int], None] | None] = contextvars.ContextVar(
    "extraction_watch", default=None
)
"""Is told how many records' features are done, and of how many; None where nobody watches."""


@contextlib.contextmanager
def telling_extraction(tell: Callable[[str], None], every: float) -> Iterator[None]:
    """Tell in sentences how the computation of features goes on, at most once in `every` seconds."""
    last = time.monotonic()

    def watch(done: int, records: int) -> None:
        nonlocal last
        if time.monotonic() - last >= every:
            last = time.monotonic()
            tell(f"Computing features, once for these records: {done:,} of {records:,}.")

    token = extraction_watch.set(watch)
    try:
        yield
    finally:
        extraction_watch.reset(token)


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
