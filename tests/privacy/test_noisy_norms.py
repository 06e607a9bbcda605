"""Norms of noisy gradients: functions of what was paid for, and of nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sordino.auditing.suite import audit_prepared
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.learning.network import Learner
from sordino.learning.parameters import flatten
from sordino.learning.per_record import Bookkeeper
from sordino.parts.record_thresholds import NoisyPercentile
from sordino.privacy.gate import SampledGradients, StackedGradients
from sordino.privacy.gradients import PrivateRecords, PrivateRows, Stack, Units
from sordino.privacy.noise import Seeded
from sordino.privacy.release import Follows, Public, ReleaseError
from sordino.tasks import Classification

SOURCE = Seeded(0, "identity", repeats=True)
LEARNER = Learner(nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)), Classification.numbered(3))
SIZES = [40, 11, 1]


def exits() -> list[SampledGradients]:
    """Three clients with thresholds of their own, half of whose records are expected in a batch."""
    return [SampledGradients(SOURCE, (5, k), (0.5, 2.0, 3), torch.tensor([0.5 + k])) for k in range(3)]


def records() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = 3 * torch.randn(3, 40, 6, generator=generator)
    y = torch.randint(0, 3, (3, 40), generator=generator)
    return x, y, torch.randn(3, LEARNER.layout.size, generator=generator)


def client(k: int) -> PrivateRecords:
    x, y, _ = records()
    units, nobody = Units(x[k, : SIZES[k]], y[k, : SIZES[k]]), torch.zeros(SIZES[k], dtype=torch.bool)
    return PrivateRecords(units, nobody, Bookkeeper(LEARNER), exits()[k])


@pytest.mark.parametrize("debias", [False, True])
def test_a_client_tells_norms_of_its_noisy_gradients(debias: bool) -> None:
    """z = 2, C = 0.5, B = 20, d = 43: noise makes the square of a norm longer by 43 (2 x 0.5 / 20)^2."""
    data, flat, more = client(0), flatten(LEARNER.module), 43 * (2 * 0.5 / 20) ** 2
    assert data.noisy_norms.shape == (0,)
    taken = torch.stack([data.gradient(flat) for _ in range(3)])
    norms = torch.linalg.vector_norm(taken, dim=1)
    assert torch.equal(data.noisy_norms, norms)
    taken.zero_()
    assert torch.equal(data.noisy_norms, norms), "what a step does with its gradients changes nothing"
    assert (norms.square() > more / 3).all()
    assert LEARNER.layout.size == 43
    if debias:
        norms = (norms.square() - more).clamp(min=(0.05 * 0.5) ** 2).sqrt()
    told = NoisyPercentile(debias=debias).tell(flat, flat, data, bare=False)["norms"]
    low, middle, high = norms.sort().values.tolist()
    assert told.tolist() == pytest.approx([low] * 7 + [middle] * 6 + [high] * 7, rel=1e-5)


def test_without_its_noise_a_short_gradient_counts_a_twentieth_of_the_threshold() -> None:
    class Short:
        noisy_norms = torch.tensor([0.1])
        deviation, clip, layout = 1.0, 0.5, LEARNER.layout

    data: Any = Short()
    told = NoisyPercentile(debias=True).tell(torch.zeros(43), torch.zeros(43), data, bare=False)["norms"]
    assert told.tolist() == pytest.approx([0.025] * 20)


@pytest.mark.parametrize("debias", [False, True])
def test_stacked_clients_tell_what_they_would_tell_alone(debias: bool) -> None:
    (x, y, flat), rule = records(), NoisyPercentile(debias=debias)
    stack = Stack(x, y, SIZES, LEARNER, StackedGradients(exits(), SOURCE))

    def told(flat: Tensor, figures: dict[str, Tensor]) -> Tensor:
        data: Any = PrivateRows(stack, figures)
        for _ in range(3):
            data.gradient(flat)
        norms: Tensor = rule.tell(flat, flat, data, bare=False)["norms"]
        return norms

    found = torch.func.vmap(told)(flat, stack.figures)
    for k in range(3):
        data = client(k)
        for _ in range(3):
            data.gradient(flat[k].clone())
        alone = rule.tell(flat[k], flat[k], data, bare=False)["norms"]
        assert torch.allclose(found[k], alone, rtol=1e-4)
    assert len({round(float(row[0]), 6) for row in found}) == 3


def test_what_follows_is_as_long_as_is_declared() -> None:
    """On real machines a server knows the length of a message before it comes."""
    (norms,) = NoisyPercentile().releases(bare=False).values()
    assert norms.width(Public({}, layers=[43])) == 20
    with pytest.raises(ReleaseError, match="20 entries, but the step sent 43"):
        norms.opened(torch.zeros(43), Public({}))
    assert Follows("update").width(Public({}, layers=[43])) is None


@pytest.mark.parametrize("tier", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_an_audit_finds_nothing(tier: int) -> None:
    """Neither where worlds are replayed with other records, nor in thresholds that show in the size of the noise."""
    keys = {"method": "dp-fedavg-record", "clients": 6, "rounds": 3, "partition": "iid", "model": "logistic"}
    chosen = {"records": 600, "epsilon": 3.0, "delta": 1e-5, "set": {"epochs": 1, "batch": 32, "clipping": "dp-agr"}}
    assert not audit_prepared(prepare(Experiment.make(keys, chosen)), 5_000, (tier,)).refuted
