"""Recalibration against scipy's minimisers, at its limits and on records of other clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax

from sordino.tasks import Classification
from sordino.tasks.recalibration import OFFSETS, SLOPE


def said_of(records: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities (records, classes) of a model that knows something, and targets."""
    random = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, classes, (records,), generator=random)
    logits = 2 * torch.randn(records, classes, generator=random)
    logits[torch.arange(records), targets] += 1.5
    return torch.log_softmax(logits, dim=1), targets


def loss(said: torch.Tensor, targets: torch.Tensor, power: float, offsets: torch.Tensor) -> float:
    """Mean log loss of probabilities after recalibration."""
    task = Classification.numbered(said.shape[1])
    return -float(task.likelihoods(task.sharpen(said.double(), power, offsets), targets).mean())


@pytest.mark.parametrize(("records", "classes"), [(1, 2), (30, 2), (4, 5), (60, 5), (500, 10)])
def test_slope_and_offsets_are_the_bottom_of_the_objective(records: int, classes: int) -> None:
    said, targets = said_of(records, classes)
    logs, right = said.double().numpy(), targets.numpy()

    def objective(found: np.ndarray) -> float:
        likelihoods = log_softmax(found[0] * logs + found[1:], axis=1)[np.arange(records), right]
        return float(-likelihoods.sum() + (3 * (found[0] - 1) ** 2 + 0.6 * (found[1:] ** 2).sum()) / 2)

    best = minimize(objective, np.zeros(1 + classes), method="BFGS", options={"gtol": 1e-7})
    power, offsets = Classification.numbered(classes).recalibrate(said, targets)
    assert power == pytest.approx(best.x[0], abs=1e-4)
    assert offsets.tolist() == pytest.approx(best.x[1:].tolist(), abs=1e-4)
    assert objective(np.array([power, *offsets.tolist()])) <= best.fun + 1e-9


@pytest.mark.parametrize("records", [3, 40])
def test_two_classes_are_a_slope_and_an_intercept_of_the_logit(records: int) -> None:
    """With the penalty (3 (a - 1)^2 + 0.3 b^2) / 2, as it was measured."""
    said, targets = said_of(records, 2, seed=5)
    logits, signs = (said[:, 1] - said[:, 0]).double().numpy(), 2 * targets.numpy() - 1

    def objective(found: np.ndarray) -> float:
        slope, intercept = found
        losses = np.logaddexp(0, -signs * (slope * logits + intercept))
        return float(losses.sum() + (3 * (slope - 1) ** 2 + 0.3 * intercept**2) / 2)

    slope, intercept = minimize(objective, np.zeros(2), method="BFGS", options={"gtol": 1e-8}).x
    power, offsets = Classification.numbered(2).recalibrate(said, targets)
    assert power == pytest.approx(slope, abs=1e-5)
    assert float(offsets[1] - offsets[0]) == pytest.approx(intercept, abs=1e-5)


def test_without_records_nothing_is_changed() -> None:
    power, offsets = Classification.numbered(4).recalibrate(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    assert power == 1
    assert offsets.tolist() == [0] * 4


def test_the_fewer_the_records_the_less_is_changed() -> None:
    """Always wrong with odds of nine to one: one record moves the logit less than ten do, and those less than forty."""
    found = []
    for records in (0, 1, 10, 40):
        said = torch.log(torch.tensor([[0.9, 0.1]])).repeat(records, 1)
        power, offsets = Classification.numbered(2).recalibrate(said, torch.ones(records, dtype=torch.int64))
        found.append(float(power * np.log(1 / 9) + offsets[1] - offsets[0]))
    assert found[0] == pytest.approx(np.log(1 / 9))
    assert found[0] < found[1] < found[2] < found[3]


def test_records_of_another_kind_are_predicted_better() -> None:
    """A model that is three times too sure and has met other shares of the classes: 200 records repair it for 2,000."""
    task, random = Classification.numbered(3), torch.Generator().manual_seed(1)
    logits = torch.randn(2200, 3, generator=random)
    truth = torch.softmax(logits + torch.tensor([1.0, 0.0, -1.5]), dim=1)
    targets = torch.multinomial(truth, 1, generator=random).squeeze(1)
    said = torch.log_softmax(3 * logits, dim=1)
    power, offsets = task.recalibrate(said[:200], targets[:200])
    best, known = -float(task.likelihoods(truth[200:].log(), targets[200:]).mean()), slice(200, None)
    assert power == pytest.approx(1 / 3, abs=0.1)
    assert loss(said[known], targets[known], 1.0, torch.zeros(3)) > best + 0.3
    assert loss(said[known], targets[known], power, offsets) < best + 0.02


HARD = {
    "one label": (said_of(20, 3)[0], torch.zeros(20, dtype=torch.int64)),
    "one record": said_of(1, 3),
    "equal records": (torch.full((9, 3), 1 / 3).log(), torch.arange(9) % 3),
    "very sure and wrong": (torch.log_softmax(torch.tensor([[1e4, 0.0, -1e4]]).repeat(8, 1), 1), torch.arange(8) % 3),
    "nearly infinite": (torch.tensor([[0.0, -1e30, -3e38]]).repeat(5, 1), torch.arange(5) % 3),
    "many classes": said_of(3, 300),
}


@pytest.mark.parametrize("case", HARD)
def test_hard_records_are_fitted_too(case: str) -> None:
    """Whatever the records are, the fit is finite, and no worse in its objective than no change."""
    said, targets = HARD[case]
    power, offsets = Classification.numbered(said.shape[1]).recalibrate(said, targets)
    assert np.isfinite(power)
    assert offsets.isfinite().all()
    penalty = (SLOPE * (power - 1) ** 2 + OFFSETS * float((offsets.double() ** 2).sum())) / 2
    unchanged = loss(said, targets, 1.0, torch.zeros(said.shape[1]))
    assert loss(said, targets, power, offsets) + penalty / len(targets) <= unchanged * (1 + 1e-6)


@pytest.mark.parametrize("spoiled", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_left_as_it_is(spoiled: float) -> None:
    said, targets = said_of(10, 3)
    said[4, 1] = spoiled
    power, offsets = Classification.numbered(3).recalibrate(said, targets)
    assert power == 1
    assert offsets.tolist() == [0] * 3
