"""Workers on a cluster that share the work of one run.

They live as long as a session of the run. Each has the clients' data, which a node keeps once for all of its workers,
and is given a few units of clients at a time; a worker that is free takes the next ones. What clients remember, ledger
and checkpoints stay with the process that runs the method's script: a unit whose worker died is computed again by
another one, with the same noise, and nobody has seen anything of the first attempt.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from sordino.assembly import simulate
from sordino.cluster.connection import Cluster, PerRun, check, connected
from sordino.cluster.node import About, Worker, prepared_for_nodes
from sordino.cluster.packing import pack, unpack
from sordino.errors import UserError, WorkerError
from sordino.experiment.identity import describe_machine
from sordino.experiment.prepare import Prepared
from sordino.experiment.run import Host, on_this_machine
from sordino.federation.message import Message
from sordino.federation.transport import Answer, HostingTransport
from sordino.learning.metrics import ClientMetrics
from sordino.privacy.gate import Gate
from sordino.simulator.choice import why_not_on_cluster
from sordino.simulator.engine import Engine, Work
from sordino.simulator.local_transport import Simulation
from sordino.simulator.serving import EVALUATIONS, Figures
from sordino.simulator.workers import joined
from sordino.version import VERSION

PARTS = 4
"""Parts of a question for each worker: few messages, and yet nobody waits long for the slowest."""
NUMBERS = 2**26
"""Most parameters of all clients of a part, whose models may have to be sent along."""
ATTEMPTS = 4
"""Workers that may die over one part, after which it is to blame."""
PATIENCE = 300.0
"""Seconds to wait for a worker where there is none."""


@dataclass
class _Part:
    """Units of one question that a worker computes together."""

    numbers: list[int]
    """Numbers of the units within the question."""
    attempts: int = 0
    lends: bool = False
    """Whether what their clients remember is sent along."""


@dataclass(frozen=True)
class _Asked:
    """A question that is being computed."""

    kind: str
    question: Any
    """Reference to the question, which every node fetches once."""
    units: list[list[int]]
    """Units as the worker takes them: places in the question, or clients."""
    clients: list[list[int]]
    """Clients of each unit."""
    here: Callable[[int], Any]
    """Computes one unit in this process."""
    results: dict[int, tuple[Any, dict[str, Tensor]]] = field(default_factory=dict)
    """Result of each unit and what its clients keep."""


class ClusterTeam:
    """An engine's work, divided among workers on a cluster; the same answers as the engine alone."""

    def __init__(self, cluster: Cluster, engine: Engine, prepared: Prepared, count: int) -> None:
        """Have `count` workers work for the clients of a prepared experiment."""
        self.engine = engine
        self._ray, self._count = cluster.ray, count
        gpus = 0 if prepared.experiment.device == "cpu" else 1
        # Nothing is restarted or repeated by Ray itself: who died, and what is computed again, is decided here.
        options: dict[str, Any] = {"num_cpus": 1, "num_gpus": gpus, "max_restarts": 0, "max_task_retries": 0}
        self._make: Any = self._ray.remote(Worker).options(**options, scheduling_strategy="SPREAD")
        self._packed = self._ray.put(prepared_for_nodes(prepared))
        self._machine = describe_machine(prepared.experiment.device)
        self._starting: dict[Any, Any] = {}
        self._idle: list[Any] = []
        self._busy: dict[Any, tuple[Any, _Part]] = {}
        self._lends: set[tuple[str, str]] = set()
        """Kinds of question, and their steps, that look at what clients remember."""
        self._left_out: dict[str, str] = {}
        """Reason for each node whose workers are not used."""
        for _ in range(count):
            self._start()

    def work(self, work: Work) -> Answer:
        question = work.question
        units = self.engine.units(question.clients, question.step)
        clients = [[question.clients[place] for place in unit] for unit in units]

        def here(number: int) -> Answer:
            return self.engine.work(work.part(units[number]))

        found = self._computed("work", question.step, (work, {}), units, clients, here)
        for unit, who, (_, kept) in zip(units, clients, found, strict=True):
            if kept:
                self.engine.memory.write(who, [work.targets[place] for place in unit], kept)
        return joined([answer for answer, _ in found], units)

    def blend(self, clients: Sequence[int], message: Message) -> Answer:
        units = self.engine.units(clients)
        named = [[clients[place] for place in unit] for unit in units]

        def here(number: int) -> Answer:
            return self.engine.blend(named[number], message)

        found = self._computed("blend", "", (message, {}), named, named, here)
        return joined([answer for answer, _ in found], units)

    def accuracies(self, clients: Sequence[int], model: Tensor | None) -> np.ndarray:
        return np.concatenate(self._evaluated("accuracies", clients, model))

    def metrics(self, clients: Sequence[int], model: Tensor | None) -> ClientMetrics:
        return ClientMetrics.joined(self._evaluated("metrics", clients, model))

    def _evaluated(self, figures: Figures, clients: Sequence[int], model: Tensor | None) -> list[Any]:
        """Figures of each unit of clients, in order."""
        size = self.engine.stack
        units = [list(clients[begin : begin + size]) for begin in range(0, len(clients), size)]

        def here(number: int) -> Any:
            return EVALUATIONS[figures](self.engine, units[number], model)

        question = ({}, {}) if model is None else ({"model": "model"}, {"model": model})
        return [one for one, _ in self._computed(figures, "", question, units, units, here)]

    def close(self) -> None:
        for worker in (*self._starting.values(), *self._idle, *(worker for worker, _ in self._busy.values())):
            with contextlib.suppress(Exception):  # the cluster itself may be gone
                self._ray.kill(worker)
        self._starting, self._idle, self._busy = {}, [], {}

    def _computed(
        self,
        kind: str,
        step: str,
        question: tuple[Any, dict[str, Tensor]],
        units: list[list[int]],
        clients: list[list[int]],
        here: Callable[[int], Any],
    ) -> list[tuple[Any, dict[str, Tensor]]]:
        """Result of each unit of a question and what its clients keep, in order.

        Args:
            kind: Kind of question (`serving.KINDS`).
            step: Its step.
            question: The question and the tensors that it names.
            units: Its units, as workers take them.
            clients: Clients of each unit.
            here: Computes one unit in this process.
        """
        asked = _Asked(kind, self._ray.put(pack(question)), units, clients, here)
        most = max(1, NUMBERS // (self.engine.stack * self.engine.clients.learner.layout.size))
        size = max(1, min(most, -(-len(units) // (PARTS * self._count))))
        parts = [list(range(len(units)))[begin : begin + size] for begin in range(0, len(units), size)]
        waiting = collections.deque(_Part(part, lends=(kind, step) in self._lends) for part in parts)
        while len(asked.results) < len(units):
            while waiting and self._idle:
                self._give(asked, self._idle.pop(), waiting.popleft())
            for worker, part, reply in self._next():
                again = self._taken(asked, worker, part, reply)
                if again is not None:
                    if again.lends:
                        self._lends.add((kind, step))
                    waiting.append(again)
        return [asked.results[number] for number in range(len(units))]

    def _give(self, asked: _Asked, worker: Any, part: _Part) -> None:
        """Give a part of a question to a worker."""
        memory = self.engine.memory
        who = [client for number in part.numbers for client in asked.clients[number]]
        participations = dict(zip(who, memory.participations[who].tolist(), strict=True))
        took_part = [client for client, times in participations.items() if times]
        states = memory.read(took_part) if part.lends and took_part else {}
        packed = pack(([asked.units[number] for number in part.numbers], participations, states))
        self._busy[worker.work.remote(asked.kind, asked.question, packed)] = (worker, part)

    def _next(self) -> Iterator[tuple[Any, _Part, Any]]:
        """Wait until somebody answers; yields worker, part and answer, None where it died. New workers become idle."""
        there = [*self._busy, *self._starting]
        done, _ = self._ray.wait(there, num_returns=1, timeout=PATIENCE if not self._busy else None)
        if not done:
            raise WorkerError(
                f"No worker of the cluster has started within {PATIENCE:.0f} s: `ray status` says what it waits for."
            )
        for reference in done:
            if reference in self._starting:
                self._begin(self._starting.pop(reference), reference)
                continue
            worker, part = self._busy.pop(reference)
            try:
                reply = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                if isinstance(error, self._ray.exceptions.RayTaskError):
                    raise WorkerError(f"A worker of the cluster failed: {_last_line(error)}.") from error
                reply = None
            yield worker, part, reply

    def _taken(self, asked: _Asked, worker: Any, part: _Part, packed: Any) -> _Part | None:
        """Take the answer of a worker; returns the part if it must be given out again.

        A unit that failed there is tried once more here: what went wrong is then raised as it is.
        """
        if packed is None:  # it died, with its node or alone
            self._start()
            if part.attempts + 1 == ATTEMPTS:
                raise WorkerError(
                    f"{ATTEMPTS} workers of the cluster died while they computed the same clients, perhaps for lack of "
                    "memory. Run on nodes with more memory."
                )
            return replace(part, attempts=part.attempts + 1)
        self._idle.append(worker)
        said, *content = unpack(packed)
        if said == "lend":
            return replace(part, lends=True)
        if said == "done":
            asked.results.update(zip(part.numbers, content[0], strict=True))
            return None
        number, what, machine = content
        asked.here(part.numbers[number])
        if machine:
            raise WorkerError(f"A worker of the cluster failed ({what}) where this process did not.")
        raise UserError(
            f"A worker of the cluster failed ({what}) where this process did not: what is done at a client must follow "
            "from its message, memory and records alone. Let it draw no random numbers of its own."
        )

    def _start(self) -> None:
        """Have the cluster start a worker, wherever there is room; it may have to wait."""
        worker = self._make.remote(self._packed)
        self._starting[worker.about.remote()] = worker

    def _begin(self, worker: Any, reference: Any) -> None:
        """Take a worker that has started into the team, unless it would not compute bit-identical results."""
        try:
            about: About = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise UserError(f"A worker of the cluster could not start: {_last_line(error)}") from error
        except self._ray.exceptions.RayError as error:
            if isinstance(error, self._ray.exceptions.ActorDiedError) and "__init__" in str(error):
                raise UserError(f"A worker of the cluster could not start: {_last_line(error)}") from error
            self._start()  # its node is gone
            return
        if about.version == VERSION and about.machine == self._machine:
            self._idle.append(worker)
            return
        self._ray.kill(worker)
        self._left_out[about.node] = about.machine if about.version == VERSION else about.version
        if not (self._starting or self._idle or self._busy):
            raise UserError(
                f"The nodes {', '.join(sorted(self._left_out))} are of another kind than this machine (processor, or "
                "versions of Python, torch and NumPy), and would not compute bit-identical results: give the command "
                "on a machine of their kind, with the same installation."
            )


def _last_line(error: BaseException) -> str:
    """The last line of what Ray says of an error on a node: the error itself."""
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)


@contextlib.contextmanager
def hosting(address: str, prepared: Prepared) -> Iterator[tuple[Host, str]]:
    """Where the clients of a prepared experiment are worked for if a cluster may do it: the maker of the transport, and
    a sentence on the choice. The cluster is asked for as long as the block lasts."""
    check(address)
    asked = prepared.experiment.workers
    why = None
    if asked is None:
        learner, cohort = prepared.learner, prepared.schedule.cohort
        why = why_not_on_cluster(prepared.method, learner, prepared.data, cohort, prepared.choice.engine)
    if why is not None:
        yield on_this_machine, why
        return
    with connected(address) as cluster:
        yield host_on(cluster, asked), f"Clients are divided among workers on the nodes of the cluster {address}."


def host_by_rule(address: str) -> Host:
    """Maker of the transport to a run's clients where a cluster may do the work, and the choice follows by rule."""

    @contextlib.contextmanager
    def host(prepared: Prepared, gate: Gate, folder: Path, failed: Callable[[str], None]) -> Iterator[HostingTransport]:
        with hosting(address, prepared) as (chosen, _), chosen(prepared, gate, folder, failed) as transport:
            yield transport

    return host


def host_on(cluster: Cluster, workers: int | None = None) -> Host:
    """Maker of the transport to a run's clients on a cluster, with at most so many `workers`; by default as many as
    there is room for, and clients in a round."""

    def host(
        prepared: Prepared, gate: Gate, folder: Path, failed: Callable[[str], None]
    ) -> contextlib.AbstractContextManager[Simulation]:
        room = cluster.room(PerRun(1, 0 if prepared.experiment.device == "cpu" else 1))
        count = max(1, min(room, prepared.schedule.cohort, workers or room))
        return simulate(
            prepared,
            gate,
            folder,
            failed=failed,
            team=lambda engine: ClusterTeam(cluster, engine, prepared, count),
        )

    return host
