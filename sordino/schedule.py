"""How many rounds a run has, who is asked in each, and how often anybody is asked."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sordino.errors import UserError


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
