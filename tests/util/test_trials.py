"""Children that try something out: what they find comes back, and what they die of does not."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch

from sordino.util.processes import CAN_FORK, HungError, TrialError, in_child

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="processes cannot be forked here")


def test_what_a_child_finds_comes_back() -> None:
    assert in_child(lambda: {"a": [1.5, None]}, 60) == {"a": [1.5, None]}
    assert in_child(torch.get_num_threads, 60) == 1
    assert in_child(os.getpid, 60) != os.getpid()
    assert in_child(lambda: "long" * 100_000, 60) == "long" * 100_000, "more than a pipe holds at once"


def test_a_mistake_in_a_child_is_told() -> None:
    def mistaken() -> None:
        raise ValueError("no such thing\nand more")

    with pytest.raises(TrialError, match=r"^no such thing$"):
        in_child(mistaken, 60)


def test_a_child_that_is_killed_leaves_this_process_alive(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TrialError, match="killed by SIGILL"):
        in_child(lambda: os.kill(os.getpid(), signal.SIGILL), 60)
    assert capfd.readouterr() == ("", ""), "its end is not reported where the user looks"


def test_a_child_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[int] = []
    fork = os.fork
    monkeypatch.setattr(os, "fork", lambda: children.append(fork()) or children[-1])
    with pytest.raises(HungError, match=r"more than 0\.2 seconds"):
        in_child(lambda: time.sleep(600), 0.2)
    with pytest.raises(ProcessLookupError):
        os.kill(children[0], 0)
