"""Settings of this process (torch's threads, freed memory), and work in a child process that may crash."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn, TypeVar, cast

import torch

Found = TypeVar("Found")
CAN_FORK = sys.platform == "linux"
"""Whether processes are forked: on other systems a forked process may not use the system's libraries."""


class TrialError(Exception):
    """A child process failed; the message says why."""


class HungError(TrialError):
    """A child process gave no answer in time: another thread may have held a lock when it was forked."""


@contextlib.contextmanager
def note_signals(noted: list[int]) -> Iterator[None]:
    """Append to `noted` the signals (Ctrl-C, SIGTERM) that arrive in the block, then call their handlers.

    Whoever catches a `KeyboardInterrupt` so knows whether the terminal sent it, or the code in the block raised it.
    """
    if threading.current_thread() is not threading.main_thread():  # no handler runs in another thread
        yield
        return
    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        handlers[number](number, frame)

    try:
        for number in handlers:
            signal.signal(number, note)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def hold_interrupt() -> Iterator[None]:
    """Hold Ctrl-C back until the block ends: what is half started in it could not be ended. The second one gets
    through, in case the block never ends."""
    handler: Any = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    held: list[FrameType | None] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append(frame)
        if len(held) > 1:
            handler(number, frame)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            handler(signal.SIGINT, held[0])


def in_child(action: Callable[[], Found], seconds: float) -> Found:
    """Run `action` in a forked child with one thread and return its result, which must be JSON.

    Where processes are not forked, it runs in this one.

    Args:
        action: The work; it may crash its process.
        seconds: Time after which the child is killed and `HungError` raised.
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
    """Read a pipe to its end; its first byte must come within `seconds`."""
    if not select.select([pipe], [], [], seconds)[0]:
        raise HungError(f"it took more than {seconds:g} seconds")
    with os.fdopen(pipe, "rb", closefd=False) as file:
        return file.read()


def _answer(action: Callable[[], object], pipe: int) -> NoReturn:
    """Run in the child: write the answer to the pipe and exit, without a core file or a crash report."""
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
    """Limit torch to one thread: workers are processes, and results must not depend on the number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def sparing_old_objects() -> Iterator[None]:
    """Keep the garbage collector from looking through all objects that exist already, such as those of imported
    libraries, which takes as long as many small rounds. What becomes garbage of them is collected later."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""Codes of the C library for M_MMAP_THRESHOLD and M_TRIM_THRESHOLD."""
WHOLE = 2**25
"""Size in bytes from which a tensor gets pages of its own, which return to the system when it is freed."""
KEPT = 2**26
"""Largest amount of freed memory that is kept, in bytes."""


def keep_freed() -> None:
    """Keep freed memory for the tensors of the next round.

    By default the C library returns a tensor of a megabyte to the system as soon as it is freed. The next tensor then
    gets pages that the system clears one by one, which takes longer than filling them.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # a C library without these settings
            library = ctypes.CDLL(None)
            library.mallopt(MMAP_THRESHOLD, WHOLE)
            library.mallopt(TRIM_THRESHOLD, KEPT)
