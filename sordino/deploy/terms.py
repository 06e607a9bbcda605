"""The terms of a deployment: the server and every site derive them by themselves, each with its own code.

Nothing here depends on anybody's records. A deployed experiment *declares* the facts that a simulation reads from the
data: `clients`, `shape`, `labels`, for tables `columns`, and where records are protected `records_each`. How much noise
a site's records need depends on how many it has: `DeployedTerms.at_site` works that out there.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sordino.data.dataset import Meaning
from sordino.data.own import DEFAULT_LABEL
from sordino.data.schema import PERSON_KEYS, Column, Label, NumberColumn, Schema
from sordino.deploy import accuracies
from sordino.deploy.declarations import (
    check_declared,
    check_features,
    check_records,
    check_releases,
    labels_of,
    shape_of,
    task_of,
)
from sordino.deploy.protocol import secure_sum
from sordino.deploy.protocol.integer_rows import RECORDS_MARGIN
from sordino.errors import UserError
from sordino.experiment.budgeting import Calibration, record_level, record_plan
from sordino.experiment.config import OF_TASKS, Experiment
from sordino.experiment.hyperparameters import address
from sordino.features.extractor import Extractor, Files
from sordino.federation.schedule import Schedule
from sordino.learning.network import Learner
from sordino.method import Method
from sordino.privacy import integers
from sordino.privacy.accounting.sampled_gaussian import sites_epsilon
from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.budget.client_level_plan import check_delta
from sordino.privacy.budget.record_level_plan import RecordNeeds, RecordPlan
from sordino.privacy.integers import CLIENTS, RECORDS, Gap
from sordino.privacy.ledger import Row, seen_by
from sordino.privacy.release import Public, Release, Releases, all_releases, record_needs
from sordino.privacy.views import VIEWS, View, honest_shares
from sordino.store.spending import planned_recipes
from sordino.terms import BuiltNetwork, Facts, Terms, build_extractor, build_network, derive, derive_costs
from sordino.trained.models import Description
from sordino.version import VERSION

CARRIED = (
    *("clients", "shape", "labels", "columns", "table", "records_each", "model", "method", "variant", "rounds"),
    *("participation", "epsilon", "delta", "noise_multiplier", "protect_from", "minimum_cohort", "colluders"),
    *(
        "active_server",
        "spare_turns",
        "metrics_share",
        "evaluation_share",
        "allow_vacuous_delta",
        "noise",
        "seed",
        "evaluate_every",
    ),
    *("features", "personal", "set", *PERSON_KEYS, *OF_TASKS),
)
"""Keys that mean something on real machines; the others say where a simulation's data lie and how it is run."""

PLAIN = set(CARRIED) - {"features"}
"""Those that travel as they are written."""

ASK_SIZES = "the experiment must declare about how many training records a site has, as in records_each = 300"
ROOM_EACH, ROOM = 2**12, 2**20
"""Bytes of an answer per site of a cohort, and for everything besides the model's numbers."""


@dataclass(frozen=True)
class AtSites(Calibration):
    """Rule by which noise follows from a budget at sites: part of the budget is kept for accuracies, and what
    whole-number noise adds to epsilon and delta is taken off first."""

    shares: int = 1
    """h: honest shares of noise in every sum that anybody can open; one where each message is protected by itself."""
    entries: int = 0
    """Most entries that leave in one step, where whole clients are protected."""
    parameters: int = 0
    """Parameters of the network, or entries of a sum over test records or of the statistics of targets, where these
    are more."""
    cells: int = 0
    """Cells of the histogram of test records; none where it is not paid for."""
    sites: int = 1
    """Largest number of sites whose messages hold something of one person, where persons are protected."""
    sums: tuple[int, int] = (1, 0)
    """Most sums over one drawn batch that leave together, and number of sums over all training records, each of which
    leaves once."""

    def gap_of_sums(self, view: View) -> Gap:
        """Return what whole numbers add to an observer's epsilon of all turns, where sums over records leave."""
        drawn, once = self.sums
        met = self.sites * (drawn * self.turns + once) * self.parameters
        return Gap(met, honest_shares(view, self.shares), RECORDS)

    def multiplier(self, epsilon: float, delta: float) -> float:
        if not self.whole:
            return super().multiplier(epsilon, delta)
        gap = Gap(self.entries * self.turns + len(accuracies.NAMES) + self.cells, self.shares, CLIENTS)
        left = delta - gap.delta(epsilon)
        if left <= 0 or epsilon <= gap.epsilon:
            raise UserError(f"epsilon = {epsilon:g} at delta = {delta:g} is less than what whole numbers alone cost.")
        rounding = 1 - 1e-9  # of the search for epsilon
        return super().multiplier((epsilon - gap.epsilon) * rounding, left) / gap.multiplier(1.0)

    def plan(self, records: list[int], budgets: np.ndarray, delta: float, **settings: Any) -> RecordPlan:
        if not self.whole:
            return super().plan(records, budgets, delta, **settings)
        needs: RecordNeeds = settings["needs"]
        if needs.sums:
            return self._plan_sums(records, budgets, delta, **settings)
        # Steps do not depend on the noise: how many there will be says what whole numbers add.
        steps = max(settings["epochs"] * math.ceil(count / settings["batch"]) for count in records)
        widest = max(self.parameters, needs.matrix_entries)
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

    def _plan_sums(self, records: list[int], budgets: np.ndarray, delta: float, **settings: Any) -> RecordPlan:
        """Plan sums over the records of all sites: what whole numbers add to epsilon and delta is taken off first, and
        each share of the noise is larger by what rounding costs.

        Of G sums that have shares s_1 + ... = a of one mu^2, each with d entries, rounding makes the cost larger by at
        most (1 + x sqrt(G / a))^2, where x is what it costs one sum with all of mu^2: as one with d G / a entries.
        """
        (drawn, once), needs, gap = self.sums, settings["needs"], self.gap_of_sums("outsider")
        least, most = float(budgets.min()), gap.delta(float(budgets.max()))
        if most >= delta or gap.epsilon >= least:
            raise UserError(f"epsilon = {least:g} at delta = {delta:g} is less than what whole numbers alone cost.")
        plan = super().plan(records, (budgets - gap.epsilon) * (1 - 1e-9), delta - most, **settings)
        assert plan.shared is not None
        root = math.sqrt(plan.shared.guaranteed)

        def more(multiplier: float, sums: float) -> float:
            entries = math.ceil(self.parameters * sums)
            return root * integers.multiplier_charged_as(multiplier / root, entries) if multiplier else 0.0

        of_once = once / needs.sum_share if needs.sum_share else 1.0
        return dataclasses.replace(
            plan,
            budgets=budgets,
            multipliers=np.array([more(float(z), drawn) for z in plan.multipliers]),
            sum_multipliers=np.array([more(float(z), of_once) for z in plan.sum_multipliers]),
            shared=dataclasses.replace(plan.shared, multiplier=more(plan.shared.multiplier, drawn)),
        )


@dataclass(frozen=True, kw_only=True)
class Declared(Facts):
    """Facts that an experiment declares, because nobody may read them from the sites' records."""

    network: BuiltNetwork

    @classmethod
    def by(cls, experiment: Experiment, method: Method, extractor: Extractor | None = None) -> Declared:
        """Return the facts that an experiment declares; its network is built, on the extractor's features where it has
        some, for training by the `method`."""
        clients, each = experiment.clients, experiment.records_each
        assert clients is not None
        shape = shape_of(experiment) if extractor is None else extractor.output
        return cls(
            clients=clients,
            # One number, however many clients a server declares.
            sizes=None if each is None else np.broadcast_to(np.int64(each), (clients,)),
            network=build_network(experiment, shape, task_of(experiment), method.class_weight),
            extractor=extractor,
            fingerprint="at the sites",
            disclosed=() if experiment.table is None else experiment.table.disclosed(),
            spare_turns=experiment.spare_turns,
            persons=experiment.person_rules,
            ask_sizes=ASK_SIZES,
        )

    def check_releases(self, experiment: Experiment, steps: Mapping[str, Releases], states: Collection[str]) -> None:
        check_releases(experiment, steps, states)

    def share_of_accuracies(self, experiment: Experiment) -> float:
        return experiment.metrics_share

    def calibration(
        self, experiment: Experiment, schedule: Schedule, steps: Mapping[str, Releases], minimum: int
    ) -> AtSites:
        """Return the rule by which noise follows from a budget; a cohort whose sum could show a single message is
        refused.

        Args:
            experiment: the configuration.
            schedule: rounds and cohorts.
            steps: releases of each step.
            minimum: number of sites that must answer.
        """
        shares, learner = 1, self.network.learner
        cells = learner.task.evaluated if experiment.evaluation_share else 0
        if is_summed(experiment, all_releases(steps)):
            cohort = (schedule.cohort, minimum, experiment.colluders, experiment.active_server)
            secure_sum.check_cohort(*cohort)
            shares = secure_sum.honest_shares(*cohort)
        return AtSites(
            turns=schedule.turns + self.spare_turns,
            shares=shares,
            whole=experiment.noise != "integers",
            metrics_share=self.share_of_accuracies(experiment),
            evaluation_share=experiment.evaluation_share,
            cells=cells,
            entries=max(sum(_width(release, learner) for release in one.values()) for one in steps.values()),
            parameters=max(learner.layout.size, cells, learner.task.counted),
            sites=1 if self.persons is None else self.persons.max_sites,
            sums=(
                max(sum(release.drawn for release in one.values()) for one in steps.values()),
                sum(release.once for release in all_releases(steps)),
            ),
        )

    def decisive(self, experiment: Experiment, contents: dict[str, Any]) -> dict[str, Any]:
        unused = {key for key in (*PERSON_KEYS, "evaluation_share", *OF_TASKS) if not getattr(experiment, key)}
        plain = experiment.model_dump(mode="json", include=PLAIN - unused)
        return plain | {"read": contents} | _features(experiment)


@dataclass(frozen=True, kw_only=True)
class DeployedTerms(Terms):
    """Terms that everybody in a deployment agrees on before the first round, with what only sites and their server
    need. The experiment has the keys that are carried. All of it is public."""

    calibration: AtSites

    @property
    def shares(self) -> int:
        """h: honest shares of noise that every sum holds which anybody can open."""
        return self.calibration.shares

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return shape_of(self.experiment)

    @property
    def seen_shape(self) -> tuple[int, ...]:
        """Shape of one record as the network takes it: that of its features where there are some."""
        return self.shape if self.extractor is None else self.extractor.output

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels that records may have, in the order of the classes."""
        return labels_of(self.experiment)

    @property
    def seeded(self) -> bool:
        """Whether noise comes from the seed, which everybody knows: a trial, in which no epsilon holds."""
        return self.experiment.noise == "integers"

    def carried(self) -> dict[str, Any]:
        """Return the experiment as it travels: `Experiment.make` of it has the same terms."""
        plain = self.experiment.model_dump(mode="json", include=PLAIN, exclude_none=True)
        return plain | _features(self.experiment)

    def schema(self, label: str | None) -> Schema | None:
        """Return the schema by which a table's row becomes a record; None for arrays. `label` is the label column."""
        declared, rules = self.experiment.table, self.experiment.person_rules
        if declared is not None or self.experiment.columns is None:
            return None if declared is None else declared.with_persons(rules)
        columns: dict[str, Column] = {name: NumberColumn() for name in self.experiment.columns}
        return Schema(columns=columns | {label or DEFAULT_LABEL: Label(values=self.labels)}).with_persons(rules)

    def described(self, run: str, names: Sequence[str], label: str | None = None) -> Description:
        """Describe what the models of a run mean; `names` are the sites', `label` is a table's label column."""
        return Description(
            run=run,
            version=VERSION,
            method=self.experiment.method,
            network=str(self.experiment.model),
            options=self.experiment.model_options(),
            shape=self.shape,
            meaning=Meaning(self.learner.task, self.schema(label)),
            clients=tuple(names),
            features=None if self.extractor is None else self.extractor.document(),
        )

    def steps(self) -> dict[str, Releases]:
        """Return the steps by name, each with what it sends: the method's, and the accuracies that sites share."""
        share = self.experiment.metrics_share
        more = (
            {accuracies.STEP: accuracies.releases(share, self.turns, self.experiment.evaluation_share)} if share else {}
        )
        return super().steps() | more

    def is_summed(self, releases: Releases) -> bool:
        """Return whether releases are added up before anybody sees them; else each message is protected by itself."""
        return is_summed(self.experiment, releases.values())

    def at_site(self, number: int, records: int) -> Allowance:
        """Return what the releases of client `number` may spend, who has so many training records, or persons in
        training where persons are protected."""
        level = record_level(self.method)
        if level is None:
            return self.allowance
        delta, planned = self.budget.delta, self.allowance.of_records
        check_delta(delta, records, self.unit, self.experiment.allow_vacuous_delta)
        if planned.shared is not None:  # noise and rates of sums do not depend on how many records a site has
            declared = int(planned.trained[number])
            if records > RECORDS_MARGIN * declared:
                raise UserError(
                    f"There are {records:,} training {self.unit}s, more than {RECORDS_MARGIN} times the {declared:,} "
                    "of records_each: declare about how many a site has, because sums are divided by it."
                )
            return self.allowance
        sizes, budgets, needs = np.array([records]), planned.budgets[[number]], record_needs(self.declared)
        about = (self.schedule, delta, self.calibration, self.minimum)
        plan = record_plan(self.experiment, level, needs, sizes, budgets, *about, self.sites)
        # The site's own figures stand under every client's number: it is never asked as anybody else.
        return dataclasses.replace(self.allowance, records=plan.repeated(0, self.schedule.clients))

    def reserved(self, number: int) -> dict[View, float]:
        """Return the most that all turns may cost the records of client `number`, spare ones included, as each observer
        meets it: epsilon at the delta of the budget, infinite where the seed is known."""
        plan, delta = self.allowance.of_records, self.budget.delta
        if self.seeded:
            return dict.fromkeys(VIEWS, math.inf)
        if plan.shared is None:
            return dict.fromkeys(VIEWS, float(plan.budgets[number]))
        recipes = planned_recipes(self, self.learner.layout.layers)
        # Whichever sites know a person besides this one.
        mine = recipes[number] if self.sites == 1 else [recipe for one in recipes for recipe in one]
        found: dict[View, float] = {}
        for view in VIEWS:
            seen = tuple(sorted({seen_by(view, recipe) for recipe in mine}))
            spent = functools.partial(sites_epsilon, seen, self.sites)
            found[view] = integers.total_epsilon([self.calibration.gap_of_sums(view)], spent, delta)
        return found

    @property
    def widest(self) -> int:
        """Number of entries of one release of records for which noise is set aside."""
        return max(self.calibration.parameters, record_needs(self.declared).matrix_entries)

    @property
    def largest_answer(self) -> int:
        """Upper bound of a site's answer in bytes: twice its entries as 64-bit numbers, and room for what goes with
        them to each other site."""
        steps = [
            sum(max(_width(one, self.learner), self.widest * getattr(one, "times", 1)) for one in releases.values())
            for releases in self.steps().values()
        ]
        return 2 * 8 * max(steps) + ROOM_EACH * self.schedule.clients + ROOM

    def check_reserved(self, rows: Sequence[Row]) -> None:
        """Refuse a release of records that has more entries, each of them rounded, than noise was set aside for."""
        for row in rows:
            together = sum(release.drawn for release in self.declared.get(row.step, {}).values())
            if row.pool and row.entries > self.widest * max(together, row.histories()[:, 2].max(initial=1.0)):
                raise UserError(
                    f"{row.release} of {row.step} has {row.entries:,} entries, but noise is set aside for "
                    f"{self.widest:,}: "
                    "declare a matrix's side, and send sums no longer than the model."
                )


def _features(experiment: Experiment) -> dict[str, Any]:
    """Return the key `features` as it travels: settings with the digest of the weights, which every site has in a file
    of its own; nothing where there are none."""
    return {} if experiment.features is None else {"features": experiment.features.document()}


def terms_of(experiment: Experiment, files: Files | None = None) -> DeployedTerms:
    """Derive the terms of a deployed experiment; one that cannot be deployed is refused with a sentence.

    Args:
        experiment: the configuration.
        files: at a site, finds the file of an extractor's weights by its digest.
    """
    check_declared(experiment)
    check_features(experiment)
    method = experiment.build_method()
    if method.files():
        experiment = _with_contents(experiment, method)
        method = experiment.build_method()
    extractor = build_extractor(experiment, shape_of(experiment), files)
    experiment = Experiment(**{key: getattr(experiment, key) for key in CARRIED})
    check_records(experiment, method)
    facts = Declared.by(experiment, method, extractor)
    return derive(experiment, facts, derive_costs(experiment, facts, method)).extend(DeployedTerms)


def _with_contents(experiment: Experiment, method: Method) -> Experiment:
    """Replace the names of files by what stands in them: sites do not have these files."""
    named, contents, chosen = method.files(), method.file_contents(), dict(experiment.set)
    for key in experiment.set:
        found = address(key)
        if found is not None and found.owner in ("", experiment.method) and found.field in named:
            chosen[key] = json.dumps(contents[found.field])
    return experiment.model_copy(update={"set": chosen})


def is_summed(experiment: Experiment, releases: Collection[Release]) -> bool:
    """Return whether any of the releases is added up with others' before anybody sees it."""
    return any(release.summed for release in releases) and experiment.protect_from == "outsider"


def _width(release: Release, learner: Learner) -> int:
    """Number of entries of a release; zero where that follows from messages."""
    return release.width(Public({}, layers=learner.layout.layers)) or 0
