"""Record-level plan: noise multiplier, sampling rate, steps and number of rounds of each client, made before a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from sordino.errors import UserError
from sordino.privacy.accounting.calibration import affordable_turns, record_multiplier, record_rate
from sordino.privacy.accounting.gaussian import mu_of
from sordino.privacy.accounting.loss_distribution import Sampled
from sordino.privacy.accounting.rpdp_fl_calibration import fitted_rate, quick_multiplier
from sordino.privacy.accounting.sampled_gaussian import Recipe
from sordino.privacy.budget.shared_noise import Noise

Varied = Literal["noise", "sampling", "fitted"]
"""Choice of what differs between clients with different budgets. `noise`: each has noise of its own at its natural
sampling rate. `sampling`: all have the same noise, and each the largest sampling rate that keeps its budget. `fitted`:
like `sampling`, but noise and rates are those of a published accountant and a curve through its values, and may exceed
budgets."""
Batches = Literal["poisson", "shuffled"]
"""Choice of the records of a noisy gradient. `poisson`: each record enters by a secret coin of its own, which lowers
what it pays. `shuffled`: each pass deals all records to batches of equal size; a record is in one batch of a pass, and
pays for that one in full."""
NOT_SHUFFLED = (
    'batches = "shuffled" is for methods whose clients take noisy gradient steps with noise of their own: this one '
    "keeps budgets by how rarely records are drawn, or adds up all clients' records in one sum. Leave `batches` out."
)
"""Refusal of dealt batches where epsilon rests on secret coins."""

CLOSED_FORM_MARGIN = 1e-9
"""Relative amount by which noise in closed form is rounded up, so that rounding exceeds no budget."""


@dataclass(frozen=True)
class RecordPlan:
    """Noise, sampling, steps and rounds of each client, decided before the first round from public sizes and budgets.

    Arrays hold one value for each client.
    """

    sampling: np.ndarray
    """The probability with which each record enters a batch; where batches are dealt, the share of the records that one
    holds."""
    steps: np.ndarray
    """Noisy gradients in a round."""
    multipliers: np.ndarray
    """Noise over sensitivity of one sum of gradients, as the observer meets it whom the noise is planned against."""
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
    trained: np.ndarray
    """Records of each client that are trained on; on real machines as many as are declared."""
    sum_multipliers: np.ndarray
    """Noise over sensitivity of a sum over all of the training records that is released once and has the whole budget
    to itself; zero where there is none."""
    shared: Noise | None = None
    """Noise on sums over the records of all clients, which is shared out over their messages; None where all of a
    client's noise is its own."""
    passes: int | None = None
    """Passes over the records in a round, each of which deals them to batches of equal size; None where each batch is a
    Poisson sample."""

    def gradients(self, client: int) -> Sampled:
        """Share of a client's records in one batch, noise multiplier and number of noisy gradients of one round."""
        return float(self.sampling[client]), float(self.multipliers[client]), int(self.steps[client])

    def charge(self, client: int) -> Sampled:
        """Sampling rate, noise multiplier and number of sums that one round costs a client's training records, for the
        observer whom the noise is planned against.

        Who is dealt to which batch does not depend on contents. Two worlds that differ in one record therefore differ
        in one sum of each pass, whatever earlier sums have decided: a pass costs one Gaussian, and no secret coin makes
        it cheaper.
        """
        sampled = self.gradients(client)
        return sampled if self.passes is None else (1.0, sampled[1], self.passes)

    def expected_records(self, clients: Sequence[int]) -> float:
        """Expected number of records in the batches of some clients together: public."""
        who = np.asarray(clients, dtype=np.int64)
        return float((self.sampling[who] * self.trained[who]).sum())

    def repeated(self, client: int, times: int) -> RecordPlan:
        """Plan in which each of `times` clients may spend what one `client` may here."""
        names = [one.name for one in fields(self) if one.name not in ("shared", "passes")]
        rows: dict[str, Any] = {name: np.repeat(getattr(self, name)[client : client + 1], times) for name in names}
        return replace(self, **rows)

    def feasible(self, records: np.ndarray) -> float:
        """Number of shared parameters whose signal is as strong as the noise, if the gradients of all clients'
        `records` point the same way; infinite without noise.

        A step adds up the sampled records' bounds, and one draw of noise: over all steps of all clients that is a
        signal of sum(steps x rate x records) and a variance of sum(steps x z^2) in each parameter.
        """
        steps = self.turns * self.steps
        shares = 1 if self.shared is None else self.shared.guaranteed
        variance = float((steps * self.multipliers**2).sum()) / shares
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
    rate: float | None = None
    """Sampling rate of sums of gradients with shared noise, of which one leaves in a round; None where none do, and the
    rate follows from the size of a batch."""
    sum_share: float = 0.0
    """Share of mu^2 that all sums over the training records which are released once cost together, from 0 to 1."""

    @property
    def sums(self) -> bool:
        """Whether anything leaves as a sum over the records of all clients, with shared noise."""
        return self.rate is not None or self.sum_share > 0

    def __add__(self, other: RecordNeeds) -> RecordNeeds:
        """Needs of both together; they share the records that are set aside."""
        return RecordNeeds(
            matrix_share=self.matrix_share + other.matrix_share,
            matrices=self.matrices + other.matrices,
            means=self.means + other.means,
            held_out=max(self.held_out, other.held_out),
            matrix_entries=max(self.matrix_entries, other.matrix_entries),
            rate=other.rate if self.rate is None else self.rate,
            sum_share=self.sum_share + other.sum_share,
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
    sharing: Callable[[float], Noise] | None = None,
    sites: int = 1,
    batches: Batches = "poisson",
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
        sharing: makes the noise on sums over all clients' records, which is shared out over their messages, from a
            multiplier; needed where there are such sums.
        sites: largest number of clients that one person is known to, where persons are protected.
        batches: choice of the records of a noisy gradient; budgets that are kept by sampling rates, and sums over all
            clients' records, need Poisson samples.

    Records that are set aside are disjoint from those that are trained on, so means over them have the whole budget to
    themselves.

    Where the sampling rate is `varied`, all clients take equally many steps with the same noise: as much as the largest
    budget asks for at the rate with which `batch` records are expected from the mean client, unless `multiplier` is
    given. Those with smaller budgets are sampled more rarely. Where rates are `fitted`, noise and rates are for the
    noisy gradients alone, as published.
    """
    plan = plan_without_noise(
        records, budgets, batch=batch, epochs=epochs, turns=turns, needs=needs, varied=varied, batches=batches
    )
    if needs.sums:
        assert sharing is not None
        return _plan_sums(plan, delta, turns, multiplier, needs, sharing, sites)
    if sites > 1 and (needs.means or needs.matrix_share):
        raise UserError(
            "max_sites_per_person is above 1, and this method also releases figures of records that it sets aside, or "
            "of all records at once: what a person pays for these at one client and for gradients at another is not "
            "planned. Take a method that sends gradients alone, as dp-fedsgd and dp-fedavg-record do."
        )
    sampling, steps = plan.sampling, plan.steps
    if plan.passes is not None:  # whatever their sizes, records pay alike
        sampling, steps = np.ones_like(sampling), np.full_like(steps, plan.passes)
    if varied != "noise" and multiplier is None:
        largest = float(budgets.max())
        asked = (largest, delta, float(sampling[0]), int(steps[0]) * turns)
        others = _matrix(needs, largest, delta)
        multiplier = quick_multiplier(*asked) if varied == "fitted" else record_multiplier(*asked, others, sites)
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
            plan.multipliers[who] = record_multiplier(budget, delta, rate, int(count) * turns, others, sites)
        elif varied == "fitted":
            plan.multipliers[who] = multiplier
            plan.sampling[who] = fitted_rate(budget, delta, multiplier, int(count) * turns, rate)
        elif varied == "sampling":
            plan.multipliers[who] = multiplier
            plan.sampling[who] = record_rate(budget, delta, multiplier, int(count) * turns, rate, others, sites)
        else:
            plan.multipliers[who] = multiplier
            plan.turns[who] = affordable_turns(budget, delta, (rate, multiplier, int(count)), turns, others, sites)
    return plan


def plan_without_noise(
    records: Sequence[int],
    budgets: np.ndarray,
    *,
    batch: int,
    epochs: int,
    turns: int,
    needs: RecordNeeds = RecordNeeds(),
    varied: Varied = "noise",
    batches: Batches = "poisson",
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
        needs: share of the records that is set aside for validation, and the sampling rate where it is declared.
        varied: what differs between clients with different budgets.
        batches: choice of the records of a noisy gradient.
    """
    if batches == "shuffled" and (needs.sums or varied != "noise"):
        raise UserError(NOT_SHUFFLED)
    validation = np.array([held_out_count(count, needs.held_out) for count in records])
    trained = np.array([max(1, count - held) for count, held in zip(records, validation, strict=True)])
    passes = None
    if needs.sums:  # one sum of gradients in a round, or none at all
        sampling = np.full(len(trained), 1.0 if needs.rate is None else needs.rate)
        steps = np.full(len(trained), int(needs.rate is not None))
    elif batches == "shuffled":
        of_a_pass, passes = -(-trained // batch), epochs
        sampling, steps = 1 / of_a_pass, epochs * of_a_pass
    else:
        sizes = trained.tolist() if varied == "noise" else [float(np.mean(trained))] * len(trained)
        sampling = sampling_rates(sizes, batch)
        steps = np.array([epochs * math.ceil(1 / rate) for rate in sampling])
    kinds = ("multipliers", "matrix_multipliers", "mean_multipliers", "sum_multipliers")
    blank: dict[str, Any] = {name: np.zeros(len(steps)) for name in kinds}
    most = np.full(len(steps), turns)
    return RecordPlan(
        sampling, steps, budgets=budgets, turns=most, validation=validation, trained=trained, passes=passes, **blank
    )


def _plan_sums(
    plan: RecordPlan,
    delta: float,
    turns: int,
    multiplier: float | None,
    needs: RecordNeeds,
    sharing: Callable[[float], Noise],
    sites: int,
) -> RecordPlan:
    """Plan sums over all clients' records, with one noise for all: records of clients with smaller budgets are sampled
    more rarely.

    Args:
        plan: rates, steps and budgets, without noise.
        delta: delta of all budgets.
        turns: most rounds in which a client takes part.
        multiplier: noise over sensitivity of every sum, where it is given.
        needs: the declared rate, and the share of mu^2 of sums that are released once.
        sharing: makes the noise that is shared out over messages from its multiplier.
        sites: contributions of one person to a sum; without sampling, they cost so many times the mu of one.
    """
    least, largest, rates = float(plan.budgets.min()), float(plan.budgets.max()), plan.sampling.copy()
    if not math.isfinite(least):  # the given noise decides, for everything that leaves
        assert multiplier is not None
        alone = multiplier
    else:
        alone = sites / mu_of(least, delta)
        once = _once(needs, alone)
        if needs.rate is None:
            multiplier = alone
        else:
            if multiplier is None and needs.rate == 1:  # no coins: mu^2 of all sums adds up to that of the budget
                left = (mu_of(largest, delta) / sites) ** 2 - sum(count / z**2 for _, z, count in once)
                multiplier = math.sqrt(turns / left) * (1 + CLOSED_FORM_MARGIN)
            elif multiplier is None:
                multiplier = record_multiplier(largest, delta, needs.rate, turns, once, sites)
            for budget in np.unique(plan.budgets).tolist():
                rates[plan.budgets == budget] = record_rate(budget, delta, multiplier, turns, needs.rate, once, sites)
    return replace(
        plan,
        sampling=rates,
        multipliers=np.full_like(plan.multipliers, multiplier),
        sum_multipliers=np.full_like(plan.sum_multipliers, alone if needs.sum_share else 0.0),
        shared=sharing(multiplier),
    )


def _once(needs: RecordNeeds, alone: float) -> Recipe:
    """Recipe of all sums over the training records that are released once; `alone` is the multiplier of one that has
    the whole budget to itself."""
    return ((1.0, alone / math.sqrt(needs.sum_share), 1),) if needs.sum_share else ()


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
