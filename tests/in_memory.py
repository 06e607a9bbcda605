"""A place for files of tests that is quicker than a disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
ROOM = 4 * 2**30
"""Bytes that must be free there; a whole run of the tests takes a twentieth of it."""


def temporary_folder() -> str | None:
    """Folder for temporary files in memory; None where there is none, or little room, or somebody chose another."""
    if "TMPDIR" in os.environ or not os.access(SHARED_MEMORY, os.W_OK):
        return None
    return str(SHARED_MEMORY) if shutil.disk_usage(SHARED_MEMORY).free > ROOM else None
