"""Advice on level, method and size of the shared model, and on whether to federate at all.

The advice follows from the ratios of signal to noise of a `Situation`. The thresholds here and there come from measured
comparisons; `tests/planning/test_advise.py` compares the advice with the measurements (`tests/measured.py`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Literal

from sordino.errors import UserError
from sordino.experiment.budgeting import unusual_budget
from sordino.experiment.config import Experiment
from sordino.experiment.defaults import FOR_TABLES
from sordino.planning.situation import ABOUT_ZERO, HELPS, MOST_GUIDE, SMALL, Situation
from sordino.privacy.budget.client_level_plan import check_delta
from sordino.privacy.unit import Unit, person_words, rows_words

Level = Unit | None
"""Unit to protect; None where clients had better train alone."""
QUANTILE_FROM = 8000
"""Number of feasible parameters from which, where whole clients are protected, the threshold follows a quantile of the
updates. With fewer a fixed threshold did better, perhaps because the counts that move it are mostly noise."""
ENOUGH = 1.0
"""Ratio from which a federated model is good by itself."""
INSTITUTION = 100
"""Number of records from which a client may be an institution that holds the records of other people."""
MAX_CLIENTS_NEEDED = 10_000_000
"""Number of clients up to which the advice says how many would be enough."""
DIGITS = 1797
"""Number of records of the built-in data set."""


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
    expected_gain: float | None = None
    """Points of AUC that clients are expected to gain over training alone by the model that tables at a few sites would
    share; None for other records."""


def advise(situation: Situation) -> Advice:
    """Return the level and method that suit a situation, or the advice to train alone."""
    if situation.clients < 1 or situation.records < 1:
        raise UserError("Advice needs at least one client, and one record for each.")
    larger, situation = situation, _with_smaller_network(situation)
    level = _level(situation)
    warnings = _check_delta(situation, level)
    feasible = {str(unit): situation.feasible(unit) for unit in HELPS}
    chosen = _choice(situation, level)
    if situation is not larger and LOGISTIC not in chosen.settings:
        chosen = chosen.with_setting(LOGISTIC)
    reasons = [*_level_reasons(situation, level), *_smaller_reasons(larger, situation), *_assumption(situation)]
    reasons += _guide_reasons(situation)
    reasons += [*chosen.reasons, *_everybody(situation, level)]
    own_noise = level is Unit.RECORD and not situation.few_sites  # the advised method adds all noise at each client
    held = situation.noise_at_each() if own_noise else situation
    reasons += [*_noise_reasons(held, level), *_size_reasons(held, level), *_feature_reasons(held, level)]
    reasons += [*warnings, *unusual_budget(situation.epsilon)]
    candidates = [chosen.contender, *chosen.others]
    gain = situation.gain if situation.few_sites else None
    unit = Unit.PERSON if level is Unit.RECORD and situation.persons is not None else level
    return Advice(unit or "none", chosen.method, list(chosen.settings), reasons, feasible, candidates, gain)


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
        f"Trying takes {len(costly)} runs with epsilon {budget:g}. Each run is charged to these people's budgets, "
        "except runs already in the store; the total is printed below. A stand-in costs nothing: give --records "
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

    def with_setting(self, setting: str) -> _Choice:
        """The choice with a setting more, for all contenders."""
        others = (f"{one[:-1]},{setting}]" if one.endswith("]") else f"{one}[{setting}]" for one in self.others)
        return replace(self, settings=(*self.settings, setting), others=tuple(others))


LOGISTIC = "model=logistic"
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
    "table": _Choice(
        FOR_TABLES["method"],
        tuple(f"{key}={value}" for key, value in FOR_TABLES.items() if key != "method"),
        (f"dp-fedavg-record[clipping=fixed,{BLEND}]", "local"),
        (
            "dp-fedsgd: one noisy sum of all records' gradients a round. `sordino run` chooses it for tables at a few "
            "sites by itself.",
            "personal=recalibrate fits the server's model to each client's own records, which costs no privacy. In the "
            "four hospitals of Heart Disease at epsilon 1 that had an AUC of 81.5, training alone 77.9, and a model of "
            "all records without privacy 81.2 (experiments/tables.md).",
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
    if level.record_level and situation.few_sites:
        return CHOICES["table"]
    few = not level.record_level and situation.feasible(level) < QUANTILE_FROM
    return CHOICES["few" if few else level]


def _level(situation: Situation) -> Level:
    if situation.table_pays:
        return Unit.RECORD
    if situation.helps(Unit.CLIENT) and not (situation.few_sites and situation.large_sites):
        return Unit.CLIENT
    if situation.few_sites:
        return None
    if situation.records >= INSTITUTION and situation.helps(Unit.RECORD):
        return Unit.RECORD
    return None


def _with_smaller_network(situation: Situation) -> Situation:
    """Return the situation with a logistic regression in the place of a network that is too large for the records."""
    if situation.linear is None or situation.clients == 1:
        return situation
    level = _level(situation)
    held = situation if level is not Unit.RECORD else situation.noise_at_each()
    if level is not None and held.ratio(level) >= ENOUGH:
        return situation
    return replace(
        situation, parameters=situation.linear, network="logistic", linear=None, table=situation.binary, presumed=False
    )


def _smaller_reasons(larger: Situation, situation: Situation) -> list[str]:
    """Return a sentence on a logistic regression that is advised in the place of a larger network."""
    if situation is larger:
        return []
    level = Unit.RECORD if larger.records >= INSTITUTION else Unit.CLIENT
    return [
        f"Train a logistic regression (--model logistic): {larger.network} has {larger.size:,} parameters, too many "
        f"for these records and this budget (about {larger.noise_at_each().feasible(level):,} can be trained where one "
        f"{level} is protected by noise at each client); a logistic regression has {situation.size:,}."
    ]


def _check_delta(situation: Situation, level: Level) -> list[str]:
    """Refuse a delta that is vacuous for the advised level, or for levels that would be tried beside training alone;
    return warnings about one that promises little, as a run does."""
    if situation.delta is None:
        return []
    found = [
        check_delta(situation.delta, situation.units(unit), unit, situation.allow_vacuous_delta)
        for unit in HELPS
        if level in (unit, None)
    ]
    return [] if level is None else found[0]


def _level_reasons(situation: Situation, level: Level) -> list[str]:
    whole, single = (_parameters(situation.feasible(unit)) for unit in HELPS)
    budget = f"At epsilon {situation.epsilon:g} with {situation.clients:,} clients"
    shared = _network_words(situation)
    if level is not None and not level.record_level:
        but = "and" if situation.ratio(level) >= ENOUGH else "while"
        return [
            f"Protect whole clients: {budget[0].lower()}{budget[1:]} {whole} can be trained, {but} {shared}. It is the "
            "stronger promise: nobody learns even that a client had any such records."
        ]
    few = f"{budget} only {whole} can be trained under a promise to whole clients; {shared}."
    if situation.helps(Unit.CLIENT):
        few = (
            f"{situation.clients} clients can be protected as wholes, at a larger loss: the noise that hides one of "
            "them hides all of its records."
        )
    elif situation.ratio(Unit.CLIENT) >= HELPS[Unit.CLIENT]:
        few = f"With {situation.clients} clients a sum of updates is mostly noise if whole clients are protected."
    if level is not None:
        against = "whose noise the clients share" if situation.protect_from == "outsider" else "even against the server"
        if not situation.few_sites:  # its method adds all noise at each client, whatever is planned
            single = _parameters(situation.noise_at_each().feasible(level))
            against = "even against the server"
        whom = "single records" if situation.persons is None else "persons"
        return [
            f"Protect {whom}: {few[0].lower()}{few[1:]} With {_all_records(situation)} {single} "
            f"can be trained under a promise to each {'record' if situation.persons is None else 'person'}, {against}.",
            "This is right where a client is an institution with the records of many people. Where all records of a "
            "client are one person's, it promises that person little: train alone then.",
            rows_words({}) if situation.persons is None else person_words(situation.persons.max_sites),
        ]
    if situation.clients == 1:
        return ["Train alone: there is nobody to federate with."]
    if situation.few_sites:
        whose = "with so many records of its own a client is" if situation.large_sites else "with so much noise it is"
        why = f"and under a promise to single records {whose} expected to gain about nothing"
    elif not situation.helps(Unit.RECORD):
        why = (
            f"and under a promise to single records, of which a client has {situation.records:,}, the federated model "
            "is not expected to beat a client's own (expected gain about zero)"
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


def _all_records(situation: Situation) -> str:
    """Number of records that sums are over: of all clients, where it is known."""
    if situation.total is None:
        return f"{_records(situation)} at each of them"
    whose = "training records" if situation.persons is None else "persons to train on"
    return f"{situation.total:,} {whose} in all ({situation.records:,} at the client in the middle)"


def _network_words(situation: Situation) -> str:
    if situation.parameters is None:
        return f"a small network has {SMALL:,}"
    which = "" if situation.network is None else f" {situation.network}"
    default = ", the default for these records as no --model is given," if situation.presumed else ""
    return f"the network{which}{default} has {situation.parameters:,}"


def _assumption(situation: Situation) -> list[str]:
    """Return a sentence on the assumed number of parameters, if the advice assumes one."""
    if situation.parameters is not None or situation.clients == 1:
        return []
    return [
        f"This presumes {SMALL:,} shared parameters, because no data are named: a larger network may turn the advice "
        "around. Give the number with --parameters, or name the data with --data (and --model), and it is counted."
    ]


def _guide_reasons(situation: Situation) -> list[str]:
    """Return sentences on what to expect of a linear model on tables with two outcomes."""
    if not situation.few_sites:
        return []
    shared = "s = 1, because clients share the noise"
    if situation.protect_from == "server":
        shared = f"s = {situation.excess:.2g}, the root of the number of clients, each of which adds all noise"
    elif situation.excess > 1:
        shared = (
            f"s = {situation.excess:.2g}, the root of the number of clients over the {situation.together} whose noise "
            "nobody can subtract"
        )
    origin = "half of all, which is assumed: give another number with --rare"
    if situation.rare is not None:
        origin = "counted on this machine, which epsilon does not cover" if situation.counted else "as given"
    sentences = [
        f"The guide r = d s / (2 mu n) is {situation.guide:.2g}: noise over signal. Here d = {situation.columns:,} "
        f"columns, the intercept included; {shared}; mu = {situation.mu(Unit.RECORD):.2g}, the budget's Gaussian "
        f"measure; and n = {situation.rarer:,} training records with the rarer outcome ({origin}).",
        *_gain_reasons(situation),
    ]
    if situation.large_sites:
        sentences.append(
            f"With {_records(situation)} at each of them, clients do as well alone: where sites had thousands of rows, "
            "federating gained 0.2 to 0.6 points of AUC. The expected gain is about zero."
        )
    return sentences


def _gain_reasons(situation: Situation) -> list[str]:
    """Return sentences that compare the federated model of tables with what clients would reach alone."""
    alone, federated = situation.below_alone, situation.below_federated
    below = (
        f"Training alone is expected to be about {alone:.1f} points of AUC below a model of all records without "
        f"privacy (7 sqrt(d / m), where m = n / {situation.clients} records of a client have the rarer outcome), the "
        f"federated model about {federated:.1f} (6 r)"
    )
    if situation.guide > MOST_GUIDE:
        return [f"{below}; above r = {MOST_GUIDE:g} few were measured: the expected gain is about zero, or less."]
    gain = f"about {situation.gain:.1f} points" if situation.gain >= ABOUT_ZERO else "about zero"
    less = ", or less" if situation.gain < -ABOUT_ZERO else ""
    return [
        f"{below}: the expected gain over training alone is {gain}{less}. In 15 deals of five real tables such "
        "figures were off by 1.7 points; on two that nearly every model tells apart (AUC 0.99) nothing was to be "
        "gained (experiments/tables.md)."
    ]


def _everybody(situation: Situation, level: Level) -> list[str]:
    """Return a sentence on how many clients to ask in a round, where whole ones are protected and share noise."""
    if level is not Unit.CLIENT or situation.protect_from == "server":
        return []
    return [
        f"Ask everybody in every round (participation = 1, the default): with a share p of n clients a round, "
        f"p (n mu)^2 parameters can be trained at the same epsilon, here {situation.feasible(level):,} with p = 1 and "
        f"{situation.feasible(level) // 10:,} with a tenth. In 300 clients of the built-in digits at epsilon 1 a tenth "
        f"a round had 77.8 % and everybody 93.8 %. It takes {situation.clients:,} messages a round."
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
            range(MAX_CLIENTS_NEEDED), True, key=lambda clients: replace(situation, clients=clients).helps(Unit.CLIENT)
        )
        if situation.clients > 1 and enough < MAX_CLIENTS_NEEDED:
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
