"""Figures that were worked out before: found again to the bit, never mistaken for others, and never needed."""

from __future__ import annotations

import math
from pathlib import Path
from unittest import mock

import pytest

from sordino.privacy import remembered as remembering
from sordino.privacy.remembered import FILE, remembered


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def counted() -> tuple[mock.Mock, object]:
    """A function whose calls are counted, as a process would see it that has just begun."""
    remembering._book.cache_clear()
    calls = mock.Mock(side_effect=lambda recipe, delta: delta / 3 + len(recipe))

    def figure(recipe: tuple, delta: float) -> float:
        return calls(recipe, delta)

    return calls, remembered(figure)


def test_a_figure_is_worked_out_once_and_found_by_the_next_process(folder: Path) -> None:
    calls, figure = counted()
    first = figure(((0.1, 1.5, 3),), 1e-5)
    assert figure(((0.1, 1.5, 3),), 1e-5) == first
    assert calls.call_count == 1
    again, figure = counted()
    assert figure(((0.1, 1.5, 3),), 1e-5) == first
    assert again.call_count == 0
    assert figure(((0.1, math.nextafter(1.5, 2), 3),), 1e-5) == first
    assert again.call_count == 1, "an argument that differs in its last bit is another one"
    assert oct((folder / FILE).stat().st_mode & 0o777) == "0o600"


def test_other_code_finds_nothing() -> None:
    _, figure = counted()
    figure((), 0.5)
    calls, figure = counted()
    with mock.patch.object(remembering, "_version", return_value="another"):
        figure((), 0.5)
    assert calls.call_count == 1


def test_infinite_figures_are_kept_too(folder: Path) -> None:
    remembering._book.cache_clear()
    assert remembered(lambda: math.inf)() == math.inf
    remembering._book.cache_clear()
    assert list(remembering._book(folder).values()) == [math.inf]


@pytest.mark.parametrize("place", [0.1, 0.5, 0.8, 0.99])
def test_what_is_damaged_is_worked_out_again(place: float, folder: Path) -> None:
    _, figure = counted()
    expected = [figure((), delta) for delta in (0.1, 0.2)]
    whole = (folder / FILE).read_bytes()
    for damaged in (flipped(whole, place), whole[: int(place * len(whole))], whole + b"\xff garbage", b""):
        (folder / FILE).write_bytes(damaged)
        _, figure = counted()
        assert [figure((), delta) for delta in (0.1, 0.2)] == expected
        calls, figure = counted()
        assert [figure((), delta) for delta in (0.1, 0.2)] == expected
        assert calls.call_count == 0, "what was worked out again is filed again"


def flipped(whole: bytes, place: float) -> bytes:
    at = int(place * len(whole))
    return whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for named in (str(tmp_path / "file" / "below"), ""):
        monkeypatch.setenv("SORDINO_CACHE", named)
        calls, figure = counted()
        assert figure((), 0.5) == figure((), 0.5)
        assert calls.call_count == 1


def test_the_file_stays_small(folder: Path) -> None:
    with mock.patch.object(remembering, "LARGEST", 2000):
        _, figure = counted()
        for k in range(200):
            figure((), float(k))
        assert (folder / FILE).stat().st_size < 2500
