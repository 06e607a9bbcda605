"""The advice, held against what was measured, and how the command gives it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import command, refused

from sordino.errors import UserError
from sordino.experiment.advise import CHOICES, HELPS, Situation, advise, stand_in
from sordino.experiment.config import Experiment
from sordino.experiment.sweep import contender

LOCAL = "local"
QUANTILE, FIXED = (f"dp-fedavg[clipping={threshold},personal=blend]" for threshold in ("quantile", "fixed"))
FOLLOWING, RECORD = (f"dp-fedavg-record[clipping={threshold},personal=blend]" for threshold in ("quantile", "fixed"))
MR_MTL = "mr-mtl-record[personal=blend]"
VACUOUS = {"delta": 0.1, "allow_vacuous_delta": True}

# How the record level's threshold was chosen: personal accuracy in %, mean over seeds 10, 11 and 12, all blended but
# `local`. Heart Disease as below; digits with --partition dirichlet:0.5 --rounds 15; Fashion-MNIST with --set
# records=6000 --partition dirichlet:0.5 --rounds 10; each with --seed 10 --seeds 3 --set evaluate_every=1000 and
#
#   --methods 'local,dp-fedavg-record[personal=blend],dp-fedavg-record[clipping=quantile,personal=blend],
#     mr-mtl-record[personal=blend],dp-fedavg-record[clip=0.3,personal=blend],dp-fedavg-record[clip=3,personal=blend]'
#
#                                       local  clip=1  quantile  mr-mtl  clip=0.3  clip=3
# Heart Disease, epsilon 1               78.2    81.8      81.8    81.8      81.5    81.5
# Heart Disease, epsilon 8               78.2    81.9      81.6    81.5      81.1    81.3
# digits, 20 clients, logistic, 2        90.5    92.2      90.8    92.1      90.8    90.8
# digits, 20 clients, logistic, 8        90.5    94.3      95.0    95.3      91.7    94.0
# digits, 20 clients, MLP, 2             89.8    89.8      90.1    89.6      89.6    90.4
# digits, 20 clients, MLP, 8             89.8    93.4      92.7    93.8      89.7    92.2
# digits, 5 clients, logistic, 2         95.1    95.0      95.0    94.4      95.3    94.9
# digits, 5 clients, logistic, 8         95.1    96.0      95.3    95.9      95.4    94.9
# digits, 5 clients, MLP, 8              95.7    96.2      95.2    95.4      95.4    95.8
# Fashion-MNIST, 5 clients, logistic, 8  85.1    86.1      85.6    85.5      86.0    85.4
# mean                                   88.8    90.7      90.3    90.5      89.7    90.1
#
# What was measured elsewhere: personal accuracy in %, mean over seeds 0, 1 and 2 where not said otherwise, by what
# `compare --methods` takes. Contenders that protect records are left out where clients have fewer of them than an
# institution. Blended rows of experiments/ whose headers have none are the same command with QUANTILE and FIXED; those
# of rivals.toml have its public records, too (--set public=holdout:0.1).
MEASURED: dict[str, tuple[Situation, dict[str, float]]] = {
    "demo.toml": (
        Situation(100, 14, 8, 650),
        {LOCAL: 72.4, QUANTILE: 93.9, FIXED: 93.6, "dp-fedavg": 92.5, "dp-fedavg[epochs=10]": 93.9, "feddpa": 88.7},
    ),
    # experiments/blend.toml; digits over its twenty seeds
    "digits, 100 clients, MLP, epsilon 8": (
        Situation(100, 14, 8, 4810),
        {LOCAL: 70.2, QUANTILE: 92.5, FIXED: 92.4, "feddpa[personal=blend]": 88.8},
    ),
    "digits, 100 clients, MLP, epsilon 2": (
        Situation(100, 14, 2, 4810),
        {LOCAL: 70.2, QUANTILE: 82.7, FIXED: 85.4, "feddpa[personal=blend]": 82.3},
    ),
    "digits, 20 clients, epsilon 8": (
        Situation(20, 72, 8, 4810),
        {LOCAL: 90.6, QUANTILE: 90.8, FIXED: 92.1, "feddpa[personal=blend]": 91.9},
    ),
    "digits, 20 clients, epsilon 2": (
        Situation(20, 72, 2, 4810),
        {LOCAL: 90.6, QUANTILE: 90.4, FIXED: 90.6, "feddpa[personal=blend]": 90.6},
    ),
    "Fashion-MNIST, 50 clients, epsilon 8": (
        Situation(50, 96, 8, 50890),
        {LOCAL: 82.6, QUANTILE: 83.6, FIXED: 84.2},
    ),
    "Fashion-MNIST, 50 clients, epsilon 2": (
        Situation(50, 96, 2, 50890),
        {LOCAL: 82.6, QUANTILE: 82.1, FIXED: 82.4},
    ),
    "Fashion-MNIST, 300 clients, epsilon 8": (
        Situation(300, 48, 8, 50890),
        {LOCAL: 76.1, QUANTILE: 83.0, FIXED: 82.3, "dp-fedavg[clipping=quantile]": 74.2},
    ),
    "Fashion-MNIST, 300 clients, epsilon 2": (
        Situation(300, 48, 2, 50890),
        {LOCAL: 76.1, QUANTILE: 82.4, FIXED: 81.9, "dp-fedavg[clipping=quantile]": 74.1},
    ),
    "MNIST, 300 clients, epsilon 8": (
        Situation(300, 24, 8, 50890),
        {LOCAL: 60.7, QUANTILE: 84.7, FIXED: 83.0, "dp-fedavg[clipping=quantile]": 73.4},
    ),
    "MNIST, 300 clients, epsilon 2": (
        Situation(300, 24, 2, 50890),
        {LOCAL: 60.7, QUANTILE: 80.7, FIXED: 80.7, "dp-fedavg[clipping=quantile]": 71.3},
    ),
    "FEMNIST, 296 writers, epsilon 8": (
        Situation(296, 180, 8, 54270),
        {LOCAL: 62.5, QUANTILE: 65.2, "dp-fedavg[clipping=quantile]": 56.4},
    ),
    "FEMNIST, 296 writers, epsilon 2": (
        Situation(296, 180, 2, 54270),
        {LOCAL: 62.5, QUANTILE: 65.0, "dp-fedavg[clipping=quantile]": 56.1},
    ),
    # experiments/pac-dp-heart.toml
    "Heart Disease, epsilon 1": (
        Situation(4, 125, 1, 28),
        {LOCAL: 75.4, QUANTILE: 75.7, RECORD: 81.3, FOLLOWING: 81.8, MR_MTL: 81.5, "pac-dp": 72.1},
    ),
    "Heart Disease, epsilon 8": (
        Situation(4, 125, 8, 28),
        {LOCAL: 75.4, QUANTILE: 76.6, RECORD: 82.7, FOLLOWING: 81.9, MR_MTL: 82.7, "pac-dp": 74.9},
    ),
    # experiments/adadp-cfl-fashion.toml
    "AdaDP-CFL's clients, epsilon 8": (
        Situation(100, 160, 8, 7850),
        {LOCAL: 95.7, QUANTILE: 95.8, FOLLOWING: 95.9, "dp-fedavg-record[clip=5]": 93.7, "adadp-cfl": 92.2},
    ),
    "AdaDP-CFL's clients, epsilon 1": (
        Situation(100, 160, 1, 7850),
        {LOCAL: 95.7, QUANTILE: 95.8, FOLLOWING: 95.9, "dp-fedavg-record": 85.8, "adadp-cfl": 85.7},
    ),
    # --data digits --partition dirichlet:0.5 --rounds 30 --clients N --set records=R, seeds 0 to 9
    "120 digits, 12 clients, epsilon 8": (Situation(12, 8, 8, 650), {LOCAL: 60.9, QUANTILE: 54.8, FIXED: 56.0}),
    "360 digits, 12 clients, epsilon 8": (Situation(12, 24, 8, 650), {LOCAL: 79.1, QUANTILE: 76.8, FIXED: 79.2}),
    "1080 digits, 12 clients, epsilon 8": (Situation(12, 72, 8, 650), {LOCAL: 90.3, QUANTILE: 90.5, FIXED: 90.1}),
    "240 digits, 20 clients, epsilon 8": (Situation(20, 10, 8, 650), {LOCAL: 62.9, QUANTILE: 67.5, FIXED: 73.3}),
    "600 digits, 20 clients, epsilon 8": (Situation(20, 24, 8, 650), {LOCAL: 80.2, QUANTILE: 83.1, FIXED: 84.1}),
    "480 digits, 40 clients, epsilon 8": (Situation(40, 10, 8, 650), {LOCAL: 61.9, QUANTILE: 90.1, FIXED: 89.6}),
    "480 digits, 40 clients, epsilon 2": (Situation(40, 10, 2, 650), {LOCAL: 61.9, QUANTILE: 55.7, FIXED: 61.0}),
    # the same, seeds 0, 1 and 2
    "1797 digits, 10 clients, epsilon 8": (
        Situation(10, 144, 8, 650),
        {LOCAL: 93.8, QUANTILE: 93.6, FIXED: 93.8, RECORD: 94.9, MR_MTL: 95.1},
    ),
    "1797 digits, 5 clients, epsilon 8": (
        Situation(5, 288, 8, 650),
        {LOCAL: 96.7, RECORD: 95.9, FOLLOWING: 96.5, MR_MTL: 96.8},
    ),
    "rivals.toml": (
        Situation(100, 13, 8, 650),
        {
            **{LOCAL: 66.6, QUANTILE: 95.6, FIXED: 95.1, "mr-mtl[personal=blend]": 94.2},
            **{"blur-lus[personal=blend]": 95.0, "dp-fedavg[clipping=quantile]": 94.5, "blur-lus": 94.1},
            **{"nbafl": 93.9, "dp-ifca": 93.5, "dp-fedsam": 93.0, "ditto": 92.8, "mr-mtl": 92.6, "fedprox": 92.2},
            **{"fedper": 92.0, "pfedsd": 91.3, "ppsgd": 90.0, "fedrep": 89.8, "acdp-pfsd": 88.6, "feddpa": 85.2},
        },
    ),
    "fashion-mnist-500-clients.toml": (
        Situation(500, 48, 8, 7850),
        {LOCAL: 70.4, QUANTILE: 83.7, FIXED: 82.4, "dp-fedavg": 75.5, "dp-fedavg[epochs=10]": 78.6, "feddpa": 76.6},
    ),
    "fedglp-adp-10-clients.toml, 2": (
        Situation(10, 160, 2, 44426, **VACUOUS),
        {LOCAL: 72.6, "dp-fedavg": 28.8, "dp-fedavg[epochs=2]": 41.6, "feddpa": 32.9, "fedglp-adp": 31.8},
    ),
    "fedglp-adp-10-clients.toml, 8": (
        Situation(10, 160, 8, 44426, **VACUOUS),
        {LOCAL: 72.6, "dp-fedavg": 51.1, "dp-fedavg[epochs=2]": 58.5, "feddpa": 49.8, "fedglp-adp": 44.5},
    ),
    "fedglp-adp-500-clients.toml": (
        Situation(500, 16, 8, 12730),
        {LOCAL: 53.3, QUANTILE: 86.6, FIXED: 85.9, "dp-fedavg[epochs=10]": 78.5, "feddpa": 75.1, "fedglp-adp": 71.6},
    ),
    "fedglp-adp-ablations.toml": (
        Situation(100, 14, 8, 2410),
        {LOCAL: 71.6, QUANTILE: 89.6, FIXED: 89.3, "dp-fedavg[epochs=4]": 89.7, "feddpa": 83.1, "fedglp-adp": 76.3},
    ),
    "acdp-pfsd-50-clients.toml": (
        Situation(50, 40, 71.2, 25450, delta=0.0135),
        {LOCAL: 83.7, QUANTILE: 90.7, FIXED: 89.0, "acdp-pfsd[clipping=quantile]": 90.1, "acdp-pfsd": 89.7},
    ),
    "acdp-pfsd-ablations.toml": (
        Situation(200, 16, 8, 12730),
        {LOCAL: 72.4, QUANTILE: 87.4, FIXED: 88.7, "dp-fedavg": 85.7, "acdp-pfsd[clipping=fixed]": 84.4},
    ),
    "pac-dp-mnist-budgets.toml": (
        Situation(50, 600, 0.05, 7850),
        {LOCAL: 85.8, "pac-dp[curve=mnist]": 47.1, "pac-dp[curve=mnist,curve_sets=weights]": 48.3},
    ),
    # --set records=6000 --clients 10 --partition dirichlet:0.5 --model lenet --rounds 15 --set epochs=2 --set batch=32
    "Fashion-MNIST, 10 clients, epsilon 8": (Situation(10, 480, 8, 44426), {LOCAL: 81.9, RECORD: 80.5}),
}
"""Situations, and what was measured there."""
# --set records=R --clients N --set evaluate_every=1000, --partition dirichlet:0.5 but for FEMNIST, whose network is the
# MLP; logistic regression where no other is named. Digits: --rounds 20, and 15 with 8 and 4 clients. Else --rounds 10,
# and --set epochs=2 with 4, 6 and 15 clients and for FEMNIST: there `local` passes over the records 20 times, where the
# blend's own local model does 60 times. Only the advice for 40 clients of MNIST is wrong.
LATER: dict[str, tuple[Situation, dict[str, float]]] = {
    "digits, 60 clients, MLP, epsilon 4": (Situation(60, 25, 4, 4810), {LOCAL: 80.5, QUANTILE: 89.0, FIXED: 89.4}),
    "digits, 30 clients, epsilon 1": (Situation(30, 50, 1, 650), {LOCAL: 87.1, QUANTILE: 86.4, FIXED: 87.3}),
    "digits, 16 clients, epsilon 8": (Situation(16, 92, 8, 650), {LOCAL: 90.6, QUANTILE: 90.8, FIXED: 92.3}),
    "600 digits, 25 clients, MLP, epsilon 8": (Situation(25, 20, 8, 4810), {LOCAL: 78.0, QUANTILE: 80.2, FIXED: 87.6}),
    "digits, 8 clients, epsilon 8": (
        Situation(8, 182, 8, 650),
        {LOCAL: 92.5, QUANTILE: 92.9, RECORD: 95.6, FOLLOWING: 95.2, MR_MTL: 95.6},
    ),
    "digits, 4 clients, MLP, epsilon 4": (
        Situation(4, 395, 4, 4810),
        {LOCAL: 95.5, QUANTILE: 95.5, RECORD: 95.6, MR_MTL: 95.9},
    ),
    "3000 of MNIST, 100 clients, epsilon 4": (Situation(100, 25, 4, 7850), {LOCAL: 68.8, QUANTILE: 82.0, FIXED: 82.0}),
    "2000 of MNIST, 40 clients, MLP, epsilon 8": (
        Situation(40, 41, 8, 50890),
        {LOCAL: 76.3, QUANTILE: 81.3, FIXED: 82.9},
    ),
    "4000 of MNIST, 4 clients, epsilon 3": (
        Situation(4, 908, 3, 7850),
        {LOCAL: 90.5, QUANTILE: 90.7, RECORD: 90.7, MR_MTL: 90.8},
    ),
    "6000 of MNIST, 15 clients, epsilon 8": (
        Situation(15, 321, 8, 7850),
        {LOCAL: 90.1, QUANTILE: 90.4, FIXED: 90.3, RECORD: 91.2, MR_MTL: 91.1},
    ),
    "6000 of Fashion-MNIST, 200 clients, epsilon 2": (
        Situation(200, 25, 2, 7850),
        {LOCAL: 67.9, QUANTILE: 78.9, FIXED: 78.7},
    ),
    "6000 of Fashion-MNIST, 6 clients, epsilon 8": (
        Situation(6, 888, 8, 7850),
        {LOCAL: 83.5, QUANTILE: 85.8, RECORD: 86.7, MR_MTL: 86.5},
    ),
    "FEMNIST, 100 writers, epsilon 8": (Situation(100, 142, 8, 54270), {LOCAL: 61.9, QUANTILE: 65.0, FIXED: 64.1}),
}
"""Settings that were chosen after the advice's thresholds, and had no part in them."""


def advised(where: Situation) -> str:
    """What is advised, as `compare` takes it."""
    found = advise(where)
    assert found.candidates[0] == (f"{found.method}[{','.join(found.settings)}]" if found.settings else found.method)
    return found.candidates[0]


def test_the_advice_is_right_in_nine_of_ten_of_our_settings() -> None:
    """Right: what it advises, method and settings, is within a point of the best that was measured there."""
    right = {
        name: found.get(advised(where), 0) >= max(found.values()) - 1
        for name, (where, found) in (MEASURED | LATER).items()
    }
    assert (sum(right.values()), len(right)) == (46, 49), [name for name, fits in right.items() if not fits]
    assert (sum(right[name] for name in LATER), len(LATER)) == (12, 13)


def test_by_how_much_clients_lose_at_the_worst_where_they_are_advised_to_take_part() -> None:
    """The advice says one or two points."""
    told = {name: (advise(where), found) for name, (where, found) in (MEASURED | LATER).items()}
    taking_part = [(advice, found) for advice, found in told.values() if advice.level != "none"]
    assert 1 < max(found[LOCAL] - found[advice.candidates[0]] for advice, found in taking_part) <= 2
    assert all("one or two points at the worst" in " ".join(advice.advice) for advice, _ in taking_part)


def test_the_threshold_follows_a_quantile_only_where_noised_counts_can_lead_it() -> None:
    """(100 mu)^2 is 27,756 at epsilon 8, 2,515 at epsilon 2; where each message has all of its noise, 277 and 25. At
    record level it never does."""
    many = Situation(100, 14, 8, 650)
    assert advised(many) == QUANTILE
    assert advised(replace(many, epsilon=2)) == FIXED
    assert advised(replace(many, protect_from="server")) == FIXED
    assert advised(Situation(5, 5000, 8)) == RECORD


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


@pytest.mark.parametrize(
    "where",
    [
        Situation(20, 60, 8.0, protect_from="server"),
        Situation(5, 20, 1.0),
        Situation(9, 99, 1000.0),
        Situation(50, 50, 0.5, 1_000_000),
        Situation(10, 10, 1e-3),
    ],
)
def test_so_many_clients_as_are_told_are_just_enough(where: Situation) -> None:
    told = advise(where)
    assert told.level == "none"
    (enough,) = re.findall(r"About ([\d,]+) clients would", " ".join(told.advice))
    enough = int(enough.replace(",", ""))
    assert enough > where.clients
    assert advise(replace(where, clients=enough)).level == "client"
    assert advise(replace(where, clients=enough - 1)).level == "none"


def test_what_no_number_of_clients_makes_worth_trying_is_not_promised() -> None:
    assert not any("clients would" in sentence for sentence in advise(Situation(1_000_000, 1, 1e-6)).advice)


def test_one_is_not_many() -> None:
    said = " ".join(advise(Situation(3, 1, 1e9)).advice + advise(Situation(5, 20, 1.0)).advice)
    assert "with 1 record a client" in said
    assert "about 1 shared parameter can" in said


@pytest.mark.parametrize(("epsilon", "means"), [(1e6, "hardly any protection"), (1e-4, "nothing to learn from")])
def test_budgets_that_are_hardly_meant_are_told(epsilon: float, means: str) -> None:
    assert means in advise(Situation(300, 60, epsilon)).advice[-1]
    assert not any("budgets lie between" in sentence for sentence in advise(Situation(300, 60, 8.0)).advice)


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


@pytest.mark.parametrize("other", ["noise_multiplier = 1.0", '[set.method]\nbudgets = "0.05:0.6,1:0.4"'])
def test_other_budgets_are_not_taken_for_the_default(other: str, tmp_path: Path) -> None:
    """A file whose clients have budgets of 0.05 to 1 must not be advised on as if they had 8."""
    (tmp_path / "own.toml").write_text(f'data = "digits"\nclients = 10\n{other}\n')
    assert "name one with --epsilon" in refused("advise", tmp_path / "own.toml")
    assert command("advise", tmp_path / "own.toml", "--epsilon", "1", "--json").document["level"]


def test_without_privacy_there_is_no_budget_to_advise_on(tmp_path: Path) -> None:
    (tmp_path / "none.toml").write_text('data = "digits"\nclients = 100\nprivacy = "none"\n')
    assert 'with privacy = "none" there is none' in refused("advise", tmp_path / "none.toml")


@pytest.mark.parametrize(
    "option", ["model", "partition", "data-dir", "label", "labels", "drop", "categorical", "schema"]
)
def test_what_is_about_data_is_refused_where_there_are_none(option: str) -> None:
    told = refused("advise", "--clients=10", "--records=50", f"--{option}=mlp")
    assert told.startswith(f"--{option} needs the data that it is for: name them with --data")
    assert ("give --parameters" in told) == (option == "model")


def test_delta_is_checked_for_the_unit_that_is_advised(tmp_path: Path) -> None:
    """0.01 is below 1/5 for five clients, but not below 1/332 for the records of the client with most: what a run with
    the advised method refuses is refused here, in the same words."""
    where = ("--data=digits", "--clients=5", "--epsilon=8", "--rounds=1", "--store", tmp_path)
    given = tuple(one for one in where if one != "--rounds=1")
    for delta in ("0.01", "0.00302"):  # the second is below 1/303, of the client in the middle
        told = refused("advise", *given, f"--delta={delta}")
        assert "vacuous for a client with 332 records" in told
        assert refused("run", *where, "--method=dp-fedavg-record", f"--delta={delta}") == told
    assert command("advise", *given, "--delta=0.003", "--json").document["level"] == "record"
    insisted = command("advise", *given, "--delta=0.01", "--allow-vacuous-delta", "--json").document
    assert insisted["level"] == "record"
    assert any("this epsilon promises nothing" in sentence for sentence in insisted["advice"])


def test_delta_is_checked_for_all_that_would_be_tried_beside_training_alone() -> None:
    """Record level is tried there, too; where whole clients are protected, their records do not matter."""
    alone = Situation(5, 5000, 0.001, delta=1e-5)
    assert advise(alone).level == "none"
    with pytest.raises(UserError, match="a client with 5000 records"):
        advise(replace(alone, delta=0.001))
    assert advise(Situation(300, 5000, 8.0, delta=0.001)).level == "client"


@pytest.mark.parametrize(("clients", "records", "dealt"), [(1, 1, (1, 2)), (2, 1, (1, 2)), (12, 10, (12, 120))])
def test_a_stand_in_has_records_to_train_on_and_to_test_with(clients: int, records: int, dealt: tuple) -> None:
    found = stand_in(Experiment.make({}), Situation(clients, records, 8.0))
    assert (found.clients, found.records) == dealt


@pytest.mark.parametrize("name", CHOICES)
def test_what_is_advised_can_be_run(name: str) -> None:
    for text in (CHOICES[name].contender, *CHOICES[name].others):
        method, settings = contender(text)
        assert Experiment.make({}).for_method(method, settings).method == method


@pytest.mark.slow
def test_trying_runs_the_most_promising(tmp_path: Path) -> None:
    options = ("--clients", "12", "--records", "10", "--epsilon", "8", "--store", tmp_path)
    found = command("advise", *options, "--try", "--json").document
    assert [row["method"] for row in found["tried"]] == found["candidates"]
    assert found["verdict"]
    assert "over_runs" not in found, "nobody's records were tried on"


@pytest.mark.slow
def test_trying_on_people_tells_what_it_cost_them(tmp_path: Path) -> None:
    options = ("--data", "digits", "--clients", "20", "--epsilon", "8", "--store", tmp_path, "--try")
    found = command("advise", *options, "--json").document
    assert found["over_runs"][0]["epsilon"]["outsider"] > 8
    told = command("advise", *options).out
    assert "come to an" in told.replace("\n", " ")
    assert told.index("personal=blend") < told.index("accuracy in %"), "what to use comes before what trying brought"


@pytest.mark.slow
def test_a_single_client_may_try_too(tmp_path: Path) -> None:
    options = ("--clients", "1", "--records", "1", "--store", tmp_path, "--try")
    told = command("advise", *options).out.replace("\n", " ")
    assert "nobody to federate with" in told
    assert "come to an" not in told, "nobody's records were tried on"
