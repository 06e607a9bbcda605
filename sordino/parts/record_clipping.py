"""The rules for each client's clipping threshold that any record-level method can take, by name; and medians.

They are `RecordThreshold`s, which any record-level method can take: `--set clipping=quantile`, and their own settings
as `--set clipping.quantile=0.7`. Every client has a threshold of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from sordino.method import Federation, Replies
from sordino.named import Named
from sordino.parts.record_thresholds import Fixed, Percentile, Quantile, RecordThreshold, State
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.release import Bare, Releases

LEAST, MOST = 1e-6, 1e6
"""Between which a threshold stays that nothing else holds."""


@dataclass(frozen=True)
class Median(RecordThreshold):
    """The median of the records' gradient norms at a client's last participation (Geyer et al. 2017).

    Medians leave as they are: epsilon is infinite.
    """

    def releases(self, bare: bool) -> Releases:
        return {"norm": Bare("the median rule needs the median norm of each client's records as it is")}

    def tell(self, start: Tensor, model: Tensor, data: PrivateRecords, bare: bool) -> dict[str, Any]:
        return {"norm": torch.linalg.vector_norm(data.raw_norms(model), dim=1).median()}

    def following(self, state: State, got: Replies, fed: Federation) -> State:
        clips = state["clips"].clone()
        clips[list(got.who)] = got.rows("norm").clamp(LEAST, MOST).reshape(len(got.who), *clips.shape[1:])
        return {"clips": clips}


@dataclass(frozen=True)
class LayeredMedian(Median):
    """The same for each layer by itself; before a client's first participation all layers together have the first C."""

    def begin(self, fed: Federation, clip: float) -> State:
        layers = len(fed.layout.layers)
        return {"clips": torch.full((fed.schedule.clients, layers), clip / layers**0.5)}

    def tell(self, start: Tensor, model: Tensor, data: PrivateRecords, bare: bool) -> dict[str, Any]:
        return {"norm": data.raw_norms(model).median(dim=0).values}


RULES = {"fixed": Fixed, "quantile": Quantile, "median": Median, "percentile": Percentile}
RecordClipping = Annotated[RecordThreshold, Named(RULES)]
"""How each client's threshold is chosen: `fixed`; `quantile` (private, Andrew et al.); `median` (Geyer et al.: epsilon
is infinite); `percentile` (in the place of DP-AGR)."""
