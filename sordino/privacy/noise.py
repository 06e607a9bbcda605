"""Where randomness comes from.

Every draw is a function of the run's seed and of what the draw is for, so that no two draws share noise, a
resumed run repeats exactly what it had drawn, and results do not depend on which process draws. This source
is for simulation: a deployment must take its noise from the operating system instead, because whoever knows
the seed can subtract the noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Seeded:
    """Reproducible randomness of one run, for simulation."""

    seed: int

    def key(self, *purpose: object) -> int:
        """A 63-bit number that only this seed and this `purpose` have."""
        text = "/".join(str(part) for part in (self.seed, *purpose)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1

    def generator(self, *purpose: object) -> torch.Generator:
        """A generator of its own for each `purpose`."""
        return torch.Generator().manual_seed(self.key(*purpose))

    def normals(self, size: int, purpose: Sequence[object], clients: Sequence[int]) -> torch.Tensor:
        """A row of `size` independent standard normal numbers for each client, each its own for `purpose`."""
        rows = torch.empty(len(clients), size)
        for row, client in zip(rows, clients, strict=True):
            torch.randn(size, generator=self.generator("noise", *purpose, client), out=row)
        return rows

    def normal(self, size: int, *purpose: object) -> torch.Tensor:
        """`size` independent standard normal numbers for `purpose`."""
        return torch.randn(size, generator=self.generator("noise", *purpose))
