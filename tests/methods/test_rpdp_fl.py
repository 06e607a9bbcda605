"""rPDP-FL: budgets of one's own, kept by sampling rates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from whole_runs import Ended

from sordino.methods.dp_fedavg_record import DPFedAvgRecord
from sordino.methods.rpdp_fl import RPDPFL
from sordino.privacy.ledger import Ledger

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
    spent = Ledger(4, "record", run.ledger).record_epsilons(1e-5)
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
    spent = Ledger(4, "record", run.ledger).record_epsilons(1e-5)
    assert all(spent[client] <= budget for client, budget in enumerate((1, 2, 4, 1000)))
