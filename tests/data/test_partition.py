from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.data.partition import NOBODY, deal, level, parse
from sordino.errors import UserError
from sordino.tasks import Classification

KINDS = ("iid", "dirichlet:0.1", "dirichlet:100", "shards:1", "shards:3", "labels:20%", "labels:100%")


def dealt(text: str, labels: np.ndarray, classes: int, clients: int, seed: int = 0) -> np.ndarray:
    return deal(parse(text), labels, Classification.numbered(classes), clients, np.random.default_rng(seed))


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    counts=st.lists(st.integers(0, 40), min_size=2, max_size=8).filter(lambda counts: sum(counts) >= 30),
    clients=st.integers(1, 10),
    seed=st.integers(0, 1000),
)
def test_each_record_goes_to_one_client_and_the_seed_decides(
    kind: str, counts: list[int], clients: int, seed: int
) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    client = dealt(kind, labels, len(counts), clients, seed)
    assert client.shape == labels.shape
    assert client.max() < clients
    assert np.array_equal(client, dealt(kind, labels, len(counts), clients, seed))
    if not kind.startswith("labels"):
        assert client.min() >= 0
        assert len(np.unique(client)) == clients
    elif kind == "labels:100%":
        assert client.min() >= 0


def test_another_seed_is_another_deal() -> None:
    labels = np.arange(200) % 10
    for kind in KINDS:
        assert not np.array_equal(dealt(kind, labels, 10, 10, 0), dealt(kind, labels, 10, 10, 1)), kind


def test_iid_sizes_differ_by_one_at_most() -> None:
    sizes = np.bincount(dealt("iid", np.zeros(103, np.int64), 1, 10))
    assert sorted(sizes) == [10] * 7 + [11] * 3


def test_shards_are_equal_pieces_of_the_sorted_labels() -> None:
    labels = np.tile(np.arange(4), 6)  # 24 records: 8 shards of 3, each of one label
    client = dealt("shards:2", labels, 4, 4)
    for number in range(4):
        counts = np.bincount(labels[client == number], minlength=4)
        assert counts.sum() == 6
        assert set(counts) <= {0, 3, 6}


def test_labels_holds_k_labels_and_splits_each_evenly() -> None:
    labels = np.repeat(np.arange(10), 50)
    client = dealt("labels:20%", labels, 10, 20)
    for number in range(20):
        held = np.unique(labels[client == number])
        assert len(held) == 2
        assert number % 10 in held
    for label in range(10):
        counts = np.bincount(client[labels == label], minlength=20)
        assert counts.sum() == 50
        assert np.ptp(counts[counts > 0]) <= 1


def test_labels_nobody_holds_stay_undealt() -> None:
    labels = np.repeat(np.arange(10), 5)
    client = dealt("labels:10%", labels, 10, 3)
    assert (client[labels < 3] == labels[labels < 3]).all()
    assert (client[labels >= 3] == NOBODY).all()


def test_a_large_alpha_gives_equal_shares_of_each_class_a_small_one_few_classes() -> None:
    labels = np.repeat(np.arange(10), 1000)
    even = dealt("dirichlet:1000000", labels, 10, 5)
    counts = np.stack([np.bincount(labels[even == number], minlength=10) for number in range(5)])
    assert abs(counts[:, :9] - 200).max() <= 2  # std of a share is .0002; five of them are one record
    skewed = dealt("dirichlet:0.05", labels, 10, 5)
    present = [(np.bincount(labels[skewed == number], minlength=10) > 100).sum() for number in range(5)]
    assert np.mean(present) < 5


def test_no_client_gets_more_of_a_class_once_it_has_its_fair_share() -> None:
    labels = np.repeat(np.arange(10), 100)
    client = dealt("dirichlet:0.3", labels, 10, 4)
    for number in range(4):
        counts = np.bincount(labels[client == number], minlength=10)
        before = np.cumsum(counts) - counts
        assert (counts[before >= 250] == 0).all()


@pytest.mark.parametrize("seed", range(5))
def test_a_tiny_alpha_gives_whole_classes_until_each_client_is_full(seed: int) -> None:
    labels = np.repeat(np.arange(10), 100)
    client = dealt("dirichlet:1e-9", labels, 10, 2, seed)
    for number in range(2):
        assert sorted(np.bincount(labels[client == number], minlength=10)) == [0] * 5 + [100] * 5


def test_classes_without_records_are_no_obstacle() -> None:
    labels = np.repeat([1, 2], 15)
    assert np.bincount(dealt("dirichlet:0.1", labels, 5, 1)).tolist() == [30]


def test_many_clients_with_few_records_all_get_enough() -> None:
    labels = np.arange(1797) % 10
    for alpha in ("0.001", "0.1", "1"):
        sizes = np.bincount(dealt(f"dirichlet:{alpha}", labels, 10, 100), minlength=100)
        assert sizes.min() >= 8  # half of the fair share of 17
        assert sizes.sum() == 1797
    assert np.bincount(dealt("dirichlet:0.01", labels, 10, 1797)).tolist() == [1] * 1797


def test_levelling_lowers_only_the_largest() -> None:
    client = np.repeat([0, 1, 2, 3], [10, 7, 3, 0])
    levelled = level(client, 4, 4, np.random.default_rng(0))
    # Five records are wanted (1 and 4): sizes 10 and 7 come down to 6 and 6.
    assert np.bincount(levelled).tolist() == [6, 6, 4, 4]
    assert (levelled[client == 2] == 2).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dirichlet:0", "'dirichlet:0' needs an alpha above 0"),
        ("dirichlet:-1", "needs an alpha above 0"),
        ("dirichlet:nan", "needs an alpha above 0"),
        ("dirichlet:inf", "needs an alpha above 0"),
        ("dirichlet", "'dirichlet' needs a number after the colon; write for example 'dirichlet:0.5'"),
        ("dirichlet:much", "needs a number after the colon"),
        ("shards:0", "needs a whole number of shards from 1"),
        ("shards:1.5", "needs a whole number of shards"),
        ("labels:0%", "needs a percentage above 0 and up to 100"),
        ("labels:101%", "needs a percentage above 0 and up to 100"),
        ("iid:3", "'iid' takes no number"),
        ("dirichelt:0.5", "There is no partition 'dirichelt'; did you mean 'dirichlet'"),
    ],
)
def test_a_wrong_partition_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(text)


def test_impossible_deals_are_refused() -> None:
    labels = np.zeros(5, np.int64)
    with pytest.raises(UserError, match=r"more clients \(6\) than records to deal \(5\)"):
        dealt("iid", labels, 1, 6)
    with pytest.raises(UserError, match="at least one client, but 0"):
        dealt("iid", labels, 1, 0)
    with pytest.raises(UserError, match="3 clients with 2 shards each need 6 records, but there are 5"):
        dealt("shards:2", labels, 1, 3)


@pytest.mark.parametrize("kind", ["iid", "dirichlet:0.5", "shards:2", "labels:20%"])
def test_a_hundred_thousand_clients_are_dealt(kind: str) -> None:
    """A deal whose work grows with clients times records would not end before the suite's time limit."""
    labels = np.random.default_rng(0).integers(0, 10, 400_000)
    sizes = np.bincount(dealt(kind, labels, 10, 100_000), minlength=100_000)
    assert sizes.min() > 0


def test_a_function_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def by_label(labels, clients, rng):\n    return labels % clients\n"
    (tmp_path / "my_splits.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    labels = np.array([0, 1, 2, 3, 4, 5])
    assert dealt("my_splits:by_label", labels, 6, 3).tolist() == [0, 1, 2, 0, 1, 2]
