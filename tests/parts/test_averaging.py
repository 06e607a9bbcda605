"""Weighted averages, by hand."""

from __future__ import annotations

import torch

from sordino.parts.averaging import by_records, over_rounds


def test_clients_weigh_as_much_as_they_have_records() -> None:
    rows = torch.tensor([[1.0, 0.0], [5.0, 8.0]])
    assert by_records(torch.tensor([[3.0], [1.0]]), rows).tolist() == [2.0, 2.0]
    assert by_records(torch.empty(0, 1), rows[:0]).tolist() == [0.0, 0.0]


def test_later_rounds_count_more() -> None:
    """Of rounds 1 to 4 as 1, 4, 10 and 20: each round's share is 4 / (3 + its number)."""
    average = None
    for number in range(4):
        average = over_rounds(average, torch.eye(4)[number : number + 1], number + 1)
    torch.testing.assert_close(average, torch.tensor([[1.0, 4.0, 10.0, 20.0]]) / 35)


def test_all_rounds_before_another_number_of_models_count_as_if_they_had_had_these() -> None:
    before = over_rounds(None, torch.zeros(1, 2), 1)
    split = over_rounds(before, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 2)
    assert split.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    torch.testing.assert_close(over_rounds(split, torch.zeros(2, 2), 3), split / 3)


def test_a_round_that_overflowed_does_not_spoil_the_mean_for_good() -> None:
    spoiled = over_rounds(torch.zeros(1, 2), torch.tensor([[torch.inf, 1.0]]), 2)
    assert over_rounds(spoiled, torch.ones(1, 2), 3).tolist() == [[1.0, 1.0]]


def test_an_average_is_no_view_of_a_model() -> None:
    model = torch.ones(1, 2)
    average = over_rounds(None, model, 1)
    model.zero_()
    assert average.tolist() == [[1.0, 1.0]]
