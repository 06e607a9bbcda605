"""Defaults of an experiment, and the states of runs.

It imports no library, so that a list of runs can tell it at once.
"""

from pathlib import Path
from shlex import quote
from typing import Literal

DEFAULT_EPSILON = 8.0
DEFAULT_STORE = Path(".sordino")
AT_SITES = "the sites' own data"
"""Name of the data in what is stored of a deployment: servers do not know what sites call theirs."""
RunState = Literal["running", "stopped", "failed", "done", "removed", "imported"]


def in_store(folder: Path) -> str:
    """The option with which a command finds a store; nothing where it looks there anyway."""
    return "" if folder == DEFAULT_STORE else f" --store {quote(str(folder))}"
