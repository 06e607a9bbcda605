"""Simulation, server, site and plan make the same of an experiment: the same noise, notes, warnings and refusals.

All four ask `sordino.terms`; differences that are meant are listed here, each with its reason.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from helpers import ALL, FOREMOST, otherwise_slow

from sordino.data import Dataset, FederatedData, federate
from sordino.deploy import terms as deployed_terms
from sordino.deploy.terms import CARRIED, DeployedTerms, terms_of
from sordino.errors import UserError
from sordino.experiment import prepare as preparing
from sordino.experiment.config import DEPLOYED, Experiment
from sordino.experiment.prepare import Prepared, prepare
from sordino.methods import feddpa
from sordino.planning.plan import PlanForRecords, plan_of
from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.budget.client_level_plan import Plan
from sordino.tasks import Classification, Task
from sordino.terms import BuiltNetwork, build_network

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
    "recalibrate": {"personal": "recalibrate"},
    "budgets": {"set": {"budgets": "4:0.6,16:0.6"}},
    "personal layers": {"set": {"personal_layers": 7}},
    "sampled": {"set": {"sampling": 0.3}},
    "counted": {"set": {"counts": 0.2, "class_weight": "balanced"}},
    "quantile": {"set": {"clipping": "quantile", "counts": 0.0}},
    "dealt": {"set": {"batches": "shuffled", "epochs": 2}},
    "norms": {"set": {"clipping": "dp-agr"}},
    "evaluated": {"evaluation_share": 0.2},
    "balanced": {"set": {"class_weight": "balanced"}},
}
SAMPLED = {*FOREMOST, "nbafl", "fedper", "fedaddp", "rpdp-fl", "mr-mtl-record", "dp-fedsgd"}
"""Methods with which every change is tried; unchanged, every method is."""
ONLY_DEPLOYED = {
    r"simulate it with `sordino run`": "bare and single messages, and sampling by all sites' records, stay here",
    r"leave out `variant`": "published noise that breaks its promise to records is not drawn on real machines",
    r"deploy with an epsilon": "sites reserve an epsilon before a run",
    r"whole numbers alone cost": "only real machines draw noise whose rounding is charged",
    r"could show a single site's message|sites or more": "the server of a simulation is trusted to add up",
}
"""Refusals of deployments alone, and why."""
ONLY_PLANNED = {
    r"costs no privacy, and needs no plan": "there is nothing to plan",
    r"sends something without noise": "epsilon is infinite, whatever is planned",
    r"has an infinite epsilon, whatever is planned": "noise comes from a seed that everybody knows",
    r"is only known after a run": "a run tells by how much",
}
"""Refusals of plans alone, and why."""
SAID_BY_PLANS = {
    r"^The best attack": "a run has the figure in its result",
    r"^The server sees each message": "a run has the figure in its result",
    r"pay more than their budgets allow": "a run says it of what was really paid, in its result",
}
"""Warnings of plans alone, and why. Plans do not tell what epsilon does not cover, and have no identity."""
SAID_AS_ADVICE = "`sordino plan` and `sordino advise` say what to do about it."
"""Ending of the note of a run for which a plan has advice."""


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
def quick() -> Iterator[None]:
    """One network for all, of which nobody trains anything; and FedDPA's published search, which takes half a second,
    in a form that is as much a function of the same figures."""
    task = Classification.numbered(2)
    network = functools.cache(
        lambda name, seed, weight: build_network(Experiment(model=name, seed=seed), (FEATURES,), task, weight)
    )

    def build(experiment: Experiment, shape: tuple[int, ...], task: Task, class_weight: str) -> BuiltNetwork:
        assert (tuple(shape), task.width) == ((FEATURES,), 2)
        found: BuiltNetwork = network(experiment.model, experiment.seed, class_weight)
        return found

    with pytest.MonkeyPatch.context() as patch:
        for place in (preparing, deployed_terms):
            patch.setattr(place, "build_network", build)
        patch.setattr(feddpa, "rdp_multiplier", lambda epsilon, steps, delta, rate: rate * steps**0.5 / epsilon)
        yield


def made(how: Any, *given: Any) -> Any:
    """Result of a function, or the sentence with which it refuses."""
    try:
        return how(*given)
    except UserError as error:
        return str(error)


def figures(found: Prepared | DeployedTerms, allowance: Allowance | None = None) -> dict[str, Any]:
    """Everything that decides the noise; by default of all clients, otherwise of the one whose `allowance` it is."""
    allowance = found.allowance if allowance is None else allowance
    known: dict[str, Any] = {"delta": found.budget.delta, "multiplier": found.budget.multiplier}
    if allowance.noise is not None:
        known["message"] = allowance.noise.of_message(1.0)
    if allowance.records is not None:
        plan = allowance.records
        known |= {name: getattr(plan, name).tolist() for name in ("budgets", "multipliers", "sampling", "turns")}
        known["matrix"] = plan.matrix_multipliers.tolist()
        if plan.shared is not None:
            known |= {"message": plan.shared.of_message(1.0), "counts": plan.sum_multipliers.tolist()}
            known |= {"protect_from": plan.shared.protect_from, "expected": plan.expected_records(range(CLIENTS))}
    return known


def planned(found: Plan | PlanForRecords) -> dict[str, Any]:
    """What a plan says of the same figures."""
    known: dict[str, Any] = {"delta": found.delta, "multiplier": found.noise_multiplier}
    if isinstance(found, PlanForRecords):
        for name, key in {"multipliers": "noise_multiplier", "sampling": "sampling", "turns": "turns"}.items():
            known[name] = [client[key] for client in found.clients]
    return known


def without_figures(sentences: list[str]) -> list[str]:
    return [re.sub(r"[\d,.]+", "#", sentence) for sentence in sentences]


def is_meant(sentence: str, listed: dict[str, str]) -> bool:
    return any(re.search(pattern, sentence) for pattern in listed)


def check_deployment(here: Prepared | str, there: DeployedTerms | str, tolerance: float, cohort: bool) -> bool:
    """Hold a deployment against its simulation; whether there was anything to compare. Noise may differ by the share
    `tolerance`; `cohort` says that an active server may leave fewer honest shares of it, and notes have other
    figures."""
    if isinstance(there, str):
        assert is_meant(there, ONLY_DEPLOYED) or there == here
        return False
    assert not isinstance(here, str), here
    ours, theirs = figures(here), figures(there)
    assert ours.keys() == theirs.keys()
    for name, figure in ours.items():
        if isinstance(figure, str):
            assert theirs[name] == figure, name
        elif name != "message" or not cohort:
            assert theirs[name] == pytest.approx(figure, rel=tolerance), name
    assert there.disclosed == here.disclosed
    plain = without_figures if tolerance or cohort else list
    assert plain(there.notes) == plain(here.notes)
    # What decides the identity of both; that of a deployment has the keys of DEPLOYED besides.
    assert repr(there.method) == repr(here.method)
    assert there.initial.equal(here.initial)
    for key in set(CARRIED) - {*DEPLOYED}:
        assert getattr(there.experiment, key) == getattr(here.experiment, key), key
    return True


def check_site(server: DeployedTerms) -> None:
    """Hold what a site derives from the keys that travel, with its own number of records, against the server's."""
    site = terms_of(Experiment.make(server.carried()))
    assert site.identity == server.identity
    assert (site.notes, site.disclosed) == (server.notes, server.disclosed)
    assert figures(site, site.at_site(0, RECORDS)) == figures(server, server.at_site(0, RECORDS))
    if site.allowance.records is not None:
        assert site.reserved(0) == server.reserved(0)
    mine, declared = figures(site, site.at_site(0, RECORDS)), figures(server)
    assert {name: np.ravel(value)[0] for name, value in mine.items()} == {
        name: np.ravel(value)[0] for name, value in declared.items()
    }


def check_plan(here: Prepared | str, plan: Plan | PlanForRecords | str) -> bool:
    """Hold a plan against the simulation that it is for; whether there was anything to compare."""
    if isinstance(plan, str):
        assert is_meant(plan, ONLY_PLANNED) or plan == here
        return False
    assert not isinstance(here, str), here
    run = figures(here)
    for name, figure in planned(plan).items():
        assert figure == run[name], name
    told = [warning for warning in plan.warnings if not is_meant(warning, SAID_BY_PLANS)]
    assert sorted(told) == sorted(note for note in here.notes if not note.endswith(SAID_AS_ADVICE))
    return True


IN_BOTH = ("plain", "multiplier", "from the server", "colluders", "budgets", "sampled", "counted")
"""Changes that are tried with noise from a seed each time; with the noise of real machines all are."""


@pytest.mark.parametrize(
    ("change", "noise"),
    otherwise_slow(
        [(change, noise) for change in CHANGES for noise in ("integers", "float")],
        lambda case: case[0] in IN_BOTH or case[1] == "float",
    ),
)
def test_simulation_server_site_and_plan_agree(
    change: str, noise: str, data: FederatedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over methods in both variants. In whole numbers from the seed to the digit; with the noise of real machines up to
    what these add to a budget: 0.1 % here, and 1 % where the noise is a thousand times the signal."""
    monkeypatch.setattr(preparing, "_load", lambda experiment: None)
    monkeypatch.setattr(preparing, "_deal", lambda experiment, dataset, method, **_: (data, None, None))
    deployed, plans = 0, 0
    tolerance = {"integers": 0.0, "float": 0.01 if change == "tiny epsilon" else 1e-3}[noise]
    for method, variant in ALL:
        if CHANGES[change] and method not in SAMPLED:
            continue
        keys = {**KEYS, "method": method, "variant": variant, "noise": noise, **CHANGES[change]}
        experiment = made(Experiment.make, {key: value for key, value in keys.items() if value is not None})
        if isinstance(experiment, str):
            continue  # the setting is none of this method's
        here, there = made(prepare, experiment), made(terms_of, experiment)
        try:
            deployed += check_deployment(here, there, tolerance, change == "cohort")
            if not isinstance(there, str):
                check_site(there)
            plans += check_plan(here, made(plan_of, experiment, None, None, True))
        except AssertionError as error:
            error.add_note(f"{method} {variant}: {here!s:.300} | {there!s:.300}")
            raise
    refused = ("too many colluders", "too large a cohort", "personal layers", "vacuous delta")
    assert deployed or change in refused
    assert plans or noise == "integers" or change in refused


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
