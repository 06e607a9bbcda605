"""What an experiment means on real machines, and what cannot be deployed."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sordino.data.schema import Event, Label, NumberColumn, Schema, Time
from sordino.deploy.server.coordinator import check_deployable
from sordino.deploy.site.session import Session
from sordino.deploy.terms import terms_of
from sordino.errors import UserError
from sordino.experiment.budgeting import SEED_IS_KNOWN
from sordino.experiment.config import Experiment
from sordino.privacy.accounting.gaussian import epsilon_of
from sordino.privacy.accounting.sampled_gaussian import record_epsilon
from sordino.privacy.budget.client_level_plan import multiplier_for
from sordino.privacy.integers import charged_multiplier
from sordino.privacy.ledger import Ledger, Row
from sordino.privacy.release import Average, Charge, Gradients, Public
from sordino.privacy.unit import Unit
from sordino.store.spending import planned, to_be_kept, whole

DECLARED: dict[str, Any] = {
    **{"clients": 10, "shape": [64], "labels": [*map(str, range(10))], "records_each": 144, "rounds": 3},
    **{"method": "dp-fedavg", "epsilon": 4.0, "model": "logistic"},
}


def experiment(**changes: Any) -> Experiment:
    return Experiment.make(DECLARED, changes)


@pytest.mark.parametrize("method", ["dp-fedavg", "dp-fedavg-record"])
def test_whole_numbers_are_charged_for_and_noise_from_a_known_seed_protects_nobody(method: str) -> None:
    ours, seeded = (terms_of(experiment(method=method, **noise)).allowance for noise in ({}, {"noise": "integers"}))
    assert (ours.whole, ours.known) == (True, "")
    assert (seeded.whole, seeded.known) == (False, SEED_IS_KNOWN)


def test_what_travels_has_the_same_terms() -> None:
    terms = terms_of(experiment(minimum_cohort=8, data="nowhere", seed=3))
    again = terms_of(Experiment.make(terms.carried()))
    assert again.identity == terms.identity
    assert again.initial.equal(terms.initial)
    assert again.allowance == terms.allowance
    assert "data" not in terms.carried()
    assert terms_of(experiment(minimum_cohort=9, seed=3)).identity != terms.identity


@pytest.mark.parametrize(
    ("changes", "shares"),
    [
        ({}, 10),
        ({"minimum_cohort": 9}, 8),
        ({"minimum_cohort": 8}, 6),
        ({"minimum_cohort": 8, "colluders": 2}, 4),
        ({"minimum_cohort": 6}, 2),
        ({"minimum_cohort": 6, "active_server": False}, 6),
        ({"minimum_cohort": 6, "colluders": 3, "active_server": False}, 3),
        ({"protect_from": "server", "minimum_cohort": 2}, 1),
        ({"participation": 0.5}, 5),
    ],
)
def test_noise_is_shared_out_over_the_honest_shares_that_are_guaranteed(changes: dict[str, Any], shares: int) -> None:
    terms = terms_of(experiment(**changes))
    noise = terms.allowance.of_clients
    assert terms.shares == noise.shares == shares
    full = noise.multiplier if changes.get("protect_from") == "server" else noise.multiplier / shares**0.5
    assert noise.of_message(1.0) == pytest.approx(full)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"clients": None}, "must declare how many sites"),
        ({"shape": None}, "must declare the shape"),
        ({"labels": None}, "must declare the labels"),
        ({"labels": ["a", "a"]}, "each once"),
        ({"columns": ["a", "b"]}, "declares 2 columns"),
        ({"privacy": "none", "epsilon": None}, "cannot be deployed"),
        ({"precision": "bf16"}, "leave out"),
        ({"method": "local"}, "nothing to deploy"),
        ({"method": "fedavg"}, "nothing to deploy|as it is"),
        ({"set": {"clipping": "median"}}, "sends each client's norm as it is: simulate it with `sordino run`"),
        ({"method": "fedglp-adp", "variant": "paper"}, "simulate it with `sordino run`"),
        ({"minimum_cohort": 5}, "a sum could show a single site's message: set minimum_cohort to 6"),
        ({"minimum_cohort": 11}, "but a round has 10"),
        ({"colluders": 9}, "have 11 sites or more"),
        ({"method": "dp-fedavg-record", "records_each": None}, "must declare about how many training records"),
        ({"method": "dp-fedavg-record", "epsilon": None, "noise_multiplier": 1.0}, "deploy with an epsilon"),
        ({"method": "rpdp-fl"}, "which nobody has"),
        ({"method": "rpdp-fl", "variant": "paper"}, "which nobody has"),
        ({"method": "pac-dp", "variant": "paper"}, "does not keep its epsilon"),
        ({"method": "acdp-pfsd"}, "public records at the server"),
        ({"epsilon": 1e-6, "model": "mlp"}, "eat the signal|alone cost"),
    ],
)
def test_what_cannot_be_deployed_is_refused_with_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check_deployable(Experiment.make({k: v for k, v in (DECLARED | changes).items() if v is not None}))


def test_every_method_that_can_be_deployed_says_so_before_it_starts() -> None:
    """By the text: dp-fedavg, feddpa, fedglp-adp (summed); dp-fedavg-record, pac-dp, adadp-cfl (plain)."""
    for method in ("dp-fedavg", "feddpa", "fedglp-adp", "dp-fedavg-record", "pac-dp", "adadp-cfl"):
        check_deployable(experiment(method=method, epsilon=20.0))


@pytest.mark.parametrize(
    ("changes", "turns", "left"), [({}, 3, 1.0), ({"spare_turns": 2}, 5, 1.0), ({"metrics_share": 0.5}, 3, 0.5)]
)
def test_noise_pays_for_spare_turns_and_shared_accuracies(changes: dict[str, Any], turns: int, left: float) -> None:
    """Accuracies get their share of the budget's squares; whole numbers ask for a little more."""
    terms = terms_of(experiment(**changes))
    plain = multiplier_for(4.0, terms.budget.delta, turns) / left**0.5
    assert plain < terms.budget.multiplier < plain * (1 + 1e-6)


@pytest.mark.parametrize("records", [40, 144, 1000])
def test_a_site_s_records_pay_no_more_than_their_budget(records: int) -> None:
    terms = terms_of(experiment(method="dp-fedavg-record", set={"batch": 32, "epochs": 1}, spare_turns=1))
    plan = terms.at_site(3, records).of_records
    rate, multiplier, steps = plan.charge(3)
    paid = charged_multiplier(multiplier, terms.learner.layout.size)
    assert paid < multiplier
    spent = record_epsilon(((rate, paid, steps * 4),), terms.budget.delta)  # three rounds, and one that is repeated
    assert 3.9 < spent < 4.0
    assert int(plan.turns[3]) == 4
    assert rate == pytest.approx(min(1, 32 / records))
    assert (plan.sampling == plan.sampling[0]).all()
    assert isinstance(plan.budgets, np.ndarray)


def test_budgets_of_sites_that_are_scaled_or_overrule_epsilon_are_told() -> None:
    notes = terms_of(experiment(method="dp-fedavg-record", epsilon=3.0, set={"budgets": "4:0.6,16:0.6"})).notes
    assert "The clients' own budgets count, and epsilon = 3 does not." in notes
    assert "The shares of the clients' budgets come to 1.2, not 1: each is divided by that." in notes


def test_a_matrix_wider_than_the_network_is_paid_for_too() -> None:
    """60 x 60 entries are rounded where the network has 130 parameters; together with the gradients they cost 4."""
    changes = {"cluster_share": 0.3, "clipping": "fixed", "dimensions": 60, "epochs": 1}
    terms = terms_of(experiment(method="adadp-cfl", labels=["no", "yes"], set=changes))
    plan = terms.at_site(0, 144).of_records
    rate, multiplier, steps = plan.charge(0)
    matrix = (1.0, charged_multiplier(float(plan.matrix_multipliers[0]), 3600), 1)
    gradients = (rate, charged_multiplier(multiplier, 130), 3 * steps)
    assert 3.9 < record_epsilon((matrix, gradients), terms.budget.delta) < 4.0
    narrow = terms_of(experiment(method="adadp-cfl", labels=["no", "yes"], set=changes | {"dimensions": 2}))
    less = charged_multiplier(
        float(narrow.at_site(0, 144).of_records.matrix_multipliers[0]), narrow.learner.layout.size
    )
    assert matrix[1] == pytest.approx(less, rel=1e-9)  # what is charged does not depend on the width


def test_what_a_schema_read_from_records_is_told_of_a_deployment_too() -> None:
    table = Schema(columns={"age": NumberColumn(range=(0, 120), public=False), "ill": Label(values=("no", "yes"))})
    changes = {"table": table, "shape": None, "labels": None, "clients": 5}
    terms = terms_of(Experiment.make({k: v for k, v in (DECLARED | changes).items() if v is not None}))
    assert any("was read from the clients' records: age" in one for one in terms.disclosed)


@pytest.mark.parametrize(("step", "release", "left"), [("a", "update", 1), ("b", "more", 1), ("b", "loss", 3)])
def test_a_site_counts_gradients_whatever_they_are_called(step: str, release: str, left: int) -> None:
    """Three turns were reserved for, and gradients have been paid for once under each of their names."""
    steps = {"a": {"update": Gradients(1.0)}, "b": {"more": Gradients(1.0), "loss": Average(0.0, 1.0)}}
    gate = SimpleNamespace(allowance=SimpleNamespace(of_records=SimpleNamespace(turns=[3])))
    session: Any = SimpleNamespace(clients=SimpleNamespace(steps=steps), gate=gate, number=0)
    row: Any = SimpleNamespace(step=step, release=release)
    paid: Any = [SimpleNamespace(release=name) for name in ("update", "more")]
    assert Session.turns_left(session, row, paid) == left


def test_a_delta_that_promises_a_site_nothing_is_refused_there() -> None:
    terms = terms_of(experiment(method="dp-fedavg-record", delta=1e-4))
    terms.at_site(0, 1000)
    with pytest.raises(UserError, match="vacuous"):
        terms.at_site(0, 20_000)


def test_deployments_and_simulations_are_resumed_each_by_its_own_command(tmp_path: Path) -> None:
    from federations import federation

    from sordino.api import resume

    with federation(tmp_path) as made:
        run = made.run().run
        assert made.resume(run).run == run
        assert resume(run, made.store.folder)["run"] == run  # it is done


def test_a_plan_has_spare_turns_and_accuracies_in_it() -> None:
    """A round costs 1/z^2, spare ones too; accuracies take half of everything, so that rounds are the other half."""
    terms = terms_of(experiment(rounds=4, spare_turns=5, noise_multiplier=3.0, epsilon=None))
    assert planned(terms)["mu"][0] == pytest.approx(math.sqrt(4 + 5) / 3)
    shared = terms_of(experiment(rounds=4, noise_multiplier=3.0, epsilon=None, metrics_share=0.5))
    assert planned(shared)["mu"][0] == pytest.approx(math.sqrt(2 * 4) / 3)
    kept = to_be_kept(terms, "the sites")
    assert (kept["turns"], kept.get("deal")) == (9, "the sites")
    assert kept["epsilon"] == pytest.approx(epsilon_of(math.sqrt(9) / 3, terms.budget.delta))


def test_of_a_site_s_records_its_budget_is_planned() -> None:
    terms = terms_of(experiment(method="dp-fedavg-record", set={"batch": 32, "epochs": 1}, epsilon=3))
    assert planned(terms) == {"unit": "record", "mu": [], "recipes": [], "promised": [3.0, terms.budget.delta]}
    assert whole(terms, Ledger(3, Unit.RECORD)).rows == []
    row = Row.of((0, 0, "local", "plan"), [0], Charge.promised([(3.0, terms.budget.delta)]))
    assert whole(terms, Ledger(terms.schedule.clients, Unit.RECORD, [row])).epsilon(terms.budget.delta)["server"] == 3


def test_statistics_of_targets_that_are_longer_than_the_model_are_paid_for_too() -> None:
    """Events and records last seen, by interval: eight numbers beside a network of seven."""
    inputs = {name: NumberColumn(range=(0.0, 1.0), public=True) for name in "abc"}
    outcomes = {"months": Time(cuts=(6.0, 12.0, 24.0, 36.0), public=True), "relapse": Event(values=("no", "yes"))}
    keys = {"table": Schema(columns={**inputs, **outcomes}), "clients": 5, "records_each": 1000, "epsilon": 4.0}
    terms = terms_of(Experiment.make({**keys, "method": "dp-fedsgd", "rounds": 3}))
    counted = terms.learner.task.counted
    assert (counted, terms.learner.layout.size) == (8, 7)
    public = Public({"groups": counted}, range(5), {}, terms.learner.layout.layers)
    rows = terms.ledger().charge(terms.steps()["count"], 0, 0, "count", terms.allowance, public)
    terms.check_reserved(rows)
    assert rows[0].entries == terms.calibration.parameters == 8
