"""Hash of the installed code."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


@functools.lru_cache(maxsize=1)
def package_hash() -> str:
    """SHA-256 of all source files of this installation."""
    made = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        made.update(f"{path.relative_to(PACKAGE)}\0".encode())
        made.update(hashlib.sha256(path.read_bytes()).digest())
    return made.hexdigest()
