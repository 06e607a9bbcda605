"""Rounds: the one that is open, the report of one that is over, who is told of it, and figures over clients for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from sordino.federation.transport import Answer
from sordino.privacy.views import View


@dataclass(frozen=True)
class RoundReport:
    """Figures of a round that is over, for people who watch."""

    round: int
    rounds: int
    personal: float
    personal_worst: float
    start: float
    global_: float
    loss: float
    """Mean cross-entropy of the personal models after training."""
    clip: float | None
    cohort: int
    rejected: int
    bytes: int
    seconds: float
    epsilon: dict[View, float]
    """Epsilon so far, by the accountant of the final figures; `nan` in rounds that leave it out, because it takes time.
    In a deployment that protects records: for a site with as many records as the experiment declares."""
    observer: View
    """The observer whom the run protects from."""
    planned: float | None
    """That observer's epsilon after the last round, if all goes as planned; None where nothing was planned."""
    clients: int
    """Number of clients; accuracies are those of the `cohort` that took part in this round."""
    received: int = 0
    """Bytes that the server sent to all clients together; `bytes` are those that they sent."""


class Watch(Protocol):
    """Somebody who is told how a run goes on."""

    def __call__(self, report: RoundReport) -> None:
        """Called after each round."""

    def blending(self, done: int, clients: int) -> None:
        """Called once the rounds are over: `done` of all `clients` have blended their models."""


@dataclass(frozen=True)
class RoundWatch:
    """A watch that is told of rounds only."""

    told: Callable[[RoundReport], None]

    def __call__(self, report: RoundReport) -> None:
        self.told(report)

    def blending(self, done: int, clients: int) -> None:
        """Nobody is told."""


@dataclass
class OpenRound:
    """A round that the script is in the middle of."""

    number: int
    begun: float
    """When it began, in seconds of the monotonic clock."""
    evaluate: bool
    """Whether clients test their models in it."""
    answers: list[tuple[list[int], Answer]] = field(default_factory=list)
    received: int = 0
    """Bytes of the messages that clients were sent."""


def mean(values: np.ndarray) -> float:
    """Mean of the finite values; `nan` when there is none."""
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def worst(values: np.ndarray) -> float:
    """Smallest of the finite values; `nan` when there is none."""
    return float(np.nanmin(values)) if np.isfinite(values).any() else float("nan")


def worst_tenth(values: np.ndarray, lower_is_better: bool = False) -> float:
    """Mean of the worst tenth of the finite values, of at least one: the smallest, or the largest where
    `lower_is_better`; `nan` when there is none."""
    known = np.sort(values[np.isfinite(values)])
    number = max(1, round(len(known) / 10))
    if lower_is_better:
        return mean(known[-number:])
    return mean(known[:number])


def gini(values: np.ndarray) -> float:
    """Gini coefficient of the finite values: 0 where all are equal, near 1 where one has all;
    `nan` when there is none."""
    known = np.sort(values[np.isfinite(values)])
    if not len(known):
        return float("nan")
    if not known[-1]:
        return 0.0
    ranks = 2 * np.arange(1, len(known) + 1) - len(known) - 1
    return float(ranks @ known / (len(known) * known.sum()))


def overall(threshold: Mapping[str, Any] | None) -> float | None:
    """Clipping threshold of the next round, all layers together, for people who watch; None where each client has its
    own."""
    if threshold is None or "clip" not in threshold:
        return None
    clip = torch.as_tensor(threshold["clip"], dtype=torch.float64)
    return float(clip) if clip.numel() == 1 else float(clip.norm())
