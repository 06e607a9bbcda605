"""The networks that the peers are measured with are Sordino's; the walk of a run counts its files."""

import importlib.util
from pathlib import Path

import pytest
import torch

from sordino import models

PATH = Path(__file__).parents[1] / "benchmarks" / "peers" / "networks.py"


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [("lenet", (1, 28, 28), {}), ("cnn", (1, 28, 28), {"dropout": False}), ("mlp", (64,), {})],
)
def test_peers_train_the_same_network(name, shape, options):
    spec = importlib.util.spec_from_file_location("networks", PATH)
    networks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(networks)
    ours, theirs = models.build(name, shape, 10, **options), networks.NETWORKS[name]()
    theirs.load_state_dict(dict(zip(theirs.state_dict(), ours.state_dict().values(), strict=True)))
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(theirs(x), ours(x))


def test_the_walk_of_a_run_is_measured():
    spec = importlib.util.spec_from_file_location("walk", PATH.parents[1] / "walk.py")
    walk = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(walk)
    found = walk.files_passed(method="dp-fedavg", clients=8, rounds=1, workers=1, progress=False)
    assert "api.py" in found[:2]
    assert {"experiment/prepare.py", "privacy/gate.py", "store/journal.py", "federation/server.py"} <= set(found)
    assert "report/glossary.py" not in found
