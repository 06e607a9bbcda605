"""Whether this processor computes in bf16, and whether that is faster: tried out and measured, not believed.

A virtual machine may advertise matrix instructions (AMX) and kill whoever uses them. oneDNN, which computes torch's
products and convolutions, does without them when a variable of the environment says so before the process computes for
the first time; later it is ignored, in forked children too.

What is decided for a new run is written into its configuration as its precision: runs with the same stored precision
compute alike, and a resumed run repeats it, faster or not.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import nn

from sordino.errors import UserError
from sordino.learning.network import Batch, Learner, Precision
from sordino.learning.parameters import flatten
from sordino.tasks import Classification
from sordino.util.processes import CAN_FORK, HungError, TrialError, in_child

VARIABLE, WITHOUT_AMX = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
"""Environment variable that keeps oneDNN from instructions that a virtual machine may advertise and yet not have."""
FASTER = 0.9
"""The share of fp32's time that bf16 may take at most: a tie is no reason to round coarsely."""
TRIAL_SECONDS = 20.0
"""After which a trial, which takes a hundredth of a second, counts as hung."""
MEASURED_SECONDS = 1.0
"""After so much work no further turn is measured."""
MEASURING_SECONDS = 300.0
"""After which a measurement counts as hung: a step of a large network takes seconds."""

Fate = Literal["lived", "died", "unknown"]
_known: dict[tuple[str, tuple[int, ...], int], dict[Precision, float]] = {}
"""Measurements made in this process, so that runs with several seeds all compute alike."""


@dataclass(frozen=True)
class PrecisionChoice:
    """In which format a run computes, and why."""

    precision: Precision
    notes: list[str] = field(default_factory=list)
    """Notes to the user, the same each time."""
    reasons: list[str] = field(default_factory=list)
    """Sentences for people who ask, with what was measured."""


def decide(
    asked: Precision, device: str, module: nn.Module, shape: tuple[int, ...], batch: int, resumed: bool
) -> PrecisionChoice:
    """Decide in which precision a run computes.

    Args:
        asked: the experiment's key `precision`.
        device: torch device.
        module: the network.
        shape: shape of a record.
        batch: records in a batch.
        resumed: whether the run has begun before: what was decided then is repeated.
    """
    if asked != "bf16" or torch.device(device).type != "cpu":
        return PrecisionChoice(asked)
    taken = seconds(module, shape, batch)  # also tells, of a resumed run, that this very network survives
    if resumed:
        return PrecisionChoice(asked)
    figures = f"{1e3 * taken['bf16']:.2f} ms in bf16 and {1e3 * taken['fp32']:.2f} ms in fp32 (measured)"
    reasons = [f"A gradient of this network takes {figures}."]
    if taken["bf16"] < FASTER * taken["fp32"]:
        return PrecisionChoice("bf16", reasons=reasons)
    note = "bf16 is not faster than fp32 for this network on this processor: the run computes in fp32."
    return PrecisionChoice("fp32", [note], [*reasons, note])


def compute() -> None:
    """Products and convolutions in bf16, forward and backward, large enough for every kind of instruction."""
    module = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.Flatten(), nn.Linear(2304, 64)
    )
    _gradient(module, "bf16", torch.ones(32, 3, 8, 8), torch.zeros(32, dtype=torch.int64))()


def forked_trial(action: Callable[[], None] = compute) -> Fate:
    """Find out whether a forked child survives computing in bf16."""
    if not CAN_FORK:
        return "unknown"
    try:
        in_child(action, TRIAL_SECONDS)
    except HungError:
        return "unknown"
    except TrialError:
        return "died"
    return "lived"


def fresh_trial() -> bool:
    """Whether a new process survives computing in bf16."""
    script = f"from {__name__} import compute; compute()"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, timeout=120, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def secure(forked: Callable[[], Fate] = forked_trial, fresh: Callable[[], bool] = fresh_trial) -> None:
    """Make sure that this process survives computing in bf16, or refuse with a sentence.

    `forked` tells what became of a forked child that tried, `fresh` whether a new process survives with the environment
    as it is now.
    """
    fate = forked()
    if fate == "lived" or (fate == "unknown" and fresh()):
        return
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = WITHOUT_AMX
    if fate == "died" and forked() == "lived":
        return  # the variable stays: this process has not computed yet, and shall do so without these instructions
    curable = fresh()
    if before is None:
        del os.environ[VARIABLE]
    else:
        os.environ[VARIABLE] = before
    if curable:
        raise UserError(
            "This processor advertises instructions for bf16 that it does not have, and this process has computed "
            f"already: set {VARIABLE}={WITHOUT_AMX} in the environment before it starts, or leave `precision` out."
        )
    raise UserError("Computing in bf16 kills processes on this processor: leave `precision` out.")


def seconds(module: nn.Module, shape: tuple[int, ...], batch: int) -> dict[Precision, float]:
    """The processor's time for one gradient of a network in each format, with one thread; measured once per process.

    That is done in a child, so that a network may use what `compute` did not; a UserError says that it died.
    """
    key = (str(module), shape, batch)
    if key not in _known:
        x = torch.rand(batch, *shape, generator=torch.Generator().manual_seed(0))
        y = torch.zeros(batch, dtype=torch.int64)
        try:
            _known[key] = in_child(lambda: _measured(module, x, y), MEASURING_SECONDS)
        except TrialError as error:
            raise UserError(f"This network cannot compute in bf16 here: {error}. Leave `precision` out.") from error
    return _known[key]


def _measured(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[Precision, float]:
    formats: tuple[Precision, ...] = ("fp32", "bf16")
    actions = {which: _gradient(copy.deepcopy(module), which, x, y) for which in formats}
    found: dict[Precision, float] = {which: float("inf") for which in formats}
    for action in actions.values():  # the first time, memory is got and code is made
        action()
    begun = time.process_time()
    for _ in range(5):
        for which, action in actions.items():
            before = time.process_time()
            action()
            found[which] = min(found[which], time.process_time() - before)
        if time.process_time() - begun > MEASURED_SECONDS:
            break
    return found


def _gradient(module: nn.Module, precision: Precision, x: torch.Tensor, y: torch.Tensor) -> Callable[[], torch.Tensor]:
    # Any loss will do: the time goes into the network.
    learner = Learner(module, Classification.numbered(2), precision)
    flat, batch = flatten(module), Batch(x, y, y, None)
    return lambda: learner.gradient(flat, batch)
