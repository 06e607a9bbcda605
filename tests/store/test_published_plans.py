"""What a run with published noise counts as before its end: what its plan costs, not what its clients allow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.experiment.run import carry_on, register
from sordino.privacy.accounting.sampled_gaussian import record_epsilon
from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.budget.client_level_plan import planned_epsilon
from sordino.privacy.budget.record_level_plan import plan_records
from sordino.store.spending import to_be_kept
from sordino.store.store import Store

KEYS: dict[str, Any] = {
    **{"method": "nbafl-record", "variant": "paper", "clients": 3, "rounds": 2, "partition": "iid"},
    **{"model": "logistic", "records": 300, "epsilon": 8.0, "delta": 1e-5, "workers": 1},
}


@pytest.mark.parametrize("batches", ["shuffled", "poisson"])
def test_budgets_of_different_sizes_do_not_hide_what_published_noise_costs(batches: str, tmp_path: Path) -> None:
    settings = {"epochs": 60, "batch": 20, "batches": batches, "budgets": "1,8,2"}
    prepared, store = prepare(Experiment.make(KEYS, {"set": settings})), Store(tmp_path)
    run = register(prepared, store)
    planned = (store.get(run).planned or {})["epsilon"]
    assert planned > 1.5 * 8.0
    assert carry_on(prepared, store, run).epsilon["outsider"] == pytest.approx(planned)


def test_persons_at_several_clients_are_counted(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = [f"p{random.integers(60)},{x:.3f},{y:.3f},{int(x > y)}" for x, y in random.normal(size=(180, 2)).tolist()]
    (tmp_path / "data.csv").write_text("\n".join(["who,a,b,label", *rows]))
    about = {**KEYS, "data": str(tmp_path), "person": "who", "records": None}
    settings = {"epochs": 60, "batch": 20, "batches": "shuffled"}
    alone, twice = (
        to_be_kept(prepare(Experiment.make(about, {"set": {**settings, **more}})), None)["epsilon"]
        for more in ({}, {"max_sites_per_person": 2})
    )
    assert alone is not None
    assert twice is not None
    assert twice > 2 * alone


def test_of_equal_noise_for_a_budget_the_dearest_client_counts() -> None:
    sizes, budgets = [100, 100, 300, 300], np.array([1.0, 4.0, 1.0, 4.0])
    asked: dict[str, Any] = {"batch": 20, "epochs": 2, "turns": 3}
    plan = plan_records(sizes, budgets, 1e-5, **asked)
    assert planned_epsilon(Allowance(records=plan), 3, 1e-5) == 4.0, "noise was made for the budgets"
    plan.multipliers[:] = [3.0, 0.8, 3.0, 0.8]
    costs = [record_epsilon(((*plan.charge(client)[:2], plan.charge(client)[2] * 3),), 1e-5) for client in range(4)]
    assert planned_epsilon(Allowance(records=plan), 3, 1e-5) == max(costs) > 4.0
    plan.turns[:] = 0
    assert planned_epsilon(Allowance(records=plan), 3, 1e-5) == 4.0
