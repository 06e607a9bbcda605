"""Classification: each record belongs to one of several classes, and a network gives one logit per class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sordino.errors import UserError
from sordino.tasks import histogram
from sordino.tasks.class_metrics import LOWER_IS_BETTER, METRICS, Judged, metrics_of, no_sums, sums_of
from sordino.tasks.intervals import Figure, Released
from sordino.tasks.recalibration import fit_recalibration, power
from sordino.tasks.task import UNDECLARED, Task
from sordino.util.formatting import canonical, join_names

SMOOTHING = 3.0
"""Records by which each class is counted too many where models are adjusted to a client's classes: few records do not
rule a class out."""

LEAST_WEIGHT, MOST_WEIGHT = 1e-6, 1e6
"""Range of the weight of a class."""


@dataclass(frozen=True)
class Classification(Task):
    """One of several classes; targets are their numbers, int64 from 0."""

    names: tuple[str, ...]
    """Names of the classes, in the order of their numbers."""
    positive: int | None = None
    """Number of the class that is looked for; None where no class is more wanted than others."""

    name: ClassVar[str] = "classification"
    dtype: ClassVar[torch.dtype] = torch.int64
    metrics: ClassVar[tuple[str, ...]] = METRICS
    lower_is_better: ClassVar[tuple[str, ...]] = LOWER_IS_BETTER
    score: ClassVar[str] = "accuracy"
    strange: ClassVar[str] = "which `labels` lacks"
    output: ClassVar[str] = "probabilities"

    @classmethod
    def of(cls, names: tuple[str, ...], positive: str | None = None) -> Classification:
        """Classes by name; of two the second is looked for unless another is named `positive`."""
        usual = 1 if len(names) == 2 else None
        return cls(names, usual if positive is None else names.index(positive))

    @classmethod
    def numbered(cls, count: int) -> Classification:
        """Classes that have numbers only."""
        return cls.of(tuple(str(number) for number in range(count)))

    def __str__(self) -> str:
        return f"{self.width} classes"

    @property
    def width(self) -> int:
        return len(self.names)

    @property
    def groups(self) -> tuple[str, ...]:
        return self.names

    @property
    def told(self) -> int:
        return self.width

    @property
    def outcomes(self) -> str:
        return join_names(self.names)

    @property
    def wish(self) -> str:
        return f"to tell {join_names(self.names)} apart"

    @property
    def positive_name(self) -> str | None:
        return None if self.positive is None else self.names[self.positive]

    @property
    def unnamed(self) -> Task:
        return Classification.numbered(self.width)

    def parse(self, texts: Sequence[str]) -> np.ndarray:
        known = {canonical(name): place for place, name in enumerate(self.names)}
        places = {text: known.get(canonical(text), -1) for text in dict.fromkeys(texts)}  # of millions, a few
        return np.fromiter((places[text] for text in texts), dtype=np.int64, count=len(texts))

    def text(self, targets: np.ndarray) -> np.ndarray:
        if self.names == tuple(map(str, range(self.width))):
            return targets
        return np.array(self.names)[targets]

    def document(self) -> dict[str, Any]:
        return {"classes": list(self.names), "positive": self.positive}

    def check(self) -> None:
        if self.width < 2:
            raise UserError(f"A network needs at least 2 classes to tell apart, not {self.width}.")

    def admits(self, other: Task) -> bool:
        return isinstance(other, Classification) and other.width <= self.width

    def class_names(self, purpose: str) -> tuple[str, ...]:
        return self.names

    @staticmethod
    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        # Cross-entropy. As quick as torch's own function, and many times quicker under `vmap`.
        return -functional.log_softmax(outputs, dim=1).gather(1, targets.unsqueeze(1)).squeeze(1)

    @staticmethod
    def slopes(outputs: Tensor, targets: Tensor) -> Tensor:
        # Class probabilities, less one at the target. For few classes quicker than torch.softmax.
        slope = torch.exp(outputs - outputs.amax(dim=2, keepdim=True))
        # Two numbers are added many times quicker by themselves than by a sum over the last dimension.
        slope /= slope[:, :, :1] + slope[:, :, 1:] if slope.shape[2] == 2 else slope.sum(dim=2, keepdim=True)
        return slope.scatter_add_(2, targets.unsqueeze(2), slope.new_full((), -1.0).expand(*targets.shape, 1))

    # The next two are `losses` up to the last bit, which differs between torch's kernels: figures of stored runs were
    # computed with these.

    @staticmethod
    def stacked_losses(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs.transpose(1, 2), targets, reduction="none")

    @staticmethod
    def summed_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, reduction="sum")

    @staticmethod
    def right(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.argmax(dim=-1) == targets

    def sums(self, outputs: Tensor, targets: Tensor, sizes: np.ndarray, trained: Sequence[np.ndarray]) -> np.ndarray:
        probabilities = torch.softmax(outputs.double(), dim=1)
        counts = np.stack([np.bincount(mine, minlength=self.width) for mine in trained])
        # Whoever trains on too much noise may overflow, and then knows nothing: all classes are as likely.
        return sums_of(Judged(probabilities.nan_to_num(nan=1 / self.width).numpy(), targets.numpy(), sizes, counts))

    def no_sums(self) -> np.ndarray:
        return no_sums(self.width)

    def figures(self, sums: np.ndarray) -> np.ndarray:
        return metrics_of(sums, self.positive)

    @property
    def evaluated(self) -> int:
        return histogram.cell_count(self)

    def evaluation_rows(self, predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:
        cells = histogram.cells_of(self, predicted, targets)
        return (cells[:, None] == np.arange(self.evaluated)).astype(np.float32)

    def evaluation_figures(self, released: Released) -> dict[str, Figure | None]:
        return histogram.figures_of(self, released)

    def true_figures(self, predicted: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> dict[str, float | None]:
        return histogram.true_figures(self, predicted, targets, weights)

    def weighed(self, class_weight: str) -> Task:
        if class_weight in UNDECLARED:
            return self
        return WeighedClasses(self.names, self.positive, _read_weights(class_weight, self.names))

    def balance(self, targets: Tensor, weight: Tensor) -> Tensor:
        classes = torch.arange(self.width, device=targets.device)
        held = ((targets.unsqueeze(1) == classes) * weight.unsqueeze(1)).sum(dim=0)
        there = (held > 0).to(held.dtype)
        return there * held.sum() / (there.sum() * held).clamp(min=1)

    @property
    def counted(self) -> int:
        return self.width

    def counts(self, targets: Tensor) -> Tensor:
        return functional.one_hot(targets, self.width).float()

    def frequencies_of(self, means: Tensor, records: float) -> Tensor:
        """Shares of the classes from noisy means of `counts`, each of at least one record."""
        return shares_of(means, records)

    def start(self, means: Tensor, records: float) -> Tensor:
        bias = self.frequencies_of(means, records).log()
        return bias - bias.mean()

    def group(self, targets: np.ndarray) -> np.ndarray:
        return targets

    def effective_records(self, targets: np.ndarray) -> float:
        return effective_records(targets, self.width)

    def shift(self, targets: Tensor, steps: int) -> Tensor:
        return (targets + steps) % self.width

    def draw(self, count: int, random: np.random.Generator) -> Tensor:
        return torch.from_numpy(random.integers(0, self.width, count))

    @staticmethod
    def log_probabilities(outputs: Tensor) -> Tensor:
        return torch.log_softmax(outputs, dim=-1)

    @staticmethod
    def likelihoods(log_probabilities: Tensor, targets: Tensor) -> Tensor:
        return log_probabilities[..., torch.arange(len(targets)), targets]

    @staticmethod
    def sharpen(log_probabilities: Tensor, powers: float | Tensor, offsets: Tensor) -> Tensor:
        return torch.log_softmax(powers * log_probabilities + offsets, dim=-1)

    def mix(self, log_probabilities: Tensor, log_weights: Tensor) -> Tensor:
        return torch.logsumexp(log_probabilities + log_weights, dim=0)

    def temper(self, log_probabilities: Tensor, targets: Tensor, offsets: Tensor) -> tuple[float, Tensor]:
        return power(self, log_probabilities, targets, offsets), torch.zeros(self.width)

    def recalibrate(self, log_probabilities: Tensor, targets: Tensor) -> tuple[float, Tensor]:
        return fit_recalibration(log_probabilities, targets)

    def frequencies(self, targets: Tensor) -> Tensor:
        return _smooth(torch.bincount(targets, minlength=self.width))

    def frequencies_without_each(self, targets: Tensor) -> Tensor:
        counts = torch.bincount(targets, minlength=self.width)
        return _smooth(counts - functional.one_hot(targets, self.width))

    @staticmethod
    def predict(outputs: Tensor) -> Tensor:
        return torch.softmax(outputs, dim=1)

    @property
    def predicted(self) -> int:
        return self.width

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(f"probability_{name}" for name in self.names)

    def tell(self, predicted: np.ndarray, threshold: float | None = None) -> list[str]:
        return [self.names[best] for best in self.decide(predicted, threshold).tolist()]

    def decide(self, predicted: np.ndarray, threshold: float | None = None) -> np.ndarray:
        """int64 (records,): the most probable class or, with a threshold, the positive one wherever its probability is
        at least that, and else the most probable of the others."""
        if threshold is None or self.positive is None:
            return np.asarray(predicted.argmax(axis=1))
        others = predicted.copy()
        others[:, self.positive] = -1.0
        return np.where(predicted[:, self.positive] >= threshold, self.positive, others.argmax(axis=1))

    def count(self, told: Sequence[str]) -> dict[str, int]:
        return {name: told.count(name) for name in self.names}


@dataclass(frozen=True)
class WeighedClasses(Classification):
    """Classes whose records' losses are multiplied by public weights in training; in all else the same classes."""

    weights: tuple[float, ...] = ()
    """Weight of each class."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:  # type: ignore[override]
        return Classification.losses(outputs, targets) * outputs.new_tensor(self.weights)[targets]

    def slopes(self, outputs: Tensor, targets: Tensor) -> Tensor:  # type: ignore[override]
        found = Classification.slopes(outputs, targets)
        found *= outputs.new_tensor(self.weights)[targets].unsqueeze(2)
        return found


def _read_weights(text: str, names: tuple[str, ...]) -> tuple[float, ...]:
    """Weights of classes as users write them: `1,9` in the order of the classes, or `ill:9,healthy:1`."""
    example = ",".join(f"{name}:{place + 1}" for place, name in enumerate(names[:3])) + ",..." * (len(names) > 3)
    wrong = f"class_weight = {text!r} is not understood: write balanced, or a weight for each class, as in {example}"
    named = [part.rpartition(":")[::2] for part in text.split(",")]
    try:
        values = [float(value) for _, value in named]
    except ValueError as error:
        raise UserError(f"{wrong}.") from error
    if not all(LEAST_WEIGHT <= value <= MOST_WEIGHT for value in values):
        raise UserError(f"class_weight = {text!r}: each weight must lie between {LEAST_WEIGHT:g} and {MOST_WEIGHT:g}.")
    if len(values) == len(names) and not any(name for name, _ in named):
        return tuple(values)
    by_name = {name.strip(): value for (name, _), value in zip(named, values, strict=True)}
    if set(by_name) != set(names) or len(values) != len(names):
        raise UserError(f"{wrong}; the classes are {', '.join(names[:10])}{', ...' * (len(names) > 10)}.")
    return tuple(by_name[name] for name in names)


def shares_of(means: Tensor, records: float) -> Tensor:
    """Shares from noisy ones, each of at least one of so many records; they sum to one."""
    shares = means.clamp(min=1 / records)
    return shares / shares.sum()


def effective_records(groups: np.ndarray, count: int) -> float:
    """Return the number of records that are worth as much as these if labels were as frequent as each other.

    n (1 - sum over groups of p^2) count / (count - 1), where p is the share of a group: 4 n p (1 - p) for two of them.

    Args:
        groups: Number of the group of each record.
        count: Number of groups that there are.
    """
    if len(groups) == 0 or count < 2:
        return float(len(groups))
    shares = np.bincount(groups, minlength=count) / len(groups)
    return float(len(groups) * (1 - np.square(shares).sum()) * count / (count - 1))


def _smooth(counts: Tensor) -> Tensor:
    """Smoothed shares of classes as logarithms, from the number of records of each (..., classes)."""
    return torch.log_softmax((counts + SMOOTHING).log(), dim=-1)
