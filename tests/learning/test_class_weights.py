"""Weights of classes: they multiply losses before anything is limited, at every level, and raw counts stay private."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import refused
from sklearn.utils.class_weight import compute_class_weight

import sordino
from sordino.data.images import read_digits
from sordino.errors import UserError
from sordino.learning.network import Batch, Learner, Records
from sordino.learning.vmapped import over_clients
from sordino.privacy.clipping import clipped_sum
from sordino.tasks import Classification

SICK = Classification.of(("healthy", "ill"))
THREE = Classification.of(("a", "b", "c"))


def test_declared_weights_multiply_losses_and_slopes() -> None:
    task = SICK.weighed("healthy:1,ill:9")
    random = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(2, 7, 2, generator=random), torch.randint(0, 2, (2, 7), generator=random)
    wanted = torch.where(targets == 1, 9.0, 1.0)
    plain = SICK.losses(outputs.flatten(0, 1), targets.flatten()).reshape(2, 7)
    torch.testing.assert_close(task.losses(outputs.flatten(0, 1), targets.flatten()).reshape(2, 7), plain * wanted)
    torch.testing.assert_close(task.slopes(outputs, targets), SICK.slopes(outputs, targets) * wanted.unsqueeze(2))
    # What is measured is not weighed.
    torch.testing.assert_close(task.summed_loss(outputs[0], targets[0]), plain[0].sum())
    assert task.document() == SICK.document()


def test_weights_are_read_by_place_or_name() -> None:
    assert SICK.weighed("1, 9") == SICK.weighed("ill:9, healthy:1") != SICK.weighed("9,1")
    assert SICK.weighed("none") is SICK
    for text, why in {
        "balansed": "write balanced, or a weight for each class, as in healthy:1,ill:2",
        "1": "the classes are healthy, ill",
        "1,2,3": "the classes are healthy, ill",
        "ill:1,ill:2": "the classes are healthy, ill",
        "1,0": "each weight must lie between 1e-06 and 1e",
        "1,nan": "each weight must lie between",
    }.items():
        with pytest.raises(UserError, match=why):
            SICK.weighed(text)


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    targets = torch.tensor([0] * 6 + [1] * 3 + [2])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=targets.numpy())
    np.testing.assert_allclose(THREE.balance(targets, torch.ones(10)).numpy(), expected, rtol=1e-6)
    # Padding does not count, nor does a class that the client has not: the mean weight over its records is one.
    padded = torch.cat([targets[:9], torch.zeros(4, dtype=torch.int64)])
    weight = torch.tensor([1.0] * 9 + [0.0] * 4)
    np.testing.assert_allclose(THREE.balance(padded, weight).numpy(), [0.75, 1.5, 0.0], rtol=1e-6)


def test_balanced_gradients_are_those_of_weighted_losses() -> None:
    """Alone and stacked, and each client by its own frequencies."""
    torch.manual_seed(0)
    learner = Learner(torch.nn.Sequential(torch.nn.Linear(4, 2)), SICK)
    x = torch.randn(2, 8, 4)
    y = torch.tensor([[0, 0, 0, 0, 0, 0, 1, 1], [1, 0, 1, 1, 1, 1, 1, 1]])
    flat = torch.randn(learner.layout.size)
    wanted = []
    for mine, labels, weights in zip(x, y, ((8 / 12, 2.0), (4.0, 8 / 14)), strict=True):
        model = flat.clone().requires_grad_()
        losses = SICK.losses(learner.logits(model, mine), labels) * torch.tensor(weights)[labels]
        wanted.append(torch.autograd.grad(losses.mean(), model)[0])
    alone = [
        Records(mine, labels, learner, 0, balanced=True).gradient(flat, Batch(mine, labels, labels, None))
        for mine, labels in zip(x, y, strict=True)
    ]
    torch.testing.assert_close(torch.stack(alone), torch.stack(wanted))

    def one(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return Records(x, y, learner, 0, stacked=True, balanced=True).gradient(flat, Batch(x, y, y, None))

    torch.testing.assert_close(over_clients(one, 2, x, y), torch.stack(wanted))


def test_weighed_records_are_limited_after_they_are_weighed() -> None:
    """However large its weight, no record brings more than the threshold into a sum; one that is short brings more."""
    torch.manual_seed(0)
    learner = Learner(torch.nn.Sequential(torch.nn.Linear(4, 2)), SICK.weighed("1,50"))
    keeper, clip = learner.keeper((4,)), torch.tensor([1.0], dtype=torch.float64)
    flat, x = torch.randn(learner.layout.size), torch.randn(12, 4)
    for label in (0, 1):
        y = torch.full((12,), label)
        for place in range(12):
            (book,) = keeper.books(flat, Batch(x[place : place + 1], y[:1], y[:1], None))
            assert float(clipped_sum(book, clip).norm()) <= 1.0
    small = 0.001 * x[:1]
    sums = []
    for label in (0, 1):
        (book,) = keeper.books(0 * flat, Batch(small, torch.tensor([label]), torch.zeros(1), None))
        sums.append(clipped_sum(book, 100 * clip))
    torch.testing.assert_close(sums[1], -50 * sums[0])


KEYS: dict[str, Any] = {"clients": 4, "rounds": 2, "partition": "iid", "workers": 1, "model": "logistic"}
KEYS["privacy"] = "none"  # noise depends on a run's identity


@pytest.mark.parametrize("method", ["dp-fedavg", "acdp-pfsd", "pfedsd", "fedavg"])
def test_stacked_and_single_clients_agree(method: str, tmp_path: Path) -> None:
    runs = {}
    for engine in ("stacked", "one-by-one"):
        for weight in ("balanced", "none"):
            keys = {**KEYS, "engine": engine, "set": {"epochs": 1, "class_weight": weight}, "store": tmp_path}
            runs[engine, weight] = sordino.load_models(sordino.run(method=method, **keys)["run"], tmp_path)

    def shared(*key: str) -> torch.Tensor:
        return torch.cat([one.reshape(-1) for one in runs[key].personal[0].parameters()])

    torch.testing.assert_close(shared("stacked", "balanced"), shared("one-by-one", "balanced"), rtol=1e-3, atol=1e-4)
    assert not torch.allclose(shared("stacked", "balanced"), shared("stacked", "none"), rtol=1e-3, atol=1e-4)


def test_where_records_are_protected_weights_are_declared_or_counted_with_noise(tmp_path: Path) -> None:
    told = refused("run", "--method=dp-fedavg-record", "--set", "class_weight=balanced", "--store", tmp_path)
    assert "declare the weights, as in --set class_weight=1,9" in told
    assert "dp-fedsgd, which counts labels with noise" in told
    weights, x = ",".join(["1"] * 9 + ["20"]), read_digits().x
    for method in ("dp-fedavg-record", "dp-fedsgd"):
        found = []
        for given in ({}, {"class_weight": weights}):
            keys = {**KEYS, "store": tmp_path, "set": given}
            models = sordino.load_models(sordino.run(method=method, **keys)["run"], tmp_path)
            found.append(int((models.shared[0](x).argmax(1) == 9).sum()))
        assert found[1] > 1.2 * found[0], method  # the last class is called more often
