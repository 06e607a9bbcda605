"""Pages: what a report tells must be what the store has, and a page must hold all that it shows."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from helpers import QUICK_KEYS, command, refused

import sordino
from sordino.experiment.config import Experiment
from sordino.experiment.hyperparameters import called
from sordino.report.html import charts
from sordino.report.html import charts as scales
from sordino.report.html.gather import _names, gather
from sordino.report.html.sentences import differences, experiment_file
from sordino.store.store import Store
from sordino.util.formatting import percent_up, round_up

VOID = {"meta", "link", "img", "br", "hr", "wbr"}


class Reader(HTMLParser):
    """Reads a page: its words, what it refers to, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.references: list[str] = []
        self.identifiers: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attributes)
        self.references += [given[key] or "" for key in ("src", "href", "action", "data") if key in given]
        self.identifiers += [given["id"] or ""] if "id" in given else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(text)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training alone, a method with two seeds, one that clusters, one at record level, one without privacy."""
    folder = tmp_path_factory.mktemp("pages") / "store"
    keys: dict[str, Any] = QUICK_KEYS | {"store": folder}
    for seed in (0, 1):
        for method in ("local", "dp-fedavg"):
            sordino.run(**keys, method=method, seed=seed)
    sordino.run(**keys, method="pacfl")
    whole = {"records": 320, "set": {"curve": "mnist", "epochs": 1, "batch": 32}}  # batches of all: quickly accounted
    sordino.run(**keys | whole, method="pac-dp", epsilon=2)
    sordino.run(**keys, method="fedavg")
    return folder


def page(store: Path, *what: object) -> Reader:
    """A page, read; it may refer to nothing outside of itself."""
    path = store.parent / "page.html"
    outcome = command("report", *what, "-o", path, "--store", store, "--json")
    assert outcome.code == 0, outcome
    assert outcome.document == {"page": str(path)}
    read = Reader(path.read_text("utf-8"))
    assert "script" not in read.tags
    for reference in read.references:
        assert reference.startswith(("#", "data:")), reference
        assert not reference.startswith("#") or reference[1:] in read.identifiers
    style = path.read_text("utf-8").partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    return read


def test_a_page_of_one_run_tells_what_the_store_has(store: Path) -> None:
    read = page(store, "dp-fedavg-digits-2")
    opened = Store(store, must_exist=True)
    row, ledger = opened.get("dp-fedavg-digits-2"), opened.ledger("dp-fedavg-digits-2")
    summary = row.summary
    assert summary is not None
    previous = bytes(32)
    for one in ledger:
        previous = one.link(previous)
    for part in (
        f"{summary['accuracy']['personal']:.1%}",
        "epsilon = 8.00 at delta = 1e-05",
        f"{summary['parameters']:,} parameters",
        "Epsilon over the rounds",
        "Clipping threshold",
        "Noise that each observer meets on update",
        "Gain over training alone",
        "Training records of every client in each class",
        f"records have is right on {summary['metrics']['majority']['mean']:.1%}",
        "gain over training alone, points",
        previous.hex(),
        row.identity,
    ):
        assert part in read.text, part
    assert read.text.count("outsider") >= 2
    opened.close()


def test_a_page_of_several_seeds_tells_the_largest_epsilon(tmp_path: Path) -> None:
    """Whichever seed comes first: given noise costs what the clients' sizes ask for, which seeds deal."""
    keys: dict[str, Any] = QUICK_KEYS | {"store": tmp_path / "store", "partition": "dirichlet:0.3", "clients": 4}
    runs = [
        sordino.run(**keys, method="dp-fedavg-record", noise_multiplier=1.0, engine="one-by-one", seed=seed)
        for seed in (0, 1)
    ]
    spent = [run["epsilon"]["outsider"] for run in runs]
    assert round_up(spent[0]) != round_up(spent[1])
    text = page(tmp_path / "store", *(run["run"] for run in runs)).text
    attack = percent_up(max(run["attack_accuracy"]["outsider"] for run in runs))
    assert f"learns with epsilon = {round_up(max(spent))} at delta = 1e-05" in text
    assert f"The best attack is right in {attack}" in text


def test_the_file_on_the_page_repeats_the_run(store: Path) -> None:
    path = store.parent / "repeat.html"
    sordino.make_report("pac-dp-digits-6", output=path, store=store)
    found = re.search(r"<pre><code>(.*?)</code></pre>", path.read_text("utf-8"), re.DOTALL)
    assert found is not None
    again = Experiment.make(tomllib.loads(found[1].replace("&#34;", '"')))
    opened = Store(store, must_exist=True)
    assert again.decisive() == Experiment.make(opened.get("pac-dp-digits-6").configuration).decisive()
    opened.close()


def test_a_schema_stands_in_the_file_that_repeats_a_run() -> None:
    columns = {
        "age": {"kind": "number", "range": [0.0, 1.5], "values": None},
        "sex": {"kind": "category", "values": ["f"]},
    }
    configuration = {
        "data": 'a "b"',
        "method": "local",
        "table": {"columns": columns, "files": None},
        "set": {"x": True},
    }
    run = SimpleNamespace(row=SimpleNamespace(configuration=configuration))
    found = tomllib.loads(experiment_file(cast(Any, run)))
    known = {"age": {"kind": "number", "range": [0.0, 1.5]}, "sex": columns["sex"]}
    assert found == {"data": 'a "b"', "method": "local", "table": {"columns": known}, "set": {"x": True}}
    assert "[table.columns.age]\n" in experiment_file(cast(Any, run)), "as a schema is written"


def test_gains_are_against_training_alone_on_the_same_records(store: Path) -> None:
    opened = Store(store, must_exist=True)
    told = gather(["dp-fedavg-digits-2", "dp-fedavg-digits-4"], opened)
    (group,) = told.groups
    assert [run.row.run for run in group.alone] == ["local-digits-1", "local-digits-3"]
    found = [value for _, value in differences(group)]
    for place, (mine, alone) in enumerate(
        (("dp-fedavg-digits-2", "local-digits-1"), ("dp-fedavg-digits-4", "local-digits-3"))
    ):
        last = [{row["client"]: row["personal"] for row in opened.clients(name)} for name in (mine, alone)]
        assert found[8 * place : 8 * place + 8] == pytest.approx(
            [last[0][client] - last[1][client] for client in range(8)]
        )
    opened.close()
    text = page(store, "dp-fedavg-digits-2", "dp-fedavg-digits-4").text
    up, down = sum(value > 0 for value in found), sum(value < 0 for value in found)
    assert f"{up} client" in text
    assert f"{down} lose" in text
    assert f"{16 - up - down} see" in text


def test_a_comparison_is_read_from_its_file(store: Path) -> None:
    """Three methods, of which two have two seeds."""
    names = {"local": [1, 3], "dp-fedavg": [2, 4], "pacfl": [5]}
    rows = [{"runs": [f"{name}-digits-{number}" for number in numbers]} for name, numbers in names.items()]
    path = store.parent / "compare.json"
    path.write_text(json.dumps({"rows": rows, "verdict": []}))
    read = page(store, path)
    assert "3 methods were compared on the same 8 clients" in read.text
    assert "Side by side" in read.text
    assert "has the best personal accuracy" in read.text
    assert "cluster 0" in read.text
    assert "data:image/png;base64" in " ".join(read.references)


def test_a_comparison_finds_its_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its store, elsewhere, moved with its store, or beside another one, whose runs have the same names."""
    monkeypatch.chdir(tmp_path)
    keys = ("compare", "--methods=local", "--seeds=1", "--clients=8", "--partition=iid", "--workers=1")
    sordino.run(**QUICK_KEYS | {"rounds": 3}, method="local")  # local-digits-1 of the usual store
    document = command(*keys, "--rounds=1", "--store=mine", "--json").document
    Path("copy.json").write_text(json.dumps(document))

    def rounds(*what: str) -> str:
        assert command("report", *what, "-o", "page.html").code == 0
        (found,) = re.findall(r"rounds = (\d+)", Path("page.html").read_text("utf-8"))
        return str(found)

    assert rounds("mine/compare.json") == rounds("copy.json") == "1"
    assert "in the store .sordino are not those of copy.json" in refused("report", "copy.json", "--store=.sordino")
    Path("mine").rename("moved")
    assert rounds("moved/compare.json") == "1"
    assert "mine' of the comparison copy.json is not there: name it with --store" in refused("report", "copy.json")
    assert rounds("copy.json", "--store=moved") == "1", "what is named is taken"
    Path("moved").rename(".elsewhere")
    Path("old.json").write_text(json.dumps({key: value for key, value in document.items() if key != "store"}))
    assert "are not those of old.json" in refused("report", "old.json"), "a comparison that names no store"


def test_a_comparison_that_was_judged_by_another_figure_says_so_first(store: Path) -> None:
    rows = [{"method": name, "runs": [f"{name}-digits-{number}"]} for name, number in (("local", 1), ("dp-fedavg", 2))]
    path = store.parent / "judged.json"
    path.write_text(json.dumps({"rows": rows, "store": str(store), "judge": "worst-tenth"}))
    judged = page(store, path).text
    assert "accuracy of the worst tenth" in judged
    path.write_text(json.dumps({"rows": rows, "store": str(store), "judge": "personal"}))
    assert "accuracy of the worst tenth" not in page(store, path).text


@pytest.mark.parametrize("accuracy", [None, [], "high", {"personal": None}, {"personal": {"mean": "high"}}])
def test_a_row_without_figures_is_no_obstacle(accuracy: object, store: Path) -> None:
    path = store.parent / "odd.json"
    row = {"runs": ["local-digits-1"], "method": "local", "accuracy": accuracy}
    path.write_text(json.dumps({"rows": [row], "verdict": []}))
    assert "local" in page(store, path).text


def test_blended_models_are_told_by_name_where_others_are_not_blended() -> None:
    plain = {"variant": "sound", "privacy": "dp", "rate": 0.1, "set": {}}
    own, blend = {**plain, "personal": "own"}, {**plain, "personal": "blend"}
    three = [{"method": "a", **own}, {"method": "a", **blend}, {"method": "b", **blend}]
    assert _names(three) == ["a", "a[personal=blend]", "b[personal=blend]"]
    assert _names(three[1:]) == ["a", "b"]
    two = [{"method": "a", **own}, {"method": "a", **own, "rate": 1}]
    assert _names(two) == ["a[rate=0.1]", "a[rate=1]"]


def test_a_method_with_other_hyperparameters_is_another_method(tmp_path: Path) -> None:
    """Pages, statements, progress and summaries call it as the terminal's comparison does."""
    keys = {**QUICK_KEYS, "rounds": 1, "store": tmp_path, "model": "logistic"}
    alone = sordino.run(**keys | {"method": "local"})
    found = sordino.run(**keys | {"method": "acdp-pfsd", "set": {**QUICK_KEYS["set"], "clipping": "quantile"}})
    rival = sordino.run(**keys | {"method": "dp-fedavg", "set": {**QUICK_KEYS["set"], "clipping": "quantile"}})
    assert found["called"] == "acdp-pfsd[batch=64,clipping=quantile,epochs=1]"
    for other in (alone, rival):
        both = page(tmp_path, other["run"], found["run"]).text
        assert all(one["called"] in both for one in (other, found)), "whether others have the same or not"
    assert f"{found['called']} on digits" in page(tmp_path, found["run"]).text
    assert found["called"] in repr(found)
    shown = command("show", found["run"], "--store", tmp_path).out
    assert found["called"] in "".join(shown.split("\n"))
    statement = tmp_path / "statement.md"
    assert command("statement", found["run"], "--store", tmp_path, "-o", statement).code == 0
    assert f"the method {found['called']}" in statement.read_text().replace("\n", " ")


def test_only_hyperparameters_that_are_not_the_defaults_are_told() -> None:
    given = {"method": "feddpa", "variant": "sound", "privacy": "dp", "personal": "own"}
    assert called({**given, "set": {"tau": 0.4, "model.hidden": 3}}) == "feddpa"
    assert called({**given, "set": {"tau": 0.8, "clipping.low": 0.1}}) == "feddpa[clipping.low=0.1,tau=0.8]"
    assert called({**given, "method": "gone:Method", "set": {"tau": 0.4}}) == "gone:Method[tau=0.4]"


def test_record_level_and_bare_runs_have_pages(store: Path) -> None:
    read = page(store, "pac-dp-digits-6")
    assert "one record that is replaced by another epsilon is" in read.text.lower()
    assert "Threshold for a client's budget" in read.text
    assert "Each client's noise on update, over what one record can do" in read.text
    read = page(store, "fedavg-digits-7")
    assert "Epsilon is infinite: something left" in read.text
    assert "FedAvg sends each client's update as it is" in read.text
    listed = (store.parent / "page.html").read_text().partition("What epsilon does not cover")[2].partition("</ul>")[0]
    assert listed.count("<li>") == listed.count(".</li>") > 0
    assert "∞" in read.text


def test_an_audit_has_a_page(store: Path) -> None:
    view = {
        "claimed": 2.0,
        "bound": 1.879,
        "confidence": 0.95,
        "refuted": False,
        "pictures": {
            "scores": {"edges": [0, 1, 2], "in": [1, 5], "out": [4, 2], "threshold": 1},
            "tradeoff": {"false_positives": [0, 0.5, 1], "claimed": [1, 0.3, 0], "attacked": [[0.2, 0.7], [0.6, 0.3]]},
            "trials": {"trials": [10, 100], "bound": [0.5, 1.879]},
        },
    }
    above = {
        "claimed": 2.1,
        "bound": 2.3,
        "confidence": 0.95,
        "surely": {"bound": 1.95, "confidence": 0.999},
        "refuted": False,
    }
    bad = {"claimed": 2.0, "true": None, "bound": 9.1, "confidence": 0.999, "refuted": True}
    document = {"method": "dp-fedavg", "variant": "sound", "unit": "client", "delta": 1e-5}
    document |= {
        "views": {"outsider": view, "peer": above, "server": bad},
        "findings": ["<b>odd</b>", {"tier": 3, "name": "length", "sentence": "a leak", "refuted": True}],
    }
    path = store.parent / "audit.json"
    path.write_text(json.dumps(document))
    read = page(store, path)
    for part in (
        "Audit of dp-fedavg",
        "1.87",
        "A claim is refuted: for the server epsilon is at least 9.10, and not at most 2.00 as claimed. ",
        "REFUTED",
        "consistent at 99.9%, where it is at least 1.95",
        "Tier 3, length: a leak",
        "<b>odd</b>",
        "Scores of the attack: outsider",
    ):
        assert part in read.text
    assert "1.88" not in read.text, "a lower bound is rounded down"
    (store / "audits").mkdir()
    (store / "audits" / "dp-fedavg-sound-1.json").write_text(json.dumps(document))
    try:
        assert "REFUTED" in page(store, "dp-fedavg-digits-2").text
        assert "REFUTED" not in page(store, "fedavg-digits-7").text
    finally:
        (store / "audits" / "dp-fedavg-sound-1.json").unlink()
        (store / "audits").rmdir()


def test_mistakes_are_refused_in_a_sentence(store: Path, tmp_path: Path) -> None:
    given = ("--store", store)
    assert "did you mean" in refused("report", "dp-fedavg-digits-22", *given)
    assert "There is no file" in refused("report", tmp_path / "no.json", *given)
    (tmp_path / "odd.json").write_text("[1]")
    assert "holds no comparison" in refused("report", tmp_path / "odd.json", *given)
    (tmp_path / "odd.json").write_text("{")
    assert "is not JSON" in refused("report", tmp_path / "odd.json", *given)
    (tmp_path / "odd.json").write_text('{"views": {"outsider": 3}, "findings": []}')
    assert "is not what `sordino audit --json` prints" in refused("report", tmp_path / "odd.json", *given)
    (store / "audits").mkdir()
    for odd, said in (("{", "is not JSON"), ({"views": {}}, "is not what `sordino audit --json` prints")):
        document = (
            odd if isinstance(odd, str) else json.dumps(odd | {"method": "local", "variant": "sound", "findings": 3})
        )
        (store / "audits" / "odd.json").write_text(document)
        assert said in refused("report", "local-digits-1", *given)
    (store / "audits" / "odd.json").write_text('{"method": [], "variant": {}}')
    assert command("report", "local-digits-1", *given, "-o", tmp_path / "page.html").code == 0
    shutil.rmtree(store / "audits")
    assert "it is a folder" in refused("report", "local-digits-1", *given, "-o", tmp_path)
    for name in ("north", "south"):
        np.savez(tmp_path / f"{name}.npz", x=np.eye(10, dtype=np.float32), y=np.arange(10) % 2)
    other = sordino.run(data=str(tmp_path), method="local", rounds=1, store=store)["run"]
    assert "not on the same data" in refused("report", other, "local-digits-1", *given)
    assert command("rm", other, "--yes", *given).code == 0
    assert "was removed" in refused("report", other, *given)
    assert list(tmp_path.glob(".*tmp")) == []


def test_names_are_told_as_they_are(tmp_path: Path) -> None:
    """A client whose name looks like markup."""
    text = str(charts.strip({"<i>": [("<b>", 0.5)]}, "t & t", "x"))
    assert "<b>" not in text
    assert "&lt;b&gt;" in text
    assert "t &amp; t" in text
    Reader(text)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (0.93, 0.97, [0.93, 0.94, 0.95, 0.96, 0.97]), (3, 3, [3])],
)
def test_ticks_are_round_numbers(low: float, high: float, ticks: list[float]) -> None:
    assert scales.Scale(low, high, 0, 100).ticks() == pytest.approx(ticks)


def test_places_on_axes() -> None:
    axis = scales.Scale(1, 100, 0, 200, logarithmic=True)
    assert [round(axis(value)) for value in (1, 10, 100, 1000)] == [0, 100, 200, 200]
    assert axis.ticks() == [1, 2, 5, 10, 20, 50, 100]
    assert scales.spread_out([5, 5, 6], 10, 0, 100) == [5, 15, 25]
    assert scales.spread_out([98, 99], 10, 0, 100) == [90, 100]


def test_curves_before_blending_say_so(tmp_path: Path) -> None:
    keys: dict[str, Any] = QUICK_KEYS | {"store": tmp_path / "store", "method": "dp-fedavg"}
    blended, own = (sordino.run(**keys, personal=kind)["run"] for kind in ("blend", "own"))
    assert "Curves of personal models show them before blending;" in page(tmp_path / "store", blended).text
    assert "Curves of personal models" not in page(tmp_path / "store", own).text
