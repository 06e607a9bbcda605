"""Private normalisation: means and deviations of a schema's numbers, released once with noise and charged.

Each record comes as (u, u^2 - 1/2) / sqrt(5 d / 4), where u are its d numbers scaled to -1..1 by the schema's ranges:
u^2 + (u^2 - 1/2)^2 is u^4 + 1/4, so that its norm is at most one. The sum of these over all clients leaves with one
noise that the clients share (`RecordSum`); with `protect_from = "server"` each message carries all of it. From the sum
the server computes means and deviations, the same for all clients: a client that is scaled by its own would tell them
without noise, and its model would not fit the others.

This is a run like any other, of a method that trains nothing: it stands in the store, and what later runs on the same
people cost adds to what it cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from sordino.data import federate, load
from sordino.data.dataset import FederatedData
from sordino.data.own import Reading
from sordino.data.schema import NumberColumn, Schema
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.experiment.run import start
from sordino.method import Federation, Message, Result
from sordino.methods.bases import RecordLevel
from sordino.privacy.accounting.gaussian import epsilon_of, mu_of
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.release import RecordSum, sends
from sordino.store import checkpoint as checkpoints
from sordino.store.run_summary import Summary
from sordino.store.store import Store
from sordino.tasks import Classification
from sordino.util.formatting import round_up

USUAL_MEAN_SPREAD, USUAL_VARIANCE, USUAL_VARIANCE_SPREAD = 0.5, 0.12, 0.1
"""Spread of the means of numbers in -1..1, and their usual variance with its spread: noisy figures are drawn towards
them, as if they were known that well beforehand."""
LEAST_VARIANCE, LEAST_NOISY_VARIANCE = 1e-4, 0.01
"""Smallest variance that a column is scaled by, without noise and with much of it."""
TOO_NOISY = 0.2
"""Noise on means and variances, in half ranges, from which on columns keep their ranges."""
DIGITS = 1000
"""Parts of one that budgets are rounded down to."""
FEW = 1e-9
"""The share of records that is kept for testing: none but the one that each client must keep."""


@dataclass(frozen=True)
class Moments(RecordLevel):
    """Means and deviations of columns, record level."""

    title: ClassVar[str] = "means and deviations of columns; nothing is trained"
    paper: ClassVar[str] = "one sum with Gaussian noise that clients share, as in dp-fedsgd"

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(moments=torch.zeros(0), noise=0.0)
        for _ in fed.rounds(server):
            message = {"directions": torch.eye(fed.features), "entries": fed.features}
            got = fed.ask(fed.sample(), self.tell, message)
            server.moments = got.mean("moments")
            records = float(fed.record_plan.trained[list(got.who)].sum())
            server.noise = float(got.deviation("moments").max()) / records

    @sends(lambda self: {"moments": RecordSum(1.0, 1.0, "entries")})
    def tell(self, message: Message, me: dict[str, Tensor], data: PrivateRecords) -> Result:
        return Result(send={"moments": data.projected(message["directions"])})


@dataclass(frozen=True)
class Normalised:
    """A schema with means and deviations, and the run that released them."""

    schema: Schema
    summary: Summary
    columns: list[str]
    """Which have been normalised."""
    kept: list[str]
    """Which would drown in noise, and keep their ranges."""
    left: float | None
    """Epsilon that is left of the whole budget for a run on the same records; None where no such budget was named."""


def normalise(
    folder: Path,
    schema: Schema,
    epsilon: float,
    store: Path,
    share: float | None = None,
    **keys: Any,
) -> Normalised:
    """Release means and deviations of all numbers that have a range.

    Args:
        folder: folder with one table for each client.
        schema: what its columns are.
        epsilon: what it may cost each record or, where a share is given, the whole budget that it is a share of.
        store: where the run is kept.
        share: share of mu^2, the square of the budget's Gaussian measure, that it may cost.
        keys: keys of an experiment.
    """
    names = [name for name, column in schema.inputs().items() if isinstance(column, NumberColumn) and column.range]
    if not names:
        raise UserError("The schema has no number with a range: ranges bound what one record can add to a sum.")
    if share is not None and not 0 < share < 1:
        raise UserError(f"The share is {share:g}, but must lie between 0 and 1: 0.1 leaves nine tenths for training.")
    given = {"data": str(folder), "table": schema, "epsilon": epsilon, "store": store, "rounds": 1, "model": "logistic"}
    experiment = Experiment.make({**given, "method": f"{__name__}:{Moments.__name__}", "workers": 1}, keys)
    data, left = augmented(folder, schema, names, experiment.seed), None
    prepared = prepare(experiment, data)
    if share is not None:
        part, left = split_budget(epsilon, prepared.budget.delta, share)
        limit = {"budget_over_runs": epsilon if experiment.budget_over_runs is None else experiment.budget_over_runs}
        prepared = prepare(experiment.model_copy(update={"epsilon": part, **limit}), data)
    summary = start(prepared)
    kept = Store(store, must_exist=True)
    row = kept.get(summary.run)
    assert row.checkpoint is not None
    found = checkpoints.load(row.checkpoint, kept.path(row.run)).server
    noise = float(found["noise"]) * moments_length(len(names))
    means, deviations = figures(found["moments"].double().numpy() * moments_length(len(names)), noise)
    spent = summary.epsilon[experiment.protect_from]
    told = (
        f"{row.run} at epsilon {'infinite' if spent is None else round_up(spent)} for each record, against the "
        f"{experiment.protect_from}"
    )
    columns = dict(schema.columns)
    for place, name in enumerate(names if noise < TOO_NOISY else ()):
        column = columns[name]
        assert isinstance(column, NumberColumn)
        assert column.range is not None
        low, high = column.range
        half = (high - low) / 2
        mean, deviation = (low + high) / 2 + half * float(means[place]), half * float(deviations[place])
        columns[name] = column.model_copy(
            update={"mean": _short(mean), "deviation": _short(deviation), "released": told}
        )
    usable = noise < TOO_NOISY
    changed = schema.model_copy(update={"columns": columns})
    return Normalised(changed, summary, names if usable else [], [] if usable else names, left)


def split_budget(epsilon: float, delta: float, share: float) -> tuple[float, float]:
    """Split a budget into two epsilons at the same delta that come to it together: one with `share` of mu^2, one with
    the rest. Both are rounded down."""
    mu = mu_of(epsilon, delta)
    part, rest = (epsilon_of(math.sqrt(one) * mu, delta) for one in (share, 1 - share))
    return math.floor(part * DIGITS) / DIGITS or part, math.floor(rest * DIGITS) / DIGITS or rest


def moments_length(numbers: int) -> float:
    """Largest norm of (u, u^2 - 1/2) for so many numbers u in -1..1."""
    return math.sqrt(1.25 * numbers)


def augmented(folder: Path, schema: Schema, names: list[str], seed: int) -> FederatedData:
    """Records of the moments (u, u^2 - 1/2) of the named numbers u in -1..1, all of norm one at the most."""
    by_range = {
        name: column.model_copy(update={"mean": None, "deviation": None, "released": None}) if name in names else column
        for name, column in schema.columns.items()
    }
    found = load(str(folder), how=Reading(schema=schema.model_copy(update={"columns": by_range})))
    places = [schema.features().index(name) for name in names]
    numbers = found.x[:, places].clamp(-1, 1)
    x = torch.cat([numbers, numbers.square() - 0.5], dim=1) / moments_length(len(names))
    task = Classification.numbered(found.task.width)
    return federate(replace(found, x=x, task=task, schema=None), None, None, seed, FEW)


def figures(moments: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Estimate means and deviations of numbers in -1..1 from noisy means of (u, u^2 - 1/2).

    Each is drawn towards what is usual by as much as the noise asks for, and none leaves the range.

    Args:
        moments: (2 x columns,) noisy means.
        noise: standard deviation of the noise on each of them.
    """
    first, second = np.split(moments, 2)
    means = np.clip(first * _trust(USUAL_MEAN_SPREAD, noise), -1, 1)
    variances = USUAL_VARIANCE + _trust(USUAL_VARIANCE_SPREAD, noise) * (second + 0.5 - means**2 - USUAL_VARIANCE)
    least = min(max(noise, LEAST_VARIANCE), LEAST_NOISY_VARIANCE)
    return means, np.sqrt(np.clip(variances, least, 1.0))


def _trust(spread: float, noise: float) -> float:
    """Weight of a noisy figure against what is usual: the spread of such figures, squared, over its sum with that of
    the noise."""
    return spread**2 / (spread**2 + noise**2)


def _short(figure: float) -> float:
    """As many digits as noise leaves meaning."""
    return float(f"{figure:.5g}")
