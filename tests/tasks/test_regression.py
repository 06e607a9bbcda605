"""Regression: losses and metrics against other libraries, mixtures of predictive distributions, and what leaves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score
from torch.distributions import Normal

from sordino.data.dataset import Meaning
from sordino.errors import UserError
from sordino.tasks import Regression, read_task
from sordino.tasks.judgement import choose_point, judge
from sordino.tasks.regression import PRIOR, SHIFT, SLOPE, SURE

DAYS = Regression(0.0, 60.0, "days")
"""Scaled by (t - 30) / 10."""


def random(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_targets_are_scaled_by_their_range_and_held_to_it() -> None:
    assert DAYS.scaled(np.array([0.0, 30.0, 45.0, 60.0, 99.0, -5.0])).tolist() == [-3, 0, 1.5, 3, 3, -3]
    assert DAYS.in_unit(np.array([-3.0, 1.5])).tolist() == [0, 45]
    declared = Regression(0.0, 60.0, None, 10.0, 4.0)
    assert declared.scaled(np.array([14.0])).tolist() == [1]
    assert declared.ends == (-2.5, 12.5)
    assert DAYS.parse(["45", "x", "", "inf", " 0 "]).tolist()[0::4] == [1.5, -3]
    assert np.isnan(DAYS.parse(["x", "", "inf"])).all()
    assert DAYS.parse(DAYS.text(np.array([0.1, -2.5], dtype=np.float32))).tolist() == np.float32([0.1, -2.5]).tolist()


def test_a_task_is_read_as_it_was_written() -> None:
    for task in (DAYS, Regression(1.0, 2.0, None, 1.5, 0.1, "huber")):
        assert read_task(task.document()) == task
        assert Meaning.read(Meaning(task).document()).task == task
    assert not DAYS.admits(Regression(0.0, 30.0))
    with pytest.raises(UserError, match=r"range is 3 to 3"):
        Regression(3.0, 3.0).check()


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_slopes_are_the_gradients_of_losses(loss: str) -> None:
    task = Regression(0.0, 60.0, loss=loss)
    outputs = torch.from_numpy(random(0).normal(0, 2, (3, 50, 1))).requires_grad_()
    targets = torch.from_numpy(random(1).uniform(-3, 3, (3, 50)))
    expected = torch.nn.HuberLoss(reduction="none") if loss == "huber" else torch.nn.MSELoss(reduction="none")
    half = 1.0 if loss == "huber" else 0.5
    torch.testing.assert_close(task.losses(outputs, targets), expected(outputs.squeeze(2), targets) * half / 4)
    (gradient,) = torch.autograd.grad(task.stacked_losses(outputs, targets).sum(), outputs)
    torch.testing.assert_close(task.slopes(outputs.detach(), targets), gradient)
    summed = task.losses(outputs, targets)[0].sum()
    torch.testing.assert_close(task.summed_loss(outputs[0], targets[0]), summed)


def test_metrics_are_those_of_scikit_learn_in_the_unit() -> None:
    known, said = random(2).uniform(-2, 2, 70).astype(np.float32), random(3).uniform(-2, 2, 70).astype(np.float32)
    trained = [np.float32([1.0, 0.0]), np.float32([-1.0])]
    outputs = torch.from_numpy(np.stack([said, np.zeros_like(said)], axis=1))
    sums = DAYS.sums(outputs, torch.from_numpy(known), np.array([50, 20]), trained)
    found = DAYS.figures(np.vstack([sums, sums.sum(axis=0, keepdims=True)]))
    for row, part in zip(found, (slice(0, 50), slice(50, 70), slice(0, 70)), strict=True):
        t, p = 10 * known[part].astype(float) + 30, 10 * said[part].astype(float) + 30
        assert row[0] == pytest.approx(r2_score(t, p))
        assert row[1] == pytest.approx(math.sqrt(mean_squared_error(t, p)))
        assert row[2] == pytest.approx(mean_absolute_error(t, p))
        assert row[3] == pytest.approx((np.abs(t - p) <= 10 * SURE).mean())
    assert found[0, 5] == pytest.approx(math.sqrt(mean_squared_error(10 * known[:50], np.full(50, 5.0))), rel=1e-6)
    scores = DAYS.scores(outputs[:50].unsqueeze(0), torch.from_numpy(known[:50]).unsqueeze(0))
    assert scores.tolist() == pytest.approx([found[0, 0]])
    valid = torch.tensor([[1.0] * 40 + [0.0] * 10])
    masked = DAYS.scores(outputs[:50].unsqueeze(0), torch.from_numpy(known[:50]).unsqueeze(0), valid)
    assert masked.tolist() == pytest.approx([r2_score(known[:40], said[:40])])


def test_models_that_overflowed_predict_the_centre_and_equal_targets_have_no_r2() -> None:
    outputs = torch.tensor([[math.nan], [math.inf], [-math.inf]])
    assert DAYS.predict(outputs)[:, 0].tolist() == [30, 60, 0]
    sums = DAYS.sums(outputs, torch.ones(3), np.array([3]), [np.float32([1.0])])
    figures = dict(zip(DAYS.metrics, DAYS.figures(sums)[0], strict=True))
    assert math.isnan(figures["r2"])
    assert math.isnan(figures["coverage"])
    assert figures["rmse"] == pytest.approx(10 * math.sqrt((1 + 4 + 16) / 3))
    assert math.isnan(float(DAYS.scores(outputs, torch.ones(3))))


def test_a_row_of_counts_is_never_longer_than_one_and_tells_the_mean() -> None:
    """It leaves as a sum with a bound of one: a longer row would be cut, and a shorter scale would cost signal."""
    for task in (DAYS, Regression(0.0, 60.0, None, 10.0, 4.0)):
        targets = task.draw(500, random(4))
        rows = task.counts(targets)
        assert float(rows.norm(dim=1).max()) <= 1
        assert float(task.counts(torch.tensor([max(task.ends, key=abs)])).abs()) == 1
        torch.testing.assert_close(task.start(rows.mean(dim=0), 500), targets.mean().reshape(1))
    assert DAYS.start(torch.tensor([5.0]), 10).tolist() == [3.0]  # noise leaves the range, a prediction does not


def test_groups_are_tenths_of_the_range_and_partitions_tenths_of_the_records() -> None:
    assert DAYS.group(np.array([-3.0, -2.41, 2.9, 3.0])).tolist() == [0, 0, 9, 9]
    assert DAYS.groups[0] == "0 to 6"
    skewed = np.float32(random(5).exponential(0.1, 200) - 3)
    groups, count = DAYS.partition(skewed)
    assert np.bincount(groups, minlength=count).tolist() == [20] * 10
    assert groups[skewed.argmin()] == 0
    assert groups[skewed.argmax()] == 9
    moved = DAYS.shift(torch.tensor([0.0, 2.9]), 1)
    assert (moved - torch.tensor([0.0, 2.9])).abs().min() > 1
    assert moved.abs().max() <= 3


def test_mixtures_have_the_moments_of_mixed_normals() -> None:
    said = torch.tensor([[[1.0, math.log(0.5)]], [[-1.0, math.log(2.0)]]], dtype=torch.float64)
    found = DAYS.mix(said, torch.tensor([0.25, 0.75]).log().reshape(-1, 1, 1))
    mean = 0.25 - 0.75
    variance = 0.25 * (0.5 + 1) + 0.75 * (2 + 1) - mean**2
    torch.testing.assert_close(found, torch.tensor([[mean, math.log(variance)]], dtype=torch.float64))
    targets = torch.tensor([0.3], dtype=torch.float64)
    expected = Normal(said[..., 0], (said[..., 1] / 2).exp()).log_prob(targets)
    torch.testing.assert_close(DAYS.likelihoods(said, targets), expected)
    changed = DAYS.sharpen(said, torch.tensor([2.0, 1.0]).reshape(-1, 1, 1), torch.tensor([0.5, math.log(3.0)]))
    torch.testing.assert_close(changed[0], torch.tensor([[2.5, math.log(1.5)]], dtype=torch.float64))


def test_recalibration_minimises_the_penalised_squares() -> None:
    said = torch.from_numpy(random(6).normal(0, 1, 40))
    targets = 0.5 * said + 0.4 + torch.from_numpy(random(7).normal(0, 0.3, 40))
    rows = torch.stack([said, torch.zeros_like(said)], dim=1)
    slope, offsets = DAYS.recalibrate(rows, targets)
    variance = (float((targets - said).square().sum()) + PRIOR) / (40 + PRIOR)

    def objective(values: np.ndarray) -> float:
        errors = (targets - values[0] * said - values[1]).square().sum() / variance
        return float(errors) + SLOPE * (values[0] - 1) ** 2 + SHIFT * values[1] ** 2

    best = minimize(objective, [1.0, 0.0], method="BFGS").x
    assert (slope, float(offsets[0])) == pytest.approx(tuple(best), abs=1e-4)
    assert math.exp(float(offsets[1]) / 2) == pytest.approx(0.38, abs=0.1)
    assert DAYS.recalibrate(torch.zeros(0, 2), torch.zeros(0)) == (1.0, pytest.approx(torch.zeros(2)))
    unchanged, nothing = DAYS.recalibrate(torch.full((3, 2), math.nan), torch.zeros(3))
    assert (unchanged, nothing.tolist()) == (1.0, [0, 0])


def test_intervals_hold_nine_tenths_of_records_that_were_not_trained_on() -> None:
    """A least squares fit of 11 numbers to 60 records: the spread allows for what was fitted. By the law of large
    numbers over 200 fits the share lies within two points of what it is on average."""
    inside = []
    for seed in range(200):
        draw = random(seed)
        x = np.column_stack([np.ones(160), draw.normal(size=(160, 10))])
        y = x @ np.full(11, 0.1) + draw.normal(0, 0.5, 160)
        fit = np.linalg.lstsq(x[:60], y[:60], rcond=None)[0]
        rows = torch.from_numpy(np.column_stack([x @ fit, np.zeros(160)]))
        offsets = DAYS.spread(rows[:60], torch.from_numpy(y[:60]), 11)
        said = DAYS.predict(DAYS.sharpen(rows[60:], 1.0, offsets)).numpy()
        known = DAYS.in_unit(y[60:])
        inside.append(((said[:, 1] <= known) & (known <= said[:, 2])).mean())
    assert 0.88 < np.mean(inside) < 0.93


def test_a_prediction_is_told_with_its_interval() -> None:
    said = DAYS.predict(torch.tensor([[0.0, 0.0], [2.9, 0.0]]))
    torch.testing.assert_close(said[0], torch.tensor([30.0, 30 - 10 * SURE, 30 + 10 * SURE]))
    assert float(said[1, 2]) == 60  # held to the range
    assert torch.isnan(DAYS.predict(torch.zeros(1, 1))[0, 1:]).all()
    assert DAYS.tell(said.numpy()) == ["30", "59"]
    assert DAYS.count(["30", "59", ""])["54 to 60"] == 1


def test_predictions_are_judged_with_intervals() -> None:
    known = random(8).uniform(-2, 2, 80).astype(np.float32)
    said = DAYS.predict(torch.from_numpy(np.stack([known + 0.5, np.zeros(80, np.float32)], axis=1))).numpy()
    found = judge(DAYS, said, known)
    assert found.figures["bias"] is not None
    assert found.figures["bias"].value == pytest.approx(5, abs=1e-4)
    assert found.figures["mae"] is not None
    assert found.figures["mae"].low <= 5.001
    assert found.figures["coverage"] is not None
    assert found.figures["coverage"].value == 1
    assert judge(DAYS, said[:3], known[:3]).figures["r2"] is None
    with pytest.raises(UserError, match="needs a class"):
        choose_point(DAYS, said, known, "recall=0.9")


def test_weights_of_classes_are_refused() -> None:
    for weight in ("balanced", "1,2"):
        with pytest.raises(UserError, match="class_weight needs classes"):
            DAYS.weighed(weight)
    assert DAYS.weighed("none") is DAYS
