"""Epsilon in a deployment's rounds, and the size of sites' answers."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from federations import QUICK, Recorder, federation

from sordino.deploy.protocol.carrier import InProcessCarrier
from sordino.deploy.server.coordinator import start
from sordino.deploy.terms import terms_of
from sordino.federation.rounds import RoundReport


@pytest.mark.parametrize("method", ["dp-fedavg", "dp-fedavg-record", "adadp-cfl"])
def test_rounds_tell_the_epsilon_so_far_and_the_last_one_all_of_it(method: str, tmp_path: Path) -> None:
    told: list[RoundReport] = []
    with federation(tmp_path, method=method, epsilon=4.0, rounds=4, model="logistic") as made:
        recorder = Recorder()
        carrier = InProcessCarrier(made.sites, recorder)
        summary = start(made.experiment, made.members, carrier, made.store, told.append, deadlines=QUICK)
    so_far = [report.epsilon[report.observer] for report in told]
    assert len(so_far) == 4
    assert all(before < after for before, after in itertools.pairwise(so_far))
    assert so_far[0] < 3.5
    assert so_far[-1] == pytest.approx(summary.epsilon[told[0].observer])
    largest, answers = terms_of(made.experiment).largest_answer, [len(reply) for _, _, _, reply in recorder.seen]
    assert max(answers) < largest / 2  # what carries them adds little
    assert largest < 2**21  # 650 parameters are 5 kB
    assert told[0].planned == pytest.approx(4.0, rel=1e-3)
