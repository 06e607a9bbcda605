"""Choice of execution by rule: stacked or one by one, how many processes, compiled or not."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from torch import nn

from sordino.data import FederatedData
from sordino.errors import UserError
from sordino.federation.execution import Mode, stack_count, stack_size
from sordino.learning.network import Learner
from sordino.learning.parameters import Layout
from sordino.method import Method
from sordino.models.networks import Residual
from sordino.privacy.budget.record_level_plan import RecordPlan
from sordino.privacy.clipping import CompiledSum, compile_sum
from sordino.privacy.release import Gradients, all_releases, takes_gradients_alone
from sordino.simulator import step_cost
from sordino.simulator.step_cost import eager_seconds

STACKABLE = (nn.Sequential, nn.Flatten, nn.Linear, nn.ReLU, nn.Tanh, nn.GELU, nn.Sigmoid, nn.LayerNorm)
"""Layers whose clients can be stacked. Convolutions on a CPU are faster one client at a time, and dropout draws from a
random stream that a stack would share."""
ON_DEVICES = (
    *STACKABLE,
    *(nn.Conv1d, nn.Conv2d, nn.GroupNorm, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
    *(nn.AdaptiveMaxPool2d, nn.Identity, Residual),
)
"""Layers whose clients can be stacked elsewhere than on a processor: under `vmap` the convolutions of all clients
become one with a group for each, which fills a device that one client's would leave idle."""
HOP = 5e-4
"""Seconds that a question to worker processes costs; less work than that is better done here."""


TRIP = 0.04
"""Seconds that a question to workers on a cluster costs: a message of 1 MB took 39 ms to two of them and back."""
SENT = 1e-8
"""Seconds for each byte that travels between the nodes of a cluster, over a network of 100 MB a second."""


class ExecutionKeys(Protocol):
    """Keys of an experiment that concern its execution."""

    @property
    def engine(self) -> Literal["auto"] | Mode: ...
    @property
    def compiled(self) -> Literal["auto", "never", "always"]: ...
    @property
    def device(self) -> str: ...
    @property
    def workers(self) -> int | None: ...
    def process_count(self) -> int:
        """Return the largest number of processes."""


@dataclass(frozen=True)
class Choice:
    """Choice of execution, with its reasons."""

    engine: Mode
    workers: int
    reasons: list[str]
    """Sentences for people who ask."""


def choose(wishes: ExecutionKeys, method: Method, learner: Learner, data: FederatedData, cohort: int) -> Choice:
    """Decide how a run's clients are trained, where the experiment leaves it open.

    Args:
        wishes: keys of the experiment on execution.
        method: the method, as it is run.
        learner: the network.
        data: records of the clients.
        cohort: number of clients in a round.
    """
    stack = min(stack_size(learner.layout.size), cohort)
    obstacle = why_not_stacked(method, learner, cohort, wishes.compiled == "always", wishes.device)
    if method.unit.record_level and data.train.persons is not None:
        obstacle = "gradients of persons are taken one client at a time"
    seconds: dict[Mode, float] = {}
    engine: Mode
    if wishes.engine == "stacked":
        _refuse_stacks(method, learner, obstacle)
    if wishes.engine != "auto":
        engine = wishes.engine
        reasons = [f"Clients are trained {described(engine, stack)}, as the experiment says."]
    elif obstacle:
        engine, reasons = "one-by-one", [f"Clients are trained one by one: {obstacle}."]
    elif wishes.device != "cpu":
        engine, reasons = "stacked", ["Clients are trained stacked: small networks alone leave a device idle."]
    else:
        seconds = seconds_of_a_step(method, learner, data, cohort)
        engine = "stacked" if seconds["stacked"] < seconds["one-by-one"] else "one-by-one"
        alone, together = (f"{1e6 * seconds[mode]:,.0f}" for mode in ("one-by-one", "stacked"))
        reasons = [
            f"Clients are trained {described(engine, stack)}: by rule, from the sizes of network and batch, a step "
            f"counts {alone} microseconds for a client by itself and {together} for each of stacked ones."
        ]
    workers = min(wishes.process_count(), cohort)
    if workers > 1 and wishes.workers is None and seconds:
        work = steps_of_a_round(method, data, cohort) * seconds[engine]
        if work < HOP:
            workers = 1
            reasons.append(f"One process: a round is {1e3 * work:.2f} ms of work, less than asking another one costs.")
        elif engine == "stacked" and stacks_of_a_round(method, learner, data, cohort) == 1:
            workers = 1
            reasons.append("One process: all clients of a round make their sums in one stack.")
    if workers > 1:
        reasons.append(f"{workers} processes with one thread each, which share data and models.")
    elif len(reasons) == 1:
        reasons.append("One process with one thread.")
    if learner.precision == "bf16":
        reasons.append("Layers compute in bf16; clipping, noise and averages stay in fp32, norms in fp64.")
    return Choice(engine, workers, reasons)


def steps_of_a_round(method: Method, data: FederatedData, cohort: int) -> float:
    """Return the number of training steps of all clients of a round."""
    rate = method.record_needs().rate
    return cohort * (method.epochs * float(data.train.sizes.mean()) / method.batch if rate is None else 1)


def why_not_on_cluster(method: Method, learner: Learner, data: FederatedData, cohort: int, engine: Mode) -> str | None:
    """Find what keeps a run from being divided among workers on a cluster: a round of less work than asking them
    costs. None where nothing does. It follows from sizes alone.

    Args:
        method: the method, as it is run.
        learner: the network.
        data: records of the clients.
        cohort: number of clients in a round.
        engine: how clients are trained, "stacked" or "one-by-one".
    """
    if engine == "stacked":
        step = seconds_of_a_step(method, learner, data, cohort)["stacked"]
    else:
        step = eager_seconds(learner.written, data.shape, method.batch)
    work = steps_of_a_round(method, data, cohort) * step
    trip = TRIP + SENT * 2 * 4 * learner.layout.size * cohort  # what clients send, and what they keep
    if work > 2 * trip:
        return None
    return (
        f"The clients are not divided among the nodes of the cluster: by rule, from sizes, a round is "
        f"{1e3 * work:,.0f} ms of work, and asking the nodes costs {1e3 * trip:,.0f}. `--workers N` does it anyway."
    )


def _refuse_stacks(method: Method, learner: Learner, obstacle: str | None) -> None:
    """Refuse stacks that the experiment asks for where they cannot be made; `obstacle` is from `why_not_stacked`."""
    if any(isinstance(layer, nn.RNNBase) for layer in learner.written.modules()):
        obstacle = "because torch cannot stack recurrent layers"
    elif not method.unit.record_level:  # others are slow in a stack, but can be in one
        obstacle = None
    if obstacle:
        raise UserError(f"Clients of this run cannot be stacked, {obstacle}: leave `engine` out.")


def described(engine: Mode, stack: int) -> str:
    """An engine in words."""
    return f"stacked, up to {stack} at a time" if engine == "stacked" else "one by one"


def why_not_stacked(
    method: Method, learner: Learner, cohort: int, compiled: bool = False, device: str = "cpu"
) -> str | None:
    """Find what keeps clients from being stacked; None where nothing does.

    Args:
        method: the method.
        learner: the network.
        cohort: number of clients in a round.
        compiled: whether steps are compiled.
        device: where they run.
    """
    obstacle = why_no_records_stacked(method, learner, compiled) if method.unit.record_level else None
    if obstacle:
        return obstacle
    if cohort == 1:
        return "a round has only one"
    if stack_size(learner.layout.size) == 1:
        return "the network is too large for a stack"
    if learner.precision != "fp32":
        return f"{learner.precision} is for networks too large to be stacked"
    module, kinds = learner.written, STACKABLE if device == "cpu" else ON_DEVICES
    layers = [layer for layer in module.modules() if layer is not module or not list(module.children())]
    odd = [type(layer).__name__ for layer in layers if not isinstance(layer, kinds)]
    return f"the network has a layer of the kind {odd[0]}, which gains nothing from a stack" if odd else None


def why_no_records_stacked(method: Method, learner: Learner, compiled: bool) -> str | None:
    """Find what keeps clients whose records are protected from being stacked; None where nothing does."""
    if learner.chain is None:
        return "at record level networks of linear layers and simple activations are stacked, and no others"
    alone = any(takes_gradients_alone(releases) for releases in method.steps().values())
    if not alone or method.record_needs().held_out:
        return "the method's steps look at single records besides taking gradients"
    return "compiled steps are those of one client" if compiled else None


def seconds_of_a_step(method: Method, learner: Learner, data: FederatedData, cohort: int) -> dict[Mode, float]:
    """Estimate the seconds of one step for each client, stacked and one by one."""
    stacks, rate = stacks_of_a_round(method, learner, data, cohort), method.record_needs().rate
    if rate is not None:
        batch = max(1, round(rate * float(data.train.sizes.mean())))
        size, costs = step_cost.Size.of(learner.written, data.shape, batch), step_cost.SUMMED
        together = costs.stacked.seconds(size, max(1, cohort // stacks))
        return {"stacked": together, "one-by-one": costs.alone.seconds(size)}
    if method.unit.record_level:
        # Clients who take equally many steps are stacked, about so many kinds of them as there are numbers of steps.
        kinds = len(np.unique(-(-data.train.sizes // method.batch)))
        width = max(1, cohort // max(stacks, kinds))
        size = step_cost.Size.of(learner.written, data.shape, method.batch)
        alone = step_cost.eager_seconds(learner.written, data.shape, method.batch)
        return {"stacked": step_cost.NOISY.seconds(size, width), "one-by-one": alone}
    batch = min(method.batch, max(1, round(float(data.train.sizes.mean()))))
    size, costs = step_cost.Size.of(learner.written, data.shape, batch), step_cost.engine_costs(learner, method)
    padded = step_cost.padding(data.train.sizes, cohort, stacks, method.batch)
    return {
        "stacked": padded * costs.stacked.seconds(size, max(1, cohort // stacks)),
        "one-by-one": costs.alone.seconds(size),
    }


def stacks_of_a_round(method: Method, learner: Learner, data: FederatedData, cohort: int) -> int:
    """Return the number of stacks in which clients of a round are trained, or make their sums of gradients."""
    rate, parameters = method.record_needs().rate, learner.layout.size
    records = 0.0 if rate is None else rate * cohort * float(data.train.sizes.mean())
    shared = rate is None or step_cost.worth_sharing(parameters, math.prod(data.shape), records)
    return stack_count(cohort, stack_size(parameters), shared)


COMPILING = 40.0
"""The seconds that compiling takes, on a busy machine and for the first time, its trial in a child included."""
SAVED = 0.25
"""The share of an eager step that compiling saves: about a quarter with convolutions, more in smaller networks."""


@dataclass(frozen=True)
class CompileChoice:
    """Whether steps are compiled, and why."""

    compiled: Literal["never", "always"]
    reasons: list[str] = field(default_factory=list)
    """Sentences for people who ask."""
    made: CompiledSum | None = None
    """The compiled sum, where compiling was the way to find out whether it works."""


def decide(
    asked: Literal["auto", "never", "always"],
    method: Method,
    module: nn.Module,
    data: FederatedData,
    plan: RecordPlan | None,
    device: str,
) -> CompileChoice:
    """Decide what `compiled = asked` means. Worker processes are left out: results must not depend on their number."""
    if plan is None or device != "cpu":
        if asked == "always":
            raise UserError(
                'compiled = "always" is for record-level methods on the CPU, where no persons are declared: leave '
                "`compiled` out."
            )
        return CompileChoice("never")
    if asked != "auto":
        return CompileChoice(asked, [f"Noisy gradient steps are {asked} compiled, as the experiment says."])
    steps = int((plan.steps * plan.turns).sum())
    saving = steps * SAVED * eager_seconds(module, data.shape, method.batch)
    sizes = f"by rule, from {steps:,} steps and the sizes of network and batch"
    if saving < COMPILING:
        return CompileChoice(
            "never", [f"Steps are not compiled: {sizes}, {saving:.0f} s of {COMPILING:g} would come back."]
        )
    try:
        made = compile_for(method, module, data)
    except UserError as error:
        return CompileChoice("never", [str(error)])
    return CompileChoice(
        "always", [f"Steps are compiled: {sizes}, that saves {saving:,.0f} s and takes {COMPILING:g}."], made
    )


def compile_for(method: Method, module: nn.Module, data: FederatedData) -> CompiledSum:
    """The clipped sum for a method's gradients, compiled."""
    releases = all_releases(method.steps())
    taken, layout = [release for release in releases if isinstance(release, Gradients)], Layout.of(module)
    thresholds = len(layout.layers) if any(release.layered for release in taken) else 1
    thresholds = len(layout.sizes) if any(release.separate for release in taken) else thresholds
    return compile_sum(module, data.shape, data.task.weighed(method.class_weight), thresholds)
