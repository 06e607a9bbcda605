"""The interface of a task, which knows what is predicted for a record and all that follows from it.

`targets` are the values to predict, one for each record; `outputs` are a network's, (records, width). Methods, steps
and networks know no more of a task than what stands here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from sordino.errors import UserError

UNDECLARED = ("none", "balanced")
"""Values of a method's `class_weight` that declare no weights."""


class Task(ABC):
    """Something to predict for a record, with its loss, metrics, output width and checks."""

    name: ClassVar[str]
    """The kind of task, in a word."""
    dtype: ClassVar[torch.dtype]
    """Type of the targets' tensor."""
    metrics: ClassVar[tuple[str, ...]]
    """Names of the metrics on test records, in the order of their columns."""
    lower_is_better: ClassVar[tuple[str, ...]]
    """The metrics of which a lower value is the better one."""
    score: ClassVar[str]
    """The metric by which clients are compared; from 0 to 1, higher is better."""

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of the target of one record: a number, unless records are sequences."""
        return ()

    @property
    @abstractmethod
    def width(self) -> int:
        """Number of outputs of a network for each record."""

    @property
    @abstractmethod
    def groups(self) -> tuple[str, ...]:
        """Names of the groups in which records are dealt, spread over folds and counted."""

    @property
    @abstractmethod
    def positive_name(self) -> str | None:
        """Name of the class that is looked for; None where there is none."""

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """The task as JSON can carry it; `sordino.tasks.read_task` reads it."""

    # Checks.

    @abstractmethod
    def check(self) -> None:
        """Refuse a task that no network can learn."""

    @abstractmethod
    def admits(self, other: Task) -> bool:
        """Whether records of another task can be evaluated in this one."""

    def class_names(self, purpose: str) -> tuple[str, ...]:
        """Names of the classes. A task without classes refuses; `purpose` begins the sentence, as in "The clustering
        of PACFL"."""
        raise UserError(f"{purpose} needs classes, but this task ({self.name}) has none: choose another method.")

    # Training and evaluation.

    @staticmethod
    @abstractmethod
    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each record (records,), differentiable, for use under `vmap`."""

    @staticmethod
    @abstractmethod
    def slopes(outputs: Tensor, targets: Tensor) -> Tensor:
        """The gradient of each record's loss at its outputs, for stacked clients: (clients, records, width) from
        outputs of that shape. The caller may change it in place."""

    @staticmethod
    @abstractmethod
    def stacked_losses(outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each test record of stacked clients: (clients, records) from (clients, records, width)."""

    @staticmethod
    @abstractmethod
    def summed_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        """The sum of the losses of test records, a scalar."""

    @staticmethod
    @abstractmethod
    def right(outputs: Tensor, targets: Tensor) -> Tensor:
        """Whether the prediction for each record is right: (..., records) from outputs (..., records, width)."""

    # Weights of records in training.

    def weighed(self, class_weight: str) -> Task:
        """The task whose losses and slopes are multiplied by public weights that stand in a method's `class_weight`;
        the task itself for `none`, and for `balanced`, whose weights follow from records."""
        if class_weight in UNDECLARED:
            return self
        raise UserError(f"class_weight needs classes, but this task ({self.name}) has none: leave it out.")

    def balance(self, targets: Tensor, weight: Tensor) -> Tensor:
        """(groups,): weights at which each group among one client's records counts the same, one in the mean over the
        records; for use under `vmap`.

        Args:
            targets: (records,).
            weight: (records,), one for a record, zero for padding.
        """
        raise UserError(f"class_weight needs classes, but this task ({self.name}) has none: leave it out.")

    def weighted_losses(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """`losses`, each multiplied by the weight of its record's group."""
        return self.losses(outputs, targets) * weights[targets]

    # Metrics.

    @abstractmethod
    def sums(self, outputs: Tensor, targets: Tensor, sizes: np.ndarray, trained: Sequence[np.ndarray]) -> np.ndarray:
        """(clients, sums): sums over each client's test records from which its metrics follow; those of several clients
        add up.

        Args:
            outputs: (records, width), each client's records together; logarithms of probabilities will do too.
            targets: (records,) of the same records.
            sizes: (clients,) number of test records of each client.
            trained: the training targets of each client.
        """

    @abstractmethod
    def no_sums(self) -> np.ndarray:
        """(sums,): those of no records."""

    @abstractmethod
    def figures(self, sums: np.ndarray) -> np.ndarray:
        """(rows, metrics) from rows of `sums`; `nan` where a row has none of the records that a metric is about."""

    # Records, for partitions, public data and audits.

    @abstractmethod
    def group(self, targets: np.ndarray) -> np.ndarray:
        """int64 (records,): the place in `groups` of each record."""

    @abstractmethod
    def shift(self, targets: Tensor, steps: int) -> Tensor:
        """Other targets that records may have: each one `steps` further than in `targets`."""

    @abstractmethod
    def draw(self, count: int, random: np.random.Generator) -> Tensor:
        """Random targets for `count` records that are nobody's."""

    # Mixtures of models.

    @staticmethod
    @abstractmethod
    def log_probabilities(outputs: Tensor) -> Tensor:
        """Logarithms of the probabilities that a model gives: (..., width) from its outputs."""

    @staticmethod
    @abstractmethod
    def likelihoods(log_probabilities: Tensor, targets: Tensor) -> Tensor:
        """Logarithm of the probability of each record's own target: (..., records) from (..., records, width)."""

    @staticmethod
    @abstractmethod
    def sharpen(log_probabilities: Tensor, powers: float | Tensor, offsets: Tensor) -> Tensor:
        """Probabilities raised to `powers`, multiplied by exp(`offsets`) and scaled to sum to one, as logarithms."""

    @abstractmethod
    def recalibrate(self, log_probabilities: Tensor, targets: Tensor) -> tuple[float, Tensor]:
        """Power and offsets (width,) for `sharpen` that fit a model's probabilities to a client's records; a penalty
        draws them to one and zero, which change nothing. Probabilities that are not finite are left as they are.

        Args:
            log_probabilities: (records, width), what the model says of the client's training records.
            targets: (records,) of the same records.
        """

    @abstractmethod
    def frequencies(self, targets: Tensor) -> Tensor:
        """(width,): smoothed shares of a client's records by target, as logarithms, to which models are adjusted."""

    @abstractmethod
    def frequencies_without_each(self, targets: Tensor) -> Tensor:
        """(records, width): the same, for each record from the client's other records."""

    # Predictions for new records.

    @staticmethod
    @abstractmethod
    def predict(outputs: Tensor) -> Tensor:
        """Prediction for each record, (records, width), from a network's outputs: for classes their probabilities."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of `predict` in a table of predictions."""

    @abstractmethod
    def tell(self, predicted: np.ndarray, threshold: float | None = None) -> list[str]:
        """The prediction for each record in words, from rows of `predict`; `threshold` is the probability from which on
        a class that is looked for is predicted, where it is not the most probable one."""

    @abstractmethod
    def count(self, told: Sequence[str]) -> dict[str, int]:
        """Number of records with each prediction, by its words."""
