"""DP-FedSGD against plain loops: without noise it is SGD, with any number of sites, and with noise at each site it is
DP-FedAvg with one step; its parts by hand from what left."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sordino.api import run
from sordino.data import ClientData, FederatedData
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import Prepared, prepare
from sordino.learning.parameters import Layout
from sordino.methods.dp_fedavg_record import DPFedAvgRecord
from sordino.methods.dp_fedsgd import DPFedSGD, with_output_bias
from sordino.parts.server_optimizers import OPTIMIZERS
from sordino.parts.sum_thresholds import SumNormalised, SumQuantile
from sordino.privacy.accounting.gaussian import epsilon_of
from sordino.privacy.accounting.sampled_gaussian import record_epsilon
from sordino.privacy.release import ReleaseError
from sordino.privacy.views import VIEWS
from sordino.store.spending import over_runs, planned, spending_of_ledger, within
from sordino.store.store import Store
from sordino.tasks import Classification
from sordino.testing import runs, sums
from sordino.testing.case import Case, OneRound

pytestmark = pytest.mark.usefixtures("one_thread")

FEATURES, CLASSES, DELTA = 5, 3, 1e-5
STEP = 0.25
PLAIN: dict[str, Any] = {"counts": 0.0, "served": "last", "largest_step": STEP, "walk": 1e9, "start": "network"}
"""The bare loop: no first bias, a step that noise does not limit, and the last model."""


def dealt(*sizes: int, seed: int = 0, classes: int = CLASSES) -> FederatedData:
    """Clients with so many records each, of which the first have label 0 more often."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(sizes), FEATURES, generator=generator)
    y = ((x[:, 0] > 0.3).long() + (x[:, 1] > 0.8).long()).clamp(max=classes - 1)
    parts = zip(x.split(list(sizes)), y.split(list(sizes)), strict=True)
    clients = tuple(ClientData(f"client-{k}", a, b, a, b) for k, (a, b) in enumerate(parts))
    return FederatedData(
        "dealt", clients, Classification.numbered(classes), (FEATURES,), fingerprint=f"{sizes} {seed} {classes}"
    )


def prepared_with(method: Any, data: FederatedData, folder: Path, **keys: Any) -> Prepared:
    usual = {
        **{"clients": len(data.clients), "model": "logistic", "rounds": 4, "workers": 1, "store": folder},
        **{"method": "local", "delta": DELTA},
    }
    if getattr(method, "privacy", "dp") == "dp" and "epsilon" not in keys:
        usual["noise_multiplier"] = 2.0
    return prepare(Experiment.make(usual | keys), data, method=method)


def without_noise(data: FederatedData, folder: Path, rounds: int = 4, **settings: Any) -> tuple[Prepared, OneRound]:
    prepared = prepared_with(DPFedSGD(privacy="none", **(PLAIN | settings)), data, folder, rounds=rounds)
    return prepared, OneRound(prepared, folder, rounds=rounds)


def gradient_of_sum(flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Gradient of the summed cross-entropy of a linear model, by torch."""
    weight = flat[: CLASSES * FEATURES].view(CLASSES, FEATURES).clone().requires_grad_()
    bias = flat[CLASSES * FEATURES :].clone().requires_grad_()
    functional.cross_entropy(functional.linear(x, weight, bias), y, reduction="sum").backward()
    assert weight.grad is not None
    assert bias.grad is not None
    return torch.cat([weight.grad.flatten(), bias.grad])


# ---- equalities


def test_with_one_site_and_no_noise_it_is_gradient_descent_to_the_bit(tmp_path: Path) -> None:
    """To the bit where the loop does the same in the same order: it sums the records' gradients in float32 by one
    product of matrices, multiplies by the float64 number 1 / n and then by the step. A loop that lets torch divide each
    record's loss by n rounds otherwise and agrees to 1e-6."""
    data = dealt(40)
    prepared, once = without_noise(data, tmp_path)
    x, y = data.train.part(0)
    flat, averaged = prepared.initial.clone(), nn.Linear(FEATURES, CLASSES)
    with torch.no_grad():
        averaged.weight.copy_(flat[: CLASSES * FEATURES].view(CLASSES, FEATURES))
        averaged.bias.copy_(flat[CLASSES * FEATURES :])
    descent = torch.optim.SGD(averaged.parameters(), lr=STEP)
    for _ in range(4):
        flat = flat + STEP * -(gradient_of_sum(flat, x, y) * (1 / 40))
        descent.zero_grad()
        functional.cross_entropy(averaged(x), y).backward()
        descent.step()
    assert torch.equal(once.state["model"], flat)
    by_torch = torch.cat([averaged.weight.detach().flatten(), averaged.bias.detach()])
    assert torch.allclose(once.state["model"], by_torch, atol=1e-6)
    assert float((flat - prepared.initial).norm()) > 0.1


def test_with_several_sites_it_is_one_site_with_all_records(tmp_path: Path) -> None:
    """Sites of different sizes; float32 sums in another order differ in their last bits."""
    many, one = dealt(7, 21, 12), dealt(40)
    for engine in ("one-by-one", "stacked"):
        method = DPFedSGD(privacy="none", **PLAIN)
        apart = OneRound(prepared_with(method, many, tmp_path, engine=engine), tmp_path / engine, rounds=4)
        _, whole = without_noise(one, tmp_path / "whole")
        assert torch.allclose(apart.state["model"], whole.state["model"], atol=1e-6)


SAMPLED = {"sampling": 0.5}


def test_without_noise_batches_are_drawn_and_divided_by_what_is_expected(tmp_path: Path) -> None:
    data = dealt(40)
    prepared = prepared_with(DPFedSGD(privacy="none", **PLAIN, **SAMPLED), data, tmp_path)
    with sums.observe_sums() as seen:
        once = OneRound(prepared, tmp_path, rounds=1)
    ((key, one),) = seen.items()
    assert key == (0, 0)
    assert 5 < int(one.coins.sum()) < 35
    x, y = data.train.part(0)
    expected = gradient_of_sum(prepared.initial, x[one.coins], y[one.coins]) / 20
    assert torch.allclose(once.asked[0].read["gradient", "mean"], expected, atol=1e-6)


def test_with_all_noise_at_each_site_it_is_dp_fedavg_with_one_step(tmp_path: Path) -> None:
    """Next to no noise and a threshold that binds: the same models. Real noise: the same price, and the same standard
    deviation of what is added, to within five standard errors."""
    data, clip, keys = dealt(*[20] * 8), 0.1, {"protect_from": "server"}
    sums_of = DPFedSGD(clip=clip, **PLAIN)
    averages = DPFedAvgRecord(clip=clip, epochs=1, batch=20, rate=STEP)
    small = [
        OneRound(prepared_with(method, data, tmp_path, noise_multiplier=1e-8, **keys), tmp_path / str(k), rounds=3)
        for k, method in enumerate((sums_of, averages))
    ]
    assert torch.allclose(small[0].state["model"], small[1].state["model"], atol=1e-5)
    expected = STEP * 2.0 * clip / 20 / math.sqrt(8)
    for k, method in enumerate((sums_of, averages)):
        noisy, still = (
            OneRound(
                prepared_with(method, data, tmp_path, model="mlp", noise_multiplier=z, **keys),
                tmp_path / f"{k}",
                rounds=1,
            )
            for z in (2.0, 1e-8)
        )
        assert noisy.ledger.epsilon(DELTA)["server"] == pytest.approx(epsilon_of(1 / 2.0, DELTA))
        added = (noisy.state["model"] - still.state["model"]).double()
        assert added.numel() > 500
        assert float(added.square().mean()) == pytest.approx(expected**2, rel=5 * math.sqrt(2 / added.numel()))


VARIANTS = {
    "default": DPFedSGD(),
    "quantile": DPFedSGD(clipping=SumQuantile(), **SAMPLED),
    "normalised": DPFedSGD(clipping=SumNormalised(), served="ema", **SAMPLED),
    "balanced": DPFedSGD(class_weight="balanced", served="last", server=OPTIMIZERS["adam"]()),
}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize(
    "check",
    [
        sums.sums_over_records_are_sampled_clipped_and_noised_as_charged,
        sums.sums_over_records_are_bounded_and_covered,
        runs.stacked_and_one_by_one_agree,
    ],
    ids=lambda one: one.__name__,
)
def test_every_variant_passes_the_battery(name: str, check: Any, tmp_path: Path) -> None:
    check(Case(VARIANTS[name], tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize(
    "check",
    [runs.the_number_of_workers_changes_no_bit, runs.a_stopped_run_ends_as_if_it_had_not_been],
    ids=lambda one: one.__name__,
)
def test_every_variant_is_the_same_with_workers_and_resumed(name: str, check: Any, tmp_path: Path) -> None:
    check(Case(VARIANTS[name], tmp_path))


# ---- parts


def traced(method: DPFedSGD, folder: Path, rounds: int = 6, **keys: Any) -> OneRound:
    prepared = prepared_with(method, dealt(30, 30, 30, 30), folder, rounds=rounds, **keys)
    return OneRound(prepared, folder, rounds=rounds)


def models_of(once: OneRound) -> list[Tensor]:
    """Models before each round, and behind the last one."""
    asked = [one for one in once.asked if one.question.step == "local"]
    return [*(one.public.message["global"] for one in asked), once.state["model"]]


@pytest.mark.parametrize("rounds", [6, 5, 1])
@pytest.mark.parametrize("served", ["last", "tail", "ema"])
def test_the_served_model_is_the_last_the_mean_of_the_last_half_or_an_exponential_mean(
    served: Any, rounds: int, tmp_path: Path
) -> None:
    once = traced(DPFedSGD(served=served), tmp_path, rounds)
    after = models_of(once)[1:]
    expected = {"last": after[-1], "tail": torch.stack(after[rounds // 2 :]).mean(dim=0)}
    ema = after[0]
    for model in after[1:]:
        ema = 0.8 * ema + 0.2 * model
    assert torch.allclose(once.state["served"], {**expected, "ema": ema}[served], atol=1e-6)
    shared, places = DPFedSGD().shared_models(SimpleNamespace(**once.state), 4)
    assert torch.equal(shared[0], once.state["served"])
    assert places.tolist() == [0] * 4


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_server_optimizer_moves_along_the_noisy_mean(name: str, tmp_path: Path) -> None:
    """Rules proportional to the mean have a step that noise caps; the others have their own."""
    rule = OPTIMIZERS[name]()
    once = traced(DPFedSGD(server=rule, clip=1.0, counts=0.0, walk=0.01), tmp_path, 3)
    model, state = models_of(once)[0], rule.begin(models_of(once)[0])
    capped = 0.01 / (2.0 / 120 * math.sqrt(3))
    assert capped < 8
    for asked in once.asked:
        mean = asked.read["gradient", "mean"]
        model, state = rule.step(model, -mean, state, capped if name in ("sgd", "momentum") else 1.0)
    assert torch.allclose(once.state["model"], model, atol=1e-6)


def test_noise_limits_the_step(tmp_path: Path) -> None:
    """Over all rounds noise alone moves a parameter by `walk`: by its deviation on the mean times the step times the
    root of the rounds."""
    for walk, largest, step in ((0.01, 8.0, 0.01 / (2.0 / 120 * math.sqrt(2))), (0.01, 0.3, 0.3)):
        once = traced(DPFedSGD(counts=0.0, clip=1.0, walk=walk, largest_step=largest), tmp_path, 2)
        before, after, _ = models_of(once)
        assert torch.allclose(after, before - step * once.asked[0].read["gradient", "mean"], atol=1e-6)


def test_a_noisy_count_of_labels_sets_the_first_bias(tmp_path: Path) -> None:
    once = traced(DPFedSGD(counts=0.2), tmp_path, 2, noise_multiplier=20.0)
    counted, first, second = once.asked
    assert [one.question.step for one in once.asked] == ["count", "local", "local"]
    shares = counted.read["labels", "mean"]
    frequencies = shares.clamp(min=1 / 120)
    frequencies = frequencies / frequencies.sum()
    bias = first.public.message["global"][-CLASSES:]
    assert torch.allclose(bias, frequencies.log() - frequencies.log().mean(), atol=1e-6)
    exact = torch.bincount(torch.cat([c.y for c in dealt(30, 30, 30, 30).clients]), minlength=CLASSES) / 120
    assert not torch.allclose(shares, exact, atol=1e-3), "the count is noisy"
    # Alone with the whole budget the multiplier would be 20; with a fifth of mu^2 it is 20 sqrt(5), over 120 records.
    assert float((shares - exact).norm()) < 5 * math.sqrt(3) * 20 * math.sqrt(5) / 120
    assert torch.equal(first.public.message["weights"], torch.ones(CLASSES))
    assert not torch.equal(first.public.message["global"], second.public.message["global"])


def test_class_weights_are_made_of_the_noisy_count_alone(tmp_path: Path) -> None:
    once = traced(DPFedSGD(class_weight="balanced"), tmp_path, 2)
    shares = once.asked[0].read["labels", "mean"].clamp(min=1 / 120)
    expected = shares.sum() / (CLASSES * shares)
    for asked in once.asked[1:]:
        assert torch.allclose(asked.public.message["weights"], expected)
    with pytest.raises(UserError, match="needs a noisy count of the labels"):
        traced(DPFedSGD(class_weight="balanced", counts=0.0), tmp_path)


def test_without_counts_nothing_is_counted(tmp_path: Path) -> None:
    once = traced(DPFedSGD(counts=0.0), tmp_path, 2)
    assert [one.question.step for one in once.asked] == ["local", "local"]
    assert DPFedSGD(counts=0.0).record_needs().sum_share == 0


def test_only_an_output_layer_with_a_bias_for_each_label_gets_one() -> None:
    model, bias = torch.arange(6.0), torch.tensor([-1.0, 1.0])
    layout = Layout.of(nn.Linear(2, 2))
    assert with_output_bias(model, bias, layout).tolist() == [0, 1, 2, 3, -1, 1]
    assert model.tolist() == [0, 1, 2, 3, 4, 5]
    assert with_output_bias(torch.arange(4.0), bias, Layout.of(nn.Linear(2, 2, bias=False))).tolist() == [0, 1, 2, 3]


def test_the_threshold_follows_the_quantile_of_the_norms(tmp_path: Path) -> None:
    rule = SumQuantile(quantile=0.3, rate=0.5, share=0.1)
    once = traced(DPFedSGD(clipping=rule, clip=0.7, **SAMPLED), tmp_path, 3)
    clip = 0.7
    for asked in once.asked[1:]:
        assert float(asked.public.message["clip"]) == pytest.approx(clip)
        within_threshold = min(0.5, max(-0.5, float(asked.read["within", "mean"]))) + 0.5
        clip *= math.exp(0.5 * (0.3 - within_threshold))
    assert float(once.state["threshold"]["clip"]) == pytest.approx(clip)


def test_the_bits_of_a_quantile_cost_nothing_beside_the_gradients(tmp_path: Path) -> None:
    """Both are one Gaussian: the gradients have 1 - share of the round's budget."""
    method = DPFedSGD(clipping=SumQuantile(), counts=0.0, **SAMPLED)
    once = traced(method, tmp_path, 3)
    assert once.ledger.epsilon(DELTA)["outsider"] == pytest.approx(record_epsilon(((0.5, 2.0, 3),), DELTA))


def test_linear_models_of_two_classes_have_defaults_of_their_own(tmp_path: Path) -> None:
    """Threshold 0.3 sqrt(2 (features + 1)), largest step 0.25 and walk 0.1; for others 1, 8 and 0.2. All linear models
    begin with zeros, unless they are told otherwise, and others with their own weights."""
    several, two = dealt(30, 30), dealt(30, 30, classes=2)
    for data, model, clip, largest, walk in (
        (two, "logistic", 0.15 * math.sqrt(2 * (FEATURES + 1)), 1.0, 0.1),
        (several, "logistic", 1.0, 8.0, 0.2),
        (two, "mlp", 1.0, 8.0, 0.2),
    ):
        for multiplier, step in ((1e-6, largest), (200.0, walk / (200.0 * clip / 60))):
            prepared = prepared_with(DPFedSGD(counts=0.0), data, tmp_path, model=model, noise_multiplier=multiplier)
            once = OneRound(prepared, tmp_path, rounds=1)
            assert float(once.state["threshold"]["clip"]) == pytest.approx(clip)
            start = once.asked[0].public.message["global"]
            assert torch.equal(start, torch.zeros_like(start) if model == "logistic" else prepared.initial)
            moved = once.state["model"] - start
            assert torch.allclose(moved, -step * once.asked[0].read["gradient", "mean"], atol=1e-5)


def test_normalised_gradients_all_have_the_length_of_the_threshold(tmp_path: Path) -> None:
    with sums.observe_sums() as seen:
        traced(DPFedSGD(clipping=SumNormalised(), clip=50.0, counts=0.0), tmp_path, 1)
    norms = [norm for one in seen.values() for norm in one.singles]
    assert norms
    assert all(40 < norm < 50 for norm in norms), "also of gradients that are far shorter"


# ---- what it costs


KEYS: dict[str, Any] = {
    **{"method": "dp-fedsgd", "clients": 6, "rounds": 3, "partition": "iid", "workers": 1, "delta": DELTA},
}


@pytest.mark.parametrize("sampling", [1.0, 0.25])
def test_the_planned_observer_has_the_asked_epsilon_and_others_theirs(sampling: float, tmp_path: Path) -> None:
    result = run(**KEYS, epsilon=1.0, store=tmp_path, set={"sampling": sampling})
    epsilon = result["epsilon"]
    assert 0.97 < epsilon["outsider"] <= 1.0
    assert epsilon["outsider"] < epsilon["peer"] < epsilon["server"]
    alone = run(**KEYS, epsilon=1.0, store=tmp_path, protect_from="server", set={"sampling": sampling})["epsilon"]
    assert 0.97 < alone["server"] <= 1.0
    assert alone["outsider"] < alone["peer"] < alone["server"]


def test_a_run_costs_what_its_plan_says_for_every_observer(tmp_path: Path) -> None:
    for method in VARIANTS.values():
        prepared = Case(method, tmp_path).prepared(epsilon=2.0, noise_multiplier=None, delta=DELTA)
        once = OneRound(prepared, tmp_path, rounds=3)
        plan, spent = planned(prepared), spending_of_ledger(once.ledger)
        assert within(spent, plan)
        assert within(plan, spent)


def test_clients_with_smaller_budgets_enter_more_rarely(tmp_path: Path) -> None:
    result = run(**KEYS, epsilon=4.0, store=tmp_path, set={"budgets": "1,4,4,4,4,2", "sampling": 0.5, "counts": 0.01})
    assert 0.97 < result["epsilon_clients"]["min"] <= 1.0
    assert 3.88 < result["epsilon_clients"]["max"] <= 4.0


def test_a_limit_over_runs_is_held_against_the_protected_observer(tmp_path: Path) -> None:
    """Two runs of epsilon 1 at full batches come to mu sqrt(2); the server's figures are larger and no obstacle."""
    keys = KEYS | {"epsilon": 1.0, "store": tmp_path, "budget_over_runs": 1.6}
    first = run(**keys)
    run(**keys | {"seed": 1})
    store = Store(tmp_path)
    total = over_runs(store, store.all()[0].people, store.all()[0].unit, DELTA)
    store.close()
    (recipe,) = first["spent"]["recipes"]
    for place, view in enumerate(VIEWS):
        met = tuple((one[0], one[1 + place], 2 * one[-1]) for one in recipe)
        assert total["epsilon"][view] == pytest.approx(record_epsilon(met, DELTA), rel=1e-6)
    assert total["epsilon"]["outsider"] < 1.6 < total["epsilon"]["server"]
    with pytest.raises(UserError, match=r"above the 1\.6 of budget_over_runs"):
        run(**keys | {"seed": 2})


def test_single_messages_cannot_be_read(tmp_path: Path) -> None:
    class Curious(DPFedSGD):
        """Reads what one client sent."""

        def run(self, fed: Any, model: Tensor) -> None:
            server = fed.state(model=model, served=model)
            for _ in fed.rounds(server):
                message = {"global": model, "clip": 1.0, "weights": torch.ones(CLASSES)}
                fed.ask(fed.sample(), self.local, message).rows("gradient")

    with pytest.raises(ReleaseError, match="a method may read its mean only"):
        traced(Curious(**PLAIN), tmp_path, 1)


def test_too_few_clients_are_not_asked(tmp_path: Path) -> None:
    class Lonely(DPFedSGD):
        """Asks two of four clients."""

        def run(self, fed: Any, model: Tensor) -> None:
            server = fed.state(model=model, served=model)
            for _ in fed.rounds(server):
                message = {"global": model, "clip": 1.0, "weights": torch.ones(CLASSES)}
                fed.ask([0, 1], self.local, message)

    with pytest.raises(UserError, match="shared out over at least 4"):
        traced(Lonely(**PLAIN), tmp_path, 1)


def test_nobody_is_asked_more_often_than_was_planned(tmp_path: Path) -> None:
    class Greedy(DPFedSGD):
        """Asks everybody twice in a round, or counts in each."""

        again: str = "local"

        def run(self, fed: Any, model: Tensor) -> None:
            server = fed.state(model=model, served=model)
            message = {"global": model, "clip": 1.0, "weights": torch.ones(CLASSES), "groups": CLASSES}
            for _ in fed.rounds(server):
                for _ in range(2):
                    fed.ask(fed.sample(), getattr(self, self.again), message)

    class Counting(Greedy):
        """Counts twice."""

        again: str = "count"

    with pytest.raises(UserError, match="more often than the 1 times"):
        traced(Greedy(served="last"), tmp_path, 1)
    with pytest.raises(UserError, match="for labels more often than the 1 times"):
        traced(Counting(served="last"), tmp_path, 3)
