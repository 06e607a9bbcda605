"""What is claimed holds: every method is audited by being listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import ALL, command, refused

from sordino.experiment.config import Experiment
from sordino.methods import find
from sordino.privacy.audit.findings import Report
from sordino.privacy.audit.whole import audit

SMALL: dict[str, Any] = {
    "clients": 6,
    "rounds": 3,
    "delta": 1e-5,
    "model": "logistic",
    "records": 600,
    "set": {"epochs": 1, "batch": 80},
}


def audited(method: str, variant: str = "sound", trials: int = 4000, tiers: Any = (0, 1), **keys: Any) -> Report:
    partition = "iid" if find(method).unit == "record" else "dirichlet:1"
    given = {"method": method, "variant": variant, "partition": partition, "epsilon": 2.0}
    return audit(Experiment.make(SMALL, given, keys), trials, tiers)


SOUND = [name for name, variant in ALL if variant == "sound"]


@pytest.mark.parametrize("name", SOUND)
def test_every_sound_method_is_consistent_with_a_small_audit(name: str) -> None:
    report = audited(name)
    assert not report.refuted, report.asdict()
    assert not report.findings
    for view in report.views.values():
        if np.isfinite(view.claimed) and view.claimed > 0:
            assert view.bound > 0.3 * view.claimed, "the attack is too weak to say anything"


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "share"), [(1.0, 0.85), (2.0, 0.93), (8.0, 0.95)])
def test_a_hundred_thousand_trials_come_near_the_claim(epsilon: float, share: float) -> None:
    report = audited("dp-fedavg", trials=100_000, tiers=(1,), epsilon=epsilon, rounds=4)
    assert not report.refuted
    assert report.views["outsider"].bound >= share * epsilon


def test_the_command_prints_what_scripts_rely_on(tmp_path: Path) -> None:
    options = ("--clients=6", "--rounds=2", "--epsilon=2", "--delta=1e-5", "--trials=2000", "--tiers=0,1")
    outcome = command("audit", "--method=dp-fedavg", "--data=digits", *options, "--json", "--store", tmp_path)
    assert outcome.code == 0, outcome
    found = json.loads(outcome.out)
    assert {"method", "variant", "unit", "delta", "views", "findings"} <= found.keys()
    assert (found["method"], found["variant"], found["unit"], found["delta"]) == ("dp-fedavg", "sound", "client", 1e-5)
    for view in found["views"].values():
        assert {"claimed", "bound", "confidence", "refuted"} <= view.keys()
        assert view["refuted"] is False
        assert 0 < view["bound"] < 1.2 * view["claimed"]
    (stored,) = (tmp_path / "audits").glob("*.json")
    pictures = json.loads(stored.read_text())["views"]["outsider"]["pictures"]
    assert sum(pictures["scores"]["in"]) == sum(pictures["scores"]["out"])
    assert pictures["tradeoff"].keys() == {"false_positives", "claimed", "attacked"}


def test_a_published_claim_is_refuted_with_exit_code_one(tmp_path: Path) -> None:
    options = ("--clients=10", "--rounds=3", "--epsilon=2", "--trials=4000", "--tiers=1", "--store", tmp_path)
    outcome = command("audit", "--method=feddpa", "--variant=paper", *options)
    assert outcome.code == 1
    assert "REFUTED" in outcome.out


def test_an_experiment_file_is_audited(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text('method = "dp-fedavg-record"\nclients = 4\nrounds = 2\nepsilon = 2\npartition = "iid"\n')
    outcome = command("audit", file, "--trials=2000", "--tiers=1", "--store", tmp_path, "-o", tmp_path / "found.json")
    assert outcome.code == 0, outcome
    assert "consistent" in outcome.out
    assert json.loads((tmp_path / "found.json").read_text())["unit"] == "record"


def test_wrong_tiers_are_refused() -> None:
    assert "--tiers wants" in refused("audit", "--tiers=0,9")
