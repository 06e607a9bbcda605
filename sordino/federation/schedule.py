"""Schedules: rounds of a run, the cohort of each round, and the turns of each client."""

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
    """Number of clients that a round asks."""
    turns: int
    """Largest number of rounds in which a client takes part."""

    @classmethod
    def of(cls, rounds: int, clients: int, participation: float) -> Schedule:
        """Return the schedule in which the share `participation` of the clients takes part in each round, in turns."""
        if clients < 1 or rounds < 1:
            raise UserError(f"A run needs at least one client and one round, not {clients} and {rounds}.")
        if not 0 < participation <= 1:
            raise UserError(f"participation is {participation:g}, but must be above 0 and at most 1.")
        cohort = max(1, round(clients * participation))
        return cls(rounds, clients, cohort, math.ceil(rounds * cohort / clients))


class Turns:
    """Cohorts of the rounds: every client once, in random order, before any client a second time.

    So no client takes part more often than ceil(rounds x cohort / clients) times, whatever the seed; the schedule does
    not depend on data. Clients may have limits of their own: the turns of those who have reached theirs go to the
    others, and a cohort is smaller, or empty, only where not enough others are left.
    """

    def __init__(self, schedule: Schedule, source: Source, limits: np.ndarray | None = None) -> None:
        """`limits` is the largest number of turns of each client: public, as the whole schedule is."""
        self._schedule, self._source, self._limits = schedule, source, limits
        self._begin()

    def of(self, number: int) -> list[int]:
        """Return the clients of round `number`, in ascending order."""
        if number < self._number:
            self._begin()
        while self._number < number:
            self._advance()
        return self._taken

    def last(self) -> int:
        """Return the last round in which any client has a turn."""
        if self._limits is None:
            return self._schedule.rounds - 1
        return max((number for number in range(self._schedule.rounds) if self.of(number)), default=0)

    def stopped(self, rounds: int) -> dict[int, int]:
        """Return the clients that reach their limit within `rounds` rounds, each with the number of rounds after which
        it stops; zero for a client that never had a turn."""
        if self._limits is None:
            return {}
        self.of(rounds - 1)
        return {int(client): int(self._latest[client]) + 1 for client in np.flatnonzero(self._limits < self._passes)}

    def unreached(self) -> list[int]:
        """Return the clients that have had no turn so far."""
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
            order = self._next_pass(missing)
            waiting = 0
            if len(taken):
                again = np.isin(order, taken)  # they wait at the end of the new pass, so that nobody is asked twice
                order, waiting = np.concatenate([order[~again], order[again]]), int(again.sum())
            self._order, self._place = order, min(missing, len(order) - waiting)
            taken = np.concatenate([taken, order[: self._place]])
        self._latest[taken] = self._number
        self._taken = np.sort(taken).tolist()

    def _next_pass(self, places: int) -> np.ndarray:
        """Return the clients that may take part once more: in random order, unless `places` are left for all of them,
        so that no order would decide anything."""
        self._passes += 1
        if self._schedule.clients <= places:
            order = np.arange(self._schedule.clients)
            return order if self._limits is None else order[self._limits >= self._passes]
        order = np.random.default_rng(self._source.key("turns", self._passes)).permutation(self._schedule.clients)
        return order if self._limits is None else order[self._limits[order] >= self._passes]
