"""The full table: every method, in every variant, at three epsilons, attacked.

    python tests/audits.py [WORD...]

Prints a Markdown table of what each method claims, what the ledger says and what the attacks reached, and ends with
exit code 1 where a sound method's claim is refuted or a paper's false one is not. With words, only methods are audited
whose name has one of them. Two are audited at once.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from helpers import ALL

from sordino.experiment.config import Experiment
from sordino.methods import find
from sordino.privacy.audit.whole import audit
from sordino.privacy.views import VIEWS

EPSILONS = (1.0, 2.0, 8.0)
TRIALS = 20_000
CLIENTS, ROUNDS = 10, 4


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


def line(case: tuple[str, str, float]) -> Line:
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


def main() -> int:
    words = sys.argv[1:]
    begun = time.monotonic()
    cases = [(*case, epsilon) for case in ALL for epsilon in EPSILONS if find(case[0])(variant=case[1]).is_private()]
    cases = [case for case in cases if not words or any(word in case[0] for word in words)]
    print("| method | variant | claimed (outsider / peer / server) | by the ledger | reached at 95 % | verdict |")
    print("|---|---|---|---|---|---|")
    wrong = 0
    with ProcessPoolExecutor(2) as pool:
        for found in pool.map(line, cases):
            refuted = [view for view, false in found.refuted.items() if false]
            false = [view for view in VIEWS if found.claimed[view] < found.true[view] * (1 - 1e-3)]
            verdict = f"REFUTED: {', '.join(refuted)}" if refuted else "consistent"
            print(
                f"| {found.name} | {found.variant} | {figures(found.claimed)} | {figures(found.true)} | "
                f"{figures(found.reached)} | {verdict} |",
                flush=True,
            )
            if set(refuted) - set(false) or (found.epsilon == EPSILONS[1] and false and not refuted):
                wrong += 1
                print(f"  WRONG: {found}", file=sys.stderr, flush=True)
    print(f"\n{len(cases)} audits, {time.monotonic() - begun:.0f} s, {wrong} with a wrong verdict", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
