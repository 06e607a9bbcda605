"""Places decide: one record's contents move no other record between pools, batches or plans."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from helpers import SITE_LIMITS
from torch import Tensor

from sordino.data import Dataset, FederatedData, federate
from sordino.data.own import Reading
from sordino.data.partition import deal
from sordino.data.selection import PublicChoice, fewer, set_aside
from sordino.deploy.site.data import encode_records, read_records
from sordino.deploy.site.rules import Rules
from sordino.deploy.site.session import Session
from sordino.deploy.terms import terms_of
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import Prepared, prepare
from sordino.privacy.gradients import PrivateRecords, Units
from sordino.tasks import Classification
from sordino.testing.case import OneRound
from sordino.testing.records import CheckedSum, observe_gradients

CLIENTS, EACH, FEATURES, CLASSES, PLACE = 5, 40, 6, 3, 87
NOTHING = float("nan")
"""Contents whose gradient is left out altogether."""


def dataset(contents: float | None = None, owned: bool = False) -> Dataset:
    """Records of which that at `PLACE` has other `contents` and another label, where they are given."""
    drawn = np.random.default_rng(0)
    x = torch.from_numpy(drawn.normal(size=(CLIENTS * EACH, FEATURES)).astype(np.float32))
    y = torch.from_numpy(drawn.integers(0, CLASSES, CLIENTS * EACH))
    if contents is not None:
        x[PLACE], y[PLACE] = contents, (y[PLACE] + 1) % CLASSES
    owner = np.repeat(np.arange(CLIENTS), EACH) if owned else None
    names = tuple(f"site-{number}" for number in range(CLIENTS)) if owned else ()
    return Dataset("made", x, y, Classification.numbered(CLASSES), owner, names, None)


def moved(one: Tensor, other: Tensor) -> int:
    """Number of rows of two tensors of equal shape that differ."""
    assert one.shape == other.shape
    return int((one != other).reshape(len(one), -1).any(dim=1).sum())


def pools(data: FederatedData) -> list[Tensor]:
    """The training and the test records of all clients, in order."""
    return [data.train.x, data.test.x]


@pytest.mark.parametrize("contents", [0.0, 1e6, NOTHING])
@pytest.mark.parametrize("partition", ["iid", "natural", "dirichlet:0.5", "shards:2"])
def test_contents_move_no_record_between_clients_and_their_pools(partition: str, contents: float) -> None:
    whole, other = (dataset(one, partition == "natural") for one in (None, contents))

    def held(chosen: Any, labels: np.ndarray, *rest: Any) -> np.ndarray:
        """The deal is public and fixed: that of the records as they were."""
        return deal(chosen, whole.y.numpy(), *rest)

    with mock.patch.object(sys.modules["sordino.data.federate"], "deal", held):
        one, two = (federate(data, partition, CLIENTS, 7) for data in (whole, other))
    assert (one.train.sizes == two.train.sizes).all()
    assert sum(moved(*pair) for pair in zip(pools(one), pools(two), strict=True)) == 1


@pytest.mark.parametrize("contents", [0.0, 1e6, NOTHING])
def test_contents_move_no_record_into_or_out_of_a_choice(contents: float) -> None:
    choice = PublicChoice("holdout:0.2", None, Reading(), "own", 7)
    found = []
    for one in (dataset(), dataset(contents)):
        some = fewer(one, 150, 7)
        found.append([some.x, *(part.x for part in set_aside(one, choice))])
    assert moved(found[0][0], found[1][0]) <= 1
    assert sum(moved(*pair) for pair in zip(found[0][1:], found[1][1:], strict=True)) == 1


def of_a_round(prepared: Prepared, folder: Path, rounds: int = 1) -> tuple[list[CheckedSum], list[Tensor]]:
    """The noisy gradients of a round, and which records were set aside, for each client that was asked alone."""
    aside: list[Tensor] = []
    original: Callable[..., None] = PrivateRecords.__init__

    def noting(self: PrivateRecords, units: Units, validation: Tensor, *rest: Any) -> None:
        aside.append(validation.clone())
        original(self, units, validation, *rest)

    with observe_gradients() as seen, mock.patch.object(PrivateRecords, "__init__", noting):
        OneRound(prepared, folder, rounds=rounds)
    return seen, aside


@pytest.mark.parametrize("contents", [0.0, NOTHING])
@pytest.mark.parametrize(
    ("clipping", "engine"), [("fixed", "stacked"), ("fixed", "one-by-one"), ("quantile", "one-by-one")]
)
def test_contents_change_no_plan_and_no_coin(clipping: str, engine: str, contents: float, tmp_path: Path) -> None:
    keys = {"method": "dp-fedavg-record", "epsilon": 4.0, "rounds": 2, "model": "logistic", "workers": 1}
    given = {"batch": 8, "epochs": 1, "clipping": clipping}
    experiment = Experiment.make({**keys, "engine": engine, "store": tmp_path, "set": given})
    one, two = (prepare(experiment, federate(dataset(c, True), "natural", None, 7)) for c in (None, contents))
    two = dataclasses.replace(two, identity=one.identity)  # else all coins are drawn anew
    plan, other = vars(one.allowance.of_records), vars(two.allowance.of_records)
    assert all(np.all(plan[name] == other[name]) for name in plan)
    assert (one.schedule, one.budget) == (two.schedule, two.budget)
    (seen, aside), (theirs, apart) = (of_a_round(p, tmp_path / str(k)) for k, p in enumerate((one, two)))
    assert [(p.client, p.step, p.charge, p.records) for p in seen] == [
        (p.client, p.step, p.charge, p.records) for p in theirs
    ]
    assert all(torch.equal(first.chosen, second.chosen) for first, second in zip(seen, theirs, strict=True))
    assert all(torch.equal(*pair) for pair in zip(aside, apart, strict=True))
    assert any(one.any() for one in aside) == (clipping == "quantile")


def test_a_record_without_contents_contributes_nothing_and_keeps_its_place(tmp_path: Path) -> None:
    keys = {"method": "dp-fedavg-record", "epsilon": 4.0, "rounds": 1, "model": "logistic", "workers": 1}
    for engine in ("stacked", "one-by-one"):
        experiment = Experiment.make({**keys, "store": tmp_path, "engine": engine, "set": {"batch": 40}})
        data = federate(dataset(NOTHING, True), "natural", None, 7, test_fraction=0.01)
        seen, _ = of_a_round(prepare(experiment, data), tmp_path / engine)
        (mine,) = (one for one in seen if one.client == PLACE // EACH and one.step == 0)
        assert len(mine.chosen) == mine.records == EACH - 1  # one is for testing
        assert torch.isfinite(mine.clipped).all()
        assert mine.clipped.any()


def a_site(folder: Path, kind: str, contents: float | None) -> FederatedData:
    """Read a site's file in which one record has other contents."""
    found = dataset(contents)
    given: dict[str, Any] = {
        **{"clients": 3, "labels": ["0", "1", "2"], "records_each": 160, "rounds": 1, "shape": [FEATURES]},
        **{"method": "dp-fedavg-record", "epsilon": 4.0, "model": "logistic", "set": {"clipping": "quantile"}},
    }
    folder.mkdir()
    if kind == "npz":
        np.savez(folder / "records.npz", x=found.x.numpy(), y=found.y.numpy())
    else:
        names = [f"f{number}" for number in range(FEATURES)]
        given["columns"] = names
        rows = [",".join(map(repr, row)) for row in found.x.double().tolist()]
        table = [f"{row},{label}" for row, label in zip(rows, found.y.tolist(), strict=True)]
        (folder / "records.csv").write_text("\n".join([",".join([*names, "label"]), *table]))
    limits = {**SITE_LIMITS, "unit": "record"}
    rules = Rules(name="s0", data=Path(f"records.{kind}"), label=None if kind == "npz" else "label", **limits)
    terms = terms_of(Experiment.make(given))
    data = encode_records(read_records(folder, rules), terms, rules, b"secret")
    session = Session.of("run", terms, 0, bytes(32), data, b"secret")
    plan = vars(session.gate.allowance.of_records)
    return dataclasses.replace(
        data, notes=[repr({name: np.asarray(plan[name]).tolist() for name in plan if name != "shared"})]
    )


@pytest.mark.parametrize("contents", [0.0, 1e6])
@pytest.mark.parametrize("kind", ["npz", "csv"])
def test_contents_move_no_record_at_a_site(kind: str, contents: float, tmp_path: Path) -> None:
    one, two = (a_site(tmp_path / f"{kind}-{k}", kind, c) for k, c in enumerate((None, contents)))
    assert sum(moved(*pair) for pair in zip(pools(one), pools(two), strict=True)) == 1
    assert one.notes == two.notes  # the plans


def test_records_are_set_aside_once_for_all_rounds(tmp_path: Path) -> None:
    """Who is judged by in one round and trained on in another pays for both, and only one is charged."""
    keys = {"method": "dp-fedavg-record", "epsilon": 4.0, "rounds": 3, "model": "logistic", "workers": 1}
    given = {"batch": 8, "epochs": 1, "clipping": "quantile"}
    prepared = prepare(
        Experiment.make({**keys, "engine": "one-by-one", "store": tmp_path, "set": given}),
        federate(dataset(owned=True), "natural", None, 7),
    )
    _, aside = of_a_round(prepared, tmp_path, rounds=3)
    assert len(aside) == 3 * CLIENTS
    for client in range(CLIENTS):
        first, *others = aside[client::CLIENTS]
        assert first.any()
        assert all(torch.equal(first, one) for one in others)
