"""Noised sums over test records of numbers and of times: rows of a bounded length, and figures that hold the truth."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sordino.errors import UserError
from sordino.tasks import NextToken, Regression, Survival, Task
from sordino.tasks import error_sums as errors
from sordino.tasks.brier_sums import CELL, ERROR, BrierSums
from sordino.tasks.intervals import Released

DAYS = Regression(0.0, 60.0, "days")
RELAPSE = Survival((6.0, 12.0, 24.0, 36.0))
TASKS: dict[str, Task] = {
    "numbers": DAYS,
    "scaled numbers": Regression(0.0, 1000.0, mean=20.0, deviation=5.0),
    "times": RELAPSE,
    "one interval": Survival((12.0,)),
}


def days(random: np.random.Generator, records: int) -> tuple[np.ndarray, np.ndarray]:
    """Predictions (records, 3) of days, and targets: skewed, with a model that explains about half."""
    known = random.normal(size=records)
    targets = np.clip(12 + 6 * known + random.gamma(2.0, 4.0, records), 0, 60)
    said = np.full((records, 3), np.nan)
    said[:, 0] = np.clip(21 + 5 * known, 0, 60)
    return said, DAYS.scaled(targets)


def relapses(random: np.random.Generator, records: int, task: Survival = RELAPSE) -> tuple[np.ndarray, np.ndarray]:
    """Predicted curves (records, 1 + intervals), too hopeful, and targets, of which a third are last seen early."""
    rate = np.exp(random.normal(scale=0.7, size=records)) / 25
    times, seen = random.exponential(1 / rate), random.uniform(4, 80, records)
    curves = np.exp(-0.8 * rate[:, None] * np.array(task.cuts))
    return np.column_stack([curves.sum(axis=1), curves]), task.encoded(np.minimum(times, seen), times <= seen)


def drawn(task: Task, random: np.random.Generator, records: int) -> tuple[np.ndarray, np.ndarray]:
    return relapses(random, records, task) if isinstance(task, Survival) else days(random, records)


@pytest.mark.parametrize("name", TASKS)
def test_no_row_is_longer_than_one_whatever_a_model_says(name: str) -> None:
    """So that the gate, which shortens longer ones, changes none; and the longest there can be has no room left."""
    task, random = TASKS[name], np.random.default_rng(0)
    targets = np.concatenate([task.draw(4000, random).numpy(), *(task.draw(4, random).numpy() * 1e6,)])
    outputs = torch.from_numpy(
        random.normal(size=(len(targets), task.width)) * 10.0 ** random.integers(-3, 9, (len(targets), 1))
    )
    outputs[:3] = torch.tensor([[torch.nan], [torch.inf], [-torch.inf]], dtype=torch.float64)
    rows = task.evaluation_rows(task.predict(outputs).numpy(), targets)
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    assert rows.shape == (len(targets), task.evaluated)
    assert lengths.max() < 1 + 1e-6
    assert lengths.max() > 0.9


def test_entries_of_numbers_fill_the_norm() -> None:
    ends = np.array([[errors.LIMIT, errors.LIMIT], [errors.NEAR, errors.LIMIT], [0.0, 0.0], [50.0, -50.0]])
    lengths = np.linalg.norm(errors.rows_of(ends[:, 0], ends[:, 1]).astype(np.float64), axis=1)
    assert lengths[[0, 3]] == pytest.approx([1.0, 1.0], abs=1e-6)
    assert 0.9 < lengths[1] <= 1 + 1e-6


def test_without_noise_figures_of_numbers_are_those_of_scikit_learn() -> None:
    from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

    said, targets = days(np.random.default_rng(1), 500)
    known = DAYS.in_unit(targets)
    expected = {
        "r2": r2_score(known, said[:, 0]),
        "rmse": mean_squared_error(known, said[:, 0]) ** 0.5,
        "mae": mean_absolute_error(known, said[:, 0]),
        "bias": (said[:, 0] - known).mean(),
        "near": (np.abs(said[:, 0] - known) <= 6).mean(),
    }
    sums = DAYS.evaluation_rows(said, targets).astype(np.float64).sum(axis=0)
    found = DAYS.evaluation_figures(Released(sums, 1e-9, True))
    true = DAYS.true_figures(said, targets, np.ones(500))
    for name, value in expected.items():
        assert true[name] == pytest.approx(value, rel=1e-5), name
        assert found[name].value == pytest.approx(value, rel=1e-3), name  # type: ignore[union-attr]
    assert DAYS.evaluated_records(sums) == pytest.approx(500, rel=1e-6)


def test_errors_beyond_the_limit_count_as_the_limit() -> None:
    """One prediction that is as wrong as can be moves squares by those of half the range, not by more."""
    said, targets = days(np.random.default_rng(2), 100)
    rows = DAYS.evaluation_rows(said, targets)
    wrong = said.copy()
    wrong[0, 0], targets[0] = 60.0, -3.0
    moved = DAYS.evaluation_rows(wrong, targets)[0] / errors.WEIGHTS
    assert moved[2] == pytest.approx(1.0)
    assert np.linalg.norm(DAYS.evaluation_rows(wrong, targets) - rows) <= 2 + 1e-6


def test_without_noise_brier_scores_are_about_those_of_exact_times() -> None:
    """G is known by intervals alone, not by moments: scores of 100,000 records differ by less than 3 %."""
    said, targets = relapses(np.random.default_rng(3), 100_000)
    sums = RELAPSE.evaluation_rows(said, targets).astype(np.float64).sum(axis=0)
    found = RELAPSE.evaluation_figures(Released(sums, 1e-9, True))
    few = slice(0, 4000)
    true = RELAPSE.true_figures(said[few], targets[few], np.ones(4000))
    for name in ("integrated_brier", "constant_brier"):
        assert found[name].value == pytest.approx(true[name], rel=0.03), name  # type: ignore[union-attr]
    assert found["calibration"].value == pytest.approx(true["calibration"], abs=0.02)  # type: ignore[union-attr]
    assert RELAPSE.evaluated_records(sums) == pytest.approx(100_000, rel=1e-6)


def test_where_nobody_is_lost_the_brier_score_is_a_plain_mean() -> None:
    random = np.random.default_rng(4)
    said, _ = relapses(random, 300)
    times = random.uniform(0, 60, 300)
    targets = RELAPSE.encoded(times, np.ones(300))
    known = times[:, None] > np.array(RELAPSE.cuts)
    squares = (said[:, 1:] - known) ** 2
    plain = np.trapezoid(squares, RELAPSE.cuts, axis=1).mean() / 30
    sums = RELAPSE.evaluation_rows(said, targets).astype(np.float64).sum(axis=0)
    found = RELAPSE.evaluation_figures(Released(sums, 1e-9, True))["integrated_brier"]
    assert found is not None
    assert found.value == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize("name", ["numbers", "times"])
def test_intervals_hold_the_truth(name: str) -> None:
    """Figures of the distribution lie within at least 91 % of 100 intervals of 2,000 records each with noise; at 95 %,
    the chance of less is below 4 %, always the same draws; without the noise in them far fewer would."""
    task = TASKS[name]
    said, targets = drawn(task, np.random.default_rng(99), 20_000)
    true = task.true_figures(said, targets, np.ones(len(targets)))
    held, narrow = dict.fromkeys(true, 0), dict.fromkeys(true, 0)
    for seed in range(100):
        random = np.random.default_rng(seed)
        sums = task.evaluation_rows(*drawn(task, random, 2000)).astype(np.float64).sum(axis=0)
        noisy = sums + random.normal(scale=8.0, size=len(sums))
        for kind, deviation in ((held, 8.0), (narrow, 0.8)):
            for figure, one in task.evaluation_figures(Released(noisy, deviation, True)).items():
                assert one is not None, figure
                kind[figure] += one.low <= true[figure] <= one.high  # type: ignore[operator]
    assert min(held.values()) >= 91, held
    assert min(narrow.values()) < 91, narrow


@pytest.mark.parametrize("task", [DAYS, Survival(tuple(range(3, 33, 3)))], ids=["numbers", "times"])
def test_intervals_of_few_records_hold_the_truth_wherever_they_are_told(task: Task) -> None:
    """Much noise on few records: of each figure's intervals that are told at least 91 % hold the truth."""
    said, targets = drawn(task, np.random.default_rng(99), 20_000)
    true = task.true_figures(said, targets, np.ones(len(targets)))
    held, told = dict.fromkeys(true, 0), dict.fromkeys(true, 0)
    for seed, (records, deviation) in enumerate(40 * [(110, 3.0), (110, 4.0), (110, 8.0), (110, 12.0), (300, 4.0)]):
        random = np.random.default_rng(seed)
        sums = task.evaluation_rows(*drawn(task, random, records)).astype(np.float64).sum(axis=0)
        noisy = sums + random.normal(scale=deviation, size=len(sums))
        for figure, one in task.evaluation_figures(Released(noisy, deviation, True)).items():
            if one is not None:
                told[figure] += 1
                held[figure] += one.low <= true[figure] <= one.high  # type: ignore[operator]
    assert sum(told.values()) > 40, told
    assert all(held[figure] >= 0.91 * told[figure] for figure in true if told[figure] > 10), (held, told)


@pytest.mark.parametrize("name", ["numbers", "times"])
def test_what_noise_drowns_is_withheld(name: str) -> None:
    task = TASKS[name]
    sums = task.evaluation_rows(*drawn(task, np.random.default_rng(5), 100)).astype(np.float64).sum(axis=0)
    assert set(task.evaluation_figures(Released(sums, 200.0, True)).values()) == {None}
    nothing = task.evaluation_figures(Released(np.zeros(task.evaluated), 1.0, True))
    assert set(nothing.values()) == {None}


def test_errors_are_withheld_where_noise_hides_them_and_not_the_records() -> None:
    said, targets = days(np.random.default_rng(5), 100)
    sums = DAYS.evaluation_rows(said, targets).astype(np.float64).sum(axis=0)
    found = DAYS.evaluation_figures(Released(sums, 3.9, True))
    assert {name for name, one in found.items() if one is None} == {"r2", "rmse", "mae"}


def told(task: Task, sums: np.ndarray, deviation: float) -> set[str]:
    """Figures that are told at so much noise on each sum."""
    return {name for name, one in task.evaluation_figures(Released(sums, deviation, True)).items() if one is not None}


def test_figures_of_numbers_end_where_noise_is_a_fifth_of_the_records() -> None:
    """The first sum of 1,000 records is 0.2 x 1,000, and a fifth of that is 40."""
    said, targets = days(np.random.default_rng(7), 1000)
    sums = DAYS.evaluation_rows(said, targets).astype(np.float64).sum(axis=0)
    assert told(DAYS, sums, 39.9) == {"bias", "near"}
    assert told(DAYS, sums, 40.1) == set()


def sums_of_times(records: int, curves: np.ndarray) -> np.ndarray:
    """Sums over so many records in each cell: with an event in each of the four intervals, last seen in each, and seen
    behind the last cut. Of each kind one curve (9, 4)."""
    times = np.array([3.0, 9.0, 18.0, 30.0, 3.0, 9.0, 18.0, 30.0, 50.0])
    targets = RELAPSE.encoded(times, np.repeat([1, 0], [4, 5]))
    rows = RELAPSE.evaluation_rows(np.column_stack([curves.sum(axis=1), curves]), targets)
    return records * rows.astype(np.float64).sum(axis=0)


HOPES = np.tile([0.9, 0.7, 0.5, 0.3], (9, 1))
"""The same curve for everybody."""


def test_figures_of_times_end_where_noise_is_a_quarter_of_those_at_risk() -> None:
    """In the last interval 300 of 900 records are at risk, in three cells: the noise on their number is 2 sqrt(3) that
    on an entry, and a quarter of them 75. In the first interval it would be 6 and 225."""
    sums = sums_of_times(100, HOPES)
    edge = 75 / (2 * 3**0.5)
    assert told(RELAPSE, sums, 0.999 * edge) == {"constant_brier", "calibration"}
    assert told(RELAPSE, sums, 1.001 * edge) == set()


def test_a_score_is_withheld_where_noise_is_half_of_it() -> None:
    """That of curves which are right is zero, whatever the noise; that of the Kaplan-Meier curve is not."""
    times = np.array([3.0, 9.0, 18.0, 30.0, 3.0, 9.0, 18.0, 30.0, 50.0])
    right = (times[:, None] > np.array(RELAPSE.cuts)).astype(float)
    assert told(RELAPSE, sums_of_times(100, right), 10.0) == {"constant_brier", "calibration"}
    assert told(RELAPSE, sums_of_times(100, HOPES), 10.0) == {"integrated_brier", "constant_brier", "calibration"}


def test_calibration_is_withheld_where_its_interval_says_nothing() -> None:
    """Nine records leave more than half to both sides open, without any noise; 27 do not."""
    assert "calibration" not in told(RELAPSE, sums_of_times(1, HOPES), 1e-9)
    assert "calibration" in told(RELAPSE, sums_of_times(3, HOPES), 1e-9)


def test_negative_counts_take_back_what_noise_gave_others() -> None:
    """Of 1,000 records 100 had their event, or were last seen, in the first interval and -50 in the second: 950 come
    through all four, not the 900 that would if counts were held to zero."""
    brier = BrierSums(RELAPSE.cuts)
    events, last_seen = (np.zeros(brier.entries) for _ in range(2))
    events[[0, 1, 8]] = np.array([100, -50, 950]) * CELL
    last_seen[[4, 5, 8]] = np.array([100, -50, 950]) * CELL
    last_seen[16] = 190 * ERROR * brier.integral[3] ** 0.5  # squared errors at the last cut come to 190
    calibration = brier.figures(Released(events, 1e-9, True))["calibration"]
    assert calibration is not None
    assert calibration.value == pytest.approx(-0.05)  # nobody was expected to have it
    score = brier.figures(Released(last_seen, 1e-9, True))["integrated_brier"]
    assert score is not None
    assert score.value == pytest.approx(brier.integral[3] * 190 / 0.95 / 1000)


@pytest.mark.parametrize("name", ["numbers", "times"])
def test_true_figures_weigh_records(name: str) -> None:
    task, random = TASKS[name], np.random.default_rng(6)
    said, targets = drawn(task, random, 200)
    weights = random.integers(1, 4, 200)
    repeated = np.repeat(np.arange(200), weights)
    expected = task.true_figures(said[repeated], targets[repeated], np.ones(len(repeated)))
    found = task.true_figures(said, targets, weights.astype(float))
    for figure, value in expected.items():
        assert found[figure] == pytest.approx(value), figure


def test_sequences_have_no_such_sums() -> None:
    with pytest.raises(UserError, match="figures that are sums over records"):
        NextToken(5, 3).evaluated  # noqa: B018
