"""The board: it answers whoever has its token, tells what the store has, and changes nothing."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import shutil
import socket
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from boards import Asker, serving
from helpers import COMMAND, QUICK_KEYS, command, refused, start_process

import sordino
from sordino.board import budgets as sums
from sordino.board.look import StoreWatch
from sordino.board.server import StoreBoard
from sordino.privacy.unit import Unit
from sordino.store.spending import describe_sum, over_runs, remove
from sordino.store.store import NewRun, Store

KEYS: dict[str, Any] = {**QUICK_KEYS, "method": "dp-fedavg", "epsilon": 3.0}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two runs, a comparison and an audit, which no test changes."""
    folder = tmp_path_factory.mktemp("board") / "store"
    runs = [sordino.run(**KEYS | {"seed": seed, "store": folder})["run"] for seed in (0, 1)]
    comparison = {"rows": [{"method": "dp-fedavg", "runs": runs}], "verdict": ["One method alone.", "Nothing more."]}
    (folder / "compare.json").write_text(json.dumps(comparison))
    (folder / "audits").mkdir()
    view = {"claimed": 3.0, "bound": 0.5, "confidence": 0.95, "refuted": True}
    audit = {"method": "ditto", "unit": "client", "delta": 1e-5, "views": {"server": view}, "findings": ["a leak"]}
    (folder / "audits" / "ditto.json").write_text(json.dumps(audit))
    (folder / "other.json").write_text("[1, 2")
    return folder


@pytest.fixture
def store(kept: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(kept, tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def ask(store: Path) -> Iterator[Asker]:
    with serving(StoreBoard(store)) as asker:
        yield asker


def current(ask: Asker) -> str:
    """The first page, once its sums are those of its runs."""
    for _ in range(600):
        found = ask().words
        if "added up" not in found:
            return found
        time.sleep(0.05)
    raise AssertionError("the runs are never added up")


def contents(folder: Path) -> dict[str, str]:
    """Digest of every file of a folder."""
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


def row_of_run(ask: Asker, run: str) -> str:
    """Row of a run in the list."""
    found = re.search(rf"<tr data-words=[^>]*>(?:(?!</tr>).)*>{run}<.*?</tr>", ask.changes().parts["runs"], re.DOTALL)
    assert found is not None, run
    return found[0]


def test_only_the_token_opens_it(ask: Asker) -> None:
    page = ask("/?token=T")
    assert page.status == 200
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "dp-fedavg-digits-1" in page.words
    assert "dp-fedavg-digits-2" in page.words
    for address in ("/", "/?token=", "/?token=t", "/?token=TT", "/changes", "/run?name=dp-fedavg-digits-1", "/x"):
        denied = ask(address)
        assert denied.status == 403, address
        assert "digits" not in denied.text
    assert ask("/x?token=T").status == 404


def test_a_token_is_made_at_random(store: Path) -> None:
    with serving(StoreBoard(store), None) as one, serving(StoreBoard(store), None) as other:
        assert one.board.token != other.board.token
        assert len(one.board.token) >= 24
        assert one().status == 200
        assert one(f"/?token={other.board.token}").status == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost.x:1"])
def test_a_name_that_was_made_to_lead_here_is_refused(ask: Asker, host: str) -> None:
    assert ask(Host=host).status == 403
    assert ask(Host=f"localhost:{ask.board.server_port}").status == 200


def test_it_listens_on_this_machine_alone(ask: Asker) -> None:
    assert ask.board.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_takes_nothing(ask: Asker, method: str) -> None:
    assert ask(method=method).status == 405


def test_its_pages_may_do_next_to_nothing(ask: Asker) -> None:
    page = ask()
    policy = page.headers["Content-Security-Policy"]
    script = re.search(r"<script>(.*?)</script>", page.text, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    for part in ("default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "form-action 'none'"):
        assert part in policy
    assert page.headers["Cache-Control"] == "no-store"
    assert page.headers["Referrer-Policy"] == "no-referrer"
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    head = ask(method="HEAD")
    assert (head.status, head.text) == (200, "")


def test_every_page_is_there_and_nothing_is_written(ask: Asker, store: Path) -> None:
    before = contents(store)
    links = ask().links
    for kind in ("run", "statement", "ledger", "study"):
        assert any(link.startswith(f"/{kind}?") for link in links), kind
    for link in links:
        assert ask(link).status == 200, link
    current(ask)
    assert contents(store) == before
    assert "The clients' models are right on" in ask(ask.board.link("run", name="dp-fedavg-digits-1")).words
    ledger = ask(ask.board.link("ledger", name="dp-fedavg-digits-1")).words
    assert "2 rows, an unbroken chain." in ledger


def test_verdicts_and_audits_are_told(ask: Asker) -> None:
    words = ask().words
    assert "Comparison of dp-fedavg" in words
    assert "One method alone." in words
    assert "Audit of ditto" in words
    assert "Refuted for: server." in words


def test_files_outside_of_the_store_have_no_page(ask: Asker, store: Path) -> None:
    shutil.copy(store / "compare.json", store.parent / "outside.json")
    for name in ("../outside.json", str(store.parent / "outside.json"), "other.json", ""):
        assert ask(ask.board.link("study", file=name)).status == 404
    for page in ("run", "statement", "ledger"):
        missing = ask(ask.board.link(page, name="../x"))
        assert missing.status == 404
        assert "There is no run '../x'" in missing.words


def test_budgets_are_those_of_all_runs(ask: Asker, store: Path) -> None:
    opened = Store(store)
    people = opened.all()[0].people
    total = over_runs(opened, people, Unit.CLIENT, 1e-5)
    assert total["runs"] == 2
    assert describe_sum(total, "outsider") in current(ask)
    remove("dp-fedavg-digits-1", opened)  # what it spent stays
    opened.close()
    assert describe_sum(total, "outsider") in current(ask)


def test_one_run_is_told_as_one(tmp_path: Path) -> None:
    sordino.run(**KEYS | {"store": tmp_path / "store", "budget_over_runs": 4.0})
    with serving(StoreBoard(tmp_path / "store")) as ask:
        words = current(ask)
    assert "One stored run used these people's data. For one client it comes to an epsilon of 3.00" in words
    assert "The limit of 4 (budget_over_runs), set beforehand, holds whatever results decided." in words
    assert "4 (limit)" in words


def test_only_what_changed_is_sent(ask: Asker, store: Path) -> None:
    current(ask)
    time.sleep(0.2)
    first = json.loads(ask.changes().text)
    seen = ",".join(f"{name}:{version}" for name, version in first["versions"].items())
    assert ask.changes(seen).parts == {}
    opened = Store(store)
    run = opened.create("new", NewRun("local", {"data": "digits", "set": {}}, "i", "p", Unit.CLIENT, 5))
    opened.close()
    changed = ask.changes(seen).parts
    assert run in changed["runs"]
    assert "studies" not in changed


def test_a_run_under_way_is_followed(ask: Asker, store: Path) -> None:
    opened = Store(store)
    configuration = {"data": "digits", "set": {}, "protect_from": "outsider"}
    run = opened.create("new", NewRun("local", configuration, "i", "p", Unit.CLIENT, 5, planned={"epsilon": 2.5}))
    with opened.lock(run):
        words = ask().words
        assert "1 under way" in words
        assert "Round 0 of 5." in words
        assert "Planned: epsilon at most 2.50 for the outsider and one client." in words
        assert "This run is under way: 0 of 5 rounds are done." in ask(ask.board.link("run", name=run)).words
    time.sleep(0.2)
    assert "1 stopped" in ask().words, "its process is gone, and the store is as it was"
    assert f"sordino resume {run} --store" in ask(ask.board.link("run", name=run)).words
    remove(run, opened)
    opened.close()
    gone = ask(ask.board.link("run", name=run))
    assert gone.status == 404
    assert "was removed: only what it spent is still known" in gone.words
    assert "is over, or was removed" in ask.changes(name=run).parts["run"]
    assert "removed" in row_of_run(ask, run)


def test_a_damaged_store_is_told_in_a_sentence(ask: Asker, store: Path) -> None:
    assert "2 runs" in ask().words
    whole = (store / "sordino.db").read_bytes()
    (store / "sordino.db").write_bytes(b"x" * len(whole))
    broken = ask()
    assert broken.status == 200
    assert "is damaged" in broken.words
    assert "What follows is as of" in broken.words
    assert "dp-fedavg-digits-1" in broken.words
    page = ask(ask.board.link("statement", name="dp-fedavg-digits-1"))
    assert (page.status, "is damaged" in page.words) == (409, True)
    (store / "sordino.db").write_bytes(whole)
    assert "is damaged" not in ask().words


def test_a_store_that_vanishes_is_not_made_anew(ask: Asker, store: Path) -> None:
    assert "2 runs" in ask().words
    shutil.rmtree(store)
    assert "No runs yet" in ask().words
    assert ask(ask.board.link("run", name="dp-fedavg-digits-1")).status == 404
    assert not store.exists()


def test_a_store_that_is_made_later_appears(tmp_path: Path) -> None:
    with serving(StoreBoard(tmp_path / "store")) as ask:
        assert "No runs yet" in ask().words
        assert not (tmp_path / "store").exists()
        sordino.run(**KEYS | {"store": tmp_path / "store"})
        assert "dp-fedavg-digits-1" in ask().words


def test_a_busy_store_is_waited_for_only_briefly(ask: Asker, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sordino.store.database.PATIENCE_OF_WATCHERS", 0.05)
    assert "2 runs" in current(ask)
    with contextlib.closing(sqlite3.connect(store / "sordino.db", isolation_level=None)) as other:
        other.execute("begin exclusive")
        other.execute("update runs set seconds = seconds")
        (store / "sordino.db").touch()
        words = ask().words
        assert "is busy: another process has been writing for long" in words
        assert "dp-fedavg-digits-1" in words
        other.execute("rollback")
    time.sleep(0.2)
    assert "has been writing" not in ask().words


def test_a_page_that_fails_is_told_without_its_code(ask: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise RuntimeError("odd <b>")

    monkeypatch.setitem(StoreBoard.PAGES, "ledger", fail)
    failed = ask(ask.board.link("ledger", name="x"))
    assert failed.status == 500
    assert "This page could not be made (RuntimeError: odd <b>)." in failed.words
    assert "<b>" not in failed.text.partition("</style>")[2]
    assert "Traceback" not in failed.text


def test_names_are_no_marks(store: Path) -> None:
    opened = Store(store)
    opened.create("<script>x", NewRun("<b>m", {"data": "<i>d", "set": {}}, "i", "p", Unit.CLIENT, 5))
    opened.close()
    with serving(StoreBoard(store)) as ask:
        text = ask().text
    assert "<script>x" not in text
    assert "<i>d" not in text
    assert "&lt;script&gt;x-3" in text


def test_runs_on_the_same_people_are_one_group(tmp_path: Path) -> None:
    opened = Store(tmp_path)
    for people in ("a", "b", "a"):
        opened.create("x", NewRun("local", {"data": people, "set": {}}, "i", people, Unit.CLIENT, 5))
    groups = sums.groups_of(opened.all())
    assert sorted([row.run for row in group] for group in groups) == [["x-2"], ["x-3", "x-1"]]
    opened.close()


def test_wrong_uses_are_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = refused("board", "--store", tmp_path, "--port", taken.getsockname()[1])
    assert "is in use, perhaps by another board: choose one with --port" in said
    assert "The token is empty" in refused("board", "--store", tmp_path, "--port", 0, "--token", "")
    assert "There is no site in" in refused("board", "--site", tmp_path, "--port", 0)
    assert "Give either --store or --site" in refused("board", "--site", tmp_path, "--store", tmp_path)
    assert command("board", "--help").code == 0


@pytest.mark.slow
def test_the_command_prints_an_address_and_ends_with_ctrl_c(store: Path) -> None:
    import signal
    import urllib.request

    started = start_process(COMMAND, "board", "--store", store, "--port", 0, "--json")
    assert started.stdout is not None
    told = json.loads(started.stdout.readline())
    with urllib.request.urlopen(told["address"]) as answer:
        assert b"dp-fedavg-digits-1" in answer.read()
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=60)
    assert (started.returncode, err) == (0, "")


@pytest.mark.slow
def test_a_thousand_runs_are_listed_without_reading_each_again(kept: Path, tmp_path: Path) -> None:
    """The first time and after a change; the quickest of five, since the machine may be busy."""
    shutil.copytree(kept, tmp_path / "store")
    opened = Store(tmp_path / "store")
    (row,) = opened._database.runs("dp-fedavg-digits-1")
    with opened._database.transaction("immediate"):
        for number in range(3, 1001):
            run = f"dp-fedavg-digits-{number}"
            given = {**row, "number": number, "run": run, "digest": None}
            given |= {f"{table}_chain": "" for table in ("rounds", "clients", "ledger")}
            given |= {"checkpoint": None, "checkpoint_digest": None, "models": None, "models_digest": None}
            places = ",".join("?" * len(given))
            opened._database.execute(f"insert into runs ({', '.join(given)}) values ({places})", tuple(given.values()))
            opened._database.seal(run)
            opened.path(run).mkdir()
    opened.close()
    taken = []
    for _ in range(5):
        begun = time.perf_counter()
        board = StoreBoard(tmp_path / "store")
        assert len(StoreWatch(tmp_path / "store").look().rows) == 1000
        parts = board.parts({}, lambda path, **asked: f"/{path}")
        taken.append(time.perf_counter() - begun)
        assert parts["runs"].count("<tr ") == 1000
    print(f"1,000 runs listed in {min(taken):.2f} s")
    assert min(taken) < 10  # half a second on two cores: this finds looks that read each run again and again
