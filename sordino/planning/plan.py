"""A plan for an experiment: what its noise will be and what its budget comes to, before anything is spent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from sordino.data.federate import DEFAULT_CLIENTS, usual_names
from sordino.errors import UserError
from sordino.experiment.budgeting import beyond_budgets, shared_parameters
from sordino.experiment.config import Experiment
from sordino.method import Method
from sordino.planning.situation import Situation
from sordino.privacy.accounting.gaussian import epsilon_of
from sordino.privacy.accounting.sampled_gaussian import (
    ROWS,
    replaced_epsilon,
    rows_epsilon,
    sites_attack_accuracy,
    sites_epsilon,
)
from sordino.privacy.budget.client_level_plan import Plan, plan
from sordino.privacy.budget.record_level_plan import RecordPlan
from sordino.privacy.budget.shared_noise import Noise
from sordino.privacy.ledger import seen_by
from sordino.privacy.release import RecordSum, all_releases
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS, View
from sordino.store.spending import planned_recipes
from sordino.terms import Costs, Facts, derive_costs
from sordino.util.formatting import percent_up

MOST_LISTED = 1_000_000
"""Most clients that a plan lists one by one."""
SECONDS_OF_QUESTION = 1.0
"""About how long a question takes on real machines with a secure sum, in seconds. Four sites on one machine took 0.2
(experiments/hospitals_deployed.py); networks and larger models add to it."""
ASK_SIZES = "say it with --records, or name the data with --data"


@dataclass(frozen=True)
class PlanOfSums:
    """Noise of sums over all clients' records, which the clients share."""

    rounds: int
    """T: number of sums of gradients, one in a round."""
    sampling: float
    """q: the largest probability with which a record enters such a sum."""
    noise_multiplier: float
    """z: noise of a sum over the threshold, as the observer meets it whom the noise is planned against."""
    guaranteed_shares: int
    """Number of clients' shares that no observer can subtract; one where each message carries all of the noise."""
    noise_of_client: float
    """Standard deviation of what one client adds to its message, in thresholds: z over the root of these shares."""
    once: list[dict[str, Any]]
    """Sums over all records that leave once: `release`, `share` (of mu^2), `deviation` (of the sum's noise, where one
    record counts 1) and `epsilon` (alone)."""
    deployment_seconds: float
    """Duration on real machines, at about one second for each question."""


@dataclass(frozen=True)
class PlanForRecords:
    """Cost of a run that protects records, and what it could achieve. Unit: one record; `neighbours` defines the two
    worlds."""

    unit: Literal["record", "person"]
    neighbours: str
    """The two worlds that epsilon compares."""
    epsilon: dict[View, float]
    """Epsilon by observer of the client that spends most."""
    attack_accuracy: dict[View, float]
    epsilon_replace_one: float | None
    """Upper bound of epsilon for one unit replaced by another; None for persons at several clients."""
    epsilon_rows: dict[str, float]
    """Upper bounds of epsilon for a person with 3 and with 5 rows at one client, by number of rows."""
    noise_multiplier: float
    """Noise over sensitivity of one gradient: the median over clients."""
    clients: list[dict[str, Any]]
    """For each client: `client` (its name), records, budget, epsilon, noise_multiplier, sampling, steps of a round,
    turns."""
    feasible_parameters: int
    """Shared parameters that can be trained, roughly: clients x (records x mu)^2; where clients share the noise of sums
    over q of all N records in T rounds, (q N)^2 T / z^2."""
    delta: float
    warnings: list[str]
    advice: list[str]
    method: str = ""
    chosen: str = ""
    """Sentence on the method that was chosen for the data because none was named; empty where one was."""
    parameters: int | None = None
    """Parameters that the network shares, where they are known."""
    sums: PlanOfSums | None = None
    """Noise of sums; None where each client adds noise of its own to its own gradients."""


def plan_of(
    experiment: Experiment, parameters: int | None = None, records: int | None = None, look: bool = False
) -> Plan | PlanForRecords:
    """Plan an experiment: its noise, its cost for every observer, and what could be trained.

    Args:
        experiment: the configuration.
        parameters: parameters of the network, where none is looked at.
        records: training records of each client, where no data are looked at.
        look: whether to load the data and build the network, and to take sizes from them.
    """
    chosen = ""
    if look and experiment.unnamed:
        from sordino.experiment.prepare import choose_method

        experiment, chosen = choose_method(experiment)
    method = experiment.build_method()
    _check_plannable(experiment, method)
    clients = experiment.clients or DEFAULT_CLIENTS
    if method.unit.record_level and clients > MOST_LISTED:
        raise UserError(
            f"A plan for records tells of each client, and {clients:,} are too many to list: plan for at most "
            f"{MOST_LISTED:,}."
        )
    names: Sequence[str] | None = None
    if look:
        facts, names = _looked_at(experiment, method, parameters, records)
    else:
        sizes = None if records is None else np.broadcast_to(records, clients)
        facts = Facts(clients=clients, sizes=sizes, persons=experiment.person_rules, ask_sizes=ASK_SIZES)
    costs = derive_costs(experiment, facts, method)
    layout = None if facts.network is None else facts.network.learner.layout
    parameters = parameters if layout is None else layout.size
    if facts.sizes is not None and costs.method.unit.record_level:
        found = _records_plan(experiment, costs, facts.sizes, names or usual_names(facts.clients), parameters)
        return replace(found, chosen=chosen)
    return _clients_plan(experiment, costs, shared_parameters(costs.method, costs.declared, parameters, layout))


def _looked_at(
    experiment: Experiment, method: Method, parameters: int | None, records: int | None
) -> tuple[Facts, list[str]]:
    """Read the facts from the experiment's data and network, and the clients' names; what is given besides, and would
    be ignored, is refused."""
    from sordino.experiment.prepare import read_facts

    if records is not None:
        raise UserError("The data say how many records a client has: leave out either --records or the data.")
    if parameters is not None and experiment.model is not None:
        raise UserError("The model says how many parameters it has: leave out either --parameters or --model.")
    data, facts = read_facts(experiment, method)
    if parameters is not None:  # another network is meant than the one that would be built
        facts = replace(facts, network=None)
    return facts, data.names


def _clients_plan(experiment: Experiment, costs: Costs, parameters: int | None) -> Plan:
    """Plan a run that protects whole clients, of which each shares `parameters`, where that is known."""
    noise = costs.allowance.of_clients
    found = plan(
        costs.schedule.clients,
        experiment.rounds,
        costs.budget.delta,
        noise_multiplier=noise.multiplier,
        protect_from=experiment.protect_from,
        participation=experiment.participation,
        parameters=parameters,
        allow_vacuous_delta=True,  # `derive_costs` has refused it, where it is to be refused
        minimum_cohort=noise.minimum_cohort,
        colluders=noise.colluders,
        exposed=any(release.exposes_history() for release in all_releases(costs.declared)),
        kept=costs.calibration.kept,
    )
    if costs.evaluation:
        found.advice.append(
            f"{experiment.evaluation_share:.0%} of the budget (of mu^2) pays for one noised sum over test records, "
            "from which figures of the shared model follow: AUC, accuracy, recall and calibration of classes, R² and "
            "errors of numbers, Brier scores of times to an event."
        )
    found.warnings.extend(note for note in costs.notes if note not in found.warnings)
    return found


def _records_plan(
    experiment: Experiment, costs: Costs, sizes: np.ndarray, names: Sequence[str], parameters: int | None
) -> PlanForRecords:
    """Plan a run that protects records.

    Args:
        experiment: the configuration.
        costs: what may be spent.
        sizes: training records of each client.
        names: the clients' names.
        parameters: parameters of the network, where they are known.
    """
    noise, delta, clients = costs.allowance.of_records, costs.budget.delta, costs.schedule.clients
    recipes = planned_recipes(costs)
    by_view = {view: [[seen_by(view, one) for one in mine] for mine in recipes] for view in VIEWS}
    worst = {view: [sites_epsilon(tuple(mine), 1, delta) for mine in by_view[view]] for view in VIEWS}
    if costs.sites > 1:  # whichever clients know a person
        everybody = {view: tuple(sorted({one for mine in by_view[view] for one in mine})) for view in VIEWS}
        worst = {view: [sites_epsilon(everybody[view], costs.sites, delta)] * clients for view in VIEWS}
    each = worst[costs.allowance.observer]
    pools = {tuple(mine) for mine in by_view[costs.allowance.observer]}
    distinct = {recipe for mine in pools for recipe in mine}
    known = noise.budgets[np.isfinite(noise.budgets)]
    middle = float(np.median(known)) if len(known) else max(each)
    records = max(1, round(float(np.median(sizes))))
    # The law for noise at each client is the one for noise against the server.
    where = Situation(clients, records, middle, parameters, "server", delta, total=int(sizes.sum()))
    feasible = where.feasible(Unit.RECORD) if noise.shared is None else math.floor(noise.feasible(sizes))
    accuracy = sites_attack_accuracy(tuple(sorted(distinct)), costs.sites)
    rows = ROWS if costs.unit is Unit.RECORD else ()
    return PlanForRecords(
        unit="person" if costs.unit is Unit.PERSON else "record",
        neighbours=costs.unit.neighbours,
        epsilon={view: max(worst[view]) for view in VIEWS},
        attack_accuracy={
            view: sites_attack_accuracy(tuple(sorted({one for mine in by_view[view] for one in mine})), costs.sites)
            for view in VIEWS
        },
        epsilon_replace_one=None if costs.sites > 1 else max(replaced_epsilon(recipe, delta) for recipe in distinct),
        epsilon_rows={str(many): max(rows_epsilon(one, many, delta) for one in pools) for many in rows},
        noise_multiplier=costs.budget.multiplier,
        clients=[{"client": names[number]} | _client(noise, sizes, number, one) for number, one in enumerate(each)],
        feasible_parameters=feasible,
        delta=delta,
        warnings=[*costs.notes, *beyond_budgets(dict(enumerate(each)), noise.budgets, names), *_weak(accuracy)],
        advice=_advice(feasible, parameters, noise.shared is not None),
        method=experiment.method,
        parameters=parameters,
        sums=None if noise.shared is None else _sums(costs, noise.shared),
    )


def _sums(costs: Costs, shared: Noise) -> PlanOfSums:
    """Describe the noise that clients share, and the sums that leave once."""
    plan, rounds, delta = costs.allowance.of_records, costs.schedule.rounds, costs.budget.delta
    added_up = math.sqrt(costs.schedule.cohort / shared.guaranteed)  # more than one share of each sum's noise
    once = [
        {"release": name, "share": release.share, "deviation": added_up * alone / math.sqrt(release.share)}
        | {"epsilon": epsilon_of(math.sqrt(release.share) / alone, delta)}
        for alone in plan.sum_multipliers[:1].tolist()
        for releases in costs.declared.values()
        for name, release in releases.items()
        if isinstance(release, RecordSum) and release.once
    ]
    return PlanOfSums(
        rounds=rounds,
        sampling=float(plan.sampling.max()),
        noise_multiplier=shared.multiplier,
        guaranteed_shares=shared.guaranteed,
        noise_of_client=shared.of_message(1.0),
        once=once,
        deployment_seconds=SECONDS_OF_QUESTION * (rounds + len(once)),
    )


def _client(noise: RecordPlan, sizes: np.ndarray, client: int, epsilon: float) -> dict[str, Any]:
    """Describe what one client's records pay, as a row of the plan."""
    budget = float(noise.budgets[client])
    return {
        "records": int(sizes[client]),
        "budget": budget if np.isfinite(budget) else None,
        "epsilon": epsilon if np.isfinite(epsilon) else None,
        "noise_multiplier": float(noise.multipliers[client]),
        "sampling": float(noise.sampling[client]),
        "steps": int(noise.steps[client]),
        "turns": int(noise.turns[client]),
    }


def _weak(accuracy: float) -> list[str]:
    """Return a warning where the best attack hardly fails."""
    if accuracy <= 0.9:
        return []
    return [
        f"The best attack tells whether a record is there with {percent_up(accuracy)} accuracy: this is hardly privacy."
    ]


def _advice(feasible: int, parameters: int | None, shared: bool) -> list[str]:
    """Say whether a network of this size can be trained.

    Args:
        feasible: number of parameters that can be.
        parameters: those of the network, where they are known.
        shared: whether clients share one noise.
    """
    if parameters is None:
        return [f"About {feasible:,} shared parameters can be trained at this budget; give --data to compare."]
    if parameters > feasible:
        return [
            f"The model shares {parameters:,} parameters, but only about {feasible:,} can be trained at this budget: "
            "the gradients would drown in noise. More records for each client, a smaller model or a larger epsilon "
            "help; `--method local` is the baseline to beat."
        ]
    if shared:
        return [
            f"The model shares {parameters:,} parameters; about {feasible:,} are feasible. `sordino advise` says what "
            "to expect of it beside training alone (`--method local`)."
        ]
    return [
        f"The model shares {parameters:,} parameters; about {feasible:,} are feasible. Clients with so many records "
        "may do well alone: compare with `--method local`."
    ]


def _check_plannable(experiment: Experiment, method: Method) -> None:
    """Refuse an experiment whose epsilon is infinite, or is not known before a run."""
    releases = all_releases(method.steps())
    if experiment.privacy == "none":
        raise UserError('With privacy = "none" there is no noise to plan, and epsilon is infinite: leave it out.')
    if experiment.noise == "integers":
        raise UserError(
            'A simulation with noise = "integers" has an infinite epsilon, whatever is planned: leave it out.'
        )
    if not releases:
        raise UserError(f"Nothing leaves a client with {experiment.method}: it costs no privacy, and needs no plan.")
    if not all(release.private for release in releases):
        raise UserError(
            f"{experiment.method} sends something without noise: its epsilon is infinite, whatever is planned."
        )
    if not all(release.known_beforehand() for release in releases):
        raise UserError(f"The epsilon of {experiment.method} as published is only known after a run: run it to see it.")
