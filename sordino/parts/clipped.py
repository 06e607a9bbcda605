"""Client-level methods whose clients send one clipped and noised update, with any rule for the threshold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from sordino.method import LEAST_SHARE, Budget, Count, Method, NotNegative, Positive, Share
from sordino.parts.ppo_threshold import LearnedThreshold, Reads
from sordino.parts.thresholds import Fixed, LayerWise, Median, Quantile, Threshold

ENOUGH_CLIENTS = 500
"""From this many clients on, noised means of their metrics are worth reading."""


@dataclass(frozen=True)
class Clipped(Method):
    """A client-level method whose clients send one clipped and noised update."""

    clip: Positive = 0.5
    """The clipping threshold C, or the one to start from. FedDPA, FedGLP-ADP, ACDP-pFSD on EMNIST: 0.5."""
    clipping: Literal["fixed", "quantile", "median", "layer-wise", "ppo"] = "fixed"
    """How the threshold is chosen: `fixed`; `quantile` (private, Andrew et al.); `median` (Geyer et al.: epsilon is
    infinite); `layer-wise` (one for each layer, log-odds); `ppo` (a learning agent)."""
    quantile: Share = 0.5
    """Which quantile of the update norms `quantile` clipping aims at."""
    clip_rate: Positive = 0.2
    """How fast `quantile` clipping moves: the paper's eta_C."""
    count_share: Share = 0.05
    """The share of the budget that the noised bits of `quantile` clipping take."""
    gamma: NotNegative = 0.2
    """How far a layer's weight moves in log-odds under `layer-wise` clipping. FedGLP-ADP: 0 to 1.6."""
    clip_low: Positive = 0.05
    """The smallest threshold that the `ppo` agent may choose."""
    clip_high: Positive = 2.0
    """The largest threshold that the `ppo` agent may choose."""
    reads: Reads = "auto"
    """What the `ppo` agent learns from: `public` records at the server (free), noised means of the clients'
    `metrics` (paid for), or `auto`: public below 500 clients, where noised means would be useless."""
    metrics_share: Annotated[float, Field(ge=LEAST_SHARE, le=0.5 - LEAST_SHARE, allow_inf_nan=False)] = 0.025
    """The share of the budget that each of the two noised metrics takes."""
    metrics_every: Count = 1
    """The noised metrics are sent every so-manyth round."""
    loss_bound: Positive = 4.0
    """Losses are held to [0, this] before they are noised."""

    @property
    def threshold(self) -> Threshold:
        """The rule that `clipping` names."""
        rules: dict[str, Threshold] = {
            "fixed": Fixed(self.clip),
            "quantile": Quantile(self.clip, self.quantile, self.clip_rate, self.count_share),
            "median": Median(self.clip),
            "layer-wise": LayerWise(self.clip, self.gamma),
            "ppo": LearnedThreshold(
                clip=self.clip,
                low=self.clip_low,
                high=self.clip_high,
                reads="bare" if self.variant == "paper" and self.bare_metrics() else self.reads,
                share=self.metrics_share,
                every=self.metrics_every,
                loss_bound=self.loss_bound,
            ),
        }
        return rules[self.clipping]

    def bare_metrics(self) -> bool:
        """Whether the `paper` variant's agent reads the clients' metrics as they are."""
        return False

    def settled(self, clients: int) -> Clipped:
        if self.reads != "auto":
            return self
        return replace(self, reads="public" if clients < ENOUGH_CLIENTS else "metrics")

    def needs_public(self) -> bool:
        return (
            self.clipping == "ppo" and self.reads == "public" and not (self.variant == "paper" and self.bare_metrics())
        )

    def notes(self, budget: Budget) -> list[str]:
        if self.clipping != "ppo" or (self.variant == "paper" and self.bare_metrics()):
            return []
        deviation = budget.multiplier / self.metrics_share**0.5 * self.loss_bound / 2 / budget.cohort
        noise = f"the noise of a mean loss would be {deviation:.2g}, on losses of 0 to {self.loss_bound:g}"
        if self.reads == "public":
            return [f"The agent learns from public records, which cost nothing: with {budget.cohort} clients {noise}."]
        return [f"The agent learns from noised means of the clients' metrics, which are paid for: {noise}."]


def unit(vector: Tensor) -> Tensor:
    """The vector scaled to length one; the zero vector stays zero, so that it is a subgradient of the norm."""
    return vector / torch.linalg.vector_norm(vector).clamp(min=1e-12)
