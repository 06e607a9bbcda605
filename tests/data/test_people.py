"""Who a data set is about: the same people however their files are arranged, and no strangers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sordino.data import load
from sordino.data.own import Reading
from sordino.data.people import BITS, same_people, sketch
from sordino.data.schema import Schema

Rows = list[tuple[float, ...]]
RANDOM = np.random.default_rng(0)


def tables() -> list[Rows]:
    """Four hospitals with forty patients each."""
    return [[(*row, float(row[0] > 0)) for row in RANDOM.normal(size=(40, 3)).round(6).tolist()] for _ in range(4)]


def people(folder: Path, content: list[Rows], names: str = "abcd") -> str:
    folder.mkdir()
    for name, rows in zip(names, content, strict=True):
        lines = ["x,y,z,label", *(",".join(map(str, row)) for row in rows)]
        (folder / f"{name}.csv").write_text("\n".join(lines))
    return load(str(folder)).people


def test_files_may_be_renamed_reordered_added_to_and_left_out(tmp_path: Path) -> None:
    here = tables()
    known = people(tmp_path / "known", here)
    arranged = {
        "renamed": people(tmp_path / "renamed", here, "dcba"),
        "reordered": people(tmp_path / "reordered", [rows[::-1] for rows in here]),
        "grown": people(tmp_path / "grown", [*here[:3], [*here[3], (9.0, 9.0, 9.0, 1.0)]]),
        "without one": people(tmp_path / "without", here[:3], "abc"),
        "in one file": people(tmp_path / "together", [[row for rows in here for row in rows]], "a"),
    }
    for how, found in arranged.items():
        assert found != known, how
        assert same_people(found, known), how
    strangers = people(tmp_path / "strangers", tables())
    assert not any(same_people(strangers, found) for found in (known, *arranged.values()))


def test_a_client_that_comes_twice_is_told(tmp_path: Path) -> None:
    here = tables()
    people(tmp_path / "twice", [*here, here[1], here[1]], "abcdef")
    sentence = load(str(tmp_path / "twice")).disclosed[0]
    assert sentence.startswith("These clients hold the same file: b, e, f. Epsilon protects each of them")
    people(tmp_path / "once", here)
    assert not any("same file" in one for one in load(str(tmp_path / "once")).disclosed)


def test_arrays_are_known_by_their_records(tmp_path: Path) -> None:
    x = RANDOM.normal(size=(60, 4)).astype(np.float32)
    for folder, rows in (("one", x), ("other", x[::-1]), ("strangers", x + 1)):
        (tmp_path / folder).mkdir()
        np.savez(tmp_path / folder / "a.npz", x=rows, y=np.arange(60) % 2)
    one, other, strangers = (load(str(tmp_path / folder)).people for folder in ("one", "other", "strangers"))
    assert same_people(one, other)
    assert not same_people(one, strangers)


def test_the_same_files_read_in_another_way_are_the_same_people(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("größe,ill\n" + "".join(f"{place},{place % 2}\n" for place in range(40)))
    found = []
    for encoding, name in (("utf-8", "größe"), ("latin-1", "größe".encode().decode("latin-1"))):
        columns = {name: {"kind": "number"}, "ill": {"kind": "label", "values": ["0", "1"]}}
        schema = Schema.parse({"encoding": encoding, "columns": columns})
        found.append(load(str(tmp_path), how=Reading(schema=schema)).people)
    assert found[0] != found[1]
    assert same_people(*found)


@pytest.mark.parametrize(("common", "same"), [(1000, True), (500, True), (333, True), (100, False), (0, False)])
def test_sketches_agree_in_as_many_bits_as_records_are_common(common: int, same: bool) -> None:
    """Of 1,000 records each: a share J of all is common, and (1 + J) / 2 of the bits agree, within six deviations."""
    one, other = ([f"{kind}{k}".encode() for k in range(1000 - common)] for kind in "ab")
    shared = [f"common {k}".encode() for k in range(common)]
    found = [f"digest{place} {sketch(rows + shared)}" for place, rows in enumerate((one, other))]
    share = common / (2000 - common)
    agree = 1 - (int(found[0].split()[1], 16) ^ int(found[1].split()[1], 16)).bit_count() / BITS
    assert agree == pytest.approx((1 + share) / 2, abs=6 * np.sqrt((1 - share**2) / 4 / BITS) + 1e-9)
    assert same_people(*found) == (same if share != 1 else True)
