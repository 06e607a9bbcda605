"""Rules for the clipping threshold of client-level methods from round to round.

A threshold rule is a part that any client-level method can take: `--set clipping=quantile`, and its own settings as
`--set clipping.quantile=0.7`. It declares what clients send for it (`releases`, `tell`) and updates its state
(`following`), a dictionary within the server's state whose `clip` is broadcast: one number, or one for each layer. A
private rule may read only releases that were charged, or public records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from sordino.learning.network import Records
from sordino.method import Budget, Federation, Message, NotNegative, Positive, Replies, Schedule, Share
from sordino.privacy.release import Bare, Number, Releases, Update

State = dict[str, Any]


class Threshold:
    """A rule for the clipping threshold; this one keeps it as it is."""

    reads_public: bool = False
    """Whether the server judges models on public records."""

    def begin(self, fed: Federation, clip: float) -> State:
        """Return the rule's state before the first round, with its `clip`."""
        return {"clip": clip}

    def releases(self, at: str | None = None) -> Releases:
        """Return the releases: the update, and what else each client sends for this rule. `at` names the mask of the
        entries that leave."""
        return {"update": Update(clip="clip", at=at)}

    def tell(self, update: Tensor, model: Tensor, message: Message, data: Records) -> dict[str, Tensor]:
        """Return a client's values for `releases`; `model` is its trained model."""
        return {"update": update}

    def following(self, state: State, got: Replies, fed: Federation, model: Tensor) -> State:
        """Return the rule's state for the next round; the global `model` has been updated with `got`."""
        return state

    def settled(self, clients: int) -> Threshold:
        """Return the rule with those settings filled in that depend on the number of clients."""
        return self

    def unprotected(self) -> Threshold:
        """Return the rule for runs without privacy, where nothing is clipped."""
        return self

    def notes(self, schedule: Schedule, budget: Budget) -> list[str]:
        """Return sentences that a user should read before a run with this rule."""
        return []


@dataclass(frozen=True)
class Fixed(Threshold):
    """A constant threshold."""


@dataclass(frozen=True)
class Quantile(Threshold):
    """Geometric adaptation to a quantile of the update norms (Andrew et al., NeurIPS 2021, Algorithm 1).

    Each client also sends the bit "my norm is at most C", noised; C moves by exp(-rate (share of ones -
    quantile)). The noise of a round is scaled by the C with which that round clipped.
    """

    quantile: Share = 0.5
    """Quantile of the update norms that the threshold aims at."""
    rate: Positive = 0.2
    """Learning rate of the logarithm of the threshold: the paper's eta_C."""
    share: Share = 0.05
    """The share of the budget that the noised bits take."""

    def releases(self, at: str | None = None) -> Releases:
        return {
            "update": Update(clip="clip", share=1 - self.share, at=at),
            "below": Number(low=0.0, high=1.0, share=self.share),
        }

    def tell(self, update: Tensor, model: Tensor, message: Message, data: Records) -> dict[str, Tensor]:
        return {"update": update, "below": (update.norm() <= message["clip"]).to(update.dtype)}

    def following(self, state: State, got: Replies, fed: Federation, model: Tensor) -> State:
        below = float(got.mean("below").clamp(0, 1))
        return {"clip": state["clip"] * math.exp(-self.rate * (below - self.quantile))}


@dataclass(frozen=True)
class Normalised(Threshold):
    """A length that every update is scaled to, up or down, and that may shrink over the rounds by a public schedule.

    Where noise hides how long updates are, only their directions are worth sending; a step that shrinks towards the end
    averages noise out. The threshold is C (1 - t / T) in round t of T, from t = 0.
    """

    decay: Literal["linear", "none"] = "linear"
    """Schedule of the length over the rounds: `linear` from C to C / T, or `none`."""

    def begin(self, fed: Federation, clip: float) -> State:
        return {"clip": clip, "first": clip, "round": 0}

    def releases(self, at: str | None = None) -> Releases:
        return {"update": Update(clip="clip", at=at, normalised=True)}

    def following(self, state: State, got: Replies, fed: Federation, model: Tensor) -> State:
        done, rounds = state["round"] + 1, fed.schedule.rounds
        left = max(rounds - done, 1) / rounds if self.decay == "linear" else 1.0
        return {**state, "clip": state["first"] * left, "round": done}


@dataclass(frozen=True)
class Random(Threshold):
    """A threshold that is drawn anew in each round, C_0 low^(1 - u) high^u with u uniform on (0, 1): the control for
    rules that choose thresholds. It looks at nothing, so it costs nothing."""

    low: Positive = 0.05
    """The smallest threshold, as a multiple of the method's `clip`."""
    high: Positive = 2.0
    """The largest threshold, as a multiple of the method's `clip`."""

    def begin(self, fed: Federation, clip: float) -> State:
        return {"clip": self._drawn(clip, fed), "first": clip}

    def following(self, state: State, got: Replies, fed: Federation, model: Tensor) -> State:
        return {**state, "clip": self._drawn(state["first"], fed)}

    def unprotected(self) -> Threshold:
        return Fixed()

    def _drawn(self, first: float, fed: Federation) -> float:
        share = float(torch.rand((), generator=fed.random("threshold")))
        return first * self.low * (self.high / self.low) ** share


@dataclass(frozen=True)
class Median(Threshold):
    """The median of the last round's update norms (Geyer et al. 2017). The norms leave bare: epsilon is infinite."""

    def releases(self, at: str | None = None) -> Releases:
        return {
            "update": Update(clip="clip", at=at),
            "norm": Bare("the median rule needs each client's update norm as it is"),
        }

    def tell(self, update: Tensor, model: Tensor, message: Message, data: Records) -> dict[str, Tensor]:
        return {"update": update, "norm": update.norm()}

    def following(self, state: State, got: Replies, fed: Federation, model: Tensor) -> State:
        return {"clip": max(float(got.rows("norm").median()), 1e-6)}


@dataclass(frozen=True)
class LayerWise(Threshold):
    """One threshold for each layer, C_l^2 = C^2 w_l, the weights adapted in log-odds space (FedGLP-ADP, Alg. 1).

    A layer's weight rises by `gamma` in log-odds when its part of the noisy sum, less what the noise alone would
    contribute and in units of its threshold, has grown since the last round, and falls when that has shrunk: it reads
    only what was paid for. (In absolute terms a clipped part grows with its threshold, and would raise it for ever.)
    """

    gamma: NotNegative = 0.2
    """Step of a layer's weight in log-odds. FedGLP-ADP: 0 to 1.6."""

    def begin(self, fed: Federation, clip: float) -> State:
        weights = first_weights(fed.layout.layers)
        return {"clip": clip * weights.sqrt(), "whole": clip, "energy": torch.full_like(weights, -1.0)}

    def releases(self, at: str | None = None) -> Releases:
        return {"update": Update(clip="clip", layered=True, at=at)}

    def following(self, state: State, got: Replies, fed: Federation, model: Tensor) -> State:
        layers = fed.layout.layers
        total = got.mean("update") * len(got.who)
        noise = got.deviation("update")
        parts = zip(total.split(layers), noise.split(layers), strict=True)
        energy = torch.stack([(part.square().sum() - dev.square().sum()).clamp(min=0) for part, dev in parts])
        energy = energy / state["clip"].square()
        if (state["energy"] < 0).all():  # nothing to compare the first round with
            return {**state, "energy": energy}
        direction = torch.sign(energy - state["energy"])
        weights = (state["clip"] / state["whole"]).square()
        moved = step_weights(weights, direction, self.gamma, first_weights(layers))
        return {**state, "clip": state["whole"] * moved.sqrt(), "energy": energy}


def whole(clip: float | Tensor) -> float | Tensor:
    """Return the threshold of the whole update, from one threshold or those of all layers."""
    return torch.linalg.vector_norm(clip) if isinstance(clip, Tensor) else clip


def first_weights(layers: list[int]) -> Tensor:
    """Return each layer's share of the parameters."""
    return torch.tensor(layers, dtype=torch.float32) / sum(layers)


def step_weights(weights: Tensor, direction: Tensor, step: float, first: Tensor) -> Tensor:
    """Move layer weights by `step` in log-odds, keep them above a hundredth of their first value, and normalise them.

    The lower bound keeps C_l above a tenth of its first value: without it, weights that always fall reach zero.
    """
    if step == 0:
        return weights
    moved = torch.sigmoid(torch.logit(weights.double()) + step * direction)
    held = torch.maximum(moved, first.double() / 100)
    return (held / held.sum()).to(weights.dtype)
