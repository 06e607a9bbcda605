"""What the store keeps, and what it says when it cannot."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from helpers import COMMAND, QUICK, command, process, refused

from sordino.errors import UserError
from sordino.simulator.memory import Memory
from sordino.store import checkpoint
from sordino.store import store as stores
from sordino.store.database import DATABASE, NO_ROWS, Database, _chain
from sordino.store.store import NewRun, Progress, Store
from sordino.util.files import KeptFile

RUN = ("run", "--method=dp-fedavg", *QUICK, "--json")


def no_space(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def about(**changes: Any) -> NewRun:
    """A run of local training, before it begins."""
    known = {"method": "local", "configuration": {}, "identity": "identity", "people": "people", "unit": "client"}
    return NewRun(**(known | {"rounds": 1} | changes))


def test_runs_are_numbered_and_found(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, second = (store.create("local-digits", about(configuration={"rounds": 3}, rounds=3)) for _ in range(2))
    assert (first, second) == ("local-digits-1", "local-digits-2")
    assert [row.run for row in store.all()] == [second, first]
    row = store.get(first)
    assert (row.method, row.configuration, row.rounds) == ("local", {"rounds": 3}, 3)
    assert (row.identity, row.people, row.unit) == ("identity", "people", "client")
    assert (row.state, row.rounds_done) == ("stopped", 0)
    assert store.path(first).is_dir()


def test_a_held_run_is_running_and_cannot_be_held_twice(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run = store.create("a", about())
    with store.lock(run):
        assert Store(tmp_path).get(run).state == "running"
        with pytest.raises(UserError, match="already running"), Store(tmp_path).lock(run):
            pass
    assert store.get(run).state == "stopped"


def test_a_stopped_child_of_a_dead_process_holds_no_run(tmp_path: Path) -> None:
    """A worker that was stopped before it could close what it inherited: its run can be taken up all the same."""
    store = Store(tmp_path)
    run = store.create("a", about())
    reading, writing = os.pipe()
    parent = os.fork()
    if not parent:
        with Store(tmp_path).lock(run):
            child = ctypes.CDLL(None).fork()  # without what Python does in a new process
            if not child:
                signal.pause()
            os.write(writing, str(child).encode())
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(parent, 0)
    child = int(os.read(reading, 100))
    try:
        with store.lock(run):
            assert Store(tmp_path).get(run).state == "running"
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(reading)
        os.close(writing)


def test_looking_at_a_run_does_not_keep_it_from_starting(tmp_path: Path) -> None:
    """Who asks for the state of a run holds its lock for an instant; `sordino runs` must not disturb."""
    run = Store(tmp_path).create("a", about())
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


def changed(store: Path, statement: str) -> None:
    """Change the database of a store behind its back."""
    database = sqlite3.connect(store / "sordino.db")
    with database:
        database.execute(statement)
    database.close()


ALTERATIONS = {
    "a row of the ledger": "update ledger set noise = sensitivity where position = 1",
    "a type within the ledger": "update ledger set owners = 'text' where position = 1",
    "the first row of the ledger is gone": "delete from ledger where position = 0",
    "the last row of the ledger is gone": "delete from ledger where position = 1",
    "an accuracy": "update rounds set personal = 0.5 where round = 0",
    "the last round is gone": "delete from rounds where round = 1",
    "a client's accuracy": "update clients set start = null where client = 3",
    "a client is gone": "delete from clients where client = 7 and round = 1",
    "the summary": "update runs set summary = replace(summary, '2', '3')",
    "how far the run has come": "update runs set rounds_done = 1, summary = null",
    "the configuration": "update runs set configuration = 'nonsense'",
    "a digest": "update runs set models_digest = checkpoint_digest",
}


@pytest.mark.parametrize("alteration", ALTERATIONS)
def test_what_the_database_says_cannot_be_altered(alteration: str, tmp_path: Path) -> None:
    name = command(*RUN, "--store", tmp_path).document["run"]
    changed(tmp_path, ALTERATIONS[alteration])
    table = ALTERATIONS[alteration].split()[2 if "delete" in ALTERATIONS[alteration] else 1]
    sentence = refused("resume", name, "--store", tmp_path)
    assert f"{tmp_path / 'sordino.db'} is damaged" in sentence
    assert repr(name) in sentence
    if table == "runs":
        assert sentence == refused("runs", "--store", tmp_path)
    else:
        with pytest.raises(UserError, match=f"under '{table}' has been altered"):
            getattr(Store(tmp_path), {"rounds": "curve"}.get(table, table))(name)


def removed(folder: Path, count: int = 2) -> list[str]:
    """Runs of a store that were removed: no folder tells of them."""
    store = Store(folder)
    names = [store.create("a", about()) for _ in range(count)]
    for name in names:
        store.remove(name, lambda name=name: {"run": name, "spent": {}})
    store.close()
    return names


def altered(folder: Path, *statements: str) -> None:
    connection = sqlite3.connect(folder / DATABASE)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def lose_a_cell(folder: Path) -> None:
    """One byte of a page's head says how many rows the page has: two, and from now on one."""
    content = bytearray((folder / DATABASE).read_bytes())
    assert content[4100] == 2
    content[4100] = 1
    (folder / DATABASE).write_bytes(content)


@pytest.mark.parametrize(
    "loss",
    [
        lose_a_cell,
        lambda folder: altered(folder, "delete from runs where number = 2"),
        lambda folder: altered(folder, "delete from runs"),
        lambda folder: altered(folder, "update runs set digest = null where number = 2"),
        lambda folder: altered(folder, "delete from totals"),
        lambda folder: altered(folder, "insert into totals select * from totals"),
        lambda folder: altered(folder, "update totals set runs = 1"),
    ],
)
def test_a_removed_run_whose_row_is_lost_is_missed(loss: Callable[[Path], None], tmp_path: Path) -> None:
    first, _ = removed(tmp_path)
    loss(tmp_path)
    store = Store(tmp_path)
    reads = (store.all, lambda: store.get(first), lambda: store.ledger(first), lambda: store.create("b", about()))
    for read in reads:
        with pytest.raises(UserError, match=r"is damaged .*: put it back from a copy"):
            read()
    assert not list(tmp_path.glob("runs/b*")), "nothing is begun"


def test_a_store_of_version_three_is_read_as_it_is_and_counts_its_runs_once_it_is_written_to(tmp_path: Path) -> None:
    names = removed(tmp_path)
    altered(tmp_path, "drop table totals", "pragma user_version = 3")
    before = (tmp_path / DATABASE).read_bytes()
    early, late = Store(tmp_path), Store(tmp_path)
    assert [row.run for row in early.all()] == names[::-1]
    assert (tmp_path / DATABASE).read_bytes() == before
    names += [early.create("a", about()), late.create("a", about())]  # both have seen it without
    for store in (early, late, Store(tmp_path)):
        assert [row.run for row in store.all()] == names[::-1]
    altered(tmp_path, "delete from runs where number = 1")
    for store in (early, late, Store(tmp_path)):
        with pytest.raises(UserError, match="runs that it had are missing"):
            store.all()


def test_a_store_of_version_three_with_an_altered_row_counts_nothing(tmp_path: Path) -> None:
    removed(tmp_path)
    altered(tmp_path, "drop table totals", "pragma user_version = 3", "update runs set people = 'others'")
    with pytest.raises(UserError, match="has been altered"):
        Store(tmp_path).create("a", about())
    altered(tmp_path, "pragma user_version = 4")
    with pytest.raises(UserError, match="its tables are not as they were made"):
        Store(tmp_path)


def test_the_ledger_has_a_chain_of_its_own(tmp_path: Path) -> None:
    """Whoever makes the store's digests fit again still has the ledger's links against them."""
    name = command(*RUN, "--store", tmp_path).document["run"]
    changed(tmp_path, "update ledger set noise = sensitivity where position = 1")
    store = Store(tmp_path)
    chain = _chain(NO_ROWS, store._database.select("ledger"))
    store._database.execute("update runs set ledger_chain = ?", (chain,))
    store._database.seal(name)
    with pytest.raises(UserError, match="row 1 breaks the chain"):
        store.ledger(name)


@pytest.mark.parametrize("arguments", [("runs",), ("resume", "dp-fedavg-digits-1"), RUN])
@pytest.mark.parametrize("loss", ["file", "content", "tables", "row"])
def test_a_store_that_lost_its_database_does_not_look_empty(
    loss: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    command(*RUN, "--store", tmp_path)
    database = tmp_path / "sordino.db"
    if loss == "row":
        changed(tmp_path, "delete from runs")
        if arguments == RUN:
            return  # a new run needs no old one
    else:
        database.unlink()
    if loss == "content":
        database.touch()
    elif loss == "tables":
        sqlite3.connect(database).execute("vacuum")
    assert f"The database {database} is damaged" in refused(*arguments, "--store", tmp_path)
    assert database.exists() == (loss != "file")


def test_what_is_committed_stands_in_the_database_file(tmp_path: Path) -> None:
    """SQLite drops a write-ahead log whose first bytes are damaged without a word: there is none."""
    store = Store(tmp_path)
    run = store.create("a", about())
    store.advance(run, 1, KeptFile("c", ""), 0.0, Progress([], [], []))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "sordino.db"]
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "sordino.db").write_bytes((tmp_path / "sordino.db").read_bytes())
    assert Store(tmp_path / "copy").get(run).rounds_done == 1


def test_a_store_of_another_version(tmp_path: Path) -> None:
    Store(tmp_path).close()
    changed(tmp_path, "pragma user_version = 0")
    assert "was written by another version of Sordino" in refused("runs", "--store", tmp_path)


def test_a_table_whose_name_is_no_text(tmp_path: Path) -> None:
    """SQLite complains with the bytes that it has found."""
    Store(tmp_path).close()
    database = tmp_path / "sordino.db"
    database.write_bytes(database.read_bytes().replace(b"primary key", b"primary \xbaey"))
    assert f"The database {database} is damaged" in refused("runs", "--store", tmp_path)


def test_tables_of_another_shape(tmp_path: Path) -> None:
    Store(tmp_path).close()
    changed(tmp_path, "alter table rounds rename column clip to clap")
    assert "its tables are not as they were made" in refused("runs", "--store", tmp_path)


def test_a_folder_that_a_killed_creation_left_out(tmp_path: Path) -> None:
    """A run's row comes before its folder: without one it is a run that has not begun."""
    store = Store(tmp_path)
    run = store.create("a", about())
    store.path(run).rmdir()
    assert store.get(run).state == "stopped"
    with store.lock(run):
        assert store.get(run).state == "running"


@pytest.mark.parametrize("folder", ["absent", "empty"])
def test_reading_makes_no_store(folder: str, tmp_path: Path) -> None:
    import sordino

    store = tmp_path / folder
    if folder == "empty":
        store.mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert "No runs in" in command("runs", "--store", store).out
    assert "There is no store" in refused("resume", "a", "--store", store)
    for read in (sordino.load_models, sordino.resume):
        with pytest.raises(UserError, match="There is no store"):
            read("a", store)
    assert sorted(tmp_path.rglob("*")) == before


def test_several_writers_to_one_store_at_once(tmp_path: Path) -> None:
    threads = [Thread(target=lambda: _write_often(tmp_path)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = Store(tmp_path).all()
    assert len({row.run for row in rows}) == 4
    assert {row.rounds_done for row in rows} == {10}


def test_a_store_that_another_process_makes_meanwhile_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Database._tables

    def read_first(database: Database) -> tuple[int, dict[str, str]]:
        """Read the tables; the first time, another process makes them and a run right after."""
        found = read(database)
        monkeypatch.undo()
        other = Store(tmp_path)
        other.create("a", about())
        other.close()
        return found

    (tmp_path / "sordino.db").touch()
    monkeypatch.setattr(Database, "_tables", read_first)
    # A transaction that reads would keep the other process from writing.
    monkeypatch.setattr(Database, "transaction", lambda self, kind: contextlib.nullcontext())
    assert len(Store(tmp_path).all()) == 1


def test_a_store_that_another_process_makes_before_its_folders_are_looked_for_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = stores.run_folders

    def make_first(folder: Path) -> set[str]:
        """Look for folders of runs just after another process has made the store and a run."""
        monkeypatch.undo()
        other = Store(folder)
        other.create("a", about())
        other.close()
        return looked(folder)

    monkeypatch.setattr(stores, "run_folders", make_first)
    assert len(Store(tmp_path).all()) == 1


def _write_often(folder: Path) -> None:
    store = Store(folder)
    run = store.create("a", about(rounds=10))
    for done in range(1, 11):
        store.advance(run, done, KeptFile("c", ""), 0.0, Progress([], [(done, 0, 0.5, None, None)], []))
        assert len(store.clients(run)) == done
    store.close()


@pytest.mark.parametrize("finished", [False, True])
def test_what_a_kill_left_of_a_file_being_written_is_removed(finished: bool, tmp_path: Path) -> None:
    """A kill while safetensors writes leaves a file with a name of its own."""
    name = command(*RUN, "--store", tmp_path).document["run"] if finished else Store(tmp_path).create("a", about())
    left = tmp_path / "runs" / name / ".tmpQ3xY9b"
    left.touch()
    if finished:
        command("resume", name, "--store", tmp_path)
    else:
        checkpoint.remove_leftovers(left.parent, "lock")
    assert not left.exists()


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
        patch.setattr(os, "pwritev", no_space)
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
    monkeypatch.setattr(os, "pwritev", lambda file, parts, offset: real(file, b"".join(parts)[:64], offset))
    memory = Memory(tmp_path, {"model": torch.zeros(100)}, 2)
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


@pytest.mark.slow
def test_a_real_limit_on_file_sizes(tmp_path: Path) -> None:
    """The system refuses to let any file grow beyond 30,000 bytes; the clients' memory alone needs 41,600."""
    outcome = process(LIMITED + COMMAND, 30_000, *RUN, "--store", tmp_path)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"Error: Cannot write to the store {tmp_path}: ")
    assert len(outcome.err.splitlines()) == 1
