"""What every method must hold, in both variants. A method takes part by being listed as an entry point."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import ALL, KINDS, otherwise_slow
from scipy.stats import chi2

from sordino.errors import UserError
from sordino.experiment.budgeting import same_as_sound
from sordino.experiment.run import carry_on, register
from sordino.method import Method
from sordino.methods import find, names
from sordino.privacy.accounting.gaussian import epsilon_of
from sordino.privacy.accounting.sampled_gaussian import record_epsilon
from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.budget.record_level_plan import RecordPlan
from sordino.privacy.release import Derived
from sordino.privacy.views import VIEWS, View
from sordino.store.store import Store
from sordino.testing import CHECKS, check_method
from sordino.testing.case import CLIENTS, ROUNDS, Case

CLIENT_LEVEL = [(name, variant) for name, variant in ALL if find(name).unit == "client"]
TOGETHER = {("dp-fedsam", "paper"): 2}
"""How many parts leave, each noised as if alone: what the published epsilon leaves out."""
SHARED_NOISE = [(name, variant) for name, variant in ALL if find(name)().record_needs().sums]
PROTECTED = [(*case, "outsider") for case in ALL] + [(*case, "server") for case in CLIENT_LEVEL + SHARED_NOISE]
SHARES = {"server": 1, "peer": CLIENTS - 1, "outsider": CLIENTS}
"""Number of shares of the noise in a sum that each observer cannot subtract."""


def case_of(name: str, variant: str, folder: Path) -> Case:
    return Case(find(name)(variant=variant), folder)  # type: ignore[arg-type]


SEVERAL_PROCESSES = ("the_number_of_workers_changes_no_bit", "a_stopped_run_ends_as_if_it_had_not_been")
"""Checks that are slow but for one method of each kind."""
TWO_ENGINES = "stacked_and_one_by_one_agree"
"""A check that is slow for published variants, whose steps are those of the sound ones but for a few lines."""


def is_short(case: tuple[str, str, Callable[[Case], None]]) -> bool:
    name, variant, check = case
    if check.__name__ in SEVERAL_PROCESSES:
        return name in KINDS and variant == "sound"
    return check.__name__ != TWO_ENGINES or variant == "sound"


BATTERY = otherwise_slow([(*case, check) for case in ALL for check in CHECKS], is_short)


@pytest.mark.parametrize(("name", "variant", "check"), BATTERY)
def test_battery(name: str, variant: str, check: Callable[[Case], None], tmp_path: Path) -> None:
    check(case_of(name, variant, tmp_path))


def by_hand(plan: RecordPlan, client: int, method: Method, z: float, delta: float, view: View) -> float:
    """Training records: every noisy step of every round, and the matrix once. Validation records: each mean. Where
    noise is shared out over messages: one sum in every round, and what is summed once."""
    rate, needs = float(plan.sampling[client]), method.record_needs()
    if needs.sums:
        met = z * math.sqrt(SHARES[view] / SHARES[Allowance(records=plan).observer])
        return record_epsilon(((rate, met, ROUNDS), (1.0, met / math.sqrt(needs.sum_share), 1)), delta)
    steps = ROUNDS * math.ceil(1 / rate)
    once = ((1.0, z, 1),) if needs.matrix_share else ()
    training = record_epsilon(tuple(sorted((*once, (rate, z, steps)))), delta)
    return max(training, record_epsilon(((1.0, z, ROUNDS * needs.means),), delta))


@pytest.mark.parametrize(("name", "variant", "protect_from"), PROTECTED)
def test_epsilon_is_the_one_worked_out_by_hand(name: str, variant: str, protect_from: str, tmp_path: Path) -> None:
    z, delta = 2.0, 1e-5
    case = case_of(name, variant, tmp_path)
    prepared = case.prepared(noise_multiplier=z, protect_from=protect_from, delta=delta)
    summary, _ = case.finished(prepared, tmp_path)
    method = prepared.method
    sent = [release for step in method.steps().values() for release in step.values()]
    if not sent:
        assert summary["epsilon"] == dict.fromkeys(VIEWS, 0.0)
    elif not all(release.private for release in sent):
        assert summary["epsilon"] == dict.fromkeys(VIEWS)
        assert summary["not_covered"]
    elif method.unit == "record":
        plan = prepared.allowance.of_records
        for view in VIEWS:
            expected = max(by_hand(plan, client, method, z, delta, view) for client in range(CLIENTS))
            assert summary["epsilon"][view] == pytest.approx(expected, rel=1e-9)
        assert summary["epsilon_replace_one"] > summary["epsilon"][prepared.allowance.observer]
    else:
        server = ROUNDS / z**2 if protect_from == "server" else ROUNDS * CLIENTS / z**2
        server *= TOGETHER.get((name, variant), 1)
        exposed = any(isinstance(release, Derived) for release in sent)
        shares = dict.fromkeys(VIEWS, 1) if exposed else SHARES
        for view in VIEWS:
            expected = epsilon_of(math.sqrt(server / shares[view]), delta)
            assert summary["epsilon"][view] == pytest.approx(expected, rel=1e-9)
        assert summary["not_covered"] == [*prepared.data.disclosed, *method.discloses()]


def test_the_published_model_moves_by_the_noise_that_epsilon_presumes(tmp_path: Path) -> None:
    """End to end, with nothing learned: each coordinate of the global model is a sum of rounds of noise."""
    rounds, z, clip = 8, 3.0, 0.5
    case = Case(find("dp-fedavg")(rate=1e-12, clip=clip), tmp_path)  # type: ignore[call-arg]
    prepared = case.prepared(rounds=rounds, noise_multiplier=z)
    _, models = case.finished(prepared, tmp_path)
    moved = (models["global"] - prepared.initial).double().numpy()
    deviation = z * clip / CLIENTS * math.sqrt(rounds)
    low, high = chi2.ppf([5e-7, 1 - 5e-7], len(moved))
    assert low < float(np.sum((moved / deviation) ** 2)) < high
    assert not low < float(np.sum((moved / (0.7 * deviation)) ** 2)) < high


def test_a_paper_variant_that_nothing_looks_at_sends_the_same() -> None:
    for name in set(names()) - {name for name, variant in ALL if variant == "paper"}:
        assert find(name)(variant="paper").steps() == find(name)().steps()


def test_a_paper_variant_that_is_no_other_mechanism_says_so() -> None:
    others = {name for name, variant in ALL if variant == "paper"}
    for name in names():
        paper, sound = find(name)(variant="paper"), find(name)()
        assert bool(same_as_sound(paper, paper.steps())) == (name not in others)
        assert not same_as_sound(sound, sound.steps())


def test_a_method_is_a_frozen_dataclass() -> None:
    for name in names():
        kind = find(name)
        assert issubclass(kind, Method)
        with pytest.raises(dataclasses.FrozenInstanceError):
            kind().epochs = 3  # type: ignore[misc]


def test_a_round_with_too_few_clients_is_given_up(tmp_path: Path) -> None:
    prepared = case_of("dp-fedavg", "sound", tmp_path).prepared(participation=0.5)
    noise = dataclasses.replace(prepared.allowance.of_clients, minimum_cohort=4)
    greedy = dataclasses.replace(prepared, allowance=Allowance(noise))
    store = Store(tmp_path)
    with pytest.raises(UserError, match="given up"):
        carry_on(greedy, store, register(greedy, store))


def test_the_battery_tells_which_check_failed() -> None:
    from sordino.methods.dp_fedavg import DPFedAvg

    elsewhere: Any = types.ModuleType("elsewhere")
    elsewhere.heard = []

    class Gossip(DPFedAvg):
        """Keeps what a client trained in a place that the next one reads."""

        def local(self, message: Any, me: Any, data: Any) -> Any:
            result = super().local(message, me, data)
            model = result.keep["model"]
            elsewhere.heard.append(model.detach())
            return dataclasses.replace(result, keep={"model": model + elsewhere.heard[-2:][0]})

        local.releases = DPFedAvg.local.releases  # type: ignore[attr-defined]

    with pytest.raises(AssertionError, match="one clients data do not touch anothers state"):
        check_method(Gossip, engine="one-by-one")
