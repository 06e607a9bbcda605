"""The choice of engine and processes: made by a rule from the sizes of network and batches, and told in sentences."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from helpers import command
from torch import nn

from sordino import models
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import Prepared, prepare
from sordino.learning.network import Learner
from sordino.simulator import choice, step_cost
from sordino.tasks import Classification


def prepared(**keys: Any) -> Prepared:
    return prepare(Experiment.make({"data": "digits", "clients": 8, "method": "dp-fedavg"} | keys))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [({"stacked": 1e-5, "one-by-one": 1e-4}, "stacked"), ({"stacked": 1e-3, "one-by-one": 1e-4}, "one-by-one")],
)
def test_what_costs_less_by_the_rule_is_chosen(
    seconds: dict[str, float], expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(choice, "seconds_of_a_step", lambda *_: seconds)
    found = prepared(store=tmp_path)
    assert found.choice.engine == found.experiment.engine == expected
    assert "100 microseconds for a client by itself" in found.choice.reasons[0]


@pytest.mark.parametrize(
    ("keys", "engine"),
    [
        ({}, "stacked"),
        ({"set": {"optimizer": "adam"}}, "stacked"),
        ({"model": "mlp", "set": {"model.hidden": 512, "optimizer": "adam"}}, "one-by-one"),
    ],
)
def test_the_choice_does_not_depend_on_the_clock(
    keys: dict[str, Any], engine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Networks whose optimizer remembers much are moved one by one: a stack of their memories fits into no cache."""
    chosen = []
    for random in (None, Random(1), Random(2)):
        if random is not None:
            for clock in ("perf_counter", "process_time", "monotonic", "time"):
                monkeypatch.setattr(time, clock, lambda random=random: random.uniform(-1e6, 1e6))
        found = prepared(store=tmp_path, **keys)
        chosen.append((found.choice, found.identity))
    assert chosen[0][0].engine == engine
    assert chosen[0] == chosen[1] == chosen[2]


@pytest.mark.parametrize(
    ("model", "here", "there"),
    [("lenet", "one-by-one", "stacked"), ("resnet9", "one-by-one", "stacked"), ("cnn", "one-by-one", "one-by-one")],
)
def test_convolutions_are_stacked_where_there_is_a_card(model: str, here: str, there: str) -> None:
    """Those of `cnn` have dropout between them, which draws from a stream that a stack would share."""
    found = prepared(model="mlp")
    learner = Learner(models.build(model, (1, 28, 28), 10), Classification.numbered(10))
    for device, engine in (("cpu", here), ("cuda", there)):
        wishes = found.experiment.model_copy(update={"engine": "auto", "device": device})
        chosen = choice.choose(wishes, found.method, learner, found.data, 4)
        assert chosen.engine == engine
    record_level = found.experiment.model_copy(
        update={"method": "dp-fedavg-record", "engine": "auto", "device": "cuda"}
    )
    assert choice.choose(record_level, record_level.build_method(), learner, found.data, 4).engine == "one-by-one"


def test_the_costs_of_a_step_by_hand() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    size = step_cost.Size.of(module, (2, 3), 5)
    assert size == step_cost.Size(parameters=6 * 4 + 4 + 4 * 3 + 3, layers=3, numbers=6, batch=5)
    cost = step_cost.Cost(step=1.0, layer=10.0, product=100.0, parameter=1000.0, number=10_000.0)
    each = 5 * (100 * 43 + 10_000 * 6) + 1000 * 43
    assert cost.seconds(size) == 31 + each
    assert cost.seconds(size, clients=10) == pytest.approx(3.1 + each)


def test_the_kind_of_network_and_optimizer_decides_what_steps_cost(tmp_path: Path) -> None:
    method = prepared(store=tmp_path).method
    chain, other = nn.Sequential(nn.Linear(4, 2)), nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(2))
    for module, is_chain in ((chain, True), (other, False)):
        for changes, is_plain in (({}, True), ({"momentum": 0.5}, False), ({"optimizer": "adam"}, False)):
            assert (
                step_cost.engine_costs(Learner(module, Classification.numbered(10)), replace(method, **changes))
                is step_cost.ENGINE_COSTS[is_chain, is_plain]
            )


def test_stacked_clients_wait_for_the_largest() -> None:
    """Steps of 1, 1, 2 and 6 batches: in two stacks 1 + 1 + 6 + 6 of them, in one 4 * 6, where 10 are needed."""
    sizes = np.array([60, 5, 20, 10])
    assert step_cost.padding(sizes, cohort=4, stacks=2, batch=10) == 1.4
    assert step_cost.padding(sizes, cohort=4, stacks=1, batch=10) == 2.4
    assert step_cost.padding(np.full(100, 20), cohort=10, stacks=2, batch=16) == 1.0


def test_a_step_of_uneven_clients(tmp_path: Path) -> None:
    """Eight clients train in two stacks of four; 64 numbers and one layer of 650 parameters."""
    found = prepared(store=tmp_path, partition="dirichlet:0.1")
    seconds = choice.seconds_of_a_step(found.method, found.learner, found.data, 8)
    waiting = step_cost.padding(found.data.train.sizes, 8, 2, 16)
    size, costs = step_cost.Size(650, 1, 64, 16), step_cost.ENGINE_COSTS[True, True]
    assert waiting > 1
    assert seconds == {"stacked": waiting * costs.stacked.seconds(size, 4), "one-by-one": costs.alone.seconds(size)}


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"method": "dp-fedavg-record", "set": {"clipping": "quantile"}}, "look at single records"),
        ({"method": "dp-fedavg-record", "compiled": "always"}, "compiled steps"),
        ({"clients": 8, "participation": 0.125}, "only one"),
        ({"engine": "one-by-one"}, "as the experiment says"),
    ],
)
def test_why_clients_are_trained_one_by_one(keys: dict[str, Any], reason: str, tmp_path: Path) -> None:
    found = prepared(store=tmp_path, **keys)
    assert found.choice.engine == "one-by-one"
    assert reason in found.choice.reasons[0]


@pytest.mark.parametrize("layer", [nn.Conv2d(1, 2, 3), nn.Dropout(0.5)])
def test_layers_that_gain_nothing_from_a_stack(layer: nn.Module, tmp_path: Path) -> None:
    module = nn.Sequential(layer, nn.Flatten(), nn.Linear(2, 2))
    why = choice.why_not_stacked(prepared(store=tmp_path).method, Learner(module, Classification.numbered(10)), 8)
    assert why is not None
    assert type(layer).__name__ in why


def test_at_record_level_chains_alone_are_stacked(tmp_path: Path) -> None:
    method = prepared(store=tmp_path, method="dp-fedavg-record").method
    for layer, stacks in ((nn.ReLU(), True), (nn.LayerNorm(64), False)):
        learner = Learner(
            nn.Sequential(nn.Flatten(), nn.Linear(64, 64), layer, nn.Linear(64, 10)), Classification.numbered(10)
        )
        assert (choice.why_not_stacked(method, learner, 8) is None) == stacks


def test_little_work_stays_in_one_process_unless_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(choice, "seconds_of_a_step", lambda *_: {"stacked": 1e-9, "one-by-one": 1.0})
    monkeypatch.setattr(Experiment, "process_count", lambda self: self.workers or 4)
    assert prepared(store=tmp_path).choice.workers == 1
    assert prepared(store=tmp_path, workers=3).choice.workers == 3
    monkeypatch.setattr(choice, "seconds_of_a_step", lambda *_: {"stacked": 1e-3, "one-by-one": 1.0})
    assert prepared(store=tmp_path).choice.workers == 4


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"precision": "bf16", "engine": "stacked"}, "one by one"),
        ({"precision": "bf16", "method": "dp-fedavg-record"}, "fp32"),
        ({"precision": "half"}, "precision"),
        ({"method": "dp-fedavg-record", "engine": "stacked", "set": {"clipping": "quantile"}}, "cannot be stacked"),
    ],
)
def test_what_does_not_go_together_is_refused(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        prepared(store=tmp_path, **keys)


def test_a_run_tells_how_it_is_executed(tmp_path: Path) -> None:
    quick = ("--clients=4", "--rounds=1", "--set=epochs=1", f"--store={tmp_path}")
    shown = command("run", *quick, "--explain")
    assert "Clients are trained" in shown.out
    assert "microseconds" in shown.out
    document = command("run", *quick, "--explain", "--json").document
    assert any("Clients are trained" in sentence for sentence in document["execution"])
    assert "execution" not in command("run", *quick, "--json").document
