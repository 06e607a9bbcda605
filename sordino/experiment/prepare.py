"""From an experiment to everything that a run needs: data, network, noise, and how it is executed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino import models
from sordino.data import Dataset, FederatedData, federate, load
from sordino.data.federate import client_count, fingerprint
from sordino.data.selection import fewer, set_aside
from sordino.errors import UserError, quoted
from sordino.experiment.config import Experiment
from sordino.experiment.identity import identity_of
from sordino.learning.parameters import flatten
from sordino.learning.records import Learner, Records
from sordino.method import Budget, Method
from sordino.methods.bases import RecordLevel
from sordino.privacy.allowance import Allowance, Noise
from sordino.privacy.compiled import CompiledSum
from sordino.privacy.mechanism import MECHANISMS, Mechanism
from sordino.privacy.noise import Seeded
from sordino.privacy.outlook import Outlook
from sordino.privacy.plan import check_delta, default_delta, drowning, feasible_parameters, multiplier_for
from sordino.privacy.records import RecordPlan, plan_records, plan_without_noise
from sordino.privacy.release import all_releases, check_steps
from sordino.privacy.views import honest_shares
from sordino.schedule import Schedule
from sordino.server import Ground
from sordino.simulator import bf16, compiling
from sordino.simulator.choice import Choice, choose
from sordino.threads import single_threaded

GIVEN_AWAY = (
    "A blended model stays at its client and costs nothing there; given away, its local parts tell of that client's "
    "records without any noise"
)
SEED_IS_KNOWN = "its noise comes from the run's seed, and whoever knows the seed can subtract it"
"""Why no epsilon holds where whole numbers are drawn for a simulation."""


LEAST_USUAL, MOST_USUAL = 0.01, 100.0
"""Budgets that are meant lie between these."""


@dataclass(frozen=True)
class Prepared:
    """An experiment ready to start: nothing has been trained, charged or written."""

    experiment: Experiment
    method: Method
    data: FederatedData
    learner: Learner
    public: Dataset | None
    """Records that belong to no client, where the method judges models on the server."""
    initial: Tensor
    choice: Choice
    """How it is executed, and why."""
    schedule: Schedule
    budget: Budget
    allowance: Allowance
    """What each release may spend."""
    identity: str
    compiled: CompiledSum | None
    """The compiled sum of clipped gradients, once it has been made."""
    notes: list[str]
    """What the user should know before the run."""
    disclosed: list[str]
    """What epsilon does not cover, known before the run, in sentences."""

    @property
    def source(self) -> Seeded:
        """Where the run's randomness comes from."""
        return Seeded(self.experiment.seed, self.identity)

    @property
    def mechanism(self) -> Mechanism:
        """How noise gets onto what leaves."""
        return MECHANISMS[self.experiment.noise]

    @property
    def ground(self) -> Ground:
        """What the server knows of the data and the network."""
        records = None
        if self.public is not None:
            records = Records(self.public.x, self.public.y, self.learner, self.source.key("public") >> 32)
        return Ground(self.learner.layout, math.prod(self.data.shape), self.data.classes, records)


def deal(experiment: Experiment) -> FederatedData:
    """Load an experiment's data and deal them to clients."""
    return _deal(experiment, None)[0]


def deal_with_public(experiment: Experiment) -> tuple[FederatedData, Dataset | None]:
    """The same, and the public records where its method needs some."""
    return _deal(experiment, experiment.build_method())


def _deal(experiment: Experiment, method: Method | None) -> tuple[FederatedData, Dataset | None]:
    """Records dealt to clients, and, where the method needs them, public ones that belong to no client."""
    dataset = load(experiment.data, experiment.data_dir, experiment.reading())
    if experiment.records is not None:
        dataset = fewer(dataset, experiment.records, experiment.seed)
    public = None
    planned = client_count(dataset, experiment.clients)
    if experiment.public is not None or (method is not None and method.settled(planned).needs_public()):
        dataset, public = set_aside(dataset, experiment.public_choice())
    how = (experiment.seed, experiment.test_fraction, experiment.test)
    return federate(dataset, experiment.partition, experiment.clients, *how), public


def prepare(
    experiment: Experiment, data: FederatedData | None = None, resumed: bool = False, method: Method | None = None
) -> Prepared:
    """Load the data (unless they are given, already dealt), build the network and derive the noise.

    A run that is `resumed` repeats what was decided when it began. `method` is one that has no name yet.
    """
    check_device(experiment.device)
    method = experiment.build_method() if method is None else method
    _check_execution(experiment, method)
    if experiment.precision == "bf16" and torch.device(experiment.device).type == "cpu":
        bf16.secure()  # before anything is computed here
    data, public = _deal(experiment, method) if data is None else (data, None)
    method.check_data(data.people)
    method = method.settled(len(data.clients))
    name = experiment.model or models.default(data.shape, data.classes)
    torch.manual_seed(Seeded(experiment.seed).key("initial model") >> 32)
    module = models.build(name, data.shape, data.classes, **experiment.model_options())
    coarse = bf16.decide(experiment.precision, experiment.device, module, data.shape, method.batch, resumed)
    learner, initial = Learner(module, coarse.precision), flatten(module)
    schedule = Schedule.of(experiment.rounds, len(data.clients), experiment.participation)
    method, choices = planned_method(experiment, method, data.train.sizes, schedule)
    check_steps(method.steps(), method.unit, method.public_memory(initial, learner.layout))
    choice = choose(experiment, method, learner, data, schedule.cohort)
    spent = spending(experiment, method, data.train.sizes, schedule)
    with single_threaded():
        one_by_one = choice.engine == "one-by-one"
        decision = compiling.decide(
            experiment.compiled,
            method,
            module,
            data,
            spent.allowance.records if one_by_one else None,
            experiment.device,
        )
    noised = method.privacy == "dp"  # else there is no budget to tell of, and no epsilon that could leave things out
    blended = [GIVEN_AWAY] if experiment.personal == "blend" else []
    decided = {"model": name, "precision": coarse.precision, "engine": choice.engine, "compiled": decision.compiled}
    experiment = experiment.model_copy(update=decided)
    return Prepared(
        experiment=experiment,
        method=method,
        data=data,
        public=public,
        learner=learner,
        initial=initial,
        choice=replace(choice, reasons=choice.reasons + decision.reasons + coarse.reasons),
        schedule=schedule,
        budget=spent.budget,
        allowance=replace(spent.allowance, known=SEED_IS_KNOWN if experiment.noise == "integers" else ""),
        identity=identity_of(
            experiment.decisive() | {"made": repr(method)} | _read(method, public),
            data.fingerprint,
            type(method),
            type(module),
        ),
        compiled=decision.made,
        notes=[
            *data.notes,
            *_unusual(experiment, method, schedule),
            *spent.notes,
            *choices,
            *coarse.notes,
            *(method.notes(schedule, spent.budget) if noised else []),
            *infeasible(method, spent.allowance, schedule, learner.layout.size),
        ],
        disclosed=data.disclosed + (method.discloses() + blended if noised else []),
    )


def _unusual(experiment: Experiment, method: Method, schedule: Schedule) -> list[str]:
    """What is allowed, but hardly meant."""
    if not method.is_private():
        return []
    notes = []
    epsilon = experiment.epsilon
    if epsilon is not None and not LEAST_USUAL <= epsilon <= MOST_USUAL:
        means = "noise that leaves nothing to learn from" if epsilon < 1 else "hardly any protection"
        notes.append(f"epsilon = {epsilon:g} means {means}: budgets lie between {LEAST_USUAL:g} and {MOST_USUAL:g}.")
    if method.unit == "client" and schedule.clients == 1:
        notes.append(
            "There is one client, and this method protects clients as wholes: nobody's noise adds to its own. Protect "
            "its records, for example with --method dp-fedavg-record."
        )
    return notes


def prepare_to_count(experiment: Experiment) -> Prepared:
    """An experiment of which only the data and the network are looked at: its method and noise do not matter."""
    options = {key: value for key, value in experiment.set.items() if key.startswith("model.")}
    indifferent = {"method": "local", "set": options, "compiled": "never", "precision": "fp32"}
    return prepare(experiment.model_copy(update=indifferent))


def _read(method: Method, public: Dataset | None) -> dict[str, Any]:
    """What a method reads from files, and the public records, as keys of what decides a run."""
    found = method.file_contents()
    known = {} if public is None else {"public_records": fingerprint([], [public.x, public.y])}
    return {**({"read": found} if found else {}), **known}


def _check_execution(experiment: Experiment, method: Method) -> None:
    """Refuse ways to execute a run that do not go together."""
    if experiment.precision != "bf16":
        return
    if method.unit == "record":
        raise UserError("Record-level methods clip each record's gradient in fp32: leave `precision` out.")
    if experiment.engine == "stacked":
        raise UserError("bf16 is for networks that are trained one by one: leave `engine` or `precision` out.")


def check_device(name: str) -> None:
    """Refuse a device that torch does not know or this machine does not have."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0].rstrip(".")
        raise UserError(f'The device {quoted(name)} cannot be used here: {reason}. "cpu" always can.') from error
    if torch.device(name).type == "meta":
        raise UserError('The device "meta" computes nothing. "cpu" always does.')


def infeasible(method: Method, allowance: Allowance, schedule: Schedule, parameters: int) -> list[str]:
    """The warning of a plan where whole clients are protected and the network is too large for the budget."""
    noise = allowance.noise
    if noise is None or shares_a_part(method):
        return []
    in_sum = math.sqrt(schedule.turns) / noise.multiplier
    in_sum *= math.sqrt(honest_shares(noise.protect_from, noise.minimum_cohort, noise.colluders) / schedule.cohort)
    feasible = feasible_parameters(schedule.clients, schedule.cohort, in_sum)
    if parameters <= feasible:
        return []
    return [f"{drowning(parameters, feasible)} `sordino plan` and `sordino advise` say what to do about it."]


def shares_a_part(method: Method) -> bool:
    """Whether only some of the parameters leave, so that the network's size does not say how many."""
    releases = all_releases(method.steps())
    return any(getattr(release, "at", None) is not None for release in releases)


@dataclass(frozen=True)
class Spending:
    """What a run may spend, and what to tell the user about it."""

    budget: Budget
    allowance: Allowance
    notes: list[str]


def planned_method(
    experiment: Experiment, method: Method, sizes: np.ndarray, schedule: Schedule
) -> tuple[Method, list[str]]:
    """The method with the choices that it makes from what records can pay for, and a sentence on each; `sizes` are the
    clients' numbers of training records."""
    if not isinstance(method, RecordLevel) or not method.is_private():
        return method, []
    delta = experiment.delta or default_delta(int(sizes.max()))
    budgets = client_budgets(experiment, method, schedule)
    return method.planned(Outlook(sizes, budgets, delta, schedule.turns, experiment.noise_multiplier))


def client_budgets(experiment: Experiment, method: RecordLevel, schedule: Schedule) -> np.ndarray:
    """The epsilon that each client allows; infinite where only the noise is given, and nobody is stopped."""
    if experiment.noise_multiplier is not None and experiment.epsilon is None and method.budgets is None:
        return np.full(schedule.clients, np.inf)
    random = np.random.default_rng(Seeded(experiment.seed).key("budgets"))
    return method.client_budgets(schedule.clients, experiment.asked_epsilon, random)


def spending(experiment: Experiment, method: Method, records: np.ndarray, schedule: Schedule) -> Spending:
    """How much noise the budget asks for, and at which delta, where clients have so many training `records`."""
    units = schedule.clients if method.unit == "client" else int(records.max())
    delta = experiment.delta or default_delta(units)
    minimum = experiment.minimum_cohort or schedule.cohort
    if minimum > schedule.cohort:
        raise UserError(f"minimum_cohort is {minimum}, but a round has {schedule.cohort} clients.")
    if experiment.colluders >= minimum:
        raise UserError(f"With {experiment.colluders} colluders among {minimum} clients no honest noise is left.")
    if not method.is_private():
        plan = _plan_without_noise(experiment, method, records, schedule) if method.unit == "record" else None
        return Spending(Budget(delta, 0.0), Allowance(records=plan), [])
    published = method.variant == "paper"
    notes = check_delta(delta, units, method.unit, experiment.allow_vacuous_delta or published)
    notes += [method.caveats[method.variant]] if method.variant in method.caveats else []
    if method.unit == "record":
        plan = _record_plan(experiment, method, records, schedule, delta)
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
            multiplier = multiplier_for(epsilon, delta, schedule.turns)
    noise = Noise(multiplier, experiment.protect_from, minimum, experiment.colluders)
    return Spending(Budget(delta, multiplier), Allowance(noise), notes)


def _record_plan(
    experiment: Experiment, method: Method, records: np.ndarray, schedule: Schedule, delta: float
) -> RecordPlan:
    """What each client's records pay: from the clients' budgets, or from a given noise multiplier."""
    method = _record_level(method)
    needs, budgets = method.record_needs(), client_budgets(experiment, method, schedule)
    multiplier = experiment.noise_multiplier
    # Where the noise is given, who has budget left may take the turns of those who have none.
    stops = multiplier is not None and method.varied == "noise"
    takes_over = stops and np.isfinite(budgets).all() and not needs.means
    plan = plan_records(
        records.tolist(),
        budgets,
        delta,
        batch=method.batch,
        epochs=method.epochs,
        turns=schedule.rounds if takes_over else schedule.turns,
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
