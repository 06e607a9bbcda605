"""The only exit of a client: check, bound, noise.

`Noise` says how much noise a message must carry; `Gate` applies it to everything a step wants to send.
What was sent is charged by the ledger from the same two objects, so that the noise that was added and the
noise that is paid for cannot differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sordino.privacy.noise import Seeded
from sordino.privacy.release import Public, Release, Releases

ProtectFrom = Literal["outsider", "server"]


class UndeclaredReleaseError(Exception):
    """A step tried to send something that is not declared beside it, or left out what is."""


@dataclass(frozen=True)
class Noise:
    """How much noise one message carries.

    `multiplier` z is the ratio of noise to sensitivity that the protected observer meets in one round, all
    releases of the round together. Against the `server` each message carries all of it. Against an
    `outsider`, who sees sums only, each message carries the share of it that makes the sum of the smallest
    accepted cohort (`minimum_cohort`, less `colluders` who know their own shares) carry all of it.
    """

    multiplier: float
    protect_from: ProtectFrom
    minimum_cohort: int
    colluders: int = 0

    def deviation(self, release: Release, sensitivity: float) -> float:
        """Standard deviation of the noise on each coordinate of one message."""
        if not release.private:
            return 0.0
        full = self.multiplier / math.sqrt(release.share) * sensitivity
        if self.protect_from == "server":
            return full
        return full / math.sqrt(self.minimum_cohort - self.colluders)


@dataclass(frozen=True)
class Passed:
    """What came out of the gate for several clients."""

    values: dict[str, Tensor]
    """Release name to one row per client, bounded and noised, centred on zero."""
    rejected: int
    """Values that were not finite and were replaced by a null contribution."""


@dataclass(frozen=True)
class Gate:
    """The exit of the clients of one run."""

    noise: Noise
    source: Seeded

    def passes(
        self,
        releases: Releases,
        wanted: Mapping[str, Tensor],
        clients: Sequence[int],
        step: str,
        round: int,
        public: Public,
    ) -> Passed:
        """Bound and noise what `clients` want to send: `wanted` maps a release's name to one row per client."""
        check_declared(releases, wanted, step)
        values: dict[str, Tensor] = {}
        rejected = 0
        for name, release in releases.items():
            rows = wanted[name].detach().reshape(len(clients), -1)
            bounded = release.bounded(rows, public)
            deviation = self.noise.deviation(release, release.sensitivity(public))
            if deviation > 0:
                draws = [self.source.normal(rows.shape[1], step, name, round, client) for client in clients]
                values[name] = bounded.rows.add_(torch.stack(draws).to(rows.device), alpha=deviation)
            else:
                values[name] = bounded.rows
            rejected += bounded.rejected
        return Passed(values, rejected)


def check_declared(releases: Releases, wanted: Mapping[str, Tensor], step: str) -> None:
    """Raise unless a step sends exactly what is declared beside it."""
    undeclared = sorted(set(wanted) - set(releases))
    if undeclared:
        raise UndeclaredReleaseError(
            f"{step} tried to send {', '.join(undeclared)}, which @sends does not declare: "
            "declare it beside the step, or keep it at the client."
        )
    missing = sorted(set(releases) - set(wanted))
    if missing:
        raise UndeclaredReleaseError(f"{step} declares {', '.join(missing)} but did not send it.")
