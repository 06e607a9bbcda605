"""Where searches ended before: found again, never mistaken for another's, and never believed."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from helpers import otherwise_slow

from sordino.privacy.accounting import calibration, sampled_gaussian
from sordino.privacy.accounting.calibration import CACHE_FILE, record_multiplier, record_rate
from sordino.privacy.accounting.loss_distribution import compose_pairs

SEARCH = ("multiplier", 3.0, 1e-5, 0.1, 30, ())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path / "cache"))
    begun()
    return tmp_path / "cache"


def begun() -> None:
    """As a process would see it that has just begun."""
    calibration._cached_indices.cache_clear()
    for kept in (sampled_gaussian.record_epsilon, record_multiplier, record_rate):
        kept.cache_clear()


def searched(search: Callable[[], float]) -> tuple[float, int]:
    """What a new process finds, and how many distributions it composes on the way."""
    begun()
    with mock.patch.object(sampled_gaussian, "compose_pairs", side_effect=compose_pairs) as made:
        return search(), made.call_count


SEARCHES: list[Callable[[], float]] = [
    lambda: record_multiplier(*SEARCH[1:]),
    lambda: record_multiplier(0.5, 1e-5, 0.02, 200, ((1.0, 20.0, 1),)),
    lambda: record_rate(2.0, 1e-5, 1.2, 50, 0.4),
]


@pytest.mark.parametrize("search", SEARCHES)
def test_a_search_begins_where_it_ended_before(search: Callable[[], float], folder: Path) -> None:
    first, many = searched(search)
    again, few = searched(search)
    assert again == first
    assert few <= min(3, many - 1)
    assert oct((folder / CACHE_FILE).stat().st_mode & 0o777) == "0o600"


SAID = ("-1000000000000", "-300", "0", "1", "300", "1000000000000", "0.5", "nan", "\xff")
FAR, NEAR = {"-1000000000000", "1000000000000"}, {"-300", "300"}


@pytest.mark.parametrize(
    ("search", "said"),
    [
        *((SEARCHES[0], said) for said in SAID),
        *otherwise_slow([(SEARCHES[1], said) for said in SAID], lambda case: case[1] not in FAR),
        *otherwise_slow([(SEARCHES[2], said) for said in SAID], lambda case: case[1] in NEAR),
    ],
)
def test_whatever_the_file_says_a_search_ends_where_it_must(
    search: Callable[[], float], said: str, folder: Path
) -> None:
    """Who can write to the folder cannot lessen anybody's noise, nor any epsilon that is printed."""
    first, _ = searched(search)
    epsilon = sampled_gaussian.record_epsilon(((0.1, first, 30),), 1e-5)
    (line,) = (folder / CACHE_FILE).read_text().split("\n")[1:-1]
    (folder / CACHE_FILE).write_text(f"{line.split()[0]} {said}\n", encoding="latin-1")
    assert searched(search)[0] == first
    assert sampled_gaussian.record_epsilon(((0.1, first, 30),), 1e-5) == epsilon
    assert searched(search)[1] <= 3, "what the file said wrongly is said rightly now"


def test_searches_that_differ_in_a_last_bit_or_in_their_code_are_told_apart() -> None:
    calibration.cache_index(SEARCH, 7)
    assert calibration.cached_index(SEARCH) == 7
    other = (*SEARCH[:1], math.nextafter(3.0, 4), *SEARCH[2:])
    assert calibration.cached_index(other) is None
    assert calibration.cached_index(("rate", *SEARCH[1:])) is None
    with mock.patch.object(calibration, "_version", return_value="another"):
        assert calibration.cached_index(SEARCH) is None


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for named in (str(tmp_path / "file" / "below"), ""):
        monkeypatch.setenv("SORDINO_CACHE", named)
        calibration.cache_index(SEARCH, 7)
        assert calibration.cached_index(SEARCH) == 7


def test_the_file_stays_small(folder: Path) -> None:
    with mock.patch.object(calibration, "MAX_CACHE_BYTES", 2000):
        for k in range(200):
            calibration.cache_index(("search", k), k)
        assert (folder / CACHE_FILE).stat().st_size < 2500
