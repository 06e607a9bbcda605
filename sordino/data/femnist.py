"""FEMNIST: handwritten characters by writer, from LEAF's JSON files or from one .npz of the same records.

LEAF stores paper as 1 and ink as 0. The other way round, as in MNIST, networks learn it: inputs are mostly near 0.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from sordino.data.dataset import Dataset
from sordino.data.formats import check_bytes, corrupt, quote, read_bytes, read_npz, reading
from sordino.data.images import check_labels, inputs
from sordino.errors import UserError
from sordino.tasks import Classification

CLASSES = 62
TASK = Classification.numbered(CLASSES)
ARCHIVE = "femnist.npz"


def read_femnist(folder: Path) -> Dataset:
    """FEMNIST with one owner per writer and the published test split of each."""
    if (folder / ARCHIVE).exists():
        return read_archive(folder / ARCHIVE)
    return read_leaf(folder)


def read_archive(path: Path) -> Dataset:
    """FEMNIST from an .npz of X (n, 28, 28) uint8, y, writer, is_test and writer_ids."""
    arrays = read_npz(path)
    for name in ("X", "y", "writer", "is_test", "writer_ids"):
        if name not in arrays:
            raise corrupt(path, f"the array {name} is not in it")
    images, names = arrays["X"], arrays["writer_ids"]
    labels, writer, test = (whole_numbers(path, arrays, name) for name in ("y", "writer", "is_test"))
    records = len(labels)
    if images.shape != (records, 28, 28) or len(writer) != records or len(test) != records:
        raise corrupt(path, f"its arrays do not all describe {records} images of 28x28")
    check_bytes(path, images)
    if names.ndim != 1 or (records and not 0 <= writer.min() <= writer.max() < len(names)):
        raise corrupt(path, f"a writer lies outside 0..{names.size - 1}")
    check_labels(path, labels, CLASSES)
    x = inputs("femnist", images[:, None])
    writers = tuple(str(name) for name in names)
    return Dataset("femnist", x, torch.from_numpy(labels), TASK, writer, writers, test.astype(bool))


def whole_numbers(path: Path, arrays: dict[str, np.ndarray], name: str) -> np.ndarray:
    """An array of an .npz file that holds one whole number for each image."""
    if arrays[name].ndim != 1 or arrays[name].dtype.kind not in "biu":
        raise corrupt(path, f"its array {name} is not a list of whole numbers")
    return arrays[name].astype(np.int64)


def leaf_files(folder: Path) -> list[tuple[Path, bool]]:
    """LEAF's JSON files, each with whether it belongs to the test split."""
    return [(path, split == "test") for split in ("train", "test") for path in sorted((folder / split).glob("*.json"))]


def read_leaf(folder: Path) -> Dataset:
    """FEMNIST from LEAF's train/*.json and test/*.json; writers are numbered in order of first appearance."""
    writers: dict[str, int] = {}
    images, labels, owner, test = [], [], [], []
    for path, in_test in leaf_files(folder):
        for name, pixels, classes in leaf_users(path):
            index = writers.setdefault(name, len(writers))
            images.append(pixels)
            labels.append(classes)
            owner.append(np.full(len(classes), index, np.int64))
            test.append(np.full(len(classes), in_test))
    if not images:
        raise UserError(f"The LEAF files in {folder} name no writer; make them again with LEAF's scripts.")
    x = inputs("femnist", np.concatenate(images).reshape(-1, 1, 28, 28), highest=1.0)
    y = torch.from_numpy(np.concatenate(labels))
    return Dataset("femnist", x, y, TASK, np.concatenate(owner), tuple(writers), np.concatenate(test))


def leaf_users(path: Path) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Each writer of one LEAF file: name, images (n, 784) and labels (n,)."""
    contents = read_bytes(path)
    users = []
    with reading(path, "it is not a LEAF file of users with 28x28 images"):
        leaf = json.loads(contents)
        for name in leaf["users"]:
            records = leaf["user_data"][name]
            x = np.asarray(records["x"], np.float32).reshape(-1, 28 * 28)
            users.append((str(name), x, np.asarray(records["y"]).reshape(-1)))
    for name, x, y in users:
        if len(x) != len(y):
            raise corrupt(path, f"writer {quote(name)} has {len(x)} images and {len(y)} labels")
        if not ((x >= 0) & (x <= 1)).all():
            raise corrupt(path, f"a pixel of writer {quote(name)} lies outside 0..1")
        check_labels(path, y, CLASSES)
    return [(name, x, y.astype(np.int64)) for name, x, y in users]
