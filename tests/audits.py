"""The full table: every method, in every variant, at three epsilons, attacked.

    python tests/audits.py [WORD...]
    python tests/audits.py --sweep [WORD...]

Without `--sweep` it prints a Markdown table of what each method claims, what the ledger says and what the attacks
reached; then, for methods that protect whole clients, which share of the claim a hundred thousand trials reach. It ends
with exit code 1 where a sound method's claim is refuted, a paper's false one is not, or a share is too small.

With `--sweep` every sound method is audited a hundred times at each epsilon, each time with another seed: conformance,
and a small attack on the mechanism for all three observers. It prints a line for each method and epsilon and ends with
exit code 1 where one of the audits raised an alarm. What is done is kept in `build/`, by the digest of the package's
code, so that a sweep that was stopped goes on where it was.

With words, only methods are audited whose name has one of them. Two are audited at once.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from helpers import ALL

import sordino
from sordino.auditing.suite import audit
from sordino.experiment.config import Experiment
from sordino.methods import find
from sordino.privacy.views import VIEWS

EPSILONS = (1.0, 2.0, 8.0)
TRIALS = 20_000
CLIENTS, ROUNDS = 10, 4
SHARES = {1.0: 0.85, 2.0: 0.93, 8.0: 0.95}
"""Of the claim, what a hundred thousand trials must reach in the mean over some seeds: a single bound of epsilon 1
moves by three hundredths from seed to seed."""
MANY, SEEDS = 100_000, 8
AUDITS, FEW = 100, 2000
"""Of each method at each epsilon in a sweep, and the trials of each."""
BLOCK = 5
"""Audits that are handed to a process at once."""
Case = tuple[str, str, float]


@dataclass(frozen=True)
class Line:
    """One method at one epsilon."""

    name: str
    variant: str
    epsilon: float
    claimed: dict[str, float]
    true: dict[str, float]
    reached: dict[str, float]
    refuted: dict[str, bool]
    why: list[str]
    seconds: float


def options(name: str, variant: str, epsilon: float) -> dict[str, Any]:
    """The experiment that is audited: small, on the built-in digits."""
    partition = "iid" if find(name).unit == "record" else "dirichlet:1"
    return {
        "method": name,
        "variant": variant,
        "clients": CLIENTS,
        "rounds": ROUNDS,
        "epsilon": epsilon,
        "delta": 1e-5,
        "partition": partition,
        "model": "logistic",
        "set": {"epochs": 1, "batch": 80},
    }


def line(case: Case) -> Line:
    """Audit one case: all tiers at the middle epsilon, the mechanism at the others."""
    name, variant, epsilon = case
    tiers = (0, 1, 2, 3) if epsilon == EPSILONS[1] else (0, 1)
    report = audit(Experiment.make(options(*case)), TRIALS, tiers)
    attack = {view: one.best.name for view, one in report.views.items() if one.best is not None}
    why = [finding.sentence for finding in report.findings if finding.refuted]
    return Line(
        name,
        variant,
        epsilon,
        {view: one.claimed for view, one in report.views.items()},
        {view: one.claimed if one.true is None else one.true for view, one in report.views.items()},
        {view: one.bound for view, one in report.views.items()},
        {view: report.refutes(view) for view in VIEWS},
        why or sorted(set(attack.values())),
        report.seconds,
    )


def figures(values: dict[str, float]) -> str:
    """Three figures, one for each observer."""
    return " / ".join("∞" if value == float("inf") else f"{value:.2f}" for value in values.values())


def full_table(cases: Sequence[Case], pool: ProcessPoolExecutor) -> int:
    """Print the table; how many verdicts are wrong."""
    print("| method | variant | claimed (outsider / peer / server) | by the ledger | reached at 95 % | verdict |")
    print("|---|---|---|---|---|---|")
    wrong = 0
    for found in pool.map(line, cases):
        refuted = [view for view, false in found.refuted.items() if false]
        false = [view for view in VIEWS if found.claimed[view] < found.true[view] * (1 - 1e-3)]
        above = any(found.reached[view] > found.claimed[view] for view in VIEWS)
        consistent = "consistent at 99.9 %" if above else "consistent"
        verdict = f"REFUTED: {', '.join(refuted)}" if refuted else consistent
        print(
            f"| {found.name} | {found.variant} | {figures(found.claimed)} | {figures(found.true)} | "
            f"{figures(found.reached)} | {verdict} |",
            flush=True,
        )
        if set(refuted) - set(false) or (found.epsilon == EPSILONS[1] and false and not refuted):
            wrong += 1
            print(f"  WRONG: {found}", file=sys.stderr, flush=True)
    return wrong


def share(case: Case) -> float:
    """Which share of the outsider's claim a hundred thousand trials reach, in the mean over some seeds."""
    found = []
    for seed in range(SEEDS):
        keys = options(*case) | {"clients": 4, "rounds": 2, "seed": seed, "records": 300}
        outsider = audit(Experiment.make(keys), MANY, (1,)).views["outsider"]
        found.append(outsider.bound / outsider.claimed)
    return math.fsum(found) / len(found)


def share_table(cases: Sequence[Case], pool: ProcessPoolExecutor) -> int:
    """Print, for methods that protect whole clients, the shares of their claims; how many are too small."""
    names = list(dict.fromkeys(name for name, variant, _ in cases if variant == "sound"))
    names = [name for name in names if find(name).unit == "client"]
    if not names:
        return 0
    wanted = " / ".join(f"{least:g}" for least in SHARES.values())
    print(f"\n| method | of the claim at epsilon 1 / 2 / 8, with {MANY:,} trials (wanted: {wanted}) |\n|---|---|")
    found = pool.map(share, [(name, "sound", epsilon) for name in names for epsilon in SHARES])
    wrong = 0
    for name in names:
        reached = {epsilon: next(found) for epsilon in SHARES}
        short = [epsilon for epsilon, least in SHARES.items() if reached[epsilon] < least]
        wrong += len(short)
        told = " / ".join(f"{one:.3f}" for one in reached.values())
        print(f"| {name} | {told}{' TOO SMALL' if short else ''} |", flush=True)
    return wrong


@dataclass(frozen=True)
class Swept:
    """One audit of a sweep."""

    name: str
    epsilon: float
    seed: int
    alarms: list[str]
    """What was refuted, and why."""
    reached: float
    """The highest share of a claim that a bound at 95 % came to."""


def swept(work: tuple[str, float, tuple[int, ...]]) -> list[Swept]:
    """Audit a method at one epsilon with some seeds."""
    name, epsilon, seeds = work
    found = []
    for seed in seeds:
        keys = options(name, "sound", epsilon) | {"clients": 4, "rounds": 2, "seed": seed, "records": 160}
        report = audit(Experiment.make(keys), FEW, (0, 1))
        alarms = [finding.sentence for finding in report.findings if finding.refuted]
        alarms += [f"{view}: {one.best}" for view, one in report.views.items() if one.refuted]
        shares = [one.bound / one.claimed for one in report.views.values() if 0 < one.claimed < math.inf]
        found.append(Swept(name, epsilon, seed, alarms, max(shares, default=0.0)))
    return found


def kept() -> Path:
    """Where a sweep of this code keeps what it has done."""
    made = hashlib.sha256()
    for file in sorted(Path(sordino.__file__).parent.rglob("*.py")):
        made.update(file.read_bytes())
    return Path(__file__).resolve().parent.parent / "build" / f"sweep-{made.hexdigest()[:16]}.jsonl"


def sweep(cases: Sequence[Case], pool: ProcessPoolExecutor) -> int:
    """Audit every sound method a hundred times at each epsilon; how many audits raised an alarm."""
    place = kept()
    place.parent.mkdir(exist_ok=True)
    done = [Swept(**json.loads(text)) for text in place.read_text().splitlines()] if place.exists() else []
    known = {(one.name, one.epsilon, one.seed) for one in done}
    sound = [(name, epsilon) for name, variant, epsilon in cases if variant == "sound"]
    work = list(_blocks(sound, known))
    total, begun, made = AUDITS * len(sound), time.monotonic(), 0
    with place.open("a") as file:
        for found in pool.map(swept, work):
            done += found
            made += len(found)
            file.writelines(json.dumps(asdict(one)) + "\n" for one in found)
            file.flush()
            left = (time.monotonic() - begun) / made * (sum(len(seeds) for _, _, seeds in work) - made)
            print(f"\r{total - sum(len(s) for _, _, s in work) + made} of {total} audits, ", end="", file=sys.stderr)
            print(f"{left / 60:.0f} minutes left  ", end="", file=sys.stderr, flush=True)
    print(f"\n{place}", file=sys.stderr)
    return _told(sound, done)


def _blocks(
    sound: Sequence[tuple[str, float]], known: set[tuple[str, float, int]]
) -> Iterator[tuple[str, float, tuple[int, ...]]]:
    """What is still to do, a few seeds at a time, all methods in turn."""
    for begin in range(0, AUDITS, BLOCK):
        for name, epsilon in sound:
            seeds = tuple(s for s in range(begin, min(begin + BLOCK, AUDITS)) if (name, epsilon, s) not in known)
            if seeds:
                yield name, epsilon, seeds


def _told(sound: Sequence[tuple[str, float]], done: Sequence[Swept]) -> int:
    """Print what a sweep found; how many audits raised an alarm."""
    print("| method | epsilon | audits | alarms | highest bound at 95 % / claim |\n|---|---|---|---|---|")
    alarms = 0
    for name, epsilon in sound:
        mine = [one for one in done if (one.name, one.epsilon) == (name, epsilon)]
        raised = [one for one in mine if one.alarms]
        alarms += len(raised)
        highest = max((one.reached for one in mine), default=0.0)
        print(f"| {name} | {epsilon:g} | {len(mine)} | {len(raised)} | {highest:.2f} |")
        for one in raised:
            print(f"  ALARM: {one}", file=sys.stderr)
    print(f"\n{len(done)} audits, {alarms} alarms")
    return alarms


def main() -> int:
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    unknown = [word for word in sys.argv[1:] if word.startswith("--") and word != "--sweep"]
    if unknown:
        print(f"There is no option {unknown[0]}: there is --sweep.", file=sys.stderr)
        return 2
    begun = time.monotonic()
    cases = [(*case, epsilon) for case in ALL for epsilon in EPSILONS if find(case[0])(variant=case[1]).is_private()]
    cases = [case for case in cases if not words or any(word in case[0] for word in words)]
    with ProcessPoolExecutor(2) as pool:
        if "--sweep" in sys.argv:
            return 1 if sweep(cases, pool) else 0
        wrong = full_table(cases, pool)
        print(f"\n{len(cases)} audits, {time.monotonic() - begun:.0f} s, {wrong} with a wrong verdict", file=sys.stderr)
        short = share_table(cases, pool)
    print(f"\n{time.monotonic() - begun:.0f} s in all, {short} shares that are too small", file=sys.stderr)
    return 1 if wrong or short else 0


if __name__ == "__main__":
    sys.exit(main())
