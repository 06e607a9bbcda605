"""Readers of the published file formats. Each names the file in the error when the file is broken."""

from __future__ import annotations

import gzip
import io
import math
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from sordino.errors import UserError
from sordino.util.files import check_file, read_file

IDX_HEADER = 4
IDX_UNSIGNED_BYTE = 0x08


MAX_UNPACKED_BYTES = 1 << 30
"""More than any published compressed file unpacks to: what goes on beyond is made to fill the memory."""
MAX_FILE_BYTES = 1 << 32
"""Bytes of the largest file of records that is read."""
LONGEST_QUOTE = 200


def quote(text: object) -> str:
    """A text out of a file or a library on one line, without control characters, cut where it is long."""
    line = " ".join(str(text).split())
    cut = line if len(line) <= LONGEST_QUOTE else f"{line[:LONGEST_QUOTE]}..."
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in cut)


def corrupt(path: Path, why: str) -> UserError:
    """The error for a file whose contents are not what its format promises."""
    return UserError(f"The file {path} is damaged: {why}. Get it again, or put it right.")


@contextmanager
def reading(path: Path, otherwise: str) -> Iterator[None]:
    """Make one sentence of whatever goes wrong while a file is read; `otherwise` is what to say of its contents.

    No library promises which exceptions a broken or malicious file raises in it, so that all are taken.
    """
    try:
        check_file(path, MAX_FILE_BYTES)
        yield
    except UserError:
        raise
    except MemoryError as error:
        raise UserError(
            f"The file {path} announces more than fits into memory; get it again, or use a larger machine."
        ) from error
    except Exception as error:
        if isinstance(error, OSError) and error.strerror:
            raise UserError(f"The file {path} cannot be read: {error.strerror}.") from error
        raise corrupt(path, f"{otherwise} ({quote(error) or type(error).__name__})") from error


def read_bytes(path: Path) -> bytes:
    """The contents of a file, decompressed when its name ends in .gz."""
    with reading(path, "it cannot be decompressed"):
        if path.suffix != ".gz":
            return read_file(path, MAX_FILE_BYTES)
        with gzip.open(path) as stream:
            return read_bounded(path, stream)


def read_bounded(path: Path, stream: IO[bytes] | gzip.GzipFile) -> bytes:
    """Read a decompressed stream to its end; refuse one that is longer than any published file."""
    contents = stream.read(MAX_UNPACKED_BYTES + 1)
    if len(contents) > MAX_UNPACKED_BYTES:
        raise corrupt(path, f"it unpacks to more than {MAX_UNPACKED_BYTES:,} bytes, which no published file does")
    return contents


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
    with reading(path, "it cannot be unpacked"), tarfile.open(path, "r|gz") as archive:
        for member in archive:
            name = member.name.rsplit("/", 1)[-1]
            stream = archive.extractfile(member) if name in names and member.isreg() else None
            if stream is not None:
                found[name] = read_bounded(path, stream)
    missing = [name for name in names if name not in found]
    if missing:
        raise corrupt(path, f"{missing[0]} is not in it")
    return found


def read_mat(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3, 32, 32) and labels of one SVHN cropped-digits .mat file."""
    from scipy.io import loadmat

    contents = read_bytes(path)
    with reading(path, "it is not a readable MATLAB file"):
        arrays = loadmat(io.BytesIO(contents), variable_names=["X", "y"])
    for name in ("X", "y"):
        if name not in arrays:
            raise corrupt(path, f"the array {name} is not in it")
    images, labels = arrays["X"], arrays["y"].reshape(-1)
    if images.shape != (32, 32, 3, len(labels)):
        raise corrupt(path, f"its images have shape {images.shape}, not (32, 32, 3, {len(labels)})")
    check_bytes(path, images)
    return images.transpose(3, 2, 0, 1), labels


def check_bytes(path: Path, images: np.ndarray) -> None:
    """Refuse pixels that are not whole numbers of 0..255."""
    if images.dtype != np.uint8:
        raise corrupt(path, f"its pixels are {images.dtype}, not uint8")


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Every array of an .npz file. Pickled objects are refused: reading them would run foreign code."""
    otherwise = "it is not a readable .npz file of plain arrays"
    with reading(path, otherwise):
        if not zipfile.is_zipfile(path):  # numpy would take it for a pickle, and tell how to read one unsafely
            raise corrupt(path, otherwise)
        with zipfile.ZipFile(path) as packed:
            if sum(member.file_size for member in packed.infolist()) > MAX_FILE_BYTES:
                raise corrupt(path, f"it unpacks to more than {MAX_FILE_BYTES:,} bytes")
    # numpy leaves a file open that it opened and could not read.
    with reading(path, otherwise), path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # numpy hands out the bytes of members that are no arrays
            raise corrupt(path, f"{otherwise} ({quote(name)} is no array)")
    return arrays
