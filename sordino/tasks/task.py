"""Abstract base of tasks (`Task`): how targets are read, the loss and its gradient, metrics, class weights, label
counts for private start values, mixing and calibration of predictions, and their output.

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
from sordino.tasks.intervals import Figure, Released

UNDECLARED = ("none", "balanced")
"""Values of a method's `class_weight` that declare no weights."""


class Task(ABC):
    """Something to predict for a record, with its loss, metrics, output width and checks."""

    name: ClassVar[str]
    """The kind of task, in a word."""
    dtype: ClassVar[torch.dtype]
    """Type of the targets' tensor."""
    score: ClassVar[str]
    """The metric by which clients are compared; at most 1, higher is better."""
    judged: ClassVar[bool] = True
    """Whether predictions are judged on records whose targets a file says."""
    output: ClassVar[str] = "predictions"
    """Name of the output of an exported network."""

    @property
    @abstractmethod
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics on test records, in the order of their columns."""

    @property
    @abstractmethod
    def lower_is_better(self) -> tuple[str, ...]:
        """The metrics of which a lower value is the better one."""

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of the target of one record: a number, unless records are sequences or have several outcomes."""
        return ()

    @property
    def together(self) -> int:
        """Number of outcomes of one record that are predicted at once."""
        return 1

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
    def told(self) -> int:
        """Number of values in which a model's prediction for a record is told: the width of `log_probabilities`."""

    @property
    @abstractmethod
    def outcomes(self) -> str:
        """The possible outcomes, in words."""

    @property
    @abstractmethod
    def wish(self) -> str:
        """Purpose of a model, in words that follow "a model that is"."""

    @property
    def decides_by_one(self) -> bool:
        """Whether one number decides a prediction, as with two classes."""
        return len(self.groups) == 2

    @property
    @abstractmethod
    def positive_name(self) -> str | None:
        """Name of the class that is looked for; None where there is none."""

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """The task as JSON can carry it; `sordino.tasks.read_task` reads it."""

    @property
    def unnamed(self) -> Task:
        """The task without names that do not change what is learned."""
        return self

    strange: ClassVar[str] = "which is no number"
    """End of a sentence on a text that says no target."""

    # Targets as text, one for a record: how tables and arrays are read, and how a trial's sites get them.

    @abstractmethod
    def parse(self, texts: Sequence[str]) -> np.ndarray:
        """(records,): targets that texts say; of a text that says none, -1 where targets are whole numbers, else
        `nan`."""

    @abstractmethod
    def text(self, targets: np.ndarray) -> Sequence[str] | np.ndarray:
        """Description that `parse` reads as these targets."""

    def arrays(self, x: np.ndarray, y: np.ndarray, ending: str = "") -> dict[str, Any]:
        """Records as the arrays of an NPZ file, by name; names end with `ending`."""
        return {f"x{ending}": x, f"y{ending}": self.text(y)}

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

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each record (records,), differentiable, for use under `vmap`."""

    @abstractmethod
    def slopes(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The gradient of each record's loss at its outputs, for stacked clients: (clients, records, width) from
        outputs of that shape. The caller may change it in place."""

    def stacked_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each test record of stacked clients: (clients, records) from (clients, records, width)."""
        return self.losses(outputs, targets)

    def summed_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The sum of the losses of test records, a scalar."""
        return self.losses(outputs, targets).sum()

    @abstractmethod
    def right(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Share to which the prediction for each record is right, from 0 to 1: (..., records) from outputs (...,
        records, width)."""

    def scores(self, outputs: Tensor, targets: Tensor, valid: Tensor | None = None) -> Tensor:
        """`score` of each client on its test records: (...,) from outputs (..., records, width), in double precision;
        `nan` where it has no such records.

        Args:
            outputs: of a network.
            targets: (..., records).
            valid: (..., records), one for a record, zero for padding; None where all are records.
        """
        right = self.right(outputs, targets).double()
        if valid is None:
            return right.sum(dim=-1) / right.shape[-1]
        return right.where(valid > 0, 0.0).sum(dim=-1) / (valid > 0).sum(dim=-1)

    # Statistics of the targets, from which training starts.

    @property
    @abstractmethod
    def counted(self) -> int:
        """Number of entries of a row of `counts`."""

    @abstractmethod
    def counts(self, targets: Tensor) -> Tensor:
        """(records, counted): a row for each record, of a norm of at most one, whose mean tells how targets are
        spread."""

    def frequencies_of(self, means: Tensor, records: float) -> Tensor:
        """Shares of the classes from noisy means of `counts`."""
        raise UserError(f"class_weight needs classes, but this task ({self.name}) has none: leave it out.")

    def curve(self, means: Tensor, records: float) -> dict[str, float]:
        """Figures that noisy means of `counts` tell people, by what they are; none where they tell nothing but how
        frequent classes are."""
        return {}

    @property
    def tells_counts(self) -> bool:
        """Whether `curve` has figures."""
        return False

    @abstractmethod
    def start(self, means: Tensor, records: float) -> Tensor:
        """(width,): outputs to begin with, the same for all records.

        Args:
            means: (counted,) means of `counts` over the records, with noise.
            records: number of records.
        """

    def of_linear(self, features: int) -> dict[str, float]:
        """Hyper-parameters `clip`, `largest_step` and `walk` that suit sums of records' gradients of linear models of
        so many features, for methods that have all three, where nobody chose them; none where a method's own do."""
        return {}

    # Weights of records in training.

    def weighed(self, class_weight: str) -> Task:
        """The task whose losses and slopes are multiplied by public weights that stand in a method's `class_weight`;
        the task itself for `none`, and, of classes, for `balanced`, whose weights follow from records."""
        if class_weight == "none":
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

    # Evaluation that is paid for: one noised sum, over test records, of a row of a norm of at most one for each.

    @property
    def evaluated(self) -> int:
        """Number of entries of a row of `evaluation_rows`; a task without such rows refuses."""
        raise UserError(
            f"evaluation_share pays for figures that are sums over records, and this task ({self.name}) has none: "
            "leave it out."
        )

    def evaluation_rows(self, predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """float32 (records, evaluated): a row for each record, of a norm of at most one.

        Args:
            predicted: (records, predicted), as `predict` gives them.
            targets: (records,) of the same records.
        """
        raise NotImplementedError

    def evaluated_records(self, counts: np.ndarray) -> float:
        """Number of records in a noisy sum of rows."""
        return float(counts.sum())

    def evaluation_figures(self, released: Released) -> dict[str, Figure | None]:
        """Figures from noisy sums of rows, or from their means; None where noise drowns what a figure is about."""
        raise NotImplementedError

    def true_figures(self, predicted: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> dict[str, float | None]:
        """Figures from the records themselves, without noise, for simulations; `weights` are those of the records,
        which need not sum to one."""
        raise NotImplementedError

    # Records, for partitions, public data and audits.

    @abstractmethod
    def group(self, targets: np.ndarray) -> np.ndarray:
        """int64 (records,): the place in `groups` of each record."""

    def strata(self, targets: np.ndarray) -> np.ndarray:
        """int64 (records,): groups of about equal meaning in which one client's records are spread over folds."""
        return self.group(targets)

    def partition(self, targets: np.ndarray) -> tuple[np.ndarray, int]:
        """Group of each record (records,), by which simulated clients get records, and the number of groups."""
        return self.group(targets), len(self.groups)

    def effective_records(self, targets: np.ndarray) -> float:
        """Number of records that tell as much as these, if all targets were as frequent as each other."""
        return float(len(targets))

    @abstractmethod
    def shift(self, targets: Tensor, steps: int) -> Tensor:
        """Other targets that records may have: each one `steps` further than in `targets`."""

    @abstractmethod
    def draw(self, count: int, random: np.random.Generator) -> Tensor:
        """Random targets for `count` records that are nobody's."""

    # Mixtures of models. A prediction is told by a row of `told` numbers: for classes the logarithms of probabilities.

    @abstractmethod
    def log_probabilities(self, outputs: Tensor) -> Tensor:
        """Rows that tell a model's predictions: (..., told) from its outputs, or from such rows."""

    @abstractmethod
    def likelihoods(self, log_probabilities: Tensor, targets: Tensor) -> Tensor:
        """Logarithm of the probability (or density) of each record's own target: (..., records) from (..., records,
        told)."""

    @abstractmethod
    def sharpen(self, log_probabilities: Tensor, powers: float | Tensor, offsets: Tensor) -> Tensor:
        """Predictions changed by what `recalibrate` or `temper` found. For classes: probabilities raised to `powers`,
        multiplied by exp(`offsets`) and scaled to sum to one, as logarithms."""

    @abstractmethod
    def mix(self, log_probabilities: Tensor, log_weights: Tensor) -> Tensor:
        """Mixture of predictions: (records, told) from (members, records, told) and the logarithms of weights, of a
        shape that fits."""

    @abstractmethod
    def temper(self, log_probabilities: Tensor, targets: Tensor, offsets: Tensor) -> tuple[float, Tensor]:
        """Power, and terms (told,) to be added to `offsets`, with which `sharpen` makes predictions for records that a
        model was not trained on as sure as they should be.

        Args:
            log_probabilities: (records, told), what the model says of held-out records.
            targets: (records,) of the same records.
            offsets: (records, told) or (told,), added to what the model says in any case.
        """

    def spread(self, log_probabilities: Tensor, targets: Tensor, features: int) -> Tensor:
        """Offsets (told,) that tell how far targets lie from predictions for records that a model was trained on;
        zeros where predictions tell that themselves.

        Args:
            log_probabilities: (records, told), what the model says of its training records.
            targets: (records,) of the same records.
            features: number of features, and one for the intercept: errors on other records are larger by them.
        """
        return torch.zeros(self.told)

    @property
    def needs_spread(self) -> bool:
        """Whether clients find out how far targets lie from predictions, because models do not tell."""
        return False

    @abstractmethod
    def recalibrate(self, log_probabilities: Tensor, targets: Tensor) -> tuple[float, Tensor]:
        """Power and offsets (told,) for `sharpen` that fit a model's predictions to a client's records; a penalty
        draws them to one and zero, which change nothing. Predictions that are not finite are left as they are.

        Args:
            log_probabilities: (records, told), what the model says of the client's training records.
            targets: (records,) of the same records.
        """

    def frequencies(self, targets: Tensor) -> Tensor:
        """(told,): smoothed shares of a client's records by target, as logarithms, to which models are adjusted; zeros
        where they are not."""
        return torch.zeros(self.told)

    def frequencies_without_each(self, targets: Tensor) -> Tensor:
        """(records, told): `frequencies`, for each record from the client's other records."""
        return torch.zeros(len(targets), self.told)

    # Predictions for new records.

    @abstractmethod
    def predict(self, outputs: Tensor) -> Tensor:
        """Prediction for each record, (records, predicted), from outputs of a network or a mixture: for classes their
        probabilities."""

    @property
    @abstractmethod
    def predicted(self) -> int:
        """Number of columns of `predict`."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Names of the last columns of `predict`, for a table of predictions."""

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the columns of a table of predictions in which these stand in words."""
        return ("prediction",)

    def shown(self, predicted: np.ndarray) -> np.ndarray:
        """(records, columns): the numbers of `predict` that a table of predictions has."""
        return predicted[:, predicted.shape[1] - len(self.columns) :]

    @staticmethod
    def write(predicted: float) -> str:
        """One number of `predict` as tables of predictions have it."""
        return f"{predicted:.6f}"

    @abstractmethod
    def tell(self, predicted: np.ndarray, threshold: float | None = None) -> list[str]:
        """The prediction for each record in words, from rows of `predict`; `threshold` is the probability from which on
        a class that is looked for is predicted, where it is not the most probable one."""

    def tell_each(self, predicted: np.ndarray, threshold: float | None = None) -> list[tuple[str, ...]]:
        """The predictions for each record in words, one for each of `heads`."""
        return [(one,) for one in self.tell(predicted, threshold)]

    def measures(self, predicted: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """Figures of predictions (records, predicted) on records with these targets, by name; for tasks without
        classes."""
        raise NotImplementedError

    @abstractmethod
    def count(self, told: Sequence[str]) -> dict[str, int]:
        """Number of records with each prediction, by its words."""
