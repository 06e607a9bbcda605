"""Regression: a number is predicted for each record, held to a declared range.

Targets are scaled, y = (t - centre) / size, so that most tables' vary by about one: range / 6 is the size unless a mean
and a deviation are declared. A network gives one number for each record, the mean. How far targets lie from it, each
client finds out on its own records and keeps: what clients blend or recalibrate is a normal distribution for each
record, told by its mean and the logarithm of its variance.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from sordino.errors import UserError
from sordino.tasks import error_sums
from sordino.tasks.intervals import Figure, Released
from sordino.tasks.task import Task

USUAL_LOSS = "squared"
BENDS = 1.0
"""Error, in scaled units, from which on the Huber loss grows in proportion to the error."""
CURVATURE = 0.25
"""Second derivative of the loss at an output: the largest that it has for a class, so that steps that suit classes suit
numbers."""
SPREAD = 3.0
"""Scaled ends of a range of which nothing else is known, as for columns of numbers."""
BINS = 10
"""Groups of a target's range, in which records are counted."""
LEVEL = 0.9
"""Share of records that intervals are to hold."""
SURE = 1.6448536269514722
"""Standard deviations on both sides of a normal's mean that hold 90 % of it."""
SLOPE, SHIFT = 3.0, 3.0
"""Strengths of the penalties that keep a recalibrated slope at one and its shift, in scaled units, at zero."""
PRIOR = 2.0
"""Records for which the usual variance of scaled targets, one, counts in that of a model's errors."""
LEAST_VARIANCE = 1e-6
GOLDEN = 0.6180339887498949
SUMS = ("records", "squares", "errors", "targets", "target_squares", "constant", "inside", "known", "widths")
"""Sums over records: their number; squared and absolute errors; targets and their squares; squared errors of the mean
of the client's own training targets; records inside their interval, with an interval, and its width."""


@dataclass(frozen=True)
class Regression(Task):
    """A number in a declared range; targets are scaled, float32."""

    low: float
    high: float
    """Ends of the range to which targets are held."""
    unit: str | None = None
    """Unit of the target, for people."""
    mean: float | None = None
    deviation: float | None = None
    """Mean and deviation that targets are scaled by, where declared; by default the range's middle and a sixth."""
    loss: str = USUAL_LOSS
    """`squared`, or `huber`, which grows in proportion to large errors."""

    name: ClassVar[str] = "regression"
    dtype: ClassVar[torch.dtype] = torch.float32
    metrics: ClassVar[tuple[str, ...]] = ("r2", "rmse", "mae", "coverage", "interval_width", "constant_rmse")
    """Names of the metrics:

    - `r2`: the share of the targets' variance, among a client's test records, that predictions explain;
    - `rmse`, `mae`: root of the mean squared error, and mean absolute error, in the target's unit;
    - `coverage`: the share of records inside their 90 % interval;
    - `interval_width`: the mean width of these intervals, in the target's unit;
    - `constant_rmse`: the `rmse` of always predicting the mean of the client's own training targets.
    """
    lower_is_better: ClassVar[tuple[str, ...]] = ("rmse", "mae", "interval_width", "constant_rmse")
    score: ClassVar[str] = "r2"

    @property
    def centre(self) -> float:
        """Target that becomes 0."""
        return (self.low + self.high) / 2 if self.mean is None else self.mean

    @property
    def size(self) -> float:
        """Distance of targets that becomes 1."""
        return (self.high - self.low) / (2 * SPREAD) if self.deviation is None else self.deviation

    @property
    def ends(self) -> tuple[float, float]:
        """Scaled ends of the range."""
        low, high = ((end - self.centre) / self.size for end in (self.low, self.high))
        return float(np.float32(low)), float(np.float32(high))  # as targets are rounded

    def scaled(self, targets: np.ndarray) -> np.ndarray:
        """float32 (records,): targets in their unit as networks learn them; those outside the range are held to it."""
        held = np.clip(targets.astype(np.float64), self.low, self.high)
        return ((held - self.centre) / self.size).astype(np.float32)

    def in_unit(self, scaled: np.ndarray) -> np.ndarray:
        """Scaled targets in their unit."""
        return np.asarray(scaled, dtype=np.float64) * self.size + self.centre

    def __str__(self) -> str:
        return f"numbers {self.outcomes}"

    @property
    def width(self) -> int:
        return 1

    @property
    def groups(self) -> tuple[str, ...]:
        edges = np.linspace(self.low, self.high, BINS + 1)
        return tuple(f"{low:.4g} to {high:.4g}" for low, high in itertools.pairwise(edges))

    @property
    def told(self) -> int:
        return 2

    @property
    def outcomes(self) -> str:
        return f"from {self.low:g} to {self.high:g}{'' if self.unit is None else ' ' + self.unit}"

    @property
    def wish(self) -> str:
        return f"to predict a number {self.outcomes}"

    @property
    def decides_by_one(self) -> bool:
        return True

    @property
    def positive_name(self) -> str | None:
        return None

    def parse(self, texts: Sequence[str]) -> np.ndarray:
        return self.scaled(np.array([_number(text) for text in texts], dtype=np.float64))

    def text(self, targets: np.ndarray) -> np.ndarray:
        return self.in_unit(targets)

    def document(self) -> dict[str, Any]:
        scaling = {"mean": self.mean, "deviation": self.deviation}
        return {"task": self.name, "low": self.low, "high": self.high, "unit": self.unit, **scaling, "loss": self.loss}

    def check(self) -> None:
        if not self.low < self.high:
            raise UserError(
                f"The target's range is {self.low:g} to {self.high:g}: a number to predict must be able to vary."
            )

    def admits(self, other: Task) -> bool:
        return isinstance(other, Regression) and (other.ends, other.centre) == (self.ends, self.centre)

    # Training and evaluation.

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        errors = outputs[..., 0] - targets
        if self.loss == "huber":
            away = errors.abs()
            return CURVATURE * torch.where(away < BENDS, errors.square() / 2, BENDS * (away - BENDS / 2))
        return CURVATURE * errors.square() / 2

    def slopes(self, outputs: Tensor, targets: Tensor) -> Tensor:
        errors = outputs[..., 0] - targets
        return CURVATURE * (errors.clamp(-BENDS, BENDS) if self.loss == "huber" else errors).unsqueeze(-1)

    def right(self, outputs: Tensor, targets: Tensor) -> Tensor:
        # Half the range is as wrong as can be: whoever rewards agents by this needs a figure between 0 and 1.
        low, high = self.ends
        return 1 - ((self._means(outputs) - targets).abs() / ((high - low) / 2)).clamp(max=1)

    def scores(self, outputs: Tensor, targets: Tensor, valid: Tensor | None = None) -> Tensor:
        there = torch.ones_like(targets, dtype=torch.float64) if valid is None else (valid > 0).double()
        known, errors = targets.double(), (self._means(outputs).double() - targets).square()
        mean = (known * there).sum(dim=-1, keepdim=True) / there.sum(dim=-1, keepdim=True)
        varies = ((known - mean).square() * there).sum(dim=-1)
        found = 1 - (errors * there).sum(dim=-1) / varies
        return torch.where(varies > 0, found, math.nan)

    def _means(self, outputs: Tensor) -> Tensor:
        """Scaled predictions, held to the range; those of models that overflowed are its centre."""
        return outputs[..., 0].nan_to_num(nan=0.0).clamp(*self.ends)

    # Statistics of the targets.

    @property
    def counted(self) -> int:
        return 1

    @property
    def _longest(self) -> float:
        return max(map(abs, self.ends))

    def counts(self, targets: Tensor) -> Tensor:
        return targets.unsqueeze(-1) / self._longest

    def start(self, means: Tensor, records: float) -> Tensor:
        return (means * self._longest).clamp(*self.ends)

    # Metrics.

    def sums(self, outputs: Tensor, targets: Tensor, sizes: np.ndarray, trained: Sequence[np.ndarray]) -> np.ndarray:
        said, known = self._means(outputs).double().numpy(), targets.double().numpy()
        owner = np.repeat(np.arange(len(sizes)), sizes)
        usual = np.array([float(mine.mean(dtype=np.float64)) if len(mine) else 0.0 for mine in trained])[owner]
        lows, highs = self._intervals(outputs)
        there = ~np.isnan(lows)
        inside = there & (lows <= known) & (known <= highs)
        columns = (
            *(np.ones(len(known)), np.square(said - known), np.abs(said - known), known, np.square(known)),
            *(np.square(usual - known), inside.astype(float), there.astype(float), np.where(there, highs - lows, 0.0)),
        )
        return np.stack([np.bincount(owner, column, len(sizes)) for column in columns], axis=1)

    def _intervals(self, outputs: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Scaled ends of the 90 % intervals, held to the range; `nan` where nobody knows how far targets lie away."""
        if outputs.shape[-1] < self.told:
            unknown = np.full(len(outputs), np.nan)
            return unknown, unknown
        means, away = self._means(outputs).double(), SURE * (outputs[..., 1].double() / 2).exp()
        away = away.nan_to_num(nan=math.inf)
        return (means - away).clamp(*self.ends).numpy(), (means + away).clamp(*self.ends).numpy()

    def no_sums(self) -> np.ndarray:
        return np.zeros(len(SUMS))

    def figures(self, sums: np.ndarray) -> np.ndarray:
        records, squares, errors, targets, target_squares, constant, inside, known, widths = sums.T
        with np.errstate(invalid="ignore", divide="ignore"):
            varies = target_squares - targets**2 / records
            # Of equal targets rounding leaves something.
            varies = np.where(varies > 1e-9 * np.maximum(target_squares, 1e-12), varies, np.nan)
            columns = {
                "r2": 1 - squares / varies,
                "rmse": np.sqrt(squares / records) * self.size,
                "mae": errors / records * self.size,
                "coverage": inside / known,
                "interval_width": widths / known * self.size,
                "constant_rmse": np.sqrt(constant / records) * self.size,
            }
        return np.stack([columns[name] for name in self.metrics], axis=1)

    # Evaluation that is paid for.

    @property
    def evaluated(self) -> int:
        return error_sums.ENTRIES

    def evaluation_rows(self, predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return error_sums.rows_of(self._errors(predicted, targets), targets.astype(np.float64))

    def evaluated_records(self, counts: np.ndarray) -> float:
        return error_sums.records_of(counts)

    def evaluation_figures(self, released: Released) -> dict[str, Figure | None]:
        return error_sums.figures_of(released, self.size)

    def true_figures(self, predicted: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> dict[str, float | None]:
        errors = self._errors(predicted, targets)
        return error_sums.true_figures(errors, targets.astype(np.float64), weights, self.size)

    def _errors(self, predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Scaled errors of rows of `predict`."""
        return (predicted[:, 0] - self.centre) / self.size - targets

    # Records, for partitions, public data and audits.

    def group(self, targets: np.ndarray) -> np.ndarray:
        low, high = self.ends
        return np.clip((targets.astype(np.float64) - low) / (high - low) * BINS, 0, BINS - 1).astype(np.int64)

    def strata(self, targets: np.ndarray) -> np.ndarray:
        return self.partition(targets)[0]

    def partition(self, targets: np.ndarray) -> tuple[np.ndarray, int]:
        # Tenths by rank: the range may be much wider than what occurs.
        ranks = np.empty(len(targets), dtype=np.int64)
        ranks[np.argsort(targets, kind="stable")] = np.arange(len(targets))
        return ranks * BINS // max(1, len(targets)), BINS

    def shift(self, targets: Tensor, steps: int) -> Tensor:
        low, high = self.ends
        return low + ((targets - low) / (high - low) + steps * GOLDEN) % 1 * (high - low)

    def draw(self, count: int, random: np.random.Generator) -> Tensor:
        return torch.from_numpy(random.uniform(*self.ends, count).astype(np.float32))

    # Mixtures of models: rows of (mean, logarithm of the variance).

    def log_probabilities(self, outputs: Tensor) -> Tensor:
        return outputs if outputs.shape[-1] == self.told else torch.cat([outputs, torch.zeros_like(outputs)], dim=-1)

    def likelihoods(self, log_probabilities: Tensor, targets: Tensor) -> Tensor:
        means, logs = log_probabilities[..., 0], log_probabilities[..., 1]
        return -((targets - means).square() * (-logs).exp() + logs + math.log(2 * math.pi)) / 2

    def sharpen(self, log_probabilities: Tensor, powers: float | Tensor, offsets: Tensor) -> Tensor:
        """Normal distributions whose means are multiplied by `powers`; `offsets` are added to the means and to the
        logarithms of the variances."""
        means = (powers * log_probabilities)[..., 0]
        return torch.stack([means, log_probabilities[..., 1]], dim=-1) + offsets

    def mix(self, log_probabilities: Tensor, log_weights: Tensor) -> Tensor:
        weights = log_weights.exp()
        means, variances = log_probabilities[..., :1], log_probabilities[..., 1:].exp()
        mean = (weights * means).sum(dim=0)
        variance = (weights * (variances + (means - mean).square())).sum(dim=0)
        return torch.cat([mean, variance.clamp(min=LEAST_VARIANCE).log()], dim=-1)

    def temper(self, log_probabilities: Tensor, targets: Tensor, offsets: Tensor) -> tuple[float, Tensor]:
        errors = self.sharpen(log_probabilities.double(), 1.0, offsets)[..., 0] - targets
        return 1.0, self.normal_offsets(0.0, errors, 0.0)

    @property
    def needs_spread(self) -> bool:
        return True

    def spread(self, log_probabilities: Tensor, targets: Tensor, features: int) -> Tensor:
        # n records leave n - d errors free, and on other records d / n of the variance comes on top.
        records = len(targets)
        fitted = min(features, records / 2)
        more = 1 + fitted / records if records else 1.0
        found = self.normal_offsets(0.0, log_probabilities[..., 0].double() - targets, fitted)
        found[1] += math.log(more)
        return found

    def normal_offsets(self, shift: float, errors: Tensor, fitted: float) -> Tensor:
        """Offsets with a shift of the mean and the variance of `errors`, drawn to the usual one by few of them;
        `fitted` numbers were fitted to the same records."""
        variance = (float(errors.square().sum()) + PRIOR) / (len(errors) - fitted + PRIOR)
        if not math.isfinite(variance):
            return torch.zeros(self.told)
        return torch.tensor([shift, math.log(max(variance, LEAST_VARIANCE))])

    def recalibrate(self, log_probabilities: Tensor, targets: Tensor) -> tuple[float, Tensor]:
        """Slope, shift and variance of a ridge regression of the targets on what a model says, drawn to a slope of one
        and a shift of zero; the penalties are those of a prior, so that they count in units of the variance."""
        said, known = log_probabilities[..., 0].double(), targets.double()
        if not bool(said.isfinite().all()):
            return 1.0, torch.zeros(self.told)
        inputs, away = torch.stack([said, torch.ones_like(said)], dim=1), known - said
        penalties = torch.diag(torch.tensor([SLOPE, SHIFT], dtype=torch.float64))
        variance = float(self.normal_offsets(0.0, away, 0.0)[1].exp())
        moments = inputs.T @ inputs / variance
        changed = torch.linalg.solve(moments + penalties, inputs.T @ away / variance)
        fitted = float(torch.linalg.solve(moments + penalties, moments).trace())
        errors = away - inputs @ changed
        return 1 + float(changed[0]), self.normal_offsets(float(changed[1]), errors, fitted)

    # Predictions for new records.

    def predict(self, outputs: Tensor) -> Tensor:
        """(records, 3): prediction and the ends of its 90 % interval, in the target's unit; the ends are `nan` where
        outputs do not tell how far targets lie away."""
        means = outputs[..., :1].nan_to_num(nan=0.0).clamp(*self.ends)
        away = torch.full_like(means, math.nan)
        if outputs.shape[-1] == self.told:
            away = SURE * (outputs[..., 1:] / 2).exp()
        return torch.cat([means, *(end.clamp(*self.ends) for end in (means - away, means + away))], -1) * self.size + (
            self.centre
        )

    @property
    def predicted(self) -> int:
        return 3

    @property
    def columns(self) -> tuple[str, ...]:
        return ("low_90", "high_90")

    @staticmethod
    def write(predicted: float) -> str:
        return f"{predicted:.6g}"

    def tell(self, predicted: np.ndarray, threshold: float | None = None) -> list[str]:
        return [f"{value:.6g}" for value in predicted[:, 0].tolist()]

    def measures(self, predicted: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        known, said = self.in_unit(targets), predicted[:, 0]
        errors, varies = said - known, float(np.square(known - known.mean()).sum())
        found = {
            "r2": 1 - float(np.square(errors).sum()) / varies if varies > 0 else math.nan,
            "rmse": float(np.sqrt(np.square(errors).mean())),
            "mae": float(np.abs(errors).mean()),
            "bias": float(errors.mean()),
        }
        if not np.isnan(predicted[:, 1:]).any():
            slack = 1e-6 * self.size  # of rounding
            found["coverage"] = float(((predicted[:, 1] - slack <= known) & (known <= predicted[:, 2] + slack)).mean())
        return found

    def count(self, told: Sequence[str]) -> dict[str, int]:
        values = np.array([float(one) for one in told if one])
        places = self.group((values - self.centre) / self.size).tolist()
        return {name: places.count(place) for place, name in enumerate(self.groups)}


def _number(text: str) -> float:
    """Number in a text; `nan` where it is none, or is infinite."""
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan
