"""More rules for each client's clipping threshold at record level: a private quantile, a median, a percentile.

They are `RecordThreshold`s, which any record-level method can take: `--set clipping=quantile`, and their own settings
as `--set clipping.quantile=0.7`. Every client has a threshold of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from sordino.method import Federation, Positive, Replies, Share
from sordino.named import Named
from sordino.parts import record_thresholds
from sordino.parts.record_thresholds import Fixed, RecordThreshold, State
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.release import Average, Bare, Follows, Releases

LEAST, MOST = 1e-6, 1e6
"""Between which a threshold stays that nothing else holds."""


@dataclass(frozen=True)
class Quantile(RecordThreshold):
    """Geometric adaptation to a quantile of the records' gradient norms (Andrew et al., NeurIPS 2021, Algorithm 1).

    Of records that are set aside each client sends the share whose gradient is within C, noised; C moves by
    exp(-rate (share - quantile)). They are disjoint from the training records, so this takes nothing of their budget.
    """

    quantile: Share = 0.5
    """Which quantile of the gradient norms the threshold aims at. Paper: 0.5."""
    rate: Positive = 0.2
    """How fast it moves: the paper's eta_C. Paper: 0.2."""
    validation: Share = 0.1
    """The share of a client's records set aside for it. The paper counts in the batch itself, of clients."""

    def releases(self, bare: bool) -> Releases:
        return {"within": Average(0.0, 1.0, held_out=self.validation)}

    def tell(self, model: Tensor, data: PrivateRecords, bare: bool) -> dict[str, Any]:
        return {"within": data.within(model)}

    def following(self, state: State, members: Sequence[int], got: Replies, fed: Federation) -> State:
        within = got.rows("within").squeeze(1).nan_to_num(self.quantile).clamp(0, 1)  # nan: nobody was set aside
        clips = state["clips"].clone()
        clips[list(members)] *= torch.exp(-self.rate * (within - self.quantile))
        return {"clips": clips.clamp(LEAST, MOST)}


@dataclass(frozen=True)
class Median(RecordThreshold):
    """The median of the records' gradient norms at a client's last participation (Geyer et al. 2017).

    Medians leave as they are: epsilon is infinite.
    """

    def releases(self, bare: bool) -> Releases:
        return {"norm": Bare("the median rule needs the median norm of each client's records as it is")}

    def tell(self, model: Tensor, data: PrivateRecords, bare: bool) -> dict[str, Any]:
        return {"norm": torch.linalg.vector_norm(data.raw_norms(model), dim=1).median()}

    def following(self, state: State, members: Sequence[int], got: Replies, fed: Federation) -> State:
        clips = state["clips"].clone()
        clips[list(members)] = got.rows("norm").clamp(LEAST, MOST).reshape(len(members), *clips.shape[1:])
        return {"clips": clips}


@dataclass(frozen=True)
class LayeredMedian(Median):
    """The same for each layer by itself; before a client's first participation all layers together have the first C."""

    def begin(self, fed: Federation, clip: float) -> State:
        layers = len(fed.layout.layers)
        return {"clips": torch.full((fed.schedule.clients, layers), clip / layers**0.5)}

    def tell(self, model: Tensor, data: PrivateRecords, bare: bool) -> dict[str, Any]:
        return {"norm": data.raw_norms(model).median(dim=0).values}


@dataclass(frozen=True)
class Percentile(record_thresholds.Percentile):
    """The 90th percentile of a client's gradient norms over its last participations, from noisy gradients (DP-AGR)."""

    def releases(self, bare: bool) -> Releases:
        return {"norm": Follows("update")}

    def tell(self, model: Tensor, data: PrivateRecords, bare: bool) -> dict[str, Any]:
        return {"norm": data.mean_norm()}


RULES = {"fixed": Fixed, "quantile": Quantile, "median": Median, "percentile": Percentile}
RecordClipping = Annotated[RecordThreshold, Named(RULES)]
"""How each client's threshold is chosen: `fixed`; `quantile` (private, Andrew et al.); `median` (Geyer et al.: epsilon
is infinite); `percentile` (DP-AGR, of noisy gradient norms)."""
