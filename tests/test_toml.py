"""What is written as TOML is read as it was."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from sordino.toml import toml_value

PLAIN = some.text(some.characters(exclude_categories=["Cs"])) | some.booleans() | some.integers(-(2**63), 2**63 - 1)
NUMBERS = some.floats(allow_nan=False)
VALUES = some.recursive(PLAIN | NUMBERS, lambda one: some.lists(one) | some.dictionaries(some.text("ab \x7f"), one))


@given(VALUES)
def test_what_is_written_is_read(value: Any) -> None:
    assert tomllib.loads(f"value = {toml_value(value)}")["value"] == value


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (True, "true"),
        (Path("a b"), '"a b"'),
        (("x", 2), '["x", 2]'),
        (float("inf"), "inf"),
        ("\x7f", '"\\u007f"'),
        ({"a": 1, "b": None}, '{"a" = 1}'),
    ],
)
def test_by_hand(value: Any, written: str) -> None:
    assert toml_value(value) == written
