"""Whether a site's data can pay for a question, over all runs."""

from __future__ import annotations

from collections.abc import Sequence

from sordino.deploy.entries import Entry, row_of
from sordino.deploy.rules import Allowed, RefusedError
from sordino.deploy.session import Session
from sordino.deploy.spending import Spending
from sordino.privacy.ledger import Row


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
