"""How much noise an experiment's budget asks for, what records can pay, and what to tell the user about it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.federation.schedule import Schedule
from sordino.learning.parameters import Layout
from sordino.method import Budget, Method, check_returned
from sordino.methods.bases import RecordLevel
from sordino.parts.masks import PersonalHead, body
from sordino.privacy.budget.allowance import Allowance, Noise, Outlook
from sordino.privacy.budget.client_plan import check_delta, default_delta, drowning_warning, multiplier_for
from sordino.privacy.budget.record_plan import RecordPlan, plan_records, plan_without_noise
from sordino.privacy.noise import Seeded
from sordino.privacy.release import all_releases
from sordino.util.formatting import round_up

GIVEN_AWAY = (
    "A blended model stays at its client and costs nothing there; given away, its local parts tell of that client's "
    "records without any noise"
)
SEED_IS_KNOWN = "its noise comes from the run's seed, and whoever knows the seed can subtract it"
"""Reason why no epsilon holds where whole numbers are drawn for a simulation."""
LEAST_USUAL, MOST_USUAL = 0.01, 100.0
"""Budgets that are meant lie between these."""
TOLERANCE = 1e-6
"""The share of a budget by which a figure may exceed it and still keep it: rounding of the search."""
ROUNDED = 0.005
"""By how much a share of the clients may be off that is written with two decimals."""


@dataclass(frozen=True)
class Spending:
    """What a run may spend, and what to tell the user about it."""

    budget: Budget
    allowance: Allowance
    notes: list[str]


@dataclass(frozen=True)
class Calibration:
    """Noise for a budget where noise is drawn in floats, or from a seed that everybody knows."""

    turns: int
    """Most turns of a client."""
    shares: int | None = None
    """Honest shares of noise in every sum; None where they follow from the cohort."""

    def multiplier(self, epsilon: float, delta: float) -> float:
        """Noise multiplier at which all turns cost (epsilon, delta), where whole clients are protected."""
        return multiplier_for(epsilon, delta, self.turns)

    def plan(self, records: list[int], budgets: np.ndarray, delta: float, **settings: Any) -> RecordPlan:
        """Plan the spending of each client's records, where records are protected; `settings` are those of
        `plan_records`."""
        return plan_records(records, budgets, delta, **settings)


def planned_method(
    experiment: Experiment, method: Method, sizes: np.ndarray, schedule: Schedule, turns: int | None = None
) -> tuple[Method, list[str]]:
    """The method with the choices that it makes from what records can pay for, and a sentence on each; `sizes` are the
    clients' numbers of training records, `turns` how often each may take part, if not as scheduled."""
    if not isinstance(method, RecordLevel) or not method.is_private():
        return method, []
    delta = experiment.delta or default_delta(int(sizes.max()))
    budgets = client_budgets(experiment, method, schedule)
    return method.planned(Outlook(sizes, budgets, delta, turns or schedule.turns, experiment.noise_multiplier))


def client_budgets(experiment: Experiment, method: RecordLevel, schedule: Schedule) -> np.ndarray:
    """The epsilon that each client allows; infinite where only the noise is given, and nobody is stopped."""
    if experiment.noise_multiplier is not None and experiment.epsilon is None and method.budgets is None:
        return np.full(schedule.clients, np.inf)
    random = np.random.default_rng(Seeded(experiment.seed).key("budgets"))
    return method.client_budgets(schedule.clients, experiment.asked_epsilon, random)


def smallest_cohort(experiment: Experiment, schedule: Schedule) -> int:
    """Fewest answers with which a question is used; a cohort that leaves no honest noise is refused."""
    minimum = experiment.minimum_cohort or schedule.cohort
    if minimum > schedule.cohort:
        raise UserError(f"minimum_cohort is {minimum}, but a round has {schedule.cohort} clients.")
    if experiment.colluders >= minimum:
        raise UserError(f"With {experiment.colluders} colluders among {minimum} clients no honest noise is left.")
    return minimum


def spending(
    experiment: Experiment,
    method: Method,
    records: np.ndarray,
    schedule: Schedule,
    calibration: Calibration | None = None,
) -> Spending:
    """Work out the noise and the delta of a budget, where clients have so many training `records`."""
    calibration = calibration or Calibration(schedule.turns)
    units = schedule.clients if method.unit == "client" else int(records.max())
    delta = experiment.delta or default_delta(units)
    minimum = smallest_cohort(experiment, schedule)
    if not method.is_private():
        plan = _plan_without_noise(experiment, method, records, schedule) if method.unit == "record" else None
        return Spending(Budget(delta, 0.0), Allowance(records=plan), [])
    published = method.variant == "paper"
    notes = check_delta(delta, units, method.unit, experiment.allow_vacuous_delta or published)
    notes += [method.caveats[method.variant]] if method.variant in method.caveats else same_as_sound(method)
    if method.unit == "record":
        budgets = client_budgets(experiment, _record_level(method), schedule)
        plan = record_plan(experiment, method, records, budgets, schedule, delta, calibration)
        return Spending(Budget(delta, float(np.median(plan.multipliers))), Allowance(records=plan), notes)
    multiplier = experiment.noise_multiplier
    if multiplier is None:
        epsilon = experiment.asked_epsilon
        if published:
            multiplier = method.published_multiplier(epsilon, delta, experiment.rounds, int(records.sum()))
            if multiplier is not None:
                notes.append(
                    f"The published accounting asks for a noise multiplier of {multiplier:.3f} at epsilon "
                    f"{epsilon:g}; the true epsilon is computed from what really leaves."
                )
        if multiplier is None:
            multiplier = calibration.multiplier(epsilon, delta)
    noise = Noise(multiplier, experiment.protect_from, minimum, experiment.colluders, calibration.shares)
    return Spending(Budget(delta, multiplier), Allowance(noise), notes)


def has_published_noise(method: Method) -> bool:
    """Whether a method in the variant `paper` takes its noise from the paper's own accounting."""
    return method.variant == "paper" and type(method).published_multiplier is not Method.published_multiplier


def same_as_sound(method: Method) -> list[str]:
    """A note that a method in the variant `paper` is the same mechanism as in `sound`, where that is so."""
    if method.variant == "sound" or has_published_noise(method):
        return []
    if _mechanism(method) != _mechanism(replace(method, variant="sound")):
        return []
    return ["In the variant `paper` of this method the same leaves as in `sound`, and with the same noise."]


def _mechanism(method: Method) -> tuple[object, ...]:
    """What leaves, and how the noise and the sampling of records follow from budgets."""
    return (method.steps(), method.varied if isinstance(method, RecordLevel) else None)


def record_plan(
    experiment: Experiment,
    method: Method,
    records: np.ndarray,
    budgets: np.ndarray,
    schedule: Schedule,
    delta: float,
    calibration: Calibration,
) -> RecordPlan:
    """Plan the spending of clients that have so many `records`, from their `budgets` or from a given noise
    multiplier."""
    method = _record_level(method)
    needs = method.record_needs()
    multiplier = experiment.noise_multiplier
    # Where the noise is given, who has budget left may take the turns of those who have none.
    stops = multiplier is not None and method.varied == "noise"
    takes_over = stops and np.isfinite(budgets).all() and not needs.means
    plan = calibration.plan(
        records.tolist(),
        budgets,
        delta,
        batch=method.batch,
        epochs=method.epochs,
        turns=schedule.rounds if takes_over else calibration.turns,
        multiplier=multiplier,
        needs=needs,
        varied=method.varied,
    )
    if not plan.turns.any():
        raise UserError(
            f"With a noise multiplier of {multiplier:g} not one round fits into any client's budget: give more noise, "
            "a larger epsilon, or only an epsilon and let the noise follow."
        )
    if method.variant == "paper" and multiplier is None:
        everybody = int(records.sum())
        published = [method.published_multiplier(float(b), delta, schedule.turns, everybody) for b in budgets]
        if all(z is not None for z in published):
            return replace(plan, multipliers=np.array(published, dtype=float))
    return plan


def _plan_without_noise(experiment: Experiment, method: Method, records: np.ndarray, schedule: Schedule) -> RecordPlan:
    """The batches and steps of a record-level method in a run without privacy."""
    method = _record_level(method)
    return plan_without_noise(
        records.tolist(),
        client_budgets(experiment, method, schedule),
        batch=method.batch,
        epochs=method.epochs,
        turns=schedule.turns,
        held_out=method.record_needs().held_out,
        varied=method.varied,
    )


def _record_level(method: Method) -> RecordLevel:
    if not isinstance(method, RecordLevel):
        raise UserError(
            f"{type(method).__name__} protects records, but is no sordino.methods.bases.RecordLevel: derive it from "
            "that, which knows the clients' budgets."
        )
    return method


def unusual_budget(epsilon: float) -> list[str]:
    """What a budget means that is allowed, but hardly meant."""
    if LEAST_USUAL <= epsilon <= MOST_USUAL:
        return []
    means = "noise that leaves nothing to learn from" if epsilon < 1 else "hardly any protection"
    return [f"epsilon = {epsilon:g} means {means}: budgets lie between {LEAST_USUAL:g} and {MOST_USUAL:g}."]


def beyond_budgets(spent: Mapping[int, float], budgets: np.ndarray, names: Sequence[str]) -> list[str]:
    """A warning where records pay more than their clients allow: how many clients' do, and whose do so by the largest
    factor. `spent` has clients by their numbers, `names` is what they are called."""
    over = {client: epsilon / budgets[client] for client, epsilon in spent.items()}
    beyond = [client for client, factor in over.items() if factor > 1 + TOLERANCE]
    if not beyond:
        return []
    worst = max(beyond, key=lambda client: over[client])
    paid = round_up(spent[worst]) if math.isfinite(spent[worst]) else "infinite"
    return [
        f"{len(beyond)} of {len(budgets)} clients' records pay more than their budgets allow, most of all those of "
        f"{names[worst]}: epsilon {paid} for a budget of {budgets[worst]:g}."
    ]


def own_budgets(experiment: Experiment, method: RecordLevel) -> list[str]:
    """What is to be known of budgets that clients have of their own: that they overrule epsilon, and that shares which
    do not come to one are scaled."""
    if method.budgets is None:
        return []
    shares = [float(part.partition(":")[2]) for part in method.budgets.split(",") if ":" in part]
    notes = []
    if experiment.epsilon is not None:
        notes.append(f"The clients' own budgets count, and epsilon = {experiment.epsilon:g} does not.")
    if shares and abs(sum(shares) - 1) > ROUNDED * len(shares) * (1 + TOLERANCE):
        notes.append(f"The shares of the clients' budgets come to {sum(shares):g}, not 1: each is divided by that.")
    return notes


def unusual(experiment: Experiment, method: Method, schedule: Schedule) -> list[str]:
    """What is allowed, but hardly meant."""
    if not method.is_private():
        return []
    notes = own_budgets(experiment, method) if isinstance(method, RecordLevel) else []
    if experiment.epsilon is not None and not notes:  # it counts
        notes = unusual_budget(experiment.epsilon)
    if method.unit == "client" and schedule.clients == 1:
        notes.append(
            "There is one client, and this method protects clients as wholes: nobody's noise adds to its own. Protect "
            "its records, for example with --method dp-fedavg-record."
        )
    return notes


def notes_before(
    experiment: Experiment, method: Method, schedule: Schedule, spent: Spending, choices: list[str], layout: Layout
) -> list[str]:
    """Notes for the user before a run, wherever it is made; `choices` are those that the method made."""
    return [
        *unusual(experiment, method, schedule),
        *spent.notes,
        *choices,
        *check_returned(method, "notes", method.notes(schedule, spent.budget), list),
        *infeasible(method, spent.allowance, schedule, layout),
    ]


def not_covered_before(experiment: Experiment, method: Method) -> list[str]:
    """Sentences on what epsilon does not cover, known before a run, besides what was read from records."""
    if method.privacy != "dp":  # there is no epsilon that could leave things out
        return []
    disclosed = check_returned(method, "discloses", method.discloses(), list)
    return disclosed + ([GIVEN_AWAY] if experiment.personal == "blend" else [])


def infeasible(method: Method, allowance: Allowance, schedule: Schedule, layout: Layout) -> list[str]:
    """The warning of a plan where whole clients are protected and the network is too large for the budget."""
    noise, parameters = allowance.noise, shared_parameters(method, layout.size, layout)
    if noise is None or parameters is None:
        return []
    feasible = noise.feasible(schedule.clients, schedule.turns)
    if parameters <= feasible:
        return []
    return [
        f"{drowning_warning(parameters, round(feasible))} `sordino plan` and `sordino advise` say what to do about it."
    ]


def shared_parameters(method: Method, parameters: int | None, layout: Layout | None) -> int | None:
    """How many coordinates carry noise in what a client sends, of a network of so many parameters; None where masks
    that follow from data decide it, or a network that is not known."""
    if layout is not None and isinstance(method, PersonalHead):
        return int(body(layout, method.personal_layers).sum())
    releases = all_releases(method.steps())
    if parameters is None or any(getattr(release, "at", None) is not None for release in releases):
        return None
    return parameters * max((getattr(release, "times", 1) for release in releases), default=1)
