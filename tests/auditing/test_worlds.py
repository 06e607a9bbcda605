"""Worlds differ from what clients hold in everything that their unit lets differ, and in nothing else."""

from __future__ import annotations

import pytest
import torch

from sordino.auditing.worlds import DRAWN_ANEW, EXTREME_VALUE, WORLDS, worlds_of
from sordino.data.dataset import Dealt, FederatedData, Split
from sordino.methods.dp_fedavg import DPFedAvg
from sordino.methods.dp_fedavg_record import DPFedAvgRecord
from sordino.methods.dp_fedsgd import DPFedSGD
from sordino.privacy.unit import Unit
from sordino.tasks import Classification

SIZES = [6, 4, 5, 7]


def data() -> FederatedData:
    torch.manual_seed(0)
    parts = [(torch.randn(size, 3), torch.randint(0, 4, (size,))) for size in SIZES]
    train, test = Split.of(parts), Split.of([(x[:1], y[:1]) for x, y in parts])
    return FederatedData("made up", Dealt(list("abcd"), train, test), Classification.numbered(4), (3,), "")


def world(name: str, unit: Unit = Unit.CLIENT) -> Split:
    return WORLDS[unit][name](data()).train


def test_every_unit_has_its_worlds() -> None:
    of_records = {"other records", "a label that one record alone has", "records that say nothing", "extreme records"}
    assert set(WORLDS[Unit.RECORD]) == of_records
    more = {"other numbers of records", "clients of a single record", "clients of one label each"}
    assert set(WORLDS[Unit.CLIENT]) == of_records | more
    assert set(worlds_of(DPFedAvgRecord())) == of_records
    assert set(worlds_of(DPFedAvg())) == of_records | more
    assert set(worlds_of(DPFedSGD())) == of_records | set(DRAWN_ANEW)


@pytest.mark.parametrize("name", WORLDS[Unit.RECORD])
def test_records_keep_their_places_and_say_something_else(name: str) -> None:
    before, after = data().train, world(name, Unit.RECORD)
    assert after.sizes.tolist() == SIZES
    assert not torch.equal(before.x, after.x)
    assert not torch.equal(before.y, after.y)


def test_other_numbers_of_records() -> None:
    assert world("other numbers of records").sizes.tolist() == [7, 2, 1, 8]
    assert world("clients of a single record").sizes.tolist() == [1] * 4


def test_labels() -> None:
    alone = world("a label that one record alone has").y
    assert sorted(alone.unique(return_counts=True)[1].tolist()) == [1, sum(SIZES) - 1]
    silent = world("records that say nothing")
    assert not silent.x.any()
    assert silent.y.unique().tolist() == [3], "all labels but one are gone"
    by_client = [world("clients of one label each").part(client)[1].unique().tolist() for client in range(4)]
    assert by_client == [[0], [1], [2], [3]]


def test_extreme_records() -> None:
    assert world("extreme records").x.abs().unique().tolist() == [EXTREME_VALUE]
