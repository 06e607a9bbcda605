"""A schema says what columns are; a draft of one asks; whatever is wrong in any file is told at once."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import command, refused

from sordino.data import federate, load
from sordino.data.column_kinds import round_outwards
from sordino.data.draft import draft
from sordino.data.own import Reading
from sordino.data.schema import Schema
from sordino.errors import ProblemsError, UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare

SCHEMA = """
decimal = "."
[files.west]
delimiter = ";"
decimal = ","
[columns.id]
kind = "id"
[columns.age]
kind = "number"
range = [20, 80]
missing = "flag"
[columns.weight]
kind = "number"
mean = 70
deviation = 10
missing = 75
[columns.sex]
kind = "category"
values = ["f", "m"]
fold_case = true
missing = "drop"
[columns.ill]
kind = "label"
values = ["no", "yes"]
positive = "yes"
"""
NORTH = "ill,sex,id,weight,age\nyes,F,n1,80,50\nno,m,n2,,95\nno,,n3,70,20\n"
WEST = "age;ill;sex;id;weight\n;no;M;w1;72,5\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two clients' tables, columns in another order, and their schema beside the folder."""
    made = tmp_path / "clinics"
    made.mkdir()
    (made / "north.csv").write_text(NORTH)
    (made / "west.csv").write_text(WEST)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return made


def schema_of(folder: Path) -> Schema:
    return Schema.read(folder.parent / "schema.toml")


def test_rows_become_records_as_the_schema_says(folder: Path) -> None:
    data = load(str(folder), how=Reading(schema=schema_of(folder)))
    # age in -1..1 and whether it is missing, weight by mean and deviation, sex f, sex m; 95 is held to 80.
    expected = [[0, 0, 1, 1, 0], [1, 0, 0.5, 0, 1], [0, 1, 0.25, 0, 1]]
    np.testing.assert_allclose(data.x.numpy(), expected, atol=1e-6)
    assert data.y.tolist() == [1, 0, 0]
    assert data.owner_names == ("north", "west")
    assert schema_of(folder).features() == ["age", "age is missing", "weight", "sex = f", "sex = m"]
    told = list(data.disclosed)  # all of the schema was declared: nothing but counts
    assert len(told) == 2
    assert all(sentence.endswith(": counted in the records, without noise.") for sentence in told)
    assert any("1 value of 'age' lies outside" in sentence and "held to it" in sentence for sentence in told)
    assert any("1 of 3 rows" in sentence and "dropped" in sentence for sentence in told)
    assert data.notes == ()
    assert data.task.positive_name == "yes"


def test_all_problems_of_all_files_are_told_at_once(folder: Path) -> None:
    (folder / "north.csv").write_text("ill,sex,weight,age,more\nmaybe,x,heavy,1,2\nyes,f,1,inf,2\n")
    (folder / "west.csv").write_text("age;ill;sex;id;weight\n1;;M;w1;7.5\n")
    with pytest.raises(ProblemsError) as raised:
        load(str(folder), how=Reading(schema=schema_of(folder)))
    found = "\n".join(raised.value.sentences)
    for expected in (
        "has the column 'more', which the schema does not name",
        "The column 'weight' of",
        "is not numeric ('heavy' in line 2)",
        "has an infinite value",
        "has the value 'x', which the schema lacks (line 2)",
        "the label 'maybe', which the schema lacks",
        "is not numeric ('7.5' in line 2)",
        "has a missing value in its label column 'ill', line 2",
    ):
        assert expected in found, found
    outcome = command("run", "--data", folder, "--schema", folder.parent / "schema.toml")
    assert outcome.code == 2
    assert outcome.err.splitlines()[0] == f"Error: {len(raised.value.sentences)} problems in {folder}:"


def test_problems_without_a_schema_are_told_at_once_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,age,sex\n0,1,m\n1,,f\n")
    (tmp_path / "b.csv").write_text("label,age,sex\n,x,m\n")
    with pytest.raises(ProblemsError) as raised:
        load(str(tmp_path))
    assert len(raised.value.sentences) == 5
    assert "--categorical sex" in str(raised.value)


def test_missing_cells_of_a_column_are_one_problem_for_all_files(tmp_path: Path) -> None:
    for name in "abcdefg":
        (tmp_path / f"{name}.csv").write_text("label,age,dose\n0,1,2\n1,,3\n0,,3\n")
    (tmp_path / "a.csv").write_text("label,age,dose\n0,1,\n1,,3\n")
    with pytest.raises(ProblemsError) as raised:
        load(str(tmp_path))
    dose, age = raised.value.sentences
    assert dose.startswith(f"The column 'dose' of {tmp_path / 'a.csv'} has a missing value (NaN) in line 2;")
    assert age.startswith(
        "The column 'age' has missing values (NaN) in a.csv (line 3), b.csv (line 3 and 1 more), c.csv (line 3 and 1 "
        "more), d.csv (line 3 and 1 more), e.csv (line 3 and 1 more) and 2 more files;"
    )


def test_shortcuts_for_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,label,sex,ward,age\nx1,0,m,3,1\nx2,1,f,12,2\n")
    (tmp_path / "b.csv").write_text("id,label,ward,sex,age\ny1,1,3,f,3\n")
    data = load(str(tmp_path), drop=("id",), categorical=("sex", "ward"))
    # Two values that are equally frequent have the mean 1/2 and the deviation 1/2.
    assert data.x.tolist() == [[-1, 1, 0, 1, -1, 0, 1], [1, -1, 0, -1, 1, 0, 2], [1, -1, 0, 1, -1, 0, 3]]
    assert any("sex, ward" in sentence for sentence in data.disclosed), "their values were read from the records"
    with pytest.raises(UserError, match="no column 'idd'; did you mean 'id'"):
        load(str(tmp_path), drop=("idd",))
    with pytest.raises(UserError, match="No column is left"):
        load(str(tmp_path), drop=("id", "sex", "ward", "age"))


def scaled_schema(**column: Any) -> Schema:
    return Schema.parse({"columns": {"x": column, "ill": {"kind": "label", "values": ["no", "yes"]}}})


def test_what_a_range_becomes() -> None:
    """0 to 200 becomes -1 to 1, with a spread of 3 it becomes -3 to 3; a mean overrules both."""
    number: dict[str, Any] = {"kind": "number", "range": (0, 200)}
    scales = [({}, (100, 100)), ({"spread": 3}, (100, 200 / 6)), ({"spread": 3, "mean": 90, "deviation": 5}, (90, 5))]
    for more, scale in scales:
        (feature,) = scaled_schema(**number, **more).recipe()
        assert (feature["subtract"], feature["divide"]) == pytest.approx(scale)
    assert scaled_schema(**number).scaled_by_range() == ["x"]
    assert scaled_schema(**number, spread=3).scaled_by_range() == []
    with pytest.raises(UserError, match="there is no range"):
        scaled_schema(kind="number", spread=3)


@pytest.mark.parametrize(("numbers", "spread"), [([0, 1] * 5, 1.0), ([1, 2, 3, 4], 1.5), (range(20, 80), 3.0)])
def test_a_draft_spreads_ranges_by_how_many_numbers_there_are(
    numbers: list[int], spread: float, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("x,ill\n" + "".join(f"{one}.5,{one % 2}\n" for one in numbers))
    (column,) = draft(tmp_path, "ill").schema.inputs().values()
    assert column.spread == spread  # type: ignore[union-attr]


@pytest.mark.parametrize(("values", "deviation"), [(2, 0.5), (5, 0.4), (100, 0.3)])
def test_centred_categories_vary_by_about_one(values: int, deviation: float, tmp_path: Path) -> None:
    names = [f"v{place}" for place in range(values)]
    schema = scaled_schema(kind="category", values=names, centred=True, missing="v1")
    (tmp_path / "a.csv").write_text("x,ill\n" + "".join(f"{one},no\n" for one in names) + ",yes\n")
    x = load(str(tmp_path), how=Reading(schema=schema)).x.numpy()
    wanted = (np.eye(values) - 1 / values) / deviation
    assert x[:-1] == pytest.approx(wanted, abs=1e-6)
    assert x[-1] == pytest.approx(wanted[1], abs=1e-6), "a missing value counts as the one that is put in"
    for feature in schema.recipe():
        assert (feature["subtract"], feature["divide"]) == pytest.approx((1 / values, deviation))
    assert [feature["missing"] for feature in schema.recipe()] == pytest.approx(wanted[1].tolist())


def test_a_centred_category_that_is_flagged_has_its_centre_where_a_value_is_missing(tmp_path: Path) -> None:
    schema = scaled_schema(kind="category", values=["f", "m"], centred=True, missing="flag")
    (tmp_path / "a.csv").write_text("x,ill\nf,no\n,yes\n")
    assert load(str(tmp_path), how=Reading(schema=schema)).x.tolist() == [[1, -1, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ([f"{k / 7:.3f}" for k in range(40)], r"looks like a number \(40 different values in 40 records"),
        ([str(k) for k in range(300)], "looks like a number"),
        (["Yes", "yes", "no"] * 5, "'Yes' and 'yes' of 'label' differ only in case"),
    ],
)
def test_labels_that_are_no_classes(tmp_path: Path, labels: list[str], sentence: str) -> None:
    (tmp_path / "a.csv").write_text("label,x\n" + "".join(f"{label},1\n" for label in labels))
    with pytest.raises(UserError, match=sentence):
        load(str(tmp_path))


def test_what_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    (folder / "older").mkdir(parents=True)
    (folder / "notes.txt").write_text("beside")
    (folder / "a.csv").write_text("label,pressure,x\n" + "0,120,1\n1,120,0\n" * 10)
    data = load(str(folder))
    assert any("Not read" in note and "notes.txt, older/" in note for note in data.notes)
    assert any("Not scaled: pressure" in sentence for sentence in data.disclosed)
    assert len(data.notes) == 1
    keys = {"data": str(folder), "method": "dp-fedavg", "rounds": 1, "store": tmp_path / "s"}
    alone = prepare(Experiment.make(keys, {"epsilon": 200}))
    assert any("There is one client" in note for note in alone.notes)
    assert any("epsilon = 200 means hardly any protection" in note for note in alone.notes)
    assert set(data.notes) <= set(alone.notes)
    assert set(data.disclosed) <= set(alone.disclosed)


def test_a_draft_asks_and_says_what_was_read_from_the_records(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    rows = [f"P{k},{20 + k},{'fm'[k % 2]},{k % 10 / 4},{'Yes' if k % 12 == 0 else 'no'}" for k in range(60)]
    (folder / "a.csv").write_text("\n".join(["patient,age,sex,dose,ill", *rows]))
    other = [row.replace(",", ";").replace(".", ",") for row in rows[:20]]
    (folder / "b.csv").write_bytes("\n".join(["patient;age;sex;dose;ill", *other, "Ä;;f;1;yes"]).encode("cp1252"))
    made = draft(folder, "ill")
    columns = made.schema.columns
    assert {name: column.kind for name, column in columns.items()} == {
        "patient": "id",
        "age": "number",
        "sex": "category",
        "dose": "number",
        "ill": "label",
    }
    assert made.schema.files["b"].model_dump() == {"delimiter": ";", "encoding": "cp1252", "decimal": ","}
    assert made.schema.label.positive == "yes", "the rarer one"
    assert made.schema.label.fold_case, "Yes and yes are one"
    (tmp_path / "s.toml").write_text(made.text)
    assert Schema.read(tmp_path / "s.toml") == made.schema, "what is written is what was guessed"
    data = load(str(folder), how=Reading(schema=made.schema))
    assert "age, sex, dose, ill" in data.disclosed[0]
    declared = made.text.replace("public = false", "public = true")
    (tmp_path / "s.toml").write_text(declared)
    assert load(str(folder), how=Reading(schema=Schema.read(tmp_path / "s.toml"))).disclosed == ()
    outcome = command("data", "schema", folder, "--label=ill", "-o", tmp_path / "c.toml", "--drop=dose", "--json")
    assert outcome.document["schema"]["columns"]["dose"]["kind"] == "id"
    assert "no column 'il'; did you mean 'ill'" in refused("data", "schema", folder, "--label=il")


@pytest.mark.parametrize("rare", ["0", "1"])
def test_the_label_that_is_looked_for_is_the_rarer_one_and_is_told(rare: str, tmp_path: Path) -> None:
    """Of two that are equally rare the second, as in a run without a schema; one that is named is no guess."""
    folder = tmp_path / "own"
    folder.mkdir()
    other = "1" if rare == "0" else "0"
    (folder / "a.csv").write_text("label,x\n" + f"{rare},1\n{other},2\n{other},3\n" * 5)
    asked = f"The one that is looked for (positive) is taken to be the rarer of two, '{rare}': is it?"
    made, named = draft(folder, "label"), draft(folder, "label", "0")
    assert made.schema.label.positive == rare
    assert any(asked in question for question in made.questions)
    assert asked in made.text
    assert named.schema.label.positive == "0"
    assert "looked for" not in named.text
    (folder / "a.csv").write_text("label,x\n0,1\n1,2\n2,3\n" * 5)
    assert draft(folder, "label").schema.label.positive is None
    (folder / "a.csv").write_text("label,x\n" + "0,1\n1,2\n" * 5)
    assert draft(folder, "label").schema.label.positive == load(str(folder)).task.positive_name == "1"


def test_a_draft_knows_dates_and_what_few_clients_can_protect(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    rows = [f"{k % 28 + 1:02}.11.2025,2025-11-{k % 28 + 1:02} 08:15,{k % 28 + 1}/11,{k},{k % 2}" for k in range(60)]
    (folder / "a.csv").write_text("\n".join(["day,moment,part,x,label", *rows]))
    outcome = command("data", "schema", folder, "-o", tmp_path / "schema.toml")
    for column in ("day", "moment"):
        assert f"- {column}: dates: dropped. If they matter" in outcome.out
    assert "- part: too many different texts" in outcome.out
    last = outcome.out.splitlines()[-1].removeprefix("Then: ")
    schema = str(tmp_path / "schema.toml")
    assert shlex.split(last, comments=True)[-2:] == ["--schema", schema], "a shell takes it as it stands"


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("a,label\r1,0\r2,1\r", {"a": "number"}),
        (
            "a,"
            + "".join(f"{'c' * 1000}{i}," for i in range(140))
            + "label\n1"
            + ",1" * 140
            + ",0\n2"
            + ",2" * 140
            + ",1\n",
            {},
        ),
        ("a,b,label\n-1e308,1,0\n1e308,2,1\n", {"a": "category", "b": "number"}),
        ("a,b,label\n0,1,0\n5e-324,2,1\n", {"a": "id", "b": "number"}),
    ],
    ids=["carriage returns", "a long line", "a span without end", "a span of nothing"],
)
def test_a_draft_is_made_of_odd_tables_too(tmp_path: Path, text: str, kinds: dict[str, str]) -> None:
    (tmp_path / "a.csv").write_text(text, newline="")
    found = draft(tmp_path, "label").schema
    assert kinds.items() <= {name: column.kind for name, column in found.columns.items()}.items()


def test_ranges_are_rounded_outwards() -> None:
    assert round_outwards(18, 99) == (10, 100)
    assert round_outwards(0.31, 4.12) == (0, 5)
    assert round_outwards(-3, 250) == (-100, 300)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[columns.a]\nkind = 'numbr'", "columns.a: kind must be number, category, id, label, target"),
        ("[columns.a]\nkind = 'number'\nrange = [3, 1]", "columns.a: the range's first number must be the smaller one"),
        ("[columns.a]\nkind = 'number'\nrnage = [1, 3]", "unknown key 'rnage' at columns.a.rnage"),
        ("[columns.a]\nkind = 'number'", 'exactly one column must have kind = "label", or one kind'),
        ("[columns.a]\nkind = 'label'\nvalues = ['x', 'y']", "there must be a number or a category"),
        ("[columns.a]\nkind = 'label'\nvalues = ['x', 'y']\npositive = 'z'", "positive = 'z' is not among the values"),
        ("[columns.a]\nkind = 'category'\nvalues = ['1', '1.0']", "the values '1' and '1.0' are the same"),
        ("encoding = 'martian'\n[columns.a]\nkind = 'id'", "there is no text encoding 'martian'"),
        ("nonsense", "is not valid TOML"),
    ],
)
def test_a_wrong_schema_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(UserError) as raised:
        Schema.read(tmp_path / "s.toml")
    assert sentence in str(raised.value)
    assert str(tmp_path / "s.toml") in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_schema_and_options_that_contradict_it(folder: Path) -> None:
    schema = folder.parent / "schema.toml"
    given = ("run", "--data", folder, "--schema", schema)
    assert "put them into it" in refused(*given, "--drop", "age")
    assert "the schema's label is 'ill'" in refused(*given, "--label", "sex")
    assert "There is no schema" in refused("run", "--data", folder, "--schema", folder / "none.toml")
    assert "'schema' was given for the known data set 'digits'" in refused("run", "--data=digits", "--schema", schema)


def test_a_run_keeps_its_schema(folder: Path) -> None:
    schema = folder.parent / "schema.toml"
    experiment = Experiment.make({"data": str(folder), "schema": str(schema), "method": "fedavg"})
    schema.unlink()
    again = Experiment.make(experiment.model_dump(mode="json"))
    assert again.table == experiment.table
    first, second = (federate(load(str(folder), how=one.reading()), None, None, 0) for one in (experiment, again))
    assert first.fingerprint == second.fingerprint
    assert "table" in experiment.decisive()
    assert "table" not in Experiment.make({}).decisive(), "without one, identities are what they were"
