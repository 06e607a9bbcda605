"""Tier 2 and tier 3: what one real run and the side channels tell of sound methods, and of broken ones."""

from __future__ import annotations

import contextlib
from typing import Any
from unittest import mock

import numpy as np
import pytest

import sordino
from sordino.auditing import client_canaries, one_run, side_channels
from sordino.auditing.findings import Attack, Finding
from sordino.auditing.recorded_run import record
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import Prepared, prepare
from sordino.privacy.accounting.gaussian import mu_of
from sordino.privacy.gate import Gate
from sordino.privacy.noise import Seeded
from sordino.privacy.views import VIEWS

SMALL: dict[str, Any] = {
    "method": "dp-fedavg",
    "clients": 8,
    "rounds": 4,
    "epsilon": 8.0,
    "delta": 1e-5,
    "model": "logistic",
    "records": 600,
    "partition": "iid",
    "set": {"epochs": 1, "batch": 80},
}


def prepared(**keys: Any) -> Prepared:
    return prepare(Experiment.make(SMALL, keys))


def attacked(**keys: Any) -> tuple[list[Attack], list[Finding]]:
    return one_run.attacks(record(prepared(**keys)))


def with_noise_times(factor: float) -> contextlib.ExitStack:
    """Less noise than is charged, wherever noise is drawn."""
    alone, together, stack = Seeded.normals, Seeded.rows, contextlib.ExitStack()
    stack.enter_context(mock.patch.object(Seeded, "normals", lambda self, *given: factor * alone(self, *given)))
    stack.enter_context(mock.patch.object(Seeded, "rows", lambda self, *given: factor * together(self, *given)))
    return stack


SLOW = [pytest.param(one, marks=pytest.mark.slow) for one in ("apfl", "feddpa", "fedglp-adp", "fedper", "mr-mtl")]


@pytest.mark.parametrize("name", ["dp-fedavg", *SLOW])
def test_canary_clients_in_one_run_are_consistent(name: str) -> None:
    """The estimate comes near the claim, and its bound at 99.9 % stays below it."""
    (attack, *others), findings = attacked(method=name)
    assert 2.0 < attack.bound < 11.0
    assert attack.surely < 8.0
    assert all(other.bound < 8.0 for other in others)
    assert "Steinke" in findings[0].sentence


def test_canary_clients_in_one_run_find_half_of_the_noise() -> None:
    with with_noise_times(0.5):
        found, _ = attacked()
    assert found[0].surely > 8.0
    assert [(attack.name, attack.view) for attack in found] == [
        ("canary clients in one run", "outsider"),
        ("canary clients by the final model", "outsider"),
        ("canary clients by another's personal model", "peer"),
    ]


@pytest.mark.parametrize("name", ["dp-ifca", *SLOW])
def test_what_another_predicts_with_tells_no_more_than_is_claimed(name: str) -> None:
    """A mixture, one of several models, shared layers: a peer's own model is all that the attack sees. With a
    thirtieth of the noise it tells more than is claimed."""
    sound = attacked(method=name, epsilon=2.0)[0][-1]
    with with_noise_times(0.03):
        broken = attacked(method=name, epsilon=2.0)[0][-1]
    assert (sound.view, sound.name) == ("peer", "canary clients by another's personal model")
    assert sound.surely < 2.0 < broken.surely


def test_canaries_are_told_apart_by_each_of_several_models_nearly_without_noise() -> None:
    """Of a message for several models, each holds a part of each direction: parts tell of other canaries too."""
    ready = prepared(method="dp-ifca", epsilon=2.0)
    size, layers = ready.learner.layout.size, ready.learner.layout.layers
    gate, random = Gate(ready.allowance, ready.source, ready.mechanism), np.random.default_rng(0)
    joined = one_run.Joined(gate, 0, ready.method.steps(), [], layers, size // 2, random)
    with with_noise_times(0.01):
        recorded = record(ready, 4, around=joined.around)
    models = recorded.state["models"]
    assert len(models) == 2
    for model in models:
        scores = one_run._along_models(joined, model, recorded)
        assert scores is not None
        assert scores[joined.coins].min() > scores[~joined.coins].max()


def test_canaries_are_there_by_secret_coins_and_orthogonal() -> None:
    ready = prepared()
    joined = one_run.Joined(record(ready).gate, 0, {}, [], [10], 40, np.random.default_rng(0))
    assert joined.coins.sum() == 20
    directions = joined._directions("update", 650).double().numpy()
    assert np.allclose(directions @ directions.T, np.eye(40), atol=1e-5)


TURNS: dict[str, Any] = {"clients": 10, "rounds": 5, "participation": 0.3}
"""Fifteen places for ten clients: five of them have two turns, the others one."""


@pytest.mark.parametrize("name", ["dp-fedavg", "dp-ifca", "fedper"])
def test_canaries_pay_for_as_many_turns_as_the_client_that_pays_most(name: str) -> None:
    """What all sums together tell of a canary is the mu^2 of epsilon 8, at which noise for two turns was planned."""
    ready = prepared(method=name, **TURNS)
    first, gate = record(ready), Gate(ready.allowance, ready.source, ready.mechanism)
    target, layers, random = client_canaries.target_of(first), ready.learner.layout.layers, np.random.default_rng(0)
    joined = one_run.Joined(gate, target, ready.method.steps(), [], layers, 40, random)
    recorded = record(ready, 4, around=joined.around)
    asked = [len(recorded.exchanges_of(client)) for client in range(10)]
    assert asked == [len(first.exchanges_of(client)) for client in range(10)], "every run has the same turns"
    assert sorted(asked) == [1] * 5 + [2] * 5
    assert asked[target] == 2
    assert joined.information == pytest.approx(mu_of(8.0, 1e-5) ** 2, rel=1e-4)
    assert recorded.ledger.spent[VIEWS.index("outsider"), target] == pytest.approx(joined.information, rel=1e-4)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("participation", [0.2, 0.5])
def test_canary_clients_that_take_turns_refute_half_of_the_noise_and_nothing_true(
    participation: float, seed: int
) -> None:
    """In every round they would tell 2 to 5 times the mu^2 that is claimed."""
    keys: dict[str, Any] = {"clients": 20, "rounds": 10, "participation": participation, "seed": seed}
    (sound, *others), _ = attacked(**keys)
    with with_noise_times(0.5):
        broken = attacked(**keys)[0][0]
    assert 2.0 < sound.bound < 11.0
    assert sound.paid == pytest.approx(8.0)
    assert sound.surely < 8.0 < broken.surely
    assert all(other.bound < 8.0 for other in others)


@pytest.mark.parametrize(("name", "attack"), [("dp-fedavg", "_of_clients"), ("dp-fedavg-record", "_of_records")])
def test_canaries_stand_for_a_client_with_most_turns(name: str, attack: str) -> None:
    first = record(prepared(method=name, **TURNS))
    with mock.patch.object(one_run, attack, return_value=([], [])) as called:
        one_run.attacks(first)
    asked = [len(first.exchanges_of(client)) for client in range(10)]
    assert asked[called.call_args.args[1]] == 2
    assert asked[0] == 1, "else the first of all would do"


@pytest.mark.parametrize(("rounds", "participation"), [(4, 1.0), (10, 0.4)])
def test_canary_records_in_one_run_are_consistent_and_find_missing_noise(rounds: int, participation: float) -> None:
    """Each client has four turns."""
    keys: dict[str, Any] = {"method": "dp-fedavg-record", "epsilon": 2.0, "clients": 10}
    keys |= {"rounds": rounds, "participation": participation}
    found, _ = attacked(**keys)
    assert all(attack.surely < 2.0 for attack in found)
    assert found[-1].name == "canary records by another's personal model"
    with with_noise_times(0.02):
        broken, _ = attacked(**keys)
    assert min(attack.bound for attack in broken[:-1]) > max(0.3, *(attack.bound for attack in found))


@pytest.mark.parametrize("name", ["dp-fedavg", "feddpa", "fedglp-adp"])
def test_side_channels_of_sound_methods_tell_nothing(name: str) -> None:
    recorded = record(prepared(method=name, rounds=2, epsilon=1.0))
    found = side_channels.attacks(recorded, 600)
    assert {attack.view for attack in found} == {"server"}, "nobody else sees single messages"
    claimed = recorded.ledger.epsilon(1e-5)
    assert all(attack.surely <= claimed[attack.view] for attack in found)


def test_side_channels_keep_a_records_place() -> None:
    """Half of the copies hold a canary where nothing stands at the others; all else is where it was."""
    data, coins = prepared(method="dp-fedavg-record").data, np.array([True, False])
    with_it, without = side_channels._copies(data, 3, coins, np.nan).clients
    assert with_it.x[1:].equal(without.x[1:])
    assert with_it.x[1:].equal(data.clients[3].x[1:])
    assert without.x[0].isnan().all()
    assert with_it.x[0].abs().min() == 3 * data.clients[3].x.abs().max()


@pytest.mark.parametrize("variant", ["sound", "paper"])
def test_side_channels_of_methods_for_records_can_be_looked_at(variant: str) -> None:
    recorded = record(prepared(method="adadp-cfl", rounds=1, clients=3, epsilon=1.0, variant=variant))
    found = side_channels.attacks(recorded, 60)
    claimed = recorded.ledger.epsilon(1e-5)
    assert all(attack.surely <= claimed[attack.view] for attack in found)


def test_more_copies_reach_further() -> None:
    assert side_channels.largest_refutable(400) < 2.6 < side_channels.largest_refutable(4000)


def test_an_audit_from_python() -> None:
    found = sordino.audit(trials=2000, tiers=(1,), **SMALL)
    assert found["views"]["outsider"]["refuted"] is False
    assert found["views"]["outsider"]["claimed"] == pytest.approx(8.0)
