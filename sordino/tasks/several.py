"""Several outcomes of one record at once: several numbers, or several yes/no outcomes (multi-label).

Each part is a task of its own, with its own outputs of one network, its own loss and its own metrics. The loss of a
record is the sum of its parts' losses, so that one record moves a model by one gradient, which is clipped as a whole.
What models say of a part stays apart from what they say of another: members of a mixture have the same weights for all
parts, and a recalibrated model has one slope.

Targets are rows with one entry for each part. Records are dealt, and spread over folds, by the first part, or by the
one that is told.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from sordino.errors import UserError
from sordino.tasks.classification import Classification
from sordino.tasks.intervals import Figure, Released
from sordino.tasks.recalibration import fit_recalibration, power
from sordino.tasks.regression import SHIFT, SLOPE, Regression
from sordino.tasks.task import Task
from sordino.util.formatting import join_names, of_part

SEPARATOR = "\x1f"
"""Character between the texts of two targets of one record."""
BETWEEN = "; "
"""Text between two predictions for one record."""
CLIP_OF_NUMBERS, CLIP_OF_LABELS, WALK_OF_NUMBERS = 0.25, 0.15, 0.2
"""Thresholds of records' gradients, over the root of their number of entries, and largest random walk of a parameter by
noise, for linear models: those of one number and of one label of two classes (`sordino.methods.dp_fedsgd`)."""
NEVER = -1e4
"""Log-probability of what cannot be: its exponential is zero, and it is finite."""


@dataclass(frozen=True)
class Several(Task):
    """Several outcomes of one kind, each with a name."""

    names: tuple[str, ...]
    """Names of the parts: columns of tables."""
    parts: tuple[Any, ...]
    """Task of each part."""
    by: int = 0
    """Part by which records are dealt and spread over folds."""

    means: ClassVar[tuple[str, ...]]
    """Metrics whose mean over parts means something, whatever their units."""
    of_parts: ClassVar[tuple[str, ...]]
    """Metrics of each part."""

    @property
    def shared(self) -> tuple[str, ...]:
        """Metrics of which a mean over the parts is given."""
        return self.means

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics: means over parts, then `metric[part]` for each part."""
        return (*self.shared, *(of_part(metric, name) for name in self.names for metric in self.of_parts))

    @property
    def lower_is_better(self) -> tuple[str, ...]:
        """The metrics of which a lower value is the better one."""
        lower = self.parts[0].lower_is_better
        return (*lower, *(of_part(metric, name) for name in self.names for metric in lower))

    @property
    def target_shape(self) -> tuple[int, ...]:
        return (len(self.parts),)

    @property
    def together(self) -> int:
        return len(self.parts)

    @property
    def width(self) -> int:
        return sum(part.width for part in self.parts)

    @property
    def told(self) -> int:
        return sum(part.told for part in self.parts)

    @property
    def counted(self) -> int:
        return sum(part.counted for part in self.parts)

    @property
    def predicted(self) -> int:
        return sum(part.predicted for part in self.parts)

    @property
    def evaluated(self) -> int:
        return sum(part.evaluated for part in self.parts)

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(f"{self.names[self.by]}: {name}" for name in self.parts[self.by].groups)

    @property
    def outcomes(self) -> str:
        return join_names(
            [f"{name} ({self._possible(part)})" for name, part in zip(self.names, self.parts, strict=True)]
        )

    @staticmethod
    def _possible(part: Any) -> str:
        """Possible outcomes of a part, in words."""
        return str(part.outcomes)

    @property
    def decides_by_one(self) -> bool:
        return all(part.decides_by_one for part in self.parts)

    @property
    def positive_name(self) -> str | None:
        return None

    @property
    def unnamed(self) -> Task:
        parts = tuple(part.unnamed for part in self.parts)
        return dataclasses.replace(self, names=tuple(map(str, range(len(parts)))), parts=parts)

    def dealt_by(self, name: str) -> Several:
        """The task whose records are dealt by the part of that name."""
        return dataclasses.replace(self, by=self.names.index(name))

    def document(self) -> dict[str, Any]:
        parts = {name: part.document() for name, part in zip(self.names, self.parts, strict=True)}
        return {"task": self.name, "parts": parts, "by": self.by}

    def check(self) -> None:
        for part in self.parts:
            part.check()

    def admits(self, other: Task) -> bool:
        same = isinstance(other, type(self)) and other.names == self.names
        return same and all(one.admits(two) for one, two in zip(self.parts, other.parts, strict=True))  # type: ignore[attr-defined]

    def parse(self, texts: Sequence[str]) -> np.ndarray:
        rows = [text.split(SEPARATOR) for text in texts]
        whole = [row if len(row) == len(self.parts) else [""] * len(self.parts) for row in rows]
        columns = [part.parse([row[place] for row in whole]) for place, part in enumerate(self.parts)]
        return np.stack(columns, axis=1)

    def text(self, targets: np.ndarray) -> list[str]:
        columns = [map(str, part.text(targets[:, place]).tolist()) for place, part in enumerate(self.parts)]
        return [SEPARATOR.join(row) for row in zip(*columns, strict=True)]

    # Parts of rows: outputs, what is told, counts, predictions and sums, each as long as its part says.

    def _split(self, rows: Tensor, field: str) -> Sequence[Tensor]:
        """Entries (..., entries) of each part; `field` is the part's property that says how many are its own."""
        return rows.split([getattr(part, field) for part in self.parts], dim=-1)

    def _said(self, outputs: Tensor) -> Sequence[Tensor]:
        """Entries of each part in a network's outputs, or in rows that tell predictions."""
        return self._split(outputs, "told" if outputs.shape[-1] == self.told else "width")

    def _each(self, targets: Tensor) -> Sequence[Tensor]:
        """Targets of each part."""
        return targets.unbind(dim=-1)

    # Training and evaluation.

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._added("losses", outputs, targets)

    def stacked_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._added("stacked_losses", outputs, targets)

    def summed_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._added("summed_loss", outputs, targets)

    def right(self, outputs: Tensor, targets: Tensor) -> Tensor:
        found = zip(self.parts, self._said(outputs), self._each(targets), strict=True)
        return torch.stack([part.right(said, known).float() for part, said, known in found]).mean(dim=0)

    def _added(self, loss: str, outputs: Tensor, targets: Tensor) -> Tensor:
        found = zip(self.parts, self._split(outputs, "width"), self._each(targets), strict=True)
        return torch.stack([getattr(part, loss)(said, known) for part, said, known in found]).sum(dim=0)

    def slopes(self, outputs: Tensor, targets: Tensor) -> Tensor:
        found = zip(self.parts, self._split(outputs, "width"), self._each(targets), strict=True)
        return torch.cat([part.slopes(said, known) for part, said, known in found], dim=-1)

    def scores(self, outputs: Tensor, targets: Tensor, valid: Tensor | None = None) -> Tensor:
        found = zip(self.parts, self._said(outputs), self._each(targets), strict=True)
        return torch.stack([part.scores(said, known, valid) for part, said, known in found]).nanmean(dim=0)

    # Statistics of the targets: those of all parts in one row, whose norm they share.

    def counts(self, targets: Tensor) -> Tensor:
        found = [part.counts(known) for part, known in zip(self.parts, self._each(targets), strict=True)]
        return torch.cat(found, dim=-1) / len(self.parts) ** 0.5

    def start(self, means: Tensor, records: float) -> Tensor:
        found = zip(self.parts, self._split(means * len(self.parts) ** 0.5, "counted"), strict=True)
        return torch.cat([part.start(mine, records) for part, mine in found])

    # Metrics.

    def sums(self, outputs: Tensor, targets: Tensor, sizes: np.ndarray, trained: Sequence[np.ndarray]) -> np.ndarray:
        found = [
            part.sums(said, known, sizes, [mine[:, place] for mine in trained])
            for place, (part, said, known) in enumerate(
                zip(self.parts, self._said(outputs), self._each(targets), strict=True)
            )
        ]
        return np.concatenate(found, axis=1)

    def no_sums(self) -> np.ndarray:
        return np.concatenate([part.no_sums() for part in self.parts])

    def figures(self, sums: np.ndarray) -> np.ndarray:
        ends = np.cumsum([len(part.no_sums()) for part in self.parts])[:-1]
        each = [
            part.figures(mine)[:, [part.metrics.index(metric) for metric in self.of_parts]]
            for part, mine in zip(self.parts, np.split(sums, ends, axis=1), strict=True)
        ]
        stacked = np.stack(each)
        known = ~np.isnan(stacked)
        with np.errstate(invalid="ignore"):
            means = np.where(known, stacked, 0.0).sum(axis=0) / known.sum(axis=0)
        shared = means[:, [self.of_parts.index(metric) for metric in self.shared]]
        return np.concatenate([shared, *each], axis=1)

    # Evaluation that is paid for: the parts' rows, which share the norm.

    def evaluation_rows(self, predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:
        rows = [
            part.evaluation_rows(mine, targets[:, place])
            for place, (part, mine) in enumerate(
                zip(self.parts, self._split_array(predicted, "predicted"), strict=True)
            )
        ]
        return (np.concatenate(rows, axis=1) / len(self.parts) ** 0.5).astype(np.float32)

    def evaluated_records(self, counts: np.ndarray) -> float:
        found = zip(self.parts, self._split_array(counts, "evaluated"), strict=True)
        return float(np.mean([part.evaluated_records(mine) for part, mine in found]) * len(self.parts) ** 0.5)

    def evaluation_figures(self, released: Released) -> dict[str, Figure | None]:
        whole = len(self.parts) ** 0.5
        found: dict[str, Figure | None] = {}
        for name, part, mine in zip(
            self.names, self.parts, self._split_array(released.counts, "evaluated"), strict=True
        ):
            own = Released(mine * whole, released.deviation * whole, released.records)
            found |= {of_part(figure, name): one for figure, one in part.evaluation_figures(own).items()}
        return found

    def true_figures(self, predicted: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> dict[str, float | None]:
        found: dict[str, float | None] = {}
        for place, (name, part, mine) in enumerate(
            zip(self.names, self.parts, self._split_array(predicted, "predicted"), strict=True)
        ):
            own = part.true_figures(mine, targets[:, place], weights)
            found |= {of_part(figure, name): one for figure, one in own.items()}
        return found

    def _split_array(self, rows: np.ndarray, field: str) -> list[np.ndarray]:
        """`_split` of an array."""
        ends = np.cumsum([getattr(part, field) for part in self.parts])[:-1]
        return np.split(rows, ends, axis=-1)

    # Records, for partitions, public data and audits.

    def group(self, targets: np.ndarray) -> np.ndarray:
        return np.asarray(self.parts[self.by].group(targets[:, self.by]))

    def strata(self, targets: np.ndarray) -> np.ndarray:
        return np.asarray(self.parts[self.by].strata(targets[:, self.by]))

    def partition(self, targets: np.ndarray) -> tuple[np.ndarray, int]:
        found: tuple[np.ndarray, int] = self.parts[self.by].partition(targets[:, self.by])
        return found

    def effective_records(self, targets: np.ndarray) -> float:
        found = [part.effective_records(targets[:, place]) for place, part in enumerate(self.parts)]
        return float(np.mean(found))

    def shift(self, targets: Tensor, steps: int) -> Tensor:
        moved = [part.shift(known, steps) for part, known in zip(self.parts, self._each(targets), strict=True)]
        return torch.stack(moved, dim=-1)

    def draw(self, count: int, random: np.random.Generator) -> Tensor:
        return torch.stack([part.draw(count, random) for part in self.parts], dim=-1)

    # Mixtures of models.

    def log_probabilities(self, outputs: Tensor) -> Tensor:
        found = zip(self.parts, self._said(outputs), strict=True)
        return torch.cat([part.log_probabilities(said) for part, said in found], dim=-1)

    def likelihoods(self, log_probabilities: Tensor, targets: Tensor) -> Tensor:
        found = zip(self.parts, self._split(log_probabilities, "told"), self._each(targets), strict=True)
        return torch.stack([part.likelihoods(said, known) for part, said, known in found]).sum(dim=0)

    def sharpen(self, log_probabilities: Tensor, powers: float | Tensor, offsets: Tensor) -> Tensor:
        found = zip(self.parts, self._split(log_probabilities, "told"), self._split(offsets, "told"), strict=True)
        return torch.cat([part.sharpen(said, powers, more) for part, said, more in found], dim=-1)

    def mix(self, log_probabilities: Tensor, log_weights: Tensor) -> Tensor:
        found = zip(self.parts, self._split(log_probabilities, "told"), strict=True)
        return torch.cat([part.mix(said, log_weights) for part, said in found], dim=-1)

    @property
    def needs_spread(self) -> bool:
        return any(part.needs_spread for part in self.parts)

    def spread(self, log_probabilities: Tensor, targets: Tensor, features: int) -> Tensor:
        found = zip(self.parts, self._split(log_probabilities, "told"), self._each(targets), strict=True)
        return torch.cat([part.spread(said, known, features) for part, said, known in found])

    def frequencies(self, targets: Tensor) -> Tensor:
        found = zip(self.parts, self._each(targets), strict=True)
        return torch.cat([part.frequencies(known) for part, known in found])

    def frequencies_without_each(self, targets: Tensor) -> Tensor:
        found = zip(self.parts, self._each(targets), strict=True)
        return torch.cat([part.frequencies_without_each(known) for part, known in found], dim=-1)

    # Predictions for new records.

    def predict(self, outputs: Tensor) -> Tensor:
        found = zip(self.parts, self._said(outputs), strict=True)
        return torch.cat([part.predict(said) for part, said in found], dim=-1)

    @property
    def heads(self) -> tuple[str, ...]:
        return tuple(f"prediction_{name}" for name in self.names)

    def tell(self, predicted: np.ndarray, threshold: float | None = None) -> list[str]:
        return [BETWEEN.join(row) for row in self.tell_each(predicted)]

    def tell_each(self, predicted: np.ndarray, threshold: float | None = None) -> list[tuple[str, ...]]:
        found = zip(self.parts, self._split_array(predicted, "predicted"), strict=True)
        return list(zip(*(part.tell(mine) for part, mine in found), strict=True))

    def measures(self, predicted: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        found: dict[str, float] = {}
        for place, (name, mine) in enumerate(zip(self.names, self._split_array(predicted, "predicted"), strict=True)):
            own = self._measures(self.parts[place], mine, targets[:, place])
            found |= {of_part(figure, name): value for figure, value in own.items()}
        return found

    @abstractmethod
    def _measures(self, part: Any, predicted: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """Figures of one part's predictions."""

    def count(self, told: Sequence[str]) -> dict[str, int]:
        rows = [one.split(BETWEEN) for one in told if one]
        found: dict[str, int] = {}
        for place, (name, part) in enumerate(zip(self.names, self.parts, strict=True)):
            counts = part.count([row[place] for row in rows if len(row) == len(self.parts)])
            found |= {f"{name} {group}": count for group, count in counts.items()}
        return found

    def weighed(self, class_weight: str) -> Task:
        if class_weight == "none":
            return self
        raise UserError("class_weight is for one label, but this task has several outcomes: leave it out.")


@dataclass(frozen=True)
class SeveralNumbers(Several):
    """Several numbers, each in its own declared range."""

    name: ClassVar[str] = Regression.name
    dtype: ClassVar[torch.dtype] = torch.float32
    score: ClassVar[str] = "r2"
    means: ClassVar[tuple[str, ...]] = ("r2", "coverage")
    of_parts: ClassVar[tuple[str, ...]] = Regression.metrics

    @property
    def shared(self) -> tuple[str, ...]:
        """Those without a unit and, where all numbers have the same one, the others."""
        units = {part.unit for part in self.parts}
        return self.of_parts if len(units) == 1 and None not in units else self.means

    def __str__(self) -> str:
        return f"{len(self.parts)} numbers, {self.outcomes}"

    @property
    def wish(self) -> str:
        return f"to predict {len(self.parts)} numbers for each record, {self.outcomes}"

    def of_linear(self, features: int) -> dict[str, float]:
        return {"clip": CLIP_OF_NUMBERS * math.sqrt(len(self.parts) * (features + 1)), "walk": WALK_OF_NUMBERS}

    def temper(self, log_probabilities: Tensor, targets: Tensor, offsets: Tensor) -> tuple[float, Tensor]:
        rows = (self._split(one, "told") for one in (log_probabilities, offsets))
        found = zip(self.parts, *rows, self._each(targets), strict=True)
        return 1.0, torch.cat([part.temper(said, known, more)[1] for part, said, more, known in found])

    def recalibrate(self, log_probabilities: Tensor, targets: Tensor) -> tuple[float, Tensor]:
        """One slope for all numbers, and a shift and a variance of each, as `Regression.recalibrate`."""
        pairs = zip(self._split(log_probabilities, "told"), self._each(targets), strict=True)
        said, known = (torch.stack(rows).double() for rows in zip(*((row[..., 0], y) for row, y in pairs), strict=True))
        if not bool(said.isfinite().all()):
            return 1.0, torch.zeros(self.told)
        away, count = known - said, len(self.parts)
        variances = torch.stack(
            [part.normal_offsets(0.0, mine, 0.0)[1].double().exp() for part, mine in zip(self.parts, away, strict=True)]
        )
        shifts = torch.eye(count, dtype=torch.float64).unsqueeze(1).expand(-1, said.shape[1], -1)
        inputs = torch.cat([said.unsqueeze(2), shifts], dim=2)  # (parts, records, 1 + parts)
        moments = torch.einsum("pri,prj->pij", inputs, inputs) / variances.reshape(-1, 1, 1)
        penalties = torch.diag(torch.tensor([SLOPE, *[SHIFT] * count], dtype=torch.float64))
        whole = moments.sum(dim=0) + penalties
        changed = torch.linalg.solve(whole, (torch.einsum("pri,pr->pi", inputs, away) / variances.unsqueeze(1)).sum(0))
        errors = away - inputs @ changed
        fitted = [float(torch.linalg.solve(whole, one).trace()) for one in moments]
        rows = zip(self.parts, changed[1:].tolist(), errors, fitted, strict=True)
        return 1 + float(changed[0]), torch.cat([part.normal_offsets(*row) for part, *row in rows])

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(f"{column}_{name}" for name in self.names for column in self.parts[0].columns)

    def shown(self, predicted: np.ndarray) -> np.ndarray:
        found = zip(self.parts, self._split_array(predicted, "predicted"), strict=True)
        return np.concatenate([part.shown(mine) for part, mine in found], axis=1)

    @staticmethod
    def write(predicted: float) -> str:
        return Regression.write(predicted)

    def _measures(self, part: Any, predicted: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        found: dict[str, float] = part.measures(predicted, targets)
        return found


@dataclass(frozen=True)
class SeveralLabels(Several):
    """Several outcomes of two classes each: which of them a record has, and which not."""

    name: ClassVar[str] = "multi-label"
    dtype: ClassVar[torch.dtype] = torch.int64
    score: ClassVar[str] = "accuracy"
    output: ClassVar[str] = "probabilities"
    strange: ClassVar[str] = Classification.strange
    means: ClassVar[tuple[str, ...]] = (
        *("accuracy", "balanced_accuracy", "auc", "recall", "log_loss", "calibration_error", "majority"),
    )
    of_parts: ClassVar[tuple[str, ...]] = means

    def __str__(self) -> str:
        return f"{len(self.parts)} labels ({join_names(self.names)})"

    @property
    def wish(self) -> str:
        return f"to tell {len(self.parts)} outcomes of each record, {self.outcomes}"

    @staticmethod
    def _possible(part: Any) -> str:
        return " or ".join(part.names)

    def of_linear(self, features: int) -> dict[str, float]:
        return {"clip": CLIP_OF_LABELS * math.sqrt(len(self.parts) * 2 * (features + 1))}

    def temper(self, log_probabilities: Tensor, targets: Tensor, offsets: Tensor) -> tuple[float, Tensor]:
        return power(self, log_probabilities, targets, offsets), torch.zeros(self.told)

    def recalibrate(self, log_probabilities: Tensor, targets: Tensor) -> tuple[float, Tensor]:
        """One slope for all labels, and an offset for each class of each: as of one label whose classes are those of
        all labels, of which only those of its own label are possible for a record."""
        records, labels = targets.shape
        possible = torch.eye(labels, dtype=torch.bool).repeat_interleave(2, dim=1)  # (labels, classes of all)
        said = log_probabilities.unsqueeze(1).expand(-1, labels, -1)
        said = torch.where(possible, said, torch.full_like(said, NEVER))
        places = targets + 2 * torch.arange(labels)
        return fit_recalibration(said.reshape(records * labels, -1), places.reshape(-1))

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(f"probability_{name}" for name in self.names)

    def shown(self, predicted: np.ndarray) -> np.ndarray:
        found = zip(self.parts, self._split_array(predicted, "predicted"), strict=True)
        return np.stack([mine[:, part.positive] for part, mine in found], axis=1)

    def _measures(self, part: Any, predicted: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        found = part.true_figures(predicted, targets, np.ones(len(targets)))
        return {name: np.nan if value is None else value for name, value in found.items()}
