"""A method under test on a few clients, and one round of it with everything recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file
from torch import Tensor

from sordino.assembly import assemble, gate_of, simulate
from sordino.data import FederatedData
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import Prepared, prepare
from sordino.experiment.run import carry_on, register
from sordino.federation.run_state import TransientState
from sordino.federation.transcript import Exchange, Transcript
from sordino.method import Method
from sordino.privacy.release import Release
from sordino.store.store import Store
from sordino.tasks import Regression
from sordino.util.processes import single_threaded

CLIENTS, ROUNDS = 6, 3
NUMBERS = Regression(-4.0, 4.0)
"""Task of the regression on which methods are checked."""


def numbers(folder: Path) -> dict[str, Any]:
    """Write made-up records with numbers to predict, some of them outside their range, and return the keys of an
    experiment on them."""
    random, place = np.random.default_rng(0), folder / "numbers"
    place.mkdir()
    for client in range(CLIENTS):
        x = random.normal(size=(240, 8)).astype(np.float32)
        np.savez(place / f"client-{client}.npz", x=x, y=2 * x[:, 0] - x[:, 1] + random.normal(0, 1, 240))
    return {"data": str(place), "task": NUMBERS.name, "target_range": (NUMBERS.low, NUMBERS.high)}


@dataclass(frozen=True)
class Case:
    """A method under test, and a folder for its runs."""

    method: Method
    folder: Path
    keys: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the experiment that replace the usual ones."""

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
        """Summary and models of a finished run, without keys that may differ between equal runs."""
        opened = Store(store)
        run = register(prepared, opened)
        summary = carry_on(prepared, opened, run)
        models = load_file(opened.path(run) / "models.safetensors")
        opened.close()
        return {key: value for key, value in summary.to_dict().items() if key not in ("run", "seconds")}, models


class OneRound:
    """One round of a method, or several, through server, gate and clients, with everything recorded."""

    def __init__(self, prepared: Prepared, folder: Path, data: FederatedData | None = None, rounds: int = 1) -> None:
        schedule = dataclasses.replace(prepared.schedule, rounds=rounds)
        prepared = dataclasses.replace(prepared, schedule=schedule)
        prepared = prepared if data is None else dataclasses.replace(prepared, data=data)
        folder.mkdir(parents=True, exist_ok=True)
        transcript = Transcript()
        self.ledger = prepared.ledger()
        self.asked = transcript.exchanges
        self.gate = gate_of(prepared)
        run_state = TransientState(self.ledger, transcript=transcript)
        with single_threaded(), simulate(prepared, self.gate, folder) as transport:
            server = assemble(prepared, transport, run_state, gate=self.gate, ground=prepared.ground, evaluate=False)
            server.run_script(prepared.initial)
            self.state = server.end().now.state
            self.clients = transport.engine.clients
            self.memory = dict(transport.memory.states(range(schedule.clients)))
            """Clients' memory at the end, one row each."""

    def releases(self) -> Iterator[tuple[Exchange, str, Release]]:
        """Every release of every question, by name."""
        for asked in self.asked:
            for name, release in self.clients.steps[asked.question.step].items():
                yield asked, name, release


def with_steps(method: Method, change: Callable[[Callable[..., Any]], Callable[..., Any]], *names: str) -> Method:
    """Copy of a method in which the steps called `names` are replaced: `change` maps a step to its replacement."""
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
