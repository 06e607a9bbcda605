"""Masks of personal parameters: those that a client keeps to itself."""

from __future__ import annotations

from typing import Annotated, Protocol, runtime_checkable

import torch
from pydantic import Field
from torch import Tensor

from sordino.errors import UserError
from sordino.learning.parameters import Layout

PersonalLayers = Annotated[int, Field(ge=0, le=1000)]
"""Number of a network's last layers that are personal."""


@runtime_checkable
class PersonalHead(Protocol):
    """A method whose clients keep the network's last layers to themselves."""

    @property
    def personal_layers(self) -> int:
        """Number of the last layers that are personal."""


def check_head(method: object, layout: Layout) -> None:
    """Refuse more personal layers than the network has."""
    count = len(layout.layers)
    if isinstance(method, PersonalHead) and method.personal_layers > count:
        raise UserError(
            f"personal_layers is {method.personal_layers}, but the network has {count} layer{'s' * (count > 1)}: set "
            f"it to {count} or less."
        )


def body(layout: Layout, personal: int) -> Tensor:
    """Return the 0/1 mask of shared parameters: all but the last `personal` layers. A layer is a module's weight and
    bias.

    The network's first tensor is always shared, because something must be: in a network of one layer, only the bias is
    personal.
    """
    shared = torch.ones(layout.size)
    own = sum(layout.layers[-personal:]) if personal else 0
    shared[max(layout.size - own, layout.sizes[0]) :] = 0
    return shared


def grow_mask(personal: Tensor, change: Tensor, counts: list[int], layers: list[int]) -> Tensor:
    """Return a 0/1 mask with `counts[l]` personal parameters in each layer l.

    Personal parameters stay personal; those of the others that changed most join them. Changes are compared in steps of
    1.1 percent (64 to a factor of two), and of equal ones the first win: otherwise floating-point rounding would give
    stacked clients other masks than single ones.

    Args:
        personal: The 0/1 mask so far.
        change: Change of each parameter.
        counts: Number of personal parameters of each layer.
        layers: Number of parameters of each layer.
    """
    pieces = []
    for mine, moved, count in zip(personal.split(layers), change.split(layers), counts, strict=True):
        if count == 0:
            pieces.append(mine)
            continue
        level = (64 * moved.abs().clamp(min=1e-30).log2()).round()
        score = torch.where(mine > 0, torch.inf, level)
        least = score.topk(count, sorted=False).values.min()
        surely, equal = score > least, score == least
        wanted = count - surely.sum()
        pieces.append((surely | (equal & (equal.cumsum(0) <= wanted))).to(mine.dtype))
    return torch.cat(pieces)


def schedule(share: float, done: int, rounds: int, layers: list[int]) -> list[int]:
    """Return the number of personal parameters of each layer after `done` of `rounds` rounds: floor(share d_l
    done/T)."""
    return [int(share * size * done / rounds) for size in layers]


def scale_to_unit(information: Tensor, layout: Layout) -> Tensor:
    """Scale each tensor's values to [0, 1] (FedDPA's Eq. 5); a constant tensor becomes zero."""
    pieces = []
    for piece in layout.tensors(information):
        low, high = piece.min(), piece.max()
        pieces.append((piece - low) / torch.where(high > low, high - low, torch.ones_like(high)))
    return torch.cat(pieces)
