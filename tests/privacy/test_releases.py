"""Releases answer for themselves, and a run without privacy asks them all that it does not change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.budget.record_level_plan import RecordNeeds
from sordino.privacy.ledger import Ledger, Row
from sordino.privacy.release import (
    Average,
    Bare,
    Charge,
    Derived,
    Follows,
    Gradients,
    Matrix,
    Number,
    Public,
    Release,
    ReleaseError,
    Unprotected,
    Update,
    of_clients,
    of_records,
    record_needs,
    sends,
    takes_gradients_alone,
    without_privacy,
)
from sordino.privacy.unit import Unit

CHANGED = {
    *("share", "unit", "private", "summed", "record_level", "sums_records"),
    *("check", "bounded", "cover", "charge", "deviation", "expose", "exposes_history", "bounded_by"),
    *("centre", "describe"),
}
"""What is different in a run without privacy."""


@dataclass(frozen=True)
class Own(Release):
    """A release with a question that no other release knows."""

    unit = Unit.RECORD

    @property
    def asked_later(self) -> str:
        return "its own answer"

    def known_beforehand(self) -> bool:
        return False


EXAMPLES: list[Release] = [
    Update(clip=0.5, share=0.7, at="mask"),
    Number(0.0, 2.0, share=0.3, every=4),
    Average(0.0, 1.0, held_out=0.3),
    Matrix(share=0.2, side=3),
    Gradients(clip="clip", layered=True),
    Gradients(clip="clip", separate=True),
    Follows("update"),
    Derived("state", bits=8),
    Bare("it is published so"),
    Own(),
]


def test_there_is_an_example_of_each_kind() -> None:
    kinds = {kind for module in (of_clients, of_records) for kind in vars(module).values() if isinstance(kind, type)}
    known = {kind for kind in kinds if issubclass(kind, Release)} - {Release, Unprotected}
    assert known == {type(one) for one in EXAMPLES} - {Own}


@pytest.mark.parametrize("release", EXAMPLES, ids=lambda release: type(release).__name__)
def test_without_privacy_a_release_answers_alike_but_where_it_is_declared(release: Release) -> None:
    bare: Any = Unprotected(release)
    names = {name for name in dir(release) if not name.startswith("_")}
    assert names >= CHANGED, "a declared difference is a question that releases know"
    for name in names - CHANGED - {"of"}:
        assert getattr(bare, name) == getattr(release, name), name


def test_all_differences_of_a_run_without_privacy_are_declared() -> None:
    assert {name for name in vars(Unprotected) if not name.startswith("_")} == CHANGED


def test_an_answer_that_a_release_gives_later_is_not_lost_without_privacy() -> None:
    bare: Any = Unprotected(Own())
    assert bare.asked_later == "its own answer"
    with pytest.raises(AttributeError):
        bare.nobody_knows  # noqa: B018


@pytest.mark.parametrize("release", [one for one in EXAMPLES if one.private], ids=lambda one: type(one).__name__)
def test_without_privacy_nothing_is_protected_or_hidden(release: Release) -> None:
    (bare,) = without_privacy({"it": release}).values()
    assert (bare.unit, bare.share, bare.private, bare.summed, bare.record_level) == (None, 0.0, False, False, False)
    public = Public({"mask": torch.ones(4), "clip": 1.0}, layers=[4])
    ledger = Ledger(1, Unit.CLIENT)
    row = Row.of((0, 0, "local", "it"), [0], bare.charge(Allowance(), public))
    assert bare.expose(ledger, row, [0]) == []
    assert not bare.exposes_history()
    assert bare.cover(4, Allowance(), public) is None
    assert bare.bounded_by() == ()


def test_what_is_read_of_single_messages_is_charged_by_the_release() -> None:
    """The server's price is 1 / 0.5^2 = 4, of which outsider and peer had paid 1 in the sum."""
    for release, paid in ((Update(clip=1.0), 4), (Derived("state"), 4), (Bare("why"), 1), (Average(0, 1), 1)):
        ledger = Ledger(2, Unit.CLIENT)
        row = Row.of((0, 0, "local", "update"), [0, 1], Charge(np.ones(1), np.array([[1.0, 1.0, 0.5]])))
        ledger.append(row)
        release.expose(ledger, row, [0, 1])
        assert ledger.spent == pytest.approx(np.array([[paid] * 2, [paid] * 2, [4.0] * 2])), release
    assert [one for one in EXAMPLES if one.exposes_history()] == [Derived("state", bits=8)]


def test_needs_of_records_add_up_over_the_releases_of_all_steps() -> None:
    """Two matrices of 9 and 25 entries, two means for which the larger share of records is set aside."""
    steps = {
        "describe": {"one": Matrix(share=0.2, side=3), "two": Matrix(share=0.1, side=5)},
        "local": {"update": Gradients("clip"), "loss": Average(0.0, 1.0, 0.2), "right": Average(0.0, 1.0, 0.3)},
    }
    expected = RecordNeeds(matrix_share=0.2 + 0.1, matrices=2, means=2, held_out=0.3, matrix_entries=25)
    assert record_needs(steps) == expected
    assert record_needs({name: without_privacy(releases) for name, releases in steps.items()}) == expected


@pytest.mark.parametrize(
    ("releases", "alone"),
    [
        ({"update": Gradients("clip")}, True),
        ({"update": Gradients("clip"), "norm": Follows("update")}, True),
        ({"update": Gradients("clip", separate=True)}, False),
        ({"update": Gradients("clip"), "loss": Average(0.0, 1.0)}, False),
        ({"norm": Follows("update")}, False),
        ({"update": Gradients("clip"), "raw": Bare("why")}, False),
    ],
)
def test_steps_that_see_noisy_gradients_alone(releases: dict[str, Release], alone: bool) -> None:
    assert takes_gradients_alone(releases) is alone
    assert takes_gradients_alone(without_privacy(releases)) is alone


def step(self: Any, message: Any, me: Any, data: Any) -> None:
    """A step whose `@sends` was written without a declaration."""


@pytest.mark.parametrize("declare", [{"update": Update(clip=1.0)}, step, None])
def test_a_declaration_is_a_function_of_the_method(declare: Any) -> None:
    with pytest.raises(ReleaseError, match="@sends takes a function from the method to its releases, not "):
        sends(declare)
