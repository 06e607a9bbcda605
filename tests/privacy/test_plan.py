"""Plans: calibration, feasibility, refusals."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.errors import UserError
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import Prepared, prepare
from sordino.planning.plan import PlanForRecords, plan_of
from sordino.privacy.accounting.gaussian import epsilon_of
from sordino.privacy.budget.allowance import Allowance, Noise
from sordino.privacy.budget.client_level_plan import check_delta, default_delta, multiplier_for, plan
from sordino.privacy.budget.record_level_plan import RecordPlan
from sordino.privacy.unit import Unit


@settings(deadline=None)
@given(
    clients=st.integers(2, 10_000),
    rounds=st.integers(1, 500),
    epsilon=st.floats(0.1, 50),
    protect_from=st.sampled_from(["outsider", "server"]),
    participation=st.floats(0.01, 1),
)
def test_the_budget_is_met_for_the_protected_observer(clients, rounds, epsilon, protect_from, participation) -> None:
    found = plan(clients, rounds, epsilon=epsilon, protect_from=protect_from, participation=participation)
    assert found.epsilon[protect_from] == pytest.approx(epsilon, rel=1e-6)
    assert found.epsilon["outsider"] <= found.epsilon["peer"] * (1 + 1e-9)
    assert found.epsilon["peer"] <= found.epsilon["server"] * (1 + 1e-9)


# delta = 1e-5
@pytest.mark.parametrize(
    ("epsilon", "clients", "parameters"), [(8, 10, 278), (8, 50, 6939), (8, 1000, 2.8e6), (2, 10, 25), (2, 50, 629)]
)
def test_feasibility_law(epsilon: float, clients: int, parameters: float) -> None:
    found = plan(clients, 77, 1e-5, epsilon=epsilon)
    assert found.feasible_parameters == pytest.approx(parameters, rel=0.01)


def test_feasibility_does_not_depend_on_rounds_or_turns() -> None:
    # Everybody once in ten rounds of a tenth is one release each: mu is that of one full round.
    whole = plan(100, 1, 1e-5, epsilon=4)
    turns = plan(100, 10, 1e-5, epsilon=4, participation=0.1)
    assert turns.noise_multiplier == pytest.approx(whole.noise_multiplier)
    assert turns.feasible_parameters == pytest.approx(whole.feasible_parameters / 10, rel=0.01)


@pytest.mark.parametrize(
    ("noise", "parameters"),
    [
        # 20 clients, 5 turns: in a sum of 20 messages a deviation of z = 4, so that one of them has 4 / sqrt(20).
        (Noise(4.0, "outsider", 20), 20 * 5 * 20 / 16),
        # Of 20 messages 10 are sure to come, and 2 of these tell their share: each message carries 4 / sqrt(8).
        (Noise(4.0, "outsider", 10, colluders=2), 20 * 5 * 8 / 16),
        (Noise(4.0, "server", 20), 20 * 5 / 16),
        (Noise(4.0, "outsider", 20, shares=7), 20 * 5 * 7 / 16),
    ],
)
def test_what_can_be_trained_of_whole_clients_by_hand(noise: Noise, parameters: float) -> None:
    assert noise.feasible(clients=20, turns=5) == pytest.approx(parameters)
    assert Allowance(noise).feasible(20, 5, np.zeros(20)) == pytest.approx(parameters)


def test_what_can_be_trained_of_records_by_hand() -> None:
    """Two clients of 100 and 50 records: 3 turns of 4 steps at rate 0.1 and z = 2, 1 turn of 2 steps at 0.5 and z = 4.

    12 x 0.1 x 100 + 2 x 0.5 x 50 = 170 bounds, with a variance of 12 x 4 + 2 x 16 = 80.
    """
    nothing = np.zeros(2)
    plan = RecordPlan(
        sampling=np.array([0.1, 0.5]),
        steps=np.array([4, 2]),
        multipliers=np.array([2.0, 4.0]),
        budgets=nothing,
        turns=np.array([3, 1]),
        matrix_multipliers=nothing,
        mean_multipliers=nothing,
        validation=nothing,
        trained=np.array([100, 50]),
        sum_multipliers=nothing,
    )
    records = np.array([100, 50])
    assert Allowance(records=plan).feasible(2, 3, records) == pytest.approx(170**2 / 80)
    assert dataclasses.replace(plan, multipliers=nothing).feasible(records) == math.inf
    assert Allowance().feasible(2, 3, records) == math.inf


def test_advice_names_the_clients_that_would_be_enough() -> None:
    found = plan(10, 20, 1e-5, epsilon=8, parameters=28_000)
    assert any("More clients: about 101 of them" in sentence for sentence in found.advice)
    assert plan(101, 20, 1e-5, epsilon=8, parameters=28_000).advice[0].endswith("go ahead.")
    server = plan(10, 20, 1e-5, epsilon=8, parameters=281, protect_from="server")
    assert any("about 101 of them" in sentence for sentence in server.advice)


def test_vacuous_delta_is_refused_or_warned_of() -> None:
    with pytest.raises(UserError, match="vacuous"):
        plan(10, 5, 0.1, epsilon=1)
    assert "promises nothing" in plan(10, 5, 0.1, epsilon=1, allow_vacuous_delta=True).warnings[0]
    assert "weak" in plan(10, 5, 0.02, epsilon=1).warnings[0]
    assert plan(10, 5, 1e-6, epsilon=1).warnings == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 0},
        {"epsilon": -1},
        {"noise_multiplier": 0},
        {},
        {"epsilon": 1, "noise_multiplier": 1},
        {"epsilon": 1, "participation": 0},
        {"epsilon": 1, "delta": 0},
        {"epsilon": math.nan},
    ],
)
def test_nonsense_is_refused(wrong: dict) -> None:
    with pytest.raises(UserError):
        plan(10, 5, **wrong)


def test_default_delta_means_something() -> None:
    for clients in (1, 10, 1000, 10**6):
        assert default_delta(clients) <= 1 / (10 * clients)


def test_multiplier_for_a_budget() -> None:
    # Table for N = 50, T = 30 at delta = 0.02, exact: epsilon 2 needs 5.52.
    assert multiplier_for(2, 0.02, 30) == pytest.approx(5.52, abs=0.006)


def test_delta_is_held_against_the_records_of_the_largest_client() -> None:
    assert check_delta(1e-4, 1000, Unit.RECORD, allow_vacuous=False) == []
    with pytest.raises(UserError, match=r"vacuous for a client with 1000 records: publishing one random record"):
        check_delta(1e-3, 1000, Unit.RECORD, allow_vacuous=False)
    assert "promises nothing" in check_delta(1e-3, 1000, Unit.RECORD, allow_vacuous=True)[0]
    assert "weak" in check_delta(5e-4, 1000, Unit.RECORD, allow_vacuous=False)[0]


@pytest.mark.parametrize("method", ["dp-fedavg-record", "pac-dp", "adadp-cfl"])
def test_a_run_at_record_level_is_refused_from_one_over_its_largest_client_on(method: str, tmp_path: Path) -> None:
    """Two clients, of 40 and 200 training records: the larger one counts, however small the other is."""
    (tmp_path / "own").mkdir()
    random = np.random.default_rng(0)
    for name, count in (("small", 50), ("large", 250)):
        np.savez(tmp_path / "own" / f"{name}.npz", x=random.normal(size=(count, 3)), y=np.arange(count) % 2)
    keys = {"data": str(tmp_path / "own"), "method": method, "rounds": 1, "noise_multiplier": 5.0, "store": tmp_path}

    def prepared(delta: float | None, **more: bool) -> Prepared:
        return prepare(Experiment.make(keys, {"delta": delta} | more))

    sizes = prepared(None).data.train.sizes
    assert sorted(sizes) == [40, 200]
    assert prepared(None).budget.delta == default_delta(200)
    for vacuous in (1 / 200, 1 / 100, 1 / 40):
        with pytest.raises(UserError, match="vacuous for a client with 200 records"):
            prepared(vacuous)
    assert any("promises nothing" in note for note in prepared(1 / 200, allow_vacuous_delta=True).notes)
    assert any("weak" in note for note in prepared(0.9 / 200).notes)


def test_a_plan_knows_that_reading_states_exposes_single_messages() -> None:
    """FedGLP-ADP as published uploads masks that follow from single messages: nobody meets more noise than the
    server."""
    keys = {"method": "fedglp-adp", "set": {"clipping": "fixed"}, "clients": 10, "rounds": 3, "noise_multiplier": 2.0}
    sound, paper = (plan_of(Experiment.make(keys, {"variant": variant})) for variant in ("sound", "paper"))
    assert paper.epsilon["outsider"] == paper.epsilon["peer"] == paper.epsilon["server"]
    assert paper.epsilon["server"] == pytest.approx(epsilon_of(math.sqrt(30) / 2, paper.delta))
    assert sound.epsilon["outsider"] == pytest.approx(epsilon_of(math.sqrt(3) / 2, sound.delta))


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"minimum_cohort": 4, "colluders": 4}, "With 4 colluders among 4 clients no honest noise is left"),
        ({"minimum_cohort": 9}, "minimum_cohort is 9, but a round has 8 clients"),
    ],
)
def test_cohorts_in_which_no_noise_is_left_are_refused(keys: dict, sentence: str) -> None:
    experiment = Experiment.make({"method": "dp-fedavg", "rounds": 2, "clients": 8, **keys})
    with pytest.raises(UserError, match=sentence):
        plan_of(experiment)


def test_a_plan_counts_the_records_that_a_run_trains_on() -> None:
    """A tenth is set aside as public where the method starts from a model that was trained on such records."""
    keys = {"method": "pac-dp", "clients": 4, "records": 400, "rounds": 2, "partition": "iid"}
    sizes = {}
    for hot in (False, True):
        experiment = Experiment.make(keys, {"set": {"hot_start": hot}})
        planned, prepared = plan_of(experiment, look=True), prepare(experiment)
        assert isinstance(planned, PlanForRecords)
        sizes[hot] = [client["records"] for client in planned.clients]
        assert sizes[hot] == prepared.data.train.sizes.tolist()
        assert planned.noise_multiplier == prepared.budget.multiplier
    assert sum(sizes[True]) == pytest.approx(0.9 * sum(sizes[False]), abs=4)


def test_a_plan_refuses_a_network_that_a_run_refuses() -> None:
    keys = {"method": "fedper", "clients": 4, "records": 100, "rounds": 2, "set": {"personal_layers": 7}}
    with pytest.raises(UserError, match="personal_layers is 7, but the network has 1 layer"):
        plan_of(Experiment.make(keys), look=True)
