"""The state that a coordinator keeps of a run: saved after every round, and without clients' memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from federations import QUICK, Federation, federation

from sordino.deploy.protocol.carrier import InProcessCarrier
from sordino.deploy.server.coordinator import start
from sordino.errors import Stopped
from sordino.federation.rounds import RoundReport
from sordino.federation.transport import ClientMemory
from sordino.simulator.memory import Memory
from sordino.store import checkpoint
from sordino.store.run_files import RunFiles


def stop(made: Federation) -> str:
    """Start a run, and stop it in its second round; its name."""

    def watch(report: RoundReport) -> None:
        if report.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(Stopped):
        start(made.experiment, made.members, InProcessCarrier(made.sites), made.store, watch, deadlines=QUICK)
    return made.store.all()[0].run


def test_every_round_of_a_deployment_is_saved_without_clients_memory(tmp_path: Path) -> None:
    with federation(tmp_path, model="logistic", rounds=3, noise="integers") as made:
        name = stop(made)
        row = made.store.get(name)
        assert row.rounds_done == 1, "what the second round brought was not saved yet"
        assert row.checkpoint is not None
        assert checkpoint.load(row.checkpoint, made.store.path(name)).memory is None
        assert not list(made.store.path(name).glob("memory*"))


def test_a_deployment_with_an_empty_memory_in_its_checkpoint_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sordino 0.4 wrote an empty file of memory for deployments."""
    attach = RunFiles.attach

    def attach_empty(self: RunFiles, memory: ClientMemory | None) -> None:
        assert memory is None
        attach(self, Memory(self.folder, {"nothing": torch.zeros(0)}, 3))

    keys = {"model": "logistic", "rounds": 3, "noise": "integers"}
    with federation(tmp_path / "whole", **keys) as whole, federation(tmp_path / "stopped", **keys) as made:
        expected = whole.run()
        with monkeypatch.context() as before:
            before.setattr(RunFiles, "attach", attach_empty)
            name = stop(made)
        row = made.store.get(name)
        assert row.checkpoint is not None
        kept = checkpoint.load(row.checkpoint, made.store.path(name)).memory
        assert kept is not None
        assert (made.store.path(name) / kept.file).exists()
        summary = made.resume(name)
        assert summary.epsilon == expected.epsilon
        assert torch.equal(made.model(name), whole.model(expected.run))
        assert not list(made.store.path(name).glob("memory*"))
