"""Settings for all tests."""

import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Iterator

import pytest
import torch
import typer.main
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

# Several processes of tests share the cores: threads of their own would only wait for each other.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

# Dozens of tests start programs, which would all compile the package anew where bytecode is not to be written.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Hundreds of tests give a command, and each would build all commands anew out of the same functions.
typer.main.get_command = functools.cache(typer.main.get_command)

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
