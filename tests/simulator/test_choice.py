"""The choice of engine and processes: made from the network and a measurement, and told in sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import command
from torch import nn

from sordino.config import Experiment
from sordino.errors import UserError
from sordino.experiment import Prepared, prepare
from sordino.parameters import flatten
from sordino.simulator import choice
from sordino.training import Batch, Learner, cross_entropy


def prepared(**keys: Any) -> Prepared:
    return prepare(Experiment.make({"data": "digits", "clients": 8, "method": "dp-fedavg"} | keys))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [({"stacked": 1e-5, "one-by-one": 1e-4}, "stacked"), ({"stacked": 1e-3, "one-by-one": 1e-4}, "one-by-one")],
)
def test_what_is_measured_decides(
    seconds: dict[str, float], expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(choice, "seconds_of_a_step", lambda *_: seconds)
    found = prepared(store=tmp_path)
    assert found.choice.engine == found.experiment.engine == expected
    assert "100 microseconds for a client by itself" in found.choice.reasons[0]


def test_the_measurement_sees_that_small_networks_gain(tmp_path: Path) -> None:
    seconds = choice.seconds_of_a_step(*_parts(prepared(store=tmp_path, clients=50)), 16, 50)
    assert 0 < seconds["stacked"] < seconds["one-by-one"]


def _parts(found: Prepared) -> tuple[Any, Any, Any]:
    return found.learner, found.data, found.initial


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"method": "dp-fedavg-record"}, "record level"),
        ({"clients": 8, "participation": 0.125}, "only one"),
        ({"precision": "bf16"}, "too large to be stacked"),
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
    why = choice.why_not_stacked(prepared(store=tmp_path).method, Learner(module), 8)
    assert why is not None
    assert type(layer).__name__ in why


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
        ({"method": "dp-fedavg-record", "engine": "stacked"}, "one by one"),
    ],
)
def test_what_does_not_go_together_is_refused(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        prepared(store=tmp_path, **keys)


def test_bf16_changes_the_layers_and_nothing_else() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 5))
    batch = Batch(torch.randn(16, 32), torch.randint(0, 5, (16,)), torch.arange(16), None)
    flat = flatten(module)
    exact = Learner(module).gradient(flat, batch, cross_entropy)
    coarse = Learner(module, "bf16").gradient(flat, batch, cross_entropy)
    assert coarse.dtype == torch.float32
    error = (coarse - exact).norm() / exact.norm()
    assert 1e-4 < error < 0.1  # bf16 has eight bits of precision


def test_a_run_tells_how_it_is_executed(tmp_path: Path) -> None:
    quick = ("--clients=4", "--rounds=1", "--set=epochs=1", f"--store={tmp_path}")
    shown = command("run", *quick, "--explain")
    assert "Clients are trained" in shown.out
    assert "microseconds" in shown.out
    document = command("run", *quick, "--explain", "--json").document
    assert any("Clients are trained" in sentence for sentence in document["execution"])
    assert "execution" not in command("run", *quick, "--json").document
