"""The server's ledger where records are protected: it knows what each site's plan may cost, not what has been paid.

How much noise a site's records get depends on how many it has, and only the site knows. Its plan keeps within its
budget whatever the number of turns, so the server charges the whole budget at a client's first turn, and nothing later:
as a promise of an epsilon at one delta, which is all that it knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from sordino.experiment.lifetime import planned_recipes
from sordino.privacy.allowance import Allowance
from sordino.privacy.ledger import Ledger, Row
from sordino.privacy.record_plan import RecordNeeds, RecordPlan
from sordino.privacy.records import record_epsilon
from sordino.privacy.release import Charge, Public, Releases
from sordino.privacy.views import View

PLAN = "plan"
"""The name under which a client's whole budget is charged."""


class ReservingLedger(Ledger):
    """A ledger in which each client pays its whole budget once."""

    def __init__(self, rows: Iterable[Row], delta: float, plan: RecordPlan, needs: RecordNeeds) -> None:
        """`plan` is that of clients with as many records as the experiment declares, `needs` what their steps need."""
        self._delta, self._plan, self._needs = delta, plan, needs
        super().__init__(len(plan.turns), "record", rows)

    def epsilon_so_far(self, delta: float) -> dict[View, float]:
        """Epsilon of the turns so far at a site with as many records as are declared, since other sites' noise is not
        known here. Once a client has taken all of its turns, or where no epsilon holds, the reserved epsilon."""
        reserved = self.epsilon(delta)
        names = {row.release for row in self.rows} - {PLAN}
        taken = np.max([self.times(name) for name in names], axis=0, initial=0)
        if self.reasons() or (taken >= self._plan.turns).any():
            return reserved
        done = replace(self._plan, turns=taken)
        recipes = {
            one for client in np.flatnonzero(taken).tolist() for one in planned_recipes(done, client, self._needs)
        }
        spent = max((record_epsilon(recipe, delta) for recipe in recipes), default=0.0)
        return {view: min(spent, most) for view, most in reserved.items()}

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
