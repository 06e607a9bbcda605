"""The list of mutants is up to date: each breaks a line that exists, in tests that exist."""

from __future__ import annotations

from mutants import LATER, MUTANTS, ROOT


def test_every_mutant_breaks_a_line_that_exists() -> None:
    stale = [one.name for one in MUTANTS if one.before not in (ROOT / "sordino" / one.file).read_text()]
    assert stale == []


def test_every_mutant_changes_its_line() -> None:
    assert [one.name for one in MUTANTS if one.before == one.after] == []


def test_the_tests_that_should_notice_exist() -> None:
    named = {test for one in MUTANTS for tests in (one.tests, *LATER) for test in tests.split()}
    assert [test for test in named if not (ROOT / test.split("::")[0]).exists()] == []
