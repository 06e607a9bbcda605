"""What a round brought, for people who watch, and the figures that it is told by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from sordino.federation.transport import Answer
from sordino.privacy.views import View


@dataclass(frozen=True)
class RoundReport:
    """What a round brought, for people who watch."""

    round: int
    rounds: int
    personal: float
    personal_worst: float
    start: float
    global_: float
    loss: float
    """The mean cross-entropy of the personal models after training."""
    clip: float | None
    cohort: int
    rejected: int
    bytes: int
    seconds: float
    epsilon: dict[View, float]
    """Spent so far, by the accountant of the final figures; `nan` in rounds that leave it out, because it takes time.
    In a deployment that protects records: for a site with as many records as the experiment declares."""
    observer: View
    """From whom the run protects."""
    planned: float | None
    """What that observer's epsilon will be in the end, if all goes as planned; None where nothing was planned."""
    clients: int
    """How many there are; accuracies are those of the `cohort` that took part in this round."""


Watch = Callable[[RoundReport], None]


@dataclass
class OpenRound:
    """A round that the script is in the middle of."""

    number: int
    begun: float
    answers: list[tuple[list[int], Answer]] = field(default_factory=list)


def mean(values: np.ndarray) -> float:
    """The mean of the finite values; `nan` when there is none."""
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def worst(values: np.ndarray) -> float:
    """The smallest of the finite values; `nan` when there is none."""
    return float(np.nanmin(values)) if np.isfinite(values).any() else float("nan")


def worst_tenth(values: np.ndarray) -> float:
    """The mean of the smallest tenth of the finite values, at least one; `nan` when there is none."""
    known = np.sort(values[np.isfinite(values)])
    return mean(known[: max(1, round(len(known) / 10))])


def overall(threshold: Mapping[str, Any] | None) -> float | None:
    """The clipping threshold of the next round, all layers together, for people who watch; None where each client has
    its own."""
    if threshold is None or "clip" not in threshold:
        return None
    return float(torch.as_tensor(threshold["clip"], dtype=torch.float64).norm())
