"""A run as it really is, with everything that leaves it recorded: the audit attacks such runs.

Server, clients, gate, mechanism and ledger are those of every run, over the simulator in one process; nothing is stored
and nothing is evaluated. The noise is that of an experiment of the same name in another identity, so that an audit
never uses a draw of a run.
"""

from __future__ import annotations

import contextlib
import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from sordino.assembly import assemble, simulate
from sordino.auditing.recorder import Watching, WatchingSource
from sordino.experiment.prepare import Prepared
from sordino.federation.client import Clients
from sordino.federation.rounds import RoundReport
from sordino.federation.run_state import Restored, TransientState
from sordino.federation.transcript import Exchange, Transcript
from sordino.federation.transport import Transport
from sordino.method import Method
from sordino.privacy.gate import Gate
from sordino.privacy.ledger import Ledger
from sordino.privacy.noise import Seeded
from sordino.simulator.local_transport import Simulation
from sordino.util.processes import single_threaded


class StoppedHere(Exception):  # noqa: N818
    """A run is stopped on purpose."""


@dataclass
class StoppingState(TransientState):
    """State of a run that is stopped after a given round."""

    stop_after: int | None = None
    """The round after which the run is stopped, from zero; None for a run that is not."""

    def note(self, report: RoundReport, accuracies: Mapping[int, Sequence[float]]) -> None:
        if report.round == self.stop_after:
            raise StoppedHere


@dataclass
class LosingState(StoppingState):
    """State of a run that loses the round after which it is stopped: what was charged for it stays charged."""

    saves_every_round: ClassVar[bool] = True
    kept: Restored | None = None
    """Point at which the lost round began; None at the beginning of the run."""

    def save(self, now: Restored) -> None:
        self.kept = copy.deepcopy(now)


@dataclass(frozen=True)
class Recorded:
    """A run of which everything is recorded."""

    prepared: Prepared
    gate: Gate
    mechanism: Watching
    source: WatchingSource
    clients: Clients
    transcript: Transcript
    ledger: Ledger
    state: dict[str, Any]
    """The server's state at the end."""
    personal: Tensor
    """Personal models at the end, one row per client."""
    resumed_at: int | None = None
    """Number of the first question after a resume; None without one."""

    @property
    def method(self) -> Method:
        """The method, with all of its choices made."""
        return self.prepared.method

    def exchanges_of(self, client: int) -> list[Exchange]:
        """Exchanges that a client took part in."""
        return [one for one in self.transcript.exchanges if client in one.question.clients]


def other_noise(prepared: Prepared, number: int) -> Seeded:
    """Source of noise that no run and no other audit uses; `number` tells audits of one experiment apart."""
    return replace(prepared.source, identity=f"audit {number} of {prepared.identity}")


def record(
    prepared: Prepared,
    number: int = 0,
    stop_after: int | None = None,
    around: Callable[[Transport], Transport] | None = None,
    loses: bool = False,
) -> Recorded:
    """Run a prepared experiment and record everything.

    Args:
        prepared: The experiment.
        number: Tells the noise of this run from that of other audits of the experiment.
        stop_after: The run is stopped after this round, and resumed as one that was killed is.
        around: Puts something between the server and its clients.
        loses: The run loses the round after which it is stopped, and asks its questions again, as another attempt.
    """
    mechanism, source = Watching(prepared.mechanism), WatchingSource(other_noise(prepared, number))
    gate, transcript = Gate(prepared.allowance, source, mechanism), Transcript()
    kind = LosingState if loses else StoppingState
    state = kind(prepared.ledger(), None, transcript, stop_after)
    resumed_at = None
    with simulate_alone(prepared, gate) as simulation:
        transport: Transport = simulation if around is None else around(simulation)
        server = assemble(prepared, transport, state, gate=gate, ground=prepared.ground, evaluate=False)
        try:
            server.run_script(prepared.initial)
        except StoppedHere:
            ended_at = server.end().now
            now = state.kept if isinstance(state, LosingState) else replace(ended_at, over=False)  # it has not ended
            resumed_at = ended_at.questions
            state = StoppingState(state.ledger, now, transcript)
            server = assemble(prepared, transport, state, gate=gate, ground=prepared.ground, evaluate=False)
            server.run_script(prepared.initial)
        ended = server.end().now.state
        personal = simulation.memory.states(range(prepared.schedule.clients)).get("model", torch.zeros(0))
        clients = simulation.engine.clients
    return Recorded(prepared, gate, mechanism, source, clients, transcript, state.ledger, ended, personal, resumed_at)


@contextlib.contextmanager
def simulate_alone(prepared: Prepared, gate: Gate) -> Iterator[Simulation]:
    """Make clients in this process, with a memory that is thrown away."""
    with tempfile.TemporaryDirectory() as folder, single_threaded(), simulate(prepared, gate, Path(folder)) as made:
        yield made
