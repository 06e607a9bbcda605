"""Lower bounds of epsilon, against numbers worked out otherwise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from sordino.auditing.bounds import (
    Guesses,
    best_one_run,
    mean_difference,
    one_run,
    one_run_gaussian,
    one_run_p_value,
    upper_rate,
)
from sordino.auditing.findings import Scores
from sordino.privacy.accounting.gaussian import epsilon_of, mu_of


@pytest.mark.parametrize(("errors", "trials", "risk"), [(0, 50, 0.05), (7, 100, 0.01), (40, 60, 0.001)])
def test_a_rate_is_bounded_by_the_binomial_law_itself(errors: int, trials: int, risk: float) -> None:
    assert binom.cdf(errors, trials, upper_rate(errors, trials, risk)) == pytest.approx(risk)


def test_all_errors_bound_nothing() -> None:
    assert upper_rate(5, 5, 0.05) == 1.0
    assert Guesses(5, 5, 5, 5).gdp(1e-5, 0.95) == 0.0
    assert Guesses(5, 5, 5, 5).model_free(1e-5, 0.95) == 0.0


def test_guesses_count_both_kinds_of_errors() -> None:
    assert Guesses.of(np.array([1.0, 3.0, 4.0]), np.array([0.0, 2.5]), 2.0) == Guesses(1, 3, 1, 2)


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 8.0])
def test_the_gaussian_bound_approaches_the_truth_from_below(epsilon: float) -> None:
    mu = mu_of(epsilon, 1e-5)
    found = []
    for trials in (10**4, 10**6):
        wrong = round(trials * norm.cdf(-mu / 2))
        found.append(Guesses(wrong, trials, wrong, trials).gdp(1e-5, 0.95))
    assert found[0] < found[1] < epsilon
    assert found[1] > 0.95 * epsilon


def test_the_model_free_bound_by_hand() -> None:
    """With no errors in 1,000 trials of each kind both rates are at most 1 - 0.025^(1/1000)."""
    rate = 1 - 0.025 ** (1 / 1000)
    assert Guesses(0, 1000, 0, 1000).model_free(1e-5, 0.95) == pytest.approx(math.log((1 - rate - 1e-5) / rate))


def test_the_chosen_threshold_is_not_counted() -> None:
    """What decides about the threshold is left out of the count."""
    scores = Scores.of(np.full(100, 3.0), np.zeros(100))
    assert (len(scores.inside), len(scores.outside)) == (50, 50)
    assert 0 < scores.threshold < 3


ORACLE = [
    (1000, 1000, 620, 1e-5, 0.95, 0.380339, 0.736354),
    (1000, 200, 150, 1e-5, 0.95, 0.819973, 1.296916),
    (1000, 100, 95, 1e-5, 0.999, 1.438882, 2.125559),
    (4000, 400, 390, 1e-6, 0.95, 3.12465, 5.16363),
    (500, 500, 500, 1e-5, 0.95, 5.101003, 11.144762),
    (325, 60, 41, 1e-5, 0.95, 0.283916, 0.412437),
    (100, 30, 16, 1e-5, 0.95, 0.0, 0.0),
]
"""Canaries, guesses, right ones, delta, confidence; then what `_epsilon_one_run` (Steinke et al.) and
`_epsilon_one_run_fdp` (Mahloujifar et al.) of jax-privacy 2.0.0 compute for them, in an environment of their own."""


@pytest.mark.parametrize(("canaries", "guesses", "right", "delta", "confidence", "steinke", "gaussian"), ORACLE)
def test_one_run_bounds_agree_with_the_literatures_own_code(
    canaries: int, guesses: int, right: int, delta: float, confidence: float, steinke: float, gaussian: float
) -> None:
    assert one_run(canaries, guesses, right, delta, confidence) == pytest.approx(steinke, abs=5e-6)
    assert one_run_gaussian(canaries, guesses, right, delta, confidence) == pytest.approx(gaussian, abs=5e-6)


def test_one_run_without_delta_is_a_binomial_test() -> None:
    """At delta = 0 the bound is the Clopper-Pearson bound of the share of right guesses, as odds."""
    share = 1 - upper_rate(20, 100, 0.05)
    assert one_run(100, 100, 80, 0.0, 0.95) == pytest.approx(math.log(share / (1 - share)), abs=1e-5)


def test_one_run_says_nothing_at_a_large_delta() -> None:
    """Publishing a tenth of all records is (0, 0.1)-private: even a thousand right guesses refute nothing."""
    assert one_run(1000, 1000, 1000, 0.1, 0.95) == 0.0


def test_a_p_value_is_never_above_one() -> None:
    assert one_run_p_value(5.0, 0.01, 1000, 500, 250) == 1.0


def test_the_one_run_bounds_hold_for_gaussian_scores() -> None:
    """Not one of 10 runs of a Gaussian mechanism with epsilon 2 is said to have more, and all have some."""
    random, mu = np.random.default_rng(0), mu_of(2.0, 1e-5)
    for _ in range(10):
        inside, outside = random.normal(mu, 1, 500), random.normal(0, 1, 500)
        assert 0 < best_one_run(inside, outside, 1e-5, 0.95, one_run_gaussian) < 2.0
        assert best_one_run(inside, outside, 1e-5, 0.95, one_run) < 2.0


def test_the_mean_difference_estimates_mu() -> None:
    """Its 99.9 % bound exceeds the truth in none of 200 runs; its 50 % bound, the estimate, in about half."""
    random, mu = np.random.default_rng(1), mu_of(2.0, 1e-5)
    estimates, above = [], 0
    for _ in range(200):
        inside, outside = random.normal(mu, 1, 500), random.normal(0, 1, 500)
        estimate, low = mean_difference(inside, outside, 1e-5, 0.999)
        estimates.append(estimate)
        above += low > 2.0
    assert above <= 2
    assert np.median(estimates) == pytest.approx(2.0, rel=0.05)
    assert epsilon_of(mu, 1e-5) == pytest.approx(2.0)
