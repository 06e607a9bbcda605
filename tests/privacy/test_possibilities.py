"""Records of which only the possibilities are known pay for the dearest: never less, hardly more."""

from __future__ import annotations

import itertools
import math
from unittest import mock

import numpy as np
import pytest
from closed_forms import by_google, true_delta
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.privacy.accounting import across_runs
from sordino.privacy.accounting.across_runs import Run, dearest_epsilon, merge_recipes
from sordino.privacy.accounting.gaussian import epsilon_of
from sordino.privacy.accounting.loss_distribution import Losses, Masses, compose
from sordino.privacy.accounting.sampled_gaussian import record_epsilon
from sordino.privacy.budget.record_level_plan import plan_records

DELTA = 1e-5


def enveloped(runs: tuple[Run, ...], delta: float = DELTA) -> float:
    """The figure where combinations are taken to be too many."""
    with mock.patch.object(across_runs, "MAX_COMBINATIONS", 1):
        return dearest_epsilon.__wrapped__(runs, delta)


def one_by_one(runs: tuple[Run, ...], delta: float = DELTA) -> float:
    """The dearest combination."""
    return max(record_epsilon(merge_recipes(chosen), delta) for chosen in itertools.product(*runs))


def test_infinite_losses_count_at_every_epsilon() -> None:
    found = across_runs.upper_deltas(Losses(np.ones(1), np.array([0.25]), 0.5), np.array([0.0, 2.0]))
    assert found[0] >= 0.5 + 0.25 * -math.expm1(-1)
    assert found[1] >= 0.5


def added_up(runs: tuple[Run, ...], delta: float = DELTA) -> float:
    """Epsilons and deltas of runs, added up."""
    return sum(max(record_epsilon(recipe, delta / len(runs)) for recipe in run) for run in runs)


def planned(budget: float, turns: int, sizes: list[int]) -> Run:
    """What the records of clients of some sizes go through, each within the same budget."""
    plan = plan_records(sizes, np.full(len(sizes), budget), DELTA, batch=20, epochs=1, turns=turns)
    charges = [plan.charge(client) for client in range(len(sizes))]
    return tuple(((rate, multiplier, steps * turns),) for rate, multiplier, steps in charges)


SIZES = [60, 90, 140, 300, 800, 2000]
kinds = st.tuples(st.floats(0.01, 0.9), st.floats(0.7, 8.0), st.integers(0, 60))
recipes = st.lists(kinds, max_size=2).map(tuple)
possible = st.lists(recipes, min_size=1, max_size=3).map(tuple)


@settings(max_examples=60, deadline=None)
@given(runs=st.lists(possible, min_size=2, max_size=3).map(tuple), delta=st.sampled_from([1e-3, 1e-5, 1e-8]))
def test_no_combination_costs_more(runs: tuple[Run, ...], delta: float) -> None:
    """Up to the tenth of a percent by which distributions on grids may be above the truth; by as much at the most it is
    above epsilons that add up."""
    found, dearest = enveloped(runs, delta), one_by_one(runs, delta)
    assert found >= dearest * (1 - 1e-3)
    assert found <= added_up(runs, delta) * (1 + 1e-3)


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param(
            ((((0.1, 1.0, 20),), ((0.5, 4.0, 30),)), (((0.02, 0.6, 10),), ((0.9, 6.0, 40),))), marks=pytest.mark.slow
        ),
        ((((0.3, 1.5, 12),), ((0.05, 0.8, 40),)), (((1.0, 1.2, 1),),)),
    ],
)
def test_never_below_googles_accountant_rounded_down(runs: tuple[Run, ...]) -> None:
    truth = max(
        by_google(merge_recipes(chosen), DELTA, pessimistic=False, grid=1e-4) for chosen in itertools.product(*runs)
    )
    assert truth <= enveloped(runs) <= one_by_one(runs) * 1.01


def delta_made(masses: Masses, grid: float, epsilon: float) -> float:
    loss = (masses.first + np.arange(len(masses.mass))) * grid
    return masses.infinite + float(masses.mass @ np.maximum(-np.expm1(epsilon - loss), 0.0))


@pytest.mark.parametrize("grid", [0.003, 0.05, 0.4])
def test_an_envelope_is_nowhere_below_its_recipes(grid: float) -> None:
    """Delta for every epsilon, negative ones too: only then does it stay so under composition. It is the largest one
    on the grid, up to what is cut off, and one of three curves at a time: they cross."""
    steps = [(0.02, 0.5), (0.3, 1.0), (1.0, 2.0)]
    pairs = [compose(((rate, multiplier, 1),), 1e-8) for rate, multiplier in steps]
    widest = max(float(one.loss[-1]) for pair in pairs for one in pair)
    dearest = set()
    for direction, masses in enumerate(across_runs._envelopes(pairs, widest, grid)):
        for place in range(masses.first - 3, -masses.first + 3):
            for epsilon in (place * grid, (place + 0.4) * grid):
                deltas = [true_delta(rate, multiplier, epsilon, direction) for rate, multiplier in steps]
                made = delta_made(masses, grid, epsilon)
                assert made >= max(deltas) - 1e-14
                if epsilon == place * grid:
                    assert made <= max(deltas) * (1 + 1e-3) + 2e-5
                if 1e-6 < max(deltas) < 0.9:
                    dearest.add((direction, int(np.argmax(deltas))))
    assert len(dearest) > 2


@settings(max_examples=60, deadline=None)
@given(
    deltas=st.lists(st.floats(0, 1), min_size=2, max_size=9).map(lambda values: sorted(values, reverse=True)),
    opposite=st.lists(st.floats(0, 1), min_size=9, max_size=9).map(lambda values: sorted(values, reverse=True)),
    grid=st.floats(1e-3, 2),
)
def test_whatever_masses_lack_is_infinite_loss(deltas: list[float], opposite: list[float], grid: float) -> None:
    """Of curves that no pair of distributions has, too: rounding could make any."""
    above, below = np.array(deltas), np.array(opposite[: len(deltas)])
    masses = across_runs._envelope(above, below, grid)
    assert masses.infinite + masses.mass.sum() >= 1
    for place, (delta, other) in enumerate(zip(above, below, strict=True)):
        assert delta_made(masses, grid, place * grid) >= delta
        if place:
            assert delta_made(masses, grid, -place * grid) >= 1 - math.exp(-place * grid) * (1 - other)


@settings(max_examples=20, deadline=None)
@given(runs=st.lists(st.lists(st.floats(0.05, 2), min_size=1, max_size=4), min_size=2, max_size=3))
def test_without_sampling_the_dearest_gaussians_add_up(runs: list[list[float]]) -> None:
    """The largest mu of each run, in squares: what envelopes come to is never below, and the closed form is told."""
    given = tuple(tuple(((1.0, 1 / mu, 1),) for mu in run) for run in runs)
    expected = epsilon_of(math.hypot(*(max(run) for run in runs)), DELTA)
    assert enveloped(given) == pytest.approx(expected, rel=1e-9)
    for losses in across_runs._compose_envelopes(given, DELTA):
        assert expected * (1 - 1e-12) <= losses.epsilon(DELTA) <= expected * 1.002


def test_more_possibilities_than_can_be_tried() -> None:
    """Six sizes at epsilon 2, over ten rounds and over thirty: 2.91 together, not 4.18; ten such runs, 3 x 10^7
    combinations, less than a third of the sum."""
    short, long = planned(2, 10, SIZES), planned(2, 30, SIZES)
    assert enveloped((short, long)) == pytest.approx(one_by_one((short, long)), rel=2e-3)
    assert one_by_one((short, long)) == pytest.approx(2.914, abs=2e-3)
    assert added_up((short, long)) == pytest.approx(4.176, abs=2e-3)
    ten = (short, long) * 5
    clients = [one_by_one(tuple((run[client],) for run in ten)) for client in range(len(SIZES))]
    assert max(clients) * (1 - 1e-3) <= dearest_epsilon(ten, DELTA) <= max(clients) * 1.01
    assert dearest_epsilon(ten, DELTA) < 0.33 * added_up(ten)


def test_rare_records_at_a_small_delta() -> None:
    """Losses of removed and of added records lie far apart here, and the grids of their distributions with them."""
    runs: tuple[Run, ...] = (
        (((0.003, 0.85, 30),), ((0.37, 1.9, 4),)),
        (((0.0033, 0.45, 8),), ((0.0011, 0.75, 559),)),
    )
    assert enveloped(runs, 2e-9) == pytest.approx(one_by_one(runs, 2e-9), rel=1e-2)
    assert added_up(runs, 2e-9) > 1.3 * one_by_one(runs, 2e-9)


def test_what_cannot_be_enveloped_adds_up() -> None:
    """A delta that is smaller than roundings, and losses without exponentials."""
    runs = (planned(2, 10, SIZES), planned(2, 30, SIZES))
    assert enveloped(runs, 1e-12) == added_up(runs, 1e-12)
    wide = ((((0.5, 0.05, 3),), ((0.4, 0.05, 3),)), runs[0])
    assert across_runs._compose_envelopes(wide, DELTA) == [across_runs.UNBOUNDED]
    assert math.isfinite(added_up(wide))
    assert enveloped(wide) <= added_up(wide)


def test_what_is_bare_or_empty() -> None:
    some = planned(2, 10, SIZES)
    assert enveloped((some, (((1.0, 0.0, 1),), *some))) == math.inf
    assert enveloped((some, (((1.0, 0.0, 0),), ()))) == pytest.approx(one_by_one((some,)), rel=2e-3)
    assert dearest_epsilon((), DELTA) == enveloped(((), ((),))) == 0.0
    assert dearest_epsilon(((), some), DELTA) == one_by_one((some,)), "a run that cost nothing hides no other"
