"""What a site refuses of an experiment by its names alone, before anything of it is loaded."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sordino.deploy.rules import Allowed, RefusedError, Rules

CARRIED = {"method": "dp-fedavg", "model": "mlp", "set": {"clip": 0.5}}


def allowed() -> Allowed:
    return Allowed(Rules(name="north", data=Path("records.csv"), label="y"), None)


def test_models_that_a_site_would_not_read_are_refused_at_once() -> None:
    """Two models of 800,000 bytes at the end of a run that blends, one of any other."""
    rules = Allowed(Rules(name="north", data=Path("records.csv"), label="y", unit="record", max_message_mb=1), None)
    terms: Any = SimpleNamespace(
        method=SimpleNamespace(unit="record"), initial=torch.zeros(200_000), experiment=SimpleNamespace(personal="own")
    )
    rules.check_terms(terms)
    terms.experiment.personal = "blend"
    with pytest.raises(RefusedError, match="larger than max_message_mb, 1"):
        rules.check_terms(terms)


def test_names_that_a_site_knows_are_looked_at_further() -> None:
    allowed().check_experiment(CARRIED)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"method": "os:path"}, "method"),
        ({"model": "antigravity:Network"}, "is not among `models`"),
        ({"set": {"this:Class.tau": 1}}, "names code or a file"),
        ({"set": {"schema": "schema.toml"}}, "names code or a file"),
    ],
)
def test_names_that_would_load_code_are_refused_by_themselves(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RefusedError, match=sentence):
        allowed().check_experiment(CARRIED | changes)
