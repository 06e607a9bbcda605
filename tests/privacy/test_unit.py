"""The unit decides the level, and is a plain text wherever it is stored or printed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sordino.privacy.budget.client_level_plan import check_delta
from sordino.privacy.unit import NOT_PERSONS, Unit, person_words, protection

PACKAGE = Path(__file__).resolve().parents[2] / "sordino"


def test_stored_and_printed_units_are_texts() -> None:
    for unit, text in ((Unit.CLIENT, "client"), (Unit.RECORD, "record"), (Unit.PERSON, "person")):
        assert f"{unit}" == str(unit) == text == unit
        assert json.dumps({"unit": unit, unit: 1}) == json.dumps({"unit": text, text: 1})
        assert Unit(json.loads(json.dumps(unit))) is unit
    with pytest.raises(ValueError, match="'row' is not a valid Unit"):
        Unit("row")


def test_each_unit_hides_in_its_own_crowd() -> None:
    assert [unit.crowd_size(clients=7, records=300) for unit in Unit] == [7, 300, 300]
    for unit, words in (
        (Unit.CLIENT, "for 7 clients: publishing one random client's"),
        (Unit.RECORD, "with 7 records"),
        (Unit.PERSON, "with 7 persons: publishing all rows of one random person"),
    ):
        with pytest.raises(Exception, match=words):
            check_delta(0.2, 7, unit, allow_vacuous=False)


def test_documents_say_of_records_that_they_are_rows() -> None:
    assert set(protection(Unit.CLIENT)) == {"unit", "neighbours"}
    found = protection(Unit.RECORD, {"3": 2.0, "10": None})
    assert found["rows_not_persons"].startswith(NOT_PERSONS)
    assert "with 3 rows up to 2" in found["rows_not_persons"]
    assert (
        "epsilon for the peer, with 3 rows up to 2" in protection(Unit.RECORD, {"3": 2.0}, "peer")["rows_not_persons"]
    )
    assert "epsilon for the peer, with 3 rows up to 2" in Unit.RECORD.caveats({"3": 2.0}, "peer")[0]
    assert Unit.CLIENT.caveats() == Unit.PERSON.caveats() == []
    assert set(protection(Unit.PERSON)) == {"unit", "neighbours"}
    assert "at up to 3 clients" in person_words(3)
    assert "known to several clients pays at each" in person_words(1)
    assert len({unit.neighbours for unit in Unit}) == len(Unit)


def test_who_asks_the_unit_loads_neither_torch_nor_numpy() -> None:
    code = "import sys, sordino.privacy.unit; print(sorted({'torch', 'numpy', 'absl'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_level_is_asked_of_the_unit() -> None:
    """Nobody compares a unit with its text."""
    compared = re.compile(r"""unit\b(?:["']\])?\s*(?:==|!=)\s*["'](?:client|record|person)["']""")
    found = [match for path in PACKAGE.rglob("*.py") for match in compared.findall(path.read_text())]
    assert found == []
