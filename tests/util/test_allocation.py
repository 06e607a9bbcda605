"""What was freed is kept for the next tensors, where the C library can do that."""

import gc
import resource
import sys

import pytest
import torch

from sordino.util import processes


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these settings")
def test_the_next_tensors_lie_where_the_last_ones_lay() -> None:
    """Ten tensors of a megabyte have 2,560 pages; made anew again and again, they take hardly any from the system."""
    processes.keep_freed()
    for _ in range(5):
        [torch.zeros(2**18) for _ in range(10)]
    before = faults()
    for _ in range(5):
        [torch.zeros(2**18) for _ in range(10)]
    assert faults() - before < 2_560


def test_a_c_library_without_these_settings_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes.ctypes, "CDLL", lambda _: object())
    processes.keep_freed()


def test_old_objects_are_spared_within_the_block_only() -> None:
    before = gc.get_freeze_count()
    with processes.sparing_old_objects():
        assert gc.get_freeze_count() > before + 1000
    assert gc.get_freeze_count() == 0
