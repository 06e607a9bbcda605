"""Statements on runs: the half minute, what section by section must be there, audits, the registry and the annex."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers import QUICK_KEYS, command
from scipy.stats import norm

import sordino
from sordino.report.registry import FILL_IN, blank_fields, registry_yaml
from sordino.report.statement import Statement, statement_of
from sordino.report.statement_facts import find_audit, of_thousand
from sordino.report.statement_pages import hypertext, markdown
from sordino.report.unit_words import WORDS, words_for
from sordino.store.store import Store
from sordino.util.formatting import percent_up

FIELDS: dict[str, Any] = {
    "basic": {
        *("name", "data_curators", "description", "intended_use", "data_product_type", "data_product_region"),
        *("data_product_sector", "publication_date"),
    },
    "dp_variant": {"variant_name", "data_domain", "unprotected_quantities"},
    "privacy_loss": {
        *("privacy_unit", "privacy_unit_details", "number_of_privacy_units", "privacy_parameters"),
        "privacy_parameters_details",
    },
    "deployment_model": {
        *("model_name", "model_name_details", "trust_assumptions", "actors", "release_type", "release_type_details"),
        *("data_source_type", "data_source_type_details", "access_type", "access_type_details"),
    },
    "implementation": {
        *("preprocessing_and_hyperparameter_tuning", "mechanisms", "composition", "post_processing", "justification"),
        *("utility", "additional_information"),
    },
    "administrative": {"evidence_sources", "status", "registry_authors", "tier"},
}
"""Fields of the registry's schema: schemas/deployments-schema.yaml of opendp/deployments-registry-data, 057e5d8."""
VALUES = {
    "data_product_type": {"Summary statistics", "Machine learning model", "Dataset", "Synthetic data"},
    "variant_name": {"Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"},
    "model_name": {"Local", "Central", "Shuffle", "Federated", "Varies"},
    "release_type": {"One release", "Many releases"},
    "data_source_type": {"Static", "Dynamic"},
    "access_type": {"Interactive", "Non-interactive"},
    "status": {"Draft"},
}
"""Values of its enumerations."""


def check_registry(document: Any) -> None:
    """A document has the registry's fields and no others, and values of its enumerations."""
    assert set(document) == {"url_slug", "deployment"}
    assert list(document["deployment"]) == list(FIELDS)
    for part, fields in document["deployment"].items():
        assert set(fields) <= FIELDS[part], part
        for name, value in fields.items():
            assert name not in VALUES or value in VALUES[name], name
            assert name in ("privacy_parameters", "data_curators", "registry_authors") or value is not None
    assert set(document["deployment"]["privacy_loss"].get("privacy_parameters", {})) <= {"epsilon", "delta", "rho"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", document["deployment"]["basic"]["publication_date"])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A run for whole clients, one for records whose noise is shared, one of each client's own, one without noise."""
    folder = tmp_path_factory.mktemp("statements")
    for method in ("dp-fedavg", "dp-fedsgd", "dp-fedavg-record", "fedavg"):
        sordino.run(store=folder, method=method, **({} if method == "fedavg" else {"epsilon": 2}), **QUICK_KEYS)
    return Store(folder)


RUNS = ("dp-fedavg-digits-1", "dp-fedsgd-digits-2", "dp-fedavg-record-digits-3", "fedavg-digits-4")


@pytest.fixture(scope="module")
def told(store: Store) -> dict[str, Statement]:
    return {run: statement_of(store, run) for run in RUNS}


def sections(text: str) -> dict[str, str]:
    """Sections of a statement in Markdown, by heading."""
    return {part.splitlines()[0]: part for part in text.split("\n## ")[1:]}


@pytest.mark.parametrize("run", RUNS)
def test_a_statement_has_all_that_is_asked_of_it(run: str, told: dict[str, Statement]) -> None:
    text = markdown(told[run])
    found = sections(text)
    for heading in (
        *("In half a minute", "What was done", "What a record holds", "What left each client"),
        *("What somebody could learn from it", "All runs on the same data", "Who has to be trusted"),
        *("What is public, and who says so", "What these figures do not cover", "Who may get what"),
        *("How well the models predict", "Was it attacked?", "How to check it"),
        "Annex for a data-protection impact assessment",
    ):
        assert len(found[heading].splitlines()) > 2, heading
    page = hypertext(told[run])
    assert page.count("<svg") == 2, "the best attacks, and the trade-off"
    assert all(f"<h2>{heading}</h2>" in page for heading in found)
    assert told[run].package in found["How to check it"]
    assert told[run].head in found["How to check it"]


@pytest.mark.parametrize("run", RUNS)
def test_the_half_minute_is_short_and_says_what_matters(run: str, told: dict[str, Statement]) -> None:
    found = told[run]
    glance = dict(found.page().glance)
    read = re.findall(r"[\w']+", re.sub("`.*?`", "", " ".join(glance.values())))
    assert len(read) <= 150, "half a minute, at five words a second"
    jargon = ("epsilon", "delta", "neighbour", "gaussian", "sensitivity", "mechanism", "composition")
    assert not [word for word in jargon if word in " ".join(glance.values()).lower()]
    if found.observers[0].epsilon is None:
        assert glance["What is protected."].startswith("Nothing")
        assert glance["How well."].startswith("Not at all")
        return
    assert glance["What is protected."] == words_for(found.unit).plain
    outsider = found.observers[0]
    assert f"at most {of_thousand(outsider.hits['0.001'])} of 1,000" in glance["How well."]
    assert f"guesses right in at most {percent_up(outsider.attack, ' %')} of cases" in glance["How well."]
    assert outsider.attack < 0.61, "an epsilon of 2"


def test_hits_follow_from_the_ledger(store: Store, told: dict[str, Statement]) -> None:
    """Of Gaussian noise on whole clients: Phi(Phi^-1(a) + mu), with the mu that the result has."""
    row = store.get("dp-fedavg-digits-1")
    assert row.result is not None
    for one, mu in zip(told["dp-fedavg-digits-1"].observers, row.result.spent["mu"], strict=True):
        assert one.mu == mu
        for key, value in one.hits.items():
            assert value == pytest.approx(norm.cdf(norm.ppf(float(key)) + mu))
        assert [x for x, _ in one.tradeoff] == sorted(x for x, _ in one.tradeoff)
        assert one.tradeoff[0] == [0.0, 0.0]
        assert one.tradeoff[-1] == [1.0, 1.0]
    server = told["dp-fedsgd-digits-2"].observers[2]
    assert server.mu is None
    assert server.hits["0.001"] > told["dp-fedsgd-digits-2"].observers[0].hits["0.001"] > 0.004
    assert told["fedavg-digits-4"].observers[0].hits["0.001"] == 1.0


def test_shares_are_of_thousand_and_rounded_up() -> None:
    assert [of_thousand(share) for share in (0.0, 0.0011, 0.002, 0.9999, 1.0)] == ["0", "2", "2", "1,000", "1,000"]


def test_who_is_trusted_follows_from_whose_noise_it_is(told: dict[str, Statement], tmp_path: Path) -> None:
    assert told["dp-fedavg-digits-1"].shares == told["dp-fedsgd-digits-2"].shares == 8
    assert told["dp-fedavg-digits-1"].trust[0].startswith("The server and the other clients must not pool")
    assert told["dp-fedavg-record-digits-3"].shares == 1
    assert told["dp-fedavg-record-digits-3"].trust[0].startswith("Nobody but the client itself")
    assert told["fedavg-digits-4"].trust[0].startswith("Everybody who sees what left")
    run = sordino.run(store=tmp_path, method="dp-fedavg", colluders=2, **QUICK_KEYS)["run"]
    found = statement_of(Store(tmp_path), run)
    assert (found.shares, found.colluders) == (6, 2)
    assert found.trust[0].startswith("No more than 2 other clients may pool")


def test_mechanism_random_source_and_floating_point_are_said(told: dict[str, Statement]) -> None:
    text = " ".join(told["dp-fedavg-digits-1"].mechanism)
    assert "Whoever knows the seed can compute the noise" in text
    assert "floating point" in text
    assert "Nothing was limited" in told["fedavg-digits-4"].mechanism[0]


def test_runs_without_noise_may_not_be_given_away(told: dict[str, Statement]) -> None:
    shared = {run: next(one for one in found.recipients if "shared" in one.what) for run, found in told.items()}
    assert shared["dp-fedavg-digits-1"].who == "anybody"
    assert shared["fedavg-digits-4"].who == "only those who are trusted with the records"
    assert "raw test records" in told["dp-fedavg-digits-1"].recipients[-1].who, "accuracies of a simulation"


def test_tuning_counts_other_runs(told: dict[str, Statement], tmp_path: Path) -> None:
    assert "3 other stored runs" in told["dp-fedavg-digits-1"].tuning
    run = sordino.run(store=tmp_path, method="dp-fedavg", **QUICK_KEYS)["run"]
    assert "No other run on these data is stored" in statement_of(Store(tmp_path), run).tuning


def test_utility_of_each_client_stands_there_and_nothing_of_groups(told: dict[str, Statement], store: Store) -> None:
    found = told["dp-fedavg-digits-1"]
    rows = {row["client"]: row["accuracy"] for row in _shown(store)}
    assert found.utility_of_clients == [[name, f"{value:.1%}"] for name, value in rows.items()]
    assert any("No group of persons" in one for one in found.utility)


def _shown(store: Store) -> Any:
    outcome = command("show", "dp-fedavg-digits-1", "--clients", "--store", store.folder, "--json")
    return outcome.document["client_metrics"]


def audited(store: Path, name: str, **changes: Any) -> None:
    """Store an audit of the first run's method."""
    called = "dp-fedavg[batch=64,epochs=1]"
    view = {"claimed": 2.0, "bound": 1.7, "attack": "canary client", "refuted": False}
    document = {"method": "dp-fedavg", "called": called, "variant": "sound", "unit": "client", "trials": 1000}
    document |= {"views": {"outsider": view}, "findings": [], "refuted": False, "date": "2026-02-03T04:05:06+00:00"}
    (store / "audits").mkdir(exist_ok=True)
    (store / "audits" / name).write_text(json.dumps(document | changes))


def test_the_audits_verdict_is_told_or_the_command_that_makes_one(tmp_path: Path) -> None:
    run = sordino.run(store=tmp_path, method="dp-fedavg", epsilon=2, **QUICK_KEYS)["run"]
    found = statement_of(Store(tmp_path), run)
    assert found.audit is None
    expected = "sordino audit --method dp-fedavg --data digits --model logistic --clients 8 --rounds 2 --epsilon 2"
    assert found.audit_command.startswith(expected)
    assert "--set epochs=1 --set batch=64" in found.audit_command
    assert found.audit_command in sections(markdown(found))["Was it attacked?"]
    audited(tmp_path, "other-1.json", called="dp-fedavg")
    (tmp_path / "audits" / "broken.json").write_text("{")
    (tmp_path / "audits" / "list.json").write_text("[]")
    assert statement_of(Store(tmp_path), run).audit is None, "other settings are another claim"
    audited(tmp_path, "dp-fedavg-sound-1.json")
    found = statement_of(Store(tmp_path), run)
    assert found.audit is not None
    text = markdown(found)
    assert "attacked with these hyper-parameters on 03 February 2026, 1,000 times" in text
    assert "| outsider | 2.00 | at least 1.70 | canary client | not refuted |" in text
    audited(tmp_path, "dp-fedavg-sound-2.json", refuted=True, date="2026-03-03T04:05:06+00:00")
    assert "REFUTED" in dict(statement_of(Store(tmp_path), run).page().glance)["Was it attacked?"], "the newest"


@pytest.mark.slow
def test_the_command_on_the_page_makes_the_audit_that_the_page_then_tells(tmp_path: Path) -> None:
    run = sordino.run(store=tmp_path, method="dp-fedavg", epsilon=2, **QUICK_KEYS)["run"]
    words = statement_of(Store(tmp_path), run).audit_command.split()[1:]
    assert command(*words, "--partition", "iid", "--trials", "1000", "--tiers", "1").code == 0
    found = statement_of(Store(tmp_path), run).audit
    assert found is not None
    assert not found.refuted
    assert {one.observer for one in found.views} == {"outsider", "peer", "server"}


def test_an_audit_without_a_date_has_that_of_its_file(tmp_path: Path) -> None:
    audited(tmp_path, "a.json", date=None)
    found = find_audit(tmp_path, "dp-fedavg[batch=64,epochs=1]", "sound", "client")
    assert found is not None
    assert re.fullmatch(r"\d\d \w+ \d{4}", found.date)
    assert find_audit(tmp_path, "dp-fedavg[batch=64,epochs=1]", "sound", "record") is None
    assert find_audit(tmp_path / "nowhere", "dp-fedavg", "sound", "client") is None


@pytest.mark.parametrize("run", RUNS)
def test_the_twin_has_the_registrys_fields_bound_to_the_ledger(run: str, store: Store, tmp_path: Path) -> None:
    printed = command("statement", run, "-o", tmp_path / "s.json", "--store", store.folder, "--json").document
    written = json.loads((tmp_path / "s.json").read_text())
    assert {key: value for key, value in printed.items() if key != "file"} == written
    head = command("ledger", run, "--json", "--store", store.folder).document["head"]
    assert written["ledger"]["head"] == written["head"] == head
    check_registry(written["registry"])
    deployment = written["registry"]["deployment"]
    assert head in deployment["implementation"]["additional_information"]
    outsider = written["observers"][0]
    if outsider["epsilon"] is None:
        assert "privacy_parameters" not in deployment["privacy_loss"]
        assert "variant_name" not in deployment["dp_variant"]
    else:
        assert deployment["privacy_loss"]["privacy_parameters"] == {
            "epsilon": outsider["epsilon"],
            "delta": written["delta"],
        }
    assert deployment["privacy_loss"]["privacy_unit"] == words_for(written["unit"]).registry
    assert "simulated" in deployment["deployment_model"]["model_name_details"]
    assert written["blank"] == blank_fields(written["registry"])
    assert "deployment.basic.intended_use" in written["blank"]
    assert "deployment.basic.data_curators[0].data_curator_name" in written["blank"]


def test_the_registrys_fields_alone(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = ("statement", RUNS[0], "--store", store.folder)
    outcome = command(*run, "--registry")
    assert outcome.code == 0
    assert "Only you can fill in: deployment.basic.data_curators[0].data_curator_name" in outcome.out
    document = command(*run, "--registry", "-o", "r.json", "--json").document
    check_registry(document)
    assert json.loads(Path("r.json").read_text()) == document
    yaml = Path("registry.yaml").read_text()
    assert 'intended_use: ""  # only the controller knows' in yaml
    assert "\n      delta: 1.0e-05\n" in yaml, "a number in YAML 1.1 too"


def test_yaml_means_what_the_document_says(told: dict[str, Statement]) -> None:
    yaml = pytest.importorskip("yaml")
    for found in told.values():
        document = found.document()["registry"]
        assert yaml.safe_load(registry_yaml(document)) == document
    odd = {"a": {"b": ["x: y", "", {"c": 1e-07, "d": "#"}], "e": True, "f": 'quote " and ü\n'}, "g": 3}
    assert yaml.safe_load(registry_yaml(odd)) == odd


def test_blank_fields_are_found_wherever_they_are() -> None:
    assert blank_fields({"a": FILL_IN, "b": [{"c": FILL_IN, "d": "x"}, FILL_IN], "e": 0}) == ["a", "b[0].c", "b[1]"]


def test_the_annex_leaves_blanks_for_what_only_the_controller_knows(told: dict[str, Statement]) -> None:
    rows = {one.topic: one for one in told["dp-fedsgd-digits-2"].annex}
    assert {"Purposes", "Recipients", "Retention", "Withdrawal, objection, erasure"} <= set(rows)
    assert all(one.blank for one in rows.values())
    text = sections(markdown(told["dp-fedsgd-digits-2"]))["Annex for a data-protection impact assessment"]
    assert text.count("________") >= len(rows)
    assert "of 1,000 used rows" in rows["Remaining risk"].known
    assert "sordino rm dp-fedsgd-digits-2" in rows["Retention"].known


def test_every_unit_has_words() -> None:
    from sordino.privacy.unit import Unit

    assert {str(unit) for unit in Unit} <= set(WORDS)


def test_what_is_public_says_who_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "clinics"
    folder.mkdir()
    for name in ("north", "south"):
        rows = "".join(f"{place % 2},{place},{place}\n" for place in range(40))
        (folder / f"{name}.csv").write_text(f"ill,chol,age\n{rows}")
    (tmp_path / "schema.toml").write_text(
        '[columns.ill]\nkind = "label"\nvalues = ["0", "1"]\n[columns.chol]\nkind = "number"\nrange = [5, 30]\n'
        '[columns.age]\nkind = "number"\nrange = [0, 40]\npublic = false\n'
    )
    keys = {"data": str(folder), "schema": str(tmp_path / "schema.toml"), "rounds": 1, "workers": 1}
    run = sordino.run(store=tmp_path / "store", method="dp-fedavg-record", epsilon=4, **keys)["run"]
    found = {one.what: one.who for one in statement_of(Store(tmp_path / "store"), run).public}
    assert found["kinds, ranges and values of the columns chol"].startswith("the experiment")
    assert found["ranges and values of the columns age"].startswith("nobody: read from the records")
    assert "how many records each client has" in found
    command_ = statement_of(Store(tmp_path / "store"), run).audit_command
    assert command_ == f"sordino audit {run} --store {tmp_path / 'store'}", "its own files, schema and label"
