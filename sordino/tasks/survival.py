"""Survival: the time to an event that some records had and others, last seen before it, are not known to have had.

Time is cut into intervals, each up to and including its cut. A network gives one number z for each, whose logistic
function is the hazard: the probability of the event in an interval for who came through those before (discrete-time
hazards: Cox 1972; Allison 1982; Gensheimer and Narasimhan 2019). The loss of a record is the logistic loss of each
interval through which it is known to have come, or in which it had the event; one that was last seen inside an interval
says nothing of it. A record that had no event up to the last cut came through all of them, whatever its time.

A target is one number: 1 + time / last cut for an event, its negative for a record last seen then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sordino.errors import UserError
from sordino.tasks.brier_sums import BrierSums
from sordino.tasks.intervals import Figure, Released
from sordino.tasks.recalibration import CAUTION, POWERS
from sordino.tasks.survival_metrics import METRICS, brier_scores, concordant_pairs, kaplan_meier
from sordino.tasks.task import Task

LEAST_AT_RISK = 1.0
"""Records at risk that an interval has at the least where hazards are computed from noisy counts."""
LEAST_HAZARD = 1e-4
"""Hazards to begin with lie between this and one less this."""
SHIFTS = 3.0
"""Strength of the penalty that keeps a recalibrated model's log odds of the hazards where they are."""
CLIP, STEP, WALK = 0.7, 0.5, 0.4
"""Threshold of records' gradients, over the root of the features and one for the intercept, largest step of the server
and largest random walk of a parameter by noise, for linear models. They were chosen on two tables, with the seeds 100
to 119 (experiments/outcomes.md): smaller thresholds draw hazards towards those of the records that are clipped least,
and hazards of all intervals move with one slope, which swings at longer steps."""
NEWTON = 30
"""Most steps of recalibration."""


@dataclass(frozen=True)
class Survival(Task):
    """The time to an event, in intervals that end at declared cuts."""

    cuts: tuple[float, ...]
    """Ends of the intervals, rising; the first begins at zero."""
    unit: str | None = None
    """Unit of the times, for people."""

    name: ClassVar[str] = "survival"
    dtype: ClassVar[torch.dtype] = torch.float32
    metrics: ClassVar[tuple[str, ...]] = METRICS
    lower_is_better: ClassVar[tuple[str, ...]] = ("integrated_brier", "calibration_error", "constant_brier")
    score: ClassVar[str] = "concordance"

    @property
    def ends(self) -> np.ndarray:
        """float32 (intervals,): cuts as targets hold times."""
        return (1 + np.array(self.cuts) / self.cuts[-1]).astype(np.float32)

    @property
    def begins(self) -> np.ndarray:
        """float32 (intervals,): beginnings of the intervals, as targets hold times."""
        return np.concatenate([np.ones(1, dtype=np.float32), self.ends[:-1]])

    def encoded(self, times: np.ndarray, events: np.ndarray) -> np.ndarray:
        """float32 (records,): targets of times, each with the event or last seen then. Later times than the last cut
        are those of records last seen there."""
        late = times > self.cuts[-1]
        held = (1 + np.clip(times, 0, self.cuts[-1]) / self.cuts[-1]).astype(np.float32)
        return np.where((events > 0) & ~late, held, -held).astype(np.float32)

    def times(self, targets: np.ndarray) -> np.ndarray:
        """float64 (records,): times of targets, in their unit."""
        return (np.abs(np.asarray(targets, dtype=np.float64)) - 1) * self.cuts[-1]

    def parse(self, texts: Sequence[str]) -> np.ndarray:
        found = np.array([_read(text) for text in texts], dtype=np.float64).reshape(-1, 2)
        unknown = np.isnan(found).any(axis=1)
        return np.where(unknown, np.nan, self.encoded(*np.nan_to_num(found).T)).astype(np.float32)

    def text(self, targets: np.ndarray) -> list[str]:
        times = self.times(targets).tolist()
        return [f"{time!r} {int(event)}" for time, event in zip(times, (targets > 0).tolist(), strict=True)]

    def __str__(self) -> str:
        return f"times to an event in {self.width} intervals"

    @property
    def width(self) -> int:
        return len(self.cuts)

    @property
    def groups(self) -> tuple[str, ...]:
        begins = (0.0, *self.cuts[:-1])
        spans = [f"{begin:g} to {end:g}" for begin, end in zip(begins, self.cuts, strict=True)]
        return (*(f"event from {span}" for span in spans), *(f"last seen from {span}" for span in spans))

    @property
    def told(self) -> int:
        return self.width + 1

    @property
    def outcomes(self) -> str:
        unit = "" if self.unit is None else " " + self.unit
        return f"an event up to {self.cuts[-1]:g}{unit}, in {self.width} intervals, or none until then"

    @property
    def wish(self) -> str:
        return f"to predict the time to {self.outcomes}"

    @property
    def decides_by_one(self) -> bool:
        return False

    @property
    def positive_name(self) -> str | None:
        return None

    def document(self) -> dict[str, Any]:
        return {"task": self.name, "cuts": list(self.cuts), "unit": self.unit}

    def check(self) -> None:
        if not self.cuts or list(self.cuts) != sorted(set(self.cuts)) or not self.cuts[0] > 0:
            raise UserError("The cuts of the times must be numbers above 0 that rise from one to the next.")

    def admits(self, other: Task) -> bool:
        return isinstance(other, Survival) and other.cuts == self.cuts

    # Training and evaluation.

    def _known(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Whether each interval (..., intervals) is one that a record came through or had the event in, and whether it
        had the event there, as floats."""
        times, event = targets.abs().unsqueeze(-1), (targets > 0).unsqueeze(-1)
        begins, ends = (torch.as_tensor(one, device=targets.device) for one in (self.begins, self.ends))
        through = ends <= times
        there = event & (begins < times) & (times <= ends)
        first = torch.arange(self.width, device=targets.device) == 0
        there = there | (event & (times <= 1) & first)  # an event at the very start belongs to the first interval
        return ((through & ~(event & (ends == times))) | there).float(), there.float()

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        known, there = self._known(targets)
        return (functional.softplus(outputs) * known - outputs * there).sum(dim=-1)

    def slopes(self, outputs: Tensor, targets: Tensor) -> Tensor:
        known, there = self._known(targets)
        return torch.sigmoid(outputs) * known - there

    def right(self, outputs: Tensor, targets: Tensor) -> Tensor:
        known, there = self._known(targets)
        return (torch.sigmoid(outputs) * there + torch.sigmoid(-outputs) * (known - there)).sum(-1).nan_to_num(
            nan=0.0
        ) / known.sum(-1).clamp(min=1)

    def scores(self, outputs: Tensor, targets: Tensor, valid: Tensor | None = None) -> Tensor:
        said, known = self.predict(outputs)[..., 0].double().numpy(), targets.numpy()
        real = np.ones(known.shape, dtype=bool) if valid is None else np.broadcast_to(valid.numpy() > 0, known.shape)
        flat = zip(*(one.reshape(-1, known.shape[-1]) for one in (said, known, real)), strict=True)
        pairs = [concordant_pairs(self.times(mine[there]), mine[there] > 0, one[there]) for one, mine, there in flat]
        found = [won / all_ if all_ else math.nan for won, all_ in pairs]
        return torch.tensor(found, dtype=torch.float64).reshape(known.shape[:-1])

    # Statistics of the targets: a histogram of events and of records last seen, by interval.

    @property
    def counted(self) -> int:
        return 2 * self.width

    def counts(self, targets: Tensor) -> Tensor:
        ends = torch.as_tensor(self.ends, device=targets.device)
        place = (targets.abs().unsqueeze(-1) > ends).sum(dim=-1).clamp(max=self.width - 1)
        place = place + self.width * (targets <= 0)
        return (place.unsqueeze(-1) == torch.arange(self.counted, device=targets.device)).float()

    def hazards(self, means: Tensor, records: float) -> Tensor:
        """Hazard of each interval, from noisy means of `counts` (Kaplan and Meier 1958): events over the records that
        came into the interval, of whom those last seen inside it count half."""
        events, last_seen = (means.double() * records).reshape(2, self.width)
        leaving = events + last_seen
        entered = leaving.sum() - torch.cat([leaving.new_zeros(1), leaving.cumsum(0)[:-1]])
        inside = last_seen.clone()
        inside[-1] = 0  # those last seen at the last cut came through the last interval
        at_risk = (entered - inside / 2).clamp(min=LEAST_AT_RISK)
        return (events / at_risk).clamp(LEAST_HAZARD, 1 - LEAST_HAZARD)

    @property
    def tells_counts(self) -> bool:
        return True

    def curve(self, means: Tensor, records: float) -> dict[str, float]:
        """Kaplan-Meier curve at the cuts."""
        unit = "" if self.unit is None else f" {self.unit}"
        curve = (1 - self.hazards(means, records)).cumprod(dim=0).tolist()
        return {f"no event up to {cut:g}{unit}": value for cut, value in zip(self.cuts, curve, strict=True)}

    def start(self, means: Tensor, records: float) -> Tensor:
        return torch.logit(self.hazards(means, records)).float()

    def of_linear(self, features: int) -> dict[str, float]:
        return {"clip": CLIP * math.sqrt(features + 1), "largest_step": STEP, "walk": WALK}

    # Metrics.

    def sums(self, outputs: Tensor, targets: Tensor, sizes: np.ndarray, trained: Sequence[np.ndarray]) -> np.ndarray:
        said, known = self.predict(outputs).double().numpy(), targets.numpy()
        rows = []
        for begin, size, mine in zip(np.cumsum(sizes) - sizes, sizes, trained, strict=True):
            part = slice(begin, begin + size)
            rows.append(self._sums_of(said[part], known[part], np.asarray(mine)))
        return np.array(rows, dtype=np.float64).reshape(len(sizes), -1)

    def _sums_of(self, said: np.ndarray, known: np.ndarray, trained: np.ndarray) -> np.ndarray:
        """Sums over one client's test records: see `no_sums`."""
        times, events, cuts = self.times(known), known > 0, self.times(self.ends)
        own = kaplan_meier(self.times(trained), trained > 0, cuts)
        whole = (self.times(trained), trained > 0)
        scores = [
            brier_scores(*whole, times, events, curve, cuts) for curve in (said[:, 1:], np.tile(own, (len(known), 1)))
        ]
        counts = self.counts(torch.from_numpy(known)).numpy().sum(axis=0)
        predicted = 1 - said[:, -1]
        figures = (*concordant_pairs(times, events, said[:, 0]), len(known), *(one.sum() for one in scores))
        return np.array([*figures, predicted.sum(), *counts])

    def no_sums(self) -> np.ndarray:
        """(sums,): zeros for the pairs of which the right one was predicted to have the event earlier, and all pairs;
        the records; their integrated Brier scores by the model and by the client's own Kaplan-Meier curve; predicted
        probabilities of an event up to the last cut; and `counts`."""
        return np.zeros(6 + self.counted)

    def figures(self, sums: np.ndarray) -> np.ndarray:
        won, pairs, records, brier, constant, predicted = sums[:, :6].T
        with np.errstate(invalid="ignore", divide="ignore"):
            happened = np.array([self._happened(row[6:]) for row in sums])
            columns = {
                "concordance": won / pairs,
                "integrated_brier": brier / records,
                "calibration_error": np.abs(predicted / records - happened),
                "constant_brier": constant / records,
            }
        return np.stack([columns[name] for name in self.metrics], axis=1)

    def _happened(self, counts: np.ndarray) -> float:
        """Probability of an event up to the last cut by Kaplan and Meier, from `counts` of records."""
        total = counts.sum()
        if not total:
            return math.nan
        hazards = self.hazards(torch.from_numpy(counts / total), float(total)).numpy()
        return float(1 - np.prod(np.where(counts[: self.width] > 0, 1 - hazards, 1.0)))

    # Evaluation that is paid for.

    @property
    def _sums_of_errors(self) -> BrierSums:
        return BrierSums(self.cuts)

    @property
    def evaluated(self) -> int:
        return self._sums_of_errors.entries

    def evaluation_rows(self, predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:
        times, events = np.abs(targets)[:, None], targets > 0
        later = np.where(events[:, None], self.ends < times, self.ends <= times)
        return self._sums_of_errors.rows(predicted[:, 1:], later, events)

    def evaluated_records(self, counts: np.ndarray) -> float:
        return self._sums_of_errors.records(counts)

    def evaluation_figures(self, released: Released) -> dict[str, Figure | None]:
        return self._sums_of_errors.figures(released)

    def true_figures(self, predicted: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> dict[str, float | None]:
        times, events, cuts = self.times(targets), targets > 0, self.times(self.ends)
        whole = weights / weights.sum()
        curve = kaplan_meier(times, events, cuts, weights=whole)

        def score(curves: np.ndarray) -> float:
            return float((whole * brier_scores(times, events, times, events, curves, cuts, whole)).sum())

        return {
            "integrated_brier": score(predicted[:, 1:]),
            "constant_brier": score(np.tile(curve, (len(times), 1))),
            "calibration": float((whole * (1 - predicted[:, -1])).sum() - (1 - curve[-1])),
        }

    # Records, for partitions, public data and audits.

    def group(self, targets: np.ndarray) -> np.ndarray:
        return self.counts(torch.from_numpy(np.ascontiguousarray(targets, dtype=np.float32))).numpy().argmax(axis=1)

    def effective_records(self, targets: np.ndarray) -> float:
        # Who had no event tells little of what makes one likely. What d events tell of a slope grows as d, and what n
        # records of two classes, of which a share p has the rarer one, tell grows as n p (1 - p): a quarter of theirs.
        return 4.0 * float((targets > 0).sum())

    def shift(self, targets: Tensor, steps: int) -> Tensor:
        # Around a circle of events and censorings: 1 to 2, then -1 to -2.
        places = torch.where(targets > 0, targets.abs() - 1, targets.abs()) / 2
        moved = (places + steps * 0.6180339887498949) % 1 * 2
        return torch.where(moved < 1, 1 + moved, -moved)

    def draw(self, count: int, random: np.random.Generator) -> Tensor:
        signs = np.where(random.random(count) < 0.5, 1.0, -1.0)
        return torch.from_numpy((signs * random.uniform(1, 2, count)).astype(np.float32))

    # Mixtures of models: logarithms of the probabilities of an event in each interval, and of none.

    def log_probabilities(self, outputs: Tensor) -> Tensor:
        if outputs.shape[-1] == self.told:
            return outputs
        through = functional.logsigmoid(-outputs)
        came = torch.cat([torch.zeros_like(through[..., :1]), through.cumsum(dim=-1)], dim=-1)
        happens = torch.cat([functional.logsigmoid(outputs), torch.zeros_like(through[..., :1])], dim=-1)
        return came + happens

    def likelihoods(self, log_probabilities: Tensor, targets: Tensor) -> Tensor:
        known, there = self._known(targets)
        # Nothing is known of what follows the intervals that a record came through.
        after = torch.cat([known, torch.zeros_like(known[..., :1])], dim=-1) < 0.5
        event = torch.cat([there, torch.zeros_like(there[..., :1])], dim=-1) > 0.5
        possible = torch.where((targets > 0).unsqueeze(-1), event, after)
        return log_probabilities.masked_fill(~possible, -math.inf).logsumexp(dim=-1)

    def sharpen(self, log_probabilities: Tensor, powers: float | Tensor, offsets: Tensor) -> Tensor:
        return torch.log_softmax(powers * log_probabilities + offsets, dim=-1)

    def mix(self, log_probabilities: Tensor, log_weights: Tensor) -> Tensor:
        return torch.logsumexp(log_probabilities + log_weights, dim=0)

    def temper(self, log_probabilities: Tensor, targets: Tensor, offsets: Tensor) -> tuple[float, Tensor]:
        said = log_probabilities.double()

        def worth(power: float) -> float:
            found = self.likelihoods(self.sharpen(said, power, offsets), targets)
            return float(found.sum()) - CAUTION * math.log(power) ** 2

        return max(POWERS, key=worth), torch.zeros(self.told)

    def recalibrate(self, log_probabilities: Tensor, targets: Tensor) -> tuple[float, Tensor]:
        """Offsets by which the probability of no event becomes what the records say, at a power of one: one number is
        fitted, since most clients have few events."""
        said = log_probabilities.double()
        shift = torch.zeros(self.told)
        if not len(said) or not bool(said.isfinite().all()):
            return 1.0, shift
        low, high = -4.0, 4.0
        for _ in range(2 * NEWTON):  # the penalized likelihood is concave in the shift: search by thirds
            first, second = low + (high - low) / 3, high - (high - low) / 3
            if self._worth(said, targets, first) < self._worth(said, targets, second):
                low = first
            else:
                high = second
        shift[:-1] = (low + high) / 2
        return 1.0, shift

    def _worth(self, said: Tensor, targets: Tensor, shift: float) -> float:
        """Likelihood of the records where all events are made more likely by a shift, less the penalty."""
        offsets = torch.zeros(self.told, dtype=torch.float64)
        offsets[:-1] = shift
        return float(self.likelihoods(self.sharpen(said, 1.0, offsets), targets).sum()) - SHIFTS * shift**2 / 2

    # Predictions for new records.

    def predict(self, outputs: Tensor) -> Tensor:
        """(records, 1 + intervals): mean time without the event up to the last cut (the area under the curve), and the
        probability of no event up to each cut. Models that overflowed know nothing: a half each."""
        logs = self.log_probabilities(
            outputs.nan_to_num(nan=0.0).clamp(-80, 80) if outputs.shape[-1] < self.told else outputs
        )
        curve = (1 - logs[..., :-1].exp().cumsum(dim=-1)).clamp(0, 1)
        before = torch.cat([torch.ones_like(curve[..., :1]), curve[..., :-1]], dim=-1)
        begins = (0.0, *self.cuts[:-1])
        spans = curve.new_tensor([end - begin for begin, end in zip(begins, self.cuts, strict=True)])
        return torch.cat([((before + curve) / 2 * spans).sum(dim=-1, keepdim=True), curve], dim=-1)

    @property
    def predicted(self) -> int:
        return 1 + self.width

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(f"survival_{cut:g}" for cut in self.cuts)

    def tell(self, predicted: np.ndarray, threshold: float | None = None) -> list[str]:
        return [f"{value:.6g}" for value in predicted[:, 0].tolist()]

    def measures(self, predicted: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        won, pairs = concordant_pairs(self.times(targets), targets > 0, predicted[:, 0])
        counts = self.counts(torch.from_numpy(targets)).numpy().sum(axis=0)
        events = float((1 - predicted[:, -1]).mean()) - self._happened(counts)
        return {"concordance": won / pairs if pairs else math.nan, "events": events}

    def count(self, told: Sequence[str]) -> dict[str, int]:
        begins = (0.0, *self.cuts[:-1])
        values = np.array([float(one) for one in told if one])
        names = [f"mean time from {begin:g} to {end:g}" for begin, end in zip(begins, self.cuts, strict=True)]
        places = np.minimum(np.searchsorted(np.array(self.cuts), values, "left"), self.width - 1).tolist()
        return {name: places.count(place) for place, name in enumerate(names)}


def _read(text: str) -> tuple[float, float]:
    """Time and event of a text as `Survival.text` writes it; `nan` where it is none."""
    time, _, event = text.partition(" ")
    try:
        found = float(time), float(event)
    except ValueError:
        return math.nan, math.nan
    return found if 0 <= found[0] < math.inf and found[1] in (0, 1) else (math.nan, math.nan)
