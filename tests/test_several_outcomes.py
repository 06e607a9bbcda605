"""The whole story of several numbers and of several labels: raw files, schema, plan, run, prediction, statement; every
level and method; and what is refused on the way."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import command, refused
from test_tasks import write

import sordino
from sordino.data import load
from sordino.data.own import Reading
from sordino.data.schema import Schema
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.methods import find, names
from sordino.testing import ON_NUMBERS
from sordino.testing.case import CLIENTS, Case

SITES = ("north", "south", "east")
RUN = ("--workers=1", "--epsilon=8", "--rounds=20")


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Blood pressures, which follow from age and stage up to noise, and two signs that go with them."""
    folder = tmp_path_factory.mktemp("visits")
    random = np.random.default_rng(0)
    for site in SITES:
        age, stage = random.integers(20, 90, 100), random.integers(1, 5, 100)
        columns = {
            "age": age,
            "stage": stage,
            "sbp": np.round(90 + 0.5 * age + 3 * stage + random.normal(0, 5, 100), 1),
            "dbp": np.round(60 + 0.2 * age - 2 * stage + random.normal(0, 4, 100), 1),
            "cough": np.where(random.random(100) < 1 / (1 + np.exp(5 - 2 * stage)), "yes", "no"),
            "fever": np.where(random.random(100) < 1 / (1 + np.exp((60 - age) / 8)), "yes", "no"),
        }
        write(folder, site, columns)
    return folder


STORIES: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "numbers": (("sbp", "dbp"), ("--label=sbp,dbp", "--task=regression", "--drop=cough,fever"), "r2"),
    "labels": (("cough", "fever"), ("--label=cough,fever", "--task=multi-label", "--drop=sbp,dbp"), "accuracy"),
}


WISHES = {
    "numbers": r"to predict 2 numbers for each record, sbp \(from \d+ to \d+\) and dbp \(from \d+ to \d+\), with",
    "labels": r"to tell 2 outcomes of each record, cough \(no or yes\) and fever \(no or yes\), with",
}


def schema_for(visits: Path, story: str, folder: Path) -> Path:
    command("data", "schema", visits, *STORIES[story][1], "-o", folder / "s.toml")
    return folder / "s.toml"


@pytest.mark.parametrize("story", STORIES)
def test_several_outcomes_are_told_from_raw_files_to_the_statement(story: str, visits: Path, tmp_path: Path) -> None:
    outcomes, _, score = STORIES[story]
    schema = schema_for(visits, story, tmp_path)
    keys = ("--data", visits, "--schema", schema, *RUN, "--store", tmp_path / "st")
    assert "dp-fedsgd" in command("plan", *keys[:4], "--epsilon=8", "--rounds=20").out
    run = command("run", *keys, "--set", "evaluation_share=0.2", "--json").document
    assert run["task"] == ("regression" if story == "numbers" else "multi-label")
    assert run["parameters"] == (6 if story == "numbers" else 12)
    each = [run["metrics"][f"{score}[{name}]"]["mean"] for name in outcomes]
    assert run["metrics"][score]["mean"] == pytest.approx(np.mean(each))
    assert min(each) > 0.5
    assert run["accuracy"]["personal"] == pytest.approx(run["metrics"][score]["mean"])
    assert 7.9 < run["epsilon"]["outsider"] <= 8
    assert {name.partition("[")[2] for name in run["evaluation"]["figures"]} == {f"{name}]" for name in outcomes}
    if story == "numbers":
        assert run["metrics"]["rmse[sbp]"]["worst_tenth"] >= run["metrics"]["rmse[sbp]"]["mean"] > 0
        assert "rmse" not in run["metrics"], "their units are unknown"
    where = ("--client=north", "-o", tmp_path / "p.csv", "--store", tmp_path / "st")
    told = command("predict", run["run"], visits / "north.csv", *where)
    assert f"{outcomes[1]}" in told.out
    with (tmp_path / "p.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    for name in outcomes:
        if story == "numbers":
            gone = [float(row[f"prediction_{name}"]) - float(row[name]) for row in rows]
            assert np.std(gone) < 0.7 * np.std([float(row[name]) for row in rows])
            assert all(float(row[f"low_90_{name}"]) <= float(row[f"prediction_{name}"]) for row in rows)
        else:
            assert np.mean([row[f"prediction_{name}"] == row[name] for row in rows]) > 0.7
            said = [float(row[f"probability_{name}"]) > 0.5 for row in rows]
            assert said == [row[f"prediction_{name}"] == "yes" for row in rows]
    assert "prediction" not in rows[0]
    command("statement", run["run"], "--store", tmp_path / "st", "-o", tmp_path / "s.html")
    text = (tmp_path / "s.html").read_text()
    assert re.search(WISHES[story], text)
    assert f"in the columns {outcomes[0]}, {outcomes[1]}" not in text, "they are named with their values"
    command("report", run["run"], "--store", tmp_path / "st", "-o", tmp_path / "r.html")
    assert f", {outcomes[1]}" in (tmp_path / "r.html").read_text()
    shown = command("show", run["run"], "--store", tmp_path / "st").out
    assert f", {outcomes[1]}" in shown
    shown = command("show", run["run"], "--clients", "--store", tmp_path / "st").out
    assert all(f"[{name}]" in shown for name in outcomes)


def test_a_statement_has_the_figures_of_each_label(visits: Path, tmp_path: Path) -> None:
    """Their mean is no share of records: a record may be right in one outcome and wrong in another."""
    run, found, text = stated(visits, "labels", tmp_path)
    accuracy, worst = run["accuracy"]["personal"], run["accuracy"]["personal_worst"]
    assert found["utility"][0] == (
        f"What clients predict with is right about {accuracy:.1%} of the single outcomes of test records, in the mean "
        f"over clients; at the client that is worst off about {worst:.1%}. How often all outcomes of a record are "
        "right at once was not measured."
    )
    metrics = {name: one["mean"] for name, one in run["metrics"].items()}
    assert (
        f"In the mean over the outcomes and over clients the area under the curve (AUC) is {metrics['auc']:.3f},"
        in text
    )
    assert found["utility_of_outcomes"] == [
        {
            "outcome": name,
            "accuracy": f"{metrics[f'accuracy[{name}]']:.1%}",
            "always the more frequent value": f"{metrics[f'majority[{name}]']:.1%}",
            "AUC": f"{metrics[f'auc[{name}]']:.3f}",
        }
        for name in ("cough", "fever")
    ]
    assert "| outcome | accuracy | always the more frequent value | AUC |\n" in text
    assert "| client | accuracy, mean of the outcomes |\n" in text
    assert "the possible outcomes: cough (no or yes) and fever (no or yes)" in text


def test_a_statement_has_the_figures_of_each_number_in_its_unit(visits: Path, tmp_path: Path) -> None:
    run, found, text = stated(visits, "numbers", tmp_path, unit="mmHg")
    metrics = {name: one["mean"] for name, one in run["metrics"].items()}
    assert "of the variance of the test records (R²), in the mean over the outcomes and over clients;" in text
    assert f"The root of the mean squared error is {metrics['rmse']:.4g} mmHg in the mean over the outcomes and" in text
    assert "of the numbers lie inside the 90 % intervals" in text
    assert found["utility_of_outcomes"][1] == {
        "outcome": "dbp",
        "R²": f"{metrics['r2[dbp]']:.1%}",
        "root mean squared error": f"{metrics['rmse[dbp]']:.4g} mmHg",
        "always a client's own mean": f"{metrics['constant_rmse[dbp]']:.4g} mmHg",
        "inside 90 % intervals": f"{metrics['coverage[dbp]']:.1%}",
    }
    assert re.search(r"sbp \(from \d+ to \d+ mmHg\) and dbp \(from \d+ to \d+ mmHg\), with the method", text)


def stated(visits: Path, story: str, folder: Path, unit: str | None = None) -> tuple[Any, Any, str]:
    """A short run, and its statement for machines and for people."""
    schema = schema_for(visits, story, folder)
    if unit is not None:
        schema.write_text(schema.read_text().replace('kind = "target"', f'kind = "target"\nunit = "{unit}"'))
    keys = ("--data", visits, "--schema", schema, "--workers=1", "--epsilon=8", "--rounds=3", "--store", folder / "st")
    run = command("run", *keys, "--json").document
    asked = ("statement", run["run"], "--store", folder / "st")
    told = command(*asked, "-o", folder / "s.md", "--json").document
    return run, told, (folder / "s.md").read_text()


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("method", ["dp-fedavg", "dp-fedavg-record", "dp-fedsgd"])
@pytest.mark.parametrize("personal", ["own", "blend", "recalibrate"])
def test_methods_at_every_level_predict_several_outcomes(
    method: str, personal: str, story: str, visits: Path, tmp_path: Path
) -> None:
    schema = schema_for(visits, story, tmp_path)
    keys = ("--data", visits, "--schema", schema, "--workers=1", "--epsilon=100", "--rounds=4", "--store", tmp_path)
    run = command(
        "run", *keys, "--allow-vacuous-delta", f"--method={method}", f"--personal={personal}", "--json"
    ).document
    score = STORIES[story][2]
    assert run["metrics"][score]["clients"] == 3
    assert all(one["mean"] is not None for name, one in run["metrics"].items() if not name.startswith("one_class"))


@pytest.mark.parametrize("story", STORIES)
def test_every_method_trains_several_outcomes_or_says_why_not(story: str, visits: Path, tmp_path: Path) -> None:
    schema, refusing = schema_for(visits, story, tmp_path), {}
    keys = {"data": str(visits), "schema": str(schema), "rounds": 1, "epsilon": 50.0, "allow_vacuous_delta": True}
    for method in sorted(set(names()) - {"acdp-pfsd"}):  # which looks for public records first
        try:
            found = sordino.run(**keys, method=method, workers=1, store=tmp_path / "st")
        except UserError as error:
            refusing[method] = str(error)
        else:
            assert found["metrics"][STORIES[story][2]]["mean"] is not None, method
    assert all("needs classes" in sentence for sentence in refusing.values()), refusing
    assert set(refusing) <= {"pfedsd", "adadp-cfl", "pacfl"}


@pytest.mark.parametrize("story", STORIES)
def test_stacked_clients_and_single_ones_agree(story: str, visits: Path, tmp_path: Path) -> None:
    schema = schema_for(visits, story, tmp_path)
    for method in ("dp-fedavg", "dp-fedsgd"):
        found = []
        for engine in ("stacked", "one-by-one"):
            keys = ("--data", visits, "--schema", schema, "--workers=1", "--set=privacy=none", "--rounds=3")
            more = (f"--set=engine={engine}", f"--method={method}", "--store", tmp_path / engine, "--json")
            found.append(command("run", *keys, *more).document)
        score = STORIES[story][2]
        assert found[0]["metrics"][score]["mean"] == pytest.approx(found[1]["metrics"][score]["mean"], abs=1e-4)


@pytest.mark.parametrize("task", ["numbers", "labels", "times"])
@pytest.mark.parametrize("method", ["dp-fedavg", "dp-fedavg-record", "dp-fedsgd"])
@pytest.mark.parametrize("check", ON_NUMBERS, ids=lambda check: check.__name__)
def test_the_battery_holds_where_other_things_are_predicted(
    check: Callable[[Case], None], method: str, task: str, tmp_path: Path
) -> None:
    """Bounds, noise, charges and engines, on tables of as many clients as the battery has."""
    folder, random = tmp_path / "tables", np.random.default_rng(0)
    folder.mkdir()
    for client in range(CLIENTS):
        x = random.normal(size=(240, 8)).round(3)
        rows = {f"x{place}": x[:, place] for place in range(8)}
        outcomes = {
            "numbers": {"t": 2 * x[:, 0] - x[:, 1] + random.normal(size=240), "u": x[:, 2]},
            "labels": {"t": (x[:, 0] > 0).astype(int), "u": (x[:, 1] > 0.5).astype(int)},
            "times": {"t": random.exponential(np.exp(x[:, 0])).round(3), "u": random.integers(0, 2, 240)},
        }
        write(folder, f"client-{client}", {**rows, **outcomes[task]})
    number: dict[str, Any] = {"kind": "target", "range": [-4, 4]}
    kinds: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "numbers": (number, number),
        "labels": ({"kind": "label", "values": ["0", "1"]}, {"kind": "label", "values": ["0", "1"]}),
        "times": ({"kind": "time", "cuts": [0.5, 1, 2]}, {"kind": "event"}),
    }
    inputs = {f"x{place}": {"kind": "number"} for place in range(8)}
    table = {"columns": {**inputs, **dict(zip("tu", kinds[task], strict=True))}}
    keys: dict[str, Any] = {"data": str(folder), "table": table}
    if task == "times":
        keys["model"] = "hazards"
    check(Case(find(method)(), tmp_path, keys))


def test_a_label_names_the_outcome_by_which_records_are_dealt(visits: Path, tmp_path: Path) -> None:
    schema = schema_for(visits, "numbers", tmp_path)
    reading = Reading(schema=Schema.read(schema), label="dbp")
    assert load(str(visits), how=reading).task.groups[0].startswith("dbp: ")
    assert load(str(visits), how=Reading(schema=Schema.read(schema))).task.groups[0].startswith("sbp: ")
    given = {"data": str(visits), "schema": str(schema), "clients": 4, "partition": "dirichlet:0.2", "method": "fedavg"}
    dealt = [prepare(Experiment.make(given | {"label": label})).data for label in ("sbp", "dbp")]
    assert dealt[0].fingerprint != dealt[1].fingerprint
    spread = [[np.mean([float(one.y[:, place].std()) for one in data.clients]) for place in (0, 1)] for data in dealt]
    assert spread[0][0] < spread[1][0]
    assert spread[1][1] < spread[0][1]


def test_means_and_deviations_of_several_targets_are_released_together(visits: Path, tmp_path: Path) -> None:
    schema = schema_for(visits, "numbers", tmp_path)
    out = tmp_path / "n.toml"
    command("data", "normalise", visits, "--schema", schema, "--epsilon=4", "-o", out, "--store", tmp_path)
    columns = Schema.read(out).outcomes
    raw = load(str(visits), how=Reading(schema=Schema.read(schema)))
    for place, name in enumerate(("sbp", "dbp")):
        part = raw.task.parts[place]  # type: ignore[attr-defined]
        values = part.in_unit(raw.y[:, place].numpy())
        assert columns[name].mean == pytest.approx(values.mean(), abs=0.25 * (part.high - part.low))  # type: ignore[union-attr]


@pytest.mark.parametrize("story", STORIES)
def test_an_exported_model_predicts_what_the_run_does(story: str, visits: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    schema = schema_for(visits, story, tmp_path)
    run = sordino.run(data=str(visits), schema=str(schema), epsilon=8.0, rounds=5, workers=1, store=tmp_path / "st")
    command("export", run["run"], "--client=north", "-o", tmp_path / "m.onnx", "--store", tmp_path / "st")
    data = load(str(visits), how=Reading(schema=Schema.read(schema)))
    session = runtime.InferenceSession(tmp_path / "m.onnx")
    x = data.x.numpy()[data.owner == data.owner_names.index("north")]  # type: ignore[union-attr]
    (said,) = session.run(None, {"records": x})
    command("predict", run["run"], visits / "north.csv", "--client=north", "-o", tmp_path / "p.csv", "--store", tmp_path / "st")  # fmt: skip  # noqa: E501
    with (tmp_path / "p.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    shown = data.task.shown(said)
    expected = [[float(row[name]) for name in data.task.columns] for row in rows]
    np.testing.assert_allclose(shown, expected, rtol=1e-3, atol=1e-3)


def columns_of(**kinds: str) -> str:
    return "\n".join(f"[columns.{name}]\n{text}" for name, text in {"x": 'kind = "number"', **kinds}.items())


TARGET, YES = 'kind = "target"\nrange = [0, 9]', 'kind = "label"\nvalues = ["no", "yes"]'
DIGITS = 'kind = "label"\nvalues = ["1", "2"]\naliases = {3 = "2"}'
THREE = 'kind = "label"\nvalues = ["a", "b", "c"]'


@pytest.mark.parametrize(
    ("schema", "options", "sentence"),
    [
        (columns_of(t=TARGET, u=YES), (), "of kind label and 1 of kind target"),
        (columns_of(t=YES, u=THREE), (), "'u' has 3: predict it in a run of its own"),
        (columns_of(t=TARGET, u=TARGET), ("--label=x",), "the schema's label is 't' and 'u'"),
        (
            columns_of(t=TARGET, u=TARGET),
            ("--task=multi-label",),
            "the task is to be multi-label: give several columns",
        ),
        (columns_of(t=YES, u=YES), ("--task=classification",), "the task is to be classification"),
        (columns_of(t=DIGITS, u=DIGITS), ("--method=dp-fedsgd", "--set=class_weight=balanced"), "has several outcomes"),
        (columns_of(t=DIGITS, u=DIGITS), ("--method=pfedsd",), "needs classes"),
        (columns_of(t=TARGET, u=TARGET), ("--set=loss=huge",), "loss"),
        (None, ("--task=multi-label", "--label=t"), "are declared in a schema"),
        (None, ("--label=t", "--model=hazards"), "has one slope for all intervals of time"),
        (columns_of(t=TARGET, u=TARGET), ("--model=hazards",), "has one slope for all intervals of time"),
        (columns_of(t=TARGET, u=TARGET), ("--method=dp-fedavg-record", "--set=evaluation_share=0.1"), "clients share"),
    ],
)
def test_wrong_inputs_are_one_sentence(
    schema: str | None, options: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    values = {"x": [1, 2, 3] * 8, "t": [1, 2, 3] * 8, "u": [3, 1, 2] * 8}
    for site in ("a", "b"):
        write(folder, site, values)
    given: tuple[Any, ...] = ()
    if schema is not None:
        (tmp_path / "s.toml").write_text(schema)
        given = ("--schema", tmp_path / "s.toml")
    outcome = command("run", "--data", folder, *given, *options, "--workers=1", "--store", tmp_path / "st")
    assert outcome.code == 2
    assert outcome.out == ""
    assert sentence in outcome.err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--label=sbp,sbp", "--task=regression"), "names a column twice"),
        (("--label=sbp,nothing", "--task=regression"), "no column 'nothing'"),
        (("--label=sbp,dbp", "--task=classification"), "predicts one"),
        (("--label=cough,fever", "--positive=yes"), "--positive is for one label"),
        (("--label=cough,sbp", "--categorical=sbp"), "of several labels each has two values"),
        (("--label=cough,sbp",), "of kind label and 1 of kind target"),
    ],
)
def test_wrong_wishes_for_a_schema_are_one_sentence(
    options: tuple[str, ...], sentence: str, visits: Path, tmp_path: Path
) -> None:
    assert sentence in refused("data", "schema", visits, *options, "-o", tmp_path / "s.toml")


def test_rows_without_one_of_the_outcomes_are_refused_or_dropped(visits: Path, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    for site in ("a", "b"):
        write(folder, site, {"x": list(range(24)), "t": [*range(1, 24), ""], "u": ["", *range(1, 24)]})
    for rule, count in (("refuse", None), ("drop", 22)):
        target = f'kind = "target"\nrange = [0, 30]\nmissing = "{rule}"'
        (tmp_path / "s.toml").write_text(columns_of(t=target, u=target))
        reading = Reading(schema=Schema.read(tmp_path / "s.toml"))
        if count is None:
            keys = ("--schema", tmp_path / "s.toml", "--workers=1", "--store", tmp_path)
            assert "has a missing value in its target column 'u'" in command("run", "--data", folder, *keys).err
        else:
            assert load(str(folder), how=reading).y.shape == (2 * count, 2)


def test_the_document_of_a_run_is_json(visits: Path, tmp_path: Path) -> None:
    schema = schema_for(visits, "numbers", tmp_path)
    found = prepare(Experiment.make({"data": str(visits), "schema": str(schema), "method": "fedavg"}))
    assert json.loads(json.dumps(found.data.task.document()))["parts"].keys() == {"sbp", "dbp"}
