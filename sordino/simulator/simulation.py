"""The transport of a simulation: worker processes, and a file for what clients remember."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
from torch import Tensor

from sordino.errors import MACHINE, UserError
from sordino.federation.client import Question
from sordino.federation.message import Message
from sordino.federation.transport import Answer
from sordino.learning.metrics import Reached
from sordino.simulator.engine import Work
from sordino.simulator.workers import Workers


class Simulation:
    """Clients on this machine."""

    def __init__(
        self, workers: Workers, failed: Callable[[str], None] = lambda sentence: None, own: bool = False
    ) -> None:
        """`failed` is called with a sentence (without the error's own words) when a client's part of a round fails,
        before anybody can react to it. With `own` code a lack of files or memory counts as such a failure too: nobody
        knows whether the step or the machine is to blame."""
        self._workers, self._memory, self._failed = workers, workers.engine.memory, failed
        self._excused = (KeyboardInterrupt,) if own else (KeyboardInterrupt, *MACHINE)
        self.clients = len(self._memory.slots)

    def ask(self, question: Question, evaluate: bool, charge: Callable[[], None]) -> Answer:
        charge()
        targets = self._memory.targets(question.clients)
        try:
            answer = self._workers.work(Work(question, targets, evaluate))
        except self._excused:
            raise
        except BaseException as error:
            what = type(error).__name__
            self._failed(f"{question.step} failed at a client in round {question.round + 1} ({what})")
            if isinstance(error, OSError | MemoryError):  # not of the store, whose folder whoever catches it names
                raise UserError(f"The step {question.step} failed at a client ({what}: {error}).") from error
            raise
        if answer.kept:  # a question that leaves nothing behind is no participation
            self._memory.advance(question.clients, targets)
        return answer

    def public_states(self, clients: Sequence[int], names: Collection[str]) -> dict[str, Tensor]:
        states = self._memory.states(clients) if names else {}
        return {name: states[name] for name in names}

    def accuracies(self, clients: Sequence[int], model: Tensor | None) -> np.ndarray:
        return self._workers.accuracies(clients, model)

    def metrics(self, clients: Sequence[int], model: Tensor | None) -> Reached:
        """What clients reach with `model`, or each with its own when that is None."""
        return self._workers.metrics(clients, model)

    def blend(self, clients: Sequence[int], message: Message) -> Answer:
        """What clients predict with in the end, one row each; `message` holds the server's models."""
        return self._workers.blend(clients, message)

    def pieces(self) -> list[list[int]]:
        """All clients, those with most records first, in pieces whose models fit into memory.

        They depend on nothing but the clients and their network: neither do the results.
        """
        engine = self._workers.engine
        order = [place for unit in engine.units(range(self.clients)) for place in unit]
        size = 2 * engine.stack
        return [order[begin : begin + size] for begin in range(0, len(order), size)]

    def participants(self) -> list[int]:
        """The clients that have taken part."""
        found: list[int] = np.flatnonzero(self._memory.participations).tolist()
        return found

    def personal_models(self, clients: Sequence[int]) -> Iterator[Tensor]:
        """What clients predict with, one row each, in pieces that fit into memory."""
        size = self._workers.engine.stack
        for begin in range(0, len(clients), size):
            yield self._memory.states(clients[begin : begin + size])["model"]
