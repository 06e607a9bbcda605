"""The advice, held against what was measured, and how the command gives it."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import command, refused

from sordino.experiment.advise import CHOICES, HELPS, Situation, advise

# Personal accuracy in %, mean over three or twenty seeds where not said otherwise, of what the advice can be at each
# level: the federated method blended, or training alone. Where no file is named: experiments/demo.toml and
# experiments/blend.toml.
MEASURED = {
    "digits, 100 clients, logistic, epsilon 8": (Situation(100, 14, 8, 650), {"client": 94.1, "none": 72.4}),
    "digits, 100 clients, MLP, epsilon 8": (Situation(100, 14, 8, 4810), {"client": 92.4, "none": 70.2}),
    "digits, 100 clients, MLP, epsilon 2": (Situation(100, 14, 2, 4810), {"client": 85.4, "none": 70.2}),
    "digits, 20 clients, epsilon 8": (Situation(20, 72, 8, 4810), {"client": 92.1, "none": 90.6}),
    "digits, 20 clients, epsilon 2": (Situation(20, 72, 2, 4810), {"client": 90.2, "none": 90.6}),
    "Fashion-MNIST, 50 clients, epsilon 8": (Situation(50, 96, 8, 50890), {"client": 82.9, "none": 80.9}),
    "Fashion-MNIST, 50 clients, epsilon 2": (Situation(50, 96, 2, 50890), {"client": 80.9, "none": 80.9}),
    "Fashion-MNIST, 300 clients, epsilon 8": (Situation(300, 48, 8, 50890), {"client": 83.0, "none": 76.1}),
    "Fashion-MNIST, 300 clients, epsilon 2": (Situation(300, 48, 2, 50890), {"client": 82.4, "none": 76.1}),
    "MNIST, 300 clients, epsilon 8": (Situation(300, 24, 8, 50890), {"client": 84.7, "none": 60.7}),
    "MNIST, 300 clients, epsilon 2": (Situation(300, 24, 2, 50890), {"client": 80.7, "none": 60.7}),
    "FEMNIST, 296 writers, epsilon 8": (Situation(296, 180, 8, 54270), {"client": 65.2, "none": 62.5}),
    "FEMNIST, 296 writers, epsilon 2": (Situation(296, 180, 2, 54270), {"client": 65.0, "none": 62.5}),
    # experiments/pac-dp-heart.toml --methods 'local,dp-fedavg[clipping=quantile,personal=blend],
    # dp-fedavg-record[clipping=quantile,personal=blend]'
    "Heart Disease, epsilon 1": (Situation(4, 125, 1, 28), {"client": 73.1, "record": 81.4, "none": 75.4}),
    "Heart Disease, epsilon 8": (Situation(4, 125, 8, 28), {"client": 77.5, "record": 82.0, "none": 75.4}),
    # --records 6000 --clients 10 --partition dirichlet:0.5 --model lenet --rounds 15 --set epochs=2 --set batch=32
    "Fashion-MNIST, 10 clients, epsilon 8, one seed": (Situation(10, 480, 8, 44426), {"record": 78.9, "none": 78.6}),
}
"""Situations, and what was measured there."""


def test_the_advice_is_right_in_nine_of_ten_of_our_settings() -> None:
    """Right: what it advises is within a point of the best that was measured there."""
    right = {
        name: found.get(advise(where).level, 0) >= max(found.values()) - 1 for name, (where, found) in MEASURED.items()
    }
    assert sum(right.values()) >= 0.9 * len(right), [name for name, fits in right.items() if not fits]


def test_every_level_is_advised_somewhere() -> None:
    found = {advise(where).level for where in (Situation(300, 48, 8), Situation(5, 5000, 8), Situation(5, 20, 1))}
    assert found == {"client", "record", "none"}


def test_feasible_parameters_by_hand() -> None:
    """mu at epsilon 8 and delta 1e-5 is 1.666: (100 mu)^2, 100 mu^2, 10 (480 mu)^2 at its own delta."""
    assert Situation(100, 14, 8).feasible("client") == pytest.approx((100 * 1.666) ** 2, rel=1e-3)
    assert Situation(100, 14, 8, protect_from="server").feasible("client") == pytest.approx(100 * 1.666**2, rel=1e-2)
    assert Situation(10, 480, 8, delta=1e-5).feasible("record") == pytest.approx(10 * (480 * 1.666) ** 2, rel=1e-3)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 8.0])
def test_more_of_anything_never_turns_advice_to_federate_into_the_contrary(epsilon: float) -> None:
    levels = [advise(Situation(clients, 50, epsilon, 5000)).level for clients in (2, 10, 50, 200, 1000, 10_000)]
    assert levels == sorted(levels, key=("none", "client").index)


def test_a_single_client_trains_alone() -> None:
    found = advise(Situation(1, 100_000, 8, 100))
    assert (found.level, found.method) == ("none", "local")
    assert "nobody to federate with" in found.advice[0]


def test_few_records_are_not_taken_for_an_institutions() -> None:
    where = Situation(4, 99, 8.0, 28)
    few = advise(where)
    assert few.level == "none"
    assert where.ratio("record") > HELPS["record"]
    assert advise(Situation(4, 100, 8.0, 28)).level == "record"
    assert "may be a person" in few.advice[0]


def test_the_command_for_machines() -> None:
    found = command("advise", "--clients", "300", "--records", "60", "--epsilon", "8", "--json").document
    assert {"level", "method", "advice"} <= set(found)
    assert (found["level"], found["method"]) == ("client", "dp-fedavg")
    assert all(sentence.endswith(".") for sentence in found["advice"])


def test_data_are_counted() -> None:
    found = command("advise", "--data", "digits", "--clients", "100", "--model", "mlp", "--json").document
    assert any("the network has 4,810" in sentence for sentence in found["advice"])


def test_without_data_records_must_be_told() -> None:
    assert "--records" in refused("advise", "--clients", "10", "--epsilon", "1")


@pytest.mark.parametrize("level", CHOICES)
def test_what_is_advised_can_be_run(level: str) -> None:
    from sordino.experiment.config import Experiment
    from sordino.experiment.sweep import contender

    for text in CHOICES[level].candidates:  # type: ignore[index]
        name, settings = contender(text)
        assert Experiment.make({}).for_method(name, settings).method == name


@pytest.mark.slow
def test_trying_runs_the_most_promising(tmp_path: Path) -> None:
    options = ("--clients", "12", "--records", "10", "--epsilon", "8", "--store", tmp_path)
    found = command("advise", *options, "--try", "--json").document
    assert [row["method"] for row in found["tried"]] == found["candidates"]
    assert found["verdict"]
