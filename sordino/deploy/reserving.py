"""The server's ledger where records are protected: it knows what each site's plan may cost, not what has been paid.

How much noise a site's records get depends on how many it has, and only the site knows. Its plan keeps within its
budget whatever the number of turns, so the server charges the whole budget at a client's first turn, and nothing later:
as a promise of an epsilon at one delta, which is all that it knows.
"""

from __future__ import annotations

from collections.abc import Iterable

from sordino.privacy.allowance import Allowance
from sordino.privacy.ledger import Ledger, Row
from sordino.privacy.release import Charge, Public, Releases, Unit

PLAN = "plan"
"""The name under which a client's whole budget is charged."""


class ReservingLedger(Ledger):
    """A ledger in which each client pays its whole budget once."""

    def __init__(self, clients: int, unit: Unit, rows: Iterable[Row], delta: float) -> None:
        self._delta = delta
        super().__init__(clients, unit, rows)

    def charge(
        self, releases: Releases, question: int, round: int, step: str, allowance: Allowance, public: Public
    ) -> list[Row]:
        budgets, paid = allowance.of_records.budgets, self.times(PLAN)
        new = [client for client in public.clients if not paid[client]]
        rows = [Row.of((question, round, step, name), public.clients, Charge.nothing()) for name in releases]
        if new:
            whole = Charge.promised([(float(budgets[client]), self._delta) for client in new])
            whole = whole.known(allowance.known) if allowance.known else whole
            rows.append(Row.of((question, round, step, PLAN), new, whole))
        for row in rows:
            self.append(row)
        return rows
