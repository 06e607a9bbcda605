"""Reading what sites answer: every answer is what the step and the protocol ask for, or raises `ValueError`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.deploy.entries import Head
from sordino.deploy.masking import Cohort, Opening
from sordino.privacy.release import Public, Releases


@dataclass(frozen=True)
class Work:
    """What a site answered to a question."""

    content: Any
    """Values, or a masked vector with its shares."""
    size: int
    """Bytes of what left the site."""
    head: Head
    """Where its ledger ends, by its own account."""

    @classmethod
    def read(cls, reply: Mapping[str, Any], content: Any) -> Work:
        """From a reply whose content has been read."""
        return cls(content, _size(reply), Head.read(reply.get("head")))


def values(reply: Mapping[str, Any], releases: Releases, public: Public, parameters: int) -> dict[str, Tensor]:
    """What a site sent where each message is protected by itself; the network has so many `parameters`."""
    found = reply.get("values")
    if not isinstance(found, dict) or set(found) != set(releases):
        raise ValueError("it is not what the step sends")
    for name, release in releases.items():
        value, width = found[name], release.width(public)
        whole = release.unit == "client"
        if not isinstance(value, Tensor) or value.ndim != 2 or len(value) != 1:
            raise ValueError(f"{name} is not one row")
        if value.dtype != (torch.int64 if whole else torch.float32) or (width or value.shape[1]) != value.shape[1]:
            raise ValueError(f"{name} has another type or width")
        if release.made_of_gradients and value.shape[1] != parameters:
            raise ValueError(f"{name} has another width")
        if not whole and not bool(torch.isfinite(value).all()):
            raise ValueError(f"{name} is not finite")
    return found


def masked(
    reply: Mapping[str, Any], cohort: Cohort, width: int, kind: np.dtype
) -> tuple[np.ndarray, dict[bytes, bytes]]:
    """A site's masked vector of so many numbers, and its shares for all."""
    vector, shares = reply.get("vector"), reply.get("shares")
    if not isinstance(vector, np.ndarray) or vector.shape != (width,) or vector.dtype != kind:
        raise ValueError("a vector has another length or width")
    wanted = {party.identity for party in cohort.parties}
    if not isinstance(shares, dict) or set(shares) != wanted or not all(isinstance(s, bytes) for s in shares.values()):
        raise ValueError("shares are missing")
    return vector, shares


def opening(reply: Mapping[str, Any], survivors: Sequence[bytes], dropped: Sequence[bytes]) -> Opening:
    """What a site gives to open a sum."""
    shares, seeds = reply.get("shares"), reply.get("seeds")
    if not isinstance(shares, dict) or not isinstance(seeds, dict):
        raise ValueError("an opening has shares and seeds")
    if set(shares) != set(survivors) or set(seeds) != set(dropped):
        raise ValueError("an opening is for others")
    if not all(isinstance(one, bytes) for one in (*shares.values(), *seeds.values())):
        raise ValueError("an opening holds bytes")
    return Opening(shares, seeds)


def _size(reply: Mapping[str, Any]) -> int:
    found = reply.get("values")
    if isinstance(found, dict):
        return sum(value.numel() * value.element_size() for value in found.values() if isinstance(value, Tensor))
    vector = reply.get("vector")
    return int(vector.nbytes) if isinstance(vector, np.ndarray) else 0
