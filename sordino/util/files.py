"""Files that outlive a crash and show it when their bytes have changed, and files that a user names."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import threading
import time
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from sordino.errors import UserError

LOG_BYTES = 5_000_000
"""Largest log, in bytes, before it is rotated."""
LOGS_KEPT = 3
"""Number of rotated logs that are kept."""


@dataclass(frozen=True)
class KeptFile:
    """A finished file, as the store knows it."""

    name: str
    digest: str
    """BLAKE2b of its bytes, in hexadecimal."""

    def check(self, folder: Path, what: str) -> Path:
        """Its path in `folder`; refused where the file is gone or is not as it was written."""
        path = folder / self.name
        try:
            found = digest_of(path)
        except FileNotFoundError as error:
            raise UserError(f"{what} {path} is gone: {ADVICE}.") from error
        except OSError as error:
            raise UserError(f"{what} {path} cannot be read ({error.strerror}): {ADVICE}.") from error
        if found != self.digest:
            raise UserError(f"{what} {path} is damaged, its bytes are not those that were written: {ADVICE}.")
        return path


ADVICE = "put it back from a copy, or start the run anew with `sordino run`"


def digest_of(path: Path) -> str:
    """BLAKE2b of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def keep_file(temporary: Path, wanted: Path) -> KeptFile:
    """Put a finished file in place for good under a name that no file has: `wanted`, or that with a number behind it.

    A database that is going to refer to the file may refer to an earlier one until it commits, and a crash before that
    must find the earlier one as it was: no file is ever replaced. Whoever commits removes what is no longer referred
    to.
    """
    return replace_file(temporary, unused(wanted))


def unused(wanted: Path) -> Path:
    """A path that no file has: `wanted`, or `NAME-2.END`, `NAME-3.END` and so on beside it."""
    numbered = (wanted.with_name(f"{wanted.stem}-{number}{wanted.suffix}") for number in count(2))
    return next(path for path in chain([wanted], numbered) if not path.exists())


def replace_file(temporary: Path, final: Path) -> KeptFile:
    """Put a finished file in place for good: a crash leaves either the old one or the new one. What a database refers
    to may be replaced only by what says the same; everything else goes through `keep_file`."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "blake2b").hexdigest()
    temporary.replace(final)
    sync_folder(final.parent)
    return KeptFile(final.name, digest)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a text or bytes so that whoever reads meanwhile, or after a crash, finds the old file or the new one. A
    link stays a link; a pipe or a device is written to."""
    content = content.encode() if isinstance(content, str) else content
    final = path.resolve()
    if final.exists() and not final.is_file():
        final.write_bytes(content)
        return
    unfinished = final.with_name(f".{final.name}.{os.getpid()}.tmp")
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(final)
        sync_folder(final.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


LARGEST_TEXT = 1 << 26
"""Bytes of the largest configuration, curve or document that is read."""


def check_file(path: Path, limit: int) -> None:
    """Refuse, by an `OSError` that says why, whatever is not a file of at most `limit` bytes: a device or a pipe may
    never end, or never begin."""
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is a device or a pipe, not a file", str(path))
    if found.st_size > limit:
        raise _too_large(path, limit)


def read_file(path: Path, limit: int = LARGEST_TEXT) -> bytes:
    """The contents of a file that a user names; an `OSError` where it is no file or has more than `limit` bytes."""
    check_file(path, limit)
    with path.open("rb") as file:
        content = file.read(limit + 1)  # some files of the system say that they are empty, and are not
    if len(content) > limit:
        raise _too_large(path, limit)
    return content


def read_text(path: Path) -> str:
    """The text of a file that a user names, in UTF-8; a `ValueError` where it is none."""
    return read_file(path).decode()


def _too_large(path: Path, limit: int) -> OSError:
    return OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))


def sync_folder(folder: Path) -> None:
    """Bring a folder's list of names to disk: only then does a new name survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def rotate(log: Path) -> bool:
    """Rotate a log of more than `LOG_BYTES` to LOG.1, and older ones one further; returns whether it did."""
    with contextlib.suppress(OSError):
        if log.stat().st_size <= LOG_BYTES:
            return False
        for number in range(LOGS_KEPT - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                log.with_name(f"{log.name}.{number}").replace(log.with_name(f"{log.name}.{number + 1}"))
        log.replace(log.with_name(f"{log.name}.1"))
        return True
    return False


def write_output_to(log: Path) -> None:
    """Append what this process writes to its standard output and error to a log."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)


def keep_rotating(log: Path, every: float = 10.0) -> None:
    """Check this process's log every few seconds, and rotate it when it is too large."""

    def watch() -> None:
        while True:
            time.sleep(every)
            if rotate(log):
                write_output_to(log)

    threading.Thread(target=watch, daemon=True).start()
