"""W6: rounds of distributed DP-SGD, one sum of records' gradients each, against the same gradient without privacy.

    python benchmarks/gradient_sums.py            # the load of the machine stands in the last line

`dp-fedsgd` at 20 sites of 500 rows with 100 columns, logistic regression of two classes, every record in every round.
A round of Sordino has everything that `sordino.run` does in it, ledger, journal and store included, and is not
evaluated: it is what a long run takes longer than a short one, over the rounds that it has more. Against it stand, in
turns and in one thread, two loops in bare PyTorch that clip and noise nothing. *sites* adds up the full-batch gradients
of one site after the other, as somebody would write it by hand; *pooled* takes the gradient of all rows at once, as if
they lay in one place.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import machine
from torch import nn
from torch.nn import functional

from sordino.data import FederatedData
from sordino.data.dataset import Dealt, Split
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.experiment.run import start
from sordino.tasks import Classification
from sordino.util.processes import single_threaded

SITES, ROWS, COLUMNS, CLASSES = 20, 500, 100, 2
SHORT, LONG = 100, 500
"""Rounds of the two runs whose difference is measured."""
ABOUT = f"{SITES} sites x {ROWS} rows x {COLUMNS} columns, logistic regression, every record in every round"
Seconds = dict[str, float]
"""Seconds by clock: `processor`, `wall`."""


def data() -> FederatedData:
    """Generated records, dealt to sites; each has two for testing."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SITES * ROWS, COLUMNS, generator=generator)
    y = torch.randint(0, CLASSES, (len(x),), generator=generator)
    starts = np.arange(SITES) * ROWS
    train, test = (Split(x, y, starts, np.full(SITES, count)) for count in (ROWS, 2))
    people = Dealt([f"site-{place}" for place in range(SITES)], train, test)
    return FederatedData("generated", people, Classification.numbered(CLASSES), (COLUMNS,), "generated-sites")


def timed(action: Callable[[], Any]) -> Seconds:
    """Seconds that something takes."""
    begun, busy = time.perf_counter(), time.process_time()
    action()
    return {"processor": time.process_time() - busy, "wall": time.perf_counter() - begun}


def seconds_of_a_round(dealt: FederatedData, **keys: Any) -> Seconds:
    """Seconds of one round of Sordino."""
    taken = []
    for rounds in (SHORT, LONG):
        with tempfile.TemporaryDirectory() as folder:
            given: dict[str, Any] = {
                "method": "dp-fedsgd",
                "model": "logistic",
                "rounds": rounds,
                "epsilon": 1.0,
                "workers": 1,  # the processor's time is that of one process
                "evaluate_every": 10**9,
                "store": Path(folder),
            }
            prepared = prepare(Experiment.make(given | keys), dealt)
            taken.append(timed(partial(start, prepared)))
    return {clock: (taken[1][clock] - taken[0][clock]) / (LONG - SHORT) for clock in taken[0]}


def bare_loops(dealt: FederatedData) -> dict[str, Callable[[], None]]:
    """One round of each bare loop."""
    module, train = nn.Linear(COLUMNS, CLASSES), dealt.train
    parts = [train.part(site) for site in range(SITES)]

    def sum_over(records: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        module.zero_grad()
        for x, y in records:
            functional.cross_entropy(module(x), y, reduction="sum").backward()

    return {"sites": lambda: sum_over(parts), "pooled": lambda: sum_over([(train.x, train.y)])}


def repeated(action: Callable[[], None], times: int) -> Seconds:
    """Seconds of one of so many repetitions."""

    def all_of_them() -> None:
        for _ in range(times):
            action()

    return {clock: found / times for clock, found in timed(all_of_them).items()}


def measured(turns: int) -> dict[str, Any]:
    """Seconds of each contender's round by clock, and how many times a bare one a round of Sordino takes: medians."""
    dealt = data()
    loops = bare_loops(dealt)
    found: dict[str, list[Seconds]] = {"sordino": [], **{name: [] for name in loops}}
    with single_threaded():
        for loop in loops.values():
            repeated(loop, 20)
        for _ in range(turns):
            found["sordino"].append(seconds_of_a_round(dealt))
            for name, loop in loops.items():
                found[name].append(repeated(loop, LONG - SHORT))
    ours = found["sordino"]
    return {
        "about": ABOUT,
        "rounds": {
            name: {clock: statistics.median(one[clock] for one in rows) for clock in rows[0]}
            for name, rows in found.items()
        },
        "times": {
            name: {
                clock: statistics.median(a[clock] / b[clock] for a, b in zip(ours, found[name], strict=True))
                for clock in ours[0]
            }
            for name in loops
        },
    }


def show(figures: dict[str, Any]) -> None:
    """Print the figures for people."""
    for name, seconds in figures["rounds"].items():
        times = figures["times"].get(name)
        busy, wall = (1e3 * seconds[clock] for clock in ("processor", "wall"))
        line = f"  {name:8} {busy:6.2f} ms of the processor, {wall:6.2f} by the clock"
        if times is not None:
            line += f": Sordino takes {times['processor']:.2f} and {times['wall']:.2f} times as long"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    figures = measured(chosen.turns)
    if chosen.json:
        print(json.dumps(figures))
        return
    print(f"W6: {figures['about']}")
    show(figures)
    print(f"Load of the machine: {machine()['load']}.")


if __name__ == "__main__":
    main()
