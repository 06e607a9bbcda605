from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sordino.data import federate, load
from sordino.errors import UserError


def write_leaf(path: Path, users: dict[str, list[int]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {name: {"x": [[label / 100] * 784 for label in labels], "y": labels} for name, labels in users.items()}
    path.write_text(json.dumps({"users": list(users), "num_samples": [], "user_data": data}))


@pytest.fixture
def leaf(tmp_path: Path) -> Path:
    write_leaf(tmp_path / "femnist" / "train" / "all_0.json", {"anna": [5, 6], "bert": [7]})
    write_leaf(tmp_path / "femnist" / "train" / "all_1.json", {"carl": [61]})
    write_leaf(tmp_path / "femnist" / "test" / "all_0.json", {"anna": [8], "carl": [9]})
    return tmp_path


def write_archive(folder: Path, **changes: np.ndarray) -> None:
    arrays = {
        "X": np.arange(4 * 784).reshape(4, 28, 28).astype(np.uint8),
        "y": np.array([1, 2, 61, 0], np.uint8),
        "writer": np.array([0, 0, 1, 1], np.int16),
        "is_test": np.array([False, True, False, True]),
        "writer_ids": np.array(["f1", "f2"]),
    }
    (folder / "femnist").mkdir(exist_ok=True)
    np.savez(folder / "femnist" / "femnist.npz", **{**arrays, **changes})


def test_leaf_files_make_one_client_per_writer(leaf: Path) -> None:
    data = federate(load("femnist", leaf), None, None, seed=0)
    assert [client.name for client in data.clients] == ["anna", "bert", "carl"]
    assert [client.y.tolist() for client in data.clients] == [[5, 6], [7], [61]]
    assert [client.y_test.tolist() for client in data.clients] == [[8], [], [9]]
    assert data.shape == (1, 28, 28)
    assert data.clients[2].x[0, 0, 13, 3].item() == pytest.approx((1 - 0.61 - 0.0363) / 0.1592, abs=1e-5)


def test_a_number_of_clients_takes_the_first_writers_with_both_splits(leaf: Path) -> None:
    data = federate(load("femnist", leaf), "natural", 2, seed=0)
    assert [client.name for client in data.clients] == ["anna", "carl"]
    assert [client.y.tolist() for client in data.clients] == [[5, 6], [61]]


def test_too_many_writers_are_refused(leaf: Path) -> None:
    with pytest.raises(UserError, match="3 clients were asked for, but 'femnist' has 2 owners with both"):
        federate(load("femnist", leaf), "natural", 3, seed=0)


def test_ink_is_bright_and_paper_dark(tmp_path: Path) -> None:
    write_archive(tmp_path)
    data = load("femnist", tmp_path)
    assert data.owner_names == ("f1", "f2")
    assert data.x[0, 0, 0, 3].item() == pytest.approx((1 - 3 / 255 - 0.0363) / 0.1592, abs=1e-5)
    assert data.x[0, 0, 255 // 28, 255 % 28].item() == pytest.approx(-0.0363 / 0.1592)  # paper is stored as 255
    assert data.y.tolist() == [1, 2, 61, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"X": np.zeros((4, 28, 27))}, "do not all describe 4 images"),
        ({"writer": np.array([0, 0, 1, 2])}, r"a writer lies outside 0\.\.1"),
        ({"y": np.array([0, 0, 0, 62])}, r"a label lies outside 0\.\.61"),
    ],
)
def test_an_inconsistent_archive_is_refused(tmp_path: Path, changes: dict[str, np.ndarray], message: str) -> None:
    write_archive(tmp_path, **changes)
    with pytest.raises(UserError, match=rf"femnist.npz is damaged: .*{message}"):
        load("femnist", tmp_path)


def test_broken_files_are_named(leaf: Path) -> None:
    path = leaf / "femnist" / "train" / "all_1.json"
    path.write_text('{"users": ["carl"]')
    with pytest.raises(UserError, match=r"all_1.json is damaged: it is not a LEAF file"):
        load("femnist", leaf)
    path.write_text(json.dumps({"users": ["carl"], "user_data": {"carl": {"x": [[0] * 784], "y": [1, 2]}}}))
    with pytest.raises(UserError, match=r"all_1.json is damaged: writer carl has 1 images and 2 labels"):
        load("femnist", leaf)
    (leaf / "femnist" / "femnist.npz").write_bytes(b"not a zip")
    with pytest.raises(UserError, match=r"femnist.npz is damaged: it is not a readable .npz file"):
        load("femnist", leaf)
    np.savez(leaf / "femnist" / "femnist.npz", X=np.zeros(1))
    with pytest.raises(UserError, match=r"femnist.npz is damaged: the array y is not in it"):
        load("femnist", leaf)
