"""Locks on runs: only one process may advance a run.

A POSIX lock belongs to the process, not to the open file: worker processes do not inherit it, so a worker that outlives
its killed run keeps nobody out. Such a lock has a trap: a process that opens the file once more and closes it releases
its own lock. The files that this process has locked are therefore remembered, and not opened again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ATTEMPTS = 20
"""Attempts before giving up; another process may only be probing."""
_held: set[Path] = set()
_alone = threading.Lock()
"""Held while such a file is opened, locked or probed: another thread's probe would release the lock as well."""
os.register_at_fork(after_in_child=_held.clear)


class HeldError(Exception):
    """Another process, or another part of this one, holds the lock."""


@contextlib.contextmanager
def holding(path: Path) -> Iterator[None]:
    """Lock the file at `path`, which is created if it is missing; raise `HeldError` if it is locked already."""
    known = path.resolve()
    with _alone:
        if known in _held:
            raise HeldError
        file = path.open("w")
        try:
            _lock(file.fileno())
        except BaseException:
            file.close()
            raise
        _held.add(known)
    try:
        yield
    finally:
        with _alone:
            file.close()
            _held.discard(known)


def is_held(path: Path) -> bool:
    """Whether the file at `path` is locked."""
    with _alone:
        if path.resolve() in _held:
            return True
        try:
            with path.open() as file:
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # it was never locked, or its folder was removed
            return False
        return False


def _lock(file: int) -> None:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if attempt == ATTEMPTS:
                raise HeldError from error
            time.sleep(0.01)
