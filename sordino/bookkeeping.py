"""What is kept of a run while it goes on: what was spent, how its rounds went, and where it would go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from sordino.privacy.ledger import Ledger, Row
from sordino.rounds import RoundReport


@dataclass(frozen=True)
class Restored:
    """Where a run that was stopped goes on."""

    state: dict[str, Any]
    rounds: int
    """How many are done."""
    questions: int
    """How many have been asked."""
    average: Tensor | None = None
    """The mean of the server's models over the rounds, where somebody wants it and the server has models."""


@dataclass(frozen=True)
class Ending:
    """How a run ended, for whoever sums it up; a method's script has no part in it."""

    now: Restored
    shared: np.ndarray | None
    """Each client's accuracy with the server's model; None where the server has none."""
    stopped: dict[int, int]
    """Clients whose budget did not pay for their next turn, and after which round; zero: they never took part."""
    unreached: list[int]
    """Clients that never had a turn."""


class Books(Protocol):
    """What is kept of a run, durably."""

    ledger: Ledger
    restored: Restored | None

    def charge(self, rows: Sequence[Row]) -> None:
        """Write down rows of the ledger before anything is asked or read for which they pay."""

    def note(self, report: RoundReport, accuracies: Mapping[int, Sequence[float]]) -> None:
        """Note down a round, and each client's accuracies: personal, at round start, with the server's model."""

    def check(self, state: dict[str, Any]) -> None:
        """Refuse a server's state that could not be saved."""

    def save(self, now: Restored) -> None:
        """Make everything so far durable."""
