"""How well models predict, client by client: more than a share of right labels, which rare classes fool.

All clients of a call are worked on at once: a hundred thousand with a few records each cost as much as their records.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

METRICS = (
    *("accuracy", "balanced_accuracy", "auc", "recall", "log_loss", "calibration_error"),
    *("majority", "one_class"),
)
"""The columns of `metrics`:

- `accuracy`: the share of records whose most probable class is theirs;
- `balanced_accuracy`: the mean over a client's classes of the share of their records that are found;
- `auc`: how often a record of the positive class is given a higher probability of it than one of another class; for
  more than two classes, or where none is positive, the mean of that over classes;
- `recall`: the share of the positive class's records that are found;
- `log_loss`: the mean of -log(probability of the right class);
- `calibration_error`: by how much the probability of the predicted class misses the share of right predictions, in
  ten bins of that probability, each weighed by its records;
- `majority`: the accuracy of always predicting the class that most of the client's training records have;
- `one_class`: 1 where all records are given the same class although they have several, else 0.
"""
LOWER_IS_BETTER = ("log_loss", "calibration_error")
BINS = 10
LEAST_PROBABILITY = 1e-15
"""A smaller one counts as this: one record that was thought impossible would otherwise decide the mean."""


@dataclass(frozen=True)
class Judged:
    """What models say of the test records of some clients."""

    probabilities: np.ndarray
    """float64 (records, classes): each client's records lie together."""
    labels: np.ndarray
    """int64 (records,)."""
    sizes: np.ndarray
    """int64 (clients,): how many records each client has."""
    trained: np.ndarray
    """int64 (clients, classes): how many training records of each class each client has."""
    positive: int | None
    """The class whose recall and area under the curve are wanted; None where no class is more wanted than others."""


def metrics(judged: Judged) -> np.ndarray:
    """(clients, METRICS); `nan` where a client has no records, or none of those that a metric is about."""
    said, labels = judged.probabilities, judged.labels
    clients, classes = len(judged.sizes), said.shape[1]
    owner = np.repeat(np.arange(clients), judged.sizes)
    predicted = said.argmax(axis=1)
    right = (predicted == labels).astype(float)
    held = _counts(owner, labels, clients, classes)
    found = _counts(owner, labels, clients, classes, right)
    with np.errstate(invalid="ignore", divide="ignore"):
        recalls = found / held  # nan for classes that a client does not have
        columns = {
            "accuracy": _means(owner, right, clients),
            "balanced_accuracy": _mean_of_known(recalls),
            "auc": _area(said, labels, owner, held, judged.positive),
            "recall": np.full(clients, np.nan) if judged.positive is None else recalls[:, judged.positive],
            "log_loss": _means(owner, _losses(said, labels), clients),
            "calibration_error": _calibration(owner, said.max(axis=1), right, clients),
            "majority": _means(owner, (judged.trained.argmax(axis=1)[owner] == labels).astype(float), clients),
            "one_class": _one_class(held, _counts(owner, predicted, clients, classes)),
        }
    return np.stack([columns[name] for name in METRICS], axis=1)


def _losses(said: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return -np.log(np.maximum(said[np.arange(len(labels)), labels], LEAST_PROBABILITY))


def _counts(
    owner: np.ndarray, labels: np.ndarray, clients: int, classes: int, weights: np.ndarray | None = None
) -> np.ndarray:
    """(clients, classes): how many records each client has of each class, or the sum of their weights."""
    cells = np.bincount(owner * classes + labels, weights=weights, minlength=clients * classes)
    return cells.astype(float).reshape(clients, classes)


def _means(owner: np.ndarray, values: np.ndarray, clients: int) -> np.ndarray:
    """The mean of each client's values."""
    return np.asarray(np.bincount(owner, values, clients) / np.bincount(owner, minlength=clients))


def _mean_of_known(rows: np.ndarray) -> np.ndarray:
    """The mean of each row's numbers that are not `nan`; `nan` where there are none."""
    known = ~np.isnan(rows)
    return np.asarray(np.where(known, rows, 0.0).sum(axis=1) / known.sum(axis=1))


def _one_class(held: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    several = (held > 0).sum(axis=1) > 1
    return np.where(held.sum(axis=1) > 0, several & ((predicted > 0).sum(axis=1) == 1), np.nan)


def _calibration(owner: np.ndarray, sure: np.ndarray, right: np.ndarray, clients: int) -> np.ndarray:
    """The expected calibration error (Guo et al. 2017) of each client."""
    cell = owner * BINS + np.minimum((sure * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(cell, sure - right, clients * BINS).reshape(clients, BINS)
    return np.asarray(np.abs(gaps).sum(axis=1) / np.bincount(owner, minlength=clients))


def _area(
    said: np.ndarray, labels: np.ndarray, owner: np.ndarray, held: np.ndarray, positive: int | None
) -> np.ndarray:
    """The area under the curve of each client: of the positive class, or the mean over classes."""
    wanted = [positive] if positive is not None and said.shape[1] == 2 else range(said.shape[1])
    areas = [_area_of(said[:, one], labels == one, owner, held[:, one], held.sum(axis=1)) for one in wanted]
    return _mean_of_known(np.stack(areas, axis=1))


def _area_of(
    scores: np.ndarray, members: np.ndarray, owner: np.ndarray, inside: np.ndarray, all_of: np.ndarray
) -> np.ndarray:
    """The area under the curve of one class, by the ranks of its records (Mann and Whitney 1947); equal scores share
    their ranks. `nan` for a client whose records are all in the class, or none."""
    order = np.lexsort((scores, owner))
    owners, sorted_scores = owner[order], scores[order]
    fresh = np.ones(len(order), dtype=bool)  # where another score, or another client, begins
    fresh[1:] = (owners[1:] != owners[:-1]) | (sorted_scores[1:] != sorted_scores[:-1])
    begins = np.flatnonzero(fresh)
    lengths = np.diff(np.append(begins, len(order)))
    starts = np.cumsum(all_of) - all_of
    ranks = np.repeat(begins + (lengths + 1) / 2, lengths) - starts[owners]
    summed = np.bincount(owners, ranks * members[order], len(all_of))
    pairs = inside * (all_of - inside)
    return np.where(pairs > 0, (summed - inside * (inside + 1) / 2) / pairs, np.nan)
