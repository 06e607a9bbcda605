"""How values are bounded: held to a range, or shortened to a length."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sordino.privacy.release.base import Bounded


def held(rows: Tensor, low: float, high: float) -> Bounded:
    """Numbers within a range, less its middle; what is not finite becomes the middle."""
    middle = (low + high) / 2
    finite = torch.isfinite(rows)
    kept = torch.where(finite, rows, torch.full_like(rows, middle)).clamp(low, high)
    return Bounded(kept - middle, int((~finite).sum()))


def lengths(rows: Tensor) -> Tensor:
    """The L2 norm of each row, in float64."""
    return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)


def shortened(rows: Tensor, norms: Tensor, threshold: Tensor) -> Tensor:
    """Each row scaled down to its threshold where it is longer; `norms` are its `lengths`."""
    if not (norms > threshold).any():
        return rows
    # The shrinking by 2^-22 makes up for float32 rounding: the norm after clipping is never above the threshold.
    scale = torch.where(norms > threshold, threshold / norms * (1 - 2**-22), torch.ones_like(norms))
    clipped = rows * scale.to(rows.dtype).unsqueeze(1)
    extreme = scale < 2**-100  # such a scale is too small for float32 to hold it exactly
    if extreme.any():
        clipped[extreme] = (rows[extreme].double() * scale[extreme].unsqueeze(1)).to(rows.dtype)
    return clipped


def part_lengths(rows: Tensor, sizes: list[int]) -> Tensor:
    """The L2 norm of each part of each row, in float64: (rows, parts)."""
    if max(sizes) == 1:
        return rows.double().abs()
    return torch.stack([lengths(part) for part in rows.split(sizes, dim=1)], dim=1)


def parts_shortened(rows: Tensor, norms: Tensor, thresholds: Tensor, sizes: list[int]) -> Tensor:
    """Each part of each row scaled down to its threshold; `norms` are the `part_lengths`, one column for each part."""
    if max(sizes) == 1:  # as many parts as entries: all of them at once
        flat = shortened(rows.reshape(-1, 1), norms.reshape(-1), thresholds.expand_as(norms).reshape(-1))
        return flat.reshape(rows.shape)
    parts = zip(rows.split(sizes, dim=1), norms.unbind(dim=1), thresholds.unbind(dim=1), strict=True)
    pieces = [shortened(part, length, threshold) for part, length, threshold in parts]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)


def symmetric(flat: Tensor) -> Tensor:
    """A flat square matrix with its upper triangle mirrored below."""
    size = math.isqrt(flat.numel())
    upper = flat.view(size, size).triu()
    return (upper + upper.triu(1).t()).reshape(-1)
