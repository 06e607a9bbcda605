"""Running a step at clients: one after the other, or many stacked under `torch.func.vmap`."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from sordino.data import FederatedData
from sordino.errors import UserError
from sordino.method import Message, Method, Result
from sordino.per_example import Bookkeeper
from sordino.privacy.compiled import CompiledSum
from sordino.privacy.gate import Gate, check_declared
from sordino.privacy.gradients import PrivateRecords, validation_records
from sordino.privacy.release import Bare, Gradients, Public, Releases, due
from sordino.simulator.memory import Memory
from sordino.training import Learner, Records

Mode = Literal["stacked", "one-by-one"]
STACK = 50
"""How many clients a stack holds at most: the same for any number of workers, so that results are too."""
STACKED_NUMBERS = 2**25
"""How many parameters a stack holds at most, over all its clients."""
EVALUATED = 2**22
"""How many numbers of test records are evaluated at once."""


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

    def part(self, places: Sequence[int]) -> Work:
        """The same question to those of the clients that stand at `places`."""
        clients, targets = ([row[place] for place in places] for row in (self.clients, self.targets))
        return replace(self, clients=clients, targets=targets)


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


def stack_size(parameters: int) -> int:
    """How many clients with so many parameters each are worked on at once."""
    return max(1, min(STACK, STACKED_NUMBERS // parameters))


def stack_count(clients: int, size: int) -> int:
    """In how many stacks of at most `size` so many clients are trained."""
    stacks = -(-clients // size)
    return stacks + stacks % 2 if clients > 1 else stacks  # an even number keeps two workers equally busy


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
        compiled: CompiledSum | None = None,
    ) -> None:
        self.method, self.learner, self.data, self.gate, self.memory = method, learner, data, gate, memory
        self.mode = mode
        self.device = torch.device(device)
        self.steps: dict[str, Releases] = method.steps()
        self.layers = learner.layout.layers
        self.stack = stack_size(learner.layout.size)
        self.public_names = sorted(method.public_memory(memory.blank["model"], learner.layout))
        self.validation_share = getattr(method, "validation_share", lambda: 0.0)()
        self.bookkeeper = None if gate.record_plan is None else Bookkeeper(learner)
        self.compiled = compiled
        learner.module.to(self.device)

    def units(self, who: Sequence[int]) -> list[list[int]]:
        """Places in `who` in groups that must be worked on together, those with most records first."""
        clients = np.asarray(who)
        by_size = np.lexsort((clients, -self.data.train.sizes[clients]))
        if self.mode == "one-by-one":
            return by_size.reshape(-1, 1).tolist()
        return [part.tolist() for part in np.array_split(by_size, stack_count(len(by_size), self.stack))]

    def work(self, work: Work) -> Answer:
        """Run a step at clients, pass what it sends through the gate, and let them remember."""
        if self.gate.record_plan is not None and len(work.clients) > 1:  # records of different numbers do not stack
            return together([self.work(work.part([place])) for place in range(len(work.clients))])
        message = {
            name: value.to(self.device) if isinstance(value, Tensor) else value for name, value in work.message.items()
        }
        me = {name: rows.to(self.device) for name, rows in self.memory.states(work.clients).items()}
        with self._told_of_vmap():
            done = (self._stacked if self.mode == "stacked" else self._one_by_one)(work, message, me)
        releases = due(self.steps[work.step], work.round)
        wanted = {name: value for name, value in done.sent.items() if name in releases}
        public = Public(work.message, {name: me[name] for name in self.public_names}, self.layers)
        passed = self.gate.passes(releases, wanted, work.clients, work.step, work.round, public)
        accuracies = np.full((len(work.clients), 2), np.nan)
        if done.kept:
            learned = self._learned(len(work.clients), message, me, passed.values)
            self.memory.write(work.clients, work.targets, done.kept | learned)
            if work.evaluate:
                for column, models in enumerate((done.kept.get("model"), done.start)):
                    if models is not None:
                        accuracies[:, column] = self._accuracies(models.detach(), work.clients)
        values = {name: rows.cpu() for name, rows in passed.values.items()}
        return Answer(values, accuracies, passed.rejected, passed.size, bool(done.kept))

    def public_states(self, clients: Sequence[int], names: Collection[str]) -> dict[str, Tensor]:
        """Those of the clients' public states that are asked for, one row per client."""
        wanted = [name for name in self.public_names if name in names]
        states = self.memory.states(clients) if wanted else {}
        return {name: states[name] for name in wanted}

    def accuracies(self, clients: Sequence[int], model: Tensor | None) -> np.ndarray:
        """Each client's test accuracy with `model`, or with its own model when that is None.

        A client that has never taken part has no model of its own: `nan`.
        """
        if model is not None:
            who = np.asarray(clients)
            held = np.stack([self.data.test.starts[who], self.data.test.sizes[who]], axis=1)
            _, first, back = np.unique(held, axis=0, return_index=True, return_inverse=True)  # some share all records
            return self._accuracies(model.to(self.device).unsqueeze(0), who[first].tolist())[back.reshape(-1)]
        found = np.full(len(clients), np.nan)
        taken = np.flatnonzero(self.memory.participations[clients])
        if len(taken):
            mine = [clients[int(place)] for place in taken]
            found[taken] = self._accuracies(self.memory.states(mine)["model"].to(self.device), mine)
        return found

    def _accuracies(self, models: Tensor, clients: Sequence[int]) -> np.ndarray:
        """Each client's test accuracy with its row of `models`, or with the only row."""
        if self.mode == "one-by-one":
            rows = zip(models.expand(len(clients), -1), clients, strict=True)
            return np.array([self._accuracy(flat.contiguous(), client) for flat, client in rows])
        test = self.data.test
        width = max(1, EVALUATED // max(1, int(test.sizes[clients].max()) * test.x[:1].numel()))
        found = []
        for begin in range(0, len(clients), width):
            part = slice(begin, begin + width)
            found.append(self._stacked_accuracies(models if len(models) == 1 else models[part], clients[part]))
        return np.concatenate(found)

    def _accuracy(self, flat: Tensor, client: int) -> float:
        x, y = self.data.test.part(client)
        return self.learner.accuracy(flat, x.to(self.device), y.to(self.device))

    def _stacked_accuracies(self, models: Tensor, clients: Sequence[int]) -> np.ndarray:
        x, y, valid = self.data.test.stacked(clients)
        with self._told_of_vmap():
            logits = self.learner.stacked_logits(models, x.to(self.device))
        right = (logits.argmax(dim=2).cpu() == y).double()
        sizes = self.data.test.sizes[clients]
        whole = (right if valid is None else right * valid).sum(dim=1).numpy()
        return np.where(sizes > 0, whole / np.maximum(sizes, 1), np.nan)

    def _step(self, name: str) -> Callable[..., Result]:
        step: Callable[..., Result] = getattr(self.method, name)
        return step

    def _one_by_one(self, work: Work, message: dict[str, Any], me: dict[str, Tensor]) -> Done:
        results = []
        for place, (client, seed) in enumerate(zip(work.clients, self._seeds(work), strict=True)):
            self._seed_dropout(seed)
            records = self._records(work, client, seed)
            result = self._step(work.step)(message, {name: rows[place] for name, rows in me.items()}, records)
            check_declared(self.steps[work.step], result.send, work.step)
            results.append(result)
        first = results[0]
        return Done(
            sent={name: stack([result.send[name] for result in results]) for name in first.send},
            kept={name: stack([result.keep[name] for result in results]) for name in first.keep},
            start=None if first.start is None else stack([r.start for r in results if r.start is not None]),
        )

    def _records(self, work: Work, client: int, seed: int) -> Records | PrivateRecords:
        """What a step sees of a client's records: all of them, or at record level noisy gradients only."""
        x, y = (tensor.to(self.device) for tensor in self.data.train.part(client))
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
        return PrivateRecords(
            x, y, kept_apart, self.bookkeeper, charge, clip, self.gate.source, purpose, bare, self.compiled
        )

    def _stacked(self, work: Work, message: dict[str, Any], me: dict[str, Tensor]) -> Done:
        x, y, valid = self.data.train.stacked(work.clients)
        x, y = x.to(self.device), y.to(self.device)
        valid = None if valid is None else valid.to(self.device)
        seeds = torch.tensor(self._seeds(work), device=self.device)
        step = self._step(work.step)

        def one(me: Any, x: Tensor, y: Tensor, valid: Tensor | None, seed: Tensor) -> tuple[Any, ...]:
            records = Records(x, y, self.learner, seed, valid, stacked=True)
            result = step(message, me, records)
            check_declared(self.steps[work.step], result.send, work.step)
            return result.send, result.keep, {} if result.start is None else {"start": result.start}

        dims = (0, 0, 0, None if valid is None else 0, 0)
        send, keep, start = vmap(one, in_dims=dims)(me, x, y, valid, seeds)
        return Done(send, keep, start.get("start"))

    @contextlib.contextmanager
    def _told_of_vmap(self) -> Iterator[None]:
        """Turn what torch says of code that `vmap` cannot run, many lines about its own inside, into a sentence."""
        try:
            yield
        except RuntimeError as error:
            if "vmap" not in str(error):
                raise
            stacked = self.mode == "stacked"
            instead = ", or train clients one by one with `--set engine=one-by-one`" if stacked else ""
            raise UserError(
                f"The network {type(self.learner.written).__name__} or the method {type(self.method).__name__} cannot "
                f"be run for many {'clients' if stacked else 'records'} at once: {obstacle(error)}{instead}."
            ) from error

    def _learned(
        self, count: int, message: Message, me: dict[str, Tensor], values: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """What each client may remember of what it has just sent, one row each."""
        if not self.public_names:
            return {}
        learned = []
        for place in range(count):
            public = {name: me[name][place] for name in self.public_names}
            sent = {name: rows[place] for name, rows in values.items()}
            learned.append(self.method.learn(public, message, sent, self.learner.layout))
        return {name: torch.stack([one[name] for one in learned]) for name in learned[0]}

    def _seeds(self, work: Work) -> list[int]:
        """What the order of each client's batches and its dropout depend on."""
        return [key >> 32 for key in self.gate.source.keys(("training", work.step, work.round), work.clients)]

    def _seed_dropout(self, seed: int) -> None:
        """Dropout draws from torch's global stream. `torch.manual_seed` would do, but takes a millisecond."""
        torch.default_generator.manual_seed(seed)
        if self.device.type != "cpu":
            torch.get_device_module(self.device).manual_seed(seed)


def obstacle(error: RuntimeError) -> str:
    """Where and why `vmap` gave up, and what to write instead: the last place outside of torch and of Sordino."""
    inside = (Path(torch.__file__).parent, Path(__file__).parent.parent)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(Path(frame.filename).is_relative_to(folder) for folder in inside)
    ]
    place = f"line {frames[-1].lineno} of {frames[-1].filename} (`{frames[-1].line}`)" if frames else "a line of it"
    if "data-dependent" in str(error):
        return f"{place} decides by the value of a tensor; write it with torch.where"
    return f"at {place} torch says: {str(error).split('. ')[0].splitlines()[0]}; write it without"


def stack(tensors: list[Tensor]) -> Tensor:
    """Tensors as rows, without a copy when there is only one."""
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(tensors)


def together(answers: list[Answer]) -> Answer:
    """Several answers as one, rows in the order in which they come."""
    if len(answers) == 1:
        return answers[0]
    values = {name: torch.cat([answer.values[name] for answer in answers]) for name in answers[0].values}
    accuracies = np.concatenate([answer.accuracies for answer in answers])
    return Answer(values, accuracies, sum(a.rejected for a in answers), sum(a.size for a in answers), answers[0].kept)
