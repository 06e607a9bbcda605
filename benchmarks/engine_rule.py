"""What the rule of `sordino.simulator.step_cost` loses against the better of both ways, over a grid of networks.

    python benchmarks/engine_rule.py          # measured against ruled, for each network, optimizer, batch and stack
    python benchmarks/engine_rule.py --fit    # the same, then the constants that would fit these measurements best

Local epochs of SGD and Adam are measured stacked and one by one, with one thread, in the processor's time, so that a
busy machine does little harm; then uncompiled record-level steps, which the rule for compiling goes by. A loss of 1.05
means that what the rule chose takes 5 % longer than what it did not choose.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn
from torch.func import vmap

from sordino import models
from sordino.learning.descent import Descent
from sordino.learning.network import Batch, Learner, Records
from sordino.learning.parameters import flatten
from sordino.learning.per_record import Bookkeeper
from sordino.privacy.clipping import clipped_sum
from sordino.simulator.step_cost import ENGINE_COSTS, Size, eager_seconds
from sordino.tasks import Classification

Optimizer = Literal["sgd", "adam"]
INPUTS, CLASSES, STEPS = (16, 64, 784, 3072), 10, 4
HIDDEN: tuple[tuple[int, ...], ...] = ((), (32,), (256,), (1024,), (64, 64, 64))
BATCHES, STACKS = (10, 50, 250), (2, 5, 25)
OPTIMIZERS: tuple[Optimizer, ...] = ("sgd", "adam")
EAGER: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("logistic", (64,)),
    ("mlp", (1, 28, 28)),
    ("lenet", (1, 28, 28)),
    ("cnn", (1, 28, 28)),
)


@dataclass(frozen=True)
class Point:
    """One network in one setting, and what a step takes for each client, in seconds."""

    size: Size
    chain: bool
    optimizer: Optimizer
    stack: int
    alone: float
    stacked: float

    @property
    def ruled(self) -> tuple[float, float]:
        """The same by the rule."""
        costs = ENGINE_COSTS[self.chain, self.optimizer == "sgd"]
        return costs.alone.seconds(self.size), costs.stacked.seconds(self.size, self.stack)

    @property
    def loss(self) -> float:
        """How much longer the chosen way takes than the better one, as a factor."""
        alone, stacked = self.ruled
        return (self.stacked if stacked < alone else self.alone) / min(self.stacked, self.alone)

    def line(self) -> str:
        alone, stacked = self.ruled
        return (
            f"{'chain' if self.chain else 'other':6} {self.size.numbers:5} numbers {self.size.layers:2} layers "
            f"{self.size.parameters:9,} parameters {self.optimizer:5} batch {self.size.batch:3} stack {self.stack:2}: "
            f"alone {1e6 * self.alone:8,.0f} (rule {1e6 * alone:8,.0f}), stacked {1e6 * self.stacked:8,.0f} "
            f"(rule {1e6 * stacked:8,.0f}) microseconds, loss {self.loss:.2f}"
        )


def networks() -> Iterator[tuple[nn.Module, int]]:
    """Chains of linear layers, and networks that must be differentiated under `vmap`; with the numbers in a record."""
    for numbers, hidden, normed in itertools.product(INPUTS, HIDDEN, (False, True)):
        if normed and (not hidden or numbers in (64, 3072)):
            continue
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in itertools.pairwise((numbers, *hidden)):
            layers += [nn.Linear(before, after), *((nn.LayerNorm(after), nn.GELU()) if normed else (nn.ReLU(),))]
        yield nn.Sequential(*layers, nn.Linear((numbers, *hidden)[-1], CLASSES)), numbers


def quickest(action: Callable[[], object], times: int = 4, seconds: float = 0.5) -> float:
    """The processor's time for the fastest of several runs, after one that warms up."""
    action()
    found: list[float] = []
    while len(found) < times and sum(found) < seconds:
        begin = time.process_time()
        action()
        found.append(time.process_time() - begin)
    return min(found)


def measured(module: nn.Module, numbers: int, batch: int, stack: int, optimizer: Optimizer) -> Point:
    learner, flat = Learner(module, Classification.numbered(10)), flatten(module)
    x, y = torch.randn(stack, batch * STEPS, numbers), torch.randint(0, CLASSES, (stack, batch * STEPS))
    begun, seeds = flat.expand(stack, -1).clone(), torch.arange(stack)

    def epoch(stacked: bool, flat: Tensor, x: Tensor, y: Tensor, seed: Tensor | int) -> Tensor:
        return Descent(Records(x, y, learner, seed, None, stacked=stacked), optimizer, 0.01, batch).epoch(flat)

    together = vmap(partial(epoch, True))
    return Point(
        size=Size.of(module, (numbers,), batch),
        chain=learner.chain is not None,
        optimizer=optimizer,
        stack=stack,
        alone=quickest(lambda: epoch(False, flat, x[0], y[0], 0)) / STEPS,
        stacked=quickest(lambda: together(begun, x, y, seeds)) / (STEPS * stack),
    )


def fit(points: Sequence[Point]) -> None:
    """Print the constants of `ENGINE_COSTS` that fit best, in proportion and none below zero."""
    for chain, plain in ENGINE_COSTS:
        chosen = [point for point in points if (point.chain, point.optimizer == "sgd") == (chain, plain)]
        for name in ("alone", "stacked"):
            seconds = np.array([getattr(point, name) for point in chosen])
            rows = [_row(point.size, point.stack if name == "stacked" else 1) for point in chosen]
            found = nnls(np.array(rows) / seconds[:, None], np.ones(len(rows)))[0]
            print(f"  chain {chain}, plain {plain}, {name:8} Cost({', '.join(f'{value:.2g}' for value in found)})")


def _row(size: Size, clients: int) -> list[float]:
    each = size.batch * size.parameters, size.parameters, size.batch * size.numbers
    return [1 / clients, size.layers / clients, *map(float, each)]


def eager() -> None:
    """Print what uncompiled record-level steps take, measured and by the rule."""
    for (name, shape), batch in itertools.product(EAGER, (16, 64, 256)):
        module = models.build(name, shape, CLASSES, **({"dropout": False} if name == "cnn" else {}))
        keeper, flat = Bookkeeper(Learner(module, Classification.numbered(10))), flatten(module)
        y = torch.zeros(batch, dtype=torch.int64)
        records = Batch(torch.rand(batch, *shape), y, y, None)

        def step(keeper: Bookkeeper = keeper, flat: Tensor = flat, records: Batch = records) -> Tensor:
            return clipped_sum(keeper.book(flat, records), torch.ones(1))

        ruled = eager_seconds(module, shape, batch)
        print(f"record level: {name:8} batch {batch:3}: {1e3 * quickest(step):8.2f} ms (rule {1e3 * ruled:8.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true", help="print the constants that fit best")
    parser.add_argument("--part", type=int, default=1, help="measure only one of so many points of the grid")
    chosen = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    points = []
    grid = itertools.product(networks(), BATCHES, STACKS, OPTIMIZERS)
    for (module, numbers), batch, stack, optimizer in itertools.islice(grid, 0, None, chosen.part):
        points.append(measured(module, numbers, batch, stack, optimizer))
        print(points[-1].line(), flush=True)
    eager()
    losses = [point.loss for point in points]
    print(
        f"{len(points)} points: loss of the rule {statistics.mean(losses):.3f} on average, at most {max(losses):.2f}; "
        f"always stacked {statistics.mean(p.stacked / min(p.stacked, p.alone) for p in points):.3f}, "
        f"always one by one {statistics.mean(p.alone / min(p.stacked, p.alone) for p in points):.3f}"
    )
    if chosen.fit:
        fit(points)


if __name__ == "__main__":
    main()
