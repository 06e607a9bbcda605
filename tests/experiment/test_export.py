"""Exported models say in other programs what they say here, and carry their schema."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from helpers import command, refused
from safetensors import safe_open

import sordino
from sordino.experiment.predict import probabilities
from sordino.experiment.trained import Models, load_models

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


@pytest.fixture(scope="module", params=[pytest.param("logistic", marks=pytest.mark.slow), "blend"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Models]:
    folder = tmp_path_factory.mktemp("export")
    (folder / "own").mkdir()
    (folder / "schema.toml").write_text(SCHEMA)
    random = np.random.default_rng(0)
    for name in ("north", "south"):
        rows = [f"{a:.3f},{'xy'[k % 2]},{'yes' if a > 0.5 else 'no'}" for k, a in enumerate(random.random(24))]
        (folder / "own" / f"{name}.csv").write_text("\n".join(["a,b,label", *rows]) + "\n")
    blended = request.param == "blend"
    keys: dict[str, Any] = {"model": "mlp" if blended else request.param, "personal": "blend" if blended else "own"}
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
    np.testing.assert_allclose(found, probabilities(models[1].personal["north"], X), atol=1e-5)
    check_description(session.get_modelmeta().custom_metadata_map["sordino"])


def test_a_torch_program_says_the_same(models: tuple[Path, Models], tmp_path: Path) -> None:
    inside = {"sordino.json": ""}
    program = torch.export.load(export(models, "torch", tmp_path), extra_files=inside).module()
    found = program(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(found, probabilities(models[1].personal["north"], X), atol=1e-5)
    check_description(inside["sordino.json"])


def test_safetensors_hold_the_numbers(models: tuple[Path, Models], tmp_path: Path) -> None:
    with safe_open(export(models, "safetensors", tmp_path), "pt") as file:
        check_description(file.metadata()["sordino"])
        expected = models[1].personal["north"].state_dict()
        assert set(file.keys()) == set(expected)
        assert all(torch.equal(file.get_tensor(name), expected[name]) for name in expected)


def test_exports_that_cannot_be_made(
    models: tuple[Path, Models], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, found = models
    given = ("export", found.about.run, "--store", folder / "store", "-o", tmp_path / "x")
    assert "no format 'onx'; did you mean 'onnx'" in refused(*given, "--client=north", "--format=onx")
    assert "no client 'berlin'" in refused(*given, "--client=berlin", "--format=torch")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert 'pip install "sordino[export]"' in refused(*given, "--client=north", "--format=onnx")
