"""Record-level privacy: the noisy gradient, its sampling, its price."""

from __future__ import annotations

import math
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import Tensor, nn

from sordino.errors import UserError
from sordino.learning.network import Batch, Learner
from sordino.learning.parameters import flatten
from sordino.learning.per_record import Bookkeeper
from sordino.learning.singles import Singles
from sordino.privacy.accounting.calibration import affordable_turns, record_multiplier, record_rate
from sordino.privacy.accounting.gaussian import epsilon_of
from sordino.privacy.accounting.loss_distribution import Sampled
from sordino.privacy.accounting.sampled_gaussian import (
    Recipe,
    quick_record_epsilon,
    record_attack_accuracy,
    record_epsilon,
    replaced_epsilon,
    rows_epsilon,
)
from sordino.privacy.budget.allowance import Allowance, Outlook
from sordino.privacy.budget.record_level_plan import RecordNeeds, RecordPlan, plan_records, sampling_rates
from sordino.privacy.clipping import clipping_factors
from sordino.privacy.gate import Gate, SampledGradients, SeparateGradients
from sordino.privacy.gradients import PrivateRecords, Units, validation_records
from sordino.privacy.integers import charged_multiplier
from sordino.privacy.ledger import Ledger
from sordino.privacy.mechanism import MECHANISMS, MechanismName
from sordino.privacy.noise import Seeded
from sordino.privacy.release import (
    Average,
    Follows,
    Gradients,
    Matrix,
    Public,
    ReleaseError,
    check_steps,
    record_needs,
    takes_gradients_alone,
)
from sordino.privacy.release.base import mirror_upper
from sordino.privacy.release.of_records import without_privacy
from sordino.privacy.sealed import Sealed, SealedError, open_sealed
from sordino.privacy.unit import Unit
from sordino.tasks import Classification


# delta = 1e-5, Poisson, add/remove. PAC-DP on MNIST: rate 128/1200, 1,172 steps; AdaDP-CFL:
# rate 20/500, 1,250 steps, which is 10 participations.
@pytest.mark.parametrize(
    ("epsilon", "rate", "steps", "multiplier"),
    [
        (0.1, 128 / 1200, 1172, 112.6),
        (1, 128 / 1200, 1172, 13.7),
        (5, 128 / 1200, 1172, 3.37),
        (10, 128 / 1200, 1172, 1.98),
        (1, 20 / 500, 1250, 5.38),
        (5, 20 / 500, 1250, 1.47),
        (10, 20 / 500, 1250, 0.98),
    ],
)
def test_published_noise(epsilon: float, rate: float, steps: int, multiplier: float) -> None:
    found = record_multiplier(epsilon, 1e-5, rate, steps)
    assert found == pytest.approx(multiplier, rel=0.01)
    assert record_epsilon(((rate, found, steps),), 1e-5) <= epsilon


def test_published_noise_for_a_replaced_record() -> None:
    # MNIST-like, replace-one by privacy-loss distributions.
    for epsilon, multiplier in ((0.1, 225), (1, 27.3), (5, 6.52), (10, 3.65)):
        assert replaced_epsilon(((128 / 1200, multiplier, 1172),), 1e-5) == pytest.approx(epsilon, rel=0.01)


def test_without_sampling_it_is_the_closed_form() -> None:
    assert record_epsilon(((1.0, 2.0, 4), (1.0, 3.0, 9)), 1e-5) == pytest.approx(epsilon_of(math.sqrt(2), 1e-5))
    assert record_epsilon((), 1e-5) == 0.0
    assert record_epsilon(((0.1, 0.0, 3),), 1e-5) == math.inf


def test_sampling_helps_and_the_quick_bound_is_above() -> None:
    recipe = ((0.1, 1.5, 100),)
    exact = record_epsilon(recipe, 1e-5)
    assert exact < record_epsilon(((1.0, 1.5, 100),), 1e-5)
    assert exact <= quick_record_epsilon(recipe, 1e-5) < 1.3 * exact
    assert 0.5 < record_attack_accuracy(recipe) < record_attack_accuracy(((1.0, 1.5, 100),))


def test_how_often_a_charge_fits() -> None:
    most = affordable_turns(2.0, 1e-5, (0.1, 1.5, 10), 100)
    assert record_epsilon(((0.1, 1.5, 10 * most),), 1e-5) <= 2.0
    assert record_epsilon(((0.1, 1.5, 10 * (most + 1)),), 1e-5) > 2.0
    assert affordable_turns(1e-3, 1e-5, (0.1, 0.5, 10), 100) == 0


def test_rates_are_rounded_up_where_sizes_are_many() -> None:
    assert sampling_rates([100, 200], 20).tolist() == [0.2, 0.1]
    sizes = list(range(50, 150))
    rates = sampling_rates(sizes, 10)
    exact = 10 / np.array(sizes)
    assert (rates >= exact).all()
    assert (rates <= exact * 1.045).all()
    assert sampling_rates([5], 20).tolist() == [1.0]


@pytest.mark.slow
def test_a_plan_meets_every_budget() -> None:
    budgets, needs = np.array([1.0, 4.0]), RecordNeeds(matrix_share=0.2, matrices=1, means=2, held_out=0.2)
    plan = plan_records([200, 200], budgets, 1e-5, batch=20, epochs=1, turns=5, needs=needs)
    assert plan.validation.tolist() == [40, 40]
    assert plan.sampling.tolist() == [20 / 160, 20 / 160], "records that are set aside are not trained on"
    for client in range(2):
        rate, multiplier, steps = plan.charge(client)
        whole = ((1.0, float(plan.matrix_multipliers[client]), 1), (rate, multiplier, 5 * steps))
        assert 0.97 * budgets[client] < record_epsilon(whole, 1e-5) <= budgets[client]
        metrics = ((1.0, float(plan.mean_multipliers[client]), 10),)
        assert record_epsilon(metrics, 1e-5) == pytest.approx(budgets[client])


def accounted(*charges: Sampled) -> float:
    """Epsilon at delta 1e-5 by Google's accountant, without any of our code."""
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(value_discretization_interval=1e-3)
    for rate, multiplier, steps in charges:
        gaussian = dp_event.GaussianDpEvent(multiplier)
        event = gaussian if rate == 1 else dp_event.PoissonSampledDpEvent(rate, gaussian)
        accountant.compose(dp_event.SelfComposedDpEvent(event, steps))
    return float(accountant.get_epsilon(1e-5))


@pytest.mark.parametrize(
    ("epsilon", "others"),
    [
        (3.0, ((1.0, 5.0, 1),)),
        pytest.param(1.0, (), marks=pytest.mark.slow),
        pytest.param(8.0, (), marks=pytest.mark.slow),
    ],
)
def test_the_largest_rate_within_a_budget(epsilon: float, others: Recipe) -> None:
    rate = record_rate(epsilon, 1e-5, 1.2, 60, others=others)
    assert accounted(*others, (rate, 1.2, 60)) <= epsilon * 1.005
    assert accounted(*others, (1.02 * rate, 1.2, 60)) > epsilon * 1.005


def test_a_rate_is_not_raised_beyond_the_natural_one_and_none_is_made_up() -> None:
    assert record_rate(50.0, 1e-5, 1.2, 60, most=0.2) == 0.2
    assert record_rate(1000.0, 1e-5, 1.2, 60) == 1.0
    with pytest.raises(UserError, match="more noise or a larger budget"):
        record_rate(0.5, 1e-5, 1.2, 60, others=((1.0, 1.0, 1),))


def test_rates_leave_room_for_a_matrix_that_is_released_too() -> None:
    budgets, needs = np.array([2.0, 4.0]), RecordNeeds(matrix_share=0.3, matrices=1)
    plan = plan_records([100, 100], budgets, 1e-5, batch=25, epochs=1, turns=1, needs=needs, varied="sampling")
    rate, multiplier, steps = plan.charge(0)
    matrix = (1.0, float(plan.matrix_multipliers[0]), 1)
    assert 0.97 * 2.0 < record_epsilon((matrix, (rate, multiplier, steps)), 1e-5) <= 2.0 * 1.001


@pytest.mark.slow
def test_a_plan_by_sampling_rates_meets_every_budget() -> None:
    """Of clients of different sizes, 150 records in the mean, 30 of which are set aside: 15 of 120 is an eighth."""
    budgets, needs = np.array([2.0, 4.0, 4.0]), RecordNeeds(matrix_share=0.2, matrices=1, held_out=0.2)
    sizes = [100, 150, 200]
    plan = plan_records(sizes, budgets, 1e-5, batch=15, epochs=2, turns=3, needs=needs, varied="sampling")
    assert plan.steps.tolist() == [16, 16, 16]
    assert len(set(plan.multipliers)) == 1
    assert plan.sampling[0] < plan.sampling[1] == plan.sampling[2] == 1 / 8, "the largest budget has the natural rate"
    assert plan.turns.tolist() == [3, 3, 3]
    for client in (0, 1):
        rate, multiplier, steps = plan.charge(client)
        matrix = (1.0, float(plan.matrix_multipliers[client]), 1)
        assert 0.97 * budgets[client] < accounted(matrix, (rate, multiplier, 3 * steps)) <= budgets[client] * 1.005
    alike = plan_records([150] * 2, np.array([4.0] * 2), 1e-5, batch=15, epochs=2, turns=3, needs=needs)
    assert alike.multipliers[0] == plan.multipliers[0], "equal budgets are the usual plan"
    assert alike.sampling.tolist() == [1 / 8] * 2


def private(
    x: Tensor,
    y: Tensor,
    keeper: Bookkeeper,
    charge: Sampled,
    clip: float | list[float] = 0.5,
    purpose: tuple[int, int] = (0, 7),
    source: Seeded = Seeded(0, "identity"),  # noqa: B008 (a frozen value)
) -> PrivateRecords:
    """Records of which none is set aside; `purpose` is the question's number and the client."""
    exit = SampledGradients(source, purpose, charge, torch.as_tensor(clip))
    return PrivateRecords(Units(x, y), torch.zeros(len(y), dtype=torch.bool), keeper, exit)


def records(charge: Sampled = (0.5, 2.0, 3)) -> tuple[PrivateRecords, Tensor, Learner, Tensor, Tensor]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    x, y = torch.randn(40, 6) * 3, torch.randint(0, 3, (40,))
    keeper = Bookkeeper(Learner(module, Classification.numbered(10)))
    return private(x, y, keeper, charge), flatten(module), keeper.learner, x, y


def test_without_noise_it_is_the_sum_of_clipped_gradients() -> None:
    data, flat, learner, x, y = records(charge=(1.0, 1e-12, 1))
    each = [learner.gradient(flat, Batch(x[i : i + 1], y[i : i + 1], y, None)) for i in range(40)]
    clipped = [g * min(1.0, 0.5 / float(g.norm())) for g in each]
    assert torch.allclose(data.gradient(flat), torch.stack(clipped).sum(dim=0) / 40, atol=2e-6)
    assert sum(float(g.norm()) > 0.5 for g in each) > 10, "the threshold matters here"


def test_validation_records_are_judged_one_by_one() -> None:
    """Also with a network that adds up the records of a batch."""

    class Cumulated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(x.cumsum(0))

    torch.manual_seed(0)
    learner, x, y = Learner(Cumulated(), Classification.numbered(10)), torch.randn(7, 6), torch.arange(7) % 3
    flat = flatten(learner.written)

    def losses() -> Tensor:
        return open_sealed(
            PrivateRecords(Units(x, y), torch.ones(7, dtype=torch.bool), Singles(learner), None).judged(flat)[0]
        )

    before = losses()
    x[2] *= 100
    assert ((losses() - before).abs() > 1e-5).tolist() == [place == 2 for place in range(7)]


@pytest.mark.parametrize("clip", [0.5, [0.3, 0.4]])
def test_no_record_counts_more_than_its_threshold(clip: float | list[float]) -> None:
    norms = torch.rand(1000, 2) * 3
    clips = torch.tensor([clip] if isinstance(clip, float) else clip)
    factors = clipping_factors(norms, clips)
    if clips.numel() == 1:
        assert (norms.double().norm(dim=1) * factors <= 0.5).all()
    else:
        assert (norms * factors <= clips).all()
    bad = clipping_factors(torch.tensor([[math.nan, 1.0], [math.inf, 1.0], [0.0, 0.0]]), clips)
    assert (bad[:2] == 0).all()
    assert torch.isfinite(bad).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_a_record_that_is_not_finite_counts_nothing(bad: float) -> None:
    """Zero times NaN is not zero: such a record must not spoil the others' sum."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    x, y = torch.randn(5, 6), torch.randint(0, 3, (5,))
    with_it = torch.cat([x[:2], torch.full((1, 6), bad), x[3:]])
    without = torch.arange(5) != 2
    keeper, flat = Bookkeeper(Learner(module, Classification.numbered(10))), flatten(module)

    def whole(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The noiseless sum over all records."""
        return private(x, y, keeper, (1.0, 1e-12, 1)).gradient(flat) * len(y)

    assert torch.allclose(whole(with_it, y), whole(x[without], y[without]), atol=1e-6)


def test_the_noise_has_the_stated_deviation_and_is_never_reused() -> None:
    """Records whose gradients vanish leave noise alone: N(0, (z C)^2) over the expected batch."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(5000, 2))
    x, y = torch.zeros(10, 5000), torch.zeros(10, dtype=torch.int64)
    flat = flatten(module)
    flat[:] = 0
    flat[-2] = 100.0  # sure and right, so the bias has no gradient; zero inputs give none either
    keeper = Bookkeeper(Learner(module, Classification.numbered(10)))
    drawn = []
    for question in range(2):
        for client in range(2):
            data = private(x, y, keeper, (0.3, 2.0, 2), 0.7, (question, client))
            drawn += [data.gradient(flat) for _ in range(2)]
            assert data.deviation == pytest.approx(2.0 * 0.7 / (0.3 * 10))
    deviation = 2.0 * 0.7 / (0.3 * 10)
    low, high = chi2.ppf([5e-7, 1 - 5e-7], len(flat))
    for one in drawn:
        assert low < float((one / deviation).square().sum()) < high
    assert (torch.corrcoef(torch.stack(drawn)) - torch.eye(8)).abs().max() < 0.07  # 10,000 pairs: seven deviations


def test_batches_are_poisson_sampled_and_may_be_empty() -> None:
    """Each record enters a batch with the rate, independently: counted from noiseless gradients of one-hot records."""
    count, rate, steps = 60, 0.05, 400
    module = nn.Sequential(nn.Flatten(), nn.Linear(count, 2, bias=False))
    keeper, y = Bookkeeper(Learner(module, Classification.numbered(10))), torch.zeros(count, dtype=torch.int64)
    data = private(torch.eye(count), y, keeper, (rate, 1e-12, steps), 9.0, source=Seeded(3, "identity"))
    flat = torch.zeros(2 * count)
    entered = torch.stack([(data.gradient(flat)[:count].abs() > 1e-6).float() for _ in range(steps)])
    sizes = entered.sum(dim=1)
    assert (sizes == 0).any(), "an empty batch is possible"
    low, high = chi2.ppf([5e-7, 1 - 5e-7], count)
    statistic = ((entered.sum(dim=0) - rate * steps) ** 2 / (steps * rate * (1 - rate))).sum()
    assert low < float(statistic) < high
    assert float(sizes.var()) == pytest.approx(count * rate * (1 - rate), rel=0.4)


def judging(clip: float, bare: bool = False) -> tuple[PrivateRecords, Tensor, Tensor]:
    """Records of which the first ten are set aside, a model, and the norm of each record's gradient in each layer."""
    _, flat, learner, x, y = records()
    exit = SampledGradients(Seeded(0, "identity"), (0, 7), (1.0, 2.0, 3), torch.tensor(clip))
    data = PrivateRecords(Units(x, y), torch.arange(40) < 10, Bookkeeper(learner), exit, bare)
    singles = [learner.gradient(flat, Batch(x[k : k + 1], y[k : k + 1], y, None)) for k in range(40)]
    layers = learner.layout.layers
    return data, flat, torch.stack([torch.stack([part.norm() for part in one.split(layers)]) for one in singles])


def test_which_validation_records_are_within_the_threshold_is_sealed() -> None:
    lengths = judging(1.0)[2].norm(dim=1)
    middle = float(lengths[:10].sort().values[4:6].mean())
    data, flat, _ = judging(middle)
    within = data.within(flat)
    assert within.pool == "validation"
    with pytest.raises(SealedError):
        within + 1
    assert open_sealed(within).tolist() == (lengths[:10] <= middle).float().tolist()
    assert int(open_sealed(within).sum()) == 5


def test_raw_norms_are_for_bare_releases_only() -> None:
    data, flat, norms = judging(1.0, bare=True)
    assert torch.allclose(data.raw_norms(flat).float(), norms, rtol=1e-4)
    with pytest.raises(UserError, match="without a bare release"):
        judging(1.0)[0].raw_norms(flat)


def test_a_step_gets_only_what_was_charged() -> None:
    data, flat, *_ = records(charge=(0.5, 1.0, 2))
    data.gradient(flat)
    data.gradient(flat)
    with pytest.raises(UserError, match="more noisy gradients"):
        data.gradient(flat)


def test_a_step_cannot_reach_the_records() -> None:
    data, *_ = records()
    reachable = [name for name in dir(data) if not name.startswith("_")]
    assert not any(
        isinstance(getattr(data, name), torch.Tensor) and getattr(data, name).numel() > 1 for name in reachable
    )
    with pytest.raises(UserError, match="as they are"):
        data.raw()


def test_validation_records_are_fixed_and_disjoint() -> None:
    chosen = validation_records(1000, 0.2, Seeded(0), 3)
    assert torch.equal(chosen, validation_records(1000, 0.2, Seeded(0), 3))
    assert not torch.equal(chosen, validation_records(1000, 0.2, Seeded(0), 4))
    assert int(chosen.sum()) == 200
    assert validation_records(2, 0.2, Seeded(0), 0).sum() == 1


def record_plan() -> RecordPlan:
    needs = RecordNeeds(matrix_share=0.3, matrices=1, means=1, held_out=0.2)
    return plan_records([100], np.array([2.0]), 1e-5, batch=10, epochs=1, turns=2, needs=needs)


def test_the_ledger_composes_what_records_go_through() -> None:
    allowance, ledger, public = (
        Allowance(records=record_plan()),
        Ledger(1, Unit.RECORD),
        Public({"clip": 1.0}, layers=[5]),
    )
    ledger.charge({"moments": Matrix(0.3)}, 0, 0, "describe", allowance, public)
    trained = {"update": Gradients("clip"), "norm": Follows("update"), "loss": Average(0.0, 4.0)}
    for round in range(2):
        ledger.charge(trained, 1 + round, round, "local", allowance, public)
    assert ledger.epsilon(1e-5)["server"] == ledger.epsilon(1e-5)["outsider"] <= 2.0 + 1e-9
    assert ledger.epsilon(1e-5)["server"] > 1.95
    assert ledger.record_epsilons("server", 1e-5, replace=True)[0] > 2 * ledger.record_epsilons("server", 1e-5)[0]
    assert 0.5 < ledger.attack_accuracy()["server"] < 0.8
    assert Ledger(1, Unit.RECORD, ledger.rows).head == ledger.head


def test_what_follows_from_the_same_gradients_costs_nothing_more() -> None:
    public, allowance = Public({"clip": 1.0}, layers=[5]), Allowance(records=record_plan())
    once, twice = Ledger(1, Unit.RECORD), Ledger(1, Unit.RECORD)
    once.charge({"update": Gradients("clip")}, 0, 0, "local", allowance, public)
    twice.charge({"update": Gradients("clip"), "control": Follows("update")}, 0, 0, "local", allowance, public)
    assert once.record_epsilons("server", 1e-5) == twice.record_epsilons("server", 1e-5)
    assert once.record_epsilons("server", 1e-5)[0] > 0


SEPARATE = [0.3, 0.4, 1.2, 0.1]
"""A threshold for each tensor of two layers."""


@pytest.mark.parametrize("noise", ["float", "integers"])
def test_separate_tensors_have_noise_in_proportion_to_their_own_thresholds(noise: MechanismName) -> None:
    """Records whose gradients vanish leave noise alone: N(0, (z C_l)^2) on tensor l, over the expected batch."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(60, 40), nn.Linear(40, 50))
    keeper, flat = Bookkeeper(Learner(module, Classification.numbered(10))), torch.zeros(60 * 40 + 40 + 40 * 50 + 50)
    flat[-50] = 100.0  # sure and right
    x, y, sizes = torch.zeros(10, 60), torch.zeros(10, dtype=torch.int64), keeper.learner.layout.sizes
    gate = Gate(Allowance(records=record_plan()), Seeded(0, "identity"), MECHANISMS[noise])
    rate, z, steps = gate.allowance.of_records.charge(0)
    exit = gate.gradients(0, 0, torch.tensor(SEPARATE), sizes)
    data = PrivateRecords(Units(x, y), torch.zeros(10, dtype=torch.bool), keeper, exit)
    drawn = torch.stack([data.gradient(flat) for _ in range(steps)]).double()
    for part, clip in zip(drawn.split(sizes, dim=1), SEPARATE, strict=True):
        low, high = chi2.ppf([5e-7, 1 - 5e-7], part.numel())
        assert low < float((part / (z * clip / (rate * 10))).square().sum()) < high
    assert isinstance(data.deviation, Tensor)
    assert data.deviation[[0, 2400, 2440, 4440]].tolist() == pytest.approx([z * c / (rate * 10) for c in SEPARATE])
    assert (torch.corrcoef(drawn) - torch.eye(steps)).abs().max() < 0.1  # 4,490 pairs: more than six deviations


def test_separate_tensors_are_clipped_each_by_itself() -> None:
    """Without noise it is the sum of gradients whose every tensor is scaled down to its own threshold."""
    _, flat, learner, x, y = records()
    sizes, source = learner.layout.sizes, Seeded(0, "identity")
    exit = SeparateGradients(source, (0, 7), (1.0, 1e-12, 1), torch.tensor(SEPARATE), MECHANISMS["float"], sizes)
    data = PrivateRecords(Units(x, y), torch.zeros(40, dtype=torch.bool), Bookkeeper(learner), exit)
    total = torch.zeros_like(flat)
    for i in range(40):
        one = learner.gradient(flat, Batch(x[i : i + 1], y[i : i + 1], y, None))
        parts = zip(one.split(sizes), SEPARATE, strict=True)
        total += torch.cat([part * min(1.0, clip / float(part.norm())) for part, clip in parts])
    assert torch.allclose(data.gradient(flat), total / 40, atol=2e-6)


@pytest.mark.parametrize("tensors", [1, 2, 4])
def test_separate_tensors_are_charged_what_they_cost_together(tensors: int) -> None:
    """A record may move each of L tensors by its threshold C_l, under noise z C_l: mu^2 is L / z^2."""
    plan = plan_records([100], np.array([2.0]), 1e-5, batch=100, epochs=3, turns=2)
    allowance, public = Allowance(records=plan), Public({"clip": torch.tensor(SEPARATE[:tensors])}, layers=[5, 7])
    ledger, release = Ledger(1, Unit.RECORD), Gradients("clip", separate=True)
    for round in range(2):
        ledger.charge({"update": release}, round, round, "local", allowance, public)
    z = float(plan.multipliers[0])
    mu = math.sqrt(6 * sum((clip / (z * clip)) ** 2 for clip in SEPARATE[:tensors]))
    assert ledger.epsilon(1e-5)["server"] == pytest.approx(epsilon_of(mu, 1e-5), rel=1e-9)
    assert release.known_beforehand() is False
    whole = release.charge(replace(allowance, whole=True), public).sampled
    assert whole is not None
    assert whole[0, 1] == charged_multiplier(z / math.sqrt(tensors), 12), "rounding is charged beside that"


def test_thresholds_for_something_else_than_the_networks_parts_are_refused() -> None:
    layout = Learner(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)), Classification.numbered(3)).layout
    assert [layout.parts(count) for count in (1, 2, 4)] == [[43], [28, 15], [24, 4, 12, 3]]
    with pytest.raises(UserError, match="3 thresholds, but the network has 2 layers and 4 tensors"):
        layout.parts(3)
    with pytest.raises(ValueError, match="2 thresholds are not for 3 parts"):
        SeparateGradients(Seeded(0, "identity"), (0, 7), (1.0, 1.0, 1), torch.ones(2), MECHANISMS["float"], [20, 20, 3])


def test_separate_tensors_are_not_stacked() -> None:
    """The noise of stacked clients is one for all tensors."""
    for separate in (False, True):
        step = {"update": Gradients("clip", separate=separate), "change": Follows("update")}
        assert takes_gradients_alone(step) is not separate
        assert takes_gradients_alone(without_privacy(step)) is not separate


def measured(clip: float = 0.5) -> tuple[PrivateRecords, Tensor, Learner, Tensor, Tensor, Tensor]:
    """Records of which every third is set aside, and which ones those are."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    x, y, aside = torch.randn(60, 6), torch.randint(0, 3, (60,)), torch.arange(60) % 3 == 0
    keeper = Bookkeeper(Learner(module, Classification.numbered(10)))
    exit = SampledGradients(Seeded(0, "identity"), (0, 7), (0.5, 2.0, 3), torch.as_tensor(clip))
    return PrivateRecords(Units(x, y), aside, keeper, exit), flatten(module), keeper.learner, x, y, aside


def test_which_validation_records_are_within_the_threshold() -> None:
    """Against gradients of single records, and sealed; more than are measured at once come in the same order."""
    from sordino.learning.network import Batch

    clip = 1.42
    data, flat, learner, x, y, aside = measured(clip)
    each = [learner.gradient(flat, Batch(x[i : i + 1], y[i : i + 1], y, None)).norm() for i in range(60)]
    within = (torch.stack(each) <= clip).float()
    assert 3 < int(within[aside].sum()) < 17, "the threshold matters here"
    assert not torch.equal(within[aside], within[~aside][:20])
    sealed = data.within(flat)
    assert isinstance(sealed, Sealed)
    assert sealed.pool == "validation"
    assert torch.equal(open_sealed(sealed), within[aside])
    with mock.patch("sordino.privacy.gradients.RECORDS_MEASURED_TOGETHER", 7):
        assert torch.equal(open_sealed(data.within(flat)), within[aside])
    assert float(Average(0.0, 1.0).opened(sealed, Public({})).mean()) == pytest.approx(float(within[aside].mean()))


def test_a_length_that_is_not_known_is_beyond_the_threshold_and_of_no_records_there_is_none() -> None:
    data, flat, *_ = measured()
    flat[:] = math.nan
    assert open_sealed(data.within(flat)).tolist() == [0.0] * 20
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    alone = private(
        torch.randn(1, 6),
        torch.zeros(1, dtype=torch.int64),
        Bookkeeper(Learner(module, Classification.numbered(10))),
        (1.0, 1.0, 1),
    )
    assert open_sealed(alone.within(flatten(module))).shape == (0,)


def test_means_and_a_matrix_have_the_noise_of_their_budgets() -> None:
    """Six means at epsilon 2 cost epsilon 2, and less noise would not do; a matrix costs its share. The outlook says
    the same as the plan of the run."""
    needs = RecordNeeds(matrix_share=0.3, matrices=1, means=3, held_out=0.2)
    plan = plan_records([100, 100], np.array([2.0, 2.0]), 1e-5, batch=1000, epochs=3, turns=2, needs=needs)
    for found in (plan, Outlook(np.array([9, 100, 999]), np.array([1.0, 2.0, 3.0]), 1e-5, 2).plan(needs)):
        assert record_epsilon(((1.0, float(found.mean_multipliers[0]), 6),), 1e-5) == pytest.approx(2.0, rel=1e-6)
        assert record_epsilon(((1.0, float(found.matrix_multipliers[0]), 1),), 1e-5) == pytest.approx(0.6, rel=1e-6)
        assert found.validation[0] == 20


def test_two_matrices_share_what_is_kept_for_matrices() -> None:
    """All that they and the gradients cost together is the budget."""
    needs = record_needs({"one": {"first": Matrix(0.2)}, "other": {"second": Matrix(0.1)}})
    plan = plan_records([100], np.array([2.0]), 1e-5, batch=100, epochs=1, turns=2, needs=needs)
    recipe = ((1.0, float(plan.matrix_multipliers[0]), 2), (1.0, float(plan.multipliers[0]), 2))
    assert 1.99 < record_epsilon(recipe, 1e-5) <= 2.0
    assert record_epsilon(recipe[:1], 1e-5) == pytest.approx(0.6, rel=1e-6)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_mean_needs_records_that_are_set_aside(share: float) -> None:
    """Without, its noise would not be planned for, and others of its step would lend it their records."""
    with pytest.raises(ReleaseError, match="set aside for it must lie between 0 and 1"):
        check_steps({"local": {"loss": Average(0.0, 1.0, held_out=share)}}, Unit.RECORD, ())


def test_second_moments_leave_bounded_and_symmetric() -> None:
    plan = record_plan()
    gate = Gate(Allowance(records=plan), Seeded(0, "identity"))
    rows = torch.randn(30, 8) * 5
    moments = {"moments": Sealed(rows, "training", "projected records")}
    out = gate.passes({"moments": Matrix(0.3)}, moments, 0, Public({}))
    matrix = out.values["moments"].reshape(8, 8)
    assert torch.allclose(matrix, matrix.t())
    bounded = Matrix(0.3).bounded(rows, Public({})).rows.reshape(8, 8)
    assert float(bounded.diagonal().sum()) <= 30.0 + 1e-4, "every record has norm at most one"
    residual = (matrix - bounded)[torch.triu_indices(8, 8).unbind()]
    low, high = chi2.ppf([5e-7, 1 - 5e-7], len(residual))
    assert low < float((residual / plan.matrix_multipliers[0]).square().sum()) < high
    assert torch.equal(mirror_upper(torch.arange(4.0)), torch.tensor([0.0, 1.0, 1.0, 3.0]))


def test_one_of_many_records_moves_sums_no_further_than_is_charged() -> None:
    """What sums round depends on every record: in float32 one of so many moves this matrix by 1.0001."""
    rows = torch.rand(40_000, 16, generator=torch.Generator().manual_seed(0)) + 1
    fewer = torch.cat([torch.zeros(1, 16), rows[1:]])
    moved = Matrix(0.3).bounded(rows, Public({})).rows - Matrix(0.3).bounded(fewer, Public({})).rows
    assert float(moved.norm()) <= 1
    release, numbers = Average(0.0, 1.0), rows[:, :1].t() / 3
    for value in (0.0, 1.0):
        other = numbers.clone()
        other[0, 7] = value
        moved = release.bounded(numbers, Public({})).rows - release.bounded(other, Public({})).rows
        assert float(moved.abs()) <= 2 * release.spread(40_000)


def test_means_over_validation_records_leave_noised() -> None:
    plan = record_plan()
    release = Average(0.0, 4.0)
    rows = torch.tensor([[1.0, 9.0, -3.0, math.nan]])  # held to 1, 4, 0 and the middle: mean 7/4
    assert float(release.bounded(rows, Public({})).rows) + release.centre() == pytest.approx(7 / 4)
    gate = Gate(Allowance(records=plan), Seeded(0, "identity"))
    many = {"loss": Sealed(torch.full((20,), 2.0), "validation", "losses")}
    drawn = torch.cat(
        [gate.passes({"loss": release}, many, question, Public({})).values["loss"] for question in range(3000)]
    )
    assert plan.validation.tolist() == [20]
    deviation = plan.mean_multipliers[0] * 2.0 / 20
    low, high = chi2.ppf([5e-7, 1 - 5e-7], 3000)
    assert low < float((drawn / deviation).square().sum()) < high


def test_without_sampling_several_rows_cost_as_much_as_their_sum_moves() -> None:
    """Five rows move a sum five times as far: mu = 5 sqrt(4) / 20."""
    assert rows_epsilon([((1.0, 20.0, 4),)], 5, 1e-5) == pytest.approx(epsilon_of(0.5, 1e-5))
    assert rows_epsilon([((0.1, 1.5, 30),)], 1, 1e-5) == record_epsilon(((0.1, 1.5, 30),), 1e-5)


def test_rows_may_lie_in_different_pools() -> None:
    """Two rows in one pool move its sum twice as far; one in each pool pays both prices: mu^2 is 4/9, 4/9 or 2/9."""
    pools = [((1.0, 3.0, 1),), ((1.0, 3.0, 1), (1.0, 30.0, 1))]
    assert rows_epsilon(pools, 2, 1e-5) == pytest.approx(epsilon_of(2 * math.sqrt(1 / 9 + 1 / 900), 1e-5))
    unlike = [((1.0, 2.0, 1),), ((0.1, 0.8, 20),)]
    both = record_epsilon((*unlike[0], *unlike[1]), 1e-5)
    assert rows_epsilon(unlike, 2, 1e-5) >= both
