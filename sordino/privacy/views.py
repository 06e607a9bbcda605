"""Observers: who sees what, which two worlds epsilon compares, and how much noise each observer meets.

- the `server` sees each message, with the noise of that message only;
- a `peer` sees sums and broadcasts, and knows its own share of the noise in them;
- an `outsider` sees sums and published models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np

from sordino.util.formatting import round_up

View = Literal["outsider", "peer", "server"]
VIEWS: tuple[View, ...] = get_args(View)
FOR_THE_SERVER = (
    "the published noise is meant for a server that sees every message: each carries all of it only with protect_from "
    "= server, and by default it is shared out over the cohort"
)
"""Told where a paper scales its noise for single messages and not for sums."""
NEIGHBOURS: dict[str, str] = {
    "client": (
        "one client's contributions replaced by nothing, under the same schedule; who takes part is public and fixed"
    ),
    "record": (
        "one record's contents replaced by nothing (it contributes nothing), its place kept; how many records each "
        "client has, and which client holds which, is public and fixed"
    ),
}
"""The two worlds that epsilon compares, for each unit. Records are counted as they were read. Which of them are trained
on, tested with, set aside or drawn into a batch follows from their places, never from contents."""
NOT_PERSONS = "Protects one row, not one person"
"""Words beside every epsilon of records."""


def rows_words(figures: Mapping[str, float | None]) -> str:
    """Say that records are rows and not persons, with the epsilon of several rows where `figures` (by number of rows)
    has it."""
    known = {rows: epsilon for rows, epsilon in figures.items() if epsilon is not None and math.isfinite(epsilon)}
    if not known:
        return f"{NOT_PERSONS}: somebody with several rows pays for each of them."
    costs = ", ".join(f"with {rows} rows up to {round_up(epsilon)}" for rows, epsilon in known.items())
    return f"{NOT_PERSONS}: somebody who has several rows at a client has a larger epsilon, {costs}."


def protection(unit: str, figures: Mapping[str, float | None] | None = None) -> dict[str, str]:
    """Protection of an epsilon, as documents tell it: the unit, the two worlds that it compares and, of records, that
    these are rows, with what several of them cost where `figures` tell."""
    found = {"unit": unit, "neighbours": NEIGHBOURS[unit]}
    return found | {"rows_not_persons": rows_words(figures or {})} if unit == "record" else found


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
