"""The Python interface does what the command line does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers import QUICK, QUICK_KEYS, command

import sordino
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import deal
from sordino.federation.rounds import RoundReport


def test_run_is_the_command_run(tmp_path: Path) -> None:
    by_python = sordino.run(method="dp-fedavg", epsilon=3, store=tmp_path / "a", **QUICK_KEYS)
    by_command = command(
        "run", "--method=dp-fedavg", "--epsilon=3", *QUICK, "--store", tmp_path / "b", "--json"
    ).document
    together = by_command.pop("over_runs")  # of the store: it is no part of the run's own result
    assert by_python | {"seconds": 0} == by_command | {"seconds": 0}
    assert (together["runs"], together["epsilon"]["outsider"]) == (1, pytest.approx(3))


def test_run_takes_a_file_and_keywords(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text('method = "local"\nrounds = 9\n')
    result = sordino.run(file, store=tmp_path / "s", **QUICK_KEYS)
    assert (result["method"], result["rounds"]) == ("local", 2)


def test_watching_a_run(tmp_path: Path) -> None:
    reports: list[RoundReport] = []
    result = sordino.run(method="dp-fedavg", store=tmp_path, watch=reports.append, **QUICK_KEYS)
    assert [report.round for report in reports] == [0, 1]
    assert reports[0].epsilon["outsider"] < reports[1].epsilon["outsider"] == result["epsilon"]["outsider"]
    assert reports[1].personal == result["accuracy"]["personal"]


def test_resume_and_compare(tmp_path: Path) -> None:
    found = sordino.compare(methods=["local"], seeds=1, store=tmp_path, **QUICK_KEYS)
    (run,) = found.rows[0]["runs"]
    assert sordino.resume(run, tmp_path)["run"] == run
    assert found.draw(tmp_path / "picture.svg").read_text().startswith("<?xml")
    assert repr(sordino.load_models(run, tmp_path)) == f"<Models of {run}: logistic, 8 personal ones>"


def test_several_budgets_are_gone_through(tmp_path: Path) -> None:
    found = sordino.compare(methods=["local"], seeds=1, store=tmp_path, epsilon=[1, 8], **QUICK_KEYS)
    assert [row["at"] for row in found.rows] == [{"epsilon": 1}, {"epsilon": 8}]
    with pytest.raises(UserError, match="'epsilon' is swept twice"):
        sordino.compare(methods=["local"], epsilon=[1, 8], sweep={"epsilon": [2]}, store=tmp_path)


def test_a_notebook_shows_the_sentence_alone() -> None:
    assert UserError("so it is")._render_traceback_() == ["UserError: so it is"]


NOTEBOOK = """
import sordino
study = sordino.compare(methods=["local", "dp-fedavg"], seeds=1, epsilon=[1, 8], clients=8, rounds=2, workers=1)
study
---
study.to_frame()
---
study.to_frame(by_seed=True).groupby("method")["personal"].mean()
---
sordino.run(method="nothing")
"""


@pytest.mark.slow
def test_a_notebook(tmp_path: Path) -> None:
    """A real one, where nbclient, ipykernel and pandas are installed: bars, tables and errors as they are shown."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    for package in ("ipykernel", "pandas"):
        pytest.importorskip(package)
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(code.strip()) for code in NOTEBOOK.split("---")]
    nbclient.NotebookClient(
        notebook, timeout=200, allow_errors=True, resources={"metadata": {"path": tmp_path}}
    ).execute()
    compared, frame, grouped, failed = (cell.outputs for cell in notebook.cells)
    shown = [output.data["text/html"] for output in compared if "text/html" in output.get("data", {})]
    assert any(html.startswith('runs <progress value="3" max="3">') for html in shown), (
        "what alone costs nothing runs once"
    )
    assert any("epsilon 8.00 of 8" in html for html in shown)
    assert "| `dp-fedavg` | `8` |" in compared[-1].data["text/markdown"]
    assert "<table" in frame[-1].data["text/html"]
    assert "dp-fedavg" in grouped[-1].data["text/plain"]
    assert failed[-1].traceback[0].startswith("UserError: There is no method 'nothing'")


def test_plan() -> None:
    plan = sordino.plan(50, 100, 50**-1.1, noise_multiplier=1.0)
    assert plan.epsilon["outsider"] == pytest.approx(71.21, abs=0.005)


def test_mistakes_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'rounds'"):
        sordino.run(round=3, store=tmp_path)
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        _ = sordino.runn  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", ["feddpa", "local"])
def test_models_predict_as_the_summary_says(method: str, tmp_path: Path) -> None:
    """The mean accuracy of the loaded models on the clients' test records is the one in the summary."""
    keys = {**QUICK_KEYS, "set": {**QUICK_KEYS["set"], "model.hidden": [5]}, "model": "mlp"}
    result = sordino.run(method=method, store=tmp_path, **keys)
    found = sordino.load_models(result["run"], tmp_path)
    clients = deal(Experiment.make(keys)).clients
    assert list(found.personal) == [f"client-{number}" for number in range(8)]

    def accuracy(network: torch.nn.Module, client: int) -> float:
        mine = clients[client]
        return float((network(mine.x_test).argmax(dim=1) == mine.y_test).float().mean())

    personal = [accuracy(found.personal[client], client) for client in range(8)]
    assert sum(personal) / 8 == pytest.approx(result["accuracy"]["personal"], abs=1e-6)
    assert min(personal) == pytest.approx(result["accuracy"]["personal_worst"], abs=1e-6)
    if method == "local":
        assert found.shared == []
        return
    assert len(found.shared) == 1
    shared = [accuracy(found.shared[0], client) for client in range(8)]
    assert sum(shared) / 8 == pytest.approx(result["accuracy"]["global"], abs=1e-6)


def test_models_of_an_unfinished_run(tmp_path: Path) -> None:
    def watch(report: RoundReport) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sordino.run(method="local", store=tmp_path, watch=watch, **QUICK_KEYS)
    with pytest.raises(UserError, match=f"`sordino resume local-digits-1 --store {tmp_path}` takes it up"):
        sordino.load_models("local-digits-1", tmp_path)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda store: sordino.run(5, store=store), "the name of a TOML file, not 5"),  # type: ignore[arg-type]
        (lambda store: sordino.run(data=123, store=store), "data is of type int"),
        (lambda store: sordino.compare(methods="local", store=store), "a list of names, not 'local'"),
        (lambda store: sordino.compare(methods=[3], store=store), "a list of names"),  # type: ignore[list-item]
        (lambda store: sordino.compare(methods=["local"], seeds="two", store=store), "the number of seeds, not 'two'"),
        (lambda store: sordino.load_models("x", store), "There is no store in"),
    ],
)
def test_mistakes_in_python_are_sentences_too(tmp_path: Path, wrong: Callable[[Path], object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        wrong(tmp_path / "store")
