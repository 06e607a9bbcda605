"""Readers of the published file formats. Each names the file in the error when the file is broken."""

from __future__ import annotations

import gzip
import io
import math
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np

from sordino.errors import UserError

IDX_HEADER = 4
IDX_UNSIGNED_BYTE = 0x08


def corrupt(path: Path, why: str) -> UserError:
    """The error for a file whose contents are not what its format promises."""
    return UserError(f"The file {path} is damaged: {why}. Delete it and get it again.")


def read_bytes(path: Path) -> bytes:
    """The contents of a file, decompressed when its name ends in .gz."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as stream:
                return stream.read()
        return path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise corrupt(path, f"it cannot be decompressed ({error})") from error
    except OSError as error:
        raise UserError(f"The file {path} cannot be read: {error.strerror or error}.") from error


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """An idx file of unsigned bytes with the given number of dimensions."""
    contents = read_bytes(path)
    magic = bytes([0, 0, IDX_UNSIGNED_BYTE, dimensions])
    if contents[:IDX_HEADER] != magic:
        raise corrupt(path, f"it starts with {contents[:IDX_HEADER].hex()!r}, not with {magic.hex()!r}")
    start = IDX_HEADER + 4 * dimensions
    if len(contents) < start:
        raise corrupt(path, "it ends within its header")
    shape = tuple(int(size) for size in np.frombuffer(contents, ">u4", dimensions, IDX_HEADER))
    if len(contents) - start != math.prod(shape):
        raise corrupt(path, f"it holds {len(contents) - start} values where {math.prod(shape)} are announced")
    return np.frombuffer(contents, np.uint8, offset=start).reshape(shape)


def read_cifar(path: Path, contents: bytes, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3, 32, 32) and labels of a CIFAR binary batch; the last label byte is the class."""
    row = label_bytes + 3 * 32 * 32
    if not contents or len(contents) % row:
        raise corrupt(path, f"its {len(contents)} bytes are not whole records of {row} bytes")
    rows = np.frombuffer(contents, np.uint8).reshape(-1, row)
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, label_bytes - 1]


def read_tar(path: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """The named members of a .tar.gz, by their last name, read in one pass."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r|gz") as archive:
            for member in archive:
                name = member.name.rsplit("/", 1)[-1]
                stream = archive.extractfile(member) if name in names else None
                if stream is not None:
                    found[name] = stream.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise corrupt(path, f"it cannot be unpacked ({error})") from error
    missing = [name for name in names if name not in found]
    if missing:
        raise corrupt(path, f"{missing[0]} is not in it")
    return found


def read_mat(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3, 32, 32) and labels of one SVHN cropped-digits .mat file."""
    from scipy.io import loadmat

    contents = read_bytes(path)
    try:
        arrays = loadmat(io.BytesIO(contents))
    except Exception as error:  # scipy promises no particular exception for a broken file
        raise corrupt(path, f"it is not a readable MATLAB file ({error})") from error
    for name in ("X", "y"):
        if name not in arrays:
            raise corrupt(path, f"the array {name} is not in it")
    images, labels = arrays["X"], arrays["y"].reshape(-1)
    if images.shape != (32, 32, 3, len(labels)):
        raise corrupt(path, f"its images have shape {images.shape}, not (32, 32, 3, {len(labels)})")
    return images.transpose(3, 2, 0, 1), labels


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Every array of an .npz file. Pickled objects are refused: reading them would run foreign code."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, TypeError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise corrupt(path, f"it is not a readable .npz file of plain arrays ({error})") from error
