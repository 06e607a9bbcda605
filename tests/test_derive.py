"""Terms: what follows from an experiment, derived once, with the identity that stored runs have."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sordino import terms
from sordino.deploy.terms import terms_of
from sordino.errors import UserError
from sordino.experiment import budgeting
from sordino.experiment.config import DEPLOYED, Experiment
from sordino.experiment.prepare import prepare
from sordino.learning.parameters import flatten
from sordino.method import Method
from sordino.methods import find
from sordino.methods.bases import SIZES
from sordino.methods.dp_fedavg import DPFedAvg
from sordino.parts.curves import Curve, save
from sordino.tasks import Classification
from sordino.terms import BuiltNetwork, Facts, derive, derive_costs

SIMULATED: dict[str, Any] = {
    **{"clients": 8, "rounds": 2, "partition": "iid", "records": 400, "model": "logistic"},
    **{"engine": "one-by-one", "compiled": "never"},
}
DECLARED: dict[str, Any] = {
    **{"clients": 10, "shape": [64], "labels": [*map(str, range(10))], "records_each": 144, "rounds": 3},
    **{"epsilon": 4.0},
}
OF_SIMULATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "dp-fedavg": (
        {"method": "dp-fedavg", "set": {"clipping": "quantile", "epochs": 1.0}},
        "5b4012e6762868931fb09db68c06bf9119332081caaae1bb2d56fa15273e88b0",
    ),
    "feddpa paper": (
        {"method": "feddpa", "variant": "paper", "participation": 0.5},
        "006c41de3e37aeb1b0cbdb2432c60d55c16772545aee2c62fae5f5ecd0d78bfe",
    ),
    "records with budgets": (
        {"method": "dp-fedavg-record", "set": {"budgets": "2:0.5,8:0.5"}},
        "4a87be1dd02792ce995c3499a21ca392cd8fc24245a4b2c7ce84973c6a563e8c",
    ),
    "choices": (
        {"method": "adadp-cfl", "epsilon": 2.0, "noise": "integers"},
        "726b37d94865381c43200bcd16be99cf59992c10edabe3187c84aab09373403c",
    ),
    "public records": (
        {"method": "acdp-pfsd", "privacy": "none", "model": None, "personal": "blend"},
        "8a49983915cf10283860947ec01d0c6b4230aebd6496b2100003a8873a35b824",
    ),
    "stacked": (
        {"method": "fedper", "engine": "stacked", "seed": 3},
        "e0287e5c3b8863ba3739b18b97d43d8ce49fc77d72844ebba718777784141402",
    ),
    "a file": (
        {"method": "pac-dp", "set": {"curve": "curve.json"}},
        "e6d473555f6dd22cf767ba12cde57f115ce319cca79b03142f65f87e8b1f404d",
    ),
}
OF_DEPLOYMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "dp-fedavg": (
        {"method": "dp-fedavg", "minimum_cohort": 8, "data": "nowhere"},
        "6704bf31f23f99c4503d8996f5c6bbc50d4206748271a17d39a3d427d687f2a3",
    ),
    "feddpa paper": (
        {"method": "feddpa", "variant": "paper", "model": "mlp", "set": {"model.hidden": 8}},
        "e9d6ad5c352b71adf941b15b155d345f3068aeb64f005300766d468074cf5f03",
    ),
    "records": (
        {"method": "dp-fedavg-record", "spare_turns": 2, "set": {"budgets": "2:0.5,8:0.5"}},
        "ccf4ade922a9be974cc49d6871b9f372104cb4dc650e87000fb7e15da9aee962",
    ),
    "choices": (
        {"method": "adadp-cfl", "noise": "integers"},
        "10e9afe00f31b9ffa5c6cadbafdf5b96587dfd64fe13fe123db7dc630bfd4a4a",
    ),
    "shared accuracies": (
        {"method": "fedper", "metrics_share": 0.2, "model": "mlp"},
        "2a3ed8549195c2fcfda6fbcbc8bb3627a944969674e200df1605a3a683403bb9",
    ),
    "a file": (
        {"method": "pac-dp", "set": {"curve": "curve.json"}},
        "246a70b4fac0543a3ee2ca5d48f34a94bab41f4870aa19434f72e674737f1a0a",
    ),
}
"""Experiments, and digests of everything that decided their identity in version 0.4.0, source code and version apart:
runs that were stored then are taken up, and compared, only where these stay."""


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Digests of what identities are made of, in the order in which they are."""
    found: list[str] = []

    def digest(configuration: dict[str, Any], fingerprint: str, *code: type) -> str:
        parts = {**configuration, "data": fingerprint, "classes": [one.__name__ for one in code]}
        found.append(hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest())
        return found[-1]

    monkeypatch.setattr(terms, "identity_of", digest)
    return found


@pytest.fixture
def curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file `curve.json` in the working folder."""
    monkeypatch.chdir(tmp_path)
    save(Curve("quadratic", (0.0, 0.5, 1.0), 1.0, 8.0, 0.1, 5.0), Path("curve.json"))


@pytest.mark.parametrize("name", OF_SIMULATIONS)
def test_stored_simulations_keep_their_identity(name: str, decided: list[str], curve: None) -> None:
    changes, identity = OF_SIMULATIONS[name]
    keys = {key: value for key, value in (SIMULATED | changes).items() if value is not None}
    assert prepare(Experiment.make(keys)).identity == identity
    assert decided == [identity]  # worked out once


def test_other_public_records_at_the_server_are_another_run() -> None:
    experiment = Experiment.make(SIMULATED | {"method": "acdp-pfsd"})
    decided = [
        Facts(clients=8, sizes=None, public=records).decisive(experiment, {}) for records in (None, "some", "others")
    ]
    assert all(one != other for one, other in itertools.combinations(decided, 2))


@pytest.mark.parametrize("name", OF_DEPLOYMENTS)
def test_stored_deployments_keep_their_identity(name: str, decided: list[str], curve: None) -> None:
    changes, identity = OF_DEPLOYMENTS[name]
    assert terms_of(Experiment.make(DECLARED | changes)).identity == identity
    assert decided == [identity]


@pytest.mark.parametrize(
    ("derived", "method", "others"),
    [
        # Whoever deals records asks first whether the method, settled for so many clients, needs public ones.
        (prepare, "dp-fedavg", {"client_noise": 1, "settled": 2, "identity_of": 1, "build": 1}),
        (terms_of, "dp-fedavg", {"client_noise": 1, "settled": 1, "identity_of": 1, "build": 1}),
        # What epsilon does not cover depends on whether sums over records leave.
        (terms_of, "dp-fedavg-record", {"record_plan": 1, "settled": 1, "identity_of": 1, "build": 1, "steps": 2}),
        (derive_costs, "dp-fedavg", {"client_noise": 1, "settled": 1}),
    ],
)
def test_each_step_of_a_derivation_is_done_once(
    derived: Any, method: str, others: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = Experiment.make(SIMULATED if derived is prepare else DECLARED, {"method": method})
    done: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def counted(*given: Any, **more: Any) -> Any:
            done[name] += 1
            return original(*given, **more)

        monkeypatch.setattr(owner, name, counted)

    for name in ("client_noise", "record_plan", "smallest_cohort", "plan_method", "identity_of"):
        count(terms, name)
    count(terms.models, "build")
    count(Experiment, "build_method")
    count(find(method), "settled")
    count(Method, "steps")
    given = (Facts(clients=8, sizes=None),) if derived is derive_costs else ()
    found = derived(experiment, *given)
    assert "local" in found.steps()
    once = ("smallest_cohort", "plan_method", "build_method", "steps")
    assert done == {**dict.fromkeys(once, 1), **others}


DEPLOYED_VALUES: dict[str, Any] = {
    **{"columns": ["a", "b"], "records_each": 900, "active_server": True, "spare_turns": 3, "metrics_share": 0.3}
}


@pytest.mark.parametrize("method", ["dp-fedavg", "dp-fedsgd"])
@pytest.mark.parametrize("key", DEPLOYED)
def test_what_a_simulations_identity_leaves_out_does_not_change_its_noise(key: str, method: str) -> None:
    # Two simulations of one identity share their draws: noise of another size would give away what it covers.
    found = []
    for more in ({}, {key: DEPLOYED_VALUES[key]}):
        given = {**SIMULATED, "method": method, "epsilon": 4.0, "evaluation_share": 0.1, **more}
        made = prepare(Experiment.make(given))
        found.append(
            (made.identity, made.allowance.of_clients if method == "dp-fedavg" else made.turns, made.evaluation)
        )
    assert found[0] == found[1]


def test_other_methods_have_other_steps() -> None:
    """Steps are remembered for the method that declares them."""
    prepared = prepare(Experiment.make(SIMULATED | {"method": "dp-fedavg"}))
    assert prepared.steps() == prepared.method.steps()
    bare = dataclasses.replace(prepared, method=dataclasses.replace(prepared.method, privacy="none"))
    assert not any(release.private for step in bare.steps().values() for release in step.values())


def test_without_a_network_there_are_costs_and_no_terms() -> None:
    experiment = Experiment.make({"method": "dp-fedavg", "clients": 8, "rounds": 2})
    facts = Facts(clients=8, sizes=None)
    costs = derive_costs(experiment, facts)
    assert costs.allowance.of_clients.multiplier == costs.budget.multiplier > 0
    with pytest.raises(ValueError, match="derive_costs"):
        derive(experiment, facts)


@pytest.mark.parametrize(("method", "variant"), [("dp-fedavg-record", "sound"), ("feddpa", "paper")])
def test_noise_that_depends_on_sizes_is_refused_where_nobody_gives_them(method: str, variant: str) -> None:
    experiment = Experiment.make({"method": method, "variant": variant, "clients": 8, "rounds": 2})
    with pytest.raises(UserError, match=f"noise of {method} depends on how many records a client has: count them"):
        derive_costs(experiment, Facts(clients=8, sizes=None, ask_sizes="count them"))
    assert derive_costs(experiment, Facts(clients=8, sizes=np.full(8, 50))).budget.multiplier > 0


@pytest.mark.parametrize(("derived", "keys"), [(prepare, SIMULATED), (terms_of, DECLARED)])
def test_what_epsilon_does_not_cover_is_told_before_a_run(derived: Any, keys: dict[str, Any]) -> None:
    found = derived(Experiment.make(keys, {"method": "dp-fedavg-record", "personal": "blend"}))
    assert found.disclosed[-2:] == [SIZES, budgeting.GIVEN_AWAY["blend"]]


class Mixing(nn.Module):
    """A network whose outputs depend on all records of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out if len(x) > 1 and bool(out.detach().mean() > 0) else -out


def test_a_network_that_cannot_keep_records_apart_is_refused_before_anything_is_planned() -> None:
    module = Mixing()
    network = BuiltNetwork("mixing", module, Classification.numbered(2), (3,), flatten(module), {})
    facts = Facts(clients=4, sizes=np.full(4, 50), network=network)
    derive_costs(Experiment.make({"method": "dp-fedavg", "rounds": 2}), facts)
    with pytest.raises(UserError, match="Mixing"):
        derive_costs(Experiment.make({"method": "dp-fedavg-record", "rounds": 2}), facts)


def test_a_method_that_protects_records_without_knowing_budgets_is_refused() -> None:
    class Other(DPFedAvg):
        unit = "record"

    with pytest.raises(UserError, match="protects records, but is no"):
        budgeting.record_level(Other())
