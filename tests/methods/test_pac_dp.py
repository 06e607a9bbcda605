"""PAC-DP: budgets of one's own, thresholds from a curve, published accounting."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import sordino
from sordino.data.people import sketch
from sordino.errors import UserError
from sordino.experiment.budgeting import unusual
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import deal, prepare
from sordino.experiment.run import carry_on, register, resume
from sordino.federation.schedule import Schedule
from sordino.methods.pac_dp import PACDP
from sordino.parts.curves import PUBLISHED, Curve, plateau_then_cosine, save
from sordino.privacy.gate import Gate
from sordino.privacy.unit import Unit
from sordino.store.store import Store
from sordino.study.curve_fitting import fit_curve

KEYS = {"method": "pac-dp", "clients": 4, "partition": "iid", "rounds": 3, "delta": 1e-5}
SETTINGS = {"epochs": 1, "batch": 60}
WHOLE = {"epochs": 1, "batch": 1000}
"""All records at each step: what they pay is known without distributions."""


def test_budgets_are_dealt_by_shares_or_listed() -> None:
    random = np.random.default_rng(0)
    dealt = PACDP(budgets="0.05:0.6,0.1:0.3,1.0:0.1").client_budgets(50, 8.0, random)
    assert {float(e): int((dealt == e).sum()) for e in np.unique(dealt)} == {0.05: 30, 0.1: 15, 1.0: 5}
    assert PACDP(budgets="1,8,2").client_budgets(3, 8.0, random).tolist() == [1.0, 8.0, 2.0]
    assert PACDP().client_budgets(3, 4.0, random).tolist() == [4.0, 4.0, 4.0]


@pytest.mark.parametrize("wrong", ["1,2", "a:b", "1:0.5,2", "0:1", "-1:0.5,2:0.5", "1:0"])
def test_wrong_budgets_are_refused(wrong: str) -> None:
    with pytest.raises(UserError, match="budgets"):
        PACDP(budgets=wrong).client_budgets(3, 8.0, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("budgets", "told"),
    [
        ("1:0.5,2:0.7", "1.2"),
        ("1:3,2:1", "4"),
        ("1:60,2:30,4:10", "100"),
        ("1:0.9", "0.9"),
        ("1:0.33,2:0.33,4:0.33", None),  # thirds with two decimals
        ("1:0.17,2:0.17,3:0.17,4:0.17,5:0.17,6:0.17", None),
        ("1:0.1,2:0.2,4:0.7", None),
        ("1,2,4,8", None),
    ],
)
def test_shares_that_do_not_come_to_one_are_told(budgets: str, told: str | None) -> None:
    method, experiment = PACDP(budgets=budgets), Experiment.make(KEYS, {"set": {"budgets": budgets}})
    notes = unusual(experiment, method, method.steps(), Schedule.of(3, 4, 1))
    sentence = f"The shares of the clients' budgets come to {told}, not 1: each is divided by that."
    assert notes == ([] if told is None else [sentence])


@pytest.mark.slow
def test_each_client_spends_its_own_budget(tmp_path: Path) -> None:
    result = sordino.run(**KEYS, store=tmp_path, set={**SETTINGS, "budgets": "1,2,4,8"})
    ledger = Store(tmp_path).ledger(result["run"])
    from sordino.privacy.ledger import Ledger

    spent = Ledger(4, Unit.RECORD, ledger).record_epsilons("server", 1e-5)
    for client, budget in enumerate((1, 2, 4, 8)):
        assert 0.97 * budget < spent[client] <= budget
    assert result["epsilon_clients"]["min"] == pytest.approx(1, rel=0.03)
    assert result["epsilon_clients"]["max"] == result["epsilon"]["server"]


def test_a_client_whose_budget_is_used_up_takes_no_further_part(tmp_path: Path) -> None:
    keys = KEYS | {"rounds": 6, "noise_multiplier": 1.0}
    result = sordino.run(**keys, store=tmp_path, set={**SETTINGS, "budgets": "5,5,50,50"})
    assert result["stopped_clients"] == [0, 1]
    cohorts = [row["cohort"] for row in Store(tmp_path).curve(result["run"])]
    assert cohorts[0] == 4
    assert cohorts[-1] == 2
    assert result["epsilon_clients"]["min"] <= 5


@pytest.mark.slow
def test_thresholds_follow_the_curve_and_the_schedule(tmp_path: Path) -> None:
    prepared = prepare(
        Experiment.make(KEYS | {"store": tmp_path}, {"set": SETTINGS | {"curve": "mnist", "budgets": "0.1,1,0.1,1"}})
    )
    thresholds = prepared.method._thresholds(prepared.allowance.of_records.budgets)
    assert thresholds.tolist() == pytest.approx([2.552, 7.949, 2.552, 7.949], abs=0.002)


@pytest.mark.slow
def test_a_curve_is_not_stretched(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="epsilon"):
        sordino.run(**KEYS, store=tmp_path, epsilon=8, set=SETTINGS | {"curve": "mnist"})


@pytest.mark.parametrize(("epsilon", "multiplier"), [(0.5, 48.5), (1, 24.5), (3, 8.49), (5, 5.27), (10, 2.85)])
def test_the_published_accounting(epsilon: float, multiplier: float) -> None:
    assert PACDP().published_multiplier(epsilon, 1e-5, 25, 1000) == pytest.approx(multiplier, rel=0.005)


def test_budgets_that_the_published_accountant_cannot_print() -> None:
    for impossible in (0.01, 0.05, 0.1, 0.18):
        with pytest.raises(UserError, match="cannot print"):
            PACDP().published_multiplier(impossible, 1e-5, 25, 1000)


@pytest.mark.slow
def test_a_hot_start_begins_from_public_records(tmp_path: Path) -> None:
    cold = sordino.run(**KEYS, store=tmp_path, epsilon=1, set=SETTINGS)
    hot = sordino.run(**KEYS, store=tmp_path, epsilon=1, set=SETTINGS | {"hot_start": True, "batch": 16})
    assert hot["accuracy"]["start"] > cold["accuracy"]["start"] + 0.2
    assert hot["epsilon"]["server"] <= 1


def test_a_run_ends_when_everybodys_budget_is_used_up(tmp_path: Path) -> None:
    keys = KEYS | {"rounds": 6, "noise_multiplier": 1.0}
    result = sordino.run(**keys, store=tmp_path, set={**SETTINGS, "budgets": "5,5,5,5"})
    assert result["stopped_clients"] == [0, 1, 2, 3]
    assert 1 <= len(Store(tmp_path).curve(result["run"])) < 6
    with pytest.raises(UserError, match="not one round"):
        sordino.run(**keys, store=tmp_path, set={**SETTINGS, "budgets": "1,1,1,1"})


def test_a_clients_threshold_reaches_that_client_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thresholds give budgets away: nobody is told another's, and noise and sums follow one's own."""
    told, clipped = {}, {}
    local, sampled = PACDP.local, Gate.gradients

    @functools.wraps(local)
    def listening(self: PACDP, message: Any, me: Any, data: Any) -> Any:
        told[len(told)] = message
        return local(self, message, me, data)

    def watched(self: Gate, question: int, client: int, clip: torch.Tensor, *rest: Any) -> Any:
        clipped[client] = clip.tolist()
        return sampled(self, question, client, clip, *rest)

    monkeypatch.setattr(PACDP, "local", listening)
    monkeypatch.setattr(Gate, "gradients", watched)
    keys = KEYS | {"rounds": 1, "workers": 1, "engine": "one-by-one", "store": tmp_path}
    sordino.run(**keys, set=WHOLE | {"curve": "mnist", "budgets": "0.1,1,0.5,2"})
    wanted = [PUBLISHED["mnist"](epsilon) for epsilon in (0.1, 1, 0.5, 2)]
    assert [float(message["clip"]) for message in told.values()] == pytest.approx(wanted)
    assert {client: clip for client, (clip,) in clipped.items()} == pytest.approx(dict(enumerate(wanted)))
    for message in told.values():
        assert set(message) == {"global", "clip"}
        assert message["clip"].shape == ()


PROXY = {"data": "digits", "clients": 4, "rounds": 1, "partition": "iid"}


def fitted(folder: Path) -> Curve:
    keys = PROXY | {"store": folder / "simulations", "set": WHOLE}
    curve, _, _ = fit_curve(keys, [4.0, 6.0, 8.0], [0.5, 1.0])
    save(curve, folder / "curve.json")
    return curve


def test_what_is_simulated_is_the_method_with_its_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thresholds fall in the simulations as they will where the curve is used: 1, 1, then lambda(2) for 3 rounds."""
    clipped, told = [], []
    sampled = Gate.gradients

    def watched(self: Gate, question: int, client: int, clip: torch.Tensor) -> Any:
        clipped.append((question, float(clip)))
        return sampled(self, question, client, clip)

    monkeypatch.setattr(Gate, "gradients", watched)
    keys = PROXY | {"rounds": 3, "workers": 1, "delta": 1e-6, "store": tmp_path, "set": WHOLE}
    fit_curve(keys, [4.0, 6.0, 8.0], [0.5], watch=told.append)
    lambdas = [plateau_then_cosine(t, 3) for t in range(3)]
    assert lambdas[2] < 0.8
    assert len(clipped) == 3 * 3 * 4
    for question, clip in clipped:
        assert clip == pytest.approx(0.5 * lambdas[question], rel=1e-6)
    assert [(report.round, report.rounds) for report in told] == [(place, 9) for place in range(9)]
    runs = Store(tmp_path).all()
    assert {(row.method, row.configuration["delta"], row.configuration["partition"]) for row in runs} == {
        ("pac-dp", 1e-6, "iid")
    }


def test_a_fit_takes_what_the_store_has_and_tells_what_it_was_made_of(tmp_path: Path) -> None:
    keys = PROXY | {"workers": 1, "store": tmp_path, "set": WHOLE | {"clip": 3}}
    told: list[str] = []
    first = fit_curve(keys, [4.0, 6.0, 8.0], [0.5, 1.0, 2.0], seeds=2, tell=told.append)
    assert len(Store(tmp_path).all()) == 18
    again = fit_curve(keys, [4.0, 6.0, 8.0], [0.5, 1.0, 2.0], seeds=2)
    assert again == first
    assert len(Store(tmp_path).all()) == 18
    curve, points, grid = first
    about = curve.provenance
    assert about["simulated"] == {**PROXY, **WHOLE, "seeds": 2}
    assert about["accuracies"] == [[one["epsilon"], one["clip"], round(one["accuracy"], 4)] for one in grid]
    edges = {0.5: ", the smallest that was tried", 1.0: "", 2.0: ", the largest that was tried"}
    assert [line.partition(", accuracy")[0] for line in told] == [
        f"epsilon {epsilon:g}: best threshold {clip:g}{edges[clip]}" for epsilon, clip in points
    ]


def test_a_curves_content_decides_the_run_and_not_its_path_alone(tmp_path: Path) -> None:
    def identity() -> str:
        return prepare(
            Experiment.make(KEYS, {"store": tmp_path, "epsilon": 1, "set": WHOLE | {"curve": str(path)}})
        ).identity

    path = tmp_path / "curve.json"
    save(PUBLISHED["mnist"], path)
    before = identity()
    assert identity() == before
    save(PUBLISHED["cifar10"], path)
    assert identity() != before


def test_a_run_is_not_resumed_with_another_curve(tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    save(PUBLISHED["mnist"], path)
    chosen = Experiment.make(KEYS, {"store": tmp_path, "epsilon": 1, "set": WHOLE | {"curve": str(path)}})
    store = Store(tmp_path)
    run = register(prepare(chosen), store)
    save(PUBLISHED["cifar10"], path)
    with pytest.raises(UserError):
        resume(run, store)


def test_weights_in_the_place_of_thresholds(tmp_path: Path) -> None:
    """Where every record is clipped and a round is one step, weighing clients by the curve and clipping them by it are
    the same, noise included, if the common threshold is the curve's mean."""
    budgets = {"budgets": "0.1,1,0.5,2"}
    clips = torch.tensor([PUBLISHED["mnist"](epsilon) for epsilon in (0.1, 1, 0.5, 2)]) / 1000
    curve = replace(PUBLISHED["mnist"], kind="piecewise", clip_low=1e-9)
    knots = sorted(zip((0.1, 1.0, 0.5, 2.0), clips.tolist(), strict=True))
    curve = replace(curve, coefficients=tuple(x for x, _ in knots) + tuple(y for _, y in knots))
    save(curve, tmp_path / "curve.json")
    models = {}
    for name, changes in (("thresholds", {}), ("weights", {"curve_sets": "weights", "clip": float(clips.mean())})):
        settings = {"set": WHOLE | budgets | changes | {"rate": 1.0, "curve": str(tmp_path / "curve.json")}}
        prepared = prepare(Experiment.make(KEYS, {"rounds": 1, "store": tmp_path / name}, settings))
        same = dataclasses.replace(prepared, identity="one for both")  # the same noise
        store = Store(tmp_path / name)
        run = register(same, store)
        carry_on(same, store, run)
        models[name] = load_file(store.path(run) / "models.safetensors")["global"] - prepared.initial
    assert torch.allclose(models["weights"], models["thresholds"], rtol=1e-3, atol=1e-6)
    assert float(models["weights"].norm()) > 1e-4


def test_weights_follow_the_curve_and_thresholds_do_not() -> None:
    budgets = np.array([0.1, 1.0, 0.1, 1.0])
    control = PACDP(curve="mnist", curve_sets="weights", clip=0.7)
    assert control._thresholds(budgets).tolist() == pytest.approx([0.7] * 4)
    weights = control._weights(budgets)
    assert weights is not None
    assert float(weights.mean()) == pytest.approx(1)
    assert float(weights[1] / weights[0]) == pytest.approx(7.9488 / 2.5521, rel=1e-3)
    assert PACDP(curve="mnist")._weights(budgets) is None
    assert PACDP(curve_sets="weights")._weights(budgets) is None


def test_a_curve_is_refused_on_the_data_that_it_was_fitted_on(tmp_path: Path) -> None:
    curve = fitted(tmp_path)
    keys = KEYS | {"store": tmp_path}
    settings = {"set": WHOLE | {"curve": str(tmp_path / "curve.json")}}
    assert curve.people == deal(Experiment.make(keys)).people
    for changes in ({}, {"seed": 5}, {"records": 300}, {"partition": "dirichlet:1", "clients": 3}):
        with pytest.raises(UserError, match="was fitted on data of the people whom it would help to protect"):
            prepare(Experiment.make(keys, settings, changes))


def test_a_curve_is_refused_on_nearly_the_data_that_it_was_fitted_on() -> None:
    """A record more, or fewer, changes the files' digest and not the people."""
    rows = [str(number).encode() for number in range(300)]
    with (
        mock.patch.object(Curve, "people", f"one {sketch(rows)}"),
        pytest.raises(UserError, match="was fitted on data of the people whom it would help to protect"),
    ):
        PACDP(curve="mnist").check_data(f"another {sketch(rows[5:])}")


def test_a_curve_of_other_data_is_taken(tmp_path: Path) -> None:
    fitted(tmp_path)
    (tmp_path / "own").mkdir()
    random = np.random.default_rng(0)
    for name in "abc":
        np.savez(tmp_path / "own" / f"{name}.npz", x=random.normal(size=(60, 3)), y=np.arange(60) % 2)
    keys = {"method": "pac-dp", "data": str(tmp_path / "own"), "rounds": 1, "store": tmp_path}
    made = prepare(Experiment.make(keys, {"set": WHOLE | {"curve": str(tmp_path / "curve.json")}}))
    assert not any("curve" in sentence for sentence in made.disclosed)


def test_a_curve_of_unknown_data_is_told_of(tmp_path: Path) -> None:
    made = prepare(Experiment.make(KEYS, {"store": tmp_path, "epsilon": 2, "set": WHOLE | {"curve": "mnist"}}))
    assert any("does not say which data it was fitted on" in sentence for sentence in made.disclosed)
