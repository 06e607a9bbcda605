"""The task of telling classes apart, against torch's own functions, and refusals of tasks without classes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from sordino.data.dataset import Meaning
from sordino.data.federate import federate
from sordino.data.images import read_digits
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.method import Method
from sordino.methods.acdp_pfsd import ACDPpFSD
from sordino.methods.adadp_cfl import AdaDPCFL
from sordino.methods.pacfl import PACFL
from sordino.methods.pfedsd import PFedSD
from sordino.tasks import Classification, Task, read_task
from sordino.tasks.classification import shares_of

FIVE = Classification.numbered(5)


class Nothing(Classification):
    """A task that has no classes."""

    name = "nothing"
    class_names = Task.class_names


def stacked(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs (3, 7, 5) and targets (3, 7)."""
    random = torch.Generator().manual_seed(seed)
    return 4 * torch.randn(3, 7, 5, generator=random), torch.randint(0, 5, (3, 7), generator=random)


def test_losses_are_cross_entropies() -> None:
    outputs, targets = stacked()
    expected = functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
    torch.testing.assert_close(FIVE.losses(outputs.flatten(0, 1), targets.flatten()), expected)
    torch.testing.assert_close(FIVE.stacked_losses(outputs, targets), expected.reshape(3, 7))
    torch.testing.assert_close(FIVE.summed_loss(outputs[1], targets[1]), expected[7:14].sum())


def test_slopes_are_the_losses_gradients() -> None:
    outputs, targets = stacked()
    leaf = outputs.clone().requires_grad_()
    FIVE.losses(leaf.flatten(0, 1), targets.flatten()).sum().backward()
    torch.testing.assert_close(FIVE.slopes(outputs, targets), leaf.grad)


def test_the_most_probable_class_is_the_prediction() -> None:
    outputs = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]])
    task = Classification(("a", "b", "c"))
    assert task.right(outputs, torch.tensor([1, 2])).tolist() == [True, False]
    said = task.predict(outputs).numpy()
    assert said.sum(axis=1) == pytest.approx([1, 1])
    assert task.tell(said) == ["b", "a"]
    assert task.columns == ("probability_a", "probability_b", "probability_c")
    assert task.count(["b", "", "b"]) == {"a": 0, "b": 2, "c": 0}


def test_a_model_that_overflowed_finds_all_classes_as_likely() -> None:
    outputs = torch.full((4, 2), torch.nan)
    sums = Classification.numbered(2).sums(outputs, torch.tensor([0, 1, 0, 1]), np.array([4]), [np.array([0])])
    found = dict(zip(Classification.metrics, Classification.numbered(2).figures(sums)[0], strict=True))
    assert found["log_loss"] == pytest.approx(np.log(2))


def test_sums_of_no_records_add_nothing() -> None:
    outputs, targets = stacked()
    sums = FIVE.sums(outputs[0], targets[0], np.array([7]), [np.array([0])])
    assert FIVE.no_sums().shape == sums.shape[1:]
    assert not FIVE.no_sums().any()


def test_targets_can_be_moved_and_drawn() -> None:
    targets = torch.tensor([0, 3, 4])
    assert FIVE.shift(targets, 1).tolist() == [1, 4, 0]
    assert FIVE.shift(targets, -1).tolist() == [4, 2, 3]
    drawn = FIVE.draw(1000, np.random.default_rng(0))
    assert drawn.dtype == FIVE.dtype == targets.dtype
    assert sorted(set(drawn.tolist())) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("task", [Classification.of(("well", "ill")), Classification.of(("a", "b"), "a"), FIVE])
def test_a_task_is_read_as_it_was_written(task: Classification) -> None:
    """The keys stand in files of models that earlier versions wrote."""
    assert read_task(task.document()) == task
    assert list(Meaning(task).document()) == ["classes", "positive", "schema"]
    assert Meaning.read(Meaning(task).document()) == Meaning(task)


def test_of_two_classes_the_second_is_looked_for() -> None:
    assert Classification.of(("well", "ill")).positive_name == "ill"
    assert Classification.of(("well", "ill"), "well").positive_name == "well"
    assert Classification.of(("a", "b", "c")).positive_name is None


def test_records_of_more_classes_do_not_fit() -> None:
    assert FIVE.admits(Classification.numbered(3))
    assert FIVE.admits(FIVE)
    assert not FIVE.admits(Classification.numbered(6))


def test_one_class_cannot_be_learned() -> None:
    digits = read_digits()
    alone = federate(replace(digits, y=torch.zeros_like(digits.y), task=Classification.numbered(1)), "iid", 4, 0)
    with pytest.raises(UserError, match="at least 2 classes to tell apart, not 1"):
        prepare(Experiment(data="digits", method="fedavg", clients=4, rounds=1, privacy="none"), alone)


def test_a_task_without_classes_says_so() -> None:
    with pytest.raises(UserError, match=r"^Distillation needs classes, but this task \(nothing\) has none: choose"):
        Nothing(("a", "b")).class_names("Distillation")


@pytest.mark.parametrize("method", [PFedSD(), ACDPpFSD()], ids=["pfedsd", "acdp-pfsd"])
def test_distillation_refuses_a_task_without_classes(method: Method) -> None:
    with pytest.raises(UserError, match="Distillation needs classes"):
        method.check_task(Nothing(("a", "b")))


@pytest.mark.parametrize("method", [PACFL(), AdaDPCFL(variant="paper")], ids=["pacfl", "adadp-cfl"])
def test_clusterings_by_class_refuse_a_task_without_classes(method: Any) -> None:
    asked: Any = SimpleNamespace(
        task=Nothing(("a", "b")), everyone=lambda: [0], features=4, ask=lambda *_: pytest.fail("something was asked")
    )
    with pytest.raises(UserError, match="needs classes"):
        method.check_task(asked.task)
    with pytest.raises(UserError, match="needs classes"):
        method._group(asked, SimpleNamespace(), torch.zeros(3))


def test_a_noisy_share_is_that_of_one_record_at_least() -> None:
    assert torch.allclose(shares_of(torch.tensor([0.5, -0.2, 0.0]), 100), torch.tensor([0.5, 0.01, 0.01]) / 0.52)
