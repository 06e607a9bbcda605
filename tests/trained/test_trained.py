"""Stored models carry their meaning: names, classes, schema and metrics; predictions and exports are theirs."""

from __future__ import annotations

import csv
import json
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import QUICK_KEYS, command, refused
from safetensors import safe_open
from safetensors.torch import save_file

import sordino
from sordino.data.schema import Format, Schema
from sordino.errors import UserError
from sordino.parts.blending import ADJUSTED, RECALIBRATED
from sordino.tasks import Classification
from sordino.tasks.class_metrics import METRICS
from sordino.trained.models import Description, Meaning, Models, load_models, models_in
from sordino.trained.predict import read_records

SCHEMA = """
[columns.age]
kind = "number"
range = [0, 100]
missing = "centre"
[columns.ward]
kind = "category"
values = ["a", "b"]
missing = "drop"
[columns.name]
kind = "id"
[columns.ill]
kind = "label"
values = ["no", "yes"]
"""
CLINICS = ("north", "south", "west")
OF_ANY: dict[str, Any] = {"run": "r", "version": "0", "method": "m", "network": "n", "options": {}, "shape": (3,)}
OF_ANY |= {"clients": CLINICS}


def clinics(folder: Path) -> Path:
    """Three tables whose label follows from the age."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for clinic in CLINICS:
        ages = random.integers(0, 100, 40)
        rows = [f"{age},{'ab'[age % 2]},{clinic}{k},{'yes' if age > 50 else 'no'}" for k, age in enumerate(ages)]
        (folder / f"{clinic}.csv").write_text("\n".join(["age,ward,name,ill", *rows]) + "\n")
    (folder.parent / "schema.toml").write_text(SCHEMA)
    return folder


KEYS: dict[str, Any] = {"method": "fedavg", "rounds": 4, "workers": 1, "set": {"epochs": 5, "batch": 8, "rate": 0.5}}


@pytest.fixture(scope="module", params=["own", "blend", "recalibrate"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The name and the store of a run whose data are gone."""
    folder = tmp_path_factory.mktemp("trained")
    data = clinics(folder / "clinics")
    keys = {**KEYS, "schema": folder / "schema.toml", "store": folder / "store", "personal": request.param}
    run = sordino.run(data=str(data), **keys)["run"]
    shutil.rmtree(data)
    return run, folder / "store"


def said(models: Models, x: list[list[float]]) -> np.ndarray:
    with torch.no_grad():
        return torch.softmax(models.personal["north"](torch.tensor(x)).double(), dim=1).numpy()


def test_clients_are_found_by_name_and_the_data_are_not_needed(trained: tuple[str, Path]) -> None:
    models = load_models(*trained)
    assert list(models.personal) == list(CLINICS)
    assert models.about.meaning.task.groups == ("no", "yes")
    assert models.about.meaning.task.positive_name == "yes"
    assert isinstance(models.about.meaning.schema, Schema)
    x = torch.rand(3, 3)
    with torch.no_grad():
        assert torch.equal(models.personal["south"](x), models.personal[1](x))
        assert not torch.equal(models.personal["south"](x), models.personal["north"](x))
    assert "west" in models.personal
    assert "berlin" not in models.personal
    assert models.personal.get("berlin") is None
    with pytest.raises(UserError, match="no client 'nort'; did you mean 'north'"):
        models.personal["nort"]
    with pytest.raises(UserError, match=r"no client 7 in .*: they are 0 to 2"):
        models.predictor(7)


def test_models_of_an_earlier_version_are_refused(trained: tuple[str, Path], tmp_path: Path) -> None:
    """Without a description, or blended by rules that did not know of labels, or of means over rounds, yet; and those
    that lack a network which is mixed."""
    run, store = trained
    path = store / "runs" / run / "models.safetensors"
    with safe_open(path, framework="pt") as file:
        tensors, about = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    older = [(tensors, None)]
    for unknown in {"offsets", "averaged"} & set(tensors):
        older.append(({name: rows for name, rows in tensors.items() if name != unknown}, about))
    for content, described in older:
        save_file(content, tmp_path / "models", described)
        with pytest.raises(UserError, match="earlier version"):
            models_in(tmp_path / "models", run).personal["north"]


def test_blends_of_an_earlier_version_are_loaded(trained: tuple[str, Path], tmp_path: Path) -> None:
    """It had six members, and kept a client's label frequencies in the place of each member's offsets."""
    run, store = trained
    with safe_open(store / "runs" / run / "models.safetensors", framework="pt") as file:
        tensors, about = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    if "averaged" not in tensors:
        pytest.skip("earlier versions had blends only")
    weights, added = tensors["weights"].clone(), tensors.pop("offsets")
    weights[:, RECALIBRATED] = 0
    save_file(tensors | {"weights": weights, "offsets": added}, tmp_path / "now", about)
    earlier = {"weights": weights[:, :6].contiguous(), "powers": tensors["powers"][:, :6].contiguous()}
    labels = added[:, ADJUSTED].contiguous()
    save_file(tensors | earlier | {"labels": labels}, tmp_path / "earlier", about)
    x = torch.rand(5, 3)
    now, then = (models_in(tmp_path / name, run).personal["south"] for name in ("now", "earlier"))
    with torch.no_grad():
        assert torch.equal(now(x), then(x))


def test_predictions_are_the_models(trained: tuple[str, Path], tmp_path: Path) -> None:
    run, store = trained
    (tmp_path / "new.csv").write_text("ward,age,more\nb,90,x\na,5,y\n,50,z\na,,w\n")
    out = tmp_path / "out.csv"
    told = command("predict", run, tmp_path / "new.csv", "--client=north", "-o", out, "--store", store, "--json")
    assert told.document["records"] == 4
    assert told.document["without_prediction"] == 1
    rows = list(csv.DictReader(out.open()))
    assert list(rows[0]) == ["ward", "age", "more", "prediction", "probability_no", "probability_yes"]
    assert [row["prediction"] for row in rows[:3]] == ["yes", "no", ""], "the third lacks its ward"
    assert [row["more"] for row in rows] == ["x", "y", "z", "w"]
    expected = said(load_models(run, store), [[0.8, 0, 1], [-0.9, 1, 0], [0, 1, 0]])
    found = [[float(row["probability_no"]), float(row["probability_yes"])] for row in (rows[0], rows[1], rows[3])]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_numbers_outside_the_trained_range_are_told_of(trained: tuple[str, Path], tmp_path: Path) -> None:
    """Predictions are those for the end of the range; rows without a prediction do not count."""
    run, store = trained
    (tmp_path / "new.csv").write_text("ward,age\nb,250\na,100\na,-3\n,500\n")
    out = tmp_path / "out.csv"
    asked = ("predict", run, tmp_path / "new.csv", "--client=north", "-o", out, "--store", store)
    told = command(*asked)
    assert told.err == (
        "Note: 2 of 3 records have numbers for which the model was not trained; their predictions may be wrong: 'age' "
        "in 2 (beyond 0 to 100, held to it). Check the units there, and the codes of missing values.\n"
    )
    found = [float(row["probability_yes"]) for row in csv.DictReader(out.open()) if row["probability_yes"]]
    expected = said(load_models(run, store), [[1.0, 0, 1], [1, 1, 0], [-1, 1, 0]])[:, 1]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    age = {"records": 2, "range": [0, 100], "held": True}
    assert command(*asked, "--json").document["outside_range"] == {"records": 2, "columns": {"age": age}}
    (tmp_path / "new.csv").write_text("ward,age\nb,100\na,0\n,500\na,\n")
    assert command(*asked).err == ""
    assert command(*asked, "--json").document["outside_range"] == {"records": 0, "columns": {}}


def test_numbers_without_a_range_are_expected_near_their_mean(tmp_path: Path) -> None:
    """Within ten deviations; those that are taken as they stand up to a hundred, above which training complains."""
    columns = {
        "scaled": {"kind": "number", "mean": 50, "deviation": 2},
        "plain": {"kind": "number"},
        "ill": {"kind": "label", "values": ["no", "yes"]},
    }
    schema = Schema.parse({"columns": columns})
    about = Description(**OF_ANY | {"shape": (2,)}, meaning=Meaning(Classification(("no", "yes")), schema))
    (tmp_path / "new.csv").write_text("scaled,plain\n70,100\n70.1,0\n29,101\n50,-100\n")
    records = read_records(tmp_path / "new.csv", about, None)
    assert records.outside is not None
    assert {name: one.rows.tolist() for name, one in records.outside.items()} == {
        "scaled": [False, True, True, False],
        "plain": [False, False, True, False],
    }
    assert records.x[1, 0] == pytest.approx(10.05), "taken as it stands"
    note = records.note_outside()
    assert note is not None
    assert "2 of 4 records" in note
    assert "'scaled' in 2 (beyond 30 to 70, taken as it stands), 'plain' in 1 (beyond -100 to 100" in note


def test_new_records_pass_the_checks_of_the_schema(trained: tuple[str, Path], tmp_path: Path) -> None:
    run, store = trained
    arguments = ("--client=north", "-o", tmp_path / "out.csv", "--store", store)
    (tmp_path / "new.csv").write_text("ward\nc\n")
    outcome = command("predict", run, tmp_path / "new.csv", *arguments)
    assert outcome.code == 2
    first, *lines = outcome.err.splitlines()
    assert "2 problems" in first
    assert "has no column 'age', which the schema names" in lines[0]
    assert "the value 'c', which the schema lacks (line 2)" in lines[1]
    assert not (tmp_path / "out.csv").exists()
    assert "There is no file" in refused("predict", run, tmp_path / "none.csv", *arguments)
    (tmp_path / "empty.csv").write_text("ward,age\n")
    assert "has no records to predict" in refused("predict", run, tmp_path / "empty.csv", *arguments)
    (tmp_path / "unusable.csv").write_text("ward,age\n,50\n")
    told = command("predict", run, tmp_path / "unusable.csv", *arguments, "--json")
    assert told.document["without_prediction"] == told.document["records"] == 1
    assert "did you mean 'north'" in refused("predict", run, tmp_path / "new.csv", "--client=noth", "--store", store)


def test_new_records_are_written_as_their_client_writes(trained: tuple[str, Path], tmp_path: Path) -> None:
    run, store = trained
    about = load_models(run, store).about
    schema = about.meaning.schema
    assert schema is not None
    german = schema.model_copy(update={"files": {"south": Format(delimiter=";", decimal=",")}})
    about = replace(about, meaning=replace(about.meaning, schema=german))
    file = tmp_path / "new.csv"
    file.write_text("age;ward\n12,5;a\n")
    assert read_records(file, about, "south").x[0, 0] == pytest.approx(-0.75)
    with pytest.raises(
        UserError, match=r"';' between its cells, not ',': write it as the file of 'north' was in training"
    ):
        read_records(file, about, "north")
    file.replace(tmp_path / "south.csv")
    assert read_records(tmp_path / "south.csv", about, "north").usable.all(), "its name says whose it is"


def test_advice_on_new_records_is_for_those_who_predict(trained: tuple[str, Path], tmp_path: Path) -> None:
    run, store = trained
    (tmp_path / "new.csv").write_text("age,ward\nold,a\n")
    told = refused("predict", run, tmp_path / "new.csv", "--client=north", "--store", store)
    assert "give numbers, as in training" in told
    assert "--drop" not in told
    both = refused("predict", run, tmp_path / "new.csv", "--client=north", "--shared", "--store", store)
    assert both == "Give --client for a client's model or --shared for the server's, not both."


def test_without_a_client_the_shared_model_predicts(trained: tuple[str, Path], tmp_path: Path) -> None:
    """The server's own model, not that of some client, whatever clients made of it."""
    run, store = trained
    (tmp_path / "new.csv").write_text("age,ward\n10,a\n90,b\n")
    out = tmp_path / "out.csv"
    told = command("predict", run, tmp_path / "new.csv", "-o", out, "--store", store, "--json").document
    assert told["client"] is None
    models = load_models(run, store)
    x = read_records(tmp_path / "new.csv", models.about, None).x
    with torch.no_grad():
        wanted = torch.softmax(models.shared[0](torch.from_numpy(x)).double(), dim=1).numpy()
    with out.open() as stream:
        found = [[float(row[f"probability_{name}"]) for name in ("no", "yes")] for row in csv.DictReader(stream)]
    assert np.allclose(found, wanted, atol=1e-6)
    assert not np.allclose(found, said(models, x.tolist()), atol=1e-3)


def test_a_label_that_is_grouped_is_judged_by_its_bounds(tmp_path: Path) -> None:
    binned = SCHEMA.replace('values = ["no", "yes"]', 'values = ["low", "high"]\nbins = [2]')
    schema = Schema.parse(tomllib.loads(binned))
    task = Classification(("low", "high"))
    about = Description(**OF_ANY, meaning=Meaning(task, schema))
    (tmp_path / "new.csv").write_text("age,ward,name,ill\n10,a,x,1\n20,b,y,2.0\n30,b,z,3\n40,a,v,\n50,a,w,none\n")
    labels = read_records(tmp_path / "new.csv", about, None).labels
    assert labels is not None
    assert labels.tolist() == [0, 1, 1, -1, -1]


def test_a_server_without_one_model_for_all_has_none_to_give_away(trained: tuple[str, Path]) -> None:
    run, store = trained
    models = load_models(run, store)
    for shared, why in (([], "has no model of its own"), (models.shared * 2, "has 2 models, one for each cluster")):
        with pytest.raises(UserError, match=why) as error:
            replace(models, shared=shared).shared_model()
        assert str(error.value).endswith("There are 3 clients (north, south, west): name one, as in --client north.")


def test_metrics_are_stored_and_shown(trained: tuple[str, Path]) -> None:
    run, store = trained
    models = load_models(run, store)
    assert models.metrics.shape == (3, len(METRICS))
    found = command("show", run, "--clients", "--json", "--store", store).document
    accuracies = [row["accuracy"] for row in found["client_metrics"]]
    assert [row["client"] for row in found["client_metrics"]] == list(CLINICS)
    assert found["accuracy"]["personal"] == pytest.approx(np.mean(accuracies)) == found["metrics"]["accuracy"]["mean"]
    assert found["metrics"]["auc"]["mean"] > 0.9, "the label follows from the age"
    assert found["metrics"]["accuracy"]["overall"] == pytest.approx(np.mean(accuracies)), "all have 8 test records"
    assert found["metrics"]["auc"]["overall"] > 0.9
    shown = command("show", run, "--store", store).out
    assert "recall of 'yes'" in shown
    assert "all records" in shown
    assert "always the majority class" in shown
    assert "north" in command("show", run, "--clients", "--store", store).out


def test_one_class_is_warned_of(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    (tmp_path / "rare").mkdir()
    for name in ("a", "b"):
        np.savez(tmp_path / "rare" / f"{name}.npz", x=random.normal(size=(60, 2)), y=np.arange(60) % 12 == 0)
    keys = {"data": str(tmp_path / "rare"), "store": tmp_path / "s", "method": "fedavg", "workers": 1, "rounds": 2}
    found = sordino.run(**keys)
    assert any("2 of 2 clients' models give all test records one class (a, b)" in note for note in found["notes"])
    assert found["metrics"]["accuracy"] == found["metrics"]["majority"]
    assert found["metrics"]["recall"]["mean"] == 0
    assert not any("Recall 0" in note for note in found["notes"])  # of two or three records it says nothing
    (few,) = (note for note in found["notes"] if "say nothing" in note)
    assert few.startswith("2 of 2 clients have fewer than 5 test records with 'True' or fewer than 5 without (a, b)")


def test_recall_zero_is_warned_of_with_what_to_do(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    (tmp_path / "rare").mkdir()
    for name in ("a", "b"):
        x = random.normal(size=(120, 2))
        y = (0.5 * x[:, 0] + random.normal(size=120) > 1.2).astype(int)  # one in seven, hard to tell
        np.savez(tmp_path / "rare" / f"{name}.npz", x=x[60:], y=y[60:], x_test=x[:60], y_test=y[:60])
    keys = {"data": str(tmp_path / "rare"), "store": tmp_path / "s", "method": "fedavg", "workers": 1, "rounds": 1}
    found = sordino.run(**keys, set={"epochs": 8, "rate": 0.3})
    (note,) = (note for note in found["notes"] if note.startswith("Recall 0: the models of a, b find none of '1'"))
    assert "--set class_weight=balanced" in note
    weighed = sordino.run(**keys, set={"epochs": 8, "rate": 0.3, "class_weight": "balanced"})
    assert weighed["metrics"]["recall"]["mean"] > 0.3
    assert not any("Recall 0" in note for note in weighed["notes"])


def test_arrays_are_predicted_on_too(tmp_path: Path) -> None:
    run = sordino.run(store=tmp_path, **QUICK_KEYS)["run"]
    np.savez(tmp_path / "new.npz", x=np.zeros((2, 64)))
    arguments = ("--client", "client-3", "--store", tmp_path, "-o", tmp_path / "o.csv")
    command("predict", run, tmp_path / "new.npz", *arguments)
    lines = (tmp_path / "o.csv").read_text().splitlines()
    assert lines[0].startswith("record,prediction,probability_0,")
    assert len(lines) == 3
    np.savez(tmp_path / "new.npz", x=np.zeros((2, 63)))
    assert "the models take (1, 8, 8)" in refused("predict", run, tmp_path / "new.npz", *arguments)
    (tmp_path / "new.csv").write_text("a\n1\n")
    assert "take arrays, not tables" in refused("predict", run, tmp_path / "new.csv", *arguments)


def test_a_file_of_models_says_what_they_mean(trained: tuple[str, Path]) -> None:
    from safetensors import safe_open

    run, store = trained
    with safe_open(store / "runs" / run / "models.safetensors", "pt") as file:
        about = json.loads(file.metadata()["sordino"])
    assert about["clients"] == list(CLINICS)
    assert about["meaning"]["schema"]["columns"]["age"]["range"] == [0, 100]
