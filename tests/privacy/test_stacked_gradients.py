"""Noisy gradients of stacked clients are those that each would have taken alone: coins, thresholds, noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from sordino.errors import UserError
from sordino.learning.descent import InPlace
from sordino.learning.network import Learner
from sordino.learning.per_record import Bookkeeper
from sordino.privacy.gate import BareGradients, SampledGradients, StackedGradients
from sordino.privacy.gradients import PrivateRecords, PrivateRows, Stack, Units
from sordino.privacy.integers import Words
from sordino.privacy.mechanism import FLOATS, MECHANISMS, Mechanism
from sordino.privacy.noise import Covered, Seeded
from sordino.tasks import Classification

SIZES = [7, 12, 1]


class Unvalued(Seeded):
    """Names draws without the values that they cover, which differ in their last bits."""

    def words(self, purpose: Sequence[object], clients: Sequence[int], covered: Covered) -> list[Words]:
        return super().words(purpose, clients, Covered(torch.zeros(len(clients), 1), []))


SOURCE = Unvalued(0, "identity", repeats=True)
LEARNER = Learner(nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)), Classification.numbered(3))


class Three:
    """Three clients of different sizes, rates, noise and thresholds, stacked and one by one."""

    def __init__(
        self,
        clips: list[list[float]],
        multipliers: tuple[float, ...] = (0.5, 1.0, 2.0),
        mechanism: Mechanism = FLOATS,
        kind: type[SampledGradients] = SampledGradients,
    ) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = 3 * torch.randn(3, 12, 6, generator=generator)
        self.y = torch.randint(0, 3, (3, 12), generator=generator)
        self.flat = torch.randn(3, LEARNER.layout.size, generator=generator)
        rates = (0.5, 0.9, 1.0)

        def exits() -> list[SampledGradients]:
            return [
                kind(SOURCE, (5, 10 + k), (rates[k], multipliers[k], 2), torch.tensor(clips[k]), mechanism)
                for k in range(3)
            ]

        self.exits, self.others, self.mechanism = exits(), exits(), mechanism

    def stacked(self) -> Tensor:
        """Two noisy gradients of each client, taken together."""
        stack = Stack(self.x, self.y, SIZES, LEARNER, StackedGradients(self.exits, SOURCE, self.mechanism))

        def both(flat: Tensor, figures: dict[str, Tensor]) -> Tensor:
            data = PrivateRows(stack, figures)
            return torch.stack([data.gradient(flat), data.gradient(flat)])

        return vmap(both)(self.flat, stack.figures)

    def alone(self) -> Tensor:
        """The same, one after the other."""
        keeper = Bookkeeper(LEARNER)
        rows = []
        for k, size in enumerate(SIZES):
            x, y = self.x[k, :size], self.y[k, :size]
            data = PrivateRecords(Units(x, y), torch.zeros(size, dtype=torch.bool), keeper, self.others[k])
            rows.append(torch.stack([data.gradient(self.flat[k].clone()) for _ in range(2)]))
        return torch.stack(rows)


@pytest.mark.parametrize("noise", ["float", "integers"])
@pytest.mark.parametrize("clips", [[[0.1], [0.5], [9.0]], [[0.1, 0.2], [0.5, 0.1], [9.0, 3.0]]])
def test_stacked_clients_take_the_gradients_that_they_would_take_alone(clips: list[list[float]], noise: str) -> None:
    three = Three(clips, mechanism=MECHANISMS[noise])  # type: ignore[index]
    found = three.stacked()
    # On the grid of whole numbers a sum that rounds otherwise may land on a neighbour.
    assert torch.allclose(found, three.alone(), atol=1e-6 if noise == "float" else 1e-3)
    assert len(found.reshape(6, -1)[:, 0].unique()) == 6, "every client and every step has its own"


def test_without_noise_nothing_is_clipped() -> None:
    three = Three([[1e-3]] * 3, kind=BareGradients)
    found = three.stacked()
    assert torch.allclose(found, three.alone(), atol=1e-6)
    assert found.norm(dim=2).max() > 1


def test_the_last_gradient_is_refused_for_all() -> None:
    three = Three([[0.1]] * 3)
    three.stacked()
    with pytest.raises(UserError, match="more noisy gradients than the 2"):
        three.stacked()


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30, 1e22])  # the last one's gradient is finite, its norm is not
def test_a_record_that_is_not_finite_spoils_nobodys_sum(bad: float) -> None:
    three = Three([[0.1], [0.5], [9.0]], multipliers=(1e-12,) * 3)
    three.x[1, 3] = bad
    three.x[2, 5] = bad  # padding: the third client has one record
    found = three.stacked()
    assert torch.isfinite(found).all()
    assert torch.allclose(found, three.alone(), atol=1e-6)
    three = Three([[0.1], [0.5], [9.0]], multipliers=(1e-12,) * 3)
    three.flat[0, 0] = bad if bad not in (1e30, 1e22) else math.nan
    assert torch.allclose(three.stacked(), three.alone(), atol=1e-6), "a model that is not finite has no gradient"


def test_a_step_sees_its_clients_figures_and_no_records() -> None:
    three = Three([[0.1], [0.5], [9.0]])
    stack = Stack(three.x, three.y, SIZES, LEARNER, StackedGradients(three.exits, SOURCE))

    def looked(figures: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        data = PrivateRows(stack, figures)
        assert data.steps == 2
        for ask in (data.raw, data.raw_metrics, data.raw_norms, data.judged, data.within, data.projected):
            with pytest.raises(UserError, match="looked at single records"):
                ask(torch.zeros(1))
        return data.clip, data.expected_batch, data.deviation

    clip, batch, deviation = vmap(looked)(stack.figures)
    assert clip.tolist() == pytest.approx([0.1, 0.5, 9.0])
    assert batch.tolist() == pytest.approx([3.5, 10.8, 1.0])
    assert deviation.tolist() == pytest.approx([0.05 / 3.5, 0.5 / 10.8, 18.0])


def test_gradients_of_some_of_the_clients_are_refused() -> None:
    three = Three([[0.1]] * 3)
    stack = Stack(three.x, three.y, SIZES, LEARNER, StackedGradients(three.exits, SOURCE))
    with pytest.raises(UserError, match="some stacked clients alone"):
        stack.gradients(three.flat[:2], torch.arange(2))
    assert [exit.taken for exit in three.exits] == [0, 0, 0]


def test_clients_that_take_unequally_many_gradients_are_not_stacked() -> None:
    exits = [SampledGradients(SOURCE, (0, k), (0.5, 1.0, 2 + k), torch.tensor([1.0])) for k in range(2)]
    with pytest.raises(ValueError, match="equally many"):
        StackedGradients(exits, SOURCE)


@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.0), ("sgd", 0.9), ("adam", 0.0)])
def test_optimizers_of_stacked_clients(optimizer: str, momentum: float) -> None:
    """Under `vmap` an optimizer moves each client as it moves one."""
    start, gradients = torch.randn(3, 5), torch.randn(4, 3, 5)

    def trained(flat: Tensor, mine: Tensor) -> Tensor:
        flat, steps = flat.clone(), InPlace(optimizer, 0.1, momentum)  # type: ignore[arg-type]
        for k in range(4):
            flat = steps.step(flat, mine[k])
        return flat

    together = vmap(trained)(start, gradients.transpose(0, 1))
    alone = torch.stack([trained(start[k], gradients[:, k].contiguous()) for k in range(3)])
    assert torch.allclose(together, alone, atol=1e-6)
    assert not torch.allclose(together, start, atol=1e-2)
