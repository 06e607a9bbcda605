"""bf16 where the processor survives it and is faster with it; refused or left alone elsewhere."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import COMMAND, process, refused
from torch import nn

from sordino.errors import UserError
from sordino.experiment import run as running
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import Prepared, prepare
from sordino.experiment.run import resume, start
from sordino.federation.rounds import RoundReport
from sordino.learning.network import Batch, Learner, Precision
from sordino.learning.parameters import flatten
from sordino.privacy.unit import Unit
from sordino.simulator import bf16
from sordino.store.store import NewRun, Store
from sordino.tasks import Classification
from sordino.util.processes import CAN_FORK

forking = pytest.mark.skipif(not CAN_FORK, reason="processes cannot be forked here")


def prepared(**keys: Any) -> Prepared:
    settled = {"data": "digits", "clients": 4, "rounds": 1, "workers": 1, "method": "fedavg", "precision": "bf16"}
    return prepare(Experiment.make(settled | {"set": {"epochs": 1}} | keys))


def takes(coarse: float, fine: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a gradient take so many seconds in bf16 and in fp32, on a processor that survives it."""
    found: dict[Precision, float] = {"bf16": coarse, "fp32": fine}
    monkeypatch.setattr(bf16, "seconds", lambda *_: found)
    monkeypatch.setattr(bf16, "secure", lambda: None)


def trapped() -> None:
    """A virtual machine that advertises AMX and kills whoever uses it."""
    if os.environ.get(bf16.VARIABLE) != bf16.WITHOUT_AMX:
        os.kill(os.getpid(), signal.SIGILL)


def deadly() -> None:
    os.kill(os.getpid(), signal.SIGILL)


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(bf16.VARIABLE, "")
    monkeypatch.delenv(bf16.VARIABLE)


@forking
@pytest.mark.usefixtures("unset")
def test_a_processor_that_survives_is_left_alone() -> None:
    bf16.secure(lambda: bf16.forked_trial(lambda: None), pytest.fail)
    assert bf16.VARIABLE not in os.environ


@forking
@pytest.mark.usefixtures("unset")
def test_instructions_that_kill_are_done_without() -> None:
    bf16.secure(lambda: bf16.forked_trial(trapped), pytest.fail)
    assert os.environ[bf16.VARIABLE] == bf16.WITHOUT_AMX


@forking
@pytest.mark.usefixtures("unset")
def test_what_kills_in_any_case_is_refused() -> None:
    with pytest.raises(UserError, match="kills processes on this processor: leave `precision` out"):
        bf16.secure(lambda: bf16.forked_trial(deadly), lambda: False)
    assert bf16.VARIABLE not in os.environ, "as it was before"


@forking
def test_a_process_that_has_computed_already_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(bf16.VARIABLE, "AVX512_CORE_AMX")
    seen: list[str | None] = []
    with pytest.raises(UserError, match="set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment before it starts"):
        bf16.secure(lambda: bf16.forked_trial(deadly), lambda: not seen.append(os.environ.get(bf16.VARIABLE)))
    assert seen == [bf16.WITHOUT_AMX], "a fresh process is tried with the variable"
    assert os.environ[bf16.VARIABLE] == "AVX512_CORE_AMX"


@pytest.mark.usefixtures("unset")
@pytest.mark.parametrize("answers", [[True], [False, True], [False, False]])
def test_where_a_fork_tells_nothing_fresh_processes_do(answers: list[bool]) -> None:
    """Without a fork it is not known what this process has computed: the variable comes too late for all one knows."""
    asked = iter(answers)
    if answers[0]:
        bf16.secure(lambda: "unknown", lambda: next(asked))
    else:
        with pytest.raises(UserError, match="before it starts" if answers[1] else "kills processes"):
            bf16.secure(lambda: "unknown", lambda: next(asked))
    assert list(asked) == []
    assert bf16.VARIABLE not in os.environ


def test_a_fresh_process_tries_the_same() -> None:
    tried: bool = bf16.fresh_trial()
    assert tried == (bf16.forked_trial() == "lived") or not CAN_FORK


SCRIPT = f"""
import os, signal
from sordino.simulator import bf16
def trapped():
    if os.environ.get("{bf16.VARIABLE}") != "{bf16.WITHOUT_AMX}" or CURELESS:
        os.kill(os.getpid(), signal.SIGILL)
bf16.secure.__defaults__ = (lambda: bf16.forked_trial(trapped), lambda: False)
{COMMAND}
"""


@forking
@pytest.mark.parametrize("cureless", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_on_a_machine_that_traps(cureless: bool, tmp_path: Path) -> None:
    quick = ("--clients=4", "--rounds=1", "--set=epochs=1", "--set=precision=bf16", f"--store={tmp_path / 'store'}")
    done = process(SCRIPT.replace("CURELESS", str(cureless)), "run", *quick)
    assert done.code == (2 if cureless else 0), done.err
    assert ("kills processes on this processor" in done.err) == cureless
    assert (tmp_path / "store").exists() == (not cureless), "refused before a run is created"


@pytest.mark.parametrize(("coarse", "fine", "precision"), [(1.0, 1.2, "bf16"), (1.0, 1.05, "fp32"), (26, 18, "fp32")])
def test_bf16_is_used_where_it_is_faster(
    coarse: float, fine: float, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes(coarse, fine, monkeypatch)
    found = prepared(store=tmp_path)
    assert found.experiment.precision == found.learner.precision == precision
    assert any("computes in fp32" in note for note in found.notes) == (precision == "fp32")
    assert any("(measured)" in reason for reason in found.choice.reasons)
    same = prepared(store=tmp_path, precision="fp32").identity == found.identity
    assert same == (precision == "fp32"), "what is computed in fp32 is the experiment in fp32"


def test_a_resumed_run_computes_as_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    takes(1.0, 2.0, monkeypatch)
    begun = prepared(store=tmp_path)
    takes(2.0, 1.0, monkeypatch)
    again = prepare(begun.experiment, resumed=True)
    assert again.experiment.precision == again.learner.precision == "bf16"
    assert again.identity == begun.identity
    assert again.notes == begun.notes


def test_a_stored_run_is_resumed_as_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store holds what was decided, and `resume` does not decide again."""
    takes(2.0, 1.0, monkeypatch)
    store = Store(tmp_path)
    run = start(prepared(store=tmp_path), store).run
    assert store.get(run).configuration["precision"] == "fp32"
    monkeypatch.setattr(running, "_advance", lambda prepared, *_: {"precision": prepared.learner.precision})
    takes(1.0, 2.0, monkeypatch)
    other = prepared(store=tmp_path)
    configuration = other.experiment.model_dump(mode="json")
    stopped = store.create("fedavg-digits", NewRun("fedavg", configuration, other.identity, "people", Unit.CLIENT, 1))
    takes(2.0, 1.0, monkeypatch)
    assert resume(stopped, store) == {"precision": "bf16"}


def test_a_resumed_run_tells_what_it_told_when_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the machine and the moment at which it began knew that bf16 was not faster."""

    def stop(report: RoundReport) -> None:
        raise ZeroDivisionError

    takes(2.0, 1.0, monkeypatch)
    store = Store(tmp_path)
    whole = start(prepared(store=tmp_path), store)
    with pytest.raises(ZeroDivisionError):
        start(prepared(store=tmp_path), store, stop)
    takes(1.0, 2.0, monkeypatch)
    again = resume(store.all()[0].run, store)
    assert any("bf16 is not faster" in note for note in whole.notes)
    different = {key for key, value in whole.to_dict().items() if again.to_dict()[key] != value}
    assert different <= {"run", "seconds"}


def test_a_network_that_dies_is_refused_before_a_run_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = os.getpid()

    def measured(*_: Any) -> dict[str, float]:
        assert os.getpid() != parent, "measured where it cannot do harm"
        os.kill(os.getpid(), signal.SIGILL)
        return {}

    monkeypatch.setattr(bf16, "_measured", measured)
    monkeypatch.setattr(bf16, "_known", {})
    monkeypatch.setattr(bf16, "secure", lambda: None)
    sentence = refused("run", "--clients=4", "--set=precision=bf16", f"--store={tmp_path / 'store'}")
    assert sentence == "This network cannot compute in bf16 here: it was killed by SIGILL. Leave `precision` out."
    assert not (tmp_path / "store").exists()


def test_both_formats_are_measured() -> None:
    if bf16.forked_trial() == "died":
        pytest.skip("this processor does not survive bf16")
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
    found = bf16.seconds(module, (64,), 16)
    assert set(found) == {"fp32", "bf16"}
    assert all(0 <= value < float("inf") for value in found.values())
    assert bf16.seconds(module, (64,), 16) is found, "runs with several seeds go by the same measurement"


def test_bf16_changes_the_layers_and_nothing_else() -> None:
    if bf16.forked_trial() == "died":
        pytest.skip("this processor does not survive bf16")
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 5))
    batch = Batch(torch.randn(16, 32), torch.randint(0, 5, (16,)), torch.arange(16), None)
    flat = flatten(module)
    exact = Learner(module, Classification.numbered(10)).gradient(flat, batch)
    coarse = Learner(module, Classification.numbered(10), "bf16").gradient(flat, batch)
    assert coarse.dtype == torch.float32
    error = (coarse - exact).norm() / exact.norm()
    assert 1e-4 < error < 0.1  # bf16 has eight bits of precision
