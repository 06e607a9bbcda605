"""What carries questions to clients and answers back: worker processes in a simulation, a network on real machines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from sordino.federation.client import Question


class OutOfBudgetError(Exception):
    """Too few sites have budget left for any question to be answered: the run is over."""


@dataclass
class Answer:
    """What came of a question, one row per client in the order in which they were asked."""

    values: dict[str, Tensor]
    """What left, by release: bounded and noised."""
    accuracies: np.ndarray
    """Columns: the personal model after training, the model at round start and, from transports that know it, the
    personal model's mean cross-entropy; `nan` where not evaluated."""
    rejected: int
    """Values that were not finite and were replaced by null contributions."""
    bytes: int
    """What left the clients, all together."""
    kept: bool = True
    """Whether the step left anything behind at the clients; of sites that is not told, and taken to be so."""
    drawn: int = 0
    """Digest of all noise drawn for the answer (exclusive or of its keys); 0 where noise does not depend on values, or
    the digest is not known."""
    who: Sequence[int] | None = None
    """Who answered; None where all did."""
    summed: bool = False
    """Whether only sums came back: each value is one row, of whole numbers."""


class Transport(Protocol):
    """The way to the clients."""

    def ask(self, question: Question, evaluate: bool, charge: Callable[[], None]) -> Answer:
        """Put a question to its clients; with `evaluate`, each tests its models on its own test records.

        `charge` writes down what it costs. It is called before clients are asked, once for each time that they draw
        noise for it.
        """

    def public_states(self, clients: Sequence[int], names: Collection[str]) -> dict[str, Tensor]:
        """What clients have learned from what they sent, one row each."""

    def accuracies(self, clients: Sequence[int], model: Tensor | None) -> np.ndarray:
        """Each client's test accuracy with `model`, or with its own when that is None."""


class Fatal:
    """A transport that raises its first failure again on every later call.

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
