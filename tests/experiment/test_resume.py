"""A run that is killed and resumed ends byte for byte as one that was never stopped."""

from __future__ import annotations

import errno
import functools
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import command, refused, start_process
from killing import die_at, killed, trace, wait_until

from sordino.api import load_models, resume, run
from sordino.errors import UserError
from sordino.experiment import run as running
from sordino.federation import server
from sordino.federation.rounds import RoundReport
from sordino.method import Federation, State
from sordino.methods.fedavg import FedAvg
from sordino.simulator.memory import Memory
from sordino.store import checkpoint, journal
from sordino.store.database import Database
from sordino.store.store import Store
from sordino.util import files

pytestmark = pytest.mark.usefixtures("one_thread")

ROUNDS = 6
KEYS: dict[str, Any] = {"clients": 8, "rounds": ROUNDS, "partition": "dirichlet:1", "workers": 1}
CASES: dict[str, dict[str, Any]] = {
    "dp-fedavg": {"method": "dp-fedavg", "set": {"epochs": 1, "batch": 64, "clipping": "quantile"}},
    "feddpa": {"method": "feddpa", "participation": 0.5, "set": {"epochs": 1, "batch": 64}},
    "fedglp-adp": {"method": "fedglp-adp", "participation": 0.5, "set": {"epochs": 1, "batch": 64}},
    "local": {"method": "local", "set": {"epochs": 1, "batch": 64}},
}
ENGINES = ("stacked", "one-by-one")


@functools.cache
def uninterrupted(folder: Path, case: str, engine: str) -> dict[str, Any]:
    """The trace of a run that nothing disturbed, in one piece and without checkpoints."""
    return trace(folder, run(store=folder, engine=engine, **KEYS, **CASES[case])["run"])


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of the undisturbed runs."""
    return tmp_path_factory.mktemp("quiet")


@pytest.fixture
def checkpoints_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SAVE_SECONDS", 0)


MOMENTS: dict[str, tuple[Any, str, int, str]] = {
    "before its journal is there": (journal, "replace_file", 1, "before"),
    "when its journal is there": (Store, "begin", 1, "before"),
    "when that is written down": (Store, "begin", 1, "after"),
    "before anything was charged": (journal.Journal, "write", 1, "before"),
    "when the first charge is half there": (os, "write", 1, "halfway"),
    "before anything was asked": (journal.Journal, "write", 1, "after"),
    "before anything was saved": (Memory, "write", 2, "before"),
    "while clients write": (Memory, "write", 2 * 2 + 1, "after"),
    "before the memory is on disk": (Memory, "commit", 3, "before"),
    "before the checkpoint": (Memory, "commit", 3, "after"),
    "before a charge": (journal.Journal, "write", 4, "before"),
    "when the second row of a charge is half there": (os, "write", 2 * 3 + 2, "halfway"),
    "after a charge": (journal.Journal, "write", 4, "after"),
    "when the checkpoint is half there": (checkpoint, "keep_file", 3, "before"),
    "before the folder is on disk": (files, "sync_folder", 2 * 3, "before"),
    "before the transaction": (checkpoint, "keep_file", 3, "after"),
    "within the transaction": (Database, "insert", 3 * 3, "before"),
    "before the run's row is sealed": (Database, "seal", 2 + 3, "before"),
    "at the end of the transaction": (Database, "seal", 2 + 3, "after"),
    "before the next journal": (journal.Journal, "following", 3, "before"),
    "when the next journal is half there": (journal, "replace_file", 1 + 3, "before"),
    "after the next journal": (journal.Journal, "following", 3, "after"),
    "after the transaction": (Store, "advance", 3, "after"),
    "when old files are removed": (checkpoint, "remove_leftovers", 1 + 3, "after"),
    "when the models are half there": (checkpoint, "keep_file", ROUNDS, "before"),
    "when the models are written": (running._Session, "_save_models", 1, "after"),
    "before the last transaction": (Store, "advance", ROUNDS, "before"),
    "after the last transaction": (Store, "advance", ROUNDS, "after"),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.usefixtures("checkpoints_every_round")
def test_killed_at_any_moment(moment: str, quiet: Path, tmp_path: Path) -> None:
    def victim() -> None:
        die_at(*MOMENTS[moment])
        run(store=tmp_path, engine="stacked", **KEYS, **CASES["dp-fedavg"])

    assert killed(victim)
    (row,) = Store(tmp_path).all()
    assert row.state == ("done" if moment == "after the last transaction" else "stopped")
    outcome = command("resume", row.run, "--store", tmp_path, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.document["run"] == row.run
    assert trace(tmp_path, row.run) == uninterrupted(quiet, "dp-fedavg", "stacked")
    (row,) = Store(tmp_path).all()
    assert (row.state, row.rounds_done) == ("done", ROUNDS)
    kept = {path.name for path in (tmp_path / "runs" / row.run).iterdir()}
    assert kept == {"lock", "models.safetensors", f"round-{ROUNDS:06d}.safetensors"}


@dataclass(frozen=True)
class Early(FedAvg):
    """Gives up after its second round, and halves its model then."""

    def run(self, fed: Federation, model: torch.Tensor) -> None:
        server = fed.state(model=model)
        for number in fed.rounds(server):
            server.model = server.model + fed.ask(fed.sample(), self.local, {"global": server.model}).mean("update")
            if number == 1:
                break
        server.model = server.model / 2


@dataclass(frozen=True)
class Artless(FedAvg):
    """Cannot draw."""

    def pictures(self, state: State, folder: Path) -> None:
        raise ZeroDivisionError("no canvas")


def test_a_run_is_not_lost_for_want_of_a_picture(tmp_path: Path) -> None:
    keys = {"store": tmp_path, "model": "logistic", "workers": 1, "set": {"epochs": 1}}
    found = run(method=f"{__name__}:Artless", clients=4, rounds=1, **keys)
    assert found["notes"][-1] == "The method's pictures could not be drawn: ZeroDivisionError: no canvas."
    for method in ("pacfl", "adadp-cfl"):  # one client has no tree to draw
        found = run(method=method, clients=1, rounds=1, records=40, **keys)
        assert not any("pictures" in note for note in found["notes"])


BLENDED: dict[str, Any] = {"rounds": 3, "clients": 4, "partition": "iid", "workers": 1, "model": "logistic"}
BLENDED |= {"personal": "blend", "evaluate_every": 3, "set": {"epochs": 1, "batch": 64}}
LAST_SAVE: dict[str, tuple[Any, str, int, str]] = {
    "before a piece of the blends": (Store, "advance", 1, "after"),
    "when the models are written": (running._Session, "_save_models", 1, "after"),
    "before the last checkpoint": (Memory, "commit", 2, "after"),
    "before the last transaction": (Store, "advance", 2, "before"),
    "within the last transaction": (Database, "seal", 4, "before"),
    "after the last transaction": (Store, "advance", 2, "after"),
}


@functools.cache
def blended(folder: Path, method: str) -> dict[str, Any]:
    """The trace of an undisturbed run whose clients blend models."""
    return trace(folder, run(store=folder, method=method, **BLENDED)["run"])


@pytest.mark.parametrize("method", ["dp-fedavg", f"{__name__}:Early"])
@pytest.mark.parametrize("moment", LAST_SAVE)
def test_a_blended_run_killed_while_it_saves_its_end(moment: str, method: str, quiet: Path, tmp_path: Path) -> None:
    """Its state is on disk before it blends; the last save must leave that as it is until it is committed."""

    def victim() -> None:
        die_at(*LAST_SAVE[moment])
        run(store=tmp_path, method=method, **BLENDED)

    assert killed(victim)
    (row,) = Store(tmp_path).all()
    resume(row.run, tmp_path)
    assert trace(tmp_path, row.run) == blended(quiet, method)
    (row,) = Store(tmp_path).all()
    assert row.checkpoint is not None
    kept = {path.name for path in (tmp_path / "runs" / row.run).iterdir()}
    assert kept == {"lock", "models.safetensors", row.checkpoint.name}


def test_a_disk_that_is_full_at_the_last_save(monkeypatch: pytest.MonkeyPatch, quiet: Path, tmp_path: Path) -> None:
    advance = Store.advance

    def full(store: Store, name: str, rounds: int, *rest: Any) -> None:
        if rest[-1] is not None:
            raise OSError(errno.ENOSPC, "No space left on device")
        advance(store, name, rounds, *rest)

    monkeypatch.setattr(Store, "advance", full)
    with pytest.raises(UserError, match="No space left on device"):
        run(store=tmp_path, method="dp-fedavg", **BLENDED)
    monkeypatch.undo()
    (row,) = Store(tmp_path).all()
    resume(row.run, tmp_path)
    assert trace(tmp_path, row.run) == blended(quiet, "dp-fedavg")


RESUMED: dict[str, tuple[Any, str, int, str]] = {
    "before anything was read": (Memory, "take_over", 1, "before"),
    "while the memory is copied": (Memory, "_put", 3, "before"),
    "when the memory was copied": (Memory, "take_over", 1, "after"),
    "when it charges again what it had charged": (journal.Journal, "write", 1, "after"),
    "before the first checkpoint of its own": (Memory, "commit", 1, "before"),
    "when its next journal is there": (journal.Journal, "following", 1, "after"),
    "before the transaction that points to its own files": (Store, "advance", 1, "before"),
    "before the old files are removed": (Store, "advance", 1, "after"),
}


@pytest.mark.parametrize("moment", RESUMED)
@pytest.mark.usefixtures("checkpoints_every_round")
def test_killed_again_while_it_resumes(moment: str, quiet: Path, tmp_path: Path) -> None:
    name = stopped(tmp_path)

    def victim() -> None:
        die_at(*RESUMED[moment])
        resume(name, tmp_path)

    assert killed(victim)
    resume(name, tmp_path)
    assert trace(tmp_path, name) == uninterrupted(quiet, "feddpa", "stacked")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_rounds_since_the_last_checkpoint_are_replayed(case: str, engine: str, quiet: Path, tmp_path: Path) -> None:
    """Checkpoints after rounds 1 and 4, killed late in round 3 and, after resuming, late in round 6."""

    def watch(report: RoundReport) -> None:
        server.SAVE_SECONDS = 0 if report.round + 1 in (1, 4) else 1e9

    def victim(last: int, work: Callable[[Callable[[RoundReport], None]], object]) -> None:
        def watch_and_die(report: RoundReport) -> None:
            watch(report)
            if report.round + 1 == last:
                os.kill(os.getpid(), signal.SIGKILL)

        work(watch_and_die)

    keys = {"store": tmp_path, "engine": engine, **KEYS, **CASES[case]}
    assert killed(lambda: victim(3, lambda w: run(watch=w, **keys)))
    (row,) = Store(tmp_path).all()
    assert (row.state, row.rounds_done) == ("stopped", 1)
    assert killed(lambda: victim(6, lambda w: resume(row.run, tmp_path, watch=w)))
    assert Store(tmp_path).get(row.run).rounds_done == 4
    resume(row.run, tmp_path)
    assert trace(tmp_path, row.run) == uninterrupted(quiet, case, engine)


@pytest.mark.parametrize("stop", [1, 3, ROUNDS])
@pytest.mark.usefixtures("checkpoints_every_round")
def test_an_exception_leaves_a_run_that_can_be_resumed(stop: int, quiet: Path, tmp_path: Path) -> None:
    states = []

    def watch(report: RoundReport) -> None:
        states.append(Store(tmp_path).all()[0].state)
        if report.round + 1 == stop:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(store=tmp_path, engine="stacked", watch=watch, **KEYS, **CASES["feddpa"])
    assert states == ["running"] * stop
    (row,) = Store(tmp_path).all()
    assert (row.state, row.rounds_done, row.summary) == ("stopped", stop - 1, None)
    assert not (tmp_path / "runs" / row.run / "models.safetensors").exists()
    resume(row.run, tmp_path)
    assert trace(tmp_path, row.run) == uninterrupted(quiet, "feddpa", "stacked")


KILLABLE = """
from sordino.federation import server
server.SAVE_SECONDS = 0
from sordino.cli import main
main()
"""


@pytest.mark.slow
def test_a_process_killed_from_outside(tmp_path: Path) -> None:
    """Killed with two workers, finished with one: their number does not matter."""
    options = (
        "--method=dp-fedavg",
        "--clients=8",
        "--rounds=50",
        "--partition=iid",
        "--set=epochs=1",
        "--set=batch=64",
    )
    name = command("run", *options, "--workers=1", "--store", tmp_path / "quiet", "--json").document["run"]
    store = Store(tmp_path / "killed")
    started = start_process(KILLABLE, "run", *options, "--workers=2", "--store", store.folder, "--json")

    def rounds_done() -> int:
        return max((row.rounds_done for row in store.all()), default=0)

    wait_until(lambda: rounds_done() >= 4 or started.poll() is not None, "the fourth round")
    assert started.poll() is None, started.communicate()
    assert store.get(name).state == "running"
    assert "is already running in another process" in refused("resume", name, "--store", store.folder)
    started.kill()
    started.communicate()
    wait_until(lambda: store.get(name).state == "stopped", "the workers of the killed run end")
    assert rounds_done() < 50
    assert command("resume", name, "--workers=1", "--store", store.folder, "--json").document["run"] == name
    assert trace(store.folder, name) == trace(tmp_path / "quiet", name)


def stopped(store: Path, seed: int = 0) -> str:
    """A run stopped after its third round."""

    def watch(report: RoundReport) -> None:
        if report.round == 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(store=store, watch=watch, seed=seed, engine="stacked", **KEYS, **CASES["feddpa"])
    return Store(store).all()[0].run


@pytest.mark.usefixtures("checkpoints_every_round")
def test_an_agent_goes_on_as_it_was(tmp_path: Path) -> None:
    """The agent takes the parts of its memory by position, and learns from it once ten transitions are there."""
    keys = KEYS | {"rounds": 14, "method": "acdp-pfsd", "model": "logistic", "set": {"epochs": 1, "batch": 64}}

    def watch(report: RoundReport) -> None:
        if report.round == 5:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(store=tmp_path / "stopped", watch=watch, **keys)
    name = Store(tmp_path / "stopped").all()[0].run
    resume(name, tmp_path / "stopped")
    assert trace(tmp_path / "stopped", name) == trace(tmp_path / "whole", run(store=tmp_path / "whole", **keys)["run"])


@dataclass(frozen=True)
class Peculiar(FedAvg):
    """Keeps all kinds of things at the server, and goes by them."""

    def run(self, fed: Federation, model: torch.Tensor) -> None:
        server = fed.state(model=model, twice=model, later=None, none={}, names={"a.b": {2: [], 1: (0.0,)}, "a": 1})
        for number in fed.rounds(server):
            got = fed.ask(fed.sample(), self.local, {"global": server.model})
            position = float("".join(map(str, server.names["a.b"])))  # 21, if the order is kept
            server.model = server.twice = server.model + position / 30 * got.mean("update")
            server.names["a.b"][2].append(np.float32(number) / np.float32(3))
            server.later = np.asarray(server.names["a.b"][2])
            server.model = server.model * (1 - float(server.later.sum()) / 100)


@dataclass(frozen=True)
class Unkeepable(FedAvg):
    """Keeps a function at the server."""

    def run(self, fed: Federation, model: torch.Tensor) -> None:
        server = fed.state(model=model, tools={"clip": len})
        for _ in fed.rounds(server):
            fed.ask(fed.sample(), self.local, {"global": server.model})


@pytest.mark.usefixtures("checkpoints_every_round")
def test_all_kinds_of_things_at_the_server(tmp_path: Path) -> None:
    keys = KEYS | {"rounds": 4, "method": f"{__name__}:Peculiar", "set": {"epochs": 1, "batch": 64}}

    def watch(report: RoundReport) -> None:
        if report.round == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(store=tmp_path / "stopped", watch=watch, **keys)
    name = Store(tmp_path / "stopped").all()[0].run
    resume(name, tmp_path / "stopped")
    assert trace(tmp_path / "stopped", name) == trace(tmp_path / "whole", run(store=tmp_path / "whole", **keys)["run"])


def test_what_cannot_be_kept_is_refused_after_the_first_round(tmp_path: Path) -> None:
    reports: list[RoundReport] = []
    with pytest.raises(UserError, match=r"\"tools\['clip'\]\" has a value of type builtin_function_or_method"):
        run(store=tmp_path, watch=reports.append, method=f"{__name__}:Unkeepable", **KEYS)
    assert reports == []


@pytest.mark.usefixtures("checkpoints_every_round")
def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    first, second = stopped(tmp_path), stopped(tmp_path, seed=1)
    one, other = (tmp_path / "runs" / name / "round-000003.safetensors" for name in (first, second))
    one.write_bytes(other.read_bytes())
    assert f"The checkpoint {one} is damaged" in refused("resume", first, "--store", tmp_path, "--json")
    assert command("resume", second, "--store", tmp_path, "--json").code == 0


@pytest.mark.usefixtures("checkpoints_every_round")
def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    name = stopped(tmp_path)
    file = tmp_path / "runs" / name / "round-000003.safetensors"
    whole = file.read_bytes()
    for content in (b"", b"nonsense", whole[: len(whole) // 2]):
        file.write_bytes(content)
        assert f"The checkpoint {file} is damaged" in refused("resume", name, "--store", tmp_path, "--json")
    file.unlink()
    assert f"The checkpoint {file} is gone" in refused("resume", name, "--store", tmp_path, "--json")


@pytest.mark.usefixtures("checkpoints_every_round")
def test_lost_memory_is_refused(tmp_path: Path) -> None:
    name = stopped(tmp_path)
    (tmp_path / "runs" / name / "memory.bin").write_bytes(b"short")
    assert "has lost what client" in refused("resume", name, "--store", tmp_path, "--json")
    (tmp_path / "runs" / name / "memory.bin").unlink()
    assert "has lost what client" in refused("resume", name, "--store", tmp_path, "--json")


@pytest.mark.usefixtures("checkpoints_every_round")
def test_a_resumed_run_has_a_memory_file_of_its_own_and_leaves_none(quiet: Path, tmp_path: Path) -> None:
    """What the killed process has open is not what the new one reads, and nothing of either remains."""
    name = stopped(tmp_path)
    folder = tmp_path / "runs" / name
    for leftover in ("round-000009.tmp", "models.tmp", "memory-7.bin"):
        (folder / leftover).write_bytes(b"x")
    found: list[set[str]] = []
    with (folder / "memory.bin").open("r+b") as old:

        def watch(report: RoundReport) -> None:
            found.append({path.name for path in folder.iterdir()})
            old.seek(0)
            old.write(b"\x7f" * 100_000)
            old.flush()

        resume(name, tmp_path, watch=watch)
    files = {"lock", "memory-2.bin"}
    assert found[0] == files | {"memory.bin", "round-000003.safetensors", "ledger-000000003.journal"}
    assert found[1] == files | {"round-000004.safetensors", "ledger-000000004.journal"}
    assert trace(tmp_path, name) == uninterrupted(quiet, "feddpa", "stacked")


@pytest.mark.usefixtures("checkpoints_every_round")
def test_two_resumes_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """While one prepares, the other does all the work: the first finds the run finished."""
    name = stopped(tmp_path)
    whole: list[dict[str, Any]] = []
    prepare = running.prepare

    def slow(chosen: Any, resumed: bool) -> Any:
        prepared = prepare(chosen, resumed=resumed)
        monkeypatch.setattr(running, "prepare", prepare)
        whole.append(resume(name, tmp_path))
        return prepared

    monkeypatch.setattr(running, "prepare", slow)
    assert [resume(name, tmp_path)] == whole


def test_a_finished_run_without_its_models(tmp_path: Path) -> None:
    name = run(store=tmp_path, **(KEYS | {"rounds": 1}), **CASES["local"])["run"]
    file = tmp_path / "runs" / name / "models.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(UserError, match=f"The file of models {file} is damaged"):
        load_models(name, tmp_path)
    assert f"file of models {file} is damaged" in refused("resume", name, "--store", tmp_path)
    file.unlink()
    assert f"file of models {file} is gone" in refused("resume", name, "--store", tmp_path)
    with pytest.raises(UserError, match=f"The file of models {file} is gone"):
        load_models(name, tmp_path)


@pytest.mark.usefixtures("checkpoints_every_round")
def test_a_run_on_changed_data_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    for client in range(3):
        lines = "".join(f"{i % 2 + 0.1 * client},{i},{i % 2}\n" for i in range(10))
        (folder / f"{client}.csv").write_text("a,b,label\n" + lines)

    def watch(report: RoundReport) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(data=str(folder), rounds=3, workers=1, store=tmp_path / "s", watch=watch)
    name = Store(tmp_path / "s").all()[0].run
    with (folder / "0.csv").open("a") as file:
        file.write("1,1,1\n")
    sentence = refused("resume", name, "--store", tmp_path / "s", "--json")
    assert "was started with another experiment, other data" in sentence


def test_an_unknown_run_is_refused(tmp_path: Path) -> None:
    assert "There is no store" in refused("resume", "feddpa-digits-1", "--store", tmp_path)
    run(store=tmp_path, **(KEYS | {"rounds": 1}), **CASES["local"])
    assert "did you mean 'local-digits-1'?" in refused("resume", "local-digit-1", "--store", tmp_path)
