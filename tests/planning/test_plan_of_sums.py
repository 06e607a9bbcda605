"""Plans of runs whose clients share the noise of sums over records, and advice to ask everybody."""

from __future__ import annotations

import math

import pytest
from helpers import command

MU = 0.26806
"""Gaussian budget of epsilon 1 at delta 1e-5."""
SUMS = ("plan", "--method=dp-fedsgd", "--clients=4", "--records=150", "--epsilon=1", "--rounds=60", "--delta=1e-5")


def test_a_plan_of_sums_by_hand() -> None:
    """3 % of mu^2 pay for the labels, the rest for 60 sums; four clients share the noise of each."""
    found = command(*SUMS, "--json").document
    sums = found["sums"]
    noise = math.sqrt(60 / 0.97) / MU
    assert (sums["rounds"], sums["sampling"], sums["guaranteed_shares"]) == (60, 1.0, 4)
    assert sums["noise_multiplier"] == pytest.approx(noise, rel=1e-3)
    assert sums["noise_of_client"] == pytest.approx(noise / 2, rel=1e-3)
    assert found["feasible_parameters"] == pytest.approx((600 / noise) ** 2 * 60, rel=2e-3)
    assert found["epsilon"]["outsider"] == pytest.approx(1, rel=1e-3)
    (labels,) = sums["once"]
    assert labels["release"] == "labels"
    assert labels["deviation"] == pytest.approx(1 / (MU * math.sqrt(0.03)), rel=1e-3)
    assert 0 < labels["epsilon"] < 0.2
    assert sums["deployment_seconds"] > 0


def test_against_the_server_each_client_adds_all_noise() -> None:
    sums = command(*SUMS, "--protect-from=server", "--json").document["sums"]
    assert sums["guaranteed_shares"] == 1
    assert sums["noise_of_client"] == sums["noise_multiplier"]
    (labels,) = sums["once"]
    assert labels["deviation"] == pytest.approx(2 / (MU * math.sqrt(0.03)), rel=1e-3), "four clients' noise adds up"


def test_a_plan_of_sums_is_told_in_sentences() -> None:
    told = " ".join(command(*SUMS).out.split())
    assert "T = 60 rounds of one sum each, over all records." in told
    assert "Each of 4 clients adds noise of standard deviation 14.67 C to its message" in told
    assert "its share of 4 that are guaranteed" in told
    assert "On real machines it takes about" in told
    sampled = " ".join(command(*SUMS, "--set", "sampling=0.25").out.split())
    assert "each record with probability q = 0.25" in sampled


def test_a_plan_without_sums_tells_of_none() -> None:
    found = command("plan", "--method=dp-fedavg-record", "--clients=4", "--records=150", "--json").document
    assert found["sums"] is None


def test_a_plan_says_what_asking_everybody_would_bring() -> None:
    """p (n mu)^2 parameters: ten times as many with everybody as with a tenth."""
    tenth = command("plan", "--clients=300", "--participation=0.1", "--epsilon=1", "--json").document
    everybody = command("plan", "--clients=300", "--epsilon=1", "--json").document
    assert everybody["feasible_parameters"] == pytest.approx(10 * tenth["feasible_parameters"], rel=0.01)
    assert f"about {round(tenth['feasible_parameters'] * 10):,}, 10 times as many" in " ".join(tenth["advice"])
    assert not any("Ask everybody" in sentence for sentence in everybody["advice"])
    server = ("--protect-from=server",)
    alone = command("plan", "--clients=300", "--participation=0.1", "--epsilon=1", *server, "--json").document
    assert not any("Ask everybody" in sentence for sentence in alone["advice"]), "there no noise is shared"
