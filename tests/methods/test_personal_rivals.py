"""FedProx, FedPer, FedRep, Ditto, APFL, pFedSD and MR-MTL: one step by hand, and what each is at its ends.

Where one method is another at an end of its hyper-parameters, both are run whole, with the same noise, and must agree
to the last bit.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import command, refused
from torch import Tensor, nn
from torch.nn import functional
from whole_runs import Ended

import sordino
from sordino.data import ClientData
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import Prepared, prepare
from sordino.learning.network import Learner, Records
from sordino.learning.parameters import flatten
from sordino.method import Method
from sordino.methods.apfl import APFL
from sordino.methods.ditto import Ditto
from sordino.methods.ditto_record import DittoRecord
from sordino.methods.dp_fedavg import DPFedAvg
from sordino.methods.dp_fedavg_record import DPFedAvgRecord
from sordino.methods.fedper import FedPer
from sordino.methods.fedper_record import FedPerRecord
from sordino.methods.fedprox import FedProx
from sordino.methods.fedprox_record import FedProxRecord
from sordino.methods.fedrep import FedRep
from sordino.methods.local import Local
from sordino.methods.mr_mtl import MRMTL
from sordino.methods.mr_mtl_record import MRMTLRecord
from sordino.methods.pfedsd import PFedSD
from sordino.tasks import Classification
from sordino.testing.case import CLIENTS, Case

ENGINES = ["one-by-one", "stacked"]
RATE = 0.1


# Whole runs.


def prepared(method: Method, folder: Path, **keys: Any) -> Prepared:
    """A run of three rounds whose randomness, noise included, is that of every other run of these tests."""
    usual = {"clients": CLIENTS, "partition": "dirichlet:1", "model": "logistic", "rounds": 3, "workers": 1}
    usual |= {"noise_multiplier": 2.0, "store": folder, "method": "local", "compiled": "never"}
    made = prepare(Experiment.make(usual | keys), method=dataclasses.replace(method, epochs=2, batch=60))
    return dataclasses.replace(made, identity="the same for all")


def finished(made: Prepared, folder: Path) -> dict[str, Tensor]:
    """The models of a run, `global` and `personal`."""
    return Case(made.method, folder).finished(made, folder / str(id(made)))[1]


def models(method: Method, folder: Path, **keys: Any) -> dict[str, Tensor]:
    return finished(prepared(method, folder, **keys), folder)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "method",
    [FedProx(mu=0), PFedSD(weight=0), FedPer(personal_layers=0), FedRep(personal_layers=0), MRMTL(strength=1e18)],
)
def test_at_one_end_it_is_dp_fedavg(method: Method, engine: str, tmp_path: Path) -> None:
    ours, plain = (models(each, tmp_path, engine=engine) for each in (method, DPFedAvg()))
    assert torch.equal(ours["global"], plain["global"])
    assert torch.equal(ours["personal"], plain["personal"])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", [Ditto(strength=0), MRMTL(strength=0), MRMTL(strength=0, penalty="step")])
def test_at_the_other_end_it_is_local_training(method: Method, engine: str, tmp_path: Path) -> None:
    keys = {"engine": engine, "participation": 0.5, "rounds": 5}
    ours, local = (models(each, tmp_path, **keys) for each in (method, Local()))
    assert torch.equal(ours["personal"], local["personal"])


def test_a_mixture_of_the_own_model_alone_is_local_training(tmp_path: Path) -> None:
    alone = APFL(alpha=1)
    ours, local = (models(each, tmp_path, engine="one-by-one") for each in (alone, Local()))
    assert torch.equal(ours["personal"], local["personal"])
    ours, local = (models(each, tmp_path, engine="stacked") for each in (alone, Local()))
    assert torch.allclose(ours["personal"], local["personal"], atol=1e-5)


def test_a_mixture_of_the_global_model_alone_is_dp_fedavg(tmp_path: Path) -> None:
    ours, plain = (models(each, tmp_path, engine="one-by-one") for each in (APFL(alpha=0), DPFedAvg()))
    assert torch.equal(ours["personal"], plain["personal"])


def test_a_learned_weight_is_the_same_for_stacked_clients(tmp_path: Path) -> None:
    alone, stacked = (models(APFL(learned=True), tmp_path, engine=engine) for engine in ENGINES)
    assert torch.allclose(alone["personal"], stacked["personal"], atol=1e-4)


@pytest.mark.parametrize("method", [Ditto(strength=0.5), APFL(learned=True)])
def test_a_personal_model_that_never_leaves_does_not_move_the_global_one(method: Method, tmp_path: Path) -> None:
    ours, plain = (models(each, tmp_path, engine="one-by-one") for each in (method, DPFedAvg()))
    assert torch.equal(ours["global"], plain["global"])
    assert not torch.allclose(ours["personal"], plain["personal"], atol=1e-2)


RECORD: dict[str, Any] = {"partition": "iid", "clients": 3, "rounds": 2, "noise_multiplier": 1.0}


@pytest.mark.parametrize(
    "method",
    [FedProxRecord(mu=0), FedPerRecord(personal_layers=0), MRMTLRecord(strength=1e18), DittoRecord(personal_share=0)],
)
def test_at_one_end_it_is_dp_fedavg_of_records(method: Method, tmp_path: Path) -> None:
    ours, plain = (models(each, tmp_path, **RECORD) for each in (method, DPFedAvgRecord()))
    assert torch.equal(ours["global"], plain["global"])
    if not isinstance(method, DittoRecord):  # its personal model has no steps then
        assert torch.equal(ours["personal"], plain["personal"])


ALONE = [MRMTLRecord(strength=0), MRMTLRecord(strength=0, penalty="step"), DittoRecord(strength=0, personal_share=1)]


@pytest.mark.parametrize("method", ALONE)
def test_at_the_other_end_it_is_local_training_of_records(method: Method, tmp_path: Path) -> None:
    """Three rounds of two steps on all records with next to no noise, against clipped gradients of the logistic model
    from its formula: the residual times the record, and its length is the product of the lengths of both."""
    every = dataclasses.replace(method, epochs=2, batch=10_000, rate=RATE, clip=0.7)
    run = Ended(every, tmp_path, partition="iid", noise_multiplier=1e-9)
    for client, found in enumerate(run.memory["model"]):
        x, y = run.prepared.data.train.part(client)
        seen = functional.pad(x.flatten(1), (0, 1), value=1.0)
        weight, bias = run.prepared.learner.layout.tensors(run.prepared.initial)
        model = torch.cat([weight.reshape(10, -1), bias.unsqueeze(1)], dim=1)
        for _ in range(3 * 2):
            residual = (seen @ model.T).softmax(1) - functional.one_hot(y, 10)
            lengths = residual.norm(dim=1) * seen.norm(dim=1)
            assert (lengths > 0.7).any()
            model = model - RATE * (residual * (0.7 / lengths).clamp(max=1).unsqueeze(1)).T @ seen / len(y)
        assert torch.allclose(found, torch.cat([model[:, :-1].flatten(), model[:, -1]]), atol=1e-5)


@pytest.mark.parametrize("method", ALONE)
def test_whoever_trains_alone_knows_of_no_other_clients_records(method: Method, tmp_path: Path) -> None:
    """The noise is the same whichever method trains: models agree to the bit, but for the client whose records do
    not."""
    made, other = prepared(method, tmp_path, **RECORD), prepared(MRMTLRecord(strength=0), tmp_path, **RECORD)
    first = made.data.clients[0]
    changed = ClientData(first.name, -first.x, first.y, first.x_test, first.y_test)
    data = dataclasses.replace(made.data, clients=(changed, *made.data.clients[1:]))
    ours, elsewhere = finished(made, tmp_path), finished(dataclasses.replace(other, data=data), tmp_path)
    assert torch.equal(ours["personal"][1:], elsewhere["personal"][1:])
    assert not torch.equal(ours["personal"][0], elsewhere["personal"][0])


def test_between_the_ends_it_is_neither(tmp_path: Path) -> None:
    """The identities are not those of a method that forgot its hyper-parameter."""
    plain = models(DPFedAvgRecord(), tmp_path, **RECORD)
    for method in (FedProxRecord(mu=1), FedPerRecord(), MRMTLRecord(), MRMTLRecord(penalty="step"), DittoRecord()):
        assert not torch.allclose(models(method, tmp_path, **RECORD)["personal"], plain["personal"], atol=1e-3)


@pytest.mark.parametrize("method", [FedPer(), FedRep(head_epochs=2), FedPerRecord()])
def test_the_head_never_leaves(method: Method, tmp_path: Path) -> None:
    """The server's head stays as it began, without noise; every client has one of its own, and they share a body."""
    made = prepared(method, tmp_path, model="mlp", **{"partition": "iid"} if method.unit == "record" else {})
    found, head = finished(made, tmp_path), made.learner.layout.layers[-1]
    assert torch.equal(found["global"][-head:], made.initial[-head:])
    assert not torch.isclose(found["global"][:-head], made.initial[:-head], atol=1e-6).any()
    own = found["personal"][:, -head:]
    assert len(own.unique(dim=0)) == CLIENTS
    assert (own != made.initial[-head:]).any(dim=1).all()


@pytest.mark.parametrize(
    ("method", "clipping"),
    [
        *[("fedper", rule) for rule in ("fixed", "quantile", "median", "layer-wise", "ppo")],
        *[("fedrep", "layer-wise"), ("apfl", "ppo"), ("ditto", "median"), ("mr-mtl", "quantile")],
        *[("fedprox", "layer-wise"), ("pfedsd", "quantile")],
    ],
)
def test_thresholds_of_all_kinds(method: str, clipping: str, tmp_path: Path) -> None:
    settings = {"clipping": clipping, "epochs": 1, "batch": 100}
    found = sordino.run(method=method, clients=5, rounds=3, model="mlp", workers=1, store=tmp_path, set=settings)
    assert found["epsilon"]["outsider"] == (None if clipping == "median" else pytest.approx(8))


# One step, by hand.


def client() -> tuple[Records, Tensor, Tensor]:
    """Twelve records in one batch, a model and another one; two layers of 15 and 8 parameters."""
    torch.manual_seed(0)
    learner = Learner(
        nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), Classification.numbered(2)
    )
    x = torch.randn(12, 4)
    model = flatten(learner.module)
    return Records(x, (x.sum(dim=1) > 0).long(), learner, seed=1), model, model + 0.3 * torch.randn(len(model))


def gradient(data: Records, model: Tensor) -> Tensor:
    """Of the mean loss over all records."""
    return data.gradient(model.clone(), next(data.afresh().batches(12))).clone()


def stepped(method: Method, own: Tensor, received: Tensor, data: Records) -> Any:
    me = method.memory(own) | {"participations": torch.tensor(2.0)}
    message = {"global": received, "clip": 0.5, "shared": (torch.arange(len(own)) < 15).float()}
    return dataclasses.replace(method, epochs=1, batch=12, rate=RATE).local(message, me, data)


def test_fedprox_is_held_near_what_it_received() -> None:
    data, received, own = client()
    method = dataclasses.replace(FedProx(mu=2), epochs=2, batch=12, rate=RATE)
    found = method.local({"global": received, "clip": 0.5}, {"model": own, "participations": torch.tensor(2.0)}, data)
    first = received - RATE * gradient(data, received)
    second = first - RATE * (gradient(data, first) + 2 * (first - received))
    assert torch.allclose(found.keep["model"], second, atol=1e-6)


def test_dittos_personal_model_is_held_near_what_it_received() -> None:
    data, received, own = client()
    found = stepped(Ditto(strength=0.7), own, received, data)
    assert torch.allclose(found.send["update"], -RATE * gradient(data, received), atol=1e-6)
    assert torch.allclose(found.keep["model"], own - RATE * (gradient(data, own) + 0.7 * (own - received)), atol=1e-6)


@pytest.mark.parametrize("penalty", ["round", "step"])
def test_mr_mtl_is_drawn_to_the_mean_and_sends_its_way_from_it(penalty: Any) -> None:
    data, mean, own = client()
    found = stepped(MRMTL(strength=3, penalty=penalty), own, mean, data)
    if penalty == "round":
        start = mean + (own - mean) / 4
        expected = start - RATE * gradient(data, start)
    else:
        expected = own - RATE * (gradient(data, own) + 3 * (own - mean))
    assert torch.allclose(found.keep["model"], expected, atol=1e-6)
    assert torch.allclose(found.send["update"], expected - mean, atol=1e-6)


class Slope:
    """Records whose gradients carry no noise and are the same everywhere; two steps a round."""

    steps = 2

    def gradient(self, flat: Tensor) -> Tensor:
        return torch.tensor([1.0, -1.0])


def stepped_on_slope(method: Method) -> Any:
    """A round of the client whose own model is (5, -1) and that received (1, 2)."""
    me = {"model": torch.tensor([5.0, -1.0]), "participations": torch.tensor(0.0)}
    message = {"global": torch.tensor([1.0, 2.0]), "clip": 1.0, "shared": torch.tensor([1.0, 0.0])}
    return dataclasses.replace(method, rate=RATE).local(message, me, Slope())  # type: ignore[attr-defined]


def test_fedprox_of_records_is_held_near_what_it_received() -> None:
    """(1, 2) to (0.9, 2.1); there the pull is 2 (-0.1, 0.1), and with the gradient (0.8, -0.8)."""
    found = stepped_on_slope(FedProxRecord(mu=2))
    assert found.keep["model"].tolist() == pytest.approx([0.82, 2.18])
    assert found.send["update"].tolist() == pytest.approx([-0.18, 0.18])


def test_fedper_of_records_trains_everything_and_sends_the_body() -> None:
    """From the received body, 1, and the own head, -1."""
    found = stepped_on_slope(FedPerRecord())
    assert found.start.tolist() == [1.0, -1.0]
    assert found.keep["model"].tolist() == pytest.approx([0.8, -0.8])
    assert found.send["update"].tolist() == pytest.approx([-0.2, 0.0])


def test_dittos_personal_model_of_records_is_held_near_what_it_received() -> None:
    """(5, -1) with the pull 0.5 (4, -3) and the gradient moves by -0.1 (3, -2.5)."""
    found = stepped_on_slope(DittoRecord(strength=0.5))
    assert found.keep["model"].tolist() == pytest.approx([4.7, -0.75])
    assert found.send["update"].tolist() == pytest.approx([-0.1, 0.1])


def test_mr_mtl_of_records_is_drawn_to_the_mean_and_sends_its_way_from_it() -> None:
    """At strength 3 it starts a quarter of the way from the mean, (2, 1.25), or is pulled by 3 (4, -3) and then by
    3 (4 - 1.3, -3 + 1)."""
    found = stepped_on_slope(MRMTLRecord(strength=3))
    assert found.start.tolist() == pytest.approx([2.0, 1.25])
    assert found.keep["model"].tolist() == pytest.approx([1.8, 1.45])
    assert found.send["update"].tolist() == pytest.approx([0.8, -0.55])
    found = stepped_on_slope(MRMTLRecord(strength=3, penalty="step"))
    assert found.keep["model"].tolist() == pytest.approx([2.79, 0.7])
    assert found.send["update"].tolist() == pytest.approx([1.79, -1.3])


@pytest.mark.parametrize("learned", [False, True])
def test_apfl_trains_both_models_and_the_mixtures_weight(learned: bool) -> None:
    data, shared, own = client()
    found = stepped(APFL(alpha=0.25, learned=learned), own, shared, data)
    alpha = 0.25
    if learned:
        slope = gradient(data, 0.25 * own + 0.75 * shared)
        alpha -= RATE * float((own - shared) @ slope)
        assert abs(alpha - 0.25) > 1e-3
    assert float(found.keep["alpha"]) == pytest.approx(alpha, abs=1e-6)
    expected_own = own - RATE * alpha * gradient(data, alpha * own + (1 - alpha) * shared)
    expected_shared = shared - RATE * gradient(data, shared)
    assert torch.allclose(found.send["update"], expected_shared - shared, atol=1e-6)
    assert torch.allclose(found.keep["own"], expected_own, atol=1e-6)
    assert torch.allclose(found.keep["model"], alpha * expected_own + (1 - alpha) * expected_shared, atol=1e-6)


def test_alpha_is_held_to_the_unit_interval() -> None:
    data, shared, own = client()
    ends = {float(APFL(rate=1e6).adapted(torch.tensor([0.5]), v, shared, data)) for v in (own, 2 * shared - own)}
    assert ends == {0.0, 1.0}


def test_fedper_trains_everything_and_sends_the_body() -> None:
    data, received, own = client()
    found = stepped(FedPer(), own, received, data)
    start = torch.cat([received[:15], own[15:]])
    change = -RATE * gradient(data, start)
    assert torch.equal(found.start, start)
    assert torch.allclose(found.keep["model"], start + change, atol=1e-6)
    assert torch.allclose(found.send["update"][:15], change[:15], atol=1e-6)
    assert not found.send["update"][15:].any()


def test_fedrep_trains_first_the_head_and_then_the_body() -> None:
    data, received, own = client()
    found = stepped(FedRep(head_epochs=2), own, received, data)
    head = (torch.arange(len(own)) >= 15).float()
    model = torch.cat([received[:15], own[15:]])
    for mask in (head, head, 1 - head):
        model = model - RATE * mask * gradient(data, model)
    assert torch.allclose(found.keep["model"], model, atol=1e-6)
    assert torch.allclose(found.send["update"][:15], model[:15] - received[:15], atol=1e-6)


def test_what_a_round_starts_from() -> None:
    """With what was received, with the own model, or between them."""
    data, received, own = client()
    starts = {FedProx(): received, PFedSD(): received, Ditto(): own, APFL(alpha=0.25): own / 4 + received * 3 / 4}
    starts |= {MRMTL(strength=3): own / 4 + received * 3 / 4, MRMTL(penalty="step"): own}
    for method, start in starts.items():
        assert torch.allclose(stepped(method, own, received, data).start, start, atol=1e-6), method


def test_fedreps_body_has_an_optimizer_of_its_own() -> None:
    """Adam's first step is as long as the rate, along each gradient's sign; its second would not be."""
    data, received, own = client()
    found = stepped(FedRep(head_epochs=1, optimizer="adam"), own, received, data).keep["model"]
    body = torch.arange(len(own)) < 15
    model = torch.where(body, received, own)
    for mask in (~body, body):
        model = model - RATE * mask * gradient(data, model).sign()
    assert torch.allclose(found, model, atol=1e-5)


def test_apfls_models_have_an_optimizer_each() -> None:
    data, shared, own = client()
    found = stepped(APFL(alpha=0.25, optimizer="adam"), own, shared, data)
    assert torch.allclose(found.send["update"], -RATE * gradient(data, shared).sign(), atol=1e-5)
    slope = gradient(data, 0.25 * own + 0.75 * shared)
    assert torch.allclose(found.keep["own"], own - RATE * slope.sign(), atol=1e-4)


def test_pfedsd_has_no_teacher_at_first_and_comes_to_agree_with_it_later() -> None:
    data, received, own = client()
    first = PFedSD(rate=RATE).local({"global": received}, {"model": own, "participations": torch.tensor(0.0)}, data)
    plain = DPFedAvg(rate=RATE).local({"global": received}, {"model": own}, data.afresh())
    assert torch.allclose(first.keep["model"], plain.keep["model"], atol=1e-6)
    taught = PFedSD(weight=100, rate=0.02, epochs=60, batch=12)
    pulled = taught.local({"global": received}, {"model": own, "participations": torch.tensor(1.0)}, data).keep["model"]
    far, near = ((data.logits(m).softmax(1) - data.logits(own).softmax(1)).abs().max() for m in (received, pulled))
    assert near < far / 3


def test_pfedsd_takes_one_step_by_hand_at_temperature_three() -> None:
    """The gradient of T^2 KL(teacher, student) in the student's logits is T (p_student - p_teacher), softened by T."""
    data, received, own = client()
    found = stepped(PFedSD(weight=0.5, temperature=3), own, received, data)
    student, teacher = ((data.logits(model) / 3).softmax(1) for model in (received, own))
    leaning = 3 * (student - teacher)
    flat = received.clone().requires_grad_()
    (taught,) = torch.autograd.grad((leaning * data.learner.logits(flat, data.x)).sum() / 12, flat)
    expected = received - RATE * (gradient(data, received) + 0.5 * taught)
    assert torch.allclose(found.keep["model"], expected, atol=1e-6)
    assert RATE * 0.5 * taught.norm() > 1e-3, "the teacher matters"


def test_steps_of_two_models_come_right_over_the_rounds() -> None:
    assert [DittoRecord().personal_steps(5, times) for times in range(4)] == [3, 2, 3, 2]
    assert [DittoRecord().personal_steps(1, times) for times in range(4)] == [1, 0, 1, 0]
    assert {DittoRecord(personal_share=share).personal_steps(7, 3) for share in (0, 1)} == {0, 7}


@pytest.mark.parametrize(
    ("settings", "shared"),
    [
        (("fedper",), "640"),  # all but the bias of 64 x 10 + 10
        (("fedrep",), "640"),
        (("fedper", "--set=personal_layers=0"), "650"),
        (("dp-ifca", "--set=clusters=3"), "1,950"),  # the noise covers the parts of all three models
    ],
)
def test_a_warning_counts_what_carries_noise(settings: tuple[str, ...], shared: str, tmp_path: Path) -> None:
    keys = ("--method", *settings, "--clients=8", "--rounds=2", "--model=logistic", "--epsilon=1")
    ran = command("run", *keys, "--workers=1", "--set=epochs=1", "--store", tmp_path).out
    for told in (ran, command("plan", *keys, "--data=digits").out):
        assert f"shares {shared} parameters, but only about" in " ".join(told.split())


@pytest.mark.parametrize("name", ["fedper", "fedrep", "fedper-record"])
def test_no_more_layers_are_personal_than_there_are(name: str, tmp_path: Path) -> None:
    given = ("--method", name, "--set=personal_layers=3", "--model=mlp", "--clients=8", "--rounds=2")
    sentence = "personal_layers is 3, but the network has 2 layers: set it to 2 or less."
    assert refused("run", *given, "--store", tmp_path) == sentence
    assert refused("plan", *given, "--data=digits") == sentence
