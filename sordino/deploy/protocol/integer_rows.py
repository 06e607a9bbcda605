"""A site's releases as one row of whole numbers for the secure sum, and the sums read back from it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from sordino.deploy.protocol.secure_sum import MaskingError
from sordino.privacy import integers
from sordino.privacy.gate import Gate
from sordino.privacy.mechanism import grid_of
from sordino.privacy.release import Cover, Public, Releases

DEVIATIONS = 12
"""Standard deviations by which honest noise may exceed its expected length: more has a probability below 1e-32."""
RECORDS_MARGIN = 10
"""Times the declared number of training records that a site may have, where sums over records leave."""


def widths(releases: Releases, public: Public) -> dict[str, int]:
    """Number of whole numbers of each release."""
    return {name: release.width(public) or 0 for name, release in releases.items()}


def bits(releases: Releases, gate: Gate, public: Public, cohort: int) -> int:
    """Width in bits, 32 or 64, of the whole numbers in which a sum over `cohort` sites is computed.

    A sum over records takes 64: how many a site has does not follow from anything that is public.

    Args:
        releases: releases of the step, by name.
        gate: the gate, whose allowance has the noise.
        public: public values of the question, with its clients.
        cohort: number of sites that are asked.
    """
    covers = list(_covers(releases, gate, public))
    if any(cover.unit.record_level for cover in covers):
        return 64
    limits = [limit for cover in covers for _, limit in _blocks(cover)]
    return max((integers.width(cohort, limit) for limit in limits), default=32)


def to_row(values: Mapping[str, Tensor], releases: Releases) -> np.ndarray:
    """Concatenate one site's released values, in the order of `releases`."""
    return np.concatenate([values[name].reshape(-1).numpy() for name in releases])


def from_row(total: np.ndarray, releases: Releases, public: Public) -> dict[str, Tensor]:
    """Split a summed row into the sums of the releases, each of shape (1, width)."""
    found, begin = {}, 0
    for name, width in widths(releases, public).items():
        found[name] = torch.from_numpy(total[begin : begin + width].copy()).reshape(1, -1)
        begin += width
    return found


def check_total(sums: Mapping[str, Tensor], releases: Releases, gate: Gate, public: Public) -> None:
    """Refuse a sum that honest sites cannot have made: one of them sent more than its clip allows.

    This limits a lying site to moving the sum by as much as all others together may: where whole sites are protected,
    by their clips; where records are, by `RECORDS_MARGIN` times as many clips as there are declared records.

    Args:
        sums: Sum of each release, of shape (1, width).
        releases: The releases.
        gate: Gate whose allowance says how much noise each has.
        public: Public values that bounds depend on; its clients are the sites in the sum.
    """
    sites = len(public.clients)
    for total, cover in zip(sums.values(), _covers(releases, gate, public), strict=True):
        row, noise_alone = total[0].double().numpy(), grid_of(cover).deviation * math.sqrt(sites)
        contributions = float(sites)
        if cover.unit.record_level:
            contributions = RECORDS_MARGIN * float(gate.allowance.of_records.trained[list(public.clients)].sum())
        for entries, limit in _blocks(cover):
            noise = noise_alone * (math.sqrt(len(entries)) + DEVIATIONS) + sites * math.sqrt(len(entries))
            if float(np.linalg.norm(row[entries])) > contributions * math.sqrt(limit) + noise:
                raise MaskingError(
                    "A sum is longer than the sites' clips allow: one of them sent more than its own clip."
                )


def _covers(releases: Releases, gate: Gate, public: Public) -> Iterator[Cover]:
    for release in releases.values():
        cover = release.cover(release.width(public) or 0, gate.allowance, public)
        if cover is None or len(cover.deviations) > 1:
            raise MaskingError(f"{release.describe()}: its noise is not the same for all sites, so it cannot be summed")
        yield cover


def _blocks(cover: Cover) -> Iterator[tuple[np.ndarray, int]]:
    """Entries of each block, with the largest sum of squares that one site, or one record, may contribute there."""
    for entries, bound, deviation in cover.blocks(0):
        if len(entries):
            yield entries, grid_of(cover).longest(bound, deviation)
