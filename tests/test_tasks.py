"""The whole story of a number and of a time to an event: raw files, schema, plan, run, prediction, statement; and what
is refused on the way."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import command, refused

from sordino.data import load
from sordino.data.own import Reading
from sordino.data.schema import Schema
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.methods import find
from sordino.testing import ON_NUMBERS
from sordino.testing.case import NUMBERS, Case, numbers

SITES = ("north", "south", "east")
RUN = ("--workers=1", "--epsilon=8", "--rounds=20")


def write(folder: Path, site: str, columns: dict[str, Any]) -> None:
    rows = zip(*(list(column) for column in columns.values()), strict=True)
    (folder / f"{site}.csv").write_text(
        "\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n"
    )


@pytest.fixture(scope="module")
def stays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Days in hospital of three sites, which follow from age and stage, up to noise."""
    folder = tmp_path_factory.mktemp("stays")
    random = np.random.default_rng(0)
    for site in SITES:
        age, stage = random.integers(20, 90, 90), random.integers(1, 5, 90)
        days = np.clip(np.round(0.2 * age + 4 * stage + random.normal(0, 2, 90), 1), 0, None)
        write(folder, site, {"age": age, "stage": stage, "days": days})
    return folder


@pytest.fixture(scope="module")
def relapses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Months to a relapse, sooner the higher the stage; many are last seen before."""
    folder = tmp_path_factory.mktemp("relapses")
    random = np.random.default_rng(1)
    for site in SITES:
        stage = random.integers(1, 5, 120)
        relapse, end = random.exponential(60 / stage**1.5), random.uniform(5, 40, 120)
        event = np.where(relapse <= end, "yes", "no")
        write(
            folder,
            site,
            {
                "stage": stage,
                "age": random.integers(20, 90, 120),
                "months": np.round(np.minimum(relapse, end), 1),
                "relapse": event,
            },
        )
    return folder


@pytest.fixture(scope="module")
def number(stays: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Folder with schema and store of a run on the stays, and the run's document."""
    place = tmp_path_factory.mktemp("number")
    made = command("data", "schema", stays, "--label=days", "-o", place / "s.toml")
    assert "it is predicted as one (regression)" in made.out
    text = (place / "s.toml").read_text().replace('kind = "target"', 'kind = "target"\nunit = "days"')
    (place / "s.toml").write_text(text)
    outcome = command("run", "--data", stays, "--schema", place / "s.toml", *RUN, "--store", place / "st", "--json")
    return place, outcome.document


def test_a_number_is_told_from_raw_files_to_the_statement(stays: Path, number: tuple[Path, dict[str, Any]]) -> None:
    place, run = number
    keys = ("--data", stays, "--schema", place / "s.toml", *RUN, "--store", place / "st")
    assert "dp-fedsgd" in command("plan", *keys[:4], "--epsilon=8", "--rounds=20").out
    assert run["task"] == "regression"
    assert run["metrics"]["r2"]["mean"] > 0.5
    assert run["metrics"]["rmse"]["mean"] < 0.7 * run["metrics"]["constant_rmse"]["mean"]
    assert 0.75 < run["metrics"]["coverage"]["overall"] <= 1
    assert run["accuracy"]["personal"] == pytest.approx(run["metrics"]["r2"]["mean"])
    assert [one for one in run["spent"]["recipes"][0] if one[-1] == 1], "the sum of the target is charged once"
    told = command(
        "predict", run["run"], stays / "north.csv", "--client=north", "-o", place / "p.csv", "--store", place / "st"
    )
    assert "R²" in told.out
    with (place / "p.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert all(float(row["low_90"]) <= float(row["prediction"]) <= float(row["high_90"]) for row in rows)
    inside = np.mean([float(row["low_90"]) <= float(row["days"]) <= float(row["high_90"]) for row in rows])
    assert inside > 0.75
    command("predict", run["run"], stays / "north.csv", "-o", place / "q.csv", "--store", place / "st")
    assert next(iter(csv.DictReader((place / "q.csv").open())))["low_90"] == "", "the server knows no site's errors"
    command("statement", run["run"], "--store", place / "st", "-o", place / "s.html")
    text = (place / "s.html").read_text()
    assert "to predict a number from " in text
    assert "of the variance of the test records" in text
    command("report", run["run"], "--store", place / "st", "-o", place / "r.html")
    assert "root mean squared error" in (place / "r.html").read_text()
    assert "RMSE" in command("show", run["run"], "--clients", "--store", place / "st").out
    assert "R²" in command("show", run["run"], "--store", place / "st").out


def test_a_time_to_an_event_is_told_from_raw_files_to_the_statement(relapses: Path, tmp_path: Path) -> None:
    schema = tmp_path / "s.toml"
    made = command("data", "schema", relapses, "--task=survival", "--label=months", "--event=relapse", "-o", schema)
    assert "'yes' is taken for the event" in made.out
    keys = ("--data", relapses, "--schema", schema, *RUN, "--store", tmp_path / "st")
    run = command("run", *keys, "--json").document
    assert run["metrics"]["concordance"]["mean"] > 0.6
    assert run["metrics"]["integrated_brier"]["mean"] < run["metrics"]["constant_brier"]["mean"] + 0.05
    curve = list(run["curve"].values())
    assert curve == sorted(curve, reverse=True)
    told = command(
        "predict",
        run["run"],
        relapses / "north.csv",
        "--client=north",
        "-o",
        tmp_path / "p.csv",
        "--store",
        tmp_path / "st",
    )
    assert "concordance" in told.out
    with (tmp_path / "p.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    curves = [[float(value) for name, value in row.items() if name.startswith("survival_")] for row in rows]
    assert all(one == sorted(one, reverse=True) for one in curves)
    early, late = (np.mean([float(row["prediction"]) for row in rows if row["stage"] == stage]) for stage in "41")
    assert early < late
    command("statement", run["run"], "--store", tmp_path / "st", "-o", tmp_path / "s.html")
    assert "to predict the time to an event up to" in (tmp_path / "s.html").read_text()
    command("report", run["run"], "--store", tmp_path / "st", "-o", tmp_path / "r.html")
    assert "concordance" in (tmp_path / "r.html").read_text()
    assert "no event up to" in command("show", run["run"], "--store", tmp_path / "st").out


@pytest.mark.parametrize("method", ["dp-fedavg", "dp-fedavg-record"])
@pytest.mark.parametrize("personal", ["own", "blend"])
def test_methods_at_every_level_predict_numbers(method: str, personal: str, stays: Path, tmp_path: Path) -> None:
    keys = ("--data", stays, "--label=days", "--task=regression", "--workers=1", "--epsilon=8", "--rounds=3")
    run = command("run", *keys, f"--method={method}", f"--personal={personal}", "--store", tmp_path, "--json").document
    assert run["metrics"]["coverage"]["clients"] == 3
    assert run["metrics"]["coverage"]["overall"] > 0.6
    assert any("days" in sentence for sentence in run["not_covered"]), "its range was read from the records"


def test_a_target_is_normalised_with_the_columns(
    stays: Path, number: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Private moments of the target are released with those of the columns, and scale it."""
    place, _ = number
    made = tmp_path / "n.toml"
    command(
        "data", "normalise", stays, "--schema", place / "s.toml", "--epsilon=4", "-o", made, "--store", tmp_path / "st"
    )
    column: Any = Schema.read(made).columns["days"]
    assert column.mean == pytest.approx(21, abs=5)
    assert 4 < column.deviation < 12
    assert "epsilon" in column.released
    task: Any = load(str(stays), how=Reading(schema=Schema.read(made))).task
    assert (task.centre, task.size) == (column.mean, column.deviation)


def test_targets_outside_their_range_are_held_to_it_and_told(stays: Path) -> None:
    column = {"kind": "target", "range": [10, 30]}
    schema = Schema.parse({"columns": {"age": {"kind": "number"}, "stage": {"kind": "number"}, "days": column}})
    found = load(str(stays), how=Reading(schema=schema))
    assert float(found.y.min()) == -3
    assert float(found.y.max()) == 3
    assert any("values of 'days' lie outside 10 to 30" in sentence for sentence in found.disclosed)


@pytest.mark.parametrize("check", ON_NUMBERS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", ["dp-fedavg", "dp-fedsgd"])
def test_the_battery_runs_on_numbers(name: str, check: Any, tmp_path: Path) -> None:
    check(Case(find(name)(), tmp_path, numbers(tmp_path)))


@pytest.mark.parametrize("name", ["pfedsd", "pacfl"])
def test_methods_that_need_classes_say_so_before_anything_is_spent(name: str, tmp_path: Path) -> None:
    method = find(name)()
    with pytest.raises(UserError, match=r"needs classes, but this task \(regression\) has none"):
        method.check_task(NUMBERS)
    experiment = Experiment.make(numbers(tmp_path) | {"method": name, "epsilon": 8.0, "rounds": 2, "workers": 1})
    with pytest.raises(UserError, match="needs classes"):
        prepare(experiment)


def schema_of(folder: Path, **columns: dict[str, Any]) -> Path:
    path = folder / "schema.toml"
    lines = [
        f"[columns.{name}]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in column.items())
        for name, column in columns.items()
    ]
    path.write_text("\n".join(lines))
    return path


NUMBER = {"kind": "number"}


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"x": NUMBER, "t": {"kind": "target"}}, "is wrong at columns.t.range: it must be given"),
        ({"x": NUMBER, "t": {"kind": "target", "range": [3, 3]}}, "the range's first number must be the smaller one"),
        ({"x": NUMBER, "t": {"kind": "time", "cuts": [1, 2]}}, "but there are 1 of kind time"),
        ({"x": NUMBER, "t": {"kind": "time", "cuts": [2, 1]}, "e": {"kind": "event"}}, "`cuts` must rise"),
        ({"x": NUMBER, "t": {"kind": "time", "cuts": [0, 1]}, "e": {"kind": "event"}}, "it must be above 0"),
        ({"x": NUMBER, "e": {"kind": "event"}}, "but there are 1 of kind event"),
        ({"x": NUMBER}, "but none has"),
    ],
)
def test_wrong_schemas_are_one_sentence(columns: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        Schema.read(schema_of(tmp_path, **columns))
    assert sentence in str(raised.value)


TARGET = {"kind": "target", "range": [0, 10]}
TIME, EVENT = {"kind": "time", "cuts": [1, 5]}, {"kind": "event"}


@pytest.mark.parametrize(
    ("cells", "columns", "options", "sentence"),
    [
        ({"t": ["1.5", "a", "2"]}, {"t": TARGET}, (), "The target 't' of "),
        ({"t": ["1.5", "", "2"]}, {"t": TARGET}, (), "missing value in its target column 't', line 3"),
        ({"t": [1, 0, 1]}, {"t": {"kind": "label", "values": ["0", "1"]}}, ("--task=regression",), 'kind = "target"'),
        ({"t": [1, 0, 1]}, {"t": TARGET}, ("--task=classification",), "the target 't' (regression), but the task is"),
        ({"t": [1, -2, 1], "e": [0, 1, 1]}, {"t": TIME, "e": EVENT}, (), "is negative ('-2' in line 3 and 7 more)"),
        ({"t": [1, 2, 1], "e": [0, 2, 1]}, {"t": TIME, "e": EVENT}, (), "has a record with the event '2'"),
        ({"t": [4, 4, 4]}, None, ("--label=t", "--task=regression"), "the same value in all records, 4"),
        ({"t": ["a", "b", "c"]}, None, ("--label=t", "--task=regression"), "has the value 'a': give numbers"),
        ({"t": [1, 2, 3]}, None, ("--label=t", "--task=survival"), "name it with --event"),
        ({"t": [1, 2, 3]}, None, ("--label=t", "--task=survival", "--event=q"), "no column 'q'"),
        (
            {"t": [1, 2, 3], "e": ["no", "yes", "no"]},
            None,
            ("--label=t", "--task=survival", "--event=e"),
            "'no', 'yes', which is neither 0 nor 1",
        ),
        ({"t": [1, 2, 3]}, None, ("--label=t", "--event=t"), "add task = 'survival'"),
        ({"t": [1, 2, 3]}, None, ("--label=t", "--set=target_range=[0,5]"), "add task = 'regression'"),
        (
            {"t": [1, 2, 3]},
            None,
            ("--label=t", "--task=regression", "--set=target_range=[5,0]"),
            "the smaller one first",
        ),
        ({"t": [1, 2, 3]}, None, ("--label=t", "--task=regression", "--labels=1,2"), "`labels` are classes"),
        ({"t": [1, 2, 3]}, None, ("--label=t", "--task=guess"), "task cannot be 'guess'"),
        (
            {"t": [1, 2, 3]},
            None,
            ("--label=t", "--task=regression", "--method=dp-fedsgd", "--set=class_weight=balanced"),
            "class_weight needs classes",
        ),
    ],
)
def test_wrong_inputs_are_one_sentence(
    cells: dict[str, Any], columns: dict[str, Any] | None, options: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    for site in ("a", "b"):
        write(folder, site, {"x": [1, 2, 3] * 8} | {name: list(values) * 8 for name, values in cells.items()})
    given = () if columns is None else ("--schema", schema_of(tmp_path, x=NUMBER, **columns))
    outcome = command("run", "--data", folder, *given, *options, "--workers=1", "--store", tmp_path / "st")
    assert outcome.code == 2
    assert outcome.out == ""
    assert sentence in outcome.err


def test_a_built_in_data_set_keeps_its_classes(tmp_path: Path) -> None:
    assert "which has its own; leave it out" in refused("run", "--task=regression", "--store", tmp_path)
