"""Private normalisation: means and deviations of a schema's numbers, released once with noise and charged.

Each record becomes the row (u, u^2 - 1/2) / sqrt(5 d / 4), where u are its d numbers scaled to -1..1 by the schema's
ranges. Since u^2 + (u^2 - 1/2)^2 = u^4 + 1/4 <= 5/4, its norm is at most one: that much changes in the sum where a
record's contents are replaced by nothing. (Centred by 1/2, squares need no more noise than this; (u, u^2) would have a
norm of up to sqrt(2 d).) The sum over all clients leaves with one noise that the clients share (`RecordSum`); with
`protect_from = "server"` each message carries all of it. The server divides by the number of records, which is public,
and computes means and deviations, the same for all clients: a client that is scaled by its own would tell them without
noise, and its model would not fit the others.

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
from sordino.data.dataset import Dataset, FederatedData
from sordino.data.own import Reading
from sordino.data.schema import NumberColumn, Schema, Target
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import Prepared, prepare
from sordino.experiment.run import start
from sordino.method import Federation, Message, Result
from sordino.methods.bases import RecordLevel
from sordino.privacy.accounting.gaussian import remaining, share_of
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.release import Public, RecordSum, sends
from sordino.store import checkpoint as checkpoints
from sordino.store.run_summary import Summary
from sordino.store.spending import over_runs
from sordino.store.store import Store
from sordino.tasks import Regression, SeveralNumbers
from sordino.util.formatting import delta_text, round_up

USUAL_MEAN_SPREAD, USUAL_VARIANCE, USUAL_VARIANCE_SPREAD = 0.5, 0.12, 0.1
"""Spread of the means of numbers in -1..1, and their usual variance with its spread: noisy figures are drawn towards
them, as if they were known that well beforehand."""
LEAST_VARIANCE, LEAST_NOISY_VARIANCE = 1e-4, 0.01
"""Smallest variance that a column is scaled by, without noise and with much of it."""
TOO_NOISY = 0.2
"""Standard deviation of the noise on means of numbers in -1..1 from which on nothing is released."""
PARTS_OF_ONE = 1000
"""Epsilons of a budget's parts are rounded down to so many parts of one."""
UNSCALED = {"spread", "mean", "deviation", "released"}
"""Keys of a column that say how its numbers are scaled."""
FEW = 1e-9
"""The share of records that is kept for testing: none but the one that each client must keep."""


@dataclass(frozen=True)
class Moments(RecordLevel):
    """Means and deviations of columns, record level."""

    title: ClassVar[str] = "means and deviations of columns; nothing is trained"
    paper: ClassVar[str] = "one sum with Gaussian noise that clients share, as in dp-fedsgd"

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(moments=torch.zeros(fed.features))
        for _ in fed.rounds(server):
            message = {"directions": torch.eye(fed.features), "entries": fed.features}
            server.moments = fed.ask(fed.sample(), self.tell, message).mean("moments")

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
    noise: float
    """Standard deviation of the noise on each mean, in half ranges."""
    least: float
    """Smallest deviation that a column is scaled by, in half ranges: a smaller one may be noise."""
    at_least: list[str]
    """Columns whose deviation is that one, because what was released of it is smaller."""
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
    """Release means and deviations of all numbers that have a range, and of a number to be predicted.

    Args:
        folder: folder with one table for each client.
        schema: what its columns are.
        epsilon: what it may cost each record or, where a share is given, the whole budget that it is a share of.
        store: where the run is kept.
        share: share of mu^2, the square of the budget's Gaussian measure, that it may cost. All runs of the store on
            the same records may not cost more than the budget then.
        keys: keys of an experiment: seed, delta, protect_from.
    """
    names = [
        name
        for name, column in schema.columns.items()
        if isinstance(column, Target) or (isinstance(column, NumberColumn) and column.range)
    ]
    if not names:
        raise UserError("The schema has no number with a range: ranges bound what one record can add to a sum.")
    if share is not None and not 0 < share < 1:
        raise UserError(f"The share is {share:g}, but must lie between 0 and 1: 0.1 leaves nine tenths for training.")
    given = {"data": str(folder), "table": schema, "epsilon": epsilon, "store": store, "rounds": 1, "model": "logistic"}
    experiment = Experiment.make({**given, "method": f"{__name__}:{Moments.__name__}", "workers": 1}, keys)
    data = augmented(folder, schema, names, experiment.seed)
    prepared = prepare(experiment, data)
    if share is not None:
        part = _round_down(share_of(epsilon, prepared.budget.delta, share))
        prepared = prepare(experiment.model_copy(update={"epsilon": part, "budget_over_runs": epsilon}), data)
    noise = noise_on_means(prepared, len(names))
    if not noise < TOO_NOISY:
        raise UserError(
            f"At epsilon {prepared.experiment.epsilon:g} the noise on the means of {len(names)} columns would have a "
            f"standard deviation of {noise:.2g} half ranges, too much to scale by: nothing was released, and nothing "
            "spent. Give it a larger epsilon, or keep the ranges, which need no normalisation."
        )
    summary = start(prepared)
    kept = Store(store, must_exist=True)
    row = kept.get(summary.run)
    assert row.checkpoint is not None
    moments = checkpoints.load(row.checkpoint, kept.path(row.run)).server["moments"]
    means, deviations = figures(moments.double().numpy() * moments_length(len(names)), noise)
    observer = experiment.protect_from
    spent = summary.epsilon[observer]
    told = (
        f"{row.run} at epsilon {'infinite' if spent is None else round_up(spent)} (delta {delta_text(summary.delta)}) "
        f"for each {summary.unit}, against the {observer}"
    )
    left = None
    if share is not None:
        total = over_runs(kept, prepared.data.people, summary.unit, summary.delta)
        used = total["epsilon"][observer]
        if used is not None and not total["sampled"]:  # what sampled runs leave does not follow from mu^2
            left = _round_down(remaining(epsilon, used, summary.delta))
    columns = dict(schema.columns)
    for name, mean, deviation in zip(names, means.tolist(), deviations.tolist(), strict=True):
        column = columns[name]
        assert isinstance(column, NumberColumn | Target)
        assert column.range is not None
        low, high = column.range
        half = (high - low) / 2
        found = {"mean": _short((low + high) / 2 + half * mean), "deviation": _short(half * deviation)}
        columns[name] = column.model_copy(update={**found, "released": told})
    least = least_deviation(noise)
    held = [name for name, one in zip(names, deviations.tolist(), strict=True) if one <= least * (1 + 1e-9)]
    return Normalised(schema.model_copy(update={"columns": columns}), summary, names, noise, least, held, left)


def _round_down(epsilon: float) -> float:
    """An epsilon with three decimals; a smaller one as it is."""
    return math.floor(epsilon * PARTS_OF_ONE) / PARTS_OF_ONE or epsilon


def noise_on_means(prepared: Prepared, numbers: int) -> float:
    """Standard deviation of the noise on the means of so many numbers in -1..1, known before anything is released."""
    (release,) = prepared.method.steps()[Moments.tell.__name__].values()
    clients = range(prepared.schedule.clients)
    asked = Public({"entries": 2 * numbers}, clients, {}, prepared.learner.layout.layers)
    of_sum = float(release.deviation(prepared.allowance, asked).max())
    return of_sum / float(prepared.allowance.of_records.trained.sum()) * moments_length(numbers)


def moments_length(numbers: int) -> float:
    """Largest norm of (u, u^2 - 1/2) for so many numbers u in -1..1."""
    return math.sqrt(1.25 * numbers)


def augmented(folder: Path, schema: Schema, names: list[str], seed: int) -> FederatedData:
    """Records of the moments (u, u^2 - 1/2) of the named numbers u in -1..1, all of norm one at the most."""
    by_range = {
        name: column.model_copy(update=dict.fromkeys(UNSCALED & type(column).model_fields.keys()))
        if name in names
        else column
        for name, column in schema.columns.items()
    }
    found = load(str(folder), how=Reading(schema=schema.model_copy(update={"columns": by_range})))
    features = schema.features()
    parts = [found.x[:, features.index(name)] if name in features else _target_to_one(found, name) for name in names]
    numbers = torch.stack(parts, dim=1).clamp(-1, 1)
    x = torch.cat([numbers, numbers.square() - 0.5], dim=1) / moments_length(len(names))
    task = found.task.unnamed
    return federate(replace(found, x=x, task=task, schema=None), None, None, seed, FEW)


def _target_to_one(found: Dataset, name: str) -> Tensor:
    """Targets of a regression in the column `name`, scaled by their range to -1..1."""
    task, targets = found.task, found.y
    if isinstance(task, SeveralNumbers):
        place = task.names.index(name)
        task, targets = task.parts[place], targets[:, place]
    assert isinstance(task, Regression)
    return targets / max(task.ends)


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
    return means, np.sqrt(np.clip(variances, least_deviation(noise) ** 2, 1.0))


def least_deviation(noise: float) -> float:
    """Smallest deviation of numbers in -1..1 that a column is scaled by, for noise of that deviation on means: 0.01,
    and with more noise up to 0.1."""
    return math.sqrt(min(max(noise, LEAST_VARIANCE), LEAST_NOISY_VARIANCE))


def _trust(spread: float, noise: float) -> float:
    """Weight of a noisy figure against what is usual: the spread of such figures, squared, over its sum with that of
    the noise."""
    return spread**2 / (spread**2 + noise**2)


def _short(figure: float) -> float:
    """As many digits as noise leaves meaning."""
    return float(f"{figure:.5g}")
