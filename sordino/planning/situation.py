"""The situation that advice is for, as far as it is known, and the ratios that follow from it.

One ratio for each level is signal over noise of everything shared during a run, squared, per parameter. It does not
depend on the number of rounds:

- whole clients protected: n clients pull together, and the noise in their sum has deviation 1/mu: (n mu)^2 / d, or,
  where every message carries all of its noise against the server, n mu^2 / d;
- records protected: all N = n r records of n clients pull together, and the noise in their sum has deviation 1/mu:
  (N mu)^2 / d, or, where each client adds all of the noise to the sum over its own records, n (r mu)^2 / d.

mu is the Gaussian budget of epsilon at delta, d the number of shared parameters. For tables with two outcomes and a
linear model there is a finer guide (`Situation.guide`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from sordino.data import FederatedData
from sordino.data.federate import DEFAULT_CLIENTS
from sordino.data.schema import PersonRules
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.defaults import FEW_SITES, LEAST_RECORDS
from sordino.privacy.accounting.gaussian import mu_of
from sordino.privacy.budget.client_level_plan import default_delta
from sordino.privacy.budget.shared_noise import ProtectFrom
from sordino.privacy.unit import Unit
from sordino.privacy.views import honest_shares

HELPS: dict[Unit, float] = {Unit.CLIENT: 0.1, Unit.RECORD: 100.0}
"""Ratios from which a federated model improves a client's own model when the two are mixed; for records that are no
tables, the ratio with noise at each client. Clients with enough records to bear record-level noise do well alone, so
that the ratio for records must be far higher."""
POINTS_ALONE, POINTS_OF_GUIDE = 7.0, 6.0
"""Points of AUC below a model of all records without privacy: a client's own model is 7 sqrt(d / n) below, where n is
its number of records with the rarer outcome, and the federated one 6 r. Both were fitted to the tables of
experiments/tables.md that are not told apart by nearly every model; their difference is off by 1.7 points there
(`tests/planning/test_expected_gain.py`)."""
ABOUT_ZERO = 1.5
"""Points of AUC: an expected gain below this cannot be told from none."""
MOST_GUIDE = 1.0
"""Largest guide at which the expected gain is believed: beyond it few tables were measured."""
LARGE_SITE, LARGE_FOR_COLUMNS = 2000, 50
"""Numbers of records, in all and for each column, from which on a client's own model gained next to nothing from
others': 0.2 to 0.6 points of AUC."""
LEAST_CLIENTS: dict[Unit, int] = {Unit.CLIENT: 15, Unit.RECORD: 2}
"""Fewest clients with which federating can help. Where whole clients are protected, the sum of fewer updates is too
noisy to learn from, however small the network; where records are, two clients are enough."""
SMALL = 1000
"""Number of parameters of a small network, assumed where none is named."""
LEAST_IMAGE = 16
"""Least side of images for which features are advised: smaller ones have few scales."""


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
    table: bool = False
    """Whether records are rows of numbers with two outcomes, and the network is linear."""
    rare: int | None = None
    """Training records of all clients with the rarer outcome; None where it is not known: half of all are assumed."""
    counted: bool = False
    """Whether `rare` was counted in the records."""
    shares: int | None = None
    """Clients' shares of noise that nobody can subtract from a sum; None for those of all clients."""
    total: int | None = None
    """Training records of all clients; None where only the median is known, which then counts for each."""
    network: str | None = None
    """Name of the shared network; None where none is named."""
    presumed: bool = False
    """Whether the network is the one that data have by default."""
    linear: int | None = None
    """Number of parameters of a logistic regression on these records, where they are rows and the network is larger."""
    binary: bool = False
    """Whether records have one of two outcomes."""
    persons: PersonRules | None = None
    """Declaration of whom records belong to: numbers of records are then those of persons."""

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
        units = self.mean if level.record_level else 1
        return math.floor(self.clients * self.together * (units * self.mu(level)) ** 2)

    @property
    def mean(self) -> float:
        """Mean number of training records of a client, as known or assumed: sums are over the records of all."""
        return self.records if self.total is None else self.total / self.clients

    @property
    def together(self) -> int:
        """Number of clients that need one noise together: one where each adds all of it."""
        if self.protect_from == "server":
            return 1
        return self.clients if self.shares is None else min(self.shares, self.clients)

    @property
    def columns(self) -> int:
        """Number of columns of a table, the intercept included: the parameters of a linear model for each of its two
        outcomes."""
        return max(1, self.size // 2)

    @property
    def rarer(self) -> int:
        """Number of training records of all clients with the rarer outcome, as known or assumed."""
        return max(1, round(self.clients * self.mean) // 2) if self.rare is None else self.rare

    @property
    def guide(self) -> float:
        """r = d s / (2 mu n) for a linear model of two outcomes: noise over signal, where n of all records have the
        rarer outcome, and s is `excess`."""
        return self.columns * self.excess / (2 * self.mu(Unit.RECORD) * self.rarer)

    @property
    def excess(self) -> float:
        """Noise of a sum over what is needed: one where all clients share it, the root of their number where each adds
        all."""
        return math.sqrt(self.clients / self.together)

    @property
    def below_alone(self) -> float:
        """Points of AUC by which a client's own linear model of two outcomes is expected to be below one of all
        records without privacy."""
        return POINTS_ALONE * math.sqrt(self.columns * self.clients / self.rarer)

    @property
    def below_federated(self) -> float:
        """Points of AUC by which the federated linear model is expected to be below that of all records."""
        return POINTS_OF_GUIDE * self.guide

    @property
    def gain(self) -> float:
        """Points of AUC that clients are expected to gain over training alone."""
        return self.below_alone - self.below_federated

    @property
    def few_sites(self) -> bool:
        """Whether records are tables at a few sites, for which a run protects records by default."""
        return self.table and 2 <= self.clients <= FEW_SITES and self.records >= LEAST_RECORDS

    @property
    def large_sites(self) -> bool:
        """Whether clients have so many records for a table's columns that others' hardly help."""
        return self.records >= max(LARGE_SITE, LARGE_FOR_COLUMNS * self.columns)

    @property
    def table_pays(self) -> bool:
        """Whether tables at a few sites are expected to gain from each other under a promise to each record."""
        return self.few_sites and self.guide <= MOST_GUIDE and self.gain >= ABOUT_ZERO and not self.large_sites

    def ratio(self, level: Unit) -> float:
        """Return signal over noise, squared, per parameter."""
        return self.feasible(level) / self.size

    def helps(self, level: Unit) -> bool:
        """Whether a model that is federated at this level improves a client's own."""
        held = self.noise_at_each() if level.record_level else self
        return self.clients >= LEAST_CLIENTS[level] and held.ratio(level) >= HELPS[level]

    def noise_at_each(self) -> Situation:
        """Return the situation in which each client adds all of the noise to what it sends."""
        return replace(self, protect_from="server")


def situation_of(
    experiment: Experiment,
    records: int | None,
    parameters: int | None,
    look: bool,
    columns: int | None = None,
    rare: int | None = None,
) -> Situation:
    """Return the situation of an experiment.

    Args:
        experiment: The experiment.
        records: Median number of training records of a client, if the user gives it.
        parameters: Number of shared parameters, if the user gives it.
        look: Whether data are loaded and the network is built, to count records and parameters.
        columns: Number of columns of tables with two outcomes, if the user gives it.
        rare: Number of training records of all clients with the rarer outcome, if the user gives it.
    """
    if experiment.privacy == "none":
        raise UserError('Advice is for a budget, and with privacy = "none" there is none: leave it out.')
    if columns is not None and parameters is not None:
        raise UserError("Give either --columns, of tables with two outcomes, or --parameters: each decides the other.")
    found: dict[str, Any] = {
        "clients": experiment.clients or DEFAULT_CLIENTS,
        "records": records,
        "parameters": parameters if columns is None else 2 * (columns + 1),
        "table": columns is not None,
        "rare": rare,
    }
    if look:
        found |= _look(experiment, records, found["parameters"], rare)
    clients, records = found["clients"], found["records"]
    if records is None:
        raise UserError("Say how many records a client has with --records, or name the data with --data.")
    if not look and rare is not None and rare > clients * records:  # clients of data differ in size
        raise UserError(f"Of {clients * records:,} records of all clients, {rare:,} cannot have the rarer outcome.")
    other = [key for key in experiment.set if key.split(".")[-1] == "budgets"]
    other += ["noise_multiplier"] if experiment.noise_multiplier is not None else []
    if other and experiment.epsilon is None:
        raise UserError(f"Advice needs one epsilon, but {other[0]} is given instead: name one with --epsilon.")
    return Situation(
        **found | {"table": found["table"] or found["rare"] is not None},
        epsilon=experiment.asked_epsilon,
        protect_from=experiment.protect_from,
        delta=experiment.delta,
        allow_vacuous_delta=experiment.allow_vacuous_delta,
        features=experiment.features is not None,
        shares=honest_shares("outsider", min(experiment.minimum_cohort or clients, clients), experiment.colluders),
    )


def _look(experiment: Experiment, records: int | None, parameters: int | None, rare: int | None) -> dict[str, Any]:
    """Load the data, build the network, and return the fields of a `Situation` that follow.

    Args:
        experiment: the experiment.
        records: median number of training records of a client, if the user gives it; it stays.
        parameters: number of shared parameters, if the user gives it; it stays.
        rare: number of training records with the rarer outcome, if the user gives it; it stays.
    """
    from sordino.experiment.prepare import choose_contenders, read_facts

    data, facts = read_facts(choose_contenders(experiment)[1])
    assert facts.network is not None
    sizes, layout = data.train.units, facts.network.learner.layout
    about: dict[str, Any] = {
        "clients": facts.clients,
        "records": records or round(float(np.median(sizes))),
        "most": int(sizes.max()),
        "image": data.shape if len(data.shape) == 3 and min(data.shape[1:]) >= LEAST_IMAGE else None,
        "persons": facts.persons,
    }
    if records is None:
        about |= {"total": int(sizes.sum()), "binary": len(data.task.groups) == 2}
    if parameters is not None:
        return about
    presumed = experiment.model is None and experiment.features is None
    about |= {"network": facts.network.name, "presumed": presumed, "parameters": layout.size}
    linear = data.task.width * (data.shape[0] + 1)
    if len(data.shape) == 1 and experiment.features is None and layout.size > linear:
        about["linear"] = linear
    about["table"] = _is_table(experiment, data, len(layout.layers))
    if about["table"] and rare is None:
        of_units = float(sizes.sum() / data.train.sizes.sum())  # a person counts once, however many its rows
        counted = int(torch.bincount(data.train.y, minlength=2).min())
        about |= {"rare": max(1, round(of_units * counted)), "counted": True}
    return about


def _is_table(experiment: Experiment, data: FederatedData, layers: int) -> bool:
    """Whether records are rows of numbers with two outcomes, of which a linear model is trained."""
    return experiment.features is None and len(data.shape) == 1 and layers == 1 and len(data.task.groups) == 2
