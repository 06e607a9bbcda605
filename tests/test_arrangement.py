"""Networks as they run fastest: the same function, the same gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sordino import models
from sordino.learning.network import Batch, Learner
from sordino.learning.parameters import flatten
from sordino.models.arrangement import ChannelsLast, arrange
from sordino.tasks import Classification

ARRANGED = {"lenet": (1, 28, 28), "cnn-cifar": (3, 32, 32), "cnn-emnist": (1, 28, 28), "cnn-mnist-pacdp": (1, 28, 28)}


@pytest.mark.parametrize(("name", "shape"), ARRANGED.items())
def test_an_arranged_network_is_the_same_function(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module = models.build(name, shape, 10).double().eval()
    quick = arrange(module)
    assert isinstance(quick[0], ChannelsLast)
    x, y = torch.randn(6, *shape, dtype=torch.float64), torch.randint(0, 10, (6,))
    x[0] = 0  # ties everywhere: the largest of equal values must be the same one
    assert torch.allclose(quick(x), module(x), atol=1e-12)
    parameters = list(module.parameters())
    wanted = torch.autograd.grad(nn.functional.cross_entropy(module(x), y), parameters)
    found = torch.autograd.grad(nn.functional.cross_entropy(quick(x), y), parameters)
    for one, other in zip(wanted, found, strict=True):
        assert torch.allclose(one, other, atol=1e-12)
    learner = Learner(module, Classification.numbered(10))
    batch = Batch(x, y, torch.arange(6), None)
    assert torch.allclose(learner.gradient(flatten(module), batch), torch.cat([g.flatten() for g in wanted]))


def test_a_rectifier_comes_behind_the_pooling_that_follows_it() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(2, 2))
    kinds = [type(layer).__name__ for layer in arrange(module)]
    assert kinds == ["ChannelsLast", "Conv2d", "MaxPool2d", "ReLU", "ReLU", "Flatten", "Linear"]


class Own(nn.Sequential):
    """A network that may look at its layers by number."""


@pytest.mark.parametrize(
    "module",
    [
        models.build("mlp", (1, 8, 8), 10),
        models.build("resnet9", (3, 32, 32), 10),
        Own(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2)),
    ],
    ids=["no convolution", "residual", "own class", "group norm"],
)
def test_other_networks_are_left_as_they_are(module: nn.Module) -> None:
    assert arrange(module) is module
