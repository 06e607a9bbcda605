"""What a paper needs of a study: the figure that judges, spread and cost, and everything in one folder."""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import QUICK, QUICK_KEYS, command, refused, row_of

import sordino
from sordino.federation.message import Each, bytes_for
from sordino.federation.rounds import gini
from sordino.methods import names
from sordino.report.citations import Citation, bibliography, citations_in, header_of
from sordino.report.result import ComparisonResult
from sordino.store.run_summary import Fairness
from sordino.store.store import Store
from sordino.study.compare import SeedFigures
from sordino.study.verdict import judge_of, verdicts

ROOT = Path(__file__).resolve().parent.parent.parent
METHODS = ["local", "dp-fedavg", "dp-ifca"]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> ComparisonResult:
    """A comparison of small runs, judged by the worst tenth."""
    store = tmp_path_factory.mktemp("store")
    return sordino.compare(methods=METHODS, seeds=2, store=store, judge="worst-tenth", progress=False, **QUICK_KEYS)


@pytest.fixture(scope="module")
def exported(study: ComparisonResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "study"
    assert all(path.is_file() for path in study.export(folder))
    return folder


def lines(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_gini_by_hand() -> None:
    """All pairs of 1, 2 and 3 differ by 8 in total: 8 / (2 * 9 * 2). One of four has everything: 3 / 4."""
    assert gini(np.array([3.0, 1.0, np.nan, 2.0])) == pytest.approx(8 / 36)
    assert gini(np.array([0.0, 0.0, 5.0, 0.0])) == pytest.approx(3 / 4)
    assert gini(np.full(7, 0.3)) == pytest.approx(0)
    assert gini(np.zeros(2)) == 0
    assert math.isnan(gini(np.full(2, np.nan)))


def test_bytes_of_a_message() -> None:
    """Eight numbers of four bytes for everybody, two of eight bytes for each, a number, and a text of three bytes."""
    import torch

    own = Each(torch.zeros(50, 2, dtype=torch.float64))
    message = {"model": torch.zeros(8), "own": own, "rest": {"rate": 0.1, "name": "abc", "more": [torch.zeros(1)]}}
    assert bytes_for(message, 3) == 3 * (32 + 16 + 8 + 3 + 4)


def test_what_clients_are_sent_is_counted(study: ComparisonResult) -> None:
    """The model of 650 numbers to each of 8 clients in 2 rounds; three times two models for IFCA."""
    rows = {row["method"]: row for row in study.rows}
    assert rows["local"]["download_bytes"] == rows["local"]["upload_bytes"] == 0
    assert rows["dp-fedavg"]["download_bytes"] == pytest.approx(2 * 8 * 4 * 650, rel=0.01)
    assert rows["dp-ifca"]["download_bytes"] == pytest.approx(2 * 8 * 4 * 2 * 650, rel=0.01)
    assert rows["dp-fedavg"]["upload_bytes"] == 2 * 8 * 4 * 650


def test_a_resumed_run_has_counted_everything(tmp_path: Path) -> None:
    keys = {"method": "dp-fedavg", "store": tmp_path, **QUICK_KEYS, "rounds": 3}
    whole = sordino.run(**keys)

    def stop(report: sordino.RoundReport) -> None:
        if report.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sordino.run(seed=1, watch=stop, **keys)
    (stopped,) = [row for row in Store(tmp_path).all() if row.state == "stopped"]
    assert sordino.resume(stopped.run, tmp_path)["download_bytes"] == whole["download_bytes"] > 0


def test_the_figure_that_judges_orders_rows_and_decides(study: ComparisonResult) -> None:
    figures = [row["fairness"]["worst_tenth"]["mean"] for row in study.rows]
    assert figures == sorted(figures, reverse=True)
    best = study.rows[0]
    assert f"{best['method']} has the best accuracy of the worst tenth of the clients, {figures[0]:.1%}." in (
        study.verdict
    )
    assert {one["judge"] for one in study.differences} == {"worst-tenth"}
    assert study.document()["judge"] == "worst-tenth"
    seeds = best["by_seed"]
    assert figures[0] == pytest.approx(np.mean([one["worst_tenth"] for one in seeds]))
    models = sordino.load_models(best["runs"][0], study.store)
    accuracies = models.metrics[:, models.about.meaning.task.metrics.index("accuracy")]
    assert seeds[0]["variance"] == pytest.approx(accuracies.var())
    assert seeds[0]["worst_tenth"] == pytest.approx(accuracies.min()), "a tenth of eight clients is one"


def test_methods_without_the_figure_are_named() -> None:
    figures = [SeedFigures(seed, "x", {"personal": 0.5, "global": 0.4 + seed / 10}, auc=0.8) for seed in (0, 1)]
    alone = [SeedFigures(seed, "x", {"personal": 0.9, "global": None}) for seed in (0, 1)]
    rows = [row_of("local", by_seed=alone, epsilon={"outsider": 0.0}), row_of("x", by_seed=figures)]
    sentences, _ = verdicts(rows, "outsider", judge_of("global"))
    assert sentences == ["There is no global model with local: not ranked. Judge by --judge personal to rank all."]
    better = [SeedFigures(seed, "x", {"personal": 0.5}, auc=0.9 + seed / 100) for seed in (0, 1)]
    sentences, (found,) = verdicts([rows[1], row_of("y", by_seed=better)], "outsider", judge_of("auc"))
    assert sentences[0] == "y has the best area under the curve, 0.905."
    assert sentences[1].startswith("y against x: +0.105, 95% interval ")
    assert found.mean == pytest.approx(0.105)
    tenth = [SeedFigures(0, "x", {"personal": 0.5}, fairness=Fairness(0.125, 0.1, 0.01))]
    assert row_of("z", by_seed=tenth).judged(judge_of("worst-tenth")).mean == 0.125  # type: ignore[union-attr]


def test_an_unknown_judge_is_refused(tmp_path: Path) -> None:
    given = ("compare", "--methods=local", *QUICK, "--store", tmp_path)
    assert "known are: AUC, global, personal, worst-tenth." in refused(*given, "--judge=fame")


def test_exported_tables_are_tidy(study: ComparisonResult, exported: Path) -> None:
    runs, rounds, clients = (lines(exported, name) for name in ("runs", "rounds", "clients"))
    assert len(runs) == 2 * len(METHODS)
    assert [len(rounds), len(clients), len(lines(exported, "client_rounds"))] == [2 * 6, 8 * 6, 2 * 8 * 6]
    assert len(lines(exported, "methods")) == len(METHODS)
    assert len(lines(exported, "differences")) == len(study.differences)
    for line in runs:
        mine = [float(one["score"]) for one in clients if one["run"] == line["run"]]
        assert float(line["personal"]) == pytest.approx(np.mean(mine))
        assert float(line["variance"]) == pytest.approx(np.var(mine))
        mine = [float(one["upload_bytes"]) for one in rounds if one["run"] == line["run"]]
        assert float(line["upload_bytes"]) == sum(mine)
        assert {one["threshold"] for one in rounds if one["run"] == line["run"]} == (
            {""} if line["method"] == "local" else {"0.5"}
        )
    spent = {line["method"]: float(line["epsilon_outsider"]) for line in runs}
    assert spent == pytest.approx({"local": 0, "dp-fedavg": 8, "dp-ifca": 8}, rel=1e-3)
    for name in ("comparison", "clients"):
        assert (exported / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert (exported / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_parquet_holds_the_same(exported: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    for name in ("methods", "runs", "rounds", "clients", "client_rounds", "differences"):
        table = parquet.read_table(exported / f"{name}.parquet")
        assert table.num_rows == len(lines(exported, name))
        assert table.column_names == list(lines(exported, name)[0])


def test_the_command_exports(tmp_path: Path) -> None:
    given = ("compare", "--methods=local,dp-fedavg", "--seeds=1", *QUICK, "--epsilon=1,8", "--store", tmp_path)
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused(*given, "--export", tmp_path / "file")
    outcome = command(*given, "--export", tmp_path / "out", "--judge=GLOBAL", "--json")
    assert "Exported" in outcome.err
    assert outcome.document["judge"] == "global"
    assert {line["epsilon"] for line in lines(tmp_path / "out", "rounds")} == {"1", "8"}


def test_a_figure_and_a_table_from_the_export(exported: Path) -> None:
    given = [sys.executable, ROOT / "examples" / "paper.py", exported]
    done = subprocess.run(given, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert (exported / "figure.pdf").read_bytes().startswith(b"%PDF")
    text = (exported / "table.tex").read_text()
    assert text.startswith(r"\begin{tabular}{lrrrrrrr}")
    assert [line.split(" & ")[0] for line in text.splitlines() if line.endswith(r"\\")][1:] == [
        line["method"] for line in lines(exported, "methods")
    ]


def test_every_method_is_cited() -> None:
    """By its header alone: nothing else says what a method's paper is called. Every work has a year."""
    without = [name for name in names() if not citations_in(header_of(name))]
    assert without == ["local"]
    assert [one.title for name in names() for one in citations_in(header_of(name)) if not one.year] == []
    text = bibliography(names())
    keys = [line.split("{")[1] for line in text.splitlines() if line.startswith("@misc{")]
    assert len(set(keys)) == len(keys) > 20
    assert text.count("{") == text.count("}")
    assert text.endswith("% local: the header of its file cites no work.\n")


def test_citations_by_hand(exported: Path) -> None:
    assert citations_in(
        'X (Müller, O\'Hara et al.: "Some Words\nin a Title", Journal of Y 87(3), 2026). Says "Not One".'
    ) == [Citation(("Müller", "O'Hara", "others"), "Some Words in a Title", "Journal of Y 87(3)", "2026", "")]
    assert Citation((), "XY: A Title without Authors", "", "2024", "").key == "title2024"
    text = (exported / "results.bib").read_text()
    assert "@misc{mcmahan2018learning,\n  author = {McMahan and others}," in text
    assert "% dp-fedavg, dp-ifca\n" in text or "% dp-ifca, dp-fedavg\n" in text
    assert "feddpa" not in text
