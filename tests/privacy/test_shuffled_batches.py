"""Dealt batches: every record is in one batch of a pass, and pays for that one in full.

What a pass costs, derived here and not taken from the code. Two worlds differ in the contents of one record, and who is
dealt to which batch depends on places and seed alone. Given the deal, the noisy sums of all other batches have the same
distribution in both worlds, whatever was seen before them; the sum of the record's own batch has a mean that is moved
by at most C (emptied) or 2 C (replaced) under N(0, (z C)^2). The likelihood ratio of a whole pass is therefore that of
one Gaussian with multiplier z, or z / 2, and E passes in each of T rounds are E T of them. Nothing here is amplified:
an observer may know the deal.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import dp_event, get_epsilon_gaussian
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from torch import Tensor, nn

from sordino.auditing.suite import audit_prepared
from sordino.deploy.terms import terms_of
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.experiment.run import carry_on, register
from sordino.learning.network import Learner
from sordino.learning.parameters import flatten
from sordino.learning.per_record import Bookkeeper
from sordino.methods import find
from sordino.methods.bases import SIZES_IN_PASSES
from sordino.methods.dp_fedavg_record import DPFedAvgRecord
from sordino.privacy.accounting.gaussian import mu_of
from sordino.privacy.accounting.sampled_gaussian import person_epsilon, replaced_epsilon
from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.budget.record_level_plan import RecordNeeds, RecordPlan, plan_records, plan_without_noise
from sordino.privacy.gate import BareGradients, Gate, SampledGradients, StackedGradients
from sordino.privacy.gradients import PrivateRecords, PrivateRows, Stack, Units
from sordino.privacy.noise import Secure, Seeded
from sordino.privacy.release import Gradients, Public
from sordino.privacy.views import VIEWS
from sordino.store.spending import planned_recipes
from sordino.store.store import Store
from sordino.tasks import Classification
from sordino.terms import Facts, derive_costs, describe_settings
from sordino.testing.case import Case
from sordino.testing.records import dealt_records_are_clipped_and_noised_as_charged

SOURCE = Seeded(0, "identity", repeats=True)
LEARNER = Learner(nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)), Classification.numbered(3))
CLIP = 0.5


def composed(multiplier: float, times: int, delta: float) -> float:
    """Epsilon of so many Gaussians by Google's accountant: they compose to one whose multiplier is the root smaller."""
    return float(get_epsilon_gaussian(multiplier / math.sqrt(times), delta))


# ---- what it costs


@pytest.mark.parametrize(("nominal", "multiplier", "true"), [(1, 0.4344, 192), (5, 0.0869, 3612), (10, 0.0434, 13878)])
def test_the_true_epsilons_of_adadp_cfls_released_code(nominal: int, multiplier: float, true: int) -> None:
    """500 records a client in batches of 20, five passes a round; every client takes part in 10 of 100 rounds: 50
    Gaussians at delta 1e-4. The noise is s / C = (2 eta / B) sqrt(2 ln(1.25 / delta)) T / epsilon with eta = 0.01."""
    assert multiplier == pytest.approx(2 * 0.01 / 20 * math.sqrt(2 * math.log(1.25 / 1e-4)) * 100 / nominal, abs=5e-5)
    keys = {"method": "dp-fedavg-record", "clients": 100, "rounds": 100, "participation": 0.1, "delta": 1e-4}
    chosen = {"noise_multiplier": multiplier, "set": {"epochs": 5, "batch": 20, "batches": "shuffled"}}
    costs = derive_costs(Experiment.make(keys, chosen), Facts(clients=100, sizes=np.full(100, 500)))
    assert costs.allowance.of_records.steps.tolist() == [125] * 100
    (recipe,) = {recipe for mine in planned_recipes(costs) for recipe in mine}
    assert recipe == ((1.0, (multiplier,) * 3, 50),)
    spent = costs.ledger()
    for question in range(10):
        public = Public({"clip": torch.full((1,), 0.3)}, [7])
        spent.charge({"update": Gradients(clip="clip")}, question, question, "local", costs.allowance, public)
    found = spent.epsilon(1e-4)
    assert found == pytest.approx(dict.fromkeys(VIEWS, composed(multiplier, 50, 1e-4)), rel=1e-6)
    assert round(found["server"]) == true
    halved = composed(multiplier / 2, 50, 1e-4)
    assert spent.replaced("server", 1e-4)[0] == pytest.approx(halved, rel=1e-6), "a replaced record moves by 2 C"


@settings(deadline=None, max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 900), min_size=1, max_size=4),
    batch=st.integers(1, 64),
    epochs=st.integers(1, 6),
    turns=st.integers(1, 20),
    epsilon=st.floats(0.1, 30),
)
def test_noise_follows_from_passes_alone(sizes: list[int], batch: int, epochs: int, turns: int, epsilon: float) -> None:
    """z = sqrt(E T) / mu, to a quarter of a percent, whatever a client's size and batches."""
    budgets = np.full(len(sizes), epsilon)
    plan = plan_records(sizes, budgets, 1e-5, batch=batch, epochs=epochs, turns=turns, batches="shuffled")
    least = math.sqrt(epochs * turns) / mu_of(epsilon, 1e-5)
    for client, size in enumerate(sizes):
        dealt = math.ceil(size / batch)
        assert plan.gradients(client) == (1 / dealt, plan.multipliers[client], epochs * dealt)
        assert plan.charge(client) == (1.0, plan.multipliers[client], epochs)
        assert least * (1 - 1e-9) <= plan.multipliers[client] <= 1.0026 * least


def test_it_costs_more_than_poisson_batches() -> None:
    asked: dict[str, Any] = {"batch": 20, "epochs": 5, "turns": 10}
    shuffled, poisson = (
        plan_records([500], np.array([5.0]), 1e-5, **asked, batches=batches)  # type: ignore[arg-type]
        for batches in ("shuffled", "poisson")
    )
    assert poisson.multipliers[0] == pytest.approx(1.47, rel=0.01)
    assert shuffled.multipliers[0] == pytest.approx(6.31, rel=0.01)


def test_personal_budgets_records_set_aside_and_a_given_noise() -> None:
    needs, budgets = RecordNeeds(means=2, held_out=0.2), np.array([1.0, 4.0])
    plan = plan_records([200, 100], budgets, 1e-5, batch=20, epochs=2, turns=5, needs=needs, batches="shuffled")
    assert plan.steps.tolist() == [2 * 8, 2 * 4], "160 and 80 are left to be trained on"
    for client, budget in enumerate((1.0, 4.0)):
        assert 0.99 * budget < composed(float(plan.multipliers[client]), 10, 1e-5) <= budget * (1 + 1e-9)
    given = plan_records([200, 100], budgets, 1e-5, batch=20, epochs=2, turns=50, multiplier=9.0, batches="shuffled")
    for client, budget in enumerate((1.0, 4.0)):
        fits = [composed(9.0, 2 * turns, 1e-5) <= budget for turns in range(1, 51)]
        assert given.turns[client] == sum(fits)


def test_matrices_are_planned_beside_passes() -> None:
    needs = RecordNeeds(matrix_share=0.3, matrices=1)
    plan = plan_records([200], np.array([2.0]), 1e-5, batch=20, epochs=2, turns=5, needs=needs, batches="shuffled")
    z, matrix = float(plan.multipliers[0]), float(plan.matrix_multipliers[0])
    mu = math.sqrt(10 / z**2 + 1 / matrix**2)
    assert 0.99 * 2.0 < float(get_epsilon_gaussian(1 / mu, 1e-5)) <= 2.0 * (1 + 1e-9)


def test_a_person_with_several_rows_may_have_them_all_in_one_batch() -> None:
    """k rows in one batch move its sum by k C; in several batches sum of k_b^2 is smaller than k^2."""
    epsilon = person_epsilon(((((1.0, 4.0, 6),), 3),), 1e-5)
    assert epsilon == pytest.approx(composed(4.0 / 3, 6, 1e-5), rel=1e-6)


def test_a_replaced_record_by_another_accountant() -> None:
    accountant = PLDAccountant()
    accountant.compose(dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(6.31 / 2), 50))
    assert replaced_epsilon(((1.0, 6.31, 50),), 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


# ---- who is in a batch


@settings(deadline=None, max_examples=50)
@given(count=st.integers(0, 300), batches=st.integers(1, 40))
def test_a_deal_is_a_partition_into_equal_parts(count: int, batches: int) -> None:
    sizes = torch.bincount(SOURCE.deal(count, batches, 3, 1, 0), minlength=batches)
    assert len(sizes) == batches
    assert int(sizes.sum()) == count
    assert int(sizes.max()) <= int(sizes.min()) + 1


def test_deals_differ_by_question_client_pass_and_seed_and_come_again() -> None:
    def dealt(*purpose: int, source: Seeded = SOURCE) -> list[int]:
        return source.deal(60, 4, *purpose).tolist()

    first = dealt(3, 1, 0)
    assert first == dealt(3, 1, 0) == dealt(3, 1, 0, source=Seeded(0, "another run")), "the ground decides"
    assert first == Secure(Seeded(0)).deal(60, 4, 3, 1, 0).tolist()
    others = [dealt(4, 1, 0), dealt(3, 2, 0), dealt(3, 1, 1), dealt(3, 1, 0, source=Seeded(1, "identity"))]
    assert first not in others
    assert len({tuple(one) for one in others}) == 4


def data_of(
    x: Tensor, y: Tensor, multiplier: float, steps: int, passes: int, clip: float = CLIP, client: int = 7
) -> PrivateRecords:
    drawn = (passes / steps, multiplier, steps)
    exit = SampledGradients(SOURCE, (0, client), drawn, torch.tensor([clip]), passes=passes)
    return PrivateRecords(Units(x, y), torch.zeros(len(y), dtype=torch.bool), Bookkeeper(LEARNER), exit)


def records(count: int = 22) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return 3 * torch.randn(count, 6), torch.randint(0, 3, (count,)), flatten(LEARNER.module)


def test_one_record_moves_one_sum_of_a_pass_by_at_most_its_threshold() -> None:
    """Emptied by C at the most, replaced by 2 C; every record, however large, and all other sums not by a bit."""
    x, y, flat = records()
    model = flat.clone()

    def sums(x: Tensor) -> Tensor:
        data = data_of(x, y, 1e-12, steps=12, passes=3)
        return torch.stack([data.gradient(model) * data.expected_batch for _ in range(12)])

    before, moved = sums(x), []
    for place in range(len(y)):
        for scale in (0.0, -1.0, 100.0):
            others = x.clone()
            others[place] *= scale
            change = (sums(others) - before).norm(dim=1).reshape(3, 4)
            assert ((change > 1e-6).sum(dim=1) <= 1).all(), "two sums of one pass have it"
            moved.append(float(change.max()))
    assert max(moved) <= 2 * CLIP * (1 + 1e-5)
    assert max(moved) > 1.2 * CLIP, "thresholds and replacement matter here"


def test_every_pass_deals_anew() -> None:
    exit = SampledGradients(SOURCE, (0, 7), (0.25, 1.0, 12), torch.tensor([CLIP]), passes=3)
    drawn = [exit.draw(40) for _ in range(12)]
    batches = [tuple(chosen.nonzero().flatten().tolist()) for chosen, _ in drawn]
    assert [key for _, key in drawn] == [("gradient", 0, 7, step) for step in range(12)]
    assert len(set(batches)) == 12
    for first in (0, 4, 8):
        assert sorted(sum(batches[first : first + 4], ())) == list(range(40))
    other = SampledGradients(SOURCE, (0, 8), (0.25, 1.0, 12), torch.tensor([CLIP]), passes=3)
    assert tuple(other.draw(40)[0].nonzero().flatten().tolist()) not in batches


def test_without_noise_a_pass_is_the_sum_of_all_clipped_gradients() -> None:
    x, y, flat = records()
    data = data_of(x, y, 1e-12, steps=8, passes=2)
    whole = data_of(x, y, 1e-12, steps=1, passes=1)
    everything = whole.gradient(flat) * whole.expected_batch
    assert data.expected_batch == pytest.approx(22 / 4)
    for _ in range(2):
        found = sum(data.gradient(flat) * data.expected_batch for _ in range(4))
        assert torch.allclose(torch.as_tensor(found), everything, atol=1e-5)


def test_every_sum_has_its_noise_and_no_more_are_given_out() -> None:
    x, y, flat = records()
    data = data_of(0 * x, y, 3.0, steps=60, passes=12, clip=1e-3)
    rows = torch.stack([data.gradient(flat) for _ in range(60)]).double()
    noise = (rows / float(data.deviation)).numpy()
    low, high = chi2.ppf([5e-7, 1 - 5e-7], noise.size)
    assert low < float(np.square(noise).sum()) < high
    assert float(data.deviation) == pytest.approx(3.0 * 1e-3 / (22 / 5))
    assert len(np.unique(noise)) == noise.size, "no draw comes twice"
    with pytest.raises(UserError, match="more noisy gradients than the 60"):
        data.gradient(flat)


@pytest.mark.parametrize("kind", [SampledGradients, BareGradients])
def test_stacked_clients_take_the_batches_that_they_would_take_alone(kind: type[SampledGradients]) -> None:
    sizes = [9, 22, 14]
    x, y, _ = records(3 * 22)
    x, y = x.reshape(3, 22, 6), y.reshape(3, 22)
    flat = torch.randn(3, LEARNER.layout.size, generator=torch.Generator().manual_seed(1))

    def exits() -> list[SampledGradients]:
        return [kind(SOURCE, (5, k), (1 / 3, 0.5, 6), torch.tensor([0.1]), passes=2) for k in range(3)]

    stack = Stack(x, y, sizes, LEARNER, StackedGradients(exits(), SOURCE))

    def taken(flat: Tensor, figures: dict[str, Tensor]) -> Tensor:
        data = PrivateRows(stack, figures)
        return torch.stack([data.gradient(flat) for _ in range(6)])

    found = torch.func.vmap(taken)(flat, stack.figures)
    for k, exit in enumerate(exits()):
        units = Units(x[k, : sizes[k]], y[k, : sizes[k]])
        data = PrivateRecords(units, torch.zeros(sizes[k], dtype=torch.bool), Bookkeeper(LEARNER), exit)
        alone = torch.stack([data.gradient(flat[k].clone()) for _ in range(6)])
        assert torch.allclose(found[k], alone, atol=1e-6)


def test_the_gate_opens_the_exit_that_was_planned() -> None:
    plan = plan_records([50], np.array([4.0]), 1e-5, batch=20, epochs=2, turns=5, batches="shuffled")
    gate = Gate(Allowance(records=plan), SOURCE)
    for separate, clip in ((None, [1.0]), ([2, 3], [1.0, 2.0])):
        exit = gate.gradients(0, 0, torch.tensor(clip), separate)
        assert (exit.passes, exit.steps, exit.batches_of_pass) == (2, 6, 3)
        assert exit.multiplier == plan.multipliers[0]
    blank = plan_without_noise([50], np.array([4.0]), batch=20, epochs=2, turns=5, batches="shuffled")
    assert isinstance(Gate(Allowance(records=blank), SOURCE).gradients(0, 0, torch.ones(1)), BareGradients)
    many = plan.repeated(0, 3)
    assert (many.passes, many.steps.tolist()) == (2, [6, 6, 6])


# ---- where it is offered


def test_methods_whose_epsilon_rests_on_coins_refuse_it() -> None:
    for method in ("rpdp-fl", "dp-fedsgd"):
        for privacy in ("dp", "none"):
            budget = {"epsilon": 4.0} if privacy == "dp" else {}
            experiment = Experiment.make(
                {"method": method, "clients": 4, "rounds": 2, "privacy": privacy, **budget},
                {"set": {"batches": "shuffled"}},
            )
            with pytest.raises(UserError, match=r"rarely records are drawn.*Leave `batches` out"):
                derive_costs(experiment, Facts(clients=4, sizes=np.full(4, 100)))


def test_runs_without_the_key_keep_their_identity() -> None:
    assert "batches" not in describe_settings(DPFedAvgRecord())
    assert "batches='shuffled'" in describe_settings(DPFedAvgRecord(batches="shuffled"))


KEYS: dict[str, Any] = {
    **{"method": "dp-fedavg-record", "clients": 6, "rounds": 3, "partition": "iid", "model": "logistic"},
    **{"records": 600, "epsilon": 3.0, "delta": 1e-5, "workers": 1},
    "set": {"epochs": 2, "batch": 16, "batches": "shuffled"},
}


@pytest.mark.parametrize("engine", ["stacked", "one-by-one"])
def test_a_run_spends_its_budget_and_says_what_it_does_not_hide(engine: str, tmp_path: Path) -> None:
    prepared, store = prepare(Experiment.make(KEYS, {"engine": engine})), Store(tmp_path)
    summary = carry_on(prepared, store, register(prepared, store))
    z = float(prepared.allowance.of_records.multipliers[0])
    true = composed(z, 2 * 3, 1e-5)
    assert 0.99 * 3.0 < true <= 3.0
    assert summary.epsilon == pytest.approx(dict.fromkeys(VIEWS, true), rel=1e-6)
    assert SIZES_IN_PASSES in summary.not_covered


def test_a_deployment_charges_passes_and_leaves_room_for_whole_numbers() -> None:
    declared = {
        **{"clients": 6, "shape": [64], "labels": [*map(str, range(10))], "records_each": 100, "rounds": 3},
        **{"epsilon": 4.0, "method": "dp-fedavg-record", "delta": 1e-5},
        "set": {"epochs": 2, "batch": 16, "batches": "shuffled"},
    }
    terms = terms_of(Experiment.make(declared))
    mine: RecordPlan = terms.at_site(2, 90).of_records
    assert mine.passes == 2
    assert mine.steps[2] == 2 * 6
    turns = terms.turns
    spent = terms.ledger()
    for question in range(turns):
        public = Public({"clip": torch.ones(1)}, [2], layers=terms.learner.layout.layers)
        allowance = terms.at_site(2, 90)
        spent.charge({"update": Gradients(clip="clip")}, question, question, "local", allowance, public)
    assert composed(float(mine.multipliers[2]), 2 * turns, 1e-5) <= 4.0
    assert 0.97 * 4.0 < spent.epsilon(1e-5)["server"] <= 4.0


# ---- attacks


def names(report: Any) -> set[str]:
    return {finding.name for finding in report.findings if finding.refuted}


@pytest.mark.parametrize("tier", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_an_audit_finds_nothing(tier: int) -> None:
    assert not audit_prepared(prepare(Experiment.make(KEYS)), 20_000, (tier,)).refuted


def test_an_audit_finds_amplification_that_is_claimed_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordPlan, "charge", RecordPlan.gradients)
    assert "coins" in names(audit_prepared(prepare(Experiment.make(KEYS)), 5_000, (0,)))


def test_an_audit_finds_passes_that_are_not_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    original = RecordPlan.charge
    monkeypatch.setattr(RecordPlan, "charge", lambda self, client: (*original(self, client)[:2], 1))
    assert "steps" in names(audit_prepared(prepare(Experiment.make(KEYS)), 5_000, (0,)))


def test_an_audit_finds_a_pass_that_is_dealt_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """More steps than passes have batches, dealt once more."""

    def dealt_again(self: SampledGradients, records: int, step: int) -> Tensor:
        dealt = self._source.deal(records, self.batches_of_pass, *self.purpose, 0)
        return dealt == step % self.batches_of_pass

    monkeypatch.setattr(SampledGradients, "_batch_of_pass", dealt_again)
    assert "batches" in names(audit_prepared(prepare(Experiment.make(KEYS)), 5_000, (0,)))


def test_the_battery_finds_a_record_in_two_batches_of_a_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case = Case(DPFedAvgRecord(), tmp_path)
    dealt_records_are_clipped_and_noised_as_charged(case)
    original = SampledGradients._batch_of_pass

    def one_more(self: SampledGradients, records: int, step: int) -> Tensor:
        return original(self, records, step).index_fill(0, torch.tensor([5]), True)

    monkeypatch.setattr(SampledGradients, "_batch_of_pass", one_more)
    with pytest.raises(AssertionError, match="enters two batches"):
        dealt_records_are_clipped_and_noised_as_charged(Case(DPFedAvgRecord(), tmp_path / "again"))


def test_every_record_level_method_knows_it() -> None:
    from sordino.methods import names as known

    for name in known():
        method = find(name)
        assert hasattr(method, "batches") == method.unit.record_level
