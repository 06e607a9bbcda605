"""How many rounds a run has, who is asked in each, and how often anybody is asked."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sordino.errors import UserError
from sordino.privacy.noise import Source


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

    No client thus takes part more often than ceil(rounds x cohort / clients) times, whatever the seed; the
    schedule never looks at data. Clients may have limits of their own: the turns of those who have reached theirs go to
    the others, and a cohort is smaller, or empty, only where there are not enough others left.
    """

    def __init__(self, schedule: Schedule, source: Source, limits: np.ndarray | None = None) -> None:
        """`limits` says how often each client may take part at the most: public, as the whole schedule is."""
        self._schedule, self._source, self._limits = schedule, source, limits
        self._begin()

    def of(self, number: int) -> list[int]:
        """The clients of a round, in ascending order."""
        if number < self._number:
            self._begin()
        while self._number < number:
            self._advance()
        return self._taken

    def last(self) -> int:
        """The last round in which anybody has a turn."""
        if self._limits is None:
            return self._schedule.rounds - 1
        return max((number for number in range(self._schedule.rounds) if self.of(number)), default=0)

    def stopped(self, rounds: int) -> dict[int, int]:
        """Who is passed over within so many rounds, and after which; zero for a client that never had a turn."""
        if self._limits is None:
            return {}
        self.of(rounds - 1)
        return {int(client): int(self._latest[client]) + 1 for client in np.flatnonzero(self._limits < self._passes)}

    def unreached(self) -> list[int]:
        """Who has had no turn by now."""
        absent: list[int] = np.flatnonzero(self._latest < 0).tolist()
        return absent

    def _begin(self) -> None:
        self._number, self._passes, self._place = -1, 0, 0
        self._order = np.empty(0, dtype=np.int64)
        self._taken: list[int] = []
        self._latest = np.full(self._schedule.clients, -1)

    def _advance(self) -> None:
        self._number += 1
        cohort = self._schedule.cohort
        taken = self._order[self._place : self._place + cohort]
        self._place += len(taken)
        missing = cohort - len(taken)
        if missing:
            order = self._next_pass()
            again = np.isin(order, taken)  # they wait at the end of the new pass, so that nobody is asked twice
            self._order, self._place = np.concatenate([order[~again], order[again]]), min(missing, int((~again).sum()))
            taken = np.concatenate([taken, self._order[: self._place]])
        self._latest[taken] = self._number
        self._taken = np.sort(taken).tolist()

    def _next_pass(self) -> np.ndarray:
        """Everybody who may take part once more, in random order."""
        self._passes += 1
        order = np.random.default_rng(self._source.key("turns", self._passes)).permutation(self._schedule.clients)
        return order if self._limits is None else order[self._limits[order] >= self._passes]
