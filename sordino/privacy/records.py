"""What records pay: accounting for Poisson-sampled noisy gradients, and the noise for a budget.

A client's `Recipe` is everything that its records have gone through: Gaussian releases, each seen with a sampling
rate, so many times. Epsilon is computed from privacy-loss distributions (add/remove one record), which are tight
for Poisson sampling; nothing is claimed for any other sampling. For replacing one record, sensitivity doubles: the
same figure with half the noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from sordino.errors import UserError
from sordino.privacy.accountant import attack_accuracy, epsilon_of, mu_of

Sampled = tuple[float, float, int]
"""Sampling rate, noise multiplier, and how many times."""
Recipe = tuple[Sampled, ...]
Varied = Literal["noise", "sampling"]
"""What clients with different budgets differ in: each has noise of its own at its natural sampling rate, or all have
the same noise and each a sampling rate of its own."""


BEYOND = 60.0
"""Above this epsilon there is no privacy left, and privacy-loss distributions would take minutes and gigabytes: the
quicker bounds are given instead."""


LEAST_DELTA = 1e-9
"""Below this delta the rounding of Fourier transforms shows in privacy-loss distributions: the quicker bounds are given
instead."""
LEAST_RATE = 1e-6
"""The smallest part of a sampling rate that a search goes down to: a budget that asks for less is refused."""


@lru_cache(maxsize=4096)
def record_epsilon(recipe: Recipe, delta: float) -> float:
    """The epsilon that holds for one added or removed record of a client whose records went through `recipe`."""
    recipe = tuple(charge for charge in recipe if charge[2] > 0)
    if not recipe:
        return 0.0
    if any(multiplier == 0 for _, multiplier, _ in recipe):
        return math.inf
    unsampled = epsilon_of(_mu_without_sampling(recipe), delta)
    if all(rate == 1 for rate, _, _ in recipe):
        return unsampled
    quick = min(unsampled, quick_record_epsilon(recipe, delta))
    return quick if quick > BEYOND or delta < LEAST_DELTA else min(quick, _by_distribution(recipe, delta))


@lru_cache(maxsize=65536)
def quick_record_epsilon(recipe: Recipe, delta: float) -> float:
    """An upper bound of `record_epsilon` by Renyi divergences: hundreds of times faster, a few percent larger."""
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders=[*range(2, 64), 96, 160, 320, 640])
    for rate, multiplier, count in recipe:
        if count > 0:
            accountant.compose(_event(dp_event, rate, multiplier), count)
    return float(accountant.get_epsilon(delta))


def replace_one(recipe: Recipe) -> Recipe:
    """The recipe whose `record_epsilon` holds for one replaced record."""
    return tuple((rate, multiplier / 2, count) for rate, multiplier, count in recipe)


@lru_cache(maxsize=4096)
def record_multiplier(epsilon: float, delta: float, rate: float, steps: int, others: Recipe = ()) -> float:
    """The smallest noise multiplier, to half a percent, with which `steps` sampled steps stay within the budget.

    `others` is what the records go through besides.
    """

    def spent(multiplier: float) -> float:
        return record_epsilon((*others, (rate, multiplier, steps)), delta)

    def at_most(recipe: Recipe) -> float:
        """The smaller of two quick bounds: only that without sampling goes down to nothing as noise grows."""
        return min(quick_record_epsilon(recipe, delta), epsilon_of(_mu_without_sampling(recipe), delta))

    high = 1.0
    while at_most((*others, (rate, high, steps))) > epsilon:
        high *= 2
        if high > 2**40:
            raise UserError(
                f"What the records go through besides training already costs epsilon {epsilon:g}: give a larger "
                "epsilon, or let the rest have a smaller share of it."
            )
    low = high / 2
    while spent(low) <= epsilon:
        low, high = low / 2, low
    while high / low > 1.005:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    return high


@lru_cache(maxsize=4096)
def record_rate(
    epsilon: float, delta: float, multiplier: float, steps: int, most: float = 1.0, others: Recipe = ()
) -> float:
    """The largest sampling rate up to `most`, to half a percent, at which `steps` steps stay within the budget.

    The more often a record is sampled the more it pays, so the rate lies between one that fits, which the quick bound
    knows, and one that does not; where between them is guessed by interpolation. `others` is what the records go
    through besides.
    """

    def recipe(rate: float) -> Recipe:
        return (*others, (rate, multiplier, steps))

    def fits(rate: float) -> bool:
        return quick_record_epsilon(recipe(rate), delta) <= epsilon

    beyond = record_epsilon(recipe(most), delta)
    if beyond <= epsilon:
        return most
    low, high = LEAST_RATE * most, most
    if not fits(low):
        raise UserError(
            f"With a noise multiplier of {multiplier:g} even a record that hardly ever enters a batch pays more than "
            f"epsilon {epsilon:g}: give more noise or a larger budget."
        )
    while high / low > 1.1:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if fits(middle) else (low, middle)
    spent, high = record_epsilon(recipe(low), delta), most
    while high / low > 1.005:
        between = spent > 0 and math.isfinite(beyond)  # else there is nothing to interpolate
        share = math.log(epsilon / spent) / math.log(beyond / spent) if between else 0.5
        middle = min(max(low * (high / low) ** share, 1.002 * low), high / 1.002)
        found = record_epsilon(recipe(middle), delta)
        if found <= epsilon:
            low, spent = middle, found
        else:
            high, beyond = middle, found
    return low


def affordable(epsilon: float, delta: float, charge: Sampled, most: int, others: Recipe = ()) -> int:
    """How many times, up to `most`, a charge fits into a budget."""
    rate, multiplier, steps = charge
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        fits = record_epsilon((*others, (rate, multiplier, steps * middle)), delta) <= epsilon * (1 + 1e-9)
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


@lru_cache(maxsize=4096)
def record_attack_accuracy(recipe: Recipe) -> float:
    """The balanced accuracy of the best attacker who must tell whether a record is there: (1 + delta(0)) / 2."""
    recipe = tuple(charge for charge in recipe if charge[2] > 0)
    if not recipe:
        return 0.5
    if any(multiplier == 0 for _, multiplier, _ in recipe):
        return 1.0
    unsampled = attack_accuracy(_mu_without_sampling(recipe))
    if all(rate == 1 for rate, _, _ in recipe) or quick_record_epsilon(recipe, 1e-5) > BEYOND:
        return unsampled
    return (1 + _distribution(recipe, 1e-5).get_delta(0.0)) / 2


def _mu_without_sampling(recipe: Recipe) -> float:
    """The mu of the recipe if every record entered every batch: never smaller than the truth."""
    return math.sqrt(sum(count / multiplier**2 for _, multiplier, count in recipe))


def _by_distribution(recipe: Recipe, delta: float) -> float:
    return float(_distribution(recipe, delta).get_epsilon(delta))


def _distribution(recipe: Recipe, delta: float) -> Any:
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant

    # The grid is fine enough for small budgets, and coarse enough for large ones to stay quick.
    rough = quick_record_epsilon(recipe, delta)
    accountant = PLDAccountant(value_discretization_interval=min(1e-3, max(1e-5, rough / 20_000)))
    for rate, multiplier, count in recipe:
        accountant.compose(_event(dp_event, rate, multiplier), count)
    return accountant


def _event(dp_event: object, rate: float, multiplier: float) -> object:
    gaussian = dp_event.GaussianDpEvent(multiplier)  # type: ignore[attr-defined]
    return gaussian if rate == 1 else dp_event.PoissonSampledDpEvent(rate, gaussian)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class RecordPlan:
    """What each client's records will pay, decided before the first round from public sizes and budgets.

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
    """How often each client may take part before its budget would be exceeded."""
    matrix_multipliers: np.ndarray
    """Noise over sensitivity of the second-moment matrix that is released once; zero where there is none."""
    mean_multipliers: np.ndarray
    """Noise over sensitivity of each mean over validation records; zero where there is none."""
    validation: np.ndarray
    """How many records are set aside for such means."""

    def charge(self, client: int) -> Sampled:
        """What one round costs a client's training records."""
        return float(self.sampling[client]), float(self.multipliers[client]), int(self.steps[client])


@dataclass(frozen=True)
class RecordNeeds:
    """What a record-level method releases of each client, besides its noisy gradients."""

    matrix_share: float = 0.0
    """The share of epsilon that matrices which are released once may cost."""
    means: int = 0
    """How many means over validation records leave in a round."""
    held_out: float = 0.0
    """The share of a client's training records that is set aside for such means."""


def held_out_count(records: int, share: float) -> int:
    """How many of a client's records are set aside: at least one, and at least one is not, where there are two."""
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
    needs: RecordNeeds = RecordNeeds(),  # noqa: B008 (a frozen value)
    varied: Varied = "noise",
) -> RecordPlan:
    """Noise for each client's budget, or how often a client may take part with a given `multiplier`.

    `records` are the clients' numbers of training records, `turns` how often a client takes part at the most. Records
    that are set aside are disjoint from those that are trained on, so means over them have the whole budget to
    themselves.

    Where the sampling rate is `varied`, all clients take equally many steps with the same noise: as much as the largest
    budget asks for at the rate with which `batch` records are expected from the mean client, unless `multiplier` is
    given. Those with smaller budgets are sampled more rarely.
    """
    plan = plan_without_noise(
        records, budgets, batch=batch, epochs=epochs, turns=turns, held_out=needs.held_out, varied=varied
    )
    by_sampling = varied == "sampling"
    sampling, steps = plan.sampling, plan.steps
    if by_sampling and multiplier is None:
        largest = float(budgets.max())
        multiplier = record_multiplier(
            largest, delta, float(sampling[0]), int(steps[0]) * turns, _matrix(needs, largest, delta)
        )
    for client, (rate, count, budget) in enumerate(zip(sampling, steps, budgets, strict=True)):
        if not np.isfinite(budget):  # the given noise decides, for everything that leaves
            assert multiplier is not None
            plan.multipliers[client] = multiplier
            plan.matrix_multipliers[client] = multiplier if needs.matrix_share else 0.0
            plan.mean_multipliers[client] = multiplier if needs.means else 0.0
            continue
        others = _matrix(needs, budget, delta)
        plan.matrix_multipliers[client] = others[0][1] if others else 0.0
        if needs.means:
            plan.mean_multipliers[client] = math.sqrt(needs.means * turns) / mu_of(budget, delta)
        if multiplier is None:
            plan.multipliers[client] = record_multiplier(budget, delta, float(rate), int(count) * turns, others)
        elif by_sampling:
            plan.multipliers[client] = multiplier
            plan.sampling[client] = record_rate(budget, delta, multiplier, int(count) * turns, float(rate), others)
        else:
            plan.multipliers[client] = multiplier
            plan.turns[client] = affordable(budget, delta, (float(rate), multiplier, int(count)), turns, others)
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
    """Batches, steps and records set aside, and no noise at all: of a run without privacy, whose budgets are what its
    clients would have allowed. Where the sampling rate is `varied`, all clients begin with that of the mean client."""
    validation = np.array([held_out_count(count, held_out) for count in records])
    trained = [max(1, count - held) for count, held in zip(records, validation, strict=True)]
    sampling = sampling_rates([float(np.mean(trained))] * len(trained) if varied == "sampling" else trained, batch)
    steps = np.array([epochs * math.ceil(1 / rate) for rate in sampling])
    blank = {name: np.zeros(len(steps)) for name in ("multipliers", "matrix_multipliers", "mean_multipliers")}
    most = np.full(len(steps), turns)
    return RecordPlan(sampling, steps, budgets=budgets, turns=most, validation=validation, **blank)


def _matrix(needs: RecordNeeds, budget: float, delta: float) -> Recipe:
    """What a matrix that is released once costs, where the method releases one."""
    return ((1.0, 1 / mu_of(needs.matrix_share * budget, delta), 1),) if needs.matrix_share else ()


def sampling_rates(sizes: Sequence[float], batch: int) -> np.ndarray:
    """The rate at which a batch of `batch` records is expected from each client.

    With many different sizes, rates are rounded up to a grid of 4 % steps: budgets are then worked out for few rates.
    """
    exact = np.minimum(1.0, batch / np.asarray(sizes, dtype=float))
    if len(np.unique(exact)) <= 8:
        return exact
    return np.minimum(1.0, 2 ** (np.ceil(np.log2(exact) * 16) / 16))
