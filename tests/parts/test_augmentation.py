"""Images shifted and mirrored at random: by hand, and the same for stacked clients."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from sordino.errors import UserError
from sordino.learning.network import Learner, Records, scramble
from sordino.methods import find, names
from sordino.methods.bases import Clipped
from sordino.methods.dp_fedavg import DPFedAvg
from sordino.parts.augmentation import MARGIN, _shifts, change_of, crop, crop_and_mirror, shift_images
from sordino.tasks import Classification
from sordino.testing.case import Case, OneRound
from sordino.testing.runs import stacked_and_one_by_one_agree

IMAGE = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]).reshape(1, 1, 3, 3)


@pytest.mark.parametrize(
    ("down", "across", "mirrored", "seen"),
    [
        (0, 0, False, [[1, 2, 3], [4, 5, 6], [7, 8, 9]]),
        (0, 0, True, [[3, 2, 1], [6, 5, 4], [9, 8, 7]]),
        (1, 0, False, [[4, 5, 6], [7, 8, 9], [1, 1, 1]]),
        (0, -1, False, [[1, 1, 2], [1, 4, 5], [1, 7, 8]]),
        (-1, 1, True, [[1, 1, 1], [1, 3, 2], [1, 6, 5]]),
    ],
)
def test_by_hand(down: int, across: int, mirrored: bool, seen: list[list[float]]) -> None:
    found = shift_images(IMAGE, torch.tensor([down]), torch.tensor([across]), torch.tensor([mirrored]))
    assert found[0, 0].tolist() == seen


def test_channels_move_together_and_are_filled_up_each_with_its_darkest() -> None:
    image = torch.cat([IMAGE, 10 * IMAGE], dim=1)
    found = shift_images(image, torch.tensor([1]), torch.tensor([0]), torch.tensor([False]))
    assert found[0, 1].tolist() == [[40, 50, 60], [70, 80, 90], [10, 10, 10]]


def test_all_shifts_come_equally_often() -> None:
    """Within six standard errors of a count: once in five hundred million looks by chance, over 81 + 1 looks."""
    numbers = scramble(torch.arange(81_000))
    down, across = _shifts(numbers)
    counts = torch.bincount((down + MARGIN) * 9 + across + MARGIN, minlength=81)
    assert len(counts) == 81
    assert (counts - 1000).abs().max() < 6 * 1000**0.5
    some, rising = numbers[:8100], torch.arange(40.0).expand(8100, 1, 9, 40)
    mirrored = crop_and_mirror(rising, some)[:, 0, MARGIN].diff(dim=1)[:, 20] < 0
    assert abs(int(mirrored.sum()) - 4050) < 6 * (8100 / 4) ** 0.5
    assert (crop(rising, some)[:, 0, MARGIN].diff(dim=1)[:, 20] > 0).all()


def test_each_pass_sees_other_images_and_the_records_stay_as_they_are() -> None:
    x = torch.rand(6, 1, 12, 12)
    data = Records(
        x.clone(),
        torch.arange(6) % 3,
        Learner(nn.Sequential(nn.Flatten(), nn.Linear(144, 3)), Classification.numbered(3)),
        seed=1,
    )
    passes = []
    for _ in range(2):
        (batch,) = data.batches(6, change_of("crop-flip"))
        passes.append(batch.x[batch.index.argsort()])
        assert torch.equal(batch.y, data.y[batch.index])
    assert not torch.equal(passes[0], passes[1])
    assert not torch.equal(passes[0], x)
    assert torch.equal(data.x, x)
    (plain,) = data.batches(6, change_of("none"))
    assert torch.equal(plain.x, x[plain.index])


def test_only_images_can_be_augmented() -> None:
    with pytest.raises(UserError, match=r"the shape \(5,\).*leave `augmentation` out"):
        crop(torch.zeros(3, 5), torch.zeros(3, dtype=torch.int64))


def test_stacked_clients_see_what_single_ones_do(tmp_path: Path) -> None:
    stacked_and_one_by_one_agree(Case(DPFedAvg(augmentation="crop-flip"), tmp_path))
    plain, changed = (
        Case(DPFedAvg(augmentation=how), tmp_path / how).prepared(engine="stacked")  # type: ignore[arg-type]
        for how in ("none", "crop")
    )
    found = [Case(one.method, tmp_path).finished(one, tmp_path / str(n))[1] for n, one in enumerate((plain, changed))]
    assert not torch.allclose(found[0]["personal"], found[1]["personal"], atol=1e-3), "it makes a difference"


CLIPPED = [name for name in names() if issubclass(find(name), Clipped)]


@pytest.mark.parametrize("name", CLIPPED)
def test_every_method_that_offers_it_trains_on_what_it_makes(name: str, tmp_path: Path) -> None:
    """What clients send, here without noise, and the model that they end with are both other ones."""
    sent, kept = [], []
    for how in ("none", "crop"):
        method = find(name)(privacy="none", augmentation=how)  # type: ignore[call-arg]
        once = OneRound(Case(method, tmp_path).prepared(noise_multiplier=None), tmp_path)
        sent.append(torch.cat([asked.answer.values["update"] for asked in once.asked]))
        kept.append(once.memory["model"])
    for plain, changed in (sent, kept):
        assert (plain - changed).norm(dim=1).min() > 1e-3
