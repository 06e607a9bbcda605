"""What an audit says of each observer follows from its attacks and findings, and cannot be misread."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from sordino.auditing.findings import Attack, Finding, Report, ViewReport
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS, View
from sordino.report.terminal.details import audit_report


def attack(bound: float, surely: float, name: str = "an attack", paid: float = 0.0, view: View = "outsider") -> Attack:
    return Attack(name, view, bound, surely, paid=paid)


def said(attacks: list[Attack], findings: list[Finding] | None = None, true: float | None = None) -> str:
    """The sentence on the outsider, of whom 8 is claimed."""
    views = {view: ViewReport(8.0, true) for view in VIEWS}
    for one in attacks:
        views[one.view].add(one)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(audit_report(Report("mine", "sound", Unit.CLIENT, 1e-5, views, findings or [])))
    return next(line for line in console.export_text().splitlines() if line.startswith("outsider"))


def test_a_claim_above_all_bounds_is_consistent() -> None:
    assert said([attack(7.419, 6.2), attack(5.0, 4.0, "a weak one")]) == (
        "outsider: audit at 95 %: epsilon >= 7.41; claimed <= 8.00; consistent (an attack)."
    )


def test_a_bound_above_a_claim_that_is_not_refuted_has_the_bound_that_decides_beside_it() -> None:
    assert said([attack(8.97, 7.319)]) == (
        "outsider: audit at 95 %: epsilon >= 8.97, at 99.9 %: epsilon >= 7.31; claimed <= 8.00; consistent at 99.9 % "
        "(an attack)."
    )


def test_the_attack_that_refutes_is_named_and_not_one_that_is_less_sure() -> None:
    found = said([attack(9.5, 7.9, "a loud one"), attack(9.0, 8.1, "a sure one")], true=12.0)
    assert found == (
        "outsider: audit at 95 %: epsilon >= 9.00; claimed <= 8.00 as published, <= 12.00 by the ledger; "
        "REFUTED at 99.9 % (a sure one)."
    )


def test_findings_that_refute_are_named_where_no_attack_does() -> None:
    findings = [Finding(0, "variance", "Too little.", True), Finding(0, "price", "Too low.", True, ("server",))]
    findings += [Finding(0, "variance", "Too little again.", True), Finding(2, "an attack", "Some canaries.")]
    assert said([attack(8.97, 7.3)], findings) == (
        "outsider: audit at 95 %: epsilon >= 8.97; claimed <= 8.00; REFUTED at 99.9 % (tier 0: variance)."
    )


@pytest.mark.parametrize(("true", "claimed", "refuted"), [(None, 8.5, False), (30.0, 8.0, True)])
def test_the_costliest_run_that_was_attacked_makes_the_claim_unless_a_paper_does(
    true: float | None, claimed: float, refuted: bool
) -> None:
    view = ViewReport(8.0, true)
    for one in (attack(7.0, 6.0, paid=7.5), attack(8.6, 8.4, paid=8.5)):
        view.add(one)
    assert (view.claimed, view.refuted) == (claimed, refuted)
    assert view.surely == 8.4
