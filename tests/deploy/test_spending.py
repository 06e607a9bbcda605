"""What a site's data have paid over all runs, worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sordino.deploy.server.coordinator import PLAN, ReservingLedger
from sordino.deploy.site.ledger import Entry, QuestionId, release_entry
from sordino.deploy.site.rules import RefusedError, Rules, SitePolicy
from sordino.deploy.site.spending import SiteSpending, authorize_payment
from sordino.privacy.accounting.gaussian import epsilon_of
from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.budget.record_level_plan import RecordNeeds, plan_records
from sordino.privacy.integers import CLIENTS, Gap
from sordino.privacy.ledger import Row
from sordino.privacy.release import Charge, Gradients, Public
from sordino.privacy.unit import Unit

DELTA = 1e-5


def release(number: int, noise: float, entries: int = 0, shares: int = 4) -> Entry:
    """A release of a whole site: sensitivity one, so much noise for outsiders."""
    met = np.array([[noise, noise * math.sqrt(3 / 4), noise / 2]])
    charge = Charge(np.ones(1), met, entries=entries, shares=shares)
    return release_entry(
        QuestionId("run", number, 0, 0), Unit.CLIENT, Row.of((number, number, "local", "update"), [0], charge)
    )


def reserve(run: str, epsilon: float, delta: float) -> Entry:
    return Entry("reserve", {"run": run, "epsilon": epsilon, "delta": delta})


def rules(unit: str, epsilon: float, delta: float = DELTA) -> Rules:
    """Rules with a budget."""
    limits = {"unit": unit, "max_epsilon": epsilon, "max_delta": delta, "min_cohort": 3, "methods": ("m",)}
    return Rules(name="s", data=Path("r.csv"), **limits)


def test_releases_of_all_runs_add_up() -> None:
    rows = [release(number, 2.0) for number in range(5)]
    assert SiteSpending.of(rows, "outsider").epsilon(Unit.CLIENT, DELTA) == pytest.approx(
        epsilon_of(math.sqrt(5) / 2, DELTA)
    )
    assert SiteSpending.of(rows, "server").epsilon(Unit.CLIENT, DELTA) == pytest.approx(epsilon_of(math.sqrt(5), DELTA))


def test_a_record_pays_twice_the_mu_of_its_site() -> None:
    rows = [release(0, 2.0), release(1, 2.0)]
    spent = SiteSpending.of(rows, "outsider").epsilon(Unit.RECORD, DELTA)
    assert spent == pytest.approx(epsilon_of(2 * math.sqrt(2) / 2, DELTA))


def test_record_level_runs_add_up_as_epsilon_and_delta() -> None:
    rows = [reserve("a", 1.0, 2e-6), reserve("b", 2.5, 3e-6)]
    spending = SiteSpending.of(rows, "outsider")
    assert spending.epsilon(Unit.RECORD, DELTA) == pytest.approx(3.5)
    assert spending.epsilon(Unit.RECORD, 4e-6) == math.inf  # the deltas alone are more
    assert spending.epsilon(Unit.CLIENT, DELTA) == math.inf  # noise for records hides no site
    mixed = SiteSpending.of([*rows, release(0, 4.0)], "outsider")
    assert mixed.epsilon(Unit.RECORD, DELTA) == pytest.approx(3.5 + epsilon_of(2 / 4, DELTA - 5e-6))


def test_what_whole_numbers_add_is_spent_too() -> None:
    rows = [release(number, 2.0, entries=10**6) for number in range(5)]
    gap = Gap(5 * 10**6, 4, CLIENTS)
    expected = gap.spent(lambda left: epsilon_of(gap.mu(math.sqrt(5) / 2), left), DELTA)
    spent = SiteSpending.of(rows, "outsider").epsilon(Unit.CLIENT, DELTA)
    assert spent == pytest.approx(expected, rel=1e-12)
    assert spent > SiteSpending.of([release(number, 2.0) for number in range(5)], "outsider").epsilon(
        Unit.CLIENT, DELTA
    )


def test_a_budget_is_kept_to_the_last_release() -> None:
    limit = epsilon_of(math.sqrt(4) / 2, DELTA)
    for many, fits in ((4, True), (5, False)):
        rows = [release(number, 2.0) for number in range(many)]
        assert SiteSpending.of(rows, "outsider").fits(rules("client", limit)) == fits


def test_nothing_is_left_of_a_ledger_of_which_there_may_be_two() -> None:
    spending = SiteSpending.of([Entry("spoiled", {"why": "it was restored"})], "outsider")
    assert spending.epsilon(Unit.CLIENT, DELTA) == math.inf
    assert not spending.fits(rules("client", math.inf))


def test_what_no_noise_covers_fits_only_where_anything_does() -> None:
    bare = release_entry(
        QuestionId("run", 0, 0, 0), Unit.CLIENT, Row.of((0, 0, "s", "u"), [0], Charge.infinite("seed"))
    )
    spending = SiteSpending.of([bare], "outsider")
    assert not spending.fits(rules("client", 1e6))
    assert spending.fits(rules("client", math.inf))


def test_whole_numbers_of_all_releases_add_up() -> None:
    rows = [release(number, 2.0, entries=10) for number in range(5)]
    assert SiteSpending.of(rows, "outsider").entries == {4: 50}


def of_records(run: str) -> Entry:
    """A release of a site's records."""
    charge = Charge.of_records("training", [(0.1, 2.0, 10)])
    return release_entry(QuestionId(run, 0, 0, 0), Unit.RECORD, Row.of((0, 0, "local", "update"), [0], charge))


def test_every_run_reserves_what_it_may_cost_records() -> None:
    """The first question of each run sets its whole budget aside, and later ones nothing more."""
    policy = SitePolicy(rules("record", 8.0, 1e-4), None)

    def session(run: str) -> Any:
        return SimpleNamespace(run=run, reservation=lambda: reserve(run, 3.0, DELTA), turns_left=lambda row, paid: 1)

    before: list[Entry] = []
    for run in ("first", "second"):
        written = authorize_payment(before, session(run), [of_records(run)], policy)
        assert [(one.kind, one.content.get("run")) for one in written] == [("reserve", run), ("release", None)]
        before += written
        assert [one.kind for one in authorize_payment(before, session(run), [of_records(run)], policy)] == ["release"]
    assert SiteSpending.of(before, "server").epsilon(Unit.RECORD, 1e-4) == pytest.approx(6.0)
    with pytest.raises(RefusedError, match=r"epsilon would be 9\.00 for the (outsider|server), but max_epsilon is 8"):
        authorize_payment(before, session("third"), [of_records("third")], policy)


def test_the_server_reserves_each_sites_whole_budget_once() -> None:
    """Budgets of 2 and 3: each pays all of its own with its first turn; noise from a known seed keeps no promise."""
    plan = plan_records([100, 100], np.array([2.0, 3.0]), DELTA, batch=10, epochs=1, turns=2)
    for known, expected in (("", {0: 2.0, 1: 3.0}), ("its seed is known", {0: math.inf, 1: math.inf})):
        ledger, allowance = ReservingLedger(DELTA, plan, RecordNeeds()), Allowance(records=plan, known=known)
        for number, who in enumerate(([0], [0, 1], [1])):
            public = Public({"clip": 1.0}, who, layers=[5])
            ledger.charge({"update": Gradients("clip")}, number, number, "local", allowance, public)
        assert ledger.record_epsilons("server", DELTA) == expected
        assert ledger.times(PLAN).tolist() == [1, 1]


def test_an_accepted_ledger_has_nothing_to_spend_until_it_is_confirmed() -> None:
    rows = [reserve("run", 2.0, DELTA), Entry("accepted", {"why": ""})]
    for confirmed in ([], [Entry("confirmed", {"run": "other", "by": {}})]):
        found = SiteSpending.of([*rows, *confirmed], "server")
        for limit in (math.inf, 2.0):
            assert found.fits(rules("record", limit)) == bool(confirmed)
        assert found.epsilon(Unit.RECORD, DELTA) == (2.0 if confirmed else math.inf)
    assert not SiteSpending.of([*rows, *confirmed, Entry("accepted", {"why": ""})], "server").fits(rules("record", 9.0))
