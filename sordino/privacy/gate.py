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

from torch import Tensor

from sordino.privacy.noise import Seeded
from sordino.privacy.records import RecordPlan
from sordino.privacy.release import Average, Bare, Derived, Gradients, Matrix, Public, Release, Releases

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
    record_plan: RecordPlan | None = None
    """At record level: what each client's records pay."""

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
            else:
                rows = self._rows(release, wanted[name].detach(), clients)
                bounded = release.bounded(rows, public)
                noise = self._noise(release, rows, bounded.rows, (step, name, round), clients, public)
                values[name] = bounded.rows if noise is None else noise.to(bounded.rows.device).add_(bounded.rows)
                rejected += bounded.rejected
            size += len(clients) * release.size(values[name].shape[1], public)
        return Passed(values, rejected, size)

    def _rows(self, release: Release, value: Tensor, clients: Sequence[int]) -> Tensor:
        """One row per client; the records of the one client whose second moments are asked for."""
        return value[0] if isinstance(release, Matrix) else value.reshape(len(clients), -1)

    def _noise(
        self,
        release: Release,
        rows: Tensor,
        bounded: Tensor,
        purpose: tuple[str, str, int],
        clients: Sequence[int],
        public: Public,
    ) -> Tensor | None:
        """The noise on what leaves; None where there is none, or where it is in the gradients already."""
        if isinstance(release, Bare | Gradients | Derived):
            return None
        draws = self.source.normals(bounded.shape[1], purpose, clients)
        if isinstance(release, Average | Matrix):
            assert self.record_plan is not None
            (client,) = clients
            if isinstance(release, Matrix):
                return symmetric(draws[0]).unsqueeze(0) * float(self.record_plan.matrix_multipliers[client])
            return draws * float(self.record_plan.metric_multipliers[client]) * release.spread(rows.shape[1])
        noise = draws.mul_(release.deviations(self.noise.of_message(release), rows.shape[1], public).float())
        at = getattr(release, "at", None)
        return noise if at is None else noise * public.states[at].cpu()


def symmetric(flat: Tensor) -> Tensor:
    """A flat square matrix with its upper triangle mirrored below."""
    size = math.isqrt(flat.numel())
    upper = flat.view(size, size).triu()
    return (upper + upper.triu(1).t()).reshape(-1)


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
