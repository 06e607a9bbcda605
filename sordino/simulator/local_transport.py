"""`Simulation`: the transport to simulated clients; it hands questions to workers and tracks clients' memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

from sordino.errors import MACHINE, UserError
from sordino.federation.client import Question
from sordino.federation.message import Message
from sordino.federation.transport import Answer
from sordino.learning.metrics import ClientMetrics
from sordino.simulator.engine import Engine, Work
from sordino.simulator.memory import Memory
from sordino.util.processes import note_signals


class Team(Protocol):
    """Who does the work of an engine: processes of this machine (`Workers`), or of a cluster (`sordino.cluster.team`).
    The results are the same."""

    @property
    def engine(self) -> Engine:
        """The engine in this process, with the memory of all clients."""

    def work(self, work: Work) -> Answer:
        """Put a question to clients; rows come back in the order in which the question names them."""

    def blend(self, clients: Sequence[int], message: Message) -> Answer:
        """Blended predictors of the clients, one row each; `message` holds the server's models."""

    def accuracies(self, clients: Sequence[int], model: Tensor | None) -> np.ndarray:
        """Each client's test accuracy with `model`, or with its own where that is None."""

    def metrics(self, clients: Sequence[int], model: Tensor | None) -> ClientMetrics:
        """Metrics of `model` on each client's test records, or of the client's own model where that is None."""

    def close(self) -> None:
        """End all processes."""


class Simulation:
    """Clients of which this machine has the data and the memory, wherever their steps are computed."""

    def __init__(
        self,
        workers: Team,
        failed: Callable[[str], None] = lambda sentence: None,
        own: bool = False,
        own_network: bool = False,
    ) -> None:
        """Let `workers` answer for the clients.

        Args:
            workers: The engine and its processes.
            failed: Called with a sentence (without the error's own words) when a step fails at a client, before
                anybody can react to it.
            own: Whether the run uses code of the user's own. Then a lack of files or memory counts as such a failure
                too: nobody knows whether the step or the machine is to blame. So does a `KeyboardInterrupt` that no
                signal has caused.
            own_network: Whether the network is the user's. Evaluation runs no other code of theirs, so that only then
                a lack of files or memory counts as a failure of it.
        """
        self._workers, self._failed, self._own, self._own_network = workers, failed, own, own_network
        self.engine = workers.engine

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.memory.slots)

    @property
    def memory(self) -> Memory:
        """Clients' memory."""
        return self.engine.memory

    def ask(self, question: Question, evaluate: bool, charge: Callable[[], None]) -> Answer:
        charge()
        targets = self.memory.targets(question.clients)
        with self._note_failure(question.step, f" in round {question.round + 1}", own=self._own):
            answer = self._workers.work(Work(question, targets, evaluate))
        if answer.kept:  # a question that leaves nothing behind does not count as taking part
            self.memory.advance(question.clients, targets)
        return answer

    def public_states(self, clients: Sequence[int], names: Collection[str]) -> dict[str, Tensor]:
        states = self.memory.states(clients) if names else {}
        return {name: states[name] for name in names}

    def accuracies(self, clients: Sequence[int], model: Tensor | None) -> np.ndarray:
        with self._note_failure("Evaluation", own=self._own_network):
            return self._workers.accuracies(clients, model)

    def metrics(self, clients: Sequence[int], model: Tensor | None) -> ClientMetrics:
        """Metrics of `model` on each client's test records, or of the client's own model where that is None."""
        with self._note_failure("Evaluation", own=self._own_network):
            return self._workers.metrics(clients, model)

    def blend(self, clients: Sequence[int], message: Message) -> Answer:
        """Blended predictors of the clients, one row each; `message` holds the server's models."""
        with self._note_failure("Blending", own=self._own):
            return self._workers.blend(clients, message)

    @contextlib.contextmanager
    def _note_failure(self, what: str, when: str = "", *, own: bool) -> Iterator[None]:
        """Store that `what` failed at a client, unless the machine or whoever stops the run is to blame; `own` says
        whether it runs code of the user's own."""
        signals: list[int] = []
        try:
            with note_signals(signals) if self._own else contextlib.nullcontext():
                yield
        except BaseException as error:
            excused = MACHINE if not own else ()
            if isinstance(error, excused) or (isinstance(error, KeyboardInterrupt) and (signals or not self._own)):
                raise
            failed, kind = f"{what} failed at a client{when}", type(error).__name__
            self._failed(f"{failed} ({kind})")
            # Whoever catches the former would blame the store's folder; the latter would end the program, or be taken
            # for Ctrl-C.
            if isinstance(error, OSError | MemoryError) or not isinstance(error, Exception):
                raise UserError(f"{failed} ({kind}: {error}).") from error
            raise

    def pieces(self) -> list[list[int]]:
        """All clients, those with most records first, in pieces whose models fit into memory. They depend on the
        clients and their network alone, so that a resumed run finds the same ones."""
        engine = self.engine
        order = [place for unit in engine.units(range(self.clients)) for place in unit]
        size = 2 * engine.stack
        return [order[begin : begin + size] for begin in range(0, len(order), size)]

    def participants(self) -> list[int]:
        """Clients that have taken part, in ascending order."""
        found: list[int] = np.flatnonzero(self.memory.participations).tolist()
        return found

    def personal_models(self, clients: Sequence[int]) -> Iterator[Tensor]:
        """Personal models, one row per client, in pieces that fit into memory."""
        size = self.engine.stack
        for begin in range(0, len(clients), size):
            yield self.memory.states(clients[begin : begin + size])["model"]
