"""Judgement of a model's predictions on test records, with 95 % intervals: for whoever owns the records.

Few records say little, and an AUC of 1.000 on three of them says nothing: figures that too few records stand behind are
withheld, with a sentence. Intervals are Wilson's for shares (Wilson 1927), Newcombe's for the area under the curve
(method 5, Newcombe 2006), and those of resampled records for the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from sordino.errors import UserError
from sordino.tasks.class_metrics import BINS, LEAST_PROBABILITY
from sordino.tasks.classification import Classification
from sordino.tasks.intervals import Figure, area, auc_figure, wilson
from sordino.tasks.task import Task

LEAST, ENOUGH, MANY = 5, 10, 50
"""Least number of records of a class that its figures need; least number of records that any figure needs; and number
below which the program says that intervals are wide."""
LEAST_IN_GROUP = 20
"""Least number of test records of a group that is judged by itself."""
MOST_GROUPS = 12
"""Most values of a column that is looked at group by group."""
RESAMPLED, MOST_RESAMPLED = 400, 20_000_000
"""Number of times that records are resampled, and most records that are drawn for it altogether."""


@dataclass(frozen=True)
class GroupFigures:
    """Figures of the test records that have one value in one column."""

    column: str
    value: str
    records: int
    accuracy: Figure
    auc: Figure | None
    recall: Figure | None

    @property
    def name(self) -> str:
        """Name of the group."""
        return f"{self.column} = {self.value}"


@dataclass(frozen=True)
class Judgement:
    """Judgement of one model on one set of test records."""

    records: int
    classes: dict[str, int]
    """Number of test records of each class."""
    positive: str | None
    """Class that is looked for, which recall and precision are about."""
    threshold: float | None
    """Probability from which on the positive class is predicted; None where the most probable class is."""
    figures: dict[str, Figure | None]
    """`accuracy`, `auc`, `recall`, `precision`, `specificity`, `calibration` (mean probability of the positive class
    less its share), `calibration_error` and `log_loss`; None where there are too few records, or no positive class."""
    confusion: list[list[int]]
    """Number of records of each class (rows) by prediction (columns), in the order of `classes`."""
    groups: list[GroupFigures]
    """Groups that are large enough, by the values of columns."""
    worst: GroupFigures | None
    """Group with the lowest AUC or, where no group has one, accuracy; None where there are no two groups."""
    notes: list[str]
    """Sentences on what to think of the figures."""

    def to_dict(self) -> dict[str, Any]:
        """JSON document of the judgement."""
        return asdict(self)


def judge(
    task: Task,
    probabilities: np.ndarray,
    labels: np.ndarray,
    columns: Mapping[str, Sequence[str]] | None = None,
    threshold: float | None = None,
) -> Judgement:
    """Judge predictions.

    Args:
        task: The task.
        probabilities: (records, predicted), for classes their probabilities.
        labels: (records,) the records' targets, for classes their numbers.
        columns: For classes, values of the records in columns by which groups are made.
        threshold: Probability from which on the positive class is predicted.
    """
    if not isinstance(task, Classification):
        return _judge_numbers(task, probabilities, labels)
    called = task.decide(probabilities, threshold)
    confusion = np.bincount(labels * task.width + called, minlength=task.width**2).reshape(task.width, task.width)
    figures = _figures(task, probabilities, labels, called)
    groups = []
    for column, values in (columns or {}).items():
        groups += _groups_of(task, column, np.asarray(values), probabilities, labels, called)
    notes = _notes(task, figures, np.bincount(labels, minlength=task.width), confusion)
    worst = _worst(groups)
    if worst is not None and len(groups) > 3:
        notes.append(f"The worst of {len(groups)} groups, {worst.name}, may be low by chance alone.")
    return Judgement(
        records=len(labels),
        classes={name: int(count) for name, count in zip(task.names, confusion.sum(axis=1), strict=True)},
        positive=task.positive_name,
        threshold=threshold,
        figures=figures,
        confusion=confusion.tolist(),
        groups=groups,
        worst=worst,
        notes=notes,
    )


def _judge_numbers(task: Task, predicted: np.ndarray, targets: np.ndarray) -> Judgement:
    """Judge predictions of a task without classes: each figure with an interval by resampled records."""
    records = len(targets)
    empty: dict[str, Any] = {"classes": {}, "positive": None, "threshold": None, "confusion": [], "groups": []}
    told = f"{records} test record{'s' * (records != 1)}"
    if records < ENOUGH:
        note = f"There {'is' if records == 1 else 'are'} {told}: too few to judge a model by."
        figures: dict[str, Figure | None] = dict.fromkeys(task.measures(predicted, targets))
        return Judgement(records=records, figures=figures, worst=None, notes=[note], **empty)
    random = np.random.default_rng(records)
    times = max(50, min(RESAMPLED, MOST_RESAMPLED // records**2))
    drawn = [random.integers(0, records, records) for _ in range(times)]
    again = [task.measures(predicted[chosen], targets[chosen]) for chosen in drawn]
    figures = {}
    for name, value in task.measures(predicted, targets).items():
        values = np.array([one.get(name, math.nan) for one in again])
        if math.isnan(value) or np.isnan(values).all():
            figures[name] = None
            continue
        low, high = np.nanpercentile(values, [2.5, 97.5])
        figures[name] = Figure(value, float(min(low, value)), float(max(high, value)))
    notes = [f"There are {told}: look at the intervals, not at the figures."] if records < MANY else []
    return Judgement(records=records, figures=figures, worst=None, notes=notes, **empty)


def _figures(
    task: Classification, probabilities: np.ndarray, labels: np.ndarray, called: np.ndarray
) -> dict[str, Figure | None]:
    names = ("accuracy", "auc", "recall", "precision", "specificity", "calibration", "calibration_error", "log_loss")
    found: dict[str, Figure | None] = dict.fromkeys(names)
    if len(labels) < ENOUGH:
        return found
    right = called == labels
    found["accuracy"] = wilson(right.sum(), len(labels))
    found["auc"] = _auc(task, probabilities, labels)
    losses = -np.log(np.maximum(probabilities[np.arange(len(labels)), labels], LEAST_PROBABILITY))
    sure, best = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    bins = np.minimum((sure * BINS).astype(np.int64), BINS - 1)

    def calibration_error(chosen: np.ndarray) -> float:
        gaps = np.bincount(bins[chosen], sure[chosen] - best[chosen], BINS)
        return float(np.abs(gaps).sum() / len(chosen))

    found["calibration_error"] = _resampled(calibration_error, len(labels))
    found["log_loss"] = _resampled(lambda chosen: float(losses[chosen].mean()), len(labels))
    if task.positive is None:
        return found
    sick, said = labels == task.positive, called == task.positive
    if sick.sum() >= LEAST:
        found["recall"] = wilson((sick & said).sum(), sick.sum())
    if said.sum() >= LEAST:
        found["precision"] = wilson((sick & said).sum(), said.sum())
    if (~sick).sum() >= LEAST:
        found["specificity"] = wilson((~sick & ~said).sum(), (~sick).sum())
    gap = probabilities[:, task.positive] - sick
    found["calibration"] = _resampled(lambda chosen: float(gap[chosen].mean()), len(labels))
    return found


def _auc(task: Classification, probabilities: np.ndarray, labels: np.ndarray) -> Figure | None:
    """Area under the curve of the positive class, or the mean over classes, whose limits are the means of theirs."""
    wanted = [task.positive] if task.positive is not None and task.width == 2 else range(task.width)
    found = []
    for one in wanted:
        inside = labels == one
        if min(inside.sum(), (~inside).sum()) >= LEAST:
            found.append(auc_figure(area(probabilities[:, one], inside), inside.sum(), (~inside).sum()))
    if not found:
        return None
    return Figure(*(float(np.mean([getattr(one, end) for one in found])) for end in ("value", "low", "high")))


def _resampled(figure: Callable[[np.ndarray], float], records: int) -> Figure:
    """A figure with the 2.5 and 97.5 percentiles of what it is on resampled records; always the same ones."""
    random = np.random.default_rng(records)
    times = max(50, min(RESAMPLED, MOST_RESAMPLED // records))
    drawn = [figure(random.integers(0, records, records)) for _ in range(times)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    value = figure(np.arange(records))
    return Figure(value, float(min(low, value)), float(max(high, value)))


def _groups_of(
    task: Classification,
    column: str,
    values: np.ndarray,
    probabilities: np.ndarray,
    labels: np.ndarray,
    called: np.ndarray,
) -> list[GroupFigures]:
    different = sorted(set(values.tolist()))
    if not 2 <= len(different) <= MOST_GROUPS:
        return []
    found = []
    for value in different:
        mine = values == value
        if mine.sum() < LEAST_IN_GROUP:
            continue
        recall = None
        if task.positive is not None:
            sick = mine & (labels == task.positive)
            recall = wilson((sick & (called == labels)).sum(), sick.sum()) if sick.sum() >= LEAST else None
        accuracy = wilson((called == labels)[mine].sum(), mine.sum())
        auc = _auc(task, probabilities[mine], labels[mine])
        found.append(GroupFigures(column, str(value), int(mine.sum()), accuracy, auc, recall))
    return found


def _worst(groups: Sequence[GroupFigures]) -> GroupFigures | None:
    if len(groups) < 2:
        return None
    with_area = [one for one in groups if one.auc is not None]
    if with_area:
        return min(with_area, key=lambda one: one.auc.value)  # type: ignore[union-attr]
    return min(groups, key=lambda one: one.accuracy.value)


def _notes(
    task: Classification,
    figures: Mapping[str, Figure | None],
    held: np.ndarray,
    confusion: np.ndarray,
) -> list[str]:
    records, notes = int(held.sum()), []
    told = f"{records} test record{'s' * (records != 1)}"
    if task.positive is not None:
        told += f", {held[task.positive]} of them with {task.positive_name!r}"
    if records < ENOUGH:
        notes.append(f"There {'is' if records == 1 else 'are'} {told}: too few to judge a model by.")
    elif figures["auc"] is None:
        notes.append(f"There are {told}: too few for an AUC, which takes {LEAST} with and {LEAST} without.")
    elif records < MANY:
        notes.append(f"There are {told}: look at the intervals, not at the figures.")
    if (
        task.positive is not None
        and records >= ENOUGH
        and held[task.positive]
        and not confusion[:, task.positive].any()
    ):
        notes.append(
            f"Nobody is predicted as {task.positive_name!r}: recall is 0, however high the accuracy. Choose a lower "
            "probability (--operating-point recall=0.9), or train with --set class_weight=balanced."
        )
    return notes


# Operating points.


@dataclass(frozen=True)
class OperatingPoint:
    """Probability from which on the positive class is predicted, and why."""

    threshold: float
    chosen: str
    """Wish as it was written: `recall=0.9`, `cost=10:1` or `threshold=0.2`."""
    records: int = 0
    """Number of test records on which it was chosen; 0 where it was given."""


WISHES = "write recall=0.9, cost=10:1 (a missed one costs as much as ten false alarms) or threshold=0.2"


def choose_point(task: Task, probabilities: np.ndarray, labels: np.ndarray, wish: str) -> OperatingPoint:
    """Choose an operating point on test records.

    Args:
        task: The classes, one of which is positive.
        probabilities: (records, classes).
        labels: (records,).
        wish: `recall=R`: the highest threshold at which a share R of the positive class is found. `cost=M:F`: the
            threshold with the lowest cost, where a missed one costs M and a false alarm F. `threshold=T`: T itself.
    """
    kind, _, text = wish.partition("=")
    numbers = _numbers(text)
    if not isinstance(task, Classification) or task.positive is None:
        raise UserError("An operating point needs a class that is looked for: name it in the schema, as positive.")
    if kind == "threshold" and len(numbers) == 1 and 0 < numbers[0] < 1:
        return OperatingPoint(numbers[0], wish)
    is_share = kind == "recall" and len(numbers) == 1 and 0 < numbers[0] <= 1
    is_cost = kind == "cost" and len(numbers) in (1, 2) and all(0 < one < math.inf for one in numbers)
    if not is_share and not is_cost:
        raise UserError(f"The operating point {wish!r} is not understood: {WISHES}.")
    sick, scores = labels == task.positive, probabilities[:, task.positive]
    if min(sick.sum(), (~sick).sum()) < LEAST:
        raise UserError(
            f"{len(labels)} test records, {sick.sum()} of them with {task.positive_name!r}, are too few to choose an "
            f"operating point on: it takes {LEAST} with and {LEAST} without. threshold=0.2 gives one."
        )
    if is_share:
        needed = math.ceil(numbers[0] * sick.sum() - 1e-9)
        return OperatingPoint(_just_below(np.sort(scores[sick])[::-1][needed - 1], scores), wish, len(labels))
    missed, alarm = numbers[0], numbers[1] if len(numbers) == 2 else 1.0
    candidates = np.unique(scores)
    misses = np.searchsorted(np.sort(scores[sick]), candidates, "left")
    alarms = (~sick).sum() - np.searchsorted(np.sort(scores[~sick]), candidates, "left")
    costs = np.append(missed * misses + alarm * alarms, missed * sick.sum())  # the last: nobody
    best = int(costs.argmin())
    found = _just_below(candidates[best], scores) if best < len(candidates) else (1 + candidates[-1]) / 2
    return OperatingPoint(float(found), wish, len(labels))


def _just_below(score: float, scores: np.ndarray) -> float:
    """Halfway between a score and the next lower one: records to come lie between those that are known."""
    lower = scores[scores < score]
    return float((score + (lower.max() if len(lower) else 0.0)) / 2)


def _numbers(text: str) -> list[float]:
    try:
        return [float(one) for one in text.split(":")]
    except ValueError:
        return []


def with_point(judgement: Judgement, point: OperatingPoint) -> Judgement:
    """A judgement with a note on where its threshold comes from."""
    if not point.records:
        return judgement
    note = (
        f"The threshold {point.threshold:.3f} ({point.chosen}) was chosen on {point.records} test records: where these "
        "are the same, recall and precision are a little too good."
    )
    return replace(judgement, notes=[*judgement.notes, note])
