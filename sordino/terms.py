"""The terms of a run: method, schedule, noise and identity, derived from an experiment before any client is contacted.

`derive` is the one place that works them out, from the experiment and a few facts about clients and records. Facts are
read from data (`sordino.experiment.prepare`), declared (`sordino.deploy.terms`) or given (`sordino.planning.plan`), so
that a simulation, the server of a deployment, each of its sites and a plan agree on method, noise, notes and refusals:

    facts = Facts(clients=10, sizes=sizes, network=build_network(experiment, shape, task), fingerprint=digest)
    terms = derive(experiment, facts)

`derive_costs` works out the part that needs no network, for plans without one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from sordino import models
from sordino.data import FederatedData
from sordino.data.schema import PersonRules
from sordino.errors import UserError
from sordino.experiment.budgeting import (
    SEED_IS_KNOWN,
    Calibration,
    client_budgets,
    client_noise,
    has_published_noise,
    infeasible,
    is_private,
    not_covered_before,
    plan_method,
    record_level,
    record_plan,
    record_plan_without_noise,
    same_as_sound,
    smallest_cohort,
    unusual,
)
from sordino.experiment.config import Experiment
from sordino.experiment.identity import identity_of, weights_of
from sordino.features import extractor as features
from sordino.features.extractor import Extractor
from sordino.federation.client import STEP
from sordino.federation.evaluation import evaluation_steps
from sordino.federation.schedule import Schedule
from sordino.learning.network import Learner, Precision
from sordino.learning.parameters import flatten
from sordino.method import ADDED_LATER, Budget, Method, check_returned
from sordino.models.adapters import Adapted
from sordino.parts.masks import check_head
from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.budget.client_level_plan import check_delta, default_delta
from sordino.privacy.ledger import Ledger, Row
from sordino.privacy.noise import Seeded
from sordino.privacy.release import Releases, all_releases, check_steps, record_needs
from sordino.privacy.unit import Unit, person_words
from sordino.tasks import Classification, Task

Extended = TypeVar("Extended", bound="Costs")


@dataclass(frozen=True)
class BuiltNetwork:
    """A network with its first weights, before anything is trained."""

    name: str
    module: nn.Module
    task: Task
    shape: tuple[int, ...]
    """Shape of one record."""
    initial: Tensor
    """First values of the parameters, as one flat vector."""
    weights: dict[str, str]
    """Digest of a user's own initial weights, for the run's identity; empty for built-in networks."""
    precision: Precision = "fp32"
    """Format in which layers compute in local training."""

    @cached_property
    def learner(self) -> Learner:
        """The network as functions of its flat parameter vector."""
        return Learner(self.module, self.task, self.precision)

    @property
    def notes(self) -> list[str]:
        """Sentences on what frozen parts of the network were trained on."""
        return [part.origin for part in self.module.modules() if isinstance(part, Adapted)]


HEAD = "head"
"""Network on features where none is named: noise grows with parameters, and features carry the rest."""


def build_extractor(
    experiment: Experiment, shape: tuple[int, ...], files: features.Files | None = None
) -> Extractor | None:
    """Build the extractor of an experiment's features for records of `shape`; None where there are none.

    Args:
        experiment: the configuration.
        shape: shape of one record.
        files: finds files of weights by their digest, at a site.
    """
    if experiment.features is None:
        return None
    level = experiment.build_method().unit.record_level
    return features.build(experiment.features, tuple(shape), level, experiment.data_dir, files)


def build_network(
    experiment: Experiment, shape: tuple[int, ...], task: Task, class_weight: str = "none"
) -> BuiltNetwork:
    """Build an experiment's network, or the default one, for records of `shape`; the seed decides its weights.
    `class_weight` is the method's: declared weights multiply the losses that it is trained with."""
    task.check()
    usual = models.default(shape) if experiment.features is None else HEAD
    name = experiment.model or (models.linear(task.name) if usual == "logistic" else usual)
    models.check_task(name, task)
    torch.manual_seed(Seeded(experiment.seed).key("initial model") >> 32)
    module = models.build(name, shape, task.width, **experiment.model_options())
    return BuiltNetwork(name, module, task.weighed(class_weight), shape, flatten(module), weights_of(name, module))


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about clients and records that an experiment does not say by itself.

    As they stand here they are read from data, or given for a plan; deployments, which declare them, have a subclass.
    """

    clients: int
    sizes: np.ndarray | None
    """Training records of each client, or persons in training; None where they are not known."""
    network: BuiltNetwork | None = None
    """None where a plan names none; terms cannot be derived then, but costs can."""
    fingerprint: str = ""
    """Digest of the data, for the identity."""
    public: str | None = None
    """Digest of the public records at the server; None where there are none."""
    disclosed: tuple[str, ...] = ()
    """Sentences on what was read from records that epsilon does not cover."""
    spare_turns: int = 0
    """Turns of each client that are paid for beyond those that the rounds need."""
    extractor: Extractor | None = None
    """Extractor of the features that the network is trained on; None where it sees the records themselves."""
    persons: PersonRules | None = None
    """Declaration of whom records belong to; None where there is none. `sizes` then counts persons wherever they are
    protected."""
    ask_sizes: str = "name the data"
    """Words that say how to give `sizes`, for the error where noise depends on them."""

    def check_releases(self, experiment: Experiment, steps: Mapping[str, Releases], states: Collection[str]) -> None:
        """Refuse releases that cannot be made where the run takes place; `states` names the clients' public states."""

    def calibration(
        self, experiment: Experiment, schedule: Schedule, steps: Mapping[str, Releases], minimum: int
    ) -> Calibration:
        """Return the rule by which noise follows from a budget; `minimum` is the smallest cohort."""
        return Calibration(schedule.turns + self.spare_turns, evaluation_share=experiment.evaluation_share)

    def share_of_accuracies(self, experiment: Experiment) -> float:
        """Return the share of the budget that is kept for accuracies which sites share: none, where nobody asks."""
        return 0.0

    def decisive(self, experiment: Experiment, contents: dict[str, Any]) -> dict[str, Any]:
        """Return what decides a run's results besides code, method and data; `contents` are those of the method's
        files."""
        read = {"read": contents} if contents else {}
        public = {} if self.public is None else {"public_records": self.public}
        return experiment.decisive() | read | public


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The part of the terms that needs no network: method, schedule, and what may be spent. All of it is public."""

    method: Method
    """Built, and with the choices made that depend on clients and budget."""
    schedule: Schedule
    calibration: Calibration
    """Rule by which noise follows from a budget."""
    minimum: int
    """Smallest cohort (U_min): a question with fewer answers is not used."""
    budget: Budget
    allowance: Allowance
    """Allowance of each release. In a deployment at record level, that of a client with as many records as are
    declared."""
    notes: list[str]
    """Sentences that the user should know before the run."""
    evaluation: Mapping[str, Releases] = dataclasses.field(default_factory=dict)
    """Step behind the last round in which test records are counted, with what it sends, by its name; empty where it is
    not paid for."""

    persons: PersonRules | None = None
    """Declaration of whom records belong to; None where there is none."""

    @property
    def unit(self) -> Unit:
        """Unit that the run's epsilons protect."""
        return protected_unit(self.method, self.persons)[0]

    @property
    def sites(self) -> int:
        """Largest number of clients that one person is known to, where persons are protected; otherwise one."""
        return protected_unit(self.method, self.persons)[1]

    def ledger(self, rows: Iterable[Row] = ()) -> Ledger:
        """Return a ledger of the run's unit with some rows."""
        return Ledger(self.schedule.clients, self.unit, rows, self.sites)

    @property
    def turns(self) -> int:
        """Most turns of a client that its budget pays for."""
        return self.calibration.turns

    @cached_property
    def declared(self) -> dict[str, Releases]:
        """The method's steps by name, each with what it declares to send; asked for once."""
        return self.method.steps()

    def steps(self) -> dict[str, Releases]:
        """Return everything that clients are asked to do, by name, each step with what it sends."""
        return self.declared | dict(self.evaluation)

    def extend(self, kind: type[Extended], **more: Any) -> Extended:
        """Return these costs as a dataclass `kind` with more fields, or others; steps are not declared again."""
        extended = kind(**{one.name: getattr(self, one.name) for one in dataclasses.fields(self)} | more)
        vars(extended)["declared"] = self.declared
        return extended


@dataclass(frozen=True, kw_only=True)
class Terms(Costs):
    """Everything that follows from an experiment before anything is trained, charged or written."""

    experiment: Experiment
    """With what was decided, the network's name among it."""
    learner: Learner
    initial: Tensor
    """First values of the parameters, as one flat vector."""
    identity: str
    """Hash of everything that decides the run's results."""
    disclosed: list[str]
    """Sentences on what epsilon does not cover, known before the run."""
    data: FederatedData | None = None
    """All clients' records, where one machine has them: in a simulation."""
    extractor: Extractor | None = None
    """Extractor of the features that the network is trained on."""


def derive(experiment: Experiment, facts: Facts, costs: Costs | None = None) -> Terms:
    """Derive the terms of an experiment, or refuse it with a sentence.

    Args:
        experiment: the configuration, with what has been decided about its execution.
        facts: what is known of clients and records, the network included.
        costs: those of the same experiment and facts, where they have been derived already.
    """
    network = facts.network
    if network is None:
        raise ValueError("terms need a network: without one there are costs only (derive_costs)")
    costs = derive_costs(experiment, facts) if costs is None else costs
    method, layout = costs.method, network.learner.layout
    extractor = facts.extractor
    chosen = {} if extractor is None else {"features": extractor.choice}
    experiment = experiment.model_copy(update={"model": network.name, **chosen})
    decided = facts.decisive(experiment, method.file_contents()) | {"made": describe_settings(method)} | network.weights
    decided |= {} if extractor is None else {"extractor": extractor.digest}
    decided |= _meaning(network.task, costs.evaluation)
    drowned = infeasible(method, costs.declared, costs.allowance, costs.schedule, layout)
    return costs.extend(
        Terms,
        experiment=experiment,
        learner=network.learner,
        initial=network.initial,
        identity=identity_of(decided, facts.fingerprint, type(method), type(network.module)),
        notes=[*(() if extractor is None else extractor.notes), *network.notes, *costs.notes, *drowned],
        disclosed=[*facts.disclosed, *not_covered_before(experiment, method)],
        extractor=extractor,
    )


def _meaning(task: Task, evaluation: Collection[str]) -> dict[str, Any]:
    """Return what a run's identity holds of its task, beside targets and outputs: cuts, say, that were read from other
    clients' records. Without it two runs of different values would share noise. The names of classes decide nothing but
    what an `evaluation` counts."""
    return {} if isinstance(task, Classification) and not evaluation else {"task": task.document()}


def describe_settings(value: object) -> str:
    """Describe a method with its hyper-parameters and those of its rules, or one of these, as a run's identity holds
    them: as `repr` does, without fields that were `ADDED_LATER` and have their default."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return repr(value)
    shown = [one for one in dataclasses.fields(value) if one.repr]
    kept = [one for one in shown if not (one.metadata == ADDED_LATER and getattr(value, one.name) == one.default)]
    described = ", ".join(f"{one.name}={describe_settings(getattr(value, one.name))}" for one in kept)
    return f"{type(value).__qualname__}({described})"


def derive_costs(experiment: Experiment, facts: Facts, method: Method | None = None) -> Costs:
    """Derive method, schedule and noise of an experiment, or refuse it with a sentence.

    Args:
        experiment: the configuration.
        facts: what is known of clients and records.
        method: that of the experiment, where it is built already, or one that has no name.
    """
    built = experiment.build_method() if method is None else method
    settled = suit(settle(built, facts.clients), facts.network)
    check_class_weight(settled)
    schedule = Schedule.of(experiment.rounds, facts.clients, experiment.participation)
    if facts.persons is not None and facts.persons.max_sites > facts.clients:
        raise UserError(
            f"max_sites_per_person is {facts.persons.max_sites}, but there are {facts.clients} clients who could "
            "know a person: declare at most so many."
        )
    if record_level(settled) is not None:
        _known_sizes(experiment, facts)
    if facts.network is not None:
        settled.check_task(facts.network.task)
        _check_network(settled, facts.network)
    steps = settled.steps()
    turns = schedule.turns + facts.spare_turns
    method, choices = plan_method(experiment, settled, steps, facts.sizes, schedule, turns)
    steps = steps if method is settled else method.steps()
    if facts.network is not None:
        states = _public_states(method, facts.network)
        check_steps(steps, method.unit, states)
        if facts.persons is not None and method.unit.record_level:
            _check_persons(experiment, steps)
        facts.check_releases(experiment, steps, states)
    evaluation = _evaluation(experiment, method, facts, turns, steps)
    if method.unit.record_level:  # planned with all other sums over records
        steps = {**steps, **evaluation}
    minimum = smallest_cohort(experiment, schedule)
    calibration = facts.calibration(experiment, schedule, steps, minimum)
    budget, allowance, notes = _spend(experiment, method, facts, schedule, steps, calibration, minimum)
    known = SEED_IS_KNOWN if experiment.noise == "integers" else ""
    costs = Costs(
        method=method,
        schedule=schedule,
        calibration=calibration,
        minimum=minimum,
        budget=budget,
        allowance=dataclasses.replace(allowance, whole=calibration.whole, known=known),
        persons=facts.persons,
        notes=[
            *_note_persons(facts.persons, method),
            *unusual(experiment, method, steps, schedule),
            *notes,
            *choices,
            *check_returned(method, "notes", method.notes(schedule, budget), list),
        ],
        evaluation=evaluation,
    )
    vars(costs)["declared"] = steps  # as cached_property would, without asking again
    return costs


def _check_persons(experiment: Experiment, steps: Mapping[str, Releases]) -> None:
    """Refuse what protects records only as they stand: a published mechanism, and what leaves without noise."""
    if any(not release.private for release in all_releases(steps)):
        raise UserError(
            f"{experiment.method} sends figures of single records without noise in the variant {experiment.variant}, "
            "and persons are declared: leave `person` out, or take the variant sound."
        )


def protected_unit(method: Method, persons: PersonRules | None) -> tuple[Unit, int]:
    """Return the unit that a method's epsilons protect, persons where they are declared and records would be protected
    without them, and the largest number of clients that know one person; one for other units."""
    if persons is None or not method.unit.record_level:
        return method.unit, 1
    return Unit.PERSON, persons.max_sites


def _note_persons(rules: PersonRules | None, method: Method) -> list[str]:
    """Say what declared persons mean for a run."""
    if rules is None or not method.is_private() or not method.unit.record_level:
        return []
    rows = f"of more than {rules.max_rows} rows that a person has at a client, {rules.max_rows} drawn at random count"
    return [f"{person_words(rules.max_sites)} Persons are told apart by {rules.column!r}; {rows}."]


def _evaluation(
    experiment: Experiment, method: Method, facts: Facts, turns: int, steps: Mapping[str, Releases]
) -> dict[str, Releases]:
    """Return the step that counts test records, where it is paid for; refuse it where nothing could pay for it."""
    share, others = experiment.evaluation_share, facts.share_of_accuracies(experiment)
    if not share:
        return {}
    if STEP in steps:
        raise UserError(f"{type(method).__name__} has a step {STEP!r} of its own: name it otherwise.")
    if not is_private(steps):
        raise UserError("evaluation_share is a share of a privacy budget, and this run has none: leave it out.")
    if share + others >= 1:
        raise UserError(f"evaluation_share and metrics_share take {share + others:g} of the budget: leave some of it.")
    if method.unit.record_level and not method.sends_sums():
        raise UserError(
            "evaluation_share needs noise that clients share: take a method that protects whole clients, or dp-fedsgd. "
            f"{experiment.method} adds noise at each client."
        )
    if method.unit.record_level and experiment.test == "official":
        raise UserError(
            'evaluation_share counts every test record once, but with test = "official" all clients hold the same '
            "ones: leave one of the two out."
        )
    task = Classification.numbered(2) if facts.network is None else facts.network.task
    return evaluation_steps(share, others, turns, task, method.unit.record_level)


def check_class_weight(method: Method) -> None:
    """Refuse weights that would follow from raw counts of labels where single records are protected: one record's label
    would change the weights of all others, whether or not it is drawn itself."""
    if method.class_weight == "balanced" and method.unit.record_level and not method.counts_labels:
        raise UserError(
            f'class_weight = "balanced" would count the labels of a client\'s records, and {type(method).__name__} '
            "protects these: declare the weights, as in --set class_weight=1,9 (in the order of the classes), or take "
            "dp-fedsgd, which counts labels with noise."
        )


def suit(method: Method, network: BuiltNetwork | None) -> Method:
    """Give a method that sums gradients the hyper-parameters that suit a linear network's task, where nobody chose
    them."""
    if network is None or len(network.learner.layout.layers) > 1:
        return method
    suited = network.task.of_linear(math.prod(network.shape))
    known = {field.name for field in dataclasses.fields(method)}
    if not {"clip", "largest_step", "walk"} <= known:
        return method
    chosen: dict[str, Any] = {name: one for name, one in suited.items() if getattr(method, name) is None}
    return dataclasses.replace(method, **chosen)


def settle(method: Method, clients: int) -> Method:
    """Let a method make the choices that depend on how many clients there are."""
    settled: Method = check_returned(method, "settled", method.settled(clients), Method)
    return settled


def _check_network(method: Method, network: BuiltNetwork) -> None:
    """Refuse a network that a method cannot train."""
    if method.unit.record_level:
        network.learner.keeper(network.shape)  # refuses a network that cannot be run for one record at a time
    check_head(method, network.learner.layout)


def _public_states(method: Method, network: BuiltNetwork) -> Collection[str]:
    """Return the names of the clients' public states; memories that are no tables are refused."""
    check_returned(method, "memory", method.memory(network.initial), Mapping)
    public = method.public_memory(network.initial, network.learner.layout)
    states: Mapping[str, Tensor] = check_returned(method, "public_memory", public, Mapping)
    return states.keys()


def _known_sizes(experiment: Experiment, facts: Facts, instead: str = "") -> np.ndarray:
    """Return the clients' numbers of training records; an error says how to give them where they are not known."""
    if facts.sizes is None:
        raise UserError(
            f"The noise of {experiment.method} depends on how many records a client has: {facts.ask_sizes}{instead}."
        )
    return facts.sizes


def _spend(
    experiment: Experiment,
    method: Method,
    facts: Facts,
    schedule: Schedule,
    steps: Mapping[str, Releases],
    calibration: Calibration,
    minimum: int,
) -> tuple[Budget, Allowance, list[str]]:
    """Work out delta, noise and what to tell the user about them."""
    level = record_level(method)
    units = schedule.clients if level is None else int(_known_sizes(experiment, facts).max())
    delta = experiment.delta or default_delta(units)
    if not is_private(steps):
        nothing = Allowance()
        if level is not None:
            sizes, needs = _known_sizes(experiment, facts), record_needs(steps)
            nothing = Allowance(records=record_plan_without_noise(experiment, level, needs, sizes, schedule))
        return Budget(delta, 0.0), nothing, []
    published = method.variant == "paper"
    unit, sites = protected_unit(method, facts.persons)
    notes = check_delta(delta, units, unit, experiment.allow_vacuous_delta or published)
    own = {name: releases for name, releases in steps.items() if name != STEP}
    notes += [method.caveats[method.variant]] if method.variant in method.caveats else same_as_sound(method, own)
    if level is not None:
        sizes, budgets = _known_sizes(experiment, facts), client_budgets(experiment, level, schedule)
        needs = record_needs(steps)
        plan = record_plan(experiment, level, needs, sizes, budgets, schedule, delta, calibration, minimum, sites)
        return Budget(delta, float(np.median(plan.multipliers))), Allowance(records=plan), notes
    records = 0
    if has_published_noise(method) and experiment.noise_multiplier is None:
        records = int(_known_sizes(experiment, facts, ", or give a noise_multiplier").sum())
    noise, more = client_noise(experiment, method, records, delta, minimum, calibration)
    return Budget(delta, noise.multiplier), Allowance(noise), notes + more
