"""Runs are assembled in one place, over any transport, and their state needs no clients' memory."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from helpers import QUICK_KEYS
from test_layers import MODULES

from sordino.api import run
from sordino.assembly import assemble, gate_of, simulate
from sordino.auditing import one_run, replay
from sordino.deploy.server import dry_run
from sordino.deploy.server.questions import Sites
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.experiment.run import register, start
from sordino.federation import server
from sordino.federation.rounds import RoundReport
from sordino.federation.run_state import Restored, RunState, TransientState
from sordino.federation.transport import HostingTransport, Transport
from sordino.privacy.ledger import Ledger, Row
from sordino.report.terminal.progress import Place
from sordino.simulator.local_transport import Simulation
from sordino.store.database import NO_ROWS, _chain
from sordino.store.run_files import RunFiles
from sordino.store.store import Store

WIRED = {
    "sordino.federation.server": "Server",
    "sordino.simulator.engine": "Engine",
    "sordino.simulator.memory": "Memory",
    "sordino.simulator.local_transport": "Simulation",
    "sordino.simulator.workers": "Workers",
}
"""Classes that only the assembly makes objects of, by module."""


def made_in(path: Path) -> Iterator[str]:
    """Classes of WIRED that a file makes objects of."""
    tree = ast.parse(path.read_text())
    imported = {
        one.asname or one.name: one.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for one in node.names
        if WIRED.get(str(node.module)) == one.name
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in imported:
            yield imported[node.func.id]


def test_runs_are_wired_in_one_place() -> None:
    found = {(module, name) for module, path in MODULES.items() for name in made_in(path)}
    assert found == {("assembly", name) for name in WIRED.values()}


def members(protocol: type) -> set[str]:
    """Names that a protocol declares, in its bases too."""
    bases = [base for base in protocol.__mro__ if base is not Protocol and base.__module__.startswith("sordino")]
    return {name for base in bases for name in (*vars(base), *getattr(base, "__annotations__", {})) if name[0] != "_"}


@pytest.mark.parametrize(
    ("kind", "protocol"),
    [
        (Simulation, HostingTransport),
        (Sites, Transport),
        (dry_run._Nobody, Transport),
        (replay._NoTransport, Transport),
        (one_run._Between, Transport),
        (RunFiles, RunState),
        (TransientState, RunState),
    ],
)
def test_every_implementation_has_what_its_protocol_declares(kind: type, protocol: type) -> None:
    """mypy compares the types; this says that nothing is declared that somebody lacks."""
    given_by_constructor = {"ledger", "restored", "transcript", "saves_every_round"}
    assert {name for name in members(protocol) if not hasattr(kind, name)} <= given_by_constructor


def test_a_hosting_transport_declares_all_that_the_end_of_a_run_calls() -> None:
    assert members(Transport) == {"memory", "ask", "public_states", "accuracies"}
    assert members(HostingTransport) - members(Transport) == {
        *("clients", "participants", "personal_models", "metrics", "pieces", "blend"),
    }


def prepared_run(store: Path, **keys: Any) -> Any:
    keys = QUICK_KEYS | {"method": "dp-fedavg", "noise_multiplier": 1.0, "model": "logistic", "store": store} | keys
    return prepare(Experiment.make(keys))


def test_nothing_is_evaluated_where_nobody_wants_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Simulation, "accuracies", lambda *_: 1 / 0)
    prepared = prepared_run(tmp_path)
    asked: list[bool] = []
    original = Simulation.ask

    def noted(self: Simulation, question: Any, evaluate: bool, charge: Callable[[], None]) -> Any:
        asked.append(evaluate)
        return original(self, question, evaluate, charge)

    monkeypatch.setattr(Simulation, "ask", noted)
    gate, run_state = gate_of(prepared), TransientState(Ledger(8))
    with simulate(prepared, gate, tmp_path) as transport:
        made = assemble(prepared, transport, run_state, gate=gate, ground=prepared.ground, evaluate=False)
        made.run_script(prepared.initial)
        assert made.end().shared is None
    assert asked == [False, False]
    assert len(run_state.ledger.rows) == 2


class Spy:
    """Notes down what a watch is told."""

    def __init__(self) -> None:
        self.rounds: list[int] = []
        self.blended: list[tuple[int, int]] = []

    def __call__(self, report: RoundReport) -> None:
        self.rounds.append(report.round)

    def blending(self, done: int, clients: int) -> None:
        self.blended.append((done, clients))


def test_a_watch_is_told_of_rounds_and_of_blending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Simulation, "pieces", lambda self: [[3, 1], [0, 2, 4], [5, 6, 7]])
    spy = Spy()
    start(prepared_run(tmp_path, personal="blend"), watch=spy)
    assert spy.rounds == [0, 1]
    assert spy.blended == [(0, 8), (2, 8), (5, 8)]


def test_a_display_of_the_python_interface_is_told_of_blending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    rounds: list[int] = []
    monkeypatch.setattr(Place, "blending", lambda self, done, clients: told.append((done, clients)))
    keys = QUICK_KEYS | {"method": "dp-fedavg", "noise_multiplier": 1.0, "model": "logistic", "personal": "blend"}
    run(store=tmp_path, watch=lambda report: rounds.append(report.round), **keys)
    assert told[0] == (0, 8)
    assert rounds == [0, 1]


def stopped_run(store: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a run that has been stopped after its third round, with checkpoints of two."""
    monkeypatch.setattr(server, "SAVE_SECONDS", 0)

    def stop(report: RoundReport) -> None:
        if report.round == 2:
            raise KeyboardInterrupt

    keys = QUICK_KEYS | {"method": "dp-fedavg", "noise_multiplier": 1.0, "model": "logistic", "rounds": 5}
    with contextlib.suppress(KeyboardInterrupt):
        run(store=store, watch=stop, **keys)
    (row,) = Store(store).all()
    assert row.rounds_done == 2
    return row.run


def test_a_stored_row_is_linked_once_when_a_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows are in the database, and one, of the round that was not saved, in the journal: it was written on another
    machine than this nameless one, and stays charged."""
    name, store = stopped_run(tmp_path, monkeypatch), Store(tmp_path)
    linked: list[int] = []
    link = Row.link

    def counted(self: Row, *previous: Any) -> bytes:
        linked.append(self.round)
        return link(self, *previous)

    monkeypatch.setattr(Row, "link", counted)
    opened = RunFiles(store, name, store.get(name).identity, Ledger(8))
    opened.close()
    assert linked == [0, 1, 2]
    assert [row.round for row in opened.ledger.rows] == [0, 1, 2]
    assert opened.ledger.links == Ledger(8, rows=opened.ledger.rows).links


def test_a_resumed_ledger_is_compared_with_its_stored_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes the store's digests fit again still has the ledger's links against them."""
    name, store = stopped_run(tmp_path, monkeypatch), Store(tmp_path)
    store._database.execute("update ledger set noise = sensitivity where position = 1")
    store._database.execute("update runs set ledger_chain = ?", (_chain(NO_ROWS, store._database.select("ledger")),))
    store._database.seal(name)
    with pytest.raises(UserError, match="row 1 breaks the chain"):
        RunFiles(store, name, store.get(name).identity, Ledger(8))


def test_a_run_state_is_saved_and_restored_without_clients_memory(tmp_path: Path) -> None:
    prepared, store = prepared_run(tmp_path), Store(tmp_path)
    name = register(prepared, store)
    first = RunFiles(store, name, prepared.identity, Ledger(8))
    first.attach(None)
    first.save(Restored({"model": torch.ones(2)}, 1, 1))
    first.close()
    assert not list(store.path(name).glob("memory*"))
    second = RunFiles(store, name, prepared.identity, Ledger(8))
    second.attach(None)
    second.close()
    assert second.restored is not None
    assert torch.equal(second.restored.state["model"], torch.ones(2))
