"""What a site refuses of an experiment by its names alone, before anything of it is loaded."""

import itertools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sordino.deploy.creating import written
from sordino.deploy.roster import Member, written_roster
from sordino.deploy.rules import Allowed, RefusedError, Rules, read_rules
from sordino.errors import UserError

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


@pytest.mark.parametrize("sites", [2, 3, 4, 5])
def test_two_groups_of_witnesses_share_one_that_remembers(sites: int, tmp_path: Path) -> None:
    """Worked out for all groups: the fewest that the rules take are as many as are needed, and no fewer would do."""
    members = [Member(f"s{number}", os.urandom(32)) for number in range(sites)]
    (tmp_path / "roster.toml").write_text(written_roster(members))

    def read(**changes: Any) -> Allowed:
        rules = allowed().rules.model_copy(update={"roster": Path("roster.toml"), **changes})
        (tmp_path / "site.toml").write_text(written(rules))
        return read_rules(tmp_path)

    for colluders in range(sites):
        for witnesses in range(1, sites + 1):
            groups = [set(one) for one in itertools.combinations(range(sites - 1), witnesses)]
            if groups and all(len(one & two) > colluders for one in groups for two in groups):
                assert read(witnesses=witnesses, colluders=colluders).rules.witnesses == witnesses
            else:
                with pytest.raises(UserError, match="witnesses is"):
                    read(witnesses=witnesses, colluders=colluders)
    with pytest.raises(UserError, match="need a roster"):
        read(witnesses=1, roster=None)
