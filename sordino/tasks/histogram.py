"""Histogram of test records by class and score, and the figures that follow from it, noise included.

Each record falls into one of so many public cells. Where one class is looked for, a cell is whether the record has it,
and the bin of the probability that the model gives it; bins follow its log-odds, so that rare classes are seen, too,
and one half is an edge. Where no class is, a cell is whether the most probable class is the record's own, and the
bin of its probability.

Figures are computed from noisy counts of the cells. Their 95 % intervals hold the noise (to first order), what few
records leave open, and what the width of the bins does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sordino.tasks.classification import Classification
from sordino.tasks.judgement import SURE, Figure, area, auc_figure

ODDS = np.concatenate([[-4.5, -4.0, -3.5, -3.0], np.arange(-2.5, 2.51, 0.25), [3.0, 3.5, 4.0, 4.5]])
EDGES = 1 / (1 + np.exp(-ODDS))
"""Inner edges of the bins of a probability, by its log-odds."""
SCORES = len(EDGES) + 1
SURENESS = 10
"""Number of even bins of the probability of the most probable class."""
DROWNED = 0.5
"""Noise on the number of records that a figure is about, over that number, from which on the figure is withheld."""


def cell_count(task: Classification) -> int:
    """Number of cells."""
    return 2 * SCORES if task.positive is not None else 2 * SURENESS


def cells_of(task: Classification, probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """int64 (records,): the cell of each record; a model that gives no finite probabilities gives all classes the
    same."""
    said = np.where(np.isfinite(probabilities).all(axis=1, keepdims=True), probabilities, 1 / task.width)
    if task.positive is not None:
        return SCORES * (labels == task.positive) + np.searchsorted(EDGES, said[:, task.positive], "right")
    right = said.argmax(axis=1) == labels
    sure = np.minimum((said.max(axis=1) * SURENESS).astype(np.int64), SURENESS - 1)
    return SURENESS * right + sure


@dataclass(frozen=True)
class Released:
    """Counts of cells, or shares of records in them, with noise."""

    counts: np.ndarray
    """(cells,)."""
    deviation: float
    """Standard deviation of the noise on each."""
    records: bool
    """Whether these are counts of records; else they are shares, each client's records counting as one."""


def figures_of(task: Classification, released: Released) -> dict[str, Figure | None]:
    """Figures from noisy counts; None where the noise drowns what a figure is about."""
    return _of_scores(released) if task.positive is not None else _of_predictions(released)


def true_figures(
    task: Classification, probabilities: np.ndarray, labels: np.ndarray, weights: np.ndarray
) -> dict[str, float | None]:
    """Figures from the records themselves, without bins and noise, for simulations; `weights` are those of the
    records, which need not sum to one."""
    whole = weights / weights.sum()
    if task.positive is None:
        right = probabilities.argmax(axis=1) == labels
        sure = probabilities.max(axis=1)
        return {"accuracy": float((whole * right).sum()), "calibration": float((whole * (sure - right)).sum())}
    sick, scores = labels == task.positive, probabilities[:, task.positive]
    called = scores >= 0.5
    return {
        "accuracy": float(whole[called == sick].sum()),
        "auc": _weighted_area(scores, sick, whole) if 0 < sick.sum() < len(sick) else None,
        "recall": float(whole[sick & called].sum() / whole[sick].sum()) if sick.any() else None,
        "calibration": float((whole * (scores - sick)).sum()),
    }


def _weighted_area(scores: np.ndarray, members: np.ndarray, weights: np.ndarray) -> float:
    """`area` where records count by their weights."""
    if (weights == weights[0]).all():
        return area(scores, members)
    order = np.argsort(scores[~members])
    others = scores[~members][order]
    below = np.concatenate([[0.0], np.cumsum(weights[~members][order])])
    inside = scores[members]
    won = below[np.searchsorted(others, inside, "left")] + below[np.searchsorted(others, inside, "right")]
    return float((weights[members] * won).sum() / (2 * weights[members].sum() * below[-1]))


def _of_scores(released: Released) -> dict[str, Figure | None]:
    """Figures of a class that is looked for: accuracy, AUC, recall at one half, and calibration."""
    counts = released.counts
    high = np.arange(SCORES) >= SCORES // 2
    edges = np.concatenate([[0.0], EDGES, [1.0]])
    middles, halves = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2

    def others(h: np.ndarray) -> np.ndarray:
        return h[:SCORES]

    def sick(h: np.ndarray) -> np.ndarray:
        return h[SCORES:]

    def auc(h: np.ndarray) -> float:
        below = np.concatenate([[0.0], np.cumsum(others(h))[:-1]]) + others(h) / 2
        return float((sick(h) * below).sum() / (sick(h).sum() * others(h).sum()))

    def accuracy(h: np.ndarray) -> float:
        return float((sick(h)[high].sum() + others(h)[~high].sum()) / h.sum())

    def recall(h: np.ndarray) -> float:
        return float(sick(h)[high].sum() / sick(h).sum())

    def calibration(h: np.ndarray) -> float:
        return float((middles * (others(h) + sick(h))).sum() / h.sum() - sick(h).sum() / h.sum())

    everybody = range(2 * SCORES)
    rare, common = range(SCORES, 2 * SCORES), range(SCORES)
    found: dict[str, Figure | None] = {"accuracy": _share(released, accuracy, everybody)}
    found["auc"] = None
    if _is_known(released, rare) and _is_known(released, common):
        ties = (np.clip(sick(counts), 0, None) * np.clip(others(counts), 0, None)).sum()
        open_ = float(
            ties / (sick(counts).sum() * others(counts).sum()) / 2
        )  # how far records of one bin may change it
        inside, outside = (float(part(counts).sum()) for part in (sick, others))
        size = (inside, outside) if released.records else (1e9, 1e9)
        figure = auc_figure(min(1.0, max(0.0, auc(counts))), *size, _variance(released, auc))
        # Equal scores count half: within a bin a model is no worse than chance, but may be better.
        found["auc"] = Figure(figure.value, figure.low, min(1.0, figure.high + open_))
    found["recall"] = _share(released, recall, rare)
    found["calibration"] = None
    if _is_known(released, everybody):
        records = float(counts.sum()) if released.records else math.inf
        shared = np.clip(others(counts) + sick(counts), 0, None)
        width = float((halves * shared).sum() / shared.sum())
        spread = SURE * math.sqrt(_variance(released, calibration) + 0.25 / records) + width
        value = calibration(counts)
        found["calibration"] = Figure(value, value - spread, value + spread)
    return found


def _of_predictions(released: Released) -> dict[str, Figure | None]:
    """Figures where no class is looked for: accuracy, and calibration of the predicted class."""
    middles = (np.arange(SURENESS) + 0.5) / SURENESS
    everybody = range(2 * SURENESS)

    def accuracy(h: np.ndarray) -> float:
        return float(h[SURENESS:].sum() / h.sum())

    def calibration(h: np.ndarray) -> float:
        return float(((h[:SURENESS] + h[SURENESS:]) * middles).sum() / h.sum()) - accuracy(h)

    found = {"accuracy": _share(released, accuracy, everybody), "calibration": None}
    if _is_known(released, everybody):
        records = float(released.counts.sum()) if released.records else math.inf
        value = calibration(released.counts)
        spread = SURE * math.sqrt(_variance(released, calibration) + 0.25 / records) + 0.5 / SURENESS
        found["calibration"] = Figure(value, value - spread, value + spread)
    return found


def _is_known(released: Released, cells: Sequence[int]) -> bool:
    """Whether the noise on the sum of some cells is small against it."""
    total = float(released.counts[list(cells)].sum())
    return released.deviation * math.sqrt(len(cells)) < DROWNED * total


def _share(released: Released, figure: Callable[[np.ndarray], float], cells: Sequence[int]) -> Figure | None:
    """A share of the records in some cells, with an interval like Wilson's that holds the noise, too; None where noise
    drowns them."""
    if not _is_known(released, cells):
        return None
    value, noise = min(1.0, max(0.0, figure(released.counts))), _variance(released, figure)
    total = float(released.counts[list(cells)].sum()) if released.records else 1e9
    # The shares that lie 1.96 of their own deviations away: (value - q)^2 = SURE^2 (q (1 - q) / n + noise).
    square = SURE**2
    middle = (value + square / (2 * total)) / (1 + square / total)
    rest = (value**2 - square * noise) / (1 + square / total)
    half = math.sqrt(max(0.0, middle**2 - rest))
    return Figure(value, max(0.0, min(value, middle - half)), min(1.0, max(value, middle + half)))


def _variance(released: Released, figure: Callable[[np.ndarray], float]) -> float:
    """Variance of a figure by the noise on the counts, to first order."""
    if not released.deviation:
        return 0.0
    counts = released.counts
    step = 1e-4 * max(released.deviation, 1e-9)
    slopes = []
    for cell in range(len(counts)):
        moved = counts.copy()
        moved[cell] += step
        back = counts.copy()
        back[cell] -= step
        slopes.append((figure(moved) - figure(back)) / (2 * step))
    return float(np.square(slopes).sum()) * released.deviation**2
