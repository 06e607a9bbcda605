"""AdaDP-CFL: groups, what leaves, thresholds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import sordino
from sordino.experiment.checkpoint import load
from sordino.experiment.store import Store
from sordino.methods.adadp_cfl import AdaDPCFL, without_noise

KEYS = {"method": "adadp-cfl", "clients": 6, "partition": "iid", "rounds": 3, "delta": 1e-5, "epsilon": 8}
SETTINGS = {"epochs": 1, "batch": 60}


def final_state(folder: Path, run: str) -> dict:
    store = Store(folder)
    row = store.get(run)
    return load(row.checkpoint, store.path(run)).server


@pytest.mark.slow
def test_clients_of_one_distribution_are_not_parted(tmp_path: Path) -> None:
    result = sordino.run(**KEYS, store=tmp_path, set=SETTINGS)
    state = final_state(tmp_path, result["run"])
    assert state["clusters"].tolist() == [0] * 6
    assert (tmp_path / "runs" / result["run"] / "clusters.png").stat().st_size > 10_000
    assert result["epsilon"]["server"] <= 8 + 1e-9
    assert len(sordino.load_models(result["run"], tmp_path).shared) == 1


@pytest.mark.slow
def test_clients_of_different_labels_are_parted(tmp_path: Path) -> None:
    keys = KEYS | {"partition": "labels:10%", "clients": 10, "rounds": 1, "epsilon": 40}
    result = sordino.run(**keys, store=tmp_path, set=SETTINGS | {"clipping": "fixed"})
    state = final_state(tmp_path, result["run"])
    assert len(set(state["clusters"].tolist())) >= 4
    assert len(sordino.load_models(result["run"], tmp_path).shared) == len(state["models"])


def test_the_agents_thresholds_stay_in_their_range(tmp_path: Path) -> None:
    result = sordino.run(**KEYS, store=tmp_path, set=SETTINGS | {"clipping.low": 0.5, "clipping.high": 2.0})
    clips = final_state(tmp_path, result["run"])["threshold"]["clips"]
    assert ((clips >= 0.5) & (clips <= 2.0)).all()
    assert len(clips.unique()) > 1


@pytest.mark.parametrize("clipping", ["fixed", "percentile"])
def test_other_thresholds_need_no_metrics(clipping: str, tmp_path: Path) -> None:
    result = sordino.run(**KEYS, store=tmp_path, set=SETTINGS | {"clipping": clipping})
    rows = Store(tmp_path).ledger(result["run"])
    assert {row.release for row in rows} == {"moments", "update", "norm"}
    assert {row.release for row in rows if row.pool} == {"moments", "update"}, "norms follow from the same gradients"
    assert {row.pool for row in rows if row.pool} == {"training"}


def test_the_papers_mechanism_is_infinite_and_says_what_the_noise_is_worth(tmp_path: Path) -> None:
    result = sordino.run(**KEYS, variant="paper", store=tmp_path, set=SETTINGS)
    assert set(result["epsilon"].values()) == {None}
    bare = ("subspace: ", "loss: ", "accuracy: ")
    assert sum(sentence.startswith(bare) for sentence in result["not_covered"]) == 3
    assert any("were public" in note for note in result["notes"])


def test_the_published_noise() -> None:
    # methods page, section 9: lr 0.01, B 20, T 100, delta 1e-4 gives 0.4344 for epsilon 1.
    method = AdaDPCFL(rate=0.01, batch=20)
    assert method.published_multiplier(1.0, 1e-4, 100, 0) == pytest.approx(0.4344, abs=5e-4)
    assert method.published_multiplier(5.0, 1e-4, 100, 0) == pytest.approx(0.087, abs=5e-4)


def test_a_noisy_gradients_norm_without_its_noise() -> None:
    from types import SimpleNamespace

    generator = torch.Generator().manual_seed(0)
    signal = torch.randn(50_000, generator=generator)
    signal = 3.0 * signal / signal.norm()
    noise = torch.randn(50_000, generator=generator) * (2.0 * 1.0 / 100)
    data = SimpleNamespace(clip=1.0, deviation=2.0 * 1.0 / 100)
    assert float(without_noise(signal + noise, data)) == pytest.approx(3.0, rel=0.05)
    assert float(without_noise(torch.zeros(50_000), data)) == pytest.approx(0.05)
