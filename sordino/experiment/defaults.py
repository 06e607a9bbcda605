"""What an experiment is where it does not say. It imports no library, so that a list of runs can tell it at once."""

from pathlib import Path

DEFAULT_EPSILON = 8.0
DEFAULT_STORE = Path(".sordino")
