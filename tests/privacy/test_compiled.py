"""The traced and the compiled sum of clipped gradients against the eager one.

Compiling takes ten seconds and more for each network, so that most is checked on the traced graph, which is what the
compiler is given.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers import otherwise_slow
from torch import Tensor, nn

from sordino import models
from sordino.errors import UserError
from sordino.learning.network import Batch, Learner
from sordino.learning.parameters import flatten
from sordino.learning.per_record import Bookkeeper
from sordino.privacy.clipping import CompiledSum, clipped_sum, compile_sum, trace
from sordino.privacy.gate import SampledGradients
from sordino.privacy.gradients import PrivateRecords, Units
from sordino.privacy.noise import Seeded
from sordino.tasks import Classification
from sordino.util.processes import CAN_FORK

NETWORKS = {
    "mlp": (lambda: models.build("mlp", (1, 8, 8), 10), (1, 8, 8)),
    "lenet": (lambda: models.build("lenet", (1, 28, 28), 10), (1, 28, 28)),
    "group norm, stride and padding": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False),
            nn.GroupNorm(2, 4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64, 10),
        ),
        (3, 8, 8),
    ),
    "many channels, few positions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 32, 4, stride=2, padding=1), nn.Tanh(), nn.Conv2d(32, 40, 4), nn.Flatten(), nn.Linear(40, 10)
        ),
        (3, 8, 8),
    ),
    "layer norm": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.LayerNorm(8), nn.Linear(8, 10, bias=False)),
        (3, 8, 8),
    ),
}
BAD = 1
"""The record of a batch that is not finite, where one is not."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Case:
    """A network, its eager book-keeping, and records."""

    def __init__(self, name: str, layered: bool = False) -> None:
        torch.manual_seed(0)
        make, self.shape = NETWORKS[name]
        self.module = make()
        self.keeper, self.flat = Bookkeeper(Learner(self.module, Classification.numbered(10))), flatten(self.module)
        layers = len(self.keeper.layers)
        self.clip = torch.linspace(0.1, 0.3, layers) if layered else torch.tensor([0.2])
        self.x, self.y = torch.randn(150, *self.shape), torch.randint(0, 10, (150,))

    def trace(self) -> CompiledSum:
        return CompiledSum(trace(self.keeper, (self.flat, self.x[:7], self.y[:7], self.clip.double())), len(self.clip))

    def compile(self) -> CompiledSum:
        return compile_sum(self.module, self.shape, Classification.numbered(10), len(self.clip))

    def eager(self, x: Tensor, y: Tensor) -> Tensor:
        return clipped_sum(self.keeper.book(self.flat, Batch(x, y, y, None)), self.clip)

    def check(self, made: CompiledSum) -> None:
        """Batches of any size give the eager sum, also in pieces; nobody counts more than the threshold."""
        for size in (2, 3, 7, 64, 150):
            x, y = self.x[:size], self.y[:size]
            assert torch.allclose(made(self.flat, x, y, self.clip), self.eager(x, y), atol=2e-6), size
        pieces = zip(self.x.split(40), self.y.split(40), strict=True)
        summed = sum(made(self.flat, x, y, self.clip) for x, y in pieces)
        assert torch.allclose(summed, made(self.flat, self.x, self.y, self.clip), atol=2e-6)
        for i in range(0, 20, 2):
            self.check_threshold(made, self.x[i] * 10.0 ** (i - 5))
            self.check_threshold(made, torch.full_like(self.x[i], 0.1 * i))

    def check_threshold(self, made: CompiledSum, record: Tensor) -> None:
        """Twice the same record: each half of the sum stays below the threshold, or in each layer below its own."""
        twice = made(self.flat, torch.stack([record, record]), self.y[:1].expand(2).clone(), self.clip).double() / 2
        parts = twice.split(self.keeper.learner.layout.layers) if len(self.clip) > 1 else [twice]
        for part, threshold in zip(parts, self.clip.double(), strict=True):
            assert float(part.norm()) <= float(threshold)


@pytest.mark.parametrize(
    ("name", "layered"),
    otherwise_slow(
        [(name, layered) for layered in (False, True) for name in NETWORKS],
        {("mlp", False), ("lenet", False), ("group norm, stride and padding", False)}.__contains__,
    ),
)
def test_traced_it_is_the_eager_sum(name: str, layered: bool) -> None:
    case = Case(name, layered)
    case.check(case.trace())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layered"),
    [("mlp", False), ("mlp", True), ("lenet", False), ("group norm, stride and padding", True)],
)
def test_compiled_it_is_the_eager_sum(name: str, layered: bool) -> None:
    case = Case(name, layered)
    made = case.compile()
    case.check(made)
    check_steps(case, made)


def check_steps(case: Case, made: CompiledSum) -> None:
    """Steps with the compiled sum draw the same coins and noise, for batches of no, one and many records."""
    x = case.x.clone()
    x[BAD] = math.nan
    for count, rate in ((0, 0.5), (1, 1.0), (2, 1.0), (150, 0.3), (150, 1.0)):
        none = torch.zeros(count, dtype=torch.bool)
        eager, quick = (
            PrivateRecords(
                Units(x[:count], case.y[:count]),
                none,
                case.keeper,
                SampledGradients(Seeded(0, "identity", repeats=True), (0, 0), (rate, 1.0, 3), case.clip),
                compiled=made if which else None,
            )
            for which in (False, True)
        )
        for _ in range(3):
            expected = eager.gradient(case.flat)
            assert torch.isfinite(expected).all()
            assert torch.allclose(quick.gradient(case.flat), expected, atol=1e-5)


def test_traced_steps_are_eager_steps() -> None:
    case = Case("mlp")
    check_steps(case, case.trace())


def test_what_it_was_not_compiled_for_stays_eager() -> None:
    made = CompiledSum(lambda *inputs: pytest.fail("not for this"), thresholds=1)
    assert made.fits(2, torch.ones(1))
    assert not made.fits(1, torch.ones(1))
    assert not made.fits(2, torch.ones(3))


def test_networks_that_draw_random_numbers_are_refused() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2))
    with pytest.raises(UserError, match="cannot be compiled here: it draws random numbers"):
        compile_sum(module, (4,), Classification.numbered(2))


@pytest.mark.skipif(not CAN_FORK, reason="processes cannot be forked here")
def test_code_that_the_processor_cannot_run_kills_only_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = os.getpid()

    def deadly(*inputs: Tensor) -> Tensor:
        assert os.getpid() != parent, "compiled code is run in a child first"
        os.kill(os.getpid(), signal.SIGILL)
        return inputs[0]

    monkeypatch.setattr(torch, "compile", lambda *_, **__: deadly)
    with pytest.raises(UserError, match="cannot be compiled here: it was killed by SIGILL"):
        compile_sum(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), (4,), Classification.numbered(2))


@pytest.mark.parametrize(("size", "wrong"), [(13, 1.01), (2, 1.01), (61, 0.0), (0, 1.0)])
@pytest.mark.skipif(not CAN_FORK, reason="processes cannot be forked here")
def test_a_compiler_whose_results_differ_is_not_believed(
    size: int, wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compilers have faults: batches of every size that is compared are looked at."""

    def compiler(graph: Any, **_: Any) -> Any:
        return lambda flat, x, y, clip: graph(flat, x, y, clip) * (wrong if len(x) == size else 1.0)

    monkeypatch.setattr(torch, "compile", compiler)
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    if wrong == 1.0:
        assert compile_sum(module, (4,), Classification.numbered(2)).thresholds == 1
    else:
        with pytest.raises(UserError, match="cannot be compiled here: compiled, its results differ"):
            compile_sum(module, (4,), Classification.numbered(2))


def test_networks_that_look_at_values_are_refused() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x if x.sum() > 0 else 2 * x)

    with pytest.raises(UserError, match="cannot be compiled here"):
        compile_sum(Branching(), (4,), Classification.numbered(2))
