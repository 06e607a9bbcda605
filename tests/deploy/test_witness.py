"""A site's witness: a folder that was restored or copied does not open for spending, and one that was killed does."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import Federation, federation, is_confirmed, kind, refused
from helpers import SITE_LIMITS
from killing import die_at, killed
from rich.console import Console

from sordino.deploy import database
from sordino.deploy.database import DatabaseError
from sordino.deploy.protocol import keys, wire
from sordino.deploy.protocol.carrier import Failure
from sordino.deploy.site.ledger import FACTS, HEAD, WITNESSED, Entry, SiteLedger
from sordino.deploy.site.rules import Rules
from sordino.deploy.site.site import Site
from sordino.deploy.site.status import status
from sordino.deploy.site.witness import Witness, WitnessError, accept
from sordino.errors import UserError
from sordino.report.terminal.details import site_report

RECORDS: dict[str, Any] = {"method": "dp-fedavg-record", "records": 300, "rounds": 2}
PLAIN: dict[str, Any] = {"protect_from": "server", "minimum_cohort": 2, "rounds": 2}


def kinds(made: Federation, number: int = 0) -> list[str]:
    """The kinds of the rows in a site's ledger."""
    with SiteLedger(made.folders[number]) as ledger:
        return [entry.kind for entry in ledger.entries()]


@pytest.fixture(scope="module")
def after_a_run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A federation that has made a run, its site 0 closed; before the run that one was copied to `backup`."""
    folder = tmp_path_factory.mktemp("witness")
    with federation(folder, **RECORDS) as made:
        made.backup(0, folder / "backup")
        made.run()
        made.sites[0].close()
        yield made, folder / "backup"


@pytest.fixture
def site(after_a_run: tuple[Federation, Path], tmp_path: Path) -> Path:
    """A copy of site 0 after the run, and of its witness."""
    made, _ = after_a_run
    shutil.copytree(made.folders[0], tmp_path / "site")
    shutil.copytree(made.witness(0).parent, tmp_path / "witness")
    return tmp_path / "site"


def witness_of(folder: Path) -> Path:
    """The file of the witness of the site in a folder."""
    with SiteLedger(folder) as ledger:
        return folder.parent / "witness" / f"{keys.public_identity(ledger.fact('identity')).hex()}.json"


def test_a_restored_folder_does_not_open(site: Path, after_a_run: tuple[Federation, Path]) -> None:
    shutil.copy(after_a_run[1] / "site.db", site / "site.db")
    with pytest.raises(WitnessError, match=r"restored from a backup or copied.*sordino site accept"):
        Site.open(site)


def test_another_branch_does_not_open_though_it_is_longer(site: Path, after_a_run: tuple[Federation, Path]) -> None:
    shutil.copy(after_a_run[1] / "site.db", site / "site.db")
    with SiteLedger(site) as ledger, ledger.transaction():
        ledger.append([Entry("misfit", {"about": str(number)}) for number in range(50)])
    with pytest.raises(WitnessError, match="restored from a backup or copied"):
        Site.open(site)


def test_a_folder_that_is_ahead_of_its_witness_opens(site: Path, after_a_run: tuple[Federation, Path]) -> None:
    shutil.copy(after_a_run[1] / "witness.json", witness_of(site))
    Site.open(site).close()
    assert witness_of(site).read_bytes() != (after_a_run[1] / "witness.json").read_bytes()


def test_a_damaged_or_missing_witness_is_told(site: Path, after_a_run: tuple[Federation, Path]) -> None:
    made, _ = after_a_run
    path = witness_of(site)
    whole = path.read_bytes()
    contents = [whole[:size] for size in range(len(whole))] + [bytes(10**6), b"[" * 10**5, b"{}", b"7"]
    contents += [made.witness(1).read_bytes(), whole.replace(b'"position": ', b'"position": 1'), whole[:-2] + b"x}"]
    with SiteLedger(site) as ledger:  # a head that the ledger came by, which nobody signed
        earlier = json.loads(whole) | {"position": 1, "link": (ledger.link(1) or b"").hex()}
    contents += [json.dumps(earlier).encode()]
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(WitnessError, match="witness"):
            Site.open(site)
    path.unlink()
    with pytest.raises(WitnessError, match="is gone"):
        Site.open(site)
    path.mkdir()
    with pytest.raises(WitnessError, match="cannot be read"):
        Site.open(site)
    path.rmdir()
    path.write_bytes(whole)
    Site.open(site).close()


def shown(folder: Path) -> tuple[dict[str, Any], str]:
    """Status of a site, and what `sordino site status` prints of it; the ledger and its witness stay as they are."""
    kept = [path for path in (folder / "site.db", witness_of(folder)) if path.is_file()]
    before = [path.read_bytes() for path in kept]
    found = status(folder)
    console = Console(width=100, file=io.StringIO())
    with console.capture() as capture:
        console.print(site_report(found))
    assert [path.read_bytes() for path in kept] == before, "a look changes nothing"
    return found, " ".join(capture.get().split())


def test_the_status_of_a_restored_folder_states_no_epsilon(site: Path, after_a_run: tuple[Federation, Path]) -> None:
    whole, told = shown(site)
    assert whole["unwitnessed"] is None
    assert whole["spent"]["server"] == pytest.approx(20)
    assert "unknown" not in told
    shutil.copy(after_a_run[1] / "site.db", site / "site.db")
    found, told = shown(site)
    assert found["spent"] == dict.fromkeys(whole["spent"])
    assert "restored from a backup or copied" in found["unwitnessed"]
    assert "What this site has spent is unknown, and it does not open: The ledger in" in told
    assert "server unknown" in told


def test_the_status_without_a_readable_witness_states_no_epsilon(
    site: Path, after_a_run: tuple[Federation, Path]
) -> None:
    path = witness_of(site)
    whole = path.read_bytes()
    for content in (b"", whole[:40], after_a_run[0].witness(1).read_bytes()):
        path.write_bytes(content)
        found, told = shown(site)
        assert "witness" in found["unwitnessed"]
        assert set(found["spent"].values()) == {None}
        assert "server unknown" in told
    path.unlink()
    assert "is gone" in shown(site)[0]["unwitnessed"]
    path.mkdir()
    assert "cannot be read" in shown(site)[0]["unwitnessed"]
    path.rmdir()
    shutil.copy(after_a_run[1] / "witness.json", path)
    assert shown(site)[0]["unwitnessed"] is None, "a site killed before it wrote its witness opens"
    with SiteLedger(site) as ledger, ledger.transaction():
        ledger.delete(FACTS, "where name = ?", WITNESSED)
    path.unlink()
    assert shown(site)[0]["unwitnessed"] is None, "a site of an earlier version has no witness yet"


def test_the_status_of_a_site_that_is_answering_is_one_of_its_states(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row is committed while the status is read: its head beside the rows before it would raise a false alarm."""
    monkeypatch.setattr(database, "LOCK_TIMEOUT_SECONDS", 0.1)
    fact, tried = SiteLedger.fact, []

    def commit_meanwhile(self: SiteLedger, name: str) -> bytes:
        if name == HEAD and not tried:
            tried.append(name)
            with contextlib.suppress(DatabaseError), SiteLedger(site) as other, other.transaction():
                other.append([Entry("misfit", {"about": "nothing"})])
        return fact(self, name)

    monkeypatch.setattr(SiteLedger, "fact", commit_meanwhile)
    assert status(site)["unwitnessed"] is None
    assert tried


def test_a_site_of_an_earlier_version_gets_a_witness_once(site: Path) -> None:
    witness_of(site).unlink()
    with SiteLedger(site) as ledger, ledger.transaction():
        ledger.delete(FACTS, "where name = ?", WITNESSED)
    first = Site.open(site)
    first.close()
    second = Site.open(site)
    second.close()
    assert ["now has a witness" in sentence for sentence in first.notices] == [True]
    assert second.notices == []
    witness_of(site).unlink()
    with pytest.raises(WitnessError, match="is gone"):
        Site.open(site)


def test_witnesses_have_places_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules, private = Rules(name="one", data=Path("data.csv"), **SITE_LIMITS), keys.new_identity()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    one, other = (Witness.of(tmp_path / "site", rules, key) for key in (private, keys.new_identity()))
    assert one.path.parent == other.path.parent == tmp_path / "state" / "sordino" / "witness"
    assert one.path != other.path
    monkeypatch.setenv("XDG_STATE_HOME", "somewhere")  # relative: the specification has it ignored
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert Witness.of(tmp_path / "site", rules, private).path.is_relative_to(tmp_path / "home" / ".local" / "state")
    for inside in (Path("witness"), Path("."), Path("..", "site", "deep")):
        with pytest.raises(UserError, match="inside of the site's folder"):
            Witness.of(tmp_path / "site", rules.model_copy(update={"witness": inside}), private)


def first_question(made: Federation) -> bytes:
    """The first question of a run to site 0, with the notes that it waits for; the server is then gone."""
    found: list[bytes] = []

    def stop(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
        if node == 0 and kind(request) == "work" and is_confirmed(request):
            found.append(request)
            raise KeyError("the server is gone")
        return answer()

    with pytest.raises(KeyError):
        made.run(stop)
    return found[0]


def test_nothing_leaves_before_the_witness_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with federation(tmp_path, **PLAIN) as made:
        request = first_question(made)
        with monkeypatch.context() as patch:

            def full(*_: object) -> None:
                raise OSError(28, "No space left on device")

            patch.setattr("sordino.deploy.site.witness.write_whole", full)
            assert refused(made.sites[0].answer(request)) == "disk"
        assert kinds(made).count("release") == 1
        reply = made.sites[0].answer(request)
        assert refused(reply) == ""
        with SiteLedger(made.folders[0]) as ledger:
            assert Witness(made.witness(0), made.sites[0].context.private).read() == ledger.head()
        assert made.sites[0].answer(request) == reply
        assert kinds(made).count("release") == 1


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(
    ("owner", "name", "call", "when"),
    [
        (SiteLedger, "_commit", 2, "after"),
        (Witness, "write", 1, "before"),
        (Witness, "write", 1, "after"),
    ],
)
def test_a_site_killed_between_its_ledger_and_its_witness_goes_on(
    owner: Any, name: str, call: int, when: str, restart: bool, tmp_path: Path
) -> None:
    with federation(tmp_path, **PLAIN) as made:
        request = first_question(made)

        def child() -> None:
            die_at(owner, name, call, when)
            made.sites[0].answer(request)

        assert killed(child)
        assert kinds(made).count("release") == 1
        if restart:
            made.reopen(0)
        reply = made.sites[0].answer(request)
        assert refused(reply) == "", "no false alarm"
        with SiteLedger(made.folders[0]) as ledger:
            assert Witness(made.witness(0), made.sites[0].context.private).read() == ledger.head()
        (row,) = made.store.all()
        assert made.resume(row.run).rounds_done == 2
        assert kinds(made).count("release") == 2


def test_a_ledger_put_back_under_a_running_site_does_not_pass_its_witness(tmp_path: Path) -> None:
    with federation(tmp_path, **PLAIN) as made:
        request = first_question(made)
        made.backup(0, tmp_path / "backup")
        assert refused(made.sites[0].answer(request)) == ""
        made.restore(0, tmp_path / "backup", witness=False)
        assert refused(made.sites[0].answer(request)) == "witness"
        made.witness(0).unlink()
        assert refused(made.sites[0].answer(request)) == "witness"


def test_a_site_restored_to_before_it_opened_a_sum_does_not_open(tmp_path: Path) -> None:
    """It would answer to another list of survivors."""
    with federation(tmp_path, rounds=1, noise="integers") as made:

        def copy(node: int, request: bytes, answer: Callable[[], bytes]) -> bytes | Failure:
            if node == 0 and kind(request) == "open":
                made.backup(0, tmp_path / "backup")
            return answer()

        made.run(copy)
        made.restore(0, tmp_path / "backup", witness=False)
        with pytest.raises(WitnessError, match="restored from a backup"):
            made.reopen(0)


@pytest.fixture
def pair(after_a_run: tuple[Federation, Path], tmp_path: Path) -> tuple[Path, Path]:
    """A copy of site 0, whose records have paid, and a new site with the records of site 1; and their witnesses."""
    made, _ = after_a_run
    shutil.copytree(made.folders[0], tmp_path / "site-0")
    (tmp_path / "witness").mkdir()
    shutil.copy(made.witness(0), tmp_path / "witness")
    fresh = tmp_path / "site-new"
    fresh.mkdir()
    shutil.copy(made.folders[1] / "data.npz", fresh / "data.npz")
    Site.create(fresh, "new", Path("data.npz"), witness=Path("..", "witness"), **SITE_LIMITS)
    return tmp_path / "site-0", fresh


def test_a_ledger_is_not_used_with_records_that_another_has_paid_for(pair: tuple[Path, Path]) -> None:
    paid, fresh = pair
    Site.open(fresh).close()
    shutil.copy(fresh / "site.db", paid / "site.db")
    with pytest.raises(UserError, match=r"another site's, whose witness is .*Put the site.db and the records"):
        Site.open(paid)
    with SiteLedger(paid) as ledger:
        assert "data" not in [entry.kind for entry in ledger.entries()], "nothing is written before"


def test_a_site_does_not_open_with_records_that_another_has_paid_for(pair: tuple[Path, Path]) -> None:
    paid, fresh = pair
    other = (fresh / "data.npz").read_bytes()
    shutil.copy(paid / "data.npz", fresh / "data.npz")
    with pytest.raises(UserError, match="another site's"):
        Site.open(fresh)
    witness_of(paid).write_bytes(b"[]")  # one that says nothing
    Site.open(fresh).close()
    (fresh / "data.npz").write_bytes(other)
    Site.open(fresh).close()


def test_records_may_change(pair: tuple[Path, Path]) -> None:
    _, fresh = pair
    with np.load(fresh / "data.npz") as found:
        np.savez(fresh / "data.npz", **{name: np.concatenate([found[name], found[name][:1]]) for name in found})
    Site.open(fresh).close()
    with SiteLedger(fresh) as ledger:
        assert [entry.kind for entry in ledger.entries()].count("data") == 1


# ---- what an owner accepts


def test_nothing_is_accepted_without_need(site: Path) -> None:
    with pytest.raises(UserError, match="nothing to accept"):
        accept(site)


def test_a_site_that_is_open_is_not_accepted(after_a_run: tuple[Federation, Path]) -> None:
    with pytest.raises(UserError, match="already open"):
        accept(after_a_run[0].folders[1])


def test_an_accepted_backup_has_no_budget_left(site: Path, after_a_run: tuple[Federation, Path]) -> None:
    shutil.copy(after_a_run[1] / "site.db", site / "site.db")
    assert "counts as used up: it was restored" in accept(site)
    Site.open(site).close()
    found = status(site)
    assert found["spoiled"]
    assert found["spent"]["server"] is None


def test_a_lost_witness_without_a_roster_leaves_no_budget(site: Path) -> None:
    witness_of(site).unlink()
    rules = (site / "site.toml").read_text()
    (site / "site.toml").write_text(rules.replace('roster = "', '# roster = "').replace("witnesses =", "# witnesses ="))
    assert "no roster" in accept(site)
    assert status(site)["spoiled"]


def test_peers_give_an_accepted_site_its_budget_back(tmp_path: Path) -> None:
    with federation(tmp_path, **RECORDS) as made:
        made.allow_runs(2)
        made.run()
        made.sites[0].close()
        made.witness(0).unlink()
        assert "until the other sites" in accept(made.folders[0])
        assert status(made.folders[0])["spent"]["server"] is None
        assert status(made.folders[0])["doubtful"]
        made.reopen(0)
        assert made.run().rounds_done == 2
        assert status(made.folders[0])["spent"]["server"] == pytest.approx(40)
        assert not status(made.folders[0])["doubtful"]


@pytest.mark.parametrize(("changes", "left"), [(RECORDS, "doubtful"), ({"rounds": 2}, "spoiled")])
def test_a_run_that_was_open_when_the_witness_was_lost_is_over(
    changes: dict[str, Any], left: str, tmp_path: Path
) -> None:
    """Spending since the last row is unknown: for records no more than was reserved, for a client perhaps all."""
    with federation(tmp_path, **changes) as made:
        request = first_question(made)
        assert refused(made.sites[0].answer(request)) == ""
        made.sites[0].close()
        made.witness(0).unlink()
        accept(made.folders[0])
        assert status(made.folders[0])[left]
        made.reopen(0)
        again = wire.unpack(request)
        asked = wire.unpack(again["ask"].tobytes())
        again["ask"] = np.frombuffer(wire.pack({**asked, "round": 1, "question": 1}), np.uint8)
        assert refused(made.ask(0, wire.pack(again))) == "closed"
        assert kinds(made).count("release") == 1


def test_tests_leave_the_home_directory_alone() -> None:
    assert not Path(os.environ["XDG_STATE_HOME"]).is_relative_to(Path.home() / ".local")
