"""ACDP-pFSD: distillation from the own last model, and what the agent reads."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import otherwise_slow
from torch import nn

import sordino
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.learning.network import Batch, Learner, Records
from sordino.learning.parameters import flatten
from sordino.methods.acdp_pfsd import ACDPpFSD
from sordino.methods.dp_fedavg import DPFedAvg
from sordino.parts.thresholds import Fixed
from sordino.tasks import Classification
from sordino.testing.case import OneRound


def client() -> tuple[Records, torch.Tensor]:
    torch.manual_seed(0)
    learner = Learner(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), Classification.numbered(3))
    x = torch.randn(12, 4)
    return Records(x, (x.sum(dim=1) > 0).long(), learner, seed=1), flatten(learner.module)


def trained(method: ACDPpFSD | DPFedAvg, participations: float, teacher: torch.Tensor | None = None) -> torch.Tensor:
    data, model = client()
    me = {"model": model if teacher is None else teacher, "participations": torch.tensor(participations)}
    return method.local({"global": model, "clip": 0.5}, me, data).keep["model"]


def test_the_first_time_there_is_no_teacher() -> None:
    ours = trained(ACDPpFSD(clipping=Fixed()), 0.0, teacher=torch.randn(15))
    assert torch.allclose(ours, trained(DPFedAvg(), 0.0), atol=1e-6)


@pytest.mark.parametrize("distillation", ["decoupled", "classic"])
def test_later_the_own_last_model_pulls(distillation: str) -> None:
    """A student that hears only its teacher comes to agree with it."""
    data, model = client()
    teacher = model + torch.randn(15, generator=torch.Generator().manual_seed(3))
    method = ACDPpFSD(clipping=Fixed(), distillation=distillation, alpha=0.0, others=1.0, epochs=200, rate=0.9)
    pulled = trained(method, 2.0, teacher)
    before = (data.logits(model) - data.logits(teacher)).softmax(1) - 1 / 3
    after = (data.logits(pulled) - data.logits(teacher)).softmax(1) - 1 / 3
    assert after.abs().max() < before.abs().max() / 5


@pytest.mark.parametrize("distillation", ["decoupled", "classic"])
@pytest.mark.parametrize("scale", [1.0, 10.0, 100.0])
def test_a_taught_step_is_no_longer_than_one_of_cross_entropy_can_be(distillation: str, scale: float) -> None:
    """A rate that is stable for cross-entropy, whose gradient in the logits is at most sqrt(2), is then stable here.

    With the factor T^2 = 9 and half of the weight on the distillation it would be 2.4 times as long, and is not.
    """
    data, _ = client()
    teacher = scale * torch.randn(15, generator=torch.Generator().manual_seed(3))
    loss = ACDPpFSD(distillation=distillation)._loss({"model": teacher, "participations": torch.tensor(1.0)}, data)
    logits = (scale * torch.randn(12, 3, generator=torch.Generator().manual_seed(4))).requires_grad_()
    loss(logits, Batch(data.x, data.y, torch.arange(12), None)).sum().backward()
    assert float(logits.grad.norm(dim=1).max()) <= 2**0.5


def test_without_distillation_it_is_dp_fedavg() -> None:
    ours = trained(ACDPpFSD(clipping=Fixed(), distillation="none"), 3.0, teacher=torch.randn(15))
    assert torch.allclose(ours, trained(DPFedAvg(), 3.0), atol=1e-6)


def run(folder: Path, **keys: object) -> dict:
    settings = {"epochs": 1, "batch": 80} | keys.pop("set", {})  # type: ignore[operator]
    common = {"clients": 6, "rounds": 14, "delta": 1e-5, "epsilon": 8, "store": folder}
    return sordino.run(method="acdp-pfsd", set=settings, **(common | keys))


def test_the_agent_moves_the_threshold_within_its_range(tmp_path: Path) -> None:
    from sordino.store.store import Store

    result = run(tmp_path, set={"clipping.low": 0.2, "clipping.high": 3.0, "clip": 0.5})
    clips = [row["clip"] for row in Store(tmp_path).curve(result["run"])]
    assert all(0.1 <= clip <= 1.5 for clip in clips)
    assert len(set(clips)) > 10
    assert result["epsilon"]["outsider"] == pytest.approx(8)
    assert "public records" in result["notes"][0]


def test_metrics_are_paid_for(tmp_path: Path) -> None:
    from sordino.store.store import Store

    result = run(tmp_path, set={"clipping.reads": "metrics", "clipping.every": 3})
    assert result["epsilon"]["outsider"] == pytest.approx(8)
    rows = Store(tmp_path).ledger(result["run"])
    told = [row.round for row in rows if row.release == "loss"]
    assert told == [0, 3, 6, 9, 12]
    assert "paid for" in result["notes"][0]


def test_the_papers_agent_reads_bare_metrics(tmp_path: Path) -> None:
    result = run(tmp_path, variant="paper")
    assert set(result["epsilon"].values()) == {None}
    assert {reason.split(":")[0] for reason in result["not_covered"]} == {"loss", "accuracy"}


def test_large_cohorts_read_metrics_and_small_ones_public_records() -> None:
    assert ACDPpFSD().needs_public(), "it may, before anybody knows how many clients there are"
    assert ACDPpFSD().settled(50).needs_public()
    assert not ACDPpFSD().settled(1000).needs_public()
    assert set(ACDPpFSD().settled(1000).steps()["local"]) == {"update", "loss", "accuracy"}
    assert set(ACDPpFSD().settled(50).steps()["local"]) == {"update"}


def test_public_records_belong_to_no_client(tmp_path: Path) -> None:
    from sordino.experiment.config import Experiment
    from sordino.experiment.prepare import prepare

    keys = {"method": "acdp-pfsd", "clients": 5, "store": tmp_path}
    prepared = prepare(Experiment.make(keys | {"public": "holdout:0.25"}))
    assert prepared.public is not None
    held = len(prepared.public.y)
    dealt = sum(len(client.y) + len(client.y_test) for client in prepared.data.clients)
    assert held == round(0.25 * 1797)
    assert held + dealt == 1797
    whole = torch.cat([prepared.public.x, *(part for c in prepared.data.clients for part in (c.x, c.x_test))])
    assert len(whole.flatten(1).unique(dim=0)) > 1780, "no record is both public and a client's"


@pytest.mark.parametrize(
    ("method", "clipping"),
    otherwise_slow(
        itertools.product(
            ("dp-fedavg", "feddpa", "fedglp-adp", "acdp-pfsd"),
            ("fixed", "quantile", "median", "layer-wise", "ppo", "random"),
        ),
        lambda case: case[0] == "dp-fedavg" or case[1] == "layer-wise",
    ),
)
def test_any_method_takes_any_threshold(method: str, clipping: str, tmp_path: Path) -> None:
    result = sordino.run(
        method=method,
        clients=5,
        rounds=3,
        model="mlp",
        store=tmp_path,
        set={"clipping": clipping, "epochs": 1, "batch": 100},
    )
    if clipping == "median":
        assert result["epsilon"]["outsider"] is None
    else:
        assert result["epsilon"]["outsider"] == pytest.approx(8)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("privacy", [{"epsilon": 8}, {"privacy": "none"}])
@pytest.mark.parametrize(("rate", "weight"), [(0.01, 0.0025), (0.03, 0.010), (0.1, 0.03)])
def test_how_strong_the_distillation_is_beside_the_cross_entropy(
    privacy: dict[str, object], rate: float, weight: float, tmp_path: Path
) -> None:
    """The norms of the two parts of the gradient at the beginning of a client's second turn; the header tells of it."""
    keys = {"data": "digits", "partition": "shards:5", "clients": 50, "model": "mlp", "rounds": 12, "seed": 10}
    made = {"rate": rate, "momentum": 0.9, "epochs": 5, "batch": 16, "clipping": "fixed", "model.hidden": 16}
    prepared = prepare(Experiment.make({**keys, **privacy, "method": "acdp-pfsd", "store": tmp_path, "set": made}))
    ended, method = OneRound(prepared, tmp_path / "round"), prepared.method
    assert isinstance(method, ACDPpFSD)
    own, ratios = ended.memory["model"], []
    for number in range(50):
        data = Records(*prepared.data.train.part(number), prepared.learner, seed=1)
        me = {"model": own[number], "participations": torch.tensor(1.0)}
        batch = Batch(data.x, data.y, torch.arange(len(data.y)), None)
        cross_entropy, distillation = (
            data.gradient(ended.state["model"], batch, replace(method, alpha=alpha)._loss(me, data)).norm()
            for alpha in (1.0, 0.0)
        )
        ratios.append((1 - method.alpha) * distillation / (method.alpha * cross_entropy))
    assert float(torch.stack(ratios).median()) == pytest.approx(weight, rel=0.2)
