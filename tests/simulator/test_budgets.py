"""Runs that end early: budgets that are used up, and methods that break out of their loop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from helpers import command
from killing import die_at, killed, trace
from torch import Tensor

from sordino.api import load_models, run
from sordino.experiment import run as running
from sordino.federation import server
from sordino.federation.server import Server
from sordino.method import Federation
from sordino.methods.dp_fedavg import DPFedAvg
from sordino.privacy.accounting.gaussian import epsilon_of, mu_of
from sordino.privacy.ledger import Ledger
from sordino.store.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")

RECORDS: dict[str, Any] = {
    **{"method": "dp-fedavg-record", "clients": 4, "partition": "iid", "workers": 1, "noise_multiplier": 2.0},
    **{"participation": 0.25, "rounds": 12},
}
SETTINGS = {"epochs": 1, "batch": 64}


def curve(store: Path, name: str) -> list[dict[str, Any]]:
    return Store(store).curve(name)


def test_a_run_goes_on_while_anybody_has_budget(tmp_path: Path) -> None:
    result = run(store=tmp_path, **RECORDS, set=SETTINGS | {"budgets": "1.8,60,60,60"})
    assert [row["cohort"] for row in curve(tmp_path, result["run"])] == [1] * 12
    assert result["rounds_done"] == 12
    assert result["stopped_clients"] == [0]
    turns = [row["round"] for row in Store(tmp_path).clients(result["run"]) if row["client"] == 0]
    assert len(turns) == 2  # 12 rounds for 4 clients would be 3 turns
    (note,) = [note for note in result["notes"] if "used up" in note]
    assert f"client-0 after round {turns[-1] + 1}." in note
    others = [row["client"] for row in Store(tmp_path).clients(result["run"]) if row["client"]]
    assert sorted(others.count(client) for client in (1, 2, 3)) == [3, 3, 4]


def test_clients_that_never_take_part_are_told(tmp_path: Path) -> None:
    result = run(store=tmp_path, **(RECORDS | {"rounds": 2}), set=SETTINGS | {"budgets": "0.1,60,60,60"})
    took = {row["client"] for row in Store(tmp_path).clients(result["run"])}
    (unreached,) = {1, 2, 3} - took
    assert "Budgets too small for a single round; these never took part: client-0." in result["notes"]
    assert f"Rounds too few to reach everybody; these never took part: client-{unreached}." in result["notes"]


def test_clients_are_told_by_their_names(tmp_path: Path) -> None:
    for name in ("north", "south"):
        np.savez(tmp_path / f"{name}.npz", x=np.eye(40, 5, dtype=np.float32), y=np.arange(40) % 2)
    own = {"data": str(tmp_path), "clients": None, "partition": None, "rounds": 1, "participation": 1.0}
    result = run(store=tmp_path / "store", **(RECORDS | own), set=SETTINGS | {"budgets": "60,0.1"})
    assert "Budgets too small for a single round; these never took part: south." in result["notes"]


EARLY: dict[str, Any] = RECORDS | {"set": SETTINGS | {"budgets": "0.1,0.1,1.8,1.8"}}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_that_ended_early_can_be_resumed(when: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(server, "SAVE_SECONDS", 0)
    whole = run(store=tmp_path / "whole", evaluate_every=5, **EARLY)
    assert 0 < whole["rounds_done"] < 12
    assert f"The run ended after {whole['rounds_done']} of 12 rounds: everybody's budget was used up." in whole["notes"]
    assert whole["accuracy"]["start"] is not None  # the last round that took place was evaluated

    def victim() -> None:
        die_at(running._Session, "_save_models", 1, when)
        run(store=tmp_path / "killed", evaluate_every=5, **EARLY)

    assert killed(victim)
    (row,) = Store(tmp_path / "killed").all()
    # The last round is saved together with what the run came to.
    assert (row.state, row.rounds_done) == ("stopped", whole["rounds_done"] - 1)
    outcome = command("resume", row.run, "--store", tmp_path / "killed", "--json")
    assert outcome.code == 0, outcome.err
    assert trace(tmp_path / "killed", row.run) == trace(tmp_path / "whole", whole["run"])


@dataclass(frozen=True)
class Leaving(DPFedAvg):
    """DP-FedAvg that ends its run in the fourth round."""

    title: ClassVar[str] = "leaves early"
    leave: str = "break"
    """How it leaves."""

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(model=model, threshold=self.threshold.begin(fed, self.clip))
        rounds = iter(fed.rounds(server))
        for number in rounds:
            if self.leave == "idle" and number == 3:
                break
            got = fed.ask(fed.sample(), self.local, {"global": server.model, "clip": server.threshold["clip"]})
            server.model = server.model + got.mean("update")
            if number == 3 and self.leave == "return":
                return
            if number == 3 and self.leave != "idle":
                break
        if self.leave == "again":
            for number in fed.rounds(server):
                got = fed.ask(fed.sample(), self.local, {"global": server.model, "clip": server.threshold["clip"]})
                server.model = server.model + got.mean("update")
                if number == 5:
                    break
        if self.leave == "late":
            fed.ask(fed.sample(), self.local, {"global": server.model, "clip": server.threshold["clip"]})


@dataclass(frozen=True)
class Asking(DPFedAvg):
    """A method that never begins a round."""

    def run(self, fed: Federation, model: Tensor) -> None:
        fed.state(model=model)


OWN: dict[str, Any] = {
    **{"method": "test_budgets:Leaving", "clients": 6, "rounds": 8, "partition": "iid", "workers": 1},
    "engine": "stacked",
}
DONE = {"break": 4, "return": 4, "idle": 3, "again": 6, "late": 4}


def own(leave: str, store: Path) -> dict[str, Any]:
    return run(store=store, set={"epochs": 1, "batch": 64, "leave": leave}, **OWN)


@pytest.mark.parametrize("leave", DONE)
def test_a_method_that_leaves_its_loop_loses_nothing(leave: str, tmp_path: Path) -> None:
    result = own(leave, tmp_path)
    rounds, stored = curve(tmp_path, result["run"]), Store(tmp_path).ledger(result["run"])
    assert [row["round"] for row in rounds] == list(range(DONE[leave]))
    assert all(row["personal"] is not None for row in rounds)
    assert Ledger(6, rows=stored).epsilon(result["delta"]) == pytest.approx(result["charged"])
    # Who asks twice in a round may do so in each: mu^2 of the plan is twice that of a budget of 8.
    twice = epsilon_of(math.sqrt(2) * mu_of(8, result["delta"]), result["delta"])
    assert result["epsilon"]["outsider"] == pytest.approx(twice if leave == "late" else 8.0)
    assert len(stored) == DONE[leave] + (leave == "late")
    assert (result["rounds_done"], Store(tmp_path).get(result["run"]).rounds_done) == (DONE[leave], DONE[leave])
    assert f"The run ended after {DONE[leave]} of 8 rounds." in result["notes"]
    assert any(one.startswith("Epsilon is that of the whole plan") for one in result["notes"])


MOMENTS: dict[str, tuple[Any, str, int, str]] = {
    "before the round is closed": (Server, "_close", 4, "before"),
    "after the round is closed": (Server, "_close", 4, "after"),
    "before the models": (running._Session, "_save_models", 1, "before"),
    "after the models": (running._Session, "_save_models", 1, "after"),
    "before the last transaction": (Store, "advance", 4, "before"),
    "after the last transaction": (Store, "advance", 4, "after"),
}


@pytest.mark.usefixtures("one_nonce")
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("leave", ["break", "return"])
def test_such_a_method_killed_at_any_moment(
    leave: str, moment: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(server, "SAVE_SECONDS", 0)
    whole = own(leave, tmp_path / "whole")

    def victim() -> None:
        die_at(*MOMENTS[moment])
        own(leave, tmp_path / "killed")

    assert killed(victim)
    (row,) = Store(tmp_path / "killed").all()
    assert command("resume", row.run, "--store", tmp_path / "killed", "--json").code == 0
    assert trace(tmp_path / "killed", row.run) == trace(tmp_path / "whole", whole["run"])


def test_a_method_without_rounds_keeps_its_first_model(tmp_path: Path) -> None:
    result = run(store=tmp_path, **(OWN | {"method": "test_budgets:Asking"}))
    assert result["rounds_done"] == 0
    assert len(load_models(result["run"], tmp_path).shared) == 1
