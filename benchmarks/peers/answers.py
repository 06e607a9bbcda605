"""The peer's side of the conversation: for each number of rounds read, a line with the seconds they took."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


def answer(seconds: Callable[[int], float]) -> None:
    """Serve until the number of rounds is 0. Whatever else is printed goes to standard error."""
    with os.fdopen(os.dup(1), "w", buffering=1) as out:
        os.dup2(2, 1)
        while (rounds := int(sys.stdin.readline() or 0)) > 0:
            print(seconds(rounds), file=out)
