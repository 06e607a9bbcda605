"""Deaths of single worker processes: the run ends with a sentence, hangs never, and can be resumed."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

from faults.cases import OWN, Reference, cases, checkpoints_every, ending, reference
from faults.kills import has_workers, next_command, send, sleep
from faults.processes import HUNG, Copy, die_at, options, sordino
from faults.trials import Check, Part, kept

SENTENCE = "a run whose worker died ends with a sentence, or finishes"
ENDS = "a run whose worker died does not hang"
ALONE = "a run whose worker died leaves no process behind"
SAME = "a run whose worker died is resumed to the same end"
SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM)
LIMIT = 120.0


def trial(draw: random.Random, number: int, folder: Path) -> Iterator[Check]:
    """Kill a worker of a run with two processes at a moment of the clock, or at one of its own calls."""
    names = [name for name, keys in cases().items() if keys["workers"] > 1]
    case = names[number % len(names)]
    known, store, how = reference(case), folder / "store", draw.choice(SIGNALS)
    if draw.random() < 0.5:
        moment = "at a random moment"
        copy = _killed_from_outside(draw, case, known, store, how)
    else:
        call = int(10 ** draw.uniform(0, 2.5))
        moment = f"at its call {call}"
        copy = _killed_from_inside(call, case, store, how)
    what = f"{case}, worker ended by {how.name} {moment}"
    with copy:
        ended = copy.outcome(LIMIT)
        left = copy.left()
    yield kept(ENDS, ended.code != HUNG, f"{what}: it hangs")
    yield kept(ALONE, not left, f"{what}: {len(left)} processes are still there")
    if ended.code != HUNG:
        yield kept(SENTENCE, ended.code == 0 or ended.refused, f"{what}: {ended}")
    with Copy(sordino(*next_command(store, case))) as again:
        resumed = again.outcome()
    odd = str(resumed)
    if resumed.code == 0:
        odd = ending(store, resumed.document["run"], resumed, known.trace, cases()[case]["method"].startswith(OWN))
    yield kept(SAME, odd is None, f"{what}: {odd}")


def _command(store: Path, case: str) -> list[object]:
    return ["run", *options(cases()[case]), "--json", "--store", store]


def _killed_from_outside(draw: random.Random, case: str, known: Reference, store: Path, how: signal.Signals) -> Copy:
    copy = Copy(sordino(*_command(store, case), first=lambda: checkpoints_every(0)))
    if has_workers(copy):
        sleep(copy, draw.random() * known.seconds)
        for worker in copy.others()[:1]:
            send(worker, how)
    return copy


def _killed_from_inside(call: int, case: str, store: Path, how: signal.Signals) -> Copy:
    def first() -> None:
        checkpoints_every(0)
        die_at(call, how, worker=True)()

    return Copy(sordino(*_command(store, case), first=first))


DEATHS = Part("deaths", (SENTENCE, ENDS, ALONE, SAME), 45, trial)
