"""Workers that die, fail, are orphaned or interrupted: a sentence, and a run that can be taken up."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import QUICK_KEYS, command, refused
from killing import trace, wait_until

from sordino.api import run
from sordino.cli import main
from sordino.errors import UserError, WorkerError
from sordino.federation import server
from sordino.simulator import serving, slabs
from sordino.simulator.engine import Engine
from sordino.simulator.workers import Workers
from sordino.store.store import Store

pytestmark = pytest.mark.usefixtures("one_thread")

KEYS: dict[str, Any] = QUICK_KEYS | {"method": "dp-fedavg", "engine": "one-by-one", "rounds": 4}
OPTIONS = ("--method=dp-fedavg", "--clients=8", "--rounds=4", "--partition=iid", "--set=epochs=1", "--set=batch=64")
HERE = os.getpid()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The trace of a run that nothing disturbed."""
    store = tmp_path_factory.mktemp("undisturbed")
    return trace(store, run(store=store, **KEYS)["run"])


@pytest.fixture
def workers_do_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process takes no units, so that the other one is sure to have some."""
    monkeypatch.setattr(Workers, "_own", lambda self, units, one: iter(()))


def in_a_worker() -> bool:
    return os.getpid() != HERE


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies_in_a_worker(function: Callable[..., Any], call: int, when: str) -> Callable[..., Any]:
    """A function whose given call in a worker kills it, before or after the work is done."""
    calls = iter(range(1, 10**6))

    def dying(*arguments: Any, **keywords: Any) -> Any:
        last = in_a_worker() and next(calls) == call
        if last and when == "before":
            die()
        result = function(*arguments, **keywords)
        if last:
            die()
        return result

    return dying


def dies_when_it_has_the_turn(function: Callable[..., Iterator[int]], call: int) -> Callable[..., Iterator[int]]:
    """`taken`, but a worker dies as soon as it has taken a unit."""
    calls = iter(range(1, 10**6))

    def dying(*arguments: Any) -> Iterator[int]:
        for number in function(*arguments):
            if in_a_worker() and next(calls) == call:
                die()
            yield number

    return dying


def half_sent(pipe: Any, message: Any) -> None:
    """Send half of an answer and die."""
    content = pickle.dumps(message)
    if in_a_worker() and message[0] == "done":
        os.write(pipe.fileno(), len(content).to_bytes(4, "big") + content[: len(content) // 2])
        die()
    pipe.send_bytes(content)


MOMENTS: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "with the turn in its hands": (serving, "taken", lambda f: dies_when_it_has_the_turn(f, 3)),
    "before a unit": (Engine, "work", lambda f: dies_in_a_worker(f, 11, "before")),
    "after a unit": (Engine, "work", lambda f: dies_in_a_worker(f, 16, "after")),
    "before it tells of a slab": (slabs, "give", lambda f: dies_in_a_worker(f, 1, "before")),
    "between the word of a slab and the slab": (slabs, "send_handle", lambda f: dies_in_a_worker(f, 1, "before")),
    "after it gave a slab": (slabs, "give", lambda f: dies_in_a_worker(f, 1, "after")),
    "in the middle of an answer": (slabs, "send", lambda f: half_sent),
    "when it evaluates": (Engine, "accuracies", lambda f: dies_in_a_worker(f, 2, "before")),
    "when it is asked": (slabs, "receive", lambda f: dies_in_a_worker(f, 7, "after")),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.usefixtures("workers_do_everything")
def test_a_killed_worker_gives_a_sentence_and_a_run_that_can_be_resumed(
    moment: str, undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(server, "SAVE_SECONDS", 0)
    owner, name, dying = MOMENTS[moment]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, dying(getattr(owner, name)))
        sentence = refused("run", *OPTIONS, "--workers=2", "--set=engine=one-by-one", "--store", tmp_path, "--json")
    (row,) = Store(tmp_path).all()
    assert "worker process was killed by the signal SIGKILL" in sentence
    assert f"`sordino resume {row.run} --store {tmp_path}` takes the run up" in sentence
    assert row.state == "stopped"
    assert not multiprocessing.active_children()
    assert command("resume", row.run, "--workers=2", "--store", tmp_path, "--json").code == 0
    assert trace(tmp_path, row.run) == undisturbed


def _killed_at_random(seed: int, undisturbed: dict[str, Any], tmp_path: Path) -> None:
    """Kill a random worker of three when a random number of units has been done, wherever it is then."""
    chance = random.Random(seed)
    units, victim = chance.randrange(1, 25), chance.randrange(2)
    work, calls = Engine.work, iter(range(1, 10**6))

    def killing(engine: Engine, question: Any) -> Any:
        if not in_a_worker() and next(calls) == units:
            os.kill(multiprocessing.active_children()[victim].pid or 0, signal.SIGKILL)
        return work(engine, question)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "SAVE_SECONDS", 0)
        patch.setattr(Engine, "work", killing)
        outcome = command("run", *OPTIONS, "--workers=3", "--set=engine=one-by-one", "--store", tmp_path, "--json")
    (row,) = Store(tmp_path).all()
    if outcome.code:  # this process may have been too slow to do so many units
        assert (outcome.code, outcome.err.count("\n")) == (2, 1), outcome
        assert "SIGKILL" in outcome.err
        assert command("resume", row.run, "--workers=3", "--store", tmp_path, "--json").code == 0
    assert trace(tmp_path, row.run) == undisturbed


@pytest.mark.parametrize("seed", range(3))
def test_workers_killed_at_random(seed: int, undisturbed: dict[str, Any], tmp_path: Path) -> None:
    _killed_at_random(seed, undisturbed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 40))
def test_workers_killed_at_random_again(seed: int, undisturbed: dict[str, Any], tmp_path: Path) -> None:
    _killed_at_random(seed, undisturbed, tmp_path)


def test_every_unit_is_taken_once() -> None:
    turn, count = slabs.nameless(), 20_000
    readers, children = [], []
    for _ in range(3):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            with os.fdopen(writer, "w") as file:
                file.write(" ".join(str(number) for number in serving.taken(turn, count)))
            os._exit(0)
        os.close(writer)
        readers.append(reader)
        children.append(child)
    taken = []
    for reader in readers:
        with os.fdopen(reader) as file:
            taken += [int(number) for number in file.read().split()]
    for child in children:
        os.waitpid(child, 0)
    os.close(turn)
    assert sorted(taken) == list(range(count))


@pytest.mark.parametrize(
    "like", [torch.ones(3, 5), torch.zeros(0, 4), torch.tensor(2), torch.ones(7, dtype=torch.bool)]
)
def test_a_slab_is_seen_at_both_ends(like: torch.Tensor) -> None:
    here, there = multiprocessing.Pipe()
    slab, descriptor = slabs.new(like)
    slabs.give(here, "name", slab, descriptor)
    os.close(descriptor)
    kind, key, shape, dtype = slabs.receive(there)
    seen = slabs.taken(there, shape, dtype)
    slab.copy_(like)
    assert (kind, key) == ("slab", "name")
    assert torch.equal(seen, like)
    assert seen.dtype == like.dtype


@pytest.mark.usefixtures("workers_do_everything")
def test_an_error_of_a_worker_arrives_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class AwkwardError(Exception):
        """It cannot be sent anywhere: its class has no name outside, and it is not made of its arguments."""

        def __init__(self, one: int, other: int) -> None:
            super().__init__(f"{one} and {other}")
            self.cause = lambda: one

    def fails(*_: Any) -> None:
        raise AwkwardError(1, 2) from KeyError("the reason")

    monkeypatch.setattr(Engine, "work", fails)
    with pytest.raises(AwkwardError, match="1 and 2") as caught:
        run(store=tmp_path, **(KEYS | {"workers": 2}))
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.cause() == 1


@pytest.mark.usefixtures("workers_do_everything")
def test_what_fails_in_a_worker_alone_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    work = Engine.work

    def fails(*arguments: Any) -> Any:
        if in_a_worker():
            raise OSError(errno.ENOSPC, "No space left on device")
        return work(*arguments)

    monkeypatch.setattr(Engine, "work", fails)
    with pytest.raises(WorkerError, match=r"No space left on device.*sordino resume"):
        run(store=tmp_path, **(KEYS | {"workers": 2}))


@pytest.mark.parametrize("where", ["here", "in a worker"])
@pytest.mark.usefixtures("workers_do_everything")
def test_no_memory_to_share_gives_a_sentence(where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: Any) -> None:
        if in_a_worker() == (where == "in a worker"):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(UserError, match=r"no memory left .* --workers; the run can be resumed"):
        run(store=tmp_path, **(KEYS | {"workers": 2}))


def test_the_shared_memory_of_containers_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    monkeypatch.setattr(torch.UntypedStorage, "_share_fd_cpu_", full)
    assert run(store=tmp_path, **(KEYS | {"workers": 2}))["rounds_done"] == 4


def test_the_number_of_workers_changes_no_bit(undisturbed: dict[str, Any], tmp_path: Path) -> None:
    for count in (2, 3):
        store = tmp_path / str(count)
        assert trace(store, run(store=store, **(KEYS | {"workers": count}))["run"]) == undisturbed


def test_an_exception_here_ends_workers_that_are_at_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    work = Engine.work

    def fails(*arguments: Any) -> Any:
        if not in_a_worker():
            raise ZeroDivisionError
        time.sleep(600)
        return work(*arguments)

    monkeypatch.setattr(Engine, "work", fails)
    with pytest.raises(ZeroDivisionError):
        run(store=tmp_path, **(KEYS | {"workers": 3}))
    assert not multiprocessing.active_children()


LONG = ("run", *OPTIONS, "--rounds=2000", "--workers=2", "--json", "--store")


class StartedRun:
    """A copy of this process that is at work on a long run."""

    def __init__(self, folder: Path) -> None:
        self.store, self._told = Store(folder), folder / "told"
        self.pid = os.fork()
        if self.pid == 0:
            self._work()
        wait_until(lambda: max((row.rounds_done for row in self.store.all()), default=0) >= 2, "the second round")
        self.worker = int(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()[0])

    def _work(self) -> None:
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.dup2(os.open(self._told, os.O_WRONLY | os.O_CREAT), 2)
            sys.stderr = os.fdopen(2, "w")
            server.SAVE_SECONDS = 0
            sys.argv = ["sordino", *LONG, str(self.store.folder)]
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            sys.stderr.flush()
            os._exit(code)

    def end(self) -> tuple[int, str]:
        """Its exit code, and what it and its worker printed on standard error."""
        _, status = os.waitpid(self.pid, 0)
        wait_until(lambda: not is_alive(self.worker), "the worker ends")
        return os.waitstatus_to_exitcode(status), self._told.read_text()


def is_alive(pid: int) -> bool:
    """Whether a process runs or is stopped; one that is dead but not yet buried is not alive."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")


@linux
@pytest.mark.parametrize("state", ["at work", "stopped"])
def test_a_worker_ends_with_its_parent_and_says_nothing(state: str, tmp_path: Path) -> None:
    started = StartedRun(tmp_path)
    if state == "stopped":
        os.kill(started.worker, signal.SIGSTOP)
    os.kill(started.pid, signal.SIGKILL)
    assert started.end() == (-signal.SIGKILL, "")


@linux
def test_ctrl_c_gives_one_line_that_says_how_to_go_on(tmp_path: Path) -> None:
    started = StartedRun(tmp_path)
    os.kill(started.worker, signal.SIGINT)  # a terminal sends it to all of them
    os.kill(started.pid, signal.SIGINT)
    code, told = started.end()
    (row,) = started.store.all()
    assert code == 130, told
    assert told == f"Stopped. `sordino resume {row.run} --store {tmp_path}` takes the run up.\n"
    assert row.state == "stopped"


@linux
def test_a_worker_killed_from_outside(tmp_path: Path) -> None:
    started = StartedRun(tmp_path)
    os.kill(started.worker, signal.SIGKILL)
    code, told = started.end()
    assert code == 2, told
    assert told.count("\n") == 1
    assert "killed by the signal SIGKILL" in told


BRANCHING = """
import math
from torch import nn

class Branching(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layer = nn.Linear(math.prod(shape), classes)

    def forward(self, x):
        x = x.flatten(1)
        if x.sum() > 1e9:
            return self.layer(-x)
        return self.layer(x)
"""


@pytest.mark.parametrize("count", [1, 2])
def test_a_network_that_branches_on_its_data(count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "branching.py").write_text(BRANCHING)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "branching", raising=False)
    options = (*OPTIONS, f"--workers={count}", "--model=branching:Branching", "--store", tmp_path / "store", "--json")
    sentence = refused("run", *options, "--set=engine=stacked")
    assert "The network Branching or the method DPFedAvg cannot be run for many clients at once" in sentence
    assert f"line 12 of {tmp_path / 'branching.py'} (`if x.sum() > 1e9:`)" in sentence
    assert "torch.where" in sentence
    assert "`--set engine=one-by-one`" in sentence
    assert command("run", *options, "--set=engine=one-by-one").code == 0
