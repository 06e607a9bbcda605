"""Recalibrated models in whole runs: what clients predict with, at no cost, however runs are executed or killed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import QUICK_KEYS, command
from killing import die_at, killed, trace
from safetensors.torch import load_file, save_file

from sordino import api
from sordino.assembly import gate_of, simulate
from sordino.experiment import blends
from sordino.experiment.budgeting import GIVEN_AWAY
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import deal
from sordino.experiment.run import resume
from sordino.federation.blending import Recalibrating, instructions
from sordino.federation.message import Message
from sordino.federation.run_state import Served
from sordino.federation.transport import Answer
from sordino.methods import find
from sordino.methods.local import Local
from sordino.parts.blending import (
    ADJUSTED,
    LOCAL,
    MEMBERS,
    OWN,
    RECALIBRATED,
    enough_records,
)
from sordino.privacy.unit import Unit
from sordino.report.wording import against_words
from sordino.simulator.workers import Workers
from sordino.store.store import Store
from sordino.tasks import Classification
from sordino.tasks.classification import effective_records
from sordino.testing.case import CLIENTS, Case
from sordino.util.files import digest_of
from sordino.util.processes import single_threaded

pytestmark = pytest.mark.usefixtures("one_thread")

KEYS: dict[str, Any] = {**QUICK_KEYS, "method": "dp-fedavg", "partition": "dirichlet:1", "personal": "recalibrate"}


def models_of(store: Path, run: str) -> dict[str, torch.Tensor]:
    return load_file(store / "runs" / run / "models.safetensors")


@pytest.mark.parametrize("name", ["dp-fedavg", "dp-fedavg-record", "ifca", "acdp-pfsd"])
def test_a_client_with_few_records_predicts_with_the_recalibrated_model(name: str, tmp_path: Path) -> None:
    case = Case(find(name)(), tmp_path, {"personal": "recalibrate"})
    little_noise = {} if name == "ifca" else {"noise_multiplier": 0.01}
    summary, models = case.finished(case.prepared(rounds=2, **little_noise), tmp_path)
    figures = summary["recalibrate"]
    assert "blend" not in summary
    assert summary["accuracy"]["personal"] == figures["accuracy"]["recalibrated"] > 0.1
    assert figures["accuracy"]["global"] == summary["accuracy"]["global"] is not None
    assert figures["weights"] == {member: float(member == "recalibrated") for member in MEMBERS}
    assert GIVEN_AWAY["recalibrate"] in summary["not_covered"]
    assert sum(figures["against_local"].values()) == CLIENTS
    assert models["blend"].shape == models["personal"].shape, "one model of each client, which it trained alone"
    assert "averaged" not in models


def test_recalibration_costs_nothing_and_changes_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same noise, what the method comes to and what it costs are the same; local models are the blend's where
    clients that blend do not try longer steps."""
    monkeypatch.setattr("sordino.federation.blending.Blending.may_be_bold", False)
    case = Case(find("dp-fedavg")(), tmp_path)
    plain = case.prepared()
    found = {}
    for personal in ("own", "blend", "recalibrate"):
        prepared = dataclasses.replace(case.prepared(personal=personal), identity=plain.identity)
        found[personal] = case.finished(prepared, tmp_path / personal)
    (one, models), (blend, _), (two, others) = found.values()
    assert one["accuracy"]["personal"] == two["recalibrate"]["accuracy"]["own"]
    assert blend["blend"]["accuracy"]["local"] == two["recalibrate"]["accuracy"]["local"]
    for key in ("epsilon", "spent", "upload_bytes", "notes"):
        assert one[key] == two[key]
    for key in models.keys() - {"metrics"}:  # of what clients predict with
        assert torch.equal(models[key], others[key])


def write_tables(folder: Path, sizes: dict[str, int]) -> Path:
    """Tables of three features, one a client with so many rows; at each the label leans another way."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for place, (name, rows) in enumerate(sizes.items()):
        x = random.normal(size=(rows, 3))
        y = x[:, 0] + place + random.logistic(size=rows) > 1
        lines = [
            ",".join([*(f"{value:.3f}" for value in row), str(int(label))]) for row, label in zip(x, y, strict=True)
        ]
        (folder / f"{name}.csv").write_text("\n".join(["a,b,c,label", *lines]) + "\n")
    return folder


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path, api.Result]:
    """Keys, store and result of a run whose clients have 84, 160 and 240 training records of three features."""
    folder = tmp_path_factory.mktemp("tables")
    data = write_tables(folder / "data", {"few": 105, "enough": 200, "many": 300})
    keys: dict[str, Any] = {"method": "fedavg", "data": str(data), "label": "label", "model": "logistic", "rounds": 3}
    keys |= {"personal": "recalibrate", "workers": 1, "set": {"epochs": 2, "batch": 8}}
    return keys, folder / "store", api.run(store=folder / "store", **keys)


def test_a_client_with_enough_records_takes_the_mean_with_its_own_model(
    tables: tuple[dict[str, Any], Path, api.Result],
) -> None:
    """Without noise, twenty for each of three features and for the intercept: 80. The mean is of probabilities."""
    keys, store, summary = tables
    data = deal(Experiment.make(keys))
    assert [len(client.y) for client in data.clients] == [160, 84, 240], "enough, few and many"
    enough, few, many = (effective_records(client.y.numpy(), 2) for client in data.clients)
    assert 60 < few < 80 < min(enough, many), "those of rare labels count"
    found, stored = api.load_models(summary["run"], store), models_of(store, summary["run"])
    rows = stored["blend_clients"].argsort()
    (server,) = found.shared
    task = data.task
    for number, client in enumerate(data.clients):
        with torch.no_grad():
            power, offsets = task.recalibrate(task.log_probabilities(server(client.x)), client.y)
            assert abs(power - 1) + float(offsets.abs().sum()) > 0.05, "these clients differ"
            expected = task.sharpen(task.log_probabilities(server(client.x_test)), power, offsets).exp()
            if len(client.y) > 84:
                expected = (
                    expected + found.about.build(stored["blend"][rows[number]])(client.x_test).softmax(dim=1)
                ) / 2
            torch.testing.assert_close(found.personal[number](client.x_test).exp(), expected)
    shares = torch.tensor([[0.5, 0.5], [0, 1], [0.5, 0.5]])
    assert torch.equal(stored["weights"][rows][:, [LOCAL, RECALIBRATED]], shares)


def test_records_of_rare_labels_count_for_more() -> None:
    """4 n p (1 - p) for two labels; all of them where labels are equally frequent; none where there is one label."""
    two = np.array([0] * 30 + [1] * 10)
    assert effective_records(two, 2) == pytest.approx(4 * 40 * 0.75 * 0.25)
    assert effective_records(np.repeat(np.arange(3), 7), 3) == pytest.approx(21)
    assert effective_records(np.zeros(50, dtype=np.int64), 3) == 0
    assert effective_records(np.zeros(0, dtype=np.int64), 2) == 0


def test_the_noisier_the_servers_model_the_fewer_records_are_enough() -> None:
    """Twenty for each feature without noise. With it d / (1/20 + 15 d^2 / feasible) where records are protected, and a
    hundredth of the noise's part where clients are."""
    assert enough_records(14, math.inf, Unit.RECORD) == pytest.approx(280)
    assert enough_records(14, 19600, Unit.RECORD) == pytest.approx(14 / (0.05 + 0.15))
    assert enough_records(14, 196, Unit.CLIENT) == pytest.approx(14 / (0.05 + 0.15))
    assert enough_records(14, 0, Unit.RECORD) == 0


def test_where_noise_is_large_clients_with_few_records_take_the_mean_too(
    tables: tuple[dict[str, Any], Path, api.Result], tmp_path: Path
) -> None:
    """Three features, and noise of its own at each of three sites: at epsilon 1 that of 484 records drowns them."""
    keys = tables[0] | {"method": "dp-fedavg-record", "rounds": 1}
    found = {}
    for epsilon in (1.0, 1000.0):
        run = api.run(store=tmp_path, **(keys | {"epsilon": epsilon}))["run"]
        models = models_of(tmp_path, run)
        found[epsilon] = models["weights"][models["blend_clients"].argsort()][:, LOCAL].tolist()
    assert found == {1.0: [0.5, 0.5, 0.5], 1000.0: [0.5, 0, 0.5]}


def test_loaded_models_are_those_of_the_summary(tables: tuple[dict[str, Any], Path, api.Result]) -> None:
    keys, store, summary = tables
    found, shares = api.load_models(summary["run"], store), []
    for number, client in enumerate(deal(Experiment.make(keys)).clients):
        with torch.no_grad():
            right = found.personal[number](client.x_test).argmax(dim=1) == client.y_test
        shares.append(float(right.double().mean()))
    assert np.mean(shares) == pytest.approx(summary["accuracy"]["personal"], abs=1e-12)


@pytest.mark.parametrize("name", ["local", "dp-ifca"])
def test_where_the_server_has_no_model_clients_keep_the_methods(name: str, tmp_path: Path) -> None:
    case = Case(find(name)(), tmp_path, {"personal": "recalibrate"})
    summary, models = case.finished(case.prepared(rounds=2), tmp_path)
    figures = summary["recalibrate"]["accuracy"]
    assert figures["recalibrated"] == figures["own"]
    assert figures["global"] is None
    assert (models["weights"][:, OWN] == 1).all()


def test_a_client_that_has_no_model_at_all_predicts_with_the_one_that_it_trains(tmp_path: Path) -> None:
    keys = {"method": "dp-ifca", "participation": 0.25, "rounds": 2, "epsilon": 500.0}
    models = models_of(tmp_path, api.run(store=tmp_path, **(KEYS | keys))["run"])
    took_part = set(models["clients"].tolist())
    assert len(took_part) == 4
    for client, weights in zip(models["blend_clients"].tolist(), models["weights"], strict=True):
        assert weights[OWN if client in took_part else LOCAL] == 1


def test_clients_that_never_took_part_recalibrate_too(tmp_path: Path) -> None:
    summary = api.run(store=tmp_path, **(KEYS | {"participation": 0.25, "rounds": 2, "epsilon": 500.0}))
    models = models_of(tmp_path, summary["run"])
    assert len(models["clients"]) == 4
    assert (models["weights"][:, RECALIBRATED] == 1).all()
    assert len(api.load_models(summary["run"], tmp_path).personal) == 8


def test_a_servers_model_that_overflowed_has_no_say(tmp_path: Path) -> None:
    case = Case(find("dp-fedavg")(clip=1e12), tmp_path, {"personal": "recalibrate", "model": "mlp"})
    summary, models = case.finished(case.prepared(rounds=2, noise_multiplier=1e9), tmp_path)
    assert (models["weights"][:, LOCAL] == 1).all()
    figures = summary["recalibrate"]["accuracy"]
    assert figures["recalibrated"] == figures["local"] > figures["own"]


def test_a_model_of_an_overflowed_federation_is_not_taken_for_the_servers() -> None:
    """Its own model may be left from an earlier round; it is taken only where the server never had one."""
    clients: Any = SimpleNamespace(
        _task=Classification.numbered(2),
        _training=lambda place: (None, torch.zeros(3, dtype=torch.int64)),
        _own_is_sound=lambda place: True,
        _spread=lambda place, said: torch.zeros(2),
    )
    for server, member in (({ADJUSTED: torch.full((1, 4), torch.nan)}, LOCAL), ({}, OWN)):
        clients._server = server
        weights, _, _ = Recalibrating._rules(clients, 0, torch.zeros(3, 2), None)
        assert weights[member] == weights.sum() == 1


def test_a_client_whose_models_all_overflow_predicts_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sordino.federation.blending.Local", lambda: Local(rate=1e30))
    case = Case(find("dp-fedavg")(rate=1e30), tmp_path, {"personal": "recalibrate", "model": "mlp"})
    summary, _ = case.finished(case.prepared(rounds=1), tmp_path)
    assert 0 <= summary["recalibrate"]["accuracy"]["recalibrated"] < 0.5


def test_a_local_model_that_overflowed_has_no_say(
    tables: tuple[dict[str, Any], Path, api.Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sordino.federation.blending.Mixing._train_alone", lambda self, best: torch.full_like(self._initial, torch.nan)
    )
    summary = api.run(store=tmp_path, **tables[0])
    assert (models_of(tmp_path, summary["run"])["weights"][:, RECALIBRATED] == 1).all()
    assert summary["accuracy"]["personal"] > 0.5


@pytest.mark.parametrize("engine", ["stacked", "one-by-one"])
def test_clients_with_next_to_no_records_recalibrate_too(engine: str, tmp_path: Path) -> None:
    case = Case(find("dp-fedavg")(), tmp_path, {"personal": "recalibrate"})
    keys = {"records": 14, "clients": 6, "partition": "iid", "engine": engine, "rounds": 1}
    summary, models = case.finished(case.prepared(**keys), tmp_path)
    assert summary["recalibrate"]["accuracy"]["recalibrated"] is not None
    # Where noise is large, the mean with their own models is taken even so.
    assert (models["weights"][:, RECALIBRATED] >= 0.5).all()
    assert torch.allclose(models["weights"].sum(dim=1), torch.ones(6))


@pytest.mark.parametrize("engine", ["stacked", "one-by-one"])
@pytest.mark.parametrize("sound", [True, False])
def test_clients_without_records_predict_with_a_model_that_did_not_overflow(
    engine: str, sound: bool, tmp_path: Path
) -> None:
    """With the server's as it is, or with the one that they would have begun to train."""
    prepared = Case(find("dp-fedavg")(), tmp_path).prepared(engine=engine, clients=6, noise_multiplier=0.01)
    server = (prepared.initial if sound else torch.full_like(prepared.initial, torch.nan)).reshape(1, -1)
    served = Served(server, torch.zeros(6, dtype=torch.int64), None)
    facts = (prepared.method, prepared.schedule, prepared.allowance, np.array([9] * 6), prepared.initial)
    message = instructions("recalibrate", *facts, served)
    first, *others = prepared.data.clients
    others = [dataclasses.replace(client, x=client.x[:0], y=client.y[:0]) for client in others]
    emptied = dataclasses.replace(prepared, data=dataclasses.replace(prepared.data, clients=[first, *others]))
    with single_threaded(), simulate(emptied, gate_of(emptied), tmp_path) as clients:
        for who in ([0, 1, 2], [3, 4]):
            answer = clients.blend(who, message)
            weights, powers, added = (answer.values[name] for name in ("weights", "powers", "offsets"))
            assert (weights[:, RECALIBRATED if sound else LOCAL] == 1).all()
            empty = [place for place, client in enumerate(who) if client]
            assert (powers[empty] == 1).all()
            assert (added[empty] == 0).all()


def test_stacked_and_one_by_one_agree(tmp_path: Path) -> None:
    case = Case(find("dp-fedavg")(), tmp_path, {"personal": "recalibrate"})
    alone = case.prepared(engine="one-by-one")
    stacked = dataclasses.replace(case.prepared(engine="stacked"), identity=alone.identity)
    _, models = case.finished(alone, tmp_path / "one")
    _, others = case.finished(stacked, tmp_path / "stacked")
    order, other = (found["blend_clients"].argsort() for found in (models, others))
    for key in ("blend", "powers", "offsets"):
        torch.testing.assert_close(models[key][order], others[key][other], atol=1e-3, rtol=1e-3)


def test_the_number_of_workers_changes_no_bit(tmp_path: Path) -> None:
    case = Case(find("dp-fedavg")(), tmp_path, {"personal": "recalibrate"})
    one, models = case.finished(case.prepared(workers=1), tmp_path / "one")
    two, others = case.finished(case.prepared(workers=2), tmp_path / "two")
    assert one == two
    for key in models:
        assert torch.equal(models[key], others[key])


@pytest.mark.parametrize("earlier", ["labels in the place of offsets", "other ways to train alone"])
def test_killed_while_it_recalibrates(earlier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece that is finished is not made again, one of an earlier version's rules is, and the end is that of a run
    that was not killed."""
    monkeypatch.setattr(
        "sordino.simulator.local_transport.Simulation.pieces", lambda self: [[3, 1], [0, 2], [4, 5, 6, 7]]
    )
    whole = api.run(store=tmp_path / "whole", **KEYS)

    def victim() -> None:
        die_at(blends, "_write", 2, "after")
        api.run(store=tmp_path / "killed", **KEYS)

    assert killed(victim)
    (row,) = Store(tmp_path / "killed").all()
    folder = tmp_path / "killed" / "runs" / row.run
    (first,) = folder.glob("blend-000000-*")
    tensors = load_file(first)
    if earlier.startswith("labels"):
        save_file(tensors | {"labels": tensors.pop("offsets")[:, 0].contiguous()}, folder / "earlier", blends.RULES_OF)
    else:
        save_file(tensors, folder / "earlier")  # as they were before pieces said by which rules they were made
    first.unlink()
    (folder / "earlier").rename(folder / f"blend-000000-{digest_of(folder / 'earlier')}.safetensors")
    asked: list[Sequence[int]] = []
    blend = Workers.blend

    def noted(workers: Workers, who: Sequence[int], message: Message) -> Answer:
        asked.append(who)
        return blend(workers, who, message)

    monkeypatch.setattr(Workers, "blend", noted)
    resume(row.run, Store(tmp_path / "killed"))
    assert asked == [[3, 1], [4, 5, 6, 7]]
    assert trace(tmp_path / "killed", row.run) == trace(tmp_path / "whole", whole["run"])


def test_the_command_line_says_what_clients_predict_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    given = ("--methods=local,dp-fedavg[personal=recalibrate]", "--clients=8", "--seeds=1", "--rounds=2")
    options = ("compare", *given, "--workers=1", "--set=epochs=1", "--store", tmp_path)
    alone, row = command(*options, "--json").document["rows"]
    assert alone["against_local"] is None
    (run,) = row["runs"]
    document = command("show", run, "--store", tmp_path, "--json").document
    assert set(document["recalibrate"]["accuracy"]) == {"recalibrated", "local", "own", "global"}
    counts = document["recalibrate"]["against_local"]
    assert counts == row["against_local"]
    assert (
        f"dp-fedavg[personal=recalibrate]: against the local models of the mixture alone, {against_words(counts)}."
        in (" ".join(command(*options).out.split()))
    )
    shown = " ".join(command("show", run, "--store", tmp_path).out.split())
    for words in ("recalibrated models (personal: recalibrate)", "local models alone", "A recalibrated model stays"):
        assert words in shown
    assert "personal=recalibrate" in command("runs", "--store", tmp_path).out
