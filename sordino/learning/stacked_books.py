"""Books of stacked clients: what `per_record` keeps of one client's batch, kept of many in batched products.

The network is a chain (`stacked.Chain`), whose linear layers see whole records: of the three ways of adding up that
`pages` proves its bound for, each client's sum is the second, G = g a^T and |G| = |g| |a|, with the client's own
records alone in it. Sums run over as many places as the stack is wide, and are bounded for `most` of them: a place that
is empty or not chosen has the weight zero, and adding zero rounds nothing.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from sordino.learning.pages import LARGEST, rounding
from sordino.learning.stacked import Chain, Linear


@functools.lru_cache
def _growth(most: int, size: int, dtype: torch.dtype, device: torch.device, precision: str) -> float:
    """What a sum of `most` such numbers and the norm of `size` double ones may round, as a factor, at a precision."""
    numbers, norms = (torch.empty(0, dtype=kind, device=device) for kind in (dtype, torch.float64))
    return 1 + float(rounding(most + 8, numbers)) + float(rounding(size, norms))


class StackedBook:
    """What the records of stacked clients bring: norms, and sums for each client."""

    def __init__(self, pages: list[tuple[Linear, Tensor, Tensor]], most: int, size: int) -> None:
        """`most` is how many records a sum may have, `size` the number of parameters."""
        self.pages, self.most, self.size = pages, most, size

    @classmethod
    def of(cls, chain: Chain, flat: Tensor, x: Tensor, y: Tensor, most: int) -> StackedBook:
        """One forward and one backward pass: `flat` (clients, parameters), `x` (clients, records, ...), `y`."""
        return cls(chain.pages(flat, x, y), most, flat.shape[1])

    def layer_norms(self) -> Tensor:
        """What each record brings into a weighted sum at the most, over its weight, in each layer, in double precision:
        (clients, records, layers). Not finite where that is not known."""
        norms = []
        for layer, below, slope in self.pages:
            reach = torch.linalg.vector_norm(below, dim=2, dtype=torch.float64).square() + (1 if layer.bias else 0)
            reach = torch.where(reach <= LARGEST**2, reach, torch.inf)
            norms.append(torch.linalg.vector_norm(slope, dim=2, dtype=torch.float64) * reach.sqrt())
        return torch.stack(norms, dim=2) * self._growth()

    def _growth(self) -> float:
        """What sums and norms may round, as a factor."""
        inputs = self.pages[0][1]
        return _growth(self.most, self.size, inputs.dtype, inputs.device, torch.get_float32_matmul_precision())

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The sum of the records' gradients times their weights, one row for each client: weights are
        (clients, records) or (clients, records, layers)."""
        first = self.pages[0][1]
        weights = weights.to(first.dtype)
        by_layer = weights.unsqueeze(2).expand(-1, -1, len(self.pages)) if weights.dim() == 2 else weights
        found = first.new_empty(len(first), self.size)
        for place, (layer, below, slope) in enumerate(self.pages):
            weighed = slope * by_layer[:, :, place : place + 1]
            by_weight, by_bias = layer.of(found)
            by_weight.copy_(torch.bmm(weighed.transpose(1, 2), below))
            if by_bias is not None:
                torch.sum(weighed, dim=1, out=by_bias)
        return found
