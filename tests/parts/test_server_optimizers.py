"""Server optimizers: their numbers, their state over rounds, and that every averaging method takes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import QUICK, QUICK_KEYS, command, refused
from killing import stopped, trace
from torch import Tensor
from whole_runs import Ended

from sordino.api import resume, run
from sordino.experiment.hyperparameters import make_method
from sordino.federation import server as federation_server
from sordino.federation.message import Each
from sordino.method import Federation, Method
from sordino.methods import find, names
from sordino.methods.bases import Averaging
from sordino.methods.dp_fedavg import DPFedAvg
from sordino.methods.dp_fedavg_record import DPFedAvgRecord
from sordino.methods.dp_ifca import DPIFCA
from sordino.methods.fedavg import FedAvg
from sordino.methods.ifca import IFCA
from sordino.parts.averaging import by_records
from sordino.parts.clustering import starts
from sordino.parts.server_optimizers import OPTIMIZERS, SGD, Adagrad, Adam, Momentum, ServerOptimizer, Yogi
from sordino.report.terminal.catalogue import hyperparameters

AVERAGING = [name for name in names() if issubclass(find(name), Averaging)]
CHANGES = torch.tensor([[0.3, -0.2, 0.0, 1e-4], [-0.1, -0.4, 0.0, 2.0], [0.05, 0.6, 0.0, -1.0]])
"""Changes of three rounds."""


def moved(rule: ServerOptimizer, model: Tensor, changes: Tensor = CHANGES, factor: float = 1.0) -> Tensor:
    """Return the model after a step for each change."""
    state = rule.begin(model)
    for change in changes:
        model, state = rule.step(model, change, state, factor)
    return model


def of_torch(kind: type[torch.optim.Optimizer], model: Tensor, **settings: Any) -> Tensor:
    """Return the model after torch's optimizer has followed minus the changes as gradients."""
    parameter = torch.nn.Parameter(model.clone())
    optimizer = kind([parameter], **settings)
    for change in CHANGES:
        parameter.grad = -change
        optimizer.step()
    return parameter.detach()


def test_averaging_at_rate_one_adds_the_mean_to_the_bit() -> None:
    model, change = torch.randn(2, 1000, generator=torch.Generator().manual_seed(1))
    after, state = SGD().step(model, change, SGD().begin(model))
    assert torch.equal(after, model + change)
    assert state == SGD().begin(model) == {}


@pytest.mark.parametrize(
    ("rule", "oracle"),
    [
        (SGD(rate=0.7), lambda model: of_torch(torch.optim.SGD, model, lr=0.7)),
        (Momentum(rate=0.7, beta=0.8), lambda model: of_torch(torch.optim.SGD, model, lr=0.7, momentum=0.8)),
        (
            Adagrad(rate=0.2, tau=0.01),
            lambda model: of_torch(torch.optim.Adagrad, model, lr=0.2, initial_accumulator_value=1e-4, eps=0.01),
        ),
    ],
)
def test_rules_that_torch_has(rule: ServerOptimizer, oracle: Callable[[Tensor], Tensor]) -> None:
    model = torch.tensor([1.0, 2.0, 3.0, 4.0])
    torch.testing.assert_close(moved(rule, model), oracle(model))


def test_adam_by_hand() -> None:
    """beta_1 = 0.5, beta_2 = 0.75, tau = 2: v starts at 4. A change of 2: m = 1, v = 3 + 1 = 4, step 1 / (2 + 2). A
    change of -4: m = 0.5 - 2 = -1.5, v = 3 + 4 = 7, step -1.5 / (sqrt 7 + 2). Nothing is corrected for its bias."""
    after = moved(Adam(rate=0.1, beta1=0.5, beta2=0.75, tau=2.0), torch.zeros(1), torch.tensor([[2.0], [-4.0]]))
    assert after.item() == pytest.approx(0.1 / 4 - 0.1 * 1.5 / (7**0.5 + 2))


def test_yogi_by_hand() -> None:
    """v starts at 4. A change of 1: v = 4 - 1/4 = 3.75. A change of 4: v = 3.75 + 16/4 = 7.75."""
    after = moved(Yogi(rate=0.1, beta1=0.5, beta2=0.75, tau=2.0), torch.zeros(1), torch.tensor([[1.0], [4.0]]))
    assert after.item() == pytest.approx(0.1 * (0.5 / (3.75**0.5 + 2) + 2.25 / (7.75**0.5 + 2)))


def test_adagrad_keeps_no_momentum_unless_asked() -> None:
    """tau = 2: v = 4 + 1 = 5, then 5 + 16 = 21; with beta_1 = 0.5 m is 0.5, then 2.25."""
    plain = moved(Adagrad(rate=1.0, tau=2.0), torch.zeros(1), torch.tensor([[1.0], [4.0]]))
    assert plain.item() == pytest.approx(1 / (5**0.5 + 2) + 4 / (21**0.5 + 2))
    smooth = moved(Adagrad(rate=1.0, tau=2.0, beta1=0.5), torch.zeros(1), torch.tensor([[1.0], [4.0]]))
    assert smooth.item() == pytest.approx(0.5 / (5**0.5 + 2) + 2.25 / (21**0.5 + 2))


def test_settings_of_the_papers() -> None:
    assert (Adam().beta1, Adam().beta2, Adam().tau) == (0.9, 0.99, 1e-3) == (Yogi().beta1, Yogi().beta2, Yogi().tau)
    assert (Adagrad().beta1, Adagrad().tau, Momentum().beta) == (0.0, 1e-3, 0.9)


ALL = [pytest.param(kind(), id=name) for name, kind in OPTIMIZERS.items()]


@pytest.mark.parametrize("rule", ALL)
def test_a_factor_multiplies_the_rate(rule: ServerOptimizer) -> None:
    model = torch.zeros(4)
    torch.testing.assert_close(
        moved(rule, model, factor=0.25), moved(dataclasses.replace(rule, rate=rule.rate / 4), model)
    )
    torch.testing.assert_close(moved(rule, model, factor=0.25), moved(rule, model) / 4)


@pytest.mark.parametrize("rule", ALL)
def test_models_move_along_the_change_and_rest_without_one(rule: ServerOptimizer) -> None:
    after, _ = rule.step(torch.zeros(4), CHANGES[0], rule.begin(torch.zeros(4)))
    assert torch.equal(after.sign(), CHANGES[0].sign())
    assert moved(rule, torch.ones(4))[2] == 1.0


@pytest.mark.parametrize("rule", ALL)
def test_steps_change_nothing_in_place_and_state_has_the_models_shape(rule: ServerOptimizer) -> None:
    model = torch.ones(2, 4)
    state = rule.begin(model)
    before = {name: value.clone() for name, value in state.items()}
    after, new = rule.step(model, CHANGES[:2], state)
    assert torch.equal(model, torch.ones(2, 4))
    assert all(torch.equal(state[name], before[name]) for name in before)
    assert {name: value.shape for name, value in new.items()} == dict.fromkeys(state, after.shape)


@pytest.mark.parametrize("rule", ALL)
def test_each_of_several_models_has_its_own_state(rule: ServerOptimizer) -> None:
    """Model 0 moves in rounds 0 and 2, model 1 in round 1: each as if it were alone."""
    models, state = torch.ones(2, 4), rule.begin(torch.ones(2, 4))
    for row, change in zip((0, 1, 0), CHANGES, strict=True):
        models, state = rule.step_row(models, row, change, state)
    assert torch.equal(models[0], moved(rule, torch.ones(4), CHANGES[[0, 2]]))
    assert torch.equal(models[1], moved(rule, torch.ones(4), CHANGES[[1]]))
    together, one = torch.ones(2, 4), rule.begin(torch.ones(2, 4))
    together, _ = rule.step(together, CHANGES[:2], one)
    assert torch.equal(together[1], moved(rule, torch.ones(4), CHANGES[[1]]))


def average(self: DPFedAvg, fed: Federation, model: Tensor) -> None:
    """DP-FedAvg's script as published: the server adds the mean."""
    server = fed.state(model=model)
    for _ in fed.rounds(server):
        got = fed.ask(fed.sample(), self.local, {"global": server.model, "clip": self.clip})
        server.model = server.model + got.mean("update")


def average_records(self: DPFedAvgRecord, fed: Federation, model: Tensor) -> None:
    """DP-FedAvg's script at record level."""
    server = fed.state(model=model)
    for _ in fed.rounds(server):
        message = {"global": server.model, "clip": Each(torch.full((fed.schedule.clients,), self.clip))}
        server.model = server.model + fed.ask(fed.sample(), self.local, message).mean("update")


def average_by_size(self: FedAvg, fed: Federation, model: Tensor) -> None:
    """FedAvg's script."""
    server = fed.state(model=model)
    for _ in fed.rounds(server):
        got = fed.ask(fed.sample(), self.local, {"global": server.model})
        server.model = server.model + by_records(got.rows("records"), got.rows("update"))


def average_all_models(self: DPIFCA, fed: Federation, model: Tensor) -> None:
    """DP-IFCA's script."""
    server = fed.state(models=lambda: starts(model, self.clusters, fed.layout, fed.random("starts")))
    for _ in fed.rounds(server):
        got = fed.ask(fed.sample(), self.local, {"models": server.models, "clip": self.clip})
        server.models = server.models + self.clusters * got.mean("update").reshape(self.clusters, -1)


def average_chosen_models(self: IFCA, fed: Federation, model: Tensor) -> None:
    """IFCA's script."""
    chosen = torch.zeros(fed.schedule.clients, dtype=torch.int64)
    server = fed.state(models=lambda: starts(model, self.clusters, fed.layout, fed.random("starts")), chosen=chosen)
    for _ in fed.rounds(server):
        got = fed.ask(fed.sample(), self.local, {"models": server.models})
        records, updates, best = got.rows("records"), got.rows("update"), got.rows("chosen").squeeze(1)
        changes = [by_records(records[best == k], updates[best == k]) for k in range(self.clusters)]
        server.models = server.models + torch.stack(changes)


QUICKLY: dict[str, Any] = {"epochs": 1, "batch": 64}


def models_of(ended: Ended) -> Tensor:
    """Return the server's model or models at the end of a run."""
    found: Tensor = ended.state["models"] if "models" in ended.state else ended.state["model"]
    return found


@pytest.mark.parametrize(
    ("kind", "script"),
    [
        (DPFedAvg, average),
        (DPFedAvgRecord, average_records),
        (FedAvg, average_by_size),
        (DPIFCA, average_all_models),
        (IFCA, average_chosen_models),
    ],
)
def test_the_default_is_plain_averaging_to_the_bit(
    kind: type[Method], script: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Ended(kind(**QUICKLY), tmp_path / "found")
    monkeypatch.setattr(kind, "run", script)
    wanted = Ended(kind(**QUICKLY), tmp_path / "wanted", like=found)
    assert torch.equal(models_of(found), models_of(wanted))
    assert found.state["motion"] == {}


@pytest.mark.parametrize("rule", [SGD(rate=0.5), Momentum(), Adam(), Yogi(), Adagrad()])
def test_the_first_round_of_a_run(rule: ServerOptimizer, tmp_path: Path) -> None:
    """The mean update is the way between runs that step by all of it and by none of it."""
    plain = Ended(DPFedAvg(**QUICKLY), tmp_path / "plain", rounds=1)
    rest = Ended(DPFedAvg(**QUICKLY, server=SGD(rate=1e-18)), tmp_path / "rest", like=plain, rounds=1)
    found = Ended(DPFedAvg(**QUICKLY, server=rule), tmp_path / "found", like=plain, rounds=1)
    first = models_of(rest)
    wanted, _ = rule.step(first, models_of(plain) - first, rule.begin(first))
    torch.testing.assert_close(models_of(found), wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("method", AVERAGING)
def test_every_averaging_method_steps_and_keeps_its_state(method: str, tmp_path: Path) -> None:
    """At a rate of next to nothing the server's models stay where they are, and all rounds have the same means: after
    two rounds the momentum differs by what is left of the first."""
    kind = find(method)
    last = Ended(kind(**QUICKLY, server=Momentum(rate=1e-18, beta=0.0)), tmp_path / "last", rounds=2)
    both = Ended(kind(**QUICKLY, server=Momentum(rate=1e-18, beta=0.5)), tmp_path / "both", like=last, rounds=2)
    assert torch.allclose(models_of(both), models_of(last), rtol=0, atol=1e-15)
    momentum = both.state["motion"]["momentum"]
    assert momentum.shape == models_of(both).shape
    assert not torch.allclose(momentum, last.state["motion"]["momentum"])


@pytest.mark.parametrize(
    "keys",
    [
        {"method": "dp-fedavg", "set": {"server": "adam"}},
        {"method": "dp-fedavg-record", "set": {"server": "momentum"}},
        {"method": "dp-ifca", "set": {"server": "yogi"}},
        {"method": "pacfl", "set": {"server": "adagrad"}},
    ],
    ids=lambda keys: keys["method"],
)
def test_a_stopped_run_resumes_with_its_state(
    keys: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(federation_server, "SAVE_SECONDS", 0)
    keys = {**QUICK_KEYS, **keys, "rounds": 4, "set": {**QUICK_KEYS["set"], **keys["set"]}}
    whole = run(store=tmp_path / "whole", **keys)["run"]
    name = stopped(tmp_path / "stopped", 3, **keys)
    resume(name, tmp_path / "stopped")
    assert trace(tmp_path / "stopped", name) == trace(tmp_path / "whole", whole)


def server_of(method: str, **settings: Any) -> ServerOptimizer:
    made = make_method(method, "sound", "dp", settings)
    assert isinstance(made, Averaging)
    return made.server


@pytest.mark.parametrize("method", AVERAGING)
def test_settings_by_name(method: str) -> None:
    assert server_of(method) == SGD(rate=1.0)
    assert server_of(method, server="adam") == Adam()
    assert server_of(method, **{"server.rate": 0.01}) == SGD(rate=0.01)
    assert server_of(method, **{"server": "momentum", "server.beta": 0.5}) == Momentum(beta=0.5)
    assert server_of(method, **{"server": "yogi", "server.tau": 0.1, "server.beta2": 0.5}) == Yogi(beta2=0.5, tau=0.1)
    assert server_of(method, **{f"{method}.server": "adagrad"}) == Adagrad()


@pytest.mark.parametrize(
    ("method", "settings", "sentence"),
    [
        ("dp-fedavg", ["server=adan"], "There is no server 'adan'; did you mean 'adam'?"),
        ("dp-fedavg", ["server=1"], "The hyper-parameter server cannot be 1: write one of sgd, momentum, adagrad,"),
        ("dp-fedavg", ["server.beta1=0.5"], "There is no setting of server = sgd 'beta1'; known are: rate."),
        ("dp-fedavg", ["server.rate=0"], "The hyper-parameter server.rate cannot be 0: "),
        ("dp-fedavg", ["server=adam", "server.beta2=1"], "The hyper-parameter server.beta2 cannot be 1: "),
        ("dp-fedavg", ["server=yogi", "server.tau=-1"], "The hyper-parameter server.tau cannot be -1: "),
        ("local", ["server=adam"], "local has no hyper-parameter 'server'; "),
        ("cfl", ["server=adam"], "cfl has no hyper-parameter 'server'; "),
    ],
)
def test_wrong_settings_are_told_in_a_sentence(method: str, settings: list[str], sentence: str) -> None:
    found = refused("run", "--method", method, *(f"--set={one}" for one in settings))
    assert found.startswith(sentence)


def test_a_methods_own_hyperparameters_are_listed_before_those_of_its_bases() -> None:
    listed = [one["name"] for one in hyperparameters(find("feddpa"))]
    assert listed.index("tau") < listed.index("clip") < listed.index("server") < listed.index("epochs")


def test_a_server_optimizer_costs_no_privacy(tmp_path: Path) -> None:
    found = {
        rule: command("run", *QUICK, "--method=dp-fedavg", f"--set=server={rule}", f"--store={tmp_path}", "--json")
        for rule in ("sgd", "adam")
    }
    first, second = (one.document for one in found.values())
    assert first["epsilon"] == second["epsilon"]
    assert first["noise_multiplier"] == second["noise_multiplier"]


@pytest.mark.slow
@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_private_runs_learn_with_every_rule(rule: str, tmp_path: Path) -> None:
    """100 clients, 30 rounds, epsilon 8: means over five seeds are 0.91 to 0.92 (docs/own-method.md); guessing has
    0.1."""
    keys: dict[str, Any] = {"clients": 100, "rounds": 30, "partition": "iid", "model": "logistic", "epsilon": 8.0}
    result = run(method="dp-fedavg", store=tmp_path, workers=1, **keys, set={"server": rule})
    assert result["accuracy"]["global"] > 0.85
