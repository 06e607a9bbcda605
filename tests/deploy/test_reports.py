"""Reports on deployments: what owners and officers read of runs whose records nobody but the sites has seen."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import QUICK, Federation, federation, kind
from helpers import command, refused
from rich.console import Console
from sklearn.metrics import roc_auc_score

from sordino.deploy.protocol.carrier import Failure, InProcessCarrier
from sordino.deploy.server.coordinator import start
from sordino.deploy.site.judging import POINTS
from sordino.deploy.site.status import models_at, status
from sordino.deploy.trial import add_accuracies, read_origin, site_names
from sordino.errors import Stopped, UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.report.html.runs import runs_page
from sordino.report.statement import statement_of
from sordino.report.statement_pages import markdown
from sordino.report.terminal.details import ledger_table, site_report
from sordino.report.terminal.results import run_report
from sordino.store.ledger_rows import Account
from sordino.store.run_summary import Summary
from sordino.trained.export import description


def text_of(shown: Any) -> str:
    """What a terminal shows, on as wide a screen as it needs."""
    console = Console(file=io.StringIO(), width=400)
    console.print(shown)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, random = tmp_path_factory.mktemp("clinics"), np.random.default_rng(5)
    for name in ("east", "north", "south", "west"):
        x = random.normal(size=(60, 3)).astype(np.float32)
        y = (x @ [1.0, -1.0, 0.5] + random.normal(size=60) > 0).astype(np.int64)
        np.savez(folder / f"{name}.npz", x=x[20:], y=y[20:], x_test=x[:20], y_test=y[:20])
    return folder


def keys(clinics: Path, **changes: Any) -> dict[str, Any]:
    common = {"data": str(clinics), "partition": None, "method": "dp-fedsgd", "model": "logistic", "rounds": 2}
    return {**common, "epsilon": 2.0, "delta": 1e-3, **changes}


@pytest.fixture(scope="module")
def trial(clinics: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A trial of three of four clinics, and its summary as the store keeps it."""
    folder = tmp_path_factory.mktemp("trial")
    with federation(folder, 3, **keys(clinics, personal="recalibrate")) as made:
        carrier, origin = InProcessCarrier(made.sites), read_origin(folder / "sites")
        summary = start(made.experiment, made.members, carrier, made.store, deadlines=QUICK, origin=origin)
        summary = add_accuracies(summary, made.folders)
        made.store.resummarize(summary.run, summary.to_dict())
        yield made, summary


def test_a_trial_keeps_the_metrics_of_its_sites(trial: tuple[Federation, Summary]) -> None:
    made, summary = trial
    stored = made.store.get(summary.run).result
    assert stored == summary
    each = [status(folder)["runs"][0]["metrics"] for folder in made.folders]
    assert stored.metrics is not None
    for name in ("accuracy", "auc", "recall", "log_loss"):
        assert stored.metrics[name].mean == pytest.approx(np.mean([one[name] for one in each]))
        assert stored.metrics[name].clients == 3
    assert (stored.metrics["auc"].overall, stored.positive) == (None, "1")
    with pytest.raises(ValueError, match="another spending"):
        made.store.resummarize(summary.run, summary.to_dict() | {"spent": {}})


def test_a_site_judges_its_models_and_keeps_an_operating_point(
    trial: tuple[Federation, Summary], clinics: Path, tmp_path: Path
) -> None:
    """On its own test records, with intervals; predictions and exports then have the threshold."""
    made, _ = trial
    folder = made.folders[0]
    with np.load(clinics / f"{folder.name}.npz") as file:
        x, y = file["x_test"], file["y_test"]
    np.savez(tmp_path / "new.npz", x=x, y=y)
    try:
        first = command("site", "report", folder, "--json").document
        models = models_at(folder)
        with torch.no_grad():
            score = models.predictor(models.only_client())(torch.from_numpy(x)).softmax(1)[:, 1].numpy()
        own = first["own"]
        assert own["figures"]["auc"]["value"] == pytest.approx(roc_auc_score(y, score))
        assert own["figures"]["auc"]["low"] < own["figures"]["auc"]["value"] < own["figures"]["auc"]["high"]
        assert (own["records"], first["operating_point"], own["threshold"]) == (20, None, None)
        assert first["shared"]["figures"]["auc"] is not None
        assert status(folder, judged=True)["judgement"] == own
        shown = command("site", "status", folder).out
        assert "95 % interval" in shown
        assert "20 test records" in shown

        told = command("site", "report", folder, "--operating-point=recall=0.95").out
        assert "was chosen on 20 test records" in told
        chosen = command("site", "report", folder, "--json").document
        threshold = chosen["operating_point"]["threshold"]
        assert chosen["own"]["figures"]["recall"]["value"] >= 0.95
        assert chosen["shared"]["threshold"] is None
        out = ("-o", tmp_path / "out.csv", "--json")
        predicted = command("predict", folder, tmp_path / "new.npz", *out).document
        assert predicted["threshold"] == threshold
        assert predicted["predicted"]["1"] == int((score >= threshold).sum())
        assert predicted["judgement"]["confusion"] == chosen["own"]["confusion"]
        assert "threshold" not in command("predict", folder, tmp_path / "new.npz", "--shared", *out).document
        assert description(models_at(folder), models.only_client())["threshold"] == threshold
        assert command("site", "report", folder, "--operating-point=none", "--json").document["operating_point"] is None
        assert "recall=0.9" in refused("site", "report", folder, "--operating-point=most")
    finally:
        (folder / POINTS).unlink(missing_ok=True)


def test_a_site_without_a_model_has_nothing_to_judge(tmp_path: Path) -> None:
    with federation(tmp_path, 3) as made:
        assert "has no model yet" in refused("site", "report", made.folders[0])
        assert status(made.folders[0], judged=True)["judgement"] is None


def test_a_site_s_auc_is_that_of_its_predictions(trial: tuple[Federation, Summary], clinics: Path) -> None:
    made, _ = trial
    for folder in made.folders:
        file, models = np.load(clinics / f"{folder.name}.npz"), models_at(folder)
        with torch.no_grad():
            outputs = models.predictor(models.only_client())(torch.from_numpy(file["x_test"]))
        found = status(folder)["runs"][0]["metrics"]
        assert found["auc"] == pytest.approx(roc_auc_score(file["y_test"], (outputs[:, 1] - outputs[:, 0]).numpy()))
        assert found["accuracy"] == pytest.approx(float((outputs.argmax(dim=1).numpy() == file["y_test"]).mean()))
        assert f"{found['auc']:.3f}" in text_of(site_report(status(folder)))


def test_a_trial_is_told_of_as_a_trial(trial: tuple[Federation, Summary]) -> None:
    made, summary = trial
    shown = text_of(run_report(summary, "store"))
    assert "Accuracies are those that the trial's sites keep" in shown
    assert "clients share the noise, which was planned for: outsider" in shown
    assert "with all other sites; alone it sees sums" in shown
    assert "1 of the 4 owners of records are left out, because 3 clients were asked for: west." in shown
    assert "AUC" in shown
    text = markdown(statement_of(made.store, summary.run))
    assert "the data of 3 clients: east, north, south." in text
    assert "A secure sum showed the server sums alone" in text
    assert "by itself it sees sums" in text
    assert "sampling rate and its number of steps" not in text
    page = runs_page([summary.run], made.store.folder)
    assert "no records to test" not in page
    assert "sordino serve experiment.toml" in page


def test_a_deployment_says_that_accuracies_stay_at_the_sites(clinics: Path, tmp_path: Path) -> None:
    """Each row of its ledger is paid for by the plan, which is nothing that left."""
    with federation(tmp_path, 3, **keys(clinics, method="dp-fedavg-record", epsilon=8.0)) as made:
        summary = made.run()
        assert "Accuracies stay at the sites" in text_of(run_report(summary, "store"))
        assert "each client's noise holds for every observer" in text_of(run_report(summary, "store"))
        assert [one.name for one in statement_of(made.store, summary.run).leaving] == ["update"]
        assert "plan" not in text_of(ledger_table(Account.of(made.store, summary.run)))
        page = runs_page([summary.run], made.store.folder)
    assert "The sites test their models on records of their own; the accuracies stay there." in page
    assert page.count("paid for by another row") == 2
    assert "all that leaves in the run: epsilon 8 at delta 0.001" in page
    assert "Who gains and who loses" not in page


def test_a_stopped_deployment_has_a_statement_of_its_whole_plan(clinics: Path, tmp_path: Path) -> None:
    with federation(tmp_path, 3, **keys(clinics, rounds=4)) as made:
        asked: list[int] = []

        def stop(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
            if kind(request) == "open" and node == 0:
                asked.append(node)
                if len(asked) == 3:  # after the count of labels and the first round
                    raise KeyboardInterrupt
            return answer()

        with pytest.raises(Stopped):
            made.run(stop)
        found = statement_of(made.store, "dp-fedsgd-deployed-1")
        assert (found.stopped, found.rounds, found.rounds_planned) == (True, 1, 4)
        assert {one.name: one.most for one in found.leaving} == {"labels": 1, "gradient": 2}
        planned = {one.name: one.epsilon for one in found.observers}
        text = markdown(found)
        assert "The run was stopped after 1 of 4 rounds, and has no models yet." in text
        done = made.resume("dp-fedsgd-deployed-1")
        assert done.epsilon == pytest.approx(planned, rel=1e-6)
        assert not statement_of(made.store, done.run).stopped


def test_a_stopped_simulation_has_none(clinics: Path, tmp_path: Path) -> None:
    """Nothing of it has left anybody."""
    from sordino.experiment.run import start as simulate
    from sordino.store.store import Store

    store = Store(tmp_path)

    def stop(report: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Stopped):
        simulate(prepare(Experiment.make(keys(clinics, workers=1))), store, stop)
    (row,) = store.all()
    with pytest.raises(UserError, match="is not finished: `sordino resume"):
        statement_of(store, row.run)


@pytest.mark.parametrize(
    ("names", "sites"),
    [
        (["client-0", "client-1"], ["site-0", "site-1"]),
        (["cleveland", "va"], ["cleveland", "va"]),
        (["St. Mary's", "Ärzte/Nord"], ["St.-Mary-s", "Arzte-Nord"]),
        (["site-1", "site-0"], ["site-1", "site-0"]),
        (["server", "x"], ["site-0", "x"]),
        (["A", "a", "north"], ["site-0", "site-1", "north"]),
        (["..", "b"], ["site-0", "b"]),
        (["..", "site-0"], ["site-0", "site-1"]),
    ],
)
def test_sites_are_called_as_their_files_where_folders_can_be(names: list[str], sites: list[str]) -> None:
    from types import SimpleNamespace

    assert site_names([SimpleNamespace(name=name) for name in names]) == sites  # type: ignore[misc]


def test_a_trial_tells_what_epsilon_does_not_cover_as_a_simulation_does(tmp_path: Path) -> None:
    """The same file at two sites, and cells that were counted outside their range."""
    folder = tmp_path / "clinics"
    folder.mkdir()
    rows = [f"{k},{['no', 'yes'][k % 2]}" for k in range(40)]
    for name in ("east", "north", "south"):
        last = ["99,yes"] if name != "south" else ["38,no"]
        (folder / f"{name}.csv").write_text("\n".join(["age,ill", *rows, *last]) + "\n")
    table = {
        "columns": {"age": {"kind": "number", "range": [0, 40]}, "ill": {"kind": "label", "values": ["no", "yes"]}}
    }
    given = keys(folder, table=table, delta=1e-3)
    simulated = prepare(Experiment.make(given | {"store": tmp_path})).disclosed
    with federation(tmp_path / "trial", 3, **given) as made:
        carrier, origin = InProcessCarrier(made.sites), read_origin(tmp_path / "trial" / "sites")
        told = start(made.experiment, made.members, carrier, made.store, deadlines=QUICK, origin=origin).not_covered
    assert any("These clients hold the same file: east, north." in one for one in told)
    assert any("1 value of 'age' lies outside 0 to 40" in one for one in told)
    assert set(simulated) <= set(told)
    assert len(told) == len(set(told))
