"""Figures that an attack found too small, each once."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from helpers import command, refused

from sordino.data import load
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.privacy.accounting.gaussian import epsilon_of
from sordino.privacy.accounting.sampled_gaussian import record_epsilon
from sordino.privacy.budget.record_level_plan import plan_records


def images(folder: Path, seed: int) -> Path:
    """Public records for the digits, other ones for each seed."""
    folder.mkdir()
    random = np.random.default_rng(seed)
    np.savez(folder / "a.npz", x=random.normal(size=(20, 1, 8, 8)).astype(np.float32), y=np.arange(20) % 10)
    return folder


def test_other_public_records_make_another_run(tmp_path: Path) -> None:
    """They choose thresholds: with the same noise under both, the noise could be subtracted."""
    keys = {"method": "dp-fedavg", "clients": 8, "rounds": 2, "set": {"clipping": "ppo"}}
    found = {
        prepare(Experiment.make(keys, {"public": str(images(tmp_path / str(seed), seed))})).identity for seed in (1, 2)
    }
    assert len(found) == 2


def test_another_label_column_does_not_make_other_people(tmp_path: Path) -> None:
    (tmp_path / "north.csv").write_text("age,sick,smokes\n1,0,1\n2,1,0\n3,0,0\n4,1,1\n")
    first, second = (load(str(tmp_path), label=label).people for label in ("sick", "smokes"))
    assert first == second


def test_a_mechanism_that_costs_more_than_its_noise_says_is_refused_beforehand(tmp_path: Path) -> None:
    options = ("--clients=20", "--rounds=2", "--epsilon=2", "--budget-over-runs=2.01", "--store", tmp_path)
    outcome = command("run", "--method=dp-fedsam", "--variant=paper", *options)
    assert outcome.code == 2
    assert "budget_over_runs" in outcome.err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('method = "ifca"', "without noise"),
        ('noise = "integers"', "infinite"),
        ('method = "dp-fedsam"\nvariant = "paper"', "only known after a run"),
    ],
)
def test_a_plan_is_refused_whose_epsilon_would_not_be_the_runs(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(f"clients = 20\nrounds = 2\nepsilon = 2\n{text}\n")
    assert why in refused("plan", file)


def test_tiny_deltas_are_not_left_to_fourier_transforms() -> None:
    """A record that always enters is a Gaussian release with mu = sqrt(n) / z; hardly ever left out, it pays as much.

    With probability q^n the record is in all n batches: epsilon(delta) >= epsilon_1(delta / q^n) + n ln q.
    """
    rate, multiplier, steps, delta = 1 - 1e-9, 300.0, 100_000, 3e-15
    always = epsilon_of(math.sqrt(steps) / multiplier, delta / rate**steps) + steps * math.log(rate)
    assert record_epsilon(((rate, multiplier, steps),), delta) >= always


@pytest.mark.slow
def test_unequal_budgets_get_rates() -> None:
    """A rate may be so small that the budget is not touched at all, and the search must get away from there."""
    budgets = np.array([0.5, 2.0, 8.0])
    plan = plan_records([140] * 3, budgets, 1e-5, batch=16, epochs=1, turns=2, varied="sampling")
    assert (np.diff(plan.sampling) > 0).all()
    for client in range(3):
        rate, multiplier, steps = plan.charge(client)
        assert record_epsilon(((rate, multiplier, steps * 2),), 1e-5) <= budgets[client]


def test_a_comparison_states_the_delta_of_each_row(tmp_path: Path) -> None:
    methods = "dp-fedavg,dp-fedavg[delta=0.04]"
    options = ("--epsilon=2", "--clients=20", "--rounds=2", "--seeds=1", "--workers=1", "--store", tmp_path)
    told = " ".join(command("compare", "--methods", methods, *options).out.split())
    assert "epsilon at delta = 1e-05, protecting one client: dp-fedavg" in told
    assert "epsilon at delta = 0.04, protecting one client: dp-fedavg[delta=0.04]" in told
    assert "NOT at equal delta" in told
