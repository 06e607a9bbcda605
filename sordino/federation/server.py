"""The server's side of any federation: state, rounds, and questions to clients over a transport."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from sordino.errors import UserError, quoted
from sordino.federation.client import Question
from sordino.federation.message import Message, bytes_for
from sordino.federation.replies import Answers, Sums
from sordino.federation.rounds import OpenRound, RoundReport, Watch, mean, overall, worst
from sordino.federation.run_state import Ending, Restored, RunState, Served
from sordino.federation.schedule import Schedule, Turns
from sordino.federation.transport import Fatal, OutOfBudgetError, Transport
from sordino.learning.network import Records
from sordino.learning.parameters import Layout
from sordino.method import Budget, Method, Replies, Result, State
from sordino.parts.averaging import over_rounds
from sordino.privacy.budget.client_level_plan import planned_epsilon
from sordino.privacy.budget.record_level_plan import RecordPlan
from sordino.privacy.gate import Gate
from sordino.privacy.ledger import Row, number_of_attempt
from sordino.privacy.release import Public, Release, Releases, due, same_turns
from sordino.privacy.views import VIEWS, View
from sordino.tasks import Task

EXACT = 400
"""Approximate number of times that the epsilon of records is computed while a run goes on."""
SAVE_SECONDS = 5.0
"""Seconds of work that a simulation that is killed may have to repeat."""


@dataclass(frozen=True)
class Ground:
    """Public facts about the data and the network."""

    layout: Layout
    features: int
    """Numbers in a record."""
    task: Task
    public: Records | None
    """Records that belong to no client, where the method judges models on the server."""


@dataclass(frozen=True)
class Assignment:
    """Everything that a server is told to do before the first round; all of it is public."""

    method: Method
    schedule: Schedule
    budget: Budget
    ground: Ground
    evaluate_every: int | None
    """Rounds from one evaluation to the next; the last round is always evaluated. None: nothing is, not even at the
    end."""
    averages: bool
    """Whether the means of the server's models over the rounds are kept."""


class Asking:
    """The questions of one run, or of the rest of one."""

    def __init__(self, assignment: Assignment, gate: Gate, transport: Fatal, run_state: RunState) -> None:
        method, layout = assignment.method, assignment.ground.layout
        self.steps = method.steps()
        """Releases of each of the method's steps."""
        self._state_names = sorted(method.public_memory(torch.zeros(layout.size), layout))
        self._layers, self._clients = layout.layers, assignment.schedule.clients
        self._gate, self._transport, self._run_state = gate, transport, run_state
        self.count = 0 if run_state.restored is None else run_state.restored.questions
        """Number of questions that have been asked."""

    def ask(self, opened: OpenRound, who: Sequence[int], step: Callable[..., Result], message: Message) -> Replies:
        """Charge what `step` sends, run it at the clients `who`, and bring back what left; the round notes it."""
        name, clients = self._known_step(step), self._known_clients(who)
        if not isinstance(message, Mapping):
            raise UserError(f"A method sent {quoted(message)} as its message: a message is a dictionary.")
        releases = due(self.steps[name], opened.number)
        public = Public(message, clients, self._transport.public_states(clients, self._state_names), self._layers)
        self._check(name, releases, clients, opened.number)
        self._gate.check(releases, public)
        # A question that came to other values when the run was resumed is asked under another number: no coin is used
        # twice.
        number = number_of_attempt(self.count, self._run_state.ledger.attempts(self.count))
        self._expose_states(releases, clients, (number, opened.number, name))
        question = Question(number, opened.number, name, message, clients)
        self.count += 1
        charged: dict[str, Row] = {}

        def charge() -> None:
            if charged:  # another attempt: sites have reserved so many, and refuse more
                self._check(name, releases, clients, opened.number, attempt=True)
            about = (question.number, opened.number, name)
            rows = self._run_state.ledger.charge(releases, *about, self._gate.allowance, public)
            self._run_state.charge(rows)
            charged.update({row.release: row for row in rows})

        answer = self._transport.ask(question, opened.evaluate, charge)
        self._run_state.answered(question.number, answer.drawn)
        who = clients if answer.who is None else list(answer.who)
        opened.answers.append((who, answer))
        opened.received += bytes_for(message, len(clients))
        answered = public if who is clients else replace(public, clients=who)
        if answer.summed:
            return Sums(releases, answer, self._gate, answered)
        transcript = self._run_state.transcript
        recorded = None if transcript is None else transcript.note(question, releases, answered, answer)
        return Answers(releases, charged, answer, self._gate, answered, self._run_state, recorded)

    @property
    def exposes_earlier_rounds(self) -> bool:
        """Whether every question exposes the messages of rounds before it, because clients remember what they sent."""
        return bool(self._state_names)

    def releases(self, step: Callable[..., Result], number: int) -> Releases:
        """Releases of `step` that are due in round `number`."""
        return due(self.steps[self._known_step(step)], number)

    def _known_step(self, step: Callable[..., Result]) -> str:
        name = getattr(step, "__name__", str(step))
        if name not in self.steps:
            raise UserError(f"{name} cannot be asked: it is no step of the method, declared with @sends.")
        return name

    def _known_clients(self, who: Sequence[int]) -> list[int]:
        """Numbers of the clients that are asked: each once, because each pays once."""
        if not isinstance(who, Iterable):
            raise UserError(f"A method asked {quoted(who)}: name the clients, as fed.sample() does.")
        clients = [int(client) for client in who]
        if not clients:
            raise UserError("A method asked nobody: a question needs at least one client.")
        if len(set(clients)) < len(clients):
            raise UserError("A method asked a client twice in one question: name each client once.")
        unknown = [client for client in clients if not 0 <= client < self._clients]
        if unknown:
            raise UserError(f"A method asked the unknown client {unknown[0]}: clients are 0 to {self._clients - 1}.")
        return clients

    def _check(self, step: str, releases: Releases, clients: Sequence[int], number: int, attempt: bool = False) -> None:
        """Refuse a question whose noise would not cover it, before anything is charged.

        Args:
            step: name of the step.
            releases: what it sends.
            clients: clients that are asked.
            number: number of the round.
            attempt: whether this is another attempt at the question.
        """
        summed = any(release.summed for release in releases.values())
        noise = self._gate.allowance.shared
        if summed and noise is not None and len(clients) < noise.minimum_cohort:
            raise UserError(
                f"Round {number + 1} asks {len(clients)} clients, but the noise is shared out over at least "
                f"{noise.minimum_cohort}: the round is given up before anything is used."
            )
        for name, release in releases.items():
            if release.record_level or release.made_of_gradients:
                self._check_turns(step, name, release, clients, attempt)

    def _check_turns(self, step: str, name: str, release: Release, clients: Sequence[int], attempt: bool) -> None:
        """Refuse to ask anybody more often for something of its records than was planned for. Where further attempts
        at questions have used turns up, the run is out of budget."""
        if release.sources():  # made of gradients that another release takes
            return
        taken = same_turns(self.steps, step, name)
        times = np.sum([self._run_state.ledger.times(one, self.count)[clients] for one in taken], axis=0)
        turns = self._gate.allowance.of_records.turns[clients]
        most = np.minimum(turns, 1) if release.once else turns
        if (times >= most).any():
            if attempt or self._asked_again(taken):
                raise OutOfBudgetError
            place = int(np.argmax(times >= most))
            what = "noisy gradients" if release.made_of_gradients else name
            raise UserError(
                f"{step} asks client {clients[place]} for {what} more often than the {int(most[place])} "
                "times that its budget allows: ask those whom fed.sample() names, once a round."
            )

    def _asked_again(self, names: Collection[str]) -> bool:
        """Whether a question was charged for more than once for one of the releases `names`."""
        rows = [row for row in self._run_state.ledger.rows if row.release in names and not row.exposed]
        return len({(row.question, row.release) for row in rows}) < len(rows)

    def _expose_states(self, releases: Releases, clients: Sequence[int], about: tuple[int, int, str]) -> None:
        """Charge for single messages of which sums will tell, because clients remember what they sent.

        A client's public state is a function of its own messages, their noise included. Where it bounds what the client
        sends, it shows in the noise of the sum. Where a step reads it, what the client sends depends on its share of
        the noise in an earlier sum: later sums tell of that share, and the earlier one hides less than its noise says.
        """
        if self._state_names and any(release.summed for release in releases.values()):
            self._run_state.charge(self._run_state.ledger.expose_all(clients, about))


class Server:
    """The federation that a method's script talks to. One instance makes one run, or the rest of one."""

    def __init__(
        self,
        assignment: Assignment,
        gate: Gate,
        transport: Transport,
        run_state: RunState,
        watch: Watch | None = None,
    ) -> None:
        """Begin a run, or go on from the checkpoint of its `run_state`. `watch` is told of each round."""
        self.schedule, self.budget = assignment.schedule, assignment.budget
        ground = assignment.ground
        self.layout, self.features, self.task = ground.layout, ground.features, ground.task
        self._assignment, self._method = assignment, assignment.method
        self._gate, self._run_state, self._watch = gate, run_state, watch
        self._transport = Fatal(transport)
        self._asking = Asking(assignment, gate, self._transport, run_state)
        plan = gate.allowance.records
        self._turns = Turns(self.schedule, gate.source, None if plan is None else plan.turns)
        self._last_round = self._turns.last()
        self._observer = gate.allowance.observer
        self._planned = planned_epsilon(gate.allowance, self.schedule.turns, self.budget.delta)
        restored = run_state.restored
        self._next_round = 0 if restored is None else restored.rounds
        self._averaged = None if restored is None else restored.averaged
        self._state = State()
        self._open: OpenRound | None = None
        self._closed = 0
        self._in_script = False
        self._saved = time.monotonic()

    @property
    def classes(self) -> int:
        return len(self.task.class_names("This method"))

    def state(self, **initial: Any) -> State:
        restored = self._run_state.restored
        made = restored.state if restored is not None else {n: v() if callable(v) else v for n, v in initial.items()}
        self._state = State(**made)
        return self._state

    def rounds(self, state: State) -> Iterator[int]:
        self._transport.check()
        self._leave()
        self._state = state
        while self._next_round <= self._last_round:
            if not self._turns.of(self._next_round):  # nobody has budget left for it
                self._next_round += 1
                continue
            self._open = OpenRound(self._next_round, time.monotonic(), self._evaluates(self._next_round))
            yield self._next_round
            self._close()
            is_due = self._run_state.saves_every_round or time.monotonic() - self._saved > SAVE_SECONDS
            if is_due and self._next_round <= self._last_round:
                self._run_state.save(self._now())
                self._saved = time.monotonic()

    def run_script(self, model: Tensor) -> None:
        """Run the method's script from the initial `model`, or from where it was stopped. A script that has come to its
        end before is not run again: it might go on behind a `break`, or repeat what stands after its rounds."""
        if self._run_state.restored is not None and self._run_state.restored.over:
            self.state()
        else:
            self._in_script = True
            try:
                self._method.run(self, model)
            except (SystemExit, GeneratorExit) as error:  # the program would end as if the run were over
                name, what = type(self._method).__name__, type(error).__name__
                raise UserError(
                    f"The script {name}.run raised {what}({error}) before its run was over: let it return when it is "
                    "done, and raise an error that says what is wrong."
                ) from error
            finally:
                self._in_script = False

    def end(self) -> Ending:
        """Result of a script that has come to its end; a failure at clients is raised again here, even if the script
        caught it. Not for scripts: it has accuracies on clients' raw test records."""
        if self._in_script:
            raise UserError(
                "A script called fed.end(), which tells of clients' raw test records: let it return instead."
            )
        self._transport.check()
        self._leave()
        until = self.schedule.rounds if self._next_round > self._last_round else self._next_round
        stopped = self._turns.stopped(until)
        shared, unreached = self._shared_accuracies(self.everyone()), self._turns.unreached()
        now = replace(self._now(), over=True)
        return Ending(now, self._served(), shared, stopped, unreached, self._as_scheduled())

    def _as_scheduled(self) -> bool:
        """Whether exactly what schedule and declarations said beforehand was charged, whatever clients answered."""
        steps = self._asking.steps
        once = {(step, name) for step, releases in steps.items() for name, one in releases.items() if one.once}
        paid: dict[tuple[int | None, str, str], list[int]] = {}
        read: dict[tuple[str, str], set[int]] = {}
        for row in self._run_state.ledger.rows:
            step, name = row.step, row.release
            if name not in steps.get(step, {}):
                continue
            if row.exposed:
                read.setdefault((step, name), set()).add(row.round)
            else:
                number = None if (step, name) in once else row.round
                paid.setdefault((number, step, name), []).extend(row.clients().tolist())
        turns = {number: sorted(self._turns.of(number)) for number in range(self._last_round + 1)}
        everybody = sorted(set(itertools.chain(*turns.values())))
        wanted: dict[tuple[int | None, str, str], list[int]] = {(None, *name): everybody for name in once}
        for number, who in turns.items():
            leaving = [(step, name) for step in steps for name in due(steps[step], number) if who]
            wanted |= {(number, *name): who for name in leaving if name not in once}
        rounds = {name: {key[0] for key in wanted if key[1:] == name} for name in read}
        unread = {0} if self._asking.exposes_earlier_rounds else set()  # its first question has none before it
        return {key: sorted(who) for key, who in paid.items()} == wanted and all(
            rounds[name] - unread <= read[name] <= rounds[name] for name in read if name not in once
        )

    def _served(self) -> Served | None:
        """The server's models now; None where it has none."""
        found = self._method.shared_models(self._state, self.schedule.clients)
        if found is None:
            return None
        models, clusters = found
        fits = self._averaged is not None and self._averaged.shape == models.shape
        averaged = self._averaged if fits else models  # of no round, or no longer of these models
        return Served(models, clusters, averaged if self._assignment.averages else None)

    def _now(self) -> Restored:
        """The point at which a resumed run would go on."""
        return Restored(self._state.__dict__, self._next_round, self._asking.count, self._averaged)

    def sample(self) -> Sequence[int]:
        return self._turns.of(self._opened.number)

    def everyone(self) -> Sequence[int]:
        return range(self.schedule.clients)

    def ask(self, who: Sequence[int], step: Callable[..., Result], message: Message) -> Replies:
        return self._asking.ask(self._opened, who, step, message)

    def deviation(self, step: Callable[..., Result], release: str, message: Message) -> Tensor:
        releases, who = self._asking.releases(step, self._opened.number), self.sample()
        summed = releases[release].deviation(self._gate.allowance, Public(message, who, {}, self.layout.layers))
        return summed / len(who) ** 0.5

    def judge(self, model: Tensor) -> tuple[float, float]:
        records = self.public()
        return records.learner.loss_and_score(model, records.x, records.y)

    def public(self) -> Records:
        records = self._assignment.ground.public
        if records is None:
            raise UserError(
                "This method needs public records at the server, and there are none: name some with the key `public`."
            )
        return records

    def random(self, *purpose: object) -> Generator:
        number = -1 if self._open is None else self._open.number
        return self._gate.source.generator("server", number, *purpose)

    @property
    def record_plan(self) -> RecordPlan:
        return self._gate.allowance.of_records

    def _shared_accuracies(self, clients: Sequence[int]) -> np.ndarray | None:
        """Each client's accuracy with the server's model; None where the server has none, or nothing is evaluated."""
        if self._assignment.evaluate_every is None:
            return None
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

    def _keep_average(self) -> None:
        """Include the models of the round that has just ended in their mean over the rounds."""
        served = self._method.shared_models(self._state, self.schedule.clients) if self._assignment.averages else None
        if served is not None:
            self._averaged = over_rounds(self._averaged, served[0], self._next_round)

    @property
    def _opened(self) -> OpenRound:
        self._transport.check()
        if self._open is None:
            raise UserError(
                "A method asks clients within its loop over fed.rounds(...): what it asks before would be asked again, "
                "and paid for again, when a run resumes."
            )
        return self._open

    def _evaluates(self, number: int) -> bool:
        every = self._assignment.evaluate_every
        return every is not None and ((number + 1) % every == 0 or number == self._last_round)

    def _epsilon(self, number: int) -> dict[View, float]:
        """Epsilon of each observer so far; `nan` in rounds that leave it out.

        Figures for records take long: they are computed in so many rounds that there are about `EXACT` of them in a
        run, and in at least four.
        """
        ledger = self._run_state.ledger
        every = 1
        if ledger.unit.record_level:
            every = math.ceil(self.schedule.rounds * min(len(ledger.recipes()) / EXACT, 1 / 4))
        if (number + 1) % max(1, every) and number != self._last_round:
            return dict.fromkeys(VIEWS, math.nan)
        return ledger.epsilon_so_far(self.budget.delta)

    def _leave(self) -> None:
        """End the round out of which the method broke, if there is one: it counts if anybody was asked in it."""
        if self._open is not None and self._open.answers:
            self._close()
        self._open = None

    def _close(self) -> None:
        """Evaluate and note down the round that has just ended."""
        opened = self._opened
        if not self._closed:  # early enough to lose no more than one round
            self._run_state.check(self._state.__dict__)
        self._closed += 1
        self._open, self._next_round = None, opened.number + 1
        self._keep_average()
        trained = [(clients, answer) for clients, answer in opened.answers if answer.kept]
        # Clients that keep nothing of a round predict with the server's model.
        asked = trained or [(clients, answer) for clients, answer in opened.answers[-1:]]
        who = [client for clients, _ in asked for client in clients]
        own, start, shared, losses = (np.full(len(who), np.nan) for _ in range(4))
        if opened.evaluate and who:
            own, start, *more = np.concatenate([answer.accuracies for _, answer in asked]).T
            losses = more[0] if more else losses
            found = self._shared_accuracies(who)
            shared = shared if found is None else found
            own = own if trained else shared
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
            cohort=len(set(who)),
            rejected=sum(answer.rejected for answer in answers),
            bytes=sum(answer.bytes for answer in answers),
            seconds=time.monotonic() - opened.begun,
            epsilon=self._epsilon(opened.number),
            observer=self._observer,
            planned=self._planned,
            clients=self.schedule.clients,
            received=opened.received,
        )
        evaluated = zip(who, own, start, shared, strict=True) if opened.evaluate else ()
        # A client that was asked twice has one row: how it was in the end.
        self._run_state.note(report, {client: figures for client, *figures in evaluated})
        if self._watch is not None:
            self._watch(report)
