"""Image data sets: their readers, and the scaling of stored pixels to inputs of about mean 0 and deviation 1.

The constants are published figures of whole public data sets, so that they tell nothing about a client's records.
"""

from __future__ import annotations

import functools
import gzip
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from sordino.data.dataset import Dataset
from sordino.data.formats import corrupt, read_bytes, read_cifar, read_idx, read_mat, read_tar
from sordino.data.tables import REAL
from sordino.tasks import Classification


@dataclass(frozen=True)
class Pixels:
    """(brightness - mean) / deviation, with brightness 0 for the lowest stored value and 1 for the highest."""

    mean: tuple[float, ...]
    """Mean brightness of each channel."""
    deviation: tuple[float, ...]
    """Standard deviation of the brightness of each channel."""
    ink_is_dark: bool = False
    """Whether the brightness is turned round first, so that ink is bright on a dark ground as in MNIST."""


PIXELS: dict[str, Pixels] = {
    # Of the 1,797 images inside scikit-learn, over their range 0..16.
    "digits": Pixels((0.3053,), (0.3760,)),
    # As in PyTorch's example of MNIST: https://github.com/pytorch/examples/blob/main/mnist/main.py
    "mnist": Pixels((0.1307,), (0.3081,)),
    # Of the published training images, as given for torchvision's FashionMNIST.
    "fashion-mnist": Pixels((0.2860,), (0.3530,)),
    # Of each split, as in Lightning Bolts' `emnist_normalization`.
    "emnist": Pixels((0.175,), (0.333,)),
    "emnist-letters": Pixels((0.172,), (0.331,)),
    "emnist-digits": Pixels((0.173,), (0.332,)),
    "emnist-bymerge": Pixels((0.174,), (0.332,)),
    "emnist-byclass": Pixels((0.174,), (0.332,)),
    # Of the published training images by channel; the variance is that over all pixels.
    "cifar10": Pixels((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": Pixels((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "svhn": Pixels((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    # FederatedScope's documentation gives .9637 and .1592 for LEAF's images; turned round, the mean is 1 - .9637.
    "femnist": Pixels((0.0363,), (0.1592,), ink_is_dark=True),
}


def inputs(name: str, stored: np.ndarray, highest: float = 255.0) -> torch.Tensor:
    """Stored pixels (n, channels, height, width) of a data set, from 0 to `highest`, as float32 inputs."""
    pixels = PIXELS[name]
    x = torch.from_numpy(stored.astype(np.float32)).div_(highest)
    if pixels.ink_is_dark:
        x.neg_().add_(1)
    mean, deviation = (torch.tensor(values).reshape(-1, 1, 1) for values in (pixels.mean, pixels.deviation))
    return x.sub_(mean).div_(deviation)


Part = tuple[np.ndarray, np.ndarray]
"""Images (n, channels, height, width) and labels (n,)."""


def assemble(name: str, classes: int, train: Part, test: Part) -> Dataset:
    """The data set whose published test split is `test`."""
    images = np.concatenate([train[0], test[0]])
    labels = np.concatenate([train[1], test[1]]).astype(np.int64)
    in_test = np.arange(len(labels)) >= len(train[1])
    task = Classification.numbered(classes)
    return Dataset(name, inputs(name, images), torch.from_numpy(labels), task, None, (), in_test)


def check_labels(path: Path, labels: np.ndarray, classes: int, first: int = 0) -> None:
    """Refuse a file with a label that is not one of `classes` whole numbers from `first` on."""
    if labels.dtype.kind not in REAL or not np.isin(labels, np.arange(first, first + classes)).all():
        raise corrupt(path, f"a label lies outside {first}..{first + classes - 1}")


def idx_names(prefix: str, split: str) -> tuple[str, str]:
    """Names of the image file and the label file of one split."""
    return f"{prefix}{split}-images-idx3-ubyte", f"{prefix}{split}-labels-idx1-ubyte"


def gz_or_not(folder: Path, name: str) -> Path:
    """The file of that name, compressed or not; the uncompressed name when there is neither."""
    packed = folder / f"{name}.gz"
    return packed if packed.exists() and not (folder / name).exists() else folder / name


def read_idx_part(folder: Path, names: tuple[str, str], classes: int, first: int = 0) -> Part:
    """Read one split of an idx data set of 28x28 images.

    Args:
        folder: where the files are, compressed or not.
        names: the file of images and the file of labels.
        classes: number of classes.
        first: the lowest stored label.
    """
    image_path, label_path = (gz_or_not(folder, name) for name in names)
    images, labels = read_idx(image_path, 3), read_idx(label_path, 1)
    if images.shape[1:] != (28, 28):
        raise corrupt(image_path, f"its images have shape {images.shape[1:]}, not (28, 28)")
    if len(images) != len(labels):
        raise corrupt(label_path, f"it holds {len(labels)} labels for {len(images)} images")
    check_labels(label_path, labels, classes, first)
    labels = labels.astype(np.int64) - first
    return images[:, None], labels


def read_mnist(folder: Path) -> Dataset:
    """MNIST, from its four idx files."""
    train, test = (read_idx_part(folder, idx_names("", split), 10) for split in ("train", "t10k"))
    return assemble("mnist", 10, train, test)


def read_fashion_mnist(folder: Path) -> Dataset:
    """Fashion-MNIST, from its four idx files."""
    train, test = (read_idx_part(folder, idx_names("", split), 10) for split in ("train", "t10k"))
    return assemble("fashion-mnist", 10, train, test)


@dataclass(frozen=True)
class EmnistSplit:
    """One of the ways in which EMNIST is published."""

    split: str
    classes: int
    records: int
    first: int = 0
    """The lowest label in its files."""

    @property
    def files(self) -> tuple[str, ...]:
        """Its four idx files."""
        prefix = f"emnist-{self.split}-"
        return (*idx_names(prefix, "train"), *idx_names(prefix, "test"))


EMNIST = {
    "emnist": EmnistSplit("balanced", 47, 131_600),
    "emnist-letters": EmnistSplit("letters", 26, 145_600, first=1),
    "emnist-digits": EmnistSplit("digits", 10, 280_000),
    "emnist-bymerge": EmnistSplit("bymerge", 47, 814_255),
    "emnist-byclass": EmnistSplit("byclass", 62, 814_255),
}
"""The splits of EMNIST by the names of their data sets."""


def read_emnist(folder: Path, name: str = "emnist") -> Dataset:
    """A split of EMNIST, from its four idx files."""
    known = EMNIST[name]
    parts = []
    for split in ("train", "test"):
        images, labels = read_idx_part(folder, idx_names(f"emnist-{known.split}-", split), known.classes, known.first)
        # EMNIST is published with rows and columns exchanged with respect to MNIST.
        parts.append((images.transpose(0, 1, 3, 2), labels))
    return assemble(name, known.classes, parts[0], parts[1])


@dataclass(frozen=True)
class CifarLayout:
    """Files of one CIFAR data set: its archive, folder and binary batches."""

    name: str
    classes: int
    label_bytes: int
    archive: str
    folder: str
    train: tuple[str, ...]
    test: str

    @property
    def batches(self) -> tuple[str, ...]:
        """Every batch file, training ones first."""
        return (*self.train, self.test)


CIFAR10 = CifarLayout(
    name="cifar10",
    classes=10,
    label_bytes=1,
    archive="cifar-10-binary.tar.gz",
    folder="cifar-10-batches-bin",
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test="test_batch.bin",
)
CIFAR100 = CifarLayout(
    name="cifar100",
    classes=100,
    label_bytes=2,
    archive="cifar-100-binary.tar.gz",
    folder="cifar-100-binary",
    train=("train.bin",),
    test="test.bin",
)


def batch_folder(folder: Path, layout: CifarLayout) -> Path:
    """The folder of the unpacked batches: the folder itself, or the one the archive unpacks to."""
    inner = folder / layout.folder
    return inner if inner.is_dir() else folder


def read_cifar_folder(folder: Path, layout: CifarLayout) -> Dataset:
    """CIFAR-10 or CIFAR-100, from loose binary batches or from inside the published archive."""
    place = batch_folder(folder, layout)
    if all((place / name).exists() for name in layout.batches):
        contents = {name: read_bytes(place / name) for name in layout.batches}
    else:
        place = folder / layout.archive
        contents = read_tar(place, layout.batches)
    parts = {}
    for name in layout.batches:
        parts[name] = read_cifar(place / name, contents[name], layout.label_bytes)
        check_labels(place / name, parts[name][1], layout.classes)
    train = (
        np.concatenate([parts[name][0] for name in layout.train]),
        np.concatenate([parts[name][1] for name in layout.train]),
    )
    return assemble(layout.name, layout.classes, train, parts[layout.test])


def read_svhn(folder: Path) -> Dataset:
    """SVHN cropped digits, from train_32x32.mat and test_32x32.mat."""
    parts = []
    for split in ("train", "test"):
        path = folder / f"{split}_32x32.mat"
        images, labels = read_mat(path)
        labels = np.where(labels == 10, 0, labels)  # the digit 0 is published as label 10
        check_labels(path, labels, 10)
        parts.append((images, labels))
    return assemble("svhn", 10, parts[0], parts[1])


def read_digits() -> Dataset:
    """The 1,797 handwritten digits inside scikit-learn. No test split is published."""
    images, labels = _digits()
    x = inputs("digits", images[:, None], highest=16.0)
    y = torch.from_numpy(labels.astype(np.int64))
    return Dataset("digits", x, y, Classification.numbered(10), None, (), None)


@functools.cache
def _digits() -> Part:
    """Images and labels as scikit-learn has them: text, which is read once in a process.

    The file is read where it lies, because importing scikit-learn takes longer than all else that a small run loads.
    """
    package = importlib.util.find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not path.exists():  # another version may keep it elsewhere
        from sklearn.datasets import load_digits

        bunch = load_digits()
        return bunch.images, bunch.target
    with gzip.open(path, "rt") as file:
        rows = np.array([line.split(",") for line in file], dtype=np.float64)
    return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int64)
