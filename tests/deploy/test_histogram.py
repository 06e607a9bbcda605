"""Evaluation that is paid for on real machines: summed under masks, reserved, charged once, and asked at the end."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import Federation, federation

from sordino.deploy.site.enrol import _open_session
from sordino.deploy.site.ledger import QuestionId, SiteLedger, row_from
from sordino.deploy.site.requests import ReceivedQuestion
from sordino.deploy.site.rules import RefusedError
from sordino.deploy.site.session import Session
from sordino.deploy.site.status import status
from sordino.deploy.terms import terms_of
from sordino.federation.client import HISTOGRAM, MODEL, STEP
from sordino.tasks.histogram import SCORES


@pytest.fixture(scope="module")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, random = tmp_path_factory.mktemp("clinics"), np.random.default_rng(5)
    for name in "abcd":
        x = random.normal(size=(260, 3)).astype(np.float32)
        y = (x @ [1.0, -1.0, 0.5] + random.normal(size=260) > 0.8).astype(np.int64)
        np.savez(folder / f"{name}.npz", x=x[:160], y=y[:160], x_test=x[160:], y_test=y[160:])
    return folder


def keys(clinics: Path, method: str, **changes: Any) -> dict[str, Any]:
    common = {"data": str(clinics), "partition": None, "model": "logistic", "epsilon": 20.0, "delta": 1e-3, "set": {}}
    return {**common, "method": method, "evaluation_share": 0.2, "allow_vacuous_delta": True, **changes}


@pytest.mark.parametrize("protect_from", ["outsider", "server"])
def test_the_server_learns_noisy_figures_that_sites_paid_for(protect_from: str, clinics: Path, tmp_path: Path) -> None:
    with federation(tmp_path, 4, **keys(clinics, "dp-fedsgd", protect_from=protect_from)) as made:
        summary = made.run()
        found = summary.evaluation
        assert found is not None
        assert "true" not in found  # nobody knows them
        assert abs(found["records"] - 400) < 6 * found["noise"] * math.sqrt(found["cells"])
        accuracy = np.mean([status(folder)["runs"][0]["global"] for folder in made.folders])  # all have 100 records
        assert found["figures"]["accuracy"]["low"] < accuracy < found["figures"]["accuracy"]["high"]
        assert 19.9 < dict(summary.epsilon)[protect_from] <= 20.0  # type: ignore[operator]
        for folder in made.folders:
            with SiteLedger(folder) as ledger:
                rows = [row_from(one) for one in ledger.entries() if one.kind == "release"]
            (row,) = (row for row in rows if row.step == STEP)
            assert (row.release, row.pool, row.entries >= found["cells"]) == (HISTOGRAM, "training", True)
            assert status(folder)["spent"][protect_from] <= 20.0
            assert status(folder)["runs"][0]["rounds"] == 2  # nothing was trained in that question


def test_whole_sites_are_protected_by_noise_for_whole_sites(clinics: Path, tmp_path: Path) -> None:
    """Beside the accuracies that sites share, each with its own part of the budget."""
    changes = {"metrics_share": 0.3, "epsilon": 100.0}
    with federation(tmp_path, 4, **keys(clinics, "dp-fedavg", **changes)) as made:
        summary = made.run()
        assert summary.evaluation is not None
        assert summary.evaluation["records"] is None
        assert summary.accuracy["global"] is not None
        assert 99.9 < summary.epsilon["outsider"] <= 100  # type: ignore[operator]
        with SiteLedger(made.folders[0]) as ledger:
            rows = [row_from(one) for one in ledger.entries() if one.kind == "release"]
        costs = {
            step: sum(row.costs()[0, 0] for row in rows if row.step == step) for step in {row.step for row in rows}
        }
        whole = sum(costs.values())
        assert costs[STEP] / whole == pytest.approx(0.2)
        assert costs["accuracies"] / whole == pytest.approx(0.3)


def session_of(made: Federation) -> Session:
    """Session of the first site in the run that is over, opened anew."""
    with SiteLedger(made.folders[0]) as ledger:
        (known,) = ledger.runs()
    terms = terms_of(made.experiment)
    return _open_session(made.sites[0].context, known["run"], terms, {**known, "key": bytes(32)})


def test_a_site_counts_its_test_records_once_and_at_the_end(clinics: Path, tmp_path: Path) -> None:
    with federation(tmp_path, 4, **keys(clinics, "dp-fedsgd")) as made:
        made.run()
        session, policy = session_of(made), made.sites[0].context.policy
        message = {MODEL: session.terms.initial}
        question = ReceivedQuestion(QuestionId("x", 2, 0, 0), bytes(32), 9, STEP, message, [])
        releases, _ = session.check_question(question, policy)
        assert list(releases) == [HISTOGRAM]
        early = replace(question, id=QuestionId("x", 0, 0, 0))
        for wrong in (early, replace(question, message={}), replace(question, message={MODEL: torch.zeros(3)})):
            with pytest.raises(RefusedError):
                session.check_question(wrong, policy)
        with SiteLedger(made.folders[0]) as ledger:
            paid = [row_from(one) for one in ledger.entries() if one.kind == "release"]
        (row,) = (row for row in paid if row.step == STEP)
        assert session.turns_left(row, paid) == 0
        assert session.turns_left(row, [one for one in paid if one.step != STEP]) == 1
        # A site that cannot count contributes noise alone: whether it can follows from its records.
        blank = session.answer_with_noise_alone(question, {}).passed.values[HISTOGRAM]
        counted = session.answer(question, {}).passed.values[HISTOGRAM]
        assert blank.shape == counted.shape == (1, 2 * SCORES)
        assert not torch.equal(blank, counted)
