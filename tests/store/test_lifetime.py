"""What all runs of a store have spent together on the same people."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from helpers import QUICK, QUICK_KEYS, command, refused
from killing import die_at, killed

from sordino.api import run
from sordino.data.people import sketch
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.experiment.run import resume
from sordino.federation import server
from sordino.federation.rounds import RoundReport
from sordino.method import Result
from sordino.methods.dp_fedavg import DPFedAvg
from sordino.privacy.accounting.across_runs import merge_recipes
from sordino.privacy.accounting.gaussian import epsilon_of, mu_of, remaining
from sordino.privacy.accounting.sampled_gaussian import record_epsilon
from sordino.privacy.budget.record_level_plan import RecordNeeds, plan_records
from sordino.privacy.ledger import FIRST_LINK, Ledger, Row, seen_by
from sordino.privacy.release import Charge, Derived, sends
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS
from sordino.store import journal
from sordino.store import store as stores
from sordino.store.spending import (
    OverRuns,
    Spent,
    _limit,
    compose,
    over_runs,
    planned,
    recipes_of_own_noise,
    remove,
    sentence,
    spending_of_ledger,
    spending_of_run,
    sum_up,
    within,
)
from sordino.store.store import NewRun, Progress, Store
from sordino.study.compare import compare
from sordino.util.files import KeptFile

pytestmark = pytest.mark.usefixtures("one_thread")

DELTA = 1e-5
KEYS: dict[str, Any] = QUICK_KEYS | {"method": "dp-fedavg", "epsilon": 8, "delta": DELTA}
RECORDS: dict[str, Any] = QUICK_KEYS | {"method": "dp-fedavg-record", "epsilon": 2, "delta": DELTA}


def client_level(*mu: float | None) -> Spent:
    return {"unit": "client", "mu": list(mu), "recipes": []}


def record_level(*recipes: list[list[float]]) -> Spent:
    return {"unit": "record", "mu": [], "recipes": list(recipes)}


def total(store: Path, unit: Unit = Unit.CLIENT, delta: float = DELTA) -> Any:
    """What the people of the newest run have spent."""
    opened = Store(store)
    found = over_runs(opened, opened.all()[0].people, unit, delta)
    opened.close()
    return found


def test_four_runs_of_epsilon_eight_are_nineteen() -> None:
    """Gaussian mu adds up in squares: 2 mu(8, 1e-5) = 2 x 1.4867; its curve gives 19.1 at 1e-5."""
    once = mu_of(8, DELTA)
    found = compose([client_level(once, 2 * once, 3 * once)] * 4, Unit.CLIENT, DELTA)
    assert found["outsider"] == pytest.approx(19.1, abs=0.05)
    assert [found[view] for view in VIEWS] == pytest.approx([epsilon_of(2 * k * once, DELTA) for k in (1, 2, 3)])
    assert compose([client_level(once, None, once), client_level(once, once, once)], Unit.CLIENT, DELTA)["peer"] is None
    assert compose([], Unit.CLIENT, DELTA) == dict.fromkeys(VIEWS, 0)


def test_what_is_known_at_one_delta_only_adds_up() -> None:
    """Two deployments of epsilon 1 and 2 come to 3 at the sum of their deltas, as their sites say; beside a run whose
    noise is known, that one is told at the delta that was asked for."""
    promises = [Row.of((0, 0, "local", "plan"), [0], Charge.promised([(epsilon, DELTA)])) for epsilon in (1.0, 2.0)]
    deployed = [spending_of_ledger(Ledger(1, Unit.RECORD, [row])) for row in promises]
    assert compose(deployed, Unit.RECORD, DELTA) == dict.fromkeys(VIEWS, 3.0)
    simulated = record_level([[1.0, 4.0, 1]])
    assert compose([*deployed, simulated], Unit.RECORD, DELTA)["server"] == 3.0 + epsilon_of(0.25, DELTA)
    about: dict[str, Any] = {"people": "", "planned": None, "configuration": {}, "unit": "record"}
    rows = [mock.Mock(summary={"spent": one, "rounds_done": 1}, rounds=1, **about) for one in deployed]
    found = over_runs(mock.Mock(all=lambda: rows), "", Unit.RECORD, DELTA)
    assert (found["runs"], found["epsilon"]["server"], found["delta"]) == (2, 3.0, 2 * DELTA)
    assert over_runs(mock.Mock(all=lambda: rows), "", Unit.RECORD, DELTA, [simulated])["delta"] == 3 * DELTA
    assert over_runs(mock.Mock(all=lambda: rows), "", Unit.CLIENT, DELTA)["epsilon_within_deal"] == dict.fromkeys(VIEWS)


def test_runs_that_protect_records_are_named_where_clients_are_told() -> None:
    runs = [client_level(1.0, 1.0, 1.0), *[record_level([[1.0, 4.0, 1]])] * 2]
    for one in runs:
        one["deal"] = "the same"
    total: OverRuns = {**sum_up(runs, Unit.CLIENT, DELTA), "limit": None, "limit_for": None}
    assert (total["unit"], total["epsilon"], total["unprotected"]) == ("client", dict.fromkeys(VIEWS), 2)
    told = sentence(total, "outsider")
    assert told is not None
    assert "an infinite epsilon" in told
    assert told.endswith("(2 of them protect records, no whole client).")


def test_four_runs_of_a_store_are_told_together(tmp_path: Path) -> None:
    options = ("--method=dp-fedavg", "--epsilon=8", "--delta=1e-5", *QUICK, "--store", tmp_path)
    told = [command("run", *options).out for _ in range(4)]
    assert "stored runs" not in told[0]
    words = " ".join(told[3].split())
    assert (
        "4 stored runs used these people's data. For one client they come to an epsilon of 19.13 (outsider, delta = "
        "1e-05). This is the sum so far, not a guarantee: no limit (budget_over_runs) was set beforehand." in words
    )
    found = command("run", *options, "--json").document["over_runs"]
    assert (found["runs"], found["deals"], found["unit"]) == (5, 1, "client")
    assert found["epsilon"]["outsider"] == pytest.approx(epsilon_of(math.sqrt(5) * mu_of(8, DELTA), DELTA))


@pytest.mark.slow
def test_records_pay_for_all_runs_too(tmp_path: Path) -> None:
    """Two runs of one recipe are one of twice as many steps: less than twice the epsilon, more than one."""
    for seed in (0, 1):
        run(store=tmp_path, seed=seed, **RECORDS)
    found = total(tmp_path, Unit.RECORD)
    rows = [row for one in Store(tmp_path).all() for row in Store(tmp_path).ledger(one.run)]
    rate, multiplier, steps = rows[0].histories()[0]
    assert found["runs"] == 2
    assert len(rows) == 4
    by_hand = record_epsilon(((rate, multiplier, 4 * int(steps)),), DELTA)
    assert [found["epsilon"][view] for view in VIEWS] == pytest.approx([by_hand] * 3, rel=0.02)
    assert 2 < by_hand < 4
    of_clients = total(tmp_path, Unit.CLIENT)
    assert of_clients["epsilon_within_deal"] == dict.fromkeys(VIEWS), "no client as a whole was protected"
    assert of_clients["unit"] == "record", "two seeds deal the records in two ways"


def test_recipes_add_up() -> None:
    recipes = [((0.1, 1.5, 10), (1.0, 3.0, 1)), ((0.1, 1.5, 5),), ((0.2, 1.5, 5),)]
    assert merge_recipes(recipes) == ((0.1, 1.5, 15), (0.2, 1.5, 5), (1.0, 3.0, 1))
    of_two = compose([record_level([[1, 2, 1]]), record_level([[1, 9, 1]], [[1, 2, 1]])], Unit.RECORD, DELTA)
    assert of_two["server"] == pytest.approx(epsilon_of(math.sqrt(2) / 2, DELTA))
    assert compose([record_level([[1, 0, 1]]), record_level([[1, 2, 1]])], Unit.RECORD, DELTA)["server"] is None


def test_each_observer_has_a_sum_of_its_own() -> None:
    """Whole clients' noise as this observer meets it, at twice their mu, and records' own noise, which all meet."""
    steps: list[list[float]] = [[0.1, 1.5, 10]]
    found = compose([client_level(0.5, 1.0, 4.0), record_level(steps)], Unit.RECORD, DELTA)
    by_hand = [record_epsilon(((0.1, 1.5, 10), (1.0, 1 / (2 * mu), 1)), DELTA) for mu in (0.5, 1.0, 4.0)]
    assert [found[view] for view in VIEWS] == by_hand
    assert by_hand[0] < by_hand[1] < by_hand[2]
    found = compose([client_level(0.0, 0.5, None), record_level(steps)], Unit.RECORD, DELTA)
    assert found["outsider"] == record_epsilon(((0.1, 1.5, 10),), DELTA)
    assert found["peer"] == by_hand[0]
    assert found["server"] is None
    found = compose([client_level(0.5, 1.0, 4.0), record_level(steps)], Unit.CLIENT, DELTA)
    assert found == dict.fromkeys(VIEWS), "noise for records protects no whole client"


def test_many_possibilities_in_each_run() -> None:
    """Nine recipes of about the same cost in two runs: 81 combinations, whose epsilons are far below their sum."""
    runs = [record_level(*([[0.1 * part, 1.5 * part, 100]] for part in range(1, 10))) for _ in range(2)]
    found = compose(runs, Unit.RECORD, DELTA)["server"]
    recipes = [((0.1 * part, 1.5 * part, 100),) for part in range(1, 10)]
    dearest = max(
        record_epsilon(merge_recipes(pair), DELTA) for pair in itertools.combinations_with_replacement(recipes, 2)
    )
    assert found is not None
    assert dearest * (1 - 1e-3) <= found <= dearest * 1.01
    assert found < 0.8 * 2 * max(record_epsilon(recipe, DELTA / 2) for recipe in recipes)


def test_only_runs_that_spend_on_these_people_count(tmp_path: Path) -> None:
    run(store=tmp_path, **KEYS)
    run(store=tmp_path, **(KEYS | {"method": "local"}))
    folder = tmp_path / "own"
    folder.mkdir()
    for client in range(8):
        lines = "".join(f"{i % 2 + 0.1 * client},{i},{i % 2}\n" for i in range(10))
        (folder / f"{client}.csv").write_text("a,b,label\n" + lines)
    run(store=tmp_path, **(KEYS | {"data": str(folder), "partition": "natural", "clients": None}))
    assert total(tmp_path)["runs"] == 1
    run(store=tmp_path, **(KEYS | {"clients": 6, "partition": "dirichlet:1", "seed": 3, "records": 600}))
    assert total(tmp_path)["runs"] == 2, "other clients of the same people"
    twice = 2 * math.sqrt(2) * mu_of(8, DELTA)
    assert total(tmp_path)["epsilon"]["outsider"] == pytest.approx(epsilon_of(twice, DELTA)), "for one record"


@pytest.mark.slow
def test_records_pay_for_what_was_released_of_whole_clients(tmp_path: Path) -> None:
    """One record may move a bounded contribution by twice its bound: a client's mu counts twice for its records."""
    mu = run(store=tmp_path, **KEYS)["spent"]["mu"][VIEWS.index("server")]
    assert mu is not None
    of_clients = record_epsilon(((1.0, 1 / (2 * mu), 1),), DELTA)
    assert total(tmp_path, Unit.RECORD)["epsilon"]["server"] == pytest.approx(of_clients)
    run(store=tmp_path, **RECORDS)
    both = total(tmp_path, Unit.RECORD)
    assert both["runs"] == 2
    assert of_clients < both["epsilon"]["server"] <= of_clients + 2.1
    assert total(tmp_path, Unit.CLIENT)["epsilon"] == dict.fromkeys(VIEWS), "a run for records protects no whole client"


def test_a_bare_run_makes_the_sum_infinite(tmp_path: Path) -> None:
    run(store=tmp_path, **KEYS)
    run(store=tmp_path, **(KEYS | {"method": "fedavg"}))
    found = total(tmp_path)
    assert found["epsilon"] == dict.fromkeys(VIEWS)
    told = sentence(found, "outsider")
    assert told is not None
    assert "epsilon of infinite" not in told
    assert "infinite epsilon" in told


def stop_after(rounds: int) -> Any:
    def watch(report: RoundReport) -> None:
        if report.round + 1 == rounds:
            raise ZeroDivisionError

    return watch


NOISY: dict[str, Any] = {key: value for key, value in KEYS.items() if key != "epsilon"} | {
    **{"noise_multiplier": 2.0, "rounds": 6},
}


@pytest.mark.parametrize("seconds", [0, 1e9])
def test_what_a_stopped_run_has_spent_counts(seconds: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Six rounds at multiplier 2 are mu = sqrt(6) / 2: answers of the first three may have chosen the end, whether the
    database knows of them or the journal alone."""
    monkeypatch.setattr(server, "SAVE_SECONDS", seconds)
    with pytest.raises(ZeroDivisionError):
        run(store=tmp_path, watch=stop_after(3), **NOISY)
    (row,) = Store(tmp_path).all()
    assert len(Store(tmp_path).ledger(row.run)) == (0 if seconds else 2)
    assert total(tmp_path)["epsilon"]["outsider"] == pytest.approx(epsilon_of(math.sqrt(6) / 2, DELTA))
    run(store=tmp_path, **NOISY)
    assert total(tmp_path)["epsilon"]["outsider"] == pytest.approx(epsilon_of(math.sqrt(12) / 2, DELTA))


def test_what_a_killed_run_was_about_to_ask_counts(tmp_path: Path) -> None:
    """It is charged before it is asked: killed in between, it has paid for a round, and counts as planned."""
    from sordino.simulator.workers import Workers

    def victim() -> None:
        die_at(Workers, "work", 1, "before")
        run(store=tmp_path, **NOISY)

    assert killed(victim)
    assert total(tmp_path)["epsilon"]["outsider"] == pytest.approx(epsilon_of(math.sqrt(6) / 2, DELTA))


def test_what_the_records_of_a_stopped_run_have_spent_counts(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run(store=tmp_path, watch=stop_after(1), **RECORDS)
    stopped = total(tmp_path, Unit.RECORD)["epsilon"]["server"]
    assert 1.9 < stopped <= 2
    (row,) = Store(tmp_path).all()
    assert command("resume", row.run, "--store", tmp_path, "--json").code == 0
    assert total(tmp_path, Unit.RECORD)["epsilon"]["server"] == pytest.approx(stopped)


@pytest.mark.parametrize(
    "keys",
    [
        KEYS,
        KEYS | {"protect_from": "server"},
        KEYS | {"rounds": 5, "participation": 0.5},
        KEYS | {"colluders": 3},
        KEYS | {"set": {**KEYS["set"], "clipping": "quantile"}},
    ],
)
def test_what_is_planned_is_what_is_spent(keys: dict[str, Any], tmp_path: Path) -> None:
    prepared = prepare(Experiment.make(keys, {"store": tmp_path}))
    result = run(store=tmp_path, **keys)
    assert planned(prepared)["mu"] == pytest.approx(result["spent"]["mu"])
    ledger = Ledger(8, rows=Store(tmp_path).ledger(result["run"]))
    assert json.loads(json.dumps({**spending_of_ledger(ledger), "deal": prepared.data.deal})) == result["spent"]


@pytest.mark.parametrize("method", ["dp-fedavg-record", "adadp-cfl"])
def test_what_is_planned_of_records_is_what_is_spent(method: str, tmp_path: Path) -> None:
    keys = RECORDS | {"method": method, "noise_multiplier": 1.5, "epsilon": None}
    prepared = prepare(Experiment.make(keys, {"store": tmp_path}))
    result = run(store=tmp_path, **keys)
    before, after = (compose([one], Unit.RECORD, DELTA)["server"] for one in (planned(prepared), result["spent"]))
    assert before == pytest.approx(after, rel=1e-6)


def test_a_limit_over_runs_refuses_before_a_run_is_created(tmp_path: Path) -> None:
    """Two runs at 8 come to 12.2."""
    options = ("run", "--method=dp-fedavg", "--epsilon=8", "--delta=1e-5", *QUICK, "--store", tmp_path)
    assert refused(*options, "--budget-over-runs=7.9") == (
        f"This run in {tmp_path} would come to an epsilon of 8.00 for the outsider, above the 7.9 of budget_over_runs: "
        "plan a smaller epsilon."
    )
    assert not list(tmp_path.glob("runs/*"))
    assert command(*options, "--budget-over-runs=8", "--json").code == 0
    for given in ("--budget-over-runs=12", "--set=budget_over_runs=12"):
        said = refused(*options, given)
        assert f"This run and 1 before it on these people in {tmp_path} would come to an epsilon of 12.2" in said
        assert "for the outsider, above the 12 of budget_over_runs" in said
    left = remaining(12, 8, 1e-5)
    assert f"plan a smaller epsilon; about {left:.2f}"[:-1] in refused(*options, "--budget-over-runs=12")
    for gone in ("8", "7.5"):  # a run at 8 is stored
        assert "have used all of that, and no smaller epsilon fits" in refused(*options, f"--budget-over-runs={gone}")
    file = tmp_path / "experiment.toml"
    file.write_text("budget-over-runs = 12\n")
    assert "above the 12 of budget_over_runs" in refused("run", file, *options[1:])
    assert len(Store(tmp_path).all()) == 1
    assert command(*options, "--budget-over-runs=12.5", "--json").code == 0
    assert len(Store(tmp_path).all()) == 2


def test_a_stopped_run_counts_against_the_limit(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run(store=tmp_path, watch=stop_after(3), **NOISY)
    limit = epsilon_of(math.sqrt(12) / 2, DELTA)  # all six planned rounds, and six more
    with pytest.raises(UserError, match="above the"):
        run(store=tmp_path, budget_over_runs=limit - 0.01, **NOISY)
    assert len(Store(tmp_path).all()) == 1
    assert run(store=tmp_path, budget_over_runs=limit + 0.01, **NOISY)["rounds_done"] == 6


def test_a_limit_for_records(tmp_path: Path) -> None:
    run(store=tmp_path, budget_over_runs=2, **RECORDS)
    with pytest.raises(UserError, match=r"This run and 1 before it .* above the 2\.5 of budget_over_runs"):
        run(store=tmp_path, seed=1, budget_over_runs=2.5, **RECORDS)
    assert len(Store(tmp_path).all()) == 1
    run(store=tmp_path, seed=1, budget_over_runs=4, **RECORDS)


@pytest.mark.parametrize(("rate", "holds"), [(1.0, "whatever results decided"), (0.5, "if no run's settings were")])
def test_a_limit_holds_whatever_results_decided_only_where_no_run_sampled_records(rate: float, holds: str) -> None:
    """Sums of sampled runs are no filter."""
    one: Spent = {"unit": Unit.RECORD, "mu": [], "recipes": [[[rate, 5.0, 1]]], "deal": "one"}
    total: OverRuns = {**sum_up([one, one], Unit.RECORD, DELTA), "limit": 8.0, "limit_for": "server"}
    assert total["sampled"] == (rate < 1)
    assert f"set beforehand, holds {holds}" in str(sentence(total, "server"))


def test_a_limit_is_for_the_observer_whom_noise_is_planned_against(tmp_path: Path) -> None:
    """For the server, who sees each of eight messages, the two would come to far more."""
    mu = run(store=tmp_path, **KEYS)["spent"]["mu"]
    outsider, server = (epsilon_of(2 * mu[VIEWS.index(view)], DELTA) + 2 for view in ("outsider", "server"))
    assert outsider < server / 2
    run(store=tmp_path, budget_over_runs=outsider, **RECORDS)
    with pytest.raises(UserError, match="for the server, above the"):
        run(store=tmp_path, seed=1, budget_over_runs=outsider, protect_from="server", **RECORDS)
    with pytest.raises(UserError, match="an earlier run protects records, no whole client; take a method that"):
        run(store=tmp_path, seed=1, budget_over_runs=100, **KEYS)


def test_a_limit_refuses_what_leaves_bare_and_lets_local_training_through(tmp_path: Path) -> None:
    keys = KEYS | {"budget_over_runs": 8}
    with pytest.raises(UserError, match="an infinite epsilon for the outsider, above the 8"):
        run(store=tmp_path, **(keys | {"method": "fedavg"}))
    bare = {"method": "acdp-pfsd", "variant": "paper", "model": "logistic"}
    with pytest.raises(UserError, match="an infinite epsilon for the outsider, above the 8"):
        run(store=tmp_path, **(keys | bare))
    run(store=tmp_path, **(keys | {"method": "local"}))
    run(store=tmp_path, **keys)
    run(store=tmp_path, **(keys | {"method": "local", "seed": 1}))


def test_a_comparison_keeps_to_the_limit(tmp_path: Path) -> None:
    """Each seed is another run on the same people; runs that the store has are not run again, and cost nothing."""
    chosen = Experiment.make(KEYS, {"store": tmp_path, "budget_over_runs": 8})
    for _ in range(2):
        assert compare(chosen, ["local", "dp-fedavg"], seeds=1).over_runs[0]["runs"] == 1
    with pytest.raises(UserError, match="This run and 1 before it on these people"):
        compare(chosen, ["local", "dp-fedavg"], seeds=2)
    assert {row.method for row in Store(tmp_path).all()} == {"local", "dp-fedavg"}


def test_a_run_that_is_under_way_counts_with_all_that_it_will_spend(tmp_path: Path) -> None:
    """Six rounds with a multiplier of 2, and as many of another run that begins meanwhile."""
    limit = epsilon_of(math.sqrt(12) / 2, DELTA)
    tried: list[str] = []

    def begin_another(report: RoundReport) -> None:
        if report.round == 0:
            with pytest.raises(UserError, match="This run and 1 before it") as refusal:
                run(store=tmp_path, budget_over_runs=limit - 0.01, **NOISY)
            tried.append(str(refusal.value))
            assert total(tmp_path)["epsilon"]["outsider"] == pytest.approx(epsilon_of(math.sqrt(6) / 2, DELTA))

    run(store=tmp_path, watch=begin_another, **NOISY)
    assert len(tried) == 1
    assert total(tmp_path)["runs"] == 1
    run(store=tmp_path, budget_over_runs=limit + 0.01, **NOISY)


def test_a_run_that_has_charged_nothing_yet_counts_as_planned_while_it_is_under_way(tmp_path: Path) -> None:
    store = Store(tmp_path)
    name = store.create(
        "run", NewRun("dp-fedavg", {}, "identity", "people", Unit.CLIENT, 1, client_level(1.0, 1.0, 2.0))
    )
    store.begin(name)
    journal.Journal(store.path(name), 0, FIRST_LINK, None).close()
    assert over_runs(store, "people", Unit.CLIENT, DELTA)["runs"] == 0
    with store.lock(name):
        assert over_runs(store, "people", Unit.CLIENT, DELTA)["epsilon"]["server"] == epsilon_of(2.0, DELTA)


def test_what_an_earlier_version_wrote_down_of_an_early_end_is_raised_to_the_plan(tmp_path: Path) -> None:
    """It kept no turns, and what had been charged by then."""
    spent, most = client_level(0.5, 0.5, 0.5), client_level(1.0, 1.0, 1.0)
    store = Store(tmp_path)
    store.create("run", NewRun("dp-fedavg", {}, "identity", "people", Unit.CLIENT, 6, most))
    for summary, mu in (
        ({"rounds_done": 3, "spent": spent}, 1.0),
        ({"removed": True, "spent": spent}, 1.0),
        ({"rounds_done": 6, "spent": spent}, 0.5),
        ({"removed": True, "rounds_done": 6, "spent": spent}, 0.5),
        ({"removed": True, "spent": client_level(0.0, 0.0, 0.0)}, 0.0),
    ):
        store.advance("run-1", 3, KeptFile("", ""), 0.0, Progress([], [], []), summary, KeptFile("", ""))
        assert spending_of_run(store.get("run-1"), store)["mu"] == [mu] * 3


def test_one_limit_must_have_held_for_all_runs() -> None:
    limited = {"budget_over_runs": 4.0, "protect_from": "server"}
    assert _limit([limited, limited], 2) == (4.0, "server")
    assert _limit([limited, limited], 3) == (None, None), "a run that protects another unit"
    assert _limit([limited, limited | {"budget_over_runs": 5.0}], 2) == (None, None)
    assert _limit([{"budget_over_runs": None}], 1) == _limit([], 0) == (None, None)


def test_only_one_run_is_let_in_at_a_time(tmp_path: Path) -> None:
    """Two that would fit by themselves must not both be looked at before either is seen under way."""
    store = Store(tmp_path)
    with store.admitting(), mock.patch.object(stores, "PATIENCE", 0.05):
        with pytest.raises(UserError, match="another run is being let in"):
            run(store=tmp_path, **NOISY)
        assert not store.all()


def test_what_was_spent_on_some_of_these_people_counts(tmp_path: Path) -> None:
    """One of a hundred records is another one, and so is the digest of the file."""
    store, records = Store(tmp_path), [str(number).encode() for number in range(100)]
    known, others = (f"digest-{name} {sketch(part)}" for name, part in (("a", records), ("b", records[1:])))
    spent = client_level(1.0, 1.0, 2.0)
    store.create("run", NewRun("dp-fedavg", {}, "identity", known, "client", 1, spent))
    store.begin("run-1")
    shutil.rmtree(tmp_path / "runs" / "run-1")  # how far it came is not known
    for people, runs in ((known, 1), (others, 1), (f"digest-c {sketch([b'stranger'])}", 0), ("digest-d", 0)):
        assert over_runs(store, people, Unit.CLIENT, DELTA)["runs"] == runs


def test_a_stopped_run_whose_files_are_gone_has_spent_all_that_it_was_going_to(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run(store=tmp_path, watch=stop_after(3), **NOISY)
    (stopped,) = Store(tmp_path).all()
    shutil.rmtree(tmp_path / "runs" / stopped.run)
    assert total(tmp_path)["epsilon"]["outsider"] == pytest.approx(epsilon_of(math.sqrt(6) / 2, DELTA))
    remove(stopped.run, Store(tmp_path))
    assert total(tmp_path)["epsilon"]["outsider"] == pytest.approx(epsilon_of(math.sqrt(6) / 2, DELTA))


def test_a_damaged_journal_counts_as_planned_and_stands_in_nobodys_way(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run(store=tmp_path, watch=stop_after(3), **NOISY)
    (stopped,) = Store(tmp_path).all()
    (journal,) = (tmp_path / "runs" / stopped.run).glob("ledger-*.journal")
    content = bytearray(journal.read_bytes())
    content[len(content) // 2] ^= 1
    journal.write_bytes(content)
    with pytest.raises(UserError, match="is damaged"):
        resume(stopped.run, Store(tmp_path))
    whole = pytest.approx(epsilon_of(math.sqrt(6) / 2, DELTA))
    assert total(tmp_path)["epsilon"]["outsider"] == whole
    remove(stopped.run, Store(tmp_path))
    assert total(tmp_path)["epsilon"]["outsider"] == whole
    run(store=tmp_path, **NOISY)
    assert total(tmp_path)["runs"] == 2


def test_what_a_run_spent_until_it_is_removed_stays(tmp_path: Path) -> None:
    """It is looked up when nobody can advance the run any more."""
    with pytest.raises(ZeroDivisionError):
        run(store=tmp_path, watch=stop_after(3), **NOISY)
    store = Store(tmp_path)
    (stopped,) = store.all()

    def resumed_meanwhile(self: Store, name: str) -> Any:
        monkeypatch.undo()
        resume(name, Store(tmp_path))
        return self.lock(name)

    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(Store, "lock", resumed_meanwhile)
    remove(stopped.run, store)
    assert total(tmp_path)["epsilon"]["outsider"] == pytest.approx(epsilon_of(math.sqrt(6) / 2, DELTA))
    assert Store(tmp_path).get(stopped.run).rounds_done == 6


def test_with_a_limit_no_run_spends_more_than_it_was_going_to(tmp_path: Path) -> None:
    """A method that asks twice a round: its last three questions are not asked."""
    keys = NOISY | {"method": f"{__name__}:Insisting", "budget_over_runs": epsilon_of(math.sqrt(6) / 2, DELTA) + 0.01}
    with pytest.raises(UserError, match="would exceed the cost planned for the whole run"):
        run(store=tmp_path, **keys)
    assert total(tmp_path)["epsilon"]["outsider"] == pytest.approx(epsilon_of(math.sqrt(6) / 2, DELTA))


class Insisting(DPFedAvg):
    """Asks everybody twice."""

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(model=model)
        for _ in fed.rounds(server):
            for _ in range(2):
                fed.ask(fed.sample(), self.local, {"global": server.model, "clip": 1.0})


@pytest.mark.parametrize(
    ("spent", "most", "kept"),
    [
        (client_level(1.0, 1.0, 2.0), client_level(1.0, 1.0, 2.0), True),
        (client_level(1.0, 1.1, 2.0), client_level(1.0, 1.0, 2.0), False),
        (client_level(1.0, None, 2.0), client_level(1.0, 1.0, 2.0), False),
        (client_level(1.0, None, 2.0), client_level(1.0, None, 2.0), True),
        (record_level([[0.1, 2.0, 5]]), record_level([[0.1, 2.0, 6]], [[1.0, 9.0, 1]]), True),
        (record_level([[0.1, 2.0, 7]]), record_level([[0.1, 2.0, 6]], [[1.0, 9.0, 1]]), False),
        (record_level([[0.1, 2.0, 5], [1.0, 9.0, 1]]), record_level([[0.1, 2.0, 6]], [[1.0, 9.0, 1]]), False),
        (record_level([[0.1, 1.9, 5]]), record_level([[0.1, 2.0, 6]]), False),
        (record_level([[1.0, 9.0, 1]]), record_level([[0.1, 2.0, 6]], [[1.0, 9.0, 1]]), True),
    ],
)
def test_keeping_to_a_plan(spent: Spent, most: Spent, kept: bool) -> None:
    assert within(spent, most) == kept


def test_a_plan_counts_what_reading_states_exposes(tmp_path: Path) -> None:
    """Every observer pays the server's price where a method reads what clients learned from their own messages."""
    made = prepare(Experiment.make(KEYS, {"store": tmp_path}))
    prepared = replace(made, method=Reading())
    noise, turns = prepared.allowance.of_clients, prepared.schedule.turns
    alone = math.sqrt(turns) / noise.multiplier
    assert planned(made)["mu"][0] == pytest.approx(alone)
    assert planned(prepared)["mu"] == pytest.approx([alone * math.sqrt(8)] * 3)


@dataclass(frozen=True)
class Reading(DPFedAvg):
    """Reads what clients learned from their own messages."""

    @sends(lambda self: {"state": Derived("state")})
    def tell(self, message: Any, me: Any, data: Any) -> Result:
        return Result()


def test_a_plan_of_records_counts_every_matrix() -> None:
    """Two matrices, four turns of three steps: what the records of a client go through at the most."""
    needs = RecordNeeds(matrix_share=0.3, matrices=2)
    plan = plan_records([100], np.array([2.0]), DELTA, batch=40, epochs=1, turns=4, needs=needs)
    ((once, steps),) = recipes_of_own_noise(plan, 0, needs)
    assert once == (1.0, (plan.matrix_multipliers[0],) * 3, 2)
    assert steps == (plan.sampling[0], (plan.multipliers[0],) * 3, 4 * 3)
    assert record_epsilon(seen_by("server", (once, steps)), DELTA) == pytest.approx(2.0, rel=0.01)
