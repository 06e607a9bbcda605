"""Full disks: nothing is lost, and with more room the run goes on.

Each trial has a name space of mounts of its own, in which a small file system in memory takes the place of the store,
or of the machine's shared memory.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from faults.cases import cases, checkpoints_every, ending, reference
from faults.kills import next_command
from faults.processes import HUNG, Copy, Outcome, options, sordino
from faults.trials import Check, Part, kept

SENTENCE = "a run on a full disk ends with a sentence, or finishes"
SAME = "a run on a full disk is resumed to the same end"
SHARED = "a run without shared memory ends with a sentence, or finishes"
SHARED_SAME = "a run without shared memory is resumed to the same end"
CASES = ("quantile clipping", "half of the clients", "layer-wise clipping", "a third of the clients", "own method")
NEW_MOUNTS, NEW_USER = 0x00020000, 0x10000000
SHARED_MEMORY = Path("/dev/shm")
LIMIT = 120.0
WORKING = 8
"""How many times the room that a finished run takes is enough for one that works."""


@functools.cache
def obstacle() -> str | None:
    """Why no file system can be mounted here, in a sentence."""
    with Copy(lambda: _mount(Path("/mnt"), 64)) as copy:
        ended = copy.outcome()
    if ended.code == 0:
        return None
    return "This user may not mount a small file system, not even in a name space of its own."


def trial(draw: random.Random, number: int, folder: Path) -> Iterator[Check]:
    """Run with little room, then go on with enough."""
    case = CASES[number % len(CASES)]
    known, shared = reference(case), number % 3 == 2
    keys = cases()[case] | ({"workers": 2} if shared else {})
    place = SHARED_MEMORY if shared else folder / "small"
    place.mkdir(exist_ok=True)
    store = folder / "store" if shared else place / "store"
    left = sum(path.stat().st_size for path in known.store.rglob("*")) // 1024
    size = 4 * draw.randint(1, 8 if shared else WORKING * left // 4)

    def action() -> int:
        _mount(place, size)
        ended = _outcome(sordino("run", *options(keys), "--json", "--store", store, first=lambda: checkpoints_every(0)))
        _mount(place, 1024 * 1024, "remount,")
        resumed = _outcome(sordino(*next_command(store, case)))
        odd = str(resumed)
        if resumed.code == 0:
            odd = ending(store, resumed.document["run"], resumed, known.trace) or ""
        good = ended.code == 0 or ended.refused
        print(json.dumps([good, str(ended), odd]))
        return 0

    with Copy(action) as copy:
        told = copy.outcome(3 * LIMIT)
    what = f"{case}, {size} KiB of {'shared memory' if shared else 'disk'}"
    good, how, odd = told.document if told.code == 0 else (False, str(told), str(told))
    yield kept(SHARED if shared else SENTENCE, good, f"{what}: {how}")
    yield kept(SHARED_SAME if shared else SAME, not odd, f"{what}: {odd}")


def _outcome(action: Callable[[], None]) -> Outcome:
    with Copy(action) as copy:
        ended = copy.outcome(LIMIT)
    return ended if ended.code != HUNG else Outcome(HUNG, "", "it hangs")


def _mount(place: Path, kilobytes: int, how: str = "") -> int:
    """Put a file system of the given size in a place that only this process and its descendants see."""
    if not how:
        _leave_the_mounts_of_others()
    order = ["mount", "-t", "tmpfs", "-o", f"{how}size={kilobytes}k", "tmpfs", str(place)]
    return subprocess.run(order, stdout=sys.stderr, check=True).returncode


def _leave_the_mounts_of_others() -> None:
    """Enter a name space of mounts of our own; who is not root becomes root in a name space of users first."""
    library, user, group = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
    flags = NEW_MOUNTS if user == 0 else NEW_MOUNTS | NEW_USER
    if library.unshare(flags) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


DISKS = Part("disks", (SENTENCE, SAME, SHARED, SHARED_SAME), 45, trial, obstacle)
