"""The server's side of any federation: rounds, turns, charging, over a transport.

A method's script talks to a `Server`. It charges what a question will cost before anything is asked, so that a process
that is killed has written down what it spent; it puts the question to the clients over its transport, and hands back
what left them. Between rounds it evaluates, notes down and saves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Generator, Tensor

from sordino.client import Question
from sordino.errors import UserError
from sordino.learning.parameters import Layout
from sordino.learning.records import Records
from sordino.message import Message
from sordino.method import Budget, Method, Replies, Result, State
from sordino.privacy.gate import Gate
from sordino.privacy.ledger import Ledger, Row
from sordino.privacy.plan import planned_epsilon
from sordino.privacy.records import RecordPlan
from sordino.privacy.release import Public, Releases, due
from sordino.privacy.views import VIEWS, View
from sordino.replies import Answers, Sums
from sordino.schedule import Schedule, Turns
from sordino.transcript import Transcript
from sordino.transport import Answer, Transport

EXACT = 400
"""About how often the epsilon of records is worked out while a run goes on."""
SAVE_SECONDS = 5.0
"""How much work a simulation that is killed may have to repeat."""


@dataclass(frozen=True)
class Ground:
    """What is public of the data and the network."""

    layout: Layout
    features: int
    classes: int
    public: Records | None
    """Records that belong to no client, where the method judges models on the server."""


@dataclass(frozen=True)
class RoundReport:
    """What a round brought, for people who watch."""

    round: int
    rounds: int
    personal: float
    personal_worst: float
    start: float
    global_: float
    loss: float
    """The mean cross-entropy of the personal models after training."""
    clip: float | None
    cohort: int
    rejected: int
    bytes: int
    seconds: float
    epsilon: dict[View, float]
    """By the accountant that tells the end's figures; `nan` in rounds that leave it out, because it takes time."""
    observer: View
    """From whom the run protects."""
    planned: float | None
    """What that observer's epsilon will be in the end, if all goes as planned; None where nothing was planned."""
    clients: int
    """How many there are; accuracies are those of the `cohort` that took part in this round."""


@dataclass(frozen=True)
class Restored:
    """Where a run that was stopped goes on."""

    state: dict[str, Any]
    rounds: int
    """How many are done."""
    questions: int
    """How many have been asked."""


@dataclass(frozen=True)
class Ending:
    """How a run ended, for whoever sums it up; a method's script has no part in it."""

    now: Restored
    shared: np.ndarray | None
    """Each client's accuracy with the server's model; None where the server has none."""
    stopped: dict[int, int]
    """Clients whose budget did not pay for their next turn, and after which round; zero: they never took part."""
    unreached: list[int]
    """Clients that never had a turn."""


class Books(Protocol):
    """What is kept of a run, durably."""

    ledger: Ledger
    restored: Restored | None

    def charge(self, rows: Sequence[Row]) -> None:
        """Write down rows of the ledger before anything is asked or read for which they pay."""

    def note(self, report: RoundReport, accuracies: Mapping[int, Sequence[float]]) -> None:
        """Note down a round, and each client's accuracies: personal, at round start, with the server's model."""

    def check(self, state: dict[str, Any]) -> None:
        """Refuse a server's state that could not be saved."""

    def save(self, now: Restored) -> None:
        """Make everything so far durable."""


Watch = Callable[[RoundReport], None]


class Server:
    """The federation that a method's script talks to. One instance makes one run, or the rest of one."""

    def __init__(
        self,
        method: Method,
        schedule: Schedule,
        budget: Budget,
        gate: Gate,
        transport: Transport,
        books: Books,
        ground: Ground,
        evaluate_every: int = 1,
        watch: Watch | None = None,
        transcript: Transcript | None = None,
        save_seconds: float | None = None,
    ) -> None:
        """`transcript` is where everything that passes is written down, where somebody wants that; `save_seconds` how
        much work a run that is killed may have to repeat, if not as much as a simulation."""
        self.schedule, self.budget, self.layout = schedule, budget, ground.layout
        self.features, self.classes = ground.features, ground.classes
        self._closed = 0
        self._method, self._gate, self._transport, self._books, self._ground = method, gate, transport, books, ground
        self._evaluate_every, self._watch, self._transcript = evaluate_every, watch, transcript
        self._save_seconds = save_seconds
        self._steps = method.steps()
        self._state_names = sorted(method.public_memory(torch.zeros(ground.layout.size), ground.layout))
        plan = gate.allowance.records
        self._turns = Turns(schedule, gate.source, None if plan is None else plan.turns)
        self._last_round = self._turns.last()
        self._observer: View = "server" if gate.allowance.noise is None else gate.allowance.noise.protect_from
        self._planned = planned_epsilon(gate.allowance, schedule.turns, budget.delta)
        restored = books.restored
        self._next_round = 0 if restored is None else restored.rounds
        self._questions = 0 if restored is None else restored.questions
        self._state = State()
        self._open: _OpenRound | None = None
        self._saved = time.monotonic()

    def state(self, **initial: Any) -> State:
        restored = self._books.restored
        made = restored.state if restored is not None else {n: v() if callable(v) else v for n, v in initial.items()}
        self._state = State(**made)
        return self._state

    def rounds(self, state: State) -> Iterator[int]:
        self._leave()
        self._state = state
        while self._next_round <= self._last_round:
            if not self._turns.of(self._next_round):  # nobody has budget left for it
                self._next_round += 1
                continue
            self._open = _OpenRound(self._next_round, time.monotonic())
            yield self._next_round
            self._close()
            repeated = SAVE_SECONDS if self._save_seconds is None else self._save_seconds
            if time.monotonic() - self._saved > repeated and self._next_round <= self._last_round:
                self._books.save(self._now())
                self._saved = time.monotonic()

    def end(self) -> Ending:
        """What is left once the script has come to its end."""
        self._leave()
        until = self.schedule.rounds if self._next_round > self._last_round else self._next_round
        stopped = self._turns.stopped(until)
        return Ending(self._now(), self._shared_accuracies(self.everyone()), stopped, self._turns.unreached())

    def _now(self) -> Restored:
        """Where the run would go on."""
        return Restored(self._state.__dict__, self._next_round, self._questions)

    def sample(self) -> Sequence[int]:
        return self._turns.of(self._round)

    def everyone(self) -> Sequence[int]:
        return range(self.schedule.clients)

    def ask(self, who: Sequence[int], step: Callable[..., Result], message: Message) -> Replies:
        name, clients = self._known_step(step), self._known_clients(who)
        opened = self._opened
        releases = due(self._steps[name], opened.number)
        public = Public(message, clients, self._transport.public_states(clients, self._state_names), self.layout.layers)
        self._check(name, releases, clients)
        self._gate.check(releases, public)
        self._expose_states(releases, clients, (self._questions, opened.number, name))
        question = Question(self._questions, opened.number, name, message, clients)
        self._questions += 1
        charged: dict[str, Row] = {}

        def charge() -> None:
            about = (question.number, opened.number, name)
            rows = self._books.ledger.charge(releases, *about, self._gate.allowance, public)
            self._books.charge(rows)
            charged.update({row.release: row for row in rows})

        answer = self._transport.ask(question, self._evaluates(opened.number), charge)
        who = clients if answer.who is None else list(answer.who)
        opened.answers.append((who, answer))
        answered = replace(public, clients=who)
        if answer.summed:
            return Sums(releases, answer, self._gate, answered)
        noted = None if self._transcript is None else self._transcript.note(question, releases, answered, answer)
        return Answers(releases, charged, answer, self._gate, answered, self._books, noted)

    def deviation(self, step: Callable[..., Result], release: str, message: Message) -> Tensor:
        releases, who = due(self._steps[self._known_step(step)], self._opened.number), self.sample()
        summed = releases[release].deviation(self._gate.allowance, Public(message, who, {}, self.layout.layers))
        return summed / len(who) ** 0.5

    def judge(self, model: Tensor) -> tuple[float, float]:
        records = self.public()
        return records.learner.loss_and_accuracy(model, records.x, records.y)

    def public(self) -> Records:
        if self._ground.public is None:
            raise UserError(
                "This method needs public records at the server, and there are none: name some with the key `public`."
            )
        return self._ground.public

    def random(self, *purpose: object) -> Generator:
        number = -1 if self._open is None else self._open.number
        return self._gate.source.generator("server", number, *purpose)

    @property
    def record_plan(self) -> RecordPlan:
        return self._gate.allowance.of_records

    def _shared_accuracies(self, clients: Sequence[int]) -> np.ndarray | None:
        """The accuracy of the server's model for each client; None where the server has none."""
        served = self._method.shared_models(self._state, self.schedule.clients)
        if served is None:
            return None
        models, number = served
        found = np.full(len(clients), np.nan)
        mine = number[torch.as_tensor(list(clients), dtype=torch.int64)].numpy()
        for group in np.unique(mine):
            places = np.flatnonzero(mine == group)
            chosen = [clients[int(place)] for place in places]
            found[places] = self._transport.accuracies(chosen, models[int(group)])
        return found

    @property
    def _opened(self) -> _OpenRound:
        if self._open is None:
            raise UserError(
                "A method asks clients within its loop over fed.rounds(...): what it asks before would be asked again, "
                "and paid for again, when a run resumes."
            )
        return self._open

    @property
    def _round(self) -> int:
        return self._opened.number

    def _known_step(self, step: Callable[..., Result]) -> str:
        name = getattr(step, "__name__", str(step))
        if name not in self._steps:
            raise UserError(f"{name} cannot be asked: it is no step of the method, declared with @sends.")
        return name

    def _known_clients(self, who: Sequence[int]) -> list[int]:
        """The clients that are asked: each once, because each pays once."""
        clients = [int(client) for client in who]
        if not clients:
            raise UserError("A method asked nobody: a question needs at least one client.")
        if len(set(clients)) < len(clients):
            raise UserError("A method asked a client twice in one question: name each client once.")
        if min(clients) < 0 or max(clients) >= self.schedule.clients:
            raise UserError(f"A method asked a client that there is not: they are 0 to {self.schedule.clients - 1}.")
        return clients

    def _check(self, step: str, releases: Releases, clients: Sequence[int]) -> None:
        """Refuse a question whose noise would not cover it, before anything is charged."""
        summed = any(release.summed for release in releases.values())
        noise = self._gate.allowance.noise
        if summed and noise is not None and len(clients) < noise.minimum_cohort:
            raise UserError(
                f"Round {self._round + 1} asks {len(clients)} clients, but the noise is shared out over at least "
                f"{noise.minimum_cohort}: the round is given up before anything is used."
            )
        for name in [name for name, release in releases.items() if release.made_of_gradients]:
            times, most = self._books.ledger.times(name)[clients], self.record_plan.turns[clients]
            if (times >= most).any():
                place = int(np.argmax(times >= most))
                raise UserError(
                    f"{step} asks client {clients[place]} for noisy gradients more often than the {int(most[place])} "
                    "times that its budget allows: ask those whom fed.sample() names, once a round."
                )

    def _expose_states(self, releases: Releases, clients: Sequence[int], about: tuple[int, int, str]) -> None:
        """Charge for single messages of which sums will tell, because clients remember what they sent.

        A client's public state is a function of its own messages, their noise included. Where it bounds what the client
        sends, it shows in the noise of the sum. Where a step reads it, what the client sends depends on its share of
        the noise in an earlier sum: later sums tell of that share, and the earlier one hides less than its noise says.
        """
        bounds = {name for release in releases.values() for name in release.bounded_by()}
        summed = any(release.summed for release in releases.values())
        if bounds & set(self._state_names) or (summed and self._state_names):
            self._books.charge(self._books.ledger.expose_all(clients, about))

    def _evaluates(self, number: int) -> bool:
        return (number + 1) % self._evaluate_every == 0 or number == self._last_round

    def _epsilon(self, number: int) -> dict[View, float]:
        """What each observer has learned so far, where this round tells it.

        Figures for records take long: only so many rounds tell them that about `EXACT` are worked out in a run, and
        four rounds of each run at the least.
        """
        ledger = self._books.ledger
        many = len(ledger.recipes()) if ledger.unit == "record" else 1
        every = math.ceil(self.schedule.rounds * min(many / EXACT, 1 / 4)) if ledger.unit == "record" else 1
        if (number + 1) % max(1, every) and number != self._last_round:
            return dict.fromkeys(VIEWS, math.nan)
        return ledger.epsilon(self.budget.delta)

    def _leave(self) -> None:
        """End the round out of which the method broke, if there is one: it counts if anybody was asked in it."""
        if self._open is not None and self._open.answers:
            self._close()
        self._open = None

    def _close(self) -> None:
        """Evaluate and note down the round that has just ended."""
        opened = self._opened
        if not self._closed:  # early enough to lose no more than one round
            self._books.check(self._state.__dict__)
        self._closed += 1
        self._open, self._next_round = None, opened.number + 1
        trained = [(clients, answer) for clients, answer in opened.answers if answer.kept]
        who = [client for clients, _ in trained for client in clients]
        own, start, shared, losses = (np.full(len(who), np.nan) for _ in range(4))
        if self._evaluates(opened.number) and who:
            own, start, *more = np.concatenate([answer.accuracies for _, answer in trained]).T
            losses = more[0] if more else losses
            found = self._shared_accuracies(who)
            shared = shared if found is None else found
        answers = [answer for _, answer in opened.answers]
        report = RoundReport(
            round=opened.number,
            rounds=self.schedule.rounds,
            personal=mean(own),
            personal_worst=worst(own),
            start=mean(start),
            global_=mean(shared),
            loss=mean(losses),
            clip=overall(self._state.__dict__.get("threshold")),
            cohort=len(who),
            rejected=sum(answer.rejected for answer in answers),
            bytes=sum(answer.bytes for answer in answers),
            seconds=time.monotonic() - opened.begun,
            epsilon=self._epsilon(opened.number),
            observer=self._observer,
            planned=self._planned,
            clients=self.schedule.clients,
        )
        evaluated = zip(who, own, start, shared, strict=True) if self._evaluates(opened.number) else ()
        # A client that was asked twice has one row: how it was in the end.
        self._books.note(report, {client: figures for client, *figures in evaluated})
        if self._watch is not None:
            self._watch(report)


@dataclass
class _OpenRound:
    """A round that the script is in the middle of."""

    number: int
    begun: float
    answers: list[tuple[list[int], Answer]] = field(default_factory=list)


def mean(values: np.ndarray) -> float:
    """The mean of the finite values; `nan` when there is none."""
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def worst(values: np.ndarray) -> float:
    """The smallest of the finite values; `nan` when there is none."""
    return float(np.nanmin(values)) if np.isfinite(values).any() else float("nan")


def worst_tenth(values: np.ndarray) -> float:
    """The mean of the smallest tenth of the finite values, at least one; `nan` when there is none."""
    known = np.sort(values[np.isfinite(values)])
    return mean(known[: max(1, round(len(known) / 10))])


def overall(threshold: Mapping[str, Any] | None) -> float | None:
    """The clipping threshold of the next round, all layers together, for people who watch; None where each client has
    its own."""
    if threshold is None or "clip" not in threshold:
        return None
    return float(torch.as_tensor(threshold["clip"], dtype=torch.float64).norm())
