"""Settings for all tests."""

import contextlib
import os
import tempfile
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

from sordino.errors import UserError
from sordino.simulator import bf16

# A busy machine makes single examples slow: time limits belong to the whole run, not to an example.
settings.register_profile("steady", deadline=None)
settings.load_profile("steady")

# No test reads what an earlier one has worked out, in this process or in others that it starts.
os.environ["SORDINO_CACHE"] = ""

# Nor does any write to the home directory: sites keep their witnesses here.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="sordino-state-")

# Before any test computes: what a virtual machine advertises and does not have can be done without only from the start.
with contextlib.suppress(UserError):
    bf16.secure()


@pytest.fixture
def one_nonce(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all runs of own code draw alike, so that they can be compared."""
    monkeypatch.setattr("sordino.experiment.run.new_nonce", lambda: bytes(16))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """A copied process has none of torch's threads: it would wait for them forever."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
