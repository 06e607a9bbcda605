"""Gradients of single records by book-keeping against one backward pass for each record."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from sordino import models
from sordino.errors import UserError
from sordino.learning.network import Batch, Learner, Records
from sordino.learning.parameters import flatten
from sordino.learning.per_record import Bookkeeper
from sordino.tasks import Classification

OWN = {
    "padding, stride and no bias": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 5),
    ),
    "dilation": lambda: nn.Sequential(nn.Conv2d(3, 4, 3, dilation=2), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)),
    "many channels, few positions": lambda: nn.Sequential(
        nn.Conv2d(3, 32, 4, stride=2, padding=1), nn.Tanh(), nn.Conv2d(32, 40, 4), nn.Flatten(), nn.Linear(40, 5)
    ),
    "linear along a sequence": lambda: nn.Sequential(
        nn.Flatten(1, 2), nn.Linear(8, 6), nn.Tanh(), nn.LayerNorm(6), nn.Flatten(), nn.Linear(144, 5)
    ),
    "linear along a short sequence": lambda: nn.Sequential(
        nn.Flatten(2), nn.Linear(64, 40, bias=False), nn.Tanh(), nn.Flatten(), nn.Linear(120, 5)
    ),
    "layer norm": lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.LayerNorm(8), nn.Linear(8, 5, bias=False)),
    "norms without parameters": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4, affine=False), nn.Flatten(), nn.Linear(144, 5)
    ),
}
BUILT = {"lenet": (1, 28, 28), "mlp": (1, 8, 8), "cnn-mnist-pacdp": (1, 28, 28), "cnn-cifar": (3, 32, 32)}


def cases() -> list[tuple[nn.Module, tuple[int, ...], int]]:
    torch.manual_seed(0)
    own = [(make(), (3, 8, 8), 5) for make in OWN.values()]
    return own + [(models.build(name, shape, 10), shape, 10) for name, shape in BUILT.items()]


@pytest.mark.parametrize(("module", "shape", "classes"), cases(), ids=[*OWN, *BUILT])
def test_it_is_one_backward_pass_for_each_record(module: nn.Module, shape: tuple[int, ...], classes: int) -> None:
    module = module.double()
    learner = Learner(module, Classification.numbered(10))
    flat = flatten(module)
    x, y = torch.randn(5, *shape, dtype=torch.float64), torch.randint(0, classes, (5,))
    singles = [Batch(x[i : i + 1], y[i : i + 1], torch.tensor([i]), None) for i in range(5)]
    gradients = torch.stack([learner.gradient(flat, single) for single in singles])

    keeper, batch = Bookkeeper(learner), Batch(x, y, torch.arange(5), None)
    assert torch.allclose(keeper.squares(flat, batch), gradients.square().sum(dim=0), atol=1e-11)
    book = keeper.book(flat, batch)
    by_layer = torch.stack([part.norm(dim=1) for part in gradients.split(learner.layout.layers, dim=1)], dim=1)
    assert torch.allclose(book.layer_norms(), by_layer, rtol=1e-9, atol=1e-12)
    weights = torch.rand(5, dtype=torch.float64)
    assert torch.allclose(book.weighted_sum(weights), weights @ gradients, atol=1e-11)
    each = torch.rand(5, len(learner.layout.layers), dtype=torch.float64)
    spread = each.repeat_interleave(torch.tensor(learner.layout.layers), dim=1)
    assert torch.allclose(book.weighted_sum(each), (spread * gradients).sum(dim=0), atol=1e-11)
    by_tensor = torch.stack([part.norm(dim=1) for part in learner.layout.tensors(gradients)], dim=1)
    assert torch.allclose(book.tensor_norms(), by_tensor, rtol=1e-9, atol=1e-12)
    each = torch.rand(by_tensor.shape, dtype=torch.float64)
    spread = each.repeat_interleave(torch.tensor(learner.layout.sizes), dim=1)
    assert torch.allclose(book.weighted_sum(each), (spread * gradients).sum(dim=0), atol=1e-11)
    assert torch.allclose(book.sum_of_squares(), gradients.square().sum(dim=0), atol=1e-11)


def test_float32_is_within_a_hundred_thousandth() -> None:
    torch.manual_seed(1)
    module = models.build("lenet", (1, 28, 28), 10)
    learner, flat = Learner(module, Classification.numbered(10)), flatten(module)
    x, y = torch.randn(8, 1, 28, 28), torch.randint(0, 10, (8,))
    book = Bookkeeper(learner).book(flat, Batch(x, y, torch.arange(8), None))
    single = [learner.gradient(flat, Batch(x[i : i + 1], y[i : i + 1], y, None)) for i in range(8)]
    assert torch.allclose(book.weighted_sum(torch.ones(8)), torch.stack(single).sum(dim=0), atol=1e-5)
    exact = torch.stack(single).double().norm(dim=1)
    assert torch.allclose(book.layer_norms().double().norm(dim=1), exact, rtol=1e-5)


def test_norms_of_wide_layers_are_added_up_in_double_precision() -> None:
    """A hundred thousand equal numbers added up one after the other in float32 are off by a ten-thousandth."""
    wide = 100_003
    learner = Learner(nn.Sequential(nn.Linear(wide, 2, bias=False)), Classification.numbered(2))
    x, y = torch.full((1, wide), 0.1), torch.tensor([0])
    book = Bookkeeper(learner).book(torch.zeros(2 * wide), Batch(x, y, y, None))
    assert float(book.pages[0].norms()) == pytest.approx(math.sqrt(2 * 0.5**2 * wide * 0.1**2), rel=1e-7)


def scaled() -> nn.Module:
    """A linear layer with a parameter more, as the older kind of weight normalization makes them."""
    layer = nn.Linear(3, 3)
    layer.register_parameter("weight_g", nn.Parameter(torch.ones(3)))
    return layer


def tied() -> nn.Module:
    """Two layers with the same weights."""
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    return module


@pytest.mark.parametrize(
    ("module", "named"),
    [
        (nn.Sequential(nn.Conv1d(3, 4, 3)), "Conv1d"),
        (nn.Sequential(nn.Conv2d(4, 4, 3, groups=2)), "Conv2d"),
        (nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")), "Conv2d"),
        (nn.Sequential(nn.Linear(3, 3), nn.PReLU()), "'1' .PReLU"),
        (nn.Sequential(scaled()), "'0' .Linear"),
        (tied(), "'1' .Linear"),
        (nn.Sequential(nn.LSTM(3, 3)), "LSTM"),
    ],
)
def test_an_unknown_layer_is_refused_by_name(module: nn.Module, named: str) -> None:
    with pytest.raises(UserError, match=named):
        Bookkeeper(Learner(module, Classification.numbered(10)))


def test_a_layer_used_twice_is_refused() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.layer(x))

    module = Twice()
    keeper = Bookkeeper(Learner(module, Classification.numbered(10)))
    batch = Batch(torch.randn(2, 3), torch.tensor([0, 1]), torch.arange(2), None)
    with pytest.raises(UserError, match="twice"):
        keeper.book(flatten(module), batch)


class Rearranged(nn.Module):
    """A linear layer that does not see one row for each record, in one of two ways."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        self.layer, self.transposed = nn.Linear(3, 2), transposed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.transposed:
            return self.layer(x.transpose(0, 1)).sum(dim=0)
        return self.layer(x.flatten(0, 1)).view(len(x), -1, 2).sum(dim=1)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_layer_that_does_not_see_records_as_rows_is_refused(transposed: bool) -> None:
    """Also where a batch has as many records as there are positions."""
    module = Rearranged(transposed)
    batch = Batch(torch.randn(4, 4, 3), torch.tensor([0, 1, 0, 1]), torch.arange(4), None)
    with pytest.raises(UserError, match="'layer' does not see one row for each record"):
        Bookkeeper(Learner(module, Classification.numbered(10))).book(flatten(module), batch)


def test_a_layer_that_is_not_called_is_refused() -> None:
    class Aside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.layer.weight

    module, batch = Aside(), Batch(torch.randn(2, 3), torch.tensor([0, 1]), torch.arange(2), None)
    with pytest.raises(UserError, match="'layer' is not called"):
        Bookkeeper(Learner(module, Classification.numbered(10))).book(flatten(module), batch)


def test_fisher_by_books_is_fisher_by_vmap() -> None:
    torch.manual_seed(2)
    module = models.build("lenet", (1, 28, 28), 10)
    learner, flat = Learner(module, Classification.numbered(10)), flatten(module)
    data = Records(torch.randn(9, 1, 28, 28), torch.randint(0, 10, (9,)), learner, seed=1)
    whole = learner.squared_gradients(flat, Batch(data.x, data.y, data.y, None)) / 9
    assert torch.allclose(data.fisher(flat, chunk=4), whole, atol=1e-6)
