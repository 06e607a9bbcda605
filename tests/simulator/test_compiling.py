"""Whether a run is compiled, and that it does not matter who does the work."""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from sordino import models
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.experiment.run import start
from sordino.planning.situation import situation_of
from sordino.privacy.clipping import CompiledSum
from sordino.simulator import choice as compiling
from sordino.simulator.step_cost import EAGER_LAYER, EAGER_OUTPUT, EAGER_PRODUCT, eager_seconds
from sordino.store.store import Store


def experiment(folder: Path, **keys: Any) -> Experiment:
    defaults = {
        "data": "digits",
        "clients": 4,
        "partition": "iid",
        "model": "mlp",
        "rounds": 2,
        "noise_multiplier": 2.0,
        "workers": 1,
        "store": folder,
        "method": "dp-fedavg-record",
        "engine": "one-by-one",
    }
    return Experiment.make(defaults | {"set": {"epochs": 1, "batch": 80}} | keys)


def made(*_: Any) -> CompiledSum:
    return CompiledSum(lambda flat, x, y, clip: torch.zeros_like(flat), thresholds=1)


def impossible(*_: Any) -> CompiledSum:
    raise UserError("The training step of this network cannot be compiled here: no compiler.")


@pytest.fixture
def it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "COMPILING", 0.0)


def test_short_runs_are_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "compile_for", pytest.fail)
    assert prepare(experiment(tmp_path)).experiment.compiled == "never"
    assert prepare(experiment(tmp_path, method="dp-fedavg")).experiment.compiled == "never"


@pytest.mark.parametrize(("seconds", "choice"), [(0.1, "always"), (0.001, "never")])
def test_long_runs_are_compiled_when_it_pays(
    seconds: float, choice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 clients, 400 rounds of 5 steps: 8,000 steps, of which a quarter is saved; compiling takes 40 seconds."""
    monkeypatch.setattr(compiling, "compile_for", made)
    monkeypatch.setattr(compiling, "eager_seconds", lambda *_: seconds)
    prepared = prepare(experiment(tmp_path, rounds=400))
    plan = prepared.allowance.of_records
    assert (plan.steps * plan.turns).sum() == 8000
    assert prepared.experiment.compiled == choice
    assert (prepared.compiled is not None) == (choice == "always")


def test_the_choice_does_not_depend_on_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One wide network in runs that are just long enough and just too short."""
    monkeypatch.setattr(compiling, "compile_for", made)
    wide = {"epochs": 1, "batch": 80, "model.hidden": 4096}
    step = eager_seconds(models.build("mlp", (1, 8, 8), 10, hidden=4096), (1, 8, 8), 80)
    enough = math.ceil(compiling.COMPILING / (compiling.SAVED * step * 20))  # a round has 4 clients with 5 steps each
    for random in (Random(1), Random(2)):
        for clock in ("perf_counter", "process_time", "monotonic", "time"):
            monkeypatch.setattr(time, clock, lambda random=random: random.uniform(-1e6, 1e6))
        for rounds, choice in ((enough + 1, "always"), (enough - 1, "never")):
            prepared = prepare(experiment(tmp_path, rounds=rounds, set=wide))
            assert prepared.experiment.compiled == choice
            assert any("by rule" in reason for reason in prepared.choice.reasons)


def test_the_cost_of_an_eager_step_by_hand() -> None:
    """A convolution of 3x3 on two channels gives 4 maps of 2x2 numbers, of 18 products each; then 16 numbers to 5."""
    module = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(16, 5))
    outputs, products = 16 + 5, 16 * 18 + 5 * 16
    expected = 2 * EAGER_LAYER + 7 * (products * EAGER_PRODUCT + outputs * EAGER_OUTPUT)
    assert eager_seconds(module, (2, 4, 4), 7) == pytest.approx(expected)
    assert module.training
    assert not module[0]._forward_hooks


@pytest.mark.usefixtures("it_pays")
def test_where_compiling_fails_auto_stays_eager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "compile_for", impossible)
    assert prepare(experiment(tmp_path)).experiment.compiled == "never"
    with pytest.raises(UserError, match="no compiler"):
        start(prepare(experiment(tmp_path, compiled="always")))
    assert Store(tmp_path).all() == [], "nothing is written for a run that cannot begin"


@pytest.mark.parametrize("keys", [{"method": "dp-fedavg"}, {"device": "cuda"}])
def test_always_is_for_record_level_methods_on_the_cpu(
    keys: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sordino.experiment.prepare.check_device", lambda name: None)  # as if there were one
    with pytest.raises(UserError, match="record-level methods on the CPU"):
        prepare(experiment(tmp_path, compiled="always", **keys))


def test_advice_on_a_compiled_run_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "compile_for", pytest.fail)
    compiled = experiment(tmp_path, compiled="always", noise_multiplier=None, epsilon=8)
    assert situation_of(compiled, None, None, look=True).size > 1


@pytest.mark.usefixtures("it_pays")
def test_a_run_keeps_its_choice_and_its_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run repeats the same numbers. Otherwise compiled it would round otherwise, so it draws other noise: the
    difference of two runs must not be rid of it."""
    monkeypatch.setattr(compiling, "compile_for", made)
    whole = {"epochs": 1, "batch": 1000}  # all records at each step: the price is known without distributions
    summary = start(prepare(experiment(tmp_path, set=whole)))
    row = Store(tmp_path).get(summary.run)
    assert row.configuration["compiled"] == "always"
    for same in ("auto", "always"):
        assert row.identity == prepare(experiment(tmp_path, set=whole, compiled=same)).identity
    assert row.identity != prepare(experiment(tmp_path, set=whole, compiled="never")).identity


@pytest.mark.slow
def test_workers_share_what_was_compiled(tmp_path: Path) -> None:
    def models(name: str, **keys: Any) -> dict[str, torch.Tensor]:
        chosen = experiment(tmp_path / name, **keys)
        prepared = dataclasses.replace(prepare(chosen), identity="one for all")  # the same noise, compiled or not
        return load_file(chosen.store / "runs" / start(prepared).run / "models.safetensors")

    alone, two = models("one", compiled="always"), models("two", compiled="always", workers=2)
    eager = models("eager", compiled="never")
    for key, value in alone.items():
        assert torch.equal(value, two[key]), key
        assert torch.allclose(value, eager[key], atol=1e-5), key
