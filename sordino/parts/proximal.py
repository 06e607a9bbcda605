"""Penalties that hold a model near another one: (strength / 2) |model - anchor|^2."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from sordino.learning.descent import Pull

When = Literal["round", "step"]
"""Whether a penalty acts once before a round's training, or by its gradient in each step."""


def pull_to(anchor: Tensor, strength: float) -> Pull | None:
    """Return the penalty's gradient as a function of the model, for each local step; None at strength zero."""
    if strength == 0:
        return None

    def pull(model: Tensor) -> Tensor:
        return strength * (model - anchor)

    return pull


def proximal_step(anchor: Tensor, model: Tensor, strength: float) -> Tensor:
    """Return the penalty's proximal step from `model`: it moves the share s / (1 + s) of the way to the anchor, where s
    is `strength`.

    At strength zero the result is exactly `model`, at a very large one exactly the anchor.
    """
    return torch.lerp(model, anchor, strength / (1 + strength))


def regularize(own: Tensor, mean: Tensor, strength: float, when: When) -> tuple[Tensor, Pull | None]:
    """Return the model from which penalised training starts, and the pull of each step.

    Args:
        own: The client's own model.
        mean: The anchor.
        strength: Strength of the penalty.
        when: Whether the penalty acts once, on the start, or in each step.
    """
    if when == "round":
        return proximal_step(mean, own, strength), None
    return own, pull_to(mean, strength)
