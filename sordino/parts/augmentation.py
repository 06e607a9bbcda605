"""Images that are shifted and mirrored at random each time a client passes over its records.

What is done to a record follows from one random number of its own, so that it is the same for one client and for many
stacked ones.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from sordino.errors import UserError
from sordino.learning.network import Change

Augmentation = Literal["none", "crop", "crop-flip"]
MARGIN = 4
"""By how many pixels an image may be shifted. FedDPA's released code: 4."""


def change_of(augmentation: Augmentation) -> Change | None:
    """What is done to records before a step sees them; None: nothing."""
    return {"none": None, "crop": cropped, "crop-flip": cropped_and_mirrored}[augmentation]


def cropped(x: Tensor, numbers: Tensor) -> Tensor:
    """Each image moved by up to `MARGIN` pixels in both directions; what comes in from outside is as dark as the
    darkest pixel of its channel."""
    return moved(x, *_shifts(numbers), torch.zeros_like(numbers, dtype=torch.bool))


def cropped_and_mirrored(x: Tensor, numbers: Tensor) -> Tensor:
    """The same, every other image mirrored left to right."""
    down, across = _shifts(numbers)
    return moved(x, down, across, _digit(numbers, (2 * MARGIN + 1) ** 2, 2) == 1)


def moved(x: Tensor, down: Tensor, across: Tensor, mirrored: Tensor) -> Tensor:
    """Images (records, channels, height, width) of which each shows what lies `down` and `across` of its pixels, then
    `mirrored` or not."""
    if x.dim() != 4:
        raise UserError(
            f"Only images can be augmented, but a record has the shape {tuple(x.shape[1:])}, not (channels, height, "
            "width): leave `augmentation` out."
        )
    channels, height, width = x.shape[1:]
    rows = down.unsqueeze(1) + torch.arange(height, device=x.device)
    columns = torch.arange(width, device=x.device)
    columns = across.unsqueeze(1) + torch.where(mirrored.unsqueeze(1), columns.flip(0), columns)
    inside = _within(rows, height).unsqueeze(2) & _within(columns, width).unsqueeze(1)
    records = torch.arange(len(x), device=x.device).view(-1, 1, 1, 1)
    planes = torch.arange(channels, device=x.device).view(1, -1, 1, 1)
    seen = x[records, planes, rows.clamp(0, height - 1)[:, None, :, None], columns.clamp(0, width - 1)[:, None, None]]
    return torch.where(inside.unsqueeze(1), seen, x.amin(dim=(2, 3), keepdim=True))


def _shifts(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Two shifts from -MARGIN to MARGIN for each random number."""
    width = 2 * MARGIN + 1
    return _digit(numbers, 1, width) - MARGIN, _digit(numbers, width, width) - MARGIN


def _digit(numbers: Tensor, place: int, base: int) -> Tensor:
    """One digit of each non-negative number, in a base; `place` is what lies below it."""
    return torch.div(numbers, place, rounding_mode="floor") % base


def _within(places: Tensor, size: int) -> Tensor:
    return (places >= 0) & (places < size)
