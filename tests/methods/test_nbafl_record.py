"""NbAFL with budgets of records: held near the received model, noised before it is averaged, with true epsilons."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import get_epsilon_gaussian
from torch import Tensor

from sordino.experiment.config import Experiment
from sordino.experiment.prepare import Prepared, prepare
from sordino.experiment.run import carry_on, register
from sordino.method import Method
from sordino.methods.dp_fedavg_record import DPFedAvgRecord
from sordino.methods.fedprox_record import FedProxRecord
from sordino.methods.nbafl_record import NbAFLRecord
from sordino.store.checkpoint import load
from sordino.store.store import Store
from sordino.testing import check_method

KEYS: dict[str, Any] = {
    **{"method": "local", "clients": 4, "rounds": 3, "partition": "iid", "records": 400, "model": "logistic"},
    **{"delta": 1e-5, "workers": 1, "engine": "one-by-one"},
}


def prepared(method: Method, **keys: Any) -> Prepared:
    """A run whose noise is that of every other run of these tests."""
    chosen = dataclasses.replace(method, epochs=2, batch=32)
    made = prepare(Experiment.make(KEYS | {"noise_multiplier": 1.0} | keys), method=chosen)
    return dataclasses.replace(made, identity="the same for all")


def ended(made: Prepared, folder: Path) -> tuple[dict[str, Any], Tensor]:
    """JSON document of a finished run, and the server's model."""
    store = Store(folder)
    run = register(made, store)
    found = carry_on(made, store, run).to_dict()
    return found, load(store.get(run).checkpoint, store.path(run)).server["model"]


def test_without_a_ball_it_is_fedprox_and_without_a_pull_dp_fedavg(tmp_path: Path) -> None:
    def model(method: Method) -> Tensor:
        return ended(prepared(method), tmp_path)[1]

    assert torch.equal(model(NbAFLRecord(mu=0.0)), model(DPFedAvgRecord()))
    assert torch.equal(model(NbAFLRecord(mu=2.0)), model(FedProxRecord(mu=2.0)))
    assert not torch.equal(model(NbAFLRecord(mu=2.0)), model(NbAFLRecord(mu=0.0)))


def test_weights_lie_in_the_ball(tmp_path: Path) -> None:
    """The average of models that lie in it does, too; with one that holds them all nothing changes."""
    free = ended(prepared(NbAFLRecord()), tmp_path)[1]
    assert float(free.norm()) > 1.0
    held = ended(prepared(NbAFLRecord(ball=1.0)), tmp_path)[1]
    assert float(held.norm()) <= 1.0 + 1e-5
    assert torch.allclose(ended(prepared(NbAFLRecord(ball=1e6)), tmp_path)[1], free, atol=1e-6)


def test_the_ball_and_the_pull_cost_nothing(tmp_path: Path) -> None:
    plain, _ = ended(prepared(DPFedAvgRecord()), tmp_path)
    held, _ = ended(prepared(NbAFLRecord(ball=1.0, mu=3.0)), tmp_path)
    assert held["epsilon"] == plain["epsilon"]


def test_every_client_has_its_own_budget(tmp_path: Path) -> None:
    made = prepared(NbAFLRecord(budgets="1,2,4,8", batches="shuffled"), epsilon=8.0, noise_multiplier=None)
    for multiplier, budget in zip(made.allowance.of_records.multipliers, (1, 2, 4, 8), strict=True):
        spent = get_epsilon_gaussian(float(multiplier) / math.sqrt(2 * 3), 1e-5)
        assert 0.99 * budget < spent <= budget * (1 + 1e-9)


def test_the_published_noise_by_hand() -> None:
    """c = sqrt(2 ln 125,000) = 4.845; L = 25 exposures at epsilon 2: twice 4.845 x 25 / 2."""
    assert NbAFLRecord().published_multiplier(2.0, 1e-5, 25, 1000) == pytest.approx(4.8448 * 25, rel=1e-4)


@pytest.mark.parametrize("budgets", [None, "1,2,4,8"])
def test_the_true_epsilon_of_the_published_noise(budgets: str | None, tmp_path: Path) -> None:
    """One full batch a round: three Gaussians, of z = 2 c 3 / epsilon for one emptied record, and half of it for one
    that is replaced: far less than is named."""
    method = NbAFLRecord(variant="paper", budgets=budgets)
    made = prepare(
        Experiment.make(KEYS | {"epsilon": 8.0, "variant": "paper"}),
        method=dataclasses.replace(method, epochs=1, batch=1000),
    )
    z = 2 * math.sqrt(2 * math.log(1.25e5)) * 3 / np.array([1.0, 2.0, 4.0, 8.0] if budgets else [8.0] * 4)
    assert np.sort(made.allowance.of_records.multipliers)[::-1] == pytest.approx(np.sort(z)[::-1])
    summary, _ = ended(made, tmp_path)
    true = get_epsilon_gaussian(float(z.min()) / math.sqrt(3), 1e-5)
    assert summary["epsilon"]["server"] == pytest.approx(true, rel=1e-6)
    assert summary["epsilon"]["server"] < 2.0
    replaced = get_epsilon_gaussian(float(z.min()) / 2 / math.sqrt(3), 1e-5)
    assert summary["epsilon_replace_one"] == pytest.approx(replaced, rel=1e-6)
    assert any("grows with their number" in note for note in summary["notes"])


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["sound", "paper"])
def test_the_battery(variant: Any) -> None:
    check_method(NbAFLRecord(variant=variant, ball=2.0))
