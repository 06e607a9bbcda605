"""The list of mutants is up to date, and their runner tells caught ones from others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import mutating
import pytest
from mutants import LATER, MUTANTS, ROOT
from mutating import CAUGHT, SURVIVED, TIMED_OUT, Mutant, Runner

ADDED = Mutant("adds too much", "sums.py", "a + b", "a + b + 1", "tests/test_added_sums.py")
UNNOTICED = Mutant("greets nobody", "sums.py", "'hello'", "''", "tests/test_added_sums.py")
NOTICED_LATER = Mutant("halves nothing", "sums.py", "n // 2", "n", "tests/test_added_sums.py")
ENDLESS = Mutant("never ends", "sums.py", "while n > 9:", "while True:", "tests/test_added_sums.py")

PACKAGE = """
def add(a, b):
    return a + b

def half(n):
    return n // 2

def last(n):
    while n > 9:
        n -= 10
    return n

def greet():
    return 'hello'
"""
TESTS = """
from added import sums

def test_something_else():
    assert True

def test_what_fails_anyway():
    assert sums.greet() == 'good morning'

def test_last():
    assert sums.last(25) == 5

def test_sums():
    assert sums.add(1, 2) == 3
"""
LATER_TESTS = """
from added import sums

def test_halves():
    assert sums.half(4) == 2
"""


def test_every_mutant_breaks_a_line_that_exists() -> None:
    stale = [one.name for one in MUTANTS if one.before not in (ROOT / "sordino" / one.file).read_text()]
    assert stale == []


def test_every_mutant_changes_its_line() -> None:
    assert [one.name for one in MUTANTS if one.before == one.after] == []


def test_every_mutant_has_a_name_of_its_own() -> None:
    assert [key for key, count in Counter(one.key for one in MUTANTS).items() if count > 1] == []


def test_the_tests_that_should_notice_exist() -> None:
    named = {test for one in MUTANTS for tests in (one.tests, *LATER) for test in tests.split()}
    assert [test for test in named if not (ROOT / test.split("::")[0]).exists()] == []


@pytest.fixture
def tried(tmp_path: Path) -> Callable[..., tuple[dict[Mutant, str], list[str]]]:
    """Try mutants of a small project; return verdicts and what was said.

    Its modules have names that no other test has: forks of this process have imported those.
    """
    project = tmp_path / "project"
    for name, text in {
        "pyproject.toml": "[tool.pytest.ini_options]\n",
        "added/__init__.py": "",
        "added/sums.py": PACKAGE,
        "tests/test_added_sums.py": TESTS,
        "tests/test_added_later.py": LATER_TESTS,
    }.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def work(*mutants: Mutant, resume: bool = False) -> tuple[dict[Mutant, str], list[str]]:
        said: list[str] = []
        killers, state = project / "tests/killers.json", project / "build/mutants.json"
        runner = Runner(project, killers, state, ("tests/test_added_later.py",), "added", 1, said.append)
        return runner.run(list(mutants), mutants, resume), said

    return work


def killers_of(tmp_path: Path) -> dict[str, str]:
    return json.loads((tmp_path / "project/tests/killers.json").read_text())


def test_verdicts(tried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that fail without mutants catch none, and remembered killers decide nothing that others would not."""
    monkeypatch.setattr(mutating, "SECONDS_FOR_A_TEST", 0.5)
    remembered = {
        ADDED.key: "tests/test_added_sums.py::test_something_else",
        UNNOTICED.key: "tests/test_added_sums.py::test_what_fails_anyway",
        ENDLESS.key: "tests/test_gone.py::test_renamed",
    }
    (tmp_path / "project/tests/killers.json").write_text(json.dumps(remembered))
    found, said = tried(ADDED, UNNOTICED, NOTICED_LATER, ENDLESS)
    assert found == {ADDED: CAUGHT, UNNOTICED: SURVIVED, NOTICED_LATER: CAUGHT, ENDLESS: TIMED_OUT}
    killers = killers_of(tmp_path)
    assert killers[ADDED.key] == "tests/test_added_sums.py::test_sums"
    assert killers[NOTICED_LATER.key] == "tests/test_added_later.py::test_halves"
    assert "tests/test_added_sums.py::test_what_fails_anyway does not pass without mutants: it catches none." in said
    assert said[-3:] == [
        "2 of 4 mutants caught in 0 minutes",
        "SURVIVED  sums.py: greets nobody",
        "TIMED OUT  sums.py: never ends",
    ]
    assert (tmp_path / "project/added/sums.py").read_text() == PACKAGE


def test_a_killer_that_still_kills_is_all_that_runs(tried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killer = "tests/test_added_later.py::test_halves"
    (tmp_path / "project/tests/killers.json").write_text(json.dumps({NOTICED_LATER.key: killer}))
    groups, run_tests = [], Runner._tested

    def noted(self: Runner, copy: Path, tests: list[str], *others):
        groups.append(tests)
        return run_tests(self, copy, tests, *others)

    monkeypatch.setattr(Runner, "_tested", noted)
    assert tried(NOTICED_LATER)[0] == {NOTICED_LATER: CAUGHT}
    assert groups == [["tests/test_added_later.py"], [killer]]  # without the mutant, then with it


def test_a_test_that_is_found_to_fail_anyway_is_taken_back(tried, tmp_path: Path) -> None:
    """Whether a new killer passes without mutants is known only afterwards: the mutant is then tried again."""
    found, said = tried(ADDED)
    assert found == {ADDED: CAUGHT}
    assert killers_of(tmp_path) == {ADDED.key: "tests/test_added_sums.py::test_sums"}
    assert len([line for line in said if ADDED.key in line]) == 2


def test_an_interrupted_run_goes_on_where_it_was(tried, tmp_path: Path) -> None:
    (tmp_path / "project/tests/test_added_sums.py").write_text(TESTS.replace("good morning", "hello"))
    assert tried(ADDED)[0] == {ADDED: CAUGHT}
    found, said = tried(ADDED, NOTICED_LATER, resume=True)
    assert found == {ADDED: CAUGHT, NOTICED_LATER: CAUGHT}
    assert said[0] == "1 of 2 verdicts are those of the interrupted run."
    assert [line.split(" (")[0] for line in said if ": " in line] == ["2 of 2  caught     sums.py: halves nothing"]


def test_changed_sources_have_no_verdicts(tried, tmp_path: Path) -> None:
    tests = tmp_path / "project/tests/test_added_sums.py"
    tests.write_text("")
    assert tried(UNNOTICED)[0] == {UNNOTICED: SURVIVED}
    tests.write_text(TESTS.replace("good morning", "hello"))
    found, said = tried(UNNOTICED, resume=True)
    assert found == {UNNOTICED: CAUGHT}
    assert said[0] == "No verdicts to resume from: there was no run, or sources have changed since."
