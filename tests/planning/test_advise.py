"""The advice, held against what was measured, and how the command gives it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import command, refused
from measured import FIXED, LATER, LOCAL, MEASURED, QUANTILE, RECORD

from sordino.data.schema import PersonRules
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.planning.advise import CHOICES, advise, stand_in
from sordino.planning.situation import HELPS, Situation, situation_of
from sordino.privacy.unit import Unit
from sordino.study.sweep import contender


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
    assert (sum(right.values()), len(right)) == (45, 49), [name for name, fits in right.items() if not fits]
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


def test_a_size_that_is_presumed_is_told_with_how_to_give_another() -> None:
    """(20 mu)^2 is 1,110: a tenth of it is enough for 1,000 parameters, and not for 20,000."""
    given = ("advise", "--clients=20", "--records=50")
    outcomes = [command(*given, *more, "--json").document for more in ((), ("--parameters=20000",))]
    assert [found["level"] for found in outcomes] == ["client", "none"]
    presumed, named = (" ".join(found["advice"]) for found in outcomes)
    for words in ("This presumes 1,000 shared parameters", "with --parameters", "with --data"):
        assert words in presumed
        assert words not in named
    assert "presumes" not in " ".join(advise(Situation(1, 50, 8)).advice)  # nobody to share with


def test_every_level_is_advised_somewhere() -> None:
    found = {advise(where).level for where in (Situation(300, 48, 8), Situation(5, 5000, 8), Situation(5, 20, 1))}
    assert found == {"client", "record", "none"}


def test_feasible_parameters_by_hand() -> None:
    """mu at epsilon 8 and delta 1e-5 is 1.666. Shared noise: (100 mu)^2, (10 480 mu)^2; all noise at each client:
    100 mu^2, 10 (480 mu)^2."""
    assert Situation(100, 14, 8).feasible(Unit.CLIENT) == pytest.approx((100 * 1.666) ** 2, rel=1e-3)
    assert Situation(100, 14, 8, protect_from="server").feasible(Unit.CLIENT) == pytest.approx(100 * 1.666**2, rel=1e-2)
    records = Situation(10, 480, 8, delta=1e-5)
    assert records.feasible(Unit.RECORD) == pytest.approx((10 * 480 * 1.666) ** 2, rel=1e-3)
    assert records.noise_at_each().feasible(Unit.RECORD) == pytest.approx(10 * (480 * 1.666) ** 2, rel=1e-3)


def test_the_guide_for_tables_by_hand() -> None:
    """r = d s / (2 mu n) with mu = 0.2681 at epsilon 1, 11 columns, the intercept included, and 200 rare outcomes."""
    where = Situation(4, 150, 1, 22, delta=1e-5, table=True, rare=200)
    assert where.guide == pytest.approx(11 / (2 * 0.2681 * 200), rel=1e-3)
    assert where.noise_at_each().guide == pytest.approx(2 * where.guide)
    assert replace(where, rare=None).guide == pytest.approx(11 / (2 * 0.2681 * 300), rel=1e-3), "half of all records"


def test_colluders_and_small_cohorts_leave_less_noise_to_share(tmp_path: Path) -> None:
    """Of ten clients nine collude: each adds all noise, as where the server is not trusted."""
    where = Situation(10, 100, 1, 22, delta=1e-5, table=True, rare=200)
    colluding = replace(where, shares=1)
    assert colluding.guide == pytest.approx(where.guide * math.sqrt(10))
    assert colluding.feasible(Unit.RECORD) == pytest.approx(where.feasible(Unit.RECORD) / 10, rel=1e-3)
    assert "over the 1 whose noise nobody can subtract" in " ".join(advise(colluding).advice)
    for keys, shares in (("", 10), ("colluders = 3", 7), ("minimum_cohort = 6\ncolluders = 1", 5)):
        (tmp_path / "own.toml").write_text(f"clients = 10\n{keys}\n")
        found = situation_of(Experiment.read(tmp_path / "own.toml"), 100, None, False, 10)
        assert found.together == shares


def test_more_rare_outcomes_than_records_are_refused() -> None:
    assert "Of 400 records of all clients, 500 cannot" in refused(
        "advise", "--clients=4", "--records=100", "--columns=5", "--rare=500"
    )


def test_tables_at_a_few_sites_are_advised_to_share_noise() -> None:
    hospitals = Situation(4, 150, 1, 22, delta=1e-5, table=True, rare=200)
    found = advise(hospitals)
    assert (found.level, found.method) == ("record", "dp-fedsgd")
    assert found.settings == ["model=logistic", "rounds=60", "personal=recalibrate"]
    told = " ".join(found.advice)
    assert "The guide r = d s / (2 mu n) is 0.1" in told
    assert "whose noise the clients share" in told
    assert advise(replace(hospitals, clients=60)).method != "dp-fedsgd", "measured for at most 50 sites"
    assert advise(replace(hospitals, records=10)).method != "dp-fedsgd", "and for at least 20 records"


def test_persons_are_protected_in_every_sentence() -> None:
    hospitals = Situation(4, 150, 1, 22, delta=1e-5, table=True, rare=200, total=600)
    found = advise(replace(hospitals, persons=PersonRules("patient", 8, 1)))
    told = " ".join(found.advice)
    assert found.level == "person"
    assert "600 persons to train on in all (150 at the client in the middle)" in told
    assert "under a promise to each person" in told
    assert "under a promise to each record" in " ".join(advise(hospitals).advice)


def test_tables_that_gain_nothing_are_told_so() -> None:
    wide = Situation(4, 150, 1, 400, delta=1e-5, table=True, rare=200)
    large = Situation(4, 5000, 1, 22, table=True, rare=8000)
    for where, why in ((wide, "with so much noise it is"), (large, "with so many records of its own a client is")):
        found = advise(where)
        assert (found.level, found.method) == ("none", "local")
        assert f"{why} expected to gain about nothing" in " ".join(found.advice)
        assert "expected gain" in " ".join(found.advice)


def test_columns_and_rare_outcomes_can_be_given() -> None:
    given = ("advise", "--clients=4", "--records=150", "--epsilon=1", "--columns=10")
    assumed = command(*given, "--json").document
    assert assumed["method"] == "dp-fedsgd"
    assert "half of all, which is assumed" in " ".join(assumed["advice"])
    few = command(*given, "--rare=20", "--json").document
    assert few["level"] == "none"
    assert "20 training records with the rarer outcome (as given)" in " ".join(few["advice"])
    assert "either --columns" in refused(*given, "--parameters=22")


def test_a_table_is_counted_on_this_machine(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for site in range(4):
        x, ill = random.normal(size=(120, 5)), random.random(120) < 0.3
        rows = [",".join(f"{value:.3f}" for value in row) + f",{int(sick)}" for row, sick in zip(x, ill, strict=True)]
        (tmp_path / f"site{site}.csv").write_text("\n".join(["a,b,c,d,e,ill", *rows]))
    found = command("advise", "--data", tmp_path, "--label=ill", "--epsilon=1", "--json").document
    assert found["method"] == "dp-fedsgd"
    assert "d = 6 columns, the intercept included" in " ".join(found["advice"])
    assert "counted on this machine, which epsilon does not cover" in " ".join(found["advice"])


def test_sites_of_very_different_sizes_may_have_more_rare_outcomes_than_the_one_in_the_middle(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for site, size in enumerate((30, 30, 30, 600)):
        rows = [f"{value:.3f},{place % 2}" for place, value in enumerate(random.normal(size=size))]
        (tmp_path / f"site{site}.csv").write_text("\n".join(["a,ill", *rows]))
    found = command("advise", "--data", tmp_path, "--label=ill", "--epsilon=1", "--json").document
    assert found["advice"]


def test_asking_everybody_is_advised_where_whole_clients_share_noise() -> None:
    many = Situation(300, 5, 1, 650)
    assert "Ask everybody in every round" in " ".join(advise(many).advice)
    assert "Ask everybody" not in " ".join(advise(replace(many, clients=30_000, protect_from="server")).advice)


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
    assert where.ratio(Unit.RECORD) > HELPS[Unit.RECORD]
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
    assert any("the network mlp has 4,810" in sentence for sentence in found["advice"])


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
    assert told.startswith(f"--{option} needs data: name them with --data")
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
