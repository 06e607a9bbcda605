"""What can be foreseen of a run at record level before its method has settled what it releases."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sordino.privacy.record_plan import RecordNeeds, RecordPlan, plan_records


@dataclass(frozen=True)
class Outlook:
    """What is known before anything is planned: all of it is public."""

    sizes: np.ndarray
    """How many training records each client has."""
    budgets: np.ndarray
    """The epsilon that each client allows; infinite where the given noise decides."""
    delta: float
    turns: int
    """How often a client takes part at the most."""
    multiplier: float | None = None
    """The given noise over sensitivity of every release, where there is one."""

    @property
    def epsilon(self) -> float:
        """The budget of the client in the middle."""
        return float(np.median(self.budgets))

    @property
    def records(self) -> int:
        """The training records of the client in the middle."""
        return round(float(np.median(self.sizes)))

    def plan(self, needs: RecordNeeds) -> RecordPlan:
        """The plan for the client in the middle alone, if all of its records entered every step: of what does not
        depend on batches, it says what the plan of the run will say."""
        budget = np.array([self.epsilon])
        return plan_records(
            [self.records],
            budget,
            self.delta,
            batch=max(1, self.records),
            epochs=1,
            turns=self.turns,
            multiplier=self.multiplier,
            needs=needs,
        )
