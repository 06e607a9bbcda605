"""What a private grouping of clients is given of their budget (AdaDP-CFL).

So much that two clients which differ show it in spite of the noise, and nothing where that would take too much.
"""

from __future__ import annotations

import math

from sordino.parts.clustering import noise_that_shows
from sordino.privacy.accountant import epsilon_of
from sordino.privacy.outlook import Outlook

MOST = 0.5
"""The largest share of epsilon that a grouping is given: training then needs about a fifth more noise."""


def affordable_share(outlook: Outlook, records: int, dimensions: int, gap: float) -> tuple[float, str]:
    """The share of epsilon with which clients of so many training records that are `gap` apart are told apart, 0 if it
    takes too much; and a sentence on it."""
    noise = noise_that_shows(records, dimensions, gap)
    alike = f"clients with {records} training records whose second moments differ by {gap:g}"
    if not math.isfinite(outlook.epsilon):
        if (outlook.multiplier or 0.0) <= noise:
            return MOST, f"Clients are grouped: the given noise lets {alike} be told apart."
        return 0.0, f"Clients are not grouped, and share one model: the given noise would hide {alike}."
    needed = epsilon_of(1 / noise, outlook.delta) if noise > 0 else math.inf
    share = max(needed / outlook.epsilon, 0.01)
    if share <= MOST:
        return share, f"The grouping gets {share:.0%} of epsilon: enough to tell {alike} apart."
    return 0.0, (
        f"Clients are not grouped, and share one model: to tell {alike} apart takes an epsilon of {needed:.2g}, "
        f"and at most {MOST:.0%} of {outlook.epsilon:g} may go there; set cluster_share to insist."
    )
