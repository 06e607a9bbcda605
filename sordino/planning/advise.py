"""Advice on level, method and size of the shared model, and on whether to federate at all.

The advice follows from one ratio for each level: signal over noise of everything shared during a run, squared, per
parameter. It does not depend on the number of rounds:

- whole clients protected: n clients pull together, and the noise in their sum has deviation 1/mu: (n mu)^2 / d, or,
  where every message carries all of its noise against the server, n mu^2 / d;
- records protected: each of n clients adds noise of its own to the sum over its r records: n (r mu)^2 / d.

mu is the Gaussian budget of epsilon at delta, d the number of shared parameters. The thresholds below come from
measured comparisons; `tests/planning/test_advise.py` compares the advice with the measurements (`tests/measured.py`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from sordino.data.federate import DEFAULT_CLIENTS
from sordino.errors import UserError
from sordino.experiment.budgeting import unusual_budget
from sordino.experiment.config import Experiment
from sordino.privacy.accounting.gaussian import mu_of
from sordino.privacy.budget.client_level_plan import check_delta, default_delta
from sordino.privacy.budget.shared_noise import ProtectFrom
from sordino.privacy.unit import Unit, rows_words

Level = Unit | None
"""Unit to protect; None where clients had better train alone."""
HELPS: dict[Unit, float] = {Unit.CLIENT: 0.1, Unit.RECORD: 100.0}
"""Ratios from which a federated model improves a client's own model when the two are mixed. Clients with enough records
to bear record-level noise do well alone, so that the ratio for records must be far higher."""
QUANTILE_FROM = 8000
"""Number of feasible parameters from which, where whole clients are protected, the threshold follows a quantile of the
updates. With fewer a fixed threshold did better, perhaps because the counts that move it are mostly noise."""
ENOUGH = 1.0
"""Ratio from which a federated model is good by itself."""
LEAST_CLIENTS: dict[Unit, int] = {Unit.CLIENT: 15, Unit.RECORD: 2}
"""Fewest clients with which federating can help. Where whole clients are protected, the sum of fewer updates is too
noisy to learn from, however small the network; where records are, two clients are enough."""
SMALL = 1000
"""Number of parameters of a small network, assumed where none is named."""
INSTITUTION = 100
"""Number of records from which a client may be an institution that holds the records of other people."""
MOST_CLIENTS = 10_000_000
"""Number of clients up to which the advice says how many would be enough."""
LEAST_IMAGE = 16
"""Least side of images for which features are advised: smaller ones have few scales."""
DIGITS = 1797
"""Number of records of the built-in data set."""


@dataclass(frozen=True)
class Situation:
    """Facts that the advice depends on."""

    clients: int
    records: int
    """Median number of training records of a client."""
    epsilon: float
    parameters: int | None = None
    """Number of parameters of the shared network; None where none is named."""
    protect_from: ProtectFrom = "outsider"
    delta: float | None = None
    most: int | None = None
    """Largest number of training records of a client; None where only the median is known."""
    allow_vacuous_delta: bool = False
    image: tuple[int, ...] | None = None
    """Shape (channels, height, width) of one record, where records are known to be images."""
    features: bool = False
    """Whether the network is trained on features already."""

    @property
    def size(self) -> int:
        """Number of shared parameters: those of the network, or of a small one."""
        return self.parameters or SMALL

    def units(self, unit: Unit) -> int:
        """Number of units among which delta hides one."""
        return unit.crowd_size(self.clients, self.most or self.records)

    def mu(self, level: Unit) -> float:
        """Return the Gaussian budget mu of the level's unit."""
        return mu_of(self.epsilon, self.delta or default_delta(self.units(level)))

    def feasible(self, level: Unit) -> int:
        """Return the number of shared parameters at which the ratio is one."""
        if level.record_level:
            return math.floor(self.clients * (self.records * self.mu(level)) ** 2)
        together = self.clients if self.protect_from == "outsider" else 1
        return math.floor(self.clients * together * self.mu(level) ** 2)

    def ratio(self, level: Unit) -> float:
        """Return signal over noise, squared, per parameter."""
        return self.feasible(level) / self.size

    def helps(self, level: Unit) -> bool:
        """Whether a model that is federated at this level improves a client's own."""
        return self.clients >= LEAST_CLIENTS[level] and self.ratio(level) >= HELPS[level]


@dataclass(frozen=True)
class Advice:
    """Advised level, method and settings, with the reasons."""

    level: Unit | Literal["none"]
    method: str
    settings: list[str]
    """Keys and hyper-parameters to run it with, as `--set` takes them."""
    advice: list[str]
    """Reasons, in sentences."""
    feasible_parameters: dict[str, int]
    """Number of shared parameters that each level can train at this budget."""
    candidates: list[str]
    """Most promising contenders to try, as `compare` takes them, the advised one first."""


def situation_of(experiment: Experiment, records: int | None, parameters: int | None, look: bool) -> Situation:
    """Return the situation of an experiment.

    Args:
        experiment: The experiment.
        records: Median number of training records of a client, if the user gives it.
        parameters: Number of shared parameters, if the user gives it.
        look: Whether data are loaded and the network is built, to count records and parameters.
    """
    if experiment.privacy == "none":
        raise UserError('Advice is for a budget, and with privacy = "none" there is none: leave it out.')
    clients = experiment.clients or DEFAULT_CLIENTS
    most, image = None, None
    if look:
        from sordino.experiment.prepare import read_facts

        data, facts = read_facts(experiment)
        assert facts.network is not None
        clients, sizes = facts.clients, data.train.sizes
        parameters = parameters or facts.network.learner.layout.size
        image = data.shape if len(data.shape) == 3 and min(data.shape[1:]) >= LEAST_IMAGE else None
        records, most = records or round(float(np.median(sizes))), int(sizes.max())
    if records is None:
        raise UserError("Say how many records a client has with --records, or name the data with --data.")
    other = [key for key in experiment.set if key.split(".")[-1] == "budgets"]
    other += ["noise_multiplier"] if experiment.noise_multiplier is not None else []
    if other and experiment.epsilon is None:
        raise UserError(f"Advice needs one epsilon, but {other[0]} is given instead: name one with --epsilon.")
    return Situation(
        clients,
        records,
        experiment.asked_epsilon,
        parameters,
        experiment.protect_from,
        experiment.delta,
        most,
        experiment.allow_vacuous_delta,
        image,
        experiment.features is not None,
    )


def advise(situation: Situation) -> Advice:
    """Return the level and method that suit a situation, or the advice to train alone."""
    if situation.clients < 1 or situation.records < 1:
        raise UserError("Advice needs at least one client, and one record for each.")
    level = _level(situation)
    warnings = _check_delta(situation, level)
    feasible = {str(unit): situation.feasible(unit) for unit in Unit}
    chosen = _choice(situation, level)
    reasons = [*_level_reasons(situation, level), *_assumption(situation), *chosen.reasons]
    reasons += [
        *_noise_reasons(situation, level),
        *_size_reasons(situation, level),
        *_feature_reasons(situation, level),
    ]
    reasons += [*warnings, *unusual_budget(situation.epsilon)]
    candidates = [chosen.contender, *chosen.others]
    return Advice(level or "none", chosen.method, list(chosen.settings), reasons, feasible, candidates)


def stand_in(experiment: Experiment, situation: Situation) -> Experiment:
    """Return the experiment on the built-in digits, which stand in for missing data: as many records as the clients
    would have together, or all of them."""
    enough = max(2, min(situation.clients * situation.records, DIGITS))  # one to train on, one to test with
    clients = min(situation.clients, enough // 2)
    return experiment.model_copy(update={"data": "digits", "clients": clients, "records": enough})


def spends(experiment: Experiment, advice: Advice, real: bool) -> str:
    """Return a sentence on what trying the candidates costs the people whose records are used."""
    if not real:
        return "Trying on the built-in digits in the place of records that are not there: it costs nobody anything."
    budget = experiment.asked_epsilon
    costly = [one for one in advice.candidates if not one.startswith("local")]
    return (
        f"Trying takes {len(costly)} runs with epsilon {budget:g} on these people, each of which counts, but for those "
        "that the store already has: what all come to together is told below. A stand-in costs nothing: give --records "
        "instead of --data."
    )


@dataclass(frozen=True)
class _Choice:
    """Advised method and settings of a level, with the reasons."""

    method: str
    settings: tuple[str, ...]
    others: tuple[str, ...]
    """Contenders to try beside it, as `compare` takes them."""
    reasons: tuple[str, ...]

    @property
    def contender(self) -> str:
        """Method and settings as `compare` takes them."""
        return f"{self.method}[{','.join(self.settings)}]" if self.settings else self.method


BLEND = "personal=blend"
BLENDING = (
    "personal=blend lets every client mix the federated models with its own, weighed at the client by its own records: "
    "it costs no privacy, and where it was advised in our comparisons, clients lost by taking part in the mean one or "
    "two points at the worst; a single one may lose more."
)
CHOICES = {
    "client": _Choice(
        "dp-fedavg",
        ("clipping=quantile", BLEND),
        ("dp-fedavg[clipping=quantile]", "local"),
        (
            "dp-fedavg with clipping=quantile: in our comparisons no method at client level was clearly better at "
            "equal true epsilon, and the threshold finds itself.",
            BLENDING,
        ),
    ),
    "few": _Choice(
        "dp-fedavg",
        ("clipping=fixed", BLEND),
        ("dp-fedavg[clipping=fixed]", "local"),
        (
            "dp-fedavg with a fixed threshold, clip=0.5 where nothing else is known: where so few parameters can be "
            "trained, a threshold that follows a quantile was up to eight points worse in our comparisons.",
            BLENDING,
        ),
    ),
    "record": _Choice(
        "dp-fedavg-record",
        ("clipping=fixed", BLEND),
        (f"mr-mtl-record[{BLEND}]", "local"),
        (
            "dp-fedavg-record with a fixed threshold, clip=1 where nothing else is known: blended, it was within a "
            "point of the best in our comparisons at record level. mr-mtl-record did as well; a threshold that follows "
            "a quantile had 0.4 points less in the mean, clip=3 half a point less and clip=0.3 one.",
            BLENDING,
        ),
    ),
    "none": _Choice(
        "local",
        (),
        (f"dp-fedavg[clipping=fixed,{BLEND}]", f"dp-fedavg-record[clipping=fixed,{BLEND}]"),
        ("local training costs no privacy at all. Where more clients join, ask again.",),
    ),
}
"""Choices by level; `few` where whole clients are protected and few parameters are feasible."""


def _choice(situation: Situation, level: Level) -> _Choice:
    if level is None:
        return CHOICES["none"]
    few = not level.record_level and situation.feasible(level) < QUANTILE_FROM
    return CHOICES["few" if few else level]


def _level(situation: Situation) -> Level:
    if situation.helps(Unit.CLIENT):
        return Unit.CLIENT
    if situation.records >= INSTITUTION and situation.helps(Unit.RECORD):
        return Unit.RECORD
    return None


def _check_delta(situation: Situation, level: Level) -> list[str]:
    """Refuse a delta that is vacuous for the advised level, or for levels that would be tried beside training alone;
    return warnings about one that promises little, as a run does."""
    if situation.delta is None:
        return []
    found = [
        check_delta(situation.delta, situation.units(unit), unit, situation.allow_vacuous_delta)
        for unit in Unit
        if level in (unit, None)
    ]
    return [] if level is None else found[0]


def _level_reasons(situation: Situation, level: Level) -> list[str]:
    whole, single = (_parameters(situation.feasible(unit)) for unit in Unit)
    budget = f"At epsilon {situation.epsilon:g} with {situation.clients:,} clients"
    shared = _network_words(situation)
    if level is not None and not level.record_level:
        but = "and" if situation.ratio(level) >= ENOUGH else "while"
        return [
            f"Protect whole clients: {budget[0].lower()}{budget[1:]} {whole} can be trained, {but} {shared}. It is the "
            "stronger promise: nobody learns even that a client had any such records."
        ]
    few = f"{budget} only {whole} can be trained under a promise to whole clients; {shared}."
    if situation.ratio(Unit.CLIENT) >= HELPS[Unit.CLIENT]:
        few = f"With {situation.clients} clients a sum of updates is mostly noise if whole clients are protected."
    if level is not None:
        return [
            f"Protect single records: {few[0].lower()}{few[1:]} With {_records(situation)} at each of them {single} "
            "can be trained under a promise to each record, even against the server.",
            "This is right where a client is an institution with the records of many people. Where all records of a "
            "client are one person's, it promises that person little: train alone then.",
            rows_words({}),
        ]
    if situation.clients == 1:
        return ["Train alone: there is nobody to federate with."]
    if situation.ratio(Unit.RECORD) < HELPS[Unit.RECORD]:
        why = (
            f"and under a promise to single records, of which a client has {situation.records:,}, the federated model "
            "is not expected to beat a client's own"
        )
    else:
        why = (
            f"and with {_records(situation)} a client may be a person, whom a promise to single records does "
            "not protect"
        )
    return [f"Train alone: {few[0].lower()}{few[1:].removesuffix('.')}, {why}."]


def _parameters(count: int) -> str:
    return f"about {count:,} shared parameter{'' if count == 1 else 's'}"


def _records(situation: Situation) -> str:
    return f"{situation.records:,} record{'' if situation.records == 1 else 's'}"


def _network_words(situation: Situation) -> str:
    if situation.parameters is None:
        return f"a small network has {SMALL:,}"
    return f"the network has {situation.parameters:,}"


def _assumption(situation: Situation) -> list[str]:
    """Return a sentence on the assumed number of parameters, if the advice assumes one."""
    if situation.parameters is not None or situation.clients == 1:
        return []
    return [
        f"This presumes {SMALL:,} shared parameters, because no data are named: a larger network may turn the advice "
        "around. Give the number with --parameters, or name the data with --data (and --model), and it is counted."
    ]


def _noise_reasons(situation: Situation, level: Level) -> list[str]:
    """Return a sentence on the expected noise, relative to the signal of all clients together."""
    if level is None:
        return []
    noise = math.sqrt(1 / situation.ratio(level))
    return [
        f"Expect noise of about {noise:.2g} times the signal in each parameter over the whole run, if all clients pull "
        f"the same way; mu, the budget's Gaussian measure, is {situation.mu(level):.2f}."
    ]


def _feature_reasons(situation: Situation, level: Level) -> list[str]:
    """Return a sentence on frozen features, where records are images and the network is too large for the budget."""
    if situation.image is None or situation.features or situation.parameters is None:
        return []
    if level is not None and situation.ratio(level) >= ENOUGH:
        return []
    return [
        "These are images: try --features scattering, frozen features that cost no privacy, with a linear network of a "
        "few thousand parameters. experiments/features.toml has what that reached on handwriting."
    ]


def _size_reasons(situation: Situation, level: Level) -> list[str]:
    if level is None:
        enough = bisect_left(
            range(MOST_CLIENTS), True, key=lambda clients: replace(situation, clients=clients).helps(Unit.CLIENT)
        )
        if situation.clients > 1 and enough < MOST_CLIENTS:
            return [f"About {enough:,} clients would make this worth trying under a promise to whole clients."]
        return []
    feasible = situation.feasible(level)
    if situation.parameters is None:
        return [f"Share at most about {feasible:,} parameters; fewer are better."]
    if situation.ratio(level) < ENOUGH:
        return [
            f"Noise will be felt: a network of at most {feasible:,} shared parameters would do better than one of "
            f"{situation.parameters:,}, if it suits the task."
        ]
    return [f"The network's size is no problem: about {feasible:,} shared parameters would do."]
