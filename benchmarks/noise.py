"""How quickly noise is drawn, keys included, against `torch.randn`, which has neither its keys nor its tails.

    python benchmarks/noise.py

Both take turns on one core; the quickest turn of each counts, in seconds of the processor, so that a busy machine
disturbs little.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from sordino.privacy.noise import Covered, Seeded

SHAPES = ((1000, 1), (1000, 100), (100, 4810), (2, 1_000_000))
"""Clients and numbers for each; the third is a round of W3."""
TURNS = 40


def ours(clients: int, size: int) -> None:
    """Noise as the gate draws it."""
    covered = Covered(torch.empty(clients, 0), [])
    Seeded(1, "benchmark", repeats=True).normals(size, (0, "local", "update"), range(clients), covered)


def torchs(clients: int, size: int) -> None:
    """torch's normal numbers, with a key for each client."""
    rows, generator = torch.empty(clients, size), torch.Generator()
    for row, key in zip(rows, Seeded(1).keys((0, "local", "update"), range(clients)), strict=True):
        torch.randn(size, generator=generator.manual_seed(key), out=row)


def seconds(draw: Callable[[int, int], None], clients: int, size: int) -> float:
    """Seconds of the processor for one turn."""
    begun = time.process_time()
    draw(clients, size)
    return time.process_time() - begun


def main() -> None:
    """Print millions of numbers a second, and the ratio."""
    torch.set_num_threads(1)
    print(f"{'clients':>8} {'numbers':>9} {'ours':>8} {'torch':>8}   million a second, ratio")
    for clients, size in SHAPES:
        turns = [(seconds(ours, clients, size), seconds(torchs, clients, size)) for _ in range(TURNS)]
        mine, theirs = (clients * size / min(column) / 1e6 for column in zip(*turns, strict=True))
        print(f"{clients:8} {size:9,} {mine:8.1f} {theirs:8.1f}   {mine / theirs:.2f}")


if __name__ == "__main__":
    main()
