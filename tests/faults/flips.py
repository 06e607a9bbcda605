"""Damage to every file of a store: it is told in a sentence, or it changes nothing."""

from __future__ import annotations

import functools
import hashlib
import json
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.cases import cases, checkpoints_every, copied, ending, once, reference, runs
from faults.processes import Copy, Outcome, command, die_at, options, sordino
from faults.trials import Check, Part, kept

SILENT = "damage to a store does not change results silently"
TOLD = "damage to a store is told in a sentence, without a traceback"
LISTED = "a damaged store does not look like an empty one"
CASES = ("quantile clipping", "half of the clients", "layer-wise clipping", "local, sound, stacked", "own method")
ATTEMPTS = 20
Damage = Callable[[random.Random, Path, Path, str], str]
HEAD = 512
"""Bytes at the beginning of a file, where formats keep what they are."""


@dataclass(frozen=True)
class Whole:
    """A store that nothing has damaged yet."""

    case: str
    stores: list[Path]
    """As it was left and, where that differs, after a look at it, which brings the latest rows into the database."""
    run: dict[str, Any]
    """Its run, as `sordino runs` lists it."""


@functools.cache
def stopped(case: str, seed: int = 0) -> Whole:
    """A run that was killed half-way, after checkpoints, with all that a killed process leaves behind."""
    return once(f"stopped {case} {seed}", lambda folder: _stopped(case, seed, folder))


def _stopped(case: str, seed: int, folder: Path) -> Whole:
    draw, known = random.Random(f"{case} {seed}"), reference(case)
    for attempt in range(ATTEMPTS):
        store = folder / str(attempt) / "store"
        keys = cases()[case] | ({"seed": seed} if seed else {})
        first = _dying(int(draw.uniform(0.4, 0.9) * known.calls))
        with Copy(sordino("run", *options(keys), "--json", "--store", store, first=first)) as copy:
            ended = copy.outcome()
        if ended.code != -signal.SIGKILL or not store.exists():
            continue
        left = copied(store, store.with_name("left"))
        listed = runs(store)
        if listed and listed[0]["rounds_done"] > 0 and listed[0]["state"] != "done":
            return Whole(case, [left, store], listed[0])
    raise RuntimeError(f"The experiment {case!r} could not be stopped half-way in {ATTEMPTS} attempts.")


def _dying(call: int) -> Callable[[], None]:
    def first() -> None:
        checkpoints_every(0)
        die_at(call, signal.SIGKILL, whole=True)()

    return first


@functools.cache
def finished(case: str) -> Whole:
    """A run that has come to its end."""
    known = reference(case)
    return Whole(case, [known.store], runs(known.store)[0])


def trial(draw: random.Random, number: int, folder: Path) -> Iterator[Check]:
    """Damage one file of a store in one way, then take up the run and read its models."""
    yield from damaged(draw, number, folder, draw.choice(DAMAGES))


def damaged(draw: random.Random, number: int, folder: Path, damage: Damage) -> Iterator[Check]:
    """Damage one file of a store in the given way, and look at what becomes of it."""
    case = CASES[number % len(CASES)]
    whole = stopped(case) if number // len(CASES) % 3 else finished(case)
    store = copied(draw.choice(whole.stores), folder / "store")
    target = draw.choice(sorted(path for path in store.rglob("*") if path.is_file()))
    what = f"{case}, {whole.run['state']}, {target.name}: {damage(draw, target, store, case)}"
    listed = command("runs", "--json", "--store", store)
    resumed = command("resume", whole.run["run"], "--json", "--store", store)
    done = {"runs": listed, "resume": resumed}
    if resumed.code == 0:
        done["load_models"] = command_models(store, whole.run["run"])
    for name, ended in done.items():
        yield kept(TOLD, ended.refused or (ended.code == 0 and not ended.traceback), f"{what}; {name}: {ended}")
    if listed.code == 0:
        known = [(row["run"], row["method"], row["rounds"]) for row in listed.document]
        yield kept(LISTED, known == [tuple(whole.run[k] for k in ("run", "method", "rounds"))], f"{what}; {known}")
    yield kept(SILENT, (odd := _changed(whole, store, resumed, done.get("load_models"))) is None, f"{what}; {odd}")


def _changed(whole: Whole, store: Path, resumed: Outcome, read: Outcome | None) -> str | None:
    """How the results differ without anybody being told; None where they do not."""
    if resumed.code != 0 or read is None:
        return None
    expected = reference(whole.case).trace
    if whole.run["state"] == "done":  # what was computed long ago is only looked at
        summary = {key: value for key, value in resumed.document.items() if key not in ("run", "seconds")}
        odd = None if summary == expected["summary"] else "another summary than undisturbed"
    else:
        odd = ending(store, whole.run["run"], resumed, expected)
    if odd is None and read.code == 0 and read.document != _models(whole.case):
        return "load_models gives other models than undisturbed"
    return odd


@functools.cache
def _models(case: str) -> Any:
    known = reference(case)
    return command_models(known.store, known.name).document


def command_models(store: Path, run: str) -> Outcome:
    """What comes of `sordino.api.load_models`: fingerprints of all networks."""

    def action() -> int:
        import sordino.api
        from sordino.errors import UserError

        try:
            models = sordino.api.load_models(run, store)
        except UserError as error:
            print(f"Error: {error}", file=sys.stderr)
            return 2

        def prints(network: Any) -> str:
            weights = [value.detach().contiguous().numpy().tobytes() for value in network.state_dict().values()]
            return hashlib.sha256(b"".join(weights)).hexdigest()

        found = [[prints(network) for network in models.shared], {n: prints(m) for n, m in models.personal.items()}]
        print(json.dumps(found))
        return 0

    with Copy(action) as copy:
        return copy.outcome()


def _place(draw: random.Random, size: int) -> int:
    """A place in a file: the beginning and the end are hit as often as all the rest."""
    return draw.choice(
        (draw.randrange(size), draw.randrange(min(size, HEAD)), size - 1 - draw.randrange(min(size, HEAD)))
    )


def flip(draw: random.Random, target: Path, store: Path, case: str) -> str:
    """One bit."""
    content = bytearray(target.read_bytes())
    if not content:
        return append(draw, target, store, case)
    place, bit = _place(draw, len(content)), draw.randrange(8)
    content[place] ^= 1 << bit
    target.write_bytes(content)
    return f"bit {bit} of byte {place} of {len(content)} flipped"


def blank(draw: random.Random, target: Path, store: Path, case: str) -> str:
    """A block of zeros, as a file system leaves after a crash."""
    content = bytearray(target.read_bytes())
    if not content:
        return append(draw, target, store, case)
    begin = _place(draw, len(content))
    end = min(len(content), begin + draw.choice((1, 16, 512, 4096)))
    content[begin:end] = bytes(end - begin)
    target.write_bytes(content)
    return f"bytes {begin} to {end} of {len(content)} zeroed"


def truncate(draw: random.Random, target: Path, store: Path, case: str) -> str:
    """The end is missing."""
    content = target.read_bytes()
    if not content:
        return append(draw, target, store, case)
    length = draw.choice((0, _place(draw, len(content))))
    target.write_bytes(content[:length])
    return f"cut from {len(content)} to {length} bytes"


def append(draw: random.Random, target: Path, store: Path, case: str) -> str:
    """Something follows that does not belong there."""
    more = draw.randbytes(draw.choice((1, 8, 4096)))
    with target.open("ab") as file:
        file.write(more)
    return f"{len(more)} bytes appended"


def swap(draw: random.Random, target: Path, store: Path, case: str) -> str:
    """Another file of this store has its place, or the same file of another run."""
    others = [path for path in store.rglob("*") if path.is_file() and path != target]
    foreign = [path for path in stopped(case, seed=1).stores[0].rglob(target.name) if path.is_file()]
    other = draw.choice(foreign or others) if draw.random() < 0.5 else draw.choice(others)
    shutil.copyfile(other, target)
    return f"replaced by {other.name} {'of another run' if other in foreign else 'of the same store'}"


def remove(draw: random.Random, target: Path, store: Path, case: str) -> str:
    """It is gone."""
    target.unlink()
    return "removed"


DAMAGES = (flip, flip, flip, flip, blank, truncate, append, swap, remove)
FLIPS = Part("flips", (SILENT, TOLD, LISTED), 500, trial)
