"""Results are typed values, and their JSON documents keep the keys that they always had."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import QUICK_KEYS, row_of, summary_of

import sordino
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.experiment.result import metric_over_clients
from sordino.experiment.run import start
from sordino.store.run_summary import Metric, MixtureFigures, RecordFigures, Summary
from sordino.store.store import Store
from sordino.study.compare import SeedFigures

ALWAYS = [
    *("run", "method", "called", "variant", "privacy", "rounds", "rounds_done", "accuracy", "epsilon"),
    *("attack_accuracy", "delta", "unit", "neighbours", "protect_from", "noise_multiplier", "not_covered", "spent"),
    *("upload_bytes", "clients", "parameters", "seed", "notes", "seconds"),
]
"""Keys of every run, in their order."""
SIMULATED = ["records", "download_bytes", "fairness", "metrics", "positive"]
"""Keys that a simulation has besides."""
OF_RECORDS = ["epsilon_clients", "epsilon_replace_one", "delta_replace_one", "epsilon_rows", "stopped_clients"]
"""Keys of a run that protects records."""


@pytest.mark.parametrize(
    ("method", "personal", "more"),
    [
        ("dp-fedavg", "own", []),
        ("dp-fedavg", "blend", ["blend"]),
        ("dp-fedavg", "recalibrate", ["recalibrate"]),
        ("dp-fedavg-record", "own", OF_RECORDS),
        ("fedavg", "own", []),
    ],
)
def test_a_stored_document_has_the_same_keys_and_is_read_back_equal(
    method: str, personal: str, more: list[str], tmp_path: Path
) -> None:
    experiment = Experiment.make(QUICK_KEYS | {"method": method, "personal": personal, "store": tmp_path})
    found = start(prepare(experiment))
    stored = Store(tmp_path).get(found.run).summary
    assert stored is not None
    assert list(stored) == ALWAYS + SIMULATED + more
    assert stored == json.loads(json.dumps(found.to_dict()))
    assert Summary.from_dict(stored) == found
    assert Summary.from_dict(stored).to_dict() == stored


def test_figures_of_a_part_stand_beside_the_others() -> None:
    """Those of records and of positive classes; None is told where it is a figure, and left out where there is none."""
    plain = summary_of().to_dict()
    assert {"charged", "metrics", "positive", "blend", "recalibrate", "deployed", "trial_of", *OF_RECORDS}.isdisjoint(
        plain
    )
    metrics = {"auc": Metric(mean=0.7, worst_tenth=0.5, overall=None, clients=3)}
    records = RecordFigures(None, None, [2], 1e-5, {})
    blend = MixtureFigures({"blend": 0.5}, {"blend": 0.4}, {"local": 1.0})
    full = summary_of(metrics=metrics, record_level=records, blend=blend, deployed=True, charged={"outsider": None})
    document = full.to_dict()
    assert (document["positive"], document["epsilon_replace_one"], document["epsilon_clients"]) == (None, None, None)
    assert (document["deployed"], document["charged"]) == (True, {"outsider": None})
    assert list(document["metrics"]["auc"]) == ["mean", "worst_tenth", "overall", "clients"]
    assert "against_local" not in document["blend"]
    assert Summary.from_dict(document) == full


def test_the_worst_tenth_is_that_of_the_metric() -> None:
    """The largest losses and errors, the smallest scores, also those that have no lower bound."""
    values = np.array([*range(1, 21), np.nan], dtype=float)
    assert metric_over_clients(values, lower_is_better=True).worst_tenth == 19.5
    assert metric_over_clients(values, lower_is_better=False).worst_tenth == 1.5
    assert metric_over_clients(values - 30, lower_is_better=False).worst_tenth == -28.5


LATER = {
    *("called", "privacy", "neighbours", "records", "metrics", "positive", "charged", "delta_replace_one"),
    *("epsilon_rows", "blend", "recalibrate", "deployed", "trial_of", "accuracy_noise"),
}
"""Keys that the first version did not store."""


@pytest.mark.parametrize("unit", ["client", "record"])
def test_a_document_of_the_first_version_opens(unit: Any) -> None:
    level = (
        RecordFigures({"min": 1.0, "median": 1.0, "max": 1.0}, 2.0, [], 1e-5, {"3": 4.0}) if unit == "record" else None
    )
    new = summary_of(unit=unit, record_level=level, records=9).to_dict()
    old = {key: value for key, value in new.items() if key not in LATER}
    found = Summary.from_dict(old | {"removed": True})
    assert (found.called, found.privacy, found.records, found.epsilon_rows) == ("x", "dp", None, {})
    assert (found.record_level is None) == (unit == "client")
    assert found.to_dict() == old | {"called": "x", "privacy": "dp"}


def test_a_row_as_a_document() -> None:
    by_seed = [SeedFigures(0, "x-1", {"personal": 0.5, "personal_worst": 0.2, "start": 0.3, "global": None})]
    row = row_of("feddpa", at={"epsilon": 8}, by_seed=by_seed, against_local={"gain": 1, "lose": 2, "same": 3})
    document = row.to_dict()
    assert list(document) == [
        *("method", "at", "variant", "unit", "seeds", "accuracy", "against_local", "epsilon", "delta", "not_covered"),
        *("notes", "seconds", "runs", "by_seed", "curves", "auc", "fairness", "upload_bytes", "download_bytes"),
    ]
    assert document["accuracy"]["personal"] == {"mean": 0.75, "spread": 0.02}
    unknown = dict.fromkeys(("auc", "worst_tenth", "gini", "variance", "download_bytes"))
    cost = {"upload_bytes": 0, "seconds": 0.0}
    assert document["by_seed"][0] == {"seed": 0, "run": "x-1", **by_seed[0].accuracy, **unknown, **cost}
    assert json.loads(json.dumps(document)) == document


def test_python_users_read_results_by_key(tmp_path: Path) -> None:
    result = sordino.run(method="dp-fedavg", store=tmp_path, **QUICK_KEYS)
    assert result == result.summary.to_dict() == json.loads(json.dumps(result))
    assert result["epsilon"] == result.summary.epsilon
    study = sordino.compare(methods=["dp-fedavg"], seeds=1, store=tmp_path, **QUICK_KEYS)
    (row,) = study.rows
    assert row == study.comparison.rows[0].to_dict()
    assert row["accuracy"]["personal"]["mean"] == result["accuracy"]["personal"]
    assert study.document()["rows"] == [{key: value for key, value in row.items() if key != "curves"}]


def test_the_worst_tenth_of_a_loss_is_its_largest() -> None:
    values = np.array([0.5, np.nan, *np.linspace(1, 2, 19)])
    assert metric_over_clients(values, lower_is_better=True).worst_tenth == pytest.approx((2 + 2 - 1 / 18) / 2)
    assert metric_over_clients(values, lower_is_better=False).worst_tenth == pytest.approx((0.5 + 1) / 2)
    assert metric_over_clients(np.array([-3.0, 0.5]), lower_is_better=False).worst_tenth == -3
