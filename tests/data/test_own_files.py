from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import sordino
from sordino.data import federate, load
from sordino.errors import UserError


def write(folder: Path, **files: str) -> Path:
    for stem, text in files.items():
        (folder / f"{stem}.csv").write_text(text)
    return folder


def write_parquet(path: Path, columns: dict[str, list[object]]) -> None:
    parquet.write_table(pyarrow.table(columns), path)


def test_csv_files_are_clients(tmp_path: Path) -> None:
    write(tmp_path, berlin="a,label,b\n1,yes,2\n3,no,4\n", athens="b,a,label\n6,5,no\n8,7,maybe\n")
    (tmp_path / "README.md").write_text("not a client")
    (tmp_path / ".hidden.csv").write_text("not a client")
    data = load(str(tmp_path))
    assert data.name == tmp_path.name
    assert data.owner_names == ("athens", "berlin")
    assert data.owner is not None
    assert data.owner.tolist() == [0, 0, 1, 1]
    # Columns in the order of the first file (athens): b, a. Labels sorted: maybe, no, yes.
    assert data.x.tolist() == [[6, 5], [8, 7], [2, 1], [4, 3]]
    assert data.y.tolist() == [1, 0, 2, 1]
    assert data.task.width == 3
    assert [client.name for client in federate(data, None, None, 0).clients] == ["athens", "berlin"]


def test_whole_number_labels_are_sorted_by_value_in_every_kind_of_file(tmp_path: Path) -> None:
    write(tmp_path, one="label,a\n10,0\n9,0\n")
    write_parquet(tmp_path / "three.parquet", {"a": [1, 2], "label": [9.0, 100.0]})
    np.savez(tmp_path / "two.npz", x=np.zeros((2, 1)), y=np.array([-1, 10]))
    data = load(str(tmp_path))
    assert data.owner_names == ("one", "three", "two")
    assert data.y.tolist() == [2, 1, 1, 3, 0, 2]  # -1, 9, 10, 100


def test_parquet_files_and_a_named_label_column(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", {"x1": [1, 2], "sick": ["n", "y"], "x2": [0.5, 0.25]})
    data = load(str(tmp_path), label="sick")
    assert data.x.tolist() == [[1, 0.5], [2, 0.25]]
    assert data.y.tolist() == [0, 1]


def test_arrays_keep_their_shape_and_their_test_split(tmp_path: Path) -> None:
    x = np.arange(24, dtype=np.float64).reshape(2, 3, 4)
    np.savez(tmp_path / "a.npz", x=x, y=[0, 1], x_test=x[:1] + 100, y_test=[2])
    np.savez(tmp_path / "b.npz", x=x, y=[1, 1], x_test=x[:0], y_test=np.array([], int))
    data = load(str(tmp_path))
    assert data.x.shape == (5, 3, 4)
    assert data.test is not None
    assert data.test.tolist() == [False, False, True, False, False]
    clients = federate(data, None, None, 0).clients
    assert clients[0].x_test[0, 0, 0] == 100
    assert [len(client.y_test) for client in clients] == [1, 0]


def test_rows_become_images(tmp_path: Path) -> None:
    write(tmp_path, a="label,p,q,r,s\n0,1,2,3,4\n")
    assert load(str(tmp_path), shape=(1, 2, 2)).x.tolist() == [[[[1, 2], [3, 4]]]]
    with pytest.raises(UserError, match=r"have 4 features, which do not fill the shape \(1, 3, 3\)"):
        load(str(tmp_path), shape=(1, 3, 3))


def test_small_numbers_are_as_given(tmp_path: Path) -> None:
    write(tmp_path, a="label,v\n0,10\n1,-1e-3\n")
    data = load(str(tmp_path))
    assert data.x.flatten().tolist() == pytest.approx([10, -1e-3])
    assert not any("What the schema says" in sentence and "v" in sentence.split() for sentence in data.disclosed)
    assert any("numbers beyond 10, by whose range they are scaled (none)" in sentence for sentence in data.disclosed)


def test_large_numbers_are_scaled_by_the_range_that_was_read_which_is_told(tmp_path: Path) -> None:
    """80 to 197 is read as 0 to 200, which becomes -3 to 3, and for up to ten numbers, as here, -1.5 to 1.5."""
    write(tmp_path, a="label,pressure,same\n0,80,50\n1,197,50\n", b="label,pressure,same\n0,110,50\n1,170,50\n")
    data = load(str(tmp_path))
    assert data.x[:, 0].tolist() == pytest.approx([-0.3, 1.455, 0.15, 1.05])
    assert data.x[:, 1].tolist() == [50.0] * 4, "a number that never differs has no range"
    assert any("read from the clients' records: label, pressure." in sentence for sentence in data.disclosed)
    assert any("they are scaled (pressure, and no others)" in sentence for sentence in data.disclosed)


def test_pixels_are_not_scaled_one_by_one(tmp_path: Path) -> None:
    write(tmp_path, a="label,p,q,r,s\n0,1,200,3,4\n1,100,2,3,4\n")
    assert load(str(tmp_path), shape=(1, 2, 2)).x[0].tolist() == [[[1, 200], [3, 4]]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("labels,a,b\n0,1,2\n", r"a.csv has no column 'label' for the label; its columns are: labels, "),
        ("label,a\n0,1\n1,tall\n", r"The column 'a' of .*a.csv is not numeric .*'tall'"),
        ("label,a\n0,1\n1,\n", r"The column 'a' of .*a.csv has a missing value \(NaN\)"),
        ("label,a\n0,1\n1,nan\n", r"The column 'a' of .*a.csv has a missing value \(NaN\)"),
        ("label,a\n0,inf\n", r"The column 'a' of .*a.csv has an infinite value"),
        ("label,a\n0,1e300\n", r"The column 'a' of .*a.csv has an infinite value"),
        ("label,a\n,1\n", r"a.csv has a missing value in its label column 'label'"),
        ("label,a\nnan,1\n", r"a.csv has a missing value in its label column 'label'"),
        ("label,a\n0,1,2\n", r"a.csv is damaged: line 2 has 3 values for 2 columns"),
        ('label,a\n0,"1\n', r"a.csv is damaged: it is not a CSV text"),
        ("label,a,a\n0,1,2\n", r"a.csv has two columns 'a'"),
        ("label\n0\n", r"a.csv has no column besides the label 'label'"),
        ("label;a\n0;1,5\n", r"a.csv seems to have ';' between its cells, not ','"),
        ("", r"a.csv is empty; its first line must name the columns"),
    ],
)
def test_a_wrong_csv_is_one_sentence_with_the_file(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path, a=text)
    with pytest.raises(UserError, match=message):
        load(str(tmp_path))


def test_a_wrong_parquet_file_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 nonsense")
    with pytest.raises(UserError, match=r"a.parquet is damaged: it is not a readable Parquet file"):
        load(str(tmp_path))
    write_parquet(path, {"label": [0, 1], "height": [1.0, None]})
    with pytest.raises(UserError, match=r"The column 'height' of .*a.parquet has a missing value"):
        load(str(tmp_path))
    write_parquet(path, {"label": [0], "city": ["Rome"]})
    with pytest.raises(UserError, match=r"The column 'city' of .*a.parquet is not numeric"):
        load(str(tmp_path))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"needs pyarrow; install it with: pip install \"sordino\[data\]\""):
        load(str(tmp_path))


ONE = np.ones((2, 3))
WRONG_ARRAYS = {
    "no y": ({"x": ONE}, "has no array 'y'; its arrays are: x"),
    "half a test": ({"x": ONE, "y": [0, 1], "x_test": ONE}, "only one of x_test and y_test"),
    "lengths": ({"x": ONE, "y": [0]}, r"x of shape \(2, 3\) and 1 labels in y"),
    "flat": ({"x": np.ones(2), "y": [0, 1]}, r"x of shape \(2,\) and 2 labels"),
    "other test shape": (
        {"x": ONE, "y": [0, 1], "x_test": np.ones((1, 4)), "y_test": [0]},
        "another shape in x_test than in x",
    ),
    "nan": ({"x": ONE * np.nan, "y": [0, 1]}, r"The array 'x' of .*a.npz has a missing value"),
    "objects": ({"x": np.array([[None], [None]]), "y": [0, 1]}, "is damaged: it is not a readable .npz file"),
}


@pytest.mark.parametrize("kind", WRONG_ARRAYS)
def test_wrong_arrays_are_one_sentence(tmp_path: Path, kind: str) -> None:
    arrays, message = WRONG_ARRAYS[kind]
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=message):
        load(str(tmp_path))


def test_files_must_agree(tmp_path: Path) -> None:
    write(tmp_path, a="label,p\n0,1\n", b="label,q\n0,1\n")
    with pytest.raises(UserError, match=r"a.csv and .*b.csv do not have the same columns: 'p', 'q' are in one of them"):
        load(str(tmp_path))
    (tmp_path / "b.csv").unlink()
    np.savez(tmp_path / "b.npz", x=np.ones((1, 2)), y=[0])
    with pytest.raises(UserError, match=r"b.npz have shape \(2,\), those of .*a.csv \(1,\)"):
        load(str(tmp_path))
    np.savez(tmp_path / "b.npz", x=np.ones((1, 1)), y=[0], x_test=np.ones((1, 1)), y_test=[0])
    with pytest.raises(UserError, match=r"a.csv has no x_test and y_test, but others have"):
        load(str(tmp_path))
    write(tmp_path, b="label,p\n0,1\n")
    with pytest.raises(UserError, match=r"named after the client 'b': b.csv and b.npz; keep one"):
        load(str(tmp_path))


def test_no_folder_and_no_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no folder .*nowhere; name a folder with one CSV"):
        load(str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"holds no .csv, .parquet, .npz file; put one file per client"):
        load(str(tmp_path))


def test_an_empty_client_is_named_when_clients_are_made(tmp_path: Path) -> None:
    write(tmp_path, a="label,p\n0,1\n", b="label,p\n")
    with pytest.raises(UserError, match=r"The client 'b' .* has no training data"):
        federate(load(str(tmp_path)), None, None, 0)


def test_a_folder_is_found_by_its_bare_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hospitals").mkdir()
    write(tmp_path / "hospitals", a="label,p\n0,1\n")
    monkeypatch.chdir(tmp_path)
    assert load("hospitals").owner_names == ("a",)


DECLARED = {"one": "label,a\nno,0\nyes,1\n", "two": "label,a\nyes,2\nno,3\n"}


def test_declared_labels_give_order_and_number_of_classes(tmp_path: Path) -> None:
    write(tmp_path, **DECLARED)
    data = load(str(tmp_path), labels=("yes", "maybe", "no"))
    assert data.y.tolist() == [2, 0, 0, 2]
    assert data.task.width == 3, "a label that nobody has counts too"
    assert [sentence[:34] for sentence in data.disclosed] == ["Which columns have numbers beyond "]
    undeclared = load(str(tmp_path))
    assert undeclared.task.width == 2
    assert "read from the clients' data" in undeclared.disclosed[0]


def test_the_same_people_are_known_whatever_their_labels_are_called(tmp_path: Path) -> None:
    write(tmp_path, **DECLARED)
    assert load(str(tmp_path)).people == load(str(tmp_path), labels=("yes", "no")).people
    before = load(str(tmp_path)).people
    (tmp_path / "two.csv").write_text("label,a\nyes,2\nno,4\n")
    assert load(str(tmp_path)).people != before


def test_whole_numbers_can_be_declared(tmp_path: Path) -> None:
    write(tmp_path, one="label,a\n7,0\n3,1\n")
    assert load(str(tmp_path), labels=(3, 5, 7)).y.tolist() == [2, 0]


def test_a_label_that_is_not_declared_is_refused(tmp_path: Path) -> None:
    write(tmp_path, **DECLARED)
    with pytest.raises(UserError, match=r"one.csv has a record with the label 'no', which `labels` lacks"):
        load(str(tmp_path), labels=("yes", "maybe"))
    for wrong in (("yes",), ("yes", "no", "yes")):
        with pytest.raises(UserError, match="declare at least two, each once"):
            load(str(tmp_path), labels=wrong)
    with pytest.raises(UserError, match="'labels' was given for the known data set 'digits'"):
        load("digits", labels=(0, 1))


def test_a_run_says_when_labels_were_read_from_the_data(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    random = np.random.default_rng(0)
    for name in "ab":
        np.savez(tmp_path / "own" / f"{name}.npz", x=random.normal(size=(20, 3)), y=np.arange(20) % 2)
    keys = {"data": str(tmp_path / "own"), "method": "dp-fedavg", "rounds": 1, "workers": 1, "store": tmp_path}
    undeclared = sordino.run(**keys)
    assert any("Declare them with the key `labels`" in sentence for sentence in undeclared["not_covered"])
    declared = sordino.run(**keys, labels=["0", "1", "2"])
    assert declared["not_covered"] == []
    assert declared["parameters"] > undeclared["parameters"], "the model's width follows from the declaration"
