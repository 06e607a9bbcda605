"""Where a round of W3 goes: the processor's time of its parts in one process, and how much of it is not arithmetic.

    python benchmarks/parts.py

W3's round is told beside that of the smallest network, whose arithmetic takes hardly any time: what is left there are
calls. Two processes would share what stands under "answers".
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from workloads import W3, Workload

from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.experiment.run import start
from sordino.federation.execution import Stacked
from sordino.federation.rounds import RoundWatch
from sordino.privacy.ledger import Ledger
from sordino.privacy.mechanism import Floats
from sordino.privacy.release import Update
from sordino.simulator.engine import Engine
from sordino.simulator.memory import Memory
from sordino.store.run_files import RunFiles

ROUNDS = 200
PARTS: dict[str, tuple[type, str]] = {
    "answers": (Engine, "work"),
    "- training": (Stacked, "run"),
    "- bounds": (Update, "bounded"),
    "- noise": (Floats, "noised"),
    "- memory": (Memory, "write"),
    "ledger": (Ledger, "charge"),
    "journal": (RunFiles, "charge"),
}
SMALLEST = replace(W3, shape=(1,), network="logistic")


def measured(workload: Workload) -> dict[str, float]:
    """Milliseconds of the processor in the median round, and for each part those of its median call in all calls."""
    calls: dict[str, list[float]] = {name: [] for name in PARTS}
    ends: list[float] = []

    def timed(function: Callable[..., Any], taken: list[float]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            begun = time.process_time()
            found = function(*arguments, **named)
            taken.append(time.process_time() - begun)
            return found

        return call

    with ExitStack() as patched, tempfile.TemporaryDirectory() as folder:
        for name, (owner, method) in PARTS.items():
            patched.enter_context(mock.patch.object(owner, method, timed(getattr(owner, method), calls[name])))
        keys = workload.keys() | {"rounds": ROUNDS, "store": Path(folder), "workers": 1}
        start(
            prepare(Experiment.make(keys), workload.data()),
            watch=RoundWatch(lambda _: ends.append(time.process_time())),
        )
    rounds = [after - before for before, after in itertools.pairwise(ends)]
    parts = {name: statistics.median(taken) * len(taken) / ROUNDS for name, taken in calls.items()}
    return {name: 1e3 * value for name, value in {"round": statistics.median(rounds), **parts}.items()}


def main() -> None:
    """Print both rounds side by side."""
    whole, smallest = measured(W3), measured(SMALLEST)
    print(f"{'milliseconds a round':24} {'W3':>8} {'smallest network':>18}")
    for name, value in whole.items():
        print(f"{name:24} {value:8.2f} {smallest[name]:18.2f}")


if __name__ == "__main__":
    main()
