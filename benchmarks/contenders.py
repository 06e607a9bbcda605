"""Sordino as a contender: whole runs of the program, timed from the end of the first round to the last but one."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

from workloads import Workload

from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.experiment.run import start
from sordino.federation.rounds import RoundWatch
from sordino.privacy.gate import Gate


class Contender(Protocol):
    """Something that can do a workload's rounds."""

    def rate(self, rounds: int) -> float:
        """Samples of local training a second over so many rounds, start-up apart."""

    def close(self) -> None:
        """Free what it holds."""


class Sordino:
    """The program itself, with everything a round of it does: server, store, gate and ledger included."""

    def __init__(self, workload: Workload, **keys: Any) -> None:
        self.workload, self.keys, self._data = workload, keys, workload.data()

    def rate(self, rounds: int) -> float:
        stamps: list[float] = []
        with tempfile.TemporaryDirectory() as folder:
            given = self.workload.keys() | {"rounds": rounds + 2, "store": Path(folder)} | self.keys
            experiment = Experiment.make(given)
            start(prepare(experiment, self._data), watch=RoundWatch(lambda _: stamps.append(time.perf_counter())))
        return self.workload.samples * rounds / (stamps[-2] - stamps[0])

    def close(self) -> None:
        return


def privacy_share(workload: Workload) -> float:
    """The share of a round that clipping and noise take, in one process."""
    spent = 0.0
    passes = Gate.passes

    def timed(*arguments: Any) -> Any:
        nonlocal spent
        begin = time.perf_counter()
        found = passes(*arguments)
        spent += time.perf_counter() - begin
        return found

    with mock.patch.object(Gate, "passes", timed):
        rounds = 4
        rate = Sordino(workload, workers=1).rate(rounds)
    return spent / (rounds + 2) / (workload.samples / rate)
