"""What is written as TOML is read as it was."""

from __future__ import annotations

import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from sordino.errors import UserError
from sordino.util.toml import read_toml, toml_value

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


@pytest.mark.parametrize("text", ["rounds = 30", "delta = 1e-5", "a = 1\n[set]\nclip = -0.25", "n = 0x1f"])
def test_a_file_that_ends_in_a_number_may_have_been_cut(text: str, tmp_path: Path) -> None:
    """`rounds = 3` is what is left of `rounds = 30`; behind a line break it is what was written."""
    path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises(UserError, match="it may have been cut"):
        read_toml(path)
    for end in ("\n", "\r\n", " ", "  # so many"):
        path.write_text(text + end)
        assert read_toml(path) == tomllib.loads(text)


@pytest.mark.parametrize("text", ["", 'a = "1"', "a = [1]", "a = true", "# 1", "a = {b = 1}", "[set]", 'a = "x = 1"'])
def test_what_shows_where_it_ends_needs_no_line_break(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(text)
    assert read_toml(tmp_path / "a.toml") == tomllib.loads(text)


@given(some.integers(0, 200))
def test_no_value_of_a_cut_file_is_another_one(place: int) -> None:
    whole = 'method = "dp-fedavg"\nrounds = 300\nepsilon = 12.5\ndelta = 1e-05\nbudgets = [1, 20]\n[set]\nclip = 10\n'
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.toml")
        path.write_text(whole[:place])
        try:
            found = read_toml(path)
        except (UserError, ValueError):
            return
    expected = tomllib.loads(whole)
    assert found.pop("set", {}).items() <= expected.pop("set").items()
    assert all(expected[key] == value for key, value in found.items())
