"""How a question gets to clients: it is checked, charged durably, asked, and what left comes back.

A process that is killed has thus written down what it spent, and nothing is ever asked that noise would not cover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from sordino.bookkeeping import Books
from sordino.client import Question
from sordino.errors import UserError, quoted
from sordino.learning.parameters import Layout
from sordino.message import Message
from sordino.method import Method, Replies, Result
from sordino.privacy.gate import Gate
from sordino.privacy.ledger import Row, attempt
from sordino.privacy.release import Public, Release, Releases, due, same_turns
from sordino.replies import Answers, Sums
from sordino.rounds import OpenRound
from sordino.transcript import Transcript
from sordino.transport import Transport


class Asking:
    """The questions of one run, or of the rest of one."""

    def __init__(
        self,
        method: Method,
        layout: Layout,
        clients: int,
        gate: Gate,
        transport: Transport,
        books: Books,
        transcript: Transcript | None,
    ) -> None:
        """`clients` is how many there are; `transcript` where everything that passes is written down, if anywhere."""
        self._steps = method.steps()
        self._state_names = sorted(method.public_memory(torch.zeros(layout.size), layout))
        self._layers, self._clients = layout.layers, clients
        self._gate, self._transport, self._books, self._transcript = gate, transport, books, transcript
        self.count = 0 if books.restored is None else books.restored.questions
        """How many questions have been asked."""

    def ask(
        self, opened: OpenRound, evaluate: bool, who: Sequence[int], step: Callable[..., Result], message: Message
    ) -> Replies:
        """Charge what `step` sends, run it at the clients `who`, and bring back what left; the round notes it."""
        name, clients = self._known_step(step), self._known_clients(who)
        if not isinstance(message, Mapping):
            raise UserError(f"A method sent {quoted(message)} as its message: a message is a dictionary.")
        releases = due(self._steps[name], opened.number)
        public = Public(message, clients, self._transport.public_states(clients, self._state_names), self._layers)
        self._check(name, releases, clients, opened.number)
        self._gate.check(releases, public)
        # What came to other values when a run was taken up is asked under another number: no coin is used twice.
        number = attempt(self.count, self._books.ledger.attempts(self.count))
        self._expose_states(releases, clients, (number, opened.number, name))
        question = Question(number, opened.number, name, message, clients)
        self.count += 1
        charged: dict[str, Row] = {}

        def charge() -> None:
            about = (question.number, opened.number, name)
            rows = self._books.ledger.charge(releases, *about, self._gate.allowance, public)
            self._books.charge(rows)
            charged.update({row.release: row for row in rows})

        answer = self._transport.ask(question, evaluate, charge)
        self._books.answered(question.number, answer.drawn)
        who = clients if answer.who is None else list(answer.who)
        opened.answers.append((who, answer))
        answered = public if who is clients else replace(public, clients=who)
        if answer.summed:
            return Sums(releases, answer, self._gate, answered)
        noted = None if self._transcript is None else self._transcript.note(question, releases, answered, answer)
        return Answers(releases, charged, answer, self._gate, answered, self._books, noted)

    @property
    def exposes_earlier_rounds(self) -> bool:
        """Whether every question exposes the messages of rounds before it, because clients remember what they sent."""
        return bool(self._state_names)

    def releases(self, step: Callable[..., Result], number: int) -> Releases:
        """What `step` sends in a round."""
        return due(self._steps[self._known_step(step)], number)

    def _known_step(self, step: Callable[..., Result]) -> str:
        name = getattr(step, "__name__", str(step))
        if name not in self._steps:
            raise UserError(f"{name} cannot be asked: it is no step of the method, declared with @sends.")
        return name

    def _known_clients(self, who: Sequence[int]) -> list[int]:
        """The clients that are asked: each once, because each pays once."""
        if not isinstance(who, Iterable):
            raise UserError(f"A method asked {quoted(who)}: name the clients, as fed.sample() does.")
        clients = [int(client) for client in who]
        if not clients:
            raise UserError("A method asked nobody: a question needs at least one client.")
        if len(set(clients)) < len(clients):
            raise UserError("A method asked a client twice in one question: name each client once.")
        if min(clients) < 0 or max(clients) >= self._clients:
            raise UserError(f"A method asked a client that there is not: they are 0 to {self._clients - 1}.")
        return clients

    def _check(self, step: str, releases: Releases, clients: Sequence[int], number: int) -> None:
        """Refuse a question whose noise would not cover it, before anything is charged."""
        summed = any(release.summed for release in releases.values())
        noise = self._gate.allowance.noise
        if summed and noise is not None and len(clients) < noise.minimum_cohort:
            raise UserError(
                f"Round {number + 1} asks {len(clients)} clients, but the noise is shared out over at least "
                f"{noise.minimum_cohort}: the round is given up before anything is used."
            )
        for name, release in releases.items():
            if release.unit == "record" or release.made_of_gradients:
                self._check_turns(step, name, release, clients)

    def _check_turns(self, step: str, name: str, release: Release, clients: Sequence[int]) -> None:
        """Refuse to ask anybody more often for something of its records than was planned for."""
        if release.sources():  # made of gradients that another release takes
            return
        taken = same_turns(self._steps, step, name)
        times = np.sum([self._books.ledger.times(one)[clients] for one in taken], axis=0)
        turns = self._gate.allowance.of_records.turns[clients]
        most = np.minimum(turns, 1) if release.once else turns
        if (times >= most).any():
            place = int(np.argmax(times >= most))
            what = "noisy gradients" if release.made_of_gradients else name
            raise UserError(
                f"{step} asks client {clients[place]} for {what} more often than the {int(most[place])} "
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
