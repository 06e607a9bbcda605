"""The command as scripts use it: it runs, prints what they rely on, and takes from the store what is there."""

import json
from pathlib import Path

import pytest
from helpers import summary_of
from killing import die_at, killed
from typer.testing import CliRunner

from sordino.cli import app
from sordino.errors import UserError
from sordino.papers import description
from sordino.store.store import runs_in

PAPERS = ["acdp-pfsd", "adadp-cfl", "feddpa", "fedglp-adp", "pac-dp"]


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A paper with one small table, where the papers are looked for."""
    place = tmp_path / "papers" / "feddpa"
    place.mkdir(parents=True)
    (place / "paper.toml").write_text("""
title = "A paper"
citation = "Somebody, 2023."
main = "table-3"
[settings.one.paper.keys]
data = "svhn"
clients = 10
rounds = 4
epsilon = 8
[settings.one.small]
[settings.one.quick]
departs = "Digits."
[settings.one.quick.keys]
data = "digits"
clients = 10
model = "logistic"
rounds = 2
workers = 1
set = { batch = 16, epochs = 1 }
""")
    (place / "table-3.toml").write_text("""
title = "two methods"
claim = "The second is better."
setting = "one"
[[columns]]
name = "epsilon 8"
at = { epsilon = 8 }
as_published = { noise_multiplier = 0.5 }
[[columns]]
name = "halfway"
measure = "global"
round = 2
at = { epsilon = 8 }
unpublished = "nobody did"
[[rows]]
name = "alone"
method = "local"
[[rows]]
name = "first"
method = "dp-fedavg"
published = { "epsilon 8" = 70.5 }
[[rows]]
name = "second"
method = "feddpa[tau=0.5]"
ours = true
[small]
rows = ["first", "second"]
""")
    monkeypatch.setattr(description, "folder", lambda: place.parent)
    return tmp_path


def call(*arguments):
    result = CliRunner().invoke(app, ["reproduce", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_a_table_is_made_once_and_told_to_scripts(tiny):
    store = tiny / "store"
    asked = ("feddpa", "table-3", "--scale", "quick", "--seeds", "2", "--jobs", "1", "--store", store, "--json")
    told = json.loads(call(*asked).stdout)
    assert (told["paper"], told["table"], told["scale"], told["seeds"]) == ("feddpa", "table-3", "quick", 2)
    rows = {(row["row"], row["column"]): row for row in told["rows"]}
    first = rows["first", "epsilon 8"]
    assert first["published"] == 70.5
    assert first["epsilon"] == pytest.approx(8, rel=1e-6)
    assert first["paper_epsilon"] > 8
    assert 0 < first["sound"] <= 100
    assert 0 < first["paper"] <= 100
    assert first["sound"] == pytest.approx(sum(first["sound_by_seed"]) / 2)
    alone = rows["alone", "epsilon 8"]
    assert (alone["epsilon"], alone["paper_epsilon"], alone["sound"]) == (0, 0, alone["paper"])
    halfway = rows["first", "halfway"]
    assert halfway["paper"] is None
    assert halfway["not_as_published"] == "nobody did"
    made = len(runs_in(store))
    assert made == 2 * (1 + 2 * 2)  # alone is the same in both variants; columns share runs
    for ending in ("md", "json", "csv", "tex", "png"):
        assert (store / "papers" / "feddpa" / f"table-3-quick.{ending}").stat().st_size > 0
    assert json.loads(call(*asked).stdout) == told
    assert len(runs_in(store)) == made
    # Half of 4 published rounds is one of 2 here: that round's figure, not the last one's.
    from sordino.store.store import Store

    opened = Store(store, must_exist=True)
    curves = [opened.curve(run) for run in halfway["runs"]]
    opened.close()
    assert halfway["sound_by_seed"] == pytest.approx([100 * curve[0]["global"] for curve in curves])
    page = tiny / "index.md"
    call("--index", "--store", store, "-o", page)
    assert "Somebody, 2023." in page.read_text()
    assert "`table-3 --scale quick --seeds 2`, 2 seeds" in page.read_text()
    kept = store / "papers" / "feddpa" / "table-3-quick.json"
    for damaged in (
        {**told, "rows": []},
        {**told, "command": None},
        {**told, "headline": "gone"},
        {"paper": "feddpa", "table": "table-3"},
    ):
        kept.write_text(json.dumps(damaged))
        with pytest.raises(UserError, match="delete it and repeat the table"):
            call("--index", "--store", store)


@pytest.mark.slow
def test_tuning_takes_seeds_that_are_not_reported_and_tells_its_cost(tiny):
    store = tiny / "store"
    asked = ("feddpa", "table-3", "--seeds", "1", "--jobs", "1", "--store", store, "--tune", "rate=0.01,0.3", "--json")
    told = json.loads(call(*asked).stdout)
    seeds = {row.configuration["seed"] for row in runs_in(store) if row.configuration["set"].get("rate") == 0.01}
    tuned = {one["method"]: one for one in told["tuned"]}
    # Two values, and at least one more where the best lies on the edge; all methods have as many.
    (tries,) = {one["tries"] for one in told["tuned"]}
    assert tries > 2
    assert {1, 2, 3} <= seeds
    assert told["tuning_seeds"] == 3
    assert {row["method"] for row in told["rows"] if row["row"] == "first"} == {tuned["dp-fedavg"]["chosen"]}
    assert "would have cost" in " ".join(told["tuning"])
    assert told["command"] == "sordino reproduce feddpa table-3 --scale quick --seeds 1 --tune rate=0.01,0.3"


@pytest.mark.parametrize("scale", ["small", "medium"])
@pytest.mark.parametrize("paper", PAPERS)
def test_every_row_gets_as_many_tries(paper, scale):
    """Training alone, rows whose threshold is fixed and those with settings of their own, too."""
    from types import SimpleNamespace

    from sordino.papers.table_runs import EXTENSIONS, ReproduceOptions, Study
    from sordino.study.tuning import TuningRuns, tune

    def results(wanted):
        nothing = {"mu": [0.0], "recipes": []}
        accuracy = dict.fromkeys(("personal", "start", "global"), 0.5)
        return {cell.key: summary_of(run=cell.key, accuracy=accuracy, spent=nothing) for cell in wanted}

    found = description.papers()[paper]
    study = Study(found, found.tables[found.main], ReproduceOptions(scale, tune="paper"))
    ground = TuningRuns(lambda texts: [SimpleNamespace(key=text, method=text) for text in texts], results)
    methods = [row.method for row in study.rows]
    tried = {one.method: one.tries for one in tune(ground, methods, study._grid, study._own, EXTENSIONS)}
    assert len(set(tried.values())) == 1, tried


def test_what_a_row_compares_is_not_tuned_away():
    """FedDPA's grid of tau is not for rows of Table 4, each of which has its own; PPSGD has its own range of rates."""
    from sordino.papers.table_runs import ReproduceOptions, Study

    found = description.papers()["feddpa"]
    table = Study(found, found.tables["table-4"], ReproduceOptions("small", tune="paper"))
    assert table._own("feddpa[clip=0.2,rate=0.1,tau=0.1]") == ("feddpa[clip=0.2,rate=0.1,tau=0.1]", {})
    assert table._own("feddpa[clip=0.2,rate=0.1]") == ("feddpa[clip=0.2,rate=0.1]", {"tau": [0.1, 0.4, 2]})
    start, grid = table._own("ppsgd[clip=0.2,rate=4]")
    assert start == "ppsgd[clip=0.2]"
    assert 4 in grid["rate"]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_try_of_a_papers_own_grid_can_be_made(paper):
    from sordino.papers.table_runs import ReproduceOptions, Study
    from sordino.study.tuning import _points

    found = description.papers()[paper]
    study = Study(found, found.tables[found.main], ReproduceOptions("small", tune="paper"))
    column = study.columns[0]
    texts = [one for method in study._methods(column).values() for one in _points(*study._own(method))]
    assert len(study._cells(column, "sound", column.keys("sound"), texts, [0])) == len(texts)


def test_what_a_second_go_cannot_make_is_refused_before_the_first():
    from sordino.study.tuning import TuningRuns, tune

    def cells(texts):
        if any("floor=1" in text for text in texts):
            raise UserError("The hyper-parameter floor cannot be 1")
        raise AssertionError("the first go has begun")

    ground = TuningRuns(cells, lambda _: {})
    with pytest.raises(UserError, match="floor cannot be 1"):
        tune(ground, ["pac-dp"], {"rate": [0.1]}, lambda text: (text, {"floor": [0.5, 1]}))


@pytest.mark.parametrize(("scale", "epochs"), [("quick", 4), ("paper", 6)])
def test_the_fair_rival_of_feddpa_passes_over_the_records_as_often(scale, epochs):
    from sordino.papers.table_runs import ReproduceOptions, Study

    found = description.papers()["feddpa"]
    study = Study(found, found.tables["table-1"], ReproduceOptions(scale))
    assert study._methods(study.columns[0])["DP-FedAvg"] == f"dp-fedavg[epochs={epochs}]"
    cells = study._wanted(study._methods(study.columns[0]), [0], study.columns[:1])
    of = {
        row: cell.experiment.build_method().passes()
        for (row, _, variant, _), cell in cells.items()
        if variant == "sound"
    }
    assert {of[row] for row in ("FedDPA", "DP-FedAvg", "BLUR+LUS", "PPSGD", "DP-FedSAM")} == {epochs}


@pytest.mark.parametrize("paper", PAPERS)
def test_rows_that_are_compared_pass_over_the_records_as_often(paper, tmp_path):
    """In every column of every table at every scale, training alone included. Times of rounds are those of the methods
    as they are; the map of FedDPA has a rival with half of its passes, which is not compared and says so; and half of
    one epoch, which FedDPA would need beside FedGLP-ADP's at the published scale, there is not."""
    from sordino.papers.table_runs import ReproduceOptions, Study

    found = description.papers()[paper]
    for name, table in found.tables.items():
        for scale in [one for one in description.SCALES if one != "medium" or table.medium is not None]:
            study = Study(found, table, ReproduceOptions(scale, store=tmp_path / "none"))
            for column in study.columns:
                passes = {
                    row: cell.experiment.build_method().passes()
                    for (row, _, variant, _), cell in study._wanted(study._methods(column), [0], [column]).items()
                    if variant == "sound"
                }
                unequal = (paper, name, scale) if len(set(passes.values())) > 1 else None
                if (paper, name) == ("feddpa", "regime"):
                    del passes["DP-FedAvg"]
                elif unequal and paper == "fedglp-adp" and scale == "paper":
                    assert (passes.pop("FedDPA"), set(passes.values())) == (2, {1})
                if table.measure != "seconds":
                    assert len(set(passes.values())) == 1, (name, scale, column.name, passes)


def test_a_curve_beside_the_tables_is_read_into_the_run(tmp_path):
    """The same run wherever the papers' folder lies, and whoever was told how the curve was fitted."""
    from sordino.papers.table_runs import ReproduceOptions, Study
    from sordino.parts.curves import curve_called, fit, save

    keys = []
    for place in ("here", "there"):
        save(fit([(0.1, 1.0), (0.5, 2.0), (1.0, 2.5)]), tmp_path / place / "curve.json")
        paper = description.papers()["feddpa"].model_copy(update={"place": tmp_path / place})
        table = paper.tables["table-3"]
        row = table.rows[0].model_copy(update={"name": "curved", "method": "pac-dp[curve=curve.json]"})
        study = Study(paper, table.model_copy(update={"rows": [row]}), ReproduceOptions("paper", store=tmp_path))
        (cell,) = study._cells(study.columns[0], "sound", {"epsilon": 1}, [row.method], [0])
        keys.append(cell.key)
        assert cell.method == "pac-dp[curve=curve.json]"
        read = curve_called(cell.experiment.set["curve"])
        assert read(0.5) == pytest.approx(fit([(0.1, 1.0), (0.5, 2.0), (1.0, 2.5)])(0.5))
        assert "points" not in read.provenance
    assert keys[0] == keys[1]


def test_what_is_published_without_privacy_is_run_as_published():
    """AdaDP-CFL groups clients by angles as published, and by moments in `sound`, with privacy or without; FedAvg has
    nothing that differs."""
    from sordino.papers.table_runs import ReproduceOptions, Study

    found = description.papers()["adadp-cfl"]
    study = Study(found, found.tables["table-3"], ReproduceOptions("quick"))
    cells = study._wanted(study._methods(study.columns[0]), [0], study.columns[:1])
    variants = {(row, variant): cell.experiment.variant for (row, _, variant, _), cell in cells.items()}
    assert (variants["No-Prox", "sound"], variants["No-Prox", "paper"]) == ("sound", "paper")
    assert {variants["FedAvg", variant] for variant in ("sound", "paper")} == {"sound"}


DECISIVE = """
[medium]
rows = ["alone", "second", "control"]
columns = ["epsilon 8"]
grid = "rate=0.05,0.1"
seeds = 3
seconds = 36
"""


@pytest.fixture
def decisive(tiny):
    """The paper with a decisive experiment on a stand-in, and a row of its own there."""
    place = tiny / "papers" / "feddpa"
    about = (place / "paper.toml").read_text()
    (place / "paper.toml").write_text(about + about[about.index("[settings.one.quick]") :].replace("quick", "medium"))
    table = (place / "table-3.toml").read_text()
    control = """
[[rows]]
name = "control"
method = "feddpa"
scales = ["medium"]
unpublished = "a control"
settings = { medium = { tau = "2" } }
"""
    (place / "table-3.toml").write_text(table.replace("[small]", control + "[small]") + DECISIVE)
    return tiny


def test_a_decisive_experiment_is_tuned_and_kept_and_says_what_it_takes(decisive):
    store = decisive / "store"
    asked = ("feddpa", "table-3", "--scale", "medium", "--jobs", "1", "--store", store)
    (plan,) = json.loads(call(*asked, "--plan", "--json").stdout)
    assert not store.exists()
    # Three rows on three seeds, one of them as published, too; two tries of each on three other seeds.
    assert (plan["runs"], plan["tuning"], plan["made"]) == (3 * 3 + 3, 2 * 3 * 3, 0)
    assert plan["hours"] == pytest.approx((12 + 18) * 36 / 3600)
    assert "12 runs and at least 18 to choose settings; at 36 s" in call(*asked, "--plan").stdout
    done = call(*asked)
    assert "some 0.3 hours on 1 core" in done.stderr
    told = json.loads((store / "papers" / "feddpa" / "table-3-medium.json").read_text())
    assert (told["seeds"], told["tuning_seeds"]) == (3, 3)
    assert told["command"] == "sordino reproduce feddpa table-3 --scale medium --seeds 3 --tune paper"
    assert {row["row"] for row in told["rows"]} == {"alone", "second", "control"}
    assert len({one["tries"] for one in told["tuned"]}) == 1
    assert {one["column"] for one in told["tuned"]} == {"epsilon 8"}
    assert "tau=2" in next(row["method"] for row in told["rows"] if row["row"] == "control")
    made = len(runs_in(store))
    (after,) = json.loads(call(*asked, "--plan", "--json").stdout)
    assert after["made"] == made >= 30
    assert after["hours"] == 0
    page = decisive / "index.md"
    call("--index", "--store", store, "-o", page)
    assert "table-3 --scale medium" in page.read_text()


@pytest.mark.parametrize(
    ("owner", "name", "calls", "when"),
    [
        ("Store", "create", (5, 20), "after"),  # registered, and nothing done
        ("RunFiles", "note", (11, 40), "before"),  # in the middle of a run
        ("RunFiles", "save", (30, 9), "after"),  # done, or half of it, and not yet told
    ],
)
def test_a_decisive_experiment_that_is_killed_goes_on_and_comes_to_the_same(decisive, owner, name, calls, when):
    """Twice, in the middle of tuning and of the reported runs, or wherever that is; nothing is run twice."""
    from sordino.store import run_files, store

    def asked(place):
        return ("feddpa", "table-3", "--scale", "medium", "--jobs", "1", "--store", decisive / place)

    def going_on(number):
        die_at(getattr(store if owner == "Store" else run_files, owner), name, number, when)
        call(*asked("killed"))

    deaths = [killed(lambda number=number: going_on(number)) for number in calls]
    assert deaths == [True, True]
    call(*asked("killed"))
    call(*asked("whole"))
    documents = [
        json.loads((decisive / place / "papers" / "feddpa" / "table-3-medium.json").read_text())
        for place in ("killed", "whole")
    ]
    assert documents[0] == documents[1]
    made = [[(row.run, row.identity) for row in runs_in(decisive / place)] for place in ("killed", "whole")]
    assert made[0] == made[1]


def test_tables_without_a_decisive_experiment_say_so(tiny):
    with pytest.raises(UserError, match="has no decisive experiment"):
        call("feddpa", "table-3", "--scale", "medium", "--store", tiny / "store")
    assert call("feddpa", "--scale", "medium", "--plan").stdout == ""
    place = tiny / "papers" / "feddpa" / "table-3.toml"
    place.write_text(place.read_text() + DECISIVE.replace(', "control"', ""))
    with pytest.raises(UserError, match=r"the setting 'one' has no scale `medium`"):
        call("feddpa", "table-3", "--scale", "medium", "--store", tiny / "store")


def test_what_is_missing_is_told_before_work(tiny):
    with pytest.raises(UserError, match=r"needs svhn, which is not here: `sordino data get svhn`"):
        call("feddpa", "table-3", "--scale", "small", "--data-dir", tiny, "--store", tiny / "store")
    assert not (tiny / "store" / "sordino.db").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Name a paper"),
        (("feddp",), "did you mean 'feddpa'"),
        (("feddpa", "table-9"), "did you mean 'table-3'"),
        (("feddpa", "--scale", "huge"), "choose quick, small, medium or paper"),
        (("all", "table-3"), "takes no table"),
        (("feddpa", "-o", "page.md"), "--output and --keep are for --index"),
        (("feddpa", "--keep", "kept"), "--output and --keep are for --index"),
        (("feddpa", "--store", "one", "--store", "two"), "Several stores are for --index"),
        (("feddpa", "--index"), "--index takes no paper"),
        (("nobody", "--list"), "There is no paper 'nobody'"),
        (("feddpa", "--tune", " "), "--tune is empty"),
        (("--index", "--store", "nowhere"), "has no reproduced table yet"),
        (("feddpa", "--tune", "rate"), "is not understood"),
        (("feddpa", "table-3", "--seeds", "1", "--tune", "tua=1,2"), "tua"),
    ],
)
def test_mistakes_are_sentences(tiny, monkeypatch, arguments, said):
    monkeypatch.chdir(tiny)
    with pytest.raises(UserError, match=said):
        call(*arguments)


def test_the_list_says_what_there_is():
    listed = json.loads(call("--list", "--json").stdout)
    assert {one["paper"] for one in listed} == set(PAPERS)
    assert "table-1" in call("--list").stdout
    assert [one["paper"] for one in json.loads(call("pac-dp", "--list", "--json").stdout)] == ["pac-dp"]


def test_installed_files_are_those_of_the_folder():
    """Every paper's folder is among the files that installing puts in place."""
    import tomllib

    root = Path(__file__).resolve().parents[2]
    named = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    folders = [f"share/sordino/experiments/{name}" for name in sorted(description.papers())]
    assert sorted(named) == ["share/sordino/experiments", *folders, "share/sordino/experiments/results/papers"]
