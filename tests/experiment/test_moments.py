"""Private normalisation: right on average, noised as charged, and added to what later runs cost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import command, refused

import sordino
from sordino.data.schema import NumberColumn, Schema
from sordino.experiment.private_scaling import ALMOST_ALL, augmented, figures, normalise
from sordino.privacy.accounting.gaussian import mu_of
from sordino.report.terminal.results import epsilon_text
from sordino.store.store import Store

SCHEMA = """
[columns.age]
kind = "number"
range = [0, 100]
[columns.dose]
kind = "number"
range = [-10, 10]
[columns.label]
kind = "label"
values = ["0", "1"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "own"
    made.mkdir()
    (tmp_path / "schema.toml").write_text(SCHEMA)
    random = np.random.default_rng(0)
    for name, centre in (("a", 60), ("b", 70)):
        ages, doses = random.normal(centre, 10, 1500).clip(0, 100), random.uniform(-4, 8, 1500)
        rows = [f"{age:.2f},{dose:.3f},{k % 2}" for k, (age, dose) in enumerate(zip(ages, doses, strict=True))]
        (made / f"{name}.csv").write_text("\n".join(["age,dose,label", *rows]) + "\n")
    return made


def numbers(schema: Schema) -> dict[str, tuple[float, float]]:
    found = {name: column for name, column in schema.columns.items() if isinstance(column, NumberColumn)}
    return {name: (column.mean or 0.0, column.deviation or 0.0) for name, column in found.items()}


def test_means_and_deviations_come_near(folder: Path, tmp_path: Path) -> None:
    found = normalise(folder, Schema.parse(Schema.read(tmp_path / "schema.toml").document()), 2.0, tmp_path / "store")
    (age, age_spread), (dose, dose_spread) = numbers(found.schema).values()
    assert age == pytest.approx(65, abs=1.5)
    assert age_spread == pytest.approx(np.sqrt(100 + 25), rel=0.15)
    assert dose == pytest.approx(2, abs=0.4)
    assert dose_spread == pytest.approx(12 / np.sqrt(12), rel=0.15)
    assert found.columns == ["age", "dose"]


@pytest.mark.slow
def test_its_noise_is_what_is_charged(folder: Path, tmp_path: Path) -> None:
    """The noise on the corner, whose true value is public here, over thirty seeds: half of it would be noticed."""
    schema, epsilon = Schema.read(tmp_path / "schema.toml"), 1.0
    noise, corner = [], (1500 - 1) / 3
    for seed in range(30):
        store = tmp_path / f"store-{seed}"
        summary = normalise(folder, schema, epsilon, store, seed=seed).summary
        assert summary.epsilon["server"] == pytest.approx(ALMOST_ALL * epsilon, rel=1e-3)
        noise.append(_moments(store, summary.run)[0, 0] - corner)
    single = 1 / mu_of(ALMOST_ALL * epsilon, summary.delta) / np.sqrt(2)  # the mean of two clients
    # A chi-square of 30 degrees: outside of 0.6 to 1.5 once in ten thousand times.
    assert 0.6 < np.sqrt(np.mean(np.square(noise))) / single < 1.5


def _moments(store: Path, run: str) -> np.ndarray:
    from sordino.store import checkpoint

    kept = Store(store)
    row = kept.get(run)
    assert row.checkpoint is not None
    return checkpoint.load(row.checkpoint, kept.path(run)).server["moments"].numpy()


def test_no_record_weighs_more_than_one(folder: Path, tmp_path: Path) -> None:
    data = augmented(folder, Schema.read(tmp_path / "schema.toml"), ["age", "dose"], 0)
    assert float(data.train.x.norm(dim=1).max()) <= 1 + 1e-6
    assert float(data.train.x.norm(dim=1).min()) >= 1 / np.sqrt(3) - 1e-6


def test_figures_by_hand() -> None:
    rows = np.array([[1, 0.5], [1, -0.5], [1, 0.3]])
    means, deviations = figures(rows.T @ rows)
    assert means[0] == pytest.approx(0.1)
    assert deviations[0] == pytest.approx(np.std([0.5, -0.5, 0.3]))
    assert np.isnan(figures(-np.eye(2))[0]).all()


def test_nothing_is_spent_where_the_schema_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    given = ("data", "normalise", folder, "--schema", tmp_path / "schema.toml", "--store", tmp_path / "store")
    assert "cannot be written" in refused(*given, "-o", "/dev/null/x.toml")
    assert not (tmp_path / "store").exists()


def test_the_command_charges_it_to_the_same_people(folder: Path, tmp_path: Path) -> None:
    store, schema = tmp_path / "store", tmp_path / "schema.toml"
    told = command("data", "normalise", folder, "--schema", schema, "--epsilon=1", "--store", store, "--json").document
    assert "mean = " in schema.read_text()
    said = f"{told['run']} at epsilon {epsilon_text(told['epsilon']['server'])} for each record"
    assert f'released = "{said}"' in schema.read_text()
    keys = ("--method=dp-fedavg-record", "--rounds=1", "--epsilon=1", "--workers=1", "--store", store, "--json")
    later = command("run", "--data", folder, "--schema", schema, *keys).document
    assert later["over_runs"]["runs"] == 2
    come = f"Mean and deviation of age, dose come from the run {said}, which adds to this run's epsilon."
    assert come in later["not_covered"], "in another store nothing else would tell of it"
    assert later["over_runs"]["epsilon"]["server"] > max(later["epsilon"]["server"], told["epsilon"]["server"])
    assert sordino.load_models(later["run"], store).about.meaning.schema == Schema.read(schema)
    (tmp_path / "none.toml").write_text(SCHEMA.replace("range", "#"))
    assert "no number with a range" in refused("data", "normalise", folder, "--schema", tmp_path / "none.toml")
