"""Simulation and deployment make the same of an experiment: the same noise, notes, warnings and refusals."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from helpers import ALL

from sordino.data import Dataset, FederatedData, federate
from sordino.deploy.terms import Terms, terms_of
from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import Prepared, prepare
from sordino.methods import feddpa
from sordino.tasks import Classification

CLIENTS, RECORDS, FEATURES = 10, 40, 6
KEYS: dict[str, Any] = {
    **{"clients": CLIENTS, "shape": [FEATURES], "labels": ["no", "yes"], "records_each": RECORDS, "rounds": 4},
    **{"model": "logistic", "epsilon": 8.0, "compiled": "never"},
}
CHANGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "tiny epsilon": {"epsilon": 0.005},
    "too little for the network": {"epsilon": 0.05},
    "multiplier": {"epsilon": None, "noise_multiplier": 1.5},
    "vacuous delta": {"delta": 0.2},
    "weak delta": {"delta": 0.02},
    "half": {"participation": 0.5},
    "from the server": {"protect_from": "server"},
    "colluders": {"colluders": 3},
    "too many colluders": {"colluders": 10},
    "cohort": {"minimum_cohort": 9},
    "too large a cohort": {"minimum_cohort": 11},
    "blend": {"personal": "blend"},
    "budgets": {"set": {"budgets": "4:0.6,16:0.6"}},
    "personal layers": {"set": {"personal_layers": 7}},
}
ONLY_DEPLOYED = re.compile(
    r"simulate it with `sordino run`|leave out `variant`|deploy with an epsilon|whole numbers alone cost|"
    r"could show a single site's message|sites or more"
)
"""Sentences with which deployments refuse what a simulation may do."""


@pytest.fixture(scope="module")
def data() -> FederatedData:
    """Clients with `RECORDS` training records each, as the experiment declares them."""
    random = np.random.default_rng(0)
    many = CLIENTS * RECORDS * 5 // 4
    x = torch.from_numpy(random.standard_normal((many, FEATURES)).astype(np.float32))
    y = torch.from_numpy(random.integers(0, 2, many))
    found = federate(Dataset("made", x, y, Classification.numbered(2), None, (), None), "iid", CLIENTS, 0, 0.2)
    assert found.train.sizes.tolist() == [RECORDS] * CLIENTS
    return found


@pytest.fixture(scope="module", autouse=True)
def searched_once() -> Iterator[None]:
    """The published search for FedDPA's noise takes half a second, and is always the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feddpa, "rdp_multiplier", functools.cache(feddpa.rdp_multiplier))
        yield


def made(how: Any, *given: Any) -> Any:
    """Result of a function, or the sentence with which it refuses."""
    try:
        return how(*given)
    except UserError as error:
        return str(error)


def figures(found: Prepared | Terms) -> dict[str, Any]:
    """Everything that decides the noise."""
    allowance = found.allowance
    known: dict[str, Any] = {"delta": found.budget.delta, "multiplier": found.budget.multiplier}
    if allowance.noise is not None:
        known["message"] = allowance.noise.of_message(1.0)
    if allowance.records is not None:
        plan = allowance.records
        known |= {name: getattr(plan, name).tolist() for name in ("budgets", "multipliers", "sampling", "turns")}
        known["matrix"] = plan.matrix_multipliers.tolist()
    return known


def without_figures(sentences: list[str]) -> list[str]:
    return [re.sub(r"[\d,.]+", "#", sentence) for sentence in sentences]


@pytest.mark.parametrize("noise", ["integers", "float"])
@pytest.mark.parametrize("change", CHANGES)
def test_simulation_and_deployment_agree(change: str, noise: str, data: FederatedData) -> None:
    """Over every method in every variant. In whole numbers from the seed to the digit; with the noise of real machines
    up to what these add to a budget: 0.1 % here, and 1 % where the noise is a thousand times the signal."""
    compared = 0
    tolerance = {"integers": 0.0, "float": 0.01 if change == "tiny epsilon" else 1e-3}[noise]
    for method, variant in ALL:
        keys = {**KEYS, "method": method, "variant": variant, "noise": noise, **CHANGES[change]}
        experiment = made(Experiment.make, {key: value for key, value in keys.items() if value is not None})
        if isinstance(experiment, str):
            continue  # the setting is none of this method's
        there, here = made(terms_of, experiment), made(prepare, experiment, data)
        where = f"{method} {variant}: {there!s:.300} | {here!s:.300}"
        if isinstance(there, str):
            assert ONLY_DEPLOYED.search(there) or there == here, where
            continue
        assert not isinstance(here, str), where
        compared += 1
        ours, theirs = figures(here), figures(there)
        assert ours.keys() == theirs.keys()
        for name, figure in ours.items():
            if name == "message" and change == "cohort":  # an active server may leave fewer honest shares
                continue
            assert theirs[name] == pytest.approx(figure, rel=tolerance), (where, name)
        assert there.disclosed == here.disclosed, where
        if noise == "integers" and change != "cohort":
            assert there.notes == here.notes, where
        else:
            assert without_figures(there.notes) == without_figures(here.notes), where
    assert compared or change in ("too many colluders", "too large a cohort", "personal layers", "vacuous delta")


def test_published_noise_is_that_of_the_simulation(data: FederatedData) -> None:
    for method in ("feddpa", "nbafl"):
        keys = {**KEYS, "method": method, "variant": "paper"}
        there, here = terms_of(Experiment.make(keys)), prepare(Experiment.make(keys), data)
        assert there.budget.multiplier == here.budget.multiplier != terms_of(Experiment.make(KEYS)).budget.multiplier
        assert any("published accounting" in note for note in there.notes)
        with pytest.raises(UserError, match="must declare about how many training records a site has"):
            terms_of(Experiment.make({key: value for key, value in keys.items() if key != "records_each"}))


def test_a_deployment_warns_of_too_little_budget_and_refuses_too_many_personal_layers() -> None:
    small = terms_of(Experiment.make({**KEYS, "method": "dp-fedavg", "epsilon": 0.05}))
    assert any("`sordino plan`" in note for note in small.notes)
    with pytest.raises(UserError, match="personal_layers is 7, but the network has 1 layer"):
        terms_of(Experiment.make({**KEYS, "method": "fedper", "set": {"personal_layers": 7}}))
