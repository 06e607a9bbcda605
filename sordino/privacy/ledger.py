"""The list of what left, and what each observer has learned from it.

The ledger holds a row for each release of each round, chained by SHA-256 so that a lost or altered row shows.
Epsilon is computed from the rows alone. For each observer (view) and each client it keeps mu^2, the sum over
the client's own releases of (sensitivity / noise the observer meets)^2:

- the `server` sees each message, with the noise of that message only;
- a `peer` sees sums and broadcasts, and knows its own share of the noise in them;
- an `outsider` sees sums and published models.

Neighbours: one client's contributions replaced by null ones (zero-out), under the same schedule. Who takes
part is decided without looking at data and is not hidden, so sampling earns no amplification: a client pays
for the rounds in which it took part.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from sordino.privacy.accountant import attack_accuracy, epsilon_of
from sordino.privacy.gate import Noise
from sordino.privacy.release import Bare, Derived, Public, Releases, Update

View = Literal["outsider", "peer", "server"]
VIEWS: tuple[View, ...] = get_args(View)


@dataclass(frozen=True)
class Row:
    """One kind of release of one round: who sent it, its L2 sensitivity and the noise of each message."""

    round: int
    step: str
    release: str
    owners: bytes
    """Client numbers, each four bytes, little-endian."""
    sensitivity: float
    deviation: float
    """Of a noise that is the same on all coordinates and costs what the message's noise costs."""
    colluders: int
    exposed: bool
    """Whether what is published tells of single messages, so that everybody learns what the server learns."""
    reason: str
    """Why the release is not covered by noise; empty when it is."""

    def clients(self) -> np.ndarray:
        """The numbers of the clients that sent."""
        return np.frombuffer(self.owners, dtype="<u4").astype(np.int64)

    def cost(self, view: View) -> float:
        """What the release adds to mu^2 of each sender, for the observer `view`."""
        if self.deviation == 0:
            return math.inf
        seen: View = "server" if self.exposed else view
        return (self.sensitivity / self.deviation) ** 2 / honest_shares(seen, len(self.owners) // 4, self.colluders)

    def link(self, previous: bytes) -> bytes:
        """The SHA-256 that binds this row to all rows before it."""
        fields = (self.round, self.step, self.release, self.owners.hex(), self.sensitivity, self.deviation)
        return hashlib.sha256(previous + repr((*fields, self.colluders, self.exposed, self.reason)).encode()).digest()


def honest_shares(view: View, cohort: int, colluders: int = 0) -> int:
    """How many messages' noise the observer cannot subtract from what it sees, the target's own included."""
    if view == "server":
        return 1
    known = max(colluders, 1 if view == "peer" else 0)
    return max(1, cohort - known)


class Ledger:
    """What left the clients of one run, and what it cost each of them."""

    def __init__(self, clients: int, rows: Iterable[Row] = ()) -> None:
        self.rows: list[Row] = []
        self.head = bytes(32)
        self.spent: dict[View, np.ndarray] = {view: np.zeros(clients) for view in VIEWS}
        for row in rows:
            self.append(row)

    def charge(
        self,
        releases: Releases,
        who: Sequence[int],
        step: str,
        round: int,
        public: Public,
        noise: Noise,
    ) -> None:
        """Charge everything that `step` is about to send from the clients `who`."""
        owners = np.asarray(who, dtype="<u4").tobytes()
        derived = [release for release in releases.values() if isinstance(release, Derived)]
        exposed = {name for release in derived if release.published for name in release.of}
        for name, release in releases.items():
            if isinstance(release, Derived):
                continue
            reason, sensitivity, deviation = "", 0.0, 0.0
            if isinstance(release, Bare):
                reason = f"{name}: {release.why}"
            else:
                width = sum(public.layers) if isinstance(release, Update) else 1
                deviations = release.deviations(noise.of_message(release), width, public)
                sensitivity = release.sensitivity(public)
                deviation = sensitivity / math.sqrt(release.cost(deviations, width, public))
            about = (round, step, name, owners)
            self.append(Row(*about, sensitivity, deviation, noise.colluders, name in exposed, reason))

    def append(self, row: Row) -> None:
        """Add a row and its cost."""
        clients = row.clients()
        for view in VIEWS:
            self.spent[view][clients] += row.cost(view)
        self.rows.append(row)
        self.head = row.link(self.head)

    def mu(self, view: View) -> float:
        """The mu of the client that has spent most."""
        return math.sqrt(float(self.spent[view].max(initial=0.0)))

    def epsilon(self, delta: float) -> dict[View, float]:
        """For each observer, the epsilon that holds for every client at `delta`; infinity where none does."""
        return {view: epsilon_of(self.mu(view), delta) for view in VIEWS}

    def attack_accuracy(self) -> dict[View, float]:
        """For each observer, how often the best attack tells whether the worst-off client took part."""
        return {view: attack_accuracy(self.mu(view)) for view in VIEWS}

    def reasons(self) -> list[str]:
        """Why epsilon is infinite, each reason once, in order of appearance."""
        return list(dict.fromkeys(row.reason for row in self.rows if row.reason))
