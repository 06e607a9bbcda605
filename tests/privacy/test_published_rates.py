"""Sampling rates read off rPDP-FL's published curve, whose error is charged for and not hidden."""

from __future__ import annotations

import functools
import sys

import numpy as np
import pytest
from dp_accounting import PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.dp_event import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from scipy.stats import binom

from sordino.errors import UserError
from sordino.experiment.budgeting import beyond_budgets
from sordino.privacy.accounting.calibration import MIN_RATE_SHARE, record_multiplier
from sordino.privacy.accounting.rpdp_fl_calibration import fitted_rate, quick_multiplier
from sordino.privacy.accounting.sampled_gaussian import quick_record_epsilon, record_epsilon
from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.budget.client_level_plan import planned_epsilon
from sordino.privacy.budget.record_level_plan import plan_records, plan_without_noise

DELTA, STEPS, LARGEST = 1e-4, 750, 10.0
"""Of the published setting on Heart Disease: 50 steps in each of 15 rounds."""
GRID = np.unique(np.concatenate([np.arange(1, 100) * 0.001, np.arange(1, 101) * 0.01]).round(9))
"""The released code's sampling rates."""
ORDERS = sorted({int(1.07**power + 1) for power in range(103)})
"""The released code's orders, up to 994."""


def event(rate: float, multiplier: float) -> SelfComposedDpEvent:
    gaussian = GaussianDpEvent(multiplier)
    return SelfComposedDpEvent(gaussian if rate == 1 else PoissonSampledDpEvent(rate, gaussian), STEPS)


def divergences(rate: float, multiplier: float) -> float:
    """Epsilon by Google's accountant of Renyi divergences."""
    return float(RdpAccountant(ORDERS).compose(event(rate, multiplier)).get_epsilon(DELTA))


def all_divergences(rates: np.ndarray, multiplier: float) -> np.ndarray:
    """The same for many rates at once, by definition: the moments of the likelihood ratio of a record that is hit k
    times out of `order`, which is binomial."""
    found = []
    for order in ORDERS:
        hits = np.arange(order + 1)[:, None]
        moments = logsumexp(binom.logpmf(hits, order, rates) + hits * (hits - 1) / (2 * multiplier**2), axis=0)
        found.append((STEPS * moments - np.log(DELTA * order)) / (order - 1) + np.log(1 - 1 / order))
    return np.min(found, axis=0)


def truth(rate: float, multiplier: float) -> float:
    """Epsilon by Google's accountant of privacy-loss distributions."""
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    return float(accountant.compose(event(rate, multiplier)).get_epsilon(DELTA))


@functools.cache
def noise() -> float:
    return quick_multiplier(LARGEST, DELTA, 1.0, STEPS)


@functools.cache
def inverted() -> tuple[float, float, float]:
    """(a, exp(b), c) of the least squares, by another way: for each a the rest is a linear problem."""
    costs = all_divergences(GRID, noise())

    def solved(a: float) -> tuple[np.ndarray, float]:
        terms = np.stack([np.exp(a * GRID), np.ones(len(GRID))], axis=1)
        found = np.linalg.lstsq(terms, costs, rcond=None)[0]
        return found, float(((terms @ found - costs) ** 2).sum())

    a = float(minimize_scalar(lambda a: solved(a)[1], bounds=(0.01, 5), method="bounded", options={"xatol": 1e-9}).x)
    (scale, constant), _ = solved(a)
    return a, float(scale), float(constant)


def test_noise_is_what_the_published_accountant_asks_for_at_the_largest_rate() -> None:
    """Half a percent less of it would be too little, and half of it by far."""
    assert divergences(1.0, noise()) <= LARGEST < divergences(1.0, noise() / 1.005)
    assert all_divergences(np.array([0.02, 1.0]), noise()) == pytest.approx(
        [divergences(0.02, noise()), divergences(1.0, noise())], rel=1e-6
    )
    assert noise() == pytest.approx(13.31, rel=0.003)
    assert record_multiplier(LARGEST, DELTA, 1.0, STEPS) == pytest.approx(12.48, rel=0.003), "the exact one asks less"
    with pytest.raises(UserError, match=r"cannot print epsilon = 0\.001 .* use --variant sound"):
        quick_multiplier(0.001, DELTA, 1.0, STEPS)


@pytest.mark.parametrize("budget", [0.05, 0.1, 0.2, 1.0, 5.0, 9.0])
def test_rates_are_those_of_an_independent_fit(budget: float) -> None:
    a, scale, constant = inverted()
    rate = float(np.log((budget - constant) / scale) / a)
    assert fitted_rate(budget, DELTA, noise(), STEPS) == pytest.approx(rate, rel=0.005)


@pytest.mark.parametrize(("budget", "true"), [(0.05, 0.073), (0.1, 0.110), (0.2, 0.187), (0.5, 0.432), (5.0, 4.56)])
def test_the_smallest_budgets_are_exceeded_and_the_others_are_not(budget: float, true: float) -> None:
    rate = fitted_rate(budget, DELTA, noise(), STEPS)
    assert truth(rate, noise()) == pytest.approx(true, rel=0.01)
    assert record_epsilon(((rate, noise(), STEPS),), DELTA) == pytest.approx(true, rel=0.01)
    assert (true > budget) == (budget <= 0.1)
    assert truth(rate, noise() / 2) > 1.5 * true, "half the noise would show"


def test_the_curve_is_that_of_the_largest_rate() -> None:
    """With q many times rarer and the noise q times as large, steps cost about the same: rates are parts of q."""
    steps, q = 5000, 0.25
    whole, part = (quick_multiplier(4.0, 1e-5, rate, steps) for rate in (1.0, q))
    assert part == pytest.approx(q * whole, rel=0.01)
    for budget in (0.2, 1.0, 3.0):
        rate = fitted_rate(budget, 1e-5, part, steps, q)
        assert rate == pytest.approx(q * fitted_rate(budget, 1e-5, whole, steps), rel=0.01)


def test_outside_of_the_range_rates_are_the_largest_and_the_least() -> None:
    assert fitted_rate(LARGEST, DELTA, noise(), STEPS) == 1.0
    assert fitted_rate(1e6, DELTA, noise(), STEPS, 0.3) == 0.3
    assert fitted_rate(0.001, DELTA, noise(), STEPS) == MIN_RATE_SHARE, "the accountant itself never says so little"
    assert 0.95 < fitted_rate(0.98 * LARGEST, DELTA, noise(), STEPS) < 1.0
    multiplier = quick_multiplier(4.0, 1e-5, 0.05, 75)
    almost = 0.999 * quick_record_epsilon(((0.05, multiplier, 75),), 1e-5)
    assert fitted_rate(almost, 1e-5, multiplier, 75, 0.05) == 0.05, "the curve crosses it at 1.02 times that"
    multiplier = quick_multiplier(1.0, 1e-5, 0.1, 5)  # at rate 0 the bound says 0.10, the curve 0.19
    assert fitted_rate(0.15, 1e-5, multiplier, 5, 0.1) == 0.1 * MIN_RATE_SHARE, "the curve crosses it below 0"


def test_over_few_steps_the_curve_is_a_line() -> None:
    """Equal differences of budgets are equal differences of rates; where the line is above a budget at every rate, the
    least one is given."""
    multiplier = quick_multiplier(4.0, 1e-5, 0.25, 8)
    first, second, third = (fitted_rate(budget, 1e-5, multiplier, 8, 0.25) for budget in (1.0, 2.0, 3.0))
    assert second - first == pytest.approx(third - second, rel=1e-4)
    assert 0.02 < second - first < 0.1
    assert fitted_rate(0.05, 1e-5, multiplier, 8, 0.25) == 0.25 * MIN_RATE_SHARE


def test_a_plan_with_fitted_rates() -> None:
    """Clients of different sizes have 50 records in the mean: all enter every batch of 50 where most is allowed."""
    budgets, sizes = np.array([0.1, 1.0, 10.0, 10.0]), [20, 40, 60, 80]
    keys = {"batch": 50, "epochs": 50, "turns": 15}
    plan = plan_records(sizes, budgets, DELTA, varied="fitted", **keys)
    assert plan.multipliers.tolist() == [noise()] * 4
    assert plan.steps.tolist() == [50] * 4
    assert plan.turns.tolist() == [15] * 4, "nobody is stopped"
    expected = [fitted_rate(budget, DELTA, noise(), STEPS) for budget in (0.1, 1.0)]
    assert plan.sampling.tolist() == [*expected, 1.0, 1.0]
    searched = plan_records(sizes, budgets, DELTA, varied="sampling", **keys)
    assert searched.sampling[2:].tolist() == [1.0, 1.0], "largest budgets have the same rate by either way"
    spent = {client: record_epsilon(((*searched.charge(client)[:2], STEPS),), DELTA) for client in range(4)}
    assert all(spent[client] <= budgets[client] for client in spent)
    assert beyond_budgets(spent, budgets, list("abcd")) == []
    bare = plan_without_noise(sizes, budgets, varied="fitted", **keys)
    assert bare.sampling.tolist() == [1.0] * 4


def test_with_given_noise_rates_are_fitted_too() -> None:
    plan = plan_records(
        [50, 50], np.array([1.0, 1e3]), DELTA, batch=50, epochs=50, turns=15, multiplier=10.0, varied="fitted"
    )
    assert plan.multipliers.tolist() == [10.0, 10.0]
    assert plan.sampling.tolist() == [fitted_rate(1.0, DELTA, 10.0, STEPS), 1.0]
    assert plan.turns.tolist() == [15, 15]


def test_a_curve_that_cannot_be_fitted_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """As scipy says it where the bound is zero at most rates: delta 0.00133, noise 2165.7, 756 steps, rate 0.161."""

    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("Optimal parameters not found: The maximum number of function evaluations is exceeded.")

    monkeypatch.setattr(sys.modules[fitted_rate.__module__], "curve_fit", failing)
    with pytest.raises(UserError, match="none fits the epsilon of 751 steps with a noise multiplier"):
        fitted_rate(0.5, DELTA, 13.3, STEPS + 1)  # a curve that no other test has left in the cache


def test_who_is_beyond_its_budget_is_told() -> None:
    budgets, names = np.array([0.1, 2.0, 1.0, np.inf]), ["north", "south", "east", "west"]
    assert beyond_budgets({0: 0.2, 1: 3.0, 2: 1.0000001, 3: 50.0}, budgets, names) == [
        "2 of 4 clients' records pay more than their budgets allow, most of all those of north: epsilon 0.20 for a "
        "budget of 0.1."
    ]
    assert beyond_budgets({1: 2.0, 3: 50.0}, budgets, names) == []
    assert "east: epsilon infinite" in beyond_budgets({1: 3.0, 2: float("inf")}, budgets, names)[0]


def test_what_is_planned_is_what_published_rates_cost_where_that_is_more() -> None:
    """Budgets of 0.05 at which records are sampled too often: all rounds together cost what the accountant says."""
    budgets = np.array([0.05, 0.05])
    plan = plan_records([100, 100], budgets, DELTA, batch=100, epochs=50, turns=15, varied="fitted", multiplier=13.3)
    charged = record_epsilon(((float(plan.sampling[0]), 13.3, STEPS),), DELTA)
    assert charged > 0.06
    assert planned_epsilon(Allowance(records=plan), 15, DELTA) == charged
    kept = plan_records([100, 100], budgets, DELTA, batch=100, epochs=50, turns=15, varied="sampling", multiplier=13.3)
    assert planned_epsilon(Allowance(records=kept), 15, DELTA) == 0.05
