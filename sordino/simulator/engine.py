"""Running a step at clients: one after the other, or many stacked under `torch.func.vmap`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from sordino.data import FederatedData
from sordino.method import Message, Method, Result
from sordino.privacy.gate import Gate, check_declared
from sordino.privacy.release import Releases
from sordino.simulator.memory import Memory
from sordino.training import Learner, Records

Mode = Literal["stacked", "one-by-one"]
STACK = 50
"""How many clients a stack holds at most: the same for any number of workers, so that results are too."""
STACKABLE = (nn.Sequential, nn.Flatten, nn.Linear, nn.ReLU, nn.Tanh, nn.GELU, nn.Sigmoid, nn.LayerNorm)
"""Layers that gain from stacking. Convolutions on a CPU are faster one client at a time, and dropout draws
from a random stream that a stack would share."""


@dataclass(frozen=True)
class Work:
    """One question to some clients."""

    step: str
    round: int
    message: Message
    clients: Sequence[int]
    targets: Sequence[int]
    """The memory slot for each client's new state."""
    evaluate: bool


@dataclass
class Answer:
    """What came of it, one row per client in the order of `Work.clients`."""

    values: dict[str, Tensor]
    accuracies: np.ndarray
    """Columns: the personal model after training, the model at round start; `nan` where not evaluated."""
    rejected: int


def choose_mode(module: nn.Module) -> Mode:
    """Stack clients when the network has only layers that gain from it."""
    layers = [layer for layer in module.modules() if layer is not module or not list(module.children())]
    return "stacked" if all(isinstance(layer, STACKABLE) for layer in layers) else "one-by-one"


class Engine:
    """Clients of one run, their data and memory, in this process."""

    def __init__(
        self,
        method: Method,
        learner: Learner,
        data: FederatedData,
        gate: Gate,
        memory: Memory,
        mode: Mode,
        device: str = "cpu",
    ) -> None:
        self.method, self.learner, self.data, self.gate, self.memory = method, learner, data, gate, memory
        self.mode = mode
        self.device = torch.device(device)
        self.steps: dict[str, Releases] = method.steps()
        learner.module.to(self.device)

    def units(self, who: Sequence[int]) -> list[list[int]]:
        """The clients in groups that must be worked on together, the largest first."""
        by_size = sorted(who, key=lambda client: (-len(self.data.clients[client].y), client))
        if self.mode == "one-by-one":
            return [[client] for client in by_size]
        stacks = -(-len(by_size) // STACK)
        if len(by_size) > 1:
            stacks += stacks % 2  # an even number keeps two workers equally busy
        return [part.tolist() for part in np.array_split(np.array(by_size), stacks)]

    def work(self, work: Work) -> Answer:
        """Run a step at clients and pass what it sends through the gate."""
        run = self._stacked if self.mode == "stacked" else self._one_by_one
        message = {
            name: value.to(self.device) if isinstance(value, Tensor) else value
            for name, value in work.message.items()
        }
        sent, accuracies = run(work, message)
        passed = self.gate.passes(self.steps[work.step], sent, work.clients, work.step, work.round, work.message)
        return Answer({k: v.cpu() for k, v in passed.values.items()}, accuracies, passed.rejected)

    def accuracies(self, clients: Sequence[int], model: Tensor | None) -> np.ndarray:
        """Each client's test accuracy with `model`, or with its own model when that is None.

        A client that has never taken part has no model of its own: `nan`.
        """
        found = np.full(len(clients), np.nan)
        for place, client in enumerate(clients):
            flat = model
            if model is None and self.memory.participations[client]:
                flat = self.memory.read(client)["model"]
            if flat is not None:
                found[place] = self._accuracy(flat.to(self.device), client)
        return found

    def _step(self, name: str) -> Callable[..., Result]:
        step: Callable[..., Result] = getattr(self.method, name)
        return step

    def _one_by_one(self, work: Work, message: dict[str, Any]) -> tuple[dict[str, Tensor], np.ndarray]:
        rows: dict[str, list[Tensor]] = {name: [] for name in self.steps[work.step]}
        accuracies = np.full((len(work.clients), 2), np.nan)
        for place, (client, slot) in enumerate(zip(work.clients, work.targets, strict=True)):
            seed = self._seed(work, client)
            torch.manual_seed(seed)  # dropout draws from the global stream
            mine = self.data.clients[client]
            records = Records(mine.x.to(self.device), mine.y.to(self.device), self.learner, seed)
            me = {name: value.to(self.device) for name, value in self.memory.read(client).items()}
            result = self._step(work.step)(message, me, records)
            check_declared(self.steps[work.step], result.send, work.step)
            for name, value in result.send.items():
                rows[name].append(value.detach().reshape(-1))
            if work.evaluate:
                accuracies[place] = self._accuracy_pair(result, client)
            self.memory.write(client, slot, result.keep)
        return {name: torch.stack(values) for name, values in rows.items()}, accuracies

    def _stacked(self, work: Work, message: dict[str, Any]) -> tuple[dict[str, Tensor], np.ndarray]:
        mine = [self.data.clients[client] for client in work.clients]
        x, valid = padded([data.x for data in mine])
        y, _ = padded([data.y for data in mine])
        x, y = x.to(self.device), y.to(self.device)
        valid = None if valid is None else valid.to(self.device)
        seeds = torch.tensor([self._seed(work, client) for client in work.clients], device=self.device)
        memories = [self.memory.read(client) for client in work.clients]
        me = {name: torch.stack([one[name] for one in memories]).to(self.device) for name in memories[0]}
        step = self._step(work.step)

        def one(me: Any, x: Tensor, y: Tensor, valid: Tensor | None, seed: Tensor) -> tuple[Any, ...]:
            records = Records(x, y, self.learner, seed, valid, stacked=True)
            result = step(message, me, records)
            check_declared(self.steps[work.step], result.send, work.step)
            return result.send, result.keep, {} if result.start is None else {"start": result.start}

        dims = (0, 0, 0, None if valid is None else 0, 0)
        send, keep, start = vmap(one, in_dims=dims)(me, x, y, valid, seeds)
        accuracies = np.full((len(work.clients), 2), np.nan)
        for place, (client, slot) in enumerate(zip(work.clients, work.targets, strict=True)):
            state = {name: value[place] for name, value in keep.items()}
            if work.evaluate:
                begin = start["start"][place] if start else None
                accuracies[place] = self._accuracy_pair(Result(keep=state, start=begin), client)
            self.memory.write(client, slot, state)
        return {name: value.reshape(len(work.clients), -1) for name, value in send.items()}, accuracies

    def _seed(self, work: Work, client: int) -> int:
        """What the order of a client's batches and its dropout depend on."""
        return self.gate.source.key("training", work.step, work.round, client) >> 32

    def _accuracy(self, flat: Tensor, client: int) -> float:
        mine = self.data.clients[client]
        return self.learner.accuracy(flat, mine.x_test.to(self.device), mine.y_test.to(self.device))

    def _accuracy_pair(self, result: Result, client: int) -> tuple[float, float]:
        own = self._accuracy(result.keep["model"].detach().contiguous(), client)
        if result.start is None:
            return own, float("nan")
        return own, self._accuracy(result.start.detach().contiguous(), client)


def padded(tensors: list[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Tensors of different lengths stacked, zeros behind the shorter ones, and which rows are real.

    The second value is None when all have the same length.
    """
    longest = max(len(tensor) for tensor in tensors)
    if all(len(tensor) == longest for tensor in tensors):
        return torch.stack(tensors), None
    stack = tensors[0].new_zeros((len(tensors), longest, *tensors[0].shape[1:]))
    valid = torch.zeros(len(tensors), longest)
    for place, tensor in enumerate(tensors):
        stack[place, : len(tensor)] = tensor
        valid[place, : len(tensor)] = 1
    return stack, valid
