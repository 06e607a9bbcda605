"""Evaluation that is paid for: its noise, its price, its cells, and figures whose intervals hold the truth."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import command, refused

import sordino
from sordino.assembly import clients_of, gate_of
from sordino.errors import Stopped, UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.federation.client import HISTOGRAM, STEP, Question
from sordino.federation.evaluation import Evaluation, message_of
from sordino.planning.plan import plan_of
from sordino.privacy.accounting.gaussian import mu_of
from sordino.privacy.ledger import Ledger
from sordino.privacy.release import CellCounts, Public, ReleaseError
from sordino.privacy.sealed import Sealed
from sordino.report.statement import statement_of
from sordino.report.statement_pages import markdown
from sordino.store.run_files import RunFiles
from sordino.store.store import Store, runs_in
from sordino.tasks import Classification
from sordino.tasks.histogram import EDGES, SCORES, cell_count, cells_of, figures_of, true_figures
from sordino.tasks.intervals import Figure, Released
from sordino.terms import Facts, derive_costs

SICK = Classification.of(("healthy", "ill"))
KEYS: dict[str, Any] = {"clients": 6, "rounds": 3, "partition": "iid", "workers": 1, "model": "logistic"}
KEYS |= {"epsilon": 6.0, "delta": 1e-4, "evaluation_share": 0.2, "allow_vacuous_delta": True}
LEVELS = ("dp-fedavg", "dp-fedsgd")


@pytest.fixture(scope="module")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six clinics with 100 test records each, of which one in four is ill."""
    folder, random = tmp_path_factory.mktemp("clinics"), np.random.default_rng(5)
    for name in "abcdef":
        x = random.normal(size=(300, 3)).astype(np.float32)
        y = (x @ [1.0, -1.0, 0.5] + random.normal(size=300) > 1.2).astype(np.int64)
        np.savez(folder / f"{name}.npz", x=x[100:], y=y[100:], x_test=x[:100], y_test=y[:100])
    return folder


def made(clinics: Path, method: str, **changes: Any) -> Any:
    keys = {**KEYS, "data": str(clinics), "partition": None, "method": method, **changes}
    return prepare(Experiment.make(keys))


def asked(prepared: Any, number: int, model: torch.Tensor | None = None, blank: bool = False) -> torch.Tensor:
    """What all clients send, one row each, with noise."""
    clients = clients_of(prepared, gate_of(prepared))
    message = message_of(prepared.initial if model is None else model)
    question = Question(number, prepared.schedule.rounds, STEP, message, range(6))
    if blank:
        return clients.absent(question, {}).passed.values[HISTOGRAM]
    return clients.answer(question, {}).passed.values[HISTOGRAM]


@pytest.mark.parametrize("method", LEVELS)
def test_the_noise_is_what_is_charged_for(method: str, clinics: Path) -> None:
    """Noise on 20 blank answers of 6 clients in 60 cells, against what the ledger says that an outsider meets: the
    ratio of 7,200 draws lies within 5 % but once in 1e8 tests; half the noise would not."""
    prepared = made(clinics, method)
    drawn = torch.stack([asked(prepared, number, blank=True) for number in range(20)]).double()
    public = Public(message_of(prepared.initial), range(6), layers=prepared.learner.layout.layers)
    ledger = Ledger(6, prepared.method.unit)
    (row,) = ledger.charge(prepared.steps()[STEP], 0, 3, STEP, prepared.allowance, public)
    if method == "dp-fedavg":
        met = 1 / math.sqrt(row.costs()[0, 0])
    else:
        ((rate, multipliers), times) = row.sums()[0]
        assert (rate, times, row.pool) == (1.0, 1, "training")
        met = multipliers[0]
    # One client's row moves the sum by one at most, and the sum of six rows has six shares of noise.
    assert float(drawn.std()) * math.sqrt(6) == pytest.approx(met, rel=0.05)
    # Every fifth of mu^2 of the budget.
    assert 1 / met**2 == pytest.approx(0.2 * mu_of(6.0, 1e-4) ** 2, rel=1e-6)


def test_where_clients_are_protected_each_counts_as_one(clinics: Path) -> None:
    """What built-in code adds to the same draw of noise: the shares of a client's test records in the cells."""
    prepared = made(clinics, "dp-fedavg")
    shares = asked(prepared, 0) - asked(prepared, 0, blank=True)
    assert torch.allclose(shares.sum(dim=1), torch.ones(6), atol=1e-4)
    assert float(shares.min()) > -1e-4


@pytest.mark.parametrize("method", LEVELS)
def test_no_draw_is_used_twice(method: str, clinics: Path) -> None:
    """Neither for two clients nor for two questions."""
    prepared = made(clinics, method)
    first, again, later = asked(prepared, 0), asked(prepared, 0), asked(prepared, 1)
    assert torch.equal(first, again)  # the same question has the same answer
    blank = [asked(prepared, number, blank=True) for number in (0, 1)]
    assert not torch.isclose(blank[0], blank[1], atol=1e-6).any()
    assert not torch.isclose(blank[0][0], blank[0][1], atol=1e-6).any()
    assert not torch.isclose(first, later, atol=1e-6).any()


@pytest.mark.parametrize("method", LEVELS)
def test_the_question_is_paid_for_by_the_budget(method: str, clinics: Path, tmp_path: Path) -> None:
    """All of it is spent, and no more; without the share rounds would have had all of it."""
    keys = {**KEYS, "data": str(clinics), "partition": None, "store": tmp_path}
    found = sordino.run(method=method, **keys)
    assert 5.99 < found["epsilon"]["outsider"] <= 6.0 + 1e-9
    # The noise that is told is that of the sum over six clients or, of their shares, of the mean.
    noise = 1 / (math.sqrt(0.2) * mu_of(6.0, 1e-4)) / (6 if method == "dp-fedavg" else 1)
    assert found["evaluation"]["noise"] == pytest.approx(noise, rel=1e-6)
    with Store(tmp_path).lock(found["run"]):
        rows = [row for row, _ in Store(tmp_path).linked_rows(found["run"])]
    (row,) = (row for row in rows if row.step == STEP)
    assert len(row.clients()) == 6
    without = Ledger(6, rows=[one for one in rows if one.step != STEP], unit=found.summary.unit)
    assert without.epsilon(1e-4)["outsider"] < 5.6
    text = markdown(statement_of(Store(tmp_path), found["run"]))
    assert "counts of test records by class and score of the shared model" in text
    # A plan says the same, and so does a limit over runs.
    assert sordino.run(method=method, budget_over_runs=12.1, **keys)["epsilon"] == found["epsilon"]
    assert refused_over(method, keys, 5.9)


def refused_over(method: str, keys: dict[str, Any], limit: float) -> bool:
    with pytest.raises(UserError, match="budget_over_runs"):
        sordino.run(method=method, budget_over_runs=limit, **{**keys, "seed": 7})
    return True


def test_plans_have_it_in_their_figures(clinics: Path) -> None:
    for method in LEVELS:
        keys = {**KEYS, "data": str(clinics), "partition": None, "method": method}
        with_it = plan_of(Experiment.make(keys), look=True)
        without = plan_of(Experiment.make({**keys, "evaluation_share": 0.0}), look=True)
        assert with_it.epsilon["outsider"] == pytest.approx(6.0, abs=1e-3)
        assert with_it.noise_multiplier > 1.05 * without.noise_multiplier
    advice = plan_of(Experiment.make(keys | {"method": "dp-fedavg"}), look=True).advice
    assert any("20% of the budget" in line for line in advice)


def test_figures_are_shown_beside_the_true_ones(clinics: Path, tmp_path: Path) -> None:
    """With noise that is small at this budget, on 600 records; the intervals hold the truth."""
    keys = {**KEYS, "data": str(clinics), "partition": None, "store": tmp_path, "epsilon": 40.0, "rounds": 20}
    found = sordino.run(method="dp-fedsgd", **keys)
    evaluation = found["evaluation"]
    assert set(evaluation["figures"]) == set(evaluation["true"]) == {"accuracy", "auc", "recall", "calibration"}
    for name, true in evaluation["true"].items():
        figure = evaluation["figures"][name]
        assert figure["low"] <= true <= figure["high"], name
        assert figure["high"] - figure["low"] < 0.3, name
    assert evaluation["records"] == pytest.approx(600, abs=6 * evaluation["noise"] * math.sqrt(60))
    models = sordino.load_models(found["run"], tmp_path)
    x, y = (
        np.concatenate([np.load(path)[name] for path in sorted(clinics.iterdir())]) for name in ("x_test", "y_test")
    )
    with torch.no_grad():
        scores = models.shared[0](torch.from_numpy(x)).softmax(1)[:, 1].numpy()
    assert evaluation["true"]["accuracy"] == pytest.approx(((scores >= 0.5) == y).mean())
    shown = command("show", found["run"], "--store", tmp_path).out
    assert "shared model, over all test records" in shown
    assert "true" in shown


def test_a_run_that_is_taken_up_asks_the_same_again(
    clinics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the charge and the end, it is charged once, and comes to the same figures."""
    keys = {**KEYS, "data": str(clinics), "partition": None}
    save = RunFiles.save

    def stop(self: RunFiles, now: Any, summary: Any = None, models: Any = None) -> None:
        if summary is not None:
            raise KeyboardInterrupt
        save(self, now, summary, models)

    for method in LEVELS:
        whole = sordino.run(method=method, store=tmp_path / "whole", **keys)
        with monkeypatch.context() as patch:
            patch.setattr(RunFiles, "save", stop)
            with pytest.raises(Stopped):
                sordino.run(method=method, store=tmp_path / "killed", **keys)
        run = next(row.run for row in runs_in(tmp_path / "killed") if row.method == method)
        found = sordino.resume(run, store=tmp_path / "killed")
        assert found["evaluation"] == whole["evaluation"]
        assert found["epsilon"] == whole["epsilon"]


def test_cells_are_of_released_scores_alone() -> None:
    """One record is in one cell, by class and score; a record more moves one count by one."""
    said = np.array([[0.5, 0.5], [0.999, 0.001], [0.2, 0.8], [np.nan, np.nan]])
    cells = cells_of(SICK, said, np.array([1, 0, 1, 0]))
    half = int(np.searchsorted(EDGES, 0.5, "right"))
    assert cells.tolist() == [SCORES + half, 0, SCORES + int(np.searchsorted(EDGES, 0.8, "right")), half]
    assert half == SCORES // 2
    random = np.random.default_rng(0)
    said = random.dirichlet([1, 1], 500)
    found = cells_of(SICK, said, random.integers(0, 2, 500))
    assert 0 <= found.min() <= found.max() < cell_count(SICK)
    three = Classification(("a", "b", "c"))
    found = cells_of(three, random.dirichlet([1, 1, 1], 500), random.integers(0, 3, 500))
    assert 0 <= found.min() <= found.max() < cell_count(three)


def test_a_record_counts_once_however_long_its_row_is() -> None:
    release = CellCounts(1.0, 0.1, 4)
    public = Public({}, [0])
    rows = torch.tensor([[1.0, 0, 0, 0], [5.0, 5.0, 0, 0], [math.nan, 0, 0, 0]])
    bounded = release.bounded(release.opened(Sealed(rows, "test", "cells"), public), public)
    assert bounded.rejected == 1
    assert bounded.rows[0].tolist() == pytest.approx([1 + math.sqrt(0.5), math.sqrt(0.5), 0, 0], rel=1e-6)
    for wrong in (rows, Sealed(rows, "training", "cells"), Sealed(rows, "test", "cells", "batch")):
        with pytest.raises(ReleaseError, match="hand over the sealed"):
            release.opened(wrong, public)


def drawn(random: np.random.Generator, records: int) -> tuple[np.ndarray, np.ndarray]:
    labels = (random.random(records) < 0.3).astype(np.int64)
    scores = 1 / (1 + np.exp(1 - 1.5 * labels - random.normal(size=records)))
    return np.stack([1 - scores, scores], axis=1), labels


def test_intervals_hold_the_truth() -> None:
    """The figures of the distribution, by a million records, lie within at least 91 % of 150 intervals: at 95 %, the
    chance of less is below 3 %, always the same draws; without the noise in them far fewer would."""
    big = drawn(np.random.default_rng(99), 1_000_000)
    true = true_figures(SICK, *big, np.ones(1_000_000))
    held = dict.fromkeys(true, 0)
    for seed in range(150):
        random = np.random.default_rng(seed)
        said, labels = drawn(random, 400)
        counts = np.bincount(cells_of(SICK, said, labels), minlength=cell_count(SICK)).astype(float)
        figures = figures_of(SICK, Released(counts + random.normal(scale=3.0, size=len(counts)), 3.0, True))
        for name, figure in figures.items():
            assert figure is not None
            held[name] += figure.low <= true[name] <= figure.high  # type: ignore[operator]
    assert min(held.values()) >= 0.91 * 150, held


def test_what_noise_drowns_is_withheld() -> None:
    counts = np.full(cell_count(SICK), 5.0)
    assert set(figures_of(SICK, Released(counts, 50.0, True)).values()) == {None}


def told(task: Classification, counts: list[int], deviation: float) -> set[str]:
    """Figures that are told at so much noise on each count."""
    found = figures_of(task, Released(np.array(counts, dtype=float), deviation, True))
    return {name for name, one in found.items() if one is not None}


def test_figures_end_where_noise_is_half_of_the_records_they_are_about() -> None:
    """Recall is about the 300 ill in 30 cells: noise on their number is sqrt(30) that on a cell, and half of them 150.
    Accuracy and calibration are about all 600 in 60 cells."""
    everybody, ill = {"accuracy", "calibration"}, {"auc", "recall"}
    counts = [10] * cell_count(SICK)
    assert SCORES == 30
    assert told(SICK, counts, 0.999 * 150 / 30**0.5) == everybody | ill
    assert told(SICK, counts, 1.001 * 150 / 30**0.5) == everybody
    assert told(SICK, counts, 0.999 * 300 / 60**0.5) == everybody
    assert told(SICK, counts, 1.001 * 300 / 60**0.5) == set()


def test_an_area_needs_both_classes() -> None:
    """Noise of 6 drowns 60 records in 30 cells, and not 3,000."""
    few, many = [2] * SCORES, [100] * SCORES
    assert told(SICK, many + few, 6.0) == {"accuracy", "calibration"}
    assert told(SICK, few + many, 6.0) == {"accuracy", "calibration", "recall"}
    assert told(SICK, many + few, 5.0) == {"accuracy", "calibration", "recall", "auc"}


def test_figures_of_several_classes_end_likewise() -> None:
    """200 records in 20 cells."""
    three = Classification.of(("a", "b", "c"))
    counts = [10] * cell_count(three)
    assert told(three, counts, 0.999 * 100 / 20**0.5) == {"accuracy", "calibration"}
    assert told(three, counts, 1.001 * 100 / 20**0.5) == set()


def test_what_is_withheld_is_named_with_what_to_do() -> None:
    figures = {"accuracy": Figure(0.9, 0.8, 1.0), "auc": None, "recall": None}
    (note,) = Evaluation(figures, 3.5, 60, 400.0).notes()
    assert note.startswith(
        "The private evaluation cannot report auc, recall: noise of standard deviation 3.5 on each of 60"
    )
    assert note.endswith("Raise evaluation_share.")
    (note,) = Evaluation(figures, 3.5, 60, None).notes()
    assert note.endswith("Raise evaluation_share, or protect records: whole clients count as one each.")
    assert Evaluation({"accuracy": Figure(0.9, 0.8, 1.0)}, 3.5, 60, 400.0).notes() == []


@pytest.mark.parametrize(("method", "records"), [("dp-fedavg", False), ("dp-fedsgd", True)])
def test_means_over_clients_are_not_taken_for_sums_over_records(
    method: str, records: bool, clinics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six shares would be taken for six records, and leave open more than 600 do."""
    found: list[Released] = []
    figures = Classification.evaluation_figures
    monkeypatch.setattr(
        Classification, "evaluation_figures", lambda task, released: found.append(released) or figures(task, released)
    )
    keys = {**KEYS, "data": str(clinics), "partition": None, "store": tmp_path, "method": method}
    evaluation = sordino.run(**keys)["evaluation"]
    (released,) = found
    assert released.records is records
    assert (evaluation["records"] is None) is not records


def test_true_figures_weigh_records() -> None:
    random = np.random.default_rng(3)
    said, labels = drawn(random, 200)
    weights = random.integers(1, 4, 200)
    repeated = np.repeat(np.arange(200), weights)
    expected = true_figures(SICK, said[repeated], labels[repeated], np.ones(len(repeated)))
    found = true_figures(SICK, said, labels, weights.astype(float))
    for name, value in expected.items():
        assert found[name] == pytest.approx(value), name


def test_where_nothing_could_pay_it_is_refused(tmp_path: Path) -> None:
    for given, why in {
        ("--method=dp-fedavg-record",): "needs noise that clients share",
        ("--method=fedavg",): "and this run has none",
        ("--method=dp-fedavg", "--set", "privacy=none"): "and this run has none",
    }.items():
        assert why in refused("run", *given, "--set", "evaluation_share=0.1", "--store", tmp_path)


def test_test_records_of_all_clients_are_not_counted_by_each() -> None:
    experiment = Experiment.make({"method": "dp-fedsgd", "test": "official", "evaluation_share": 0.1})
    with pytest.raises(UserError, match="all clients hold the same"):
        derive_costs(experiment, Facts(clients=5, sizes=np.full(5, 100)))


def test_several_models_are_judged_by_nobody_but_clients(tmp_path: Path) -> None:
    keys = {**KEYS, "method": "dp-ifca", "store": tmp_path, "epsilon": 50.0}
    found = sordino.run(**keys)
    assert found.get("evaluation") is None
    assert any("no model that is the same for all clients" in note for note in found["notes"])
    assert found["epsilon"]["outsider"] < 50.0  # what was kept for it is not spent


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six clinics with 250 rows each: length of stay, and the months to a relapse or to when somebody was last seen."""
    folder, random = tmp_path_factory.mktemp("outcomes"), np.random.default_rng(6)
    for name in "abcdef":
        x = random.normal(size=(250, 2))
        stay = np.clip(20 + 6 * x[:, 0] - 4 * x[:, 1] + random.normal(scale=4, size=250), 0, 60)
        relapse, seen = random.exponential(20 * np.exp(-x[:, 0])), random.uniform(5, 60, 250)
        lines = [
            f"{a:.4f},{b:.4f},{one:.2f},{min(when, last):.2f},{int(when <= last)}"
            for a, b, one, when, last in zip(*x.T, stay, relapse, seen, strict=True)
        ]
        (folder / f"{name}.csv").write_text("\n".join(["a,b,stay,months,relapse", *lines]) + "\n")
    return folder


OTHERS: dict[str, dict[str, Any]] = {
    "regression": {"label": "stay", "target_range": (0, 60), "drop": ["months", "relapse"]},
    "survival": {"label": "months", "event": "relapse", "cuts": (6, 12, 24, 36), "drop": ["stay"]},
}


def keys_of(task: str, outcomes: Path, method: str, **changes: Any) -> dict[str, Any]:
    return {**KEYS, **OTHERS[task], "data": str(outcomes), "partition": None, "task": task, "method": method, **changes}


@pytest.mark.parametrize("task", OTHERS)
@pytest.mark.parametrize("method", LEVELS)
def test_sums_of_errors_have_the_noise_that_is_charged_for(task: str, method: str, outcomes: Path) -> None:
    """As above, on 6 clients' blank answers to so many questions that there are some 7,000 draws."""
    prepared = prepare(Experiment.make(keys_of(task, outcomes, method)))
    entries = prepared.data.task.evaluated
    drawn = torch.stack([asked(prepared, number, blank=True) for number in range(7200 // (6 * entries) + 1)]).double()
    public = Public(message_of(prepared.initial), range(6), layers=prepared.learner.layout.layers)
    ledger = Ledger(6, prepared.method.unit)
    (row,) = ledger.charge(prepared.steps()[STEP], 0, 3, STEP, prepared.allowance, public)
    met = 1 / math.sqrt(row.costs()[0, 0]) if method == "dp-fedavg" else row.sums()[0][0][1][0]
    assert float(drawn.std()) * math.sqrt(6) == pytest.approx(met, rel=0.05)
    assert 1 / met**2 == pytest.approx(0.2 * mu_of(6.0, 1e-4) ** 2, rel=1e-6)


@pytest.mark.parametrize("task", OTHERS)
def test_a_row_that_is_too_long_is_shortened_at_every_level(
    task: str, outcomes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever code makes of a record, it moves what leaves by one at most: rows of ten times the length move a
    client's answer as much as rows of length one at most do."""
    prepared = {method: prepare(Experiment.make(keys_of(task, outcomes, method))) for method in LEVELS}
    kind = type(next(iter(prepared.values())).data.task)
    make = kind.evaluation_rows
    for method, one in prepared.items():
        tests = max(one.data.test.sizes) if method == "dp-fedsgd" else 1
        with monkeypatch.context() as patch:
            patch.setattr(kind, "evaluation_rows", lambda self, said, targets: 10 * make(self, said, targets))
            added = asked(one, 0) - asked(one, 0, blank=True)
        lengths = added.double().norm(dim=1)
        assert float(lengths.max()) <= tests * (1 + 1e-4)
        assert float(lengths.max()) > 0.5 * tests


@pytest.mark.parametrize("task", OTHERS)
@pytest.mark.parametrize("method", LEVELS)
def test_errors_of_numbers_and_times_are_paid_for_and_shown_beside_the_true_ones(
    task: str, method: str, outcomes: Path, tmp_path: Path
) -> None:
    """All of the budget is spent, and no more; the truth lies within four deviations, always the same draws. Six
    clients that count as one each drown in less noise."""
    epsilon = 60.0 if method == "dp-fedsgd" else 20000.0
    changes = {"epsilon": epsilon, "rounds": 20, "store": tmp_path, "seed": 3}
    found = sordino.run(**keys_of(task, outcomes, method, **changes))
    assert 0.998 * epsilon < found["epsilon"]["outsider"] <= epsilon + 1e-9
    evaluation = found["evaluation"]
    assert set(evaluation["figures"]) == set(evaluation["true"])
    known = {name: one for name, one in evaluation["figures"].items() if one is not None}
    assert known.keys() >= {"rmse", "mae"} if task == "regression" else known.keys() >= {"integrated_brier"}
    for name, figure in known.items():
        assert abs(figure["value"] - evaluation["true"][name]) <= figure["high"] - figure["low"], name
    if method == "dp-fedsgd":
        assert evaluation["records"] == pytest.approx(300, abs=6 * evaluation["noise"] * 10)
        assert known.keys() == evaluation["figures"].keys()
    text = markdown(statement_of(Store(tmp_path), found["run"]))
    assert "sums over test records of errors of the shared model" in text
    shown = command("show", found["run"], "--store", tmp_path).out
    assert ("root mean squared error" if task == "regression" else "integrated Brier score") in shown
