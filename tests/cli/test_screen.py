"""What people see: one truth, in words that are explained, whole at any width."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from helpers import COMMAND, QUICK, QUICK_KEYS, command, process, refused
from rich.console import Console

import sordino
from sordino.cli import COMMANDS
from sordino.cli.runs import _table
from sordino.data import catalogue
from sordino.experiment.config import Experiment
from sordino.federation.rounds import RoundReport
from sordino.methods import names
from sordino.planning.plan import PlanForRecords, plan_of
from sordino.privacy.unit import Unit
from sordino.report.glossary import ALIASES, WORDS
from sordino.report.logs import log_runs
from sordino.report.run_list import describe_run
from sordino.report.terminal.catalogue import hyperparameters
from sordino.report.terminal.metrics import clients_table
from sordino.store.store import RunRow
from sordino.tasks.class_metrics import METRICS
from sordino.util.display import Silent
from sordino.version import VERSION

RECORD: dict[str, Any] = {**QUICK_KEYS, "method": "dp-fedavg-record", "epsilon": 4, "rounds": 3}


def test_the_version() -> None:
    outcome = command("--version")
    assert (outcome.code, outcome.out) == (0, f"sordino {VERSION}\n")
    assert sordino.__version__ == VERSION
    assert {"run", "compare", "__version__"} <= set(dir(sordino))


def test_progress_tells_what_the_end_tells(tmp_path: Path) -> None:
    """Records' epsilon comes from the same accountant in every round that tells one, and ends at the budget."""
    reports: list[RoundReport] = []
    result = sordino.run(store=tmp_path, watch=reports.append, **RECORD)
    assert reports[-1].epsilon == result["epsilon"]
    assert reports[-1].epsilon["server"] <= 4 == reports[-1].planned
    known = [report.epsilon["server"] for report in reports]
    assert known == sorted(known)


def test_progress_names_the_observer_that_was_planned_for(tmp_path: Path) -> None:
    keys = QUICK_KEYS | {"method": "dp-fedavg", "epsilon": 3, "protect_from": "server", "participation": 0.5}
    reports: list[RoundReport] = []
    result = sordino.run(store=tmp_path, watch=reports.append, **keys)
    last = reports[-1]
    assert last.planned == pytest.approx(3)
    assert last.epsilon[last.observer] == pytest.approx(3) == pytest.approx(result["epsilon"]["server"])
    assert (last.cohort, last.clients) == (4, 8)
    assert repr(result) == (
        "<dp-fedavg-digits-1: dp-fedavg[batch=64,epochs=1], personal accuracy "
        f"{result['accuracy']['personal']:.1%}, epsilon 3.00 for the server>"
    )
    assert "| server | 3.00 |" in result._repr_markdown_()


def test_an_infeasible_run_is_told_what_plan_says(tmp_path: Path) -> None:
    """(8 clients x mu)^2 at epsilon 1 is far below the 650 parameters of the logistic network."""
    given = ("--method=dp-fedavg", "--epsilon=1", *QUICK)
    warning = command("plan", "--data=digits", "--epsilon=1", "--clients=8", "--json").document["advice"][0]
    assert "would drown in noise" in warning
    notes = command("run", *given, "--store", tmp_path, "--json").document["notes"]
    assert any(note.startswith(warning) for note in notes)
    assert not any("drown" in note for note in sordino.run(store=tmp_path, **QUICK_KEYS, epsilon=500)["notes"])


def test_where_no_method_is_named_it_is_the_advised_one(tmp_path: Path) -> None:
    chosen = Experiment.make({})
    advised = command("advise", "--clients=300", "--records=60", "--json").document
    assert (chosen.method, chosen.personal) == (advised["method"], "blend")
    assert [f"{key}={value}" for key, value in chosen.set.items()] + ["personal=blend"] == advised["settings"]
    assert Experiment.make({"method": "dp-fedavg"}).personal == "own"
    assert Experiment.make({"personal": "own"}).personal == "own"


def test_plan_tells_each_clients_noise_where_records_are_protected() -> None:
    """Budgets of 1 and 4: each client's epsilon is at most its own, and the smaller one has more noise."""
    keys = {"method": "dp-fedavg-record", "clients": 2, "rounds": 2, "set": {"budgets": "1,4", "epochs": 1}}
    found = plan_of(Experiment.make(keys), records=100)
    assert isinstance(found, PlanForRecords)
    first, second = found.clients
    assert first["epsilon"] <= 1 < second["epsilon"] <= 4
    assert first["noise_multiplier"] > second["noise_multiplier"]
    assert found.epsilon["server"] == second["epsilon"] < found.epsilon_replace_one
    shown = command("plan", "--method=dp-fedavg-record", "--clients=2", "--rounds=2", "--records=100", "--epsilon=2")
    assert "noise multiplier" in shown.out
    assert Unit.RECORD.neighbours in " ".join(shown.out.split())


def test_a_plan_is_what_the_run_does(tmp_path: Path) -> None:
    """Colluders, a smaller cohort and another method change the plan as they change the run."""
    more = ("--participation=0.5", "--set=colluders=1", "--set=minimum_cohort=3", "--epsilon=3")
    for method in ("dp-fedavg", "ditto"):
        given = (f"--method={method}", "--clients=8", "--rounds=2", *more)
        planned = command("plan", *given, "--json").document
        done = command("run", *QUICK, *given, "--store", tmp_path, "--json").document
        assert planned["epsilon"] == pytest.approx(done["epsilon"])
        assert planned["noise_multiplier"] == pytest.approx(done["noise_multiplier"])


def test_methods_tell_their_hyper_parameters() -> None:
    found = command("methods", "feddpa", "--json").document
    told = {one["name"]: one for one in found["hyperparameters"]}
    assert set(told["tau"]) == {"name", "default", "range", "meaning", "paper"}
    assert (told["tau"]["default"], told["tau"]["range"]) == (0.4, "a number, at least 0, at most 1e+18")
    assert told["lambda1"]["paper"] == "Paper's best 0.05; code 0.1; 0: off."
    assert told["lambda1"]["meaning"] == "Strength with which personal parameters are held near their start."
    assert told["clipping"]["default"] == "fixed"
    assert told["clipping.quantile"]["meaning"].startswith("With clipping=quantile: Quantile of")
    shown = command("methods", "feddpa").out
    assert "lambda1 = 0.05" in shown
    assert "published: Paper's best 0.05" in shown


@pytest.mark.parametrize("name", names())
def test_every_hyper_parameter_is_described(name: str) -> None:
    from sordino.methods import find

    for one in hyperparameters(find(name)):
        assert one["meaning"], one
        assert one["range"], one
        json.dumps(one)


def test_models_are_listed() -> None:
    found = {item["name"]: item for item in command("models", "--json").document}
    assert found["mlp"]["options"] == {"hidden": [64]}
    assert found["logistic"]["parameters"] > 0
    assert "lenet" in command("models").out


def test_words_are_explained() -> None:
    assert command("explain", "epsilon", "--json").document["word"] == "epsilon"
    assert command("explain", "Observer").out.startswith("views: ")
    assert command("explain", "noise multiplier").code == 0
    assert all(word in command("explain").out.replace("\n", " ") for word in ("epsilon", "views", "personal"))
    assert set(ALIASES.values()) <= set(WORDS)


@pytest.mark.parametrize("width", [60, 80])
def test_help_is_whole_and_has_the_defaults(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    front = command("--help").out
    assert all(line in front for line in COMMANDS.values())
    assert "..." not in front.replace("[ARGS]...", "")
    for name in ("run", "compare", "plan", "advise", "runs", "resume"):
        shown = command(name, "--help").out
        assert max(len(line) for line in shown.splitlines()) <= width
        assert "\u2026" not in shown
    shown = " ".join(command("run", "--help").out.split())
    for default in ("digits, built in", "8", "outsider", "sound", "0", "one per core", ".sordino"):
        assert f"[default: {default}]" in shown
    assert "[default: 30; for tables at a few sites" in shown


def test_help_tells_of_arguments_once_and_has_no_markup() -> None:
    for name in ("predict", "export", "show", "report", "run"):
        shown = command(name, "--help").out
        assert "\\[" not in shown
        assert "ositional" not in shown
    shown = command("predict", "--help").out
    assert shown.count("New records: a CSV, Parquet or NPZ file.  [required]") == 1


def row(name: str, **more: Any) -> RunRow:
    configuration = {"data": "a-folder-with-a-long-name", "seed": 12, "epsilon": 8.0, "protect_from": "outsider"}
    summary = {"accuracy": {"personal": 0.9}, "epsilon": {"outsider": 8.0}, "noise_multiplier": 1.0}
    about: dict[str, Any] = {"run": name, "method": "dp-fedavg-record", "configuration": configuration, "identity": ""}
    about |= {"people": "", "unit": "client", "state": "done", "rounds": 30, "rounds_done": 30, "checkpoint": None}
    return RunRow(**(about | {"models": None, "seconds": 1.0, "created": time.time(), "summary": summary} | more))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_names_of_runs_are_never_cut(width: int) -> None:
    name = "dp-fedavg-record-fashion-mnist-128"
    console = Console(width=width)
    with console.capture() as capture:
        console.print(_table([row(name), row("local-digits-2", state="stopped", summary=None, rounds_done=4)], {}))
    shown = capture.get()
    assert name in shown
    assert "90.0%" in shown
    assert "stopped 4/30" in shown
    assert ("8.00 of 8" in shown) == (width > 60), "epsilon and the budget go together"
    assert max(len(line) for line in shown.splitlines()) <= width


def test_a_run_is_of_the_budget_that_counted() -> None:
    """Clients' own budgets overrule epsilon, by whatever key they are given; nothing is spent where nothing leaves."""

    unspent: dict[str, Any] = {"accuracy": {}, "epsilon": {}, "noise_multiplier": None}
    spent = unspent | {"noise_multiplier": 1.0}

    def budget(summary: Any = spent, **keys: Any) -> float | None:
        return describe_run(row("", configuration={"protect_from": "outsider"} | keys, summary=summary), {})["budget"]

    assert budget(epsilon=3.0) == 3
    assert budget() == 8
    assert budget(noise_multiplier=1.0) is None
    assert budget(epsilon=3.0, summary=None) == 3
    assert budget(epsilon=3.0, summary=unspent) is None
    for key in ("budgets", "method.budgets", "dp-fedavg-record.budgets"):
        assert budget(set={key: "1:0.5,2:0.5"}) is None
        assert budget(set={key: "1:0.5,2:0.5"}, epsilon=3.0) is None
    assert budget(set={"pac-dp.budgets": "1:0.5,2:0.5", "clip": 1}, epsilon=3.0) == 3, "another method's"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_names_of_clients_and_data_sets_are_never_cut(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    listed = command("data").out
    assert all(f"{name} " in listed for name in (entry.name for entry in catalogue()))
    console = Console(width=width)
    with console.capture() as capture:
        console.print(clients_table([{"client": "St. Anna's hospital", **dict.fromkeys(METRICS, 0.5)}], "ill"))
    shown = capture.get()
    assert "St. Anna's hospital*" in shown
    assert "50.0%" in shown
    assert "…" not in listed + shown
    assert max(len(line) for line in shown.splitlines()) <= width


def test_each_of_several_outcomes_has_columns_of_its_own() -> None:
    """Narrow terminals lack those of the last outcome first, and never those by which clients are compared."""
    figures = {"r2": 0.5, "coverage": 0.9, "r2[sbp]": 0.7, "rmse[sbp]": 8.125, "r2[dbp]": 0.3, "rmse[dbp]": 6.25}
    rows = [{"client": "north", **figures}, {"client": "south", **figures, "r2[dbp]": None}]
    table = clients_table(rows, None)
    wide = ["client", "R²", "R² [sbp]", "R² [dbp]", "RMSE [sbp]", "RMSE [dbp]", "coverage"]
    assert [column.heading for column in table.columns] == wide
    assert table.rows == [
        ["north", "0.500", "0.700", "0.300", "8.125", "6.25", "90.0%"],
        ["south", "0.500", "0.700", "–", "8.125", "6.25", "90.0%"],
    ]
    assert table.title.endswith("columns that name no outcome are means")
    assert [table.columns[place].heading for place in table.kept(50)] == [*wide[:4], "coverage"]
    assert "outcome" not in clients_table([{"client": "north", "r2": 0.5}], None).title


def test_runs_are_listed_without_torch(tmp_path: Path) -> None:
    """Importing torch takes seconds; a list of runs is wanted at once."""
    sordino.run(method="local", store=tmp_path, **QUICK_KEYS)
    script = (
        "import sys, atexit; atexit.register(lambda: print(sorted({'torch', 'scipy', 'sklearn'} & set(sys.modules))));"
        + COMMAND
    )
    told = process(script, "runs", "--store", tmp_path).out.splitlines()
    assert told[-1] == "[]"
    assert "local-digits-1" in "\n".join(told)


def test_a_comparison_without_matplotlib_prints_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backend_bases", None)
    outcome = command("compare", "--methods=local", "--seeds=1", *QUICK, "--store", tmp_path)
    assert outcome.code == 0
    assert outcome.err.startswith("There is no matplotlib, so no picture will be drawn")
    assert "local" in outcome.out
    assert json.loads((tmp_path / "compare.json").read_text())["picture"] is None
    advised = shlex.split(outcome.out.splitlines()[-1].removeprefix("Page: sordino "))
    advised[advised.index("-o") + 1] = str(tmp_path / "report.html")
    assert command(*advised).code == 0, "it works as it stands, in whatever store"


def test_notes_on_a_part_of_a_sweep_say_on_which(tmp_path: Path) -> None:
    outcome = command("compare", "--methods=dp-fedavg", "--epsilon=1,100", "--seeds=1", *QUICK, "--store", tmp_path)
    assert "Note: epsilon 1: The model shares 650 parameters, but only" in outcome.out
    assert "epsilon 100: The model shares" not in outcome.out


def test_notes_of_a_comparison_name_their_method(tmp_path: Path) -> None:
    given = ("--methods=local,dp-fedavg[epsilon=1],dp-fedavg-record", "--seeds=1", *QUICK, "--store", tmp_path)
    told = " ".join(command("compare", *given).out.split())
    assert "Note: dp-fedavg[epsilon=1]: The model shares 650 parameters" in told
    assert "Not covered: dp-fedavg-record: How many records a client has shows" in told


def test_a_comparison_that_is_refused_leaves_no_file(tmp_path: Path) -> None:
    given = ("compare", "--methods=local", *QUICK, "--store", tmp_path / "store", "--jobs=0")
    assert "at least one job" in refused(*given, "--csv", tmp_path / "table.csv")
    assert not (tmp_path / "table.csv").exists()


def test_one_seed_has_no_spread_and_training_alone_no_promise(tmp_path: Path) -> None:
    """`local` has the unit "client", which nobody asks for beside a method that protects records."""
    given = ("compare", "--methods=local,dp-fedavg-record", *QUICK, "--store", tmp_path)
    told = command(*given, "--seeds=1").out
    assert "accuracy in % (one seed)" in told
    assert "±" not in told
    assert "protecting one record" in told
    assert "protecting one client" not in told
    assert "±" in command(*given, "--seeds=2").out


def test_a_comparison_for_other_programs(tmp_path: Path) -> None:
    given = ("compare", "--methods=local,dp-fedavg", "--seeds=1", *QUICK, "--epsilon=1,8", "--store", tmp_path)
    outcome = command(*given, "--csv", tmp_path / "table.csv", "--picture", tmp_path / "a.svg", "--markdown")
    assert outcome.code == 0, outcome
    head, *lines = (tmp_path / "table.csv").read_text().splitlines()
    assert head.startswith("method,variant,unit,epsilon,seeds,personal_mean,personal_spread")
    assert [line.split(",")[0] for line in lines] == ["local", "dp-fedavg"] * 2
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    assert outcome.out.startswith("| method | epsilon | personal |")
    assert len(outcome.out.splitlines()) == 6
    beside = outcome.err.splitlines()
    assert "Accuracy in %, mean and standard deviation over 1 seed." in beside
    assert any("local has the best personal accuracy" in line for line in beside)
    latex = command(*given, "--latex", "--picture", tmp_path / "a.pdf").out
    assert latex.startswith(r"\begin{tabular}{llrrrrrrr}")
    assert r"$\pm$" in latex
    assert "–" not in latex
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    document = json.loads((tmp_path / "compare.json").read_text())
    assert {row["at"]["epsilon"] for row in document["rows"]} == {1, 8}
    assert document["differences"][0]["verdict"] == "not tested"


def test_a_log_for_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = sordino.run(method="dp-fedavg", epsilon=3, store=tmp_path, log="tensorboard", **QUICK_KEYS)
    events = EventAccumulator(str(tmp_path / "tensorboard" / result["run"]))
    events.Reload()
    epsilon = events.Scalars("epsilon/outsider")
    assert [event.step for event in epsilon] == [1, 2]
    assert epsilon[-1].value == pytest.approx(3)
    assert events.Scalars("accuracy/personal")[-1].value == pytest.approx(result["accuracy"]["personal"])


def test_where_a_log_is_looked_at(tmp_path: Path) -> None:
    class Said(Silent):
        def say(self, sentence: str) -> None:
            sentences.append(sentence)

    sentences: list[str] = []
    with log_runs(Said(), "tensorboard", tmp_path):
        pass
    assert sentences == [f"Logged: `tensorboard --logdir {tmp_path / 'tensorboard'}` shows it."]


def test_a_log_whose_package_is_missing_is_told_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    sentence = refused("run", *QUICK, "--log=wandb", "--store", tmp_path)
    assert sentence == 'Logging to wandb needs the package wandb: pip install "sordino[wandb]".'
    assert not list(tmp_path.glob("runs/*"))


def test_trying_says_what_it_spends(tmp_path: Path) -> None:
    given = ("--clients=20", "--epsilon=8", "--store", tmp_path, "--try")
    stand_in = command("advise", "--records=10", *given)
    assert "costs nobody anything" in stand_in.err
