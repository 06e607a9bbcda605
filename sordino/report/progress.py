"""Progress of long work: a live line for people at a terminal, a line now and then in a log."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sordino.report.tables import epsilon_text, percent

Watcher = Callable[[str | None, int], Callable[[Any], None]]


@functools.cache
def error_console() -> Console:
    """The one console on standard error: what others print on it appears above the live line."""
    return Console(stderr=True, markup=False)


@contextlib.contextmanager
def watching(quiet: bool) -> Iterator[Watcher]:
    """Show rounds on standard error. Gives a function that makes a watcher for a named run of so many rounds."""
    console = error_console()
    if quiet:
        yield lambda name, rounds: lambda report: None
    elif console.is_terminal:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as progress:
            yield lambda name, rounds: _bar(progress, name, rounds)
    else:
        yield lambda name, rounds: _lines(console, name)


def _bar(progress: Progress, name: str | None, rounds: int) -> Callable[[Any], None]:
    task = progress.add_task(name or "round", total=rounds, figures="")

    def watch(report: Any) -> None:
        progress.update(task, completed=report.round + 1, figures=figures(report))

    return watch


def _lines(console: Console, name: str | None) -> Callable[[Any], None]:
    def watch(report: Any) -> None:
        done, every = report.round + 1, max(1, report.rounds // 5)
        if done % every == 0 or done == report.rounds:
            lead = f"{name}: " if name else ""
            console.print(f"{lead}round {done}/{report.rounds}  {figures(report)}", highlight=False, soft_wrap=True)

    return watch


def figures(report: Any) -> str:
    """What a round brought, in one line."""
    parts = [
        f"personal {percent(known(report.personal))}",
        f"start {percent(known(report.start))}",
        f"global {percent(known(report.global_))}",
    ]
    if report.clip is not None:
        parts.append(f"C {report.clip:.3g}")
    parts.append(f"ε ≤ {epsilon_text(report.epsilon['outsider'])}")
    if report.rejected:
        parts.append(f"{report.rejected} rejected")
    return "  ".join(parts)


def known(value: float) -> float | None:
    """`nan` as None."""
    return None if math.isnan(value) else value
