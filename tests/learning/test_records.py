"""Local training: gradients, optimizers, batches; for one client and for stacked ones."""

import math

import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.nn import functional

from sordino.learning.descent import Descent, Tether
from sordino.learning.network import Batch, Learner, Records, scramble
from sordino.learning.parameters import Layout, flatten
from sordino.tasks import Classification


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def records(count: int, seed: int = 1, learner: Learner | None = None) -> Records:
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, 6, generator=generator)
    y = torch.randint(0, 3, (count,), generator=generator)
    return Records(x, y, learner or Learner(network(), Classification.numbered(10)), seed)


def stacked(parts: list[Records]) -> tuple[torch.Tensor, ...]:
    longest = max(len(part.y) for part in parts)
    x = torch.stack([functional.pad(part.x, (0, 0, 0, longest - len(part.y))) for part in parts])
    y = torch.stack([functional.pad(part.y, (0, longest - len(part.y))) for part in parts])
    valid = torch.stack([(torch.arange(longest) < len(part.y)).float() for part in parts])
    return x, y, valid, torch.tensor([part.seed for part in parts])


def test_layout_names_views_of_the_flat_vector() -> None:
    module = network()
    layout, flat = Layout.of(module), flatten(module)
    assert layout.size == 6 * 5 + 5 + 5 * 3 + 3
    for name, parameter in module.named_parameters():
        assert torch.equal(layout.named(flat)[name], parameter)
    layout.named(flat)["3.bias"].fill_(7.0)
    assert flat[-3:].tolist() == [7.0, 7.0, 7.0]


def test_gradient_is_autograds() -> None:
    data = records(9)
    flat = flatten(data.learner.module)
    batch = next(iter(data.batches(9)))
    wanted = flat.clone().requires_grad_()
    functional.cross_entropy(data.learner.logits(wanted, batch.x), batch.y).backward()
    assert torch.allclose(data.gradient(flat, batch), wanted.grad, atol=1e-7)


@pytest.mark.parametrize("size", [1, 4, 7, 100])
def test_an_epoch_sees_every_record_once(size: int) -> None:
    data = records(23)
    first = torch.cat([batch.index for batch in data.batches(size)])
    second = torch.cat([batch.index for batch in data.batches(size)])
    assert sorted(first.tolist()) == list(range(23))
    assert sorted(second.tolist()) == list(range(23))
    assert first.tolist() != second.tolist()


def test_the_order_depends_on_the_seed_alone() -> None:
    orders = {tuple(next(iter(records(12, seed).batches(12))).index.tolist()) for seed in range(50)}
    assert len(orders) == 50
    assert torch.equal(next(iter(records(12, 5).batches(12))).index, next(iter(records(12, 5).batches(12))).index)


def test_scrambled_numbers_are_distinct_and_even() -> None:
    mixed = scramble(torch.arange(100_000))
    assert mixed.min() >= 0
    assert len(mixed.unique()) == 100_000
    upper_half = (mixed > 2**62).double().mean()
    assert abs(upper_half - 0.5) < 0.01  # six standard deviations


@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.0), ("sgd", 0.5), ("adam", 0.0)])
def test_descent_is_torchs_optimizer(optimizer: str, momentum: float) -> None:
    data = records(20)
    flat = flatten(data.learner.module)
    descent = Descent(data, optimizer, 0.05, 8, momentum)
    ours = descent.epoch(descent.epoch(flat))

    wanted = flat.clone().requires_grad_()
    chosen = torch.optim.Adam([wanted], 0.05) if optimizer == "adam" else torch.optim.SGD([wanted], 0.05, momentum)
    again = records(20)
    for _ in range(2):
        for batch in again.batches(8):
            chosen.zero_grad()
            functional.cross_entropy(again.learner.logits(wanted, batch.x), batch.y).backward()
            chosen.step()
    assert torch.allclose(ours, wanted, atol=2e-6)
    assert torch.equal(flat, flatten(network())), "the start is left as it was"


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("tethered", [False, True])
@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.0), ("sgd", 0.5), ("adam", 0.0)])
def test_stacked_clients_of_uneven_size_train_as_they_would_alone(
    optimizer: str, momentum: float, tethered: bool, few: bool
) -> None:
    learner = Learner(network(), Classification.numbered(10))
    flat = flatten(learner.module)
    mask = ((torch.arange(len(flat)) % 3 > 0) != few).float()
    parts = [records(count, seed, learner) for seed, count in enumerate((5, 17, 1, 16))]
    tether = Tether(flat, mask, lambda distance: 0.1 * torch.sign(distance - 0.2))
    pull = tether if tethered else lambda model: 0.1 * (model - flat)

    def train(data: Records) -> tuple[torch.Tensor, torch.Tensor]:
        descent = Descent(data, optimizer, 0.05, 8, momentum)
        model = descent.epoch(descent.epoch(flat, mask=mask, pull=pull), mask=mask, pull=pull)
        model = descent.epoch(model)
        return model, data.fisher(model)

    alone = [train(part) for part in parts]
    together = vmap(lambda x, y, valid, seed: train(Records(x, y, learner, seed, valid, stacked=True)))(*stacked(parts))
    for place, (model, fisher) in enumerate(alone):
        assert torch.allclose(together[0][place], model, atol=1e-5)
        assert torch.allclose(together[1][place], fisher, atol=1e-5)


def uphill(model: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return model + 0.3 * gradient / gradient.norm()


def test_a_probe_moves_the_point_at_which_gradients_are_taken() -> None:
    data = records(9)
    flat = flatten(data.learner.module)
    ours = Descent(data, "sgd", 0.5, 9).epoch(flat, probe=uphill)

    def gradient(at: torch.Tensor) -> torch.Tensor:
        at = at.clone().requires_grad_()
        functional.cross_entropy(data.learner.logits(at, data.x), data.y).backward()
        return at.grad

    assert torch.allclose(ours, flat - 0.5 * gradient(uphill(flat, gradient(flat))), atol=1e-6)
    assert not torch.allclose(ours, flat - 0.5 * gradient(flat), atol=1e-4)


@pytest.mark.parametrize("few", [False, True])
def test_stacked_clients_probe_as_they_would_alone(few: bool) -> None:
    learner = Learner(network(), Classification.numbered(10))
    flat = flatten(learner.module)
    mask = ((torch.arange(len(flat)) % 3 > 0) != few).float()
    parts = [records(count, seed, learner) for seed, count in enumerate((5, 17, 1, 16))]

    def train(data: Records) -> torch.Tensor:
        descent = Descent(data, "sgd", 0.05, 8)
        return descent.epoch(descent.epoch(flat, probe=uphill), mask=mask, probe=uphill)

    together = vmap(lambda x, y, valid, seed: train(Records(x, y, learner, seed, valid, stacked=True)))(*stacked(parts))
    for place, part in enumerate(parts):
        assert torch.allclose(together[place], train(part), atol=1e-5)


def test_masked_entries_do_not_move() -> None:
    data = records(10)
    flat = flatten(data.learner.module)
    mask = torch.zeros_like(flat)
    mask[:4] = 1
    for optimizer in ("sgd", "adam"):
        moved = Descent(data, optimizer, 0.1, 4).epoch(flat, mask=mask) != flat
        assert moved.tolist() == (mask > 0).tolist()


def test_fisher_is_the_mean_of_squared_gradients() -> None:
    data = records(7)
    flat = flatten(data.learner.module)
    total = torch.zeros_like(flat)
    for place in range(7):
        one = Batch(data.x[place : place + 1], data.y[place : place + 1], torch.tensor([place]), None)
        total += data.learner.gradient(flat, one) ** 2
    assert torch.allclose(data.fisher(flat, chunk=3), total / 7, atol=1e-7)


def test_accuracy_by_hand() -> None:
    learner = Learner(nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False)), Classification.numbered(2))
    flat = torch.tensor([1.0, 0.0, 0.0, 1.0])  # the larger coordinate wins
    x = torch.tensor([[2.0, 1.0], [0.0, 3.0], [5.0, 4.0]])
    assert learner.accuracy(flat, x, torch.tensor([0, 1, 1])) == pytest.approx(2 / 3)
    assert math.isnan(learner.accuracy(flat, x[:0], torch.tensor([], dtype=torch.int64)))
    loss, _ = learner.loss_and_score(flat, x[:1], torch.tensor([0]))
    assert loss == pytest.approx(math.log(1 + math.exp(-1)))


def test_a_clients_own_normal_numbers() -> None:
    """Standard normal, other ones for another seed, and the same for one client as for many stacked."""
    drawn = records(5).normals(200_000).double()
    assert abs(float(drawn.mean())) < 5 / math.sqrt(200_000), "five standard errors"
    assert abs(float(drawn.var()) - 1) < 5 * math.sqrt(2 / 200_000)
    quantiles = torch.quantile(drawn[:100_000], torch.tensor([0.025, 0.16, 0.84, 0.975], dtype=torch.float64))
    expected = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor([0.025, 0.16, 0.84, 0.975]))
    assert torch.allclose(quantiles, expected.double(), atol=0.05)
    assert abs(float((drawn[1:] * drawn[:-1]).mean())) < 5 / math.sqrt(200_000), "neighbours are independent"
    other = records(5, seed=2).normals(200_000).double()
    assert abs(float((drawn * other).mean())) < 5 / math.sqrt(200_000)

    learner = Learner(network(), Classification.numbered(10))
    parts = [records(4, seed, learner) for seed in (1, 2)]
    x, y, valid, seeds = stacked(parts)
    together = vmap(lambda x, y, valid, seed: Records(x, y, learner, seed, valid, stacked=True).normals(9))
    found = together(x, y, valid, seeds)
    assert torch.allclose(found, torch.stack([part.normals(9) for part in parts]), atol=1e-6)
