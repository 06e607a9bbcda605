"""Assembly of a run: the only place that puts gate, clients, engine, transport, run state and server together.

A simulation, the coordinator of a deployment, its dry run, the audit and the contract battery differ in their transport
and in what they keep of a run; everything else is the same, and is wired here. `simulate` makes the transport of a
machine that has all clients, `assemble` the server over any transport.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from torch import Tensor

from sordino.experiment.identity import is_own_network
from sordino.experiment.prepare import Prepared
from sordino.federation.client import Clients
from sordino.federation.execution import EXECUTIONS
from sordino.federation.rounds import Watch
from sordino.federation.run_state import RunState
from sordino.federation.server import Assignment, Ground, Server
from sordino.federation.transport import Transport
from sordino.privacy.gate import Gate
from sordino.simulator.engine import Engine
from sordino.simulator.local_transport import Simulation, Team
from sordino.simulator.memory import Memory
from sordino.simulator.workers import Workers
from sordino.terms import Terms


def assemble(
    terms: Terms,
    transport: Transport,
    run_state: RunState,
    *,
    gate: Gate,
    ground: Ground,
    watch: Watch | None = None,
    evaluate: bool = True,
) -> Server:
    """Make the server of a run.

    Args:
        terms: What follows from the experiment.
        transport: The way to the clients. Where it keeps their memory, that is restored from the last checkpoint of
            the run, and is part of all later ones.
        run_state: Where the run is kept: ledger, rounds and checkpoints.
        gate: The gate through which answers are read; in a simulation it is the clients' own.
        ground: Public facts about the data and the network.
        watch: Is told of each round.
        evaluate: Whether models are tested, in rounds and at the end.
    """
    run_state.attach(transport.memory)
    assignment = Assignment(
        method=terms.method,
        schedule=terms.schedule,
        budget=terms.budget,
        ground=ground,
        evaluate_every=terms.experiment.evaluate_every if evaluate else None,
        averages=terms.experiment.personal == "blend",
    )
    return Server(assignment, gate, transport, run_state, watch)


@contextlib.contextmanager
def simulate(
    prepared: Prepared,
    gate: Gate,
    folder: Path,
    workers: int = 1,
    failed: Callable[[str], None] = lambda sentence: None,
    team: Callable[[Engine], Team] | None = None,
) -> Iterator[Simulation]:
    """Make clients of a prepared experiment, for as long as a run takes.

    Args:
        prepared: The experiment.
        gate: The exit of all clients.
        folder: Folder of the file with the clients' memory.
        workers: Number of processes, this one included.
        failed: Called with a sentence when a step fails at a client.
        team: Makes who does the work, in the place of so many processes of this machine.
    """
    with contextlib.closing(Memory(folder, blank_of(prepared), prepared.schedule.clients)) as memory:
        engine = engine_of(prepared, gate, memory)
        with contextlib.closing(Workers(engine, workers) if team is None else team(engine)) as made:
            network = is_own_network(str(prepared.experiment.model), prepared.learner.written)
            yield Simulation(made, failed, own=not prepared.repeats, own_network=network)


def blank_of(prepared: Prepared) -> dict[str, Tensor]:
    """Memory of a client that has not taken part in a run yet."""
    method, initial = prepared.method, prepared.initial
    return method.memory(initial) | method.public_memory(initial, prepared.learner.layout)


def engine_of(prepared: Prepared, gate: Gate, memory: Memory) -> Engine:
    """Engine for all clients of a prepared experiment, in one process."""
    return Engine(clients_of(prepared, gate), memory)


def clients_of(prepared: Prepared, gate: Gate) -> Clients:
    """Clients of a prepared experiment, as one process works for them."""
    return Clients(
        prepared.method,
        prepared.learner,
        prepared.data,
        gate,
        EXECUTIONS[prepared.choice.engine],
        prepared.experiment.device,
        prepared.compiled,
        prepared.evaluation,
    )


def gate_of(prepared: Prepared) -> Gate:
    """Gate of a prepared experiment, with the run's own noise."""
    return Gate(prepared.allowance, prepared.source, prepared.mechanism)
