"""Folders that earlier versions made, and folders of newer ones.

A folder of version 0.4 is one of this version, taken back: its ledger had the same tables and chain, but no witness,
its rules lacked limits that its owner had not written, and the heads of all ledgers stood in the journals of the runs.
`tests/flower/test_older_releases.py` does the same with folders that the released program itself has made.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
from pathlib import Path

import pytest
from federations import Federation, federation
from helpers import refused
from killing import die_at, killed

from sordino.deploy.database import CheckedDatabase
from sordino.deploy.server.journal import FILE as JOURNAL
from sordino.deploy.server.journal import SITES, SITES_OF_2, DeploymentJournal, Heads
from sordino.deploy.site import migration
from sordino.deploy.site.ledger import FACTS, FILE, VERSION, WITNESSED, Head, SiteLedger
from sordino.deploy.site.migration import FORMER_RULES, migrate_site
from sordino.deploy.site.rules import FILE as RULES
from sordino.deploy.site.site import Site
from sordino.deploy.site.status import status
from sordino.deploy.site.witness import WitnessError
from sordino.errors import UserError


def version_of(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("pragma user_version").fetchone()[0])


def take_back(made: Federation, number: int) -> None:
    """Make a site's folder one of version 0.4."""
    made.sites[number].close()
    folder = made.folders[number]
    made.witness(number).unlink()
    with CheckedDatabase(folder / FILE) as ledger:
        ledger.delete(FACTS, "where name = ?", WITNESSED)
        ledger.execute("pragma user_version = 2")
    rules = (folder / RULES).read_text()
    (folder / RULES).write_text(re.sub(r"(?m)^(methods|min_cohort) = .*$", r"# \1 =", rules))


@pytest.fixture
def made(tmp_path: Path):
    """A federation with one run behind it, and budgets for two more."""
    with federation(tmp_path, rounds=1) as found:
        found.allow_runs(3)
        found.run()
        yield found


def test_a_folder_of_version_0_4_is_migrated_and_forgets_nothing(made: Federation) -> None:
    spent = status(made.folders[0])["spent"]
    take_back(made, 0)
    former = (made.folders[0] / RULES).read_bytes()
    with pytest.raises(UserError, match=r"lacks min_cohort, methods: .* `sordino site migrate"):
        Site.open(made.folders[0])
    done = migrate_site(made.folders[0])
    assert done.spent == spent
    assert done.limits["min_cohort"] == 3
    assert "dp-fedavg" in done.limits["methods"]
    assert (made.folders[0] / FORMER_RULES).read_bytes() == former
    assert version_of(made.folders[0] / FILE) == VERSION
    assert made.witness(0).exists()
    again = migrate_site(made.folders[0])
    assert (again.limits, again.notices, again.spent) == ({}, (), spent)
    made.sites[0] = Site.open(made.folders[0])
    made.run()
    assert status(made.folders[0])["spent"]["outsider"] > spent["outsider"]


def test_a_migrated_folder_is_refused_by_the_version_that_made_it(made: Federation) -> None:
    """Version 0.4 opens ledgers of version 2 alone; it would overlook kinds of rows that it does not know."""
    take_back(made, 0)
    assert version_of(made.folders[0] / FILE) == 2
    migrate_site(made.folders[0])
    assert version_of(made.folders[0] / FILE) != 2


def test_reading_a_folder_of_version_0_4_writes_nothing(made: Federation) -> None:
    take_back(made, 0)
    path = made.folders[0] / RULES
    path.write_text(path.read_text() + 'methods = ["dp-fedavg"]\nmin_cohort = 3\n')
    before = (made.folders[0] / FILE).read_bytes()
    status(made.folders[0])
    assert (made.folders[0] / FILE).read_bytes() == before
    Site.open(made.folders[0]).close()
    assert version_of(made.folders[0] / FILE) == VERSION


def test_a_backup_of_the_former_version_does_not_open_later(made: Federation, tmp_path: Path) -> None:
    take_back(made, 0)
    copy = shutil.copytree(made.folders[0], tmp_path / "copy")
    migrate_site(made.folders[0])
    made.sites[0] = Site.open(made.folders[0])
    made.run()
    made.sites[0].close()
    shutil.rmtree(made.folders[0])
    shutil.copytree(copy, made.folders[0])
    with pytest.raises(WitnessError, match="restored from a backup"):
        migrate_site(made.folders[0])


def test_a_truncated_file_of_this_version_is_not_completed(made: Federation) -> None:
    path = made.folders[0] / RULES
    made.sites[0].close()
    path.write_text(path.read_text().partition("# the methods that may run here")[0])
    before = path.read_bytes()
    with pytest.raises(UserError, match="no earlier version left it so"):
        migrate_site(made.folders[0])
    assert path.read_bytes() == before
    assert not (made.folders[0] / FORMER_RULES).exists()


MOMENTS = [(migration, "write_whole", 2), (SiteLedger, "_commit", 4), (Site, "open", 1), (SiteLedger, "upgrade", 1)]


@pytest.mark.parametrize(("owner", "name", "call"), [(*m[:2], call + 1) for m in MOMENTS for call in range(m[2])])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_migration_may_be_killed_at_any_moment(
    made: Federation, owner: object, name: str, call: int, when: str
) -> None:
    spent = status(made.folders[0])["spent"]
    take_back(made, 0)
    former = (made.folders[0] / RULES).read_bytes()

    def die() -> None:
        die_at(owner, name, call, when)
        migrate_site(made.folders[0])

    assert killed(die)
    migrate_site(made.folders[0])
    assert (made.folders[0] / FORMER_RULES).read_bytes() == former
    found = status(made.folders[0])
    assert (found["spent"], found["unwitnessed"]) == (spent, None)
    assert version_of(made.folders[0] / FILE) == VERSION
    Site.open(made.folders[0]).close()


@pytest.mark.parametrize(("version", "words"), [(VERSION + 1, "newer version"), (1, "before version 0.4")])
def test_other_formats_of_a_ledger_are_refused_untouched(made: Federation, version: int, words: str) -> None:
    made.sites[0].close()
    path = made.folders[0] / FILE
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"pragma user_version = {version}")
    before = path.read_bytes()
    for arguments in (("site", "status"), ("site", "migrate"), ("ledger",)):
        assert words in refused(*arguments, made.folders[0])
    assert path.read_bytes() == before


def test_a_key_of_a_newer_version_is_named(made: Federation) -> None:
    made.sites[0].close()
    path = made.folders[0] / RULES
    path.write_text("max_regret = 3\n" + path.read_text())
    with pytest.raises(UserError, match="does not know 'max_regret'"):
        Site.open(made.folders[0])


@pytest.mark.parametrize("journal_first", [False, True])
def test_the_server_still_knows_the_ledgers_that_version_0_4_knew(made: Federation, journal_first: bool) -> None:
    """That version kept the heads of ledgers in each run's journal, this one keeps them for all runs."""
    (row,) = made.store.all()
    identity = made.members[0].identity
    with contextlib.closing(Heads(made.store.folder)) as heads:
        known = heads.head(identity)
    assert known is not None
    ahead = Head(known.position + 7, b"\1" * 32)
    with CheckedDatabase(made.store.path(row.run) / JOURNAL) as journal:
        sites = journal.select(SITES)
        journal.execute("drop table sites")
        journal.execute(SITES_OF_2.creation_sql())
        for site in sites:
            journal.upsert(SITES_OF_2, **site, position=ahead.position, head=ahead.link)
        journal.execute("pragma user_version = 2")
    made.forget()
    if journal_first:  # as `sordino statement` opens it
        DeploymentJournal(made.store.path(row.run)).close()
    with contextlib.closing(Heads(made.store.folder)) as heads:
        assert heads.head(identity) == ahead
    with pytest.raises(UserError, match=f"{made.members[0].name} .refuses: The site's ledger lacks rows"):
        made.run()


def test_the_server_s_files_of_newer_versions_are_refused(made: Federation) -> None:
    (row,) = made.store.all()
    for path in (made.store.path(row.run) / JOURNAL, made.store.folder / "heads.db", made.store.folder / "sordino.db"):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("pragma user_version = 99")
    with pytest.raises(UserError, match="newer version"):
        DeploymentJournal(made.store.path(row.run))
    with pytest.raises(UserError, match="newer version"):
        Heads(made.store.folder)
    assert "newer version" in refused("runs", "--store", made.store.folder)


def test_the_command_says_what_it_wrote(made: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    from sordino.cli.services import migrate

    take_back(made, 0)
    migrate(made.folders[0])
    told = capsys.readouterr().out
    assert "check min_cohort, methods" in told
    assert "Epsilon spent: outsider " in told
    migrate(made.folders[0], as_json=True)
    assert json.loads(capsys.readouterr().out)["limits"] == {}
