"""The engine in several processes.

Workers are forked once, so they share the data without copies, and this process works with them. Each question
reaches them as a few numbers; tensors travel through shared memory that is set up when a name or size is first seen.
Each client's noise and batch order depend on the run's seed, the round and the client alone, so it does not matter who
does the work.
"""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as processes
from torch import Tensor

from sordino.simulator.engine import Answer, Engine, Work, together

Slabs = dict[str, Tensor]


class Workers:
    """An engine's work, divided among processes; the same answers as the engine alone."""

    def __init__(self, engine: Engine, count: int) -> None:
        """Work in `count` processes, this one included; alone where the platform cannot fork."""
        self.engine = engine
        self._pipes: list[Connection] = []
        self._children: list[Any] = []
        self._shared: Slabs = {}
        self._answers: list[Slabs] = []
        if count > 1 and hasattr(os, "fork"):
            self._start(count - 1)

    @property
    def count(self) -> int:
        """How many processes do the work."""
        return 1 + len(self._pipes)

    def work(self, work: Work) -> Answer:
        """Run a step at clients; rows come back in the order of `work.clients`."""
        units = self.engine.units(work.clients)
        if self._pipes:
            light = replace(work, message=self._share("message", work.message))
            self._ask("work", (light, units), work.clients)
        taken = list(self._own(len(units), lambda number: self.engine.work(work.part(units[number]))))
        answers, done = [answer for _, answer in taken], [units[number] for number, _ in taken]
        for child in range(len(self._pipes)):
            numbers, answer = self._receive(child)
            if numbers:
                names, accuracies, *rest = answer
                values = {name: self._answers[child][name][: len(accuracies)] for name in names}
                answers.append(Answer(values, accuracies, *rest))
                done.append([place for number in numbers for place in units[number]])
        return _joined(answers, done)

    def accuracies(self, clients: Sequence[int], model: Tensor | None) -> np.ndarray:
        """Each client's test accuracy with `model`, or with its own when that is None."""
        size = self.engine.stack
        units = [clients[begin : begin + size] for begin in range(0, len(clients), size)]
        if self._pipes:
            message = self._share("evaluated", {} if model is None else {"model": model})
            self._ask("accuracies", (message, units), clients)
        found = dict(self._own(len(units), lambda number: self.engine.accuracies(units[number], model)))
        for child in range(len(self._pipes)):
            found |= dict(zip(*self._receive(child), strict=True))
        return np.concatenate([found[number] for number in range(len(units))])

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        for child in self._children:
            child.join(timeout=5)
            if child.is_alive():
                child.kill()
        self._pipes, self._children = [], []

    def _start(self, count: int) -> None:
        context = processes.get_context("fork")
        self._next = context.Value("q", 0)
        gc.freeze()  # collecting garbage in a worker would copy what it shares with the others
        for _ in range(count):
            here, there = context.Pipe()
            others = [*self._pipes, here]
            child = context.Process(target=_serve, args=(self.engine, there, others, self._next), daemon=True)
            child.start()
            there.close()
            self._pipes.append(here)
            self._children.append(child)
            self._answers.append({})
        gc.unfreeze()

    def _ask(self, kind: str, question: Any, clients: Sequence[int]) -> None:
        """Put a question about `clients` to the other processes; whoever is free takes the next unit of it."""
        memory = self.engine.memory
        states = (clients, memory.slots[clients], memory.participations[clients])
        self._next.value = 0
        for pipe in self._pipes:
            pipe.send((kind, question, states))

    def _own(self, units: int, action: Callable[[int], Any]) -> Iterator[tuple[int, Any]]:
        """The units that fall to this process, and what comes of them."""
        for number in _taken(self._next, units) if self._pipes else range(units):
            yield number, action(number)

    def _share(self, prefix: str, message: Any) -> dict[str, Any]:
        """Put a message's tensors into shared memory; what remains is small enough for a pipe."""
        light: dict[str, Any] = {}
        for name, value in message.items():
            if not isinstance(value, Tensor):
                light[name] = value
                continue
            key = f"{prefix}/{name}"
            slab = self._shared.get(key)
            if slab is None or slab.shape != value.shape or slab.dtype != value.dtype:
                slab = torch.empty_like(value, device="cpu").share_memory_()
                self._shared[key] = slab
                for pipe in self._pipes:
                    pipe.send(("slab", key, slab))
            slab.copy_(value)
            light[name] = _Shared(key)
        return light

    def _receive(self, number: int) -> Any:
        """The next answer of one worker; an exception there is raised here."""
        while True:
            try:
                kind, *content = self._pipes[number].recv()
            except (EOFError, ConnectionResetError) as error:
                raise RuntimeError("A worker process ended unexpectedly: out of memory, or killed.") from error
            if kind == "slab":
                self._answers[number][content[0]] = content[1]
            elif kind == "error":
                raise content[0]
            else:
                return content[0]


class _Shared(str):
    """The name of a tensor in shared memory."""


def _joined(answers: list[Answer], places: list[list[int]]) -> Answer:
    """Several answers as one, each row put where `places` says."""
    order = np.concatenate([np.asarray(part) for part in places])
    accuracies = np.concatenate([answer.accuracies for answer in answers])
    values = {}
    for name, first in answers[0].values.items():
        rows = first.new_empty(len(order), *first.shape[1:])
        for answer, part in zip(answers, places, strict=True):
            rows[_index(part)] = answer.values[name]
        values[name] = rows
    rejected, size = sum(answer.rejected for answer in answers), sum(answer.size for answer in answers)
    return Answer(values, accuracies[np.argsort(order)], rejected, size, answers[0].kept)


def _index(places: list[int]) -> slice | Tensor:
    """Places in a row are a slice, which is copied to many times faster than to single places."""
    if places == list(range(places[0], places[0] + len(places))):
        return slice(places[0], places[0] + len(places))
    return torch.tensor(places)


def _serve(engine: Engine, pipe: Connection, others: list[Connection], turn: Any) -> None:
    """A worker's life: answer questions until the pipe closes."""
    for other in others:  # inherited ends of the main process; open here they would keep pipes from closing
        other.close()
    torch.set_num_threads(1)
    shared: Slabs = {}
    answers: Slabs = {}
    while True:
        try:
            kind, *content = pipe.recv()
            if kind == "slab":
                shared[content[0]] = content[1]
                continue
            (question, units), (clients, slots, participations) = content
            engine.memory.slots[clients] = slots
            engine.memory.participations[clients] = participations
            taken = _taken(turn, len(units))
            if kind == "accuracies":
                model = shared[question["model"]] if question else None
                done = {number: engine.accuracies(units[number], model) for number in taken}
                pipe.send(("done", (list(done), list(done.values()))))
            else:
                _answer(engine, pipe, shared, answers, question, units, taken)
        except (EOFError, KeyboardInterrupt):
            return
        except Exception as error:
            error.add_note("In a worker process:\n" + traceback.format_exc())
            pipe.send(("error", error))


def _taken(turn: Any, units: int) -> Iterator[int]:
    """The numbers of the units that fall to this worker: the next one each time it is free."""
    while True:
        with turn.get_lock():
            number = turn.value
            turn.value += 1
        if number >= units:
            return
        yield number


def _answer(
    engine: Engine,
    pipe: Connection,
    shared: Slabs,
    answers: Slabs,
    work: Work,
    units: list[list[int]],
    taken: Iterator[int],
) -> None:
    """Work on units while there are any, and leave the rows in shared memory."""
    message = {name: shared[value] if isinstance(value, _Shared) else value for name, value in work.message.items()}
    work = replace(work, message=message)
    done = {number: engine.work(work.part(units[number])) for number in taken}
    if not done:
        pipe.send(("done", ([], None)))
        return
    answer = together(list(done.values()))
    for name, rows in answer.values.items():
        slab = answers.get(name)
        if slab is None or slab.shape[1] != rows.shape[1] or len(slab) < len(rows):
            slab = torch.empty_like(rows).share_memory_()
            answers[name] = slab
            pipe.send(("slab", name, slab))
        slab[: len(rows)] = rows
    rest = (answer.accuracies, answer.rejected, answer.size, answer.kept)
    pipe.send(("done", (list(done), (list(answer.values), *rest))))
