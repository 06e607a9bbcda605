"""A journal that is gone or emptied counts as lost, and one that was never begun as nothing, at whatever instant."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import QUICK_KEYS, command, refused
from killing import die_at, killed

from sordino.api import resume, run
from sordino.errors import UserError
from sordino.experiment import run as running
from sordino.federation import server
from sordino.federation.rounds import RoundReport
from sordino.privacy.accounting.gaussian import epsilon_of
from sordino.privacy.unit import Unit
from sordino.store import checkpoint, journal, ledger_rows
from sordino.store.database import Database
from sordino.store.journal import MARK, Journal
from sordino.store.ledger_rows import Account
from sordino.store.run_files import RunFiles
from sordino.store.spending import over_runs, remove, spending_of_run
from sordino.store.store import JOURNAL, PLANNED, Store

pytestmark = pytest.mark.usefixtures("one_thread")

DELTA = 1e-5
ROUNDS = 6
KEYS: dict[str, Any] = QUICK_KEYS | {
    **{"method": "dp-fedavg", "noise_multiplier": 2.0, "delta": DELTA, "rounds": ROUNDS},
}


def cost(rounds: int) -> Any:
    """What so many rounds cost: each is mu = 1/2, and squares add up."""
    return pytest.approx(epsilon_of(math.sqrt(rounds) / 2, DELTA) if rounds else 0.0)


def spent(store: Path) -> float | None:
    """The epsilon of all runs of a store."""
    opened = Store(store)
    return over_runs(opened, opened.all()[0].people, Unit.CLIENT, DELTA)["epsilon"]["outsider"]


def charged_rounds(store: Path) -> int:
    """Number of rounds that the newest run of a store was charged for, by its ledger and journal."""
    opened = Store(store)
    return len(ledger_rows.ledger_of(opened.all()[0], opened).rows)


def stop_after(rounds: int) -> Callable[[RoundReport], None]:
    def watch(report: RoundReport) -> None:
        if report.round + 1 == rounds:
            raise ZeroDivisionError

    return watch


def stopped(store: Path, rounds: int) -> str:
    """A run that was stopped after so many rounds."""
    with pytest.raises(ZeroDivisionError):
        run(store=store, watch=stop_after(rounds), **KEYS)
    return Store(store).all()[0].run


@pytest.fixture
def checkpoints_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SAVE_SECONDS", 0)


def journals(store: Path) -> list[Path]:
    return list(store.glob("runs/*/ledger-*"))


def take_away(store: Path) -> None:
    for path in journals(store):
        path.unlink()


def empty(store: Path) -> None:
    for path in journals(store):
        path.write_bytes(b"")


def cut_off_early(store: Path) -> None:
    for path in journals(store):
        path.write_bytes(path.read_bytes()[: len(MARK)])


def take_away_all_files(store: Path) -> None:
    shutil.rmtree(store / "runs")


DAMAGES: tuple[Callable[[Path], None], ...] = (take_away, empty, cut_off_early, take_away_all_files)
NEVER_BEGUN: dict[str, tuple[Any, str, int, str]] = {
    "before its folder is there": (Store, "_make_folder", 1, "before"),
    "before the journal is there": (journal, "replace_file", 1, "before"),
    "before it is written down that it is": (Store, "begin", 1, "before"),
    "while it is written down": (Database, "seal", 2, "after"),
}
BEGUN: dict[str, tuple[tuple[Any, str, int, str], int]] = {
    "before anything was charged": ((Store, "begin", 1, "after"), 0),
    "when the first charge is half there": ((os, "write", 1, "halfway"), 0),
    "after the first charge": ((Journal, "write", 1, "after"), 1),
    "after the third charge": ((Journal, "write", 3, "after"), 3),
    "before the next journal is in place": ((journal, "replace_file", 1 + 3, "before"), 3),
    "when the next journal is in place": ((Journal, "following", 3, "after"), 3),
    "within the transaction": ((Database, "seal", 2 + 3, "after"), 3),
    "after the transaction": ((Store, "advance", 3, "after"), 3),
    "when the old journal is removed": ((checkpoint, "remove_leftovers", 1 + 3, "after"), 3),
    "before the last transaction": ((Store, "advance", ROUNDS, "before"), ROUNDS),
}
"""Each with the rounds that had been charged by then."""


def killed_run(store: Path, moment: tuple[Any, str, int, str]) -> str:
    def victim() -> None:
        die_at(*moment)
        run(store=store, **KEYS)

    assert killed(victim)
    return Store(store).all()[0].run


def damaged_copies(store: Path) -> list[Path]:
    """Copies of a store whose journals are damaged in each way."""
    found = []
    for damage in DAMAGES:
        copy = store.with_name(damage.__name__)
        shutil.copytree(store, copy)
        damage(copy)
        found.append(copy)
    return found


@pytest.mark.usefixtures("checkpoints_every_round")
@pytest.mark.parametrize("moment", BEGUN)
def test_a_journal_that_was_begun_and_is_lost_counts_as_planned(moment: str, tmp_path: Path) -> None:
    where, charged = BEGUN[moment]
    name = killed_run(tmp_path / "store", where)
    assert charged_rounds(tmp_path / "store") == charged
    assert spent(tmp_path / "store") == cost(ROUNDS if charged else 0), "an end that answers may have chosen"
    for copy in damaged_copies(tmp_path / "store"):
        assert spent(copy) == cost(ROUNDS), copy.name
        with pytest.raises(UserError, match=r"(gone|damaged).*: put it back from a copy, or start the run anew"):
            resume(name, copy)
        assert spent(copy) == cost(ROUNDS), copy.name
        remove(name, Store(copy))
        assert spent(copy) == cost(ROUNDS), copy.name
    resume(name, tmp_path / "store")
    assert spent(tmp_path / "store") == cost(ROUNDS)
    assert not journals(tmp_path / "store")


@pytest.mark.parametrize("moment", NEVER_BEGUN)
def test_without_a_journal_nothing_was_charged_and_nothing_is_lost(moment: str, tmp_path: Path) -> None:
    name = killed_run(tmp_path / "store", NEVER_BEGUN[moment])
    (tmp_path / "store" / "runs").mkdir(exist_ok=True)
    for copy in (tmp_path / "store", *damaged_copies(tmp_path / "store")):
        assert spent(copy) == 0, copy.name
        shutil.copytree(copy, removed := copy.with_name("removed"))
        remove(name, Store(removed))
        assert spent(removed) == 0, copy.name
        shutil.rmtree(removed)
        resume(name, copy)
        assert spent(copy) == cost(ROUNDS), copy.name


@pytest.mark.usefixtures("checkpoints_every_round")
def test_what_finished_needs_no_journal(tmp_path: Path) -> None:
    name = run(store=tmp_path, **KEYS)["run"]
    assert not journals(tmp_path)
    assert len(Account.of(Store(tmp_path), name).ledger.rows) == ROUNDS
    remove(name, Store(tmp_path))
    assert len(Account.of(Store(tmp_path), name).ledger.rows) == ROUNDS
    assert spent(tmp_path) == cost(ROUNDS)


def test_a_lost_journal_is_told_to_who_wants_the_ledger(tmp_path: Path) -> None:
    name = stopped(tmp_path, 2)
    (path,) = journals(tmp_path)
    path.unlink()
    assert f"The journal {path} is gone" in refused("ledger", name, "--store", tmp_path)


def test_one_that_is_lost_while_its_run_goes_on_is_missed_when_that_is_stopped(tmp_path: Path) -> None:
    def watch(report: RoundReport) -> None:
        if report.round == 1:
            take_away(tmp_path)
        stop_after(3)(report)

    with pytest.raises(ZeroDivisionError):
        run(store=tmp_path, watch=watch, **KEYS)
    assert spent(tmp_path) == cost(ROUNDS)


@pytest.mark.usefixtures("checkpoints_every_round")
def test_a_folder_that_is_removed_while_its_run_goes_on_is_named(tmp_path: Path) -> None:
    def watch(report: RoundReport) -> None:
        if report.round == 1:
            take_away_all_files(tmp_path)

    with pytest.raises(UserError, match=f"The folder {tmp_path}/runs/dp-fedavg-digits-1 is gone: it was removed while"):
        run(store=tmp_path, watch=watch, **KEYS)
    assert spent(tmp_path) == cost(ROUNDS)


@pytest.mark.parametrize("deed", ["charge", "answered", "save", "close"])
def test_a_process_that_code_of_a_run_forks_cannot_go_on_with_the_run(
    deed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, codes = getattr(RunFiles, deed), []

    def forked(files: RunFiles, *given: Any) -> Any:
        before = [path.read_bytes() for path in journals(tmp_path)]
        child = os.fork()
        if not child:
            try:
                original(files, *given)
            except UserError as error:
                os._exit(7 if "has forked its process" in str(error) else 8)
            finally:
                os._exit(9 if deed != "close" else 7)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        assert [path.read_bytes() for path in journals(tmp_path)] == before
        return original(files, *given)

    monkeypatch.setattr(RunFiles, deed, forked)
    with pytest.raises(ZeroDivisionError) if deed == "close" else contextlib.nullcontext():
        run(store=tmp_path, watch=stop_after(2) if deed == "close" else None, **KEYS)
    assert set(codes) == {7}
    assert spent(tmp_path) == cost(ROUNDS)


@pytest.mark.parametrize("lost", [1, 700])
def test_a_journal_that_has_lost_its_last_rows_counts_as_planned(
    lost: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built-in code repeats what is lost on a machine of the same kind, at the same cost; elsewhere it is refused."""
    name = stopped(tmp_path, 4)
    (path,) = journals(tmp_path)
    path.write_bytes(path.read_bytes()[:-lost])
    assert spent(tmp_path) == cost(ROUNDS)
    assert f"The journal {path} is damaged, its last rows are lost" in refused("ledger", name, "--store", tmp_path)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(running, "describe_machine", lambda device: "elsewhere")
        with pytest.raises(UserError, match="its last rows are lost: put it back from a copy, or start the run anew"):
            resume(name, tmp_path)
    assert spent(tmp_path) == cost(ROUNDS)
    with pytest.raises(ZeroDivisionError):
        resume(name, tmp_path, watch=stop_after(1))
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(running, "describe_machine", lambda device: "elsewhere")
        with pytest.raises(UserError, match="may have lost its last rows"):
            resume(name, tmp_path)
    assert resume(name, tmp_path)["epsilon"]["outsider"] == cost(ROUNDS)
    assert spent(tmp_path) == cost(ROUNDS)


def as_an_earlier_version_left_it(store: Path, without: Collection[str] = (JOURNAL,)) -> None:
    """Nobody wrote down whether a journal was begun, and journals began with their first record."""
    database = Database(store)
    with database.transaction("immediate"):
        for row in database.runs():
            plain = {key: value for key, value in json.loads(row["configuration"]).items() if key not in without}
            database.execute("update runs set configuration = ? where run = ?", (json.dumps(plain), row["run"]))
            database.seal(row["run"])
    database.close()
    for path in journals(store):
        path.write_bytes(path.read_bytes()[journal.HEAD :])


def test_runs_of_an_earlier_version_are_read_as_they_were(tmp_path: Path) -> None:
    """Losses in their journals cannot be known: they count as planned, and so does a folder that is gone."""
    name = stopped(tmp_path / "store", 3)
    as_an_earlier_version_left_it(tmp_path / "store")
    assert Store(tmp_path / "store").get(name).begun is None
    assert charged_rounds(tmp_path / "store") == 3
    assert spent(tmp_path / "store") == cost(ROUNDS)
    *others, without_files = damaged_copies(tmp_path / "store")
    assert [spent(copy) for copy in others[:2]] == [cost(ROUNDS)] * 2
    assert spent(without_files) == cost(ROUNDS)
    remove(name, Store(without_files))
    assert spent(without_files) == cost(ROUNDS)


def test_a_run_without_a_plan_whose_folder_is_gone_has_no_bound(tmp_path: Path) -> None:
    name = stopped(tmp_path, 3)
    as_an_earlier_version_left_it(tmp_path, {JOURNAL, PLANNED})
    assert spent(tmp_path) == cost(ROUNDS), "as if it had gone on as it did"
    take_away_all_files(tmp_path)
    assert spent(tmp_path) is None
    remove(name, Store(tmp_path))
    assert spent(tmp_path) is None


@pytest.mark.parametrize("moment", [None, (Store, "begin", 1, "before"), (Journal, "write", 1, "after")])
def test_a_run_of_an_earlier_version_has_a_journal_like_others_once_it_is_taken_up(
    moment: tuple[Any, str, int, str] | None, tmp_path: Path
) -> None:
    """What it owed goes over, and whoever is killed on the way has lost nothing."""
    name = stopped(tmp_path, 3)
    as_an_earlier_version_left_it(tmp_path)

    def victim() -> None:
        assert moment is not None
        die_at(*moment)
        resume(name, tmp_path)

    assert moment is None or killed(victim)
    assert charged_rounds(tmp_path) == 3
    with pytest.raises(ZeroDivisionError):
        resume(name, tmp_path, watch=stop_after(1))
    assert charged_rounds(tmp_path) == 3
    take_away(tmp_path)
    assert spent(tmp_path) == cost(ROUNDS)


@pytest.mark.usefixtures("checkpoints_every_round")
@pytest.mark.parametrize("rounds", [5, ROUNDS])
def test_who_looks_while_a_run_goes_on_is_told_of_no_loss(
    rounds: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Between its ledger and its journal are read, the run comes to its fifth round or ends: the journal that is looked
    for is gone by then."""
    name, original = stopped(tmp_path / "store", 3), ledger_rows.rows_after

    def meanwhile(*arguments: Any) -> Any:
        monkeypatch.setattr(ledger_rows, "rows_after", original)
        if rounds == ROUNDS:
            resume(name, tmp_path / "store")
        else:
            with pytest.raises(ZeroDivisionError):
                resume(name, tmp_path / "store", watch=stop_after(rounds))
        return original(*arguments)

    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    monkeypatch.setattr(ledger_rows, "rows_after", meanwhile)
    assert len(Account.of(Store(tmp_path / "store"), name).ledger.rows) == rounds
    shutil.rmtree(tmp_path / "store")
    shutil.copytree(tmp_path / "copy", tmp_path / "store")
    store = Store(tmp_path / "store")
    row = replace(store.get(name), planned=None)  # one that lost its journal has no bound
    monkeypatch.setattr(ledger_rows, "rows_after", meanwhile)
    assert spending_of_run(row, store)["mu"][0] == pytest.approx(math.sqrt(ROUNDS) / 2)


def test_a_stopped_run_whose_rest_went_to_others_is_told_what_helps(tmp_path: Path) -> None:
    """Six rounds are within the limit; six and six of another run, which keeps to no limit, are not."""
    limit = epsilon_of(math.sqrt(9) / 2, DELTA) + 0.01
    with pytest.raises(ZeroDivisionError):
        run(store=tmp_path, watch=stop_after(3), budget_over_runs=limit, **KEYS)
    (first,) = Store(tmp_path).all()
    run(store=tmp_path, **KEYS)
    assert refused("resume", first.run, "--store", tmp_path) == (
        f"This run and 1 beside it on these people in {tmp_path} would come to an epsilon of 8.39 for the outsider, "
        f"above the {limit:g} of budget_over_runs: other runs have since used the budget reserved for this run. "
        "`sordino resume` takes a larger limit with --budget-over-runs; removing runs gives nothing back, and starting "
        "anew pays again."
    )
    assert "above the 8.3 of" in refused("resume", first.run, "--store", tmp_path, "--budget-over-runs=8.3")
    raised = command("resume", first.run, "--store", tmp_path, "--budget-over-runs=8.4", "--json")
    assert raised.document["rounds_done"] == ROUNDS
    assert spent(tmp_path) == cost(12)


def test_a_journal_counts_even_where_the_database_does_not_know_of_it_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is put back from a copy of the moment before it was told."""
    begin = Store.begin

    def copied(store: Store, name: str) -> None:
        shutil.copy(store.folder / "sordino.db", tmp_path / "copy.db")
        begin(store, name)

    monkeypatch.setattr(Store, "begin", copied)
    name = stopped(tmp_path / "store", 3)
    monkeypatch.setattr(Store, "begin", begin)
    shutil.copy(tmp_path / "copy.db", tmp_path / "store" / "sordino.db")
    assert Store(tmp_path / "store").get(name).begun is False
    assert charged_rounds(tmp_path / "store") == 3
    with pytest.raises(ZeroDivisionError):
        resume(name, tmp_path / "store", watch=stop_after(1))
    assert charged_rounds(tmp_path / "store") == 3


def test_a_journal_of_another_run_is_none_of_this_one(tmp_path: Path) -> None:
    stopped(tmp_path, 4)
    with pytest.raises(ZeroDivisionError):
        run(store=tmp_path, watch=stop_after(1), **KEYS)
    more, less = sorted(journals(tmp_path), key=lambda path: -path.stat().st_size)
    store = Store(tmp_path)
    newest, oldest = store.all()
    assert [len(ledger_rows.ledger_of(row, store).rows) for row in (newest, oldest)] == [1, 4]
    shutil.copy(less, more)
    with pytest.raises(UserError, match="is damaged"):
        ledger_rows.ledger_of(oldest, store)
    assert spent(tmp_path) == cost(2 * ROUNDS)
