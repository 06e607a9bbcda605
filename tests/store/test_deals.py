"""Sums over runs are for one client only where the runs deal the records to clients in the same way."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import QUICK, QUICK_KEYS, command, refused
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.api import run
from sordino.data import federate
from sordino.data.dataset import Dataset
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.privacy.accounting.gaussian import epsilon_of, mu_of
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS
from sordino.report.statement import statement_of
from sordino.store.database import Database
from sordino.store.spending import Spent, over_runs, sentence, sum_up
from sordino.store.store import PLANNED, Store
from sordino.study.compare import compare
from sordino.study.tuning import sentences
from sordino.tasks import Classification

pytestmark = pytest.mark.usefixtures("one_thread")

DELTA = 1e-5
KEYS: dict[str, Any] = QUICK_KEYS | {"method": "dp-fedavg", "epsilon": 2, "delta": DELTA}
ONCE = mu_of(2, DELTA)


def owned(seed: int = 0) -> Dataset:
    """Thirty records of three owners."""
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=(30, 4)).astype(np.float32))
    names, owner = ("a", "b", "c"), np.arange(30) % 3
    return Dataset(
        "owned", x, torch.arange(30) % 2, Classification.numbered(2), owner, names, None, people=f"people {seed}"
    )


def test_a_deal_is_who_holds_which_record() -> None:
    data = owned()
    first = federate(data, "iid", 3, 0)
    assert first.deal is not None
    for same in (federate(data, "iid", 3, 0), federate(data, "iid", 3, 0, 0.5)):
        assert same.deal == first.deal, "what a client sets aside for tests stays with it"
    others = [
        federate(data, "iid", 3, 1),
        federate(data, "iid", 4, 0),
        federate(data, "dirichlet:1", 3, 0),
        federate(data, "natural", None, 0),
        federate(replace(data, x=data.x.flip(0)), "iid", 3, 0),
        federate(replace(data, y=1 - data.y), "iid", 3, 0),
        federate(owned(1), "iid", 3, 0),
    ]
    deals = {one.deal for one in (first, *others)}
    assert len(deals) == 1 + len(others)


def test_owners_are_the_same_clients_whatever_the_seed_and_however_many_are_chosen() -> None:
    data = owned()
    first = federate(data, "natural", None, 0)
    for same in (
        federate(data, "natural", None, 1),
        federate(data, "natural", 2, 0),
        federate(replace(data, x=data.x / 2), "natural", None, 0, 0.5),
    ):
        assert same.deal == first.deal
    assert federate(replace(data, owner_names=("a", "b", "d")), "natural", None, 0).deal != first.deal
    assert federate(owned(1), "natural", None, 0).deal != first.deal
    unknown = replace(data, people="")
    assert federate(unknown, "natural", None, 0).deal != federate(replace(unknown, x=data.x / 2), None, None, 0).deal


def clients(mu: float, deal: str | None) -> Spent:
    return {"unit": "client", "mu": [mu, 2 * mu, 3 * mu], "recipes": [], "deal": deal}


def records(multiplier: float, deal: str | None) -> Spent:
    return {"unit": "record", "mu": [], "recipes": [[[1.0, multiplier, 1]]], "deal": deal}


some_runs = st.lists(
    st.builds(
        lambda kind, cost, deal: kind(cost, deal),
        st.sampled_from([clients, clients, records]),
        st.floats(0.05, 3.0),
        st.sampled_from([None, "a", "b"]),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(some_runs)
def test_no_sum_is_below_what_a_record_or_a_client_pays(runs: list[Spent]) -> None:
    """By hand: squares of mu add up; a client's counts twice for its records, and over equal deals alone for itself."""
    found = sum_up(runs, Unit.CLIENT, DELTA)
    for place, view in enumerate(VIEWS):
        record = sum((2 * (one["mu"][place] or 0)) ** 2 if one["mu"] else one["recipes"][0][0][1] ** -2 for one in runs)
        of_record = epsilon_of(math.sqrt(record), DELTA)
        assert sum_up(runs, Unit.RECORD, DELTA)["epsilon"][view] == pytest.approx(of_record)
        groups = [[one] for one in runs if one.get("deal") is None]
        groups += [[one for one in runs if one.get("deal") == deal] for deal in ("a", "b")]
        groups = [group for group in groups if group]
        protecting = all(one["unit"] == "client" for one in runs)
        mus = [math.hypot(*(float(one["mu"][place] or 0) for one in group)) for group in groups] if protecting else []
        within = epsilon_of(max(mus), DELTA) if mus else None
        assert found["epsilon_within_deal"] is not None
        assert found["epsilon_within_deal"][view] == (None if within is None else pytest.approx(within))
        assert found["deals"] == len(groups)
        assert found["unit"] == ("client" if len(groups) == 1 else "record")
        expected = within if len(groups) == 1 else of_record
        assert found["epsilon"][view] == (None if expected is None else pytest.approx(expected))


def test_seeds_deal_anew_and_the_sum_is_for_a_record(tmp_path: Path) -> None:
    """Three runs of mu(2) each, of which two deal alike: sqrt(2) mu for a client there, 2 sqrt(3) mu for a record."""
    options = ("run", "--method=dp-fedavg", "--epsilon=2", "--delta=1e-5", *QUICK, "--store", tmp_path)
    for seed in (0, 0):
        assert command(*options, f"--seed={seed}", "--json").document["over_runs"]["deals"] == 1
    told = " ".join(command(*options, "--seed=1").out.split())
    client, record = epsilon_of(math.sqrt(2) * ONCE, DELTA), epsilon_of(2 * math.sqrt(3) * ONCE, DELTA)
    assert record > 2.5 * client
    up = [math.ceil(value * 100) / 100 for value in (client, record)]
    assert (
        "3 stored runs used these people's data. They deal the records to clients in 2 different ways. For one client, "
        f"counting the runs of one deal alone, they come to an epsilon of {up[0]}; for one record over all of them to "
        f"an epsilon of {up[1]} (outsider, delta = 1e-05). This is the sum so far, not a guarantee" in told
    )


def test_whoever_tells_a_sum_tells_the_same(tmp_path: Path) -> None:
    """A comparison over seeds, what tuning would have cost, and a statement."""
    chosen = Experiment.make(KEYS, {"store": tmp_path})
    found = compare(chosen, ["dp-fedavg"], seeds=2, grid={"rate": [0.1, 0.2]}, tuning_seeds=2)
    (total,) = found.over_runs
    assert (total["runs"], total["deals"], total["unit"]) == (6, 4, "record")
    assert total["epsilon"]["outsider"] == pytest.approx(epsilon_of(2 * math.sqrt(6) * ONCE, DELTA))
    (tuned,) = found.tuned
    assert tuned.unit == "record"
    assert tuned.epsilon["outsider"] == pytest.approx(epsilon_of(2 * math.sqrt(4) * ONCE, DELTA))
    assert "would have cost one record epsilon" in sentences([tuned], "outsider")[0]
    (told,) = found.together("outsider")
    store = Store(tmp_path)
    assert statement_of(store, store.all()[0].run).together == told


def test_a_limit_over_runs_watches_over_the_figure_that_holds(tmp_path: Path) -> None:
    """Two deals: 2 sqrt(2) mu for a record, where sqrt(2) mu was let through."""
    run(store=tmp_path, **KEYS)
    limit = epsilon_of(2 * math.sqrt(2) * ONCE, DELTA)
    options = ("run", "--method=dp-fedavg", "--epsilon=2", "--delta=1e-5", *QUICK, "--store", tmp_path)
    said = refused(*options, "--seed=1", f"--budget-over-runs={limit - 0.01}")
    assert "for the outsider for one record (they deal the records to clients in 2 different ways), above the" in said
    assert len(Store(tmp_path).all()) == 1
    run(store=tmp_path, seed=1, budget_over_runs=limit + 0.01, **KEYS)


def test_a_limit_that_all_runs_kept_to_is_named(tmp_path: Path) -> None:
    for _ in range(2):
        run(store=tmp_path, budget_over_runs=4, **KEYS)
    store = Store(tmp_path)
    people = store.all()[0].people
    found = over_runs(store, people, Unit.CLIENT, DELTA)
    assert (found["limit"], found["limit_for"]) == (4, "outsider")
    assert "The limit of 4 (budget_over_runs), set beforehand, holds" in str(sentence(found, "outsider"))
    for other in (sentence(found, "server"), sentence(over_runs(store, people, Unit.RECORD, DELTA), "outsider")):
        assert "not a guarantee" in str(other)
    run(store=tmp_path, **KEYS)
    assert "not a guarantee" in str(sentence(over_runs(store, people, Unit.CLIENT, DELTA), "outsider"))


def test_a_run_of_an_earlier_version_is_a_deal_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        run(store=tmp_path, **KEYS)
    database = Database(tmp_path)
    with database.transaction("immediate"):
        row = database.runs()[0]
        configuration, summary = (json.loads(row[key]) for key in ("configuration", "summary"))
        del configuration[PLANNED]["deal"], summary["spent"]["deal"]
        values = (json.dumps(configuration), json.dumps(summary), row["run"])
        database.execute("update runs set configuration = ?, summary = ? where run = ?", values)
        database.seal(row["run"])
    database.close()
    store = Store(tmp_path)
    found = over_runs(store, store.all()[0].people, Unit.CLIENT, DELTA)
    assert (found["deals"], found["deals_unknown"], found["unit"]) == (2, 1, "record")
    assert found["epsilon"]["outsider"] == pytest.approx(epsilon_of(2 * math.sqrt(2) * ONCE, DELTA))
    assert "in 2 different ways (1 of them does not say how)" in str(sentence(found, "outsider"))
    with pytest.raises(UserError, match="in 2 different ways"):
        run(store=tmp_path, budget_over_runs=found["epsilon"]["outsider"] - 0.01, **KEYS)
