"""What is kept of a run while it goes on: what was spent, how its rounds went, and where it would go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from sordino.federation.rounds import RoundReport
from sordino.privacy.ledger import Ledger, Row


@dataclass(frozen=True)
class Restored:
    """Where a run that was stopped goes on."""

    state: dict[str, Any]
    rounds: int
    """How many are done."""
    questions: int
    """How many have been asked."""
    averaged: Tensor | None = None
    """The means of the server's models over the rounds, where somebody wants them and the server has models."""
    over: bool = False
    """Whether the method's script has come to its end: it must not be run again."""


@dataclass(frozen=True)
class Served:
    """The server's models when a run has ended."""

    models: Tensor
    """One row for each."""
    clusters: Tensor
    """Which of them is each client's."""
    averaged: Tensor | None
    """The mean of each over the rounds, where somebody wants it."""

    def tensors(self) -> dict[str, Tensor]:
        """As they are stored: `global` and `averaged`, with one row for each where `clusters` says which is whose."""
        found = {"global": self.models} | ({} if self.averaged is None else {"averaged": self.averaged})
        if len(self.models) == 1:
            return {name: rows[0].clone() for name, rows in found.items()}
        return found | {"clusters": self.clusters}


@dataclass(frozen=True)
class Ending:
    """How a run ended, for whoever sums it up; a method's script has no part in it."""

    now: Restored
    served: Served | None
    """The server's models; None where it has none."""
    shared: np.ndarray | None
    """Each client's accuracy with the server's model; None where the server has none."""
    stopped: dict[int, int]
    """Clients whose budget did not pay for their next turn, and after which round; zero: they never took part."""
    unreached: list[int]
    """Clients that never had a turn."""
    as_scheduled: bool
    """Whether all rounds were run, and everybody paid exactly once for what was due in each of its turns. Otherwise
    clients' answers may have chosen the end of the run, or whom it asked."""


class Books(Protocol):
    """What is kept of a run, durably."""

    ledger: Ledger
    restored: Restored | None

    def charge(self, rows: Sequence[Row]) -> None:
        """Write down rows of the ledger before anything is asked or read for which they pay."""

    def answered(self, question: int, drawn: int) -> None:
        """Store the digest of an answer's noise before anybody sees the answer. A resumed run with another digest does
        not go on."""

    def note(self, report: RoundReport, accuracies: Mapping[int, Sequence[float]]) -> None:
        """Note down a round, and each client's accuracies: personal, at round start, with the server's model."""

    def check(self, state: dict[str, Any]) -> None:
        """Refuse a server's state that could not be saved."""

    def save(self, now: Restored) -> None:
        """Make everything so far durable."""
