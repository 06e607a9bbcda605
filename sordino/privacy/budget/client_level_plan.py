"""Plan of a run that protects whole clients: noise, epsilon for every observer, feasible size; and, for either unit,
the default and the check of delta."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sordino.errors import UserError
from sordino.federation.schedule import Schedule
from sordino.privacy.accounting.gaussian import attack_accuracy, epsilon_of, mu_of, rdp_epsilon
from sordino.privacy.accounting.sampled_gaussian import record_epsilon
from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.budget.shared_noise import Noise, ProtectFrom
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS, View, honest_shares
from sordino.util.formatting import percent_up


@dataclass(frozen=True)
class Plan:
    """Cost of a run that protects whole clients, and what it could achieve. Unit: one client, zero-out neighbours."""

    epsilon: dict[View, float]
    attack_accuracy: dict[View, float]
    noise_multiplier: float
    """Noise over sensitivity that the protected observer meets in one round."""
    rdp_epsilon: float
    """Epsilon that the papers' accountant prints for this multiplier: looser than the exact figure."""
    feasible_parameters: int
    """Rough number of shared parameters that this cohort can train at this budget: (clients * mu)^2."""
    delta: float
    warnings: list[str]
    advice: list[str]


def default_delta(units: int) -> float:
    """A delta that means something for this many units: min(1e-5, N^-1.1 / 10)."""
    return min(1e-5, units**-1.1 / 10)


def check_delta(delta: float, units: int, unit: Unit, allow_vacuous: bool) -> list[str]:
    """Refuse a delta that promises nothing; warn of one that promises little.

    Args:
        delta: delta of the budget.
        units: number of units it hides one among (`Unit.crowd_size`).
        unit: what is protected.
        allow_vacuous: warn instead of refusing.
    """
    usual = f"{default_delta(units):.1e}"
    if not 0 < delta < 1:
        raise UserError(f"delta is {delta:g}, but must lie between 0 and 1; try {usual}.")
    many, whole = unit.crowd(units), unit.vacuous_release()
    if delta >= 1 / units:
        if not allow_vacuous:
            raise UserError(
                f"delta = {delta:g} is vacuous for {many}: publishing {whole} already satisfies delta = 1/{units}. "
                f"Choose a smaller one, for example {usual}, or insist with --allow-vacuous-delta."
            )
        return [
            f"delta = {delta:g} is at least 1/{units}: publishing {whole} satisfies it; this epsilon promises nothing."
        ]
    if delta > 1 / (10 * units):
        return [f"delta = {delta:g} is above 1/(10 x {units}): weak; {usual} is a sound choice."]
    return []


def multiplier_for(epsilon: float, delta: float, releases: int) -> float:
    """The noise multiplier of each round at which `releases` rounds cost exactly (epsilon, delta)."""
    if not epsilon > 0:
        raise UserError(f"epsilon is {epsilon:g}, but must be above 0; 1 is strong, 8 is common.")
    return math.sqrt(releases) / mu_of(epsilon, delta)


def planned_epsilon(allowance: Allowance, turns: float, delta: float) -> float | None:
    """Epsilon of the protected observer if every client takes all of its turns; None where nothing is noised, or where
    nobody's budget ends the run.

    Where records have budgets of their own it is the largest of them, or the cost of training where published rates
    exceed them.
    """
    if allowance.noise is not None:
        return epsilon_of(math.sqrt(turns) / allowance.noise.multiplier, delta)
    records = allowance.records
    if records is None or not records.multipliers.any():
        return None
    largest = float(records.budgets.max())
    if not math.isfinite(largest):
        return None
    for budget in set(records.budgets.tolist()):
        who = [client for client, own in enumerate(records.budgets.tolist()) if own == budget]
        if len({float(records.multipliers[client]) for client in who}) > 1:
            continue  # each client's noise was made for the budget
        charges = {(records.charge(client), int(records.turns[client])) for client in who}
        trained = [record_epsilon(((rate, z, steps * times),), delta) for (rate, z, steps), times in charges if times]
        largest = max([largest, *trained])
    return largest


def plan(
    clients: int,
    rounds: int,
    delta: float | None = None,
    *,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    protect_from: ProtectFrom = "outsider",
    participation: float = 1.0,
    parameters: int | None = None,
    allow_vacuous_delta: bool = False,
    minimum_cohort: int | None = None,
    colluders: int = 0,
    exposed: bool = False,
    kept: float = 0.0,
) -> Plan:
    """Plan `rounds` rounds with `clients` clients: their cost at a noise multiplier, or the multiplier for a budget.

    Clients take turns, so each pays for about the share `participation` of the rounds.

    Args:
        clients: number of clients.
        rounds: number of rounds.
        delta: delta at which epsilon holds; by default min(1e-5, clients^-1.1 / 10).
        epsilon: budget of each client against `protect_from`. Give either this or `noise_multiplier`.
        noise_multiplier: standard deviation of the noise on a sum of clients' messages over the most that one client
            adds to it.
        protect_from: observer whom the noise is planned against: "outsider", who sees sums and models, or "server".
        participation: share of the clients in each round.
        parameters: number of parameters that would be shared, for the advice.
        allow_vacuous_delta: whether a delta of 1 / clients or more is accepted.
        minimum_cohort: number of clients that the noise of a sum is shared out over; by default all who are asked.
        colluders: number of clients that tell others their noise.
        exposed: whether single messages become known.
        kept: share of mu^2 that is kept for what is asked behind the last round.
    """
    schedule = Schedule.of(rounds, clients, participation)
    if (epsilon is None) == (noise_multiplier is None):
        raise UserError("Give either an epsilon or a noise multiplier, not both and not neither.")
    delta = default_delta(clients) if delta is None else delta
    warnings = check_delta(delta, clients, Unit.CLIENT, allow_vacuous_delta)
    cohort, releases = schedule.cohort, schedule.turns
    if noise_multiplier is None:
        assert epsilon is not None
        # Rounds have the share 1 - kept of mu^2, which falls with the square of the multiplier.
        noise_multiplier = multiplier_for(epsilon, delta, releases) / math.sqrt(1 - kept)
    if not noise_multiplier > 0:
        raise UserError(f"The noise multiplier is {noise_multiplier:g}, but must be above 0.")
    protected = math.sqrt(releases / (1 - kept)) / noise_multiplier
    planned = honest_shares(protect_from, minimum_cohort or cohort, colluders)
    shares = {view: honest_shares("server" if exposed else view, cohort, colluders) for view in VIEWS}
    mu = {view: protected * math.sqrt(planned / shares[view]) for view in VIEWS}
    noise = Noise(noise_multiplier, protect_from, minimum_cohort or cohort, colluders)
    feasible = round(noise.feasible(clients, releases))
    return Plan(
        epsilon={view: epsilon_of(mu[view], delta) for view in VIEWS},
        attack_accuracy={view: attack_accuracy(mu[view]) for view in VIEWS},
        noise_multiplier=noise_multiplier,
        rdp_epsilon=rdp_epsilon(noise_multiplier, releases, delta),
        feasible_parameters=feasible,
        delta=delta,
        warnings=warnings + _warnings(mu, protect_from),
        advice=_advice(clients, feasible, parameters, protect_from) + _ask_all(schedule, feasible, protect_from),
    )


def drowning_warning(parameters: int, feasible: int) -> str:
    """The sentence for a model that is too large for a budget."""
    return (
        f"The model shares {parameters:,} parameters, but only about {feasible:,} can be trained at this budget: "
        "the sum of updates would drown in noise."
    )


def _warnings(mu: dict[View, float], protect_from: ProtectFrom) -> list[str]:
    found = []
    accuracy = attack_accuracy(mu[protect_from])
    if accuracy > 0.9:
        found.append(
            f"The best attack by the protected observer ({protect_from}) tells who took part with "
            f"{percent_up(accuracy)} accuracy: this is hardly privacy."
        )
    if protect_from == "outsider" and attack_accuracy(mu["server"]) > 0.9:
        found.append(
            "The server sees each message with a fraction of the noise: its larger epsilon above holds unless "
            "secure aggregation hides single messages, or the server is trusted."
        )
    return found


def _ask_all(schedule: Schedule, feasible: int, protect_from: ProtectFrom) -> list[str]:
    """Say what asking everybody would bring where clients share noise and some are left out of a round.

    Each of n clients takes T p turns in T rounds, so its noise has z^2 = T p / mu^2, shared out over n p messages: all
    messages together train n T p / (z^2 / (n p)) = p (n mu)^2 parameters.
    """
    clients, cohort, rounds = schedule.clients, schedule.cohort, schedule.rounds
    if cohort >= clients or protect_from != "outsider":
        return []
    fewer = max(1, round(rounds * cohort / clients))
    return [
        f"Ask everybody: with a share p of n clients in each round p (n mu)^2 parameters can be trained, whatever the "
        f"number of rounds. At the same epsilon participation = 1 makes that about "
        f"{round(feasible * clients / cohort):,}, {clients / cohort:.3g} times as many, for {clients:,} messages a "
        f"round instead of {cohort:,}; {fewer:,} round{'' if fewer == 1 else 's'} then take as many messages as "
        f"{rounds:,} now."
    ]


def _advice(clients: int, feasible: int, parameters: int | None, protect_from: ProtectFrom) -> list[str]:
    """Advise what to do when signal would drown in noise (feasibility law: d <= (n mu)^2)."""
    if parameters is None:
        return [
            f"About {feasible:,} shared parameters can be trained at this budget, whatever the number of rounds; "
            "give --model and --data to compare with a model."
        ]
    if parameters <= feasible:
        return [f"The model shares {parameters:,} parameters; about {feasible:,} are feasible: go ahead."]
    lack = parameters / max(feasible, 1)
    # Against outsiders the feasible size grows with the square of the clients, against the server linearly.
    needed = math.ceil(clients * (math.sqrt(lack) if protect_from == "outsider" else lack))
    return [
        drowning_warning(parameters, feasible),
        f"More clients: about {needed:,} of them make this model feasible at the same epsilon.",
        f"Fewer shared parameters: a smaller model, or a shared part of at most {feasible:,} parameters.",
        "Record level: if each client is an institution with many people's records, protect records instead of "
        "clients.",
        "Or train locally: with few clients and this budget, `--method local` is the baseline to beat.",
    ]
