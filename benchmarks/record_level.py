"""Record-level steps: ours against the step without privacy and against Opacus, in one process, interleaved.

    python benchmarks/record_level.py            # Opacus is measured when it is installed: pip install "opacus>=1.6"

LeNet on 1x28x28, batch 64, one thread: samples per second of one training step (gradient and SGD update; privacy
included: norms, clipping, noise), medians over interleaved repeats, and the peak memory of a step.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from sordino import models
from sordino.descent import InPlace
from sordino.parameters import flatten
from sordino.per_example import Bookkeeper
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.noise import Seeded
from sordino.training import Batch, Learner, cross_entropy

BATCH, RECORDS = 64, 640


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(RECORDS, 1, 28, 28, generator=generator)
    return x, torch.randint(0, 10, (RECORDS,), generator=generator)


def network() -> nn.Module:
    torch.manual_seed(0)
    return models.build("lenet", (1, 28, 28), 10)


def bare_step() -> Callable[[], None]:
    """A plain PyTorch step without privacy."""
    module, (x, y) = network(), data()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    place = 0

    def step() -> None:
        nonlocal place
        part = slice(place, place + BATCH)
        place = (place + BATCH) % RECORDS
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x[part]), y[part]).backward()
        optimizer.step()

    return step


def our_step() -> Callable[[], None]:
    """A step as a record-level method takes it, on a batch of fixed size (a rate of one on 64 records)."""
    module, (x, y) = network(), data()
    learner, flat = Learner(module), flatten(module)
    keeper, optimizer = Bookkeeper(learner), InPlace("sgd", 0.01)
    none = torch.zeros(BATCH, dtype=torch.bool)
    clip = torch.tensor([1.0])
    views = [
        PrivateRecords(x[i : i + BATCH], y[i : i + BATCH], none, keeper, (1.0, 1.0, 10**9), clip, Seeded(i), (0,))
        for i in range(0, RECORDS, BATCH)
    ]
    turn = 0

    def step() -> None:
        nonlocal turn
        optimizer.step(flat, views[turn % len(views)].gradient(flat))
        turn += 1

    return step


def opacus_step(mode: str) -> Callable[[], None]:
    """A step of Opacus in one of its modes for the gradients of single records."""
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    module, (x, y) = network(), data()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(x, y), batch_size=BATCH)
    criterion = nn.CrossEntropyLoss()
    made = PrivacyEngine().make_private(
        module=module,
        optimizer=optimizer,
        data_loader=loader,
        criterion=criterion,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    private, stepper = made[0], made[1]
    loss_of = made[2] if mode == "ghost" else criterion
    place = 0

    def step() -> None:
        nonlocal place
        part = slice(place, place + BATCH)
        place = (place + BATCH) % RECORDS
        stepper.zero_grad()
        loss_of(private(x[part]), y[part]).backward()
        stepper.step()

    return step


def kept_bytes() -> dict[str, int]:
    """Bytes of the tensors that a step keeps for its backward pass, and of what book-keeping adds."""
    module, (x, y) = network(), data()
    learner, flat = Learner(module), flatten(module)
    sizes: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        learner.gradient(flat, Batch(x[:BATCH], y[:BATCH], y, None), cross_entropy)
    bare = sum(sizes)
    book = Bookkeeper(learner).book(flat, Batch(x[:BATCH], y[:BATCH], y, None), cross_entropy)
    book.layer_norms()
    extra = sum(
        tensor.numel() * tensor.element_size()
        for page in book.pages
        for tensor in [page.slope, *(page._gradients or [])]
        if tensor is not None
    )
    return {"bare": bare, "book-keeping": bare + extra}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    steps = {"without privacy": bare_step(), "sordino": our_step()}
    try:
        steps |= {f"opacus {mode}": opacus_step(mode) for mode in ("ghost", "hooks", "functorch")}
    except ImportError:
        print('Opacus is not installed: pip install "opacus>=1.6" to measure against it.')
    for step in steps.values():
        for _ in range(5):
            step()
    rates: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(chosen.repeats):
        for name, step in steps.items():
            begin = time.perf_counter()
            for _ in range(chosen.steps):
                step()
            rates[name].append(BATCH * chosen.steps / (time.perf_counter() - begin))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    peers = [value for name, value in medians.items() if name.startswith("opacus")]
    result = {
        "samples_per_second": medians,
        "of_without_privacy": medians["sordino"] / medians["without privacy"],
        "of_best_opacus": medians["sordino"] / max(peers) if peers else None,
        "memory": (kept := kept_bytes())["book-keeping"] / kept["bare"],
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
    }
    if chosen.json:
        print(json.dumps(result))
        return
    for name, value in medians.items():
        print(
            f"{name:18} {value:10,.0f} samples/s   {value / medians['without privacy']:.2f} of the step without privacy"
        )
    if peers:
        print(f"sordino is {result['of_best_opacus']:.2f} times the best mode of Opacus")
    print(f"tensors kept by a step: {result['memory']:.2f} times those without privacy")


if __name__ == "__main__":
    main()
