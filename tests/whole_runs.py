"""A whole run of a method in memory, and everything that it left behind, for comparing methods to the bit."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from torch import Tensor

from sordino.experiment.config import Experiment
from sordino.experiment.prepare import Prepared, prepare
from sordino.method import Method
from sordino.privacy.ledger import Row
from sordino.testing.case import OneRound

KEYS = {"clients": 6, "partition": "dirichlet:1", "model": "logistic", "workers": 1, "noise_multiplier": 2.0}


class Ended:
    """What is left of a run of a few clients on the built-in digits."""

    def __init__(self, method: Method, folder: Path, like: Ended | None = None, **keys: Any) -> None:
        """`like` is another run whose noise, coins and batches this one shares; `keys` are those of the experiment."""
        experiment = Experiment.make(KEYS | {"rounds": 3, "method": "local", "store": folder} | keys)
        made = prepare(experiment, method=method)
        self.prepared: Prepared = made if like is None else dataclasses.replace(made, identity=like.prepared.identity)
        self.run = OneRound(self.prepared, folder, rounds=experiment.rounds)
        self.state: dict[str, Any] = self.run.state
        """What the server keeps."""
        self.memory: dict[str, Tensor] = self.run.memory
        """What the clients remember, one row each."""
        self.ledger: list[Row] = self.run.ledger.rows
