"""Record-level steps: ours against steps without privacy and against Opacus, in one process, in turns.

    python benchmarks/record_level.py            # Opacus and Opake are measured where they are installed

LeNet on 1x28x28, batches of 64, one thread: samples per second of one training step (gradient and SGD update; with
privacy also sampling, norms, clipping and noise), and the peak memory of a step. Contenders alternate every ten
steps, eight times in a turn; rates and ratios are medians over these. Our batches are Poisson-sampled with a mean
of 64; the others' are always 64.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.profiler import ProfilerActivity, profile

from sordino import models
from sordino.errors import UserError
from sordino.learning.descent import InPlace
from sordino.learning.network import Learner
from sordino.learning.parameters import flatten
from sordino.learning.per_record import Bookkeeper
from sordino.privacy.clipping import COMPILER_OPTIONS, CompiledSum, compile_sum
from sordino.privacy.gate import SampledGradients
from sordino.privacy.gradients import PrivateRecords, Units
from sordino.privacy.noise import Seeded
from sordino.tasks import Classification

BATCH, RECORDS, PASSES, STEPS = 64, 640, 8, 10
Step = Callable[[], None]


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(RECORDS, 1, 28, 28, generator=generator)
    return x, torch.randint(0, 10, (RECORDS,), generator=generator)


def network() -> nn.Module:
    torch.manual_seed(0)
    return models.build("lenet", (1, 28, 28), 10)


def in_batches(step: Callable[[Tensor, Tensor], None]) -> Step:
    """The step on one batch after the other."""
    x, y = data()
    place = 0

    def next_step() -> None:
        nonlocal place
        part = slice(place, place + BATCH)
        place = (place + BATCH) % RECORDS
        step(x[part], y[part])

    return next_step


def bare_step() -> Step:
    """A plain PyTorch step without privacy."""
    module = network()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()

    return in_batches(step)


def compiled_bare_step() -> Step:
    """A step without privacy whose gradient is compiled as a whole for batches of 64, with the same options as ours.

    It is faster than `torch.compile` of the network alone, which leaves the loss and the update outside.
    """
    module = network()
    learner, flat, optimizer = Learner(module, Classification.numbered(10)), flatten(module), InPlace("sgd", 0.01)
    _ = learner.layout.sizes  # worked out here: the compiler does not trace the lock of a cached property

    def loss(flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(learner.logits(flat, x), y)

    gradient = torch.compile(grad(loss), fullgraph=True, dynamic=False, options=COMPILER_OPTIONS)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.step(flat, gradient(flat, x, y))

    return in_batches(step)


def our_step(compiled: CompiledSum | None = None, rate: float = BATCH / RECORDS) -> Step:
    """A step as a record-level method takes it, on Poisson-sampled batches of 64 in the mean."""
    module, (x, y) = network(), data()
    flat, keeper, optimizer = (
        flatten(module),
        Bookkeeper(Learner(module, Classification.numbered(10))),
        InPlace("sgd", 0.01),
    )
    count = round(BATCH / rate)
    view = PrivateRecords(
        Units(x[:count], y[:count]),
        torch.zeros(count, dtype=torch.bool),
        keeper,
        SampledGradients(Seeded(0, "identity"), (0, 0), (rate, 1.0, 10**9), torch.tensor([1.0])),
        compiled=compiled,
    )

    def step() -> None:
        optimizer.step(flat, view.gradient(flat))

    return step


def opacus_step(mode: str) -> Step:
    """A step of Opacus in one of its modes for the gradients of single records."""
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    module = network()
    criterion = nn.CrossEntropyLoss()
    made = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.01),
        data_loader=DataLoader(TensorDataset(*data()), batch_size=BATCH),
        criterion=criterion,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    private, stepper = made[0], made[1]
    loss_of = made[2] if mode == "ghost" else criterion

    def step(x: Tensor, y: Tensor) -> None:
        stepper.zero_grad()
        loss_of(private(x), y).backward()
        stepper.step()

    return in_batches(step)


def opake_step() -> Step:
    """A step of Opake as its documentation writes it: `clipped_grad`, `gaussian_noise` and SGD by hand."""
    from opake.dpsgd.clipping import clipped_grad
    from opake.dpsgd.noise import gaussian_noise
    from opake.random import key

    module = network()
    parameters = {name: value.detach() for name, value in module.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits = functional_call(module, parameters, (x.unsqueeze(0),))
        return nn.functional.cross_entropy(logits, y.unsqueeze(0))

    gradient, clipping = clipped_grad(loss, clipping_norm=1.0, batch_argnums=(1, 2), normalize_by=float(BATCH))
    noise, drawing = gaussian_noise(noise_multiplier=1.0, key=key(0))

    def step(x: Tensor, y: Tensor) -> None:
        nonlocal parameters, clipping, drawing
        clipped, clipping = gradient(parameters, x, y, state=clipping)
        noised, drawing = noise(clipped, drawing)
        parameters = {name: value - 0.01 * noised.pytree[name] for name, value in parameters.items()}

    return in_batches(step)


def contenders() -> tuple[dict[str, Step], dict[str, Step]]:
    """Who is measured, for speed and for memory: there our batches are exactly 64 too."""
    quick: dict[str, Step] = {"without privacy": bare_step(), "sordino": our_step()}
    small: dict[str, Step] = {"without privacy": quick["without privacy"], "sordino": our_step(rate=1.0)}
    try:
        made = compile_sum(network(), (1, 28, 28), Classification.numbered(10))
        quick |= {"without privacy, compiled": compiled_bare_step(), "sordino, compiled": our_step(made)}
        small |= {"sordino, compiled": our_step(made, rate=1.0)}
        small |= {"without privacy, compiled": quick["without privacy, compiled"]}
    except UserError as error:
        print(error)
    try:
        peers = {f"opacus {mode}": opacus_step(mode) for mode in ("ghost", "hooks", "functorch")}
    except ImportError:
        print('Opacus is not installed: pip install "opacus>=1.6" to measure against it.')
        peers = {}
    try:
        peers["opake"] = opake_step()
    except ImportError:
        print('Opake is not installed: pip install "opake>=0.16,<0.17" to measure against it.')
    return quick | peers, small | peers


def peak_bytes(step: Step) -> int:
    """The most bytes that one step has allocated at once, as torch's allocator saw them."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        step()
    events = [event for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def measured(turns: int) -> dict[str, Any]:
    """Samples per second by contender, the ratios that matter, and peak memory over that without privacy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    quick, small = contenders()
    for step in [*quick.values(), *small.values()]:
        for _ in range(5):
            step()
    rates: dict[str, list[float]] = {name: [] for name in quick}
    for _ in range(turns * PASSES):
        for name, step in quick.items():
            begin = time.perf_counter()
            for _ in range(STEPS):
                step()
            rates[name].append(BATCH * STEPS / (time.perf_counter() - begin))
    peaks = {name: peak_bytes(step) for name, step in small.items()}
    torch.set_num_threads(threads)
    memory = {name: peak / peaks["without privacy"] for name, peak in peaks.items()}
    return {
        "samples_per_second": {name: statistics.median(values) for name, values in rates.items()},
        "ratios": ratios(rates),
        "memory": memory | {"ratio": max(memory[name] for name in memory if name.startswith("sordino"))},
    }


def ratios(rates: dict[str, list[float]]) -> dict[str, float | None]:
    """Ours over theirs, the median over passes; None where one was not measured. Opacus by its best mode."""
    peers = [values for name, values in rates.items() if name.startswith("opacus")]
    best = {"opacus": max(peers, key=statistics.median)} if peers else {}

    def ratio(ours: str, theirs: str) -> float | None:
        found = [(rates | best).get(name) for name in (ours, theirs)]
        if None in found:
            return None
        return statistics.median(a / b for a, b in zip(*found, strict=True))

    return {
        "eager": ratio("sordino", "without privacy"),
        "eager_opacus": ratio("sordino", "opacus"),
        "compiled": ratio("sordino, compiled", "without privacy, compiled"),
        "compiled_opacus": ratio("sordino, compiled", "opacus"),
    }


def show(figures: dict[str, Any]) -> None:
    """The figures for people."""
    for name, value in figures["samples_per_second"].items():
        print(f"{name:26} {value:10,.0f} samples/s   peak memory {figures['memory'][name]:.2f} x without privacy")
    labels = {
        "eager": "eager against the step without privacy",
        "eager_opacus": "eager against Opacus's best mode",
        "compiled": "compiled against the compiled step without privacy",
        "compiled_opacus": "compiled against Opacus's best mode",
    }
    for key, label in labels.items():
        if figures["ratios"][key] is not None:
            print(f"{label:52} {figures['ratios'][key]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    figures = measured(chosen.turns)
    if chosen.json:
        machine = {"torch": torch.__version__, "machine": platform.processor() or platform.machine()}
        print(json.dumps(figures | machine))
    else:
        show(figures)


if __name__ == "__main__":
    main()
