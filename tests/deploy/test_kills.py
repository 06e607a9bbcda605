"""Deployments that are killed end as if they had not been: a few each time, more among the slow tests."""

from pathlib import Path

import pytest
from kill_points import trials


@pytest.mark.usefixtures("one_thread")
def test_killed_deployments_keep_their_promises(tmp_path: Path) -> None:
    assert trials(3, 1000, tmp_path) == []


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_many_killed_deployments_keep_their_promises(tmp_path: Path) -> None:
    assert trials(20, 2000, tmp_path) == []
