"""Deployments that are killed end as if they had not been, and restored sites spend nothing twice: a few each time,
more among the slow tests."""

from pathlib import Path

import pytest
import restored
from kill_points import trials


@pytest.mark.usefixtures("one_thread")
def test_killed_deployments_keep_their_promises(tmp_path: Path) -> None:
    assert trials(2, 1000, tmp_path) == []


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_many_killed_deployments_keep_their_promises(tmp_path: Path) -> None:
    assert trials(20, 2000, tmp_path) == []


@pytest.mark.usefixtures("one_thread")
def test_a_restored_site_spends_nothing_twice(tmp_path: Path) -> None:
    assert restored.trials(1, 3, tmp_path) == []


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_restored_sites_spend_nothing_twice(tmp_path: Path) -> None:
    assert restored.trials(6, 100, tmp_path) == []
