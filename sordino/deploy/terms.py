"""What an experiment means on real machines, before anything is asked: the server and every site work it out by
themselves, from the same declarations and each with its own code.

Nothing here depends on anybody's records. A deployed experiment *declares* what a simulation reads from the data:
`clients`, `shape`, `labels`, for tables `columns`, and where records are protected `records_each`. How much noise a
site's records need depends on how many it has: `Terms.at_site` works that out there.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino import models
from sordino.data.dataset import Meaning
from sordino.data.own import DEFAULT_LABEL
from sordino.data.schema import Column, Label, Number, Schema
from sordino.deploy import accuracies
from sordino.deploy.declared import (
    check_declared,
    check_published,
    check_records,
    check_releases,
    labels_of,
    shape_of,
    task_of,
)
from sordino.deploy.protocol import secure_sum
from sordino.errors import UserError
from sordino.experiment.budgeting import (
    SEED_IS_KNOWN,
    Calibration,
    not_covered_before,
    notes_before,
    planned_method,
    record_plan,
    smallest_cohort,
    spending,
)
from sordino.experiment.config import Experiment
from sordino.experiment.hyperparameters import address
from sordino.experiment.identity import identity_of, weights_of
from sordino.federation.schedule import Schedule
from sordino.learning.network import Learner
from sordino.learning.parameters import flatten
from sordino.method import Budget, Method
from sordino.methods.bases import RecordLevel
from sordino.parts.masks import check_head
from sordino.privacy import integers
from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.budget.client_plan import check_delta
from sordino.privacy.budget.record_plan import RecordNeeds, RecordPlan
from sordino.privacy.integers import CLIENTS, RECORDS, Gap
from sordino.privacy.ledger import Row
from sordino.privacy.noise import Seeded
from sordino.privacy.release import Public, Release, Releases, check_steps
from sordino.trained.models import Description
from sordino.version import VERSION

CARRIED = (
    *("clients", "shape", "labels", "columns", "table", "records_each", "model", "method", "variant", "rounds"),
    *("participation", "epsilon", "delta", "noise_multiplier", "protect_from", "minimum_cohort", "colluders"),
    *("active_server", "spare_turns", "metrics_share", "allow_vacuous_delta", "noise", "seed", "evaluate_every"),
    *("personal", "set"),
)
"""The keys that mean something on real machines; the others say where a simulation's data lie and how it is run."""

ROOM_EACH, ROOM = 2**12, 2**20
"""Bytes of an answer for each site of a cohort, and for everything besides the model's numbers."""


@dataclass(frozen=True)
class Terms:
    """What everybody agrees on before the first round: all of it is public."""

    experiment: Experiment
    """With the keys that are carried, the network among them."""
    method: Method
    learner: Learner
    initial: Tensor
    schedule: Schedule
    budget: Budget
    allowance: Allowance
    """What releases may spend. At record level it is that of a client with `records_each` records; a site has its own:
    `at_site`."""
    minimum: int
    """U_min: with how many answers a question is used."""
    shares: int
    """h: how many honest shares of noise every sum holds that anybody can open."""
    identity: str
    """The hash of everything that decides the run, but for the sites' records."""
    notes: list[str]
    disclosed: list[str]

    @property
    def data(self) -> None:
        """Nobody has all records."""
        return

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one record."""
        return shape_of(self.experiment)

    @property
    def labels(self) -> tuple[str, ...]:
        """What records may be, in the order of the classes."""
        return labels_of(self.experiment)

    @property
    def seeded(self) -> bool:
        """Whether noise comes from the seed, which everybody knows: a trial, in which no epsilon holds."""
        return self.experiment.noise == "integers"

    @property
    def turns(self) -> int:
        """How often a client may take part before its budget is used up, repeated rounds included."""
        return self.schedule.turns + self.experiment.spare_turns

    def carried(self) -> dict[str, Any]:
        """The experiment as it travels: `Experiment.make` of it has the same terms."""
        return self.experiment.model_dump(mode="json", include=set(CARRIED), exclude_none=True)

    def schema(self, label: str | None) -> Schema | None:
        """How a record is made of a table's row, in which `label` is the label column; None for arrays."""
        if self.experiment.table is not None or self.experiment.columns is None:
            return self.experiment.table
        columns: dict[str, Column] = {name: Number() for name in self.experiment.columns}
        return Schema(columns=columns | {label or DEFAULT_LABEL: Label(values=self.labels)})

    def described(self, run: str, names: Sequence[str], label: str | None = None) -> Description:
        """What the models of a run mean; `names` are the sites', `label` a table's label column."""
        return Description(
            run=run,
            version=VERSION,
            method=self.experiment.method,
            network=str(self.experiment.model),
            options=self.experiment.model_options(),
            shape=self.shape,
            meaning=Meaning(self.learner.task, self.schema(label)),
            clients=tuple(names),
        )

    def steps(self) -> dict[str, Releases]:
        """What leaves in each step: the method's, and the accuracies that sites share."""
        share, found = self.experiment.metrics_share, dict(self.method.steps())
        return found | {accuracies.STEP: accuracies.releases(share, self.turns)} if share else found

    def is_summed(self, releases: Releases) -> bool:
        """Whether what leaves is added up before anybody sees it; else each message is protected by itself."""
        return any(release.summed for release in releases.values()) and self.experiment.protect_from == "outsider"

    def at_site(self, number: int, records: int) -> Allowance:
        """What the releases of client `number` may spend, who has so many training records."""
        if self.allowance.records is None:
            return self.allowance
        delta = self.budget.delta
        check_delta(delta, records, "record", self.experiment.allow_vacuous_delta)
        budget = self.allowance.records.budgets[[number]]
        calibration = _calibration(self.experiment, self.method, self.learner, self.turns, self.shares)
        plan = record_plan(self.experiment, self.method, np.array([records]), budget, self.schedule, delta, calibration)
        everywhere = {one.name: _spread(getattr(plan, one.name), self) for one in dataclasses.fields(plan)}
        return dataclasses.replace(self.allowance, records=RecordPlan(**everywhere))

    @property
    def largest_answer(self) -> int:
        """Upper bound of a site's answer in bytes: twice its entries as 64-bit numbers, and room for what goes with
        them to each other site."""
        widest = _widest(self.method.record_needs(), self._parameters)
        steps = [
            sum(max(_width(one, self.learner), widest * getattr(one, "times", 1)) for one in releases.values())
            for releases in self.steps().values()
        ]
        return 2 * 8 * max(steps) + ROOM_EACH * self.schedule.clients + ROOM

    def check_reserved(self, rows: Sequence[Row]) -> None:
        """Refuse a release of records that has more entries, each of them rounded, than noise was set aside for."""
        widest = _widest(self.method.record_needs(), self._parameters)
        for row in rows:
            if row.pool and row.entries > widest * row.histories()[:, 2].max(initial=1.0):
                raise UserError(
                    f"{row.release} of {row.step} has {row.entries:,} entries, but noise is set aside for {widest:,}: "
                    "declare the matrix's side."
                )

    @property
    def _parameters(self) -> int:
        return self.learner.layout.size


def _spread(value: np.ndarray, terms: Terms) -> np.ndarray:
    """What a site knows of itself under every client's number: it is never asked as anybody else."""
    return np.repeat(value, terms.schedule.clients)


def terms_of(experiment: Experiment) -> Terms:
    """The terms of a deployed experiment; one that cannot be deployed is refused with a sentence."""
    check_declared(experiment)
    clients, shape, task = experiment.clients, shape_of(experiment), task_of(experiment)
    assert clients is not None
    schedule = Schedule.of(experiment.rounds, clients, experiment.participation)
    experiment = _with_contents(experiment)
    method = experiment.build_method().settled(clients)
    name = experiment.model or models.default(shape)
    torch.manual_seed(Seeded(experiment.seed).key("initial model") >> 32)
    module = models.build(name, shape, task.width, **experiment.model_options())
    experiment = Experiment(**{key: getattr(experiment, key) for key in CARRIED} | {"model": name})
    weights = weights_of(name, module)
    learner, initial = Learner(module, task), flatten(module)
    check_head(method, learner.layout)
    turns = schedule.turns + experiment.spare_turns
    # One number, however many clients a server declares.
    sizes = np.broadcast_to(np.int64(experiment.records_each or 1), (clients,))
    if isinstance(method, RecordLevel):
        learner.keeper(shape)  # refuses a network that cannot be run for one record at a time
        check_records(experiment, method)
    method, choices = planned_method(experiment, method, sizes, schedule, turns)
    check_steps(method.steps(), method.unit, method.public_memory(initial, learner.layout))
    check_releases(experiment, method, initial, learner)
    check_published(experiment, method)
    minimum = smallest_cohort(experiment, schedule)
    shares = _shares(experiment, schedule, minimum, any_summed(method, experiment))
    spent = spending(experiment, method, sizes, schedule, _calibration(experiment, method, learner, turns, shares))
    seeded = experiment.noise == "integers"
    allowance = dataclasses.replace(spent.allowance, whole=not seeded, known=SEED_IS_KNOWN if seeded else "")
    read = method.file_contents()
    configuration = experiment.model_dump(mode="json", include=set(CARRIED)) | {"made": repr(method), "read": read}
    configuration |= weights
    return Terms(
        experiment=experiment,
        method=method,
        learner=learner,
        initial=initial,
        schedule=schedule,
        budget=spent.budget,
        allowance=allowance,
        minimum=minimum,
        shares=shares,
        identity=identity_of(configuration, "at the sites", type(method), type(module)),
        notes=notes_before(experiment, method, schedule, spent, choices, learner.layout),
        disclosed=[*read_from_records(experiment), *not_covered_before(experiment, method)],
    )


def _with_contents(experiment: Experiment) -> Experiment:
    """The experiment with what stands in files in the place of their names: sites have not these files."""
    method = experiment.build_method()
    named, contents, chosen = method.files(), method.file_contents(), dict(experiment.set)
    for key in experiment.set:
        found = address(key)
        if found is not None and found.owner in ("", experiment.method) and found.field in named:
            chosen[key] = json.dumps(contents[found.field])
    return experiment.model_copy(update={"set": chosen})


def read_from_records(experiment: Experiment) -> tuple[str, ...]:
    """Sentences on what the schema has from records."""
    return () if experiment.table is None else experiment.table.disclosed()


def any_summed(method: Method, experiment: Experiment) -> bool:
    """Whether any step's messages are added up before anybody sees them."""
    summed = any(release.summed for releases in method.steps().values() for release in releases.values())
    return summed and experiment.protect_from == "outsider"


def _shares(experiment: Experiment, schedule: Schedule, minimum: int, summed: bool) -> int:
    """h, where messages are summed; one where each is protected by itself."""
    if not summed:
        return 1
    cohort = (schedule.cohort, minimum, experiment.colluders, experiment.active_server)
    secure_sum.check_cohort(*cohort)
    return secure_sum.honest_shares(*cohort)


@dataclass(frozen=True)
class AtSites(Calibration):
    """Noise for a budget at sites: part of the budget is kept for accuracies, and what whole-number noise adds to
    epsilon and delta is taken off first."""

    whole: bool = True
    """Whether epsilon holds; else noise comes from the seed, and is as in a simulation."""
    metrics_share: float = 0.0
    entries: int = 0
    """Most entries that leave in one step, where whole clients are protected."""
    parameters: int = 0
    """Number of the network's parameters."""

    def multiplier(self, epsilon: float, delta: float) -> float:
        more = 1 / math.sqrt(1 - self.metrics_share)
        if not self.whole:
            return super().multiplier(epsilon, delta) * more
        gap = Gap(self.entries * self.turns + len(accuracies.NAMES), self.shares or 1, CLIENTS)
        left = delta - gap.delta(epsilon)
        if left <= 0 or epsilon <= gap.epsilon:
            raise UserError(f"epsilon = {epsilon:g} at delta = {delta:g} is less than what whole numbers alone cost.")
        rounding = 1 - 1e-9  # of the search for epsilon
        return more * super().multiplier((epsilon - gap.epsilon) * rounding, left) / gap.multiplier(1.0)

    def plan(self, records: list[int], budgets: np.ndarray, delta: float, **settings: Any) -> RecordPlan:
        if not self.whole:
            return super().plan(records, budgets, delta, **settings)
        needs: RecordNeeds = settings["needs"]
        # Steps do not depend on the noise: how many there will be says what whole numbers add.
        steps = max(settings["epochs"] * math.ceil(count / settings["batch"]) for count in records)
        widest = _widest(needs, self.parameters)
        gap = Gap((steps + needs.means + 1) * self.turns * widest, 1, RECORDS)
        least = float(budgets.min())
        if gap.delta(float(budgets.max())) >= delta or gap.epsilon >= least:
            raise UserError(f"epsilon = {least:g} at delta = {delta:g} is less than what whole numbers alone cost.")
        left = (budgets - gap.epsilon) * (1 - 1e-9)
        plan = super().plan(records, left, delta - gap.delta(float(budgets.max())), **settings)

        def more(multipliers: np.ndarray, entries: int) -> np.ndarray:
            return np.array([integers.multiplier_charged_as(float(z), entries) if z else 0.0 for z in multipliers])

        return dataclasses.replace(
            plan,
            budgets=budgets,
            multipliers=more(plan.multipliers, self.parameters),
            matrix_multipliers=more(plan.matrix_multipliers, widest),
            mean_multipliers=more(plan.mean_multipliers, 1),
        )


def _calibration(experiment: Experiment, method: Method, learner: Learner, turns: int, shares: int) -> AtSites:
    return AtSites(
        turns=turns,
        shares=shares,
        whole=experiment.noise != "integers",
        metrics_share=experiment.metrics_share,
        entries=max(sum(_width(release, learner) for release in one.values()) for one in method.steps().values()),
        parameters=learner.layout.size,
    )


def _width(release: Release, learner: Learner) -> int:
    return release.width(Public({}, layers=learner.layout.layers)) or 0


def _widest(needs: RecordNeeds, parameters: int) -> int:
    """For how many entries of one release noise is set aside."""
    return max(parameters, needs.matrix_entries)
