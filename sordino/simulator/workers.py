"""The engine in several processes.

Workers are forked once, so they share the data without copies, and this process works with them. Each question
reaches them as a few numbers; tensors travel through slabs that are set up when a name or size is first seen.
Each client's batch order depends on the run's seed, the round and the client, its noise also on the run's identity and
the question, and with code of the user's own on the values that it covers: it does not matter who does the work.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.errors import UserError, WorkerError
from sordino.federation.client import UnequalKeepingError
from sordino.federation.message import Each, Message
from sordino.federation.transport import Answer
from sordino.learning.metrics import ClientMetrics
from sordino.simulator import slabs
from sordino.simulator.engine import Engine, Work, all_drawn
from sordino.simulator.serving import EVALUATIONS, TURN, Figures, Shared, SharedRows, serve, taken
from sordino.simulator.slabs import Slabs


@dataclass
class _Worker:
    """Another process that does part of the work, as this one sees it."""

    process: Any
    pipe: Connection
    answers: Slabs = field(default_factory=dict)

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """Talk to the process; if it is gone, raise an error that says how it ended."""
        try:
            yield
        except (EOFError, OSError) as error:
            raise WorkerError(f"A worker process {self._end()}.") from error

    def _end(self) -> str:
        """Description of how the process ended, as far as is known."""
        self.process.join(timeout=5)
        code = self.process.exitcode
        if code is None or code >= 0:
            return "ended before its work was done"
        why = ", perhaps because memory ran out" if -code == signal.SIGKILL else ""
        return f"was killed by the signal {signal.Signals(-code).name}{why}"


class Workers:
    """An engine's work, divided among processes; the same answers as the engine alone."""

    def __init__(self, engine: Engine, count: int) -> None:
        """Work in `count` processes, this one included; alone where the platform cannot fork."""
        self.engine = engine
        self._team: list[_Worker] = []
        self._shared: Slabs = {}
        self._turn = -1
        if count > 1 and hasattr(os, "fork"):
            self._start(count - 1)

    @property
    def count(self) -> int:
        """Number of processes that do the work."""
        return 1 + len(self._team)

    def work(self, work: Work) -> Answer:
        """Put a question to clients; rows come back in the order in which the question names them."""
        question = work.question
        units = self.engine.units(question.clients, question.step)

        def one(number: int) -> Answer:
            return self.engine.work(work.part(units[number]))

        if len(units) == 1:  # nothing to share
            return joined([one(0)], units)
        if self._team:
            light = replace(question, message=self._share("message", question.message))
            self._ask("work", (replace(work, question=light), units), question.clients)
        return self._gathered(units, one)

    def blend(self, clients: Sequence[int], message: Message) -> Answer:
        """Blended predictors of the clients, one row each; `message` holds the server's models."""
        units = self.engine.units(clients)
        named = [[clients[place] for place in unit] for unit in units]

        def one(number: int) -> Answer:
            return self.engine.blend(named[number], message)

        if self._team:
            self._ask("blend", (self._share("blended", message), named), clients)
        return self._gathered(units, one)

    def accuracies(self, clients: Sequence[int], model: Tensor | None) -> np.ndarray:
        """Each client's test accuracy with `model`, or with its own where that is None."""
        return np.concatenate(self._evaluated("accuracies", clients, model))

    def metrics(self, clients: Sequence[int], model: Tensor | None) -> ClientMetrics:
        """Metrics of `model` on each client's test records, or of the client's own model where that is None."""
        return ClientMetrics.joined(self._evaluated("metrics", clients, model))

    def _evaluated(self, figures: Figures, clients: Sequence[int], model: Tensor | None) -> list[Any]:
        """Figures of each unit of clients, in order."""
        size = self.engine.stack
        units = [clients[begin : begin + size] for begin in range(0, len(clients), size)]

        def one(number: int) -> Any:
            return EVALUATIONS[figures](self.engine, units[number], model)

        if self._team:
            message = self._share("evaluated", {} if model is None else {"model": model})
            self._ask(figures, (message, units), clients)
        found = dict(self._own(len(units), one))
        for worker in self._team:
            found |= dict(zip(*self._received(worker, one), strict=True))
        return [found[number] for number in range(len(units))]

    def close(self) -> None:
        """End the processes at once: what they were doing is either done or not wanted any more."""
        for worker in self._team:
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()
        if self._turn >= 0:
            os.close(self._turn)
        self._team, self._turn = [], -1

    def _start(self, count: int) -> None:
        context = multiprocessing.get_context("fork")
        self._turn = slabs.nameless()
        gc.freeze()  # collecting garbage in a worker would copy what it shares with the others
        # Ctrl-C reaches a whole group of processes, but only this one shall answer: workers inherit the mask.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for _ in range(count):
                here, there = context.Pipe()
                others = [*(worker.pipe for worker in self._team), here]
                given = (self.engine, there, others, self._turn, os.getpid())
                process = context.Process(target=serve, args=given, daemon=True)
                process.start()
                there.close()
                self._team.append(_Worker(process, here))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            gc.unfreeze()

    def _ask(self, kind: str, question: Any, clients: Sequence[int]) -> None:
        """Put a question about `clients` to the other processes; whoever is free takes the next unit of it."""
        memory = self.engine.memory
        states = (clients, memory.slots[clients], memory.participations[clients])
        os.pwrite(self._turn, bytes(TURN), 0)
        for worker in self._team:
            with worker.alive():
                slabs.send(worker.pipe, (kind, question, states))

    def _own(self, units: int, one: Callable[[int], Any]) -> Iterator[tuple[int, Any]]:
        """Numbers of the units that fall to this process, with their results."""
        for number in taken(self._turn, units) if self._team else range(units):
            yield number, one(number)

    def _gathered(self, units: list[list[int]], one: Callable[[int], Answer]) -> Answer:
        """Join the answers of all units, whichever process made them; `units` are places in the result."""
        taken = list(self._own(len(units), one))
        answers, done = [answer for _, answer in taken], [units[number] for number, _ in taken]
        for worker in self._team:
            numbers, answer = self._received(worker, one)
            if numbers:
                names, accuracies, *rest = answer
                values = {name: worker.answers[name][: len(accuracies)] for name in names}
                answers.append(Answer(values, accuracies, *rest))
                done.append([place for number in numbers for place in units[number]])
        return joined(answers, done)

    def _share(self, prefix: str, message: Any) -> dict[str, Any]:
        """Put a message's tensors into slabs; what remains is small enough for a pipe."""
        light: dict[str, Any] = {}
        for name, value in message.items():
            if isinstance(value, Each):
                light[name] = SharedRows(self._filled(f"{prefix}/{name}", value.values))
            else:
                light[name] = self._filled(f"{prefix}/{name}", value) if isinstance(value, Tensor) else value
        return light

    def _filled(self, key: str, value: Tensor) -> Shared:
        """Copy a tensor into the slab called `key`."""
        slab = self._shared.get(key)
        if slab is None or slab.shape != value.shape or slab.dtype != value.dtype:
            slab = self._shared[key] = self._slab(key, value)
        slab.copy_(value)
        return Shared(key)

    def _slab(self, key: str, like: Tensor) -> Tensor:
        """A new slab that every worker knows."""
        slab, descriptor = slabs.new(like)
        try:
            for worker in self._team:
                with worker.alive():
                    slabs.give(worker.pipe, key, slab, descriptor)
        finally:
            os.close(descriptor)
        return slab

    def _received(self, worker: _Worker, one: Callable[[int], Any]) -> Any:
        """The next answer of a worker.

        A unit that failed there is tried once more here: what went wrong is then raised as it is, with its type, its
        cause and the place where it happened.
        """
        while True:
            with worker.alive():
                kind, *content = slabs.receive(worker.pipe)
                if kind == "slab":
                    key, shape, dtype = content
                    worker.answers[key] = slabs.taken(worker.pipe, shape, dtype)
            if kind == "done":
                return content[0]
            if kind == "refused":
                raise WorkerError(content[0])
            if kind == "failed":
                number, what, machine = content
                one(number)
                if machine:
                    raise WorkerError(f"A worker process failed ({what}) where this one did not.")
                raise UserError(
                    f"A worker process failed ({what}) where this one did not: what is done at a client must follow "
                    "from its message, memory and records alone. Let it draw no random numbers of its own."
                )


def joined(answers: list[Answer], places: list[list[int]]) -> Answer:
    """Join several answers into one; `places` says where each row belongs."""
    if len(answers) == 1 and places[0] == list(range(len(places[0]))):
        return replace(answers[0], values={name: rows.clone() for name, rows in answers[0].values.items()})
    order = np.concatenate([np.asarray(part) for part in places])
    accuracies = np.concatenate([answer.accuracies for answer in answers])
    values = {}
    for name, first in answers[0].values.items():
        if any(answer.values[name].shape[1:] != first.shape[1:] for answer in answers):
            raise UserError(f"Clients sent {name} in different lengths: let all of them send equally many entries.")
        rows = first.new_empty(len(order), *first.shape[1:])
        for answer, part in zip(answers, places, strict=True):
            rows[_index(part)] = answer.values[name]
        values[name] = rows
    if len({answer.kept for answer in answers}) > 1:
        raise UnequalKeepingError
    rejected, size = sum(answer.rejected for answer in answers), sum(answer.bytes for answer in answers)
    return Answer(values, accuracies[np.argsort(order)], rejected, size, answers[0].kept, all_drawn(answers))


def _index(places: list[int]) -> slice | Tensor:
    """Index of `places`: a slice where they are consecutive, because copying to a slice is many times faster."""
    if places == list(range(places[0], places[0] + len(places))):
        return slice(places[0], places[0] + len(places))
    return torch.tensor(places)
