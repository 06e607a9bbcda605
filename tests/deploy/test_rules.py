"""What a site refuses of an experiment by its names alone, before anything of it is loaded."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sordino.deploy.roster import Member, read_roster, written_roster
from sordino.deploy.rules import Allowed, RefusedError, Rules
from sordino.deploy.terms import Terms, terms_of
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.privacy.gate import Gate
from sordino.privacy.mechanism import MECHANISMS
from sordino.privacy.noise import Secure, Seeded
from sordino.privacy.release import Public

CARRIED = {"method": "dp-fedavg", "model": "mlp", "set": {"clip": 0.5}}


def allowed() -> Allowed:
    return Allowed(Rules(name="north", data=Path("records.csv"), label="y"), None)


def test_models_that_a_site_would_not_read_are_refused_at_once() -> None:
    """Two models of 800,000 bytes at the end of a run that blends, one of any other."""
    rules = Allowed(Rules(name="north", data=Path("records.csv"), label="y", unit="record", max_message_mb=1), None)
    terms: Any = SimpleNamespace(
        method=SimpleNamespace(unit="record"), initial=torch.zeros(200_000), experiment=SimpleNamespace(personal="own")
    )
    rules.check_terms(terms)
    terms.experiment.personal = "blend"
    with pytest.raises(RefusedError, match="larger than max_message_mb, 1"):
        rules.check_terms(terms)


def test_names_that_a_site_knows_are_looked_at_further() -> None:
    allowed().check_experiment(CARRIED)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"method": "os:path"}, "method"),
        ({"model": "antigravity:Network"}, "is not among `models`"),
        ({"set": {"this:Class.tau": 1}}, "names code or a file"),
        ({"set": {"schema": "schema.toml"}}, "names code or a file"),
    ],
)
def test_names_that_would_load_code_are_refused_by_themselves(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RefusedError, match=sentence):
        allowed().check_experiment(CARRIED | changes)


def terms(**changes: Any) -> Terms:
    """Of a small experiment over ten sites."""
    given = {"clients": 10, "shape": [4], "labels": ["no", "yes"], "records_each": 100, "rounds": 2, "epsilon": 4.0}
    return terms_of(Experiment.make(given, {"method": "dp-fedavg", "model": "logistic", **changes}))


def rules(**changes: Any) -> Allowed:
    return Allowed(Rules(name="north", data=Path("records.csv"), label="y", **changes), None)


@pytest.mark.parametrize(
    ("asked", "owner", "sentence"),
    [
        ({"method": "dp-fedavg-record"}, {"unit": "client"}, "this site as a whole is to be protected"),
        ({"minimum_cohort": 7}, {"min_cohort": 8}, "minimum_cohort is 7, but min_cohort 8"),
        ({"minimum_cohort": 9, "colluders": 1}, {"colluders": 2}, "it counts on 1 colluders at the most"),
    ],
    ids=["unit", "min_cohort", "colluders"],
)
def test_what_the_owner_asks_for_is_kept(asked: dict[str, Any], owner: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RefusedError, match=sentence):
        rules(**owner).check_terms(terms(**asked))


def test_an_experiment_that_keeps_all_limits_is_allowed() -> None:
    rules(unit="record").check_terms(terms(method="dp-fedavg-record"))
    rules(min_cohort=8, colluders=1).check_terms(terms(minimum_cohort=9, colluders=1))


def test_without_a_roster_nobody_elses_noise_is_counted_on() -> None:
    """A server could have invented all others: the promise is about single messages then."""
    member = Member("north", bytes(32))
    assert rules().view == "server"
    assert dataclasses.replace(rules(), roster=(member,)).view == "outsider"


@pytest.mark.parametrize("multiplier", [1.0, 1e6])
def test_noise_that_eats_the_signal_is_refused_before_anything_is_computed(multiplier: float) -> None:
    found = terms()
    noise = dataclasses.replace(found.allowance.of_clients, multiplier=multiplier)
    gate = Gate(dataclasses.replace(found.allowance, noise=noise), Secure(Seeded(0)), MECHANISMS["integers"])
    message = {"global": found.initial, "clip": 0.5}
    asked = (found, found.steps()["local"], Public(message, [0], {}, found.learner.layout.layers), gate)
    if multiplier < 10:
        rules().check_question(*asked)
        return
    with pytest.raises(RefusedError, match="eat the signal"):
        rules().check_question(*asked)


@pytest.mark.parametrize("twin", [Member("south", bytes(32)), Member("north", b"1" * 32)], ids=["identity", "name"])
def test_nobody_stands_twice_in_a_roster(twin: Member, tmp_path: Path) -> None:
    """One site under two names would count as two shares of noise."""
    north = Member("north", bytes(32))
    (tmp_path / "roster.toml").write_text(written_roster([north, twin]))
    with pytest.raises(UserError, match=r"has the same (name|identity) twice"):
        read_roster(tmp_path / "roster.toml")
