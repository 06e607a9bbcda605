"""Epsilon is computed from what really left."""

import math
from dataclasses import replace

import pytest

from sordino.privacy.accountant import epsilon_of
from sordino.privacy.gate import Noise
from sordino.privacy.ledger import Ledger
from sordino.privacy.release import Bare, Derived, Number, Public, Update

UPDATE = {"update": Update("clip")}


def charged(rounds: int, who: list[int], noise: Noise, clients: int = 50, releases: dict = UPDATE) -> Ledger:
    ledger = Ledger(clients)
    for number in range(rounds):
        ledger.charge(releases, who, "local", number, Public({"clip": 0.7 + number}, layers=[5]), noise)
    return ledger


def test_views_of_a_shared_out_noise() -> None:
    ledger = charged(100, list(range(50)), Noise(1.0, "outsider", 50))
    delta = 50**-1.1
    assert ledger.epsilon(delta)["outsider"] == pytest.approx(71.21, abs=0.01)
    assert ledger.epsilon(delta)["server"] == pytest.approx(2655, abs=1)
    assert ledger.mu("peer") == pytest.approx(10 * math.sqrt(50 / 49))


def test_views_when_each_message_carries_all_noise() -> None:
    ledger = charged(4, list(range(25)), Noise(2.0, "server", 25))
    assert ledger.mu("server") == pytest.approx(1.0)
    assert ledger.mu("outsider") == pytest.approx(1 / 5)


def test_only_own_participations_are_paid_for() -> None:
    ledger = Ledger(4)
    noise = Noise(1.0, "outsider", 2)
    for number in range(9):
        ledger.charge(
            UPDATE, [0, 1] if number < 7 else [2, 3], "local", number, Public({"clip": 1.0}, layers=[5]), noise
        )
    assert ledger.spent["outsider"].tolist() == pytest.approx([7, 7, 2, 2])
    assert ledger.mu("outsider") == pytest.approx(math.sqrt(7))


def test_fewer_survivors_than_planned_cost_more_and_more_cost_less() -> None:
    # H4 of the privacy review: 10, 30 and 50 % unaccounted dropouts turn 71.2 into 78.0, 96.9 and 130.3.
    for survivors, epsilon in ((45, 78.0), (35, 96.9), (25, 130.3)):
        ledger = charged(100, list(range(survivors)), Noise(1.0, "outsider", 50))
        assert ledger.epsilon(50**-1.1)["outsider"] == pytest.approx(epsilon, abs=0.1)


def test_colluders_take_their_shares_out() -> None:
    ledger = charged(1, list(range(10)), Noise(1.0, "outsider", 10, colluders=4))
    assert ledger.mu("outsider") == pytest.approx(1.0)
    assert ledger.mu("peer") == pytest.approx(1.0)


def test_all_releases_of_a_round_are_charged() -> None:
    releases = {"update": Update("clip", share=0.75), "below": Number(0.0, 1.0, share=0.25)}
    ledger = charged(1, [0], Noise(2.0, "server", 1), releases=releases)
    assert ledger.mu("server") == pytest.approx(0.5)
    assert len(ledger.rows) == 2


def test_a_bare_release_makes_epsilon_infinite_and_says_why() -> None:
    ledger = charged(2, [0, 1], Noise(1.0, "server", 2), releases={"update": Bare("sent as it is")})
    assert ledger.epsilon(1e-5) == {"outsider": math.inf, "peer": math.inf, "server": math.inf}
    assert ledger.reasons() == ["update: sent as it is"]


def test_an_empty_ledger_costs_nothing() -> None:
    assert set(Ledger(3).epsilon(1e-5).values()) == {0.0}
    assert set(Ledger(3).attack_accuracy().values()) == {0.5}


def test_the_chain_shows_a_changed_a_lost_and_a_swapped_row() -> None:
    ledger = charged(3, [0, 1], Noise(1.0, "server", 2))
    head = ledger.head
    assert Ledger(50, ledger.rows).head == head
    assert Ledger(50, ledger.rows[:2]).head != head
    assert Ledger(50, [ledger.rows[1], ledger.rows[0], ledger.rows[2]]).head != head
    for change in (
        {"deviation": 9.0},
        {"owners": b"\0\0\0\0"},
        {"round": 7},
        {"reason": "x"},
        {"exposed": True},
        {"sensitivity": 0.1},
    ):
        assert Ledger(50, [replace(ledger.rows[0], **change), *ledger.rows[1:]]).head != head


def test_epsilon_follows_mu() -> None:
    ledger = charged(9, [3], Noise(1.5, "server", 1))
    assert ledger.epsilon(1e-6)["server"] == pytest.approx(epsilon_of(2.0, 1e-6))


def test_what_is_published_of_single_messages_is_charged_to_everybody() -> None:
    """H8 of the privacy review: counts of masks leave the server's guarantee only; 10 clients, target 2, is 10.1."""
    releases = {"update": Update("clip"), "mask": Derived("mask", of=("update",), published=True)}
    noise = Noise(3.97, "outsider", 10)
    ledger = charged(20, list(range(10)), noise, 10, releases)
    kept = charged(20, list(range(10)), noise, 10, {**releases, "mask": Derived("mask", ("update",), published=False)})
    assert ledger.mu("outsider") == ledger.mu("peer") == ledger.mu("server") == pytest.approx(math.sqrt(200) / 3.97)
    assert ledger.epsilon(0.1)["outsider"] == pytest.approx(10.1, abs=0.05)
    assert kept.mu("outsider") == pytest.approx(math.sqrt(20) / 3.97)


def test_layers_cost_what_their_noise_says() -> None:
    import torch

    public = Public({"clip": torch.tensor([0.3, 0.4])}, layers=[70, 30])
    for spread in ("energy", "proportional"):
        ledger = Ledger(1)
        release = {"update": Update("clip", layered=True, spread=spread)}
        ledger.charge(release, [0], "local", 0, public, Noise(2.5, "server", 1))
        assert ledger.mu("server") == pytest.approx(1 / 2.5, rel=1e-12)
        assert ledger.rows[0].sensitivity == pytest.approx(0.5)
