"""What a part of the harness is, and what its trials tell."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

MADE = "every trial can be made"
"""Broken where the harness itself, or an undisturbed run, fails."""


@dataclass(frozen=True)
class Check:
    """One look at one promise."""

    promise: str
    failure: str | None = None
    """How it was broken; None where it was kept."""


@dataclass(frozen=True)
class Part:
    """One kind of fault."""

    name: str
    promises: tuple[str, ...]
    trials: int
    """How many make up the whole harness."""
    trial: Callable[[random.Random, int, Path], Iterable[Check]]
    """Make the trial of a number with the given randomness and an empty folder."""
    obstacle: Callable[[], str | None] = lambda: None
    """Why it cannot be done on this machine, in a sentence."""

    def checks(self, seed: int, number: int, folder: Path) -> list[Check]:
        """What the trial of a seed and a number tells."""
        try:
            return list(self.trial(random.Random(f"{self.name} {seed} {number}"), number, folder))
        except Exception:
            return [Check(MADE, traceback.format_exc())]


def kept(promise: str, is_so: bool, failure: object) -> Check:
    """A look at a promise that holds if `is_so`."""
    return Check(promise, None if is_so else str(failure))
