"""The key `features`: texts, tables, settings on the command line, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.features.choice import FeatureChoice, read_choice
from sordino.study.sweep import cells
from sordino.study.tuning import TuningRuns, tune


def test_texts_and_tables_say_the_same() -> None:
    wanted = FeatureChoice(pool=2, width=64)
    assert read_choice("scattering:pool=2,width=64") == wanted
    assert read_choice({"pool": 2, "width": 64}) == wanted
    assert read_choice(wanted.describe()) == wanted
    assert read_choice("none") is None


def test_files_of_code_are_modules() -> None:
    found = read_choice("nets/backbone.py:factory:depth=3,trained_on=imagenet")
    assert found == FeatureChoice(extractor="nets.backbone:factory", trained_on="imagenet", options={"depth": 3})


def test_settings_of_the_command_line_change_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text('[features]\npool = 2\npublic = "mnist"\n')
    found = Experiment.read(file, {"set": {"features.width": 32}}).features
    assert found == FeatureChoice(pool=2, public="mnist", width=32)
    assert Experiment.read(file, {"features": "scattering"}).features == FeatureChoice()
    assert Experiment.read(file, {"features": "none"}).features is None


def test_a_stored_experiment_is_read_back() -> None:
    made = Experiment.make({"features": "scattering:width=32", "epsilon": 2})
    assert Experiment.make(made.model_dump(mode="json")) == made


def test_without_features_nothing_changes() -> None:
    assert "features" not in Experiment.make({}).decisive()
    assert Experiment.make({}).set == {"clipping": "quantile"}


def test_heads_have_their_own_defaults_and_what_is_given_wins() -> None:
    many, few = (Experiment.make({"features": "scattering", "epsilon": epsilon}) for epsilon in (8, 2))
    assert (many.rounds, many.personal, many.set["clipping"]) == (60, "blend", "normalised")
    assert few.rounds < many.rounds
    own = Experiment.make({"features": "scattering", "rounds": 5, "set": {"method.clip": 1.0, "clipping": "fixed"}})
    assert (own.rounds, own.build_method().clip) == (5, 1.0)  # type: ignore[attr-defined]
    assert type(own.build_method().clipping).__name__ == "Fixed"  # type: ignore[attr-defined]
    assert Experiment.make({"features": "scattering", "method": "feddpa"}).rounds == 30


def test_compared_methods_have_their_own_defaults() -> None:
    base = Experiment.make({"features": "scattering"}, methods=["dp-fedavg", "local"])
    assert base.for_method("dp-fedavg", {}).rounds == 60
    assert base.for_method("local", {}).rounds == 30


def test_a_study_goes_through_settings_of_features() -> None:
    """They are of every method, as keys of the experiment are."""
    sweep = {"features.width": [8, 16]}
    base = Experiment.make({"features": "scattering:pool=1"}, methods=["dp-fedavg", "local"])
    found = cells(base, ["dp-fedavg", "local"], sweep, [0])
    features = [cell.experiment.features for cell in found]
    assert [(one.pool, one.width) for one in features if one is not None] == [(1, 8), (1, 8), (1, 16), (1, 16)]
    tried: list[list[str]] = []
    with pytest.raises(UserError, match="at least one seed"):
        tune(TuningRuns(lambda texts: tried.append(texts) or [], lambda wanted: {}), ["local"], sweep)
    assert tried == [["local[features.width=8]", "local[features.width=16]"]]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("scatering", "There is no extractor of features called 'scatering'"),
        ("scattering:widht=3", "widht"),
        ("scattering:width=0", "features.width cannot be 0"),
        ("scattering:width", "settings are key=value"),
        ("scattering:options=3,width=2", "features.options cannot be 3"),
        ({"extractor": "my.net:make", "pool": 2, "options": {}}, "has no setting 'pool'"),
        ("backbone.py", r"names no function of that file: write backbone\.py:factory"),
        ("/home/me/backbone.py:factory", "files of code are found from the current folder"),
        ("../backbone.py:factory", "files of code are found from the current folder"),
        ("encoder.safetensors", "is a file of weights"),
        ({"extractor": "my.net:make", "trained_on": " "}, "features.trained_on cannot be ' '"),
        ({"extractor": "net.pt2", "weights": "file"}, "holds its weights itself"),
        ({"public": "mnist", "projection": "random"}, "leave one of them out"),
        ({"projection": "none", "width": 3}, "leave out width"),
        (3, "features cannot be 3"),
    ],
)
def test_mistakes_are_told(given: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Experiment.make({"features": given})
