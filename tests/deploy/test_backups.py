"""Backup and restore as docs/services.md tells it, with the witness on another disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from federations import Federation, federation

from sordino.deploy.site.site import Site
from sordino.deploy.site.status import status
from sordino.deploy.site.witness import WitnessError, accept
from sordino.errors import UserError


@pytest.fixture
def made(tmp_path: Path):
    with federation(tmp_path, rounds=1) as found:
        found.allow_runs(3)
        yield found


def back_up(made: Federation, copy: Path) -> None:
    """Stop the first site's service, copy its folder, start it again."""
    made.sites[0].close()
    shutil.copytree(made.folders[0], copy)
    made.sites[0] = Site.open(made.folders[0])


def lose(made: Federation) -> None:
    made.sites[0].close()
    shutil.rmtree(made.folders[0])


def test_a_folder_restored_before_anything_has_left_goes_on(made: Federation, tmp_path: Path) -> None:
    made.run()
    spent = status(made.folders[0])["spent"]
    back_up(made, tmp_path / "copy")
    lose(made)
    shutil.copytree(tmp_path / "copy", made.folders[0])
    made.sites[0] = Site.open(made.folders[0])
    assert status(made.folders[0])["spent"] == spent
    made.run()
    assert status(made.folders[0])["spent"]["outsider"] > spent["outsider"]
    assert [run["state"] for run in status(made.folders[0])["runs"]] == ["done", "done"]


def test_a_folder_restored_after_something_has_left_does_not_open(made: Federation, tmp_path: Path) -> None:
    back_up(made, tmp_path / "copy")
    made.run()
    lose(made)
    shutil.copytree(tmp_path / "copy", made.folders[0])
    with pytest.raises(WitnessError, match="restored from a backup"):
        Site.open(made.folders[0])
    assert "used up" in accept(made.folders[0])
    made.sites[0] = Site.open(made.folders[0])
    with pytest.raises(UserError):
        made.run()
    assert status(made.folders[0])["spent"]["outsider"] is None


def test_a_lost_witness_is_replaced_once_the_others_have_confirmed(made: Federation) -> None:
    made.run()
    spent = status(made.folders[0])["spent"]["outsider"]
    made.sites[0].close()
    made.witness(0).unlink()
    with pytest.raises(WitnessError, match="is gone"):
        Site.open(made.folders[0])
    assert "until the other sites" in accept(made.folders[0])
    made.sites[0] = Site.open(made.folders[0])
    assert status(made.folders[0])["doubtful"]
    made.run()
    assert not status(made.folders[0])["doubtful"]
    assert status(made.folders[0])["spent"]["outsider"] > spent


def test_a_site_that_moves_takes_its_witness_along(made: Federation, tmp_path: Path) -> None:
    made.run()
    made.sites[0].close()
    there = tmp_path / "machine" / "sites" / made.folders[0].name
    shutil.move(made.folders[0], there)
    with pytest.raises(WitnessError, match="is gone"):
        Site.open(there)
    shutil.copytree(made.witness(0).parent, there.parent / "witness")
    made.folders[0], made.sites[0] = there, Site.open(there)
    made.run()
    assert len(status(there)["runs"]) == 2
