"""Kills at any moment: a run that is resumed ends as one that was never disturbed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from faults.cases import Reference, cases, checkpoints_every, ending, files, reference, runs
from faults.processes import Copy, Outcome, die_at, options, sordino, state
from faults.trials import Check, Part, kept

RESUMED = "a killed run can be resumed"
SAME = "a resumed run ends as an undisturbed one"
ALONE = "no worker outlives its killed run"
SENTENCE = "an interrupted run ends with a sentence"
CLEAN = "a finished run leaves no scraps"
ORPHAN = "a worker that outlives its run changes nothing"
PATIENCE = 15.0
"""Seconds for which a run may be held by what a kill has left behind."""
ORPHANS = 6
"""One trial of so many is about a worker that outlives its run."""
REMEMBERING = ("local", "feddpa", "fedglp-adp")
"""Methods whose clients go on with what they remember, so that a foreign write shows."""

Kill = Callable[[random.Random, Reference, Callable[..., Copy], Path], Copy]


def trial(draw: random.Random, number: int, folder: Path) -> Iterator[Check]:
    """Kill one run once or several times in a row, and look at what becomes of it."""
    if number % ORPHANS == ORPHANS - 1:
        yield from _orphaned(draw, folder)
        return
    names = list(cases())
    case = names[number % len(names)]
    known = reference(case)
    store = folder / "store"
    pause = draw.choice((0.0, 0.0, 0.05, 0.2))
    kills = 0
    for _ in range(draw.choice((1, 2, 3, 4, 6))):
        copy = draw.choice(WAYS)(draw, known, _starter(store, case, pause), store)
        with copy:
            ended = copy.outcome()
            if ended.code == 0:
                break
            if ended.code not in KILLED:
                yield Check(RESUMED if kills else SAME, f"{case}: {ended}")
                return
            kills += 1
            yield from _after(case, ended, copy)
    if kills:
        yield from finished(case, known, store, kills)


def _after(case: str, ended: Outcome, copy: Copy) -> Iterator[Check]:
    """What must hold right after a kill."""
    left = copy.left()
    yield kept(ALONE, not left, f"{case}: {len(left)} processes are still there")
    if ended.code == 130:
        one = len(ended.err.splitlines()) == 1 and not ended.traceback
        yield kept(SENTENCE, one, f"{case}: {ended.err[:1000]}")


def finished(case: str, known: Reference, store: Path, kills: int) -> Iterator[Check]:
    """Resume to the end, and compare."""
    with _again(store, case, 1e9) as copy:
        ended = copy.outcome()
    yield from (Check(RESUMED) for _ in range(kills - 1))
    yield kept(RESUMED, ended.code == 0, f"{case}: {ended}")
    if ended.code != 0:
        return
    name = ended.document["run"]
    odd = ending(store, name, ended, known.trace)
    yield from (Check(SAME) for _ in range(kills - 1))
    yield kept(SAME, odd is None, f"{case}: {odd}")
    scraps = files(store, name) - known.files
    yield kept(CLEAN, not scraps, f"{case}: {', '.join(sorted(scraps))} lie in the run's folder")


def _orphaned(draw: random.Random, folder: Path) -> Iterator[Check]:
    """Stop a worker at one of its calls, kill its run, resume, and let the worker go on while the resumed run works."""
    case = draw.choice(
        [name for name, keys in cases().items() if keys["workers"] > 1 and keys["method"] in REMEMBERING]
    )
    known, store = reference(case), folder / "store"
    call, changes = draw.randint(1, 60), draw.randint(1, 25)
    with _again(store, case, 0.0, die_at(call, signal.SIGSTOP, worker=True)) as copy:
        worker = _stopped_worker(copy)
        copy.kill(signal.SIGKILL)
        if worker is None or copy.outcome().code == 0:
            return
        with _again(store, case, 0.0) as resumed:
            _await_changes(resumed, store, changes)
            send(worker, signal.SIGCONT)
            ended = resumed.outcome()
        what = f"{case}, a worker stopped at its call {call} until change {changes} of the run's folder"
        yield kept(RESUMED, ended.code == 0, f"{what}: {ended}")
        if ended.code == 0:
            odd = ending(store, ended.document["run"], ended, known.trace)
            yield kept(ORPHAN, odd is None, f"{what}: {odd}")
        left = copy.left()
        yield kept(ALONE, not left, f"{what}: {len(left)} processes are still there")


def _stopped_worker(copy: Copy) -> int | None:
    """Wait until a worker has stopped; None where the command ends before."""
    while copy.alive():
        for worker in copy.others():
            if state(worker) == "T":
                return worker
        time.sleep(0.005)
    return None


def _await_changes(copy: Copy, store: Path, changes: int) -> None:
    """Wait until files have come or gone so often in a run's folder, or the command has ended."""
    before = _listing(store)
    while changes and copy.alive():
        now = _listing(store)
        changes -= now != before
        before = now
        time.sleep(0.0002)


def _starter(store: Path, case: str, pause: float) -> Callable[..., Copy]:
    """Something that starts a run, or takes it up where it is already there."""
    return lambda first=lambda: None: _again(store, case, pause, first)


def _again(store: Path, case: str, pause: float, first: Callable[[], object] = lambda: None) -> Copy:
    def before() -> None:
        checkpoints_every(pause)
        first()

    return Copy(sordino(*next_command(store, case), first=before))


def next_command(store: Path, case: str) -> list[Any]:
    """The command that goes on: a run that was killed before it was noted down is started anew."""
    end = time.monotonic() + PATIENCE
    while listed := runs(store) if store.exists() else []:
        if listed[0]["state"] != "running" or time.monotonic() > end:
            return ["resume", listed[0]["run"], "--json", "--store", store]
        time.sleep(0.02)
    return _run(store, case)


def _run(store: Path, case: str) -> list[Any]:
    return ["run", *options(cases()[case]), "--json", "--store", store]


def _at_a_time(how: signal.Signals, whole: bool) -> Kill:
    """Kill from outside, at a random moment of the run's life."""

    def kill(draw: random.Random, known: Reference, start: Callable[..., Copy], store: Path) -> Copy:
        moment = draw.random() * known.seconds
        copy = start()
        sleep(copy, moment)
        copy.kill(how, whole)
        return copy

    return kill


def _at_a_file(how: signal.Signals, whole: bool) -> Kill:
    """Kill from outside, right after a file has come into a run's folder or gone from it."""

    def kill(draw: random.Random, known: Reference, start: Callable[..., Copy], store: Path) -> Copy:
        changes, later = draw.randint(1, 20), draw.choice((0.0, 0.002, 0.01)) * draw.random()
        copy = start()
        _await_changes(copy, store, changes)
        sleep(copy, later)
        copy.kill(how, whole)
        return copy

    return kill


def _at_a_call(whole: bool) -> Kill:
    """Die just before or just after a random one of the calls that change files: the same for the same seed."""

    def kill(draw: random.Random, known: Reference, start: Callable[..., Copy], store: Path) -> Copy:
        return start(die_at(draw.randint(1, known.calls), signal.SIGKILL, whole))

    return kill


WAYS: tuple[Kill, ...] = (
    *(_at_a_time(signal.SIGKILL, whole) for whole in (True, True, False)),
    *(_at_a_file(signal.SIGKILL, whole) for whole in (True, False)),
    *(_at_a_call(whole) for whole in (True, True, False)),
    _at_a_time(signal.SIGTERM, False),
    _at_a_time(signal.SIGINT, True),
)
KILLED = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, 130, 143)


def _listing(store: Path) -> list[str]:
    return sorted(str(path) for path in store.glob("*/*/*"))


def sleep(copy: Copy, seconds: float) -> None:
    """Wait for a moment, or until the command has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and copy.alive():
        time.sleep(min(0.002, max(0.0, end - time.monotonic())))


def has_workers(copy: Copy) -> bool:
    """Wait until the command has started workers; whether it ever does."""
    while copy.alive():
        if copy.others():
            return True
        time.sleep(0.002)
    return False


def send(process: int, how: signal.Signals) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, how)


KILLS = Part("kills", (RESUMED, SAME, ALONE, SENTENCE, CLEAN, ORPHAN), 140, trial)
