"""Wherever an epsilon is told, it says which two worlds it compares, and that records are rows and not persons."""

from __future__ import annotations

import html
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import QUICK, command
from rich.console import Console

from sordino.data.people import rows_at_several
from sordino.deploy.site.site import Site
from sordino.deploy.site.status import status
from sordino.privacy.unit import NOT_PERSONS, Unit
from sordino.report.terminal.details import site_report

METHODS = {"client": "dp-fedavg", "record": "dp-fedavg-record"}
RUNS = {"client": "dp-fedavg-digits-1", "record": "dp-fedavg-record-digits-2"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a run of each unit."""
    folder = tmp_path_factory.mktemp("neighbours") / "store"
    for method in METHODS.values():
        assert command("run", "--method", method, *QUICK, "--store", folder).code == 0
    return folder


def said(text: str, unit: str) -> None:
    """Assert that a text tells the neighbours of a unit, and of records that they are rows."""
    text = " ".join(html.unescape(text).split())
    assert Unit(unit).neighbours in text
    assert (NOT_PERSONS in text) == (unit == "record")


@pytest.mark.parametrize("unit", METHODS)
def test_reports_of_a_run_tell_what_epsilon_compares(unit: str, store: Path, tmp_path: Path) -> None:
    said(command("show", RUNS[unit], "--store", store).out, unit)
    said(command("ledger", RUNS[unit], "--json", "--store", store).out, unit)
    said(command("ledger", RUNS[unit], "--verify", "--json", "--store", store).out, unit)
    for name in ("statement.md", "statement.html"):
        assert command("statement", RUNS[unit], "--store", store, "-o", tmp_path / name).code == 0
        said((tmp_path / name).read_text(), unit)
    assert command("report", RUNS[unit], "--store", store, "-o", tmp_path / "page.html").code == 0
    said((tmp_path / "page.html").read_text(), unit)
    told = command("show", RUNS[unit], "--json", "--store", store).document
    assert told["neighbours"] == Unit(unit).neighbours
    assert ("epsilon_rows" in told) == (unit == "record")


@pytest.mark.parametrize("unit", METHODS)
def test_what_comes_before_a_run_tells_what_epsilon_compares(unit: str) -> None:
    said(command("plan", "--method", METHODS[unit], "--clients=8", "--records=100", "--rounds=3").out, unit)
    assert Unit(unit).neighbours in " ".join(command("explain", "neighbours").out.split())


def test_advice_lists_and_comparisons_say_rows_and_not_persons(store: Path) -> None:
    advice = command("advise", "--clients=10", "--records=5000", "--epsilon=4")
    assert "protects one record" in advice.out
    compared = command("compare", "--methods=dp-fedavg-record,local", "--seeds=1", *QUICK, "--store", store)
    for outcome in (advice, compared, command("runs", "--store", store)):
        assert NOT_PERSONS in " ".join(outcome.out.split())
    assert NOT_PERSONS not in command("runs", "--method=dp-fedavg", "--store", store).out


@pytest.mark.parametrize("unit", METHODS)
def test_a_site_tells_its_owner_what_epsilon_compares(unit: Any, tmp_path: Path) -> None:
    (tmp_path / "records.csv").write_text("age,ill\n1,no\n2,yes\n")
    Site.create(tmp_path, "site", Path("records.csv"), label="ill", unit=unit)
    found = status(tmp_path)
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(site_report(found))
    said(console.export_text(), unit)
    assert found["neighbours"] == Unit(unit).neighbours
    assert ("rows_not_persons" in found) == (unit == "record")


def test_equal_rows_at_several_clients_are_counted_exactly() -> None:
    """Beside the columns that are compared first, all others and the label must agree; at one client they may."""
    drawn = np.random.default_rng(0)
    x, y = drawn.normal(size=(12, 100)).astype(np.float32), np.zeros(12, dtype=np.int64)
    sizes = np.array([4, 4, 4])
    assert rows_at_several(x, y, sizes) == 0
    x[1] = x[0]  # at one client
    assert rows_at_several(x, y, sizes) == 0
    x[5] = x[0]
    assert rows_at_several(x, y, sizes) == 3
    x[8:10] = x[0]
    y[8:10] = 1
    assert rows_at_several(x, y, sizes) == 3
    x[10] = x[7]
    x[10, 1] += 1  # not among the first columns
    assert rows_at_several(x, y, sizes) == 3
    x[10, 1] -= 1
    x[10] = x[7]
    assert rows_at_several(x, y, sizes) == 5


def test_equal_rows_at_several_clients_are_not_covered(tmp_path: Path) -> None:
    drawn, folder = np.random.default_rng(0), tmp_path / "sites"
    folder.mkdir()
    for number in range(3):
        x = drawn.normal(size=(10, 2))
        x[3] = 5.0 if number < 2 else 6.0
        y = np.arange(10) % 2
        np.savez(folder / f"site{number}.npz", x=x, y=y, x_test=x, y_test=y)
    given = ("--data", folder, "--method=dp-fedavg-record", "--rounds=1", "--set=epochs=1", "--workers=1")
    outcome = command("run", *given, "--store", tmp_path / "store")
    assert outcome.code == 0, outcome.err
    said = "Not covered: 2 training records stand with equal contents at more than one client"
    assert said in " ".join(outcome.out.split())
