"""The page of all papers: what it takes, what it says, and that the repository's is what its command makes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sordino.cli import app
from sordino.papers.description import find, papers
from sordino.papers.index import BEGIN, END, documents, index, insert_index, keep

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


def row(name, sound, ours=False, **more):
    figures = {"published": None, "paper": None, "paper_epsilon": None, "paper_by_seed": [], "nominal": "8"}
    about = {
        "column": "FEMNIST, epsilon 8",
        "measure": "personal",
        "unit": "client",
        "not_as_published": "",
        "epsilon": 8.0,
    }
    seeds = {"sound": sum(sound) / len(sound), "sound_by_seed": sound, "sound_interval": [min(sound), max(sound)]}
    return {"row": name, "method": name, "ours": ours, **figures, **about, **seeds, **more}


def document(scale="small", table="table-1", **more):
    rows = [
        row("FedDPA", [70.0, 71.0, 72.0], ours=True, published=77.42, paper=61.0, paper_epsilon=43.68),
        row("PPSGD", [80.0, 81.0, 82.1], published=71.03, paper=73.9, paper_epsilon=43.68),
        row("BLUR+LUS", [60.0, 61.1, 62.0], published=74.58, paper=50.0, paper_epsilon=43.68),
        row("no privacy", [95.0, 95.0, 95.0], published=99.0, paper=95.0, epsilon=None),
        row("training alone", [90.0, 90.0, 90.0], method="local[rate=0.1]", epsilon=0),
    ]
    command = f"sordino reproduce feddpa {table} --scale {scale} --tune paper"
    about = {
        "paper": "feddpa",
        "table": table,
        "scale": scale,
        "seeds": 3,
        "claim": "FedDPA | leads.",
        "command": command,
        "version": "0.5.0",
        "sources": {},
        "tuning_seeds": 3,
        "tuned": [],
    }
    return {**about, "headline": "FEMNIST, epsilon 8", "rows": rows, **more}


@pytest.fixture
def feddpa():
    paper, _ = find("feddpa")
    return {"feddpa": paper}


def written(store, *found):
    keep({(one["paper"], one["table"], one["scale"]): one for one in found}, store)  # type: ignore[misc]
    return store


def test_a_main_table_is_told_in_one_line(feddpa):
    text = index(feddpa, {("feddpa", "table-1"): document()})
    (line,) = [line for line in text.splitlines() if line.startswith("| FedDPA | FedDPA")]
    cells = line.strip("| ").split(" | ")
    # Two rivals: Student's t of 1 - 0.05/4 with 2 degrees of freedom is 6.2053, and the deviation sqrt(1/300) points.
    said = "**Refuted**. FEMNIST, epsilon 8: -10.0 points against PPSGD, interval -10.2 to -9.8."
    assert cells[1:] == [
        "FedDPA is above all rivals at every budget, by 1.3 to 6.8 points.",
        f"{said} Against training alone: better in 0 of 1, worse in 1.",
        "8 named, 43.68 true",
        "`feddpa table-1 --scale small --tune paper`, 3 seeds",
    ]


def test_a_paper_shows_its_method_and_the_best_rival_on_equal_terms(feddpa):
    text = index(feddpa, {("feddpa", "table-1"): document()})
    (line,) = [line for line in text.splitlines() if line.startswith("| `table-1")]
    assert line.strip("| ").split(" | ")[:5] == [
        "`table-1 --scale small --tune paper`, 3 seeds",
        "FedDPA is above all rivals at every budget, by 1.3 to 6.8 points.",
        "FedDPA 77.42; BLUR+LUS 74.58",
        "FedDPA 61.0 (43.68); PPSGD 73.9 (43.68)",
        "FedDPA 71.0 (70.0 to 72.0); PPSGD 81.0 (80.0 to 82.1); epsilon 8.00",
    ]
    assert "Not run yet: table-2, table-3" in text


def test_rows_that_a_paper_does_not_have_are_told_apart(feddpa):
    found = document()
    found["rows"][1]["added"] = True
    text = index(feddpa, {("feddpa", "table-1"): found})
    assert "**Holds**. FEMNIST, epsilon 8: +10.0 points against BLUR+LUS" in text
    assert "; -10.0 points against PPSGD, interval -10.2 to -9.9, which is not in the paper's table." in text


def test_the_quick_scale_is_shown_but_judges_nothing(feddpa):
    text = index(feddpa, {("feddpa", "table-1"): document("quick")})
    assert "Not judged: `quick` is too small for that." in text
    assert "<summary>1 of its tables and figures that judge nothing, and why</summary>" in text
    assert "Refuted" not in text


def test_numbers_from_formulas_stand_at_the_end(feddpa):
    text = index(feddpa, {})
    assert "| FedDPA | noise multiplier of the released code for SVHN at epsilon 2 | 0.441 | 0.44" in text
    assert "Not run yet." in text


def test_larger_scales_win_and_then_later_stores(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    written(old, document("small", version="old"), document("quick", table="table-2", version="old"))
    written(new, document("quick", version="new"), document("quick", table="table-2", version="new"))
    found = documents([old, new])
    assert {table: one["version"] for (_, table), one in found.items()} == {"table-1": "old", "table-2": "new"}
    assert documents([new, old])["feddpa", "table-2"]["version"] == "old"


def test_what_was_kept_makes_the_same_page_without_the_store(tmp_path):
    store, kept = written(tmp_path / "store", document(), document("quick")), tmp_path / "kept"
    told = CliRunner().invoke(app, ["reproduce", "--index", "--store", str(store), "--keep", str(kept)])
    assert told.exit_code == 0
    assert [path.name for path in kept.rglob("*.json")] == ["table-1-small.json"]
    assert CliRunner().invoke(app, ["reproduce", "--index", "--store", str(kept)]).stdout == told.stdout


def test_the_index_takes_its_place_in_a_page():
    assert insert_index("new\n", f"before\n{BEGIN}\nold\n{END}\nafter\n") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert insert_index("new", "no marks") == "new"


def test_the_page_of_the_repository_is_what_its_documents_say():
    """`sordino reproduce --index --store experiments/results -o experiments/README.md` changes nothing."""
    page = (EXPERIMENTS / "README.md").read_text(encoding="utf-8")
    assert insert_index(index(papers(), documents([EXPERIMENTS / "results"])), page) == page


def test_documents_of_the_repository_name_no_machine():
    for path in (EXPERIMENTS / "results").rglob("*.json"):
        text = json.dumps(json.loads(path.read_text(encoding="utf-8")))
        assert "/root" not in text
        assert "/home/" not in text
        assert "/tmp/" not in text
