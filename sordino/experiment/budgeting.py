"""Noise for an experiment's privacy budget, at client or record level, and notes and warnings to the user about it.

These are the parts of which `sordino.terms.derive_costs` is made.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.federation.schedule import Schedule
from sordino.learning.parameters import Layout
from sordino.method import Method, check_returned
from sordino.methods.bases import RecordLevel
from sordino.parts.masks import PersonalHead, body
from sordino.privacy.budget.allowance import Allowance, Noise, Outlook
from sordino.privacy.budget.client_level_plan import default_delta, drowning_warning, multiplier_for
from sordino.privacy.budget.record_level_plan import RecordNeeds, RecordPlan, plan_records, plan_without_noise
from sordino.privacy.noise import Seeded
from sordino.privacy.release import Releases, all_releases
from sordino.util.formatting import round_up

GIVEN_AWAY = {
    "blend": "A blended model stays at its client and costs nothing there; given away, its local parts tell of that "
    "client's records without any noise",
    "recalibrate": "A recalibrated model stays at its client and costs nothing there; given away, its slope and "
    "offsets, and the local model that it may be mixed with, tell of that client's records without any noise",
}
"""By the experiment's key `personal`, what epsilon does not cover of the models that clients predict with."""
SEED_IS_KNOWN = "its noise comes from the run's seed, and whoever knows the seed can subtract it"
"""Reason why no epsilon holds where whole numbers are drawn for a simulation."""
LEAST_USUAL, MOST_USUAL = 0.01, 100.0
"""Smallest and largest epsilon that users mean; beyond them a note asks."""
TOLERANCE = 1e-6
"""Share of a budget by which a figure may exceed it and still keep it: rounding of the search."""
ROUNDED = 0.005
"""Rounding error of a share of the clients that is written with two decimals."""


@dataclass(frozen=True)
class Calibration:
    """Rule by which noise follows from a budget, where noise is drawn in floats or from a seed that everybody knows."""

    turns: int
    """Most turns of a client that its budget pays for."""
    shares: int | None = None
    """Honest shares of noise in every sum; None where they follow from the cohort."""
    whole: bool = False
    """Whether noise is in whole numbers that nobody can subtract, and what they add to epsilon is charged."""
    metrics_share: float = 0.0
    """Share of the budget that is kept for accuracies which sites share."""
    evaluation_share: float = 0.0
    """Share of the budget that is kept for the histogram of test records."""

    @property
    def kept(self) -> float:
        """Share of the budget, of mu^2, that rounds do not get where whole clients are protected."""
        return self.metrics_share + self.evaluation_share

    def multiplier(self, epsilon: float, delta: float) -> float:
        """Return the noise multiplier at which all turns, and what is asked behind the last of them, cost (epsilon,
        delta), where whole clients are protected."""
        rounding = 1 + 1e-12 * bool(self.kept)
        return rounding * multiplier_for(epsilon, delta, self.turns) / math.sqrt(1 - self.kept)

    def plan(self, records: list[int], budgets: np.ndarray, delta: float, **settings: Any) -> RecordPlan:
        """Plan the spending of each client's records, where records are protected; `settings` are those of
        `plan_records`."""
        return plan_records(records, budgets, delta, **settings)


def record_level(method: Method) -> RecordLevel | None:
    """Return the method where it protects records, None where it protects whole clients; one that protects records and
    is no `RecordLevel` is refused."""
    if not method.unit.record_level:
        return None
    if not isinstance(method, RecordLevel):
        raise UserError(
            f"{type(method).__name__} protects records, but is no subclass of sordino.methods.bases.RecordLevel, "
            "which holds the clients' budgets: derive it from that."
        )
    return method


def is_private(steps: Mapping[str, Releases]) -> bool:
    """Return whether anything that the steps send carries noise."""
    return any(release.private for release in all_releases(steps))


def plan_method(
    experiment: Experiment,
    method: Method,
    steps: Mapping[str, Releases],
    sizes: np.ndarray | None,
    schedule: Schedule,
    turns: int,
) -> tuple[Method, list[str]]:
    """Let a method make the choices that depend on what records can pay for, and return a sentence on each.

    Args:
        experiment: the configuration.
        method: one whose choices by the number of clients are made.
        steps: its steps, each with what it sends.
        sizes: training records of each client; known where records are protected.
        schedule: rounds and cohorts.
        turns: most turns of a client that its budget pays for.
    """
    level = record_level(method)
    if level is None or not is_private(steps):
        return method, []
    assert sizes is not None
    delta = experiment.delta or default_delta(int(sizes.max()))
    budgets = client_budgets(experiment, level, schedule)
    return level.planned(Outlook(sizes, budgets, delta, turns, experiment.noise_multiplier))


def client_budgets(experiment: Experiment, method: RecordLevel, schedule: Schedule) -> np.ndarray:
    """Return the epsilon that each client allows; infinite where only the noise is given, and nobody is stopped."""
    if experiment.noise_multiplier is not None and experiment.epsilon is None and method.budgets is None:
        return np.full(schedule.clients, np.inf)
    random = np.random.default_rng(Seeded(experiment.seed).key("budgets"))
    return method.client_budgets(schedule.clients, experiment.asked_epsilon, random)


def smallest_cohort(experiment: Experiment, schedule: Schedule) -> int:
    """Return the fewest answers with which a question is used; a cohort that leaves no honest noise is refused."""
    minimum = experiment.minimum_cohort or schedule.cohort
    if minimum > schedule.cohort:
        raise UserError(f"minimum_cohort is {minimum}, but a round has {schedule.cohort} clients.")
    if experiment.colluders >= minimum:
        raise UserError(f"With {experiment.colluders} colluders among {minimum} clients no honest noise is left.")
    return minimum


def client_noise(
    experiment: Experiment, method: Method, records: int, delta: float, minimum: int, calibration: Calibration
) -> tuple[Noise, list[str]]:
    """Work out the noise where whole clients are protected, and what to tell the user about it.

    Args:
        experiment: the configuration, with an epsilon or a noise multiplier.
        method: the method; in the variant `paper` its own accounting may decide the noise.
        records: training records of all clients together, for that accounting.
        delta: delta of the budget.
        minimum: fewest answers with which a question is used.
        calibration: rule by which noise follows from the budget.
    """
    multiplier, notes = experiment.noise_multiplier, []
    if multiplier is None:
        epsilon = experiment.asked_epsilon
        if method.variant == "paper":
            multiplier = method.published_multiplier(epsilon, delta, experiment.rounds, records)
            if multiplier is not None:
                notes.append(
                    f"The published accounting asks for a noise multiplier of {multiplier:.3f} at epsilon "
                    f"{epsilon:g}; the true epsilon is computed from what really leaves."
                )
        if multiplier is None:
            multiplier = calibration.multiplier(epsilon, delta)
    return share_noise(experiment, minimum, calibration, multiplier), notes


def share_noise(experiment: Experiment, minimum: int, calibration: Calibration, multiplier: float) -> Noise:
    """Return noise that is shared out over the messages of a sum as the experiment says.

    Args:
        experiment: the configuration, which says against whom noise is planned and how many clients may collude.
        minimum: fewest answers with which a question is used.
        calibration: says how many shares are guaranteed on real machines.
        multiplier: noise over sensitivity for the protected observer.
    """
    return Noise(multiplier, experiment.protect_from, minimum, experiment.colluders, calibration.shares)


def has_published_noise(method: Method) -> bool:
    """Return whether a method in the variant `paper` takes its noise from the paper's own accounting."""
    return method.variant == "paper" and type(method).published_multiplier is not Method.published_multiplier


def same_as_sound(method: Method, steps: Mapping[str, Releases]) -> list[str]:
    """Return a note that a method in the variant `paper` is the same mechanism as in `sound`, where that is so. `steps`
    are those of the method: what leaves, and with which noise and sampling, is compared."""
    if method.variant == "sound" or has_published_noise(method):
        return []
    sound = replace(method, variant="sound")
    varied = [one.varied if isinstance(one, RecordLevel) else None for one in (method, sound)]
    if steps != sound.steps() or varied[0] != varied[1]:
        return []
    return ["The variant `paper` of this method sends the same as `sound`, with the same noise."]


def record_plan(
    experiment: Experiment,
    method: RecordLevel,
    needs: RecordNeeds,
    sizes: np.ndarray,
    budgets: np.ndarray,
    schedule: Schedule,
    delta: float,
    calibration: Calibration,
    minimum: int,
    sites: int = 1,
) -> RecordPlan:
    """Plan what clients' records spend, from their budgets or from a given noise multiplier.

    Args:
        experiment: the configuration.
        method: the record-level method.
        needs: what its steps release besides noisy gradients.
        sizes: training records of each client that is planned for: all of a run's, or a single site's.
        budgets: the epsilon that each of them allows.
        schedule: rounds and cohorts.
        delta: delta of the budgets.
        calibration: rule by which noise follows from them.
        minimum: fewest answers with which a question is used, over which shared noise is shared out.
        sites: largest number of clients that one person is known to, where persons are protected.
    """
    multiplier = experiment.noise_multiplier
    # Where the noise is given, who has budget left may take the turns of those who have none.
    stops = multiplier is not None and method.varied == "noise"
    takes_over = stops and np.isfinite(budgets).all() and not needs.means
    plan = calibration.plan(
        sizes.tolist(),
        budgets,
        delta,
        batch=method.batch,
        epochs=method.epochs,
        turns=schedule.rounds if takes_over else calibration.turns,
        multiplier=multiplier,
        needs=needs,
        varied=method.varied,
        batches=method.batches,
        sharing=functools.partial(share_noise, experiment, minimum, calibration) if needs.sums else None,
        sites=sites,
    )
    if not plan.turns.any():
        raise UserError(
            f"With a noise multiplier of {multiplier:g} not one round fits into any client's budget: give more noise, "
            "a larger epsilon, or only an epsilon and let the noise follow."
        )
    if method.variant == "paper" and multiplier is None:
        everybody, rounds = int(sizes.sum()), schedule.rounds if method.counts_all_rounds else schedule.turns
        published = [method.published_multiplier(float(b), delta, rounds, everybody) for b in budgets]
        if all(z is not None for z in published):
            return replace(plan, multipliers=np.array(published, dtype=float))
    return plan


def record_plan_without_noise(
    experiment: Experiment, method: RecordLevel, needs: RecordNeeds, sizes: np.ndarray, schedule: Schedule
) -> RecordPlan:
    """Plan the batches and steps of a record-level method in a run without privacy; `sizes` are the clients' training
    records."""
    return plan_without_noise(
        sizes.tolist(),
        client_budgets(experiment, method, schedule),
        batch=method.batch,
        epochs=method.epochs,
        turns=schedule.turns,
        needs=needs,
        varied=method.varied,
        batches=method.batches,
    )


def unusual_budget(epsilon: float) -> list[str]:
    """Return a note on an epsilon that is allowed, but hardly meant."""
    if LEAST_USUAL <= epsilon <= MOST_USUAL:
        return []
    means = "noise that leaves nothing to learn from" if epsilon < 1 else "hardly any protection"
    return [f"epsilon = {epsilon:g} means {means}: budgets lie between {LEAST_USUAL:g} and {MOST_USUAL:g}."]


def beyond_budgets(spent: Mapping[int, float], budgets: np.ndarray, names: Sequence[str]) -> list[str]:
    """Return a warning where records pay more than their clients allow: how many clients' do, and whose by the largest
    factor.

    Args:
        spent: epsilon that each client's records pay, by the client's number.
        budgets: the epsilon that each client allows.
        names: the clients' names.
    """
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
    """Return notes on budgets that clients have of their own: that they overrule epsilon, and that shares which do not
    come to one are scaled."""
    if method.budgets is None:
        return []
    shares = [float(part.partition(":")[2]) for part in method.budgets.split(",") if ":" in part]
    notes = []
    if experiment.epsilon is not None:
        notes.append(f"The clients' own budgets count, and epsilon = {experiment.epsilon:g} does not.")
    if shares and abs(sum(shares) - 1) > ROUNDED * len(shares) * (1 + TOLERANCE):
        notes.append(f"The shares of the clients' budgets come to {sum(shares):g}, not 1: each is divided by that.")
    return notes


def unusual(experiment: Experiment, method: Method, steps: Mapping[str, Releases], schedule: Schedule) -> list[str]:
    """Return notes on what is allowed, but hardly meant."""
    if not is_private(steps):
        return []
    level = record_level(method)
    notes = [] if level is None else own_budgets(experiment, level)
    if experiment.epsilon is not None and not notes:  # it counts
        notes = unusual_budget(experiment.epsilon)
    if level is None and schedule.clients == 1:
        notes.append(
            "There is one client, and this method protects clients as wholes: nobody's noise adds to its own. Protect "
            "its records, for example with --method dp-fedavg-record."
        )
    return notes


def not_covered_before(experiment: Experiment, method: Method) -> list[str]:
    """Return sentences on what epsilon does not cover, known before a run, besides what was read from records."""
    if method.privacy != "dp":  # there is no epsilon that could leave things out
        return []
    disclosed = check_returned(method, "discloses", method.discloses(), list)
    return disclosed + ([GIVEN_AWAY[experiment.personal]] if experiment.personal in GIVEN_AWAY else [])


def infeasible(
    method: Method, steps: Mapping[str, Releases], allowance: Allowance, schedule: Schedule, layout: Layout
) -> list[str]:
    """Return the warning that a network is too large for the budget, where whole clients are protected."""
    noise, parameters = allowance.noise, shared_parameters(method, steps, layout.size, layout)
    if noise is None or parameters is None:
        return []
    feasible = noise.feasible(schedule.clients, schedule.turns)
    if parameters <= feasible:
        return []
    return [
        f"{drowning_warning(parameters, round(feasible))} `sordino plan` and `sordino advise` say what to do about it."
    ]


def shared_parameters(
    method: Method, steps: Mapping[str, Releases], parameters: int | None, layout: Layout | None
) -> int | None:
    """Return how many coordinates carry noise in what a client sends; None where that is not known beforehand.

    Args:
        method: the method, part of whose network may be personal.
        steps: its steps, whose masks may follow from data: then it is not known.
        parameters: parameters of the network; None where there is none.
        layout: layers of the network, where it can be looked at.
    """
    if layout is not None and isinstance(method, PersonalHead):
        return int(body(layout, method.personal_layers).sum())
    releases = all_releases(steps)
    if parameters is None or any(getattr(release, "at", None) is not None for release in releases):
        return None
    return parameters * max((getattr(release, "times", 1) for release in releases), default=1)
