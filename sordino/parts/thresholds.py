"""How the clipping threshold of client-level methods is chosen from round to round.

A threshold is a part that any client-level method can take. It says what it needs from the clients (`releases`,
`tell`) and how the server moves on (`following`). What it keeps lives in the server's state as a dictionary whose
`clip` is broadcast: one number, or one for each layer. A rule that is to be private may read only what has left
through the gate and been paid for, or public records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sordino.method import Federation, Message, Replies
from sordino.privacy.release import Bare, Number, Releases, Update
from sordino.training import Records

State = dict[str, Any]


class Threshold(Protocol):
    """A rule for the clipping threshold."""

    def begin(self, fed: Federation) -> State:
        """What is kept before the first round, with its `clip`."""

    def releases(self) -> Releases:
        """The update, and what else each client must send for this rule."""

    def tell(self, update: Tensor, model: Tensor, message: Message, data: Records) -> dict[str, Tensor]:
        """The update and what else a client sends, under the names of `releases`; `model` is its trained model."""

    def following(self, state: State, got: Replies, fed: Federation, model: Tensor) -> State:
        """What is kept for the next round, now that the global `model` has been updated with `got`."""


@dataclass(frozen=True)
class Fixed:
    """The same threshold in every round."""

    clip: float

    def begin(self, fed: Federation) -> State:
        return {"clip": self.clip}

    def releases(self) -> Releases:
        return {"update": Update(clip="clip")}

    def tell(self, update: Tensor, model: Tensor, message: Message, data: Records) -> dict[str, Tensor]:
        return {"update": update}

    def following(self, state: State, got: Replies, fed: Federation, model: Tensor) -> State:
        return state


@dataclass(frozen=True)
class Quantile:
    """Geometric adaptation to a quantile of the update norms (Andrew et al., NeurIPS 2021, Algorithm 1).

    Each client also sends the bit "my norm is at most C", noised; C moves by exp(-rate (share of ones -
    quantile)). The noise of a round is scaled by the C with which that round clipped.
    """

    clip: float
    quantile: float
    rate: float
    share: float

    def begin(self, fed: Federation) -> State:
        return {"clip": self.clip}

    def releases(self) -> Releases:
        return {
            "update": Update(clip="clip", share=1 - self.share),
            "below": Number(low=0.0, high=1.0, share=self.share),
        }

    def tell(self, update: Tensor, model: Tensor, message: Message, data: Records) -> dict[str, Tensor]:
        return {"update": update, "below": (update.norm() <= message["clip"]).to(update.dtype)}

    def following(self, state: State, got: Replies, fed: Federation, model: Tensor) -> State:
        below = float(got.mean("below").clamp(0, 1))
        return {"clip": state["clip"] * math.exp(-self.rate * (below - self.quantile))}


@dataclass(frozen=True)
class Median:
    """The median of the last round's update norms (Geyer et al. 2017). The norms leave bare: epsilon is infinite."""

    clip: float

    def begin(self, fed: Federation) -> State:
        return {"clip": self.clip}

    def releases(self) -> Releases:
        return {
            "update": Update(clip="clip"),
            "norm": Bare("the median rule needs each client's update norm as it is"),
        }

    def tell(self, update: Tensor, model: Tensor, message: Message, data: Records) -> dict[str, Tensor]:
        return {"update": update, "norm": update.norm()}

    def following(self, state: State, got: Replies, fed: Federation, model: Tensor) -> State:
        return {"clip": max(float(got["norm"].median()), 1e-6)}


@dataclass(frozen=True)
class LayerWise:
    """One threshold for each layer, C_l^2 = C^2 w_l, the weights adapted in log-odds space (FedGLP-ADP, Alg. 1).

    A layer's weight rises by `step` in log-odds when its part of the noisy sum, less what the noise alone would
    contribute, has grown since the last round, and falls when that has shrunk: it reads only what was paid for.
    """

    clip: float
    step: float

    def begin(self, fed: Federation) -> State:
        weights = first_weights(fed.layout.layers)
        return {"clip": self.clip * weights.sqrt(), "energy": torch.full_like(weights, -1.0)}

    def releases(self) -> Releases:
        return {"update": Update(clip="clip", layered=True)}

    def tell(self, update: Tensor, model: Tensor, message: Message, data: Records) -> dict[str, Tensor]:
        return {"update": update}

    def following(self, state: State, got: Replies, fed: Federation, model: Tensor) -> State:
        layers = fed.layout.layers
        total = got.mean("update") * fed.budget.cohort
        noise = got.deviation("update")
        parts = zip(total.split(layers), noise.split(layers), strict=True)
        energy = torch.stack([(part.square().sum() - dev.square().sum()).clamp(min=0) for part, dev in parts])
        if (state["energy"] < 0).all():  # nothing to compare the first round with
            return {"clip": state["clip"], "energy": energy}
        direction = torch.sign(energy - state["energy"])
        weights = (state["clip"] / self.clip).square()
        moved = stepped(weights, direction, self.step, first_weights(layers))
        return {"clip": self.clip * moved.sqrt(), "energy": energy}


def first_weights(layers: list[int]) -> Tensor:
    """Each layer's share of the parameters."""
    return torch.tensor(layers, dtype=torch.float32) / sum(layers)


def stepped(weights: Tensor, direction: Tensor, step: float, first: Tensor) -> Tensor:
    """Layer weights moved by `step` in log-odds space, held above a hundredth of their first value, summing to one.

    The lower bound keeps C_l above a tenth of its first value: without it, weights that always fall reach zero.
    """
    if step == 0:
        return weights
    moved = torch.sigmoid(torch.logit(weights.double()) + step * direction)
    held = torch.maximum(moved, first.double() / 100)
    return (held / held.sum()).to(weights.dtype)
