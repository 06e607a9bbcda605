"""A site's own papers: its statement over all runs, and its ledger, listed and verified."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from federations import Federation, federation
from helpers import command, refused
from scipy.stats import norm

from sordino.deploy.site.ledger import Entry, SiteLedger, row_from
from sordino.deploy.site.site import Site
from sordino.deploy.site.spending import SiteSpending
from sordino.deploy.site.status import status
from sordino.deploy.site.verify import COLUMNS, paid_by_records, verify_site
from sordino.deploy.site.witness import Witness
from sordino.privacy.accounting.gaussian import attack_accuracy, epsilon_of, mu_of
from sordino.privacy.unit import Unit
from sordino.report.site_statement import SiteRun, attack_curve, site_statement_of
from sordino.report.statement_pages import hypertext, markdown

WHOLE: dict[str, Any] = {"method": "dp-fedavg", "rounds": 2, "epsilon": 3.0}
RECORDS: dict[str, Any] = {"method": "dp-fedsgd", "rounds": 2, "epsilon": 2.0}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Sites that protect themselves as a whole, after two runs."""
    with federation(tmp_path_factory.mktemp("whole"), **WHOLE) as made:
        made.allow_runs(3)
        made.run()
        made.run()
        yield made


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Sites that protect records, after a run."""
    with federation(tmp_path_factory.mktemp("records"), **RECORDS) as made:
        made.run()
        made.sites[0].close()
        yield made


@pytest.fixture
def site(records: Federation, tmp_path: Path) -> Path:
    """A copy of a site that protects records, and of its witness."""
    shutil.copytree(records.folders[0], tmp_path / "site")
    shutil.copytree(records.witness(0).parent, tmp_path / "witness")
    return tmp_path / "site"


def append(folder: Path, *entries: Entry) -> None:
    """Append rows to a site's ledger and bring its witness up to date, as a site does."""
    with SiteLedger(folder) as ledger:
        with ledger.transaction():
            ledger.append(list(entries))
        Witness(_witness(folder), ledger.fact("identity")).update(ledger)


def _witness(folder: Path) -> Path:
    (found,) = (folder.parent / "witness").glob(f"{status(folder)['identity']}.json")
    return found


def test_a_site_that_protects_itself_adds_up_its_runs(whole: Federation) -> None:
    """Two runs of mu each come to the square root of two times mu, for every observer."""
    found = site_statement_of(whole.folders[0])
    assert [one.name for one in found.runs] == ["dp-fedavg-deployed-1", "dp-fedavg-deployed-2"]
    assert [one.left for one in found.runs] == [{"update": 2}] * 2
    assert [one.state for one in found.runs] == ["done"] * 2
    for run in found.runs:
        assert run.epsilon == pytest.approx(epsilon_of(mu_of(3.0, 1e-5), found.delta), rel=1e-3)
    outsider = found.observers[0]
    assert outsider.mu == pytest.approx(2**0.5 * mu_of(3.0, 1e-5), rel=1e-4)
    assert outsider.attack == pytest.approx(attack_accuracy(outsider.mu or 0))
    assert outsider.hits["0.01"] == pytest.approx(norm.cdf(norm.ppf(0.01) + (outsider.mu or 0)))
    assert {one.name: one.epsilon for one in found.observers} == pytest.approx(status(whole.folders[0])["spent"])
    assert found.spent == outsider.epsilon
    assert found.limit == 9.0
    assert found.unit == "client"


def test_a_site_that_protects_records_counts_what_it_reserved(records: Federation) -> None:
    found = site_statement_of(records.folders[0])
    outsider, _, server = found.observers
    assert outsider.epsilon == pytest.approx(2.0, rel=1e-3)
    assert outsider.attack == pytest.approx(attack_accuracy(mu_of(outsider.epsilon or 0, 1e-5)), rel=1e-6)
    assert outsider.hits["0.001"] == pytest.approx(norm.cdf(norm.ppf(0.001) + mu_of(outsider.epsilon or 0, 1e-5)))
    assert server.hits["0.001"] > outsider.hits["0.001"]
    assert found.runs[0].left == {"labels": 1, "gradient": 2}
    assert found.trust[0].startswith("The server and the other sites must not pool")
    assert "site-0, site-1, site-2" in " ".join(found.trust)
    assert "rows, not persons" in found.neighbours or "not one person" in found.protects


def test_the_statement_of_a_site_has_all_that_is_asked_of_it(records: Federation, tmp_path: Path) -> None:
    folder = records.folders[0]
    for name in ("s.html", "s.md", "s.json"):
        outcome = command("statement", f"{folder}/", "-o", tmp_path / name)
        assert outcome.code == 0, outcome.err
    text, page = (tmp_path / "s.md").read_text(), (tmp_path / "s.html").read_text()
    headings = re.findall("^## (.*)$", text, re.MULTILINE)
    assert headings == [
        *("In half a minute", "What left this site", "What somebody could learn from all of it"),
        *("Who has to be trusted", "What is public, and who says so", "What these figures do not cover"),
        *("Who may get what", "How well the models predict here", "Was it attacked?", "How to check it"),
        "Annex for a data-protection impact assessment",
    ]
    assert page.count("<svg") == 2
    head = status(folder)["ledger"]["head"]
    assert head in text
    assert f"`sordino ledger {folder} --verify`" in text
    glance = dict(site_statement_of(folder).page().glance)
    read = re.findall(r"[\w']+", re.sub("`.*?`", "", " ".join(glance.values())))
    assert len(read) <= 150, "half a minute, at five words a second"
    assert "100% of its owner's limit" in glance["How much is left."]
    assert "epsilon" not in " ".join(glance.values())
    twin = json.loads((tmp_path / "s.json").read_text())
    assert twin["ledger"]["head"] == head
    metrics = status(folder)["runs"][0]["metrics"]
    assert f"| dp-fedsgd-deployed-1 | {metrics['accuracy']:.1%} |" in text


def test_the_twin_of_a_site_has_the_registrys_fields(whole: Federation, tmp_path: Path) -> None:
    outcome = command("statement", whole.folders[0], "--registry", "-o", tmp_path / "r.json", "--json")
    document = outcome.document
    assert json.loads((tmp_path / "r.json").read_text()) == document
    deployment = document["deployment"]
    assert deployment["deployment_model"]["release_type"] == "Many releases"
    spent = status(whole.folders[0])["spent"]["outsider"]
    assert deployment["privacy_loss"]["privacy_parameters"] == {"epsilon": spent, "delta": pytest.approx(3e-5)}
    assert status(whole.folders[0])["ledger"]["head"] in deployment["implementation"]["additional_information"]


def test_without_a_roster_only_the_sites_own_noise_counts(records: Federation, site: Path) -> None:
    text = (site / "site.toml").read_text()
    (site / "site.toml").write_text(re.sub(r"(?m)^(roster|witnesses) = .*$", "", text))
    found = site_statement_of(site)
    assert found.planned_for == "server"
    assert found.roster is None
    assert found.trust[0].startswith("Nobody but this site")
    assert "have changed since this site was last open" in " ".join(found.warnings)
    assert dict(found.page().glance)["Attention."] == found.warnings[0]
    assert "For experts" not in markdown(found)


def test_a_site_that_has_done_nothing_has_a_statement(tmp_path: Path) -> None:
    with federation(tmp_path, **RECORDS) as made:
        found = site_statement_of(made.folders[1])
        assert found.runs == []
        assert [one.attack for one in found.observers] == [0.5] * 3
        assert found.observers[0].hits["0.001"] == pytest.approx(0.001)
        assert "has not taken part in a run yet" in hypertext(found)
        assert "Nothing has left it" in markdown(found)
        assert found.audit_command == "sordino audit EXPERIMENT.toml"


def test_each_of_several_outcomes_is_named(tmp_path: Path) -> None:
    """In the annex, and with its own figure beside the mean."""
    site = tmp_path / "north"
    site.mkdir()
    (site / "visits.csv").write_text("age,cough,fever\n" + "50,no,yes\n60,yes,no\n" * 10)
    labels = "".join(f'[columns.{name}]\nkind = "label"\nvalues = ["no", "yes"]\n' for name in ("cough", "fever"))
    (tmp_path / "schema.toml").write_text(f'[columns.age]\nkind = "number"\nrange = [0, 100]\n{labels}')
    keys = {"unit": Unit.RECORD, "max_epsilon": 4.0, "max_delta": 1e-5, "min_cohort": 3, "witness": Path("../witness")}
    Site.create(site, "north", Path("visits.csv"), schema=tmp_path / "schema.toml", **keys)
    found = site_statement_of(site)
    metrics = {"accuracy": 0.8, "auc": 0.7, "accuracy[cough]": 0.9, "auc[cough]": 0.6, "accuracy[fever]": 0.7}
    run = SiteRun("run-1", "dp-fedsgd", "done", 3, {"gradient": 3}, 1.0, metrics)
    text = markdown(replace(found, runs=[run]))
    assert "The file `visits.csv`; the columns `cough` and `fever` are predicted." in text
    head = (
        "since the run | accuracy, mean of the outcomes | AUC, mean of the outcomes | accuracy, cough | accuracy, fever"
    )
    assert f"| {head} |\n" in text
    assert "| run-1 | 80.0% | 70.0% | 90.0% | 70.0% |" in text


def test_of_a_restored_site_no_figure_is_stated(records: Federation, site: Path) -> None:
    """Its witness has seen rows that the folder lacks."""
    with SiteLedger(site) as ledger:
        private = ledger.fact("identity")
    copy = site.parent / "copy.db"
    shutil.copy(site / "site.db", copy)
    append(site, Entry("misfit", {"about": "x"}))
    shutil.copy(copy, site / "site.db")
    assert private
    found = site_statement_of(site)
    assert [one.epsilon for one in found.observers] == [None] * 3
    assert found.warnings[0].startswith("No figure can be given")
    assert dict(found.page().glance)["How well."].startswith("Not at all")
    assert "restored from a backup or copied" in refused("ledger", site, "--verify")


def test_refusals_that_depended_on_data_are_not_covered(site: Path) -> None:
    append(site, Entry("misfit", {"about": "x"}), Entry("misfit", {"about": "y"}))
    assert any(
        one.startswith("This site refused 2 times because of its data") for one in site_statement_of(site).not_covered
    )


def test_a_record_pays_twice_for_what_its_site_released_as_a_whole_and_what_runs_reserved() -> None:
    """With mu 0.5 of the site as a whole and an epsilon of 1: two Gaussians, of mu 1 and of the epsilon's mu."""
    spent = SiteSpending("peer", squares=0.25, reserved={"a": (0.75, 5e-6), "b": (0.25, 5e-6)})
    together = math.hypot(1.0, mu_of(1.0, 1e-5))
    attack, mu, hits = attack_curve(spent, Unit.RECORD)
    assert mu is None
    assert attack == pytest.approx(attack_accuracy(together))
    assert hits(0.001) == pytest.approx(norm.cdf(norm.ppf(0.001) + together))
    attack, mu, hits = attack_curve(SiteSpending("peer", squares=0.25), Unit.CLIENT)
    assert (attack, mu, hits(0.1)) == pytest.approx((attack_accuracy(0.5), 0.5, norm.cdf(norm.ppf(0.1) + 0.5)))


# ---- the ledger


def test_a_whole_ledger_is_verified(site: Path, whole: Federation) -> None:
    outcome = command("ledger", f"{site}/", "--verify")
    assert outcome.code == 0, outcome.err
    assert "an unbroken chain" in outcome.out
    head = status(site)["ledger"]["head"]
    assert f"head {head}" in outcome.out
    document = command("ledger", site, "--verify", "--json").document
    assert document["disagreements"] == []
    assert document["epsilon"] == pytest.approx(status(site)["spent"])
    assert (document["head"], document["rows"]) == (head, status(site)["ledger"]["rows"])
    assert verify_site(whole.folders[1]).disagreements == []


def test_the_rows_of_a_site_for_people_and_programs(site: Path) -> None:
    assert re.search(r"dp-fedsgd-deployed-1 +gradient +2 +2 +yes", command("ledger", site).out)
    rows = list(csv.DictReader(io.StringIO(command("ledger", site, "--csv").out)))
    assert tuple(rows[0]) == COLUMNS
    assert [row["release"] for row in rows if row["kind"] == "release"] == ["labels", "gradient", "gradient"]
    document = command("ledger", site, "--json").document
    assert document["rows"][-1]["link"] == document["head"]
    assert {row["run"] for row in document["rows"] if "run" in row} == {"dp-fedsgd-deployed-1"}
    assert "random" not in document["rows"][0]


def test_an_altered_row_is_found(site: Path) -> None:
    with SiteLedger(site) as ledger:
        ledger.execute("update ledger set content = replace(content, 'gradient', 'gradiant') where position = 8")
        ledger.execute("update ledger set content = replace(content, '\"round\": 0', '\"round\": 1')")
    assert "was altered at row" in refused("ledger", site, "--verify")


def test_a_row_that_no_run_paid_for_is_found(site: Path) -> None:
    """A release of a run in which the site never enrolled, and which reserved nothing."""
    with SiteLedger(site) as ledger:
        release = next(one for one in ledger.entries() if one.kind == "release")
    stray = {**release.content, "ask": ["other 0123", *release.content["ask"][1:]]}
    append(site, Entry("release", stray))
    found = verify_site(site).disagreements
    assert found == [
        "Something left for the run 'other', in which this site never enrolled.",
        "The run 'other' released something of records, but reserved nothing.",
    ]
    assert "2 problems in the ledger of the site site-0" in command("ledger", site, "--verify").err
    outcome = command("ledger", site, "--verify", "--json")
    assert outcome.code == 2
    assert outcome.document["disagreements"] == found


def test_more_than_was_reserved_is_found(site: Path) -> None:
    """One gradient more than the plan of the run has."""
    with SiteLedger(site) as ledger:
        release = [one for one in ledger.entries() if one.kind == "release"][-1]
    append(site, release)
    found = verify_site(site).disagreements
    assert len(found) == 3, "for each observer"
    assert found[0].startswith("For the outsider the run 'dp-fedsgd-deployed-1' has cost epsilon 2.")


def test_more_than_the_rules_allow_is_found(site: Path) -> None:
    text = (site / "site.toml").read_text()
    (site / "site.toml").write_text(re.sub(r"(?m)^max_epsilon = .*$", "max_epsilon = 1.5", text))
    found = verify_site(site).disagreements
    assert any("epsilon is 2.00 for the outsider, but max_epsilon is 1.5" in one for one in found)
    assert any("are not those that the ledger last noted" in one for one in found)


def test_the_cost_of_a_run_is_computed_from_its_rows_alone(records: Federation) -> None:
    with SiteLedger(records.folders[0]) as ledger:
        entries = ledger.entries()
    rows = [row_from(one) for one in entries if one.kind == "release"]
    (reserved,) = [one.content for one in entries if one.kind == "reserve"]
    assert paid_by_records(rows, reserved["delta"]) == pytest.approx(reserved["views"], rel=1e-6)
    assert paid_by_records(rows[:2], reserved["delta"])["outsider"] < 0.9 * reserved["views"]["outsider"]
