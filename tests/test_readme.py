"""The README's Python is run, so that it stays true; so is the own method of the documentation."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from sordino.methods import names
from sordino.report.terminal.catalogue import with_table

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
OWN_METHOD, CHECKED, OF_SUMS = PYTHON.findall((ROOT / "docs" / "own-method.md").read_text("utf-8"))


def test_the_table_of_methods_is_made_from_the_code() -> None:
    assert with_table(README) == README, "make the table anew with `make readme`"
    assert with_table(README.replace("`dp-scaffold`", "`dp-scafold`")) == README
    table = README.partition("<!-- methods -->")[2].partition("<!-- end of methods -->")[0]
    for name in names():
        assert table.count(f"`{name}`") == 1


def test_the_short_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    (code,) = PYTHON.findall(README)
    exec(code, names)
    accuracy, epsilon = (float(word) for word in capsys.readouterr().out.split())
    assert accuracy > 0.3
    assert epsilon == pytest.approx(8)
    assert len(names["networks"].personal) == 100


def test_the_own_method_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sordino

    (tmp_path / "my_own_method.py").write_text(OWN_METHOD)
    monkeypatch.chdir(tmp_path)
    results = [
        sordino.run(method="my_own_method:HeadStart", clients=10, rounds=2, engine=engine, set={"epochs": 1})
        for engine in ("stacked", "one-by-one")
    ]
    for result in results:
        assert result["epsilon"]["outsider"] == pytest.approx(8)


def test_the_own_method_of_sums_runs_and_passes_the_battery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One noise for all: the outsider's epsilon is the planned one, and it learns with it."""
    import sordino

    assert OF_SUMS.count("\n") < 50
    (tmp_path / "my_own_sums.py").write_text(OF_SUMS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for engine, rounds, learned in (("stacked", 20, 0.7), ("one-by-one", 2, 0.0)):
        keys = {"clients": 10, "rounds": rounds, "epsilon": 4, "engine": engine, "partition": "iid"}
        result = sordino.run(method="my_own_sums:DistributedSGD", **keys)
        assert 3.9 < result["epsilon"]["outsider"] <= 4
        assert result["epsilon"]["server"] > 4
        assert result["accuracy"]["global"] > learned
    sordino.check_method(importlib.import_module("my_own_sums").DistributedSGD)


def test_the_own_method_passes_the_battery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "check_method(HeadStart)" in CHECKED
    (tmp_path / "my_checked_method.py").write_text(OWN_METHOD + CHECKED)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("my_checked_method")
