"""The sum of the records' gradients, each scaled down to the threshold.

Of every record it holds that what it brings into the sum as computed, its share of all rounding included, has a norm of
at most its threshold, or in each layer or tensor of at most that one's: `sordino.learning.pages` defines the share
and proves the bound on the norms. What remains is that the sum's rounding is shared by all: when one record leaves, the
shares of the others stay within their own bounds, but need not stay the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sordino.learning.pages import UNDERFLOW
from sordino.learning.per_record import Contributions

SMALLEST = 2.0**-100
"""The smallest factor: below, float32 would no longer hold it to its last bit."""


def clipped_sum(book: Contributions, clip: Tensor) -> Tensor:
    """The flat sum of the records' gradients, each scaled down to the threshold, or to one for each layer or
    tensor."""
    return book.weighted_sum(clipping_factors(book.part_norms(clip.shape[-1]), clip))


def clipping_factors(norms: Tensor, clip: Tensor) -> Tensor:
    """By what each record's gradient is multiplied: (records,) for one threshold, (records, parts) for one for each
    part, be that a layer or a tensor.

    `norms` holds what a record brings at the most, in each part: (records, parts). A record of which that is not known
    to be finite counts nothing, and neither does one that is 2^100 times too long. Of stacked clients both have one
    more dimension, the first: thresholds are (clients, 1) or (clients, parts).
    """
    known, several = norms.double(), clip.shape[-1] > 1
    lengths = known if several else torch.linalg.vector_norm(known, dim=-1, keepdim=True)
    allowed = (clip.double() * (1 - 2**-23) - UNDERFLOW).clamp(min=0)  # factors are rounded to float32
    factors = (allowed.unsqueeze(-2) / lengths.clamp(min=1e-300)).clamp(max=1)
    counts = torch.isfinite(known).all(dim=-1, keepdim=True) & (factors >= SMALLEST)
    factors = torch.where(counts, factors, 0.0)
    return factors if several else factors.squeeze(-1)
