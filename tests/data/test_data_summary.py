from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data_makers import records
from helpers import command

from sordino.data import Spread, draw, federate, summary
from sordino.data.summary import label_counts
from sordino.errors import UserError


def three_clients() -> tuple[list[int], np.ndarray]:
    labels = [0, 0, 0, 1, 1, 2, 2, 2, 1, 1]
    return labels, np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 2])


def test_summary_by_hand() -> None:
    labels, owner = three_clients()
    published = [False] * 6 + [True] + [False, True, True]
    dataset = replace(records(labels, 3, published), owner=owner, owner_names=("a", "b", "c"))
    data = federate(dataset, None, None, 0)
    assert label_counts(data).tolist() == [[3, 1, 0], [0, 1, 1], [0, 0, 1]]
    facts = summary(data)
    assert (facts.clients, facts.classes, facts.shape) == (3, 3, (1,))
    assert (facts.total, facts.train, facts.test) == (10, 7, 3)
    assert facts.sizes == Spread(1, 2.0, 4)
    assert facts.classes_per_client == Spread(1, 2.0, 2)
    assert facts.smallest_client == "c"
    assert facts.without_test == 1


def test_a_shared_test_set_counts_once() -> None:
    dataset = records([0] * 10, 1, [k >= 6 for k in range(10)])
    facts = summary(federate(dataset, "iid", 3, 0, test="official"))
    assert (facts.total, facts.train, facts.test) == (10, 6, 4)


@pytest.mark.parametrize("clients", [1, 4, 600])
def test_a_picture_is_drawn(tmp_path: Path, clients: int) -> None:
    data = federate(records([k % 3 for k in range(1800)], 3), "iid", clients, 0)
    draw(data, tmp_path / "labels.png")
    assert (tmp_path / "labels.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_drawn_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = federate(records([0] * 10, 1), "iid", 2, 0)
    with pytest.raises(UserError, match=r"The picture cannot be written to .*nowhere/labels.png"):
        draw(data, tmp_path / "nowhere" / "labels.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(
        UserError, match=r"Drawing needs matplotlib; install it with: pip install \"sordino\[report\]\""
    ):
        draw(data, tmp_path / "labels.png")


def test_the_figures_of_raw_records_are_listed_as_not_covered() -> None:
    found = command("data", "show", "digits", "--clients=4", "--json").document
    assert any("counted in the records, without noise" in one for one in found["not_covered"])
    assert "Not covered by any epsilon: Sizes" in command("data", "show", "digits", "--clients=4").out
