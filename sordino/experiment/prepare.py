"""From an experiment to everything that a run needs: data, network, noise, and how it is executed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sordino import models
from sordino.data import Dataset, FederatedData, federate, load
from sordino.data.federate import client_count, fingerprint
from sordino.data.selection import fewer, set_aside
from sordino.errors import UserError, quoted
from sordino.experiment.budgeting import SEED_IS_KNOWN, not_covered_before, notes_before, planned_method, spending
from sordino.experiment.config import Experiment
from sordino.experiment.identity import identity_of, repeats, weights_of
from sordino.federation.schedule import Schedule
from sordino.federation.server import Ground
from sordino.learning.network import Learner, Records
from sordino.learning.parameters import flatten
from sordino.method import Budget, Method, returned
from sordino.models.tokens import check_tokens
from sordino.parts.masks import check_head
from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.clipping import CompiledSum
from sordino.privacy.mechanism import MECHANISMS, Mechanism
from sordino.privacy.noise import Seeded
from sordino.privacy.release import check_steps
from sordino.simulator import bf16
from sordino.simulator import choice as compiling
from sordino.simulator.choice import Choice, choose
from sordino.util.processes import single_threaded

OWN_CODE = (
    "This run uses code of your own, which may not be deterministic. Its noise and its batches are therefore drawn "
    "from a random number that is stored with the run: the same command gives other figures, and `sordino resume` the "
    "same."
)
"""Note for runs that have a nonce."""


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
    repeats: bool
    """Whether identity and seed decide all values to the bit."""
    needs_nonce: bool
    """Whether noise and coins need a random number of the run, because its values may not follow from the seed."""
    compiled: CompiledSum | None
    """The compiled sum of clipped gradients, once it has been made."""
    notes: list[str]
    """What the user should know before the run."""
    disclosed: list[str]
    """What epsilon does not cover, known before the run, in sentences."""
    nonce: bytes = b""
    """Random bytes in the keys of the run's noise and coins, once it has been registered, where it needs some."""

    @property
    def source(self) -> Seeded:
        """Where the run's randomness comes from."""
        return Seeded(self.experiment.seed, self.identity, self.repeats, self.nonce)

    @property
    def turns(self) -> int:
        """Most turns of a client."""
        return self.schedule.turns

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
        return Ground(self.learner.layout, math.prod(self.data.shape), self.data.task, records)


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
    if experiment.public is not None or (method is not None and _settled(method, planned).needs_public()):
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
    method = _settled(method, len(data.clients))
    name = experiment.model or models.default(data.shape)
    torch.manual_seed(Seeded(experiment.seed).key("initial model") >> 32)
    data.task.check()
    module = models.build(name, data.shape, data.task.width, **experiment.model_options())
    coarse = bf16.decide(experiment.precision, experiment.device, module, data.shape, method.batch, resumed)
    weights = weights_of(name, module)
    learner, initial = Learner(module, data.task, coarse.precision), flatten(module)
    check_tokens(module, data.train.x)
    if method.unit == "record":
        learner.keeper(data.shape)  # refuses a network that cannot be run for one record at a time
    check_head(method, learner.layout)
    schedule = Schedule.of(experiment.rounds, len(data.clients), experiment.participation)
    method, choices = planned_method(experiment, method, data.train.sizes, schedule)
    returned(method, "memory", method.memory(initial), Mapping)
    states = returned(method, "public_memory", method.public_memory(initial, learner.layout), Mapping)
    check_steps(method.steps(), method.unit, states)
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
    same = repeats(method, name, module, experiment.device)
    # Of whole numbers from a seed no epsilon holds, and a deployment's trial draws the same.
    own = method.privacy == "dp" and experiment.noise == "float" and not same
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
            experiment.decisive() | {"made": repr(method)} | _read(method, public) | weights,
            data.fingerprint,
            type(method),
            type(module),
        ),
        repeats=same,
        needs_nonce=own,
        compiled=decision.made,
        notes=[
            *data.notes,
            *([OWN_CODE] if own else []),
            *coarse.notes,
            *notes_before(experiment, method, schedule, spent, choices, learner.layout),
        ],
        disclosed=data.disclosed + not_covered_before(experiment, method),
    )


def _settled(method: Method, clients: int) -> Method:
    settled: Method = returned(method, "settled", method.settled(clients), Method)
    return settled


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
