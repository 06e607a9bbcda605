"""Records that Python hands over, partitions with least sizes, and clients of different sizes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

import sordino
from sordino import UserError
from sordino.data.handed import take
from sordino.data.partition import deal, parse
from sordino.tasks import Classification

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
KEYS: dict[str, Any] = {"method": "dp-fedavg", "rounds": 2, "workers": 1, "labels": [0, 1]}


class Columns:
    """A data set with named columns, as Hugging Face's `datasets.Dataset` looks from outside."""

    def __init__(self, names: list[str] | None = None, **columns: Any) -> None:
        self.column_names = list(columns)
        self.features = {"label": SimpleNamespace(names=names)}
        self._columns = columns

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]


def test_clients_arrays_are_those_of_files(tmp_path: Path) -> None:
    """The same records as files give the same accuracies; the store keeps one copy of them."""
    clients = {"b": (X[:30], Y[:30]), "a": (torch.from_numpy(X[30:]), Y[30:].tolist())}
    given = sordino.run(data=clients, store=tmp_path / "one", **KEYS)
    again = sordino.run(data=clients, store=tmp_path / "one", **KEYS)
    (folder,) = (tmp_path / "one" / "data").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["a.npz", "b.npz"]
    (tmp_path / "files").mkdir()
    for name, (x, y) in clients.items():
        np.savez(tmp_path / "files" / f"{name}.npz", x=np.asarray(x), y=np.asarray(y))
    files = sordino.run(data=str(tmp_path / "files"), store=tmp_path / "two", **KEYS)
    assert given["accuracy"] == again["accuracy"] == files["accuracy"]
    assert given["clients"] == 2
    assert sordino.load_models(given["run"], tmp_path / "one").about.clients == ("a", "b")


def test_a_stopped_run_finds_its_records(tmp_path: Path) -> None:
    def stop(report: sordino.RoundReport) -> None:
        raise KeyboardInterrupt

    whole = sordino.run(data={"a": (X, Y), "b": (-X, 1 - Y)}, store=tmp_path / "whole", **KEYS)
    with pytest.raises(KeyboardInterrupt):
        sordino.run(data={"a": (X, Y), "b": (-X, 1 - Y)}, store=tmp_path / "cut", watch=stop, **KEYS)
    assert sordino.resume("dp-fedavg-" + _digest(tmp_path / "cut"), tmp_path / "cut")["accuracy"] == whole["accuracy"]


def _digest(store: Path) -> str:
    (run,) = (path.name for path in (store / "runs").iterdir())
    return run.removeprefix("dp-fedavg-")


def test_records_of_nobody_are_dealt(tmp_path: Path) -> None:
    keys = KEYS | {"clients": 5, "partition": "quantity:1,min=4"}
    arrays = sordino.run(data=(X, Y), store=tmp_path, **keys)
    pairs = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    torch_like = sordino.run(data=pairs, store=tmp_path, **keys)
    assert arrays["accuracy"] == torch_like["accuracy"]
    assert arrays["clients"] == 5
    study = sordino.compare(data=pairs, methods=["local"], seeds=1, store=tmp_path, **KEYS | {"clients": 3})
    assert study.rows[0]["seeds"] == 1


def test_columns_become_records() -> None:
    images = [np.full((6, 5, 3), 255, np.uint8), np.zeros((6, 5, 3), np.uint8)]
    handed = take(Columns(["cat", "dog"], image=images, label=[1, 0]))
    assert handed.clients["everybody"]["x"].shape == (2, 3, 6, 5)
    assert handed.clients["everybody"]["x"][0].max() == 1
    assert handed.names == ("0", "1")
    table = take({"north": Columns(age=[1, 2], dose=[0.5, 1.5], label=[0, 1])})
    assert table.clients["north"]["x"].tolist() == [[1, 0.5], [2, 1.5]]
    assert table.owned
    split = {"train": Columns(input_ids=[[1, 2], [3, 4]], text=["a", "b"], label=[0, 1])}
    split["test"] = Columns(input_ids=[[5, 6]], text=["c"], label=[1])
    found = take(split).clients["everybody"]
    assert found["x"].tolist() == [[1, 2], [3, 4]]
    assert found["x_test"].tolist() == [[5, 6]]


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        yield X[0], Y[0]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({}, "data is an empty dictionary"),
        (X, "data is one ndarray without targets beside it"),
        (7, "data is of type int: data is the name of a data set"),
        ((X, Y[:5]), "x of data has shape (60, 4) and y has 5 targets"),
        ({"a": (X, Y), "b": (X, Y, X)}, "client 'b' is of type tuple"),
        ({"a/b": (X, Y)}, "The client 'a/b' in data needs another name"),
        ({1: (X, Y), "1": (X, Y)}, "Two clients in data have one name"),
        (([["a", "b"]], [0]), "x of data holds <U1 values, not numbers"),
        (([[1, 2], [3]], [0, 1]), "x of data "),
        (Stream(), "data is a stream without a length"),
        ([X[0], X[1], X[2]], "data is of type list"),
        (Columns(text=["a", "b"], label=[0, 1]), "turn texts into token ids first"),
        (Columns(x=[[1], [2]], target=[0, 1]), "data has no column 'label' for the label; its columns are: x, target"),
        (Columns(x=[[1], [2, 3]], label=[0, 1]), "have different shapes, (1,) and (2,)"),
        (TensorDataset(torch.zeros(3, 2)), "Item 0 of data is no pair"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_what_cannot_be_taken_is_told(data: Any, sentence: str) -> None:
    with pytest.raises(UserError) as told:
        take(data)
    assert sentence in str(told.value)


def test_records_that_belong_to_nobody_need_a_deal(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="belong to no client yet"):
        sordino.run(data=(X, Y), partition="natural", store=tmp_path, **KEYS)
    with pytest.raises(UserError, match="have clients already"):
        sordino.partition({"a": (X, Y)})


def test_partition_hands_every_record_over_once() -> None:
    found = sordino.partition((X, Y), "dirichlet:0.3,min=5", clients=6, seed=3)
    assert sorted(map(tuple, np.concatenate([x for x, _ in found.values()]).tolist())) == sorted(map(tuple, X.tolist()))
    assert min(len(y) for _, y in found.values()) >= 5
    for x, y in found.values():
        assert ((x[:, 0] > 0) == y).all()


@pytest.mark.parametrize("rule", ["iid", "dirichlet:0.05", "quantity:0.05"])
def test_every_client_has_the_least_number(rule: str) -> None:
    labels = np.arange(400) % 10
    dealt = deal(parse(f"{rule},min=15"), labels, Classification.numbered(10), 20, np.random.default_rng(0))
    sizes = np.bincount(dealt, minlength=20)
    assert sizes.min() >= 15
    assert sizes.sum() == 400


def test_quantity_skew_is_in_sizes_alone() -> None:
    """Sizes follow Dirichlet(1) over ten clients: their squared shares add up to 2 / 11 in the mean, of which 200 deals
    are within 0.02 (ten deviations); labels are those of all records."""
    labels = np.arange(2000) % 2
    squares, first = [], []
    for seed in range(200):
        dealt = deal(parse("quantity:1"), labels, Classification.numbered(2), 10, np.random.default_rng(seed))
        sizes = np.bincount(dealt, minlength=10)
        squares.append(((sizes / 2000) ** 2).sum())
        largest = labels[dealt == sizes.argmax()]
        first.append(largest.mean())
    assert np.mean(squares) == pytest.approx(2 / 11, abs=0.02)
    assert np.mean(first) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ("dirichlet:0.5,least=3", "behind the comma; write for example ',min=20'"),
        ("shards:2,min=3", "iid, dirichlet, quantity can"),
        ("quantity:0", "needs an alpha above 0"),
        ("iid,min=0", "behind the comma"),
    ],
)
def test_wrong_rules_are_refused(rule: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        parse(rule)


def test_too_large_a_minimum_is_refused() -> None:
    with pytest.raises(UserError, match="need 100 records, but there are 60"):
        sordino.partition((X, Y), "iid,min=20", clients=5)


def test_arrays_by_name_may_name_persons(tmp_path: Path) -> None:
    """Three codes for each ten records: the run protects persons, of whom fewer are trained on than records."""
    codes = np.arange(30) // 3
    clients = {
        name: {"x": X[at : at + 30], "y": Y[at : at + 30], "person": codes} for name, at in (("a", 0), ("b", 30))
    }
    keys = KEYS | {"method": "dp-fedsgd", "person": "person"}
    found = sordino.run(data=clients, store=tmp_path, **keys)
    assert found["unit"] == "person"
    assert sorted(take(clients).clients["a"]) == ["person", "x", "y"]


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": X, "label": Y}, "no array of client 'a' named 'label'; known are"),
        ({"x": X}, "client 'a' needs the arrays 'x' and 'y'; it has: x."),
        ({"x": X, "y": Y, "person": Y[:3]}, "person of client 'a' must have one code for each record of x"),
        ({"x": X, "y": Y, "x_test": X}, "client 'a' has only one of x_test and y_test"),
    ],
)
def test_wrong_arrays_by_name_are_refused(arrays: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        take({"a": arrays})


def test_a_folder_may_be_a_path(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    np.savez(tmp_path / "files" / "a.npz", x=X, y=Y)
    found = sordino.run(data=tmp_path / "files", store=tmp_path / "store", **KEYS)
    assert found["clients"] == 1
    with pytest.raises(UserError, match="drop cannot be 'age': write a list in brackets"):
        sordino.run(data=tmp_path / "files", drop="age")


def test_arrays_with_large_numbers_are_told(tmp_path: Path) -> None:
    """Columns of tables are scaled by their ranges; arrays are taken as they stand."""
    large = X.copy()
    large[7, 2] = -101
    found = sordino.run(data={"a": (large, Y)}, store=tmp_path, **KEYS)
    assert any(note.startswith("Not scaled: x[:, 2] (beyond 100,") for note in found["not_covered"])
    small = sordino.run(data={"a": (X, Y)}, store=tmp_path, **KEYS)
    assert not any("Not scaled" in note for note in small["not_covered"])
