"""Sums over test records of errors of predicted survival curves, and the figures that follow, noise included.

Each record is in one cell by the interval of its event, or of when it was last seen. Its squared errors at the cuts
are known up to when it was last seen; the integrated Brier score weighs them by one over the probability G of still
being seen (Graf et al. 1999). G is not known to a client: it follows from the noisy counts of the cells. So squared
errors leave by the interval whose G they are divided by: those at cuts behind an event together, by the event's
interval, and those at each cut that a record is known to have come through by themselves. With c_k the weight of cut k
in the integral, which sum to one, entries of the second kind are sqrt(c_k) times the squared error, and an entry of the
first kind is the sum of c_k times it, over the root of these c_k: both together are no longer than one.

Concordance compares pairs of records and is no sum over records: it is not among the figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sordino.tasks.intervals import DROWNED, SURE, UNCOUNTED, Figure, Released
from sordino.tasks.survival_metrics import LEAST_WEIGHT

CELL, ERROR, EVENT = math.sqrt(0.25), math.sqrt(0.6), math.sqrt(0.15)
"""Largest entries of a row: for its cell, for squared errors, and for the probability of an event up to the last
cut. Their squares sum to one."""
LEAST_AT_RISK = 0.01
"""Least share of the records that are taken to have come into an interval."""
FEW = 0.25
"""Noise on the records at risk in an interval, over their number, from which on no figure is told: every interval's
hazard is divided by it, and curves are products of hazards."""
DRAWS = 400
"""Draws of noise by which a figure's variance is estimated."""


@dataclass(frozen=True)
class BrierSums:
    """The rows of records, and figures from their noisy sums, for given cuts."""

    cuts: tuple[float, ...]

    @property
    def intervals(self) -> int:
        """Number W of intervals."""
        return len(self.cuts)

    @property
    def entries(self) -> int:
        """Length of a row: W events, W + 1 last seen, W squared errors behind events, W squared errors before them, and
        the probability of an event."""
        return 4 * self.intervals + 2

    @property
    def integral(self) -> np.ndarray:
        """(intervals,): weight of each cut in the mean over time, by trapezoids; they sum to one."""
        if self.intervals == 1:
            return np.ones(1)
        spans = np.diff(self.cuts) / (self.cuts[-1] - self.cuts[0])
        return (np.append(spans, 0.0) + np.append(0.0, spans)) / 2

    def rows(self, curves: np.ndarray, later: np.ndarray, events: np.ndarray) -> np.ndarray:
        """float32 (records, entries).

        Args:
            curves: (records, intervals) predicted probabilities of no event up to each cut.
            later: (records, intervals) whether the record is known to have had none up to the cut.
            events: (records,) whether it had one up to the last cut.
        """
        records, weights = np.arange(len(events)), self.integral
        came = later.sum(axis=1)
        found = np.zeros((len(events), self.entries))
        found[records, np.where(events, 0, self.intervals) + came] = CELL
        behind = weights * ~later * events[:, None]
        share = behind.sum(axis=1)
        squares = (behind * curves**2).sum(axis=1) / np.sqrt(np.where(share > 0, share, 1.0))
        place = 2 * self.intervals + 1
        found[records[events], place + came[events]] = ERROR * squares[events]
        place += self.intervals
        found[:, place : place + self.intervals] = ERROR * np.sqrt(weights) * later * (1 - curves) ** 2
        found[:, -1] = EVENT * (1 - curves[:, -1])
        return found.astype(np.float32)

    def records(self, sums: np.ndarray) -> float:
        """Number of records in a noisy sum of rows."""
        return float(sums[: 2 * self.intervals + 1].sum() / CELL)

    def figures(self, released: Released) -> dict[str, Figure | None]:
        """Figures from noisy sums of rows; None where the noise drowns what a figure is about."""
        found: dict[str, Figure | None] = dict.fromkeys(("integrated_brier", "constant_brier", "calibration"))
        total, cells = self.records(released.counts), 2 * self.intervals + 1
        # Noise on the records at risk in an interval is that on the cells of those who leave later.
        noisy = released.deviation / CELL * np.sqrt(cells - 2 * np.arange(self.intervals))
        if not (total > 0 and (noisy < FEW * total * self._shares(released.counts)[2]).all()):
            return found
        records = total if released.records else UNCOUNTED
        seen, at_events, curve, _ = self._curves(released.counts)
        weights = self.integral
        most = max(
            (weights[:first] / seen[:first]).sum()
            + (weights[first:].sum() / at_events[first] if first < len(seen) else 0)
            for first in range(self.intervals + 1)
        )
        scores: dict[str, Callable[[np.ndarray], float]] = {
            "integrated_brier": self._score,
            "constant_brier": self._score_of_curve,
        }
        for name, score in scores.items():
            value, noise = score(released.counts), _noise_variance(released, score)
            if math.sqrt(noise) < DROWNED * value:
                # Scores of records lie between 0 and `most`, and vary most at the two ends (Bhatia and Davis 2000).
                away = SURE * math.sqrt(noise + value * max(0.0, most - value) / records)
                found[name] = Figure(value, max(0.0, value - away), value + away)
        value, noise = self._too_high(released.counts), _noise_variance(released, self._too_high)
        said = min(1.0, max(0.0, value + 1 - float(curve[-1])))
        open_ = math.sqrt(said * (1 - said)) + self._greenwood(released.counts)
        away = SURE * math.sqrt(noise + open_**2 / records)
        if away < DROWNED:
            found["calibration"] = Figure(value, value - away, value + away)
        return found

    def _shares(self, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Noisy shares of records: with an event in each interval, last seen in it, and at risk at its beginning."""
        held = sums[: 2 * self.intervals + 1] / sums[: 2 * self.intervals + 1].sum()
        events, last_seen = held[: self.intervals], held[self.intervals : -1]
        leaving = events + last_seen
        at_risk = 1 - np.append(0.0, leaving.cumsum()[:-1])
        return events, last_seen, at_risk

    def _curves(self, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Probability of still being seen just before each cut and, in the mean, at events of each interval; that of no
        event up to each cut, and the hazards of which it is made (Kaplan and Meier 1958; who leaves inside an interval
        counts half)."""
        events, last_seen, at_risk = self._shares(sums)
        # Noise makes some negative. Held to 0, they would all be too large, and the curves far too low.
        lost = np.minimum(last_seen / np.maximum(at_risk - events / 2, LEAST_AT_RISK), 1)
        hazards = np.minimum(events / np.maximum(at_risk - last_seen / 2, LEAST_AT_RISK), 1)
        seen = np.cumprod(1 - lost)
        at_events = np.append(1.0, seen[:-1]) * np.sqrt(1 - lost)
        held = (np.clip(one, LEAST_WEIGHT, 1) for one in (seen, at_events))
        return (*held, np.clip(np.cumprod(1 - hazards), 0, 1), hazards)  # type: ignore[return-value]

    def _score(self, sums: np.ndarray) -> float:
        """Integrated Brier score of the model."""
        seen, at_events, _, _ = self._curves(sums)
        weights, begin = self.integral, 2 * self.intervals + 1
        behind = sums[begin : begin + self.intervals] * np.sqrt(weights[::-1].cumsum()[::-1])
        before = sums[begin + self.intervals : -1] * np.sqrt(weights)
        return float(((behind / at_events).sum() + (before / seen).sum()) / ERROR / self.records(sums))

    def _score_of_curve(self, sums: np.ndarray) -> float:
        """Integrated Brier score of the Kaplan-Meier curve of the same records."""
        seen, at_events, curve, _ = self._curves(sums)
        events, _, at_risk = self._shares(sums)
        weights = self.integral
        behind = (weights * curve**2)[::-1].cumsum()[::-1]
        came = np.append(at_risk[1:], sums[2 * self.intervals] / sums[: 2 * self.intervals + 1].sum())
        return float((events * behind / at_events).sum() + (weights * (1 - curve) ** 2 * came / seen).sum())

    def _too_high(self, sums: np.ndarray) -> float:
        """Mean predicted probability of an event up to the last cut, less that of Kaplan and Meier."""
        _, _, curve, _ = self._curves(sums)
        return float(sums[-1] / EVENT / self.records(sums) - (1 - curve[-1]))

    def _greenwood(self, sums: np.ndarray) -> float:
        """Standard deviation of the curve's end, times the root of the number of records (Greenwood 1926)."""
        _, _, curve, hazards = self._curves(sums)
        _, _, at_risk = self._shares(sums)
        terms = np.maximum(hazards, 0) / np.maximum(1 - hazards, LEAST_AT_RISK) / np.maximum(at_risk, LEAST_AT_RISK)
        return float(curve[-1] * math.sqrt(terms.sum()))


def _noise_variance(released: Released, figure: Callable[[np.ndarray], float]) -> float:
    """Mean square by which as much noise again moves a figure: what its limits keep from moving to first order, and
    a shift to one side, are in it. Always the same draws."""
    if not released.deviation:
        return 0.0
    value, random = figure(released.counts), np.random.default_rng(0)
    draws = random.normal(scale=released.deviation, size=(DRAWS, len(released.counts)))
    return float(np.mean([(figure(released.counts + draw) - value) ** 2 for draw in draws]))
