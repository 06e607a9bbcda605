"""Epsilon against independent accountants and published figures."""

import math

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from sordino.privacy.accounting.gaussian import (
    attack_accuracy,
    delta_of,
    epsilon_of,
    mu_of,
    rdp_epsilon,
    rdp_multiplier,
)


@pytest.mark.parametrize(("multiplier", "rounds", "delta"), [(1.0, 10, 1e-5), (3.0, 50, 1e-6), (5.0, 1, 1e-3)])
def test_closed_form_agrees_with_privacy_loss_distributions(multiplier: float, rounds: int, delta: float) -> None:
    event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(multiplier), rounds)
    numerical = PLDAccountant().compose(event).get_epsilon(delta)
    assert epsilon_of(math.sqrt(rounds) / multiplier, delta) == pytest.approx(numerical, abs=2e-3)


def test_delta_is_the_textbook_formula() -> None:
    mu, epsilon = 1.3, 0.7
    expected = norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
    assert delta_of(mu, epsilon) == pytest.approx(expected, rel=1e-12)


# ACDP-pFSD's budgets: P = 50, delta = 50^-1.1, T = 100. The paper prints the RDP figures (50.01 for the third).
@pytest.mark.parametrize(
    ("multiplier", "exact", "rdp"),
    [(0.8, 104.84, 112.56), (1.0, 71.21, 77.00), (1.3, 45.72, 50.08), (1.5, 36.10, 39.78), (2.1, 21.05, 23.55)],
)
def test_published_budgets_of_acdp_pfsd(multiplier: float, exact: float, rdp: float) -> None:
    delta = 50**-1.1
    assert epsilon_of(10 / multiplier, delta) == pytest.approx(exact, abs=0.006)
    assert rdp_epsilon(multiplier, 100, delta) == pytest.approx(rdp, abs=0.006)


# FedGLP-ADP and FedDPA, delta = 1/N: multiplier by RDP, and by the exact formula, for epsilon 2, 4, 6, 8, 16.
@pytest.mark.parametrize(
    ("clients", "rounds", "by_rdp", "exact"),
    [
        (10, 20, (3.97, 2.55, 1.96, 1.64, 1.06), (3.27, 2.17, 1.71, 1.44, 0.96)),
        (50, 30, (6.41, 3.84, 2.87, 2.34, 1.45), (5.52, 3.38, 2.56, 2.11, 1.34)),
        (50, 40, (7.40, 4.44, 3.31, 2.70, 1.68), (6.37, 3.91, 2.95, 2.43, 1.54)),
    ],
)
def test_published_multipliers(clients: int, rounds: int, by_rdp: tuple, exact: tuple) -> None:
    for epsilon, rdp, true in zip((2, 4, 6, 8, 16), by_rdp, exact, strict=True):
        assert rdp_multiplier(epsilon, rounds, 1 / clients) == pytest.approx(rdp, abs=0.006)
        assert math.sqrt(rounds) / mu_of(epsilon, 1 / clients) == pytest.approx(true, abs=0.006)


def test_single_gaussian_multipliers_of_pac_dp() -> None:
    for epsilon, expected in ((0.05, 57.8), (0.1, 30.7), (0.5, 7.03), (1, 3.73), (3, 1.39), (5, 0.89), (10, 0.500)):
        assert 1 / mu_of(epsilon, 1e-5) == pytest.approx(expected, rel=0.01)


# SVHN with the released code's defaults: T=15, E=2, B=16, delta=0.1, 73,257 records.
@pytest.mark.parametrize(("target", "multiplier", "true"), [(1, 0.487, 40.9), (2, 0.441, 48.9), (8, 0.358, 71.4)])
def test_released_accounting_of_feddpa(target: float, multiplier: float, true: float) -> None:
    records = 73_257
    steps = round(15 * 2 * records / 16)
    # The two libraries differ by up to 0.0024 at small multipliers, where fractional orders are hard to compute.
    assert rdp_multiplier(target, steps, 0.1, 16 / records) == pytest.approx(multiplier, abs=0.003)
    assert epsilon_of(math.sqrt(15) / multiplier, 0.1) == pytest.approx(true, abs=0.1)


def test_attack_accuracy_at_vacuous_and_sound_delta() -> None:
    assert attack_accuracy(mu_of(8, 0.1)) == pytest.approx(0.940, abs=0.0005)
    assert attack_accuracy(mu_of(8, 1e-5)) == pytest.approx(0.798, abs=0.0005)


@given(mu=st.floats(1e-3, 100), delta=st.floats(1e-12, 0.1))
def test_epsilon_and_mu_are_inverse(mu: float, delta: float) -> None:
    epsilon = epsilon_of(mu, delta)
    if epsilon > 1e-6:
        assert mu_of(epsilon, delta) == pytest.approx(mu, rel=1e-6)


@given(mu=st.floats(0, 50), more=st.floats(0.01, 10), delta=st.floats(1e-9, 0.5))
def test_more_is_never_more_private(mu: float, more: float, delta: float) -> None:
    assert epsilon_of(mu + more, delta) >= epsilon_of(mu, delta)


def test_the_ends() -> None:
    assert epsilon_of(0.0, 1e-5) == 0.0
    assert epsilon_of(math.inf, 1e-5) == math.inf
    assert epsilon_of(1.0, 0.0) == math.inf
    assert delta_of(math.inf, 5.0) == 1.0
