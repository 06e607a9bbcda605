"""Where persons are protected, all rows of one move a sum by no more than is charged, at one client and at several."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from helpers import command
from torch import Tensor, nn
from torch.nn import functional

from sordino.assembly import clients_of, gate_of
from sordino.auditing import record_canaries, sum_canaries, sum_conformance
from sordino.auditing.suite import audit_prepared
from sordino.data.dataset import Split
from sordino.data.schema import PersonRules
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import Prepared, prepare
from sordino.experiment.run import carry_on, register
from sordino.federation import client as clients_module
from sordino.federation.client import keeper_of, units_of
from sordino.learning.network import Learner
from sordino.learning.parameters import flatten
from sordino.planning.advise import advise
from sordino.planning.situation import situation_of
from sordino.privacy.accounting.calibration import affordable_turns, record_multiplier, record_rate
from sordino.privacy.accounting.gaussian import epsilon_of, mu_of
from sordino.privacy.accounting.sampled_gaussian import (
    cover_recipes,
    record_attack_accuracy,
    record_epsilon,
    sites_attack_accuracy,
    sites_epsilon,
)
from sordino.privacy.budget.record_level_plan import RecordNeeds, plan_records
from sordino.privacy.gate import DrawnBatch
from sordino.privacy.gradients import BlankRecords, PrivateRecords, Units
from sordino.privacy.ledger import Ledger, Row
from sordino.privacy.noise import Seeded
from sordino.privacy.release import Charge
from sordino.privacy.sealed import open_sealed
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS
from sordino.report.statement import statement_of
from sordino.store.ledger_rows import ledger_of
from sordino.store.spending import NATURAL, over_runs, sentence, spending_of_ledger, sum_up
from sordino.store.store import Store
from sordino.tasks import Classification
from sordino.testing.records import observe_gradients

RULES = PersonRules("patient", max_rows=5)
CLIP = 0.25
DELTA = 1e-5


def records(rows: list[int], seed: int = 0, scale: float = 3.0) -> Split:
    """One client whose persons have so many rows each."""
    random = torch.Generator().manual_seed(seed)
    count = sum(rows)
    x = scale * torch.randn(count, 4, generator=random)
    y = torch.randint(0, 3, (count,), generator=random)
    return Split.of_persons([(x, y, np.repeat(np.arange(len(rows)), rows))], RULES)


def learner(network: str = "linear") -> Learner:
    torch.manual_seed(1)
    made: dict[str, nn.Module] = {
        "linear": nn.Linear(4, 3),
        "mlp": nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
    }
    return Learner(made[network], Classification.numbered(3))


def private(split: Split, made: Learner, rate: float = 1.0, clip: float = CLIP, kind: Any = PrivateRecords) -> Any:
    units = units_of(split, 0, torch.device("cpu"))
    batch = DrawnBatch(Seeded(0, "identity", repeats=True), (1, 0), rate, torch.tensor([clip]).double(), False)
    nobody = torch.zeros(len(units), dtype=torch.bool)
    return kind(units, nobody, keeper_of(made, split), None, False, None, batch)


def summed(split: Split, made: Learner, **keys: Any) -> Tensor:
    weights = keys.pop("weights", None)
    found: Tensor = open_sealed(private(split, made, **keys).gradient_sum(flatten(made.written), weights))[0]
    return found


def by_hand(split: Split, made: Learner, clip: float, weights: Tensor | None = None) -> Tensor:
    """The sum of persons' limited mean gradients, one person after the other."""
    assert split.persons is not None
    flat, total = flatten(made.written).requires_grad_(), torch.zeros(made.layout.size)
    for first, rows in zip(split.persons.first.tolist(), split.persons.rows.tolist(), strict=True):
        x, y = split.x[first : first + rows], split.y[first : first + rows]
        losses = functional.cross_entropy(made.logits(flat, x), y, reduction="none")
        (mine,) = torch.autograd.grad((losses if weights is None else losses * weights[y]).mean(), flat)
        total += mine * min(1.0, clip / float(mine.norm()))
    return total


@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 1.0, 2.0])], ids=["plain", "weights"])
@pytest.mark.parametrize("network", ["linear", "mlp"])
def test_the_mean_gradient_of_a_person_is_limited_once(network: str, weights: Tensor | None) -> None:
    made, split = learner(network), records([1, 5, 3, 2, 1, 4])
    found = summed(split, made, weights=weights)
    assert torch.allclose(found.float(), by_hand(split, made, CLIP, weights), atol=1e-5)


@pytest.mark.parametrize("scale", [0.01, 1.0, 1e4])
def test_a_person_with_five_rows_at_two_sites_moves_the_sum_by_what_is_charged(scale: float) -> None:
    made, moved = learner(), torch.zeros(made_size := learner().layout.size)
    for seed in (3, 4):
        split = records([2, 5, 1], seed, scale)
        assert split.persons is not None
        rest = torch.ones(len(split.y), dtype=torch.bool)
        rest[2:7] = False
        codes = split.persons.codes(0)[rest.numpy()]
        without = Split.of_persons([(split.x[rest], split.y[rest], codes)], RULES)
        change = summed(split, made) - summed(without, made)
        assert float(change.norm()) <= CLIP * (1 + 1e-6)
        moved += change
    assert float(moved.norm()) <= 2 * CLIP * (1 + 1e-6)
    assert len(moved) == made_size


def test_persons_of_one_row_are_records() -> None:
    split = records([1] * 30)
    alone = replace(split, persons=None)
    for rate in (1.0, 0.5):
        assert torch.allclose(summed(split, learner(), rate=rate), summed(alone, learner(), rate=rate), atol=1e-6)


def test_coins_fall_for_persons() -> None:
    made, split = learner(), records([5] * 40)
    persons = [
        Split.of_persons([(split.x[5 * k : 5 * k + 5], split.y[5 * k : 5 * k + 5], np.zeros(5))], RULES)
        for k in range(40)
    ]
    each = torch.stack([summed(one, made, clip=1e9) for one in persons])
    found = summed(split, made, rate=0.5, clip=1e9)
    coins = DrawnBatch(Seeded(0, "identity", repeats=True), (1, 0), 0.5, torch.tensor([1e9]), False).coins(40)
    assert 5 < int(coins.sum()) < 35
    assert torch.allclose(each[coins].sum(dim=0), found, atol=1e-4)


def test_values_of_persons_are_means_of_their_rows() -> None:
    made, split = learner(), records([1, 3, 2])
    data = private(split, made)
    counts = open_sealed(data.label_counts())
    assert counts.shape == (3, 3)
    assert torch.allclose(counts.sum(dim=1), torch.ones(3))
    assert float(counts.norm(dim=1).max()) <= 1 + 1e-6
    assert torch.allclose(counts[1], functional.one_hot(split.y[1:4], 3).float().mean(dim=0))
    along = open_sealed(data.projected(torch.eye(4)))
    assert torch.allclose(along[2], split.x[4:6].mean(dim=0))
    units = units_of(split, 0, torch.device("cpu"))
    judged = PrivateRecords(units, torch.ones(3, dtype=torch.bool), keeper_of(made, split), None)
    losses, right = (open_sealed(one) for one in judged.judged(flatten(made.written)))
    logits = made.logits(flatten(made.written), split.x[1:4])
    assert torch.allclose(losses[1], functional.cross_entropy(logits, split.y[1:4]), atol=1e-6)
    assert torch.allclose(right[1], (logits.argmax(dim=1) == split.y[1:4]).float().mean())


def test_a_row_that_is_not_finite_takes_its_person_along_and_nobody_else() -> None:
    made, split = learner(), records([2, 3, 1])
    split.x[3] = math.nan
    kept = torch.tensor([True, True, False, False, False, True])
    without = Split.of_persons([(split.x[kept], split.y[kept], np.array([0, 0, 2]))], RULES)
    assert torch.allclose(summed(split, made), summed(without, made), atol=1e-6)


def test_persons_whose_step_failed_say_nothing() -> None:
    made = learner()
    assert not summed(records([2, 3]), made, kind=BlankRecords).any()


def test_a_persons_blank_place_is_kept() -> None:
    units = units_of(records([2, 3]), 0, torch.device("cpu"))
    assert len(units.blank()) == len(units) == 2
    assert not units.blank().x.any()
    assert isinstance(units.at(torch.tensor([1])), Units)


# What it costs.


def of_mixture(rate: float, multiplier: float, steps: int, sites: int) -> float:
    """The same by dp-accounting, which is independent of this package."""
    chances = [math.comb(sites, k) * rate**k * (1 - rate) ** (sites - k) for k in range(sites + 1)]
    event = dp_event.MixtureOfGaussiansDpEvent(multiplier, list(range(sites + 1)), chances)
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    return float(accountant.compose(event, steps).get_epsilon(DELTA))


@pytest.mark.parametrize(("rate", "multiplier", "steps", "sites"), [(0.1, 1.5, 20, 3), (0.3, 4.0, 30, 2)])
def test_a_person_at_several_sites_pays_for_a_mixture(rate: float, multiplier: float, steps: int, sites: int) -> None:
    found = sites_epsilon((((rate, multiplier, steps),),), sites, DELTA)
    assert found == pytest.approx(of_mixture(rate, multiplier, steps, sites), rel=5e-3)
    assert found > record_epsilon(((rate, multiplier, steps),), DELTA)


def test_without_sampling_sites_multiply_mu() -> None:
    recipe = ((1.0, 10.0, 4),)
    assert sites_epsilon((recipe,), 3, DELTA) == pytest.approx(record_epsilon(((1.0, 10.0 / 3, 4),), DELTA), rel=1e-9)
    assert sites_attack_accuracy((recipe,), 3) == pytest.approx(record_attack_accuracy(((1.0, 10.0 / 3, 4),)), rel=1e-9)


def test_messages_seen_apart_are_composed() -> None:
    """Where noise is hardly any, one message each tells more than a sum of all."""
    for recipe in (((0.2, 0.5, 1),), ((0.01, 3.0, 50),)):
        (charge,) = recipe
        apart = record_epsilon(((charge[0], charge[1], 3 * charge[2]),), DELTA)
        assert sites_epsilon((recipe,), 3, DELTA) >= apart


@pytest.mark.parametrize("sites", [2, 3])
def test_nobody_knows_which_clients_know_a_person(sites: int) -> None:
    cheap, dear = ((0.1, 4.0, 10),), ((0.3, 3.0, 12), (1.0, 20.0, 1))
    both = sites_epsilon((cheap, dear), sites, DELTA)
    assert both >= sites_epsilon((dear,), sites, DELTA) >= sites_epsilon((cheap,), sites, DELTA)
    for cover in cover_recipes((cheap, dear)):
        assert record_epsilon(cover, DELTA) >= max(record_epsilon(one, DELTA) for one in (cheap, dear))


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_noise_is_planned_for_all_sites_together(rate: float) -> None:
    multiplier = record_multiplier(1.0, DELTA, rate, 20, sites=3)
    assert sites_epsilon((((rate, multiplier, 20),),), 3, DELTA) <= 1.0
    assert sites_epsilon((((rate, multiplier / 1.006, 20),),), 3, DELTA) > 1.0
    assert multiplier > record_multiplier(1.0, DELTA, rate, 20)
    fitting = record_rate(1.0, DELTA, multiplier, 20, 1.0, sites=3)
    assert sites_epsilon((((fitting, multiplier, 20),),), 3, DELTA) <= 1.0
    assert affordable_turns(1.0, DELTA, (rate, multiplier, 1), 40, sites=3) in (20, 21)


def charged(sites: int, **more: Any) -> Ledger:
    """The ledger of one sum of gradients."""
    charge = replace(Charge.of_records("training", [(1.0, 2.0, 1)]), **more)
    return Ledger(2, Unit.PERSON, [Row.of((0, 0, "local", "gradient"), [0], charge)], sites)


def test_whole_numbers_of_all_sites_count() -> None:
    alone, twice = charged(1, entries=1000), charged(2, entries=1000)
    for view in VIEWS:
        assert [gap.coordinates for gap in twice._gaps(view)] == [2 * gap.coordinates for gap in alone._gaps(view)]


def test_a_promise_at_one_site_is_none_at_several() -> None:
    row = Row.of((0, 0, "local", "plan"), [0], Charge.promised([(2.0, DELTA / 2)]))
    assert Ledger(2, Unit.PERSON, [row]).epsilon(DELTA)["server"] == pytest.approx(2.0)
    assert Ledger(2, Unit.PERSON, [row], sites=2).epsilon(DELTA)["server"] == math.inf


# Runs.


def clinics(folder: Path) -> Path:
    random = np.random.default_rng(0)
    folder.mkdir()
    for name in ("north", "south", "west"):
        lines = ["patient,age,dose,sick"]
        for person in range(60):
            centre = random.normal(size=2)
            for _ in range(random.integers(1, 6)):
                age, dose = centre + 0.3 * random.normal(size=2)
                lines.append(f"{person},{age:.3f},{dose:.3f},{int(age - dose + 0.5 * random.normal() > 0)}")
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return folder


def made(tmp_path: Path, **keys: Any) -> Prepared:
    folder = tmp_path / "clinics"
    chosen = {"data": str(folder if folder.exists() else clinics(folder)), "label": "sick", "labels": ["0", "1"]}
    chosen |= {"method": "dp-fedsgd", "model": "logistic", "rounds": 4, "epsilon": 2.0, "person": "patient"}
    return prepare(Experiment.make(chosen | {"store": str(tmp_path / "store"), "seed": 1} | keys))


def test_a_run_says_that_it_protects_persons(tmp_path: Path) -> None:
    prepared = made(tmp_path, max_rows_per_person=3)
    store = Store(tmp_path / "store")
    run = register(prepared, store)
    summary = carry_on(prepared, store, run)
    row = store.get(run)
    assert (summary.unit, row.unit, prepared.unit) == (Unit.PERSON,) * 3
    assert summary.epsilon["outsider"] == pytest.approx(2.0, rel=1e-3)
    assert summary.epsilon_rows == {}
    assert "all rows of one person" in summary.neighbours
    assert any("told apart by 'patient'" in note and "3 drawn at random" in note for note in summary.notes)
    assert prepared.allowance.of_records.trained.tolist() == [48, 48, 48], "persons, not rows"
    assert summary.records is not None
    assert summary.records > 2 * 144
    statement = statement_of(store, run)
    assert (statement.covered_units, summary.persons) == (144, 144)
    assert statement.protects.startswith("One person, with all rows that one participant has of this person.")
    situation = situation_of(prepared.experiment, None, None, look=True)
    assert (situation.records, situation.total) == (48, 144)
    advice = str(advise(situation))
    assert "one row, not one person" not in advice.lower()
    assert ledger_of(row, store).epsilon(summary.delta)["server"] == pytest.approx(summary.epsilon["server"], rel=1e-9)
    assert over_runs(store, row.people, Unit.PERSON, summary.delta)["epsilon"] == pytest.approx(
        summary.epsilon, rel=1e-3
    )


def test_persons_known_to_several_clients_pay_for_all(tmp_path: Path) -> None:
    prepared = made(tmp_path, max_sites_per_person=2, rounds=2)
    store = Store(tmp_path / "store")
    run = register(prepared, store)
    summary = carry_on(prepared, store, run)
    assert summary.epsilon["outsider"] == pytest.approx(2.0, rel=1e-3)
    alone = prepare(Experiment.make(dict(prepared.experiment) | {"max_sites_per_person": None}))
    assert prepared.budget.multiplier == pytest.approx(2 * alone.budget.multiplier, rel=1e-6)
    row = store.get(run)
    assert spending_of_ledger(ledger_of(row, store))["sites"] == 2
    assert over_runs(store, row.people, Unit.PERSON, summary.delta)["epsilon"]["outsider"] == pytest.approx(
        2.0, rel=1e-3
    )


@pytest.mark.parametrize("method", ["dp-fedavg-record", "adadp-cfl"])
def test_every_record_level_method_protects_persons(method: str, tmp_path: Path) -> None:
    prepared = made(tmp_path, method=method, rounds=2, epsilon=8.0, set={"batch": 16})
    store = Store(tmp_path / "store")
    summary = carry_on(prepared, store, register(prepared, store))
    assert summary.unit is Unit.PERSON
    assert summary.epsilon["server"] is not None
    assert summary.epsilon["server"] <= 8.0 * (1 + 1e-6)


@pytest.mark.parametrize("sites", [1, 2])
def test_a_person_is_dealt_to_one_batch_of_a_pass(sites: int, tmp_path: Path) -> None:
    """Two passes in each of two rounds; at j clients a person moves what leaves by j thresholds together."""
    chosen = {"batch": 16, "epochs": 2, "batches": "shuffled"}
    several = {"max_sites_per_person": sites} if sites > 1 else {}
    about = {"method": "dp-fedavg-record", "rounds": 2, "epsilon": 8.0, "workers": 1, "set": chosen}
    prepared = made(tmp_path, **about, **several)
    store = Store(tmp_path / "store")
    with observe_gradients() as seen:
        summary = carry_on(prepared, store, register(prepared, store))
    multiplier = float(prepared.allowance.of_records.multipliers[0])
    assert summary.epsilon["server"] == pytest.approx(epsilon_of(sites * math.sqrt(4) / multiplier, DELTA), rel=1e-6)
    assert 0.97 * 8.0 < summary.epsilon["server"] <= 8.0 * (1 + 1e-9)
    passes: dict[tuple[int, int, int], list[int]] = {}
    for one in seen:
        passes.setdefault((one.question, one.client, one.step // 3), []).extend(one.chosen.tolist())
    assert len(passes) == 2 * 3 * 2
    assert all(sorted(entered) == list(range(48)) for entered in passes.values())


def test_what_persons_cannot_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name the column with their codes"):
        made(tmp_path, person=None, max_sites_per_person=2)
    with pytest.raises(UserError, match="variant paper, and persons are declared"):
        made(tmp_path, method="adadp-cfl", variant="paper")
    with pytest.raises(UserError, match="max_sites_per_person is 4, but there are 3 clients"):
        made(tmp_path, max_sites_per_person=4)
    with pytest.raises(UserError, match="max_sites_per_person is above 1"):
        plan_records(
            [100],
            np.array([1.0]),
            DELTA,
            batch=10,
            epochs=1,
            turns=5,
            needs=RecordNeeds(means=1, held_out=0.1),
            sites=2,
        )


def test_all_test_records_of_a_person_weigh_one(tmp_path: Path) -> None:
    prepared = made(tmp_path, evaluation_share=0.2, rounds=2)
    clients, persons = clients_of(prepared, gate_of(prepared)), prepared.data.test.persons
    assert persons is not None
    assert int(persons.rows.max()) > 1
    task = prepared.learner.task
    assert isinstance(task, Classification)
    cells = clients._rows(task, prepared.initial, 1)
    assert cells.shape[0] == persons.counts[1] < prepared.data.test.sizes[1]
    assert torch.allclose(cells.sum(dim=1), torch.ones(len(cells)))
    assert float(cells.norm(dim=1).max()) <= 1 + 1e-6
    store = Store(tmp_path / "store")
    summary = carry_on(prepared, store, register(prepared, store))
    assert summary.evaluation is not None
    assert summary.epsilon["outsider"] == pytest.approx(2.0, rel=1e-3)


# Other units, over several runs.


def test_runs_of_other_units_cost_a_person_what_they_may(tmp_path: Path) -> None:
    mu, recipe = 0.3, [[1.0, 10.0, 5]]
    client: Any = {"unit": "client", "mu": [mu] * 3, "recipes": [], "deal": "a", "together": NATURAL}
    person: Any = {"unit": "person", "mu": [], "recipes": [recipe], "deal": "a", "together": "patient"}
    of_rows: Any = {"unit": "record", "mu": [], "recipes": [recipe], "deal": "a"}

    def epsilon(unit: Unit, *runs: Any) -> float | None:
        return sum_up(runs, unit, DELTA)["epsilon"]["outsider"]

    both = math.hypot(2 * mu, math.sqrt(5) / 10)
    assert epsilon(Unit.PERSON, client, person) == pytest.approx(record_epsilon(((1.0, 1 / both, 1),), DELTA), rel=1e-6)
    several = math.hypot(2 * 3 * mu, 3 * math.sqrt(5) / 10)
    at_three = {**person, "sites": 3}
    assert epsilon(Unit.PERSON, client, at_three) == pytest.approx(
        record_epsilon(((1.0, 1 / several, 1),), DELTA), rel=1e-6
    )
    told = sentence({**sum_up([client, at_three], Unit.PERSON, DELTA), "limit": None, "limit_for": None}, "outsider")
    assert told is not None
    assert "For one person known to up to 3 clients" in told
    for where in ({}, {"together": NATURAL}, {"together": "patient"}):
        assert epsilon(Unit.PERSON, person, {**of_rows, **where}) is None, "nobody counted a person's rows"
    assert epsilon(Unit.CLIENT, person) is None
    assert epsilon(Unit.RECORD, person) == pytest.approx(record_epsilon(((1.0, 5.0, 5),), DELTA), rel=1e-6)
    by_visit, scattered = {**person, "together": "visit"}, {**client}
    del scattered["together"]
    assert epsilon(Unit.PERSON, person, by_visit) is None, "persons of one run are not those of another"
    assert epsilon(Unit.PERSON, person, scattered) is None, "rows of one person may have stood with many clients"
    promised: Any = {"unit": "person", "mu": [], "recipes": [], "promised": [1.0, 1e-6], "deal": "a"}
    assert epsilon(Unit.RECORD, promised) is None, "a row may move its person's mean by twice the limit"
    sampled: Any = {"unit": "person", "mu": [], "recipes": [[[0.1, 10.0, 5]]], "deal": "a"}
    assert epsilon(Unit.RECORD, sampled) == epsilon(Unit.RECORD, person), "what sampling hides is not counted"
    assert mu_of(1.0, DELTA) > 0


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({"drop": ["patient"]}, True),
        ({"drop": ["patient"], "partition": "iid", "clients": 4}, False),
        ({"person": "patient", "partition": "iid", "clients": 4}, True),
    ],
    ids=["own files", "rows dealt one by one", "persons dealt as wholes"],
)
def test_a_run_that_scattered_rows_promises_persons_nothing(
    changes: dict[str, Any], known: bool, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    for keys in ({"method": "dp-fedavg", "person": None, **changes}, {}):
        prepared = made(tmp_path, rounds=1, **keys)
        run = register(prepared, store)
        summary = carry_on(prepared, store, run)
    total = over_runs(store, store.get(run).people, Unit.PERSON, summary.delta)
    assert total["runs"] == 2
    assert (total["epsilon"]["outsider"] is not None) == known


# The audit.


def as_rows(split: Split, client: int, device: torch.device) -> Units:
    return Units(*split.part(client))


@pytest.mark.parametrize("tiers", [pytest.param((0,), marks=pytest.mark.slow), (1,)])
def test_coins_for_rows_under_a_claim_for_persons_are_refuted(
    tiers: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (clients_module, record_canaries, sum_canaries):
        monkeypatch.setattr(module, "units_of", as_rows)
        monkeypatch.setattr(module, "keeper_of", lambda learner, records: learner.keeper(tuple(records.x.shape[1:])))
    assert sum_conformance.units_of is units_of
    report = audit_prepared(made(tmp_path, rounds=2), 20_000, tiers)
    assert report.refuted


def test_a_stored_run_is_audited_by_its_name(tmp_path: Path) -> None:
    """Its data, schema and person are those of the run, which no option needs to repeat."""
    prepared, store = made(tmp_path, rounds=1), Store(tmp_path / "store")
    run = register(prepared, store)
    carry_on(prepared, store, run)
    line = statement_of(store, run).audit_command
    assert line == f"sordino audit {run} --store {tmp_path / 'store'}"
    told = command(*shlex.split(line)[1:], "--tiers", "1", "--trials", "1000", "--json").document
    assert (told["unit"], told["refuted"]) == ("person", False)
    found = statement_of(store, run).audit
    assert found is not None, "the statement finds the verdict"
    assert "There is no run 'other'" in command("audit", "other", "--store", tmp_path / "store").err


@pytest.mark.slow
def test_the_claim_for_persons_holds(tmp_path: Path) -> None:
    report = audit_prepared(made(tmp_path, rounds=2), 20_000, (0, 1, 2, 3))
    assert not report.refuted, report
    assert report.unit is Unit.PERSON
