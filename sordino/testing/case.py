"""A method under test on a few clients, and one round of it with everything written down."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file
from torch import Tensor

from sordino.data import FederatedData
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import Prepared, prepare
from sordino.experiment.run import carry_on, clients_of, register
from sordino.federation.client import Question
from sordino.federation.rounds import RoundReport
from sordino.federation.run_state import Restored
from sordino.federation.server import Server
from sordino.federation.transport import Answer
from sordino.method import Method
from sordino.privacy.gate import Gate
from sordino.privacy.ledger import Ledger, Row
from sordino.privacy.release import Public, Release
from sordino.simulator.engine import Engine
from sordino.simulator.memory import Memory
from sordino.simulator.simulation import Simulation
from sordino.simulator.workers import Workers
from sordino.store.store import Store
from sordino.util.processes import single_threaded

CLIENTS, ROUNDS = 6, 3


@dataclass(frozen=True)
class Case:
    """A method under test, and a folder for its runs."""

    method: Method
    folder: Path
    keys: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the experiment that differ from the usual ones."""

    def prepared(self, data: FederatedData | None = None, **keys: Any) -> Prepared:
        """The method on a few clients of the built-in digits, ready to start."""
        usual = {
            "clients": CLIENTS,
            # Clients of one size pay alike, which is quicker to work out.
            "partition": "iid" if self.method.unit.record_level else "dirichlet:1",
            "model": "logistic",
            "rounds": ROUNDS,
            "noise_multiplier": 2.0,
            "workers": 1,
            "store": self.folder,
            "method": "local",
        }
        experiment = Experiment.make(usual | dict(self.keys) | keys)
        return prepare(experiment, data, method=dataclasses.replace(self.method, epochs=1, batch=80))

    def finished(self, prepared: Prepared, store: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The summary and the models of a run, without what may differ between equal runs."""
        opened = Store(store)
        run = register(prepared, opened)
        summary = carry_on(prepared, opened, run)
        models = load_file(opened.path(run) / "models.safetensors")
        opened.close()
        return {key: value for key, value in summary.to_dict().items() if key not in ("run", "seconds")}, models


@dataclass(frozen=True)
class Asked:
    """A question, what came of it, and what bounds depended on."""

    question: Question
    answer: Answer
    public: Public


class OneRound:
    """One round of a method, or several, through server, gate and clients, with everything written down."""

    def __init__(self, prepared: Prepared, folder: Path, data: FederatedData | None = None, rounds: int = 1) -> None:
        prepared = prepared if data is None else dataclasses.replace(prepared, data=data)
        method, layout = prepared.method, prepared.learner.layout
        blank = method.memory(prepared.initial) | method.public_memory(prepared.initial, layout)
        folder.mkdir(parents=True, exist_ok=True)
        self.memory = Memory(folder, blank, len(prepared.data.clients))
        self.gate = Gate(prepared.allowance, prepared.source, prepared.mechanism)
        self.clients = clients_of(prepared, self.gate)
        self.asked: list[Asked] = []
        self.ledger = Ledger(len(prepared.data.clients), method.unit)
        self.restored: Restored | None = None
        self._transport = Simulation(Workers(Engine(self.clients, self.memory), 1))
        schedule = dataclasses.replace(prepared.schedule, rounds=rounds)
        server = Server(method, schedule, prepared.budget, self.gate, self, self, prepared.ground)
        with single_threaded():
            method.run(server, prepared.initial)
            self.state = server.end().now.state

    def ask(self, question: Question, evaluate: bool, charge: Callable[[], None]) -> Answer:
        states = self.public_states(question.clients, self.clients.public_names)
        public = Public(question.message, question.clients, states, self.clients.learner.layout.layers)
        answer = self._transport.ask(question, False, charge)
        self.asked.append(Asked(question, answer, public))
        return answer

    def public_states(self, clients: Sequence[int], names: Any) -> dict[str, Tensor]:
        return self._transport.public_states(clients, names)

    def accuracies(self, clients: Sequence[int], model: Tensor | None) -> np.ndarray:
        return np.full(len(clients), np.nan)

    def charge(self, rows: Sequence[Row]) -> None:
        """The ledger has them already."""

    def answered(self, question: int, drawn: int) -> None:
        """Nothing to store: values are not compared."""

    def note(self, report: RoundReport, accuracies: Mapping[int, Sequence[float]]) -> None:
        """Nothing is kept of a round."""

    def check(self, state: dict[str, Any]) -> None:
        """Nothing is kept of it."""

    def save(self, now: Restored) -> None:
        """Nothing is saved."""

    def releases(self) -> Iterator[tuple[Asked, str, Release]]:
        """Everything that the method asked for, by name."""
        for asked in self.asked:
            for name, release in self.clients.steps[asked.question.step].items():
                yield asked, name, release


def with_steps(method: Method, change: Callable[[Callable[..., Any]], Callable[..., Any]], *names: str) -> Method:
    """The method with some of its steps changed: `change` maps a step to what runs in its place."""
    changed = {}
    for name in names:
        original = getattr(type(method), name)
        step = change(original)
        step.__name__ = name
        step.releases = original.releases  # type: ignore[attr-defined]
        changed[name] = step
    kind = type(f"Changed{type(method).__name__}", (type(method),), changed)
    made: Method = kind(**{f.name: getattr(method, f.name) for f in dataclasses.fields(method) if f.init})
    return made
