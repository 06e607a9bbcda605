"""Sites whose records are tables, with declared columns and with a schema, and sites whose data do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import QUICK, federation
from helpers import command

from sordino.data.draft import toml
from sordino.data.people import same_people
from sordino.data.schema import Schema
from sordino.deploy.protocol.carrier import InProcessCarrier
from sordino.deploy.protocol.roster import Member, read_roster, roster_toml
from sordino.deploy.server import coordinator
from sordino.deploy.server.coordinator import start
from sordino.deploy.site.check import check_experiment
from sordino.deploy.site.data import encode_records, read_records
from sordino.deploy.site.judging import judge_site
from sordino.deploy.site.rules import read_rules
from sordino.deploy.site.site import Site
from sordino.deploy.site.status import status
from sordino.deploy.terms import terms_of
from sordino.deploy.trial import read_origin
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import deal
from sordino.report.statement import statement_of
from sordino.report.statement_pages import markdown
from sordino.store.store import Store

DECLARED: dict[str, Any] = {
    **{"clients": 3, "method": "dp-fedavg", "rounds": 1, "epsilon": 8.0, "labels": ["no", "yes"]},
    **{"columns": ["age", "dose"], "shape": [2], "model": "logistic", "set": {"epochs": 1}},
}
SCHEMA = {
    "columns": {
        "dose": {"kind": "number", "range": [0.0, 10.0]},
        "sex": {"kind": "category", "values": ["f", "m"]},
        "ill": {"kind": "label", "values": ["no", "yes"]},
    }
}
OF_PERSONS = {"person": "patient", "columns": {**SCHEMA["columns"], "patient": {"kind": "id"}}}
BY_SCHEMA = {k: v for k, v in DECLARED.items() if k not in ("columns", "shape", "labels")} | {"table": SCHEMA}


def sites(folder: Path, headers: list[str], rows: Any) -> tuple[list[Member], list[Site]]:
    """Three sites with a table each."""
    members = []
    for number, header in enumerate(headers):
        (folder / f"s{number}").mkdir()
        path = folder / f"s{number}" / "records.csv"
        path.write_text("\n".join([header, *rows(number, header.split(","))]))
        identity = Site.create(
            path.parent, f"s{number}", Path("records.csv"), label="ill", roster=Path("../roster.toml")
        )
        members.append(Member(f"s{number}", identity))
    (folder / "roster.toml").write_text(roster_toml(members))
    assert read_roster(folder / "roster.toml") == members
    return members, [Site.open(folder / f"s{number}") for number in range(len(headers))]


def numbers(number: int, header: list[str]) -> list[str]:
    drawn = np.random.default_rng(number)
    cells = [
        {"age": drawn.integers(20, 90), "dose": drawn.random(), "sex": "fm"[k % 2], "ill": ["no", "yes"][k % 2]}
        | {"patient": f"p{k % 10}"}  # four rows each, with one outcome
        for k in range(40)
    ]
    return [",".join(str(one[name]) for name in header) for one in cells]


@pytest.mark.parametrize(
    ("headers", "declared", "expected"),
    [
        (
            ["age,dose,ill", "dose,age,ill", "ill,dose,age"],
            DECLARED,
            ["age | number | any number", "dose | number | any number", "(named by each site) | label | no, yes"],
        ),
        (
            ["dose,sex,ill"] * 3,
            BY_SCHEMA,
            ["dose | number | 0 to 10", "sex | category | f, m", "ill | label | no, yes"],
        ),
        (
            ["dose,sex,ill,patient"] * 3,
            BY_SCHEMA | {"table": OF_PERSONS},
            ["dose | number | 0 to 10", "ill | label | no, yes"],
        ),
    ],
    ids=["columns", "schema", "persons"],
)
def test_tables_are_read_as_they_are_declared(
    headers: list[str], declared: dict[str, Any], expected: list[str], tmp_path: Path
) -> None:
    members, there = sites(tmp_path, headers, numbers)
    try:
        summary = start(
            Experiment.make(declared), members, InProcessCarrier(there), Store(tmp_path / "store"), deadlines=QUICK
        )
        assert summary.rounds_done == 1
        assert 7.99 < summary.epsilon["outsider"] <= 8  # type: ignore[operator]
        assert status(tmp_path / "s0")["runs"][0]["personal"] is not None
        for site in ("s0", "s1", "s2"):  # judged on the records that the run set aside, read anew
            judged, stored = judge_site(tmp_path / site), status(tmp_path / site)["runs"][0]["metrics"]
            assert judged.own.records == 8
            assert "patient" not in headers[0] or all(count % 4 == 0 for count in judged.own.classes.values())
            assert np.trace(judged.own.confusion) / 8 == pytest.approx(stored["accuracy"])
            assert judged.own.figures["auc"] is None
            assert "too few to judge a model by" in judged.own.notes[0]
        (tmp_path / "s0" / "records.csv").unlink()
        assert status(tmp_path / "s0", judged=True)["judgement"] is None
        text = markdown(statement_of(Store(tmp_path / "store"), summary.run))
        assert "digits" not in text
        assert "on the sites' own data, the data of 3 clients: s0, s1, s2." in text
        for column in expected:
            assert f"\n| {column} | refuse | declared as public |" in text
    finally:
        for site in there:
            site.close()


def test_tables_of_persons_are_judged_on_those_who_were_set_aside(tmp_path: Path) -> None:
    """The rows of a person are tested with together, and files are read as their site writes them."""

    def rows(number: int, header: list[str]) -> list[str]:
        found = [line.replace(",", ";").replace(".", ",") for line in numbers(number, ["dose", "sex", "ill"])]
        return [f"p{place // 5};{line}" for place, line in enumerate(found)]

    declared = BY_SCHEMA | {"table": SCHEMA | {"person": "patient"}}
    members, there = sites(tmp_path, ["patient;dose;sex;ill"] * 3, rows)
    try:
        start(Experiment.make(declared), members, InProcessCarrier(there), Store(tmp_path / "store"), deadlines=QUICK)
        for number in range(3):
            folder = tmp_path / f"s{number}"
            judged, stored = judge_site(folder).own, status(folder)["runs"][0]["metrics"]
            page = folder / "report.html"
            assert command("site", "report", folder, "-o", page).code == 0
            assert "on 10 records that were not trained on" in page.read_text()
            assert "must stay here" in page.read_text()
            assert judged.records == 10, "two of eight persons with five rows each; of 40 rows it would be eight"
            assert np.trace(judged.confusion) / judged.records == pytest.approx(stored["accuracy"])
    finally:
        for site in there:
            site.close()


@pytest.mark.parametrize("header", ["age,ill", "age,dose,weight,ill", "age,Dose,ill"])
def test_a_site_whose_table_is_another_one_does_not_take_part(header: str, tmp_path: Path) -> None:
    def rows(number: int, names: list[str]) -> list[str]:
        known = {"age": "50", "dose": "1", "Dose": "1", "weight": "70", "ill": "yes"}
        return [",".join(known[name] for name in names)] * 10

    members, there = sites(tmp_path, ["age,dose,ill", "age,dose,ill", header], rows)
    told: list[str] = []
    try:
        with pytest.raises(UserError, match="2 of 3 sites take part, but 3 are needed; missing: s2"):
            start(
                Experiment.make(DECLARED),
                members,
                InProcessCarrier(there),
                Store(tmp_path / "store"),
                None,
                told.append,
                QUICK,
            )
        assert "s2: The site's data do not fit what the experiment declares." in told
        assert "does not have the declared columns" in (tmp_path / "s2" / "site.log").read_text()
    finally:
        for site in there:
            site.close()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"max_epsilon": 0}, "Invalid value for max_epsilon: "),
        ({"unit": "row"}, "Invalid value for unit: "),
        ({"colour": "red"}, "Invalid value for colour: "),
        ({"data": Path("nothing.csv")}, "is missing: put it there"),
    ],
)
def test_a_site_is_made_of_what_can_be(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "records.csv").write_text("age,ill\n1,no\n2,yes\n")
    given = {"data": Path("records.csv"), **changes}
    with pytest.raises(UserError, match=sentence):
        Site.create(tmp_path, "site", given.pop("data"), **given)
    assert not (tmp_path / "site.db").exists()


def test_a_site_is_made_once_and_its_keys_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "records.csv").write_text("age,ill\n1,no\n2,yes\n")
    first = Site.create(tmp_path, 'a "site"', Path("records.csv"), label="ill")
    assert (tmp_path / "site.db").stat().st_mode & 0o077 == 0
    with pytest.raises(UserError, match="its ledger must not be lost"):
        Site.create(tmp_path, "site", Path("records.csv"), label="ill")
    site = Site.open(tmp_path)
    assert (site.identity, site.name) == (first, 'a "site"')
    site.close()
    with pytest.raises(UserError, match="There is no site"):
        Site.open(tmp_path / "elsewhere")


def test_what_a_site_counts_in_its_records_is_told_to_its_owner_alone(tmp_path: Path) -> None:
    def rows(number: int, names: list[str]) -> list[str]:
        return [f"{-place},{'fm'[place % 2]},{['no', 'yes'][place % 2]}" for place in range(40)]

    members, there = sites(tmp_path, ["dose,sex,ill"] * 3, rows)
    told: list[str] = []
    store = Store(tmp_path / "store")
    try:
        summary = start(Experiment.make(BY_SCHEMA), members, InProcessCarrier(there), store, None, told.append, QUICK)
    finally:
        for site in there:
            site.close()
    assert "39 values of 'dose' lie outside 0 to 10" in (tmp_path / "s0" / "site.log").read_text()
    handed_on = [str(summary), *told, markdown(statement_of(store, summary.run))]
    assert not any("lie outside" in text or "39 values" in text for text in handed_on)
    assert store.get(summary.run).configuration["data"] == "the sites' own data"


def test_a_trial_names_the_columns_and_classes_of_the_tables_that_were_dealt(tmp_path: Path) -> None:
    folder = tmp_path / "clinics"
    folder.mkdir()
    for number in range(3):
        lines = ["dose,sex,ill", *numbers(number, ["dose", "sex", "ill"])]
        (folder / f"clinic-{number}.csv").write_text("\n".join(lines))
    keys = {"data": str(folder), "table": SCHEMA, "partition": None, "model": "logistic", "rounds": 1}
    with federation(tmp_path / "trial", **keys) as made:
        summary = made.run()
        text = markdown(statement_of(made.store, summary.run))
    assert "to tell no and yes apart in the column ill" in text
    assert "| dose | number | 0 to 10 | refuse | declared as public |" in text


def test_a_run_that_was_stored_with_the_default_data_is_not_said_to_be_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions stored the experiment's own key, which means nothing at sites."""
    monkeypatch.setattr(coordinator, "AT_SITES", "digits")
    members, there = sites(tmp_path, ["dose,sex,ill"] * 3, numbers)
    store = Store(tmp_path / "store")
    try:
        summary = start(Experiment.make(BY_SCHEMA), members, InProcessCarrier(there), store, deadlines=QUICK)
    finally:
        for site in there:
            site.close()
    assert store.get(summary.run).configuration["data"] == "digits"
    assert "digits" not in markdown(statement_of(store, summary.run))


def test_a_trial_is_no_deployment_and_counts_for_its_people(tmp_path: Path) -> None:
    """All of its data lie on one machine, and they are the people of simulations on the same data."""
    with federation(tmp_path) as made:
        carrier, origin = InProcessCarrier(made.sites, None), read_origin(tmp_path / "sites")
        done = start(made.experiment, made.members, carrier, made.store, deadlines=QUICK, origin=origin)
        text = markdown(statement_of(made.store, done.run))
        assert "This run was a trial: the server and all sites were processes of one machine" in text
        assert "on digits, the data of 3 clients" in text
        row = made.store.get(done.run)
        assert same_people(row.people, deal(made.original).people)
        assert (row.planned or {})["deal"] == deal(made.original.model_copy(update={"clients": 3})).deal


def agreed(folder: Path, **column: Any) -> Path:
    """The schema of a site with a semicolon between its cells, as a file."""
    path = folder / "agreed.toml"
    columns = {**SCHEMA["columns"], "dose": {**SCHEMA["columns"]["dose"], **column}}
    path.write_text(toml(Schema.parse({"columns": columns}), [], {}))
    return path


def odd_site(folder: Path, **rules: Any) -> Path:
    """A site whose table has semicolons and decimal commas."""
    where = folder / "odd"
    where.mkdir()
    rows = [f"{k % 9},5;{'fm'[k % 2]};{['no', 'yes'][k % 2]}" for k in range(40)]
    (where / "data.csv").write_text("\n".join(["dose;sex;ill", *rows]) + "\n")
    Site.create(where, "odd", Path("data.csv"), **rules)
    return where


def test_a_sites_table_is_read_as_it_is_written_there(tmp_path: Path) -> None:
    """The experiment's schema knows nothing of semicolons at one site; its rules do."""
    where = odd_site(tmp_path, schema=agreed(tmp_path), unit="record")
    rules = read_rules(where).rules
    assert (rules.delimiter, rules.encoding, rules.decimal, rules.label) == (";", None, ",", "ill")
    terms = terms_of(Experiment.make(BY_SCHEMA))
    data = encode_records(read_records(where, rules), terms, rules, b"secret")
    assert len(data.train.y) + len(data.test.y) == 40
    assert sorted({round(5 * float(x) + 5, 3) for x in data.train.x[:, 0]})[0] == 0.5, "0,5 is a half"
    found = check_experiment(where, Experiment.make(BY_SCHEMA))
    assert found.records == {"train": 32, "test": 8}
    text = (where / "site.toml").read_text()
    (where / "site.toml").write_text(text.replace('decimal = ","', 'decimal = "."'))
    refusal = check_experiment(where, Experiment.make(BY_SCHEMA)).refusal
    assert refusal is not None
    assert "not numeric ('0,5' in line 2" in refusal


def test_experiments_with_other_columns_than_agreed_are_refused_unseen(tmp_path: Path) -> None:
    where = odd_site(tmp_path, schema=agreed(tmp_path, range=(0.0, 12.0)))
    (where / "data.csv").unlink()
    (where / "data.csv").write_text("not;even;a\ntable;of;these\n")
    refusal = check_experiment(where, Experiment.make(BY_SCHEMA)).refusal
    assert refusal is not None
    assert "The column 'dose' of its schema is not what `schema` says." in refusal
    assert "declares no schema" in str(check_experiment(where, Experiment.make(DECLARED)).refusal)
    turned = {**BY_SCHEMA, "table": {"columns": dict(reversed(SCHEMA["columns"].items()))}}
    (where / "schema.toml").write_text(agreed(tmp_path).read_text())
    assert "another order of columns" in str(check_experiment(where, Experiment.make(turned)).refusal)


def test_a_site_is_not_made_of_records_that_do_not_fit_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "less.toml"
    less = {name: one for name, one in SCHEMA["columns"].items() if name != "sex"}
    path.write_text(toml(Schema.parse({"columns": less}), [], {}))
    with pytest.raises(UserError, match="has the column 'sex', which the schema does not name"):
        odd_site(tmp_path, schema=path)
    assert [path.name for path in (tmp_path / "odd").iterdir()] == ["data.csv"], "nothing was made"
    with pytest.raises(UserError, match="the schema's is 'ill'"):
        Site.create(tmp_path / "odd", "odd", Path("data.csv"), label="sex", schema=agreed(tmp_path))


def test_a_change_of_the_agreed_schema_changes_the_rules_digest(tmp_path: Path) -> None:
    where = odd_site(tmp_path, schema=agreed(tmp_path))
    before = read_rules(where).digest(b"secret")
    (where / "schema.toml").write_text(agreed(tmp_path, range=(0.0, 12.0)).read_text())
    assert read_rules(where).digest(b"secret") != before
