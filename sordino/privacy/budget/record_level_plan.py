"""Record-level plan: noise multiplier, sampling rate, steps and number of rounds of each client, made before a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sordino.privacy.accounting.calibration import affordable_turns, record_multiplier, record_rate
from sordino.privacy.accounting.gaussian import mu_of
from sordino.privacy.accounting.loss_distribution import Sampled
from sordino.privacy.accounting.rpdp_fl_calibration import fitted_rate, quick_multiplier
from sordino.privacy.accounting.sampled_gaussian import Recipe

Varied = Literal["noise", "sampling", "fitted"]
"""Choice of what differs between clients with different budgets. `noise`: each has noise of its own at its natural
sampling rate. `sampling`: all have the same noise, and each the largest sampling rate that keeps its budget. `fitted`:
like `sampling`, but noise and rates are those of a published accountant and a curve through its values, and may exceed
budgets."""


@dataclass(frozen=True)
class RecordPlan:
    """Noise, sampling, steps and rounds of each client, decided before the first round from public sizes and budgets.

    Arrays hold one value for each client.
    """

    sampling: np.ndarray
    """The probability with which each record enters a batch."""
    steps: np.ndarray
    """Noisy gradients in a round."""
    multipliers: np.ndarray
    """Noise over sensitivity of one gradient."""
    budgets: np.ndarray
    """The epsilon that each client allows."""
    turns: np.ndarray
    """Rounds in which each client may take part before its budget would be exceeded."""
    matrix_multipliers: np.ndarray
    """Noise over sensitivity of the second-moment matrix that is released once; zero where there is none."""
    mean_multipliers: np.ndarray
    """Noise over sensitivity of each mean over validation records; zero where there is none."""
    validation: np.ndarray
    """Records of each client that are set aside for such means."""

    def charge(self, client: int) -> Sampled:
        """Sampling rate, noise multiplier and steps that one round costs a client's training records."""
        return float(self.sampling[client]), float(self.multipliers[client]), int(self.steps[client])

    def feasible(self, records: np.ndarray) -> float:
        """Number of shared parameters whose signal is as strong as the noise, if the gradients of all clients'
        `records` point the same way; infinite without noise.

        A step adds up the sampled records' bounds, and one draw of noise: over all steps of all clients that is a
        signal of sum(steps x rate x records) and a variance of sum(steps x z^2) in each parameter.
        """
        steps = self.turns * self.steps
        variance = float((steps * self.multipliers**2).sum())
        return float((steps * self.sampling * records).sum()) ** 2 / variance if variance > 0 else math.inf


@dataclass(frozen=True)
class RecordNeeds:
    """Demands of a record-level method, or of one of its releases, on a client's records besides noisy gradients."""

    matrix_share: float = 0.0
    """Share of epsilon that all matrices which are released once may cost together, from 0 to 1."""
    matrices: int = 0
    """Number of these matrices."""
    means: int = 0
    """Number of means over validation records that leave in a round."""
    held_out: float = 0.0
    """Share of a client's training records that is set aside for such means."""
    matrix_entries: int = 0
    """Most entries of such a matrix; zero where that is not declared."""

    def __add__(self, other: RecordNeeds) -> RecordNeeds:
        """Needs of both together; they share the records that are set aside."""
        return RecordNeeds(
            matrix_share=self.matrix_share + other.matrix_share,
            matrices=self.matrices + other.matrices,
            means=self.means + other.means,
            held_out=max(self.held_out, other.held_out),
            matrix_entries=max(self.matrix_entries, other.matrix_entries),
        )


def held_out_count(records: int, share: float) -> int:
    """Number of a client's records to hold out for validation: about `share` of them; of two or more, at least one is
    held out and at least one is not."""
    return min(records - 1, max(1, round(share * records))) if share > 0 and records > 1 else 0


def plan_records(
    records: Sequence[int],
    budgets: np.ndarray,
    delta: float,
    *,
    batch: int,
    epochs: int,
    turns: int,
    multiplier: float | None = None,
    needs: RecordNeeds = RecordNeeds(),
    varied: Varied = "noise",
) -> RecordPlan:
    """Plan the noise for each client's budget, or how often a client may take part with a given `multiplier`.

    Args:
        records: training records of each client.
        budgets: epsilon of each client; infinite where the given noise decides.
        delta: delta of all budgets.
        batch: expected records in a batch.
        epochs: passes over the records in a round.
        turns: most rounds in which a client takes part.
        multiplier: noise over sensitivity of every release, where it is given.
        needs: releases besides noisy gradients.
        varied: what differs between clients with different budgets.

    Records that are set aside are disjoint from those that are trained on, so means over them have the whole budget to
    themselves.

    Where the sampling rate is `varied`, all clients take equally many steps with the same noise: as much as the largest
    budget asks for at the rate with which `batch` records are expected from the mean client, unless `multiplier` is
    given. Those with smaller budgets are sampled more rarely. Where rates are `fitted`, noise and rates are for the
    noisy gradients alone, as published.
    """
    plan = plan_without_noise(
        records, budgets, batch=batch, epochs=epochs, turns=turns, held_out=needs.held_out, varied=varied
    )
    sampling, steps = plan.sampling, plan.steps
    if varied != "noise" and multiplier is None:
        largest = float(budgets.max())
        asked = (largest, delta, float(sampling[0]), int(steps[0]) * turns)
        others = _matrix(needs, largest, delta)
        multiplier = quick_multiplier(*asked) if varied == "fitted" else record_multiplier(*asked, others)
    kinds = np.stack([sampling, steps, budgets], axis=1)
    different, kind_of = np.unique(kinds, axis=0, return_inverse=True)
    for kind, (rate, count, budget) in enumerate(different.tolist()):
        who = kind_of.reshape(-1) == kind
        if not math.isfinite(budget):  # the given noise decides, for everything that leaves
            assert multiplier is not None
            plan.multipliers[who] = multiplier
            plan.matrix_multipliers[who] = multiplier if needs.matrix_share else 0.0
            plan.mean_multipliers[who] = multiplier if needs.means else 0.0
            continue
        others = _matrix(needs, budget, delta)
        plan.matrix_multipliers[who] = others[0][1] if others else 0.0
        if needs.means:
            plan.mean_multipliers[who] = math.sqrt(needs.means * turns) / mu_of(budget, delta)
        if multiplier is None:
            plan.multipliers[who] = record_multiplier(budget, delta, rate, int(count) * turns, others)
        elif varied == "fitted":
            plan.multipliers[who] = multiplier
            plan.sampling[who] = fitted_rate(budget, delta, multiplier, int(count) * turns, rate)
        elif varied == "sampling":
            plan.multipliers[who] = multiplier
            plan.sampling[who] = record_rate(budget, delta, multiplier, int(count) * turns, rate, others)
        else:
            plan.multipliers[who] = multiplier
            plan.turns[who] = affordable_turns(budget, delta, (rate, multiplier, int(count)), turns, others)
    return plan


def plan_without_noise(
    records: Sequence[int],
    budgets: np.ndarray,
    *,
    batch: int,
    epochs: int,
    turns: int,
    held_out: float,
    varied: Varied = "noise",
) -> RecordPlan:
    """Plan batches, steps and records set aside without any noise, for a run without privacy; budgets are those that
    its clients would have allowed. Where the sampling rate is `varied`, all clients begin with that of the mean
    client.

    Args:
        records: training records of each client.
        budgets: epsilon that each client would have allowed.
        batch: expected records in a batch.
        epochs: passes over the records in a round.
        turns: most rounds in which a client takes part.
        held_out: share of the records that is set aside for validation.
        varied: what differs between clients with different budgets.
    """
    validation = np.array([held_out_count(count, held_out) for count in records])
    trained = [max(1, count - held) for count, held in zip(records, validation, strict=True)]
    sampling = sampling_rates(trained if varied == "noise" else [float(np.mean(trained))] * len(trained), batch)
    steps = np.array([epochs * math.ceil(1 / rate) for rate in sampling])
    blank = {name: np.zeros(len(steps)) for name in ("multipliers", "matrix_multipliers", "mean_multipliers")}
    most = np.full(len(steps), turns)
    return RecordPlan(sampling, steps, budgets=budgets, turns=most, validation=validation, **blank)


def _matrix(needs: RecordNeeds, budget: float, delta: float) -> Recipe:
    """Recipe of all matrices that are released once, where the method releases any."""
    if not needs.matrix_share:
        return ()
    return ((1.0, math.sqrt(needs.matrices) / mu_of(needs.matrix_share * budget, delta), needs.matrices),)


def sampling_rates(sizes: Sequence[float], batch: int) -> np.ndarray:
    """The rate at which a batch of `batch` records is expected from each client.

    With many different sizes, rates are rounded up to a grid of 4 % steps: budgets are then worked out for few rates.
    """
    exact = np.minimum(1.0, batch / np.asarray(sizes, dtype=float))
    if len(np.unique(exact)) <= 8:
        return exact
    return np.minimum(1.0, 2 ** (np.ceil(np.log2(exact) * 16) / 16))
