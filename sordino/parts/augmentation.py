"""Augmentation: images are shifted and mirrored at random in each pass over the records.

The change of a record follows from one random number of its own, so that it is the same whether clients are trained
alone or stacked.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from sordino.errors import UserError
from sordino.learning.network import Change

Augmentation = Literal["none", "crop", "crop-flip"]
MARGIN = 4
"""Largest shift of an image, in pixels. FedDPA's released code: 4."""


def change_of(augmentation: Augmentation) -> Change | None:
    """Return the function that augments a batch before a training step; None for `none`."""
    return {"none": None, "crop": crop, "crop-flip": crop_and_mirror}[augmentation]


def crop(x: Tensor, numbers: Tensor) -> Tensor:
    """Shift each image by up to `MARGIN` pixels in both directions; new pixels take the darkest value of their channel.

    Args:
        x: Images (records, channels, height, width).
        numbers: One random number for each record.
    """
    return shift_images(x, *_shifts(numbers), torch.zeros_like(numbers, dtype=torch.bool))


def crop_and_mirror(x: Tensor, numbers: Tensor) -> Tensor:
    """Shift images as `crop` does, and mirror about every other one left to right."""
    down, across = _shifts(numbers)
    return shift_images(x, down, across, _digit(numbers, (2 * MARGIN + 1) ** 2, 2) == 1)


def shift_images(x: Tensor, down: Tensor, across: Tensor, mirrored: Tensor) -> Tensor:
    """Shift images (records, channels, height, width) by `down` and `across` pixels, and mirror those of `mirrored`;
    each of the three has one value for each record."""
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
    """Return two shifts from -MARGIN to MARGIN for each random number."""
    width = 2 * MARGIN + 1
    return _digit(numbers, 1, width) - MARGIN, _digit(numbers, width, width) - MARGIN


def _digit(numbers: Tensor, place: int, base: int) -> Tensor:
    """Return floor(number / place) mod base: independent small draws from one random number of each record."""
    return torch.div(numbers, place, rounding_mode="floor") % base


def _within(places: Tensor, size: int) -> Tensor:
    return (places >= 0) & (places < size)
