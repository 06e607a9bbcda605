"""What a site refuses of an experiment by its names alone, before anything of it is loaded."""

from pathlib import Path
from typing import Any

import pytest

from sordino.deploy.rules import Allowed, RefusedError, Rules

CARRIED = {"method": "dp-fedavg", "model": "mlp", "set": {"clip": 0.5}}


def allowed() -> Allowed:
    return Allowed(Rules(name="north", data=Path("records.csv"), label="y"), None)


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
