"""Weighted averages, by hand."""

from __future__ import annotations

import torch

from sordino.parts.averaging import by_records


def test_clients_weigh_as_much_as_they_have_records() -> None:
    rows = torch.tensor([[1.0, 0.0], [5.0, 8.0]])
    assert by_records(torch.tensor([[3.0], [1.0]]), rows).tolist() == [2.0, 2.0]
    assert by_records(torch.empty(0, 1), rows[:0]).tolist() == [0.0, 0.0]
