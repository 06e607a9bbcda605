"""Checksums of rows: what is changed on disk shows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.simulator.memory import BLOCK, STEP, WEIGHTS, checksums


def test_a_checksum_is_the_weighted_sum_of_its_words() -> None:
    words = [3, 2**64 - 1, 5]
    rows = np.array(words, dtype="<u8").view(np.float32)[None]
    assert checksums(rows).tolist() == [sum(w * int(k) for w, k in zip(words, WEIGHTS, strict=False)) % 2**64]


@pytest.mark.parametrize("width", [1, 2, 7, 2 * BLOCK, 2 * BLOCK + 1, 4 * BLOCK + 6])
def test_every_changed_word_shows(width: int) -> None:
    row = np.random.default_rng(width).standard_normal((1, width), dtype=np.float32)
    known = checksums(row)
    for place in {0, width // 2, width - 1}:
        for bit in (0, 13, 31):
            other = row.copy()
            other.view(np.uint32)[0, place] ^= np.uint32(1 << bit)
            assert checksums(other) != known
    assert checksums(np.zeros_like(row)) != known


def test_words_that_change_places_show() -> None:
    row = np.random.default_rng(0).standard_normal((1, 4 * BLOCK), dtype=np.float32)
    for far in (2, 2 * BLOCK):  # of the same block, and of the same place in the next one
        other = row.copy()
        other[0, :2], other[0, far : far + 2] = row[0, far : far + 2], row[0, :2]
        assert checksums(other) != checksums(row)


@given(st.integers(1, 9), st.integers(1, 9))
def test_a_row_has_its_checksum_in_any_company(rows: int, width: int) -> None:
    made = np.random.default_rng(rows * 10 + width).standard_normal((rows, width), dtype=np.float32)
    assert checksums(made).tolist() == [int(checksums(row[None])[0]) for row in made]


def test_all_weights_can_be_divided_by() -> None:
    assert (WEIGHTS % np.uint64(2) == 1).all()
    assert len(np.unique(WEIGHTS)) == BLOCK
    assert STEP % np.uint64(2) == 1
