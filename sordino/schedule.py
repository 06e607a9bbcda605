"""How many rounds a run has, who is asked in each, and how often anybody is asked."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sordino.errors import UserError
from sordino.privacy.noise import Seeded


@dataclass(frozen=True)
class Schedule:
    """The shape of a run: public, and decided before the first round."""

    rounds: int
    clients: int
    cohort: int
    """How many clients a round asks."""
    turns: int
    """How often a client takes part, at the most."""

    @classmethod
    def of(cls, rounds: int, clients: int, participation: float) -> Schedule:
        """The schedule in which a share `participation` of the clients takes part in each round, in turns."""
        if clients < 1 or rounds < 1:
            raise UserError(f"A run needs at least one client and one round, not {clients} and {rounds}.")
        if not 0 < participation <= 1:
            raise UserError(f"participation is {participation:g}, but must be above 0 and at most 1.")
        cohort = max(1, round(clients * participation))
        return cls(rounds, clients, cohort, math.ceil(rounds * cohort / clients))


class Turns:
    """Whose turn it is: everybody once, in random order, before anybody's second time.

    Nobody takes part more often than its limit says; who has reached it is passed over, and the others go on. No client
    thus takes part more often than `Schedule.turns` times, whatever the seed. The order follows from the seed and the
    public limits: it never looks at data.
    """

    def __init__(self, schedule: Schedule, limits: np.ndarray, source: Seeded) -> None:
        """`limits` says how often each client may take part."""
        self._cohort, self._limits, self._source = schedule.cohort, np.minimum(limits, schedule.turns), source
        self._begin()

    def of(self, number: int) -> list[int]:
        """The clients of a round, in ascending order; fewer than a cohort, or none, where too few may take part."""
        if number < self._number:
            self._begin()
        while self._number < number:
            self._advance()
        return self._taken

    def _begin(self) -> None:
        self._number, self._passes, self._place = -1, 0, 0
        self._left = self._limits.astype(np.int64)
        self._order = np.empty(0, dtype=np.int64)
        self._taken: list[int] = []

    def _advance(self) -> None:
        self._number += 1
        taken = self._order[self._place : self._place + self._cohort]
        self._place += len(taken)
        missing = self._cohort - len(taken)
        if missing:
            self._passes += 1
            order = np.random.default_rng(self._source.key("turns", self._passes)).permutation(len(self._left))
            again = np.isin(order, taken)  # they wait at the end of the new pass, so that nobody is asked twice
            may = self._left[order] > again
            fresh = order[may & ~again]
            self._order, self._place = np.concatenate([fresh, order[may & again]]), min(missing, len(fresh))
            taken = np.concatenate([taken, fresh[:missing]])
        self._left[taken] -= 1
        self._taken = np.sort(taken).tolist()
