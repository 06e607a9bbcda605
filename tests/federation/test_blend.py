"""Blended models in whole runs: with every method, however they are executed, killed or loaded."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import KINDS, QUICK_KEYS, command, otherwise_slow
from killing import die_at, killed, trace
from safetensors.torch import load_file

from sordino import api
from sordino.experiment import blends
from sordino.experiment.budgeting import GIVEN_AWAY
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import deal
from sordino.experiment.result import count_gains_and_losses
from sordino.experiment.run import carry_on, register, resume
from sordino.federation.blending import Blending, trainings
from sordino.federation.message import Message
from sordino.federation.transport import Answer
from sordino.learning.network import Learner, Records
from sordino.method import Method
from sordino.methods import find, names
from sordino.methods.dp_fedavg import DPFedAvg
from sordino.methods.local import Local
from sordino.parts import blending
from sordino.parts.averaging import over_rounds
from sordino.parts.blending import ADJUSTED, AVERAGED, AVERAGED_ADJUSTED, FOLDS, LOCAL, MEMBERS, OWN, TUNED
from sordino.report.wording import against_words
from sordino.simulator.workers import Workers
from sordino.store.run_files import RunFiles
from sordino.store.store import Store
from sordino.tasks import Classification
from sordino.testing.case import CLIENTS, Case

pytestmark = pytest.mark.usefixtures("one_thread")

KEYS: dict[str, Any] = {**QUICK_KEYS, "method": "dp-fedavg", "partition": "dirichlet:1", "personal": "blend"}


def accuracy_of(found: api.Models, keys: dict[str, Any]) -> float:
    """The mean over clients of the share of test records that loaded models label rightly."""
    clients = deal(Experiment.make(keys)).clients
    shares = []
    for name, model in found.personal.items():
        client = clients[found.about.number(name)]
        with torch.no_grad():
            right = model(client.x_test).argmax(dim=1) == client.y_test
        shares.append(float(right.double().mean()))
    return float(np.mean(shares))


@pytest.mark.parametrize("name", otherwise_slow(names(), {*KINDS, "ifca", "fedper"}.__contains__))
def test_every_method_can_blend(name: str, tmp_path: Path) -> None:
    case = Case(find(name)(), tmp_path, {"personal": "blend"})
    summary, models = case.finished(case.prepared(rounds=2), tmp_path)
    figures = summary["blend"]
    assert summary["accuracy"]["personal"] == figures["accuracy"]["blend"] > 0.1
    assert sum(figures["weights"].values()) == pytest.approx(1)
    assert GIVEN_AWAY["blend"] in summary["not_covered"]
    assert figures["accuracy"]["local"] is not None
    assert sum(figures["against_local"].values()) == CLIENTS
    assert figures["accuracy"]["global"] == summary["accuracy"]["global"]
    assert len(models["blend"]) == len(models["weights"]) == CLIENTS
    assert (models["weights"][:, AVERAGED] > 0).all() == (summary["accuracy"]["global"] is not None)


def test_blending_changes_nothing_else(tmp_path: Path) -> None:
    """With the same noise, what the method comes to and what it costs are the same."""
    case = Case(find("dp-fedavg")(), tmp_path)
    plain = case.prepared()
    blended = dataclasses.replace(case.prepared(personal="blend"), identity=plain.identity)
    one, models = case.finished(plain, tmp_path / "own")
    two, others = case.finished(blended, tmp_path / "blend")
    assert one["accuracy"]["personal"] == two["blend"]["accuracy"]["own"]
    for key in ("epsilon", "spent", "upload_bytes", "notes"):
        assert one[key] == two[key]
    for key in models.keys() - {"metrics"}:  # of what clients predict with
        assert torch.equal(models[key], others[key])


@pytest.mark.parametrize("changes", [{"engine": "stacked"}, {"engine": "one-by-one"}, {"method": "ifca"}])
def test_loaded_models_are_those_of_the_summary(changes: dict[str, str], tmp_path: Path) -> None:
    keys = KEYS | changes
    summary = api.run(store=tmp_path, **keys)
    found = api.load_models(summary["run"], tmp_path)
    assert sorted(found.personal) == [f"client-{number}" for number in range(8)]
    assert accuracy_of(found, keys) == pytest.approx(summary["accuracy"]["personal"], abs=1e-12)
    x = deal(Experiment.make(keys)).clients[0].x
    torch.testing.assert_close(found.personal[0](x).exp().sum(dim=1), torch.ones(len(x)))


def test_a_model_is_not_judged_by_records_it_was_trained_on(tmp_path: Path) -> None:
    """Labels at random: local models know their own records by heart, and still get no more weight than the rest."""
    keys = KEYS | {"set": {"epochs": 30, "batch": 16}, "partition": "iid"}
    case = Case(find("dp-fedavg")(), tmp_path, {"personal": "blend"})
    prepared = case.prepared(rounds=2, noise_multiplier=0.1)  # so that all members are trusted alike
    train = prepared.data.train
    train.y.copy_(train.y[torch.randperm(len(train.y), generator=torch.Generator().manual_seed(1))])
    method = dataclasses.replace(prepared.method, epochs=keys["set"]["epochs"], batch=16)
    store = Store(tmp_path / "store")
    random = dataclasses.replace(prepared, method=method)
    run = register(random, store)
    carry_on(random, store, run)
    weights = load_file(store.path(run) / "models.safetensors")["weights"].mean(dim=0)
    assert weights[LOCAL] < 0.5


def test_clients_that_never_took_part_blend_what_they_have(tmp_path: Path) -> None:
    summary = api.run(store=tmp_path, **(KEYS | {"participation": 0.25, "rounds": 2, "epsilon": 500.0}))
    tensors = load_file(tmp_path / "runs" / summary["run"] / "models.safetensors")
    took_part = set(tensors["clients"].tolist())
    assert len(took_part) == 4
    for client, weights in zip(tensors["blend_clients"].tolist(), tensors["weights"], strict=True):
        assert float(weights[OWN] * FOLDS) == pytest.approx(float(weights[TUNED]) if client in took_part else 0)
        assert (weights[[LOCAL, TUNED, AVERAGED, ADJUSTED, AVERAGED_ADJUSTED]] > 0).all()
    found = api.load_models(summary["run"], tmp_path)
    assert {client: len(model.members) for client, model in found.personal.items()} == {
        f"client-{client}": 4 + (client in took_part) for client in range(8)
    }


def test_the_servers_models_are_averaged_over_all_rounds_also_of_a_run_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, seen = KEYS | {"rounds": 4}, []
    monkeypatch.setattr("sordino.federation.server.over_rounds", lambda *one: seen.append(one) or over_rounds(*one))
    whole = api.run(store=tmp_path / "whole", **keys)
    assert [rounds for _, _, rounds in seen] == [1, 2, 3, 4]
    models = load_file(tmp_path / "whole" / "runs" / whole["run"] / "models.safetensors")
    weights = torch.tensor([1.0, 4.0, 10.0, 20.0]) / 35
    expected = sum(weight * model[0] for weight, (_, model, _) in zip(weights, seen, strict=True))
    torch.testing.assert_close(models["averaged"], expected)
    assert torch.equal(models["global"], seen[-1][1][0])

    def victim() -> None:
        monkeypatch.setattr("sordino.federation.server.SAVE_SECONDS", 0.0)
        die_at(RunFiles, "save", 3, "before")
        api.run(store=tmp_path / "killed", **keys)

    assert killed(victim)
    (row,) = Store(tmp_path / "killed").all()
    assert row.rounds_done == 2
    resume(row.run, Store(tmp_path / "killed"))
    assert trace(tmp_path / "killed", row.run) == trace(tmp_path / "whole", whole["run"])


def test_the_mean_is_judged_by_what_it_says_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    weights = blending.weights

    def noted(likelihoods: torch.Tensor, *more: Any) -> torch.Tensor:
        seen.append(likelihoods)
        return weights(likelihoods, *more)

    monkeypatch.setattr("sordino.federation.blending.weights", noted)
    api.run(store=tmp_path, **KEYS)
    assert len(seen) == 8
    for likelihoods in seen:
        averaged, adjusted, both = likelihoods[:, [AVERAGED, ADJUSTED, AVERAGED_ADJUSTED]].T
        assert not torch.allclose(both, adjusted)
        assert not torch.allclose(both, averaged)


def test_a_record_is_not_judged_by_a_recalibration_that_has_seen_it() -> None:
    """Another label changes what is said of the other folds' records, and nothing in its own."""
    random = torch.Generator().manual_seed(0)
    said = torch.log_softmax(torch.randn(12, 3, generator=random), dim=1)
    targets, folds = torch.arange(12) % 3, torch.arange(12) % FOLDS
    clients: Any = SimpleNamespace(_task=Classification.numbered(3))
    before = Blending._recalibrated(clients, said, targets, folds)
    other = targets.clone()
    other[4] = (other[4] + 1) % 3
    changed = (Blending._recalibrated(clients, said, other, folds) != before).any(dim=1)
    assert torch.equal(changed, folds != folds[4])
    power, added = clients._task.recalibrate(said[folds != 1], targets[folds != 1])
    assert torch.equal(before[folds == 1], clients._task.sharpen(said[folds == 1], power, added))


@pytest.mark.parametrize("personal", ["own", "blend"])
def test_models_that_overflow_end_no_run_and_have_no_say(personal: str, tmp_path: Path) -> None:
    case = Case(find("dp-fedavg")(clip=1e12), tmp_path, {"personal": personal, "model": "mlp"})
    summary, models = case.finished(case.prepared(rounds=2, noise_multiplier=1e9), tmp_path)
    if personal == "own":
        assert summary["accuracy"]["personal"] < 0.5
        return
    assert (models["weights"][:, LOCAL] == 1).all()
    figures = summary["blend"]["accuracy"]
    assert figures["blend"] == figures["local"] > figures["own"]
    (row,) = Store(tmp_path).all()
    with torch.no_grad():
        said = api.load_models(row.run, tmp_path).personal[0](torch.rand(3, *case.prepared().data.shape))
    assert said.isfinite().all()


def test_a_client_whose_models_all_overflow_predicts_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sordino.federation.blending.Local", lambda: Local(rate=1e30))
    case = Case(find("dp-fedavg")(rate=1e30), tmp_path, {"personal": "blend", "model": "mlp"})
    summary, _ = case.finished(case.prepared(rounds=1), tmp_path)
    assert 0 <= summary["blend"]["accuracy"]["blend"] < 0.5


@pytest.mark.parametrize("settings", [{"rate": 1e-6}, {"rate": 1e18}, {"batch": 1000, "epochs": 1}])
@pytest.mark.parametrize("personal", ["blend", "recalibrate"])
def test_settings_that_suit_the_federation_alone_do_not_harm_the_local_model(
    settings: dict[str, float], personal: str, tmp_path: Path
) -> None:
    """A client that takes part has a model as good as one that trains alone."""
    keys: dict[str, Any] = {**KEYS, "rounds": 10, "engine": "stacked", "data": "digits", "records": 600}
    alone = api.run(store=tmp_path, **(keys | {"method": "local", "personal": "own", "set": {}}))
    taking_part = api.run(store=tmp_path, **(keys | {"personal": personal, "set": settings}))
    assert taking_part[personal]["accuracy"]["local"] >= alone["accuracy"]["personal"] - 0.02


def test_clients_train_alone_as_the_method_local_does_where_that_differs() -> None:
    """Or as the run's method does, whose settings may be the better ones; linear models also with longer steps."""
    features, labels = torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)
    some = Records(features, labels, Learner(torch.nn.Linear(3, 2), Classification.numbered(2)), 0)

    def told(method: Method, passes: int, turns: int, linear: bool) -> list[tuple[str, float, int]]:
        found = trainings(method, some, passes, turns, linear)
        return [(type(one.method).__name__, one.method.rate, one.passes) for one in found]

    assert told(DPFedAvg(), 30, 6, False) == [("DPFedAvg", 0.1, 30)]
    assert told(DPFedAvg(), 6, 6, False) == [("DPFedAvg", 0.1, 30)]  # fewer passes in a round: local's epochs count
    assert told(DPFedAvg(), 300, 60, True) == [("DPFedAvg", 0.1, 60)]
    different = [DPFedAvg(rate=16.0), DPFedAvg(batch=8), DPFedAvg(optimizer="adam"), DPFedAvg(momentum=0.9)]
    for method in (*different, DPFedAvg(augmentation="crop")):
        assert told(method, 2, 2, False) == [("DPFedAvg", method.rate, 2), ("Local", 0.1, 10)]
    assert told(DPFedAvg(rate=16.0), 60, 60, True)[1:] == [("Local", 0.1, 60), ("Local", 1.0, 60)]


def test_held_out_records_choose_how_a_client_trains_alone() -> None:
    targets = torch.tensor([0, 1, 0])
    clients: Any = SimpleNamespace(_task=Classification.numbered(2), _who=[4, 7])
    clients._training = lambda place: (None, targets)
    clients._fit = functools.partial(Blending._fit, clients)
    right = torch.log_softmax(torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0]]), dim=1)
    said = [[-right, right], [right, right.flip(1)], [torch.full_like(right, torch.nan)] * 2]
    assert Blending._best(clients, said) == [1, 0]
    assert Blending._best(clients, [[right] * 2] * 2) == [0, 0]  # the first of several that are alike
    assert Blending._best(clients, said[:1]) == [0, 0]


def test_only_who_blends_keeps_an_average(tmp_path: Path) -> None:
    summary = api.run(store=tmp_path, **(KEYS | {"personal": "own"}))
    assert "averaged" not in load_file(tmp_path / "runs" / summary["run"] / "models.safetensors")


def test_clients_with_one_record_blend_too(tmp_path: Path) -> None:
    case = Case(find("dp-fedavg")(), tmp_path, {"personal": "blend"})
    for engine in ("stacked", "one-by-one"):
        keys = {"records": 14, "clients": 6, "partition": "iid", "engine": engine, "rounds": 1}
        summary, _ = case.finished(case.prepared(**keys), tmp_path / engine)
        assert summary["blend"]["accuracy"]["blend"] is not None


@pytest.mark.parametrize("name", ["dp-fedavg", "dp-fedavg-record", "dp-ifca"])
def test_a_federation_that_drowns_in_noise_has_no_say_that_it_does_not_earn(name: str, tmp_path: Path) -> None:
    """Nothing judges the method's own model: its place is the federation's trust, of which noise leaves nothing."""
    case = Case(find(name)(), tmp_path, {"personal": "blend"})
    twin = LOCAL if name == "dp-ifca" else TUNED  # a server that does not know whose model is whose has none to tune
    for multiplier, trusted in ((1e-3, 1.0), (1e5, 0.0)):
        prepared = case.prepared(rounds=2, noise_multiplier=multiplier)
        weights = case.finished(prepared, tmp_path / str(multiplier))[1]["weights"]
        torch.testing.assert_close(weights[:, OWN] * FOLDS, trusted * weights[:, twin], atol=1e-4, rtol=1e-5)


def test_without_privacy_a_federation_is_trusted(tmp_path: Path) -> None:
    case = Case(find("dp-fedavg-record")(), tmp_path, {"personal": "blend", "privacy": "none"})
    weights = case.finished(case.prepared(rounds=2, noise_multiplier=None), tmp_path)[1]["weights"]
    torch.testing.assert_close(weights[:, OWN] * FOLDS, weights[:, TUNED])


@pytest.mark.parametrize("name", ["dp-fedavg", "local"])
def test_stacked_and_one_by_one_agree(name: str, tmp_path: Path) -> None:
    case = Case(find(name)(), tmp_path, {"personal": "blend"})
    alone = case.prepared(engine="one-by-one")
    stacked = dataclasses.replace(case.prepared(engine="stacked"), identity=alone.identity)
    _, models = case.finished(alone, tmp_path / "one")
    _, others = case.finished(stacked, tmp_path / "stacked")
    order, other = (found["blend_clients"].argsort() for found in (models, others))
    for key in ("blend", "weights"):
        torch.testing.assert_close(models[key][order], others[key][other], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("engine", ["stacked", "one-by-one"])
def test_the_number_of_workers_changes_no_bit(engine: str, tmp_path: Path) -> None:
    case = Case(find("dp-fedavg")(), tmp_path, {"personal": "blend", "engine": engine})
    one, models = case.finished(case.prepared(workers=1), tmp_path / "one")
    two, others = case.finished(case.prepared(workers=2), tmp_path / "two")
    assert one == two
    for key in models:
        assert torch.equal(models[key], others[key])


@pytest.mark.parametrize("moment", ["after the first piece", "half a piece", "before the models"])
def test_killed_while_it_blends(moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces that are finished are not made again, and the end is that of a run that was not killed."""
    monkeypatch.setattr(
        "sordino.simulator.local_transport.Simulation.pieces", lambda self: [[3, 1], [0, 2], [4, 5, 6, 7]]
    )
    whole = api.run(store=tmp_path / "whole", **KEYS)
    made, places = {
        "after the first piece": (1, (blends, "_write", 1, "after")),
        "half a piece": (1, (blends, "keep_file", 2, "before")),
        "before the models": (3, (blends, "_write", 3, "after")),
    }[moment]

    def victim() -> None:
        die_at(*places)
        api.run(store=tmp_path / "killed", **KEYS)

    assert killed(victim)
    asked: list[Sequence[int]] = []
    blend = Workers.blend

    def noted(workers: Workers, who: Sequence[int], message: Message) -> Answer:
        asked.append(who)
        return blend(workers, who, message)

    monkeypatch.setattr(Workers, "blend", noted)
    (row,) = Store(tmp_path / "killed").all()
    assert (row.state, row.rounds_done) == ("stopped", 2)
    resume(row.run, Store(tmp_path / "killed"))
    assert len(asked) == 3 - made
    assert trace(tmp_path / "killed", row.run) == trace(tmp_path / "whole", whole["run"])
    kept = {path.name for path in (tmp_path / "killed" / "runs" / row.run).iterdir()}
    assert kept == {"lock", "models.safetensors", "round-000002-2.safetensors"}


def test_a_damaged_piece_is_made_anew(tmp_path: Path) -> None:
    def victim() -> None:
        die_at(blends, "_write", 1, "after")
        api.run(store=tmp_path / "killed", **KEYS)

    assert killed(victim)
    whole = api.run(store=tmp_path / "whole", **KEYS)
    (row,) = Store(tmp_path / "killed").all()
    (piece,) = (tmp_path / "killed" / "runs" / row.run).glob("blend-*")
    content = bytearray(piece.read_bytes())
    content[-5] ^= 1
    piece.write_bytes(content)
    resume(row.run, Store(tmp_path / "killed"))
    assert trace(tmp_path / "killed", row.run) == trace(tmp_path / "whole", whole["run"])


def test_the_command_line_shows_the_mixture_beside_its_members(tmp_path: Path) -> None:
    by_set = ("run", "--clients=8", "--rounds=2", "--workers=1", "--set=epochs=1", "--set=personal=blend")
    shown = command(*by_set, "--store", tmp_path / "a")
    assert shown.code == 0
    for words in (
        "predicting with",
        "the blend",
        "local models alone",
        "worst tenth",
        f"most {blending.LOCAL_PASSES} passes",
    ):
        assert words in shown.out.replace("\n", " ")
    by_option = ("run", "--clients=8", "--rounds=2", "--workers=1", "--set=epochs=1", "--personal=blend", "--json")
    document = command(*by_option, "--store", tmp_path / "b").document
    assert set(document["blend"]["weights"]) == set(MEMBERS)
    assert set(document["blend"]["accuracy"]) == {"blend", "local", "own", "global"}


def test_who_gains_by_blending_is_counted_and_told(tmp_path: Path) -> None:
    """Of clients with test records; a comparison adds the seeds up, and rows that do not blend say nothing."""
    found = count_gains_and_losses(np.array([0.1, -0.1, 0.2, 1e-12, np.nan, 0.0]))
    assert found == {"gain": 2, "lose": 1, "same": 2}
    assert against_words({"gain": 1, "lose": 1, "same": 0}) == "1 client gains, 1 loses and 0 see no difference"
    assert against_words({"gain": 2, "lose": 0, "same": 1}).endswith("0 lose and 1 sees no difference")
    given = ("--methods=local,dp-fedavg[personal=blend]", "--seeds=2", "--clients=8", "--rounds=2", "--workers=1")
    options = ("compare", *given, "--set=epochs=1", "--store", tmp_path)
    alone, row = command(*options, "--json").document["rows"]
    assert alone["against_local"] is None
    each = [command("show", run, "--store", tmp_path, "--json").document["blend"] for run in row["runs"]]
    for key, count in row["against_local"].items():
        assert count == sum(one["against_local"][key] for one in each)
    assert sum(row["against_local"].values()) == 16
    told = against_words(row["against_local"], 2)
    assert told.endswith("counted over 2 seeds")
    sentence = f"dp-fedavg[personal=blend]: against the local models of the mixture alone, {told}."
    assert sentence in " ".join(command(*options).out.split())
    shown = " ".join(command("show", row["runs"][0], "--store", tmp_path).out.split())
    assert f"Against local models alone, {against_words(each[0]['against_local'])}." in shown
