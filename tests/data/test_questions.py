"""Tables as they come: a draft asks about what is odd at a site, by its name, and the schema reads what is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import command, refused

from sordino.data import load
from sordino.data.column_kinds import suggest_bins
from sordino.data.draft import Draft, draft
from sordino.data.own import Reading
from sordino.data.questions import find_spellings, find_units
from sordino.data.schema import Schema
from sordino.errors import UserError
from sordino.experiment.config import Experiment


def write(folder: Path, **sites: dict[str, list[Any]]) -> Path:
    """One table for each site, of columns by their names."""
    for site, columns in sites.items():
        rows = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
        (folder / f"{site}.csv").write_text("\n".join(rows) + "\n")
    return folder


def asked(made: Draft, column: str) -> list[str]:
    return [question for question in made.questions if question.startswith(f"{column}: ")]


OUTCOME = [0, 1] * 15
AGES = list(range(30, 60))


def test_a_number_that_is_the_label_is_grouped_by_bounds(tmp_path: Path) -> None:
    """Ages would be 30 classes; by bounds, classes begin at them."""
    folder = write(tmp_path, a={"x": OUTCOME, "age": AGES}, b={"x": OUTCOME, "age": AGES})
    refusal = refused("run", "--data", folder, "--label=age")
    assert "The label 'age' looks like a number (30 different values in 60 records" in refusal
    assert "predict the number itself (--task regression)" in refusal
    assert "--label age --bins 40,50" in refusal
    made = draft(folder, "age", bins=[50, 40])
    assert made.schema.label.values == ("below 40", "40 to below 50", "50 or more")
    data = load(str(folder), how=Reading(schema=made.schema))
    assert data.y.tolist() == 2 * ([0] * 10 + [1] * 10 + [2] * 10)
    (tmp_path / "s.toml").write_text(made.text)
    assert Schema.read(tmp_path / "s.toml") == made.schema
    with pytest.raises(UserError, match=r"No record has the label '90 or more': .* between 30 and 59"):
        draft(folder, "age", bins=[90])
    assert draft(folder, "age", categorical=["age"]).schema.label.values == tuple(map(str, AGES))
    assert "has '5x' where a number belongs" in refused("data", "schema", folder, "--label=age", "--bins=5x")


@pytest.mark.parametrize(("first", "continuous"), [(0, False), (1, False), (5, True)])
def test_codes_of_classes_count_through(first: int, continuous: bool, tmp_path: Path) -> None:
    """30 whole numbers from 0 or 1 on may be codes, which is told; other 30 are a number."""
    folder = write(tmp_path, a={"x": [1] * 300, "label": [first + k % 30 for k in range(300)]})
    if continuous:
        with pytest.raises(UserError, match="looks like a number"):
            load(str(folder))
    else:
        assert any("30 classes that are all numbers" in note for note in load(str(folder)).notes)
    assert load(str(folder), labels=tuple(range(first, first + 30))).notes == ()


def test_suggested_bounds_are_round() -> None:
    assert suggest_bins(list(range(28, 78))) == [40, 60]
    assert suggest_bins(np.linspace(0, 1, 100).tolist()) == [0.3, 0.7]
    assert suggest_bins([5.0] * 20) == [5.0]


def test_zeros_and_other_codes_of_missing_values_are_asked_about_at_their_sites(tmp_path: Path) -> None:
    chol = list(range(150, 180))
    folder = write(
        tmp_path,
        north={"chol": chol, "visits": list(range(30)), "weight": [60 + k for k in range(30)], "label": OUTCOME},
        south={"chol": [0] * 30, "visits": list(range(30)), "weight": [999, *range(60, 89)], "label": OUTCOME},
    )
    made = draft(folder, "label")
    zero, constant = asked(made, "chol")
    assert "0 lies apart from all other values (30 of 30 at south; the next is 150)" in zero
    assert "--missing-code chol=0" in zero
    assert "all values of south are '0'" in constant
    (code,) = asked(made, "weight")
    assert "999 lies apart" in code
    assert "1 of 30 at south" in code
    assert not asked(made, "visits"), "0 visits are a number of visits"
    output = tmp_path / "s.toml"
    codes = ("--missing-code=chol=0", "--missing-code=weight=999")  # given twice: both count
    told = command("data", "schema", folder, *codes, "-o", output).out
    assert "chol: no record of south has a value" in told
    assert "no epsilon covers it" in told
    schema = Schema.read(output)
    data = load(str(folder), how=Reading(schema=schema))
    absent = [schema.features().index(f"{name} is missing") for name in ("chol",)]
    assert data.x[:, absent].flatten().tolist() == [0] * 30 + [1] * 30
    weight = schema.columns["weight"]
    assert weight.range == (60, 90)  # type: ignore[union-attr]
    assert data.x[30, schema.features().index("weight")] == 0, "the centre, where one value of sixty is missing"


def test_codes_that_no_number_can_have_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, a={"age": AGES, "sex": ["m", "f"] * 15, "label": OUTCOME})
    with pytest.raises(UserError, match="the column 'sex' is none"):
        draft(folder, "label", missing_codes={"sex": [0]})
    with pytest.raises(UserError, match="give smaller ones"):
        draft(folder, "label", missing_codes={"age": [1e300]})
    write(tmp_path, a={"age": ["1e300 kg", *AGES[1:]], "x": AGES, "label": OUTCOME})
    assert draft(folder, "label").schema.columns["age"].kind == "id", "a unit makes no number of what is none"


def test_units_in_cells_are_read_and_asked_about(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        north={"chol": [f"{k}.5 mg/dl" for k in range(150, 180)], "ward": ["3a", "3b"] * 15, "label": OUTCOME},
        south={"chol": list(range(150, 180)), "ward": ["4a", "3a"] * 15, "label": OUTCOME},
        west={"chol": [f"{k}mmol/L" for k in range(3, 33)], "ward": ["4a", "3a"] * 15, "label": OUTCOME},
    )
    made = draft(folder, "label")
    (question,) = [one for one in asked(made, "chol") if "unit" in one and "median" not in one]
    assert "mg/dl at north; none at south; mmol/L at west" in question
    assert "factor" in question
    assert made.schema.columns["ward"].kind == "category", "3a is no amount of a"
    column: dict[str, Any] = {"kind": "number", "units": {"mg/dl": 1, "mmol/l": 38.67}, "missing_codes": [4 * 38.67]}
    given = {"columns": {"chol": column, "ward": {"kind": "id"}, "label": {"kind": "label", "values": ["0", "1"]}}}
    schema = Schema.parse(given | {"missing_cells": [""]})
    with pytest.raises(UserError, match="has a missing value"):
        load(str(folder), how=Reading(schema=schema))
    given["columns"]["chol"] |= {"missing": 7.0}
    data = load(str(folder), how=Reading(schema=Schema.parse(given)))
    assert data.x[[0, 30, 60, 61], 0].numpy() == pytest.approx([150.5, 150, 3 * 38.67, 7])
    del column["units"]["mmol/l"]
    with pytest.raises(UserError, match=r"not numeric \('3mmol/L' in line 2 and 29 more\); .*\(units\)"):
        load(str(folder), how=Reading(schema=Schema.parse({"columns": given["columns"] | {"chol": column}})))


def test_other_units_show_in_a_sites_median(tmp_path: Path) -> None:
    high = list(range(150, 180))
    sites = {"a": high, "b": high, "c": [k / 38.67 for k in high]}
    folder = write(tmp_path, **{name: {"chol": values, "label": OUTCOME} for name, values in sites.items()})
    (question,) = asked(draft(folder, "label"), "chol")
    assert "the median at c is 0.0259 times that of the other sites" in question


def test_a_category_that_four_sites_write_in_four_ways(tmp_path: Path) -> None:
    ways = {"a": ["m", "f"], "b": ["male", "female"], "c": ["M", "F"], "d": ["Male", "Female"]}
    folder = write(tmp_path, **{site: {"sex": way * 15, "label": ["yes", "no"] * 15} for site, way in ways.items()})
    (folder / "d.csv").write_text((folder / "d.csv").read_text().replace("yes", "Y").replace("no", "n"))
    made = draft(folder, "label")
    assert any("f, m at a; female, male at b; F, M at c; Female, Male at d" in one for one in asked(made, "sex"))
    assert made.schema.label.aliases == {"Y": "yes", "n": "no"}
    data = load(str(folder), how=Reading(schema=made.schema))
    assert data.x.shape[1] == 2
    assert data.x[:, 0].reshape(4, 30).unique(dim=0).shape[0] == 1, "the same people at all four"
    assert data.y.reshape(4, 30).unique(dim=0).shape[0] == 1


@pytest.mark.parametrize(
    ("sites", "aliases"),
    [
        ({"a": ["smoker", "non-smoker"], "b": ["Non Smoker", "smoker"]}, {"non smoker": "non-smoker"}),
        ({"a": ["HER2+", "HER2-"]}, {}),
        ({"a": ["A", "B"], "b": ["AB", "0"]}, {}),  # blood groups
        ({"a": ["y", "n"], "b": ["1", "0"]}, {"1": "y", "0": "n"}),
        ({"a": ["m", "f"], "b": ["1", "0"]}, {}),
        ({"a": ["sev", "mod"], "b": ["severe", "moderate"]}, {"severe": "sev", "moderate": "mod"}),
        ({"a": ["yes", "y"]}, {}),  # one site tells them apart
    ],
)
def test_which_values_are_taken_as_one(sites: dict[str, list[str]], aliases: dict[str, str]) -> None:
    cells = {site: [value.casefold() for value in values] * 10 for site, values in sites.items()}
    found, questions = find_spellings(cells, cells)
    assert found == aliases
    alien = sites in ({"a": ["m", "f"], "b": ["1", "0"]}, {"a": ["A", "B"], "b": ["AB", "0"]})
    assert any("which no other site does" in one.text for one in questions) == alien


def test_units_of_a_column() -> None:
    assert find_units({"a": ["1 kg", "2KG"], "b": ["3"]}) == {"kg": ["a"], "": ["b"]}
    assert find_units({"a": ["1e3", "2"]}) is None
    assert find_units({"a": ["12/11", "3"]}) is None
    assert find_units({"a": ["37 %", "3,5%"]}) == {"%": ["a"]}


def test_few_whole_numbers_may_be_codes(tmp_path: Path) -> None:
    folder = write(tmp_path, a={"pain": [1, 2, 3, 4, 1] * 6, "yes": OUTCOME, "age": AGES, "label": OUTCOME})
    (question,) = [one for one in draft(folder, "label").questions if "codes without order" in one]
    assert ": pain. " in question, "neither what has two values nor what has many"
    made = draft(folder, "label", categorical=["pain"])
    assert made.schema.columns["pain"].kind == "category"
    assert not any("codes without order" in one for one in made.questions)


def test_texts_among_numbers_are_named_with_their_site(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        a={"x": AGES, "y": AGES, "label": OUTCOME},
        b={"x": ["unknown", *AGES[1:]], "y": AGES, "label": OUTCOME},
    )
    (question,) = asked(draft(folder, "label"), "x")
    assert "'unknown' at b" in question


def test_new_keys_leave_old_identities_as_they_were(tmp_path: Path) -> None:
    """What a schema without them is stored as has none of them."""
    write(tmp_path, a={"age": AGES, "sex": ["m", "f"] * 15, "label": OUTCOME})
    made = draft(tmp_path, "label")
    document = Experiment.make({"data": str(tmp_path), "table": made.schema}).decisive()["table"]["columns"]
    assert not {"units", "missing_codes", "aliases", "bins"} & {key for one in document.values() for key in one}


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        ({"kind": "category", "values": ["m"], "aliases": {"x": "f"}}, "stands for 'f', which is not among the values"),
        ({"kind": "category", "values": ["m", "f"], "aliases": {"f": "m"}}, "the alias 'f' is one of the values"),
        ({"kind": "number", "units": {"kg": 0}}, "it must be above 0"),
        ({"kind": "label", "values": ["a", "b"], "bins": [1, 2]}, "`bins` are bounds in rising order"),
        ({"kind": "label", "values": ["a", "b", "c"], "bins": [2, 1]}, "`bins` are bounds in rising order"),
    ],
)
def test_wrong_keys_are_refused(column: dict[str, Any], sentence: str) -> None:
    columns = {"x": column} if column["kind"] != "label" else {"y": column}
    more = {"x": {"kind": "number"}} if column["kind"] == "label" else {"y": {"kind": "label", "values": ["0", "1"]}}
    with pytest.raises(UserError, match=sentence):
        Schema.parse({"columns": columns | more})
