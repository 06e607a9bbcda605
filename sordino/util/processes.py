"""Settings of this process (torch's threads, freed memory), and attempts in a child process that may crash."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar, cast

import torch

Found = TypeVar("Found")
CAN_FORK = sys.platform == "linux"
"""Elsewhere a forked process may not use the system's own libraries."""


class TrialError(Exception):
    """A child that did not do what it was asked to; the message says why."""


class HungError(TrialError):
    """A child that gave no answer in time: a fork may come at a moment at which another thread holds a lock."""


def in_child(action: Callable[[], Found], seconds: float) -> Found:
    """What `action` returns, as JSON holds it, in a forked child with one thread that has so many seconds to do it.

    Where processes cannot be forked it is done here.
    """
    if not CAN_FORK:
        return action()
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(action, there)
    os.close(there)
    try:
        answer = _read(here, seconds)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(here)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        raise TrialError(f"it was killed by {signal.Signals(-code).name}")
    worked, found = json.loads(answer)
    if not worked:
        raise TrialError(found)
    return cast(Found, found)


def _read(pipe: int, seconds: float) -> bytes:
    """All that comes through a pipe, of which the first must come within so many seconds."""
    if not select.select([pipe], [], [], seconds)[0]:
        raise HungError(f"it took more than {seconds:g} seconds")
    with os.fdopen(pipe, "rb", closefd=False) as file:
        return file.read()


def _answer(action: Callable[[], object], pipe: int) -> NoReturn:
    """A child's life: nothing of it is left behind, neither a core file nor a report of its end."""
    try:
        faulthandler.disable()
        _no_core_file()
        torch.set_num_threads(1)
        answer = (True, action())
    except BaseException as error:
        answer = (False, next(iter(str(error).splitlines()), "") or type(error).__name__)
    try:
        os.write(pipe, json.dumps(answer).encode())
    finally:
        os._exit(0)


def _no_core_file() -> None:
    import resource

    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


@contextlib.contextmanager
def single_threaded() -> Iterator[None]:
    """One thread for torch: workers are processes, and results do not depend on the machine's cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""Numbers by which the C library knows these settings (M_MMAP_THRESHOLD and M_TRIM_THRESHOLD)."""
WHOLE = 2**25
"""Bytes from which on a tensor has pages of its own, which are given back when it is freed."""
KEPT = 2**26
"""Bytes of freed memory that are kept at the most."""


def keep_freed() -> None:
    """Keep what was freed for the tensors of the next round.

    By itself the C library gives a tensor of a megabyte back to the system as soon as it is freed. The next one is made
    of pages that the system clears and hands out one by one, which takes longer than filling it.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # a C library without these settings
            library = ctypes.CDLL(None)
            library.mallopt(MMAP_THRESHOLD, WHOLE)
            library.mallopt(TRIM_THRESHOLD, KEPT)
