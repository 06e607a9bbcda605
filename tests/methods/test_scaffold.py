"""SCAFFOLD and DP-SCAFFOLD: control variates, what they cost, and that the one is the other without noise."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from helpers import QUICK, refused
from scipy.stats import chi2
from whole_runs import Ended

from sordino.errors import UserError
from sordino.experiment.hyperparameters import make_method
from sordino.learning.network import Batch
from sordino.method import Method
from sordino.methods.dp_scaffold import DPScaffold
from sordino.methods.fedavg import FedAvg
from sordino.methods.scaffold import Scaffold
from sordino.parts.averaging import reach
from sordino.privacy.accounting.sampled_gaussian import record_epsilon
from sordino.privacy.ledger import Ledger
from sordino.privacy.unit import Unit

EVERY = {"batch": 10_000}
"""All records at each step."""


def gradient(run: Ended, client: int, model: torch.Tensor, chosen: slice = slice(None)) -> torch.Tensor:
    """The plain gradient of a client's records."""
    x, y = run.prepared.data.train.part(client)
    return run.prepared.learner.gradient(model.clone(), Batch(x[chosen], y[chosen], y, None))


def test_how_far_a_constant_gradient_reaches() -> None:
    """By adding up the steps of SGD with momentum."""
    for momentum in (0.0, 0.5, 0.9):
        place = speed = 0.0
        for steps in range(1, 6):
            speed = momentum * speed + 1
            place += 0.1 * speed
            assert reach(steps, 0.1, momentum) == pytest.approx(place)
            assert float(reach(torch.tensor(float(steps)), 0.1, momentum)) == pytest.approx(place, rel=1e-5)


def test_with_one_step_variates_are_gradients(tmp_path: Path) -> None:
    run = Ended(Scaffold(epochs=1, **EVERY), tmp_path, rounds=1)
    for client, variate in enumerate(run.memory["variate"]):
        assert torch.allclose(variate, gradient(run, client, run.prepared.initial), atol=1e-6)


@pytest.mark.parametrize("engine", ["one-by-one", "stacked"])
@pytest.mark.parametrize("settings", [{"epochs": 1, **EVERY}, {"epochs": 2, "batch": 40, "momentum": 0.5}])
def test_with_everybody_the_servers_variate_is_the_mean(settings: dict, engine: str, tmp_path: Path) -> None:
    """The sum of all c_i is N c, with clients of different sizes."""
    run = Ended(Scaffold(**settings), tmp_path, engine=engine, rounds=4)
    assert torch.allclose(run.memory["variate"].mean(dim=0), run.state["variate"], atol=1e-6)
    assert float(run.state["variate"].norm()) > 0.01


@pytest.mark.parametrize("method", [Scaffold(epochs=1, batch=40), DPScaffold(epochs=1, batch=40)])
def test_with_half_of_them_it_moves_by_half(method: Method, tmp_path: Path) -> None:
    """Whoever has not taken part has a variate of zero, and counts among the N."""
    run = Ended(method, tmp_path, rounds=1, participation=0.5, partition="iid")
    assert int((run.memory["variate"].norm(dim=1) > 0).sum()) == 3
    assert torch.allclose(run.memory["variate"].sum(dim=0) / 6, run.state["variate"], atol=1e-6)


def test_every_step_is_corrected(tmp_path: Path) -> None:
    """By hand, the second round of one step: y_i = x - eta (g_i + c - c_i)."""
    once, twice = (Ended(Scaffold(epochs=1, **EVERY), tmp_path, rounds=rounds) for rounds in (1, 2))
    x, c = once.state["model"], once.state["variate"]
    for client in range(6):
        corrected = gradient(once, client, x) + c - once.memory["variate"][client]
        assert torch.allclose(twice.memory["model"][client], x - 0.1 * corrected, atol=1e-6)


def test_nothing_is_corrected_in_the_first_round(tmp_path: Path) -> None:
    """Variates start at zero: clients train as in FedAvg, to the bit, or stacked, where FedAvg takes a quicker way, up
    to rounding."""
    for engine, tolerance in (("one-by-one", 0.0), ("stacked", 1e-6)):
        mine = Ended(Scaffold(epochs=2), tmp_path, rounds=1, engine=engine)
        other = Ended(FedAvg(epochs=2), tmp_path, mine, rounds=1, engine=engine)
        assert torch.allclose(mine.memory["model"], other.memory["model"], rtol=0.0, atol=tolerance)


def test_without_noise_and_without_clipping_it_is_scaffold(tmp_path: Path) -> None:
    """All records in every batch, three steps a round."""
    keys = {"partition": "iid", "noise_multiplier": 1e-9}
    settings = {"epochs": 3, "momentum": 0.5, **EVERY}
    plain = Ended(Scaffold(**settings), tmp_path, **keys)
    private = Ended(DPScaffold(clip=100.0, **settings), tmp_path, plain, **keys)
    for name in ("model", "variate"):
        assert torch.allclose(plain.state[name], private.state[name], atol=1e-5)
        assert torch.allclose(plain.memory[name], private.memory[name], atol=1e-5)
    assert float(plain.state["variate"].norm()) > 0.01
    clipped = Ended(DPScaffold(clip=0.1, **settings), tmp_path, plain, **keys)
    assert not torch.allclose(plain.state["model"], clipped.state["model"], atol=1e-2)


def test_the_variate_costs_nothing_more_than_the_gradients(tmp_path: Path) -> None:
    run = Ended(DPScaffold(**EVERY), tmp_path, partition="iid")
    assert {row.release for row in run.ledger} == {"update", "change"}
    assert {row.release for row in run.ledger if row.pool} == {"update"}


def test_the_papers_thresholds_are_medians_and_epsilon_is_infinite(tmp_path: Path) -> None:
    """One for each tensor, of the records' norms at the client's trained model."""
    method = DPScaffold(variant="paper", epochs=1, **EVERY)
    run = Ended(method, tmp_path, rounds=1, clients=20, partition="iid", model="mlp")
    tensors = run.prepared.learner.layout.sizes
    assert len(tensors) == 4
    singles = [
        gradient(run, 2, run.memory["model"][2], slice(k, k + 1)) for k in range(run.prepared.data.train.sizes[2])
    ]
    norms = torch.stack([torch.stack([part.norm() for part in one.split(tensors)]) for one in singles])
    assert torch.allclose(run.state["threshold"]["clips"][2], norms.median(dim=0).values, rtol=1e-3)
    assert math.isinf(Ledger(20, Unit.RECORD, run.ledger).epsilon(1e-5)["outsider"])


@pytest.mark.parametrize(("model", "tensors"), [("logistic", 2), ("mlp", 4)])
def test_the_published_noise_is_worth_less_with_every_tensor(model: str, tensors: int, tmp_path: Path) -> None:
    """By hand: each tensor has noise z times its own threshold, so that the true mu is sqrt(L) times 1 / z."""
    method, z = DPScaffold(variant="paper", epochs=2, batch=20), 3.0
    run = Ended(method, tmp_path, rounds=2, model=model, partition="iid", noise_multiplier=z)
    ledger, plan = Ledger(6, Unit.RECORD, run.ledger), run.prepared.allowance.of_records
    charges = [plan.charge(client) for client in range(6)]
    assert {multiplier for _, multiplier, _ in charges} == {z}
    true, published = (
        max(record_epsilon(((rate, z / root, 2 * steps),), 1e-5) for rate, _, steps in charges)
        for root in (math.sqrt(tensors), 1)
    )
    assert ledger.covered_epsilon(1e-5)["server"] == pytest.approx(true, rel=1e-9)
    assert true > 1.3 * published


def test_every_tensor_moves_by_its_own_noise(tmp_path: Path) -> None:
    """With nothing to learn from, a client's way is a sum of steps of noise: z times the threshold over the batch."""
    method = DPScaffold(variant="paper", epochs=1, rate=1e-3, clip=1e4, **EVERY)
    run = Ended(method, tmp_path, rounds=1, model="mlp", partition="iid", noise_multiplier=5.0)
    layout, records = run.prepared.learner.layout, run.prepared.data.train.sizes
    for client in range(6):
        moved = (run.memory["model"][client] - run.prepared.initial).double()
        deviation = 1e-3 * 5.0 * (1e4 / 2) / float(records[client])
        for part in layout.tensors(moved):
            low, high = chi2.ppf([5e-7, 1 - 5e-7], part.numel())
            assert low < float((part / deviation).square().sum()) < high


def test_what_was_published_with_medians_takes_no_other_rule() -> None:
    chosen = ("run", "--method", "dp-scaffold", "--variant", "paper", "--set", "clipping=quantile", *QUICK)
    assert "published with the medians of each tensor" in refused(*chosen)


@pytest.mark.parametrize("name", ["scaffold", "dp-scaffold"])
def test_only_sgd_makes_variates(name: str) -> None:
    assert make_method(name, "sound", "dp", {"momentum": 0.5, "optimizer": "sgd"}).momentum == 0.5
    with pytest.raises(UserError, match="optimizer cannot be"):
        make_method(name, "sound", "dp", {"optimizer": "adam"})
