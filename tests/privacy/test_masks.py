"""Dropout in gradients of sampled records: its masks are secret, fresh, and tell nothing of who is in a batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sordino.learning.network import Learner
from sordino.learning.parameters import flatten
from sordino.privacy.gate import DrawnBatch, SampledGradients
from sordino.privacy.gradients import PrivateRecords, Units
from sordino.privacy.noise import MASK_WORDS, Secure, Seeded, stream_state
from sordino.privacy.sealed import Sealed
from sordino.tasks import Classification

RECORDS, FEATURES, CLASSES = 30, 6, 3


@dataclass(frozen=True)
class FixedCoins(Seeded):
    """A source whose coins are given."""

    fallen: list[bool] = field(default_factory=list)

    def coins(self, count: int, rate: float, *purpose: object) -> Tensor:
        return torch.tensor(self.fallen)


@pytest.fixture
def learner() -> Learner:
    torch.manual_seed(1)
    layers = [nn.Flatten(), nn.Linear(FEATURES, 16), nn.Dropout(0.5), nn.Linear(16, CLASSES)]
    return Learner(nn.Sequential(*layers), Classification.numbered(CLASSES))


def records(learner: Learner, exit: SampledGradients | None, batch: DrawnBatch | None = None) -> PrivateRecords:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(RECORDS, FEATURES, generator=generator)
    y = torch.randint(0, CLASSES, (RECORDS,), generator=generator)
    nobody = torch.zeros(RECORDS, dtype=torch.bool)
    return PrivateRecords(Units(x, y), nobody, learner.keeper((FEATURES,)), exit, batch=batch)


def sampled(source: Seeded | Secure, steps: int = 2, client: int = 0) -> SampledGradients:
    return SampledGradients(source, (0, client), (0.3, 1e-9, steps), torch.tensor([1.0]))  # next to no noise


def test_a_stream_of_words_is_that_of_mt19937() -> None:
    """numpy's generator with the same words gives the same numbers: torch takes two for each, and keeps the low bits of
    the second."""
    words = np.random.default_rng(0).integers(0, 2**32, MASK_WORDS, dtype=np.uint64)
    generator = torch.Generator()
    generator.set_state(stream_state(words))
    other = np.random.MT19937()
    other.state = {"bit_generator": "MT19937", "state": {"key": words.astype(np.uint32), "pos": MASK_WORDS}}
    drawn = torch.empty(2000, dtype=torch.int64).random_(0, 2**31, generator=generator)
    assert drawn.tolist() == (other.random_raw(4000)[1::2] % 2**31).tolist()


def test_torchs_stream_tells_nothing_of_a_batch(learner: Learner) -> None:
    """A step that draws behind a gradient finds the number that it had found before it, whoever was in the batch."""
    found, sizes = set(), set()
    for client in range(40):
        exit = sampled(Seeded(0, "identity"), client=client)
        torch.manual_seed(0)
        records(learner, exit).gradient(flatten(learner.module))
        found.add(float(torch.rand(1)))
        sizes.add(int(Seeded(0, "identity").coins(RECORDS, 0.3, 0, client, 0).sum()))
    assert len(sizes) > 3
    assert len(found) == 1


def gradient(learner: Learner, source: Seeded | Secure, number: int = 0) -> Tensor:
    """The gradient with this number of a question, without its noise to speak of."""
    torch.manual_seed(0)  # the ground's seed, which everybody knows
    mine = records(learner, sampled(source))
    for _ in range(number):
        mine.gradient(flatten(learner.module))
    return mine.gradient(flatten(learner.module))


def test_masks_follow_from_the_secret_of_a_run_and_not_from_its_seed(learner: Learner) -> None:
    everyone = [True] * RECORDS
    one, same, other = (gradient(learner, FixedCoins(0, name, fallen=everyone)) for name in ("a", "a", "b"))
    assert torch.allclose(one, same, atol=1e-6)
    assert not torch.allclose(one, other, atol=1e-3)


def test_each_gradient_has_masks_of_its_own(learner: Learner) -> None:
    source = FixedCoins(0, "a", fallen=[True] * RECORDS)
    assert not torch.allclose(gradient(learner, source), gradient(learner, source, number=1), atol=1e-3)


def test_masks_on_real_machines_come_from_the_operating_system() -> None:
    source = Secure(Seeded(0, "identity"))
    one, two = source.mask_words(0, 0, 0), source.mask_words(0, 0, 0)
    assert (one != two).any()
    assert one.shape == two.shape == (MASK_WORDS,)
    assert int(max(one.max(), two.max())) < 2**32


def test_sums_over_a_drawn_batch_have_secret_masks_of_their_own(learner: Learner) -> None:
    def sums(identity: str) -> list[Tensor]:
        torch.manual_seed(0)
        batch = DrawnBatch(FixedCoins(0, identity, fallen=[True] * RECORDS), (0, 0), 0.5, torch.tensor([1.0]))
        mine, flat = records(learner, None, batch), flatten(learner.module)
        sealed: list[Sealed] = [mine.gradient_sum(flat), mine.gradient_sum(flat), mine.batch_within(flat)]
        assert float(torch.rand(1)) == float(torch.rand(1, generator=torch.Generator().manual_seed(0)))
        return [one._Sealed__value for one in sealed[:2]]  # type: ignore[attr-defined]

    (first, second), again, elsewhere = sums("a"), sums("a"), sums("b")
    assert torch.equal(first, again[0])
    assert torch.equal(second, again[1])
    assert not torch.allclose(first, second, atol=1e-3)
    assert not torch.allclose(first, elsewhere[0], atol=1e-3)


def test_masks_stay_when_a_record_overflows(learner: Learner) -> None:
    """A record that is not finite is left out of a second sum, in which all others have the masks of the first: these
    are those of a batch in which the record counts nothing."""

    def total(entry: float, weight: float) -> Tensor:
        batch = DrawnBatch(FixedCoins(0, "a", fallen=[True] * RECORDS), (0, 0), 0.5, torch.tensor([1.0]))
        x = torch.randn(RECORDS, FEATURES, generator=torch.Generator().manual_seed(2))
        x[0, 0] = entry
        y = torch.tensor([2] + [0, 1] * RECORDS)[:RECORDS]  # the first alone has this label
        nobody = torch.zeros(RECORDS, dtype=torch.bool)
        mine = PrivateRecords(Units(x, y), nobody, learner.keeper((FEATURES,)), None, batch=batch)
        sealed: Sealed = mine.gradient_sum(flatten(learner.module), torch.tensor([1.0, 1.0, weight]))
        rows: Tensor = sealed._Sealed__value  # type: ignore[attr-defined]
        return rows

    assert torch.allclose(total(torch.inf, 1.0), total(0.5, 0.0), atol=1e-5)
    assert not torch.allclose(total(0.5, 1.0), total(0.5, 0.0), atol=1e-2)


def test_words_differ_by_purpose_and_have_all_bits() -> None:
    source = Seeded(0, "identity")
    rows = np.stack([source.mask_words(0, 0, step) for step in range(50)])
    assert len(np.unique(rows)) > 0.999 * rows.size
    bits = np.unpackbits(rows.astype(np.uint32).view(np.uint8)).mean()
    assert abs(bits - 0.5) < 5 * 0.5 / np.sqrt(rows.size * 32)  # five standard errors
