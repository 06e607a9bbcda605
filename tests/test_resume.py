"""A run that is killed and resumed ends byte for byte as one that was never stopped."""

from __future__ import annotations

import functools
import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import command, refused, start_process

from sordino.api import resume, run
from sordino.simulator import checkpoint, federation
from sordino.simulator.federation import RoundReport, Simulator
from sordino.simulator.memory import Memory
from sordino.store import Store

ROUNDS = 6
KEYS: dict[str, Any] = {"clients": 8, "rounds": ROUNDS, "partition": "dirichlet:1", "workers": 1}
CASES: dict[str, dict[str, Any]] = {
    "dp-fedavg": {"method": "dp-fedavg", "set": {"epochs": 1, "batch": 64, "clipping": "quantile"}},
    "feddpa": {"method": "feddpa", "participation": 0.5, "set": {"epochs": 1, "batch": 64}},
    "local": {"method": "local", "set": {"epochs": 1, "batch": 64}},
}
ENGINES = ("stacked", "one-by-one")


def trace(store: Path, name: str) -> dict[str, Any]:
    """Everything that a run leaves behind, without its name and how long it took."""
    database = sqlite3.connect(store / "sordino.db")
    database.row_factory = sqlite3.Row

    def table(which: str, *without: str) -> list[dict[str, Any]]:
        rows = database.execute(f"select * from {which} where run = ? order by rowid", (name,))
        return [{key: row[key] for key in row.keys() if key not in ("run", *without)} for row in rows]  # noqa: SIM118

    (summary,) = database.execute("select summary from runs where run = ?", (name,)).fetchone()
    models = (store / "runs" / name / "models.safetensors").read_bytes()
    found = {
        "summary": {key: value for key, value in json.loads(summary).items() if key not in ("run", "seconds")},
        "models": models,
        "rounds": table("rounds", "seconds"),
        "clients": table("clients"),
        "ledger": table("ledger"),
    }
    database.close()
    return found


@functools.cache
def uninterrupted(folder: Path, case: str, engine: str) -> dict[str, Any]:
    """The trace of a run that nothing disturbed, in one piece and without checkpoints."""
    return trace(folder, run(store=folder, engine=engine, **KEYS, **CASES[case])["run"])


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of the undisturbed runs."""
    return tmp_path_factory.mktemp("quiet")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A copied process has none of torch's threads: it would wait for them forever."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def checkpoints_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federation, "CHECKPOINT_SECONDS", 0)


def killed(action: Callable[[], object]) -> bool:
    """Do `action` in a copy of this process; whether it was killed on the way."""
    child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def die_at(owner: Any, name: str, call: int, when: str) -> None:
    """From now on, the given call of a function kills this process, before or after it has done its work."""
    original, calls = getattr(owner, name), iter(range(1, 10**6))

    def dying(*arguments: Any, **keywords: Any) -> Any:
        last = next(calls) == call
        if last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **keywords)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, dying)


MOMENTS: dict[str, tuple[Any, str, int, str]] = {
    "before anything was saved": (Memory, "write", 2, "before"),
    "while clients write": (Memory, "write", 2 * 2 + 1, "after"),
    "before the memory is on disk": (Memory, "commit", 3, "before"),
    "before the checkpoint": (Memory, "commit", 3, "after"),
    "when the checkpoint is half there": (checkpoint, "replace_file", 3, "before"),
    "before the transaction": (checkpoint, "replace_file", 3, "after"),
    "within the transaction": (Store, "_insert", 3 * 3, "before"),
    "at the end of the transaction": (Store, "_insert", 3 * 3, "after"),
    "after the transaction": (Store, "advance", 3, "after"),
    "when the models are written": (Simulator, "_save_models", 1, "after"),
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


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_rounds_since_the_last_checkpoint_are_replayed(case: str, engine: str, quiet: Path, tmp_path: Path) -> None:
    """Checkpoints after rounds 1 and 4, killed late in round 3 and, after resuming, late in round 6."""

    def watch(report: RoundReport) -> None:
        federation.CHECKPOINT_SECONDS = 0 if report.round + 1 in (1, 4) else 1e9

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
from sordino.simulator import federation
federation.CHECKPOINT_SECONDS = 0
from sordino.cli import main
main()
"""


def wait_until(true: Callable[[], bool], what: str) -> None:
    for _ in range(6000):
        if true():
            return
        time.sleep(0.005)
    raise AssertionError(f"It never happened: {what}.")


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
        run(store=store, watch=watch, seed=seed, **KEYS, **CASES["feddpa"])
    return Store(store).all()[0].run


@pytest.mark.usefixtures("checkpoints_every_round")
def test_a_checkpoint_of_another_experiment_is_refused(tmp_path: Path) -> None:
    first, second = stopped(tmp_path), stopped(tmp_path, seed=1)
    one, other = (tmp_path / "runs" / name / "round-000003.safetensors" for name in (first, second))
    one.write_bytes(other.read_bytes())
    sentence = refused("resume", first, "--store", tmp_path, "--json")
    assert str(one) in sentence
    assert "belongs to another experiment" in sentence
    assert command("resume", second, "--store", tmp_path, "--json").code == 0


@pytest.mark.usefixtures("checkpoints_every_round")
def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    name = stopped(tmp_path)
    file = tmp_path / "runs" / name / "round-000003.safetensors"
    whole = file.read_bytes()
    for content in (b"", b"nonsense", whole[: len(whole) // 2]):
        file.write_bytes(content)
        assert f"The checkpoint {file} cannot be read" in refused("resume", name, "--store", tmp_path, "--json")
    file.unlink()
    assert "cannot be read" in refused("resume", name, "--store", tmp_path, "--json")


@pytest.mark.usefixtures("checkpoints_every_round")
def test_lost_memory_is_refused(tmp_path: Path) -> None:
    name = stopped(tmp_path)
    (tmp_path / "runs" / name / "memory.bin").write_bytes(b"short")
    assert "has lost what client" in refused("resume", name, "--store", tmp_path, "--json")


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
    assert "another experiment or other data" in refused("resume", name, "--store", tmp_path / "s", "--json")


def test_an_unknown_run_is_refused(tmp_path: Path) -> None:
    assert "There is no store" in refused("resume", "feddpa-digits-1", "--store", tmp_path)
    run(store=tmp_path, **(KEYS | {"rounds": 1}), **CASES["local"])
    assert "did you mean 'local-digits-1'?" in refused("resume", "local-digit-1", "--store", tmp_path)
