"""Damaged, foreign and malicious data files: each is refused in one sentence, or read."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from data_makers import records, write_idx
from published import WRITERS, written
from pyarrow import parquet
from scipy.io import savemat

from sordino.data import catalogue, federate, formats, load, summary
from sordino.data.selection import fewer
from sordino.errors import UserError

FILES = (*WRITERS, "heart-disease", "mnist.gz", "cifar10.tar.gz", "own.csv", "own.parquet", "own.npz")
WORDS = (
    "nan",
    "-inf",
    "1e400",
    "-1",
    "",
    "?",
    '"',
    "\n",
    ",",
    "\0",
    "1e39",
    "9" * 5000,
    "null",
    "[",
    "{}",
    "٣",
    "\u2028",
)


def small(kind: str, folder: Path) -> str:
    """Undamaged files of one kind in a folder; returns what to load."""
    if kind.startswith("own."):
        mine = folder / "mine"
        mine.mkdir(parents=True)
        for client in "ab":
            columns = {"label": [0, 1, 2, 0], "u": [0.5, 1.5, -2.0, 1e3], "v": [1, 2, 3, 4]}
            if kind == "own.csv":
                rows = [columns, *zip(*columns.values(), strict=True)]
                (mine / f"{client}.csv").write_text("\n".join(",".join(map(str, row)) for row in rows) + "\n")
            elif kind == "own.parquet":
                parquet.write_table(pyarrow.table(columns), mine / f"{client}.parquet")
            else:
                np.savez_compressed(mine / f"{client}.npz", x=np.ones((4, 3)), y=np.arange(4))
        return str(mine)
    if kind == "mnist.gz":
        write_idx(folder / "mnist", "", "t10k", compress=True)
        return "mnist"
    if kind == "cifar10.tar.gz":
        pack_cifar(folder / "cifar10", tarfile.REGTYPE)
        return "cifar10"
    return written(kind, folder, most=12)


def pack_cifar(folder: Path, last: bytes) -> None:
    """CIFAR-10's archive with one record in each batch; `last` is the type of the last member."""
    folder.mkdir(parents=True)
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.type = last if name == names[-1] else tarfile.REGTYPE
            member.linkname = "nowhere"
            member.size = 3073 if member.isreg() else 0
            archive.addfile(member, io.BytesIO(bytes(3073)))


def damaged(contents: bytes, text: bool, chance: random.Random) -> bytes:
    """A file's contents after one accident: cut, overwritten, grown, shortened, emptied, or a foreign word in it."""
    place, way = chance.randrange(len(contents)), chance.randrange(8 if text else 6)
    if way == 0:
        return contents[:place]
    if way == 1:
        return contents[:place] + chance.randbytes(chance.randrange(1, 40)) + contents[place:]
    if way == 2:
        return contents[:place] + contents[place + chance.randrange(1, 200) :]
    if way == 3:
        return chance.choice([b"", b"\0", b"\n", b"{}", b"[]", chance.randbytes(100), bytes(len(contents))])
    if way < 6:
        changed = bytearray(contents)
        near = min(len(contents), 200) if way == 4 else len(contents)  # headers stand at the ends
        for _ in range(chance.choice([1, 2, 5])):
            changed[chance.choice([1, -1]) * chance.randrange(near)] = chance.choice(
                [0, 1, 127, 255, chance.randrange(256)]
            )
        return bytes(changed)
    parts = contents.decode().split(",")
    parts[chance.randrange(min(len(parts), 2000))] = chance.choice(WORDS)
    return ",".join(parts).encode()


def problem(name: str, data_dir: Path) -> str:
    """What is said of the data; "" when they are read and dealt, with finite inputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            dataset = load(name, data_dir)
            data = federate(dataset, None, 10 if dataset.owner is None else None, 0)
        except UserError as error:
            return str(error)
    summary(data)
    assert data.train.x.isfinite().all()
    return ""


def check_damage(kind: str, folder: Path, trials: int) -> None:
    """Damage one file of a kind after the other, each once, and put it back."""
    name = small(kind, folder)
    chance = random.Random(kind)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for _ in range(trials):
        path = chance.choice(files)
        contents = path.read_bytes()
        path.write_bytes(damaged(contents, path.suffix in (".csv", ".json", ".data"), chance))
        said = problem(name, folder)
        assert all(line.isprintable() and len(line) < 1000 for line in said.splitlines())
        assert len(said.splitlines()) in (0, 1, 3), "one problem, or a list of two"
        path.write_bytes(contents)


@pytest.mark.parametrize("kind", FILES)
def test_damage_is_told_in_one_sentence(tmp_path: Path, kind: str) -> None:
    check_damage(kind, tmp_path, trials=10)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILES)
def test_much_damage_is_told_in_one_sentence(tmp_path: Path, kind: str) -> None:
    check_damage(kind, tmp_path, trials=250)


def refused(name: str, data_dir: Path, message: str) -> None:
    """Loading fails with that message, and without a warning before it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserError, match=message) as caught:
            load(name, data_dir)
    assert str(caught.value).isprintable()


def array_bytes(header: str) -> bytes:
    """An .npy file with that header and no data."""
    return b"\x93NUMPY\x01\x00" + (len(header) + 1).to_bytes(2, "little") + header.encode() + b"\n"


def test_an_archive_of_a_foreign_zip_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.ones((2, 3)), y=[0, 1])
    contents = bytearray(path.read_bytes())
    contents[contents.rindex(b"PK\x01\x02") + 6] = 128  # the version needed to extract: 12.8
    path.write_bytes(contents)
    refused(str(tmp_path), tmp_path, r"a.npz is damaged: it is not a readable .npz file .*zip file version 12.8")


@pytest.mark.parametrize(
    ("member", "contents", "message"),
    [
        ("x", b"plain bytes", r"not a readable .npz file of plain arrays \(x is no array\)"),
        ("x.npy", array_bytes("{'descr': (((,"), "not a readable .npz file"),
        (
            "x.npy",
            array_bytes("{'descr': '<f8', 'fortran_order': False, 'shape': (4611686018427387, 99)}"),
            "a.npz (announces more than fits into memory|is damaged: it is not a readable .npz file)",
        ),
    ],
)
def test_foreign_members_of_an_archive_are_refused(tmp_path: Path, member: str, contents: bytes, message: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr(member, contents)
    refused(str(tmp_path), tmp_path, message)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.ones((2, 3), complex), r"The array 'x' of .*a.npz is not numeric \(its type is complex128\)"),
        (np.zeros((2, 3), "M8[s]"), r"is not numeric \(its type is datetime64\[s\]\)"),
        (np.zeros((2, 0)), r"x of shape \(2, 0\) and 2 labels"),
        (np.full((2, 3), np.longdouble(10) ** 400), "has an infinite value"),
    ],
)
def test_features_that_are_no_real_numbers_are_refused(tmp_path: Path, x: np.ndarray, message: str) -> None:
    np.savez(tmp_path / "a.npz", x=x, y=[0, 1])
    refused(str(tmp_path), tmp_path, message)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([("label", [0, 1]), ("u", [1, 2]), ("u", [1, 2])], "a.parquet has two columns 'u'"),
        (
            [("label", [0, 1]), ("u", [[1, 2], [3, 4]])],
            r"'u' of .*a.parquet is not numeric \('\[1, 2\]' in line 1 and 1 more\)",
        ),
        ([("label", [0, 1]), ("u", ["\x1b[2J" * 999] * 2)], r"is not numeric \('.{,820}\.\.\.' in line 1 and 1 more\)"),
        ([("la\x1b[2Jbel\n", [0, 1]), ("u", [1, 2])], r"its columns are: la\\x1b\[2Jbel ?, u"),
        (
            [("label", [0, 1]), ("u", pyarrow.array([-(2**31)] * 2, pyarrow.int32()).cast(pyarrow.date32()))],
            "it is not a readable Parquet file",
        ),
    ],
)
def test_foreign_columns_are_refused(tmp_path: Path, columns: list[tuple[str, list[object]]], message: str) -> None:
    arrays = [pyarrow.array(values) for _, values in columns]
    parquet.write_table(pyarrow.Table.from_arrays(arrays, [name for name, _ in columns]), tmp_path / "a.parquet")
    refused(str(tmp_path), tmp_path, message)


def leaf(folder: Path, document: str) -> None:
    for split in ("train", "test"):
        (folder / "femnist" / split).mkdir(parents=True)
        (folder / "femnist" / split / "all.json").write_text(document)


def writer(x: object, y: object) -> str:
    return json.dumps({"users": ["w"], "user_data": {"w": {"x": x, "y": y}}})


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("[" * 100_000, "it is not a LEAF file"),
        (json.dumps({"users": [], "user_data": {}}), "The LEAF files in .*femnist name no writer"),
        (writer([[float("nan")] * 784], [1]), r"a pixel of writer w lies outside 0\.\.1"),
        (writer([[255] * 784], [1]), r"a pixel of writer w lies outside 0\.\.1"),
        (writer([[10**400] * 784], [1]), "it is not a LEAF file"),
        (writer([[0] * 784], [10**400]), r"a label lies outside 0\.\.61"),
        (writer([[0] * 784], [1.5]), r"a label lies outside 0\.\.61"),
    ],
)
def test_foreign_leaf_files_are_refused(tmp_path: Path, document: str, message: str) -> None:
    leaf(tmp_path, document)
    refused("femnist", tmp_path, message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": np.array(3)}, "its array y is not a list of whole numbers"),
        ({"y": np.array(["a", "b"])}, "its array y is not a list of whole numbers"),
        ({"writer": np.zeros((2, 1), int)}, "its array writer is not a list of whole numbers"),
        ({"is_test": np.array([np.nan, 0])}, "its array is_test is not a list of whole numbers"),
        ({"writer_ids": np.array("w")}, r"a writer lies outside 0\.\.0"),
        ({"X": np.full((2, 28, 28), np.nan)}, "its pixels are float64, not uint8"),
    ],
)
def test_foreign_arrays_of_femnist_are_refused(tmp_path: Path, changes: dict[str, np.ndarray], message: str) -> None:
    good = {
        "X": np.zeros((2, 28, 28), np.uint8),
        "y": np.array([0, 1]),
        "writer": np.array([0, 0]),
        "is_test": np.array([False, True]),
        "writer_ids": np.array(["w"]),
    }
    (tmp_path / "femnist").mkdir()
    np.savez(tmp_path / "femnist" / "femnist.npz", **{**good, **changes})
    refused("femnist", tmp_path, message)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((32, 32, 3, 2)), np.ones(2), "its pixels are float64, not uint8"),
        (np.zeros((32, 32, 3, 2), np.uint8), np.array([1, np.nan]), r"a label lies outside 0\.\.9"),
        (np.zeros((32, 32, 3, 2), np.uint8), np.array([1, 1j]), r"a label lies outside 0\.\.9"),
    ],
)
def test_foreign_arrays_of_svhn_are_refused(
    tmp_path: Path, images: np.ndarray, labels: np.ndarray, message: str
) -> None:
    (tmp_path / "svhn").mkdir()
    for split in ("train", "test"):
        savemat(tmp_path / "svhn" / f"{split}_32x32.mat", {"X": images, "y": labels})
    refused("svhn", tmp_path, message)


@pytest.mark.parametrize("last", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_members_that_are_no_files_are_not_followed(tmp_path: Path, last: bytes) -> None:
    pack_cifar(tmp_path / "cifar10", last)
    refused("cifar10", tmp_path, "cifar-10-binary.tar.gz is damaged: test_batch.bin is not in it")


def test_a_file_that_unpacks_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx(tmp_path / "mnist", "", "t10k", compress=True)
    path = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    labels = path.read_bytes()
    path.write_bytes(gzip.compress(bytes(100_000)))
    monkeypatch.setattr(formats, "MAX_UNPACKED_BYTES", 50_000)
    refused("mnist", tmp_path, r"train-labels-idx1-ubyte.gz is damaged: it unpacks to more than 50,000 bytes")
    path.write_bytes(labels)
    monkeypatch.setattr(formats, "MAX_UNPACKED_BYTES", 4720)  # the larger of the four: a header of 16 and six images
    assert len(load("mnist", tmp_path).y) == 8
    pack_cifar(tmp_path / "cifar10", tarfile.REGTYPE)
    monkeypatch.setattr(formats, "MAX_UNPACKED_BYTES", 3072)
    refused("cifar10", tmp_path, r"cifar-10-binary.tar.gz is damaged: it unpacks to more than 3,072 bytes")


def test_a_large_file_that_is_not_compressed_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "MAX_UNPACKED_BYTES", 10)
    assert len(load(written("femnist", tmp_path, most=12), tmp_path).y) == 24


@pytest.mark.parametrize("name", ["a" * 5000 + "/b", "~nobody-of-this-name/data", "a\0b/c"])
def test_a_folder_that_cannot_be_looked_for_is_one_sentence(name: str) -> None:
    refused(name, Path(), "There is no folder")
    with pytest.raises(UserError, match=r"cannot be looked into|is not here"):
        load("mnist", Path(name))


def test_a_folder_whose_name_is_too_long_is_one_sentence_in_the_catalogue() -> None:
    with pytest.raises(UserError, match="cannot be looked into: File name too long"):
        catalogue(Path("a" * 5000))


def test_a_negative_seed_is_one_sentence_where_records_are_chosen() -> None:
    with pytest.raises(UserError, match="The seed must be 0 or more, but -1 was given"):
        fewer(records([0, 1, 0, 1], 2), 2, seed=-1)
