"""Allowance: what the releases of a run may spend, decided before its first round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sordino.privacy.budget.record_level_plan import RecordNeeds, RecordPlan, plan_records

ProtectFrom = Literal["outsider", "server"]


@dataclass(frozen=True)
class Noise:
    """Noise of one message where whole clients are protected.

    `multiplier` z is the ratio of noise to sensitivity that the protected observer meets in one round, all
    releases of the round together. Against the `server` each message carries all of it. Against an
    `outsider`, who sees sums only, each message carries the share of it that makes the sum of the smallest
    accepted cohort (`minimum_cohort`, less `colluders` who know their own shares) carry all of it. On real machines
    the secure sum says how many honest shares every sum holds, whatever the server does: `shares`.
    """

    multiplier: float
    protect_from: ProtectFrom
    minimum_cohort: int
    colluders: int = 0
    shares: int | None = None
    """Number of honest shares guaranteed to be in every sum that others see; None where everybody who is asked answers,
    to a server that is trusted to add them up."""

    def of_message(self, share: float) -> float:
        """The ratio of noise to sensitivity in one message's release that has `share` of the round's budget.

        Several releases of one round cost one Gaussian of multiplier (sum 1/z_g^2)^(-1/2), so a release with share a
        of a round with multiplier z gets z_g = z / sqrt(a).
        """
        full = self.multiplier / math.sqrt(share)
        if self.protect_from == "server":
            return full
        return full / math.sqrt(self.minimum_cohort - self.colluders if self.shares is None else self.shares)

    def feasible(self, clients: int, turns: int) -> float:
        """Number of shared parameters whose signal is as strong as the noise.

        Where `clients` that take part `turns` times each pull the same way, all messages of a run add up to
        clients x turns bounds, and their noise to sqrt(clients x turns) times that of one message, in each parameter.
        Squared, the ratio is clients x turns / s^2, where s is the noise of one message over its bound; all parameters
        share it.
        """
        return clients * turns / self.of_message(1.0) ** 2

    def met(self, asked: int) -> tuple[int, int]:
        """Number of shares in a sum over `asked` clients for whoever is charged, and how many of them others know."""
        return (asked, self.colluders) if self.shares is None else (self.shares, 0)


@dataclass(frozen=True)
class Allowance:
    """Noise that a run may count on: a plan for whole clients, one for their records, or neither where nothing is
    private."""

    noise: Noise | None = None
    records: RecordPlan | None = None
    whole: bool = False
    """Whether noise is in whole numbers and what that adds to epsilon is to be charged."""
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
