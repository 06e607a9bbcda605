"""Penalties that hold a model near another one: (strength / 2) |model - anchor|^2."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from sordino.learning.descent import Pull

When = Literal["round", "step"]
"""Whether a penalty acts once before a round's training, or by its gradient in each step."""


def pull_to(anchor: Tensor, strength: float) -> Pull | None:
    """The penalty's gradient, for each local step; None at strength zero, where training is plain training."""
    if strength == 0:
        return None

    def pull(model: Tensor) -> Tensor:
        return strength * (model - anchor)

    return pull


def drawn_to(anchor: Tensor, model: Tensor, strength: float) -> Tensor:
    """The penalty's proximal step from `model`: it goes the share s / (1 + s) of the way to the anchor.

    At strength zero it is `model` itself, at a very large one the anchor itself, to the last bit.
    """
    return torch.lerp(model, anchor, strength / (1 + strength))


def regularized(own: Tensor, mean: Tensor, strength: float, when: When) -> tuple[Tensor, Pull | None]:
    """Where training that is drawn to the mean starts from one's own model, and what pulls it in each step."""
    if when == "round":
        return drawn_to(mean, own, strength), None
    return own, pull_to(mean, strength)
