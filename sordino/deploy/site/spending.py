"""What a site's data have paid, over all runs, and whether they can pay for more.

Gaussian releases compose by their mu^2, whoever chose them and when: a limit on their sum is a filter. Poisson-sampled
gradients have no such filter that is tight, so what a run may cost records at the most is reserved with its first
question, repeated rounds included, and runs add up as (epsilon, delta). What is released of the site as a whole moves
a contribution by twice its bound when one record is replaced, so that it costs a record twice its mu.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sordino.deploy.site.ledger import Entry, row_of
from sordino.deploy.site.rules import Allowed, RefusedError
from sordino.deploy.site.session import Session
from sordino.privacy import integers
from sordino.privacy.accounting.gaussian import epsilon_of
from sordino.privacy.ledger import Row, integer_gap
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS, View

ROUNDING = 1 + 1e-9
"""Of the search for an epsilon."""


@dataclass
class Spending:
    """What all rows of a site's ledger come to, for one observer."""

    view: View
    squares: float = 0.0
    """mu^2 of the site as a whole."""
    entries: dict[int, int] = field(default_factory=dict)
    """Noisy whole numbers that left, by how many shares are guaranteed in each that an outsider sees."""
    reserved: dict[str, tuple[float, float]] = field(default_factory=dict)
    """At record level: the epsilon and delta of each run."""
    spoiled: bool = False
    """Whether there may be another ledger of these data: then nothing is left to spend."""
    doubtful: bool = False
    """Whether the owner accepted a ledger without a witness, and other sites have not confirmed it since."""

    @classmethod
    def of(cls, entries: Iterable[Entry], view: View) -> Spending:
        """What the rows of a ledger come to."""
        found = cls(view)
        for entry in entries:
            if entry.kind == "release":
                found.add(row_of(entry))
            elif entry.kind == "reserve":
                found.reserve(entry.content["run"], entry.content["epsilon"], entry.content["delta"])
            elif entry.kind == "spoiled":
                found.spoiled = True
            elif entry.kind in ("accepted", "confirmed"):
                found.doubtful = entry.kind == "accepted"
        return found

    def add(self, row: Row) -> None:
        """Add a release. What records pay for has been reserved."""
        if row.pool:
            return
        self.squares += float(row.costs()[VIEWS.index(self.view)].max(initial=0.0))
        if row.entries:
            self.entries[row.shares] = self.entries.get(row.shares, 0) + row.entries

    def reserve(self, run: str, epsilon: float, delta: float) -> None:
        """Set aside what a run may cost records."""
        self.reserved[run] = (epsilon, delta)

    def epsilon(self, unit: Unit, delta: float) -> float:
        """What has been spent of a unit, at `delta`; infinity where no epsilon holds."""
        if self.spoiled or self.doubtful:
            return math.inf
        if not unit.record_level:
            return math.inf if self.reserved else self._of_the_whole(1, delta)
        left = delta - sum(one for _, one in self.reserved.values())
        records = sum(one for one, _ in self.reserved.values())
        if left < 0:
            return math.inf
        if not self.squares:
            return records
        return records + (self._of_the_whole(2, left) if left > 0 else math.inf)

    def fits(self, unit: Unit, epsilon: float, delta: float) -> bool:
        """Whether it is within a budget."""
        return not (self.spoiled or self.doubtful) and (
            math.isinf(epsilon) or self.epsilon(unit, delta) <= epsilon * ROUNDING
        )

    def _of_the_whole(self, times: int, delta: float) -> float:
        gaps = [integer_gap(many, "", shares, self.view) for shares, many in self.entries.items()]
        return integers.total_epsilon(gaps, functools.partial(epsilon_of, times * math.sqrt(self.squares)), delta)


def payable(before: Sequence[Entry], session: Session, entries: Sequence[Entry], allowed: Allowed) -> list[Entry]:
    """What is to be written down for a question, behind a ledger; one that costs more than is allowed is refused."""
    rules = allowed.rules
    of_records = any(row_of(entry).pool for entry in entries)
    known = {entry.content["run"] for entry in before if entry.kind == "reserve"}
    reserved = [session.reservation()] if of_records and session.run not in known else []
    spending = Spending.of([*before, *reserved, *entries], allowed.view)
    if spending.spoiled:
        raise RefusedError("closed", "there may be another ledger of these data")
    if entries and not spending.fits(rules.unit, rules.max_epsilon, rules.max_delta):
        now = spending.epsilon(rules.unit, rules.max_delta)
        raise RefusedError("budget", f"epsilon would be {now:g}, and {rules.max_epsilon:g} is allowed")
    if of_records:
        _check_turns(before, session, [row_of(entry) for entry in entries])
    return [*reserved, *entries]


def _check_turns(before: Sequence[Entry], session: Session, rows: Sequence[Row]) -> None:
    """Refuse to release anything of records more often than was reserved for, or with another plan than before: the
    noise that is right for as many records as there are now is not so for some turns of each."""
    paid = [row_of(one) for one in before if one.kind == "release" and one.content["ask"][0] == session.run]
    for row in rows:
        if any(one.release == row.release and one.sampled != row.sampled for one in paid):
            raise RefusedError("data", "there are more or fewer records than when the run began")
        if row.pool and session.left(row, paid) < 1:
            raise RefusedError("budget", f"{row.release} has left as often as was reserved for")
