"""Features on disk: computed once, checked when read, whole under concurrent runs, and nobody else's to read."""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from sordino.features.cache import cache_folder, digest_of_records, load_or_compute

WANTED = np.arange(12, dtype=np.float32).reshape(4, 3)


class Made:
    """Counts how often features are computed."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Iterator[np.ndarray]:
        self.times += 1
        yield WANTED[:3]
        yield WANTED[3:]


def only_file(folder: Path) -> Path:
    (path,) = folder.glob("*.npy")
    return path


def test_a_second_run_computes_nothing(tmp_path: Path) -> None:
    made = Made()
    for _ in range(2):
        assert torch.equal(load_or_compute(tmp_path / "new", "key", (4, 3), made), torch.from_numpy(WANTED))
    assert made.times == 1
    assert stat.S_IMODE(only_file(tmp_path / "new").stat().st_mode) == 0o600
    assert np.array_equal(np.load(only_file(tmp_path / "new"), mmap_mode="r"), WANTED)


@pytest.mark.parametrize("damage", ["bit", "short", "long", "digest"])
def test_a_damaged_file_is_made_anew(tmp_path: Path, damage: str) -> None:
    made = Made()
    load_or_compute(tmp_path, "key", (4, 3), made)
    content = bytearray(only_file(tmp_path).read_bytes())
    if damage == "bit":
        content[-40] ^= 1
    elif damage == "digest":
        content[-1] ^= 1
    only_file(tmp_path).write_bytes({"short": content[:-1], "long": content + b"x"}.get(damage, content))
    assert torch.equal(load_or_compute(tmp_path, "key", (4, 3), made), torch.from_numpy(WANTED))
    assert made.times == 2


def test_runs_side_by_side_read_whole_files(tmp_path: Path) -> None:
    made = Made()
    with ThreadPoolExecutor(8) as several:
        found = list(several.map(lambda _: load_or_compute(tmp_path, "key", (4, 3), made), range(16)))
    assert all(torch.equal(one, torch.from_numpy(WANTED)) for one in found)
    assert made.times == 1
    assert not list(tmp_path.glob(".*"))


def test_a_second_run_waits_for_the_first(tmp_path: Path) -> None:
    """It begins while the first one computes, which takes longer than it needs to find no file."""
    begun, made = threading.Event(), Made()

    def slowly() -> Iterator[np.ndarray]:
        begun.set()
        time.sleep(0.3)
        yield from made()

    with ThreadPoolExecutor(1) as other:
        first = other.submit(load_or_compute, tmp_path, "key", (4, 3), slowly)
        assert begun.wait(60)
        load_or_compute(tmp_path, "key", (4, 3), made)
        first.result(60)
    assert made.times == 1


def test_an_error_leaves_no_file(tmp_path: Path) -> None:
    def fails() -> Iterator[np.ndarray]:
        yield WANTED[:1]
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        load_or_compute(tmp_path, "key", (4, 3), fails)
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".lock"]


def test_changes_of_the_tensor_do_not_reach_the_file(tmp_path: Path) -> None:
    made = Made()
    load_or_compute(tmp_path, "key", (4, 3), made).zero_()
    assert torch.equal(load_or_compute(tmp_path, "key", (4, 3), made), torch.from_numpy(WANTED))
    assert made.times == 1


def test_a_cache_that_cannot_be_written_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert torch.equal(load_or_compute(tmp_path / "file" / "cache", "key", (4, 3), Made()), torch.from_numpy(WANTED))


def test_no_cache_where_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_CACHE", "")
    assert cache_folder() is None
    monkeypatch.setenv("SORDINO_CACHE", "/somewhere")
    assert cache_folder() == Path("/somewhere/features")


def test_other_records_or_another_shape_have_another_digest() -> None:
    x = torch.zeros(4, 6)
    digests = {digest_of_records(one) for one in (x, x.reshape(6, 4), x + 1, x[:3])}
    assert len(digests) == 4
