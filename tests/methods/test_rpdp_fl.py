"""rPDP-FL: budgets of one's own, kept by sampling rates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from dp_accounting import PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.dp_event import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from helpers import command, refused
from whole_runs import Ended

from sordino.methods.dp_fedavg_record import DPFedAvgRecord
from sordino.methods.rpdp_fl import RPDPFL
from sordino.privacy.ledger import Ledger
from sordino.privacy.unit import Unit
from sordino.testing.case import Case

KEYS = {"clients": 4, "records": 500, "partition": "iid", "delta": 1e-5, "noise_multiplier": None}
SETTINGS = {"epochs": 1, "batch": 25}


def test_equal_budgets_are_record_level_dp_fedavg(tmp_path: Path) -> None:
    """To the bit, noise included: the same rate, the same noise, the same steps."""
    mine = Ended(RPDPFL(**SETTINGS), tmp_path, rounds=2, epsilon=4, **KEYS)
    other = Ended(DPFedAvgRecord(**SETTINGS), tmp_path, mine, rounds=2, epsilon=4, **KEYS)
    assert len(set(mine.prepared.data.train.sizes.tolist())) == 1
    for name in ("sampling", "multipliers", "steps", "turns"):
        assert getattr(mine.prepared.allowance.of_records, name).tolist() == (
            getattr(other.prepared.allowance.of_records, name).tolist()
        )
    assert torch.equal(mine.state["model"], other.state["model"])


def test_smaller_budgets_are_sampled_more_rarely_with_the_same_noise(tmp_path: Path) -> None:
    """The ledger, which knows nothing of the plan, has every client within its budget and close to it."""
    run = Ended(RPDPFL(budgets="2,4,4,4", **SETTINGS), tmp_path, rounds=2, **KEYS)
    plan = run.prepared.allowance.of_records
    assert len(set(plan.multipliers)) == 1
    assert len(set(plan.steps)) == 1
    assert plan.sampling[0] < plan.sampling[1] == plan.sampling[2] == plan.sampling[3] == 25 / 100
    spent = Ledger(4, Unit.RECORD, run.ledger).record_epsilons("server", 1e-5)
    for client, budget in enumerate((2, 4, 4, 4)):
        assert 0.97 * budget < spent[client] <= budget


@pytest.mark.slow
def test_with_given_noise_rates_keep_the_budgets_and_nobody_stops(tmp_path: Path) -> None:
    keys = KEYS | {"noise_multiplier": 1.0}
    run = Ended(RPDPFL(budgets="1,2,4,1000", **SETTINGS), tmp_path, rounds=2, **keys)
    plan = run.prepared.allowance.of_records
    assert plan.turns.tolist() == [2] * 4
    assert plan.multipliers.tolist() == [1.0] * 4
    assert plan.sampling[0] < plan.sampling[1] < plan.sampling[2] < plan.sampling[3] == pytest.approx(0.25)
    spent = Ledger(4, Unit.RECORD, run.ledger).record_epsilons("server", 1e-5)
    assert all(spent[client] <= budget for client, budget in enumerate((1, 2, 4, 1000)))


def test_equal_budgets_have_the_same_rates_in_both_variants(tmp_path: Path) -> None:
    sound, paper = (
        Ended(RPDPFL(variant=variant, **SETTINGS), tmp_path, rounds=2, epsilon=4, **KEYS).prepared
        for variant in ("sound", "paper")
    )
    for name in ("sampling", "steps", "turns"):
        assert getattr(sound.allowance.of_records, name).tolist() == getattr(paper.allowance.of_records, name).tolist()
    (less,) = set(sound.allowance.of_records.multipliers)
    (more,) = set(paper.allowance.of_records.multipliers)
    assert less < more < 1.2 * less, "the published accountant is looser"


PUBLISHED = (
    *("--method=rpdp-fl", "--clients=3", "--rounds=15", "--delta=1e-4"),
    *("--set=batch=1000", "--set=epochs=50", "--set=budgets=0.1,1,10"),
)
"""The published setting: all records at the largest budget, 50 steps in each of 15 rounds."""
SMALL = ("--data=digits", "--set=records=90", "--partition=iid", "--model=logistic", "--workers=1")


def accounted(rate: float, multiplier: float, steps: int) -> float:
    """Epsilon at delta 1e-4 by Google's accountant."""
    event = PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier))
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    return float(accountant.compose(SelfComposedDpEvent(event, steps)).get_epsilon(1e-4))


BEYOND = (
    "1 of 3 clients' records pay more than their budgets allow, most of all those of client-0: epsilon 0.11 for a "
    "budget of 0.1."
)


def test_the_published_rates_exceed_the_smallest_budget_and_a_run_says_by_how_much(tmp_path: Path) -> None:
    """What the ledger says of the client with budget 0.1 is what Google's accountant says of what was sampled."""
    options = ("run", *PUBLISHED, *SMALL, "--variant=paper", "--store", tmp_path)
    assert "would come to an epsilon of 9.2" in refused(*options, "--budget-over-runs=9.1")
    summary = command(*options, "--budget-over-runs=9.3", "--json").document
    assert BEYOND in summary["notes"]
    assert RPDPFL.caveats["paper"] in summary["notes"]
    assert summary["stopped_clients"] == []
    recipes = [recipe[0] for recipe in summary["spent"]["recipes"]]
    rate, multiplier, steps = min(recipes)
    assert (len(recipes), steps) == (3, 750)
    true = accounted(rate, multiplier, steps)
    assert 0.109 < true < 0.111
    assert summary["epsilon_clients"]["min"] == pytest.approx(true, rel=0.01)
    assert summary["epsilon"]["server"] == pytest.approx(9.19, abs=0.03)
    planned = command("plan", *PUBLISHED, "--records=30", "--variant=paper", "--json").document
    assert BEYOND in planned["warnings"]
    assert planned["clients"][0]["epsilon"] == summary["epsilon_clients"]["min"]
    assert [client["turns"] for client in planned["clients"]] == [15] * 3


def test_the_sound_variant_exceeds_no_budget(tmp_path: Path) -> None:
    planned = command("plan", *PUBLISHED, "--records=30", "--json").document
    for client in planned["clients"]:
        assert 0.97 * client["budget"] < client["epsilon"] <= client["budget"]
    assert not any("more than their budgets" in warning for warning in planned["warnings"])


def test_budgets_of_clients_are_told_to_stand_in_the_place_of_epsilon(tmp_path: Path) -> None:
    method = RPDPFL(budgets="1,2,4,8", **SETTINGS)
    asked, unasked = (Case(method, tmp_path).prepared(**(KEYS | more)).notes for more in ({"epsilon": 3.0}, {}))
    assert "The clients' own budgets count, and epsilon = 3 does not." in asked
    assert not any("own budgets count" in note for note in unasked)


def test_a_plan_tells_what_is_hardly_meant_as_a_run_does() -> None:
    """An epsilon that does not count is not called unusual besides; one that counts is."""
    records = ("plan", *PUBLISHED, "--records=30", "--json")
    own = "The clients' own budgets count, and epsilon = 3000 does not."
    assert command(*records, "--epsilon=3000").document["warnings"] == [own]
    assert command(*records).document["warnings"] == []
    of_clients = command("plan", "--clients=100", "--epsilon=0.001", "--json").document["warnings"]
    assert any("epsilon = 0.001 means noise that leaves nothing to learn from" in warning for warning in of_clients)


def test_that_budgets_show_is_told() -> None:
    assert any("budgets are treated as public" in sentence for sentence in RPDPFL().discloses())
