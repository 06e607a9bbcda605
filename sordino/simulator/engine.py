"""`Engine`: a run's simulated clients within one process, their memory, part of each round and evaluation."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sordino.federation.blending import mixing
from sordino.federation.client import Clients, Question
from sordino.federation.execution import stack_size
from sordino.federation.message import Message
from sordino.federation.transport import Answer
from sordino.learning.metrics import ClientMetrics, sums_on_test_records
from sordino.simulator import step_cost
from sordino.simulator.memory import Memory

PREDICTED = 2**22
"""Most outputs that are computed at a time."""


@dataclass(frozen=True)
class Work:
    """A question to some clients, and the memory slots for their new states."""

    question: Question
    targets: Sequence[int]
    """The memory slot for each client's new state."""
    evaluate: bool

    def part(self, places: Sequence[int]) -> Work:
        """The part of this work that is for the clients at `places`."""
        return replace(self, question=self.question.to(places), targets=[self.targets[place] for place in places])


class Engine:
    """Clients of one run, their data and memory, in this process."""

    def __init__(self, clients: Clients, memory: Memory) -> None:
        self.clients, self.memory = clients, memory
        self.stack = stack_size(clients.learner.layout.size)
        self._units: tuple[object, list[list[int]]] = (None, [])
        """Units that were made last, and what for: from round to round they may stay the same."""
        self._sizes = clients.learner.layout.size, math.prod(clients.data.shape)

    def units(self, who: Sequence[int], step: str | None = None) -> list[list[int]]:
        """Group the positions in `who` into stacks that are computed together, most records first; `step` is None for
        work that is no step of the method."""
        numbers = np.asarray(who)
        took_part = self.memory.participations[numbers]
        about = (step, numbers.tobytes(), took_part.tobytes())
        if about != self._units[0]:
            self._units = about, self._grouped(numbers, took_part, step)
        return self._units[1]

    def _grouped(self, numbers: np.ndarray, took_part: np.ndarray, step: str | None) -> list[list[int]]:
        """Make the `units` of clients that took part so many times."""
        by_size = np.lexsort((numbers, -self.clients.data.train.sizes[numbers]))
        kinds, shared = np.zeros(len(numbers), dtype=np.int64), True
        if step is not None:
            kinds = self.clients.kinds(step, numbers, took_part)
            summed = self.clients.summed_records(step, numbers)
            shared = summed is None or step_cost.worth_sharing(*self._sizes, summed)
        return self.clients.execution.groups(by_size, self.stack, kinds, shared)

    def work(self, work: Work) -> Answer:
        """Let clients answer, write what they keep into their memory, and evaluate their models where that is due."""
        who = work.question.clients
        outcome = self.clients.answer(work.question, self.memory.states(who))
        accuracies = np.full((len(who), 3), np.nan)
        if outcome.kept:
            self.memory.write(who, work.targets, outcome.kept)
            if work.evaluate:
                with self.clients.unchanged("evaluation"):
                    if outcome.kept.get("model") is not None:
                        accuracies[:, (0, 2)] = self._judged(outcome.kept["model"].detach(), who)
                    if outcome.start is not None:
                        accuracies[:, 1] = self._accuracies(outcome.start.detach(), who)
        passed = outcome.passed
        values = {name: rows.cpu() for name, rows in passed.values.items()}
        return Answer(values, accuracies, passed.rejected, passed.bytes, bool(outcome.kept), outcome.drawn)

    def blend(self, clients: Sequence[int], message: Message) -> Answer:
        """Predictors of clients: the models that they trained for it, and how members are mixed."""
        states = self.memory.states(clients)
        took_part = states["participations"]
        made = mixing(self.clients, clients, states["model"], took_part, message).mixtures()
        return Answer({"models": made.models.flatten(1), **made.rules()}, made.accuracies, rejected=0, bytes=0)

    def accuracies(self, clients: Sequence[int], model: Tensor | None) -> np.ndarray:
        """Each client's test accuracy with `model`, or with its own model where that is None.

        A client that has never taken part has no model of its own: `nan`.
        """
        test, device = self.clients.data.test, self.clients.device
        if model is not None:
            who = np.asarray(clients)
            held = test.starts[who] * (1 + test.sizes[who].max(initial=0)) + test.sizes[who]
            _, first, back = np.unique(held, return_index=True, return_inverse=True)  # some share all records
            with self.clients.unchanged("evaluation"):
                return self._accuracies(model.to(device).unsqueeze(0), who[first].tolist())[back.reshape(-1)]
        found = np.full(len(clients), np.nan)
        taken = np.flatnonzero(self.memory.participations[clients])
        if len(taken):
            mine = [clients[int(place)] for place in taken]
            with self.clients.unchanged("evaluation"):
                found[taken] = self._accuracies(self.memory.states(mine)["model"].to(device), mine)
        return found

    def metrics(self, clients: Sequence[int], model: Tensor | None) -> ClientMetrics:
        """Metrics of `model` on clients' test records, or of each client's own model where that is None.

        A client that has never taken part has no model of its own: `nan`, and nothing in the sums.
        """
        data, task = self.clients.data, self.clients.data.task
        found = np.full((len(clients), len(task.metrics)), np.nan)
        there = np.flatnonzero(self.memory.participations[clients]) if model is None else np.arange(len(clients))
        total = task.no_sums()
        longest = max(1, int(data.test.sizes[clients].max(initial=0)))
        width = max(1, PREDICTED // (longest * task.width))
        for begin in range(0, len(there), width):
            places = there[begin : begin + width]
            mine = [clients[int(place)] for place in places]
            rows = self.memory.states(mine)["model"] if model is None else model.expand(len(mine), -1)
            with self.clients.unchanged("evaluation"):
                said = self.clients.execution.outputs(self.clients, rows.to(self.clients.device), data.test, mine)
            sums = sums_on_test_records(data, mine, said)
            found[places] = task.figures(sums)
            total += sums.sum(axis=0)
        return ClientMetrics(found, total)

    def _accuracies(self, models: Tensor, who: Sequence[int]) -> np.ndarray:
        return self._judged(models, who)[:, 0]

    def _judged(self, models: Tensor, who: Sequence[int]) -> np.ndarray:
        return self.clients.execution.judged(self.clients, models, who)


def together(answers: list[Answer]) -> Answer:
    """Join several answers into one, rows in the order in which they come."""
    if len(answers) == 1:
        return answers[0]
    values = {name: torch.cat([answer.values[name] for answer in answers]) for name in answers[0].values}
    accuracies = np.concatenate([answer.accuracies for answer in answers])
    rejected, size = sum(answer.rejected for answer in answers), sum(answer.bytes for answer in answers)
    return Answer(values, accuracies, rejected, size, answers[0].kept, all_drawn(answers))


def all_drawn(answers: Sequence[Answer]) -> int:
    """Digest of the noise of several answers, in any order."""
    return functools.reduce(operator.xor, (answer.drawn for answer in answers), 0)
