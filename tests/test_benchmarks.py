"""The networks that the peers are measured with are Sordino's; the walk of a run counts its files."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
import torch

from sordino import models

PATH = Path(__file__).parents[1] / "benchmarks" / "peers" / "networks.py"


def program(path):
    """A program of the benchmarks, as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [("lenet", (1, 28, 28), {}), ("cnn", (1, 28, 28), {"dropout": False}), ("mlp", (64,), {})],
)
def test_peers_train_the_same_network(name, shape, options):
    networks = program(PATH)
    ours, theirs = models.build(name, shape, 10, **options), networks.NETWORKS[name]()
    theirs.load_state_dict(dict(zip(theirs.state_dict(), ours.state_dict().values(), strict=True)))
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(theirs(x), ours(x))


def test_rounds_of_methods_are_timed_with_public_records_for_those_that_read_some(monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["local_round.py", "--methods", "dp-fedavg,acdp-pfsd", "--repeats=1", "--epochs=1"]
    )
    sys.argv += ["--epochs=1", "--clients=2", "--images=40", "--rounds=2", "--model=logistic"]
    program(PATH.parents[1] / "local_round.py").main()
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["method"] for row in told["rows"]] == ["dp-fedavg", "acdp-pfsd"]
    assert told["rows"][0]["cpu_ratio"] == 1


def test_the_walk_of_a_run_is_measured():
    walk = program(PATH.parents[1] / "walk.py")
    found = walk.files_passed(method="dp-fedavg", clients=8, rounds=1, workers=1, progress=False)
    assert "api.py" in found[:2]
    assert {"experiment/prepare.py", "privacy/gate.py", "store/journal.py", "federation/server.py"} <= set(found)
    assert "report/glossary.py" not in found


def test_the_walk_leads_past_what_there_is():
    """Each part of `module.Class.function` in the table of CONTRIBUTING.md is the name of something in the package."""
    root = PATH.parents[2]
    text = (root / "CONTRIBUTING.md").read_text("utf-8").partition("## A run, as a walk")[2].partition("\n## ")[0]
    places = [
        place for row in re.findall(r"^\|.*\|(.*)\|$", text, re.MULTILINE) for place in re.findall("`(.+?)`", row)
    ]
    assert len(places) > 40, "the table was not found"
    names = set()
    for path in (root / "sordino").rglob("*.py"):
        names |= {path.stem, path.parent.name, *re.findall(r"\b(?:def|class) (\w+)", path.read_text("utf-8"))}
    assert [place for place in places if not names.issuperset(re.split("[/.]", place))] == []
