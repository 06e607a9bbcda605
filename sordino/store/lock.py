"""Holding a run: only one process may advance it.

The lock is one of the process, not of the open file: worker processes do not inherit it, so a worker that outlives its
killed run, even one that is stopped, keeps nobody out. Such a lock has a trap: a process that opens the file once more
and closes it lets go of its own lock. Which files this process holds is therefore remembered, and they are not opened
again.
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
"""How often a lock is tried for: perhaps only somebody looks whether it is held."""
_held: set[Path] = set()
_alone = threading.Lock()
"""Taken while such a file is opened, locked or looked at: another thread's look would let go of the lock as well."""
os.register_at_fork(after_in_child=_held.clear)


class HeldError(Exception):
    """Another process, or another part of this one, holds the file."""


@contextlib.contextmanager
def holding(path: Path) -> Iterator[None]:
    """Hold the file at `path`, which is made where it is not there; raises `HeldError` where somebody else does."""
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
    """Whether somebody holds the file at `path`."""
    with _alone:
        if path.resolve() in _held:
            return True
        try:
            with path.open() as file:
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # it was never held, or its folder was removed
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
