"""Merging stores: runs arrive whole, each counts once, and a kill in the middle loses nothing."""

from __future__ import annotations

import contextlib
import math
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from helpers import QUICK_KEYS, command, refused

from sordino.api import resume, run
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.experiment.run import register
from sordino.federation.rounds import RoundReport
from sordino.privacy.accounting.gaussian import epsilon_of
from sordino.privacy.unit import Unit
from sordino.store import merging
from sordino.store.merging import merge
from sordino.store.spending import over_runs, remove
from sordino.store.store import FIRST_NAME, NewRun, RunRow, Store
from sordino.trained.models import load_models

pytestmark = pytest.mark.usefixtures("one_thread")

DELTA = 1e-5
KEYS: dict[str, Any] = QUICK_KEYS | {"method": "dp-fedavg", "noise_multiplier": 2.0, "delta": DELTA, "rounds": 4}
ONE = 2 / 2.0
"""Square root of mu^2 of one run of four rounds with noise multiplier 2: sqrt(4) / 2."""


def stop(report: RoundReport) -> None:
    raise ZeroDivisionError


def stopped(store: Path, **keys: Any) -> str:
    with pytest.raises(ZeroDivisionError):
        run(store=store, watch=stop, **KEYS | keys)
    return Store(store).all()[0].run


def epsilon(store: Path) -> tuple[int, float | None]:
    """Number of runs that cost the people of a store something, and what they come to."""
    opened = Store(store)
    found = over_runs(opened, opened.all()[0].people, Unit.CLIENT, DELTA)
    opened.close()
    return found["runs"], found["epsilon"]["outsider"]


def contents(store: Path, name: str) -> list[Any]:
    """All that a store says of a run but its name and number, and its files."""
    opened = Store(store)
    row = opened.get(name)
    files = {path.name: path.read_bytes() for path in opened.path(name).iterdir() if path.name != "lock"}
    rows = [
        [{k: v for k, v in one.items() if k != "run"} for one in table(name)]
        for table in (opened.curve, opened.clients)
    ]
    summary = {key: value for key, value in (row.summary or {}).items() if key != "run"}
    return [row.identity, row.people, row.created, row.planned, summary, rows, opened.ledger(name), files]


def test_runs_arrive_whole_and_count_once(tmp_path: Path) -> None:
    first, second, whole = (tmp_path / name for name in ("first", "second", "whole"))
    run(store=first, **KEYS)
    run(store=second, **KEYS | {"seed": 1})
    found = merge([first, second], whole)
    assert [one["name"] for one in found["merged"]] == ["dp-fedavg-digits-1", "dp-fedavg-digits-2"]
    assert contents(whole, "dp-fedavg-digits-1") == contents(first, "dp-fedavg-digits-1")
    assert contents(whole, "dp-fedavg-digits-2") == contents(second, "dp-fedavg-digits-1")
    assert Store(whole).get("dp-fedavg-digits-2").summary["run"] == "dp-fedavg-digits-2"  # type: ignore[index]
    again = merge([first, second, first], whole)
    assert (again["merged"], again["spending"], len(again["known"])) == ([], [], 3)
    runs, cost = epsilon(whole)
    assert runs == 2
    # Two seeds deal the records in two ways: for one record, whole clients count twice.
    assert cost == pytest.approx(epsilon_of(2 * math.hypot(ONE, ONE), DELTA), rel=1e-6)
    assert len(load_models("dp-fedavg-digits-2", whole).personal) == 8


def test_a_merged_store_can_be_merged_back(tmp_path: Path) -> None:
    """A run that has another name elsewhere is the same run still."""
    first, second = tmp_path / "first", tmp_path / "second"
    run(store=first, **KEYS)
    run(store=second, **KEYS | {"seed": 1})
    merge([first], second)
    assert [row.run for row in Store(second).all()] == ["dp-fedavg-digits-2", "dp-fedavg-digits-1"]
    found = merge([second], first)
    assert [one["run"] for one in found["merged"]] == ["dp-fedavg-digits-1"]
    assert found["known"] == ["dp-fedavg-digits-2"]
    assert epsilon(first) == epsilon(second)


def test_a_run_that_went_on_elsewhere_is_replaced(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    name = stopped(here)
    shutil.copytree(here, there)
    ended = resume(name, there)
    assert [one["name"] for one in merge([there], here)["merged"]] == [name]
    assert contents(here, name) == contents(there, name)
    assert epsilon(here) == (1, pytest.approx(ended["epsilon"]["outsider"]))


def test_an_older_copy_of_a_run_changes_nothing(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    name = stopped(here)
    shutil.copytree(here, there)
    resume(name, here)
    before = contents(here, name)
    assert merge([there], here)["known"] == [name]
    assert contents(here, name) == before


def test_copies_that_released_something_else_both_count(tmp_path: Path) -> None:
    """Own code may not repeat itself: what each copy was charged after they parted is another release."""
    here, there = tmp_path / "here", tmp_path / "there"
    name = stopped(here)
    nonce = {"nonce": bytes(16)}
    shutil.copytree(here, there)
    resume(name, there)
    true = RunRow.__init__

    def drawn(self: RunRow, **given: Any) -> None:
        true(self, **given | nonce)

    with mock.patch.object(RunRow, "__init__", drawn):
        found = merge([there], here)
    assert found["merged"] == []
    assert len(found["spending"]) == 1
    assert epsilon(here)[0] == 2


def test_a_stopped_run_resumes_under_another_name(tmp_path: Path) -> None:
    here, there, alone = (tmp_path / name for name in ("here", "there", "alone"))
    run(store=here, **KEYS | {"seed": 1})
    name = stopped(there)
    merge([there], here)
    assert Store(here).get("dp-fedavg-digits-2").origin[0] == name
    ended = resume("dp-fedavg-digits-2", here)
    assert ended["accuracy"] == run(store=alone, **KEYS)["accuracy"]


@pytest.mark.parametrize("moment", ["put", "_copy", "replace"])
def test_a_merge_that_was_killed_is_completed(tmp_path: Path, moment: str) -> None:
    """Until it is, the run counts as planned; then it is there as a whole."""
    here, there = tmp_path / "here", tmp_path / "there"
    run(store=there, **KEYS)
    place = Store if moment == "replace" else merging
    with mock.patch.object(place, moment, side_effect=ZeroDivisionError), pytest.raises(ZeroDivisionError):
        merge([there], here)
    assert epsilon(here)[0] == 1
    merge([there], here)
    assert contents(here, "dp-fedavg-digits-1") == contents(there, "dp-fedavg-digits-1")
    assert epsilon(here) == epsilon(there)


def test_removed_and_imported_runs_keep_their_spending(tmp_path: Path) -> None:
    first, second, whole = (tmp_path / name for name in ("first", "second", "whole"))
    name = run(store=first, **KEYS)["run"]
    opened = Store(first)
    remove(name, opened)
    opened.close()
    command("runs", "--import", first, "--store", second)
    merge([first], whole)
    assert Store(whole).get(name).state == "removed"
    assert epsilon(whole) == epsilon(first)
    found = merge([second], whole)  # the same run once more
    assert (found["merged"], len(found["known"])) == ([], 1)
    assert epsilon(whole) == epsilon(first)


def test_stores_that_cannot_be_merged_are_refused(tmp_path: Path) -> None:
    assert "There is no store" in refused("runs", "--merge", tmp_path / "none", "--store", tmp_path / "here")
    assert "Name the stores" in refused("runs", "--merge", "--store", tmp_path)
    assert "are for --merge" in refused("runs", tmp_path)
    run(store=tmp_path, **KEYS)
    assert "into itself" in refused("runs", "--merge", tmp_path, "--store", tmp_path)
    name = stopped(tmp_path, seed=3)
    with Store(tmp_path).lock(name):
        assert "under way" in refused("runs", "--merge", tmp_path, "--store", tmp_path / "other")


def test_a_renamed_journal_has_all_of_its_rows(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    run(store=here, **KEYS | {"seed": 1})
    stopped(there)
    merge([there], here)
    opened = Store(here)
    row = opened.get("dp-fedavg-digits-2")
    links = merging.links_of(row, opened)
    assert links
    assert links == merging.links_of(Store(there).all()[0], Store(there))


def test_a_limit_that_stores_watched_over_apart_is_no_limit_on_their_sum(tmp_path: Path) -> None:
    """Each store would have let in runs up to the limit, so that together they keep to it by chance alone."""
    first, second, whole = (tmp_path / name for name in ("first", "second", "whole"))
    run(store=first, budget_over_runs=100, **KEYS)
    run(store=second, budget_over_runs=100, **KEYS | {"seed": 1})
    assert limit(first) == 100
    merge([first, second], whole)
    assert limit(whole) is None
    merge([second], first)
    assert limit(first) is None
    run(store=whole, budget_over_runs=100, **KEYS | {"seed": 2})
    assert limit(whole) is None


def test_a_run_that_went_on_elsewhere_keeps_the_limit_that_admitted_it(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    name = stopped(here, budget_over_runs=100)
    merge([here], there)
    resume(name, there)
    merge([there], here)
    assert limit(here) == 100
    assert limit(there) is None


def limit(store: Path) -> float | None:
    opened = Store(store)
    found = over_runs(opened, opened.all()[0].people, Unit.CLIENT, DELTA)
    opened.close()
    return found["limit"]


def test_a_copy_from_before_a_run_was_sent_does_not_forget_it(tmp_path: Path) -> None:
    """What was sent to a cluster counts as planned, whatever an older copy of the store says."""
    here, there = tmp_path / "here", tmp_path / "there"
    experiment = Experiment.make(KEYS | {"store": here})
    store = Store(here)
    name = register(prepare(experiment), store)
    with store.lock(name):
        pass
    shutil.copytree(here, there)
    store.send(name)
    store.close()
    before = epsilon(here)
    assert before == (1, pytest.approx(epsilon_of(ONE, DELTA), rel=1e-6))
    assert merge([there], here)["merged"] == []
    assert epsilon(here) == before
    resume(name, there)
    assert [one["name"] for one in merge([there], here)["merged"]] == [name]


def test_a_run_that_another_store_has_sent_counts_once(tmp_path: Path) -> None:
    """As planned while it is out, and as the same run when it is back."""
    here, there = tmp_path / "here", tmp_path / "there"
    store = Store(here)
    name = register(prepare(Experiment.make(KEYS | {"store": here})), store)
    store.close()
    shutil.copytree(here, there)
    with contextlib.closing(Store(there)) as sending:
        sending.send(name)
    planned = (1, pytest.approx(epsilon_of(ONE, DELTA), rel=1e-6))
    for _ in range(2):
        merge([there], here)
        assert epsilon(here) == planned
    resume(name, there)
    merge([there], here)
    assert contents(here, name) == contents(there, name)
    assert epsilon(here) == planned


def test_that_a_run_failed_in_a_copy_stays_known(tmp_path: Path) -> None:
    """That a step failed at a client may tell of records, whichever copy of the run goes on."""
    here, there = tmp_path / "here", tmp_path / "there"
    name = stopped(here)
    shutil.copytree(here, there)
    with contextlib.closing(Store(there)) as store:
        store.fail(name, "local failed at client 3")
    merge([there], here)
    assert Store(here).get(name).failed == "local failed at client 3"
    assert any("local failed at client 3" in one for one in resume(name, here)["not_covered"])


@pytest.mark.parametrize("name", ["../../elsewhere", "..", "a/b", "/tmp/x"])
def test_a_store_whose_runs_lead_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    """A store that somebody else made writes nothing outside of the one that it is merged into."""
    source = Store(tmp_path / "there")
    about = NewRun("local", {"data": "digits"}, "0", "1", Unit.CLIENT, 1)
    source.create("run", about)
    with source._database.transaction("immediate"):
        source._database.execute("update runs set run = ? where run = ?", (name, "run-1"))
        source._database.seal(name)
    source.close()
    (tmp_path / "there" / "runs" / "run-1").rmdir()
    with pytest.raises(UserError, match="no name of a folder"):
        merge([tmp_path / "there"], tmp_path / "here" / "store")
    assert not (tmp_path / "elsewhere").exists()


def test_a_run_that_was_called_elsewhere_by_no_name_of_a_folder_is_not_taken_over(tmp_path: Path) -> None:
    """The store would be unreadable from then on."""
    name = stopped(tmp_path / "there")
    with contextlib.closing(Store(tmp_path / "there")) as source:
        source._write_beside(name, lambda keys: keys | {FIRST_NAME: "../../elsewhere"})
    told = refused("runs", "--import", tmp_path / "there", "--store", tmp_path / "here")
    assert "cannot be called '../../elsewhere-imported-1'" in told
    assert Store(tmp_path / "here").all() == []
