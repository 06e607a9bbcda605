"""Noise plan of a run: `Allowance` holds the noise fixed before the first round, for whole clients or for records;
`Outlook` holds the public facts that a plan for records is made from."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sordino.privacy.budget.record_level_plan import RecordNeeds, RecordPlan, plan_records
from sordino.privacy.budget.shared_noise import Noise
from sordino.privacy.views import View


@dataclass(frozen=True)
class Allowance:
    """Noise that a run may count on: a plan for whole clients, one for their records, or neither where nothing is
    private."""

    noise: Noise | None = None
    records: RecordPlan | None = None
    whole: bool = False
    """Whether the noise is integer-valued; what its rounding adds to epsilon is then charged too."""
    known: str = ""
    """Reason why observers can subtract the noise, so that no epsilon holds; empty where they cannot."""

    @property
    def of_clients(self) -> Noise:
        """The noise where whole clients are protected."""
        if self.noise is None:
            raise ValueError("this run has no noise for whole clients: the method protects records, or nothing")
        return self.noise

    def feasible(self, clients: int, turns: int, records: np.ndarray) -> float:
        """Number of shared parameters whose signal is as strong as the noise; infinite without noise.

        Args:
            clients: number of clients.
            turns: rounds in which each takes part.
            records: training records of each client.
        """
        if self.noise is not None:
            return self.noise.feasible(clients, turns)
        return math.inf if self.records is None else self.records.feasible(records)

    @property
    def shared(self) -> Noise | None:
        """Noise that is shared out over the messages of a sum; None where each message has noise of its own."""
        return self.noise if self.records is None else self.records.shared

    @property
    def observer(self) -> View:
        """Observer whom the noise is planned against: the server, unless noise adds up in sums that alone are seen."""
        return "server" if self.shared is None else self.shared.protect_from

    @property
    def record_sums(self) -> RecordPlan | None:
        """Plan of what records may spend where clients share the noise of sums over them; None where they do not."""
        return None if self.records is None or self.records.shared is None else self.records

    @property
    def of_records(self) -> RecordPlan:
        """Plan of what each client's records may spend."""
        if self.records is None:
            raise ValueError("this run has no plan of what records pay: the method protects whole clients, or nothing")
        return self.records


@dataclass(frozen=True)
class Outlook:
    """Public facts from which a record plan is made."""

    sizes: np.ndarray
    """Training records of each client."""
    budgets: np.ndarray
    """The epsilon that each client allows; infinite where the given noise decides."""
    delta: float
    turns: int
    """Most rounds in which a client takes part."""
    multiplier: float | None = None
    """The given noise over sensitivity of every release, where there is one."""

    @property
    def epsilon(self) -> float:
        """Median budget of the clients."""
        return float(np.median(self.budgets))

    @property
    def records(self) -> int:
        """Median number of training records of the clients."""
        return round(float(np.median(self.sizes)))

    def plan(self, needs: RecordNeeds) -> RecordPlan:
        """Plan for one client of median size and budget with full batches: all of its records enter every step. It
        equals the plan of the run in everything that does not depend on batches."""
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
