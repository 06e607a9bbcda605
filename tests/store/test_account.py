"""A run's ledger and the statement on it, for people who were not there."""

from __future__ import annotations

import csv
import io
import sqlite3
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from helpers import QUICK_KEYS, command, refused

import sordino
from sordino.report.html.sentences import protection
from sordino.report.statement import statement_of
from sordino.store.ledger_rows import COLUMNS, Account, spans
from sordino.store.store import Store
from sordino.util.formatting import round_up


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    store = tmp_path_factory.mktemp("store")
    return sordino.run(store=store, method="dp-fedavg", epsilon=2, **QUICK_KEYS)["run"], store


def test_the_ledger_as_a_table_for_programs(run: tuple[str, Path]) -> None:
    name, store = run
    rows = list(csv.DictReader(io.StringIO(command("ledger", name, "--csv", "--store", store).out)))
    assert tuple(rows[0]) == COLUMNS
    assert [row["round"] for row in rows] == ["1", "2"]
    assert {row["owners"] for row in rows} == {"0-7"}
    assert all(float(row["noise_outsider"]) > float(row["noise_server"]) > 0 for row in rows), "sums hide more"
    document = command("ledger", name, "--json", "--store", store).document
    assert len(document["rows"]) == 2
    assert document["rows"][-1]["link"] == document["head"]
    assert "update" in command("ledger", name, "--store", store).out


def test_figures_follow_from_the_ledger(run: tuple[str, Path]) -> None:
    name, store = run
    found = command("ledger", name, "--verify", "--json", "--store", store).document
    assert found["disagreements"] == []
    assert found["epsilon"]["outsider"] == pytest.approx(2, rel=1e-6)
    assert "unbroken chain" in command("ledger", name, "--verify", "--store", store).out


def test_an_altered_ledger_is_refused(tmp_path: Path) -> None:
    name = sordino.run(store=tmp_path, method="dp-fedavg", **QUICK_KEYS)["run"]
    with sqlite3.connect(tmp_path / "sordino.db") as database:
        database.execute("update ledger set round = 7 where position = 1")
    assert "altered" in refused("ledger", name, "--verify", "--store", tmp_path)


def test_spans() -> None:
    assert spans([3, 0, 1, 2, 9, 11, 12]) == "0-3 9 11-12"
    assert spans([]) == ""


def test_a_statement_says_what_the_ledger_says(run: tuple[str, Path], tmp_path: Path) -> None:
    name, store = run
    told = command("statement", name, "-o", tmp_path / "s.md", "--store", store, "--json").document
    text = (tmp_path / "s.md").read_text()
    head = command("ledger", name, "--json", "--store", store).document["head"]
    for expected in (
        "was a simulation",
        "8 clients: client-0, client-1",
        "| update | ",
        "| 2 times | 8 | yes |",
        "protect one client as a whole",
        "| outsider | ",
        " 2.00 | ",
        head,
        f"sordino ledger {name} --verify",
        "Sordino 0.",
    ):
        assert expected in text, expected
    attack = told["observers"][2]["attack"]
    assert f"{attack:.2f}"[:3] in text.replace(" %", "") or attack > told["observers"][0]["attack"] > 0.5
    assert text.count("#" * 3) >= 3, "bars"


def test_the_page_is_whole_and_asks_for_nothing(run: tuple[str, Path], tmp_path: Path) -> None:
    name, store = run
    command("statement", name, "-o", tmp_path / "s.html", "--store", store)
    page = (tmp_path / "s.html").read_text()
    drawn = ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>")] + "</svg>")
    bars = [float(bar.get("width", 0)) for bar in drawn.iter("rect") if bar.get("class") == "bar"]
    assert len(bars) == 3
    assert bars[0] < bars[2], "the server sees more than an outsider"
    for outside in ("http:", "https:", "src=", "url(", "@import", "<script"):
        assert outside not in page
    assert "@media print" in page


def test_what_leaves_bare_is_said_so(tmp_path: Path) -> None:
    name = sordino.run(store=tmp_path, method="fedavg", **QUICK_KEYS)["run"]
    command("statement", name, "-o", tmp_path / "s.md", "--store", tmp_path)
    text = (tmp_path / "s.md").read_text()
    assert "without bound" in text
    assert "100.0 %" in text
    assert "| no |" in text


def test_statements_that_cannot_be_written(run: tuple[str, Path], tmp_path: Path) -> None:
    name, store = run
    assert "made by a browser: write" in refused("statement", name, "-o", tmp_path / "s.pdf", "--store", store)
    assert "as .md or .html" in refused("statement", name, "-o", tmp_path / "s.doc", "--store", store)
    assert "no run 'none'" in refused("statement", "none", "--store", store)


def test_a_statement_on_tables_names_what_is_predicted_from_what(tmp_path: Path) -> None:
    folder = tmp_path / "clinics"
    folder.mkdir()
    for name in ("north", "south"):
        rows = "".join(f"{place % 2},{place / 40},{place}\n" for place in range(40))
        (folder / f"{name}.csv").write_text(f"ill,age,case\n{rows}")
    keys = {"data": str(folder), "label": "ill", "labels": ["0", "1"], "drop": ["case"], "rounds": 1, "workers": 1}
    name = sordino.run(store=tmp_path / "store", method="dp-fedavg-record", epsilon=4, **keys)["run"]
    command("statement", name, "-o", tmp_path / "s.md", "--store", tmp_path / "store")
    text = (tmp_path / "s.md").read_text()
    assert "to tell 0 and 1 apart in the column ill" in text
    assert "| age | number | any number | refuse | declared as public |" in text
    assert "| case | id | dropped |  | declared as public |" in text
    assert "| ill | label | 0, 1 | refuse | declared as public |" in text
    assert "which holds against every observer" in text
    assert text.count("How many records") == 1


def test_figures_of_shared_noise_name_the_observer_whom_they_are_for(tmp_path: Path) -> None:
    """A server that sees single messages learns more than an outsider. Nothing may read as if it did not."""
    result = sordino.run(store=tmp_path, method="dp-fedsgd", epsilon=2, **QUICK_KEYS)
    assert result["epsilon"]["server"] > result["epsilon_replace_one"] > result["epsilon"]["outsider"]
    command("statement", result["run"], "-o", tmp_path / "s.md", "--store", tmp_path)
    told = {
        "statement": (tmp_path / "s.md").read_text(),
        "show": " ".join(command("show", result["run"], "--store", tmp_path).out.split()),
        "page": protection(SimpleNamespace(ledger=["a row"], summary=result.summary)),  # type: ignore[arg-type]
        "plan": " ".join(command("plan", "--data", "digits", "--method", "dp-fedsgd", "--epsilon", "2").out.split()),
        "notebook": result._repr_markdown_(),
    }
    for name, text in told.items():
        assert "every observer" not in text, name
        assert "has a larger epsilon for the outsider, with 3 rows" in text, name
    replaced = round_up(result["epsilon_replace_one"])
    assert "planned against the observer outsider" in told["statement"]
    assert told["statement"].count("How many records the clients of a round have together") == 1
    assert f"epsilon is at most {replaced} for the observer outsider, and more for" in told["statement"]
    assert "planned for: outsider" in told["show"]
    assert f"if one record is replaced by another (for the outsider): {replaced}" in told["show"]
    assert f"replaced by another epsilon is {replaced} for the outsider." in told["page"]
    assert "for the outsider" in told["plan"].partition("replaced by another: at most")[2][:40]
    own = sordino.run(store=tmp_path, method="dp-fedavg-record", epsilon=2, **QUICK_KEYS)
    text = " ".join(command("show", own["run"], "--store", tmp_path).out.split())
    assert "each client's noise holds for every observer" in text
    assert "for the outsider" not in text


def test_a_result_that_does_not_follow_from_the_ledger_is_told(run: tuple[str, Path]) -> None:
    found = Account.of(Store(run[1]), run[0])
    assert found.disagreements() == []
    assert found.row.summary is not None
    said = {**found.row.summary, "epsilon": {**found.row.summary["epsilon"], "peer": 1.9}}
    (wrong,) = replace(found, row=replace(found.row, summary=said)).disagreements()
    assert wrong.startswith("For the peer the result says epsilon = 1.9, and the ledger 2.")


def test_a_statement_tells_each_observers_figure_and_what_left_bare(run: tuple[str, Path], tmp_path: Path) -> None:
    store = Store(run[1])
    found, summary = statement_of(store, run[0]), store.get(run[0]).result
    assert summary is not None
    assert {one.name: one.epsilon for one in found.observers} == summary.epsilon
    assert {one.name: one.attack for one in found.observers} == summary.attack_accuracy
    assert len(set(summary.epsilon.values())) == 3
    assert [(one.name, one.covered) for one in found.leaving] == [("update", True)]
    bare = sordino.run(store=tmp_path, method="fedavg", **QUICK_KEYS)["run"]
    assert not any(one.covered for one in statement_of(Store(tmp_path), bare).leaving)


def test_what_is_counted_in_raw_records_stands_only_under_what_epsilon_does_not_cover(tmp_path: Path) -> None:
    folder = tmp_path / "clinics"
    folder.mkdir()
    for name in ("north", "south"):
        rows = "".join(f"{place % 2},{place},{'' if place == 7 else place}\n" for place in range(40))
        (folder / f"{name}.csv").write_text(f"ill,chol,age\n{rows}")
    (tmp_path / "schema.toml").write_text(
        '[columns.ill]\nkind = "label"\nvalues = ["0", "1"]\n[columns.chol]\nkind = "number"\nrange = [5, 30]\n'
        '[columns.age]\nkind = "number"\nmissing = "drop"\n'
    )
    keys = {"data": str(folder), "schema": str(tmp_path / "schema.toml"), "rounds": 1, "workers": 1}
    done = sordino.run(store=tmp_path / "store", method="dp-fedavg", epsilon=4, **keys)
    counts = [f"14 values of 'chol' lie outside 5 to 30 in {folder / name}.csv" for name in ("north", "south")]
    counts += [f"1 of 40 rows of {folder / name}.csv lack a value" for name in ("north", "south")]
    command("statement", done["run"], "-o", tmp_path / "s.md", "--store", tmp_path / "store")
    sections = (tmp_path / "s.md").read_text().split("\n## ")
    for count in counts:
        assert any(one.startswith(count) for one in done["not_covered"])
        assert not any(count in note for note in done["notes"])
        assert [text.splitlines()[0] for text in sections if count in text] == ["What these figures do not cover"]
    (uncovered,) = [text for text in sections if text.startswith("What these figures do not cover")]
    assert "training records were counted" in uncovered
