"""The way from the server to the clients: worker processes in a simulation, a network on real machines.

`Transport` is all that a server needs of it. `HostingTransport` is a transport that has the clients themselves, as a
simulator has, and a cluster: it can also evaluate and blend their models when the rounds are over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from torch import Tensor

from sordino.federation.client import Question
from sordino.federation.message import Message
from sordino.learning.metrics import ClientMetrics


class OutOfBudgetError(Exception):
    """Too few sites have budget left for any question to be answered: the run is over."""


@dataclass
class Answer:
    """Answers of the clients to one question, one row per client in the order in which they were asked."""

    values: dict[str, Tensor]
    """Values that left the clients, by release: bounded and noised."""
    accuracies: np.ndarray
    """Columns: the personal model after training, the model at round start and, from transports that know it, the
    personal model's mean cross-entropy; `nan` where not evaluated."""
    rejected: int
    """Number of values that were not finite and were replaced by null contributions."""
    bytes: int
    """Bytes that left all clients together."""
    kept: bool = True
    """Whether the step left anything behind at the clients; sites do not say so, and are taken to have kept some."""
    drawn: int = 0
    """Digest of all noise drawn for the answer (exclusive or of its keys); 0 where noise does not depend on values, or
    the digest is not known."""
    who: Sequence[int] | None = None
    """Clients that answered; None where all did."""
    summed: bool = False
    """Whether only sums came back: each value is one row, of whole numbers."""


@dataclass(frozen=True)
class MemorySnapshot:
    """Clients' memory at a checkpoint: a file in the run's folder, and where each client's row lies in it."""

    file: str
    """Name of the file."""
    slots: np.ndarray
    """Slot of each client's current row."""
    participations: np.ndarray
    """Number of times that each client has taken part; one that never did has no row."""
    checksums: np.ndarray
    """Checksum of each client's current row."""


class ClientMemory(Protocol):
    """Clients' memory that a transport keeps, as far as checkpoints of a run are concerned."""

    @property
    def path(self) -> Path:
        """File of this session of the run. No other session writes to it."""

    def commit(self) -> MemorySnapshot:
        """Bring everything that clients remember to disk; the snapshot finds it again, whatever is written later."""

    def take_over(self, folder: Path, snapshot: MemorySnapshot) -> None:
        """Copy what clients remembered at a checkpoint from its file in `folder`; a damaged row is refused."""


class Transport(Protocol):
    """The way to the clients, as a server uses it."""

    @property
    def memory(self) -> ClientMemory | None:
        """Clients' memory, which checkpoints of the run must include; None where clients keep it themselves."""

    def ask(self, question: Question, evaluate: bool, charge: Callable[[], None]) -> Answer:
        """Put a question to its clients.

        Args:
            question: The step to run, its message, and the clients that run it.
            evaluate: Whether each client also tests its models on its own test records.
            charge: Writes down durably what the question costs. It is called before clients are asked, once for each
                time that they draw noise for it.
        """

    def public_states(self, clients: Sequence[int], names: Collection[str]) -> dict[str, Tensor]:
        """Public states of the given `names`, one row per client; empty where clients keep them to themselves."""

    def accuracies(self, clients: Sequence[int], model: Tensor | None) -> np.ndarray:
        """Each client's test accuracy with `model`, or with its own where that is None; `nan` where it is not known."""


class HostingTransport(Transport, Protocol):
    """A transport that has the clients themselves, their records and models included."""

    @property
    def clients(self) -> int:
        """Number of clients."""

    @property
    def memory(self) -> ClientMemory: ...

    def participants(self) -> list[int]:
        """Clients that have taken part, in ascending order."""

    def personal_models(self, clients: Sequence[int]) -> Iterator[Tensor]:
        """Personal models, one row per client, in pieces that fit into memory."""

    def metrics(self, clients: Sequence[int], model: Tensor | None) -> ClientMetrics:
        """Metrics of `model` on each client's test records, or of the client's own model where that is None."""

    def pieces(self) -> list[list[int]]:
        """All clients in pieces whose models fit into memory. They depend on the clients and their network alone, so
        that a resumed run finds the same ones."""

    def blend(self, clients: Sequence[int], message: Message) -> Answer:
        """Blended predictors of the clients, one row each; `message` holds the server's models."""


class Fatal:
    """The server's view of a transport: its first failure is raised again on every later call.

    A failure at clients may tell of their records: a script that catches it gets nothing more from them, and its run
    has no result. `OutOfBudgetError` tells of no record.
    """

    def __init__(self, of: Transport) -> None:
        self._of = of
        self.failure: BaseException | None = None

    def check(self) -> None:
        """Raise the first failure again, if there was one."""
        if self.failure is not None:
            raise self.failure

    def ask(self, question: Question, evaluate: bool, charge: Callable[[], None]) -> Answer:
        with self._last_word():
            return self._of.ask(question, evaluate, charge)

    def public_states(self, clients: Sequence[int], names: Collection[str]) -> dict[str, Tensor]:
        with self._last_word():
            return self._of.public_states(clients, names)

    def accuracies(self, clients: Sequence[int], model: Tensor | None) -> np.ndarray:
        with self._last_word():
            return self._of.accuracies(clients, model)

    @contextlib.contextmanager
    def _last_word(self) -> Iterator[None]:
        self.check()
        try:
            yield
        except OutOfBudgetError:
            raise
        except BaseException as error:
            self.failure = error
            raise
