"""What records pay: accounting for Poisson-sampled noisy gradients, and the noise for a budget.

A client's `Recipe` is everything that its records have gone through: Gaussian releases, each seen with a sampling
rate, so many times. Epsilon is computed from privacy-loss distributions (add/remove one record), which are tight
for Poisson sampling; nothing is claimed for any other sampling. For replacing one record, sensitivity doubles: the
same figure with half the noise.

Noise, rates and numbers of turns for a budget are found by search: each lies on a scale along which epsilon falls, and
the first place is taken whose epsilon, by the same distributions, is within the budget. Only the rates that rPDP-FL
published keep no budget for sure: they are read off a curve, whose error shows in what is charged for them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import curve_fit
from scipy.special import gammaln, logsumexp

from sordino.errors import UserError
from sordino.privacy import remembered
from sordino.privacy.accountant import attack_accuracy, epsilon_of, mu_of
from sordino.privacy.losses import Sampled, composed

Recipe = tuple[Sampled, ...]
Varied = Literal["noise", "sampling", "fitted"]
"""What clients with different budgets differ in. `noise`: each has noise of its own at its natural sampling rate.
`sampling`: all have the same noise, and each the largest sampling rate that keeps its budget. `fitted`: the same, but
noise and rates are those of a published accountant and a curve through its values, and may exceed budgets."""


FINE = 1.0025
"""The ratio between neighbours on the scales of noise multipliers and sampling rates."""
LARGEST_MULTIPLIER = 2.0**40
"""More noise than that is asked for only where something else has used up the budget."""
LAST = math.ceil(math.log(LARGEST_MULTIPLIER, FINE))
"""Its place on the scale of noise multipliers."""
LEAST_RATE = 1e-6
"""The smallest part of a sampling rate that a search goes down to: a budget that asks for less is refused."""
ORDERS = np.array([*range(2, 64), 96, 160, 320, 640])
"""Of the Renyi divergences of the quick bound."""
FITTED_AT = np.concatenate([np.arange(1, 100) / 1000, np.arange(10, 101) / 100])
"""The parts of the largest sampling rate at which the published curve is fitted: those of the released code."""
STRAIGHT, BENT = 1e-6, 100.0
"""How much a published curve bends over all rates: from next to not at all to more than any does."""


@functools.lru_cache(maxsize=65536)
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
    exact = _by_distribution(recipe, delta)
    # Where delta is too small for the rounding of Fourier transforms, the quicker bound is given.
    return min(unsampled, exact if math.isfinite(exact) else quick_record_epsilon(recipe, delta))


def quick_record_epsilon(recipe: Recipe, delta: float) -> float:
    """An upper bound of `record_epsilon` by Renyi divergences: at once for a kind of step that was seen before, a few
    percent larger."""
    kinds = [(rate, multiplier, count) for rate, multiplier, count in recipe if count > 0]
    if not kinds:
        return 0.0
    divergence = sum(count * _divergences(rate, multiplier) for rate, multiplier, count in kinds)
    # Canonne, Kamath, Steinke 2020, Proposition 12.
    found = divergence + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return max(0.0, float(found.min()))


@functools.lru_cache(maxsize=65536)
def _divergences(rate: float, multiplier: float) -> np.ndarray:
    """The Renyi divergence of one sampled Gaussian at each of `ORDERS` (Mironov, Talwar, Zhang 2019, section 3.3)."""
    if rate == 1:
        return ORDERS / (2 * multiplier**2)
    order, hits = ORDERS[:, None], np.arange(ORDERS[-1] + 1)
    with np.errstate(invalid="ignore"):
        ways = gammaln(order + 1) - gammaln(hits + 1) - gammaln(order - hits + 1)
        terms = ways + hits * math.log(rate) + (order - hits) * math.log1p(-rate)
        terms = terms + (hits * hits - hits) / (2 * multiplier**2)
    moments = logsumexp(np.where(hits <= order, terms, -np.inf), axis=1)
    return np.maximum(moments, 0.0) / (ORDERS - 1)


def replace_one(recipe: Recipe) -> Recipe:
    """The recipe whose `record_epsilon` holds for one replaced record."""
    return tuple((rate, multiplier / 2, count) for rate, multiplier, count in recipe)


@functools.lru_cache(maxsize=65536)
def record_multiplier(epsilon: float, delta: float, rate: float, steps: int, others: Recipe = ()) -> float:
    """The smallest noise multiplier, to a quarter of a percent, with which `steps` sampled steps stay within a budget.

    `others` is what the records go through besides.
    """

    def excess(place: int) -> float:
        return _excess((*others, (rate, FINE**place, steps)), epsilon, delta)

    search = ("multiplier", epsilon, delta, rate, steps, others)
    place = _searched(search, excess, lambda: _guess(epsilon, delta, rate, steps, others), -LAST, LAST)
    if place is None:
        raise UserError(
            f"What the records go through besides training already costs epsilon {epsilon:g}: give a larger "
            "epsilon, or let the rest have a smaller share of it."
        )
    return FINE**place


@functools.lru_cache(maxsize=65536)
def record_rate(
    epsilon: float, delta: float, multiplier: float, steps: int, most: float = 1.0, others: Recipe = ()
) -> float:
    """The largest sampling rate up to `most`, to a quarter of a percent, at which `steps` steps stay within a budget.

    `others` is what the records go through besides.
    """

    def excess(place: int) -> float:
        return _excess((*others, (most * FINE**-place, multiplier, steps)), epsilon, delta)

    search = ("rate", epsilon, delta, multiplier, steps, most, others)
    place = _searched(search, excess, lambda: 0, 0, math.floor(-math.log(LEAST_RATE, FINE)))
    if place is None:
        raise UserError(
            f"With a noise multiplier of {multiplier:g} even a record that hardly ever enters a batch pays more than "
            f"epsilon {epsilon:g}: give more noise or a larger budget."
        )
    return most * FINE**-place


def quick_multiplier(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """The noise that rPDP-FL publishes: the smallest multiplier, to a quarter of a percent, with which the quick bound
    of `steps` sampled steps is within a budget. But for the orders, which go up to 994 there, that bound is the
    accountant of the released code."""

    def excess(place: int) -> float:
        return _excess(((rate, FINE**place, steps),), epsilon, delta, quick_record_epsilon)

    place = first_within(excess, _guess(epsilon, delta, rate, steps, ()), -LAST, LAST)
    if place is None:
        raise UserError(
            f"The published accountant cannot print epsilon = {epsilon:g} at delta = {delta:g}, however much noise "
            "there is: use --variant sound."
        )
    return FINE**place


def fitted_rate(epsilon: float, delta: float, multiplier: float, steps: int, most: float = 1.0) -> float:
    """The sampling rate up to `most` that rPDP-FL publishes for a budget: where a curve that is fitted to the quick
    bound of `steps` steps crosses it. What the records really pay is not looked at, and may be more.

    Budgets that the bound reaches at `most`, or exceeds at the least rate, get these; so do those that the curve
    crosses beyond them, or nowhere.
    """
    if epsilon * (1 + 1e-9) >= quick_record_epsilon(((most, multiplier, steps),), delta):
        return most
    if epsilon <= quick_record_epsilon(((most * LEAST_RATE, multiplier, steps),), delta):
        return most * LEAST_RATE
    bend, slope, start = _fitted_curve(delta, multiplier, steps, most)
    grown = bend * (epsilon - start) / slope
    part = math.log1p(grown) / bend if grown > -1 else 0.0
    return most * min(max(part, LEAST_RATE), 1.0)


@functools.lru_cache(maxsize=1024)
def _fitted_curve(delta: float, multiplier: float, steps: int, most: float) -> tuple[float, float, float]:
    """The published curve epsilon(q) = exp(a q + b) + c as (bend, slope, start), in parts of the largest rate:
    start + slope (exp(bend part) - 1) / bend.

    So written it does not vanish among its own terms where it hardly bends. Over few steps epsilon bends the other way;
    the curves that come closest then tend to a line, and the released code finds none.
    """
    costs = np.array([quick_record_epsilon(((most * part, multiplier, steps),), delta) for part in FITTED_AT.tolist()])

    def curve(part: np.ndarray, bend: float, slope: float, start: float) -> np.ndarray:
        return start + slope * np.expm1(bend * part) / bend

    limits = ([STRAIGHT, 0.0, -np.inf], [BENT, np.inf, np.inf])
    try:
        (bend, slope, start), _ = curve_fit(curve, FITTED_AT, costs / costs[-1], p0=(1.0, 1.0, 0.0), bounds=limits)
    except RuntimeError as error:  # no curve comes close enough
        raise UserError(
            f"The published rates follow a curve, and none fits what {steps} steps with a noise multiplier of "
            f"{multiplier:g} cost: use --variant sound."
        ) from error
    return float(bend), float(slope * costs[-1]), float(start * costs[-1])


def affordable(epsilon: float, delta: float, charge: Sampled, most: int, others: Recipe = ()) -> int:
    """How many times, up to `most`, a charge fits into a budget."""
    rate, multiplier, steps = charge

    def excess(fewer: int) -> float:
        return _excess((*others, (rate, multiplier, steps * (most - fewer))), epsilon * (1 + 1e-9), delta)

    place = first_within(excess, 0, 0, most)
    return 0 if place is None else most - place


def _searched(
    search: tuple[object, ...], excess: Callable[[int], float], guess: Callable[[], int], low: int, high: int
) -> int | None:
    """`first_within`, from where the same search ended before, or else from a guess."""
    known = remembered.place(search)
    found = first_within(excess, guess() if known is None else known, low, high)
    if found is not None and found != known:
        remembered.note(search, found)
    return found


def first_within(excess: Callable[[int], float], guess: int, low: int, high: int) -> int | None:
    """The first whole number from `low` to `high` at which `excess`, which falls, is not above zero; None for none.

    It is looked for from a guess on, in steps that double, and then between two that lie on either side of it: where
    the line between them crosses zero, or in the middle where such steps get nowhere.
    """
    over = functools.cache(excess)
    inside = outside = min(max(guess, low), high)
    step = _stride(over(inside))
    while over(inside) > 0:
        if inside == high:
            return None
        outside, inside, step = inside, min(inside + step, high), 2 * step
    while over(outside) <= 0:
        if outside == low:
            return low
        inside, outside, step = outside, max(outside - step, low), 2 * step
    slow = False
    while inside - outside > 1:
        width, middle = inside - outside, (inside + outside) // 2
        slope = over(outside) - over(inside)
        if not slow and math.isfinite(slope) and slope > 0:
            # The crossing itself and its neighbour are tried, so that the search ends between them.
            crossing = outside + math.ceil(width * over(outside) / slope)
            middle = min(max(crossing, outside + 1), inside - 1)
        if over(middle) > 0:
            outside = middle
            if over(middle + 1) <= 0:
                return middle + 1
            outside = middle + 1
        else:
            inside = middle
            if over(middle - 1) > 0:
                return middle
            inside = middle - 1
        slow = inside - outside > width // 2
    return inside


def _stride(excess: float) -> int:
    """How far to look at first: epsilon is about in proportion to what a scale of ratios counts."""
    return max(1, round(abs(excess) / math.log(FINE))) if math.isfinite(excess) else 256


def _excess(
    recipe: Recipe, epsilon: float, delta: float, cost: Callable[[Recipe, float], float] = record_epsilon
) -> float:
    """The logarithm of what a recipe costs over a budget: above zero where it does not fit."""
    spent = cost(recipe, delta)
    return math.log(spent / epsilon) if spent > 0 else -math.inf


def _guess(epsilon: float, delta: float, rate: float, steps: int, others: Recipe) -> int:
    """About where the noise multiplier lies: by the central limit (Bu, Dong, Long, Su 2020)."""
    left = mu_of(epsilon, delta) ** 2 - sum(_central(*charge) for charge in others)
    if left <= 0 or not steps:
        return 0
    multiplier = math.sqrt(steps / left) if rate == 1 else 1 / math.sqrt(math.log1p(left / steps / rate**2))
    return round(math.log(multiplier, FINE))


def _central(rate: float, multiplier: float, count: int) -> float:
    """What many such steps come to as one Gaussian: its mu^2."""
    return count / multiplier**2 if rate == 1 else count * rate**2 * math.expm1(min(multiplier**-2, 700.0))


@functools.lru_cache(maxsize=65536)
def record_attack_accuracy(recipe: Recipe) -> float:
    """The balanced accuracy of the best attacker who must tell whether a record is there: (1 + delta(0)) / 2."""
    recipe = tuple(charge for charge in recipe if charge[2] > 0)
    if not recipe:
        return 0.5
    if any(multiplier == 0 for _, multiplier, _ in recipe):
        return 1.0
    unsampled = attack_accuracy(_mu_without_sampling(recipe))
    if all(rate == 1 for rate, _, _ in recipe):
        return unsampled
    return min(unsampled, max((1 + losses.delta()) / 2 for losses in composed(recipe, 1e-5)))


def _mu_without_sampling(recipe: Recipe) -> float:
    """The mu of the recipe if every record entered every batch: never smaller than the truth."""
    return math.sqrt(sum(count / multiplier**2 for _, multiplier, count in recipe))


def _by_distribution(recipe: Recipe, delta: float) -> float:
    return max(losses.epsilon(delta) for losses in composed(recipe, delta))


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

    def feasible(self, records: np.ndarray) -> float:
        """How many shared parameters have a signal that is as strong as the noise, if the gradients of all clients'
        `records` point the same way; infinite without noise.

        A step adds up the sampled records' bounds, and one draw of noise: over all steps of all clients that is a
        signal of sum(steps x rate x records) and a variance of sum(steps x z^2) in each parameter.
        """
        steps = self.turns * self.steps
        variance = float((steps * self.multipliers**2).sum())
        return float((steps * self.sampling * records).sum()) ** 2 / variance if variance > 0 else math.inf


@dataclass(frozen=True)
class RecordNeeds:
    """What a record-level method releases of each client, besides its noisy gradients."""

    matrix_share: float = 0.0
    """The share of epsilon that matrices which are released once may cost."""
    matrices: int = 1
    """How many of these there are."""
    means: int = 0
    """How many means over validation records leave in a round."""
    held_out: float = 0.0
    """The share of a client's training records that is set aside for such means."""
    matrix_entries: int = 0
    """How many entries such a matrix has at the most; zero where that is not declared."""


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
    needs: RecordNeeds = RecordNeeds(),
    varied: Varied = "noise",
) -> RecordPlan:
    """Noise for each client's budget, or how often a client may take part with a given `multiplier`.

    `records` are the clients' numbers of training records, `turns` how often a client takes part at the most. Records
    that are set aside are disjoint from those that are trained on, so means over them have the whole budget to
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
            plan.turns[who] = affordable(budget, delta, (rate, multiplier, int(count)), turns, others)
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
    sampling = sampling_rates(trained if varied == "noise" else [float(np.mean(trained))] * len(trained), batch)
    steps = np.array([epochs * math.ceil(1 / rate) for rate in sampling])
    blank = {name: np.zeros(len(steps)) for name in ("multipliers", "matrix_multipliers", "mean_multipliers")}
    most = np.full(len(steps), turns)
    return RecordPlan(sampling, steps, budgets=budgets, turns=most, validation=validation, **blank)


def _matrix(needs: RecordNeeds, budget: float, delta: float) -> Recipe:
    """What the matrices that are released once cost together, where the method releases any."""
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
