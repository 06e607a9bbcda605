"""A run as it really is, with everything that leaves written down: what the audit attacks.

Server, clients, gate, mechanism and ledger are those of every run, over the simulator in one process; nothing is stored
and nothing is evaluated. The noise is that of an experiment of the same name in another identity, so that an audit
never uses a draw of a run.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.audit.recorder import Watching, WatchingSource
from sordino.experiment.prepare import Prepared
from sordino.experiment.run import clients_of
from sordino.federation.client import Clients, Question
from sordino.federation.rounds import RoundReport
from sordino.federation.run_state import Restored
from sordino.federation.server import Server
from sordino.federation.transcript import Exchange, Transcript
from sordino.federation.transport import Answer, Transport
from sordino.method import Method
from sordino.privacy.gate import Gate
from sordino.privacy.ledger import Ledger, Row
from sordino.privacy.noise import Seeded
from sordino.simulator.engine import Engine
from sordino.simulator.memory import Memory
from sordino.simulator.simulation import Simulation
from sordino.simulator.workers import Workers
from sordino.util.processes import single_threaded


class StoppedHere(Exception):  # noqa: N818
    """A run is stopped on purpose."""


@dataclass
class MemoryBooks:
    """Books that are kept in memory, for a run that nobody will take up."""

    ledger: Ledger
    restored: Restored | None = None
    stop_after: int | None = None
    """The round after which the run is stopped."""

    def charge(self, rows: Sequence[Row]) -> None:
        """The ledger has them already."""

    def answered(self, question: int, drawn: int) -> None:
        """Nothing to store: nobody will resume the run."""

    def note(self, report: RoundReport, accuracies: Mapping[int, Sequence[float]]) -> None:
        if report.round == self.stop_after:
            raise StoppedHere

    def check(self, state: dict[str, Any]) -> None:
        """Nothing is saved."""

    def save(self, now: Restored) -> None:
        """Nothing is saved."""


@dataclass(frozen=True)
class Unseen:
    """A transport on which nothing is evaluated."""

    of: Simulation

    def ask(self, question: Question, evaluate: bool, charge: Callable[[], None]) -> Answer:
        return self.of.ask(question, False, charge)

    def public_states(self, clients: Sequence[int], names: Collection[str]) -> dict[str, Tensor]:
        return self.of.public_states(clients, names)

    def accuracies(self, clients: Sequence[int], model: Tensor | None) -> np.ndarray:
        return np.full(len(clients), np.nan)


@dataclass(frozen=True)
class Recorded:
    """A run of which everything is known."""

    prepared: Prepared
    gate: Gate
    mechanism: Watching
    source: WatchingSource
    clients: Clients
    transcript: Transcript
    ledger: Ledger
    state: dict[str, Any]
    """What the server ended with."""
    personal: Tensor
    """What each client predicts with in the end, one row each."""
    resumed_at: int | None = None
    """The first question after a resume."""

    @property
    def method(self) -> Method:
        """The method with its choices made."""
        return self.prepared.method

    def exchanges_of(self, client: int) -> list[Exchange]:
        """The questions that a client answered."""
        return [one for one in self.transcript.exchanges if client in one.question.clients]


def other_noise(prepared: Prepared, number: int) -> Seeded:
    """A source whose noise no run and no other audit has."""
    return replace(prepared.source, identity=f"audit {number} of {prepared.identity}")


def record(
    prepared: Prepared,
    number: int = 0,
    stop_after: int | None = None,
    around: Callable[[Transport], Transport] | None = None,
) -> Recorded:
    """Run a prepared experiment and write everything down; `number` names its noise.

    With `stop_after` the run is stopped after that round and taken up again, as one that was killed is. `around` puts
    something between the server and its clients.
    """
    method = prepared.method
    mechanism, source = Watching(prepared.mechanism), WatchingSource(other_noise(prepared, number))
    gate = Gate(prepared.allowance, source, mechanism)
    clients, transcript = clients_of(prepared, gate), Transcript()
    books = MemoryBooks(Ledger(prepared.schedule.clients, method.unit), stop_after=stop_after)
    resumed_at = None
    with simulated(prepared, clients) as (simulation, memory):
        transport: Transport = simulation if around is None else around(simulation)
        server = _server(prepared, gate, transport, books, transcript)
        try:
            method.run(server, prepared.initial)
        except StoppedHere:
            now = server.end().now
            resumed_at = now.questions
            books = MemoryBooks(books.ledger, restored=now)
            server = _server(prepared, gate, transport, books, transcript)
            method.run(server, prepared.initial)
        state = server.end().now.state
        personal = memory.states(range(prepared.schedule.clients)).get("model", torch.zeros(0))
    return Recorded(prepared, gate, mechanism, source, clients, transcript, books.ledger, state, personal, resumed_at)


@contextlib.contextmanager
def simulated(prepared: Prepared, clients: Clients) -> Iterator[tuple[Unseen, Memory]]:
    """The way to clients on this machine, and what they remember, for as long as a run takes."""
    method, layout = prepared.method, prepared.learner.layout
    blank = method.memory(prepared.initial) | method.public_memory(prepared.initial, layout)
    with tempfile.TemporaryDirectory() as folder, single_threaded():
        memory = Memory(Path(folder), blank, prepared.schedule.clients)
        try:
            yield Unseen(Simulation(Workers(Engine(clients, memory), 1))), memory
        finally:
            memory.close()


def _server(prepared: Prepared, gate: Gate, transport: Transport, books: MemoryBooks, transcript: Transcript) -> Server:
    every = prepared.schedule.rounds  # nothing is evaluated in between
    return Server(
        prepared.method,
        prepared.schedule,
        prepared.budget,
        gate,
        transport,
        books,
        prepared.ground,
        every,
        transcript=transcript,
    )
