"""How the clipping threshold of client-level methods is chosen from round to round.

A threshold may read only what has already left through the gate and been paid for. Each kind says what it
needs from the clients (`releases`, `tell`) and how the server moves on (`following`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from sordino.method import Method, Positive, Replies, Share
from sordino.privacy.release import Number, Releases, Update


class Threshold(Protocol):
    """A rule for the clipping threshold."""

    def first(self) -> float:
        """The threshold of the first round."""

    def releases(self) -> Releases:
        """The update, and what else each client must send for this rule."""

    def tell(self, update: Tensor, clip: float) -> dict[str, Tensor]:
        """The update and what else a client sends, under the names of `releases`."""

    def following(self, clip: float, got: Replies) -> float:
        """The next round's threshold."""


@dataclass(frozen=True)
class Fixed:
    """The same threshold in every round."""

    clip: float

    def first(self) -> float:
        return self.clip

    def releases(self) -> Releases:
        return {"update": Update(clip="clip")}

    def tell(self, update: Tensor, clip: float) -> dict[str, Tensor]:
        return {"update": update}

    def following(self, clip: float, got: Replies) -> float:
        return clip


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

    def first(self) -> float:
        return self.clip

    def releases(self) -> Releases:
        return {
            "update": Update(clip="clip", share=1 - self.share),
            "below": Number(low=0.0, high=1.0, share=self.share),
        }

    def tell(self, update: Tensor, clip: float) -> dict[str, Tensor]:
        return {"update": update, "below": (update.norm() <= clip).to(update.dtype)}

    def following(self, clip: float, got: Replies) -> float:
        below = float(got.mean("below").clamp(0, 1))
        return clip * math.exp(-self.rate * (below - self.quantile))


@dataclass(frozen=True)
class Clipped(Method):
    """A client-level method whose clients send one clipped and noised update."""

    clip: Positive = 0.5
    """The clipping threshold C, or the one to start from. FedDPA, FedGLP-ADP: 0.5."""
    clipping: Literal["fixed", "quantile"] = "fixed"
    """How the threshold is chosen: `fixed`, or `quantile` (private adaptive quantile clipping)."""
    quantile: Share = 0.5
    """Which quantile of the update norms `quantile` clipping aims at."""
    clip_rate: Positive = 0.2
    """How fast `quantile` clipping moves: the paper's eta_C."""
    count_share: Share = 0.05
    """The share of the budget that the noised bits of `quantile` clipping take."""

    @property
    def threshold(self) -> Threshold:
        """The rule that `clipping` names."""
        if self.clipping == "quantile":
            return Quantile(self.clip, self.quantile, self.clip_rate, self.count_share)
        return Fixed(self.clip)


def unit(vector: Tensor) -> Tensor:
    """The vector scaled to length one; the zero vector stays zero, so that it is a subgradient of the norm."""
    return vector / torch.linalg.vector_norm(vector).clamp(min=1e-12)
