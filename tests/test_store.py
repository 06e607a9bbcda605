"""What the store keeps, and what it says when it cannot."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from helpers import COMMAND, QUICK, command, process, refused

from sordino.errors import UserError
from sordino.simulator import checkpoint
from sordino.simulator.memory import Memory
from sordino.store import Store

RUN = ("run", "--method=dp-fedavg", *QUICK, "--json")


def no_space(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_runs_are_numbered_and_found(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = store.create("local-digits", "local", {"rounds": 3}, "hash", 3)
    second = store.create("local-digits", "local", {"rounds": 3}, "hash", 3)
    assert (first, second) == ("local-digits-1", "local-digits-2")
    assert [row.run for row in store.all()] == [second, first]
    row = store.get(first)
    assert (row.configuration, row.experiment, row.state, row.rounds_done) == ({"rounds": 3}, "hash", "stopped", 0)
    assert store.path(first).is_dir()


def test_a_held_run_is_running_and_cannot_be_held_twice(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run = store.create("a", "local", {}, "hash", 1)
    with store.lock(run):
        assert Store(tmp_path).get(run).state == "running"
        with pytest.raises(UserError, match="already running"), Store(tmp_path).lock(run):
            pass
    assert store.get(run).state == "stopped"


def test_looking_at_a_run_does_not_keep_it_from_starting(tmp_path: Path) -> None:
    """Who asks for the state of a run holds its lock for an instant; `sordino runs` must not disturb."""
    run = Store(tmp_path).create("a", "local", {}, "hash", 1)
    looking = Event()

    def look() -> None:
        store = Store(tmp_path)
        while not looking.is_set():
            store.all()

    watcher = Thread(target=look)
    watcher.start()
    try:
        store = Store(tmp_path)
        for _ in range(300):
            with store.lock(run):
                pass
    finally:
        looking.set()
        watcher.join()


def test_a_run_is_written_as_it_went(tmp_path: Path) -> None:
    """8 clients, 2 rounds, one release: two ledger rows of 8 owners, and 8 accuracies a round."""
    name = command(*RUN, "--store", tmp_path).document["run"]
    store = Store(tmp_path)
    rows = store.ledger(name)
    assert [(row.round, row.step, row.release, len(row.clients())) for row in rows] == [
        (0, "local", "update", 8),
        (1, "local", "update", 8),
    ]
    assert [row["round"] for row in store.curve(name)] == [0, 1]
    clients = store.clients(name)
    assert [(row["round"], row["client"]) for row in clients] == [(r, c) for r in range(2) for c in range(8)]
    curve = store.curve(name)[1]
    assert curve["personal"] == pytest.approx(sum(row["personal"] for row in clients[8:]) / 8)
    assert curve["personal_worst"] == min(row["personal"] for row in clients[8:])


def test_an_altered_ledger_is_noticed(tmp_path: Path) -> None:
    name = command(*RUN, "--store", tmp_path).document["run"]
    database = sqlite3.connect(tmp_path / "sordino.db")
    with database:
        database.execute("update ledger set deviation = 2 * deviation where position = 1")
    with pytest.raises(UserError, match="row 1 breaks the chain"):
        Store(tmp_path).ledger(name)


def test_a_removed_ledger_row_is_noticed(tmp_path: Path) -> None:
    name = command(*RUN, "--store", tmp_path).document["run"]
    database = sqlite3.connect(tmp_path / "sordino.db")
    with database:
        database.execute("delete from ledger where position = 0")
    with pytest.raises(UserError, match="row 0 breaks the chain"):
        Store(tmp_path).ledger(name)


def test_a_finished_run_leaves_no_scratch_files(tmp_path: Path) -> None:
    name = command(*RUN, "--store", tmp_path).document["run"]
    kept = {path.name for path in (tmp_path / "runs" / name).iterdir()}
    assert kept == {"lock", "models.safetensors", "round-000002.safetensors"}


@pytest.mark.parametrize("arguments", [RUN, ("runs",), ("resume", "a")])
def test_a_store_that_is_a_file(arguments: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    assert refused(*arguments, "--store", file) == (
        f"The store {file} is a file, but must be a folder: choose another with --store."
    )


def test_a_damaged_database(tmp_path: Path) -> None:
    (tmp_path / "sordino.db").write_bytes(b"this is not a database " * 100)
    assert f"{tmp_path / 'sordino.db'} is damaged" in refused("runs", "--store", tmp_path)


def test_a_store_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "Cannot write to the store" in refused(*RUN, "--store", tmp_path / "file" / "store")


def test_a_full_disk_while_clients_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", no_space)
        sentence = refused(*RUN, "--store", tmp_path)
    assert f"Cannot write to the store {tmp_path}: No space left on device." in sentence
    (row,) = Store(tmp_path).all()
    assert row.state == "stopped"
    assert command("resume", row.run, "--store", tmp_path, "--json").code == 0


def test_a_full_disk_while_a_checkpoint_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """safetensors tells of a full disk with an error of its own."""
    from safetensors import SafetensorError

    def full(*_: Any, **__: Any) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        assert "No space left on device" in refused(*RUN, "--store", tmp_path)
    (row,) = Store(tmp_path).all()
    assert command("resume", row.run, "--store", tmp_path, "--json").code == 0


def test_a_disk_that_takes_only_part_of_a_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A nearly full disk takes what fits without complaint: the rest must not be forgotten."""
    import torch

    real = os.pwrite
    memory = Memory(tmp_path / "memory.bin", {"model": torch.zeros(100)}, 2)
    monkeypatch.setattr(os, "pwrite", lambda file, content, offset: real(file, content[:64], offset))
    memory.write([1], [0], {"model": torch.arange(100.0).unsqueeze(0)})
    memory.participations[1] = 1
    assert memory.states([1])["model"][0].tolist() == list(range(100))
    memory.close()


LIMITED = """
import resource, signal, sys
import sordino.experiment
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
"""


def test_a_real_limit_on_file_sizes(tmp_path: Path) -> None:
    """The system refuses to let any file grow beyond 30,000 bytes; the clients' memory alone needs 41,600."""
    outcome = process(LIMITED + COMMAND, 30_000, *RUN, "--store", tmp_path)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"Error: Cannot write to the store {tmp_path}: ")
    assert len(outcome.err.splitlines()) == 1
