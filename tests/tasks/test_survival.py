"""Survival: the loss against hand-made hazards, and metrics against what lifelines 0.30.3 gives on the same records."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sordino.data.dataset import Meaning
from sordino.errors import UserError
from sordino.tasks import Survival, read_task
from sordino.tasks.judgement import judge
from sordino.tasks.survival_metrics import brier_scores, concordant_pairs, kaplan_meier

WEEKS = Survival((2.0, 5.0, 10.0), "weeks")
CURVE = np.array([0.9, 0.75, 0.6, 0.4, 0.15])
AT = np.array([1.0, 3.0, 5.0, 10.0, 20.0])


def records() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, events and predicted times of forty records, some with equal times."""
    random = np.random.default_rng(0)
    times = np.round(random.exponential(10, 40), 1)
    return times, random.random(40) < 0.6, times + random.normal(0, 8, 40)


def encoded(*pairs: tuple[float, int]) -> torch.Tensor:
    times, events = np.array(pairs).T
    return torch.from_numpy(WEEKS.encoded(times, events))


def test_concordance_and_curves_are_those_of_lifelines() -> None:
    """`lifelines.utils.concordance_index` and `KaplanMeierFitter` on the same records. The Brier score follows
    lifelines' censoring curve but at time 0, where that already counts the records censored there (0.23516 with it)."""
    times, events, said = records()
    won, pairs = concordant_pairs(times, events, said)
    assert won / pairs == pytest.approx(0.7853211009174312)
    curve = kaplan_meier(times, events, AT)
    assert curve.tolist() == pytest.approx([0.8980263158, 0.8210526316, 0.7414215226, 0.6015059971, 0.3210790086])
    score = brier_scores(times, events, times, events, np.tile(CURVE, (40, 1)), AT).mean()
    assert score == pytest.approx(0.2350086591496953)


def test_pairs_are_compared_in_pieces_as_at_once() -> None:
    random = np.random.default_rng(1)
    times, events, said = np.round(random.exponential(5, 700), 1), random.random(700) < 0.5, random.random(700)
    pieces = concordant_pairs(times, events, said)
    earlier = events[:, None] & ((times > times[:, None]) | ((times == times[:, None]) & ~events))
    assert pieces == (float((earlier & (said > said[:, None])).sum()), float(earlier.sum()))
    assert concordant_pairs(times, events, np.zeros(700))[0] == pieces[1] / 2


@pytest.mark.parametrize(
    ("record", "known", "there"),
    [
        ((3.0, 1), [1, 1, 0], [0, 1, 0]),
        ((2.0, 1), [1, 0, 0], [1, 0, 0]),
        ((0.0, 1), [1, 0, 0], [1, 0, 0]),
        ((3.0, 0), [1, 0, 0], [0, 0, 0]),
        ((5.0, 0), [1, 1, 0], [0, 0, 0]),
        ((1.0, 0), [0, 0, 0], [0, 0, 0]),
        ((10.0, 1), [1, 1, 1], [0, 0, 1]),
        ((25.0, 1), [1, 1, 1], [0, 0, 0]),
    ],
)
def test_the_loss_is_that_of_intervals_of_which_something_is_known(
    record: tuple[float, int], known: list[int], there: list[int]
) -> None:
    """Logistic losses of these, each by hand; an event behind the last cut came through all of them."""
    outputs = torch.tensor([[0.3, -1.0, 2.0]], dtype=torch.float64)
    hazards = [1 / (1 + math.exp(-z)) for z in (0.3, -1.0, 2.0)]
    expected = sum(
        -math.log(h if event else 1 - h) for h, seen, event in zip(hazards, known, there, strict=True) if seen
    )
    assert float(WEEKS.losses(outputs, encoded(record))) == pytest.approx(expected)
    likelihood = float(WEEKS.likelihoods(WEEKS.log_probabilities(outputs), encoded(record)))
    assert likelihood == pytest.approx(-expected)
    assert float(WEEKS.counts(encoded(record)).norm()) == 1


def test_slopes_are_the_gradients_of_losses() -> None:
    outputs = torch.from_numpy(np.random.default_rng(2).normal(size=(2, 60, 3))).requires_grad_()
    targets = WEEKS.draw(120, np.random.default_rng(3)).reshape(2, 60)
    (gradient,) = torch.autograd.grad(WEEKS.stacked_losses(outputs, targets).sum(), outputs)
    torch.testing.assert_close(WEEKS.slopes(outputs.detach(), targets), gradient)


def test_predictions_are_curves_and_the_mean_time_under_them() -> None:
    hazards = torch.tensor([[0.1, 0.5, 0.2]], dtype=torch.float64)
    (said,) = WEEKS.predict(torch.logit(hazards)).tolist()
    curve = [0.9, 0.45, 0.36]
    area = 2 * (1 + 0.9) / 2 + 3 * (0.9 + 0.45) / 2 + 5 * (0.45 + 0.36) / 2
    assert said == pytest.approx([area, *curve])
    assert WEEKS.predict(WEEKS.log_probabilities(torch.logit(hazards)))[0].tolist() == pytest.approx(said)
    assert WEEKS.columns == ("survival_2", "survival_5", "survival_10")
    assert WEEKS.predict(torch.full((1, 3), math.nan)).isfinite().all()


def test_hazards_follow_from_counts() -> None:
    """100 records: 20 events and 10 last seen in the first interval, of whom those count half."""
    counts = torch.tensor([20.0, 14.0, 7.0, 10.0, 0.0, 49.0]) / 100
    assert WEEKS.hazards(counts, 100).tolist() == pytest.approx([20 / 95, 14 / 70, 7 / 56])
    torch.testing.assert_close(WEEKS.start(counts, 100).sigmoid(), WEEKS.hazards(counts, 100).float())
    drowned = WEEKS.hazards(torch.tensor([-0.4, 1.4, -0.3, 0.2, -0.5, 0.1]), 100)
    assert ((drowned > 0) & (drowned < 1)).all()
    told = WEEKS.curve(counts, 100)
    assert told["no event up to 5 weeks"] == pytest.approx(float((1 - 20 / 95) * (1 - 14 / 70)))


def test_metrics_of_clients_add_up() -> None:
    times, events, _ = records()
    task = Survival(tuple(AT.tolist()))
    targets = torch.from_numpy(task.encoded(times, events))
    outputs = torch.from_numpy(np.random.default_rng(4).normal(-1, 1, (40, 5)))
    sums = task.sums(outputs, targets, np.array([25, 15]), [targets[:25].numpy(), targets[25:].numpy()])
    found = dict(zip(task.metrics, task.figures(sums).T, strict=True))
    predicted = task.predict(outputs).numpy()
    won, pairs = concordant_pairs(task.times(targets[:25].numpy()), targets[:25].numpy() > 0, predicted[:25, 0])
    assert found["concordance"][0] == pytest.approx(won / pairs)
    assert found["integrated_brier"].min() > 0
    assert np.isnan(task.figures(task.no_sums().reshape(1, -1))).all()
    scores = task.scores(outputs.reshape(1, 40, 5)[:, :25], targets[:25].reshape(1, 25))
    assert scores.tolist() == pytest.approx([found["concordance"][0]])
    judged = judge(task, predicted, targets.numpy())
    assert judged.figures["concordance"] is not None
    assert judged.figures["concordance"].low <= judged.figures["concordance"].value


def test_mixtures_and_recalibration_follow_the_likelihood() -> None:
    """A model that predicts too few events is moved towards what the records say, and never away from it."""
    low = torch.full((200, 3), -4.0)
    targets = encoded(*[(1.0, 1)] * 60, *[(20.0, 0)] * 140)
    rows = WEEKS.log_probabilities(low)
    power, offsets = WEEKS.recalibrate(rows, targets)
    better = WEEKS.sharpen(rows, power, offsets)
    assert power == 1
    assert 0.05 < float(rows[0, :3].exp().sum()) < 0.06
    assert 0.25 < float(better[0, :3].exp().sum()) < 0.3  # the penalty keeps it below the share of events
    assert float(WEEKS.likelihoods(better, targets).sum()) > float(WEEKS.likelihoods(rows, targets).sum())
    mixed = WEEKS.mix(torch.stack([rows, better]), torch.tensor([0.5, 0.5]).log().reshape(-1, 1, 1))
    torch.testing.assert_close(mixed.exp(), (rows.exp() + better.exp()) / 2)
    unchanged, nothing = WEEKS.recalibrate(rows[:0], targets[:0])
    assert (unchanged, nothing.tolist()) == (1.0, [0, 0, 0, 0])
    assert WEEKS.temper(rows, targets, torch.zeros(4))[0] < 1


def test_a_task_is_read_as_it_was_written() -> None:
    assert read_task(WEEKS.document()) == WEEKS
    assert Meaning.read(Meaning(WEEKS).document()).task == WEEKS
    assert WEEKS.parse(["3.0 1", "x 1", "3 2", "-1 0", ""]).tolist()[0] == pytest.approx(1.3)
    assert np.isnan(WEEKS.parse(["x 1", "3 2", "-1 0", ""])).all()
    times = WEEKS.parse(WEEKS.text(encoded((3.0, 1), (4.0, 0)).numpy()))
    assert times.tolist() == encoded((3.0, 1), (4.0, 0)).tolist()
    with pytest.raises(UserError, match="rise from one to the next"):
        Survival((5.0, 2.0)).check()
    assert not WEEKS.admits(Survival((2.0, 5.0)))
    moved = WEEKS.shift(WEEKS.draw(50, np.random.default_rng(5)), 3)
    assert ((moved.abs() >= 1) & (moved.abs() <= 2)).all()
    assert WEEKS.count(["1.5", "7", ""])["mean time from 5 to 10"] == 1


def test_an_event_tells_as_much_of_a_slope_as_four_records_of_two_classes() -> None:
    """The information on a slope is that of n p (1 - p) records of two classes, and of d events, per variance of x."""
    task = Survival((1.0, 2.0))
    targets = task.encoded(np.array([0.5, 0.5, 1.5, 1.5]), np.array([1, 0, 1, 1]))
    assert task.effective_records(targets) == 4 * 3
