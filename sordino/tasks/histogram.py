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
from typing import TYPE_CHECKING

import numpy as np

from sordino.tasks.intervals import (
    SURE,
    UNCOUNTED,
    Figure,
    Released,
    area,
    auc_figure,
    is_known,
    noise_variance,
    share_figure,
)

if TYPE_CHECKING:
    from sordino.tasks.classification import Classification

ODDS = np.concatenate([[-4.5, -4.0, -3.5, -3.0], np.arange(-2.5, 2.51, 0.25), [3.0, 3.5, 4.0, 4.5]])
EDGES = 1 / (1 + np.exp(-ODDS))
"""Inner edges of the bins of a probability, by its log-odds."""
SCORES = len(EDGES) + 1
SURENESS = 10
"""Number of even bins of the probability of the most probable class."""


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
    found: dict[str, Figure | None] = {"accuracy": share_figure(released, accuracy, everybody)}
    found["auc"] = None
    if is_known(released, rare) and is_known(released, common):
        ties = (np.clip(sick(counts), 0, None) * np.clip(others(counts), 0, None)).sum()
        open_ = float(
            ties / (sick(counts).sum() * others(counts).sum()) / 2
        )  # how far records of one bin may change it
        inside, outside = (float(part(counts).sum()) for part in (sick, others))
        size = (inside, outside) if released.records else (UNCOUNTED, UNCOUNTED)
        figure = auc_figure(min(1.0, max(0.0, auc(counts))), *size, noise_variance(released, auc))
        # Equal scores count half: within a bin a model is no worse than chance, but may be better.
        found["auc"] = Figure(figure.value, figure.low, min(1.0, figure.high + open_))
    found["recall"] = share_figure(released, recall, rare)
    found["calibration"] = None
    if is_known(released, everybody):
        records = float(counts.sum()) if released.records else math.inf
        shared = np.clip(others(counts) + sick(counts), 0, None)
        width = float((halves * shared).sum() / shared.sum())
        spread = SURE * math.sqrt(noise_variance(released, calibration) + 0.25 / records) + width
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

    found = {"accuracy": share_figure(released, accuracy, everybody), "calibration": None}
    if is_known(released, everybody):
        records = float(released.counts.sum()) if released.records else math.inf
        value = calibration(released.counts)
        spread = SURE * math.sqrt(noise_variance(released, calibration) + 0.25 / records) + 0.5 / SURENESS
        found["calibration"] = Figure(value, value - spread, value + spread)
    return found
