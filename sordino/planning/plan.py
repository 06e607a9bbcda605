"""A plan for an experiment: what its noise will be and what its budget comes to, before anything is spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sordino.data.federate import DEFAULT_CLIENTS, usual_names
from sordino.errors import UserError
from sordino.experiment.budgeting import (
    beyond_budgets,
    has_published_noise,
    planned_method,
    shared_parameters,
    spending,
    unusual,
)
from sordino.experiment.config import Experiment
from sordino.federation.schedule import Schedule
from sordino.method import Method
from sordino.parts.masks import check_head
from sordino.planning.advise import Situation
from sordino.privacy.accounting.sampled_gaussian import (
    ROWS,
    record_attack_accuracy,
    record_epsilon,
    replace_one,
    rows_epsilon,
)
from sordino.privacy.budget.client_plan import Plan, plan
from sordino.privacy.budget.record_plan import RecordPlan
from sordino.privacy.release import all_releases
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS, View
from sordino.store.spending import planned_recipes
from sordino.util.formatting import percent_up

if TYPE_CHECKING:
    from sordino.experiment.prepare import Prepared

MOST_LISTED = 1_000_000
"""Of how many clients a plan tells one by one."""


@dataclass(frozen=True)
class PlanForRecords:
    """Cost of a run that protects records, and what it could achieve. Unit: one record; `neighbours` defines the two
    worlds."""

    unit: Literal["record"]
    neighbours: str
    """The two worlds that epsilon compares."""
    epsilon: dict[View, float]
    """Of the client that spends most: the same for every observer."""
    attack_accuracy: dict[View, float]
    epsilon_replace_one: float
    epsilon_rows: dict[str, float]
    """Upper bounds of epsilon for a person with 3 and with 5 rows at one client, by number of rows."""
    noise_multiplier: float
    """Noise over sensitivity of one gradient: the median over clients."""
    clients: list[dict[str, Any]]
    """For each client: `client` (its name), records, budget, epsilon, noise_multiplier, sampling, steps of a round,
    turns."""
    feasible_parameters: int
    """How many shared parameters can be trained, roughly: clients x (records x mu)^2."""
    delta: float
    warnings: list[str]
    advice: list[str]


def plan_of(
    experiment: Experiment, parameters: int | None = None, records: int | None = None, look: bool = False
) -> Plan | PlanForRecords:
    """What an experiment would cost. With `look` its data and network are looked at; else `records` are those of a
    client and `parameters` those of the network, where they are known."""
    method = experiment.build_method()
    _check_plannable(experiment, method)
    clients = experiment.clients or DEFAULT_CLIENTS
    if method.unit == "record" and clients > MOST_LISTED:
        raise UserError(
            f"A plan for records tells of each client, and {clients:,} are too many to list: plan for at most "
            f"{MOST_LISTED:,}."
        )
    sizes, names, layout = None if records is None else np.broadcast_to(records, clients), None, None
    if look:
        prepared = _looked_at(experiment, parameters, records)
        if parameters is None:
            layout = prepared.learner.layout
            check_head(method, layout)
        parameters, sizes = parameters or prepared.learner.layout.size, prepared.data.train.sizes
        clients, names = len(sizes), [client.name for client in prepared.data.clients]
    schedule = Schedule.of(experiment.rounds, clients, experiment.participation)
    if sizes is None and (method.unit == "record" or has_published_noise(method)):
        raise UserError(
            f"The noise of {experiment.method} depends on how many records a client has: say it with --records, or "
            "name the data with --data."
        )
    method = method.settled(clients)
    if method.unit == "record":
        assert sizes is not None
        return _records_plan(experiment, method, sizes, names or usual_names(clients), schedule, parameters)
    return _clients_plan(experiment, method, sizes, schedule, shared_parameters(method, parameters, layout))


def _looked_at(experiment: Experiment, parameters: int | None, records: int | None) -> Prepared:
    """The experiment's data and network; what is given besides, and would be ignored, is refused."""
    from sordino.experiment.prepare import prepare_to_count

    if records is not None:
        raise UserError("The data say how many records a client has: leave out either --records or the data.")
    if parameters is not None and experiment.model is not None:
        raise UserError("The model says how many parameters it has: leave out either --parameters or --model.")
    return prepare_to_count(experiment)


def _clients_plan(
    experiment: Experiment, method: Method, sizes: np.ndarray | None, schedule: Schedule, parameters: int | None
) -> Plan:
    spent = spending(experiment, method, np.ones(1, dtype=np.int64) if sizes is None else sizes, schedule)
    releases = all_releases(method.steps())
    noise = spent.allowance.of_clients
    found = plan(
        schedule.clients,
        experiment.rounds,
        spent.budget.delta,
        noise_multiplier=noise.multiplier,
        protect_from=experiment.protect_from,
        participation=experiment.participation,
        parameters=parameters,
        allow_vacuous_delta=True,  # `spending` has refused it, where it is to be refused
        minimum_cohort=noise.minimum_cohort,
        colluders=noise.colluders,
        exposed=any(release.exposes_history() for release in releases),
    )
    told = [*unusual(experiment, method, schedule), *spent.notes]
    found.warnings.extend(note for note in told if note not in found.warnings)
    return found


def _records_plan(
    experiment: Experiment,
    method: Method,
    sizes: np.ndarray,
    names: Sequence[str],
    schedule: Schedule,
    parameters: int | None,
) -> PlanForRecords:
    method, choices = planned_method(experiment, method, sizes, schedule)
    spent = spending(experiment, method, sizes, schedule)
    noise, delta = spent.allowance.of_records, spent.budget.delta
    recipes = [planned_recipes(noise, client, method.record_needs()) for client in range(schedule.clients)]
    each = [max(record_epsilon(recipe, delta) for recipe in mine) for mine in recipes]
    pools = {tuple(mine) for mine in recipes}
    distinct = {recipe for mine in pools for recipe in mine}
    known = noise.budgets[np.isfinite(noise.budgets)]
    middle = float(np.median(known)) if len(known) else max(each)
    records = max(1, round(float(np.median(sizes))))
    where = Situation(schedule.clients, records, middle, parameters, experiment.protect_from, delta)
    accuracy = max(record_attack_accuracy(recipe) for recipe in distinct)
    return PlanForRecords(
        unit="record",
        neighbours=Unit.RECORD.neighbours,
        epsilon=dict.fromkeys(VIEWS, max(each)),
        attack_accuracy=dict.fromkeys(VIEWS, accuracy),
        epsilon_replace_one=max(record_epsilon(replace_one(recipe), delta) for recipe in distinct),
        epsilon_rows={str(rows): max(rows_epsilon(one, rows, delta) for one in pools) for rows in ROWS},
        noise_multiplier=spent.budget.multiplier,
        clients=[{"client": names[number]} | _client(noise, sizes, number, one) for number, one in enumerate(each)],
        feasible_parameters=where.feasible(Unit.RECORD),
        delta=delta,
        warnings=[
            *unusual(experiment, method, schedule),
            *spent.notes,
            *choices,
            *beyond_budgets(dict(enumerate(each)), noise.budgets, names),
            *_weak(accuracy),
        ],
        advice=_advice(where, parameters),
    )


def _client(noise: RecordPlan, sizes: np.ndarray, client: int, epsilon: float) -> dict[str, Any]:
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
    if accuracy <= 0.9:
        return []
    return [
        f"The best attack tells whether a record is there with {percent_up(accuracy)} accuracy: this is hardly privacy."
    ]


def _advice(where: Situation, parameters: int | None) -> list[str]:
    """Whether a network of this size can be trained, by the law d <= clients (records mu)^2."""
    feasible = where.feasible(Unit.RECORD)
    if parameters is None:
        return [f"About {feasible:,} shared parameters can be trained at this budget; give --data to compare."]
    if parameters > feasible:
        return [
            f"The model shares {parameters:,} parameters, but only about {feasible:,} can be trained at this budget: "
            "the gradients would drown in noise. More records for each client, a smaller model or a larger epsilon "
            "help; `--method local` is the rival to beat."
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
        raise UserError(f"The published {experiment.method} costs more than its noise says: a run tells how much.")
