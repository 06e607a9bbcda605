"""Exported models say in other programs what they say here, and carry their schema."""

from __future__ import annotations

import csv
import json
import runpy
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from helpers import QUICK_KEYS, command, otherwise_slow, refused
from safetensors import safe_open

import sordino
from sordino.data.encoding import Encoding
from sordino.data.schema import Schema
from sordino.data.tables import read_table
from sordino.trained.models import Models, load_models
from sordino.trained.predict import probabilities

SCHEMA = """
[columns.a]
kind = "number"
range = [0, 1]
[columns.b]
kind = "category"
values = ["x", "y"]
[columns.label]
kind = "label"
values = ["no", "yes"]
"""


@pytest.fixture(scope="module", params=otherwise_slow(("logistic", "blend", "recalibrate"), "recalibrate".__eq__))
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Models]:
    folder = tmp_path_factory.mktemp("export")
    (folder / "own").mkdir()
    (folder / "schema.toml").write_text(SCHEMA)
    random = np.random.default_rng(0)
    for name in ("north", "south"):
        rows = [f"{a:.3f},{'xy'[k % 2]},{'yes' if a > 0.5 else 'no'}" for k, a in enumerate(random.random(24))]
        (folder / "own" / f"{name}.csv").write_text("\n".join(["a,b,label", *rows]) + "\n")
    mixed = request.param in ("blend", "recalibrate")
    keys: dict[str, Any] = {"model": "mlp", "personal": request.param} if mixed else {"model": request.param}
    keys |= {"data": str(folder / "own"), "schema": folder / "schema.toml", "store": folder / "store"}
    run = sordino.run(method="fedavg", rounds=2, workers=1, set={"epochs": 2, "batch": 8}, **keys)["run"]
    return folder, load_models(run, folder / "store")


def export(models: tuple[Path, Models], kind: str, tmp_path: Path) -> Path:
    folder, found = models
    path = tmp_path / "north"
    told = command(
        "export", found.about.run, "--client=north", "--format", kind, "-o", path, "--store", folder / "store"
    )
    assert told.code == 0, told.err
    return path


X = np.random.default_rng(1).normal(size=(7, 3)).astype(np.float32)


def check_description(text: str) -> None:
    about = json.loads(text)
    assert about["client"] == "north"
    assert about["features"] == ["a", "b = x", "b = y"]
    assert about["meaning"]["classes"] == ["no", "yes"]
    assert about["meaning"]["schema"]["columns"]["a"]["range"] == [0, 1]


def test_onnx_says_the_same(models: tuple[Path, Models], tmp_path: Path) -> None:
    session = onnxruntime.InferenceSession(export(models, "onnx", tmp_path), providers=["CPUExecutionProvider"])
    (found,) = session.run(["probabilities"], {"records": X})
    np.testing.assert_allclose(
        found, probabilities(models[1].about.meaning.task, models[1].personal["north"], X), atol=1e-5
    )
    check_description(session.get_modelmeta().custom_metadata_map["sordino"])


def test_a_link_to_a_model_stays_one(models: tuple[Path, Models], tmp_path: Path) -> None:
    (tmp_path / "north").symlink_to(tmp_path / "kept")
    assert export(models, "safetensors", tmp_path).is_symlink()
    with safe_open(tmp_path / "kept", framework="pt") as found:
        check_description(found.metadata()["sordino"])


EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_predict.py"
MIXED = """
delimiter = ";"
decimal = ","
[columns.range]
kind = "number"
range = [0, 10]
missing = "flag"
[columns.mean]
kind = "number"
mean = 5
deviation = 2
missing = 9
[columns.both]
kind = "number"
range = [0, 10]
mean = 1
deviation = 3
missing = "centre"
[columns.one]
kind = "category"
values = ["x", "y"]
missing = "y"
[columns.two]
kind = "category"
values = ["Ja", "nein"]
fold_case = true
missing = "flag"
[columns.grade]
kind = "category"
values = ["1", "2.0"]
missing = "flag"
[columns.coded]
kind = "number"
range = [0, 10]
missing = "flag"
missing_codes = [0, 9]
units = {"mg/dl" = 1, "g/dl" = 2}
[columns.spelled]
kind = "category"
values = ["m", "f"]
fold_case = true
aliases = {Male = "m", "2" = "f"}
missing = "flag"
[columns.id]
kind = "id"
[columns.label]
kind = "label"
values = ["no", "yes"]
"""
ROWS = """range;mean;both;one;two;grade;coded;spelled;id
1,5;7;3;x;Ja;1.0;3,5 mg/dl;male;a
NA;;;;;;0;;b
25;-1e2;-4;y;NEIN;2;2G/dL;2.0;c
1;1;1;x;ja;2;9,0;F;d
"""


def test_a_program_without_sordino_encodes_alike(tmp_path: Path) -> None:
    file = tmp_path / "north.csv"
    file.write_text(ROWS)
    schema = Schema.parse(tomllib.loads(MIXED))
    found = Encoding(read_table(file, schema), schema, schema, "model").result()
    assert not found.problems
    about = {"recipe": schema.recipe(), "meaning": {"schema": schema.document()}}
    rows = list(csv.DictReader(file.open(), delimiter=";"))
    made = [runpy.run_path(str(EXAMPLE))["encoded"](row, json.loads(json.dumps(about)), ",") for row in rows]
    np.testing.assert_allclose(np.array(made), found.x, rtol=1e-6)
    assert [one["feature"] for one in about["recipe"]] == schema.features()


def test_a_program_without_sordino_predicts_alike(models: tuple[Path, Models], tmp_path: Path) -> None:
    folder, found = models
    onnx, new, out = export(models, "onnx", tmp_path), tmp_path / "new.csv", tmp_path / "out.csv"
    new.write_text("b,a\nx,0.1\ny,0.9\n")
    told = command("predict", found.about.run, new, "--client=north", "-o", out, "--store", folder / "store")
    assert told.code == 0, told.err
    expected = [float(row["probability_yes"]) for row in csv.DictReader(out.open())]
    said = runpy.run_path(str(EXAMPLE))["predictions"](onnx, new)
    np.testing.assert_allclose([one["yes"] for one in said], expected, atol=1e-5)


def test_a_torch_program_says_the_same(models: tuple[Path, Models], tmp_path: Path) -> None:
    inside = {"sordino.json": ""}
    program = torch.export.load(export(models, "torch", tmp_path), extra_files=inside).module()
    found = program(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(
        found, probabilities(models[1].about.meaning.task, models[1].personal["north"], X), atol=1e-5
    )
    check_description(inside["sordino.json"])


def test_safetensors_hold_the_numbers(models: tuple[Path, Models], tmp_path: Path) -> None:
    with safe_open(export(models, "safetensors", tmp_path), "pt") as file:
        check_description(file.metadata()["sordino"])
        expected = models[1].personal["north"].state_dict()
        assert set(file.keys()) == set(expected)
        assert all(torch.equal(file.get_tensor(name), expected[name]) for name in expected)


def test_without_a_client_the_shared_model_is_exported(models: tuple[Path, Models], tmp_path: Path) -> None:
    folder, found = models
    path = tmp_path / "shared.safetensors"
    given = ("export", found.about.run, "--format=safetensors", "-o", path, "--store", folder / "store")
    told = command(*given)
    assert "No epsilon covers it" in told.out  # fedavg has none
    assert command(*given, "--json").document["client"] is None
    with safe_open(path, framework="pt") as file:
        assert json.loads(file.metadata()["sordino"])["client"] is None
        expected = found.shared[0].state_dict()
        assert set(file.keys()) == set(expected)
        assert all(torch.equal(file.get_tensor(name), expected[name]) for name in expected)


def test_an_exported_shared_model_says_what_covers_it(tmp_path: Path) -> None:
    """Epsilon for outsiders; and where a method leaves layers to its clients, that they were never trained."""
    keys = {**QUICK_KEYS, "rounds": 1, "epsilon": 3.0, "store": tmp_path / "store"}
    for method, untrained in (("dp-fedavg", False), ("fedper", True)):
        run = sordino.run(method=method, **keys)["run"]
        given = ("export", run, "--format=safetensors", "-o", tmp_path / "x", "--store", tmp_path / "store")
        told = command(*given).out
        assert "It may be given away: the run's epsilon for outsiders, 3.0" in told
        assert ("were never trained" in told) == untrained


def test_exports_that_cannot_be_made(
    models: tuple[Path, Models], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, found = models
    given = ("export", found.about.run, "--store", folder / "store", "-o", tmp_path / "x")
    assert "no format 'onx'; did you mean 'onnx'" in refused(*given, "--client=north", "--format=onx")
    assert "no client 'berlin'" in refused(*given, "--client=berlin", "--format=torch")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert 'pip install "sordino[export]"' in refused(*given, "--client=north", "--format=onnx")
