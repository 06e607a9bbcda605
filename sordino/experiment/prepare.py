"""Preparation of a simulation: load and deal the data, choose the method if none is named, derive the terms, choose
engine and precision (`prepare`, `Prepared`).

The facts for `sordino.terms.derive` are read from the data here; engine, precision and compilation, which only a
simulation chooses, are decided from the costs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from sordino.data import Dataset, FederatedData, federate, load
from sordino.data.dataset import Dealt
from sordino.data.federate import DEFAULT_CLIENTS, Represent, client_count, fingerprint
from sordino.data.selection import fewer, set_aside
from sordino.data.sources import SOURCES
from sordino.errors import UserError, quoted
from sordino.experiment.config import Experiment
from sordino.experiment.defaults import FOR_TABLES
from sordino.experiment.identity import repeats
from sordino.features.extractor import Extractor, check_apart
from sordino.federation.server import Ground
from sordino.learning.network import Records
from sordino.method import Method
from sordino.models.tokens import check_tokens
from sordino.privacy.clipping import CompiledSum
from sordino.privacy.mechanism import MECHANISMS, Mechanism
from sordino.privacy.noise import Seeded
from sordino.simulator import bf16
from sordino.simulator import choice as compiling
from sordino.simulator.choice import Choice, choose
from sordino.terms import (
    BuiltNetwork,
    Facts,
    Terms,
    build_extractor,
    build_network,
    derive,
    derive_costs,
    settle,
)
from sordino.util.processes import single_threaded

OWN_CODE = (
    "This run uses code of your own, which may not be deterministic. Its noise and its batches are therefore drawn "
    "from a random number that is stored with the run: the same command gives other figures, and `sordino resume` the "
    "same."
)
"""Note for runs that have a nonce."""


@dataclass(frozen=True, kw_only=True)
class Prepared(Terms):
    """An experiment ready to be simulated: nothing has been trained, charged or written."""

    data: FederatedData
    public: Dataset | None
    """Records that belong to no client, where the method judges models on the server."""
    choice: Choice
    """Engine and number of processes, and why."""
    repeats: bool
    """Whether identity and seed decide all values to the bit."""
    needs_nonce: bool
    """Whether noise and coins need a random number of the run, because its values may not follow from the seed."""
    compiled: CompiledSum | None
    """The compiled sum of clipped gradients, once it has been made."""
    chosen: str = ""
    """Sentence on the method that was chosen for the data because none was named; empty where one was."""
    nonce: bytes = b""
    """Random bytes in the keys of the run's noise and coins, once it has been registered, where it needs some."""

    @property
    def source(self) -> Seeded:
        """Source of the run's randomness."""
        return Seeded(self.experiment.seed, self.identity, self.repeats, self.nonce)

    @property
    def mechanism(self) -> Mechanism:
        """Mechanism that adds noise to what leaves: in floats, or in whole numbers."""
        return MECHANISMS[self.experiment.noise]

    @property
    def ground(self) -> Ground:
        """Public facts about the data and the network."""
        records = None
        if self.public is not None:
            records = Records(self.public.x, self.public.y, self.learner, self.source.key("public") >> 32)
        return Ground(self.learner.layout, math.prod(self.data.shape), self.data.task, records)


def deal(experiment: Experiment) -> FederatedData:
    """Load an experiment's data and deal them to clients, as records whatever its `features` are."""
    return _deal(experiment, _load(experiment), None, raw=True)[0]


def deal_with_public(experiment: Experiment) -> tuple[FederatedData, Dataset | None]:
    """Load an experiment's data and deal them to clients, as records, public ones apart where its method needs some."""
    return _deal(experiment, _load(experiment), experiment.build_method(), raw=True)[:2]


def choose_method(experiment: Experiment) -> tuple[Experiment, str]:
    """Choose the method for an experiment's data where it names none; return the experiment, and a sentence on the
    choice, which is empty where there was none."""
    return experiment.for_data(*_outline(experiment)) if experiment.unnamed else (experiment, "")


def choose_contenders(experiment: Experiment) -> tuple[list[str], Experiment]:
    """Choose methods to compare on an experiment's data where none are named, and the experiment that they share."""
    return experiment.contenders(*_outline(experiment))


def complete_contenders(experiment: Experiment, names: Sequence[str]) -> list[str]:
    """Contenders that were named, with the settings that a run on the experiment's data would choose for them."""
    return experiment.with_defaults(names, *_outline(experiment)) if FOR_TABLES["method"] in names else list(names)


def _outline(experiment: Experiment, dataset: Dataset | None = None) -> tuple[tuple[int, ...], int, float]:
    """Shape of a record, number of clients and training records of the client in the middle, before any deal.
    `dataset` are the experiment's records, where they are loaded already."""
    known = SOURCES.get(experiment.data)
    if dataset is None and known is not None and len(known.shape) > 1:  # images, which need not be looked at
        return known.shape, experiment.clients or DEFAULT_CLIENTS, 0.0
    dataset = _load(experiment) if dataset is None else dataset
    sites, trained = client_count(dataset, experiment.clients), 1 - experiment.test_fraction
    kept = np.ones(len(dataset.y), dtype=bool) if dataset.test is None else ~dataset.test
    if dataset.owner is None or experiment.partition not in (None, "natural"):
        middle = float(kept.sum()) / sites
    else:
        middle = float(np.median(np.bincount(dataset.owner[kept], minlength=len(dataset.owner_names))))
    return tuple(dataset.x.shape[1:]), sites, middle * (trained if dataset.test is None else 1)


def _load(experiment: Experiment) -> Dataset:
    """Load the records that an experiment uses."""
    dataset = load(experiment.data, experiment.data_dir, experiment.reading())
    return dataset if experiment.records is None else fewer(dataset, experiment.records, experiment.seed)


def _deal(
    experiment: Experiment, dataset: Dataset, method: Method | None, raw: bool = False, outline: bool = False
) -> tuple[FederatedData, Dataset | None, Extractor | None]:
    """Deal records to clients, and set public ones aside where the experiment or the method asks for them. Clients hold
    features where the experiment has some, unless `raw` records are wanted; with `outline` these are zeros of the right
    shape, where nobody looks at them."""
    public = None
    planned = client_count(dataset, experiment.clients)
    if experiment.public is not None or (method is not None and settle(method, planned).needs_public()):
        dataset, public = set_aside(dataset, experiment.public_choice())
    how = (experiment.seed, experiment.test_fraction, experiment.test)
    extractor = None if raw else build_extractor(experiment, tuple(dataset.x.shape[1:]))
    if extractor is None:
        return federate(dataset, experiment.partition, experiment.clients, *how), public, None
    check_tokens(extractor.module, dataset.x)
    represent: Represent = functools.partial(extractor.apply, device=experiment.device)
    if outline:
        output = extractor.output
        represent = lambda x: torch.zeros(len(x), *output)  # noqa: E731
    data = federate(check_apart(extractor, dataset), experiment.partition, experiment.clients, *how, represent)
    return data, None if public is None else replace(public, x=represent(public.x)), extractor


def _represented(data: FederatedData, extractor: Extractor, device: str) -> FederatedData:
    """Clients' records that were dealt already, with their features in their place."""
    check_tokens(extractor.module, data.train.x)
    train, test = (replace(one, x=extractor.apply(one.x, device=device)) for one in (data.train, data.test))
    clients = Dealt(data.names, train, test)
    return replace(data, clients=clients, shape=extractor.output)


def read_facts(experiment: Experiment, method: Method | None = None) -> tuple[FederatedData, Facts]:
    """Load the data and build the network, to be looked at; `method` may need public records and refuse data."""
    check_device(experiment.device)
    data, public, extractor = _deal(experiment, _load(experiment), method, outline=True)
    if method is not None:
        method.check_data(data.people)
    weight = "none" if method is None else method.class_weight
    network = build_network(experiment, data.shape, data.task, weight)
    check_tokens(network.module, data.train.x)
    return data, _facts(data, public, network, extractor, method is not None and method.unit.record_level)


def _facts(
    data: FederatedData, public: Dataset | None, network: BuiltNetwork, extractor: Extractor | None, units: bool
) -> Facts:
    """Collect the facts that the terms follow from; `units` says that persons count, where they are declared, and not
    their records."""
    persons = data.train.persons
    return Facts(
        clients=len(data.clients),
        sizes=data.train.units if units else data.train.sizes,
        persons=None if persons is None else persons.rules,
        network=network,
        fingerprint=data.fingerprint,
        public=None if public is None else fingerprint([], [public.x, public.y]),
        disclosed=tuple(data.disclosed),
        extractor=extractor,
    )


def prepare(
    experiment: Experiment, data: FederatedData | None = None, resumed: bool = False, method: Method | None = None
) -> Prepared:
    """Load the data, derive the terms and choose the execution.

    Args:
        experiment: the configuration.
        data: records that are already dealt to clients; by default those that the experiment names.
        resumed: whether the run has begun before: what was decided then is repeated.
        method: one that has no name; by default the experiment's.
    """
    check_device(experiment.device)
    open_choice = experiment.unnamed and method is None and data is None
    if not open_choice:
        method = experiment.build_method() if method is None else method
        _check_execution(experiment, method)
    if experiment.precision == "bf16" and torch.device(experiment.device).type == "cpu":
        bf16.secure()  # before anything is computed here
    public, chosen = None, ""
    if data is None:
        dataset = _load(experiment)
        if open_choice:
            experiment, chosen = experiment.for_data(*_outline(experiment, dataset))
            method = experiment.build_method()
            _check_execution(experiment, method)
        data, public, extractor = _deal(experiment, dataset, method)
    else:
        extractor = build_extractor(experiment, data.shape)
        data = data if extractor is None else _represented(data, extractor, experiment.device)
    assert method is not None
    method.check_data(data.people)
    network = build_network(experiment, data.shape, data.task, method.class_weight)
    coarse = bf16.decide(experiment.precision, experiment.device, network.module, data.shape, method.batch, resumed)
    network = replace(network, precision=coarse.precision)
    check_tokens(network.module, data.train.x)
    facts = _facts(data, public, network, extractor, method.unit.record_level)
    costs = derive_costs(experiment, facts, method)
    choice = choose(experiment, costs.method, network.learner, data, costs.schedule.cohort)
    compilable = choice.engine == "one-by-one" and data.train.persons is None
    plan = costs.allowance.records if compilable else None
    with single_threaded():
        compiled = compiling.decide(experiment.compiled, costs.method, network.module, data, plan, experiment.device)
    decided = {"precision": coarse.precision, "engine": choice.engine, "compiled": compiled.compiled}
    terms = derive(experiment.model_copy(update=decided), facts, costs)
    same = repeats(terms.method, network.name, network.module, experiment.device)
    same = same and (extractor is None or not extractor.choice.is_own)
    # With noise = "integers" drawn from a seed epsilon is infinite anyway, and draws must equal those of a trial.
    own = terms.method.privacy == "dp" and experiment.noise == "float" and not same
    return terms.extend(
        Prepared,
        data=data,
        chosen=chosen,
        public=public,
        choice=replace(choice, reasons=choice.reasons + compiled.reasons + coarse.reasons),
        repeats=same,
        needs_nonce=own,
        compiled=compiled.made,
        notes=[*([chosen] if chosen else []), *data.notes, *([OWN_CODE] if own else []), *coarse.notes, *terms.notes],
    )


def _check_execution(experiment: Experiment, method: Method) -> None:
    """Refuse a precision that the method or the engine cannot compute in."""
    if experiment.precision != "bf16":
        return
    if method.unit.record_level:
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
