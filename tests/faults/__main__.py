"""Run the harness and tell which promises were kept.

    PYTHONPATH=tests python -m faults                              all of it, about half an hour on two cores
    PYTHONPATH=tests python -m faults --scale 0.1 --seed 3         a tenth of it, with other faults
    PYTHONPATH=tests python -m faults --only kills --trial 17      one trial again

The exit code is 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from faults.cuts import CUTS
from faults.deaths import DEATHS
from faults.disks import DISKS
from faults.endings import ENDINGS
from faults.flips import FLIPS
from faults.fuzz import FUZZ
from faults.instructions import INSTRUCTIONS
from faults.kills import KILLS
from faults.processes import warm_up
from faults.restores import RESTORES
from faults.trials import Check, Part

PARTS = {part.name: part for part in (KILLS, ENDINGS, FLIPS, CUTS, FUZZ, DEATHS, DISKS, INSTRUCTIONS, RESTORES)}
SHOWN = 10
"""How many failures of one promise are told in full."""


def main() -> None:
    """Read the options, make the trials, print the table."""
    chosen = _options()
    scratch = Path(tempfile.mkdtemp(prefix="sordino-faults-"))
    tempfile.tempdir = str(scratch)
    os.environ["TMPDIR"] = str(scratch)
    try:
        warm_up(scratch)
        broken = False
        print(f"seed {chosen.seed}\n\n{'promise':<60} {'trials':>7} {'failures':>8}", flush=True)
        for name in chosen.only:
            broken |= _part(PARTS[name], chosen, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    sys.exit(1 if broken else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS), help="parts, by commas")
    parser.add_argument("--seed", type=int, default=1, help="decides all faults, up to the clock")
    parser.add_argument("--scale", type=float, default=1.0, help="the share of the trials to make")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no trial of a part after so many")
    parser.add_argument("--trial", type=int, help="make only the trial of this number")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="trials made at once")
    chosen = parser.parse_args()
    for name in chosen.only:
        if name not in PARTS:
            parser.error(f"there is no part {name!r}; known are: {', '.join(PARTS)}")
    return chosen


def _part(part: Part, chosen: argparse.Namespace, scratch: Path) -> bool:
    """Make the trials of a part and print its lines of the table; whether a promise was broken."""
    obstacle = part.obstacle()
    if obstacle:
        print(f"{part.name}: left out. {obstacle}", flush=True)
        return False
    numbers = range(math.ceil(part.trials * chosen.scale)) if chosen.trial is None else [chosen.trial]
    begin, before = time.monotonic(), _computed()
    trials: Counter[str] = Counter()
    failures: dict[str, list[tuple[int, str]]] = {promise: [] for promise in part.promises}
    for number, check in _made(part, numbers, chosen, scratch):
        trials[check.promise] += 1
        if check.failure is not None:
            failures.setdefault(check.promise, []).append((number, check.failure))
    for promise, found in failures.items():
        print(f"{promise:<60} {trials[promise]:>7} {len(found):>8}")
    for promise, found in failures.items():
        _tell(part, chosen.seed, promise, found)
    print(
        f"  ({part.name}: {time.monotonic() - begin:.0f} seconds, {_computed() - before:.0f} of computing)", flush=True
    )
    return any(failures.values())


def _computed() -> float:
    """Seconds of a processor's time that ended processes have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _tell(part: Part, seed: int, promise: str, found: list[tuple[int, str]]) -> None:
    """Print how a promise was broken, and how to see it again."""
    for number, failure in sorted(found)[:SHOWN]:
        again = f"PYTHONPATH=tests python -m faults --only {part.name} --seed {seed} --trial {number}"
        print(f"  broken: {promise}\n    {failure.strip()}\n    again: {again}")
    if len(found) > SHOWN:
        rest = ", ".join(str(number) for number, _ in sorted(found)[SHOWN:])
        print(f"  and in the trials {rest}")


def _made(part: Part, numbers: Iterable[int], chosen: argparse.Namespace, scratch: Path) -> list[tuple[int, Check]]:
    """What the trials tell, made by several copies of this process at once."""
    end = time.monotonic() + chosen.seconds
    jobs = {}
    for job in range(chosen.jobs):
        told = scratch / f"{part.name}-{job}.json"
        process = os.fork()
        if process == 0:
            _job(part, list(numbers)[job :: chosen.jobs], chosen.seed, end, told)
        jobs[process] = told
    found = []
    for process, told in jobs.items():
        if os.waitpid(process, 0)[1] != 0:
            raise RuntimeError(f"A job of the part {part.name} has ended before its time.")
        found += [(number, Check(**check)) for line in told.open() for number, check in [json.loads(line)]]
    return found


def _job(part: Part, numbers: list[int], seed: int, end: float, told: Path) -> None:
    """Make trials one after the other and write a line for each check; then end."""
    code = 1
    try:
        with told.open("w") as out:
            for number in numbers:
                if time.monotonic() > end:
                    break
                folder = Path(tempfile.mkdtemp(prefix=f"{part.name}-{number}-"))
                for check in part.checks(seed, number, folder):
                    out.write(json.dumps([number, asdict(check)]) + "\n")
                shutil.rmtree(folder, ignore_errors=True)
        code = 0
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
