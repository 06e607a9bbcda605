"""Noise that is shared out over the messages of a sum, and the part of it that each observer meets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from sordino.privacy.views import VIEWS, honest_shares

ProtectFrom = Literal["outsider", "server"]
Multipliers = tuple[float, float, float]
"""Noise over sensitivity as each observer meets it, in the order of `VIEWS`."""


def same_for_all(multiplier: float) -> Multipliers:
    """Noise that all observers meet alike, as on a message whose noise is its client's own."""
    return multiplier, multiplier, multiplier


@dataclass(frozen=True)
class Noise:
    """Noise of one message in a sum: of updates where whole clients are protected, of records' gradients where records
    are.

    `multiplier` z is the ratio of noise to sensitivity that the protected observer meets in one round, all
    releases of the round together. Against the `server` each message carries all of it. Against an
    `outsider`, who sees sums only, each message carries the share of it that makes the sum of the smallest
    accepted cohort (`minimum_cohort`, less `colluders` who know their own shares) carry all of it. On real machines
    the secure sum says how many honest shares every sum holds, whatever the server does: `shares`.
    """

    multiplier: float
    protect_from: ProtectFrom
    minimum_cohort: int
    colluders: int = 0
    shares: int | None = None
    """Number of honest shares guaranteed to be in every sum that others see; None where everybody who is asked answers,
    to a server that is trusted to add them up."""

    @property
    def guaranteed(self) -> int:
        """Number of messages whose noise adds up to all of it: one where each message carries all."""
        if self.protect_from == "server":
            return 1
        return self.minimum_cohort - self.colluders if self.shares is None else self.shares

    def of_message(self, share: float) -> float:
        """The ratio of noise to sensitivity in one message's release that has `share` of the round's budget.

        Several releases of one round cost one Gaussian of multiplier (sum 1/z_g^2)^(-1/2), so a release with share a
        of a round with multiplier z gets z_g = z / sqrt(a).
        """
        return self.multiplier / math.sqrt(share) / math.sqrt(self.guaranteed)

    def feasible(self, clients: int, turns: int) -> float:
        """Number of shared parameters whose signal is as strong as the noise.

        Where `clients` that take part `turns` times each pull the same way, all messages of a run add up to
        clients x turns bounds, and their noise to sqrt(clients x turns) times that of one message, in each parameter.
        Squared, the ratio is clients x turns / s^2, where s is the noise of one message over its bound; all parameters
        share it.
        """
        return clients * turns / self.of_message(1.0) ** 2

    def met(self, asked: int) -> tuple[int, int]:
        """Number of shares in a sum over `asked` clients for whoever is charged, and how many of them others know."""
        return (asked, self.colluders) if self.shares is None else (self.shares, 0)

    def factors(self, asked: int) -> Multipliers:
        """Noise that each observer of a sum over `asked` messages cannot subtract, over the noise of one message."""
        outsider, peer, server = (math.sqrt(honest_shares(view, *self.met(asked))) for view in VIEWS)
        return outsider, peer, server
