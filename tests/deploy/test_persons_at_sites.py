"""Sites protect persons with all of their rows: as a simulation does, by rules of their own, over all runs."""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import federation
from test_equality import check_equal

from sordino.deploy.site.data import encode_records, read_records
from sordino.deploy.site.ledger import Entry
from sordino.deploy.site.rules import RefusedError, Rules, SitePolicy
from sordino.deploy.site.session import reservation_entry
from sordino.deploy.site.spending import SiteSpending
from sordino.deploy.site.status import status
from sordino.deploy.site.verify import verify_site
from sordino.deploy.terms import terms_of
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.privacy.accounting.gaussian import epsilon_of, mu_of
from sordino.privacy.integers import CLIENTS, Gap
from sordino.privacy.unit import Unit

DELTA = 1e-3
DECLARED: dict[str, Any] = {
    **{"clients": 3, "shape": [2], "columns": ["a", "b"]},
    **{"labels": ["0", "1"], "records_each": 40, "rounds": 3, "epsilon": 4.0},
    **{"method": "dp-fedsgd", "model": "logistic", "delta": DELTA, "person": "patient"},
}


@pytest.fixture(scope="module")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four clinics whose patients have up to six rows."""
    folder, random = tmp_path_factory.mktemp("clinics"), np.random.default_rng(3)
    for persons, name in zip((40, 25, 33, 20), ("east", "north", "south", "west"), strict=True):
        person = np.arange(persons).repeat(random.integers(1, 7, persons))
        x = (random.normal(size=(persons, 3))[person] + 0.3 * random.normal(size=(len(person), 3))).astype(np.float32)
        y = (x @ [1.0, -1.0, 0.5] + random.normal(size=len(person)) > 0).astype(np.int64)
        np.savez(folder / f"{name}.npz", x=x, y=y, person=person, x_test=x[:9], y_test=y[:9], person_test=person[:9])
    return folder


@pytest.mark.parametrize("changes", [{}, {"set": {"sampling": 0.5}}, {"method": "dp-fedavg-record"}], ids=str)
def test_a_deployment_equals_its_simulation(changes: dict[str, Any], clinics: Path, tmp_path: Path) -> None:
    keys = {"data": str(clinics), "partition": None, "method": "dp-fedsgd", "model": "logistic", "delta": DELTA}
    with federation(
        tmp_path, 4, **{**keys, "noise": "integers", "max_rows_per_person": 3, "person": "person", **changes}
    ) as made:
        check_equal(made)


@pytest.mark.parametrize("sites", [1, 2])
def test_a_deployment_states_what_persons_pay(sites: int, clinics: Path, tmp_path: Path) -> None:
    keys = {"data": str(clinics), "partition": None, "method": "dp-fedsgd", "model": "logistic", "delta": DELTA}
    with federation(tmp_path, 4, **{**keys, "person": "person", "max_sites_per_person": sites, "epsilon": 4.0}) as made:
        summary = made.run()
        assert summary.unit is Unit.PERSON
        assert summary.epsilon["outsider"] == pytest.approx(4.0, rel=2e-3)
        rules = made.sites[0].context.policy.rules
        assert (rules.unit, rules.max_sites_per_person) == (Unit.PERSON, sites if sites > 1 else None)
        with pytest.raises(UserError):
            made.run()  # the budget is spent


def terms(**changes: Any) -> Any:
    return terms_of(Experiment.make(DECLARED | changes))


def policy(**changes: Any) -> SitePolicy:
    keys = {"name": "s", "data": Path("r.csv"), "unit": "person", "max_epsilon": 8.0, "max_delta": DELTA}
    keys |= {"person": "patient"}
    return SitePolicy(Rules(**{**keys, "min_cohort": 3, "methods": ("dp-fedsgd",), **changes}), None)


def test_rules_name_the_unit_and_how_many_sites_know_a_person() -> None:
    policy().check_terms(terms(), 0)
    policy(max_sites_per_person=2).check_terms(terms(max_sites_per_person=2), 0)
    policy().check_terms(terms(max_sites_per_person=3), 0)
    for mine, declared, words in (
        ({}, {"person": None}, "it protects one record, but `unit` says person"),
        ({"unit": "record"}, {}, "it protects one person, but `unit` says record"),
        ({"unit": "client"}, {}, "it protects records, but `unit` says that this site as a whole"),
        ({"person": "visit"}, {}, "it tells persons apart by 'patient', but `person` says 'visit'"),
        ({"max_sites_per_person": 3}, {"max_sites_per_person": 2}, "known to 2 of the sites"),
    ):
        with pytest.raises(RefusedError, match=words):
            policy(**mine).check_terms(terms(**declared), 0)


def test_a_site_that_protects_persons_says_who_they_are() -> None:
    with pytest.raises(ValueError, match="needs `person`"):
        policy(person=None)


def test_a_site_reserves_for_persons_of_sites_with_other_rates() -> None:
    found = terms(max_sites_per_person=2, set={"budgets": "1,4,4", "sampling": 0.5}, epsilon=None)
    own, others = found.reserved(0), found.reserved(1)
    assert own == others, "whichever sites know a person"


def reserved(run: str, epsilon: float, **more: Any) -> Entry:
    return Entry("reserve", {"run": run, "epsilon": epsilon, "delta": DELTA / 4, **more})


def test_what_protected_rows_says_nothing_of_persons() -> None:
    rows, persons = reserved("one", 2.0), reserved("two", 3.0, unit="person", person="patient")
    assert SiteSpending.of([persons], "server").epsilon(Unit.PERSON, DELTA) == 3.0
    assert SiteSpending.of([rows], "server").epsilon(Unit.RECORD, DELTA) == 2.0
    assert SiteSpending.of([rows], "server").epsilon(Unit.PERSON, DELTA) == math.inf
    assert SiteSpending.of([persons], "server").epsilon(Unit.RECORD, DELTA) == math.inf
    assert SiteSpending.of([persons], "server").epsilon(Unit.CLIENT, DELTA) == math.inf


def test_what_a_whole_site_sent_costs_a_person_at_each_of_its_sites() -> None:
    spending = SiteSpending("server", squares=0.04)
    for unit, sites, times in ((Unit.CLIENT, 1, 1), (Unit.RECORD, 1, 2), (Unit.PERSON, 1, 2), (Unit.PERSON, 3, 6)):
        assert spending.epsilon(unit, DELTA, sites) == pytest.approx(epsilon_of(times * 0.2, DELTA))
    spending, gap = SiteSpending("server", 0.04, {4: 10**14}), Gap(2 * 10**14, 1, CLIENTS)
    expected = gap.spent(functools.partial(epsilon_of, 4 * 0.2), DELTA)
    assert spending.epsilon(Unit.PERSON, DELTA, 2) == pytest.approx(expected, rel=1e-9)


def test_what_a_run_reserved_holds_for_the_persons_that_it_was_about() -> None:
    """By the column that told them apart, and at so many sites at the most: rules may have changed since."""
    spending = SiteSpending.of([reserved("one", 3.0, unit="person", sites=2, person="patient")], "server")
    for changes, epsilon in (
        ({}, 3.0),
        ({"max_sites_per_person": 2}, 3.0),
        ({"max_sites_per_person": 3}, math.inf),
        ({"person": "visit"}, math.inf),
    ):
        assert spending.by_rules(policy(**changes).rules) == epsilon
        assert spending.fits(policy(**changes).rules) == math.isfinite(epsilon)
    (entry,) = (reservation_entry("run", terms(**keys), 0) for keys in ({"max_sites_per_person": 2},))
    assert (entry.content["unit"], entry.content["sites"], entry.content["person"]) == ("person", 2, "patient")


def table(folder: Path, text: str) -> Any:
    folder.mkdir(exist_ok=True)
    (folder / "r.csv").write_text(text)
    return read_records(folder, policy().rules)


def test_a_sites_table_is_read_by_person(tmp_path: Path) -> None:
    lines = [f"{person},{person}.{row},1,{person % 2}" for person in range(30) for row in range(1 + person % 4)]
    file = table(tmp_path, "patient,a,b,label\n" + "\n".join(lines) + "\n")
    found = encode_records(file, terms(max_rows_per_person=3), policy().rules, b"secret")
    persons = found.train.persons
    assert persons is not None
    assert found.train.units.tolist() == [24] * 3
    assert int(persons.rows.max()) == 3
    trained, tested = ({int(age) for age in part.part(1)[0][:, 0]} for part in (found.train, found.test))
    assert not trained & tested
    places, shares = persons.places(2)
    assert np.allclose(shares.sum(dim=1), 1)
    assert (found.train.x[places][:, 0, 0].int() == found.train.x[places][:, 2, 0].int()).all()


def test_a_site_without_codes_of_persons_refuses(tmp_path: Path) -> None:
    np.savez(tmp_path / "r.npz", x=np.ones((10, 2)), y=np.arange(10) % 2)
    mine = policy(data=Path("r.npz")).rules
    with pytest.raises(UserError, match="no array 'patient' with the code"):
        read_records(tmp_path, mine)
    rows = policy(data=Path("r.npz"), unit="record", person=None).rules
    with pytest.raises(RefusedError, match="whom its records are about"):
        encode_records(read_records(tmp_path, rows), terms(), rows, b"secret")


def test_noise_of_each_sites_own_is_for_persons_of_one_site() -> None:
    assert terms(method="dp-fedavg-record").unit is Unit.PERSON
    with pytest.raises(UserError, match="max_sites_per_person above 1 take dp-fedsgd"):
        terms(method="dp-fedavg-record", max_sites_per_person=2)


def test_persons_are_part_of_what_everybody_agrees_on() -> None:
    """Experiments without them have the identity that they had before there were any."""
    found = {terms(**one).identity for one in ({}, {"person": None}, {"person": "p"}, {"max_rows_per_person": 3})}
    assert len(found) == 4
    assert (
        Experiment.make(terms(max_sites_per_person=2).carried()).person_rules == terms(max_sites_per_person=2).persons
    )


def test_a_site_reserves_what_a_person_of_several_sites_may_pay() -> None:
    alone, twice = terms(), terms(max_sites_per_person=2)
    for one in (alone, twice):
        assert one.reserved(0)["outsider"] == pytest.approx(4.0, rel=2e-3)
    gaps = [one.calibration.gap_of_sums("outsider").coordinates for one in (alone, twice)]
    assert gaps[1] == 2 * gaps[0] > 0


def test_a_ledger_is_verified_for_persons_at_all_of_their_sites(clinics: Path, tmp_path: Path) -> None:
    """What whole sites sent costs a person at three of them six times their mu, wherever it is told."""
    keys = {"data": str(clinics), "partition": None, "method": "dp-fedavg", "model": "logistic", "delta": DELTA}
    with federation(tmp_path, 4, **keys, epsilon=0.5) as made:
        made.run()
        for site in made.sites:
            site.close()
        path = made.folders[0] / "site.toml"
        text = re.sub(r"(?m)^(max_epsilon|max_sites_per_person|person|unit) = .*\n", "", path.read_text())
        rules = 'unit = "person"\nperson = "person"\nmax_sites_per_person = 3\nmax_epsilon = 1.5\n'
        path.write_text(rules + text)
        found, told = verify_site(made.folders[0]), status(made.folders[0])
        assert found.epsilon == told["spent"]
        assert found.epsilon["outsider"] == pytest.approx(epsilon_of(6 * mu_of(0.5, DELTA), DELTA), rel=1e-2)
        assert any("but max_epsilon is 1.5" in one for one in found.disagreements)
