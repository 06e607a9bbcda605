"""Whether the noisy gradient steps of a run are compiled: because the user asks for it, or because it pays.

Compiled steps round differently. So whether it pays is a rule of the run's sizes, which comes to the same on every
machine, and the choice is written into the experiment, so that a resumed run repeats it. Only where there is no
compiler `auto` comes to something else, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from sordino.data import FederatedData
from sordino.errors import UserError
from sordino.learning.records import Learner
from sordino.method import Method
from sordino.privacy.compiled import CompiledSum, compiled_sum
from sordino.privacy.record_plan import RecordPlan
from sordino.privacy.release import Gradients, all_releases
from sordino.simulator.effort import eager_seconds

COMPILING = 40.0
"""The seconds that compiling takes, on a busy machine and for the first time, its trial in a child included."""
SAVED = 0.25
"""The share of an eager step that compiling saves: about a quarter with convolutions, more in smaller networks."""


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
    saving = steps * SAVED * eager_seconds(module, data.shape, method.batch)
    sizes = f"by rule, from {steps:,} steps and the sizes of network and batch"
    if saving < COMPILING:
        return Decision("never", [f"Steps are not compiled: {sizes}, {saving:.0f} s of {COMPILING:g} would come back."])
    try:
        made = compile_for(method, module, data)
    except UserError as error:
        return Decision("never", [str(error)])
    return Decision(
        "always", [f"Steps are compiled: {sizes}, that saves {saving:,.0f} s and takes {COMPILING:g}."], made
    )


def compile_for(method: Method, module: nn.Module, data: FederatedData) -> CompiledSum:
    """The clipped sum for a method's gradients, compiled."""
    releases = all_releases(method.steps())
    taken, layout = [release for release in releases if isinstance(release, Gradients)], Learner(module).layout
    thresholds = len(layout.layers) if any(release.layered for release in taken) else 1
    thresholds = len(layout.sizes) if any(release.separate for release in taken) else thresholds
    return compiled_sum(module, data.shape, data.classes, thresholds)
