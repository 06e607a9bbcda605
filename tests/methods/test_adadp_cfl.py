"""AdaDP-CFL: groups, what leaves, thresholds."""

from __future__ import annotations

import math
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import sordino
from sordino.experiment.config import Experiment
from sordino.experiment.prepare import prepare
from sordino.methods.adadp_cfl import AdaDPCFL
from sordino.parts.ddpg import Ddpg
from sordino.parts.record_thresholds import Fixed, Learned, Percentile
from sordino.privacy.accounting.gaussian import mu_of
from sordino.privacy.budget.allowance import Outlook
from sordino.store.checkpoint import load
from sordino.store.store import Store
from sordino.terms import Facts, derive_costs, describe_settings
from sordino.testing.case import Case
from sordino.testing.records import (
    records_are_sampled_clipped_and_noised_as_charged,
    records_set_aside_are_judged_and_not_trained_on,
)

KEYS = {"method": "adadp-cfl", "clients": 6, "partition": "iid", "rounds": 3, "delta": 1e-5, "epsilon": 8}
SETTINGS = {"epochs": 1, "batch": 1000}
"""All records at each step: what they pay is known without distributions."""
INSIST = {"clipping.effect": 1e6}
"""Learn, however large the noise is."""


def final_state(folder: Path, run: str) -> dict:
    store = Store(folder)
    row = store.get(run)
    return load(row.checkpoint, store.path(run)).server


@pytest.mark.slow
def test_clients_of_one_distribution_are_not_parted(tmp_path: Path) -> None:
    result = sordino.run(**KEYS, store=tmp_path, set=SETTINGS | INSIST | {"cluster_share": 0.2})
    state = final_state(tmp_path, result["run"])
    assert state["clusters"].tolist() == [0] * 6
    assert (tmp_path / "runs" / result["run"] / "clusters.png").stat().st_size > 10_000
    assert result["epsilon"]["server"] <= 8 + 1e-9
    assert len(sordino.load_models(result["run"], tmp_path).shared) == 1


@pytest.mark.slow
def test_clients_of_different_labels_are_parted(tmp_path: Path) -> None:
    keys = KEYS | {"partition": "labels:10%", "clients": 10, "rounds": 1, "epsilon": 40}
    result = sordino.run(**keys, store=tmp_path, set=SETTINGS | {"clipping": "fixed"})
    state = final_state(tmp_path, result["run"])
    assert len(set(state["clusters"].tolist())) >= 4
    assert len(sordino.load_models(result["run"], tmp_path).shared) == len(state["models"])


def test_the_agents_thresholds_stay_in_their_range(tmp_path: Path) -> None:
    changes = {"clipping.low": 0.5, "clipping.high": 2.0, "cluster_share": 0}
    result = sordino.run(**KEYS, store=tmp_path, set=SETTINGS | INSIST | changes)
    clips = final_state(tmp_path, result["run"])["threshold"]["clips"]
    assert ((clips >= 0.5) & (clips <= 2.0)).all()
    assert len(clips.unique()) > 1


@pytest.mark.parametrize(
    ("clipping", "pools"),
    [
        ("fixed", {"training"}),
        ("percentile", {"training", "validation"}),
        ("quantile", {"training", "validation"}),
    ],
)
def test_what_thresholds_need_is_charged(clipping: str, pools: set[str], tmp_path: Path) -> None:
    result = sordino.run(**KEYS, store=tmp_path, set=SETTINGS | {"clipping": clipping, "cluster_share": 0.2})
    rows = Store(tmp_path).ledger(result["run"])
    within = {"within"} if "validation" in pools else set()
    assert {row.release for row in rows} == {"moments", "update"} | within
    assert {row.pool for row in rows} == pools
    assert result["epsilon"]["server"] <= 8 + 1e-9


@pytest.mark.parametrize("clipping", [Learned(effect=1e6), Percentile()])
def test_records_set_aside_are_measured_and_not_trained_on(clipping: Any, tmp_path: Path) -> None:
    case = Case(AdaDPCFL(clipping=clipping, cluster_share=0.2), tmp_path)
    records_are_sampled_clipped_and_noised_as_charged(case)
    records_set_aside_are_judged_and_not_trained_on(case)


def followed(rule: Percentile, clips: list[float], shares: list[float]) -> list[float]:
    """Thresholds after one turn in which clients told these shares."""
    got = SimpleNamespace(who=range(len(clips)), rows=lambda name: torch.tensor(shares).unsqueeze(1))
    state = rule.following({"clips": torch.tensor(clips)}, got, None)  # type: ignore[arg-type]
    return state["clips"].tolist()


def test_a_percentiles_threshold_rises_falls_and_stays() -> None:
    """By hand: C exp(pace (0.9 - share)), noised shares held to [0, 1], in [0.1, 10]; none measured: as it was."""
    found = followed(Percentile(rate=2.0), [1.0] * 6 + [9.0, 0.1], [0.4, 0.9, 1.0, -0.7, 4.0, math.nan, 0.0, 1.0])
    hand = [math.exp(1.0), 1.0, math.exp(-0.2), math.exp(1.8), math.exp(-0.2), 1.0, 10.0, 0.1]
    assert found == pytest.approx(hand, rel=1e-6)


def test_a_percentiles_threshold_finds_its_place_from_both_sides() -> None:
    """Norms are log-normal around 2: their 90th percentile is 2 exp(1.2816) = 7.2."""
    from scipy.stats import norm

    for start in (0.2, 10.0):
        clip = start
        for _ in range(400):
            (clip,) = followed(Percentile(high=100.0), [clip], [float(norm.cdf(math.log(clip / 2)))])
        assert clip == pytest.approx(2 * math.exp(1.2816), rel=0.01)


def test_thresholds_rise_in_a_run_where_records_are_beyond(tmp_path: Path) -> None:
    settings = SETTINGS | {"clipping": "percentile", "clip": 0.15, "cluster_share": 0}
    result = sordino.run(**KEYS | {"epsilon": 100}, store=tmp_path, set=settings)
    clips = final_state(tmp_path, result["run"])["threshold"]["clips"]
    assert (clips > 0.15 * 1.5).all(), "gradients of a new model are longer than 0.15"


def outlook(epsilon: float, records: int = 160, clients: int = 100, turns: int = 5) -> Outlook:
    return Outlook(np.full(clients, records), np.full(clients, epsilon), 1e-5, turns)


def test_the_noise_of_a_reward_by_hand() -> None:
    """32 validation records, 10 means: a loss in [0, 4] is noised by 2 z/32, an accuracy by z/64; a reward is the
    difference of two of each."""
    z = math.sqrt(10) / mu_of(8.0, 1e-5)
    hand = math.sqrt(2 * ((2 * z / 32) ** 2 + (z / 64) ** 2))
    assert Learned().reward_deviation(outlook(8.0)) == pytest.approx(hand)


@pytest.mark.parametrize(("loss", "accuracy", "reward"), [(1.0, 1.0, 0.5 + 0.3), (2.0, 100.0, 2 * 0.5 + 100 * 0.3)])
def test_the_reward_weighs_loss_and_accuracy_by_hand(
    loss: float, accuracy: float, reward: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a loss of 2 to one of 1.5, and from an accuracy of 0.4 to one of 0.7."""
    rewards: list[float] = []

    def remember(self: Ddpg, mind: Any, before: Any, action: float, reward: float, after: Any, random: Any) -> Any:
        rewards.append(reward)
        return mind

    monkeypatch.setattr(Ddpg, "remember", remember)
    rule = Learned(loss_weight=loss, accuracy_weight=accuracy)
    federation: Any = SimpleNamespace(
        schedule=SimpleNamespace(clients=2), random=lambda *_: torch.Generator().manual_seed(0)
    )
    state = rule.begin(federation, 1.0)
    for seen in ({"loss": 2.0, "accuracy": 0.4}, {"loss": 1.5, "accuracy": 0.7}):
        got: Any = SimpleNamespace(who=[1], rows=lambda name, seen=seen: torch.tensor([[seen[name]]]))
        state = rule.following(state, got, federation)
    assert rewards == [pytest.approx(reward, rel=1e-6)]


def test_the_weights_of_a_reward_are_planned_with() -> None:
    z = math.sqrt(10) / mu_of(8.0, 1e-5)
    weighed = Learned(loss_weight=3.0, accuracy_weight=100.0)
    hand = math.sqrt(2 * ((3 * 2 * z / 32) ** 2 + (100 * z / 64) ** 2))
    assert weighed.reward_deviation(outlook(8.0)) == pytest.approx(hand)
    for factor in (1e-3, 10.0):  # a reward in other units decides alike
        scaled = Learned(loss_weight=factor, accuracy_weight=factor)
        assert scaled.reward_deviation(outlook(8.0)) == pytest.approx(factor * Learned().reward_deviation(outlook(8.0)))
        assert scaled.planned(outlook(8.0))[0] == scaled
        assert scaled.planned(outlook(1.0))[0] == Fixed()


def test_weights_of_one_are_no_part_of_a_runs_identity() -> None:
    assert "weight" not in describe_settings(AdaDPCFL(clipping=Learned())).partition("clipping=")[2].partition(")")[0]
    assert "accuracy_weight=100.0" in describe_settings(AdaDPCFL(clipping=Learned(accuracy_weight=100.0)))


def test_where_noise_hides_the_rewards_there_is_no_agent() -> None:
    method = AdaDPCFL(cluster_share=0)
    kept, notes = method.planned(outlook(8.0))
    assert kept.clipping == Learned()
    assert any("deviation of 0.17" in note for note in notes)
    fixed, notes = method.planned(outlook(1.0))
    assert fixed.clipping == Fixed()
    assert any("deviation of 1.1" in note and "C stays fixed" in note for note in notes)
    assert not fixed.record_needs().means
    assert not fixed.record_needs().held_out, "all records are trained on"
    assert method.planned(outlook(1.0, records=4000))[0].clipping == Learned()
    assert AdaDPCFL(clipping=Learned(effect=1e6)).planned(outlook(1.0))[0].clipping == Learned(effect=1e6)
    assert AdaDPCFL(clipping=Learned(agents="own")).planned(outlook(8.0))[0].clipping == Fixed()


def test_a_run_without_an_agent_sends_no_metrics(tmp_path: Path) -> None:
    keys = KEYS | {"epsilon": 0.5, "store": tmp_path}
    made = prepare(Experiment.make(keys, {"set": SETTINGS}))
    assert set(made.method.steps()["local"]) == {"update"}
    assert not made.allowance.of_records.validation.any()
    assert any("C stays fixed" in note for note in made.notes)
    assert any("not grouped" in note for note in made.notes)
    result = sordino.run(**keys, set=SETTINGS)
    assert {row.release for row in Store(tmp_path).ledger(result["run"])} == {"update"}
    assert final_state(tmp_path, result["run"])["clusters"].tolist() == [0] * 6
    assert not (tmp_path / "runs" / result["run"] / "clusters.png").exists()
    assert made.notes == result["notes"][: len(made.notes)]


def test_the_groupings_share_is_what_a_gap_takes() -> None:
    """With the chosen share, clients that are a gap apart are at the threshold's distance and one deviation more."""
    method = AdaDPCFL(clipping=Fixed())
    chosen, notes = method.planned(outlook(8.0))
    share = chosen.cluster_share
    assert share is not None
    assert 0.05 < share < 0.4
    noise = 1 / mu_of(share * 8.0, 1e-5)
    chance = (8 * noise / 160) ** 2 + 1 / 160
    assert math.sqrt(1 + method.gap**2 / (2 * chance)) == pytest.approx(1 + 3.4 / 8, rel=1e-6)
    assert any(f"{share:.0%} of epsilon" in note for note in notes)
    more, _ = method.planned(outlook(8.0, records=320))
    assert more.cluster_share < share  # type: ignore[operator]


def test_where_a_gap_costs_too_much_clients_are_not_grouped() -> None:
    method = AdaDPCFL(clipping=Fixed())
    chosen, (note,) = method.planned(outlook(1.0))
    assert chosen.cluster_share == 0
    assert "not grouped" in note
    assert chosen.record_needs().matrix_share == 0
    assert AdaDPCFL(clipping=Fixed()).planned(outlook(1e6, records=3))[0].cluster_share == 0, "too few records"
    assert AdaDPCFL(clipping=Fixed(), cluster_share=0.2).planned(outlook(1.0)) == (
        AdaDPCFL(clipping=Fixed(), cluster_share=0.2),
        [],
    )


@pytest.mark.parametrize(("noise", "share"), [(1.0, 0.5), (30.0, 0)])
def test_with_given_noise_groups_are_sought_where_it_lets_them_show(noise: float, share: float) -> None:
    given = Outlook(np.full(9, 160), np.full(9, np.inf), 1e-5, 5, noise)
    chosen, (note,) = AdaDPCFL(clipping=Fixed()).planned(given)
    assert chosen.cluster_share == share
    assert "given noise" in note


def test_the_papers_mechanism_is_not_changed_by_the_plan() -> None:
    method = AdaDPCFL(variant="paper")
    assert method.planned(outlook(0.01)) == (method, [])


def test_every_clients_first_action_is_random(monkeypatch: pytest.MonkeyPatch) -> None:
    """One cycle: the shared agent asks its policy only once each of its clients has acted."""
    asked = []
    mean_action = Ddpg.mean_action
    monkeypatch.setattr(Ddpg, "mean_action", lambda *given: asked.append(1) or mean_action(*given))
    fed: Any = SimpleNamespace(
        schedule=SimpleNamespace(clients=7),
        random=lambda *purpose: torch.Generator().manual_seed(zlib.crc32(repr(purpose).encode())),
    )
    rule = Learned()
    state = rule.begin(fed, 1.0)
    got: Any = SimpleNamespace(who=range(7), rows=lambda name: torch.full((7, 1), 0.5))
    state = rule.following(state, got, fed)
    assert not asked
    assert len(state["clips"].unique()) == 7
    rule.following(state, got, fed)
    assert len(asked) == 7


def test_the_papers_mechanism_is_infinite_and_says_what_the_noise_is_worth(tmp_path: Path) -> None:
    result = sordino.run(**KEYS, variant="paper", store=tmp_path, set=SETTINGS)
    assert set(result["epsilon"].values()) == {None}
    bare = ("subspace: ", "loss: ", "accuracy: ")
    assert sum(sentence.startswith(bare) for sentence in result["not_covered"]) == 3
    assert any("were public" in note for note in result["notes"])


def test_the_published_noise() -> None:
    # methods page, section 9: lr 0.01, B 20, T 100, delta 1e-4 gives 0.4344 for epsilon 1.
    method = AdaDPCFL(rate=0.01, batch=20)
    assert method.published_multiplier(1.0, 1e-4, 100, 0) == pytest.approx(0.4344, abs=5e-4)
    assert method.published_multiplier(5.0, 1e-4, 100, 0) == pytest.approx(0.087, abs=5e-4)


def test_the_published_noise_counts_all_rounds() -> None:
    """A tenth of 100 clients in each of 100 rounds: T is 100 in (2 eta / B) sqrt(2 ln(1.25 / delta)) T / epsilon."""
    keys = {"method": "adadp-cfl", "variant": "paper", "clients": 100, "rounds": 100, "participation": 0.1}
    chosen = {"epsilon": 1.0, "delta": 1e-4, "set": {"batches": "shuffled", "batch": 20, "rate": 0.01, "epochs": 5}}
    costs = derive_costs(Experiment.make(keys, chosen), Facts(clients=100, sizes=np.full(100, 500)))
    assert costs.allowance.of_records.charge(0) == (1.0, pytest.approx(0.434361, rel=1e-5), 5)
