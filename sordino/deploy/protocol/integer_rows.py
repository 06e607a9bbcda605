"""What a site's releases are as one row of whole numbers, and what a sum of such rows says."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from sordino.deploy.protocol.secure_sum import MaskingError
from sordino.privacy import integers
from sordino.privacy.gate import Gate
from sordino.privacy.integers import CLIENTS
from sordino.privacy.release import Cover, Public, Releases

DEVIATIONS = 12
"""No honest noise is longer than its expectation by more than so many deviations: an event of probability below
1e-32."""


def widths(releases: Releases, public: Public) -> dict[str, int]:
    """How many whole numbers each release is."""
    return {name: release.width(public) or 0 for name, release in releases.items()}


def bits(releases: Releases, gate: Gate, public: Public, cohort: int) -> int:
    """Of the whole numbers in which a cohort's sum is made: 32 or 64."""
    limits = [limit for cover in _covers(releases, gate, public) for _, limit in _blocks(cover)]
    return max((integers.width(cohort, limit) for limit in limits), default=32)


def to_row(values: Mapping[str, Tensor], releases: Releases) -> np.ndarray:
    """What one site sends, behind one another."""
    return np.concatenate([values[name].reshape(-1).numpy() for name in releases])


def from_row(total: np.ndarray, releases: Releases, public: Public) -> dict[str, Tensor]:
    """The sums of the releases, one row each."""
    found, begin = {}, 0
    for name, width in widths(releases, public).items():
        found[name] = torch.from_numpy(total[begin : begin + width].copy()).reshape(1, -1)
        begin += width
    return found


def check_total(sums: Mapping[str, Tensor], releases: Releases, gate: Gate, public: Public, sites: int) -> None:
    """Refuse a sum that so many honest sites cannot have made: somebody sent more than its clip allows.

    A site that lies moves a sum by as much as all others together are allowed to, and no further.
    """
    for total, cover in zip(sums.values(), _covers(releases, gate, public), strict=True):
        row = total[0].double().numpy()
        for entries, limit in _blocks(cover):
            noise = CLIENTS.deviation * math.sqrt(sites) * (math.sqrt(len(entries)) + DEVIATIONS)
            if float(np.linalg.norm(row[entries])) > sites * math.sqrt(limit) + noise:
                raise MaskingError("A sum is longer than the sites' clips allow: one of them did not keep to its own.")


def _covers(releases: Releases, gate: Gate, public: Public) -> Iterator[Cover]:
    for release in releases.values():
        cover = release.cover(release.width(public) or 0, gate.allowance, public)
        if cover is None or len(cover.deviations) > 1:
            raise MaskingError(f"{release.describe()}: it is not the same for all sites, and cannot be summed")
        yield cover


def _blocks(cover: Cover) -> Iterator[tuple[np.ndarray, int]]:
    """The entries of each block, and the largest sum of squares of one site's."""
    for entries, bound, deviation in cover.blocks(0):
        if len(entries):
            yield entries, CLIENTS.longest(bound, deviation)
