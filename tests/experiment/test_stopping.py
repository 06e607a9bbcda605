"""A run whose end, or whose questions, answers may have chosen is told with the epsilon of its whole plan."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from helpers import QUICK_KEYS, command
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.api import run
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.federation.rounds import RoundReport
from sordino.method import Result
from sordino.methods.adadp_cfl import AdaDPCFL
from sordino.methods.dp_fedavg import DPFedAvg
from sordino.methods.dp_fedavg_record import DPFedAvgRecord
from sordino.privacy.accounting.gaussian import attack_accuracy, epsilon_of
from sordino.privacy.ledger import Ledger, Row
from sordino.privacy.release import Charge, Number, Update, sends
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS
from sordino.report.statement import statement_of
from sordino.store.ledger_rows import Account
from sordino.store.spending import over_runs, planned, sum_up
from sordino.store.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")

DELTA = 1e-5
ROUNDS = 6
KEYS: dict[str, Any] = QUICK_KEYS | {"noise_multiplier": 2.0, "delta": DELTA, "rounds": ROUNDS}
MU = math.sqrt(ROUNDS) / 2
"""Cost of all planned rounds for the outsider: each is mu = 1/2."""


class Breaking(DPFedAvg):
    """Ends after two rounds."""

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(model=model)
        for number in fed.rounds(server):
            self.ask(fed, number, {"global": server.model, "clip": 1.0})
            if number == 1:
                break

    def ask(self, fed: Any, number: int, message: Any) -> None:
        fed.ask(fed.sample(), self.local, message)


class Exposing(Breaking):
    """Reads single messages without declaring it, and ends after two rounds."""

    def ask(self, fed: Any, number: int, message: Any) -> None:
        fed.ask(fed.sample(), self.local, message).rows("update")


class Skipping(Breaking):
    """Goes through all rounds, and asks in two of them."""

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(model=model)
        for number in fed.rounds(server):
            if number < 2:
                self.ask(fed, number, {"global": server.model, "clip": 1.0})


class Choosing(Skipping):
    """Asks fewer than have a turn from the third round on."""

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(model=model)
        for number in fed.rounds(server):
            who = fed.sample() if number < 2 else fed.sample()[: 7 - number]
            fed.ask(who, self.local, {"global": server.model, "clip": 1.0})


class Pinging(DPFedAvg):
    """Asks for a number that costs next to nothing in each round, and for updates in `dear` rounds."""

    dear: ClassVar[int] = ROUNDS

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(model=model)
        for number in fed.rounds(server):
            fed.ask(fed.sample(), self.ping, {"global": server.model})
            if number < self.dear:
                fed.ask(fed.sample(), self.local, {"global": server.model, "clip": 1.0})

    @sends(lambda self: {"told": Number(0.0, 1.0, share=0.001)})
    def ping(self, message: Any, me: Any, data: Any) -> Result:
        return Result(send={"told": message["global"][0] * 0}, keep={})

    @sends(lambda self: {"update": Update(clip="clip", share=0.999)})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        return Result(send={"update": 0 * message["global"]}, keep={"model": message["global"]})


class PingingTwice(Pinging):
    dear = 2


class PingingOnly(Pinging):
    dear = 0


class ReadingOnce(DPFedAvg):
    """Reads single messages in one of the rounds."""

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(model=model)
        for number in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model, "clip": 1.0})
            if number == 1:
                got.rows("update")


class Reading(DPFedAvg):
    """Reads single messages in all rounds."""

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(model=model)
        for _ in fed.rounds(server):
            fed.ask(fed.sample(), self.local, {"global": server.model, "clip": 1.0}).rows("update")


class NeverAsking(Breaking):
    """Ends before it asks anybody."""

    def run(self, fed: Any, model: Any) -> None:
        for _ in fed.rounds(fed.state(model=model)):
            break


class AskingTwice(Breaking):
    """Asks everybody twice in each round."""

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(model=model)
        for number in fed.rounds(server):
            for _ in range(2):
                self.ask(fed, number, {"global": server.model, "clip": 1.0})


class NeverGrouping(AdaDPCFL):
    """Never asks for the matrices that it declares."""

    def _group(self, fed: Any, server: Any, model: Any) -> None:
        pass

    def pictures(self, state: Any, folder: Path) -> None:
        pass


class BreakingForRecords(DPFedAvgRecord):
    """Ends after a round."""

    def run(self, fed: Any, model: Any) -> None:
        server = fed.state(model=model)
        for _ in fed.rounds(server):
            fed.ask(fed.sample(), self.local, {"global": server.model, "clip": 1.0})
            break


def own(kind: type) -> str:
    return f"{__name__}:{kind.__name__}"


@pytest.mark.parametrize("kind", [Breaking, Skipping])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_a_method_that_may_have_chosen_its_end_costs_its_plan(kind: type, participation: float, tmp_path: Path) -> None:
    keys = KEYS | {"method": own(kind), "participation": participation}
    result = run(store=tmp_path, **keys)
    turns = ROUNDS * participation
    whole, charged = (epsilon_of(math.sqrt(times) / 2, DELTA) for times in (turns, 2 * participation))
    assert result["epsilon"]["outsider"] == pytest.approx(whole)
    assert result["charged"]["outsider"] == pytest.approx(charged)
    assert result["attack_accuracy"]["outsider"] == pytest.approx(attack_accuracy(math.sqrt(turns) / 2))
    plan = planned(prepare(Experiment.make(keys, {"store": tmp_path})))
    assert result["spent"]["mu"] == pytest.approx(plan["mu"])
    (told,) = (note for note in result["notes"] if "whole plan" in note)
    assert "what was charged so far" in told
    store = Store(tmp_path)
    assert Account.of(store, result["run"]).disagreements() == []
    assert statement_of(store, result["run"]).observers[0].epsilon == result["epsilon"]["outsider"]
    shown = command("show", result["run"], "--store", tmp_path, "--json").document
    assert shown["epsilon"] == result["epsilon"]
    (listed,) = command("runs", "--store", tmp_path, "--json").document
    assert listed["epsilon"] == result["epsilon"]["outsider"]


def test_a_cheap_release_excuses_no_dear_one(tmp_path: Path) -> None:
    """Whoever goes on asking for next to nothing has left off all the same."""
    keys = KEYS | {"noise_multiplier": None, "epsilon": 8.0}
    whole, twice, never = (
        run(store=tmp_path, method=own(kind), **keys) for kind in (Pinging, PingingTwice, PingingOnly)
    )
    assert "charged" not in whole
    assert whole["epsilon"]["outsider"] == pytest.approx(8.0, rel=1e-3)
    for early in (twice, never):
        assert early["epsilon"]["outsider"] >= whole["epsilon"]["outsider"] * (1 - 1e-9)
        assert early["charged"]["outsider"] < 6


def test_single_messages_that_are_read_in_one_round_cost_as_if_in_all(tmp_path: Path) -> None:
    found = run(store=tmp_path, method=own(ReadingOnce), **KEYS)
    everywhere = run(store=tmp_path, method=own(Reading), **KEYS)
    assert found["epsilon"]["outsider"] >= everywhere["epsilon"]["outsider"] > found["charged"]["outsider"]


def test_a_choice_of_clients_costs_the_plan(tmp_path: Path) -> None:
    """Nobody was asked oftener than planned, and the smaller sums of the last rounds cost more."""
    result = run(store=tmp_path, **(KEYS | {"method": own(Choosing), "minimum_cohort": 2}))
    assert result["epsilon"]["outsider"] >= epsilon_of(MU, DELTA)
    assert result["epsilon"]["outsider"] > result["charged"]["outsider"]


def test_whoever_reads_single_messages_costs_the_server_s_plan(tmp_path: Path) -> None:
    """Eight shares of noise are in a sum, one in a message: mu is sqrt(8) times as large, in all rounds."""
    result = run(store=tmp_path, **(KEYS | {"method": own(Exposing)}))
    assert result["epsilon"] == pytest.approx(dict.fromkeys(VIEWS, epsilon_of(math.sqrt(8) * MU, DELTA)))


def test_what_is_asked_oftener_than_declared_is_not_as_planned(tmp_path: Path) -> None:
    result = run(store=tmp_path, **(KEYS | {"method": own(AskingTwice)}))
    assert result["charged"] == result["epsilon"] == pytest.approx(result["epsilon"])
    assert result["epsilon"]["outsider"] == pytest.approx(epsilon_of(math.sqrt(2) * MU, DELTA))


def test_what_was_declared_and_never_asked_for_costs_the_plan(tmp_path: Path) -> None:
    settings = {"set": KEYS["set"] | {"cluster_share": 0.5}, "noise_multiplier": None, "epsilon": 4, "rounds": 1}
    result = run(store=tmp_path, **(KEYS | settings | {"method": own(NeverGrouping)}))
    assert result["charged"]["server"] < 3.9 < result["epsilon"]["server"] <= 4


def test_a_result_below_what_was_charged_is_found(tmp_path: Path) -> None:
    name = run(store=tmp_path, **(KEYS | {"method": own(Breaking)}))["run"]
    found = Account.of(Store(tmp_path), name)
    assert found.row.summary is not None
    found.row.summary["epsilon"]["outsider"] = found.row.summary["charged"]["outsider"] / 2
    assert "less than the" in found.disagreements()[0]


def test_where_nothing_left_nothing_was_chosen(tmp_path: Path) -> None:
    result = run(store=tmp_path, **(KEYS | {"method": own(NeverAsking)}))
    assert result["epsilon"] == dict.fromkeys(VIEWS, 0)


def test_what_ends_as_scheduled_costs_what_was_charged(tmp_path: Path) -> None:
    result = run(store=tmp_path, **(KEYS | {"method": "dp-fedavg", "participation": 0.5}))
    assert "charged" not in result
    assert result["epsilon"]["outsider"] == pytest.approx(epsilon_of(math.sqrt(3) / 2, DELTA))


def test_records_of_a_run_that_ended_early_pay_the_plan(tmp_path: Path) -> None:
    keys = {key: value for key, value in KEYS.items() if key != "noise_multiplier"} | {"rounds": 3, "epsilon": 2}
    result = run(store=tmp_path, **(keys | {"method": own(BreakingForRecords)}))
    complete = run(store=tmp_path, **(keys | {"method": "dp-fedavg-record"}))
    assert result["charged"]["server"] < 1.8
    for figure in ("epsilon", "epsilon_clients", "attack_accuracy"):
        assert result[figure] == pytest.approx(complete[figure])
    assert result["epsilon_replace_one"] == pytest.approx(complete["epsilon_replace_one"])
    one, other = (sum_up([found["spent"]], Unit.RECORD, DELTA)["epsilon"]["server"] for found in (result, complete))
    assert one == pytest.approx(other)


@pytest.mark.slow
def test_budgets_that_are_used_up_by_schedule_cost_what_was_charged(tmp_path: Path) -> None:
    """Numbers of turns that clients' budgets pay for are public, and known before the first round."""
    budgets = {"set": KEYS["set"] | {"budgets": "1.5:0.5,3:0.5"}}
    result = run(store=tmp_path, **(KEYS | budgets | {"method": "dp-fedavg-record", "rounds": 40}))
    assert result["rounds_done"] < 40
    assert "charged" not in result
    assert result["epsilon"]["server"] <= 3


def row(number: int, clients: list[int], mu: float, entries: int = 0) -> Row:
    """A release that costs a client mu for the outsider and 1.5 and 2 times as much for a peer and the server."""
    noise = np.array([[1 / mu, 1 / (1.5 * mu), 1 / (2 * mu)]])
    return Row.of((number, number, "local", "update"), clients, Charge(np.ones(1), noise, entries=entries, shares=8))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.sets(st.integers(0, 3), min_size=1), st.floats(0.1, 2.0)), max_size=8),
    st.integers(6, 12),
    st.floats(0.0, 3.0),
)
def test_no_plan_is_below_what_was_charged_or_repeats_of_the_dearest_round(
    asked: list[tuple[int, set[int], float]], turns: int, floor: float
) -> None:
    ledger = Ledger(4, rows=[row(number, sorted(who), mu) for number, who, mu in sorted(asked, key=lambda one: one[0])])
    found = ledger.completed(6, turns, [floor] * 3)
    rounds = [[one for one in asked if one[0] == number] for number in range(6)]
    dearest = max(sum(mu**2 for _, who, mu in one if client in who) for one in rounds for client in range(4))
    by_hand = math.sqrt(max(turns * dearest, floor**2)) if asked else 0.0
    assert found.mu("outsider") == pytest.approx(by_hand)
    assert all(found.mu(view) >= ledger.mu(view) * (1 - 1e-12) for view in VIEWS)
    assert found.epsilon(DELTA)["server"] >= ledger.epsilon(DELTA)["server"]


def test_what_is_asked_behind_the_last_round_is_counted_once() -> None:
    """Two turns of mu 1 and one question of mu 3 behind them: mu^2 = 2 + 9; whole numbers alike."""
    ledger = Ledger(1, rows=[row(0, [0], 1.0, 10), row(6, [0], 3.0, 2)])
    found = ledger.completed(6, 2)
    assert found.mu("outsider") == pytest.approx(math.sqrt(11), rel=1e-3)
    assert found._entries["", 8].tolist() == [22]


def test_without_a_plan_records_are_taken_to_go_on_as_they_did() -> None:
    """A client that took part in two of three rounds, of five steps each, and would have six turns."""
    rows = [
        Row.of((n, n, "local", "model"), who, Charge.of_records("training", [(0.1, 1.5, 5)] * len(who), 0))
        for n, who in enumerate(([0, 1], [0], [1]))
    ]
    found = Ledger(2, Unit.RECORD, rows).completed(6, 6)
    assert found.recipes() == {((0.1, (1.5,) * 3, 30),)}


def test_a_stopped_run_that_read_single_messages_counts_with_the_server_s_plan(tmp_path: Path) -> None:
    """It does, though nothing in its plan says that it would read them."""

    def watch(report: RoundReport) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(store=tmp_path, watch=watch, **(KEYS | {"method": own(Exposing)}))
    store = Store(tmp_path)
    found = over_runs(store, store.all()[0].people, Unit.CLIENT, DELTA)["epsilon"]
    assert found == pytest.approx(dict.fromkeys(VIEWS, epsilon_of(math.sqrt(8) * MU, DELTA)))


def test_a_stopped_run_is_listed_as_planned(tmp_path: Path) -> None:
    def watch(report: RoundReport) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(store=tmp_path, watch=watch, **(KEYS | {"method": "dp-fedavg"}))
    (listed,) = command("runs", "--store", tmp_path, "--json").document
    assert listed["state"] == "stopped"
    assert listed["epsilon"] == pytest.approx(epsilon_of(MU, DELTA))
    assert "as planned" in command("runs", "--store", tmp_path).out
