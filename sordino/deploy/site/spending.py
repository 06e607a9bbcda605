"""A site's privacy spending over all runs, and the filter that refuses questions its budget does not cover.

Gaussian releases compose by their mu^2, whoever chose them and when, so a limit on the sum is a privacy filter.
Poisson-sampled gradients have no tight filter. The most that a run may cost records, repeated rounds included, is
therefore reserved with its first question, and runs add up as (epsilon, delta). Where the noise of sums over records is
shared out, a reservation holds what each observer may learn. A release of the site as a whole moves
by up to twice its bound when one record is replaced, so it costs a record twice its mu.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sordino.deploy.site.ledger import Entry, row_from
from sordino.deploy.site.rules import RefusedError, Rules, SitePolicy
from sordino.deploy.site.session import Session
from sordino.privacy import integers
from sordino.privacy.accounting.gaussian import epsilon_of
from sordino.privacy.ledger import Row, integer_gap
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS, View
from sordino.util.formatting import round_up

ROUNDING = 1 + 1e-9
"""Tolerance of the numerical search for an epsilon."""


@dataclass(frozen=True)
class Protected:
    """Units that a run has reserved a cost for."""

    unit: Unit
    """Records, or persons."""
    sites: int = 1
    """Largest number of sites that the run presumed to know one person."""
    person: str | None = None
    """Column by which the run told persons apart."""

    def includes(self, unit: Unit, sites: int, person: str | None) -> bool:
        """Whether what the run reserved holds for a unit: of persons, for those of a column, None for any, who are
        known to so many sites."""
        if unit is not self.unit:
            return False
        return unit is not Unit.PERSON or (sites <= self.sites and person in (None, self.person))


@dataclass
class SiteSpending:
    """Total cost of the rows of a site's ledger, for one view."""

    view: View
    squares: float = 0.0
    """Sum of mu^2 of releases that protect the site as a whole."""
    entries: dict[int, int] = field(default_factory=dict)
    """Number of noisy whole numbers that left, by the guaranteed shares of noise in what an outsider sees of them."""
    reserved: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Epsilon and delta reserved for each run that protects records."""
    protected: set[Protected] = field(default_factory=set)
    """Units that these runs protect."""
    spoiled: bool = False
    """Whether another ledger of these data may exist; nothing is left to spend then."""
    doubtful: bool = False
    """Whether the owner accepted a ledger without a witness and other sites have not confirmed it since."""

    @classmethod
    def of(cls, entries: Iterable[Entry], view: View) -> SiteSpending:
        """Add up the rows of a ledger."""
        found = cls(view)
        for entry in entries:
            if entry.kind == "release":
                found.add(row_from(entry))
            elif entry.kind == "reserve":
                seen = entry.content.get("views", {}).get(view, entry.content["epsilon"])
                unit = Unit(entry.content.get("unit", Unit.RECORD))
                whom = Protected(unit, entry.content.get("sites", 1), entry.content.get("person"))
                found.reserve(entry.content["run"], seen, entry.content["delta"], whom)
            elif entry.kind == "spoiled":
                found.spoiled = True
            elif entry.kind in ("accepted", "confirmed"):
                found.doubtful = entry.kind == "accepted"
        return found

    def add(self, row: Row) -> None:
        """Add a release. One that records pay for costs nothing here: its run has reserved the cost."""
        if row.pool:
            return
        self.squares += float(row.costs()[VIEWS.index(self.view)].max(initial=0.0))
        if row.entries:
            self.entries[row.shares] = self.entries.get(row.shares, 0) + row.entries

    def reserve(self, run: str, epsilon: float, delta: float, whom: Protected) -> None:
        """Reserve the most that a run may cost records, or persons.

        Args:
            run: name of the run.
            epsilon: all that it may cost one of them.
            delta: delta at which that holds.
            whom: unit that the run protects.
        """
        self.reserved[run] = (epsilon, delta)
        self.protected.add(whom)

    def epsilon(self, unit: Unit, delta: float, sites: int = 1, person: str | None = None) -> float:
        """Epsilon spent for a unit at `delta`; infinity where no epsilon holds, as of persons in runs that protect rows
        alone, or persons by another column or at fewer sites.

        Args:
            unit: the unit.
            delta: delta at which epsilon holds.
            sites: of persons, the largest number of sites that know one.
            person: column that tells persons apart; None for any.
        """
        if self.spoiled or self.doubtful:
            return math.inf
        if not unit.record_level:
            return math.inf if self.reserved else self._site_epsilon(1, delta)
        if not all(one.includes(unit, sites, person) for one in self.protected):
            return math.inf
        # Reserved runs add up by basic composition: their epsilons, and their deltas, of which the rest is for what
        # protects the whole site.
        left = delta - sum(one for _, one in self.reserved.values())
        records = sum(one for one, _ in self.reserved.values())
        if left < 0:
            return math.inf
        if not self.squares:
            return records
        known = sites if unit is Unit.PERSON else 1
        # With another record a site's message may be any other within the bound: up to two bounds away.
        return records + (self._site_epsilon(2 * known, left, known) if left > 0 else math.inf)

    def fits(self, rules: Rules) -> bool:
        """Whether the spending is within the budget of a site's rules."""
        return not (self.spoiled or self.doubtful) and (
            math.isinf(rules.max_epsilon) or self.by_rules(rules) <= rules.max_epsilon * ROUNDING
        )

    def by_rules(self, rules: Rules) -> float:
        """Epsilon spent for the unit of a site's rules, at their delta."""
        return self.epsilon(rules.unit, rules.max_delta, rules.max_sites_per_person or 1, rules.person)

    def _site_epsilon(self, times: int, delta: float, sites: int = 1) -> float:
        """Epsilon of the releases that protect the site, and of equally many at each of `sites`; mu is multiplied by
        `times`."""
        gaps = [integer_gap(sites * many, "", shares, self.view) for shares, many in self.entries.items()]
        return integers.total_epsilon(gaps, functools.partial(epsilon_of, times * math.sqrt(self.squares)), delta)


def check_reservation(before: Sequence[Entry], reserved: Entry, policy: SitePolicy) -> None:
    """Refuse a run whose whole cost the budget does not cover, before it begins.

    Args:
        before: Rows of the ledger.
        reserved: Row that would reserve the run's cost.
        policy: The site's rules and roster.
    """
    _check_budget(SiteSpending.of([*before, reserved], policy.view), policy)


def authorize_payment(
    before: Sequence[Entry], session: Session, entries: Sequence[Entry], policy: SitePolicy
) -> list[Entry]:
    """Rows to append to the ledger for a question; refuse one that the budget does not cover.

    Args:
        before: Rows of the ledger.
        session: Session of the question's run.
        entries: Rows that charge for the question.
        policy: The site's rules and roster.
    """
    of_records = any(row_from(entry).pool for entry in entries)
    known = {entry.content["run"] for entry in before if entry.kind == "reserve"}
    # The first question reserves the cost of the whole run: its noise covers all turns together, and no single one.
    reserved = [session.reservation()] if of_records and session.run not in known else []
    spending = SiteSpending.of([*before, *reserved, *entries], policy.view)
    if spending.spoiled:
        raise RefusedError("closed", "another ledger of these data may exist")
    if entries:
        _check_budget(spending, policy)
    if of_records:
        _check_turns(before, session, [row_from(entry) for entry in entries])
    return [*reserved, *entries]


def _check_budget(spending: SiteSpending, policy: SitePolicy) -> None:
    """Refuse spending beyond the site's budget."""
    rules = policy.rules
    if not spending.fits(rules):
        now = spending.by_rules(rules)
        figure = "infinite" if math.isinf(now) else round_up(now)
        over = f"over all runs epsilon would be {figure} for the {policy.view}"
        alone = "" if policy.roster is not None else "; without a pinned roster other sites' noise does not count"
        raise RefusedError("budget", f"{over}, but max_epsilon is {rules.max_epsilon:g}{alone}")


def _check_turns(before: Sequence[Entry], session: Session, rows: Sequence[Row]) -> None:
    """Refuse a release of records beyond the reserved number of turns, or under another plan than earlier turns.

    Noise is calibrated to one number of records over all turns; a mixture of turns of two plans is covered by neither.
    """
    paid = [row_from(one) for one in before if one.kind == "release" and one.content["ask"][0] == session.run]
    for row in rows:
        if any(one.release == row.release and one.sampled != row.sampled for one in paid):
            raise RefusedError("data", "the number of records has changed since the run began")
        if row.pool and session.turns_left(row, paid) < 1:
            raise RefusedError("budget", f"{row.release} has left as often as the run reserved")
