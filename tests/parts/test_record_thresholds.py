"""Thresholds at record level: the rules' numbers, that they find what they look for, and what they cost."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import otherwise_slow
from torch import Tensor

import sordino
from sordino.methods import find, names
from sordino.methods.bases import RecordClipped
from sordino.methods.dp_fedavg_record import DPFedAvgRecord
from sordino.parts.record_thresholds import (
    LARGEST_CLIP,
    Median,
    NoisyPercentile,
    Percentile,
    Quantile,
    RecordThreshold,
)
from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.budget.record_level_plan import plan_records
from sordino.privacy.gate import Gate
from sordino.privacy.noise import Seeded
from sordino.privacy.release import Public
from sordino.privacy.sealed import Sealed
from sordino.store.checkpoint import load
from sordino.store.store import Store
from sordino.testing import check_method

FEDERATION: Any = SimpleNamespace(schedule=SimpleNamespace(clients=4))
KEYS = {"clients": 4, "partition": "iid", "rounds": 3, "delta": 1e-5, "epsilon": 8}
SETTINGS = {"epochs": 1, "batch": 1000}
TAKING = [name for name in names() if issubclass(find(name), RecordClipped)]
"""Methods that take any rule."""


def moved(rule: RecordThreshold, clips: list[float], members: list[int], **rows: list[float]) -> list[float]:
    """The thresholds once `members` have sent `rows`."""
    state = {**rule.begin(FEDERATION, 1.0), "clips": torch.tensor(clips)}
    got = SimpleNamespace(who=members, rows=lambda name: torch.tensor(rows[name]).reshape(len(members), -1))
    return rule.following(state, got, FEDERATION)["clips"].tolist()


def test_the_quantiles_rule_by_hand() -> None:
    """Those who took part move; noise beyond the possible counts as the possible; without records nothing moves."""
    found = moved(Quantile(), [1.0, 2.0, 3.0, 4.0], [0, 2, 3], within=[1.0, 0.0, 0.5])
    assert found == pytest.approx([math.exp(-0.1), 2.0, 3 * math.exp(0.1), 4.0])
    assert moved(Quantile(), [1.0] * 4, [1], within=[40.0])[1] == pytest.approx(math.exp(-0.1))
    assert moved(Quantile(quantile=0.8), [1.0] * 4, [1], within=[-3.0])[1] == pytest.approx(math.exp(0.16))
    assert moved(Quantile(), [1.0] * 4, [1], within=[math.nan]) == [1.0] * 4


def test_the_medians_rule_by_hand() -> None:
    assert moved(Median(), [1.0, 2.0, 3.0, 4.0], [1, 3], norm=[0.5, math.inf]) == pytest.approx([1.0, 0.5, 3.0, 1e6])


def test_the_percentiles_rule_by_hand() -> None:
    """Less than nine tenths within it: it rises, up to its limit; all within it: it falls, down to its limit."""
    found = moved(Percentile(), [1.0, 9.9, 1.0, 0.1], [0, 1, 2, 3], within=[0.4, 0.0, 1.0, 1.0])
    assert found == pytest.approx([math.exp(0.5), 10.0, math.exp(-0.1), 0.1])


def test_dp_agrs_rule_by_hand() -> None:
    """Two turns of client 1: norms of 1 to 20, then of 101 to 120; of 40 norms the 90th percentile lies a tenth of the
    way from the 36th to the 37th. With a window of one turn it is that of the last 20, 118.1. Others stay."""
    first, second = [float(k) for k in range(1, 21)], [float(k) for k in range(101, 121)]
    for rounds, hand in ((5, 116.1), (1, 118.1)):
        rule = NoisyPercentile(rounds=rounds)
        state = rule.begin(FEDERATION, 1.0)
        for told in (first, second):
            got: Any = SimpleNamespace(who=[1], rows=lambda name, told=told: torch.tensor([told]))
            state = rule.following(state, got, FEDERATION)
        assert state["clips"].tolist() == pytest.approx([1.0, hand, 1.0, 1.0])
    told = [2.0] * 20 + [4e9] * 20 + [0.0] * 20
    assert moved(NoisyPercentile(low=3.0), [1.0] * 4, [0, 2, 3], norms=told) == [3.0, 1.0, LARGEST_CLIP, 1.0]


def test_dp_agr_forgets_what_is_older_than_its_window() -> None:
    rule = NoisyPercentile(rounds=2)
    state = rule.begin(FEDERATION, 1.0)
    for norm in (100.0, 1.0, 1.0):
        got: Any = SimpleNamespace(who=[0], rows=lambda name, norm=norm: torch.full((1, 20), norm))
        state = rule.following(state, got, FEDERATION)
    assert float(state["clips"][0]) == 1.0


@pytest.mark.parametrize("method", [*TAKING, "adadp-cfl"])
def test_dp_agr_costs_nothing(method: str, tmp_path: Path) -> None:
    """To the last digit what a fixed threshold costs, whose records all train too."""
    found = []
    for clipping in ("fixed", "dp-agr"):
        chosen = SETTINGS | {"clipping": clipping} | ({"cluster_share": 0} if method == "adadp-cfl" else {})
        result = sordino.run(method=method, **KEYS, store=tmp_path, set=chosen)
        rows = Store(tmp_path).ledger(result["run"])
        found.append((result["epsilon"], result["epsilon_replace_one"], result["noise_multiplier"]))
        assert {row.release for row in rows if row.pool} == {"update"}
        assert ("norms" in {row.release for row in rows}) == (clipping == "dp-agr")
    assert found[0] == found[1]
    store = Store(tmp_path)
    clips: Tensor = load(store.get(result["run"]).checkpoint, store.path(result["run"])).server["threshold"]["clips"]
    assert (clips != 1).all()


@pytest.mark.parametrize("quantile", [0.5, 0.8])
@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_it_finds_the_quantile_at_epsilon_four(quantile: float, factor: float) -> None:
    """80 of 800 records with norms from 1 to 3, noise of 120 rounds through the gate: within 20 % in the last 30."""
    rule = Quantile(quantile=quantile)
    norms = torch.linspace(1, 3, 80)
    wanted = float(torch.quantile(norms, quantile))
    needs = DPFedAvgRecord(clipping=rule).record_needs()
    plan = plan_records([800], np.array([4.0]), 1e-5, batch=800, epochs=1, turns=120, needs=needs)
    assert plan.validation.tolist() == [80]
    gate, releases = Gate(Allowance(records=plan), Seeded(3, "identity")), rule.releases(bare=False)
    state, path = {"clips": torch.tensor([factor * wanted])}, []
    for number in range(120):
        bits = Sealed((norms <= state["clips"]).float(), "validation", "gradients within the threshold")
        rows = gate.passes(releases, {"within": bits}, number, Public({})).values["within"] + 0.5
        state = rule.following(state, SimpleNamespace(who=[0], rows=lambda _, rows=rows: rows), FEDERATION)
        path.append(float(state["clips"]))
    assert all(0.8 * wanted < later < 1.2 * wanted for later in path[90:])


@pytest.mark.parametrize(
    ("method", "clipping"),
    otherwise_slow(
        [(method, clipping) for clipping in ("fixed", "quantile", "percentile") for method in TAKING],
        lambda case: case[0] == "dp-fedavg-record" or case[1] == "percentile",
    ),
)
def test_what_a_rule_costs(method: str, clipping: str, tmp_path: Path) -> None:
    """Validation records pay for quantile and percentile."""
    sent = {"update": "training"} | ({} if clipping == "fixed" else {"within": "validation"})
    result = sordino.run(method=method, **KEYS, store=tmp_path, set=SETTINGS | {"clipping": clipping})
    store = Store(tmp_path)
    assert {row.release: row.pool for row in store.ledger(result["run"]) if row.pool} == sent
    assert 7.5 < result["epsilon"]["server"] <= 8
    clips: Tensor = load(store.get(result["run"]).checkpoint, store.path(result["run"])).server["threshold"]["clips"]
    assert (clips == 1).all() == (clipping == "fixed")


@pytest.mark.parametrize("method", TAKING)
def test_medians_leave_as_they_are(method: str, tmp_path: Path) -> None:
    result = sordino.run(method=method, **KEYS, store=tmp_path, set=SETTINGS | {"clipping": "median"})
    assert set(result["epsilon"].values()) == {None}
    assert any("median norm" in sentence for sentence in result["not_covered"])


@pytest.mark.slow
@pytest.mark.parametrize("rule", [Quantile(), Median(), Percentile(), NoisyPercentile(), NoisyPercentile(debias=True)])
def test_the_battery_with_each_rule(rule: RecordThreshold) -> None:
    check_method(DPFedAvgRecord(clipping=rule))


@pytest.mark.slow
@pytest.mark.parametrize("method", TAKING)
def test_the_battery_of_each_method_with_a_rule(method: str) -> None:
    check_method(find(method)(clipping=Quantile()))  # type: ignore[call-arg]
