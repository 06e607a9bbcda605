"""Trade-off of the best attack: hits at a rate of false alarms, against closed forms and attacks worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from sordino.privacy.accounting.calibration import record_multiplier
from sordino.privacy.accounting.gaussian import epsilon_of, mu_of
from sordino.privacy.accounting.sampled_gaussian import record_attack_accuracy
from sordino.privacy.accounting.tradeoff import hits, presumed
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS
from sordino.store.spending import hits_of

RATES = (0.001, 0.01, 0.1, 0.5)


def test_of_a_gaussian_it_is_the_closed_form() -> None:
    """Two Gaussians of mu 0.5 and 1.2 are one of mu 1.3."""
    for rate in RATES:
        wanted = norm.cdf(norm.ppf(rate) + 1.3)
        assert hits(((1.0, 2.0, 1), (1.0, 1 / 1.2, 1)), rate) == pytest.approx(wanted, rel=1e-9)
    assert hits(((1.0, 3.0, 9),), 0.01) == pytest.approx(norm.cdf(norm.ppf(0.01) + 1), rel=1e-9)
    assert hits((), 0.01) == pytest.approx(0.01)
    assert hits(((1.0, 2.0, 0),), 0.01) == pytest.approx(0.01), "no step"


def test_a_promise_alone_is_its_two_lines() -> None:
    """Epsilon ln 3 at delta 0.05: three times the false alarms and 0.05, or one third of what is not yet found."""
    promise = (math.log(3), 0.05)
    assert hits((), 0.01, promise) == pytest.approx(0.08)
    assert hits((), 0.5, promise) == pytest.approx(1 - (1 - 0.05 - 0.5) / 3)


def test_without_noise_everything_is_found() -> None:
    assert hits(((1.0, 0.0, 1),), 0.001) == 1.0
    assert hits((), 0.001, (math.inf, 0.0)) == 1.0


@pytest.mark.parametrize(("rate", "multiplier"), [(0.5, 1.0), (0.1, 0.7), (0.9, 2.0)])
def test_of_one_sampled_step_no_attack_reaches_more(rate: float, multiplier: float) -> None:
    """The best attack on one step looks whether the sum is large, or small: both are worked out by hand."""
    for threshold in np.linspace(-4 * multiplier, 1 + 4 * multiplier, 200):
        absent = norm.sf(threshold / multiplier)
        present = (1 - rate) * absent + rate * norm.sf((threshold - 1) / multiplier)
        assert hits(((rate, multiplier, 1),), float(absent)) >= present - 1e-12
        assert hits(((rate, multiplier, 1),), float(1 - present)) >= 1 - absent - 1e-12, "who looks for the absent"
    best = 2 * record_attack_accuracy(((rate, multiplier, 1),)) - 1
    found = max(hits(((rate, multiplier, 1),), one) - one for one in np.linspace(0.001, 0.999, 500))
    assert found == pytest.approx(best, rel=0.01), "the largest gain over blind guessing is the best attack's"


@pytest.mark.parametrize(("rate", "steps"), [(0.01, 1000), (0.2, 50), (0.9, 5)])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_a_promise_is_presumed_to_cost_no_less_than_sampled_noise(epsilon: float, rate: float, steps: int) -> None:
    recipe = ((rate, record_multiplier(epsilon, 1e-5, rate, steps), steps),)
    for false_alarms in (0.0001, 0.001, 0.01, 0.1, 0.5):
        gaussian = presumed((epsilon, 1e-5), false_alarms)
        assert hits(gaussian, false_alarms) >= hits(recipe, false_alarms) * (1 - 1e-3)
    assert presumed((epsilon, 1e-5), 0.00009) == presumed((math.inf, 1e-5), 0.1) == presumed((0.0, 0.0), 0.1) == ()


def test_sampling_hides() -> None:
    """Thousand steps with few records find far less than without sampling, and no less than a central limit says."""
    sampled, all_of_them = hits(((0.01, 1.0, 1000),), 0.001), hits(((1.0, 1.0, 1000),), 0.001)
    limit = norm.cdf(norm.ppf(0.001) + 0.01 * math.sqrt(1000 * (math.e - 1)))  # Bu, Dong, Long and Su 2020
    assert all_of_them == pytest.approx(1.0)
    assert limit * 0.9 < sampled < 3 * limit


@given(st.floats(0.05, 4), st.floats(0.0005, 0.9), st.floats(0.01, 3))
def test_it_is_never_above_what_one_epsilon_says_and_grows(mu: float, rate: float, promised: float) -> None:
    recipe = ((1.0, 1 / mu, 1),)
    found, more = hits(recipe, rate), hits(recipe, rate, (promised, 1e-6))
    assert rate < found <= more + 1e-9
    epsilon = epsilon_of(mu, 1e-5)
    assert found <= min(math.exp(epsilon) * rate + 1e-5, 1 - math.exp(-epsilon) * (1 - 1e-5 - rate)) + 1e-9


def test_the_spending_of_a_run_has_a_figure_for_each_observer() -> None:
    """By its mu, its recipes (the dearest of them) or its promise; one without noise is found for certain."""
    whole = {"unit": Unit.CLIENT, "mu": [0.5, 1.0, None], "recipes": []}
    expected = [norm.cdf(norm.ppf(0.01) + 0.5), norm.cdf(norm.ppf(0.01) + 1.0), 1.0]
    assert [hits_of(whole, view, 0.01) for view in VIEWS] == pytest.approx(expected)  # type: ignore[arg-type]
    records = {"unit": "record", "mu": [], "recipes": [[[1.0, 4.0, 2.0, 1.0, 4]], [[1.0, 2.0, 2.0, 2.0, 1]]]}
    expected = [norm.cdf(norm.ppf(0.01) + mu) for mu in (0.5, 1.0, 2.0)]
    assert [hits_of(records, view, 0.01) for view in VIEWS] == pytest.approx(expected)  # type: ignore[arg-type]
    promised = {"unit": "record", "mu": [], "recipes": [], "promised": [math.log(2), 0.01]}
    wanted = norm.cdf(norm.ppf(0.1) + mu_of(math.log(2), 0.01))
    assert hits_of(promised, "server", 0.1) == pytest.approx(wanted), "as Gaussian noise"  # type: ignore[arg-type]
    assert hits_of(promised, "server", 0.05) == pytest.approx(0.11), "whatever it is"  # type: ignore[arg-type]
    nothing = {"unit": "client", "mu": [0.0, 0.0, 0.0], "recipes": []}
    assert hits_of(nothing, "peer", 0.1) == pytest.approx(0.1)  # type: ignore[arg-type]
