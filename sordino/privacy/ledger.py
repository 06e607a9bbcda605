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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from sordino.privacy.accountant import attack_accuracy, epsilon_of
from sordino.privacy.gate import Noise
from sordino.privacy.records import (
    Charge,
    Recipe,
    RecordPlan,
    quick_record_epsilon,
    record_attack_accuracy,
    record_epsilon,
    replace_one,
)
from sordino.privacy.release import Average, Bare, Derived, Gradients, Matrix, Public, Releases, Update

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
    charges: bytes = b""
    """At record level: for each owner its sampling rate, noise multiplier and number of times, as float64."""
    pool: str = ""
    """At record level: which of the clients' records are charged, `training` or `validation`."""

    def clients(self) -> np.ndarray:
        """The numbers of the clients that sent."""
        return np.frombuffer(self.owners, dtype="<u4").astype(np.int64)

    def sampled(self) -> np.ndarray:
        """At record level: (owners, 3): sampling rate, noise multiplier, number of times."""
        return np.frombuffer(self.charges, dtype="<f8").reshape(-1, 3)

    def cost(self, view: View) -> float:
        """What the release adds to mu^2 of each sender, for the observer `view`."""
        if self.pool:
            return 0.0  # records pay by sampled steps, not by mu
        if self.deviation == 0:
            return math.inf
        seen: View = "server" if self.exposed else view
        return (self.sensitivity / self.deviation) ** 2 / honest_shares(seen, len(self.owners) // 4, self.colluders)

    def link(self, previous: bytes) -> bytes:
        """The SHA-256 that binds this row to all rows before it."""
        fields = (self.round, self.step, self.release, self.owners.hex(), self.sensitivity, self.deviation)
        return hashlib.sha256(
            previous
            + repr((*fields, self.colluders, self.exposed, self.reason, self.charges.hex(), self.pool)).encode()
        ).digest()


def charges_of(recipe: Mapping[tuple[float, float], int]) -> Recipe:
    """What one client's records have gone through, in a fixed order."""
    return tuple((rate, multiplier, count) for (rate, multiplier), count in sorted(recipe.items()))


def _record_charge(release: Gradients | Matrix | Average, plan: RecordPlan | None, client: int) -> Charge:
    """What a release costs the records of one client."""
    if plan is None:
        raise ValueError("record-level releases need a plan of what records pay")
    if isinstance(release, Gradients):
        return plan.charge(client)
    chosen = plan.matrix_multipliers if isinstance(release, Matrix) else plan.metric_multipliers
    return 1.0, float(chosen[client]), 1


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
        self._covered: dict[View, np.ndarray] = {view: np.zeros(clients) for view in VIEWS}
        self._recipes: dict[str, dict[int, dict[tuple[float, float], int]]] = {"training": {}, "validation": {}}
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
        plan: RecordPlan | None = None,
    ) -> None:
        """Charge everything that `step` is about to send from the clients `who`."""
        owners = np.asarray(who, dtype="<u4").tobytes()
        derived = [release for release in releases.values() if isinstance(release, Derived)]
        exposed = {name for release in derived if release.published for name in release.of}
        for name, release in releases.items():
            if isinstance(release, Derived):
                continue
            about = (round, step, name, owners)
            if isinstance(release, Gradients | Matrix | Average):
                pool = "validation" if isinstance(release, Average) else "training"
                rows = np.array([_record_charge(release, plan, client) for client in who], dtype="<f8")
                self.append(Row(*about, 0.0, 0.0, noise.colluders, False, "", rows.tobytes(), pool))
                continue
            reason, sensitivity, deviation = "", 0.0, 0.0
            if isinstance(release, Bare):
                reason = f"{name}: {release.why}"
            else:
                width = sum(public.layers) if isinstance(release, Update) else 1
                deviations = release.deviations(noise.of_message(release), width, public)
                sensitivity = release.sensitivity(public)
                deviation = sensitivity / math.sqrt(release.cost(deviations, width, public))
            self.append(Row(*about, sensitivity, deviation, noise.colluders, name in exposed, reason))

    def append(self, row: Row) -> None:
        """Add a row and its cost."""
        clients = row.clients()
        for view in VIEWS:
            self.spent[view][clients] += row.cost(view)
            if not row.reason:
                self._covered[view][clients] += row.cost(view)
        if row.pool:
            for client, (rate, multiplier, count) in zip(clients, row.sampled(), strict=True):
                recipe = self._recipes[row.pool].setdefault(int(client), {})
                recipe[rate, multiplier] = recipe.get((rate, multiplier), 0) + int(count)
        self.rows.append(row)
        self.head = row.link(self.head)

    def mu(self, view: View) -> float:
        """The mu of the client that has spent most."""
        return math.sqrt(float(self.spent[view].max(initial=0.0)))

    def epsilon(self, delta: float, quick: bool = False) -> dict[View, float]:
        """For each observer, the epsilon that holds for every client at `delta`; infinity where none does.

        `quick` allows a slightly larger bound, for records only.
        """
        records = max(self.record_epsilons(delta, quick=quick).values(), default=0.0)
        return {view: max(epsilon_of(self.mu(view), delta), records) for view in VIEWS}

    def covered_epsilon(self, delta: float) -> dict[View, float]:
        """What would hold if everything that left bare were public: the published claim's best reading."""
        records = max(self.record_epsilons(delta).values(), default=0.0)
        mu = {view: math.sqrt(float(self._covered[view].max(initial=0.0))) for view in VIEWS}
        return {view: max(epsilon_of(mu[view], delta), records) for view in VIEWS}

    def record_epsilons(self, delta: float, quick: bool = False, replace: bool = False) -> dict[int, float]:
        """At record level: the epsilon of each client that has sent something, the same for every observer.

        A record is either a training or a validation record, so a client's figure is the larger of the two. With
        `replace` it is for one record replaced by another instead of one added or removed.
        """
        bound = quick_record_epsilon if quick else record_epsilon
        found: dict[int, float] = {}
        for recipes in self._recipes.values():
            for client, recipe in recipes.items():
                charges = charges_of(recipe)
                spent = bound(replace_one(charges) if replace else charges, delta)
                found[client] = max(found.get(client, 0.0), spent)
        return found

    def attack_accuracy(self) -> dict[View, float]:
        """For each observer, how often the best attack tells whether the worst-off client took part."""
        recipes = {recipe for pool in self._recipes.values() for recipe in map(charges_of, pool.values())}
        records = max((record_attack_accuracy(recipe) for recipe in recipes), default=0.5)
        return {view: max(attack_accuracy(self.mu(view)), records) for view in VIEWS}

    def reasons(self) -> list[str]:
        """Why epsilon is infinite, each reason once, in order of appearance."""
        return list(dict.fromkeys(row.reason for row in self.rows if row.reason))
