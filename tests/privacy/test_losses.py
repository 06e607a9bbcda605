"""Privacy-loss distributions: never below the truth, hardly above it, and searches that find the edge of a budget."""

from __future__ import annotations

import math
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
from closed_forms import by_google, true_delta
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from sordino.privacy.accounting import loss_distribution, sampled_gaussian
from sordino.privacy.accounting.calibration import FINE, first_within
from sordino.privacy.accounting.dominating_pairs import RecordPair
from sordino.privacy.accounting.gaussian import delta_of, epsilon_of
from sordino.privacy.accounting.loss_distribution import Sampled, compose, compose_pairs
from sordino.privacy.accounting.sampled_gaussian import quick_record_epsilon, record_attack_accuracy, record_epsilon
from sordino.privacy.budget.record_level_plan import plan_records

CASES = [
    (((0.1, 1.5, 100),), 1e-5, 1e-4),
    (((0.9, 6.0, 40),), 1e-5, 1e-4),
    (((0.02, 0.7, 200), (1.0, 5.0, 1)), 1e-6, 1e-4),
    pytest.param(((0.05, 3.0, 5000),), 1e-5, 1e-5, marks=pytest.mark.slow),
    pytest.param(((0.3, 0.8, 7),), 1e-3, 1e-4, marks=pytest.mark.slow),
    pytest.param(((0.01, 0.5, 50), (0.2, 4.0, 300)), 1e-5, 1e-4, marks=pytest.mark.slow),
    pytest.param(((128 / 1200, 112.6, 1172),), 1e-5, 1e-6, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("recipe", "delta", "grid"), CASES)
def test_between_googles_accountant_rounded_down_and_up(recipe: tuple[Sampled, ...], delta: float, grid: float) -> None:
    found = max(one.epsilon(delta) for one in compose(recipe, delta))
    assert found >= by_google(recipe, delta, pessimistic=False, grid=grid)
    fine = by_google(recipe, delta, pessimistic=True, grid=grid)
    assert fine * (1 - 1e-4) <= found <= fine * 1.002


@settings(max_examples=60)
@given(rate=st.floats(1e-4, 0.999), multiplier=st.floats(0.2, 50), epsilon=st.floats(0.0, 20))
def test_one_step_is_the_closed_form(rate: float, multiplier: float, epsilon: float) -> None:
    """Where the loss reaches epsilon, delta is a difference of normal distribution functions, in both directions."""
    x = multiplier**2 * math.log1p(math.expm1(epsilon) / rate) + 0.5
    present, absent = float(ndtr((1 - x) / multiplier)), float(ndtr(-x / multiplier))
    removed = rate * present - (math.expm1(epsilon) + rate) * absent
    if not 1e-9 < removed < 0.5:
        return
    found = compose(((rate, multiplier, 1),), removed)[0].epsilon(removed)
    assert epsilon * (1 - 1e-9) <= found <= epsilon * 1.003 + 2e-3 / multiplier


@pytest.mark.parametrize("reach", [0.3, 1.0, 6.0])
@pytest.mark.parametrize(("rate", "multiplier"), [(0.1, 1.0), (0.5, 0.7), (0.9, 3.0), (0.01, 0.5), (1.0, 2.0)])
@pytest.mark.parametrize("grid", [0.03, 0.1, 0.7])
def test_one_step_on_a_grid_is_nowhere_below_the_truth(
    rate: float, multiplier: float, reach: float, grid: float
) -> None:
    """Delta for every epsilon, negative ones too: only then does it stay so under composition, however much is cut."""
    for direction, masses in enumerate(loss_distribution._masses(RecordPair(rate, multiplier), grid, reach)):
        loss = (masses.first + np.arange(len(masses.mass))) * grid
        for epsilon in np.concatenate([loss, loss + grid / 3]):
            found = masses.infinite + float(masses.mass @ np.maximum(-np.expm1(epsilon - loss), 0.0))
            assert found >= true_delta(rate, multiplier, float(epsilon), direction) - 1e-12


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 3.0])
def test_without_sampling_it_is_the_gaussian(mu: float) -> None:
    recipe = ((1.0, 3 / mu, 4), (1.0, math.sqrt(9 / 5) / mu, 1))
    for one in compose(recipe, 1e-5):
        for delta in (1e-5, 1e-2):
            expected = epsilon_of(mu, delta)
            assert expected - 1e-12 <= one.epsilon(delta) <= expected * 1.001 + 1e-12
        assert delta_of(mu, 0.0) <= one.delta() <= delta_of(mu, 0.0) * 1.001 + 1e-6


def test_more_of_anything_costs_more() -> None:
    for worse in (((0.11, 1.5, 100),), ((0.1, 1.45, 100),), ((0.1, 1.5, 105),), ((0.1, 1.5, 100), (1.0, 9.0, 1))):
        assert record_epsilon(worse, 1e-5) > record_epsilon(((0.1, 1.5, 100),), 1e-5)
        assert record_attack_accuracy(worse) > record_attack_accuracy(((0.1, 1.5, 100),))
    values = [record_epsilon(((0.1, 1.5, 100),), delta) for delta in (1e-8, 1e-6, 1e-4)]
    assert all(first > second for first, second in pairwise(values))


@pytest.mark.parametrize(
    "recipe",
    [
        ((1e-6, 1.0, 10),),
        ((0.999, 0.05, 3),),
        ((0.5, 1e9, 1),),
        ((0.01, 1e-6, 5),),
        ((0.3, 1e-3, 1), (0.2, 1e4, 10**7)),
    ],
)
def test_extremes_have_figures(recipe: tuple[Sampled, ...]) -> None:
    assert 0 <= record_epsilon(recipe, 1e-5) <= epsilon_of(math.sqrt(sum(k / z**2 for _, z, k in recipe)), 1e-5)
    assert 0.5 <= record_attack_accuracy(recipe) <= 1


def test_where_rounding_would_show_the_quick_bound_is_given() -> None:
    recipe = ((0.1, 1.5, 1000),)
    assert record_epsilon(recipe, 1e-17) == quick_record_epsilon(recipe, 1e-17)
    assert record_epsilon(recipe, 1e-8) < quick_record_epsilon(recipe, 1e-8)


@pytest.mark.parametrize("recipe", [((0.1, 1.5, 100),), ((0.3, 0.8, 7), (1.0, 2.0, 3))])
def test_the_quick_bound_is_googles(recipe: tuple[Sampled, ...]) -> None:
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders=sampled_gaussian.ORDERS.tolist())
    for rate, multiplier, count in recipe:
        gaussian = dp_event.GaussianDpEvent(multiplier)
        accountant.compose(gaussian if rate == 1 else dp_event.PoissonSampledDpEvent(rate, gaussian), count)
    assert quick_record_epsilon(recipe, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)


@given(edge=st.integers(-50, 60), guess=st.integers(-80, 80), power=st.floats(0.2, 3), flat=st.booleans())
def test_a_search_finds_the_first_place_within(edge: int, guess: int, power: float, flat: bool) -> None:
    def excess(place: int) -> float:
        if flat:  # nothing to interpolate
            return math.inf if place < edge else -math.inf
        return math.copysign(abs(edge - 0.5 - place) ** power, edge - 0.5 - place)

    found = first_within(excess, guess, -50, 50)
    assert found == (None if edge > 50 else max(edge, -50))


def test_a_plan_of_many_sizes_composes_few_distributions() -> None:
    """A hundred clients of different sizes: for each rate the guess, a step from it, and the two sides of the edge."""
    sizes = np.random.default_rng(0).integers(20, 201, 100)
    with mock.patch.object(sampled_gaussian, "compose_pairs", side_effect=compose_pairs) as made:
        plan = plan_records(sizes.tolist(), np.full(100, 3.7), 1e-5, batch=16, epochs=2, turns=7)
    kinds = {plan.charge(client) for client in range(100)}
    assert len(kinds) > 30
    assert made.call_count <= 5 * len(kinds)
    for rate, multiplier, steps in kinds:
        spent = record_epsilon(((rate, multiplier, 7 * steps),), 1e-5)
        assert spent <= 3.7 < record_epsilon(((rate, multiplier / FINE, 7 * steps),), 1e-5)
