from __future__ import annotations

import gzip
import importlib.machinery
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from data_makers import cifar_batch, idx_bytes, write_idx
from scipy.io import savemat

from sordino.data import load
from sordino.data.images import _digits
from sordino.errors import UserError


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize(("name", "mean", "deviation"), [("mnist", 0.1307, 0.3081), ("fashion-mnist", 0.286, 0.353)])
def test_idx_files_compressed_or_not(tmp_path: Path, name: str, mean: float, deviation: float, compress: bool) -> None:
    arrays = write_idx(tmp_path / name, "", "t10k", compress)
    data = load(name, tmp_path)
    assert data.x.shape == (8, 1, 28, 28)
    assert data.x.dtype == torch.float32
    assert data.test is not None
    assert data.test.tolist() == [False] * 6 + [True] * 2
    expected = (arrays["t10k-images-idx3-ubyte"][1, 3, 5] / 255 - mean) / deviation
    assert data.x[7, 0, 3, 5].item() == pytest.approx(expected, abs=1e-5)
    assert data.y.tolist() == [
        *arrays["train-labels-idx1-ubyte"].tolist(),
        *arrays["t10k-labels-idx1-ubyte"].tolist(),
    ]


def test_emnist_is_turned_upright(tmp_path: Path) -> None:
    arrays = write_idx(tmp_path / "emnist", "emnist-balanced-", "test", True)
    data = load("emnist", tmp_path)
    stored = arrays["emnist-balanced-train-images-idx3-ubyte"][0]
    assert data.task.width == 47
    assert data.x[0, 0, 4, 20].item() == pytest.approx((stored[20, 4] / 255 - 0.175) / 0.333, abs=1e-5)


def test_letters_of_emnist_count_from_one_and_may_lie_beside_the_other_splits(tmp_path: Path) -> None:
    write_idx(tmp_path / "emnist", "emnist-letters-", "test", compress=False)
    for split, labels in (("train", [1, 26, 2, 3, 4, 5]), ("test", [7, 8])):
        (tmp_path / "emnist" / f"emnist-letters-{split}-labels-idx1-ubyte").write_bytes(idx_bytes(np.array(labels)))
    data = load("emnist-letters", tmp_path)
    assert data.task.width == 26
    assert data.y.tolist() == [0, 25, 1, 2, 3, 4, 6, 7]
    (tmp_path / "emnist" / "emnist-letters-test-labels-idx1-ubyte").write_bytes(idx_bytes(np.array([0, 1])))
    with pytest.raises(UserError, match="a label lies outside"):
        load("emnist-letters", tmp_path)


def cifar_folder(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number in range(1, 6):
        (folder / f"data_batch_{number}.bin").write_bytes(cifar_batch([(number,), (0,)]))
    (folder / "test_batch.bin").write_bytes(cifar_batch([(9,)]))


@pytest.mark.parametrize("inner", ["", "cifar-10-batches-bin"])
def test_cifar10_from_loose_batches(tmp_path: Path, inner: str) -> None:
    cifar_folder(tmp_path / "cifar10" / inner)
    data = load("cifar10", tmp_path)
    assert data.y.tolist() == [1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 9]
    assert data.x.shape == (11, 3, 32, 32)
    # Record 1 of a batch is (1, 2, 3) in red, green, blue.
    expected = [(1 / 255 - 0.4914) / 0.2470, (2 / 255 - 0.4822) / 0.2435, (3 / 255 - 0.4465) / 0.2616]
    assert data.x[1, :, 0, 0].tolist() == pytest.approx(expected, abs=1e-6)


def test_cifar100_from_inside_the_archive(tmp_path: Path) -> None:
    (tmp_path / "cifar100").mkdir()
    with tarfile.open(tmp_path / "cifar100" / "cifar-100-binary.tar.gz", "w:gz") as archive:
        for name, contents in (
            ("train.bin", cifar_batch([(3, 77), (4, 99)])),
            ("test.bin", cifar_batch([(1, 5)])),
        ):
            member = tarfile.TarInfo(f"cifar-100-binary/{name}")
            member.size = len(contents)
            archive.addfile(member, io.BytesIO(contents))
    data = load("cifar100", tmp_path)
    assert data.y.tolist() == [77, 99, 5]  # the fine labels, not the coarse 3, 4, 1
    assert data.test is not None
    assert data.test.tolist() == [False, False, True]


def svhn_folder(folder: Path) -> np.ndarray:
    folder.mkdir()
    images = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 3)).astype(np.uint8)
    savemat(folder / "train_32x32.mat", {"X": images, "y": np.array([[10], [1], [9]], np.uint8)})
    savemat(folder / "test_32x32.mat", {"X": images[..., :1], "y": np.array([[10]], np.uint8)})
    return images


def test_svhn_zero_is_label_ten(tmp_path: Path) -> None:
    images = svhn_folder(tmp_path / "svhn")
    data = load("svhn", tmp_path)
    assert data.y.tolist() == [0, 1, 9, 0]
    expected = (images[4, 7, 2, 1] / 255 - 0.4728) / 0.1970  # the blue channel
    assert data.x[1, 2, 4, 7].item() == pytest.approx(expected, abs=1e-6)


def test_digits_are_built_in(tmp_path: Path) -> None:
    data = load("digits", tmp_path)
    assert data.x.shape == (1797, 1, 8, 8)
    assert data.test is None
    assert data.owner is None
    assert abs(data.x.mean().item()) < 0.001
    assert data.x.std().item() == pytest.approx(1, abs=0.001)


def test_digits_are_those_of_scikit_learn_and_are_read_without_importing_it() -> None:
    code = (
        "import sys; from sordino.data.images import _digits; images, labels = _digits(); "
        "assert 'sklearn' not in sys.modules; from sklearn.datasets import load_digits; known = load_digits(); "
        "assert (images == known.images).all() and (labels == known.target).all(); print('the same')"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "the same\n"


def test_digits_that_lie_elsewhere_are_asked_of_scikit_learn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = _digits()
    moved = importlib.machinery.ModuleSpec("sklearn", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: moved)
    images, labels = _digits.__wrapped__()
    assert (images == here[0]).all()
    assert (labels == here[1]).all()


GOOD = idx_bytes(np.zeros((6, 28, 28)))
BROKEN_IDX = {
    "bad magic": (gzip.compress(b"\1" + GOOD[1:]), "starts with '01000803'"),
    "one value short": (gzip.compress(GOOD[:-1]), "holds 4703 values where 4704 are announced"),
    "one value more": (gzip.compress(GOOD + b"\0"), "holds 4705 values where 4704 are announced"),
    "header only": (gzip.compress(GOOD[:7]), "ends within its header"),
    "truncated gz": (gzip.compress(GOOD)[:-12], "cannot be decompressed"),
    "no gz": (b"hello", "cannot be decompressed"),
    "other size": (gzip.compress(idx_bytes(np.zeros((6, 27, 28)))), r"shape \(27, 28\), not \(28, 28\)"),
    "other count": (gzip.compress(idx_bytes(np.zeros((5, 28, 28)))), "6 labels for 5 images"),
}


@pytest.mark.parametrize("kind", BROKEN_IDX)
def test_a_broken_idx_file_is_named(tmp_path: Path, kind: str) -> None:
    contents, message = BROKEN_IDX[kind]
    write_idx(tmp_path / "mnist", "", "t10k", True)
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(contents)
    with pytest.raises(UserError, match=rf"mnist/train-.*-ubyte.gz is damaged: .*{message}"):
        load("mnist", tmp_path)


def test_a_label_out_of_range_is_refused(tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist", "", "t10k", False)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(np.array([3, 10])))
    with pytest.raises(UserError, match=r"t10k-labels-idx1-ubyte is damaged: a label lies outside 0\.\.9"):
        load("mnist", tmp_path)


def test_broken_cifar_files_are_named(tmp_path: Path) -> None:
    cifar_folder(tmp_path / "cifar10")
    (tmp_path / "cifar10" / "data_batch_3.bin").write_bytes(b"x" * 3072)
    with pytest.raises(UserError, match=r"data_batch_3.bin is damaged: its 3072 bytes are not whole records of 3073"):
        load("cifar10", tmp_path)
    (tmp_path / "cifar100").mkdir()
    (tmp_path / "cifar100" / "cifar-100-binary.tar.gz").write_bytes(gzip.compress(b"no tar")[:-4])
    with pytest.raises(UserError, match=r"cifar-100-binary.tar.gz is damaged: it cannot be unpacked"):
        load("cifar100", tmp_path)
    with tarfile.open(tmp_path / "cifar100" / "cifar-100-binary.tar.gz", "w:gz"):
        pass
    with pytest.raises(UserError, match=r"cifar-100-binary.tar.gz is damaged: train.bin is not in it"):
        load("cifar100", tmp_path)


def test_broken_svhn_files_are_named(tmp_path: Path) -> None:
    svhn_folder(tmp_path / "svhn")
    path = tmp_path / "svhn" / "test_32x32.mat"
    path.write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"test_32x32.mat is damaged: it is not a readable MATLAB file"):
        load("svhn", tmp_path)
    savemat(path, {"X": np.zeros((32, 32, 3, 2))})
    with pytest.raises(UserError, match=r"test_32x32.mat is damaged: the array y is not in it"):
        load("svhn", tmp_path)
    savemat(path, {"X": np.zeros((32, 32, 3, 2)), "y": np.zeros(3)})
    with pytest.raises(UserError, match=r"shape \(32, 32, 3, 2\), not \(32, 32, 3, 3\)"):
        load("svhn", tmp_path)
