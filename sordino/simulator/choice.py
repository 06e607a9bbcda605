"""How a run is best executed on this machine: clients stacked or one by one, and in how many processes.

The network says what is possible, a measurement of a few milliseconds what is faster. The choice is written into the
experiment, because stacked and single clients differ in rounding and a resumed run must repeat the same numbers; the
number of processes changes no bit and is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vmap

from sordino.config import Experiment
from sordino.data import FederatedData
from sordino.method import Method
from sordino.simulator.engine import Mode, stack_size
from sordino.training import Batch, Learner, cross_entropy

STACKABLE = (nn.Sequential, nn.Flatten, nn.Linear, nn.ReLU, nn.Tanh, nn.GELU, nn.Sigmoid, nn.LayerNorm)
"""Layers whose clients can be stacked. Convolutions on a CPU are faster one client at a time, and dropout draws from a
random stream that a stack would share."""
HOP = 5e-4
"""Seconds that a question to worker processes costs; less work than that is better done here."""
_measured: dict[tuple[str, int, int], dict[Mode, float]] = {}


@dataclass(frozen=True)
class Choice:
    """How to execute a run, and why."""

    engine: Mode
    workers: int
    reasons: list[str]
    """Sentences for people who ask."""


def choose(
    experiment: Experiment, method: Method, learner: Learner, data: FederatedData, initial: Tensor, cohort: int
) -> Choice:
    """Decide for a run with `cohort` clients a round, where the experiment leaves it open."""
    stack = min(stack_size(learner.layout.size), cohort)
    obstacle = why_not_stacked(method, learner, cohort)
    seconds: dict[Mode, float] = {}
    engine: Mode
    if experiment.engine != "auto":
        engine = experiment.engine
        reasons = [f"Clients are trained {described(engine, stack)}, as the experiment says."]
    elif obstacle:
        engine, reasons = "one-by-one", [f"Clients are trained one by one: {obstacle}."]
    elif experiment.device != "cpu":
        engine, reasons = "stacked", ["Clients are trained stacked: small networks alone leave a device idle."]
    else:
        seconds = seconds_of_a_step(learner, data, initial, method.batch, stack)
        engine = "stacked" if seconds["stacked"] < seconds["one-by-one"] else "one-by-one"
        alone, together = (f"{1e6 * seconds[mode]:,.0f}" for mode in ("one-by-one", "stacked"))
        reasons = [
            f"Clients are trained {described(engine, stack)}: a step takes {alone} microseconds for a client by itself "
            f"and {together} for each of {stack} stacked ones (measured)."
        ]
    workers = min(experiment.process_count(), cohort)
    if workers > 1 and experiment.workers is None and seconds:
        steps = cohort * method.epochs * float(data.train.sizes.mean()) / method.batch
        work = steps * seconds[engine]
        if work < HOP:
            workers = 1
            reasons.append(f"One process: a round is {1e3 * work:.2f} ms of work, less than asking another one costs.")
    if workers > 1:
        reasons.append(f"{workers} processes with one thread each, which share data and models.")
    elif len(reasons) == 1:
        reasons.append("One process with one thread.")
    if learner.precision == "bf16":
        native = "" if has_bf16(experiment.device) else ", for which this processor has no instructions: fp32 is faster"
        reasons.append(f"Layers compute in bf16{native}; clipping, noise and averages stay in fp32, norms in fp64.")
    return Choice(engine, workers, reasons)


def has_bf16(device: str) -> bool:
    """Whether bf16 is faster than fp32 on a device: a processor needs instructions for it."""
    flags = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return device != "cpu" or any(getattr(torch.cpu, flag, lambda: False)() for flag in flags)


def described(engine: Mode, stack: int) -> str:
    """An engine in words."""
    return f"stacked, up to {stack} at a time" if engine == "stacked" else "one by one"


def why_not_stacked(method: Method, learner: Learner, cohort: int) -> str | None:
    """What keeps clients from being stacked; None where nothing does."""
    if method.unit == "record":
        return "at record level each has batches of its own size"
    if cohort == 1:
        return "a round has only one"
    if stack_size(learner.layout.size) == 1:
        return "the network is too large for a stack"
    if learner.precision != "fp32":
        return f"{learner.precision} is for networks too large to be stacked"
    module = learner.written
    layers = [layer for layer in module.modules() if layer is not module or not list(module.children())]
    odd = [type(layer).__name__ for layer in layers if not isinstance(layer, STACKABLE)]
    return f"the network has a layer of the kind {odd[0]}, which gains nothing from a stack" if odd else None


def seconds_of_a_step(
    learner: Learner, data: FederatedData, initial: Tensor, batch: int, stack: int
) -> dict[Mode, float]:
    """What one gradient takes for each client, stacked and one by one, in seconds; measured once per process."""
    key = (str(learner.module), batch, stack)
    if key not in _measured:
        x, y, _ = data.train.stacked(range(stack))
        x, y = x[:, :batch], y[:, :batch]

        def one(flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return learner.stacked_gradient(flat, Batch(x, y, y, None), cross_entropy)

        models = initial.expand(stack, -1).clone()
        alone = Batch(x[0], y[0], y[0], None)
        _measured[key] = {
            "stacked": quickest(lambda: vmap(one)(models, x, y)) / stack,
            "one-by-one": quickest(lambda: learner.gradient(models[0], alone, cross_entropy)),
        }
    return _measured[key]


def quickest(action: Callable[[], object], times: int = 4) -> float:
    """Seconds of the fastest of several runs, after one that warms up; with one thread, as workers have."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        action()
        found = []
        for _ in range(times):
            begin = time.perf_counter()
            action()
            found.append(time.perf_counter() - begin)
        return min(found)
    finally:
        torch.set_num_threads(threads)
