"""Atomic, durable writing of files with digests, bounded reading of files that a user names, and rotation of logs."""

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
        """Return its path in `folder`; refuse a file that is missing or damaged. `what` names it in the error."""
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
    """Return the BLAKE2b digest of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def keep_file(temporary: Path, wanted: Path) -> KeptFile:
    """Move a finished file durably to an unused name: `wanted`, or that with a number appended.

    No file is ever replaced: until the database that will refer to the new file commits, it may refer to an older one,
    and a crash before the commit must find the older one unchanged. Whoever commits removes unreferenced files.
    """
    return replace_file(temporary, unused_path(wanted))


def unused_path(wanted: Path) -> Path:
    """Return a path that no file has: `wanted`, or `NAME-2.END`, `NAME-3.END` and so on beside it."""
    numbered = (wanted.with_name(f"{wanted.stem}-{number}{wanted.suffix}") for number in count(2))
    return next(path for path in chain([wanted], numbered) if not path.exists())


def replace_file(temporary: Path, final: Path) -> KeptFile:
    """Move a finished file durably over `final`: a crash leaves either the old one or the new one. A file that a
    database refers to may be replaced only by one of equal content; for everything else there is `keep_file`."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "blake2b").hexdigest()
    temporary.replace(final)
    sync_folder(final.parent)
    return KeptFile(final.name, digest)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file atomically: readers, also after a crash, find the whole old file or the whole new one. The target
    of a link is replaced; a pipe or a device is written to."""
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
"""Size limit, in bytes, of a configuration, curve or document that is read."""


def check_file(path: Path, limit: int) -> None:
    """Raise an `OSError` that says why unless `path` is a file of at most `limit` bytes: reading a device or a pipe may
    never end."""
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is a device or a pipe, not a file", str(path))
    if found.st_size > limit:
        raise _too_large(path, limit)


def read_file(path: Path, limit: int = LARGEST_TEXT) -> bytes:
    """Return the contents of a file that a user names; raise an `OSError` if it is not a file of at most `limit`
    bytes."""
    check_file(path, limit)
    with path.open("rb") as file:
        content = file.read(limit + 1)  # files of the system, as in /proc, report size 0
    if len(content) > limit:
        raise _too_large(path, limit)
    return content


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file that a user names; raise a `ValueError` if it is not UTF-8."""
    return read_file(path).decode()


def _too_large(path: Path, limit: int) -> OSError:
    return OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk: only then does a new name survive a power cut."""
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
