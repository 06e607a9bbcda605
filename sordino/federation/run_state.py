"""Interface of the state that a server keeps of a run (ledger, rounds, checkpoint), and a version that stores nothing.

It holds the ledger, the rounds and the last checkpoint of the server's own state. Clients' memory is no part of it: a
transport that keeps such memory says so (`Transport.memory`), and a state that is stored includes it in its
checkpoints through `ClientMemory`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from torch import Tensor

from sordino.federation.rounds import RoundReport
from sordino.federation.transcript import Transcript
from sordino.federation.transport import ClientMemory
from sordino.privacy.ledger import Ledger, Row


@dataclass(frozen=True)
class Restored:
    """The point at which a stopped run goes on."""

    state: dict[str, Any]
    """The server's state, by name."""
    rounds: int
    """Number of rounds that are done."""
    questions: int
    """Number of questions that have been asked."""
    averaged: Tensor | None = None
    """Means of the server's models over the rounds, where they are kept and the server has models."""
    over: bool = False
    """Whether the method's script has come to its end: it must not be run again."""


@dataclass(frozen=True)
class Served:
    """The server's models at the end of a run."""

    models: Tensor
    """One row per model."""
    clusters: Tensor
    """For each client, the row of its model."""
    averaged: Tensor | None
    """Mean of each model over the rounds, where it is kept."""

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that are stored: `global` and `averaged`; where there are several models, one row for each, and
        `clusters`."""
        found = {"global": self.models} | ({} if self.averaged is None else {"averaged": self.averaged})
        if len(self.models) == 1:
            return {name: rows[0].clone() for name, rows in found.items()}
        return found | {"clusters": self.clusters}


@dataclass(frozen=True)
class Ending:
    """The end of a run, for whoever sums it up; a method's script has no part in it."""

    now: Restored
    served: Served | None
    """The server's models; None where it has none."""
    shared: np.ndarray | None
    """Each client's accuracy with the server's model; None where the server has none."""
    stopped: dict[int, int]
    """Clients whose budget is used up, each with the number of rounds after which it stopped; 0: it never took part."""
    unreached: list[int]
    """Clients that never had a turn."""
    as_scheduled: bool
    """Whether all rounds were run, and everybody paid exactly once for what was due in each of its turns. Otherwise
    clients' answers may have chosen the end of the run, or whom it asked."""


class RunState(Protocol):
    """The state of one run, opened at its start or where its last checkpoint left it."""

    ledger: Ledger
    restored: Restored | None
    """The last checkpoint; None where the run begins."""

    @property
    def transcript(self) -> Transcript | None:
        """Record of every exchange with clients; None where none is kept."""

    @property
    def saves_every_round(self) -> bool:
        """Whether a checkpoint follows every round, because clients cannot be asked the same again for nothing."""

    def attach(self, memory: ClientMemory | None) -> None:
        """Restore clients' memory from the last checkpoint, and include it in all later ones; None where the transport
        keeps none."""

    def charge(self, rows: Sequence[Row]) -> None:
        """Write down rows of the ledger before anything is asked or read for which they pay."""

    def answered(self, question: int, drawn: int) -> None:
        """Store the digest of an answer's noise before anybody sees the answer. Where a resumed run draws other noise,
        everything since the last checkpoint is given up."""

    def note(self, report: RoundReport, accuracies: Mapping[int, Sequence[float]]) -> None:
        """Note down a round, and each client's accuracies: personal, at round start, with the server's model."""

    def check(self, state: dict[str, Any]) -> None:
        """Refuse a server's state that could not be saved."""

    def save(self, now: Restored) -> None:
        """Make everything so far durable."""


@dataclass
class TransientState:
    """The state of a run that is over when its process ends: nothing is stored, and nobody can resume it."""

    ledger: Ledger
    restored: Restored | None = None
    transcript: Transcript | None = None
    saves_every_round: ClassVar[bool] = False

    def attach(self, memory: ClientMemory | None) -> None:
        """Clients remember as long as their transport lasts."""

    def charge(self, rows: Sequence[Row]) -> None:
        """The ledger has the rows already."""

    def answered(self, question: int, drawn: int) -> None:
        """Nobody will compare the digest: the run is not resumed."""

    def note(self, report: RoundReport, accuracies: Mapping[int, Sequence[float]]) -> None:
        """Rounds are not kept."""

    def check(self, state: dict[str, Any]) -> None:
        """Any state will do: none is saved."""

    def save(self, now: Restored) -> None:
        """There is no checkpoint."""
