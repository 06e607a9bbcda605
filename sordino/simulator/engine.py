"""Running a step at clients: one after the other, or many stacked under `torch.func.vmap`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from sordino.data import FederatedData
from sordino.method import Message, Method, Result
from sordino.per_example import Bookkeeper
from sordino.privacy.gate import Gate, check_declared
from sordino.privacy.gradients import PrivateRecords, validation_records
from sordino.privacy.release import Bare, Gradients, Public, Releases, due
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
    size: int
    """Bytes that left the clients."""
    kept: bool = True
    """Whether the step left anything behind at the clients."""


@dataclass
class Done:
    """What a step computed at some clients, one row each, before the gate."""

    sent: dict[str, Tensor]
    kept: dict[str, Tensor]
    start: Tensor | None


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
        self.layers = learner.layout.layers
        self.public_names = sorted(method.public_memory(memory.blank["model"], learner.layout))
        self.validation_share = getattr(method, "validation_share", lambda: 0.0)()
        self.bookkeeper = None if gate.record_plan is None else Bookkeeper(learner)
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
        """Run a step at clients, pass what it sends through the gate, and let them remember."""
        if self.gate.record_plan is not None and len(work.clients) > 1:  # records of different numbers do not stack
            pairs = zip(work.clients, work.targets, strict=True)
            return together([self.work(replace(work, clients=[c], targets=[slot])) for c, slot in pairs])
        message = {
            name: value.to(self.device) if isinstance(value, Tensor) else value for name, value in work.message.items()
        }
        states = [self.memory.read(client) for client in work.clients]
        me = {name: torch.stack([state[name] for state in states]).to(self.device) for name in states[0]}
        done = (self._stacked if self.mode == "stacked" else self._one_by_one)(work, message, me)
        releases = due(self.steps[work.step], work.round)
        wanted = {name: value for name, value in done.sent.items() if name in releases}
        public = Public(work.message, {name: me[name] for name in self.public_names}, self.layers)
        passed = self.gate.passes(releases, wanted, work.clients, work.step, work.round, public)
        accuracies = np.full((len(work.clients), 2), np.nan)
        for place, (client, slot) in enumerate(zip(work.clients, work.targets, strict=True)):
            kept = {name: value[place].detach().contiguous() for name, value in done.kept.items()}
            if not kept:
                continue
            self.memory.write(client, slot, kept | self._learned(place, message, me, passed.values))
            if work.evaluate:
                begin = None if done.start is None else done.start[place].detach().contiguous()
                accuracies[place] = (self._accuracy(kept.get("model"), client), self._accuracy(begin, client))
        values = {name: rows.cpu() for name, rows in passed.values.items()}
        return Answer(values, accuracies, passed.rejected, passed.size, bool(done.kept))

    def public_states(self, clients: Sequence[int], names: Collection[str]) -> dict[str, Tensor]:
        """Those of the clients' public states that are asked for, one row per client."""
        wanted = [name for name in self.public_names if name in names]
        states = [self.memory.read(client) for client in clients] if wanted else []
        return {name: torch.stack([state[name] for state in states]) for name in wanted}

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

    def _one_by_one(self, work: Work, message: dict[str, Any], me: dict[str, Tensor]) -> Done:
        results = []
        for place, client in enumerate(work.clients):
            seed = self._seed(work, client)
            torch.manual_seed(seed)  # dropout draws from the global stream
            records = self._records(work, client, seed)
            result = self._step(work.step)(message, {name: rows[place] for name, rows in me.items()}, records)
            check_declared(self.steps[work.step], result.send, work.step)
            results.append(result)
        first = results[0]
        return Done(
            sent={name: torch.stack([result.send[name] for result in results]) for name in first.send},
            kept={name: torch.stack([result.keep[name] for result in results]) for name in first.keep},
            start=None if first.start is None else torch.stack([r.start for r in results if r.start is not None]),
        )

    def _records(self, work: Work, client: int, seed: int) -> Records | PrivateRecords:
        """What a step sees of a client's records: all of them, or at record level noisy gradients only."""
        mine = self.data.clients[client]
        x, y = mine.x.to(self.device), mine.y.to(self.device)
        plan = self.gate.record_plan
        if plan is None:
            return Records(x, y, self.learner, seed)
        assert self.bookkeeper is not None
        trained = [r for r in self.steps[work.step].values() if isinstance(r, Gradients)]
        clip = trained[0].thresholds(work.message, client) if trained else torch.zeros(1)
        charge = plan.charge(client) if trained else (0.0, 0.0, 0)
        purpose = (work.step, work.round, client)
        kept_apart = validation_records(len(y), self.validation_share, self.gate.source, client)
        bare = any(isinstance(release, Bare) for release in self.steps[work.step].values())
        return PrivateRecords(x, y, kept_apart, self.bookkeeper, charge, clip, self.gate.source, purpose, bare)

    def _stacked(self, work: Work, message: dict[str, Any], me: dict[str, Tensor]) -> Done:
        mine = [self.data.clients[client] for client in work.clients]
        x, valid = padded([data.x for data in mine])
        y, _ = padded([data.y for data in mine])
        x, y = x.to(self.device), y.to(self.device)
        valid = None if valid is None else valid.to(self.device)
        seeds = torch.tensor([self._seed(work, client) for client in work.clients], device=self.device)
        step = self._step(work.step)

        def one(me: Any, x: Tensor, y: Tensor, valid: Tensor | None, seed: Tensor) -> tuple[Any, ...]:
            records = Records(x, y, self.learner, seed, valid, stacked=True)
            result = step(message, me, records)
            check_declared(self.steps[work.step], result.send, work.step)
            return result.send, result.keep, {} if result.start is None else {"start": result.start}

        dims = (0, 0, 0, None if valid is None else 0, 0)
        send, keep, start = vmap(one, in_dims=dims)(me, x, y, valid, seeds)
        return Done(send, keep, start.get("start"))

    def _learned(
        self, place: int, message: Message, me: dict[str, Tensor], values: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """What one client may remember of what it has just sent."""
        if not self.public_names:
            return {}
        public = {name: me[name][place] for name in self.public_names}
        sent = {name: rows[place] for name, rows in values.items()}
        return self.method.learn(public, message, sent, self.learner.layout)

    def _seed(self, work: Work, client: int) -> int:
        """What the order of a client's batches and its dropout depend on."""
        return self.gate.source.key("training", work.step, work.round, client) >> 32

    def _accuracy(self, flat: Tensor | None, client: int) -> float:
        if flat is None:
            return float("nan")
        mine = self.data.clients[client]
        return self.learner.accuracy(flat, mine.x_test.to(self.device), mine.y_test.to(self.device))


def together(answers: list[Answer]) -> Answer:
    """Several answers as one, rows in the order in which they come."""
    values = {name: torch.cat([answer.values[name] for answer in answers]) for name in answers[0].values}
    accuracies = np.concatenate([answer.accuracies for answer in answers])
    return Answer(values, accuracies, sum(a.rejected for a in answers), sum(a.size for a in answers), answers[0].kept)


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
