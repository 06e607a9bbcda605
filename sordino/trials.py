"""Trying something in a child process, because this one might not survive it.

A processor may advertise instructions that its virtual machine does not let through: whoever uses them is killed, and
no `try` helps. A forked child stands where this process stands, with the same libraries in the same state, so that what
it survives this process survives too.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import select
import signal
import sys
from collections.abc import Callable
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
