"""Headlines: what Sordino reaches at the epsilons that papers name, measured where data are at hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sordino.cli import app
from sordino.errors import UserError
from sordino.papers import description, headlines, sources
from sordino.papers.headlines import HeadlineOptions, HeadlineRow, compare_words, count_words, page, stored_rows
from sordino.store.store import runs_in

REPOSITORY = Path(__file__).resolve().parents[2]
KEYS = {"paper", "data", "claimed_epsilon", "published", "ours", "true_epsilon", "alone", "seeds"}
"""What scripts rely on."""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two headlines, one on data that are at hand."""
    place = tmp_path / "papers"
    place.mkdir()
    for name in ("pac-dp", "feddpa"):
        (place / name).mkdir()
        for path in sorted((REPOSITORY / "experiments" / name).glob("*.toml")):
            (place / name / path.name).write_text(path.read_text())
    (place / "headlines.toml").write_text("""
[[groups]]
paper = "pac-dp"
table = "Figure 9"
data = "digits"
setting = "10 clients"
measure = "personal"
note = "A note."
alone = { model = "logistic", rounds = 1 }
[groups.keys]
data = "digits"
clients = 10
model = "logistic"
rounds = 2
delta = 1e-5
method = "dp-fedavg"
workers = 1
set = { batch = 16, epochs = 1 }
[[groups.numbers]]
claimed_epsilon = 4
published = 12.5
keys = { epsilon = 4 }

[[groups]]
paper = "feddpa"
table = "Table 9"
data = "svhn"
setting = "10 clients"
measure = "global"
keys = { data = "svhn", clients = 10, model = "logistic", method = "dp-fedavg", delta = 1e-5, epsilon = 8 }
alone = { model = "logistic" }
numbers = [{ published = 60 }]
""")
    monkeypatch.setattr(description, "folder", lambda: place)
    monkeypatch.setattr(headlines, "folder", lambda: place)
    return tmp_path


def call(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["reproduce", "--headlines", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def test_rows_whose_data_are_here_are_measured_once_and_told_to_scripts(small: Path) -> None:
    store = small / "store"
    asked = ("--seeds", 2, "--jobs", 1, "--store", store, "--data-dir", small, "--json")
    told = json.loads(call(*asked))
    first, second = told["rows"]
    assert set(first) >= KEYS
    assert (first["claimed_epsilon"], first["published"], first["seeds"]) == (4, 12.5, 2)
    assert first["true_epsilon"] == pytest.approx(4, rel=1e-6)
    assert first["server_epsilon"] > first["true_epsilon"]
    assert 0 <= first["ours_interval"][0] <= first["ours"] <= first["ours_interval"][1] <= 100
    assert 0 < first["alone"] <= 100
    assert (second["ours"], second["state"], second["why"]) == (None, "not run", "svhn is not here")
    assert len(runs_in(store)) == 4
    assert json.loads(call(*asked)) == told
    assert len(runs_in(store)) == 4, "taken from the store"


def test_pages_are_made_of_documents(small: Path) -> None:
    store, kept, target = small / "store", small / "kept", small / "page.md"
    call("--seeds", 2, "--jobs", 1, "--store", store, "--data-dir", small, "--keep", kept)
    target.write_text(f"Before.\n\n{headlines.BEGIN}\nthe former ones\n{headlines.END}\n\nAfter.\n")
    call("--index", "--store", kept, "-o", target)
    text = target.read_text()
    assert text.startswith("Before.")
    assert text.rstrip().endswith("After.")
    assert "the former ones" not in text
    assert "| pac-dp, Figure 9 | digits, 10 clients | 4 | 12.5 |" in text
    assert "not run: svhn is not here" in text
    assert "pac-dp, digits: A note." in text
    assert "--epsilon 4 --set workers=1 --set batch=16 --set epochs=1 --seed 0" in text
    target.write_text(f"Before.\n\n{headlines.SHORT_BEGIN}\n{headlines.SHORT_END}\n\nAfter.\n")
    call("--index", "--store", kept, "-o", target)
    assert "| pac-dp: digits, 10 clients | 12.5 at 4 |" in target.read_text()
    assert "svhn" not in target.read_text()
    assert target.read_text().rstrip().endswith("After.")
    (kept / "papers" / "headlines.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        call("--index", "--store", kept)


def test_measuring_one_paper_keeps_the_rows_of_others(small: Path) -> None:
    store = small / "store"
    asked = ("--seeds", 1, "--jobs", 1, "--store", store, "--data-dir", small, "--json")
    first = json.loads(call("pac-dp", *asked))["rows"]
    assert [row["paper"] for row in first] == ["pac-dp"]
    call("feddpa", *asked)
    told = json.loads(call("--index", "--store", store, "--json"))["rows"]
    assert [(row["paper"], row["ours"]) for row in told] == [("pac-dp", first[0]["ours"]), ("feddpa", None)]


def test_figures_of_code_that_has_changed_are_refused(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = small / "store"
    call("--seeds", 1, "--jobs", 1, "--store", store, "--data-dir", small)
    options = HeadlineOptions(store)
    row = stored_rows([store], options)[0]
    assert row.state == "run"
    monkeypatch.setattr(sources, "_digest", lambda name: "another")
    row = stored_rows([store], options)[0]
    assert (row.ours, row.state) == (None, "changed")
    assert "repeat it" in compare_words(row)


def test_figures_that_name_no_code_are_of_code_that_has_changed(small: Path) -> None:
    store = small / "store"
    call("--seeds", 1, "--jobs", 1, "--store", store, "--data-dir", small)
    kept = store / "papers" / "headlines.json"
    document = json.loads(kept.read_text())
    for row in document["rows"]:
        row["sources"] = {}
    kept.write_text(json.dumps(document))
    assert stored_rows([store], HeadlineOptions(store))[0].state == "changed"


def test_a_row_that_cost_more_than_the_paper_names_is_compared_with_nothing() -> None:
    """The lead of the page says that ours cost the named epsilon or a smaller one."""
    cheap = replace(row_with(60, 58, 62, 40), true_epsilon=1.0)
    assert compare_words(cheap) == "above the paper"
    for true in (1.1, None):
        dear = replace(cheap, true_epsilon=true)
        assert compare_words(dear) == "costs more than the paper names"
        told = count_words([cheap, dear])
        assert "above 1, below 0 and level with 0, and costs more than the paper names in 1" in told
    assert "above" in compare_words(replace(cheap, claimed_epsilon=None, true_epsilon=8.0))


def test_wrong_uses_are_refused(small: Path) -> None:
    for arguments, words in (
        (("feddpa", "table-1"), "at most a paper"),
        (("--tune", "paper"), "tunes nothing"),
        (("nobody",), "paper"),
        (("--store", "a", "--store", "b"), "Several stores"),
    ):
        with pytest.raises(UserError, match=words):
            call(*arguments)


def row_with(ours: float, low: float, high: float, alone: float) -> HeadlineRow:
    return HeadlineRow(
        paper="pac-dp", table="", data="", setting="", measure="personal", claimed_epsilon=1, published=50,
        ours=ours, ours_interval=[low, high], true_epsilon=1.0, alone=alone, state="run",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (row_with(60, 55, 65, 40), "above the paper"),
        (row_with(52, 45, 59, 40), "level with the paper"),
        (row_with(40, 35, 45, 30), "below the paper"),
        (row_with(40, 35, 45, 41), "below the paper; alone wins"),
    ],
)
def test_ours_is_set_beside_the_printed_number_and_training_alone(row: HeadlineRow, words: str) -> None:
    assert compare_words(row) == words
    assert words.partition(" ")[0] in page([row])
    assert "not run" in compare_words(replace(row, ours=None, state="not run"))


def test_every_headline_can_be_set_up() -> None:
    """As described in the file that comes with Sordino, whatever data are here."""
    rows = [row for row, _, _ in headlines._experiments(HeadlineOptions(Path("nowhere")))]
    assert {row.paper for row in rows} == {"feddpa", "acdp-pfsd", "adadp-cfl", "pac-dp", "fedglp-adp"}
    assert len({row.key for row in rows}) == len(rows)
