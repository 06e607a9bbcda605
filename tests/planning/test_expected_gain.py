"""The expected gain over training alone, held against the tables that were measured (experiments/tables.md)."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import command

from sordino.experiment.config import Experiment
from sordino.experiment.defaults import LEAST_RECORDS
from sordino.planning.advise import advise
from sordino.planning.situation import ABOUT_ZERO, MOST_GUIDE, POINTS_ALONE, POINTS_OF_GUIDE, Situation

RESULTS = Path(__file__).parents[2] / "experiments" / "tables.md"
FACTS = {"attrition": (58, 156), "gbsg": (9, 198), "heart": (14, 235), "hmda": (14, 190), "insurance": (19, 1170)}
"""Columns of each table, the intercept included, and its training records with the rarer outcome
(`python experiments/tables.py make`). In two other tables all models tell the outcomes apart."""


def measured() -> list[tuple[Situation, float, float, float]]:
    """For each deal and budget: the situation, and how many points training alone, the federated model and the gain
    were found to be."""
    found = []
    for line in RESULTS.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        name = re.fullmatch(r"([a-z-]+)-(\d+)", cells[0]) if len(cells) == 11 else None
        if name is None or name[1] not in FACTS:
            continue
        columns, rare = FACTS[name[1]]
        where = Situation(int(name[2]), 100, float(cells[1]), 2 * columns, delta=1e-5, table=True, rare=rare)
        pooled, ridge, alone, _, _, _, each, _, shared = (
            float(cell.split()[0] or "nan") if cell else np.nan for cell in cells[2:]
        )
        better = max(ridge, alone)
        for one, auc in ((where, shared), (replace(where, protect_from="server"), each)):
            found.append((one, pooled - better, pooled - auc, auc - better))
    return found


def test_the_expected_gain_is_what_was_measured() -> None:
    rows = measured()
    assert len(rows) == 120
    expected = np.array([[one.below_alone, one.below_federated, one.gain] for one, *_ in rows])
    found = np.array([figures for _, *figures in rows])
    assert np.sqrt(np.mean((expected - found)[:, 2] ** 2)) < 1.9
    assert np.corrcoef(expected[:, 2], found[:, 2])[0, 1] > 0.85
    slope = float(np.exp(np.mean(np.log(found[:, 0]) - np.log(expected[:, 0]))))
    assert slope == pytest.approx(1, abs=0.1), "of training alone, a factor"
    by_guide = float((found[:, 1] * expected[:, 1]).sum() / (expected[:, 1] ** 2).sum())
    assert by_guide == pytest.approx(1, abs=0.15)


def test_who_is_advised_to_federate_gained_by_it() -> None:
    """Nobody is sent away who would have gained more than three points, unless noise was beyond all that was measured
    often; and nobody is called who lost."""
    for where, _, _, gain in measured():
        if where.table_pays:
            assert gain > 0
        elif where.guide <= MOST_GUIDE:
            assert gain < 3


def test_the_gain_by_hand() -> None:
    """d = 16, 4 clients, 100 rare outcomes: 25 at each, so that alone is 7 sqrt(16 / 25) = 5.6 points below."""
    where = Situation(4, 100, 1, 32, delta=1e-5, table=True, rare=100)
    assert where.below_alone == pytest.approx(POINTS_ALONE * 0.8)
    assert where.gain == pytest.approx(5.6 - POINTS_OF_GUIDE * 16 / (2 * 0.2681 * 100), abs=0.01)
    told = advise(where)
    assert told.expected_gain == pytest.approx(where.gain)
    assert f"the expected gain over training alone is about {where.gain:.1f} points" in " ".join(told.advice)


def test_a_gain_of_about_zero_is_called_that() -> None:
    where = Situation(4, 1000, 1, 22, delta=1e-5, table=True, rare=1500)
    assert 0 < where.gain < ABOUT_ZERO
    told = advise(where)
    assert told.level == "none"
    assert "the expected gain over training alone is about zero." in " ".join(told.advice)


def test_the_total_of_records_decides_what_can_be_trained() -> None:
    """Sums are over all clients' records, as in a plan: the one in the middle says little of them."""
    uneven = Situation(4, 30, 1, 22, delta=1e-5, table=True, total=1200)
    assert uneven.mean == 300
    assert uneven.rarer == 600
    assert uneven.feasible(advise(uneven).level) == Situation(4, 300, 1, delta=1e-5).feasible(advise(uneven).level)  # type: ignore[arg-type]


def wide(folder: Path) -> Path:
    random = np.random.default_rng(0)
    for site in range(4):
        x = random.normal(size=(60, 85)).round(2)
        ill = (x[:, :5].sum(1) + random.normal(size=60) > 0).astype(int)
        rows = [",".join([*map(str, row), str(sick)]) for row, sick in zip(x, ill, strict=True)]
        header = ",".join([*(f"c{k}" for k in range(85)), "ill"])
        (folder / f"site{site}.csv").write_text("\n".join([header, *rows]) + "\n")
    return folder


def test_logistic_regression_is_proposed_where_a_network_is_too_large(tmp_path: Path) -> None:
    """85 columns: a network of 5,000 parameters for some 200 records, or 172."""
    given = ("advise", "--data", wide(tmp_path), "--label=ill", "--epsilon=4", "--json")
    named = command(*given, "--model=mlp").document
    assert "model=logistic" in named["settings"]
    told = " ".join(named["advice"])
    assert "Train a logistic regression (--model logistic): mlp has" in told
    assert "a logistic regression has 172." in told
    default = command(*given).document
    assert "the network logistic, the default for these records as no --model is given, has 172" in " ".join(
        default["advice"]
    )
    assert not any("Train a logistic" in sentence for sentence in default["advice"])


def test_tables_of_three_rows_are_told_that_whole_sites_are_protected() -> None:
    told = {records: Experiment.make({}).for_data((5,), 4, records) for records in (3, LEAST_RECORDS)}
    small, chosen = told[3]
    assert small.method == "dp-fedavg"
    assert "4 sites of about 3 training records each" in chosen
    assert "which protects whole sites" in chosen
    assert "--method dp-fedsgd" in chosen
    assert told[LEAST_RECORDS][0].method == "dp-fedsgd"
    assert Experiment.make({}).for_data((1, 8, 8), 4, 3)[1] == "", "images are not meant"
    assert Experiment.make({}).for_data((5,), 500, 3)[1] == "", "nor phones"
