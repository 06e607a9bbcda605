"""Rules for the one threshold of all records' gradients where their sum over all clients leaves, with shared noise.

A rule is a part of `dp-fedsgd`: `--set clipping=quantile`, and its own settings as `--set clipping.quantile=0.7`. It
keeps its threshold in the server's state, as `clip`. What it reads besides the gradients leaves over the same batch and
is charged with them as one sampled Gaussian.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from sordino.method import Positive, Replies, Share
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.release import GradientSum, RecordSum, Releases
from sordino.util.selectable import Named

State = dict[str, Tensor]


class SumThreshold:
    """A rule for the threshold; this one keeps it as it is."""

    def begin(self, clip: float) -> State:
        """Return the rule's state before the first round, with the threshold `clip`."""
        return {"clip": torch.tensor(clip, dtype=torch.float64)}

    def releases(self, rate: float) -> Releases:
        """Return what each client sends in a round, of a batch that every record enters with probability `rate`."""
        return {"gradient": GradientSum("clip", rate)}

    def tell(self, model: Tensor, data: PrivateRecords) -> dict[str, Any]:
        """Return a client's values for the releases besides its gradients at `model`."""
        return {}

    def following(self, state: State, got: Replies) -> State:
        """Return the rule's state after a round whose clients sent `got`."""
        return state


@dataclass(frozen=True)
class SumFixed(SumThreshold):
    """A constant threshold."""


@dataclass(frozen=True)
class SumNormalised(SumThreshold):
    """A constant length that every record's gradient is scaled to (Bu et al., "Automatic Clipping", NeurIPS 2023).

    Not for two classes and a linear model: there the direction of a record's gradient does not depend on the model.
    """

    def releases(self, rate: float) -> Releases:
        return {"gradient": GradientSum("clip", rate, normalised=True)}


@dataclass(frozen=True)
class SumQuantile(SumThreshold):
    """Geometric adaptation to a quantile of the records' gradient norms (Andrew et al., NeurIPS 2021, Algorithm 1).

    The sum of one bit for each record of the batch, whether its gradient is within the threshold, leaves beside the
    gradients; C <- C exp(rate (quantile - share)).
    """

    quantile: Share = 0.5
    """Quantile of the gradient norms that the threshold aims at. Paper: 0.5."""
    rate: Positive = 0.2
    """Step of the logarithm of the threshold for a share that is off by one. Paper: 0.2."""
    share: Share = 0.02
    """Part of the round's budget that the bits have; the gradients have the rest."""

    def releases(self, rate: float) -> Releases:
        return {
            "gradient": GradientSum("clip", rate, share=1 - self.share),
            "within": RecordSum(0.5, self.share, drawn=True),
        }

    def tell(self, model: Tensor, data: PrivateRecords) -> dict[str, Any]:
        return {"within": data.batch_within(model)}

    def following(self, state: State, got: Replies) -> State:
        within = float(got.mean("within").clamp(-0.5, 0.5)) + 0.5
        return {"clip": state["clip"] * torch.tensor(self.rate * (self.quantile - within), dtype=torch.float64).exp()}


SUM_RULES = {"fixed": SumFixed, "quantile": SumQuantile, "normalised": SumNormalised}
SumClipping = Annotated[SumThreshold, Named(SUM_RULES)]
"""Rule for the threshold of summed gradients: `fixed`, `quantile` (private) or `normalised`."""
