"""Client-level rivals of the five: what they are without their own part, their formulas, and their true epsilons."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import QUICK, refused
from torch import nn

from sordino.learning.network import Learner, Records
from sordino.learning.parameters import flatten
from sordino.method import Method
from sordino.methods.blur_lus import BlurLus
from sordino.methods.dp_fedavg import DPFedAvg
from sordino.methods.dp_fedsam import DPFedSAM
from sordino.methods.fedaddp import FedADDP
from sordino.methods.nbafl import NbAFL
from sordino.methods.ppsgd import PPSGD, head
from sordino.parts.masks import scale_to_unit
from sordino.privacy.accounting.gaussian import epsilon_of
from sordino.tasks import Classification
from sordino.testing.case import CLIENTS, ROUNDS, Case, OneRound
from sordino.util.formatting import round_up

NOTHING_OF_THEIR_OWN = {
    "blur-lus": BlurLus(strength=0.0, keep=1.0),
    "dp-fedsam": DPFedSAM(rho=0.0),
    "fedaddp": FedADDP(tau=2.0, lambda1=0.0, lambda2=0.0, evenness=1.0),
    "nbafl": NbAFL(mu=0.0),
}


def client(count: int = 12) -> tuple[Records, torch.Tensor]:
    torch.manual_seed(0)
    learner = Learner(
        nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), Classification.numbered(3)
    )
    x = torch.randn(count, 4)
    return Records(x, (x.sum(dim=1) > 0).long(), learner, seed=1), flatten(learner.module)


def answered(method: Method, received: torch.Tensor, data: Records, clip: float = 0.5, **me: torch.Tensor) -> Any:
    remembered = method.memory(received) | {"participations": torch.tensor(0.0)} | me
    return method.local({"global": received, "clip": clip}, remembered, data)  # type: ignore[attr-defined]


def models_of(method: Method, folder: Path, engine: str, like: Method | None = None, **keys: Any) -> dict[str, Any]:
    """The models of a run, with the noise of a run of the method `like`; `keys` are hyper-parameters."""
    prepared = Case(method, folder).prepared(engine=engine)
    if like is not None:
        prepared = dataclasses.replace(prepared, identity=Case(like, folder).prepared(engine=engine).identity)
    prepared = dataclasses.replace(prepared, method=dataclasses.replace(prepared.method, **keys))
    return Case(method, folder).finished(prepared, folder / type(method).__name__)[1]


@pytest.mark.parametrize("engine", ["stacked", "one-by-one"])
@pytest.mark.parametrize("name", NOTHING_OF_THEIR_OWN)
def test_with_nothing_of_its_own_it_is_dp_fedavg(name: str, engine: str, tmp_path: Path) -> None:
    """To the bit, over a whole run with noise. FedADDP takes pulls of zero into each step, which stacked clients round
    differently."""
    method = NOTHING_OF_THEIR_OWN[name]
    ours, plain = models_of(method, tmp_path, engine), models_of(DPFedAvg(), tmp_path, engine, like=method)
    assert ours.keys() == plain.keys()
    for key in plain:
        if name == "fedaddp" and engine == "stacked":
            assert torch.allclose(ours[key], plain[key], atol=1e-5)
        else:
            assert torch.equal(ours[key], plain[key])


@pytest.mark.parametrize("engine", ["stacked", "one-by-one"])
def test_ppsgd_without_a_personal_part_is_one_step_of_dp_fedavg(engine: str, tmp_path: Path) -> None:
    method, keys = PPSGD(personal_rate=0.0), {"rate": 0.3, "batch": 1000}
    ours = models_of(method, tmp_path, engine, **keys)
    plain = models_of(DPFedAvg(), tmp_path, engine, like=method, **keys)
    assert torch.equal(ours["global"], plain["global"])


def test_each_has_a_part_of_its_own() -> None:
    data, model = client()
    plain = answered(DPFedAvg(), model, data).send["update"]
    for method in (BlurLus(clip=0.01), DPFedSAM(), FedADDP(), NbAFL(), PPSGD()):
        own = answered(method, model, client()[0], clip=0.01).send["update"]
        assert not torch.allclose(own, plain, atol=1e-4), method


def test_blur_holds_the_update_near_the_threshold() -> None:
    keys: dict[str, Any] = {"epochs": 30, "rate": 0.3, "keep": 1.0}
    lengths = [
        float(answered(BlurLus(strength=strength, **keys), client()[1], client()[0]).send["update"].norm())
        for strength in (0.0, 0.5, 3.0)
    ]
    assert lengths[0] > lengths[1] > lengths[2] > 0.5
    assert lengths[2] < 1.0 < lengths[0]


def test_blurs_second_step_by_hand() -> None:
    """The first ends at twice the threshold: there the penalty's gradient is as long as strength times the threshold.
    Half of the entries leave."""
    data, model = client()
    batch = next(iter(data.batches(12)))
    way = -0.3 * data.gradient(model.clone(), batch)
    bound = float(way.norm()) / 2
    pull = 4.0 * bound * way / way.norm()
    second = model + way - 0.3 * (data.gradient(model + way, batch) + pull)
    method = BlurLus(strength=4.0, keep=0.5, epochs=2, rate=0.3, batch=12)
    found = answered(method, model, data, clip=bound)
    assert torch.allclose(found.keep["model"], second, atol=1e-6)
    kept = found.send["update"] != 0
    assert int(kept.sum()) == round(len(model) / 2)
    assert torch.allclose(found.send["update"][kept], (second - model)[kept], atol=1e-6)


def test_within_the_threshold_blur_pulls_nowhere() -> None:
    data, model = client()
    keys: dict[str, Any] = {"epochs": 2, "keep": 1.0, "batch": 50}
    free = answered(BlurLus(strength=0.0, **keys), model, data, clip=100.0).send["update"]
    held = answered(BlurLus(strength=5.0, **keys), model, client()[0], clip=100.0).send["update"]
    assert torch.equal(free, held)


def test_lus_keeps_the_largest_entries_as_they_are() -> None:
    update = torch.tensor([0.1, -5.0, 0.0, 2.0, -0.3, 1.0])
    assert BlurLus(keep=0.5).sparse(update).tolist() == pytest.approx([0.0, -5.0, 0.0, 2.0, 0.0, 1.0])
    assert BlurLus(keep=0.001).sparse(update).tolist() == pytest.approx([0.0, -5.0, 0.0, 0.0, 0.0, 0.0])
    assert torch.equal(BlurLus(keep=1.0).sparse(update), update)


def test_uphill_by_hand() -> None:
    model, gradient = torch.tensor([1.0, -2.0]), torch.tensor([3.0, 4.0])
    assert DPFedSAM(rho=0.5).uphill(model, gradient).tolist() == pytest.approx([1.3, -1.6])
    # |w| g = (3, 8), of length sqrt(73); w^2 g = (3, 16)
    expected = [1 + 1.5 / math.sqrt(73), -2 + 8 / math.sqrt(73)]
    assert DPFedSAM(rho=0.5, adaptive=True).uphill(model, gradient).tolist() == pytest.approx(expected)
    assert torch.equal(DPFedSAM().uphill(model, torch.zeros(2)), model)


def test_the_head_is_the_last_layer() -> None:
    data, _ = client()
    assert head(data.layout).tolist() == [0.0] * 25 + [1.0] * 18


def test_ppsgd_keeps_a_personal_part_of_the_head() -> None:
    data, model = client()
    theta = head(data.layout) * torch.linspace(-1.0, 1.0, len(model))
    result = answered(PPSGD(rate=0.7), model, data, theta=theta)
    assert torch.equal(result.start, model + theta)
    assert torch.equal(result.keep["theta"][:25], torch.zeros(25))
    assert torch.allclose(result.keep["model"], model + result.keep["theta"], atol=1e-7)
    assert (result.keep["theta"] != theta)[25:].any()
    batch = next(iter(data.batches(12)))  # what leaves: the shared gradient at the round's start
    assert torch.allclose(result.send["update"], -0.7 * data.gradient(model + theta, batch), atol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_ppsgds_two_rates(optimizer: Any) -> None:
    """What leaves is a gradient step whatever the optimizer, which is that of the personal part: Adam's first step is
    as long as the rate, along each gradient's sign."""
    data, model = client()
    mask = head(data.layout)
    theta = mask * torch.linspace(-1.0, 1.0, len(model))
    slope = data.gradient(model + theta, next(iter(data.batches(12))))
    method = PPSGD(rate=0.7, personal_rate=0.2, epochs=1, batch=12, optimizer=optimizer)
    result = answered(method, model, data, theta=theta)
    assert torch.allclose(result.send["update"], -0.7 * slope, atol=1e-6)
    step = slope if optimizer == "sgd" else slope.sign()
    assert torch.allclose(result.keep["theta"], theta - 0.2 * mask * step, atol=1e-4)


def test_axes_of_fedaddp() -> None:
    model = torch.tensor([3.0, -4.0, 0.0, 0.0])  # root mean square 2.5
    axes = FedADDP(evenness=0.5).axes(model)
    assert float(axes.square().mean()) == pytest.approx(1.0)
    assert (axes / axes[2]).tolist() == pytest.approx([1 + 3 / 2.5, 1 + 4 / 2.5, 1.0, 1.0])
    assert FedADDP(evenness=1.0).axes(model).tolist() == [1.0] * 4
    assert torch.isfinite(FedADDP().axes(torch.zeros(4))).all()


def test_fedaddp_merges_by_fisher_information_and_sends_by_axes() -> None:
    data, model = client()
    own = model + 1
    method = FedADDP(epochs=1)
    result = answered(method, model, data, model=own, participations=torch.tensor(2.0))
    personal = scale_to_unit(data.fisher(own), data.layout) > 0.4
    assert 0 < personal.sum() < len(personal)
    assert torch.equal(result.start, torch.where(personal, own, model))
    change = result.keep["model"] - result.start
    assert torch.allclose(result.send["update"] * method.axes(model), change, atol=1e-6)


def test_fedaddp_merges_nothing_before_a_client_has_taken_part() -> None:
    data, model = client()
    assert torch.equal(answered(FedADDP(), model, data, model=model + 1).start, model)


@pytest.mark.parametrize("variant", ["sound", "paper"])
@pytest.mark.parametrize("outside", [True, False])
def test_fedaddp_holds_the_personal_and_draws_the_shared_to_their_bound(variant: Any, outside: bool) -> None:
    """The second of two steps by hand, after a first in which nothing pulls yet. The bound is a tenth below or above
    where the shared entries then are; as published it is beta times the sum of the norms of the own tensors."""
    data, model = client()
    own = model + 1
    personal = (scale_to_unit(data.fisher(own), data.layout) > 0.4).float()
    start, batch = torch.where(personal > 0, own, model), next(iter(data.batches(12)))
    first = start - 0.3 * data.gradient(start.clone(), batch)
    held, drawn = personal * (first - start), (1 - personal) * (first - start)
    bound = float(drawn.norm()) * (0.9 if outside else 1.1)
    norms = sum(float(piece.norm()) for piece in data.layout.tensors(own))
    method = FedADDP(variant=variant, lambda1=0.6, lambda2=0.8, beta=bound / norms, epochs=2, rate=0.3, batch=12)
    result = answered(method, model, data, clip=bound, model=own, participations=torch.tensor(2.0))
    pull = 0.3 * held / held.norm() + (0.4 if outside else -0.4) * drawn / drawn.norm()
    second = first - 0.3 * (data.gradient(first.clone(), batch) + pull)
    assert torch.allclose(result.keep["model"], second, atol=1e-6)


def test_fedaddps_published_box() -> None:
    data, model = client()
    result = answered(FedADDP(variant="paper", epochs=20), model, data)
    trained, bounds = result.keep["model"], result.send["bounds"]
    assert torch.allclose(bounds, 0.05 * trained.abs())
    moved = 2 * bounds * result.send["update"]
    assert torch.allclose(moved, torch.minimum(torch.maximum(trained - model, -bounds), bounds), atol=1e-6)


def test_fedaddps_published_average_is_that_of_bounded_moves(tmp_path: Path) -> None:
    """Of each coordinate by a twentieth of its weight at the most."""
    run = OneRound(Case(FedADDP(variant="paper"), tmp_path).prepared(noise_multiplier=1e-9), tmp_path)
    initial = run.asked[0].question.message["global"]
    trained = run.memory["model"]
    bounds = 0.05 * trained.abs()
    moved = torch.minimum(torch.maximum(trained - initial, -bounds), bounds).mean(dim=0)
    assert torch.allclose(run.state["model"], initial + moved, atol=1e-6)


# methods page, section 7: T = 20, delta = 0.1
@pytest.mark.parametrize(("epsilon", "multiplier"), [(2, 5.95), (4, 3.43), (6, 2.33), (8, 1.87), (16, 1.21)])
def test_fedaddps_published_noise(epsilon: float, multiplier: float) -> None:
    assert FedADDP().published_multiplier(epsilon, 0.1, 20, 0) == pytest.approx(multiplier, abs=0.006)


def test_fedaddps_noise_is_in_proportion_to_the_axes(tmp_path: Path) -> None:
    """With next to nothing learned, the global model moves by z C m_j / n in each round."""
    z, clip, rounds = 0.5, 0.01, 8
    case = Case(FedADDP(rate=1e-12, clip=clip, evenness=0.001, lambda1=0.0, lambda2=0.0), tmp_path)
    prepared = case.prepared(rounds=rounds, noise_multiplier=z)
    _, models = case.finished(prepared, tmp_path)
    axes = FedADDP(evenness=0.001).axes(prepared.initial)
    moved = ((models["global"] - prepared.initial) / (z * clip / CLIENTS * math.sqrt(rounds) * axes)).double()
    assert float(moved.square().mean()) == pytest.approx(1.0, abs=5 * math.sqrt(2 / len(moved)))


def test_fedaddps_true_epsilon_is_infinite(tmp_path: Path) -> None:
    case = Case(FedADDP(variant="paper"), tmp_path)
    prepared = case.prepared(noise_multiplier=None, epsilon=8, delta=1e-5)
    summary, _ = case.finished(prepared, tmp_path)
    assert prepared.budget.multiplier == FedADDP().published_multiplier(8, 1e-5, ROUNDS, 0)
    assert set(summary["epsilon"].values()) == {None}
    assert any("own weights" in reason for reason in summary["not_covered"])
    # Were the bounds public: each of d coordinates moves by q_j, under noise of deviation sqrt(M) sigma_0 2 q_j in the
    # sum. The server multiplies each message by its own bounds: it reads single ones, of which each has a share.
    layout, sigma = prepared.learner.layout, prepared.budget.multiplier
    mu = math.sqrt(layout.size * ROUNDS * CLIENTS) / (2 * math.sqrt(len(layout.sizes)) * sigma)
    assert any(f"{round_up(epsilon_of(mu, 1e-5))} for the outsider" in note for note in summary["notes"])


def test_nbafl_is_held_near_the_received_model() -> None:
    keys: dict[str, Any] = {"epochs": 30, "rate": 0.3}
    free, held = (answered(NbAFL(mu=mu, **keys), *reversed(client())).send["update"] for mu in (0.0, 0.5))
    assert float(held.norm()) < 0.7 * float(free.norm())
    data, model = client()
    batch = next(
        iter(data.batches(12))
    )  # the second step feels the pull of the first: w2 = w1 - r (g(w1) + mu (w1 - w0))
    first = model - 0.3 * data.gradient(model, batch)
    second = first - 0.3 * (data.gradient(first, batch) + 0.5 * (first - model))
    twice = answered(NbAFL(mu=0.5, epochs=2, rate=0.3, batch=50), model, data)
    assert torch.allclose(twice.keep["model"], second, atol=1e-6)


def test_nbafls_published_weights_lie_in_the_ball() -> None:
    data, model = client()
    result = answered(NbAFL(variant="paper", ball=0.4), model, data)
    upload = 0.4 * model / model.norm() + result.send["update"]
    assert float(upload.norm()) == pytest.approx(0.4, rel=1e-5)
    assert torch.allclose(upload / upload.norm(), result.keep["model"] / result.keep["model"].norm(), atol=1e-6)


def test_nbafls_published_average_is_that_of_weights_however_far_the_received_ones_lie(tmp_path: Path) -> None:
    """A received model of many times the ball's radius is left in one round."""
    prepared = Case(NbAFL(variant="paper", ball=0.1), tmp_path).prepared(noise_multiplier=1e-9)
    assert prepared.initial.norm() > 10 * 0.1
    run = OneRound(prepared, tmp_path)
    trained = run.memory["model"]
    expected = (0.1 * trained / trained.norm(dim=1, keepdim=True)).mean(dim=0)
    assert torch.allclose(run.state["model"], expected, atol=1e-6)
    assert float(run.asked[0].question.message["clip"]) == pytest.approx(0.2), "from one end of the ball to the other"


def test_nbafls_published_noise_is_that_of_one_record_at_the_least() -> None:
    """c T / (m epsilon) with m = 1, where the share of the client with fewest would be half a record."""
    expected = math.sqrt(2 * math.log(1.25 / 1e-5)) * 10 / 8
    assert NbAFL(smallest=0.01).published_multiplier(8, 1e-5, 10, 50) == pytest.approx(expected)


def test_nbafls_true_epsilon_is_that_of_the_noise_it_publishes(tmp_path: Path) -> None:
    """sigma_U = c T (2 C / m) / epsilon, over the 2 C by which a client's model may move."""
    case = Case(NbAFL(variant="paper", smallest=0.002), tmp_path)
    prepared = case.prepared(noise_multiplier=None, epsilon=8, delta=1e-5)
    fewest = 0.002 * int(prepared.data.train.sizes.sum())
    deviation = math.sqrt(2 * math.log(1.25 / 1e-5)) * ROUNDS * (2 * 2.0 / fewest) / 8
    summary, _ = case.finished(prepared, tmp_path)
    for view, shares in {"outsider": CLIENTS, "peer": CLIENTS - 1, "server": 1}.items():
        mu = 2 * 2.0 / deviation * math.sqrt(ROUNDS * CLIENTS / shares)
        assert summary["epsilon"][view] == pytest.approx(epsilon_of(mu, 1e-5), rel=1e-9)
    assert summary["epsilon"]["outsider"] != pytest.approx(8, rel=0.05)


@pytest.mark.parametrize("kind", [NbAFL, FedADDP])
def test_who_the_published_noise_is_meant_for_is_told_before_a_run(kind: type[Method], tmp_path: Path) -> None:
    published, sound = (Case(kind(variant=variant), tmp_path).prepared().notes for variant in ("paper", "sound"))
    assert any("only with protect_from = server" in note for note in published)
    assert not any("protect_from" in note for note in sound)


def test_nbafls_messages_carry_all_of_the_published_noise_where_the_server_is_protected_from(tmp_path: Path) -> None:
    """What the server pays is then that of sigma_U on the 2 C by which a message may differ, in each round."""
    case = Case(NbAFL(variant="paper"), tmp_path)
    prepared = case.prepared(noise_multiplier=None, epsilon=8, delta=1e-5, protect_from="server")
    summary, _ = case.finished(prepared, tmp_path)
    fewest = int(prepared.data.train.sizes.sum()) / CLIENTS
    deviation = math.sqrt(2 * math.log(1.25 / 1e-5)) * ROUNDS * (2 * 2.0 / fewest) / 8
    mu = 2 * 2.0 / deviation * math.sqrt(ROUNDS)
    assert summary["epsilon"]["server"] == pytest.approx(epsilon_of(mu, 1e-5), rel=1e-9)


@pytest.mark.parametrize("rule", ["quantile", "median", "layer-wise", "ppo"])
@pytest.mark.parametrize("name", ["dp-fedsam", "fedaddp", "nbafl"])
def test_what_was_published_with_a_threshold_that_stays_takes_no_other(name: str, rule: str) -> None:
    chosen = ("run", "--method", name, "--set", f"clipping={rule}", *QUICK)
    assert "constant threshold" in refused(*chosen, "--variant", "paper")


def test_dp_fedsams_true_epsilon_counts_every_tensor(tmp_path: Path) -> None:
    """Four tensors are each clipped to C with noise for C: twice the mu that is published."""
    case = Case(DPFedSAM(variant="paper"), tmp_path)
    prepared = case.prepared(noise_multiplier=None, epsilon=8, delta=1e-5, model="mlp")
    assert len(prepared.learner.layout.sizes) == 4
    summary, _ = case.finished(prepared, tmp_path)
    mu = 2 * math.sqrt(ROUNDS) / prepared.budget.multiplier
    assert epsilon_of(mu / 2, 1e-5) == pytest.approx(8)
    assert summary["epsilon"]["outsider"] == pytest.approx(epsilon_of(mu, 1e-5), rel=1e-9)
