from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from sordino.data import federate, load
from sordino.errors import UserError

CENTRES = ("cleveland", "hungarian", "switzerland", "va")


def row(age: float, pain: int, ecg: int, label: int, chol: str = "200") -> str:
    return f"{age},1,{pain},120,{chol},0,{ecg},150,0,1.5,?,?,?,{label}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "heart-disease").mkdir()
    for shift, centre in enumerate(CENTRES):
        rows = [row(40 + shift + k, 1 + k % 4, k % 3, k % 5 if shift != 2 else int(k > 0)) for k in range(20)]
        rows.insert(3, row(99, 1, 0, 0, chol="?"))
        (tmp_path / "heart-disease" / f"processed.{centre}.data").write_text("\n".join(rows) + "\n")
    return tmp_path


def test_preparation(folder: Path) -> None:
    data = load("heart-disease", folder)
    assert data.x.shape == (80, 13)  # 10 kept columns, of which 2 become 3 + 2 one-hot columns
    assert data.owner_names == CENTRES
    assert "normalised by each hospital's own mean" in data.disclosed[0]
    assert "test records were chosen by labels" in data.disclosed[0]
    assert data.owner is not None
    assert data.test is not None
    assert np.bincount(data.owner).tolist() == [20] * 4  # the row with a missing value is gone
    assert data.y[data.owner == 0].tolist() == [int(k % 5 > 0) for k in range(20)]
    assert data.y[data.owner == 2].tolist() == [0] + [1] * 19
    for centre in range(4):
        rows = data.owner == centre
        assert (data.test & rows).sum() == 7  # ceil(.34 * 20)
        train = data.x[rows & ~data.test]
        assert train.mean(0).abs().max() < 1e-5
        varying = train.std(0) > 0
        assert varying.tolist() == [True] + [False] * 7 + [True] * 5
        assert train.std(0)[varying].numpy() == pytest.approx(1, abs=1e-5)


def test_the_split_is_flambys(folder: Path) -> None:
    data = load("heart-disease", folder)
    assert data.test is not None
    labels = [int(k % 5 > 0) for k in range(20)]
    # Switzerland has one healthy patient, too few to stratify by.
    for centre, stratify in ((0, labels), (2, None)):
        rows = np.arange(20)
        _, test = train_test_split(rows, train_size=0.66, test_size=0.34, random_state=43, stratify=stratify)
        assert np.flatnonzero(data.test[data.owner == centre]).tolist() == sorted(test)


def test_one_hot_columns_leave_out_the_first_value(folder: Path) -> None:
    data = load("heart-disease", folder)
    # Row k has chest pain 1 + k % 4 and ECG k % 3; row 0 has the first values, so its columns are lowest.
    first_centre = data.x[:20]
    assert (first_centre[0, 8:] == first_centre[:, 8:].min(0).values).all()
    assert first_centre[5, 8] == first_centre[:, 8].max()  # pain 2
    assert first_centre[5, 12] == first_centre[:, 12].max()  # ECG 2


def test_natural_clients_are_the_hospitals(folder: Path) -> None:
    data = federate(load("heart-disease", folder), None, None, seed=0)
    assert [client.name for client in data.clients] == list(CENTRES)
    assert [len(client.y) for client in data.clients] == [13] * 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,3\n", "line 1 has 3 values, not 14"),
        (row(1, 1, 1, 1).replace("150", "fast") + "\n", "it is not a table of numbers"),
        (row(1, 1, 1, 1) + "\n", "it has fewer than 4 complete rows"),
        (3 * (row(1, 1, 1, 1) + "\n"), "it has fewer than 4 complete rows"),  # one row for training has no deviation
        (4 * (row(1, 1, 1, 1).replace("150", "nan") + "\n"), "a value is no number from -1,000,000 to 1,000,000"),
        (4 * (row(1, 1, 1, 1).replace("150", "1e39") + "\n"), "a value is no number from -1,000,000 to 1,000,000"),
        ("x" * 200_000 + "\n", "it is not a table of numbers .field larger than field limit"),
    ],
)
def test_a_broken_file_is_named(folder: Path, text: str, message: str) -> None:
    (folder / "heart-disease" / "processed.va.data").write_text(text)
    with pytest.raises(UserError, match=rf"processed.va.data is damaged: {message}"):
        load("heart-disease", folder)
