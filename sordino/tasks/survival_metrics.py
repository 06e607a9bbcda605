"""Metrics of predicted survival: concordance, Brier scores that allow for censoring, and Kaplan-Meier curves."""

from __future__ import annotations

import numpy as np

METRICS = ("concordance", "integrated_brier", "calibration_error", "constant_brier")
"""Names of the metrics:

- `concordance`: the share of comparable pairs of a client's test records (one known to have had its event first) that
  the predictions order correctly (Harrell 1982); ties count half;
- `integrated_brier`: the mean squared error of the probability of no event up to each cut, over the time between the
  cuts, where records last seen before are replaced by weighing the others (Graf et al. 1999);
- `calibration_error`: by how much the mean probability of an event up to the last cut misses that of Kaplan and Meier;
- `constant_brier`: `integrated_brier` of the Kaplan-Meier curve of the client's own training records.
"""
LEAST_WEIGHT = 0.05
"""Least probability of still being seen by which a record is weighed: smaller ones let one record decide the mean."""
AT_ONCE = 500
"""Records of which all pairs are compared together."""


def concordant_pairs(times: np.ndarray, events: np.ndarray, predicted: np.ndarray) -> tuple[float, float]:
    """Number of concordant pairs, and of all comparable ones: pairs of an event and of a record with a later time, or
    with the same time and no event.

    Args:
        times: (records,).
        events: (records,) whether the event happened then.
        predicted: (records,) predicted times, or anything that is larger where the event comes later.
    """
    won = total = 0.0
    for begin in range(0, len(times), AT_ONCE):
        mine = slice(begin, begin + AT_ONCE)
        own, said = times[mine, None], predicted[mine, None]
        comparable = events[mine, None] & ((times > own) | ((times == own) & ~events))
        won += float((comparable & (predicted > said)).sum()) + float((comparable & (predicted == said)).sum()) / 2
        total += float(comparable.sum())
    return won, total


def kaplan_meier(
    times: np.ndarray,
    events: np.ndarray,
    at: np.ndarray,
    before: bool = False,
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """Probability of no event up to each of the times `at`, or up to just before them (`before`; Kaplan and
    Meier 1958); one where there are no records. `weights` are those of the records, above zero; else they are equal."""
    moments = np.unique(times[events])
    at_risk, happened = times >= moments[:, None], (times == moments[:, None]) & events
    whole = np.ones(len(times)) if weights is None else weights
    curve = np.concatenate([[1.0], np.cumprod(1 - (happened @ whole) / (at_risk @ whole))])
    return np.asarray(curve[np.searchsorted(moments, at, "left" if before else "right")])


def brier_scores(
    trained_times: np.ndarray,
    trained_events: np.ndarray,
    times: np.ndarray,
    events: np.ndarray,
    curves: np.ndarray,
    cuts: np.ndarray,
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """(records,): integrated Brier score of each record; their mean is the score.

    Args:
        trained_times: times of the training records, from which the probability of still being seen is estimated.
        trained_events: whether the event happened then.
        times: (records,) of the test records.
        events: (records,).
        curves: (records, cuts) predicted probabilities of no event up to each cut.
        cuts: (cuts,) times at which the score is taken; between them it is taken to be linear.
        weights: of the training records, where these do not count the same.
    """
    seen_at_cuts, seen_before = (
        np.maximum(kaplan_meier(trained_times, ~trained_events, at, True, weights), LEAST_WEIGHT)
        for at in (cuts, times)
    )
    later = (times[:, None] > cuts) | ((times[:, None] == cuts) & ~events[:, None])
    happened = events[:, None] & ~later
    errors = np.where(happened, curves**2 / seen_before[:, None], 0.0)
    errors = np.where(later, (1 - curves) ** 2 / seen_at_cuts, errors)
    if len(cuts) == 1:
        return np.asarray(errors[:, 0])
    return np.asarray(np.trapezoid(errors, cuts, axis=1) / (cuts[-1] - cuts[0]))
