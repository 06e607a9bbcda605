"""Sums over the records of all clients: one message's share of the noise, the bound of each record, one draw of coins,
and what each observer is charged."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.dp_event import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from torch import Tensor, nn
from torch.func import vmap

from sordino.errors import UserError
from sordino.federation.message import Each
from sordino.learning import singles
from sordino.learning.network import Batch, Learner
from sordino.learning.per_record import Bookkeeper
from sordino.learning.singles import Singles
from sordino.learning.stacked import NARROW, StackedBook
from sordino.privacy import integers
from sordino.privacy.accounting.gaussian import mu_of
from sordino.privacy.accounting.sampled_gaussian import (
    record_attack_accuracy,
    record_epsilon,
    replaced_epsilon,
    rows_epsilon,
)
from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.budget.record_level_plan import RecordNeeds, RecordPlan, plan_records, plan_without_noise
from sordino.privacy.budget.shared_noise import Noise
from sordino.privacy.clipping import GAMMA, check_weights, clipping_factors, weighted_factors
from sordino.privacy.gate import DrawnBatch, Gate
from sordino.privacy.gradients import BlankRecords, PrivateRecords, PrivateRows, Stack, Units
from sordino.privacy.integers import RECORDS, Gap, charged_multiplier
from sordino.privacy.ledger import Ledger, join_drawn, number_of_attempt
from sordino.privacy.mechanism import FLOATS, MECHANISMS
from sordino.privacy.noise import Seeded
from sordino.privacy.release import (
    Average,
    Charge,
    Follows,
    Gradients,
    GradientSum,
    Matrix,
    Public,
    RecordSum,
    ReleaseError,
    check_steps,
    record_needs,
    without_privacy,
)
from sordino.privacy.release.base import cover_of
from sordino.privacy.sealed import Form, Sealed, open_sealed
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS
from sordino.store.spending import (
    Spent,
    _read_recipe,
    _recipe_document,
    compose,
    larger,
    spending_of_ledger,
    within,
)
from sordino.tasks import Classification

SOURCE = Seeded(0, "identity")
DELTA = 1e-5
WIDTH = 500
GRADIENT = GradientSum(0.5)


def plan_of(
    noise: Noise | None, clients: int = 4, rate: float = 1.0, once: float = 3.0, records: int = 10
) -> RecordPlan:
    """Plan of clients with `records` records each, without a budget."""
    needs = RecordNeeds(rate=rate, sum_share=0.1)
    plan = plan_without_noise([records] * clients, np.full(clients, np.inf), batch=1, epochs=1, turns=5, needs=needs)
    return dataclasses.replace(
        plan, shared=noise, multipliers=plan.multipliers + 1, sum_multipliers=np.full(clients, once)
    )


def gate_of(noise: Noise | None, whole: bool = False, **plan: Any) -> Gate:
    mechanism = MECHANISMS["integers"] if whole else FLOATS
    return Gate(Allowance(records=plan_of(noise, **plan), whole=whole), SOURCE, mechanism)


def public_of(clients: int = 4, **message: Any) -> Public:
    return Public(message, list(range(clients)), layers=[WIDTH])


def of_nothing(form: Form, rows: int, width: int) -> Sealed:
    return Sealed(torch.zeros(rows, width), "training", "nothing", form)


# ---- noise


SHARING = [
    (Noise(2.0, "server", 4), 1, (4, 3, 1)),
    (Noise(2.0, "outsider", 4), 4, (4, 3, 1)),
    (Noise(2.0, "outsider", 4, colluders=2), 2, (2, 2, 1)),
    (Noise(2.0, "outsider", 3), 3, (4, 3, 1)),
    (Noise(2.0, "outsider", 4, colluders=1, shares=2), 2, (2, 1, 1)),
]
"""Noise, number of messages over which it is shared out, and shares that each observer of four messages cannot
subtract."""


@pytest.mark.parametrize("whole", [False, True], ids=["floats", "integers"])
@pytest.mark.parametrize(("noise", "over"), [case[:2] for case in SHARING])
def test_a_message_has_its_share_of_the_noise_and_a_sum_all_of_it(noise: Noise, over: int, whole: bool) -> None:
    """Standard deviations by hand, each measured to within five standard errors."""
    gate, public, clip = gate_of(noise, whole), public_of(), 0.5
    questions = range(4 if whole else 40)
    passed = [
        gate.passes({"g": GRADIENT}, {"g": of_nothing("sum", 4, WIDTH)}, n, public).values["g"] for n in questions
    ]
    rows = torch.stack([gate.read(GRADIENT, one, public) for one in passed]).double()
    expected = 2.0 * clip / math.sqrt(over)
    error = 5 * math.sqrt(2 / rows.numel())
    assert float(rows.square().mean()) == pytest.approx(expected**2, rel=error)
    total = rows.sum(dim=1)
    assert float(total.square().mean()) == pytest.approx(4 * expected**2, rel=2 * error)
    assert float(GRADIENT.deviation(gate.allowance, public)[0]) == pytest.approx(2 * expected)
    assert len(rows.reshape(-1, WIDTH).unique(dim=0)) == 4 * len(questions), "no draw comes twice"
    means = torch.stack([gate.mean(GRADIENT, one, public) for one in passed])
    # Ten records at each client: the mean over records is the sum over 40.
    assert torch.allclose(means.double(), total / 40, atol=1e-5)


@pytest.mark.parametrize(("noise", "over", "met"), SHARING)
def test_each_observer_is_charged_the_noise_that_it_cannot_subtract(
    noise: Noise, over: int, met: tuple[int, int, int]
) -> None:
    ledger, gate = Ledger(4, Unit.RECORD), gate_of(noise, rate=0.25)
    ledger.charge({"g": GRADIENT}, 0, 0, "local", gate.allowance, public_of())
    message = 2.0 / math.sqrt(over)
    (row,) = ledger.rows
    for (rate, seen), count in row.sums():
        assert (rate, count) == (0.25, 1)
        assert seen == pytest.approx([message * math.sqrt(shares) for shares in met])
    for view, shares in zip(VIEWS, met, strict=True):
        recipe = ((0.25, message * math.sqrt(shares), 1),)
        assert ledger.epsilon(DELTA)[view] == pytest.approx(record_epsilon(recipe, DELTA))
    assert row.equal_for_all == (len(set(met)) == 1)


@pytest.mark.parametrize(("noise", "over", "met"), SHARING)
def test_a_sum_over_all_records_has_its_part_of_the_whole_budget(
    noise: Noise, over: int, met: tuple[int, int, int]
) -> None:
    """Alone with the whole budget it would have a multiplier of 3; with a tenth of mu^2 it has 3 sqrt(10)."""
    release, gate, ledger = RecordSum(2.0, 0.1, WIDTH), gate_of(noise, rate=0.25), Ledger(4, Unit.RECORD)
    rows = [
        gate.passes({"s": release}, {"s": of_nothing("records", 7, WIDTH)}, n, Public({}, [0], layers=[WIDTH]))
        for n in range(40)
    ]
    noise_of_message = torch.cat([one.values["s"] for one in rows]).double()
    expected = 3 * math.sqrt(10) / math.sqrt(over)
    assert float(noise_of_message.square().mean()) == pytest.approx(
        (2.0 * expected) ** 2, rel=5 * math.sqrt(2 / noise_of_message.numel())
    )
    ledger.charge({"s": release}, 0, 0, "count", gate.allowance, public_of())
    ((kind, count), *_) = ledger.rows[0].sums()
    assert (kind[0], count) == (1.0, 1), "no coin hides a record"
    assert kind[1] == pytest.approx([expected * math.sqrt(shares) for shares in met])
    assert release.weight(gate.allowance, public_of()) == pytest.approx(4 / 40)


def test_without_a_plan_of_sums_nothing_is_covered() -> None:
    gate = gate_of(None)
    with pytest.raises(ValueError, match="no noise that is shared out"):
        gate.passes({"g": GRADIENT}, {"g": of_nothing("sum", 4, WIDTH)}, 0, public_of())


# ---- coins


def test_coins_are_tossed_once_for_a_question_and_anew_for_each_attempt_and_client() -> None:
    gate = gate_of(Noise(1.0, "outsider", 4), rate=0.5)
    batch = batch_of(gate, 3, 1)
    coins = batch.coins(200)
    assert coins is batch.coins(200)
    assert torch.equal(coins, batch_of(gate, 3, 1).coins(200)), "the same question is answered alike"
    for question, client in ((4, 1), (3, 2), (number_of_attempt(3, 1), 1)):
        other = batch_of(gate, question, client).coins(200)
        assert 50 < int((coins != other).sum()) < 150
    assert 60 < int(coins.sum()) < 140
    assert batch_of(gate_of(Noise(1.0, "outsider", 4), rate=1.0), 3, 1).coins(200).all()


def batch_of(gate: Gate, question: int, client: int, clip: float = 0.5, normalised: bool = False) -> DrawnBatch:
    (batch,) = gate.batches(question, [client], torch.tensor([[clip]]), normalised)
    return batch


def test_each_client_has_its_own_rate_and_threshold() -> None:
    gate = gate_of(Noise(1.0, "outsider", 2), clients=2)
    gate.allowance.of_records.sampling[:] = [0.1, 0.9]
    first, second = gate.batches(0, [0, 1], torch.tensor([[0.5], [2.0]]), True)
    assert (first.rate, second.rate) == (0.1, 0.9)
    assert (first.limit.tolist(), second.limit.tolist()) == ([0.5], [2.0])
    assert first.limit.dtype == torch.float64
    assert first.normalised
    assert second.normalised
    assert int(first.coins(1000).sum()) < 200
    assert int(second.coins(1000).sum()) > 800


def test_a_new_attempt_is_one_more_charge() -> None:
    gate, ledger = gate_of(Noise(2.0, "outsider", 4), rate=0.25), Ledger(4, Unit.RECORD)
    for number in (0, number_of_attempt(0, 1)):
        ledger.charge({"g": GRADIENT}, number, 0, "local", gate.allowance, public_of())
    ((*_, count),) = next(iter(ledger.recipes()))
    assert count == 2
    assert ledger.later_attempts() == {(0.25, tuple(np.sqrt([4.0, 3.0, 1.0]).tolist())): 1}


class Both:
    """Records of three clients, alone and stacked, whose batches are drawn with a rate."""

    def __init__(self, clip: float = 0.3, rate: float = 1.0, normalised: bool = False, layers: int = 2) -> None:
        generator = torch.Generator().manual_seed(1)
        torch.manual_seed(0)
        network = [nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)] if layers == 2 else [nn.Linear(6, 3)]
        self.learner = Learner(nn.Sequential(nn.Flatten(), *network), Classification.numbered(3))
        self.x = 3 * torch.randn(3, 12, 6, generator=generator)
        self.y = torch.randint(0, 3, (3, 12), generator=generator)
        self.flat = torch.randn(self.learner.layout.size, generator=generator)
        self.sizes, self.clip, self.rate, self.normalised = [7, 12, 1], clip, rate, normalised

    def batch(self, client: int) -> DrawnBatch:
        return DrawnBatch(SOURCE, (5, client), self.rate, torch.tensor([self.clip]).double(), self.normalised)

    def data(self, client: int, kind: Any = PrivateRecords, keeper: Any = Bookkeeper) -> PrivateRecords:
        size = self.sizes[client]
        x, y, nobody = self.x[client, :size], self.y[client, :size], torch.zeros(size, dtype=torch.bool)
        made: PrivateRecords = kind(
            Units(x, y), nobody, keeper(self.learner), None, False, None, self.batch(client), (5, (client,))
        )
        return made

    def alone(self, weights: Tensor | None = None, keeper: Any = Bookkeeper) -> Tensor:
        found = [self.data(client, keeper=keeper).gradient_sum(self.flat, weights) for client in range(3)]
        return torch.cat([open_sealed(one) for one in found])

    def stacked(self, weights: Tensor | None = None) -> Tensor:
        batches = [self.batch(client) for client in range(3)]
        stack = Stack(self.x, self.y, self.sizes, self.learner, None, batches, asked=(5, (0, 1, 2)))
        kept: list[Sealed] = []

        def step(flat: Tensor, weights: Tensor | None, figures: dict[str, Tensor]) -> Tensor:
            kept.append(PrivateRows(stack, figures).gradient_sum(flat, weights))
            return flat.sum()

        rows = None if weights is None else weights.repeat(3, 1)
        vmap(step, in_dims=(0, None if rows is None else 0, 0))(self.flat.repeat(3, 1), rows, stack.figures)
        assert kept[0].asked == (5, (0, 1, 2))
        assert kept[0].form == "sum"
        return open_sealed(kept[0])

    def by_hand(self, scaled: Any) -> Tensor:
        """Sums of each record's own gradient after `scaled`, which is given it and its label."""
        rows = []
        for client, size in enumerate(self.sizes):
            coins = self.batch(client).coins(size)
            total = torch.zeros_like(self.flat)
            for place in coins.nonzero().flatten().tolist():
                x, y = self.x[client, place : place + 1], self.y[client, place : place + 1]
                total += scaled(self.learner.gradient(self.flat, Batch(x, y, y, None)), int(y))
            rows.append(total)
        return torch.stack(rows).double()


WEIGHTS = torch.tensor([0.25, 1.0, 4.0])


def limited(clip: float) -> Any:
    return lambda gradient, label: gradient * min(1.0, clip / float(gradient.norm()))


@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("clip", [0.3, 100.0])
def test_each_gradient_is_limited_to_the_threshold(clip: float, rate: float) -> None:
    both = Both(clip, rate)
    expected = both.by_hand(limited(clip))
    for found in (both.alone(), both.stacked(), both.alone(keeper=Singles)):
        assert torch.allclose(found, expected, atol=1e-5)
    if clip == 0.3 and rate == 1.0:
        assert float(both.by_hand(limited(1e9)).norm()) > 2 * float(expected.norm()), "the threshold matters here"


def test_one_long_gradient_has_the_threshold_for_length() -> None:
    both = Both(0.3)
    both.x *= 1e4
    (found,) = both.alone()[2:].double()
    assert 0.3 * (1 - 1e-5) < float(found.norm()) <= 0.3, "rounding included"
    assert 0.3 * (1 - 1e-5) < float(both.stacked()[2].double().norm()) <= 0.3


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_normalised_gradients_are_scaled_to_the_threshold(weights: Tensor | None) -> None:
    both = Both(0.3, normalised=True)

    def scaled(gradient: Tensor, label: int) -> Tensor:
        own = gradient if weights is None else gradient * weights[label]
        return 0.3 * own / (float(own.norm()) + GAMMA)

    expected = both.by_hand(scaled)
    assert torch.allclose(both.alone(weights), expected, atol=1e-5)
    assert torch.allclose(both.stacked(weights), expected, atol=1e-5)
    assert float(both.alone(weights)[2].norm()) < 0.3


@pytest.mark.parametrize("keeper", [Bookkeeper, Singles])
def test_weights_multiply_before_gradients_are_limited(keeper: Any) -> None:
    both = Both(0.3)

    def scaled(gradient: Tensor, label: int) -> Tensor:
        own = gradient * WEIGHTS[label]
        return own * min(1.0, 0.3 / float(own.norm()))

    expected = both.by_hand(scaled)
    assert torch.allclose(both.alone(WEIGHTS, keeper), expected, atol=1e-5)
    assert torch.allclose(both.stacked(WEIGHTS), expected, atol=1e-5)
    assert torch.allclose(both.alone(torch.ones(3)), both.alone(), atol=1e-6)
    assert torch.allclose(both.alone(-WEIGHTS, keeper), -expected, atol=1e-5), "a negative weight is one, too"


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_a_record_that_is_not_finite_counts_nothing_and_spoils_nothing(bad: float, weights: Tensor | None) -> None:
    both = Both(0.3)
    without = Both(0.3)
    both.x[1, 3], both.x[2, 5] = bad, bad  # the second is padding
    keep = [place for place in range(12) if place != 3]
    without.x[1, :11], without.y[1, :11], without.sizes[1] = without.x[1, keep], without.y[1, keep], 11
    for found in (both.alone(weights), both.stacked(weights)):
        assert torch.allclose(found, without.alone(weights), atol=1e-5)


def test_sums_of_many_records_are_added_up_in_double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 the rounding of a long sum would change with each record in it, by more than the bounds allow for."""
    monkeypatch.setattr("sordino.privacy.gradients.RECORDS_SUMMED_TOGETHER", 5)
    both = Both(0.3)
    for found in (both.alone(WEIGHTS), both.stacked(WEIGHTS)):
        assert found.dtype == torch.float64
        parts = []
        for begin in (0, 5, 10):
            part = Both(0.3)
            part.x, part.y = part.x[:, begin : begin + 5], part.y[:, begin : begin + 5]
            part.sizes = [min(max(size - begin, 0), 5) for size in part.sizes]
            parts.append(part.alone(WEIGHTS))
        assert torch.allclose(found, torch.stack(parts).sum(dim=0), rtol=0, atol=1e-6)
        assert (found != found.float()).any(), "nothing was rounded to float32 on the way"
    gate, public = gate_of(Noise(1.0, "outsider", 3), clients=3), Public({}, [0, 1, 2], layers=[both.flat.numel()])
    rows = GradientSum(0.3).opened(Sealed(both.alone(), "training", "sum of gradients", "sum"), public)
    assert GradientSum(0.3).bounded(rows, public).rows.dtype == torch.float64
    assert without_privacy({"g": GRADIENT})["g"].bounded(rows, public).rows.dtype == torch.float32
    sent = gate.passes({"g": GRADIENT}, {"g": Sealed(rows, "training", "sum of gradients", "sum")}, 0, public)
    assert sent.values["g"].dtype == torch.float32


def test_the_same_coins_choose_gradients_and_bits() -> None:
    both = Both(4.0, rate=0.5)
    data = both.data(1)
    bits = open_sealed(data.batch_within(both.flat))
    coins = both.batch(1).coins(12)
    assert len(bits) == int(coins.sum())
    norms = [
        float(both.learner.gradient(both.flat, Batch(x[None], y[None], y[None], None)).norm())
        for x, y in zip(both.x[1][coins], both.y[1][coins], strict=True)
    ]
    assert bits.flatten().tolist() == [0.5 if norm <= 4.0 else -0.5 for norm in norms]
    assert set(bits.flatten().tolist()) == {-0.5, 0.5}, "the threshold matters here"


def test_without_noise_nothing_is_limited() -> None:
    batch = batch_of(gate_of(None), 0, 0, normalised=True)
    assert batch.limit.tolist() == [math.inf]
    assert not batch.normalised
    with pytest.raises(ReleaseError, match="threshold must be a finite number"):
        batch_of(gate_of(Noise(1.0, "server", 1)), 0, 0, math.nan)


def test_label_counts_have_one_row_for_each_record() -> None:
    both = Both()
    rows = open_sealed(both.data(1).label_counts())
    assert rows.sum(dim=0).tolist() == torch.bincount(both.y[1], minlength=3).tolist()
    assert (rows.sum(dim=1) == 1).all()


def test_a_client_whose_step_failed_sends_nothing_but_noise() -> None:
    both, release = Both(rate=0.5), RecordSum(1.0, 0.1, 3)
    data = both.data(1, BlankRecords)
    assert not open_sealed(data.gradient_sum(both.flat, WEIGHTS)).any()
    for sealed in (data.label_counts(), data.batch_within(both.flat)):
        assert not release.bounded(open_sealed(sealed), public_of(1)).rows.any()
        assert release.bounded(open_sealed(sealed), public_of(1)).rejected == 1
    assert data.batch_within(both.flat).form == "batch"


def test_each_record_has_its_own_weight_where_few_are_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(0.3)
    expected = both.alone(WEIGHTS)
    monkeypatch.setattr(singles, "TOGETHER", 5)
    assert torch.allclose(both.alone(WEIGHTS, Singles), expected, atol=1e-5)


def test_weighted_factors_hold_where_float32_ends() -> None:
    """A tiny weight on a huge gradient: a factor that float32 cannot hold to its last bit counts nothing."""
    norms, clip = torch.tensor([[3e38]], dtype=torch.float64), torch.tensor([2.2e-7], dtype=torch.float64)
    weights = torch.tensor([2.0**-149], dtype=torch.float32)
    assert weighted_factors(norms, clip, weights).tolist() == [0.0]
    assert weighted_factors(torch.tensor([[math.inf]]), clip, torch.tensor([2.0])).tolist() == [0.0]
    assert weighted_factors(torch.tensor([[1.0]]), torch.tensor([8.0]), torch.tensor([-2.0])).tolist() == [-2.0]
    layers = weighted_factors(torch.tensor([[3.0, 4.0]]), torch.tensor([3.0, 2.0]), torch.tensor([2.0]))
    assert layers.flatten().tolist() == pytest.approx([1.0, 0.5], rel=1e-6)
    layers = weighted_factors(torch.tensor([[3.0, 4.0]]), torch.tensor([3.0, 2.0]), torch.tensor([-2.0]))
    assert layers.flatten().tolist() == pytest.approx([-1.0, -0.5], rel=1e-6), "limits hold for negative weights, too"


def test_normalised_factors_are_below_the_threshold() -> None:
    norms = torch.tensor([[0.0], [1e-30], [1e-3], [1.0], [1e20]], dtype=torch.float64)
    factors = clipping_factors(norms, torch.tensor([0.5]), normalised=True)
    assert (factors * norms.squeeze(1) < 0.5).all()
    assert factors.tolist() == pytest.approx([0.5 / (norm + 0.01) for norm in norms.flatten().tolist()], rel=1e-6)
    assert clipping_factors(torch.tensor([[math.nan]]), torch.tensor([0.5]), normalised=True).tolist() == [0.0]


@pytest.mark.parametrize(
    "weights",
    [
        *(torch.tensor([1.0, math.inf, 1.0]), torch.tensor([1.0, math.nan, 1.0]), torch.ones(2), torch.ones(4)),
        *(torch.ones(1, 3), torch.ones(3, 3), torch.ones(1, 1, 3)),
    ],
)
def test_weights_that_one_label_could_show_through_are_refused(weights: Tensor) -> None:
    """Applied, they would clear a whole sum, or fail, where one record has the label: one row of weights fails where a
    record has another label than the first. As many rows as labels let the lengths of as many records limit others."""
    both = Both()
    with pytest.raises(UserError, match="Weights of records must be 3 numbers"):
        both.data(0).gradient_sum(both.flat, weights)
    if weights.shape == (3,):
        with pytest.raises(UserError, match="Weights of records must be 3 numbers"):
            both.stacked(weights)
    check_weights(WEIGHTS.repeat(5, 1), 3, 5)
    with pytest.raises(UserError, match="Weights of records must be 3 numbers"):
        check_weights(WEIGHTS.repeat(4, 1), 3, 5)


@pytest.mark.parametrize("weights", [None, torch.tensor([2.0, 0.5])])
@pytest.mark.parametrize("keeper", [Bookkeeper, Singles])
def test_a_record_that_overflows_now_and_then_moves_a_sum_by_no_more_than_its_threshold(
    keeper: Any, weights: Tensor | None
) -> None:
    """Dropout lets it overflow or not. Were numbers drawn anew for a second look, it could spoil the whole sum after
    all, and others' gradients would differ from those beside a record that never counts."""
    torch.manual_seed(0)
    learner = Learner(nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2)), Classification.numbered(2))
    flat, y, nobody = torch.randn(learner.layout.size), torch.arange(30) % 2, torch.zeros(30, dtype=torch.bool)
    x, limit = torch.randn(30, 3) + 3, torch.tensor([1.0], dtype=torch.float64)

    def total(seed: int, odd: float) -> Tensor:
        records = torch.where((torch.arange(30) == 7).unsqueeze(1), odd, x)
        batch = DrawnBatch(SOURCE, (0, 0), 1.0, limit)
        data = PrivateRecords(Units(records, y), nobody, keeper(learner), None, batch=batch)
        torch.manual_seed(seed)
        return open_sealed(data.gradient_sum(flat, weights)).double()

    for seed in range(40):
        found, without = total(seed, 3e38), total(seed, math.nan)
        assert without.isfinite().all()
        assert float((found - without).norm()) <= 1.0
        assert float(without.norm()) > 1.0


def test_steps_without_such_a_release_get_no_sums() -> None:
    both = Both()
    nobody = torch.zeros(12, dtype=torch.bool)
    data = PrivateRecords(Units(both.x[1], both.y[1]), nobody, Bookkeeper(both.learner), None)
    for take in (data.gradient_sum, data.batch_within):
        with pytest.raises(UserError, match="declare `GradientSum`"):
            take(both.flat)
    stack = Stack(both.x, both.y, both.sizes, both.learner, None, [both.batch(k) for k in range(3)])
    with pytest.raises(UserError, match="declare `Gradients` beside it"):
        stack.gradients(both.flat.repeat(3, 1), torch.arange(3))
    with pytest.raises(UserError, match="of some stacked clients alone"):
        stack.gradient_sums(both.flat.repeat(3, 1), torch.tensor([0, 0, 1]))


# ---- bounds of sums over records


@pytest.mark.parametrize("drawn", [False, True])
def test_each_record_moves_a_sum_by_its_bound_at_the_most(drawn: bool) -> None:
    release, public = RecordSum(0.5, 0.1, 3, drawn=drawn), public_of(1)
    rows = torch.tensor([[0.3, 0.0, 0.4], [3.0, 0.0, 4.0], [0.03, 0.0, 0.04]])
    found = release.bounded(rows, public)
    assert found.rows.dtype == torch.float64
    assert found.rows.tolist()[0] == pytest.approx([0.63, 0.0, 0.84], rel=1e-6)
    assert release.unbounded(rows, public).rows.tolist()[0] == pytest.approx([3.33, 0.0, 4.44], rel=1e-6)
    for bad in (math.nan, math.inf, -math.inf):
        spoilt = release.bounded(torch.cat([rows, torch.tensor([[0.1, bad, 0.1]])]), public)
        assert torch.equal(spoilt.rows, found.rows)
        assert spoilt.rejected == 1
        assert torch.isfinite(release.unbounded(torch.tensor([[bad] * 3]), public).rows).all()
    assert release.bounded(torch.zeros(0, 3), public).rows.tolist() == [[0.0] * 3]
    long = release.bounded(torch.full((1, 3), 1e30), public).rows
    assert 0.5 * (1 - 1e-5) < float(long.norm()) <= 0.5


def test_what_float32_would_round_away_counts() -> None:
    """Beside a record of one, float32 would drop one of 2^-30; beside 2^15 of one, a half of its last bit."""
    release = RecordSum(1.0, 0.1)
    for many, small in ((1, 2.0**-30), (2**15, 2.0**-9)):
        rows = torch.cat([torch.ones(many, 1), torch.tensor([[small]])])
        assert float(release.bounded(rows, public_of(1)).rows) == many + small
        assert float(torch.tensor(float(many)) + torch.tensor(small)) == many, "it is lost in float32"


def test_the_length_of_a_record_may_be_a_public_value() -> None:
    release, public = RecordSum(1.0, 0.1, "groups"), public_of(1, groups=3)
    assert release.width(public) == 3
    assert release.width(public_of(1)) is None
    assert release.bounded_by() == ("groups",)
    opened = release.opened(Sealed(torch.ones(5, 3), "training", "labels"), public)
    assert opened.shape == (5, 3)
    with pytest.raises(ReleaseError, match="a record has 3 entries, not 2"):
        release.opened(Sealed(torch.ones(5, 2), "training", "labels"), public)


# ---- what may be handed over


GOOD = Sealed(torch.zeros(1, WIDTH), "training", "sum of gradients", "sum", (7, (0,)))


@pytest.mark.parametrize(
    ("release", "value"),
    [
        (GRADIENT, torch.zeros(1, WIDTH)),
        (GRADIENT, None),
        (GRADIENT, Sealed(torch.ones(1, WIDTH), "training", "projected records")),
        (GRADIENT, Sealed(torch.ones(1, WIDTH), "validation", "losses", "sum")),
        (GRADIENT, Sealed(torch.ones(1, WIDTH), "training", "bits", "batch")),
        (GRADIENT, Sealed(torch.ones(1, WIDTH + 1), "training", "sum of gradients", "sum")),
        (GRADIENT, Sealed(torch.ones(2, WIDTH), "training", "sum of gradients", "sum")),
        (RecordSum(1.0, 0.1, WIDTH), GOOD),
        (RecordSum(1.0, 0.1, WIDTH), torch.zeros(1, WIDTH)),
        (RecordSum(1.0, 0.1, WIDTH, drawn=True), Sealed(torch.ones(1, WIDTH), "training", "labels")),
        (RecordSum(1.0, 0.1, WIDTH, drawn=True), GOOD),
        (Matrix(0.1), GOOD),
        (Average(0.0, 1.0), Sealed(torch.ones(3), "validation", "losses", "batch")),
    ],
)
def test_a_value_of_another_kind_is_refused(release: Any, value: Any) -> None:
    with pytest.raises(ReleaseError, match="hand over"):
        gate_of(Noise(1.0, "server", 1)).passes({"g": release}, {"g": value}, 7, public_of(1))


@pytest.mark.parametrize("asked", [(8, (0,)), (7, (1,)), (7, (0, 1)), (number_of_attempt(7, 1), (0,))])
def test_a_value_of_another_question_or_client_is_refused(asked: Any) -> None:
    """A record that is in two messages counts twice; one of an earlier batch was drawn by coins used before."""
    gate = gate_of(Noise(1.0, "server", 1))
    gate.passes({"g": GRADIENT}, {"g": GOOD}, 7, public_of(1))
    other = Sealed(torch.zeros(1, WIDTH), "training", "sum of gradients", "sum", asked)
    with pytest.raises(ReleaseError, match="another question or of another client's records"):
        gate.passes({"g": GRADIENT}, {"g": other}, 7, public_of(1))
    losses = Sealed(torch.ones(3), "validation", "losses", asked=asked)
    with pytest.raises(ReleaseError, match="another question or of another client's records"):
        gate.passes({"g": Average(0.0, 1.0)}, {"g": losses}, 7, public_of(1))


def test_all_sealed_values_say_whose_they_are() -> None:
    both = Both()
    data = both.data(1)
    values = [data.gradient_sum(both.flat), data.batch_within(both.flat), data.label_counts(), *data.judged(both.flat)]
    values.append(data.projected(torch.ones(6, 2)))
    assert {value.asked for value in values} == {(5, (1,))}
    assert [value.form for value in values] == ["sum", "batch", "records", "records", "records", "records"]


def test_single_messages_are_not_read() -> None:
    ledger, gate = Ledger(4, Unit.RECORD), gate_of(Noise(2.0, "outsider", 4))
    for release in (GRADIENT, RecordSum(1.0, 0.1)):
        (row,) = ledger.charge({"g": release}, 0, 0, "local", gate.allowance, public_of())
        with pytest.raises(ReleaseError, match="a method may read its mean only"):
            release.expose(ledger, row, [0])


# ---- declarations


def refuse(match: str, steps: dict[str, dict[str, Any]], states: Sequence[str] = ()) -> None:
    with pytest.raises(ReleaseError, match=match):
        check_steps(steps, Unit.RECORD, states)


def test_sound_declarations_pass() -> None:
    bits = RecordSum(0.5, 0.02, drawn=True)
    check_steps({"local": {"g": GradientSum("clip", 0.5, share=0.98), "b": bits}}, Unit.RECORD, ())
    check_steps({"local": {"g": GRADIENT}, "count": {"c": RecordSum(1.0, 0.03, "groups")}}, Unit.RECORD, ())
    check_steps({"count": {"c": RecordSum(1.0, 1.0)}}, Unit.RECORD, ())
    check_steps(
        {"one": {"g": GradientSum("clip", 0.5)}, "two": {"h": GradientSum("clip", 0.5, normalised=True)}},
        Unit.RECORD,
        (),
    )
    whole = record_needs({"local": {"g": GradientSum(1.0, 0.25)}, "count": {"c": RecordSum(1.0, 0.03)}})
    assert (whole.rate, whole.sum_share, whole.sums) == (0.25, 0.03, True)
    assert not record_needs({"local": {"g": Gradients(1.0)}}).sums


@pytest.mark.parametrize(
    ("match", "releases"),
    [
        ("no GradientSum that draws one", {"b": RecordSum(0.5, 0.1, drawn=True)}),
        ("follows g, which is no release of gradients", {"g": GRADIENT, "f": Follows("g")}),
        ("cannot have both", {"g": Gradients(1.0), "s": RecordSum(1.0, 0.1)}),
        ("cannot have both", {"g": GRADIENT, "m": Matrix(0.1)}),
        ("cannot have both", {"g": GradientSum(1.0, share=0.5), "a": Average(0.0, 1.0)}),
        ("several releases of noisy gradients", {"g": GradientSum(1.0, share=0.5), "h": GradientSum(1.0, share=0.5)}),
        ("rate is 0", {"g": GradientSum(1.0, 0.0)}),
        ("rate is 1.5", {"g": GradientSum(1.0, 1.5)}),
        ("bound must be a number", {"s": RecordSum(math.inf, 0.1)}),
        ("bound must be a number", {"s": RecordSum(0.0, 0.1)}),
        ("share of the budget", {"s": RecordSum(1.0, 0.0)}),
        ("share of the budget", {"s": RecordSum(1.0, 1.5)}),
        ("shares must add up to one", {"g": GRADIENT, "b": RecordSum(0.5, 0.1, drawn=True)}),
        ("no share of a round's budget", {"g": GradientSum(1.0, share=0.0)}),
    ],
)
def test_declarations_whose_epsilon_could_not_be_true_are_refused(match: str, releases: dict[str, Any]) -> None:
    refuse(match, {"local": releases})


def test_declarations_of_several_steps_are_held_against_each_other() -> None:
    refuse("one sampling rate", {"one": {"g": GradientSum(1.0, 0.5)}, "two": {"g": GradientSum(1.0, 0.25)}})
    refuse("nothing may be learned from it", {"local": {"g": GRADIENT}}, ["state"])
    refuse("leave some of it for the rest", {"local": {"g": GRADIENT}, "count": {"c": RecordSum(1.0, 1.0)}})
    halves = {name: {name: RecordSum(1.0, 0.6)} for name in ("one", "two")}
    refuse("leave some of it for the rest", halves)
    with pytest.raises(ReleaseError, match="protects a record, but the method protects a client"):
        check_steps({"local": {"g": GRADIENT}}, Unit.CLIENT, ())


def test_thresholds_are_one_number_for_all() -> None:
    release = GradientSum("clip")
    assert release.thresholds(public_of(clip=0.5)).rows.tolist() == [[0.5]]
    scaled = GradientSum("clip", normalised=True)
    assert [one.thresholds(public_of(clip=0.5)).normalised for one in (release, scaled)] == [False, True]
    assert release.bounded_by() == ("clip",)
    for clip in (Each(torch.ones(4)), torch.ones(2)):
        with pytest.raises(ReleaseError, match="one threshold, the same for all clients"):
            release.thresholds(public_of(clip=clip))
    gate = gate_of(Noise(1.0, "server", 4))
    with pytest.raises(ReleaseError, match="threshold must be a finite number"):
        gate.check({"g": release}, public_of(clip=math.inf))


# ---- one draw, one charge


def test_all_releases_over_one_draw_are_one_gaussian() -> None:
    """Sampling rate 0.01, multiplier 0.8 twice, 1,000 steps: epsilon is 8.97, not 4.29."""
    releases = {"g": GradientSum(1.0, 0.01, share=0.5), "b": RecordSum(0.5, 0.5, drawn=True)}
    noise = Noise(0.8 / math.sqrt(2), "server", 4)
    gate, ledger = gate_of(noise, rate=0.01), Ledger(4, Unit.RECORD)
    for name, release in releases.items():
        ((rate, z, _),) = release.charge(gate.allowance, public_of(1)).sampled.tolist()
        assert (rate, z) == (0.01, pytest.approx(0.8)), name
    for question in range(1000):
        ledger.charge(releases, question, question, "local", gate.allowance, public_of())
    assert ledger.epsilon(DELTA)["server"] == pytest.approx(8.97, abs=0.01)
    assert record_epsilon(((0.01, 0.8, 2000),), DELTA) == pytest.approx(4.29, abs=0.01), "charged one by one"
    assert [row.pool for row in ledger.rows[:2]] == ["training", ""], "the first of them bears it all"
    ((*_, count),) = next(iter(ledger.recipes()))
    assert count == 1000


def test_charges_without_common_coins_stay_apart() -> None:
    gate = gate_of(Noise(2.0, "outsider", 4))
    public = public_of()
    charges = {"g": GRADIENT.charge(gate.allowance, public), "s": RecordSum(1.0, 0.1).charge(gate.allowance, public)}
    assert join_drawn(charges) == charges
    twice = {"g": charges["g"], "b": dataclasses.replace(charges["g"], entries=3)}
    joint = join_drawn({**twice, "s": charges["s"]})
    assert joint["g"].sampled[:, 1] == pytest.approx(1 / math.sqrt(2))  # type: ignore[index]
    assert joint["g"].entries == 3
    assert joint["b"].sampled is None
    assert joint["s"] is charges["s"]
    bare = join_drawn({name: charge.known("seed") for name, charge in twice.items()})
    assert (bare["g"].sampled[:, 1] == 0).all()  # type: ignore[index]


def test_noise_from_a_known_seed_covers_nothing() -> None:
    ledger, gate = Ledger(4, Unit.RECORD), gate_of(Noise(2.0, "outsider", 4))
    allowance = dataclasses.replace(gate.allowance, known="the seed is known")
    ledger.charge({"g": GRADIENT}, 0, 0, "local", allowance, public_of())
    assert set(ledger.epsilon(DELTA).values()) == {math.inf}


# ---- views


def charged(turns: int = 3, rate: float = 0.25, whole: bool = False) -> Ledger:
    ledger, gate = Ledger(4, Unit.RECORD), gate_of(Noise(2.0, "outsider", 4), rate=rate, whole=whole)
    for question in range(turns):
        ledger.charge({"g": GRADIENT}, question, question, "local", gate.allowance, public_of())
    return ledger


MET = {"outsider": 2.0, "peer": math.sqrt(3.0), "server": 1.0}
"""Noise over the threshold as each observer of `charged` meets it."""


def test_figures_are_told_for_each_observer() -> None:
    ledger = charged()
    for view, z in MET.items():
        recipe = ((0.25, z, 3),)
        expected = record_epsilon(recipe, DELTA)
        assert ledger.epsilon(DELTA)[view] == pytest.approx(expected)
        assert ledger.record_epsilons(view, DELTA) == pytest.approx(dict.fromkeys(range(4), expected))
        assert ledger.replaced(view, DELTA) == pytest.approx((replaced_epsilon(recipe, DELTA), DELTA))
        assert ledger.attack_accuracy()[view] == pytest.approx(record_attack_accuracy(recipe))
        for rows in ("3", "5"):
            found = ledger.rows_epsilons(view, DELTA)[rows]
            assert found == pytest.approx(rows_epsilon([recipe], int(rows), DELTA))
    assert ledger.epsilon(DELTA)["outsider"] < ledger.epsilon(DELTA)["peer"] < ledger.epsilon(DELTA)["server"]


def test_the_gap_of_whole_numbers_is_each_observers_own() -> None:
    """Rounding is charged in each share; the gap between discrete and continuous noise shrinks with their number."""
    ledger = charged(rate=1.0, whole=True)
    share = charged_multiplier(1.0, WIDTH)
    assert share < 1
    for view, shares in zip(VIEWS, (4, 3, 1), strict=True):
        recipe = ((1.0, share * math.sqrt(shares), 3),)
        gap = Gap(3 * WIDTH, shares, RECORDS)
        expected = integers.total_epsilon([gap], lambda delta, recipe=recipe: record_epsilon(recipe, delta), DELTA)
        assert ledger.epsilon(DELTA)[view] == pytest.approx(expected, rel=1e-12)
        assert ledger.record_epsilons(view, DELTA)[0] == pytest.approx(expected, rel=1e-12)
    assert {row.shares for row in ledger.rows} == {4}
    assert {row.entries for row in ledger.rows} == {WIDTH}


def test_rounding_is_charged_for_as_many_numbers_as_leave() -> None:
    gate = gate_of(Noise(2.0, "outsider", 4), whole=True)
    for entries, message, expected in ((1, {}, WIDTH), (2000, {}, 2000), ("n", {"n": 3000}, 3000), ("n", {}, WIDTH)):
        release = RecordSum(1.0, 0.1, entries)  # type: ignore[arg-type]
        assert release.charge(gate.allowance, public_of(4, **message)).entries == expected
    assert RecordSum(1.0, 0.1).charge(gate_of(Noise(2.0, "server", 4)).allowance, public_of()).entries == 0


def test_stored_spending_has_a_recipe_for_each_observer() -> None:
    spent = spending_of_ledger(charged())
    ((entry,),) = spent["recipes"]
    assert entry == pytest.approx([0.25, 2.0, math.sqrt(3.0), 1.0, 3])
    assert _read_recipe([entry]) == ((0.25, tuple(entry[1:4]), 3),)
    assert _recipe_document(_read_recipe([entry])) == [entry]
    # A recipe of an earlier version, and one whose observers meet the same noise, has one multiplier.
    assert _read_recipe([[0.5, 1.5, 7]]) == ((0.5, (1.5, 1.5, 1.5), 7),)
    assert _recipe_document(((0.5, (1.5, 1.5, 1.5), 7),)) == [[0.5, 1.5, 7]]


def test_runs_compose_for_each_observer_also_with_recipes_of_earlier_versions() -> None:
    new = spending_of_ledger(charged())
    old: Spent = {"unit": Unit.RECORD, "mu": [], "recipes": [[[0.5, 3.0, 4]]]}
    found = compose([new, new, old], Unit.RECORD, DELTA)
    for view, z in MET.items():
        assert found[view] == pytest.approx(record_epsilon(((0.25, z, 6), (0.5, 3.0, 4)), DELTA), rel=1e-6)
    clients: Spent = {"unit": Unit.CLIENT, "mu": [0.1, 0.2, 0.3], "recipes": []}
    beside = compose([new, clients], Unit.RECORD, DELTA)
    for (view, z), mu in zip(MET.items(), (0.1, 0.2, 0.3), strict=True):
        assert beside[view] == pytest.approx(record_epsilon(((0.25, z, 3), (1.0, 1 / (2 * mu), 1)), DELTA), rel=1e-6)


def test_a_run_keeps_to_its_plan_for_every_observer() -> None:
    three, four = spending_of_ledger(charged()), spending_of_ledger(charged(4))
    assert within(three, four)
    assert not within(four, three)
    other: Spent = {"unit": Unit.RECORD, "mu": [], "recipes": [[[0.25, 2.0, 2.0, 2.0, 4]]]}
    assert not within(three, other), "the outsider's noise is not the server's"
    both = larger(three, four)
    assert compose([both], Unit.RECORD, DELTA) == compose([four], Unit.RECORD, DELTA)


def test_the_whole_plan_counts_for_every_observer() -> None:
    ledger = charged(2)
    kind = next(iter(ledger.recipes()))[0][:2]
    whole = ledger.completed(5, 5, planned={"training": dict.fromkeys(range(4), ((*kind, 5),))})
    for view, z in MET.items():
        assert whole.epsilon(DELTA)[view] == pytest.approx(record_epsilon(((0.25, z, 5),), DELTA))
    again = ledger.completed(5, 5)
    assert again.recipes() == whole.recipes()


# ---- plans


def sharing(multiplier: float) -> Noise:
    return Noise(multiplier, "outsider", 4)


def planned(budgets: list[float], rate: float | None = 1.0, share: float = 0.0, **more: Any) -> RecordPlan:
    settings: dict[str, Any] = {"batch": 16, "epochs": 5, "turns": 60, "sharing": sharing} | more
    needs = RecordNeeds(rate=rate, sum_share=share)
    return plan_records([100] * len(budgets), np.array(budgets), DELTA, needs=needs, **settings)


@pytest.mark.parametrize(("epsilon", "mu"), [(1.0, 0.2681), (2.0, 0.5016), (4.0, 0.9249), (8.0, 1.666)])
@pytest.mark.parametrize("share", [0.0, 0.03])
def test_at_full_batches_the_plan_is_the_closed_form(epsilon: float, mu: float, share: float) -> None:
    """z = sqrt(T) / (mu sqrt(1 - share)), where mu belongs to epsilon at delta 1e-5."""
    plan = planned([epsilon] * 4, share=share)
    z = math.sqrt(60) / (mu * math.sqrt(1 - share))
    assert plan.multipliers == pytest.approx([z] * 4, rel=2e-4)
    assert plan.shared == Noise(float(plan.multipliers[0]), "outsider", 4)
    assert plan.sum_multipliers == pytest.approx([1 / mu if share else 0.0] * 4, rel=2e-4)
    assert plan.sampling.tolist() == [1.0] * 4
    assert plan.steps.tolist() == [1] * 4, "whatever the epochs and the size of a batch"
    once = ((1.0, float(plan.sum_multipliers[0]) / math.sqrt(share), 1),) if share else ()
    recipe = ((1.0, float(plan.multipliers[0]), 60), *once)
    assert record_epsilon(recipe, DELTA) == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.parametrize("rate", [0.25, 0.1])
def test_sampled_plans_agree_with_dp_accounting(rate: float) -> None:
    plan = planned([4.0] * 4, rate=rate)
    accountant = PLDAccountant()
    event = PoissonSampledDpEvent(rate, GaussianDpEvent(float(plan.multipliers[0])))
    accountant.compose(SelfComposedDpEvent(event, 60))
    assert accountant.get_epsilon(DELTA) == pytest.approx(4.0, rel=5e-3)
    assert float(plan.multipliers[0]) / rate == pytest.approx({0.25: 9.3, 0.1: 12.0}[rate], abs=0.05)


def test_noise_on_batches_leaves_room_for_what_leaves_once() -> None:
    plan, alone = planned([4.0] * 4, rate=0.25, share=0.3), planned([4.0] * 4, rate=0.25)
    assert plan.sampling.tolist() == [0.25] * 4, "all keep the declared rate"
    assert float(plan.multipliers[0]) > 1.1 * float(alone.multipliers[0])


def test_smaller_budgets_are_sampled_more_rarely() -> None:
    plan = planned([1.0, 4.0, 2.0, 4.0], rate=0.5, share=0.03)
    assert len(set(plan.multipliers.tolist())) == 1, "one noise for one sum"
    assert plan.sampling[0] < plan.sampling[2] < plan.sampling[1] == plan.sampling[3] == 0.5
    assert plan.sum_multipliers == pytest.approx([1 / mu_of(1.0, DELTA)] * 4), "the smallest budget"
    once = (1.0, float(plan.sum_multipliers[0]) / math.sqrt(0.03), 1)
    for client, budget in enumerate([1.0, 4.0, 2.0, 4.0]):
        recipe = ((float(plan.sampling[client]), float(plan.multipliers[client]), 60), once)
        assert 0.97 * budget < record_epsilon(recipe, DELTA) <= budget * 1.001
    assert plan.expected_records([0, 1]) == pytest.approx(100 * float(plan.sampling[0]) + 50)
    given = planned([1.0, 4.0], rate=0.5, multiplier=10.0)
    assert given.multipliers.tolist() == [10.0] * 2
    assert given.sampling[0] < given.sampling[1] == 0.5


def test_a_given_noise_decides_where_there_is_no_budget() -> None:
    plan = planned([math.inf] * 2, share=0.03, multiplier=7.0)
    assert plan.multipliers.tolist() == [7.0] * 2
    assert plan.sum_multipliers.tolist() == [7.0] * 2
    assert plan.shared == sharing(7.0)


def test_sums_that_leave_once_have_all_of_the_budget_where_no_gradient_leaves() -> None:
    plan = planned([1.0] * 2, rate=None, share=1.0)
    assert plan.steps.tolist() == [0, 0]
    assert plan.sum_multipliers == pytest.approx([1 / 0.2681] * 2, rel=2e-4)
    assert plan.shared == sharing(float(plan.sum_multipliers[0]))


def test_shared_noise_feeds_more_parameters_by_the_number_of_shares() -> None:
    """Signal (q N)^2 T, variance z^2 of all: (0.5 x 400)^2 60 / z^2, whatever the number of clients."""
    plan = planned([1.0] * 4, rate=0.5)
    assert plan.feasible(np.full(4, 100)) == pytest.approx((0.5 * 400) ** 2 * 60 / float(plan.multipliers[0]) ** 2)
    assert Allowance(records=plan).observer == "outsider"
    assert Allowance(records=plan).record_sums is plan
    assert Allowance(records=dataclasses.replace(plan, shared=None)).record_sums is None
    alone = dataclasses.replace(plan, shared=dataclasses.replace(plan.shared, protect_from="server"))  # type: ignore[type-var]
    assert alone.feasible(np.full(4, 100)) == pytest.approx(plan.feasible(np.full(4, 100)) / 4)
    assert Allowance(records=alone).observer == "server"


def test_a_repeated_plan_keeps_its_shared_noise() -> None:
    plan = planned([1.0, 4.0], rate=0.5)
    repeated = plan.repeated(0, 3)
    assert repeated.shared == plan.shared
    assert repeated.sampling.tolist() == [float(plan.sampling[0])] * 3


def test_in_a_run_without_privacy_sums_leave_as_they_are() -> None:
    releases = without_privacy({"g": GradientSum(0.5, 0.5), "s": RecordSum(1.0, 0.1, WIDTH)})
    gate = Gate(Allowance(records=plan_of(None, rate=0.5)), SOURCE)
    rows = torch.full((4, WIDTH), 3.0)
    passed = gate.passes({"g": releases["g"]}, {"g": Sealed(rows, "training", "sum", "sum")}, 0, public_of())
    assert torch.equal(passed.values["g"], rows)
    # Four clients of ten records, of which half are expected: the mean over 20 records.
    assert torch.allclose(gate.mean(releases["g"], rows, public_of()), torch.full((WIDTH,), 12 / 20))
    one = Sealed(torch.full((6, WIDTH), 5.0), "training", "rows")
    found = gate.passes({"s": releases["s"]}, {"s": one}, 0, public_of(1)).values["s"]
    assert torch.equal(found.float(), torch.full((1, WIDTH), 30.0))
    assert not releases["g"].deviation(gate.allowance, public_of()).any()


def test_charges_of_records_say_how_many_shares_there_are() -> None:
    noise = Noise(2.0, "outsider", 4, shares=3)
    charge = Charge.of_records("training", [(0.5, 1.0, 1)], 10, noise, 4, drawn=True)
    assert (charge.shares, charge.drawn, charge.entries) == (3, True, 10)
    assert charge.noise.tolist() == [pytest.approx([math.sqrt(3), math.sqrt(2), 1.0])]
    own = Charge.of_records("training", [(0.5, 1.0, 1)])
    assert (own.shares, own.noise.tolist()) == (1, [[1.0] * 3])


# ---- every record of equally many, and few outputs of many records


class Even(Both):
    """Clients with equally many records, all of which are in their batches: nothing is drawn, and nothing padded."""

    def __init__(self, clip: float = 0.3, rate: float = 1.0, records: int = 12, layers: int = 1) -> None:
        super().__init__(clip, rate, layers=layers)
        generator = torch.Generator().manual_seed(2)
        self.x = 3 * torch.randn(3, records, 6, generator=generator)
        self.y = torch.randint(0, 3, (3, records), generator=generator)
        self.sizes = [records] * 3


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("records", [12, 60])
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_equally_many_records_are_limited_one_by_one(rate: float, records: int, layers: int) -> None:
    """Of 60 records' three outputs, those of one output lie side by side; of 12 records', those of one record."""
    even = Even(0.3, rate, records, layers)
    assert (records >= NARROW * 3) == (records == 60)
    expected = even.by_hand(limited(0.3))
    for found in (even.alone(), even.stacked()):
        assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("records", [12, 60])
def test_one_of_equally_many_that_is_not_finite_counts_nothing(records: int, bad: float) -> None:
    even, without = Even(records=records), Even(records=records)
    even.x[1, 4] = bad
    without.x, without.sizes = without.x.clone(), [records, records - 1, records]
    without.x[1, 4:-1], without.y[1, 4:-1] = without.x[1, 5:].clone(), without.y[1, 5:].clone()
    assert torch.allclose(even.stacked(), without.alone(), atol=1e-5)
    assert torch.allclose(even.alone(), without.alone(), atol=1e-5)


def test_one_client_that_draws_among_others_that_do_not() -> None:
    """Whether nothing is drawn is asked of every client."""
    even = Even(records=40)
    batches = [even.batch(client) for client in range(3)]
    batches[1] = DrawnBatch(SOURCE, (5, 1), 0.3, torch.tensor([0.3]).double())
    stack = Stack(even.x, even.y, even.sizes, even.learner, None, batches, asked=(5, (0, 1, 2)))
    found = open_sealed(stack.gradient_sums(even.flat.repeat(3, 1), torch.arange(3)))
    even.rate = 0.3
    expected = even.by_hand(limited(0.3))[1]
    assert torch.allclose(found[1], expected, atol=1e-5)
    assert float((found[0] - even.by_hand(limited(0.3))[0]).norm()) > 0.1, "the first client's records are all there"


def test_records_that_were_not_drawn_stay_out_where_another_is_not_finite() -> None:
    even, without = Even(rate=0.5, records=40), Even(rate=0.5, records=40)
    drawn = int(even.batch(1).coins(40).nonzero()[0])
    even.x[1, drawn] = math.nan
    expected = torch.zeros_like(even.flat)
    for place in even.batch(1).coins(40).nonzero().flatten().tolist():
        if place != drawn:
            x, y = without.x[1, place : place + 1], without.y[1, place : place + 1]
            expected += limited(0.3)(without.learner.gradient(without.flat, Batch(x, y, y, None)), 0)
    assert torch.allclose(even.stacked()[1], expected.double(), atol=1e-5)


@pytest.mark.parametrize("records", [12, 60])
def test_stacked_bounds_hold_however_outputs_lie_in_memory(records: int) -> None:
    """The bound of each record's gradient is no less than its length, and no more than a thousandth above it."""
    even = Even(records=records)
    assert even.learner.chain is not None
    book = StackedBook.of(even.learner.chain, even.flat.repeat(3, 1), even.x, even.y, records)
    for client in range(3):
        for place, bound in enumerate(book.layer_norms()[client, :, 0].tolist()):
            x, y = even.x[client, place : place + 1], even.y[client, place : place + 1]
            length = float(even.learner.gradient(even.flat, Batch(x, y, y, None)).double().norm())
            assert length <= bound <= length * (1 + 1e-3)


def test_charges_are_those_of_the_clients_that_are_asked() -> None:
    gate = gate_of(Noise(2.0, "outsider", 2))
    gate.allowance.of_records.sampling[:] = [0.1, 0.2, 0.3, 0.4]
    public = Public({"clip": 0.5}, [3, 1], layers=[20])
    assert GRADIENT.charge(gate.allowance, public).sampled[:, 0].tolist() == [0.4, 0.2]  # type: ignore[index]


def test_noise_is_worked_out_once_for_each_release_and_width() -> None:
    gate, public = gate_of(Noise(2.0, "outsider", 4)), public_of(clip=0.5)
    first, second = GradientSum("clip", 0.25), RecordSum(7.0, 0.5, drawn=True)
    covers = [cover_of(one, width, gate.allowance, public) for one in (first, second) for width in (20, 30)]
    assert [float(one.bounds) for one in covers] == [0.5, 0.5, 7.0, 7.0]  # type: ignore[union-attr]
    assert [one.sizes for one in covers] == [[20], [30], [20], [30]]  # type: ignore[union-attr]
    assert cover_of(first, 20, gate.allowance, public) is covers[0]
    other = gate_of(Noise(4.0, "outsider", 4))
    assert float(cover_of(first, 20, other.allowance, public).deviations) == 2 * float(covers[0].deviations)  # type: ignore[union-attr]
