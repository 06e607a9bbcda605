"""What a site refuses of an experiment by its names alone, before anything of it is loaded."""

import dataclasses
import itertools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import SITE_LIMITS

from sordino.deploy.protocol.roster import Member, read_roster, roster_toml
from sordino.deploy.site.ledger import SiteLedger
from sordino.deploy.site.rules import RULES_CHANGED, RefusedError, Rules, SitePolicy, read_rules
from sordino.deploy.site.site import Site, rules_toml
from sordino.deploy.site.status import status
from sordino.deploy.terms import DeployedTerms, terms_of
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.budget.record_level_plan import plan_records
from sordino.privacy.gate import Gate
from sordino.privacy.mechanism import MECHANISMS
from sordino.privacy.noise import Secure, Seeded
from sordino.privacy.release import Public
from sordino.privacy.unit import Unit
from sordino.util import files
from sordino.util.package import package_hash

SUMS = {"method": "dp-fedsgd"}
CARRIED = {"method": "dp-fedavg", "model": "mlp", "set": {"clip": 0.5}}


def policy() -> SitePolicy:
    return SitePolicy(Rules(name="north", data=Path("records.csv"), label="y", **SITE_LIMITS), None)


def test_models_that_a_site_would_not_read_are_refused_at_once() -> None:
    """Two models of 800,000 bytes at the end of a run that blends, one of any other."""
    given = {"label": "y", **SITE_LIMITS, "unit": "record", "max_message_mb": 1}
    rules = SitePolicy(Rules(name="north", data=Path("records.csv"), **given), None)
    terms: Any = SimpleNamespace(
        method=SimpleNamespace(unit=Unit.RECORD),
        unit=Unit.RECORD,
        sites=1,
        persons=None,
        initial=torch.zeros(200_000),
        experiment=SimpleNamespace(personal="own"),
        allowance=Allowance(records=plan_records([100], np.array([1.0]), 1e-5, batch=10, epochs=1, turns=1)),
    )
    rules.check_terms(terms, 0)
    terms.experiment.personal = "blend"
    with pytest.raises(RefusedError, match="larger than max_message_mb, 1"):
        rules.check_terms(terms, 0)


def test_names_that_a_site_knows_are_looked_at_further() -> None:
    policy().check_experiment(CARRIED)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"method": "os:path"}, "method"),
        ({"model": "antigravity:Network"}, "is not among `models`"),
        ({"set": {"this:Class.tau": 1}}, "names code or a file"),
        ({"set": {"schema": "schema.toml"}}, "names code or a file"),
        ({"set": {"features.extractor": "antigravity:Network"}}, "names code or a file"),
        ({"set": {"features": {"weights": "secret.npz"}}}, "names code or a file"),
    ],
)
def test_names_that_would_load_code_are_refused_by_themselves(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RefusedError, match=sentence):
        policy().check_experiment(CARRIED | changes)


def terms(**changes: Any) -> DeployedTerms:
    """DeployedTerms of a small experiment over ten sites."""
    given = {"clients": 10, "shape": [4], "labels": ["no", "yes"], "records_each": 100, "rounds": 2, "epsilon": 4.0}
    return terms_of(Experiment.make(given, {"method": "dp-fedavg", "model": "logistic", **changes}))


def rules(**changes: Any) -> SitePolicy:
    return SitePolicy(
        Rules(
            name="north",
            data=Path("records.csv"),
            label="y",
            **{**SITE_LIMITS, "methods": ("dp-fedavg", "dp-fedavg-record", "dp-fedsgd"), **changes},
        ),
        None,
    )


@pytest.mark.parametrize(
    ("asked", "owner", "sentence"),
    [
        ({"method": "dp-fedavg-record"}, {"unit": "client"}, "this site as a whole is to be protected"),
        ({"minimum_cohort": 7}, {"min_cohort": 8}, "minimum_cohort is 7, but min_cohort is 8"),
        (
            {"minimum_cohort": 9, "colluders": 1},
            {"colluders": 2},
            "it assumes at most 1 colluders, but `colluders` is 2",
        ),
        ({"rounds": 30, "spare_turns": 2}, {"max_rounds": 31}, "in up to 32 rounds, but max_rounds is 31"),
        (
            {**SUMS, "set": {"sampling": 0.4}},
            {"unit": "record", "max_sampling": 0.3},
            "samples records with probability 0.4, but max_sampling is 0.3",
        ),
        (
            {**SUMS, "minimum_cohort": 7},
            {"unit": "record", "min_cohort": 8},
            "minimum_cohort is 7, but min_cohort is 8",
        ),
        (
            {**SUMS, "minimum_cohort": 9, "colluders": 1},
            {"unit": "record", "colluders": 2},
            "it assumes at most 1 colluders, but `colluders` is 2",
        ),
        ({**SUMS, "active_server": False}, {"unit": "record"}, "it trusts the server to follow the protocol"),
        (SUMS, {"unit": "client"}, "this site as a whole is to be protected"),
    ],
    ids=[
        *("unit", "min_cohort", "colluders", "max_rounds", "max_sampling"),
        *("min_cohort of sums", "colluders of sums", "trusted server of sums", "unit of sums"),
    ],
)
def test_what_the_owner_asks_for_is_kept(asked: dict[str, Any], owner: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RefusedError, match=sentence):
        rules(**owner).check_terms(terms(**asked), 0)


def test_an_experiment_that_keeps_all_limits_is_allowed() -> None:
    rules(unit="record").check_terms(terms(method="dp-fedavg-record"), 0)
    rules(unit="record", max_rounds=2, max_sampling=1.0, min_cohort=10).check_terms(terms(**SUMS), 0)
    rules(min_cohort=8, colluders=1).check_terms(terms(minimum_cohort=9, colluders=1), 0)


def test_without_a_roster_nobody_elses_noise_is_counted_on() -> None:
    """A server could have invented all others: the promise is about single messages then."""
    member = Member("north", bytes(32))
    assert rules().view == "server"
    assert dataclasses.replace(rules(), roster=(member,)).view == "outsider"


@pytest.mark.parametrize("method", ["dp-fedavg", "dp-fedavg-record", "dp-fedsgd"])
def test_thresholds_outside_the_owners_range_are_refused(method: str) -> None:
    found = terms(method=method)
    gate = Gate(found.at_site(0, 100), Secure(Seeded(0)), MECHANISMS["integers"])
    owner = rules(unit="record", clip=(0.25, 1.5))

    def ask(clip: float) -> None:
        message = {"global": found.initial, "clip": clip}
        public = Public(message, [0], {}, found.learner.layout.layers)
        owner.check_question(found, found.steps()["local"], public, gate)

    for clip in (0.25, 1.0, 1.5):
        ask(clip)
    for clip in (0.249, 1.501):
        with pytest.raises(RefusedError, match=r"a clipping threshold is .*, not between 0\.25 and 1\.5"):
            ask(clip)


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
    (tmp_path / "roster.toml").write_text(roster_toml([north, twin]))
    with pytest.raises(UserError, match=r"has the same (name|identity) twice"):
        read_roster(tmp_path / "roster.toml")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site whose rules are stricter than usual, with every key that may narrow them."""
    (tmp_path / "records.csv").write_text("age,ill\n1,no\n2,yes\n")
    strict: dict[str, Any] = {
        **{"max_epsilon": 1e-3, "max_delta": 1e-12, "min_cohort": 12, "colluders": 11, "unit": "record"},
        **{"methods": ("dp-fedavg", "dp-fedavg-record"), "models": ("logistic",), "clip": (0.25, 1.5)},
        **{"package": package_hash(), "max_message_mb": 12, "max_misfits": 1},
    }
    Site.create(tmp_path, "north", Path("records.csv"), label="ill", **strict)
    return tmp_path


def test_a_file_that_was_cut_short_at_any_byte_allows_nothing_or_the_same(site: Path) -> None:
    whole, rules = (site / "site.toml").read_bytes(), read_rules(site).rules
    accepted = 0
    for length in range(len(whole)):
        (site / "site.toml").write_bytes(whole[:length])
        try:
            found = read_rules(site).rules
        except UserError:
            continue
        assert found == rules, whole[:length][-40:]
        accepted += 1
    assert accepted == 1  # all but the last line's end


@pytest.mark.parametrize("lost", [("max_epsilon",), ("methods", "unit"), ("max_delta",), ("min_cohort", "max_epsilon")])
def test_limits_have_no_defaults(lost: tuple[str, ...], site: Path) -> None:
    lines = (site / "site.toml").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(tuple(f"{key} =" for key in lost))]
    (site / "site.toml").write_text("\n".join(kept))
    with pytest.raises(UserError, match="have no defaults") as refused:
        Site.open(site)
    for key in lost:
        assert f"{key} = " in str(refused.value)


def test_a_change_of_rules_stands_in_the_ledger_and_is_told(site: Path) -> None:
    def opened() -> tuple[list[str], int]:
        there = Site.open(site)
        there.close()
        with SiteLedger(site) as ledger:
            return list(there.notices), ledger.head().position

    assert opened() == ([], 1)
    assert not status(site)["rules_changed"]
    text = (site / "site.toml").read_text()
    (site / "site.toml").write_text(text.replace("max_epsilon = 0.001", "max_epsilon = 8.0"))
    assert read_rules(site).rules.max_epsilon == 8.0
    assert status(site)["rules_changed"]
    assert opened() == ([RULES_CHANGED], 2)
    assert RULES_CHANGED in (site / "site.log").read_text()
    assert opened() == ([], 2)
    assert (status(site)["rules_changed"], status(site)["rules_changes"]) == (False, 1)
    (site / "site.toml").write_text(text)  # back again: another change
    assert opened() == ([RULES_CHANGED], 3)
    with SiteLedger(site) as ledger:
        digests = [entry.content["rules"] for entry in ledger.entries()]
        secret = ledger.fact("secret")
    assert (
        digests[0]
        == digests[2]
        != digests[1]
        == SitePolicy(read_rules(site).rules.model_copy(update={"max_epsilon": 8.0}), None).digest(secret)
    )


def test_another_roster_is_another_rule(site: Path) -> None:
    rules = read_rules(site).rules
    ours, theirs = Member("a", bytes(32)), Member("b", bytes([1] * 32))
    secret = bytes(range(32))
    found = {SitePolicy(rules, roster).digest(secret) for roster in (None, (ours,), (ours, theirs))}
    assert len(found) == 3
    assert SitePolicy(rules, None).digest(bytes(32)) not in found


def test_the_log_of_a_site_is_put_aside_when_it_is_long(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LOG_BYTES", 200)
    there = Site.open(site)
    for _ in range(100):
        there.answer(b"nonsense")
    there.close()
    logs = sorted(path.name for path in site.glob("site.log*"))
    assert logs == ["site.log", "site.log.1", "site.log.2", "site.log.3"]
    assert all((site / name).stat().st_size < 1000 for name in logs)


@pytest.mark.parametrize("sites", [2, 3, 4, 5])
def test_two_groups_of_witnesses_share_one_that_remembers(sites: int, tmp_path: Path) -> None:
    """Worked out for all groups: the fewest that the rules take are as many as are needed, and no fewer would do."""
    members = [Member(f"s{number}", os.urandom(32)) for number in range(sites)]
    (tmp_path / "roster.toml").write_text(roster_toml(members))

    def read(**changes: Any) -> SitePolicy:
        rules = policy().rules.model_copy(update={"roster": Path("roster.toml"), **changes})
        (tmp_path / "site.toml").write_text(rules_toml(rules))
        return read_rules(tmp_path)

    for colluders in range(sites):
        for witnesses in range(1, sites + 1):
            groups = [set(one) for one in itertools.combinations(range(sites - 1), witnesses)]
            if groups and all(len(one & two) > colluders for one in groups for two in groups):
                assert read(witnesses=witnesses, colluders=colluders).rules.witnesses == witnesses
            else:
                with pytest.raises(UserError, match="witnesses is"):
                    read(witnesses=witnesses, colluders=colluders)
    with pytest.raises(UserError, match="need a roster"):
        read(witnesses=1, roster=None)
