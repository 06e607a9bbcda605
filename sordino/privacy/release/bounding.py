"""How values are bounded: held to a range, or shortened to a length."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sordino.privacy.release.base import Bounded, Release, ReleaseError

LEAST, MOST = 1e-30, 1e30
"""Between these lie bounds that float32 can keep and noise that it can hold."""


def held(rows: Tensor, low: float, high: float) -> Bounded:
    """Numbers within a range, less its middle, in float64; what is not finite becomes the middle."""
    # Centred first, and not in float32: there, the ends of a narrow range far from zero round to numbers outside of it.
    half, finite = (high - low) / 2, torch.isfinite(rows)
    centred = torch.where(finite, rows.double() - (low + high) / 2, 0.0)
    return Bounded(centred.clamp(-half, half), int((~finite).sum()))


def check_range(release: Release, low: float, high: float) -> None:
    """Refuse a range that bounds nothing."""
    if not (math.isfinite(low) and math.isfinite(high) and LEAST <= high - low <= MOST):
        raise ReleaseError(
            f"{release.describe()}: a range goes from a number to a larger one, {LEAST:g} to {MOST:g} apart"
        )


def check_thresholds(thresholds: Tensor, whose: str) -> None:
    """Refuse thresholds to which nothing can be shortened in float32."""
    if not bool((torch.isfinite(thresholds) & (thresholds >= LEAST) & (thresholds <= MOST)).all()):
        raise ReleaseError(f"{whose}: a threshold must be a finite number above 0, from {LEAST:g} to {MOST:g}")


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
    if len(sizes) == 1:
        return lengths(rows).unsqueeze(1)
    return torch.stack([lengths(part) for part in rows.split(sizes, dim=1)], dim=1)


def parts_shortened(rows: Tensor, norms: Tensor, thresholds: Tensor, sizes: list[int]) -> Tensor:
    """Each part of each row scaled down to its threshold; `norms` are the `part_lengths`, one column for each part."""
    if max(sizes) == 1:  # as many parts as entries: all of them at once
        flat = shortened(rows.reshape(-1, 1), norms.reshape(-1), thresholds.expand_as(norms).reshape(-1))
        return flat.reshape(rows.shape)
    if len(sizes) == 1:
        return shortened(rows, norms.squeeze(1), thresholds.squeeze(1))
    parts = zip(rows.split(sizes, dim=1), norms.unbind(dim=1), thresholds.unbind(dim=1), strict=True)
    return torch.cat([shortened(part, length, threshold) for part, length, threshold in parts], dim=1)


def symmetric(flat: Tensor) -> Tensor:
    """A flat square matrix with its upper triangle mirrored below."""
    size = math.isqrt(flat.numel())
    upper = flat.view(size, size).triu()
    return (upper + upper.triu(1).t()).reshape(-1)
