"""A simulated week of services (`week.py`), with a certificate that nears its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from week import COMPILER, LAST_ROUNDS, Week

from sordino.util.files import LOG_BYTES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
DAYS, ROUNDS_A_DAY = 7, 4
GROWTH = 1.1
"""Times by which the memory of a site may grow from the first day to the last."""


@pytest.mark.skipif(
    COMPILER is None or not Path("/proc/self/status").exists(), reason="moves the clock of Linux with a C library"
)
def test_a_week_goes_by_with_restarts_and_a_renewed_certificate(tmp_path: Path) -> None:
    found = Week(tmp_path, DAYS, ROUNDS_A_DAY).live()
    assert found["rounds"] == DAYS * ROUNDS_A_DAY + LAST_ROUNDS
    memory = found["megabytes_of_a_site"]
    assert len(memory) == DAYS
    assert max(memory) < GROWTH * memory[0], memory
    assert min(found["starts_of_sites"]) >= 3, "each was started for the certificate, twice"
    assert all(size < LOG_BYTES for size in found["bytes_of_logs"].values())
    assert found["bytes_of_logs"]["site.log"] < 300 * found["rounds"] + 5000
