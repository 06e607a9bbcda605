"""Share of the parameters that stay personal in FedDPA, measured after a run.

Masks never leave clients and are not kept. Each follows from what the store has: the client's model after the run, and
its training records. So it is worked out once more, on the machine that holds all records of a simulation, like any
accuracy: epsilon covers none of it, and sites of a deployment never tell it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np

from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import deal_with_public
from sordino.learning.network import Learner, Records
from sordino.learning.parameters import flatten
from sordino.parts.masks import scale_to_unit
from sordino.store.store import Store
from sordino.trained.models import load_models


def personal_share(run: str, store: Path) -> float:
    """Percentage of the parameters that would be personal in a further round of a FedDPA run, the mean over clients:
    those whose Fisher information, scaled to [0, 1] in each tensor, reaches tau (Eq. 4 to 6)."""
    with contextlib.closing(Store(store, must_exist=True)) as opened:
        experiment = Experiment.make(opened.get(run).configuration)
    tau = getattr(experiment.build_method(), "tau", None)
    if tau is None:
        raise UserError(f"{experiment.method} has no threshold tau, from which parameters are personal.")
    data, _ = deal_with_public(experiment)
    networks = load_models(run, store)
    shares = []
    for name, network in networks.personal.items():
        learner = Learner(network, data.task)
        records = Records(*data.train.part(networks.about.number(name)), learner, 0)
        information = scale_to_unit(records.fisher(flatten(network)), learner.layout)
        shares.append(float((information >= tau).double().mean()))
    return 100 * float(np.mean(shares))
