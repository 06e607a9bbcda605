"""Metrics of class probabilities, client by client and over all records together.

Accuracy alone is fooled by rare classes, so there are eight. Every metric follows from sums over records: those of one
client give its metrics, and added up over clients the metrics of all records together. All clients of a call are worked
on at once: a hundred thousand with a few records each cost as much as their records.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

METRICS = (
    *("accuracy", "balanced_accuracy", "auc", "recall", "log_loss", "calibration_error"),
    *("majority", "one_class"),
)
"""The columns of `metrics_of`:

- `accuracy`: the share of records whose most probable class is theirs;
- `balanced_accuracy`: the mean over a client's classes of the share of their records that are found;
- `auc`: how often a record of the positive class is given a higher probability of it than one of another class of the
  same client, since probabilities of different models are hard to compare; for more than two classes, or where none is
  positive, the mean of that over classes;
- `recall`: the share of the positive class's records that are found;
- `log_loss`: the mean of -log(probability of the right class);
- `calibration_error`: by how much the probability of the predicted class misses the share of right predictions, in
  ten bins of that probability, each weighed by its records;
- `majority`: the accuracy of always predicting the class that most of the client's own training records have;
- `one_class`: 1 where all records are given the same class although they have several, else 0.
"""
OF_CLASSES = ("held", "predicted", "found", "won", "pairs")
"""Sums for each class: its records; the records predicted as it; those of its records that are; pairs of one of its
records and one of another class, both of one client, of which the first is given the higher probability of it; all such
pairs."""
OF_ALL = ("loss", "majority")
"""The sums over all records: of -log(probability of the right class), and of those with the client's majority class."""
LOWER_IS_BETTER = ("log_loss", "calibration_error")
BINS = 10
LEAST_PROBABILITY = 1e-15
"""A smaller one counts as this: one record that was thought impossible would otherwise decide the mean."""


@dataclass(frozen=True)
class Judged:
    """Class probabilities that models give for the test records of some clients."""

    probabilities: np.ndarray
    """float64 (records, classes): each client's records lie together."""
    labels: np.ndarray
    """int64 (records,)."""
    sizes: np.ndarray
    """int64 (clients,): how many records each client has."""
    trained: np.ndarray
    """int64 (clients, classes): how many training records of each class each client has."""


def sums_of(judged: Judged) -> np.ndarray:
    """(clients, sums): OF_CLASSES, each for every class, then the gaps of all bins of calibration, then OF_ALL."""
    said, labels = judged.probabilities, judged.labels
    clients, classes = len(judged.sizes), said.shape[1]
    owner = np.repeat(np.arange(clients), judged.sizes)
    predicted = said.argmax(axis=1)
    right = (predicted == labels).astype(float)
    held = _counts(owner, labels, clients, classes)
    pairs = held * (held.sum(axis=1, keepdims=True) - held)
    found = _counts(owner, labels, clients, classes, right)
    won = [_won(said[:, one], labels == one, owner, held[:, one], judged.sizes) for one in range(classes)]
    usual = (judged.trained.argmax(axis=1)[owner] == labels).astype(float)
    return np.column_stack(
        [
            *(held, _counts(owner, predicted, clients, classes), found, np.stack(won, axis=1), pairs),
            _gaps(owner, said.max(axis=1), right, clients),
            *(np.bincount(owner, values, clients) for values in (_losses(said, labels), usual)),
        ]
    )


def no_sums(classes: int) -> np.ndarray:
    """(sums,): those of no records."""
    return np.zeros(len(OF_CLASSES) * classes + BINS + len(OF_ALL))


def metrics_of(sums: np.ndarray, positive: int | None) -> np.ndarray:
    """(rows, METRICS) from `sums` (rows, sums); `nan` where a row has no records, or none of those that a metric is
    about. `positive` is the class whose recall and area under the curve are wanted; None where no class is more wanted
    than others."""
    classes = (sums.shape[1] - BINS - len(OF_ALL)) // len(OF_CLASSES)
    held, predicted, found, won, pairs, gaps = np.split(sums[:, : -len(OF_ALL)], classes * np.arange(1, 6), axis=1)
    loss, usual = sums[:, -len(OF_ALL) :].T
    wanted = [positive] if positive is not None and classes == 2 else list(range(classes))
    records = held.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        recalls, areas = found / held, won / pairs  # nan for classes of which there is no record, or no other
        columns = {
            "accuracy": found.sum(axis=1) / records,
            "balanced_accuracy": _mean_of_known(recalls),
            "auc": _mean_of_known(areas[:, wanted]),
            "recall": np.full(len(sums), np.nan) if positive is None else recalls[:, positive],
            "log_loss": loss / records,
            "calibration_error": np.abs(gaps).sum(axis=1) / records,
            "majority": usual / records,
            "one_class": _one_class(held, predicted),
        }
    return np.stack([columns[name] for name in METRICS], axis=1)


def _losses(said: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return -np.log(np.maximum(said[np.arange(len(labels)), labels], LEAST_PROBABILITY))


def _counts(
    owner: np.ndarray, labels: np.ndarray, clients: int, classes: int, weights: np.ndarray | None = None
) -> np.ndarray:
    """(clients, classes): number of records of each class at each client, or the sum of their weights."""
    cells = np.bincount(owner * classes + labels, weights=weights, minlength=clients * classes)
    return cells.astype(float).reshape(clients, classes)


def _mean_of_known(rows: np.ndarray) -> np.ndarray:
    """Mean of each row over its numbers that are not `nan`; `nan` where there are none."""
    known = ~np.isnan(rows)
    return np.asarray(np.where(known, rows, 0.0).sum(axis=1) / known.sum(axis=1))


def _one_class(held: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    several = (held > 0).sum(axis=1) > 1
    return np.where(held.sum(axis=1) > 0, several & ((predicted > 0).sum(axis=1) == 1), np.nan)


def _gaps(owner: np.ndarray, sure: np.ndarray, right: np.ndarray, clients: int) -> np.ndarray:
    """(clients, BINS): sum of probabilities less right predictions in each bin, for the expected calibration
    error (Guo et al. 2017)."""
    cell = owner * BINS + np.minimum((sure * BINS).astype(np.int64), BINS - 1)
    return np.bincount(cell, sure - right, clients * BINS).reshape(clients, BINS)


def _won(
    scores: np.ndarray, members: np.ndarray, owner: np.ndarray, inside: np.ndarray, all_of: np.ndarray
) -> np.ndarray:
    """(clients,): number of pairs of a client's records, one of a class and one of another, of which the first has the
    higher score, by the ranks of the class's records (Mann and Whitney 1947); equal scores share their ranks.

    Args:
        scores: (records,) probability of the class.
        members: (records,) whether the record is of the class.
        owner: (records,) client of the record.
        inside: (clients,) number of records of the class.
        all_of: (clients,) number of all records.
    """
    order = np.lexsort((scores, owner))
    owners, sorted_scores = owner[order], scores[order]
    fresh = np.ones(len(order), dtype=bool)  # where another score, or another client, begins
    fresh[1:] = (owners[1:] != owners[:-1]) | (sorted_scores[1:] != sorted_scores[:-1])
    begins = np.flatnonzero(fresh)
    lengths = np.diff(np.append(begins, len(order)))
    starts = np.cumsum(all_of) - all_of
    ranks = np.repeat(begins + (lengths + 1) / 2, lengths) - starts[owners]
    summed = np.bincount(owners, ranks * members[order], len(all_of))
    return summed - inside * (inside + 1) / 2
