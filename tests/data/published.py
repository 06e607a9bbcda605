"""Small files in every published format, with classes that can be learnt and the statistics of the real pixels."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from data_makers import idx_bytes
from scipy.io import savemat

Part = tuple[np.ndarray, np.ndarray]
"""Images (n, channels, height, width) of bytes, and labels (n,)."""
Parts = tuple[Part, Part]
"""The training and the test part of a data set."""


@dataclass(frozen=True)
class Look:
    """What the images of a data set look like: the published mean and deviation of each channel, in 0..1."""

    shape: tuple[int, int, int]
    classes: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]


LOOKS = {
    "mnist": Look((1, 28, 28), 10, (0.1307,), (0.3081,)),
    "fashion-mnist": Look((1, 28, 28), 10, (0.2860,), (0.3530,)),
    "emnist": Look((1, 28, 28), 47, (0.1751,), (0.3332,)),
    "emnist-letters": Look((1, 28, 28), 26, (0.1722,), (0.3309,)),
    "emnist-digits": Look((1, 28, 28), 10, (0.1733,), (0.3317,)),
    "emnist-bymerge": Look((1, 28, 28), 47, (0.1736,), (0.3317,)),
    "emnist-byclass": Look((1, 28, 28), 62, (0.1736,), (0.3317,)),
    "cifar10": Look((3, 32, 32), 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": Look((3, 32, 32), 100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "svhn": Look((3, 32, 32), 10, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    "femnist": Look((1, 28, 28), 62, (0.9637,), (0.1592,)),
}


def images(look: Look, count: int, rng: np.random.Generator, prototypes: np.ndarray) -> Part:
    """`count` images, the classes in turn; each is its class's prototype with a tenth of the pixels drawn anew.

    Pixels take two values, a base and a peak, so that mean and deviation are those of the look.
    """
    labels = np.arange(count) % look.classes
    lit = prototypes[labels]
    lit = np.where(rng.random(lit.shape) < 0.1, rng.random(lit.shape), lit)
    mean, deviation = (np.array(values)[:, None, None] for values in (look.mean, look.deviation))
    # The distribution that is 0 or `peak` has mean share * peak and variance share * (1 - share) * peak^2.
    bright = mean < 0.9
    away = np.where(bright, mean, 1 - mean)
    peak = away + deviation**2 / away
    value = np.where(lit < away / peak, peak, 0)
    return np.rint(255 * np.where(bright, value, 1 - value)).astype(np.uint8), labels


def parts(look: Look, most: int | None) -> Parts:
    """Training and test images of one data set: twelve and two of each class, but at most `most` of each part."""
    rng = np.random.default_rng(0)
    prototypes = rng.random((look.classes, *look.shape))
    train, test = (each * look.classes if most is None else most for each in (12, 2))
    return images(look, train, rng, prototypes), images(look, test, rng, prototypes)


def write_idx_files(
    folder: Path, both: Parts, prefix: str = "", test_name: str = "t10k", turned: bool = False, first: int = 0
) -> None:
    """The four idx files of MNIST, Fashion-MNIST or EMNIST, whose lowest label is `first`."""
    for split, (pixels, labels) in zip(("train", test_name), both, strict=True):
        stored = pixels[:, 0].transpose(0, 2, 1) if turned else pixels[:, 0]
        (folder / f"{prefix}{split}-images-idx3-ubyte").write_bytes(idx_bytes(stored))
        (folder / f"{prefix}{split}-labels-idx1-ubyte").write_bytes(idx_bytes(labels + first))


def cifar_bytes(pixels: np.ndarray, labels: np.ndarray, coarse: bool) -> bytes:
    """A CIFAR binary batch, with a coarse label of 0 before the label where the format has one."""
    columns = [np.zeros_like(labels)[:, None]] if coarse else []
    return np.hstack([*columns, labels[:, None], pixels.reshape(len(labels), -1)]).astype(np.uint8).tobytes()


def write_cifar10(folder: Path, both: Parts) -> None:
    """Five training batches and the test batch."""
    train, test = both
    for number in range(5):
        batch = cifar_bytes(train[0][number::5], train[1][number::5], coarse=False)
        (folder / f"data_batch_{number + 1}.bin").write_bytes(batch)
    (folder / "test_batch.bin").write_bytes(cifar_bytes(*test, coarse=False))


def write_cifar100(folder: Path, both: Parts) -> None:
    """The two batches with coarse and fine labels."""
    for split, part in zip(("train", "test"), both, strict=True):
        (folder / f"{split}.bin").write_bytes(cifar_bytes(*part, coarse=True))


def write_svhn(folder: Path, both: Parts) -> None:
    """The two MATLAB files, with 10 for the digit 0."""
    for split, (pixels, labels) in zip(("train", "test"), both, strict=True):
        named = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
        savemat(folder / f"{split}_32x32.mat", {"X": pixels.transpose(2, 3, 1, 0), "y": named})


def write_leaf(folder: Path, both: Parts) -> None:
    """LEAF's JSON files: four writers, every fourth image each."""
    for split, (pixels, labels) in zip(("train", "test"), both, strict=True):
        rows = (pixels.reshape(len(labels), -1) / 255).round(4)
        users = {f"w{k}": {"x": rows[k::4].tolist(), "y": labels[k::4].tolist()} for k in range(4)}
        (folder / split).mkdir()
        (folder / split / "all_data_0.json").write_text(json.dumps({"users": list(users), "user_data": users}))


def write_femnist_archive(folder: Path, both: Parts) -> None:
    """FEMNIST as one .npz."""
    train, test = both
    labels = np.concatenate([train[1], test[1]])
    np.savez(
        folder / "femnist.npz",
        X=np.concatenate([train[0], test[0]])[:, 0],
        y=labels,
        writer=np.arange(len(labels)) % 4,
        is_test=np.arange(len(labels)) >= len(train[1]),
        writer_ids=np.array([f"w{k}" for k in range(4)]),
    )


def write_heart(folder: Path) -> None:
    """The four hospitals: those who are ill are older and have a faster heart."""
    rng = np.random.default_rng(0)
    for centre in ("cleveland", "hungarian", "switzerland", "va"):
        rows = []
        for ill in [0, 0, 1, 2] * 15:
            age, pulse = rng.normal(45 + 15 * (ill > 0), 4), rng.normal(120 + 40 * (ill > 0), 10)
            rows.append(f"{age:.0f},1,{rng.integers(1, 5)},130,200,0,{rng.integers(3)},{pulse:.0f},0,1.0,?,?,?,{ill}")
        (folder / f"processed.{centre}.data").write_text("\n".join(rows) + "\n")


WRITERS: dict[str, Callable[[Path, Parts], None]] = {
    "mnist": write_idx_files,
    "fashion-mnist": write_idx_files,
    "emnist": partial(write_idx_files, prefix="emnist-balanced-", test_name="test", turned=True),
    "emnist-letters": partial(write_idx_files, prefix="emnist-letters-", test_name="test", turned=True, first=1),
    **{
        f"emnist-{split}": partial(write_idx_files, prefix=f"emnist-{split}-", test_name="test", turned=True)
        for split in ("digits", "bymerge", "byclass")
    },
    "cifar10": write_cifar10,
    "cifar100": write_cifar100,
    "svhn": write_svhn,
    "femnist": write_leaf,
    "femnist as .npz": write_femnist_archive,
}
"""For each data set of images (and each layout of FEMNIST) what writes it into a folder."""
KINDS = (*WRITERS, "heart-disease", "digits")


def written(kind: str, data_dir: Path, most: int | None = None) -> str:
    """Write one data set where a loader looks for it, and return its name. Digits are built in."""
    name = kind.split(maxsplit=1)[0]
    (data_dir / name).mkdir(parents=True)
    if kind in WRITERS:
        WRITERS[kind](data_dir / name, parts(LOOKS[name], most))
    elif kind == "heart-disease":
        write_heart(data_dir / name)
    return name
