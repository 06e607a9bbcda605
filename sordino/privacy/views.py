"""Observers: who sees what, and how much noise each observer meets.

- the `server` sees each message, with the noise of that message only;
- a `peer` sees sums and broadcasts, and knows its own share of the noise in them;
- an `outsider` sees sums and published models.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

View = Literal["outsider", "peer", "server"]
VIEWS: tuple[View, ...] = get_args(View)
FOR_THE_SERVER = (
    "the published noise is meant for a server that sees every message: each carries all of it only with protect_from "
    "= server, and by default it is shared out over the cohort"
)
"""Told where a paper scales its noise for single messages and not for sums."""


def honest_shares(view: View, cohort: int, colluders: int = 0) -> int:
    """How many equal messages' noise the observer cannot subtract from what it sees, the target's own included."""
    return max(1, cohort - known_shares(view, cohort, colluders))


def known_shares(view: View, cohort: int, colluders: int) -> int:
    """How many other messages' noise the observer can subtract: against the server all, against a peer its own."""
    if view == "server":
        return cohort - 1
    return min(cohort - 1, max(colluders, 1 if view == "peer" else 0))


def unknown_variance(variances: np.ndarray, view: View, cohort: int, colluders: int) -> np.ndarray:
    """The noise variance in a sum that an observer cannot subtract, for each client and each part of the message.

    `variances` (clients or 1, parts) holds each message's own. An observer that knows so many other shares is taken
    to know the largest ones, separately in each part: never less than the truth.
    """
    known = known_shares(view, cohort, colluders)
    if len(variances) == 1:
        return variances * (cohort - known)
    if known == cohort - 1:
        return variances
    total = variances.sum(axis=0)
    largest = -np.sort(-variances, axis=0)[: known + 1]
    others = largest[:known].sum(axis=0)
    among = variances >= largest[known - 1] if known else np.zeros(variances.shape, dtype=bool)
    lost = np.where(among, largest.sum(axis=0) - variances, others)
    return np.maximum(total - lost, variances)
