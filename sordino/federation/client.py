"""A client's part of a round: step -> gate -> learn -> keep.

The simulator calls `Clients.answer` for one client or for a stack of them; a real site calls it for itself. It returns
what has passed the gate, and the clients' new memory. Evaluation is separate.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sordino.data import FederatedData
from sordino.data.dataset import Split
from sordino.errors import UserError
from sordino.federation import message as messages
from sordino.federation.message import Message
from sordino.federation.purity import Surroundings
from sordino.learning.network import Learner, Records
from sordino.learning.per_record import Keeper
from sordino.learning.singles import PersonKeeper
from sordino.method import Method, Result, check_returned, result_of
from sordino.models.tokens import examples
from sordino.privacy.clipping import CompiledSum
from sordino.privacy.gate import Gate, Passed, check_declared
from sordino.privacy.gradients import BlankRecords, PrivateRecords, Stack, Units, validation_records
from sordino.privacy.noise import Covered
from sordino.privacy.release import Public, Releases, due, takes_gradients_alone
from sordino.privacy.sealed import Sealed
from sordino.tasks import Task

STEP, HISTOGRAM, MODEL = "evaluation", "histogram", "global"
"""Name of the step in which test records are counted (`sordino.federation.evaluation`), of what it sends, and of the
model in its message."""
STACKS_REMEMBERED = 64
"""Number of stacks of clients of which records, or their lengths, are remembered."""
NUMBERS_REMEMBERED = 2**22
"""Most numbers in the records of stacks that are remembered: they may be copies."""


@dataclass(frozen=True)
class Question:
    """A question of the server to some clients."""

    number: int
    """Number of the question, unique within the run."""
    round: int
    step: str
    message: Message
    clients: Sequence[int]

    def to(self, places: Sequence[int]) -> Question:
        """Return the question for the clients at `places` only."""
        return replace(self, clients=[self.clients[place] for place in places])


@dataclass(frozen=True)
class Done:
    """Results of a step at some clients, one row each, before the gate."""

    sent: dict[str, Any]
    kept: dict[str, Tensor]
    start: Tensor | None


@dataclass(frozen=True)
class Outcome:
    """Answer of some clients to a question, one row each."""

    passed: Passed
    """Values that leave the clients."""
    kept: dict[str, Tensor]
    """Their new memory, private and public; empty where the step keeps nothing."""
    start: Tensor | None
    """Models with which they began."""
    drawn: int = 0
    """Digest of all noise drawn for the answer (exclusive or of its keys) and of what steps made of noisy gradients; 0
    where noise does not depend on values."""


class UnequalKeepingError(UserError):
    """A step keeps something at some clients and nothing at others, which would reveal something of their data."""

    def __init__(self) -> None:
        super().__init__(
            "A step keeps something at one client and nothing at another, which reveals something of their data: "
            "let it keep everything that `memory` names each time, changed or unchanged."
        )


class Execution(Protocol):
    """A way to run steps and evaluate models: one client after the other, or many stacked."""

    def groups(self, order: np.ndarray, stack: int, kinds: np.ndarray, shared: bool = True) -> list[list[int]]:
        """Split clients into groups that are worked on together.

        Args:
            order: Places of the clients, in the order in which they are to be worked on.
            stack: Largest size of a group.
            kinds: Kind of the client at each place; a group has one kind only.
            shared: Whether the work is worth sharing among processes.
        """

    def run(self, clients: Clients, question: Question, me: Mapping[str, Tensor], public: Public) -> Done:
        """Run a question's step; `me` is the memory of the clients, one row each."""

    def judged(self, clients: Clients, models: Tensor, who: Sequence[int]) -> np.ndarray:
        """Return (clients, 2): each client's test accuracy and mean loss with its row of `models`, or with the
        only row; `nan` where it has no test records."""

    def trained(
        self, clients: Clients, models: Tensor, records: Split, seeds: Sequence[int], method: Method, passes: int
    ) -> Tensor:
        """Train models plainly, without clipping or noise, for what stays at the clients.

        Args:
            clients: clients that train.
            models: flat vectors to start from, one row for each part of `records`.
            records: records of each client.
            seeds: seed of the batches of each client.
            method: its optimizer, rate and batches are those of the training.
            passes: passes over the records.

        Returns:
            The trained models, one row for each part.
        """

    def outputs(self, clients: Clients, models: Tensor, records: Split, parts: Sequence[int]) -> list[Tensor]:
        """Return the logits of models, one tensor (records, outputs) for each.

        Args:
            clients: clients whose network is run.
            models: flat vectors, one row for each of `parts`.
            records: records of all clients.
            parts: place in `records` of the part that each model is run on.
        """


def keeper_of(learner: Learner, records: Split) -> Keeper:
    """Keeper of the units that are protected; a network that cannot be run on one record at a time is refused."""
    keeper = learner.keeper(tuple(records.x.shape[1:]))
    return keeper if records.persons is None else PersonKeeper(learner)


def units_of(records: Split, client: int, device: torch.device) -> Units:
    """Units of a client's training records: its persons, where those are declared, else the records themselves."""
    if records.persons is None:
        x, y = records.part(client)
        return Units(x.to(device), y.to(device))
    places, shares = records.persons.places(client)
    return Units(records.x[places].to(device), records.y[places].to(device), shares.to(device))


class Clients:
    """Clients of a run within one process: method, network, records and gate.

    Method and network are copies: in a simulation the server's script runs in the same process, and nothing that it can
    reach may have seen raw records.
    """

    def __init__(
        self,
        method: Method,
        learner: Learner,
        data: FederatedData,
        gate: Gate,
        execution: Execution,
        device: str = "cpu",
        compiled: CompiledSum | None = None,
        evaluation: Mapping[str, Releases] | None = None,
    ) -> None:
        """`evaluation` has the releases of the step `STEP`, where it is paid for."""
        method, learner = copy.deepcopy(method), learner.copied()
        self.method, self.learner, self.data, self.gate, self.execution = method, learner, data, gate, execution
        self.device = torch.device(device)
        self.steps: dict[str, Releases] = method.steps() | dict(evaluation or {})
        self.public_names = sorted(method.public_memory(torch.zeros(learner.layout.size), learner.layout))
        self._held_out = method.record_needs().held_out
        self._keeper = keeper_of(learner, data.train) if method.unit.record_level else None
        self._compiled = compiled
        self._keeps: dict[str, bool] = {}
        self._records: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
        self._reach: dict[tuple[int, ...], Tensor | None] = {}
        """Records of stacks of clients with their targets, and their `Chain.reach`."""
        self._kind: type[PrivateRecords] = PrivateRecords
        learner.module.to(self.device)
        self._surroundings = Surroundings(method, learner, examples(learner.written, 1, data.shape, 0).to(self.device))

    def answer(self, question: Question, me: Mapping[str, Tensor]) -> Outcome:
        """Run a step at clients that remember `me`, one row each, and pass what it sends through the gate."""
        if question.step == STEP:
            return self._evaluate(question)
        public = self._public(question, me)
        before = self._versions(question.message)
        self.gate.source.take_drawn()  # of a question that failed
        with self.unchanged(f"step {question.step}"):
            done = self.execution.run(self, question, me, public)
            if self._versions(question.message) != before:
                raise UserError(
                    f"The step {question.step} changed its client's records in place, or the server's message, by "
                    "which others are bounded and charged: let it work on a copy."
                )
        releases = due(self.steps[question.step], question.round)
        passed = self.gate.passes(releases, done.sent, question.number, public)
        stolen = sorted(set(done.kept) & set(self.public_names))
        if stolen:
            raise UserError(f"The step {question.step} keeps {stolen[0]}, a public state: only `learn` may write it.")
        odd = [name for name, rows in done.kept.items() if not isinstance(rows, Tensor)]
        if odd:
            raise UserError(f"The step {question.step} keeps {odd[0]}, which is no tensor: clients remember tensors.")
        self._check_keeping(question.step, bool(done.kept))
        kept = done.kept | self._learned(question, releases, public, passed) if done.kept else {}
        return Outcome(passed, kept, done.start, self._drawn(question, passed))

    def unchanged(self, what: str) -> AbstractContextManager[None]:
        """Refuse `what` runs in the block if it changes the method, the network, or where the user wrote them."""
        return self._surroundings.unchanged(what)

    def absent(self, question: Question, me: Mapping[str, Tensor]) -> Outcome:
        """Return a null contribution with all of its noise, for clients whose step failed; their memory stays as it is.

        At record level what leaves is a function of noisy gradients: the step is run once more, on empty records.
        """
        if question.step == STEP:
            return self._evaluate(question, blank=True)
        public, releases = self._public(question, me), due(self.steps[question.step], question.round)
        if self.protects_records:
            nobody = copy.copy(self)
            nobody._kind = BlankRecords
            sent = self.execution.run(nobody, question, me, public).sent
        else:
            widths = {name: release.width(public) or 0 for name, release in releases.items()}
            sent = {name: torch.full((len(public.clients), width), math.nan) for name, width in widths.items()}
        return Outcome(self.gate.passes(releases, sent, question.number, public), {}, None)

    def _evaluate(self, question: Question, blank: bool = False) -> Outcome:
        """Sum the rows of clients' test records that tell how far the message's model errs, and pass the sums through
        the gate. What they send is noise alone where it is to be `blank`.

        Where records are protected, the network is run for one record at a time: none may move another's score.
        """
        task, model = self.learner.task, question.message[MODEL].to(self.device)
        self.gate.source.take_drawn()  # of a question that failed
        parts = []
        for client in question.clients:
            rows = torch.full((1, task.evaluated), math.nan)
            if not blank:
                with self.unchanged("evaluation"):
                    rows = self._rows(task, model, client)
            value: Any = rows
            if self.protects_records:
                value = Sealed(rows, "test", "cells", asked=(question.number, (client,)))
            elif len(rows):
                value = rows.mean(dim=0, keepdim=True)
            else:  # it has none, and contributes nothing but noise
                value = torch.zeros(1, task.evaluated)
            public = Public(question.message, [client], {}, self.learner.layout.layers)
            parts.append(self.gate.passes(self.steps[STEP], {HISTOGRAM: value}, question.number, public))
        values = torch.cat([one.values[HISTOGRAM] for one in parts])
        passed = Passed({HISTOGRAM: values}, sum(one.rejected for one in parts), sum(one.bytes for one in parts))
        return Outcome(passed, {}, None, self._drawn(question, passed))

    def _rows(self, task: Task, model: Tensor, client: int) -> Tensor:
        """(units, entries): the row of each test record of a client; of a person, the mean row of its test records."""
        x, y = (tensor.to(self.device) for tensor in self.data.test.part(client))
        if not len(y):
            return torch.zeros(0, task.evaluated)
        if self._keeper is not None:
            outputs = self._keeper.logits(model, x)
        else:
            outputs = Records(x, y, self.learner, 0).logits(model.contiguous())
        said = task.predict(outputs.detach().double()).cpu().numpy()
        rows = torch.from_numpy(task.evaluation_rows(said, y.cpu().numpy()))
        persons = self.data.test.persons
        if self._keeper is None or persons is None:
            return rows
        whose = torch.from_numpy(persons.codes(client))
        sums = torch.zeros(int(persons.counts[client]), rows.shape[1]).index_add_(0, whose, rows)
        return sums / whose.bincount(minlength=len(sums)).unsqueeze(1)

    def _public(self, question: Question, me: Mapping[str, Tensor]) -> Public:
        """Copy the public states that bounds depend on, so that a step that changes its memory in place does not move
        them."""
        states = {name: me[name].to(self.device, copy=True) for name in self.public_names}
        return Public(question.message, question.clients, states, self.learner.layout.layers)

    def step(self, name: str) -> Callable[..., Result]:
        """Return a step of the method that raises if it sends anything but its declared releases."""
        run: Callable[..., Result] = getattr(self.method, name)

        def checked(message: Message, me: dict[str, Tensor], data: Any) -> Result:
            result = result_of(self.method, name, run(message, me, data))
            if data.failure is not None:  # the step has caught it, and knows of records without noise
                raise data.failure
            check_declared(self.steps[name], result.send, name)
            return result

        return checked

    @property
    def balanced(self) -> bool:
        """Whether each class counts the same in local training, where a step sees the records themselves."""
        return self.method.class_weight == "balanced" and not self.protects_records

    def records(self, question: Question, place: int, seed: int, public: Public) -> Records | PrivateRecords:
        """Return what a step sees of the client at `place`: all its records, or at record level noisy gradients
        only."""
        client = question.clients[place]
        if self._keeper is None:
            x, y = (tensor.to(self.device) for tensor in self.data.train.part(client))
            return Records(x, y, self.learner, seed, balanced=self.balanced)
        units = units_of(self.data.train, client, self.device)
        releases = self.steps[question.step].values()
        exit = batch = None
        for release in releases:
            thresholds = release.thresholds(public)
            if thresholds is None:
                continue
            clip = thresholds.of(place)
            if release.drawn:
                (batch,) = self.gate.batches(question.number, [client], clip.reshape(1, 1), thresholds.normalised)
            else:
                sizes = self.learner.layout.parts(len(clip)) if thresholds.separate else None
                exit = self.gate.gradients(question.number, client, clip, sizes)
        held_out = validation_records(len(units), self._held_out, self.gate.source, client)
        bare = any(not release.private for release in releases)
        asked = (question.number, (client,))
        return self._kind(units, held_out, self._keeper, exit, bare, self._compiled, batch, asked)

    def stack(self, question: Question, public: Public) -> Stack:
        """Return what a step sees of all clients of a question together; at record level, without validation
        records."""
        assert not self._held_out
        (release,) = (one for one in self.steps[question.step].values() if one.made_of_gradients)
        thresholds = release.thresholds(public)
        assert thresholds is not None
        clips = thresholds.rows.expand(len(question.clients), -1)
        number, together = question.number, tuple(question.clients)
        (x, y, reach), sizes = self._stacked(together), self.data.train.sizes[question.clients].tolist()
        if release.drawn:
            batches = self.gate.batches(number, question.clients, clips, thresholds.normalised)
            return Stack(x, y, sizes, self.learner, None, batches, reach, (number, together))
        exit = self.gate.stacked_gradients(number, question.clients, clips)
        return Stack(x, y, sizes, self.learner, exit, reach=reach)

    def _stacked(self, clients: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the stacked records and targets of clients, and the records' `Chain.reach`. Of some stacks they are
        remembered, because they do not change from round to round: records where they are not too many."""
        found = self._records.get(clients)
        if found is None:
            x, y, _ = self.data.train.stacked(clients)
            found = x.to(self.device), y.to(self.device)
            room = sum(records.numel() for records, _ in self._records.values()) + x.numel() <= NUMBERS_REMEMBERED
            if room and len(self._records) < STACKS_REMEMBERED:
                self._records[clients] = found
        if clients not in self._reach:
            if len(self._reach) >= STACKS_REMEMBERED:
                self._reach.clear()
            assert self.learner.chain is not None
            self._reach[clients] = self.learner.chain.reach(found[0])
        return *found, self._reach[clients]

    def kinds(self, step: str, who: np.ndarray, took_part: np.ndarray) -> np.ndarray:
        """Return the kind of each client: clients of one kind may be stacked for a step.

        At record level, clients of one kind take equally many gradients and have taken part equally often. Where a step
        hands values of single records to the gate, every client is of its own kind.

        Args:
            step: Name of the step.
            who: Numbers of the clients.
            took_part: Number of rounds in which each of them took part.
        """
        if self._keeper is None:
            return np.zeros(len(who), dtype=np.int64)
        if self._held_out or not takes_gradients_alone(self.steps[step]):
            return np.arange(len(who))
        alike = self.gate.allowance.of_records.steps[who] * (np.int64(took_part.max(initial=0)) + 1) + took_part
        if (alike == alike[:1]).all():
            return np.zeros(len(who), dtype=np.int64)
        return np.unique(alike, return_inverse=True)[1]

    def summed_records(self, step: str, who: np.ndarray) -> float | None:
        """Return the expected number of records in the batches over which clients `who` make their sums of gradients in
        a step; None for steps that make none."""
        if not any(release.made_of_gradients and release.drawn for release in self.steps[step].values()):
            return None
        return self.gate.allowance.of_records.expected_records(who.tolist())

    @property
    def protects_records(self) -> bool:
        """Whether steps see records through noisy gradients alone."""
        return self._keeper is not None

    def seeds(self, question: Question) -> list[int]:
        """Return the seed of each client's order of batches and dropout."""
        keys = self.gate.source.keys(("training", question.step, question.round), question.clients)
        return [key >> 32 for key in keys]

    def _check_keeping(self, step: str, keeps: bool) -> None:
        """Refuse a step that keeps something at one time and nothing at another: others would see it in whether a
        client has taken part, and in public states."""
        if self._keeps.setdefault(step, keeps) != keeps:
            raise UnequalKeepingError

    def _learned(self, question: Question, releases: Releases, public: Public, passed: Passed) -> dict[str, Tensor]:
        """Return each client's new public memory, one row each."""
        if not self.public_names:
            return {}
        read = {name: self.gate.read(releases[name], rows, public) for name, rows in passed.values.items()}
        learned = []
        for place in range(len(question.clients)):
            message = messages.for_client(question.message, question.clients[place], self.device)
            state = {name: rows[place] for name, rows in public.states.items()}
            sent = {name: rows[place] for name, rows in read.items()}
            found = self.method.learn(state, message, sent, self.learner.layout)
            learned.append(check_returned(self.method, "learn", found, Mapping))
            if sorted(learned[-1]) != self.public_names:
                raise UserError(f"`learn` must give {self.public_names}, not {sorted(learned[-1])}: see public_memory.")
        return {name: torch.stack([one[name] for one in learned]) for name in learned[0]}

    def _drawn(self, question: Question, passed: Passed) -> int:
        """Digest of the noise of an answer. Where records are protected, a step may make something else of the
        same noisy gradients, which shows in what it sends."""
        found = self.gate.source.take_drawn()
        if found and self.protects_records:
            clients = torch.tensor(list(question.clients)).unsqueeze(1)
            for name, rows in passed.values.items():
                for digest in Covered(rows, [clients], name).digests():
                    found ^= int.from_bytes(digest, "big")
        return found

    def _versions(self, message: Message) -> list[int]:
        """Return torch's version counters of records and message, which change when they are changed in place."""
        looked_at = (self.data.train.x, self.data.train.y, *messages.tensors(message))
        return [0 if tensor.is_inference() else tensor._version for tensor in looked_at]
