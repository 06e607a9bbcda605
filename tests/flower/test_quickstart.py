"""The converted quickstart app: it costs what the native method costs, and learns as much."""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from grids import app_sites, grid_of
from safetensors.torch import load_file

from sordino.deploy.protocol.carrier import InProcessCarrier
from sordino.deploy.server import coordinator
from sordino.deploy.site.site import Site
from sordino.deploy.trial import lay_out
from sordino.experiment.config import Experiment
from sordino.flower.mod import PrivateStrategy
from sordino.store.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "flower_quickstart"
SITES, ROUNDS, EPSILON, DELTA, CLIP = 10, 15, 60.0, 1e-5, 1.0
NATIVE: dict[str, Any] = {
    **{"data": "digits", "partition": "iid", "clients": SITES, "method": "dp-fedavg", "model": "logistic"},
    **{"rounds": ROUNDS, "epsilon": EPSILON, "delta": DELTA, "workers": 1},
    "set": {"clip": CLIP, "epochs": 2, "batch": 16, "rate": 0.1},
}


def test_the_quickstart_costs_and_learns_what_the_native_method_does(tmp_path: Path, monkeypatch: Any) -> None:
    deployed, members, folders = lay_out(
        Experiment.make(NATIVE | {"store": tmp_path / "native"}), tmp_path / "dealt", SITES
    )
    with contextlib.ExitStack() as stack:
        opened = [Site.open(folder) for folder in folders]
        for site in opened:
            stack.callback(site.close)
        store = Store(tmp_path / "native")
        native = coordinator.start(deployed, members, InProcessCarrier(opened), store)
    model = load_file(store.path(native.run) / "models.safetensors")["global"].numpy()

    monkeypatch.syspath_prepend(str(EXAMPLE))
    task = importlib.import_module("quickstart.task")
    records = [folder / "data.npz" for folder in folders]
    _, sites = app_sites(tmp_path / "sites", records, max_epsilon=EPSILON, max_delta=DELTA, min_cohort=SITES)
    found: list[Any] = []

    def kept(self: PrivateStrategy, *given: Any, start: Any = PrivateStrategy.start, **named: Any) -> Any:
        found.extend([self, start(self, *given, **named)])
        return found[1]

    monkeypatch.setattr(PrivateStrategy, "start", kept)
    config = {
        **{"num-server-rounds": ROUNDS, "epochs": 2, "learning-rate": 0.1, "epsilon": EPSILON, "delta": DELTA},
        **{"clip": CLIP, "roster": str(sites[0] / "roster.toml"), "store": str(tmp_path / "store")},
    }
    with grid_of(importlib.import_module("quickstart.client_app").app, sites, records) as grid:
        main = importlib.import_module("quickstart.server_app").app
        main(grid, Context(1, 1, {}, RecordDict(), config))
    strategy, result = found
    assert strategy.summary_of_run.rounds_done == native.rounds_done == ROUNDS
    assert strategy.summary_of_run.epsilon == native.epsilon
    assert strategy.summary_of_run.noise_multiplier == native.noise_multiplier

    parts = [_test_records(path) for path in records]
    x, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    ours = task.accuracy(result.arrays.to_numpy_ndarrays(), x, y)
    theirs = task.accuracy([model[:640].reshape(10, 64).T, model[640:]], x, y)
    deviation = np.sqrt(0.25 / len(y))
    assert min(ours, theirs) > 0.6, "both learn"
    assert abs(ours - theirs) < 2 * 1.96 * deviation + 0.05, "the noise of each run moves it by some per cent"


def _test_records(path: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(path) as found:
        return found["x_test"].reshape(len(found["x_test"]), -1), found["y_test"].astype(np.int64)
