from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from data_makers import records
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.data import FederatedData, federate, load
from sordino.errors import UserError
from sordino.tasks import Classification


def numbers(data: FederatedData, part: str) -> list[float]:
    """The numbers of the records that all clients have in x or x_test."""
    return [value for client in data.clients for value in getattr(client, part).flatten().tolist()]


@settings(max_examples=50, deadline=None)
@given(
    partition=st.sampled_from(["iid", "dirichlet:0.2", "shards:2", "labels:100%"]),
    clients=st.integers(1, 12),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 100),
    published=st.booleans(),
)
def test_each_record_is_in_one_place(partition: str, clients: int, fraction: float, seed: int, published: bool) -> None:
    labels = [k % 4 for k in range(60)]
    dataset = records(labels, 4, [k >= 48 for k in range(60)] if published else None)
    data = federate(dataset, partition, clients, seed, fraction)
    placed = sorted(numbers(data, "x") + numbers(data, "x_test"))
    assert placed == list(range(48 if published else 60))
    for client in data.clients:
        assert len(client.y) >= 1
        assert len(client.y_test) >= 1 or len(client.y) == 1
        assert client.y.tolist() == [labels[int(number)] for number in client.x.flatten().tolist()]
        assert client.y_test.tolist() == [labels[int(number)] for number in client.x_test.flatten().tolist()]


def test_the_fraction_of_each_client_is_for_testing() -> None:
    data = federate(records([0] * 100, 1), "iid", 5, 0, 0.25)
    assert [(len(client.y), len(client.y_test)) for client in data.clients] == [(15, 5)] * 5


def test_a_client_with_one_record_trains_on_it_and_one_with_two_tests_on_one() -> None:
    single = federate(records([0] * 4, 1), "iid", 4, 0)
    assert [(len(client.y), len(client.y_test)) for client in single.clients] == [(1, 0)] * 4
    double = federate(records([0] * 4, 1), "iid", 2, 0, 0.99)
    assert [(len(client.y), len(client.y_test)) for client in double.clients] == [(1, 1)] * 2


def test_tensors_are_contiguous_views_of_shared_ones() -> None:
    data = federate(load("digits"), "dirichlet:0.5", 5, 0)
    for part in ("x", "y", "x_test", "y_test"):
        tensors = [getattr(client, part) for client in data.clients]
        assert all(tensor.is_contiguous() for tensor in tensors)
        assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1
    assert data.clients[0].x.dtype == torch.float32
    assert data.clients[0].y.dtype == torch.int64


def test_defaults() -> None:
    many = records([k % 3 for k in range(300)], 3)
    assert federate(many, None, None, 7).fingerprint == federate(many, "dirichlet:0.5", 100, 7).fingerprint
    owned = replace(records([k % 3 for k in range(90)], 3), owner=np.arange(90) // 30, owner_names=("a", "b", "c"))
    assert federate(owned, "iid", None, 7).fingerprint == federate(owned, "iid", 3, 7).fingerprint
    data = federate(owned, None, None, 7)
    assert [client.name for client in data.clients] == ["a", "b", "c"]
    assert sorted(numbers(data, "x") + numbers(data, "x_test")) == list(range(90))
    assert [len(client.y_test) for client in data.clients] == [6, 6, 6]


def test_the_official_test_set_is_shared_whole() -> None:
    dataset = records([k % 2 for k in range(20)], 2, [k % 4 == 0 for k in range(20)])
    data = federate(dataset, "iid", 3, 0, test="official")
    assert sorted(numbers(data, "x")) == [k for k in range(20) if k % 4]
    for client in data.clients:
        assert client.x_test.flatten().tolist() == [0, 4, 8, 12, 16]
        assert client.x_test.data_ptr() == data.clients[0].x_test.data_ptr()
    owned = replace(dataset, owner=np.arange(20) // 10, owner_names=("a", "b"))
    natural = federate(owned, "natural", None, 0, test="official")
    assert natural.clients[1].x.flatten().tolist() == [10, 11, 13, 14, 15, 17, 18, 19]
    assert natural.clients[1].x_test.flatten().tolist() == [0, 4, 8, 12, 16]


def test_equal_arguments_give_equal_fingerprints_and_any_change_another() -> None:
    dataset = records([k % 4 for k in range(60)], 4, [k >= 48 for k in range(60)])
    first = federate(dataset, "iid", 4, 0)
    assert federate(dataset, "iid", 4, 0).fingerprint == first.fingerprint
    nudged = dataset.x.clone()
    nudged[3] += 1
    others = [
        federate(dataset, "iid", 4, 1),
        federate(dataset, "iid", 5, 0),
        federate(dataset, "dirichlet:1", 4, 0),
        federate(dataset, "iid", 4, 0, 0.5),
        federate(dataset, "iid", 4, 0, test="official"),
        federate(replace(dataset, x=nudged), "iid", 4, 0),
        federate(replace(dataset, y=3 - dataset.y), "iid", 4, 0),
        federate(replace(dataset, task=Classification.numbered(5)), "iid", 4, 0),
        federate(replace(dataset, x=dataset.x[:, None]), "iid", 4, 0),
    ]
    assert len({first.fingerprint, *(other.fingerprint for other in others)}) == 10


def test_the_test_fraction_does_not_change_the_deal() -> None:
    dataset = load("digits")
    deals = [federate(dataset, "dirichlet:0.5", 6, 0, fraction) for fraction in (0.1, 0.5)]
    for small, large in zip(deals[0].clients, deals[1].clients, strict=True):
        labels = [sorted([*client.y.tolist(), *client.y_test.tolist()]) for client in (small, large)]
        assert labels[0] == labels[1]


def test_mistakes_are_one_sentence() -> None:
    dataset = records([0] * 10, 1)
    with pytest.raises(UserError, match=r"'numbers' has no natural clients; use the partition iid, dirichlet:0.5"):
        federate(dataset, "natural", None, 0)
    with pytest.raises(UserError, match="'numbers' has no official test split; use test = \"own\""):
        federate(dataset, "iid", 2, 0, test="official")
    with pytest.raises(UserError, match="There is no test split 'offical'; did you mean 'official'"):
        federate(dataset, "iid", 2, 0, test="offical")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"test fraction must lie between 0 and 1, but 1\.0"):
        federate(dataset, "iid", 2, 0, 1.0)
    with pytest.raises(UserError, match="seed must be 0 or more, but -1"):
        federate(dataset, "iid", 2, -1)
    with pytest.raises(UserError, match="There is no partition 'idd'"):
        federate(dataset, "idd", 2, 0)


def test_a_client_without_training_data_is_named() -> None:
    owned = replace(records([0] * 4, 1, [False, False, True, True]), owner=np.array([0, 0, 0, 1]))
    owned = replace(owned, owner_names=("full", "bare"))
    with pytest.raises(UserError, match="The client 'bare' of 'numbers' has no training data"):
        federate(owned, "natural", None, 0)
    with pytest.raises(UserError, match="The client 'client-1' of 'numbers' has no training data"):
        federate(records([0] * 4, 2), "labels:50%", 2, 0)
