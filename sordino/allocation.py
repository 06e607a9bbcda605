"""How this process gets memory from the system."""

from __future__ import annotations

import contextlib
import ctypes
import sys

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""Numbers by which the C library knows these settings (M_MMAP_THRESHOLD and M_TRIM_THRESHOLD)."""
WHOLE = 2**25
"""Bytes from which on a tensor has pages of its own, which are given back when it is freed."""
KEPT = 2**26
"""Bytes of freed memory that are kept at the most."""


def keep_freed() -> None:
    """Keep what was freed for the tensors of the next round.

    By itself the C library gives a tensor of a megabyte back to the system as soon as it is freed. The next one is made
    of pages that the system clears and hands out one by one, which takes longer than filling it.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # a C library without these settings
            library = ctypes.CDLL(None)
            library.mallopt(MMAP_THRESHOLD, WHOLE)
            library.mallopt(TRIM_THRESHOLD, KEPT)
