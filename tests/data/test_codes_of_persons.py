"""Persons are found by their codes within a client, and all of their rows stay together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.data import federate, load
from sordino.data.draft import draft
from sordino.data.own import Reading, read_arrays
from sordino.data.persons import code_of, collect, draw_rows, names_somebody, number_codes
from sordino.data.schema import PersonRules, Schema
from sordino.data.selection import fewer
from sordino.errors import UserError

RULES = PersonRules("patient", max_rows=3)
HEADER = "patient,age,sick\n"


SCHEMA: dict[str, Any] = {
    "columns": {"age": {"kind": "number"}, "patient": {"kind": "id"}, "sick": {"kind": "label", "values": ["0", "1"]}}
}


def clinics(folder: Path, **files: str) -> Path:
    """Folder with a file for each client; rows are `code:rows` separated by blanks."""
    folder.mkdir(exist_ok=True)
    for name, persons in files.items():
        lines = []
        for number, one in enumerate(persons.split()):
            code, _, rows = one.partition(":")
            lines += [f"{code},{number}.{row},{(number + row) % 2}" for row in range(int(rows or 1))]
        (folder / f"{name}.csv").write_text(HEADER + "\n".join(lines) + "\n")
    return folder


def read(folder: Path) -> Any:
    return load(str(folder), how=Reading(schema=Schema.parse(SCHEMA), person=RULES))


def test_equal_codes_at_two_clients_are_two_persons() -> None:
    assert number_codes(["a", "b", "a", "a"], np.array([0, 0, 0, 1])).tolist() == [0, 1, 0, 2]


@pytest.mark.parametrize("text", ["1", "1.0", " 1 ", "1."])
def test_one_code_in_other_words(text: str) -> None:
    assert code_of(text) == "1"


NOBODY = ["", " ", "NA", "n/a", "nan", "NaN", "None", "NULL", "<NA>", "NaT", "?", "-", "#N/A", "unknown", "inf"]
"""Words of files for a value that is missing, whichever program wrote them."""


@pytest.mark.parametrize("text", NOBODY)
def test_words_for_a_missing_code_are_nobodys(text: str, tmp_path: Path) -> None:
    """All who have none would else be one person: one of them moves its mean by more than is charged."""
    assert not names_somebody(text)
    assert read(clinics(tmp_path, north=f"a {text.strip()}:2 b:2")).person.tolist() == [0, 1, 1]
    x, y = np.ones((4, 2), np.float32), np.array([0, 1, 0, 1])
    np.savez(tmp_path / "north.npz", x=x, y=y, person=np.array(["a", text, text, "b"]))
    with pytest.raises(UserError, match="a record without a code"):
        read_arrays(tmp_path / "north.npz")


def test_codes_that_differ_are_of_different_persons() -> None:
    codes = ["7", "007", "1_0", "10", "1E5", "100000", "123456789012345678", "123456789012345679", "a1", "A1", "1.50"]
    assert len({code_of(code) for code in codes}) == len(codes)
    assert all(names_somebody(code) for code in codes)


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(1, 4))
def test_at_most_so_many_rows_of_each_person_are_drawn(persons: list[int], most: int) -> None:
    person = np.array(persons, dtype=np.int64)
    drawn = draw_rows(person, most, [1])
    for one in set(persons):
        assert drawn[person == one].sum() == min(most, persons.count(one))


def test_rows_are_drawn_at_random() -> None:
    person = np.zeros(10, dtype=np.int64)
    chosen = {tuple(draw_rows(person, 2, [seed]).nonzero()[0].tolist()) for seed in range(40)}
    assert len(chosen) > 10


def test_which_rows_are_drawn_of_others_does_not_follow_from_how_many_one_has() -> None:
    """One person less of whom there are rows, or one with fewer, moves nobody else's."""
    person = np.repeat(np.arange(10), 4)
    drawn = draw_rows(person, 2, [0, 2])
    assert len({tuple(drawn[person == one]) for one in range(10)}) > 1
    for rows in range(4):
        fewer_rows = person[4 - rows :]
        assert (draw_rows(fewer_rows, 2, [0, 2])[rows:] == drawn[4:]).all()


def test_places_and_shares_of_a_clients_persons() -> None:
    found = collect(np.array([4, 4, 7, 9, 9, 9]), np.array([0, 0, 0, 1, 1, 1]), 2, RULES)
    places, shares = found.places(0)
    assert places[:, 0].tolist() == [0, 2]
    assert shares.tolist() == [[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]
    assert ((places[0] < 2) & (places[0] >= 0)).all(), "padding is the person's own"
    assert found.places(1)[0].tolist() == [[3, 4, 5]]
    assert found.codes(0).tolist() == [0, 0, 1]
    assert found.counts.tolist() == [2, 1]


def test_all_rows_of_a_person_are_trained_on_or_tested_with(tmp_path: Path) -> None:
    codes = " ".join(f"p{number}:{1 + number % 5}" for number in range(40))
    data = federate(read(clinics(tmp_path, north=codes, south=codes)), None, None, seed=3)
    persons = data.train.persons
    assert persons is not None
    assert persons.rules == RULES
    assert int(persons.rows.max()) == 3, "of more, so many are drawn"
    for client in range(2):
        trained, tested = (
            {int(age) for age in part[0][:, 0]} for part in (data.train.part(client), data.test.part(client))
        )
        assert not trained & tested, "the whole part of an age is the person"
        assert len(trained) == int(persons.counts[client]) == int(data.train.units[client])
    assert data.train.sizes.sum() == persons.rows.sum()


def test_persons_are_dealt_as_wholes(tmp_path: Path) -> None:
    codes = " ".join(f"p{number}:3" for number in range(60))
    data = federate(read(clinics(tmp_path, all=codes)), "iid", 4, seed=0)
    held = [{int(age) for age in client.x[:, 0]} | {int(age) for age in client.x_test[:, 0]} for client in data.clients]
    assert sum(map(len, held)) == len(set().union(*held)) == 60


def test_fewer_records_are_those_of_fewer_persons(tmp_path: Path) -> None:
    dataset = read(clinics(tmp_path, all=" ".join(f"p{number}:4" for number in range(50))))
    some = fewer(dataset, 41, seed=0)
    assert len(some.y) == 44
    assert (np.bincount(some.person)[np.unique(some.person)] == 4).all()


def test_rows_without_a_code_are_dropped(tmp_path: Path) -> None:
    folder = clinics(tmp_path, north="a:2 b:2")
    (folder / "north.csv").write_text((folder / "north.csv").read_text() + ",50,1\n")
    assert len(read(folder).y) == 4


def test_other_persons_are_other_data(tmp_path: Path) -> None:
    first = federate(read(clinics(tmp_path / "one", north="a:3 b:3 c:1 d:1")), None, None, seed=0)
    second = federate(read(clinics(tmp_path / "two", north="a:3 b:3 c:1 c:1")), None, None, seed=0)
    assert first.fingerprint != second.fingerprint


def test_arrays_name_persons(tmp_path: Path) -> None:
    x, y = np.arange(12.0).reshape(6, 2), np.array([0, 1, 0, 1, 0, 1])
    np.savez(tmp_path / "a.npz", x=x, y=y, person=np.array([5, 5, 6, 6, 7, 7]))
    found = load(str(tmp_path))
    assert found.person is not None
    assert found.person.tolist() == [0, 0, 1, 1, 2, 2]
    assert found.person_rules == PersonRules("person")
    np.savez(tmp_path / "b.npz", x=x, y=y)
    with pytest.raises(UserError, match=r"b\.npz does not say whom its records are about"):
        load(str(tmp_path))
    with pytest.raises(UserError, match=r"b\.npz has no array 'person'"):
        load(str(tmp_path), how=Reading(person=PersonRules("person")))
    np.savez(tmp_path / "b.npz", x=x, y=y, person=np.array([5]))
    with pytest.raises(UserError, match="one code in the array 'person' for each of its 6 records"):
        load(str(tmp_path))


def test_arrays_name_persons_of_test_records_too(tmp_path: Path) -> None:
    x, y = np.arange(12.0).reshape(6, 2), np.array([0, 1, 0, 1, 0, 1])
    arrays = {"x": x, "y": y, "x_test": x[:4], "y_test": y[:4], "person": np.array([5, 5, 6, 6, 7, 7])}
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(UserError, match="one code in the array 'person_test' for each of its 4 records in x_test"):
        load(str(tmp_path))
    np.savez(tmp_path / "a.npz", **arrays, person_test=np.array([8, 8, 9, 8]))
    data = federate(load(str(tmp_path)), None, None, seed=0)
    assert data.test.persons is not None
    assert data.test.persons.rows.tolist() == [3, 1]


def test_a_schema_declares_persons(tmp_path: Path) -> None:
    schema = Schema.parse(SCHEMA | {"person": "patient", "max_rows_per_person": 2, "max_sites_per_person": 3})
    assert schema.person_rules == PersonRules("patient", 2, 3)
    assert schema.features() == ["age"]
    data = load(str(clinics(tmp_path, north="a:2 b:2")), how=Reading(schema=schema))
    assert data.person is not None
    assert data.person.tolist() == [0, 0, 1, 1]
    (tmp_path / "north.csv").write_text("age,sick\n1,0\n2,1\n")
    with pytest.raises(UserError, match="no column 'patient', which the schema names"):
        load(str(tmp_path), how=Reading(schema=schema))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"person": "age"}, "names a column that has another use"),
        ({"max_rows_per_person": 3}, "need `person`"),
        ({"person": "patient", "max_rows_per_person": 0}, "max_rows_per_person"),
        ({"person": "patient", "max_sites_per_person": 1.5}, "max_sites_per_person"),
    ],
)
def test_declarations_that_make_no_sense_are_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Schema.parse(SCHEMA | keys)


def test_a_column_that_is_not_there_is_refused(tmp_path: Path) -> None:
    folder = clinics(tmp_path, north="a:2 b:2")
    with pytest.raises(UserError, match="patent"):
        load(str(folder), how=Reading(label="sick", person=PersonRules("patent")))
    with pytest.raises(UserError, match="'sick' is the label"):
        load(str(folder), how=Reading(label="sick", person=PersonRules("sick")))


def drafted(folder: Path, column: str, codes: list[str], **wishes: Any) -> Any:
    folder.mkdir()
    for site in ("a", "b"):
        rows = [f"{code},{0.1 * place:.1f},{place % 2}" for place, code in enumerate(codes)]
        (folder / f"{site}.csv").write_text(f"{column},age,sick\n" + "\n".join(rows) + "\n")
    return draft(folder, "sick", **wishes)


REPEATED = [str(100 + place // 3) for place in range(60)]
LETTERED = [f"P-{place // 3}" for place in range(60)]


@pytest.mark.parametrize(("column", "codes"), [("patient_id", REPEATED), ("pid", REPEATED), ("who", LETTERED)])
def test_a_draft_asks_whether_codes_name_persons(column: str, codes: list[str], tmp_path: Path) -> None:
    made = drafted(tmp_path / "one", column, codes)
    assert made.schema.columns[column].kind == "id"
    assert made.schema.person is None
    assert any(f'write person = "{column}" above the columns' in question for question in made.questions)
    answered = drafted(tmp_path / "two", column, codes, person=column)
    assert answered.schema.person == column
    assert not any("whom a row is about" in question for question in answered.questions)
    path = tmp_path / "schema.toml"
    path.write_text(answered.text)
    assert Schema.read(path) == answered.schema


@pytest.mark.parametrize(
    ("column", "codes"),
    [
        ("visits", REPEATED),
        ("patient_id", [str(place) for place in range(60)]),
        ("ward_id", ["1", "2"] * 30),
        ("ward", ["W1", "W2", "W3"] * 20),
    ],
    ids=["an amount", "a number of its own for each row", "two wards", "three wards"],
)
def test_a_draft_takes_nothing_else_for_persons(column: str, codes: list[str], tmp_path: Path) -> None:
    made = drafted(tmp_path / "one", column, codes)
    assert not any("whom a row is about" in question for question in made.questions)


@pytest.mark.parametrize("silent", ["a", "b"])
def test_sequences_say_whom_they_are_about_in_all_files_or_in_none(tmp_path: Path, silent: str) -> None:
    """Whichever file says nothing: with the first one, records would be protected where persons were meant."""
    for client in ("a", "b"):
        codes = {} if client == silent else {"person": np.arange(6) // 2}
        np.savez(tmp_path / f"{client}.npz", tokens=np.arange(24).reshape(6, 4) % 5, **codes)
    with pytest.raises(UserError, match=rf"{silent}\.npz does not say whom its records are about, but others do"):
        load(str(tmp_path))
