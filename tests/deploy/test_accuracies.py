"""Accuracies that sites share: part of the budget pays for them, and the server learns their means with noise."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from federations import federation

from sordino.deploy import accuracies
from sordino.deploy.site.ledger import SiteLedger, row_from
from sordino.deploy.site.status import status
from sordino.deploy.terms import terms_of
from sordino.deploy.trial import add_accuracies
from sordino.errors import UserError
from sordino.experiment.config import Experiment


@pytest.mark.parametrize("protect_from", ["outsider", "server"])
def test_shared_accuracies_are_means_with_the_noise_that_is_told(protect_from: str, tmp_path: Path) -> None:
    changes = {"epsilon": 100.0, "metrics_share": 0.5, "protect_from": protect_from}
    with federation(tmp_path, 4, minimum_cohort=4, **changes) as made:
        summary = made.run()
        there = [status(folder)["runs"][0] for folder in made.folders]
        for name in ("personal", "global"):
            noise = summary.accuracy[name] - np.mean([one[name] for one in there])  # type: ignore[operator]
            assert abs(noise) < 6 * summary.accuracy_noise, "six deviations: once in 5e8 tests"
        assert 0 < summary.accuracy_noise < 0.2
        assert any("with noise of deviation" in note for note in summary.notes)
        assert add_accuracies(summary, made.folders) == summary
        assert 99.9 < dict(summary.epsilon)[protect_from] <= 100  # type: ignore[operator]
        view = {"outsider": 0, "server": 2}[protect_from]
        with SiteLedger(made.folders[0]) as ledger:
            rows = [row_from(one) for one in ledger.entries() if one.kind == "release"]
        costs = {
            step: sum(row.costs()[view, 0] for row in rows if row.step == step) for step in ("local", "accuracies")
        }
        assert costs["accuracies"] / sum(costs.values()) == pytest.approx(0.5)
        spent, told = status(made.folders[0])["spent"], dict(summary.epsilon)
        assert spent[protect_from] == pytest.approx(told[protect_from], rel=1e-9)


def test_the_share_worked_out_by_hand() -> None:
    sent = accuracies.releases(0.2, 10)
    assert [release.share for release in sent.values()] == pytest.approx([1.25, 1.25])  # 2.5 of 12.5 turns' worth


def test_without_a_share_nothing_is_asked_and_records_are_another_matter(tmp_path: Path) -> None:
    with federation(tmp_path, rounds=1) as made:
        assert accuracies.STEP not in terms_of(made.experiment).steps()
        summary = made.run()
        assert summary.accuracy["personal"] is None
        assert summary.accuracy_noise is None
        keys = made.experiment.model_dump() | {"method": "dp-fedavg-record", "metrics_share": 0.1, "set": {}}
        with pytest.raises(UserError, match="leave it out"):
            terms_of(Experiment.make(keys))
    assert math.isclose(terms_of(made.experiment).experiment.metrics_share, 0.0)


def test_accuracies_and_others_share_what_the_rounds_leave() -> None:
    """Of mu^2, ten rounds get 0.7, the two accuracies 0.1 together, and what else is asked 0.2."""
    found = accuracies.releases(0.1, 10, others=0.2)
    each = [release.share for release in found.values()]  # type: ignore[attr-defined]
    assert sum(each) / 10 == pytest.approx(0.1 / 0.7)
