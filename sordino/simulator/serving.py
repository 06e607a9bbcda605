"""Worker processes of an engine: they answer questions until the process that asks them is gone.

A worker may be killed at any instant. Nobody waits for it then: the turn is a number in a file that all processes have
open, under a lock that the system takes away from a process which ends. A worker ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Literal

import torch
from torch import Tensor

from sordino.errors import MACHINE, WorkerError
from sordino.federation.message import Each
from sordino.federation.transport import Answer
from sordino.simulator import slabs
from sordino.simulator.engine import Engine, Work, together
from sordino.simulator.slabs import Slabs

TURN = 8
"""Size in bytes of the number of the next unit."""
Figures = Literal["accuracies", "metrics"]
EVALUATIONS: dict[Figures, Callable[[Engine, Sequence[int], Tensor | None], Any]] = {
    "accuracies": lambda engine, clients, model: engine.accuracies(clients, model),
    "metrics": lambda engine, clients, model: engine.metrics(clients, model),
}
"""Evaluations of models on clients' test records, by name."""
PARENT_DEATH_SIGNAL = 1
"""Linux's number for the wish to be sent a signal when the parent ends (PR_SET_PDEATHSIG)."""


class Shared(str):
    """The name of a tensor in shared memory."""


class SharedRows(str):
    """The name of a tensor in shared memory of which every client gets its own row."""


def serve(engine: Engine, pipe: Connection, others: list[Connection], turn: int, parent: int) -> None:
    """Main function of a worker: answer questions until the process that asks them is gone."""
    end_with(parent)
    for other in others:  # inherited ends of the main process; open here they would keep pipes from closing
        other.close()
    torch.set_num_threads(1)
    shared: Slabs = {}
    answers: Slabs = {}
    with contextlib.suppress(EOFError, OSError):  # nobody is there any more who could be told
        while True:
            kind, *content = slabs.receive(pipe)
            if kind == "slab":
                key, shape, dtype = content
                shared[key] = slabs.taken(pipe, shape, dtype)
                continue
            (question, units), (clients, slots, participations) = content
            engine.memory.slots[clients] = slots
            engine.memory.participations[clients] = participations
            one = KINDS[kind](engine, shared, question, units)
            done: dict[int, Any] = {}
            try:
                for number in taken(turn, len(units)):
                    if os.getppid() != parent:
                        return
                    done[number] = one(number)
            except BaseException as error:
                what = traceback.format_exception_only(error)[-1].strip()
                slabs.send(pipe, ("failed", number, what, isinstance(error, MACHINE)))
                continue
            if kind in EVALUATIONS:
                slabs.send(pipe, ("done", (list(done), list(done.values()))))
            else:
                _answer(pipe, answers, done)


def end_with(parent: int) -> None:
    """End this process when the one that started it ends, even if this one is stopped at that moment.

    Where the system cannot do that, a worker notices before its next unit.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:  # it ended before the wish was heard
        os._exit(0)


def taken(turn: int, units: int) -> Iterator[int]:
    """Numbers of the units that fall to this process: the next one each time it is free."""
    while (number := _next(turn)) < units:
        yield number


def _next(turn: int) -> int:
    """Take the next number from the file that all processes share.

    The lock belongs to this process: if it dies, the system releases it.
    """
    fcntl.lockf(turn, fcntl.LOCK_EX)
    try:
        number = int.from_bytes(os.pread(turn, TURN, 0), "little")
        os.pwrite(turn, (number + 1).to_bytes(TURN, "little"), 0)
    finally:
        fcntl.lockf(turn, fcntl.LOCK_UN)
    return number


def _work(engine: Engine, shared: Slabs, work: Work, units: list[list[int]]) -> Callable[[int], Answer]:
    """Function that works on one unit of a question, by its number."""
    message = {name: _found(shared, value) for name, value in work.question.message.items()}
    whole = replace(work, question=replace(work.question, message=message))
    return lambda number: engine.work(whole.part(units[number]))


def _found(shared: Slabs, value: Any) -> Any:
    """A value of a message, from shared memory where it lies there."""
    if isinstance(value, SharedRows):
        return Each(shared[value])
    return shared[value] if isinstance(value, Shared) else value


def _evaluation(
    figures: Figures, engine: Engine, shared: Slabs, question: dict[str, Any], units: list[Sequence[int]]
) -> Callable[[int], Any]:
    """Function that evaluates one unit of clients, by its number."""
    model = shared[question["model"]] if question else None
    return lambda number: EVALUATIONS[figures](engine, units[number], model)


def _blending(
    engine: Engine, shared: Slabs, message: dict[str, Any], units: list[Sequence[int]]
) -> Callable[[int], Answer]:
    """Function that blends the models of one unit of clients, by its number."""
    found = {name: _found(shared, value) for name, value in message.items()}
    return lambda number: engine.blend(units[number], found)


KINDS: dict[str, Callable[..., Callable[[int], Any]]] = {
    "work": _work,
    "accuracies": partial(_evaluation, "accuracies"),
    "metrics": partial(_evaluation, "metrics"),
    "blend": _blending,
}
"""Kinds of question to a worker, each with the maker of a function of a unit's number."""


def _answer(pipe: Connection, answers: Slabs, done: dict[int, Answer]) -> None:
    """Put the rows of the units that were done into slabs, and send where they are."""
    if not done:
        slabs.send(pipe, ("done", ([], None)))
        return
    answer = together(list(done.values()))
    for name, rows in answer.values.items():
        slab = answers.get(name)
        if slab is None or slab.dtype != rows.dtype or slab.shape[1:] != rows.shape[1:] or len(slab) < len(rows):
            try:
                slab, descriptor = slabs.new(rows)
            except WorkerError as error:
                slabs.send(pipe, ("refused", str(error)))
                return
            slabs.give(pipe, name, slab, descriptor)
            os.close(descriptor)
            answers[name] = slab
        slab[: len(rows)] = rows
    rest = (answer.accuracies, answer.rejected, answer.bytes, answer.kept, answer.drawn)
    slabs.send(pipe, ("done", (list(done), (list(answer.values), *rest))))
