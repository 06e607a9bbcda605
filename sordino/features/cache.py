"""Features on disk, so that a second run computes nothing: one file for records and extractor of equal digests.

A file is written under another name and moved into place when it is whole, so that runs side by side never read half a
file; one that waits for the same features waits for the first to finish. Its last bytes are a digest of all others,
which is checked whenever it is read. Files are readable by their owner alone: features tell of records as much as the
records themselves do. Deleting the folder `features` in the cache ($SORDINO_CACHE, else ~/.cache/sordino) is always
safe.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sordino.util.files import sync_folder

DIGEST = 32
"""Bytes of the digest at the end of a file."""
BLOCK = 1 << 24


def cache_folder() -> Path | None:
    """Folder of cached features; None where there is no cache."""
    named = os.environ.get("SORDINO_CACHE")
    if named is None:
        with contextlib.suppress(RuntimeError):  # nobody's home
            return Path.home() / ".cache" / "sordino" / "features"
        return None
    return Path(os.path.expanduser(named)) / "features" if named else None


def digest_of_records(x: Tensor) -> str:
    """SHA-256 of records, with their number and shape."""
    digest = hashlib.sha256(repr((str(x.dtype), tuple(x.shape))).encode())
    digest.update(x.contiguous().view(-1).view(torch.uint8).numpy().data if x.numel() else b"")
    return digest.hexdigest()


def load_or_compute(
    folder: Path | None, key: str, shape: tuple[int, ...], make: Callable[[], Iterator[np.ndarray]]
) -> Tensor:
    """Return the features of a key, float32 of `shape`, mapped from its file; where there is none, or it is damaged,
    `make` computes them in parts, one after the other.

    Args:
        folder: where files lie; None for no cache.
        key: digest of records and extractor.
        shape: (records, *features).
        make: computes the features.
    """
    if folder is None:
        return _gather(shape, make())
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / f"{key}.npy"
        with _locked(folder / f"{key}.lock"):
            found = _read(path, shape)
            if found is None:
                _write(path, shape, make())
                found = _read(path, shape)
    except OSError:  # a cache on a full or read-only disk is none
        found = None
    return _gather(shape, make()) if found is None else found


def _gather(shape: tuple[int, ...], parts: Iterator[np.ndarray]) -> Tensor:
    whole, begin = np.empty(shape, dtype=np.float32), 0
    for part in parts:
        whole[begin : begin + len(part)] = part
        begin += len(part)
    return torch.from_numpy(whole)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file's lock, which the system takes back when a process dies."""
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _header(shape: tuple[int, ...]) -> bytes:
    text = io.BytesIO()
    np.lib.format.write_array_header_2_0(text, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return text.getvalue()


def _write(path: Path, shape: tuple[int, ...], parts: Iterator[np.ndarray]) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.stem[:16]}-", suffix=".tmp", dir=path.parent)
    unfinished = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            header = _header(shape)
            digest = hashlib.sha256(header)
            file.write(header)
            for part in parts:
                content = np.ascontiguousarray(part, dtype="<f4").tobytes()
                digest.update(content)
                file.write(content)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


def _read(path: Path, shape: tuple[int, ...]) -> Tensor | None:
    """Features in a file, mapped into memory; None where the file is missing, damaged or of other features."""
    header = _header(shape)
    size = len(header) + 4 * int(np.prod(shape)) + DIGEST
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != size:
                return None
            digest, left = hashlib.sha256(), size - DIGEST
            first = file.read(len(header))
            digest.update(first)
            left -= len(first)
            while left:
                block = file.read(min(BLOCK, left))
                if not block:
                    return None
                digest.update(block)
                left -= len(block)
            if first != header or file.read(DIGEST) != digest.digest():
                return None
    except FileNotFoundError:
        return None
    if not int(np.prod(shape)):
        return torch.empty(shape)
    # Private pages: whoever changed the tensor would change a copy, never the file.
    return torch.from_numpy(np.memmap(path, dtype="<f4", mode="c", offset=len(header), shape=shape))
