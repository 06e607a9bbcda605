"""Features in whole runs: identity, predictions, exports, resuming, plans, statements, and sites that check weights."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from deploy.federations import federation
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import sordino
from sordino.cli import app
from sordino.deploy.protocol.roster import Member, roster_toml
from sordino.deploy.site.data import encode_records, read_records
from sordino.deploy.site.rules import RefusedError, Rules, SitePolicy, read_rules
from sordino.deploy.site.site import Site
from sordino.deploy.terms import terms_of
from sordino.deploy.trial import prepare_simulation
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import deal, prepare
from sordino.experiment.run import start
from sordino.features import extractor as extractors
from sordino.features.projection import record_hashes
from sordino.planning.advise import advise
from sordino.planning.plan import plan_of
from sordino.planning.situation import Situation
from sordino.report.statement import statement_of
from sordino.report.statement_pages import markdown
from sordino.store.store import Store
from sordino.trained.export import export
from sordino.trained.predict import predict

SPEC = "scattering:scales=1,width=12"
KEYS: dict[str, Any] = {"data": "digits", "clients": 6, "rounds": 2, "workers": 1, "features": SPEC}
OWN = """
from torch import nn

def factory(shape, width):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.BatchNorm1d(width))
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The key `features` of a user's backbone with weights, in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bone.py").write_text(OWN)
    torch.manual_seed(1)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.BatchNorm1d(9))
    save_file(module.state_dict(), tmp_path / "bone.safetensors")
    yield {"extractor": "bone.py:factory", "weights": "bone.safetensors", "trained_on": "other digits", "width": 9}
    sys.modules.pop("bone", None)


def embedding(shape: tuple[int, ...], words: int = 6) -> nn.Module:
    """A frozen embedding of two words."""
    return nn.Sequential(nn.Embedding(words, 4), nn.Flatten())


def test_a_run_with_features_predicts_from_records(tmp_path: Path) -> None:
    """What is loaded and exported takes records, and says what the run measured."""
    found = sordino.run(**KEYS, store=tmp_path, personal="blend", seed=1)
    assert (found["features"], found["parameters"]) == (f"{SPEC},projection=random", 120)
    models, data = sordino.load_models(found["run"], tmp_path), deal(Experiment.make(KEYS | {"seed": 1}))
    assert (models.about.shape, data.shape) == ((1, 8, 8), (1, 8, 8))
    hits = []
    for number, client in enumerate(data.clients):
        hits.append(float((models.predictor(number)(client.x_test).argmax(1) == client.y_test).float().mean()))
    assert np.mean(hits) == pytest.approx(found["accuracy"]["personal"], abs=1e-6)
    x = data.clients[0].x_test[:5]
    np.savez(tmp_path / "new.npz", x=x.numpy())
    told = predict(models, 0, tmp_path / "new.npz")
    wanted = models.predictor(0)(x).double().softmax(1).detach().numpy()
    assert np.allclose(told.probabilities, wanted, atol=1e-6)


@pytest.mark.slow
def test_an_exported_model_has_the_extractor_inside(tmp_path: Path) -> None:
    found = sordino.run(**KEYS, store=tmp_path)
    models, x = sordino.load_models(found["run"], tmp_path), torch.rand(5, 1, 8, 8)
    wanted = models.predictor(0)(x).softmax(1).detach().numpy()
    export(models, 0, "onnx", tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    assert np.allclose(session.run(None, {"records": x.numpy()})[0], wanted, atol=1e-5)
    export(models, 0, "torch", tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    assert np.allclose(program(x).detach().numpy(), wanted, atol=1e-5)


def test_features_are_computed_once_for_all_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path))
    first = prepare(Experiment.make(KEYS))
    monkeypatch.setattr(extractors, "in_parts", lambda *_: pytest.fail("computed again"))
    again, other = prepare(Experiment.make(KEYS)), prepare(Experiment.make(KEYS | {"seed": 7}))
    assert torch.equal(first.data.train.x, again.data.train.x)
    assert other.data.fingerprint != first.data.fingerprint


def test_people_and_deal_are_those_of_the_records() -> None:
    """Runs with and without features are about the same people, whose budget they share."""
    features, plain = (prepare(Experiment.make(KEYS | {"features": one})) for one in (SPEC, "none"))
    assert (features.data.people, features.data.deal) == (plain.data.people, plain.data.deal)
    assert features.data.fingerprint == plain.data.fingerprint
    assert features.identity != plain.identity
    assert features.identity != prepare(Experiment.make(KEYS | {"features": f"{SPEC},seed=2"})).identity


@pytest.mark.parametrize("method", ["dp-fedavg-record", "dp-fedsgd", "feddpa", "local"])
def test_all_levels_train_on_features(tmp_path: Path, method: str) -> None:
    found = sordino.run(**KEYS, store=tmp_path, method=method)
    assert found["parameters"] == 120
    assert found["accuracy"]["personal"] > 0.2


def test_a_stopped_run_resumes_with_its_features(tmp_path: Path) -> None:
    whole = sordino.run(**KEYS, store=tmp_path / "whole")

    def stop(report: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sordino.run(**KEYS, store=tmp_path / "cut", watch=stop)
    (row,) = Store(tmp_path / "cut").all()
    assert sordino.resume(row.run, tmp_path / "cut")["accuracy"] == whole["accuracy"]


def test_a_users_backbone_from_weights_to_predictions(own: dict[str, Any], tmp_path: Path) -> None:
    experiment = Experiment.make(KEYS | {"features": own, "store": tmp_path / "runs"})
    prepared = prepare(experiment)
    assert (prepared.data.shape, prepared.repeats, prepared.needs_nonce) == ((9,), False, True)
    found = start(prepared)
    models = sordino.load_models(found.run, tmp_path / "runs")
    x = torch.rand(3, 1, 8, 8)
    before = models.predictor(0)(x)
    text = markdown(statement_of(Store(tmp_path / "runs"), found.run))
    assert "trained on other digits" in " ".join(text.split())
    (tmp_path / "bone.safetensors").unlink()  # the file of models has its weights
    assert torch.equal(sordino.load_models(found.run, tmp_path / "runs").predictor(0)(x), before)


def test_records_that_are_no_tokens_of_a_frozen_embedding_are_refused(tmp_path: Path) -> None:
    """A simulation tells of them before it spends anything, as it does for networks that are trained."""
    name, records = "test_runs:embedding", (np.arange(40).reshape(20, 2) % 6, np.arange(20) % 2)
    keys: dict[str, Any] = {"data": {"a": records, "b": records}, "rounds": 1, "store": tmp_path, "workers": 1}
    assert sordino.run(**keys, features={"extractor": name, "trained_on": "nothing"})["parameters"] == 16
    with pytest.raises(UserError, match="takes tokens, whole numbers from 0 to 4"):
        sordino.run(**keys, features={"extractor": name, "trained_on": "nothing", "words": 5})


def test_a_run_keeps_the_digest_of_its_weights(own: dict[str, Any], tmp_path: Path) -> None:
    prepared = prepare(Experiment.make(KEYS | {"features": own}))
    stored = prepared.experiment.model_dump(mode="json")
    assert prepare(Experiment.make(stored)).identity == prepared.identity
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.BatchNorm1d(9))
    save_file(module.state_dict(), tmp_path / "bone.safetensors")
    with pytest.raises(UserError, match="is wanted"):
        prepare(Experiment.make(stored))
    assert prepare(Experiment.make(KEYS | {"features": own})).identity != prepared.identity


def test_the_plan_tells_the_parameters_of_the_head_and_computes_no_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extractors, "in_parts", lambda *_: pytest.fail("computed"))
    found = plan_of(Experiment.make(KEYS | {"clients": 100}), look=True)
    assert any("120 parameters" in one for one in [*found.warnings, *found.advice])


def test_images_whose_network_is_too_large_are_advised_features() -> None:
    told = " ".join(advise(Situation(300, 130, 2.0, 49_000, image=(1, 28, 28))).advice)
    assert "--features scattering" in told
    for other in (
        Situation(300, 130, 2.0, 49_000),
        Situation(300, 130, 2.0, 8_000, image=(1, 28, 28), features=True),
        Situation(100_000, 130, 8.0, 49_000, image=(1, 28, 28)),
    ):
        assert "--features" not in " ".join(advise(other).advice)


def test_the_command_line_names_features(tmp_path: Path) -> None:
    arguments = ["run", "--clients", "6", "--rounds", "1", "--workers", "1", "--store", str(tmp_path), "--json"]
    told = CliRunner().invoke(app, [*arguments, "--features", SPEC])
    assert json.loads(told.stdout)["features"].startswith("scattering")
    planned = CliRunner().invoke(app, ["plan", "--features", SPEC, "--clients", "100", "--json"])
    assert planned.exit_code == 0, planned.output
    refused = CliRunner().invoke(app, [*arguments, "--features", "scatering"])
    assert isinstance(refused.exception, UserError)


def test_sites_extract_features_by_themselves(tmp_path: Path) -> None:
    """Server and sites derive equal terms, and with the seed's noise the model is that of a simulation."""
    with federation(tmp_path, features=SPEC, noise="integers") as made:
        summary = made.run()
        simulated = start(prepare_simulation(made.experiment, made.original))
        theirs = sordino.load_models(simulated.run, made.original.store)
        mine = made.model(summary.run)
        assert summary.features == simulated.features
        assert (made.folders[0] / "features").is_dir()
        x = torch.rand(2, 1, 8, 8)
        served = sordino.load_models(summary.run, made.store.folder)
        assert torch.allclose(served.shared[0](x), theirs.shared[0](x), atol=1e-5)
        assert mine.numel() == 120


def test_a_site_refuses_other_weights(own: dict[str, Any], tmp_path: Path) -> None:
    with federation(tmp_path, features=own) as made:
        assert made.run().rounds_done == 2
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.BatchNorm1d(9))
    with federation(tmp_path / "second", features=own) as made:
        for number in (0, 1, 2):  # each site has a file of its own
            save_file(module.state_dict(), tmp_path / f"other{number}.safetensors")
            text = (made.folders[number] / "site.toml").read_text()
            text = re.sub(r"feature_files = .*", f'feature_files = ["{tmp_path}/other{number}.safetensors"]', text)
            (made.folders[number] / "site.toml").write_text(text)
            made.reopen(number)
        with pytest.raises(UserError, match="0 of 3 sites take part"):
            made.run()
        assert "not among this site's `feature_files`" in (made.folders[0] / "site.log").read_text()


def test_terms_travel_without_the_place_of_a_file(own: dict[str, Any]) -> None:
    given = {"clients": 5, "shape": [1, 8, 8], "labels": ["a", "b"], "epsilon": 8.0, "features": own, "rounds": 2}
    server = terms_of(Experiment.make(given))
    carried = server.carried()
    assert "weights" not in carried["features"]
    content = Path("bone.safetensors").read_bytes()
    site = terms_of(Experiment.make(carried), lambda digest: content)
    assert site.identity == server.identity
    other = terms_of(Experiment.make(given | {"features": {**own, "trained_on": "else"}}))
    assert other.identity != server.identity


@pytest.mark.parametrize(
    ("features", "sentence"),
    [
        ("scattering", "not a table"),
        ({"extractor": "os:system"}, "not among `features`"),
        ({"extractor": "scattering", "weights": "/etc/passwd"}, "opens none"),
        ({"extractor": "scattering", "public": "/etc"}, "opens none"),
    ],
)
def test_a_site_loads_no_code_and_opens_no_file_that_a_server_names(features: Any, sentence: str) -> None:
    limits: dict[str, Any] = {"unit": "client", "max_epsilon": 8.0, "max_delta": 1e-5, "min_cohort": 3}
    policy = SitePolicy(Rules(name="north", data=Path("x.npz"), methods=("dp-fedavg",), **limits), None)
    carried = {"method": "dp-fedavg", "model": "head", "set": {}}
    policy.check_experiment(carried | {"features": {"extractor": "scattering"}})
    with pytest.raises(RefusedError, match=sentence):
        policy.check_experiment(carried | {"features": features})


def test_a_deployment_does_not_compute_projections(tmp_path: Path) -> None:
    given = {"clients": 5, "shape": [1, 8, 8], "labels": ["a", "b"], "features": {"public": "digits"}}
    with pytest.raises(UserError, match=r"sordino\.features\.projection digits FILE"):
        terms_of(Experiment.make(given))


def test_a_site_whose_records_made_the_projection_takes_no_part(tmp_path: Path) -> None:
    x = torch.rand(200, 1, 8, 8)
    np.savez(tmp_path / "own.npz", x=x.numpy(), y=np.arange(200) % 2)
    identity = Site.create(tmp_path, "own", Path("own.npz"), roster=Path("roster.toml"))
    (tmp_path / "roster.toml").write_text(roster_toml([Member("own", identity)]))
    declared = {"clients": 3, "shape": [1, 8, 8], "labels": [0, 1], "epsilon": 4.0, "method": "dp-fedavg"}
    terms = terms_of(Experiment.make(declared | {"features": f"{SPEC},projection=random"}))
    assert terms.extractor is not None
    rules = read_rules(tmp_path).rules
    for shared in (0, 1, 200):
        strangers = list(range(200))
        made_of = frozenset([*record_hashes(x)[:shared], *strangers])
        these = replace(terms, extractor=replace(terms.extractor, made_of=made_of))
        if shared > 1:
            with pytest.raises(RefusedError, match="are the clients' own"):
                encode_records(read_records(tmp_path, rules), these, rules, b"s" * 32)
            continue
        data = encode_records(read_records(tmp_path, rules), these, rules, b"s" * 32)
        assert any("features tell of these without noise" in one for one in data.disclosed) == bool(shared)
