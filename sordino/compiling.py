"""Whether the noisy gradient steps of a run are compiled: because the user asks for it, or because it pays.

The choice is written into the experiment, because compiled steps round differently and a resumed run must repeat the
same numbers.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import nn

from sordino.data import FederatedData
from sordino.errors import UserError
from sordino.method import Method
from sordino.parameters import flatten
from sordino.per_example import Bookkeeper
from sordino.privacy.clipping import clipped_sum
from sordino.privacy.compiled import CompiledSum, compiled_sum
from sordino.privacy.records import RecordPlan
from sordino.privacy.release import Gradients
from sordino.simulator.choice import quickest
from sordino.training import Batch, Learner, cross_entropy

COMPILING = 30.0
"""The seconds that compiling takes, on a busy machine and for the first time."""
SAVED = 0.25
"""The share of an eager step that compiling saves: about a quarter with convolutions, more in smaller networks."""
WORTH_MEASURING = 5_000
"""Noisy steps below which a run is too short for compiling, however slow its steps."""


@dataclass(frozen=True)
class Decision:
    """Whether steps are compiled, and why."""

    compiled: Literal["never", "always"]
    reasons: list[str] = field(default_factory=list)
    """Sentences for people who ask."""
    made: CompiledSum | None = None
    """What was compiled, where that was the way to find out whether it can be."""


def decide(
    asked: Literal["auto", "never", "always"],
    method: Method,
    module: nn.Module,
    data: FederatedData,
    plan: RecordPlan | None,
    device: str,
) -> Decision:
    """What `compiled = asked` comes to. The number of worker processes is left out: results must not depend on it."""
    if plan is None or device != "cpu":
        if asked == "always":
            raise UserError('compiled = "always" is for record-level methods on the CPU: leave `compiled` out.')
        return Decision("never")
    if asked != "auto":
        return Decision(asked, [f"Noisy gradient steps are {asked} compiled, as the experiment says."])
    steps = int((plan.steps * plan.turns).sum())
    if steps < WORTH_MEASURING:
        return Decision("never", [f"Steps are not compiled: the run has only {steps:,} of them."])
    saving = steps * SAVED * eager_seconds(method, module, data)
    if saving < COMPILING:
        return Decision("never", [f"Steps are not compiled: about {saving:.0f} s would be saved, less than it takes."])
    try:
        made = compile_for(method, module, data)
    except UserError as error:
        return Decision("never", [str(error)])
    return Decision("always", [f"Steps are compiled: about {saving:,.0f} s are saved (measured)."], made)


def compile_for(method: Method, module: nn.Module, data: FederatedData) -> CompiledSum:
    """The clipped sum for a method's gradients, compiled."""
    releases = [release for step in method.steps().values() for release in step.values()]
    layered = any(isinstance(release, Gradients) and release.layered for release in releases)
    thresholds = len(Learner(module).layout.layers) if layered else 1
    return compiled_sum(module, data.shape, data.classes, thresholds)


def eager_seconds(method: Method, module: nn.Module, data: FederatedData) -> float:
    """The time that one eager step takes here, on records of random numbers."""
    keeper, flat = Bookkeeper(Learner(copy.deepcopy(module))), flatten(module)
    x = torch.rand(method.batch, *data.shape, generator=torch.Generator().manual_seed(0))
    batch = Batch(x, torch.zeros(method.batch, dtype=torch.int64), torch.empty(0), None)
    return quickest(lambda: clipped_sum(keeper.book(flat, batch, cross_entropy), torch.ones(1)))
