"""Private normalisation: right on average, noised as charged, and added to what later runs cost."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from helpers import command, refused

import sordino
from sordino.data.schema import NumberColumn, Schema
from sordino.errors import UserError
from sordino.experiment import private_scaling
from sordino.experiment.private_scaling import (
    Normalised,
    augmented,
    figures,
    least_deviation,
    moments_length,
    normalise,
)
from sordino.privacy.accounting.gaussian import epsilon_of, mu_of, remaining, share_of
from sordino.report.terminal.results import epsilon_text
from sordino.store import checkpoint
from sordino.store.spending import over_runs
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
SITES, EACH, WIDE = 4, 40, 100
"""Clients, records of each and columns of the table on which noise is measured."""


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


@pytest.fixture
def wide(tmp_path: Path) -> tuple[Path, Schema]:
    """Four clients with few records of many columns: one release has two hundred draws of noise."""
    made = tmp_path / "wide"
    made.mkdir()
    random, names = np.random.default_rng(1), [f"c{number}" for number in range(WIDE)]
    for site in range(SITES):
        rows = [[*map(str, row), str(k % 2)] for k, row in enumerate(random.uniform(-1, 1, (EACH, WIDE)).tolist())]
        (made / f"{site}.csv").write_text("\n".join(map(",".join, [[*names, "label"], *rows])) + "\n")
    numbers = {name: {"kind": "number", "range": [-1, 1]} for name in names}
    return made, Schema.parse({"columns": {**numbers, "label": {"kind": "label", "values": ["0", "1"]}}})


def numbers(schema: Schema) -> dict[str, tuple[float, float]]:
    found = {name: column for name, column in schema.columns.items() if isinstance(column, NumberColumn)}
    return {name: (column.mean or 0.0, column.deviation or 0.0) for name, column in found.items()}


def released(store: Path, run: str) -> np.ndarray:
    """What the server learned: the noisy mean of the records' rows."""
    kept = Store(store)
    row = kept.get(run)
    assert row.checkpoint is not None
    return checkpoint.load(row.checkpoint, kept.path(run)).server["moments"].double().numpy()


def noise_of(wide: tuple[Path, Schema], store: Path, epsilon: float, **keys: Any) -> tuple[Normalised, np.ndarray]:
    """A release on the wide table, and the noise on its sum, in bounds of one record."""
    folder, schema = wide
    found = normalise(folder, schema, epsilon, store, **keys)
    rows = augmented(folder, schema, found.columns, keys.get("seed", 0)).train.x.double().numpy()
    return found, released(store, found.summary.run) * len(rows) - rows.sum(axis=0)


def test_means_and_deviations_come_near(folder: Path, tmp_path: Path) -> None:
    found = normalise(folder, Schema.parse(Schema.read(tmp_path / "schema.toml").document()), 2.0, tmp_path / "store")
    (age, age_spread), (dose, dose_spread) = numbers(found.schema).values()
    assert age == pytest.approx(65, abs=1.5)
    assert age_spread == pytest.approx(np.sqrt(100 + 25), rel=0.15)
    assert dose == pytest.approx(2, abs=0.4)
    assert dose_spread == pytest.approx(12 / np.sqrt(12), rel=0.15)
    assert found.columns == ["age", "dose"]
    assert found.left is None


def test_means_and_deviations_are_exact_without_much_noise(folder: Path, tmp_path: Path) -> None:
    """But for one record of each client, which is kept for testing."""
    found = normalise(folder, Schema.read(tmp_path / "schema.toml"), 1000.0, tmp_path / "store")
    files = [np.loadtxt(path, delimiter=",", skiprows=1) for path in sorted(folder.glob("*.csv"))]
    true = np.concatenate(files)[:, :2]
    for place, (mean, deviation) in enumerate(numbers(found.schema).values()):
        assert mean == pytest.approx(true[:, place].mean(), abs=0.05)
        assert deviation == pytest.approx(true[:, place].std(), rel=0.005)
    assert found.noise < 1e-4


@pytest.mark.parametrize(("protect_from", "messages"), [("outsider", 1), ("server", SITES)])
def test_its_noise_is_what_is_charged(
    protect_from: str, messages: int, wide: tuple[Path, Schema], tmp_path: Path
) -> None:
    """Of two hundred draws, the root of the mean square has a standard deviation of 5 %: it is outside of 0.75 to 1.25
    of the truth less than once in a million times. Half of the noise, or noise that is not shared out over the four
    clients, would be at a half or at two."""
    epsilon = 6.0
    found, noise = noise_of(wide, tmp_path / "store", epsilon, protect_from=protect_from)
    delta, mu = found.summary.delta, mu_of(epsilon, found.summary.delta)
    expected = math.sqrt(messages) / mu
    assert 0.75 < np.sqrt(np.mean(noise**2)) / expected < 1.25
    assert abs(noise.mean()) < 5 * expected / math.sqrt(len(noise))
    assert found.noise == pytest.approx(expected * math.sqrt(1.25 * WIDE) / (SITES * (EACH - 1)), rel=1e-6)
    assert abs(np.corrcoef(*np.split(noise, 2))[0, 1]) < 0.5, "sums and squares have noise of their own"
    # The outsider meets the noise of all messages, a peer that of all but its own, the server that of one.
    of_one = mu if protect_from == "server" else mu * math.sqrt(SITES)
    views = {"outsider": of_one / math.sqrt(SITES), "peer": of_one / math.sqrt(SITES - 1), "server": of_one}
    for view, its in views.items():
        assert found.summary.epsilon[view] == pytest.approx(epsilon_of(its, delta), rel=1e-5)  # type: ignore[index]
    assert found.summary.epsilon[protect_from] <= epsilon * (1 + 1e-6)  # type: ignore[index, operator]
    assert found.summary.protect_from == protect_from
    assert found.summary.record_level is not None
    assert found.summary.record_level.epsilon_replace_one == pytest.approx(epsilon_of(2 * mu, delta), rel=1e-4)


def test_no_draw_is_used_again(wide: tuple[Path, Schema], tmp_path: Path) -> None:
    """Two releases whose noise differed by a factor alone would tell the sum without any; correlations of two hundred
    draws have a standard deviation of 7 %."""
    first, second, third = (
        noise_of(wide, tmp_path / "store", epsilon, seed=seed)[1] for epsilon, seed in ((6.0, 0), (7.0, 0), (6.0, 1))
    )
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.4
    assert abs(np.corrcoef(first, third)[0, 1]) < 0.4


def test_the_norm_of_a_record_by_hand() -> None:
    """u^2 + (u^2 - 1/2)^2 is 1/4 at 0, 5/16 at 1/2 and 5/4 at the ends: u^4 + 1/4."""
    values = np.linspace(-1, 1, 2001)
    lengths = values**2 + (values**2 - 0.5) ** 2
    assert lengths.max() == pytest.approx(1.25)
    assert lengths[[1000, 1500]] == pytest.approx([0.25, 0.25 + 1 / 16])
    for count in (1, 2, 7):
        assert moments_length(count) ** 2 == pytest.approx(count * lengths.max())


def rows_of(folder: Path, cells: list[str], changes: dict[str, Any] | None = None) -> torch.Tensor:
    """All records of a client whose table has one column `x` with these cells, as they are summed."""
    folder.mkdir()
    (folder / "only.csv").write_text("\n".join(["x,label", *(f"{cell},{k % 2}" for k, cell in enumerate(cells))]))
    number = {"kind": "number", "range": [0, 10], **(changes or {})}
    schema = Schema.parse({"columns": {"x": number, "label": {"kind": "label", "values": ["0", "1"]}}})
    data = augmented(folder, schema, ["x"], 0)
    return torch.cat([data.train.x, data.test.x])


def test_no_record_weighs_more_than_one(folder: Path, tmp_path: Path) -> None:
    data = augmented(folder, Schema.read(tmp_path / "schema.toml"), ["age", "dose"], 0)
    assert float(data.train.x.norm(dim=1).max()) <= 1 + 1e-6
    assert float(data.train.x.norm(dim=1).min()) >= math.sqrt(0.25 / 1.25) - 1e-6
    assert len(data.train.x) == 2 * 1499
    ends = rows_of(tmp_path / "ends", ["0", "10", "10", "0"])
    assert torch.allclose(ends.norm(dim=1), torch.ones(4)), "no longer, so that noise is no larger than it need be"


def test_values_beyond_the_range_are_held_to_it(tmp_path: Path) -> None:
    """Those of cells, and those that a schema puts into cells without a value."""
    far = rows_of(tmp_path / "far", ["1e9", "-1e9", "10", "0"])
    assert sorted(far.tolist()) == sorted(rows_of(tmp_path / "near", ["10", "0", "10", "0"]).tolist())
    filled = rows_of(tmp_path / "filled", ["", "", "10", "10"], {"missing": 700})
    assert torch.allclose(filled, torch.tensor([1.0, 0.5]).expand(4, 2) / math.sqrt(1.25))


def test_the_gate_limits_records_that_are_too_long(folder: Path, tmp_path: Path) -> None:
    """Whatever the rows are, each weighs at most one: a wrong length costs accuracy and no privacy."""
    with mock.patch.object(private_scaling, "moments_length", return_value=0.01):
        found = normalise(folder, Schema.read(tmp_path / "schema.toml"), 1000.0, tmp_path / "store")
    rows = augmented(folder, Schema.read(tmp_path / "schema.toml"), ["age", "dose"], 0).train.x
    expected = (rows / rows.norm(dim=1, keepdim=True)).mean(dim=0)
    assert released(tmp_path / "store", found.summary.run) == pytest.approx(expected.numpy(), abs=1e-3)


def test_contents_of_one_record_move_no_other(folder: Path, tmp_path: Path) -> None:
    """So that what is added to the sum changes by one record's row alone."""
    schema = Schema.read(tmp_path / "schema.toml")
    before = augmented(folder, schema, ["age", "dose"], 0)
    lines = (folder / "a.csv").read_text().splitlines()
    lines[700] = "0,10,1"
    (folder / "a.csv").write_text("\n".join(lines))
    after = augmented(folder, schema, ["age", "dose"], 0)
    assert np.array_equal(before.train.sizes, after.train.sizes)
    moved = [(one.x != two.x).any(dim=1).sum() for one, two in ((before.train, after.train), (before.test, after.test))]
    assert sum(map(int, moved)) == 1
    assert float((before.train.x.double().sum(0) - after.train.x.double().sum(0)).norm()) <= 2


def test_figures_by_hand() -> None:
    values = np.array([0.5, -0.5, 0.3])
    moments = np.array([values.mean(), (values**2 - 0.5).mean()])
    means, deviations = figures(moments, 0.0)
    assert means == pytest.approx([values.mean()])
    assert deviations == pytest.approx([values.std()])
    # Noise as large as the spread of what is usual: half way to it. 0.12 is the usual variance, 0 the usual mean.
    assert figures(moments, 0.5)[0] == pytest.approx([values.mean() / 2])
    assert figures(np.array([0.0, 0.3 - 0.5]), 0.1)[1] == pytest.approx([math.sqrt((0.12 + 0.3) / 2)])


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.19])
@pytest.mark.parametrize("moments", [(5.0, 5.0), (-5.0, -5.0), (0.0, -0.5)])
def test_figures_stay_in_the_range(moments: tuple[float, float], noise: float) -> None:
    means, deviations = figures(np.array(moments), noise)
    assert -1 <= means[0] <= 1
    assert 0.01 <= deviations[0] <= 1


@pytest.mark.parametrize(("noise", "least"), [(0.0, 0.01), (0.0004, 0.02), (0.15, 0.1)])
def test_the_smallest_deviation_by_hand(noise: float, least: float) -> None:
    assert least_deviation(noise) == pytest.approx(least)
    assert figures(np.array([0.0, -0.5 - 1]), noise)[1] == pytest.approx([least])


def test_columns_at_the_smallest_deviation_are_named(folder: Path, tmp_path: Path) -> None:
    """Doses up to ten in a range of millions have a deviation of next to nothing there."""
    schema = tmp_path / "schema.toml"
    schema.write_text(SCHEMA.replace("range = [-10, 10]", "range = [-1e7, 1e7]"))
    told = command("data", "normalise", folder, "--schema", schema, "--epsilon=900", "--store", tmp_path / "store").out
    assert re.search(r"No deviation is set below 0\.0\d+ half ranges, which may be noise: dose would have less\.", told)


def test_shares_of_a_budget_by_hand() -> None:
    """At delta 1e-5, epsilon 1 is mu = 0.2681 and epsilon 4 is mu = 0.9249."""
    assert mu_of(1.0, 1e-5) == pytest.approx(0.2681, abs=1e-4)
    assert share_of(4.0, 1e-5, (0.2681 / 0.9249) ** 2) == pytest.approx(1.0, abs=1e-3)
    for budget, share in ((1.0, 0.1), (4.0, 0.5), (0.3, 0.9)):
        part = share_of(budget, 1e-6, share)
        rest = remaining(budget, part, 1e-6)
        assert mu_of(part, 1e-6) ** 2 == pytest.approx(share * mu_of(budget, 1e-6) ** 2)
        assert mu_of(part, 1e-6) ** 2 + mu_of(rest, 1e-6) ** 2 == pytest.approx(mu_of(budget, 1e-6) ** 2)
    assert remaining(1.0, 1.0, 1e-5) == 0
    assert remaining(1.0, 2.0, 1e-5) == 0


def test_a_budget_is_split_and_each_call_is_charged(folder: Path, tmp_path: Path) -> None:
    schema, store = Schema.read(tmp_path / "schema.toml"), tmp_path / "store"
    for calls in (1, 2):
        found = normalise(folder, schema, 2.0, store, 0.1)
        delta, kept = found.summary.delta, Store(store)
        total = over_runs(kept, kept.get(found.summary.run).people, found.summary.unit, delta)
        assert total["runs"] == calls
        assert total["limit"] == 2.0
        spent, left = total["epsilon"]["outsider"], found.left
        assert spent is not None
        assert left is not None
        whole = mu_of(2.0, delta) ** 2
        assert mu_of(spent, delta) ** 2 == pytest.approx(0.1 * calls * whole, rel=0.01)
        assert mu_of(spent, delta) ** 2 <= 0.1 * calls * whole * (1 + 1e-6)
        assert mu_of(left, delta) ** 2 == pytest.approx((1 - 0.1 * calls) * whole, rel=0.01)
        assert mu_of(spent, delta) ** 2 + mu_of(left, delta) ** 2 <= whole * (1 + 1e-6)
    with pytest.raises(UserError, match=r"2 before it .* above the 2 of budget_over_runs"):
        normalise(folder, schema, 2.0, store, 0.9)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, math.nan])
def test_a_share_lies_between_nothing_and_all(share: float, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="must lie between 0 and 1"):
        normalise(folder, Schema.read(tmp_path / "schema.toml"), 2.0, tmp_path / "store", share)


def test_the_command_says_how_to_spend_the_rest_of_a_budget(folder: Path, tmp_path: Path) -> None:
    store, schema = tmp_path / "store", tmp_path / "schema.toml"
    told = command("data", "normalise", folder, "--schema", schema, "--budget=3", "--store", store).out
    assert "The run Moments-own-1 cost each record" in told
    assert [line.split()[0] for line in told.splitlines() if "  " in line][1:4] == ["outsider", "peer", "server"]
    assert "at delta = 1e-05; protects one record" in told
    (advice,) = [line for line in told.splitlines() if line.startswith("Of 3, ")]
    _, _, line = advice.partition(": sordino ")
    later = command(*shlex.split(line), "--rounds=2", "--workers=1", "--json").document
    assert later["method"] == "dp-fedsgd"
    assert later["over_runs"]["limit"] == 3
    assert 2.98 < later["over_runs"]["epsilon"]["outsider"] <= 3 * (1 + 1e-6)


def test_what_runs_that_sampled_records_leave_is_not_guessed(folder: Path, tmp_path: Path) -> None:
    store, schema = tmp_path / "store", tmp_path / "schema.toml"
    keys = ("--method=dp-fedsgd", "--set=sampling=0.1", "--rounds=1", "--epsilon=1", "--workers=1", "--store", store)
    command("run", "--data", folder, "--schema", schema, *keys, "--budget-over-runs=4", "--json")
    told = command("data", "normalise", folder, "--schema", schema, "--budget=4", "--store", store).out
    assert "What is left of 4 is not known, because earlier runs sampled records" in told


def test_nothing_is_spent_where_the_schema_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    given = ("data", "normalise", folder, "--schema", tmp_path / "schema.toml", "--store", tmp_path / "store")
    assert "cannot be written" in refused(*given, "-o", "/dev/null/x.toml")
    assert not (tmp_path / "store").exists()


def test_wrong_inputs_are_refused_and_cost_nothing(folder: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.toml"
    given = ("data", "normalise", folder, "--schema", schema, "--store", tmp_path / "store")
    assert "either --epsilon" in refused(*given, "--epsilon=1", "--budget=2")
    assert "--share is a share of --budget" in refused(*given, "--share=0.2")
    assert "must lie between 0 and 1" in refused(*given, "--budget=1", "--share=1.5")
    assert "epsilon cannot be" in refused(*given, "--budget=nan")
    assert "protect_from cannot be 'nobody'" in refused(*given, "--protect-from=nobody")
    assert "nothing was released, and nothing spent" in refused(*given, "--epsilon=0.001")
    assert not (tmp_path / "store").exists()
    assert schema.read_text() == SCHEMA
    (tmp_path / "none.toml").write_text(SCHEMA.replace("range", "#"))
    assert "no number with a range" in refused("data", "normalise", folder, "--schema", tmp_path / "none.toml")


def test_the_command_charges_it_to_the_same_people(folder: Path, tmp_path: Path) -> None:
    store, schema = tmp_path / "store", tmp_path / "schema.toml"
    told = command("data", "normalise", folder, "--schema", schema, "--epsilon=1", "--store", store, "--json").document
    assert "mean = " in schema.read_text()
    assert told["protect_from"] == "outsider"
    assert told["epsilon_left"] is None
    assert any("How many records the clients of a round have together is public" in one for one in told["not_covered"])
    cost = f"epsilon {epsilon_text(told['epsilon']['outsider'])} (delta 1e-05)"
    said = f"{told['run']} at {cost} for each record, against the outsider"
    assert f'released = "{said}"' in schema.read_text()
    keys = ("--method=dp-fedsgd", "--rounds=1", "--epsilon=1", "--workers=1", "--store", store, "--json")
    later = command("run", "--data", folder, "--schema", schema, *keys).document
    assert later["over_runs"]["runs"] == 2
    come = f"Mean and deviation of age, dose come from the run {said}, which adds to this run's epsilon."
    assert come in later["not_covered"], "in another store nothing else would tell of it"
    for view in ("outsider", "peer", "server"):
        assert later["over_runs"]["epsilon"][view] > max(later["epsilon"][view], told["epsilon"][view])
    assert sordino.load_models(later["run"], store).about.meaning.schema == Schema.read(schema)
