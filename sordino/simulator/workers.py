"""The engine in several processes.

Workers are forked once, so they share the data without copies. Each question reaches them as a few numbers;
tensors travel through shared memory that is set up when a name or size is first seen. Each client's noise and
batch order depend on the run's seed, the round and the client alone, so it does not matter who does the work.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as processes
from torch import Tensor

from sordino.method import Message
from sordino.simulator.engine import Answer, Engine, Work, together

Slabs = dict[str, Tensor]


class Workers:
    """An engine's work, divided among processes; the same answers as the engine alone."""

    def __init__(self, engine: Engine, count: int) -> None:
        """Start `count` processes, or none when one suffices or the platform cannot fork."""
        self.engine = engine
        self._pipes: list[Connection] = []
        self._children: list[Any] = []
        self._shared: Slabs = {}
        self._answers: list[Slabs] = []
        if count > 1 and hasattr(os, "fork"):
            self._start(count)

    @property
    def count(self) -> int:
        """How many processes do the work."""
        return max(1, len(self._pipes))

    def work(self, work: Work) -> Answer:
        """Run a step at clients; rows come back in the order of `work.clients`."""
        place = {client: i for i, client in enumerate(work.clients)}
        units = self.engine.units(work.clients)
        if not self._pipes:
            answers = [self.engine.work(_part(work, unit, place, work.message)) for unit in units]
            return _joined(answers, units, place)
        light = self._share("message", work.message)
        shares = self._divide(units)
        for pipe, share in zip(self._pipes, shares, strict=True):
            parts = [_part(work, unit, place, light) for unit in share]
            pipe.send(("work", parts, self._states([client for unit in share for client in unit])))
        answers = []
        for number in range(len(self._pipes)):
            names, accuracies, rejected, size, kept = self._receive(number)
            values = {name: self._answers[number][name][: len(accuracies)] for name in names}
            answers.append(Answer(values, accuracies, rejected, size, kept))
        return _joined(answers, [unit for share in shares for unit in share], place)

    def accuracies(self, clients: Sequence[int], model: Tensor | None) -> np.ndarray:
        """Each client's test accuracy with `model`, or with its own when that is None."""
        if not self._pipes:
            return self.engine.accuracies(clients, model)
        message = self._share("evaluated", {} if model is None else {"model": model})
        parts = np.array_split(np.asarray(clients, dtype=np.int64), len(self._pipes))
        for pipe, part in zip(self._pipes, parts, strict=True):
            pipe.send(("accuracies", (message, part.tolist()), self._states(part.tolist())))
        found = np.concatenate([self._receive(number) for number in range(len(self._pipes))])
        return np.asarray(found)

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
        for _ in range(count):
            here, there = context.Pipe()
            others = [*self._pipes, here]
            child = context.Process(target=_serve, args=(self.engine, there, others), daemon=True)
            child.start()
            there.close()
            self._pipes.append(here)
            self._children.append(child)
            self._answers.append({})

    def _states(self, clients: Sequence[int]) -> tuple[Sequence[int], np.ndarray, np.ndarray]:
        memory = self.engine.memory
        return clients, memory.slots[clients], memory.participations[clients]

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

    def _divide(self, units: list[list[int]]) -> list[list[list[int]]]:
        """Units to workers: each next largest unit goes to whoever has the least to do."""
        shares: list[list[list[int]]] = [[] for _ in self._pipes]
        loads = [0] * len(self._pipes)
        for unit in units:
            least = loads.index(min(loads))
            shares[least].append(unit)
            loads[least] += sum(len(self.engine.data.clients[client].y) for client in unit)
        return shares


class _Shared(str):
    """The name of a tensor in shared memory."""


def _part(work: Work, unit: list[int], place: dict[int, int], message: Message) -> Work:
    targets = [work.targets[place[client]] for client in unit]
    return Work(work.step, work.round, message, unit, targets, work.evaluate)


def _joined(answers: list[Answer], units: list[list[int]], place: dict[int, int]) -> Answer:
    """Several answers as one, rows in the order of the question."""
    whole = together([answer for answer in answers if len(answer.accuracies)])
    back = np.argsort([place[client] for unit in units for client in unit])
    values = {name: rows[torch.from_numpy(back)] for name, rows in whole.values.items()}
    return Answer(values, whole.accuracies[back], whole.rejected, whole.size, whole.kept)


def _serve(engine: Engine, pipe: Connection, others: list[Connection]) -> None:
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
            question, (clients, slots, participations) = content
            engine.memory.slots[clients] = slots
            engine.memory.participations[clients] = participations
            if kind == "accuracies":
                message, who = question
                model = shared[message["model"]] if message else None
                pipe.send(("done", engine.accuracies(who, model)))
            else:
                _answer(engine, pipe, shared, answers, question)
        except (EOFError, KeyboardInterrupt):
            return
        except Exception as error:
            error.add_note("In a worker process:\n" + traceback.format_exc())
            pipe.send(("error", error))


def _answer(engine: Engine, pipe: Connection, shared: Slabs, answers: Slabs, parts: list[Work]) -> None:
    """Work on each part and leave the rows in shared memory."""
    if not parts:
        pipe.send(("done", ([], np.empty((0, 2)), 0, 0, True)))
        return
    heavy = {n: shared[v] if isinstance(v, _Shared) else v for n, v in parts[0].message.items()}
    answer = together([engine.work(replace(part, message=heavy)) for part in parts])
    for name, rows in answer.values.items():
        slab = answers.get(name)
        if slab is None or slab.shape[1] != rows.shape[1] or len(slab) < len(rows):
            slab = torch.empty_like(rows).share_memory_()
            answers[name] = slab
            pipe.send(("slab", name, slab))
        slab[: len(rows)] = rows
    pipe.send(("done", (list(answer.values), answer.accuracies, answer.rejected, answer.size, answer.kept)))
