"""Small stand-ins for the published files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch

from sordino.data import Dataset
from sordino.tasks import Classification


def records(labels: list[int], classes: int, test: list[bool] | None = None) -> Dataset:
    """A data set whose only feature is the record's number, so that every record can be told apart."""
    x = torch.arange(len(labels), dtype=torch.float32)[:, None]
    in_test = None if test is None else np.array(test)
    return Dataset("numbers", x, torch.tensor(labels), Classification.numbered(classes), None, (), in_test)


def idx_bytes(array: np.ndarray) -> bytes:
    """An idx file of unsigned bytes."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()


def write_idx(folder: Path, prefix: str, test_name: str, compress: bool) -> dict[str, np.ndarray]:
    """Four idx files of 6 training and 2 test images; the arrays by file name."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 6), (test_name, 2)):
        arrays[f"{prefix}{split}-images-idx3-ubyte"] = rng.integers(0, 256, (count, 28, 28))
        arrays[f"{prefix}{split}-labels-idx1-ubyte"] = rng.integers(0, 10, count)
    for name, array in arrays.items():
        if compress:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(array)))
        else:
            (folder / name).write_bytes(idx_bytes(array))
    return arrays


def cifar_batch(labels: list[tuple[int, ...]]) -> bytes:
    """A CIFAR binary batch; record k has red k, green k + 1 and blue k + 2 everywhere."""
    rows = [bytes(label) + b"".join(bytes([k + c]) * 1024 for c in range(3)) for k, label in enumerate(labels)]
    return b"".join(rows)
