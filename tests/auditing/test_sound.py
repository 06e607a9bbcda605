"""What is claimed holds: every method is audited by being listed."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import ALL, KINDS, command, otherwise_slow, refused

from sordino.auditing.findings import Report
from sordino.auditing.suite import audit
from sordino.auditing.suite import audit_prepared as attack
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.methods import find

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
AUDITED = (*KINDS, "fedglp-adp", "acdp-pfsd", "dp-scaffold", "fedavg")


@pytest.mark.parametrize("name", otherwise_slow(SOUND, AUDITED.__contains__))
def test_every_sound_method_is_consistent_with_a_small_audit(name: str) -> None:
    report = audited(name, trials=8000 if find(name).unit == "record" else 4000)
    assert not report.refuted, report.asdict()
    assert not report.findings
    for view in report.views.values():
        if np.isfinite(view.claimed) and view.claimed > 0:
            assert view.bound > 0.2 * view.claimed, "the attack is too weak to say anything"


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("dp-fedavg", {"participation": 0.5, "colluders": 1}),
        ("dp-fedavg", {"protect_from": "server", "set": {"clipping": "quantile"}}),
        pytest.param("fedglp-adp", {"model": "mlp", "minimum_cohort": 4}, marks=pytest.mark.slow),
        ("dp-fedavg-record", {"set": {"clipping": "quantile", "batch": 16}}),
        pytest.param(
            "adadp-cfl",
            {"epsilon": 20.0, "set": {"cluster_share": 0.3, "batch": 16, "clipping": "quantile"}},
            marks=pytest.mark.slow,
        ),
        pytest.param("pac-dp", {"set": {"budgets": "1:0.5,4:0.5"}}, marks=pytest.mark.slow),
    ],
)
def test_other_choices_are_consistent_too(name: str, keys: dict[str, Any]) -> None:
    report = audited(name, **keys)
    assert not report.refuted, report.asdict()
    assert report.views["server"].bound > 0


@pytest.mark.parametrize("name", ["dp-fedavg", "dp-fedavg-record"])
def test_whole_numbers_are_consistent_too(name: str) -> None:
    """A deployment's mechanism, as if its noise were not drawn from a seed."""
    prepared = prepare(Experiment.make(SMALL, {"method": name, "noise": "integers", "epsilon": 2.0}))
    secret = replace(prepared, allowance=replace(prepared.allowance, known=""))
    report = attack(secret, 4000, (0, 1))
    assert not report.refuted, report.asdict()
    least = 0.3 if report.unit == "client" else 0.05  # of single gradients 4,000 trials show less, and vary more
    assert least < report.views["outsider"].bound / report.views["outsider"].claimed < 1.2


@pytest.mark.slow
def test_a_hundred_audits_raise_no_alarm() -> None:
    """Every sound method in turn, at three epsilons, each time with another seed."""
    private = [name for name in SOUND if find(name)().is_private()]
    for seed in range(100):
        report = audited(private[seed % len(private)], trials=2000, seed=seed, epsilon=(1.0, 2.0, 8.0)[seed % 3])
        assert not report.refuted, report.asdict()


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "share"), [(1.0, 0.85), (2.0, 0.93), (8.0, 0.95)])
def test_a_hundred_thousand_trials_come_near_the_claim(epsilon: float, share: float) -> None:
    """In the mean over eight seeds: one bound of epsilon 1 moves by three hundredths from seed to seed."""
    found = []
    for seed in range(8):
        report = audited("dp-fedavg", trials=100_000, tiers=(1,), epsilon=epsilon, seed=seed, clients=4, rounds=2)
        assert not report.refuted
        found.append(report.views["outsider"].bound)
    assert np.mean(found) >= share * epsilon


@pytest.mark.slow
def test_a_process_whose_torch_has_threads_can_audit(tmp_path: Path) -> None:
    """The replay is forked off, and threads do not come along."""
    before = "import sys, torch; torch.set_num_threads(2); torch.randn(10**6).flip(0).sin()"
    code = f"{before}; from sordino.cli import main; sys.argv[0] = 'sordino'; main()"
    options = ("--clients=6", "--rounds=1", "--epsilon=2", "--tiers=0", f"--store={tmp_path}")
    subprocess.run([sys.executable, "-c", code, "audit", "--method=dp-fedavg", *options], check=True, timeout=240)


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
        assert 0 < view["surely"]["bound"] < view["bound"] < 1.2 * view["claimed"]
        assert (view["confidence"], view["surely"]["confidence"]) == (0.95, 0.999)
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


def test_a_single_client_is_audited_too() -> None:
    for name in ("dp-fedavg", "dp-fedavg-record"):
        report = audited(name, clients=1, rounds=1, trials=2000, records=100)
        assert not report.refuted
        assert report.views["server"].bound > 0


def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    assert "cannot be written" in refused("audit", "--method=dp-fedavg", "-o", tmp_path)


def test_what_claims_nothing_is_said_to(tmp_path: Path) -> None:
    outcome = command("audit", "--method=fedavg", "--clients=4", "--rounds=1", "--tiers=0,1", "--store", tmp_path)
    assert outcome.code == 0
    assert "nothing is claimed" in outcome.out


def test_wrong_tiers_are_refused() -> None:
    assert "--tiers wants" in refused("audit", "--tiers=0,9")


def test_an_own_method_that_does_not_run_is_no_refutation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_audit.py").write_text(
        "from sordino.methods.dp_fedavg import DPFedAvg\n"
        "class Broken(DPFedAvg):\n"
        "    def run(self, fed, model):\n"
        "        raise ZeroDivisionError('by nobody')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    options = ("--clients=4", "--rounds=1", "--tiers=0", "--json", "--store", tmp_path)  # no progress
    told = refused("audit", "--method=broken_audit:Broken", *options)
    assert "own code failed before it could be attacked (ZeroDivisionError: by nobody)" in told
