"""What every loader delivers can be learnt: inputs of about mean 0 and deviation 1, and accuracy above chance."""

from __future__ import annotations

from pathlib import Path

import pytest
from published import KINDS, LOOKS, written

import sordino
from sordino.data import Dataset, catalogue, load
from sordino.data.sources import SOURCES

IMAGES = [kind for kind in KINDS if kind != "heart-disease"]
HERE = [entry.name for entry in catalogue() if entry.present]


def standardised(data: Dataset) -> None:
    """Every channel has about mean 0 and deviation 1."""
    assert data.x.mean((0, 2, 3)).abs().max() < 0.05
    assert (data.x.std((0, 2, 3)) - 1).abs().max() < 0.05


def accuracy(name: str, data_dir: Path | None, store: Path, **keys: object) -> float:
    """Of the personal models after a few rounds of federated averaging, in 0..1."""
    settings = {"epochs": 2, "rate": 0.02}
    summary = sordino.run(
        data=name, data_dir=data_dir, store=store, method="fedavg", rounds=3, workers=1, set=settings, **keys
    )
    return float(summary["accuracy"]["personal"])


def test_there_are_files_for_every_data_set() -> None:
    assert {kind.split(maxsplit=1)[0] for kind in KINDS} == set(SOURCES)
    assert set(LOOKS) == set(SOURCES) - {"digits", "heart-disease"}


@pytest.mark.parametrize("kind", IMAGES)
def test_pixels_have_about_mean_0_and_deviation_1(tmp_path: Path, kind: str) -> None:
    standardised(load(written(kind, tmp_path), tmp_path))


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_loader_delivers_is_learnt(tmp_path: Path, kind: str) -> None:
    name = written(kind, tmp_path / "data")
    reached = accuracy(name, tmp_path / "data", tmp_path / "store", model="logistic", clients=4)
    classes = SOURCES[name].classes
    assert reached > (1 + 1 / classes) / 2  # at least half way from chance to perfect


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in HERE if name in (*LOOKS, "digits")])
def test_the_real_pixels_have_about_mean_0_and_deviation_1(name: str) -> None:
    standardised(load(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", HERE)
def test_the_real_data_are_learnt(tmp_path: Path, name: str) -> None:
    owned = name in ("heart-disease", "femnist")
    keys: dict[str, object] = {} if owned else {"partition": "iid", "records": 5000, "clients": 10}
    if name == "femnist":
        keys = {"clients": 50}
    classes = SOURCES[name].classes
    assert accuracy(name, None, tmp_path, model="logistic", **keys) > (2 / classes if classes > 2 else 0.65)
