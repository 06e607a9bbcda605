"""A small part of the harness of faults: no promise is broken. `make faults` makes all of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
SCALES = {"kills": 0.05, "endings": 0.05, "flips": 0.05, "cuts": 0.05, "fuzz": 0.02, "deaths": 0.07, "disks": 0.07}
SCALES |= {"instructions": 0.1, "restores": 0.1}
"""The share of each part that makes about a minute of all of them on two cores."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", SCALES)
def test_promises_hold_under_faults(part: str) -> None:
    path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    order = [sys.executable, "-m", "faults", "--only", part, "--scale", str(SCALES[part])]
    # Some disks there are shared memory without room, where no temporary files can be.
    plain = {key: value for key, value in os.environ.items() if key != "TMPDIR"}
    done = subprocess.run(order, env=plain | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
