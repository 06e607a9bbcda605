"""Progress of long work: a live line at a terminal or in a notebook, a line now and then in a log.

Each line fits the terminal. The run's name, its counter and the time left are always there, unshortened; figures are
dropped where space is short, the least important first.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task
from rich.text import Text

from sordino.experiment.hyperparameters import called
from sordino.report.terminal.results import epsilon_text
from sordino.report.wording import percent
from sordino.util.display import Display, Silent, Telling
from sordino.util.formatting import finite_or_none

BAR = 20
"""Length of a bar in characters."""
LOGGED = 5
"""Lines that a run writes into a log; of several runs, each has its last line, and one more after a long silence."""
SILENT = 30.0
"""Seconds after which a silent run writes a line."""
PERSONAL = "personal"
"""Label of the accuracy of personal models."""
BLENDS = {"blend": ("blending", "blended"), "recalibrate": ("recalibrating", "recalibrated")}
"""By the value of `personal`, words for what clients do with their models when the rounds are over, and have done."""

ERRORS = "measuring the errors of"
"""Words for what clients do at the end where they predict numbers with the method's own models."""


@functools.cache
def error_console() -> Console:
    """Console on standard error; what others print on it appears above the live line."""
    return Console(stderr=True, markup=False)


@contextlib.contextmanager
def watching(quiet: bool) -> Iterator[Display]:
    """Show progress on standard error, or nothing."""
    console = error_console()
    if quiet:
        yield Silent()
    elif in_notebook():
        yield Notebook()
    elif console.is_terminal:
        with Progress(ProgressLine(console), console=console, transient=True) as progress:
            yield Bars(progress)
    else:
        yield Lines(console)


def in_notebook() -> bool:
    """Whether the process is a notebook's kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class Bars:
    """Live line for each run at a terminal; a run that is over becomes a line that stays."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._all: Any = None

    def run(self, name: str | None, rounds: int, configuration: Mapping[str, Any] | None = None) -> Telling:
        return _Bar(self._progress, name or "round", rounds, Known.of(configuration), stays=self._all is not None)

    def say(self, sentence: str) -> None:
        self._progress.console.print(sentence, highlight=False)

    def total(self, done: int, runs: int) -> None:
        if runs < 2:
            return
        if self._all is None:
            self._all = self._progress.add_task("runs", total=runs, parts=[])
        self._progress.update(self._all, completed=done)


class _Bar:
    def __init__(self, progress: Progress, name: str, rounds: int, known: Known, stays: bool) -> None:
        self._progress, self._name, self._stays = progress, name, stays
        self._last: list[str] = []
        self._task = progress.add_task(name, total=rounds, parts=[])
        self._begun, self._known = time.monotonic(), known

    def __call__(self, report: Any) -> None:
        self._last = self._known.parts(report)
        self._progress.update(self._task, completed=report.round + 1, parts=self._last)

    def blending(self, done: int, clients: int) -> None:
        self._progress.update(
            self._task, description=f"{self._name}, {self._known.ending}", completed=done, total=clients, parts=[]
        )

    def end(self, personal: float | None = None) -> None:
        self._progress.remove_task(self._task)
        if self._stays and self._last:  # a run that the store had already has nothing to tell
            words = [self._name, f"{time.monotonic() - self._begun:.1f} s"]
            rest = [part for part in self._last if not part.startswith(PERSONAL)]
            reached = [f"{PERSONAL} {percent(personal)}", *rest]  # first, because budgets are equal
            told = "  ".join(fitting(words, reached, self._progress.console.width))
            self._progress.console.print(told, highlight=False)


class ProgressLine(ProgressColumn):
    """Line of one run, which fits the terminal."""

    max_refresh = None

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def render(self, task: Task) -> Text:
        total = int(task.total or 0)
        left = task.time_remaining
        clock = "-:--:--" if left is None else f"{int(left) // 3600}:{int(left) // 60 % 60:02d}:{int(left) % 60:02d}"
        words = line(task.description, int(task.completed), total, clock, task.fields["parts"], self._console.width - 1)
        return Text(words, overflow="fold")


def line(name: str, done: int, total: int, clock: str, parts: Sequence[str], width: int) -> str:
    """Line of a name, a counter, the time left and as many `parts`, most important first, as fit into `width`; with a
    bar where all of them fit."""
    words = fitting([name, f"{done}/{total}", clock], parts, width)
    full = len(words) == 3 + len(parts)
    if full and len("  ".join(words)) + BAR + 2 <= width:
        filled = round(BAR * done / max(1, total))
        words.insert(1, "━" * filled + " " * (BAR - filled))
    return "  ".join(words)


def fitting(words: Sequence[str], parts: Sequence[str], width: int) -> list[str]:
    """Text of all `words` and as many `parts`, most important first, as fit into `width`."""
    found = [*words]
    for part in parts:
        if len("  ".join([*found, part])) > width:
            break
        found.append(part)
    return found


class Lines:
    """Progress as lines now and then, in a log."""

    def __init__(self, console: Console) -> None:
        self._console, self._several = console, False

    def run(self, name: str | None, rounds: int, configuration: Mapping[str, Any] | None = None) -> Telling:
        return _Log(self._console, name, Known.of(configuration), 1 if self._several else LOGGED)

    def say(self, sentence: str) -> None:
        self._console.print(sentence, highlight=False, soft_wrap=True)

    def total(self, done: int, runs: int) -> None:
        self._several = runs > 1


class _Log:
    def __init__(self, console: Console, name: str | None, known: Known, lines: int) -> None:
        self._console, self._lead, self._lines, self._known = console, f"{name}: " if name else "", lines, known
        self._told, self._last = time.monotonic(), False

    def __call__(self, report: Any) -> None:
        done, every = report.round + 1, max(1, report.rounds // self._lines)
        parts = self._known.parts(report)
        if done % every == 0 or done == report.rounds or time.monotonic() - self._told > SILENT:
            self._told, self._last = time.monotonic(), True
            self._say(f"round {done}/{report.rounds}  {'  '.join(parts)}")

    def blending(self, done: int, clients: int) -> None:
        if not done:
            self._say(f"{self._known.ending} the models of {clients} clients")

    def end(self, personal: float | None = None) -> None:
        if self._last and self._known.done:  # else the last round told it
            self._say(f"{self._known.done}  {PERSONAL} {percent(personal)}")

    def _say(self, sentence: str) -> None:
        self._console.print(f"{self._lead}{sentence}", highlight=False, soft_wrap=True)


class Notebook:
    """Bar for each run under a notebook's cell, and one more for all of them if there are several."""

    def __init__(self) -> None:
        self._all: Any = None

    def run(self, name: str | None, rounds: int, configuration: Mapping[str, Any] | None = None) -> Telling:
        return _Cell(name, rounds, Known.of(configuration))

    def say(self, sentence: str) -> None:
        print(sentence, file=sys.stderr)

    def total(self, done: int, runs: int) -> None:
        if runs < 2:
            return
        if self._all is None:
            self._all = _NotebookBar("runs", runs)
        self._all.show(done, [])


class _Cell:
    def __init__(self, name: str | None, rounds: int, known: Known) -> None:
        self._rounds, self._known = rounds, known
        self._bar = _NotebookBar(name or "round", rounds)

    def __call__(self, report: Any) -> None:
        self._bar.show(report.round + 1, self._known.parts(report))

    def blending(self, done: int, clients: int) -> None:
        self._bar.show(self._rounds, [f"{self._known.ending}, {done} of {clients} clients"])

    def end(self, personal: float | None = None) -> None:
        if self._known.done:
            self._bar.show(self._rounds, [f"{PERSONAL} {percent(personal)}"])


class _NotebookBar:
    """A bar in a notebook."""

    def __init__(self, name: str, total: int) -> None:
        from IPython.display import display

        self._name, self._total = name, total
        self._shown = display(self._html(0, []), display_id=True)

    def show(self, done: int, parts: Sequence[str]) -> None:
        """Redraw the bar at its present state."""
        self._shown.update(self._html(done, parts))

    def _html(self, done: int, parts: Sequence[str]) -> Any:
        from html import escape

        from IPython.display import HTML

        told = escape("  ".join([f"{done}/{self._total}", *parts]))
        return HTML(f'{escape(self._name)} <progress value="{done}" max="{self._total}"></progress> {told}')


class Place:
    """Display of a new run, once the run has a name."""

    def __init__(self, display: Any, prepared: Any) -> None:
        self._display, self._prepared = display, prepared
        self._telling: Any = None

    def begin(self, run: str) -> None:
        """Announce the run."""
        schedule, experiment = self._prepared.schedule, self._prepared.experiment
        turns = f", {schedule.cohort} of them a round" if schedule.cohort < schedule.clients else ""
        configuration = experiment.model_dump(mode="json")
        method = called(configuration)
        if self._prepared.chosen:
            self._display.say(self._prepared.chosen)
        self._display.say(f"{run}: {method}, {schedule.rounds} rounds, {schedule.clients} clients{turns}")
        self._telling = self._display.run(run, schedule.rounds, configuration)

    def __call__(self, report: Any) -> None:
        self._telling(report)

    def blending(self, done: int, clients: int) -> None:
        """Show how many clients have blended their models."""
        self._telling.blending(done, clients)

    def end(self, personal: float | None) -> None:
        """End the display with the clients' accuracy."""
        self._telling.end(personal)


class Known:
    """State of a run's display: its last epsilon, because not every round has one, and what its clients do with models
    at the end, so that its rounds' personal models are not those they predict with."""

    def __init__(self, personal: str = "own") -> None:
        self.doing, self.done = BLENDS.get(personal, ("", ""))
        self.ending = self.doing or ERRORS
        self._epsilon, self._round = math.nan, -1

    @classmethod
    def of(cls, configuration: Mapping[str, Any] | None) -> Known:
        """State before the first round of a run with this configuration."""
        return cls((configuration or {}).get("personal", "own"))

    def parts(self, report: Any) -> list[str]:
        """Figures of a round in words, most important first."""
        current = report.epsilon[report.observer]
        if not math.isnan(current):
            self._epsilon, self._round = current, report.round
        whose = f" ({report.cohort} of {report.clients} clients)" if report.cohort < report.clients else ""
        label = f"{PERSONAL} before {self.doing}" if self.doing else PERSONAL
        parts = [f"{label} {percent(finite_or_none(report.personal))}{whose}"]
        if not math.isnan(self._epsilon):
            late = f" at round {self._round + 1}" if self._round != report.round else ""
            done = report.round + 1 == report.rounds
            so_far = "" if done else " so far"
            parts.insert(0, f"epsilon{so_far} {epsilon_text(self._epsilon)}{_plan_words(report)}{late}")
        if math.isfinite(
            report.start
        ):  # methods whose clients begin with the server's model have no model of their own
            parts.append(f"start {percent(report.start)}")
        parts.append(f"global {percent(finite_or_none(report.global_))}")
        if report.clip is not None:
            parts.append(f"clip {report.clip:.3g}")
        if report.rejected:
            parts.append(f"{report.rejected} rejected")
        return parts


def _plan_words(report: Any) -> str:
    """Planned epsilon, to stand behind the present one."""
    if report.planned is None or math.isinf(report.epsilon[report.observer]):
        return ""
    return f" of {epsilon_text(report.planned).removesuffix('.00')}"
