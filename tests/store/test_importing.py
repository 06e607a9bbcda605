"""Importing the spending of another store's runs, or of an earlier version's, so that it counts."""

from __future__ import annotations

import json
import math
import random
import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pytest
import torch
from helpers import QUICK_KEYS, command, otherwise_slow, refused

from sordino.api import resume, run
from sordino.data import load
from sordino.data.federate import fingerprint
from sordino.errors import UserError
from sordino.federation.rounds import RoundReport
from sordino.method import Result
from sordino.methods.dp_fedavg import DPFedAvg
from sordino.privacy.accounting.gaussian import epsilon_of
from sordino.privacy.ledger import FIRST_LINK
from sordino.privacy.release import Update, sends
from sordino.privacy.unit import Unit
from sordino.store import database as databases
from sordino.store import importing
from sordino.store import journal as journals
from sordino.store.database import COLUMNS, DATABASE, LACKING, NO_ROWS, TABLES, _chain, _row_digest, _statements
from sordino.store.ledger_rows import ledger_of
from sordino.store.spending import OverRuns, over_runs, remove
from sordino.store.store import JOURNAL, PLANNED, Store

pytestmark = pytest.mark.usefixtures("one_thread")

DELTA = 1e-5
KEYS: dict[str, Any] = QUICK_KEYS | {"method": "dp-fedavg", "noise_multiplier": 2.0, "delta": DELTA, "rounds": 4}
RECORDS: dict[str, Any] = KEYS | {"method": "dp-fedavg-record"}


def stop(report: RoundReport) -> None:
    raise ZeroDivisionError


def stopped(store: Path) -> str:
    """A run that was stopped after its first round, of which the journal alone knows."""
    with pytest.raises(ZeroDivisionError):
        run(store=store, watch=stop, **KEYS)
    return Store(store).all()[0].run


def total(store: Path, unit: Any = Unit.CLIENT) -> OverRuns:
    opened = Store(store)
    found = over_runs(opened, opened.all()[0].people, unit, DELTA)
    opened.close()
    return found


def imported(old: Path, new: Path) -> Any:
    return command("runs", "--import", old, "--store", new, "--json").document


def as_version_two(store: Path) -> None:
    """Rewrite a store as Sordino 0.3 left it: no losses, no whole numbers, no plans, and journals without a head."""
    lacking = LACKING[2]
    opened = Store(store)
    ledgers = {row.run: opened.ledger(row.run) for row in opened.all()}
    owed = {row.run: ledger_of(row, opened).rows[len(ledgers[row.run]) :] for row in opened.all() if not row.summary}
    opened.close()
    for name, rows in owed.items():
        (path,) = (store / "runs" / name).glob("ledger-*.journal")
        content, link = b"", FIRST_LINK
        for row in rows:
            link, body = row.link(link, lacking["ledger"]), journals._content(row, lacking["ledger"])
            length = journals.LENGTH.pack(len(body))
            content += length + journals.LENGTH.pack(journals.zlib.crc32(length)) + body + link
        path.write_bytes(content)
    connection = sqlite3.connect(store / DATABASE, isolation_level=None)
    connection.execute("drop table totals")
    made = _statements({t: [c for c in TABLES[t] if c.split()[0] not in lacking.get(t, ())] for t in TABLES})
    columns = {t: [c for c in COLUMNS[t] if c not in lacking.get(t, ())] for t in TABLES}
    links = {name: [row.link for row in rows] for name, rows in ledgers.items()}
    for table in lacking:
        kept = [list(one) for one in connection.execute(f"select {', '.join(columns[table])} from {table}")]
        if table == "ledger":
            heads = dict.fromkeys(links, FIRST_LINK)
            for one in kept:
                heads[one[0]] = one[-1] = links[one[0]].pop(0)(heads[one[0]], lacking[table])
        connection.execute(f"drop table {table}")
        connection.execute(made[table])
        connection.executemany(f"insert into {table} values ({','.join('?' * len(columns[table]))})", kept)
    for values in connection.execute(f"select {', '.join(COLUMNS['runs'])} from runs").fetchall():
        row = dict(zip(COLUMNS["runs"], values, strict=True))
        for table in ("rounds", "clients", "ledger"):
            query = f"select {', '.join(columns[table])} from {table} where run = ? order by rowid"
            found = connection.execute(query, (row["run"],)).fetchall()
            row[f"{table}_chain"] = _chain(NO_ROWS, [dict(zip(columns[table], one, strict=True)) for one in found])
        configuration = json.loads(row["configuration"])
        row["configuration"] = json.dumps({k: v for k, v in configuration.items() if k not in (PLANNED, JOURNAL)})
        if row["summary"]:
            summary = json.loads(row["summary"])
            del summary["spent"]["deal"]
            row["summary"] = json.dumps(summary)
        row["digest"] = _row_digest(row)
        connection.execute(
            f"update runs set {', '.join(f'{name} = ?' for name in row)} where run = ?", (*row.values(), row["run"])
        )
    connection.execute("pragma user_version = 2")
    connection.close()


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A finished run for clients, one for records, one that costs nothing and one that was stopped."""
    store = tmp_path / "old"
    for keys in (KEYS, RECORDS, KEYS | {"method": "local", "noise_multiplier": None}):
        run(store=store, **keys)
    stopped(store)
    return store


@pytest.mark.parametrize("earlier", [True, False])
def test_every_run_s_spending_is_taken_over_once(earlier: bool, old: Path, tmp_path: Path) -> None:
    """Four rounds of mu = 1/2, finished or planned: a record pays 2 x sqrt(4 + 4) / 2 for both, and its own run."""
    counted = total(old, Unit.RECORD)
    if earlier:
        as_version_two(old)
        said = refused("runs", "--store", old)
        assert f"`sordino runs --import {old} --store NEW` takes it over" in said
    before, new = contents(old), tmp_path / "new"
    found = imported(old, new)
    assert [one["as_planned"] for one in found["imported"]] == [False, False, True]
    assert (len(found["without_cost"]), found["known"]) == (1, [])
    assert total(new, Unit.RECORD)["epsilon"] == pytest.approx(counted["epsilon"])
    assert total(new)["deals"] == (3 if earlier else 1), "an earlier version did not say how records were dealt"
    again = imported(old, new)
    assert (again["imported"], len(again["known"])) == ([], 3)
    assert total(new, Unit.RECORD) == total(new, Unit.RECORD) | {"runs": 3}
    assert contents(old) == before, "nothing is written there"
    told = command("runs", "--import", old, "--store", tmp_path / "third").out
    assert "Imported the spending of 3 runs of" in told
    assert "as planned" in told


def test_what_was_imported_counts_against_a_limit_and_is_listed(tmp_path: Path) -> None:
    run(store=tmp_path / "old", budget_over_runs=10, **KEYS)
    (one,) = imported(tmp_path / "old", tmp_path / "new")["imported"]
    limit = epsilon_of(math.sqrt(8) / 2, DELTA)
    with pytest.raises(UserError, match="This run and 1 before it"):
        run(store=tmp_path / "new", budget_over_runs=limit - 0.01, **KEYS)
    run(store=tmp_path / "new", budget_over_runs=10, **KEYS)
    assert total(tmp_path / "new")["limit"] is None, "the other store's limit was not for this one"
    listed = command("runs", "--store", tmp_path / "new", "--state=imported", "--json").document
    assert [(row["run"], row["state"]) for row in listed] == [(one["name"], "imported")]
    assert listed[0]["epsilon"] == pytest.approx(epsilon_of(1.0, DELTA))
    for verb in ("show", "ledger", "statement", "report", "resume", "rm --yes"):
        told = refused(*verb.split(), one["name"], "--store", tmp_path / "new")
        assert "was imported from another store: only what it spent is known here." in told


def test_a_run_that_goes_on_after_it_was_imported_is_brought_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it asked anybody it had cost nothing; copies of one run are one run, also by way of a third store."""
    old, new, third = (tmp_path / name for name in ("old", "new", "third"))
    with monkeypatch.context() as patched:
        patched.setattr("sordino.federation.server.Server.ask", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(store=old, **KEYS)
    (row,) = Store(old).all()
    assert imported(old, new)["without_cost"] == [row.run]
    resume(row.run, old)
    assert len(imported(old, new)["imported"]) == 1
    shutil.copytree(old, tmp_path / "copy")
    assert imported(tmp_path / "copy", new)["known"] == [row.run]
    imported(new, third)
    assert imported(old, third)["known"] == [row.run]
    assert imported(third, old)["known"], "it is its own"
    assert total(third)["runs"] == total(new)["runs"] == total(old)["runs"] == 1


def test_more_spending_replaces_less(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    run(store=old, **KEYS)
    imported(old, new)
    database = databases.Database(new)
    with database.transaction("immediate"):
        (row,) = database.runs()
        summary = json.loads(row["summary"])
        summary["spent"]["mu"] = [0.1, 0.1, 0.1]
        database.execute("update runs set summary = ?", (json.dumps(summary),))
        database.seal(row["run"])
    database.close()
    assert len(imported(old, new)["imported"]) == 1
    assert total(new)["epsilon"]["outsider"] == pytest.approx(epsilon_of(1.0, DELTA))
    assert (imported(old, new)["imported"], total(new)["runs"]) == ([], 1)


@dataclass(frozen=True)
class Whimsical(DPFedAvg):
    """DP-FedAvg whose clients send other values each time."""

    title: ClassVar[str] = "whims"

    @sends(lambda self: {"update": Update(clip="clip")})
    def local(self, message: Any, me: Any, data: Any) -> Result:
        update = torch.zeros_like(message["global"])
        update[random.SystemRandom().randrange(len(update))] = 1.0  # another direction: clipping must not hide it
        return Result(send={"update": update}, keep={"model": message["global"]}, start=message["global"])


def spent_in(store: Path, name: str) -> float:
    """The mu that a finished run has for an outsider."""
    summary = Store(store).get(name).summary
    assert summary is not None
    return float(summary["spent"]["mu"][0])


def branches(
    tmp_path: Path, keys: dict[str, Any], after: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Path, Path]:
    """A run that was stopped, whose store was copied, and that was taken up in both."""
    monkeypatch.setattr("sordino.federation.server.SAVE_SECONDS", 0)
    here, there = tmp_path / "here", tmp_path / "there"

    def watch(report: RoundReport) -> None:
        if report.round + 1 == after:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(store=here, watch=watch, **keys)
    shutil.copytree(here, there)
    (row,) = Store(here).all()
    for store in (here, there):
        resume(row.run, store)
    return row.run, here, there


@pytest.mark.parametrize(
    ("after", "gone"),
    otherwise_slow([(1, False), (1, True), (3, False), (3, True)], {(1, False), (3, True)}.__contains__),
)
def test_releases_that_differ_between_copies_of_a_store_count_with_both(
    after: int, gone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Own code does not repeat itself: four rounds and those that were asked again, in each copy. Whoever imports them
    once more, or by way of a third store, finds them known."""
    name, here, there = branches(tmp_path, KEYS | {"method": f"{__name__}:Whimsical"}, after, monkeypatch)
    shutil.copytree(there, tmp_path / "copy")
    both = math.hypot(spent_in(here, name), spent_in(there, name))
    assert both >= math.sqrt(5 + 5) / 2
    if gone:
        for store in (here, there):
            remove(name, Store(store))
    told = command("runs", "--import", there, "--store", here).out
    assert f"{name} was resumed in both stores, and did not release the same as {name} here: both count." in told
    assert total(here)["epsilon"]["outsider"] == pytest.approx(epsilon_of(both, DELTA))
    for source in (there, tmp_path / "copy"):
        assert imported(source, here)["known"] == [name]
    third = tmp_path / "third"
    assert len(imported(here, third)["imported"]) == 2
    assert imported(there, third)["known"] == [name]
    assert total(third)["epsilon"] == pytest.approx(total(here)["epsilon"])


@pytest.mark.parametrize(
    ("nonce", "noise", "same"), [("", "float", True), ("a nonce", "float", False), ("", "integers", False)]
)
def test_a_ledger_that_begins_with_another_holds_its_releases_only_where_the_run_repeats_itself(
    nonce: str, noise: str, same: bool
) -> None:
    """Own code may send other values under the same rows, and so may noise from the operating system."""
    about: dict[str, Any] = {"configuration": {"noise": noise}, "has_result": False, "state": "stopped", "nonce": nonce}
    longer, shorter = mock.Mock(seconds=2.0, **about), mock.Mock(seconds=1.0, **about)
    assert importing.contains(longer, "abcd", shorter, "ab") == same
    assert not importing.contains(shorter, "ab", longer, "abcd")


def test_copies_of_a_run_that_repeats_itself_are_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it was taken up in one of them, in both or in none."""
    with pytest.raises(ZeroDivisionError):
        run(store=tmp_path / "early", watch=stop, **KEYS)
    (row,) = Store(tmp_path / "early").all()
    shutil.copytree(tmp_path / "early", tmp_path / "late")
    resume(row.run, tmp_path / "late")
    shutil.copytree(tmp_path / "early", tmp_path / "again")
    resume(row.run, tmp_path / "again")
    for old, new in (("early", "late"), ("late", "again"), ("late", "early")):
        assert imported(tmp_path / old, tmp_path / new)["known"] == [row.run]
        assert total(tmp_path / new)["epsilon"]["outsider"] == pytest.approx(epsilon_of(1.0, DELTA))


def test_built_in_code_that_was_taken_up_on_other_machines_counts_with_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There one round was asked again with other noise; the rounds after it answer to other messages."""
    here, there = tmp_path / "here", tmp_path / "there"
    name = stopped(here)
    shutil.copytree(here, there)
    resume(name, here)
    monkeypatch.setattr("sordino.experiment.run.describe_machine", lambda device: "elsewhere")
    resume(name, there)
    (one,) = imported(there, here)["imported"]
    assert one["beside"] == [name]
    both = math.hypot(spent_in(here, name), spent_in(there, name))
    assert both >= math.sqrt(4 + 5) / 2
    assert total(here)["epsilon"]["outsider"] == pytest.approx(epsilon_of(both, DELTA))


def test_own_files_are_known_by_the_records_that_version_two_read(tmp_path: Path) -> None:
    folder, old, new = tmp_path / "own", tmp_path / "old", tmp_path / "new"
    folder.mkdir()
    for client in range(8):
        lines = "".join(f"{i % 2 + 0.1 * client},{i},{i % 2}\n" for i in range(10))
        (folder / f"{client}.csv").write_text("a,b,label\n" + lines)
    keys = KEYS | {"data": str(folder), "partition": None, "clients": None}
    run(store=old, **keys)
    database = databases.Database(old)
    with database.transaction("immediate"):
        (row,) = database.runs()
        database.execute("update runs set people = ?", (fingerprint([], [load(str(folder)).x]),))
        database.seal(row["run"])
    database.close()
    as_version_two(old)
    imported(old, new)
    run(store=new, **keys)
    assert total(new)["runs"] == 2


def test_nonsense_is_refused_with_a_sentence(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    file = tmp_path / "file"
    file.write_text("no store")
    for nothing in (file, tmp_path / "missing", tmp_path):
        assert f"There is no store in {nothing}" in refused("runs", "--import", nothing, "--store", new)
    run(store=old, **KEYS)
    assert "cannot be imported into itself" in refused("runs", "--import", old, "--store", old)
    assert "leave out filters (--method" in refused("runs", "--import", old, "--last=1", "--store", new)
    for version, words in ((1, "of which nothing can be imported"), (99, "newer version of Sordino")):
        copy = shutil.copytree(old, tmp_path / f"version-{version}")
        connection = sqlite3.connect(copy / DATABASE)
        connection.execute(f"pragma user_version = {version}")
        connection.close()
        assert words in refused("runs", "--import", copy, "--store", new)
    as_version_two(old)
    for change, words in (
        ("update runs set people = 'others'", "has been altered"),
        ("alter table rounds add column loss real", "not as they were made"),
    ):
        copy = shutil.copytree(old, tmp_path / words)
        connection = sqlite3.connect(copy / DATABASE)
        connection.execute(change)
        connection.commit()
        connection.close()
        assert words in refused("runs", "--import", copy, "--store", new)
    (old / DATABASE).write_bytes(b"SQLite format 3\0" + bytes(5000))
    assert "is damaged" in refused("runs", "--import", old, "--store", new)
    assert not (new / DATABASE).exists(), "nothing was begun"
