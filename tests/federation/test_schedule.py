"""How many rounds and turns a run has, and whose turn it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.errors import UserError
from sordino.federation.schedule import Schedule, Turns
from sordino.privacy.noise import Seeded

participations = st.floats(0.01, 1)


@pytest.mark.parametrize(
    ("rounds", "clients", "participation", "cohort", "turns"),
    [(30, 100, 1.0, 100, 30), (30, 100, 0.1, 10, 3), (31, 100, 0.1, 10, 4), (5, 8, 0.25, 2, 2), (7, 3, 0.01, 1, 3)],
)
def test_a_schedule_by_hand(rounds: int, clients: int, participation: float, cohort: int, turns: int) -> None:
    assert Schedule.of(rounds, clients, participation) == Schedule(rounds, clients, cohort, turns)


@pytest.mark.parametrize(
    ("given_numbers", "sentence"),
    [
        ((0, 5, 1.0), "at least one client and one round, not 5 and 0"),
        ((5, 0, 1.0), "at least one client and one round, not 0 and 5"),
        ((5, 5, 0.0), "participation is 0, but must be above 0 and at most 1"),
        ((5, 5, 1.5), "participation is 1.5, but must be above 0 and at most 1"),
        ((5, 5, float("nan")), "participation is nan, but must be above 0 and at most 1"),
    ],
)
def test_a_schedule_that_cannot_be(given_numbers: tuple[int, int, float], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Schedule.of(*given_numbers)


@given(clients=st.integers(1, 40), part=participations, rounds=st.integers(1, 60), seed=st.integers(0, 5))
def test_turns_are_equal(clients: int, part: float, rounds: int, seed: int) -> None:
    schedule = Schedule.of(rounds, clients, part)
    turns = Turns(schedule, Seeded(seed))
    counts = np.zeros(clients, dtype=int)
    for number in range(rounds):
        who = turns.of(number)
        assert who == sorted(who)
        assert len(set(who)) == schedule.cohort
        counts[who] += 1
    assert counts.max() <= schedule.turns
    assert counts.max() - counts.min() <= 2
    assert turns.unreached() == np.flatnonzero(counts == 0).tolist()


def test_turns_can_be_taken_up_anywhere() -> None:
    schedule = Schedule.of(30, 20, 0.35)
    first, later = Turns(schedule, Seeded(1)), Turns(schedule, Seeded(1))
    whole = [first.of(number) for number in range(30)]
    assert later.of(29) == whole[29]
    assert later.of(3) == whole[3]
    assert [Turns(schedule, Seeded(2)).of(number) for number in range(30)] != whole


def test_turns_are_the_same_in_every_experiment() -> None:
    """Methods are compared on the same ground: the order of turns is a function of the seed alone."""
    schedule = Schedule.of(30, 20, 0.35)
    one, other = (Turns(schedule, Seeded(1, identity)) for identity in ("one", "other"))
    assert [one.of(number) for number in range(30)] == [other.of(number) for number in range(30)]


@given(
    limits=st.lists(st.integers(0, 8), min_size=1, max_size=12),
    part=participations,
    rounds=st.integers(1, 30),
    seed=st.integers(0, 5),
)
def test_turns_go_to_those_who_have_some_left(limits: list[int], part: float, rounds: int, seed: int) -> None:
    schedule = Schedule.of(rounds, len(limits), part)
    turns, counts = Turns(schedule, Seeded(seed), np.array(limits)), np.zeros(len(limits), dtype=int)
    last = turns.last()
    for number in range(rounds):
        left, who = np.flatnonzero(counts < limits).tolist(), turns.of(number)
        assert set(who) <= set(left)
        assert len(who) == len(set(who)) == min(schedule.cohort, len(left))
        assert bool(who) == (number <= last and bool(left))
        counts[who] += 1
    assert set(turns.stopped(rounds)) <= set(np.flatnonzero(counts == limits).tolist())


@given(clients=st.integers(1, 12), part=participations, rounds=st.integers(1, 30))
def test_limits_that_nobody_reaches_change_nothing(clients: int, part: float, rounds: int) -> None:
    schedule = Schedule.of(rounds, clients, part)
    free, limited = (Turns(schedule, Seeded(1), limits) for limits in (None, np.full(clients, schedule.turns)))
    assert [free.of(number) for number in range(rounds)] == [limited.of(number) for number in range(rounds)]
    assert free.stopped(rounds) == limited.stopped(rounds) == {}
    assert free.last() == limited.last() == rounds - 1


def test_who_stopped_and_when() -> None:
    turns = Turns(Schedule(rounds=6, clients=3, cohort=1, turns=2), Seeded(0), np.array([0, 1, 9]))
    order = [turns.of(number)[0] for number in range(6)]
    assert order.count(1) == 1
    assert turns.stopped(6) == {0: 0, 1: order.index(1) + 1}
    assert turns.unreached() == [0]


def test_no_order_is_drawn_where_everybody_takes_part() -> None:
    """Nobody waits, so that no order decides anything; who has no turn left stays out."""

    class Unasked(Seeded):
        def keys(self, *_: object) -> list[int]:
            raise AssertionError("an order was drawn")

    turns = Turns(Schedule.of(4, 5, 1.0), Unasked(0))
    assert [turns.of(number) for number in range(4)] == [[0, 1, 2, 3, 4]] * 4
    limited = Turns(Schedule.of(4, 5, 1.0), Unasked(0), np.array([4, 2, 0, 1, 4]))
    assert [limited.of(number) for number in range(4)] == [[0, 1, 3, 4], [0, 1, 4], [0, 4], [0, 4]]
    with pytest.raises(AssertionError, match="an order was drawn"):
        Turns(Schedule.of(4, 5, 0.8), Unasked(0)).of(0)
