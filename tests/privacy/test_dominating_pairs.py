"""Replaced records and persons with several rows: never below the truth, hardly above it."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from closed_forms import integrated_delta, least_epsilon, log_density, mixture_delta, replaced_mixtures, rows_mixtures
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from sordino.privacy.accounting import loss_distribution, sampled_gaussian
from sordino.privacy.accounting.dominating_pairs import Pair, RecordPair, ReplacedPair, RowsPair
from sordino.privacy.accounting.gaussian import epsilon_of
from sordino.privacy.accounting.loss_distribution import compose, compose_pairs
from sordino.privacy.accounting.sampled_gaussian import (
    Recipe,
    person_epsilon,
    quick_record_epsilon,
    record_epsilon,
    replaced_epsilon,
    rows_epsilon,
)

DELTA = 1e-5
PAIRS: list[Pair] = [
    ReplacedPair(0.1, 1.0),
    ReplacedPair(0.9, 2.0),
    ReplacedPair(0.01, 0.4),
    RowsPair(0.1, 1.5, 3),
    RowsPair(0.7, 4.0, 2),
    RowsPair(0.02, 0.6, 5),
]


@pytest.mark.parametrize("reach", [0.3, 6.0])
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("grid", [0.1, 0.7])
def test_one_step_on_a_grid_is_nowhere_below_the_truth(pair: Pair, reach: float, grid: float) -> None:
    """Delta for every epsilon, negative ones too: only then does it stay so under composition."""
    mixtures = rows_mixtures(pair.rate, pair.contributions) if isinstance(pair, RowsPair) else None
    present, absent = mixtures or replaced_mixtures(pair.rate)
    removed, added = loss_distribution._masses(pair, grid, reach)
    for masses, worlds in ((removed, (present, absent)), (added, (absent, present))):
        loss = (masses.first + np.arange(len(masses.mass))) * grid
        for epsilon in np.concatenate([loss, loss + grid / 3])[:: max(1, len(loss) // 12)]:
            found = masses.infinite + float(masses.mass @ np.maximum(-np.expm1(epsilon - loss), 0.0))
            true = mixture_delta(*worlds, pair.multiplier, float(epsilon))
            assert found >= true - 1e-12
            if reach > 1 and abs(epsilon / grid - round(epsilon / grid)) < 1e-9:
                assert found <= true + 1e-6


@settings(max_examples=60, deadline=None)
@given(
    rate=st.floats(1e-6, 0.999), multiplier=st.floats(0.05, 1e3), contributions=st.integers(1, 9), reach=st.floats(1, 9)
)
def test_places_of_losses(rate: float, multiplier: float, contributions: int, reach: float) -> None:
    pairs = [RecordPair(rate, multiplier), ReplacedPair(rate, multiplier), RowsPair(rate, multiplier, contributions)]
    for pair in pairs:
        begin, end = loss_distribution._range(pair, reach)
        losses = np.linspace(float(pair.loss(begin)), float(pair.loss(end)), 200)[1:-1]
        x = pair.find(losses, begin, end)
        assert (np.diff(x) >= 0).all()
        assert begin <= x[0] <= x[-1] <= end
        # Logarithms of the chances and exponents that are added up, to within some fifty times their rounding.
        added = contributions * (-math.log(rate) - math.log1p(-rate) + (abs(begin) + end) / multiplier**2)
        assert np.abs(pair.loss(x) - losses).max() <= 1e-14 * (10 + added)


def in_the_plane(first: np.ndarray, second: np.ndarray, rate: float, z: float, order: float) -> float:
    """Hockey stick of sampled Gaussians in two dimensions with means `first` and `second`, by a sum over a grid."""
    line = np.linspace(-1 - 7 * z, 1 + 7 * z, 201)
    points = np.stack(np.meshgrid(line, line), axis=-1)
    none, one, other = (multivariate_normal(mean, z**2).pdf(points) for mean in (np.zeros(2), first, second))
    above = (1 - rate) * (1 - order) * none + rate * (one - order * other)
    return float(np.maximum(above, 0.0).sum() * (line[1] - line[0]) ** 2)


@pytest.mark.parametrize(("rate", "z"), [(0.05, 0.8), (0.5, 1.0), (0.9, 2.0)])
def test_no_two_contributions_are_easier_to_tell_apart_than_opposite_ones(rate: float, z: float) -> None:
    """Whatever their lengths up to one and the angle between them, at every order; opposite ones attain the figure."""
    present, absent = replaced_mixtures(rate)
    for order in (0.3, 0.9, 1.0, 1.2, 2.5):
        most = mixture_delta(present, absent, z, math.log(order))
        assert in_the_plane(np.array([1.0, 0]), np.array([-1.0, 0]), rate, z, order) == pytest.approx(most, abs=3e-4)
        for length, other, angle in (
            (1, 1, 0.9),
            (1, 1, 0.5),
            (1, 0.6, 1.0),
            (0.3, 1, 1.0),
            (0.8, 0.9, 0.7),
            (1, 0, 0),
        ):
            second = other * np.array([math.cos(math.pi * angle), math.sin(math.pi * angle)])
            assert in_the_plane(np.array([float(length), 0.0]), second, rate, z, order) <= most + 3e-4


@pytest.mark.parametrize(("rate", "z"), [(0.01, 0.6), (0.1, 1.0), (0.5, 0.8), (0.5, 3.0), (0.9, 1.0), (0.99, 2.0)])
@pytest.mark.parametrize("epsilon", [0.05, 0.6, 2.0])
def test_one_replaced_record_by_integration(rate: float, z: float, epsilon: float) -> None:
    delta = integrated_delta(*replaced_mixtures(rate), z, epsilon)
    if delta > 1e-9:
        assert epsilon * (1 - 1e-6) <= replaced_epsilon(((rate, z, 1),), delta) <= epsilon * 1.003 + 2e-3 / z


@pytest.mark.parametrize("steps", [1, 3, 10])
@pytest.mark.parametrize(("rate", "z"), [(0.02, 0.7), (0.3, 1.5), (0.9, 3.0)])
def test_composed_replacements_are_never_below_losses_rounded_down(rate: float, z: float, steps: int) -> None:
    for delta in (1e-5, 1e-2):
        least = least_epsilon([(*replaced_mixtures(rate), z, steps)], delta, grid=5e-4)
        assert least <= replaced_epsilon(((rate, z, steps),), delta) <= least + steps * 5e-4 + 2e-3 * least


def test_kinds_of_steps_compose() -> None:
    recipe = ((0.1, 1.2, 4), (1.0, 5.0, 2))
    steps = [(*replaced_mixtures(rate), z, count) for rate, z, count in recipe]
    least = least_epsilon(steps, DELTA, grid=5e-4)
    assert least <= replaced_epsilon(recipe, DELTA) <= least * 1.002 + 6 * 5e-4


def test_where_delta_is_too_small_for_distributions_a_replacement_still_costs_both_ways() -> None:
    """Nearly all records are in every batch, so that it is a Gaussian of twice the sensitivity but for a trifle."""
    assert replaced_epsilon(((0.999, 2.0, 4),), 1e-17) > 0.97 * epsilon_of(2.0, 1e-17)


def test_one_direction_at_half_the_noise_is_no_bound_of_a_replacement() -> None:
    """At epsilon = 0 five steps' worlds are 0.680 apart; either direction of a removal at z / 2 says 0.677."""
    replaced = max(one.delta() for one in compose_pairs([(ReplacedPair(0.9, 2.0), 5)], DELTA))
    assert replaced == pytest.approx(0.6803, abs=1e-4)
    assert max(one.delta() for one in compose(((0.9, 1.0, 5),), DELTA)) == pytest.approx(0.6773, abs=1e-4)
    assert least_epsilon([(*replaced_mixtures(0.9), 2.0, 5)], 0.6790, grid=2e-4) > 0
    assert replaced_epsilon(((0.9, 2.0, 5),), 0.6790) > 0 == record_epsilon(((0.9, 1.0, 5),), 0.6790)


@pytest.mark.parametrize(("rate", "z"), [(0.02, 1.0), (0.4, 0.7), (0.9, 2.0)])
def test_a_replacement_costs_less_than_the_larger_direction_at_half_the_noise(rate: float, z: float) -> None:
    removed, added = compose(((rate, z / 2, 1),), DELTA)
    for delta in (1e-5, 1e-4, 1e-3):
        found = replaced_epsilon(((rate, z, 1),), delta)
        assert record_epsilon(((rate, z, 1),), delta) < found < max(removed.epsilon(delta), added.epsilon(delta))


def test_a_small_rate_costs_far_less_than_half_the_noise() -> None:
    assert replaced_epsilon(((0.02, 1.0, 500),), DELTA) == pytest.approx(4.21, abs=0.01)
    assert record_epsilon(((0.02, 0.5, 500),), DELTA) == pytest.approx(17.57, abs=0.01)


def test_without_sampling_a_replacement_doubles_mu() -> None:
    assert replaced_epsilon(((1.0, 2.0, 4), (1.0, 3.0, 9)), DELTA) == epsilon_of(2 * math.sqrt(2), DELTA)
    nearly = replaced_epsilon(((0.999999, 2.0, 4),), DELTA)
    assert nearly == pytest.approx(epsilon_of(2.0, DELTA), rel=1e-3)
    assert nearly <= epsilon_of(2.0, DELTA)


def test_more_of_anything_costs_a_replacement_more() -> None:
    usual = replaced_epsilon(((0.1, 1.5, 100),), DELTA)
    for worse in (((0.11, 1.5, 100),), ((0.1, 1.45, 100),), ((0.1, 1.5, 105),), ((0.1, 1.5, 100), (1.0, 9.0, 1))):
        assert replaced_epsilon(worse, DELTA) > usual
    values = [replaced_epsilon(((0.1, 1.5, 100),), delta) for delta in (1e-8, 1e-6, 1e-4, 1e-2)]
    assert all(first > second for first, second in pairwise(values))


def test_nothing_and_no_noise() -> None:
    assert replaced_epsilon((), DELTA) == replaced_epsilon(((0.1, 0.0, 0),), DELTA) == 0.0
    assert person_epsilon((), DELTA) == person_epsilon(((((0.1, 1.0, 9),), 0),), DELTA) == 0.0
    assert replaced_epsilon(((0.1, 0.0, 3),), DELTA) == person_epsilon(((((0.1, 0.0, 3),), 3),), DELTA) == math.inf


EXTREMES: list[Recipe] = [
    ((1e-6, 1.0, 10),),
    ((0.999, 0.05, 3),),
    ((0.5, 1e9, 1),),
    ((0.01, 1e-6, 5),),
    ((0.3, 1e-3, 1), (0.2, 1e4, 10**7)),
]


@pytest.mark.parametrize("recipe", EXTREMES)
def test_extremes_have_figures(recipe: Recipe) -> None:
    mu = math.sqrt(sum(count / z**2 for _, z, count in recipe))
    assert record_epsilon(recipe, DELTA) <= replaced_epsilon(recipe, DELTA) <= epsilon_of(2 * mu, DELTA)
    assert record_epsilon(recipe, DELTA) <= rows_epsilon([recipe], 3, DELTA) <= epsilon_of(3 * mu, DELTA)


@pytest.mark.parametrize("recipe", [((0.1, 1.5, 1000),), ((0.02, 1.0, 60), (1.0, 5.0, 1))])
def test_where_rounding_would_show_quick_bounds_are_given(recipe: Recipe) -> None:
    tiny = 1e-17
    quick = sampled_gaussian._quick_replaced_epsilon(recipe, tiny)
    assert replaced_epsilon(recipe, 1e-9) < replaced_epsilon(recipe, tiny) == quick
    assert replaced_epsilon(recipe, DELTA) < sampled_gaussian._quick_replaced_epsilon(recipe, DELTA)
    spread = tuple((rate, z / math.sqrt(3), 3 * count) for rate, z, count in recipe)
    assert rows_epsilon([recipe], 3, tiny) == quick_record_epsilon(spread, tiny)
    assert rows_epsilon([recipe], 3, DELTA) < record_epsilon(spread, DELTA)


@pytest.mark.parametrize("rate", [0.05, 0.5, 1.0])
def test_the_quick_bound_of_a_replacement_holds_for_the_divergence_itself(rate: float) -> None:
    """Renyi divergences by integration, of a few orders: where sampling is none, (order) 2 / z^2."""
    z, x = 2.0, np.linspace(-80, 80, 400_001)
    present, absent = replaced_mixtures(rate)
    first, second = log_density(x, present, z), log_density(x, absent, z)
    for order in (2, 5, 11):
        moment = np.trapezoid(np.exp(order * first + (1 - order) * second), x)
        divergence = math.log(moment) / (order - 1)
        if rate == 1:
            assert divergence == pytest.approx(order * 2 / z**2)
        removed, added = (sampled_gaussian._divergences(rate, z)[at - 2] for at in (2 * order, 2 * order - 1))
        assert divergence <= (order - 0.5) / (order - 1) * removed + added


# ---- several rows


def by_google(recipe: Recipe, rows: int, pessimistic: bool, grid: float) -> float:
    """Epsilon of a person by Google's accountant, rounded up or down, in steps of `grid`."""
    total = None
    for rate, multiplier, count in recipe:
        chances = [chance for chance, _ in rows_mixtures(rate, rows)[0]]
        one = privacy_loss_distribution.from_mixture_gaussian_mechanism(
            multiplier,
            list(range(rows + 1)),
            chances,
            pessimistic_estimate=pessimistic,
            value_discretization_interval=grid,
            use_connect_dots=pessimistic,
        ).self_compose(count)
        total = one if total is None else total.compose(one)
    assert total is not None
    return float(total.get_epsilon_for_delta(DELTA))


@pytest.mark.parametrize(
    ("recipe", "rows"),
    [
        (((0.1, 1.4, 50),), 3),
        (((0.5, 3.0, 20), (1.0, 8.0, 1)), 2),
        pytest.param(((0.02, 1.0, 60),), 5, marks=pytest.mark.slow),
    ],
)
def test_several_rows_cost_what_google_says_of_as_many_coins(recipe: Recipe, rows: int) -> None:
    found = rows_epsilon([recipe], rows, DELTA)
    assert by_google(recipe, rows, pessimistic=False, grid=2e-2) <= found
    assert found == pytest.approx(by_google(recipe, rows, pessimistic=True, grid=2e-2), rel=2e-3)


@pytest.mark.parametrize(("rate", "z", "rows", "steps"), [(0.02, 0.8, 5, 8), (0.4, 2.0, 2, 10), (0.9, 5.0, 4, 3)])
def test_several_rows_are_never_below_losses_rounded_down(rate: float, z: float, rows: int, steps: int) -> None:
    present, absent = rows_mixtures(rate, rows)
    least = least_epsilon([(present, absent, z, steps)], DELTA, grid=1e-3)
    found = person_epsilon(((((rate, z, steps),), rows),), DELTA)
    assert least <= found <= least + steps * 1e-3 + 2e-3 * least


def test_three_rows_at_a_small_rate() -> None:
    """A bound by three steps with a third of the variance each says 19.26."""
    assert rows_epsilon([((0.02, 1.0, 500),)], 3, DELTA) == pytest.approx(9.815, abs=2e-3)
    assert record_epsilon(((0.02, 1 / math.sqrt(3), 1500),), DELTA) == pytest.approx(19.26, abs=0.01)


def test_one_contribution_is_a_record_and_more_cost_more() -> None:
    recipe = ((0.1, 1.5, 30),)
    figures = [person_epsilon(((recipe, contributions),), DELTA) for contributions in (1, 2, 3, 5)]
    assert figures[0] == record_epsilon(recipe, DELTA)
    assert all(later > earlier + record_epsilon(recipe, DELTA) for earlier, later in pairwise(figures))


def test_a_smaller_rate_of_some_coins_costs_no_more() -> None:
    """Coins of rates 0.1 and 0.3 cost less than two of 0.3, and more than two of 0.1, at every order."""
    unequal = ((0.9 * 0.7, 0.0), (0.9 * 0.3 + 0.1 * 0.7, 1.0), (0.1 * 0.3, 2.0))
    for epsilon in (-0.5, 0.1, 1.0):
        for worlds in (lambda mixture: (mixture, ((1.0, 0.0),)), lambda mixture: (((1.0, 0.0),), mixture)):
            low, middle, high = (
                mixture_delta(*worlds(mixture), 1.5, epsilon)
                for mixture in (rows_mixtures(0.1, 2)[0], unequal, rows_mixtures(0.3, 2)[0])
            )
            assert low <= middle <= high


def test_parts_with_noise_of_their_own_compose() -> None:
    """As many parts of one contribution each are as many runs; one part of all of them shares its noise, costs more."""
    recipe: Recipe = ((0.1, 1.5, 30),)
    apart = person_epsilon(((recipe, 1), (recipe, 1)), DELTA)
    assert apart == pytest.approx(record_epsilon(((0.1, 1.5, 60),), DELTA), rel=1e-3)
    assert person_epsilon(((recipe, 2),), DELTA) > apart
    mixed = person_epsilon(((recipe, 2), (((1.0, 4.0, 1),), 3)), DELTA)
    assert mixed > max(person_epsilon(((recipe, 2),), DELTA), epsilon_of(3 / 4, DELTA))
