"""The only exit of a client: check, bound, noise.

`Noise` says how much noise a message must carry; `Gate` applies it to everything a step wants to send.
What was sent is charged by the ledger from the same objects, so that the noise that was added and the noise
that is paid for cannot differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sordino.privacy.noise import Seeded
from sordino.privacy.release import Bare, Derived, Public, Release, Releases

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

    def of_message(self, release: Release) -> float:
        """The ratio of noise to sensitivity in one message's release."""
        full = self.multiplier / math.sqrt(release.share)
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
    size: int
    """Bytes that leave, all clients together."""


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
        rejected = size = 0
        for name, release in releases.items():
            if isinstance(release, Derived):
                values[name] = public.states[release.state].reshape(len(clients), -1)
                size += len(clients) * release.size(values[name].shape[1], public)
                continue
            rows = wanted[name].detach().reshape(len(clients), -1)
            bounded = release.bounded(rows, public)
            values[name] = bounded.rows
            rejected += bounded.rejected
            size += len(clients) * release.size(rows.shape[1], public)
            if isinstance(release, Bare):
                continue
            deviations = release.deviations(self.noise.of_message(release), rows.shape[1], public)
            draws = [self.source.normal(rows.shape[1], step, name, round, client) for client in clients]
            noise = torch.stack(draws).mul_(deviations.float())
            if getattr(release, "at", None) is not None:
                noise = noise * public.states[release.at].cpu()  # type: ignore[union-attr, index]
            values[name] = bounded.rows + noise.to(rows.device)
        return Passed(values, rejected, size)


def check_declared(releases: Releases, wanted: Mapping[str, Tensor], step: str) -> None:
    """Raise unless a step sends exactly what is declared beside it."""
    undeclared = sorted(set(wanted) - set(releases))
    if undeclared:
        raise UndeclaredReleaseError(
            f"{step} tried to send {', '.join(undeclared)}, which @sends does not declare: "
            "declare it beside the step, or keep it at the client."
        )
    due = {name for name, release in releases.items() if not isinstance(release, Derived)}
    missing = sorted(due - set(wanted))
    if missing:
        raise UndeclaredReleaseError(f"{step} declares {', '.join(missing)} but did not send it.")
