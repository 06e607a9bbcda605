"""Private normalisation: means and deviations of a schema's numbers, released once with noise and charged.

Each client's records come as (1, u_1, ..., u_d) / sqrt(1 + d), where u are its numbers scaled to -1..1 by the schema's
ranges: their norm is at most one. The client releases the second-moment matrix of these with symmetric Gaussian noise
(AnalyzeGauss, Dwork et al. 2014). Its first row holds the sums of the numbers, its diagonal the sums of their squares,
its corner the number of records: from the mean over clients the server computes means and deviations.

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
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.release import Matrix, sends
from sordino.store import checkpoint as checkpoints
from sordino.store.run_summary import Summary
from sordino.store.store import Store
from sordino.tasks import Classification
from sordino.util.formatting import round_up

ALMOST_ALL = 0.98
"""The share of the budget that the matrix gets: what is left is for training, of which there is none."""
LEAST_DEVIATION = 0.01
"""Share of half a range: a column whose noisy deviation is smaller, or negative, keeps its range."""
FEW = 1e-9
"""The share of records that is kept for testing: none but the one that each client must keep."""


@dataclass(frozen=True)
class Moments(RecordLevel):
    """Means and deviations of columns, record level."""

    title: ClassVar[str] = "means and deviations of columns; nothing is trained"
    paper: ClassVar[str] = "Dwork, Talwar, Thakurta, Zhang, STOC 2014"

    def run(self, fed: Federation, model: Tensor) -> None:
        server = fed.state(moments=torch.zeros(0))
        for _ in fed.rounds(server):
            got = fed.ask(fed.sample(), self.tell, {"directions": torch.eye(fed.features)})
            server.moments = got.mean("moments").reshape(fed.features, fed.features)

    @sends(lambda self: {"moments": Matrix(share=ALMOST_ALL)})
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
    """Which were drowned in noise, and keep their ranges."""


def normalise(folder: Path, schema: Schema, epsilon: float, store: Path, **keys: Any) -> Normalised:
    """Release means and deviations of all numbers that have a range; `keys` are those of an experiment."""
    names = [name for name, column in schema.inputs().items() if isinstance(column, NumberColumn) and column.range]
    if not names:
        raise UserError("The schema has no number with a range: ranges bound what one record can add to a sum.")
    given = {"data": str(folder), "table": schema, "epsilon": epsilon, "store": store, "rounds": 1, "model": "logistic"}
    experiment = Experiment.make({**given, "method": f"{__name__}:{Moments.__name__}", "workers": 1}, keys)
    summary = start(prepare(experiment, augmented(folder, schema, names, experiment.seed)))
    kept = Store(store, must_exist=True)
    row = kept.get(summary.run)
    assert row.checkpoint is not None
    moments = checkpoints.load(row.checkpoint, kept.path(row.run)).server["moments"]
    means, deviations = figures(moments.double().numpy())
    spent = summary.epsilon["server"]
    told = f"{row.run} at epsilon {'infinite' if spent is None else round_up(spent)} for each record"
    columns, drowned = dict(schema.columns), []
    for place, name in enumerate(names):
        column = columns[name]
        assert isinstance(column, NumberColumn)
        assert column.range is not None
        low, high = column.range
        half = (high - low) / 2
        if not deviations[place] > LEAST_DEVIATION:
            drowned.append(name)
            continue
        mean = (low + high) / 2 + half * float(np.clip(means[place], -1, 1))
        deviation = _short(half * min(1.0, float(deviations[place])))
        columns[name] = column.model_copy(update={"mean": _short(mean), "deviation": deviation, "released": told})
    return Normalised(
        schema.model_copy(update={"columns": columns}), summary, [one for one in names if one not in drowned], drowned
    )


def augmented(folder: Path, schema: Schema, names: list[str], seed: int) -> FederatedData:
    """Records of the named numbers in -1..1 with a one before them, all of norm one at the most."""
    by_range = {
        name: column.model_copy(update={"mean": None, "deviation": None, "released": None}) if name in names else column
        for name, column in schema.columns.items()
    }
    found = load(str(folder), how=Reading(schema=schema.model_copy(update={"columns": by_range})))
    places = [schema.features().index(name) for name in names]
    x = torch.cat([torch.ones(len(found.y), 1), found.x[:, places]], dim=1) / math.sqrt(1 + len(names))
    task = Classification.numbered(found.task.width)
    return federate(replace(found, x=x, task=task, schema=None), None, None, seed, FEW)


def figures(moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and deviations from a matrix of second moments whose first row belongs to ones; `nan` where noise leaves
    none."""
    count = moments[0, 0]
    if count <= 0:
        return np.full(len(moments) - 1, np.nan), np.full(len(moments) - 1, np.nan)
    means = moments[0, 1:] / count
    variances = np.diag(moments)[1:] / count - np.square(means)
    return means, np.sqrt(np.where(variances > 0, variances, np.nan))


def _short(figure: float) -> float:
    """As many digits as noise leaves meaning."""
    return float(f"{figure:.5g}")
