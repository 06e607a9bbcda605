"""Facts of the real data sets, checked for digits and for those that $SORDINO_DATA holds."""

from __future__ import annotations

import pytest

from sordino.data import Dataset, catalogue, federate, load, summary


def digits(data: Dataset) -> None:
    assert len(data.y) == 1797
    assert (data.y == 1).sum() == 182


def mnist(data: Dataset) -> None:
    assert data.test is not None
    assert (len(data.y), data.test.sum(), int((data.y == 1).sum())) == (70_000, 10_000, 7877)


def fashion_mnist(data: Dataset) -> None:
    assert data.test is not None
    assert (len(data.y), data.test.sum()) == (70_000, 10_000)
    assert data.y.bincount().tolist() == [7000] * 10


def heart_disease(data: Dataset) -> None:
    assert data.x.shape == (740, 13)
    assert [int(data.y[data.owner == centre].sum()) for centre in range(4)] == [139, 98, 45, 101]
    clients = federate(data, None, None, seed=0).clients
    assert [len(client.y) for client in clients] == [199, 172, 30, 85]
    assert [len(client.y_test) for client in clients] == [104, 89, 16, 45]


def femnist(data: Dataset) -> None:
    facts = summary(federate(data, None, None, seed=0))
    assert facts.total == len(data.y)
    assert facts.clients == len(data.owner_names)
    assert 100 < facts.sizes.median < 300


FACTS = {
    "digits": digits,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "heart-disease": heart_disease,
    "femnist": femnist,
}


@pytest.mark.parametrize("name", [entry.name for entry in catalogue() if entry.present and entry.name in FACTS])
def test_facts_of_the_data_sets_that_are_here(name: str) -> None:
    FACTS[name](load(name))
