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
        return self.keys(purpose[:-1], purpose[-1:])[0]

    def keys(self, purpose: Sequence[object], last: Sequence[object]) -> list[int]:
        """The keys of `purpose` with each of `last` behind it."""
        begun = hashlib.blake2b("".join(f"{part}/" for part in (self.seed, *purpose)).encode(), digest_size=8)
        found = []
        for part in last:
            ended = begun.copy()
            ended.update(str(part).encode())
            found.append(int.from_bytes(ended.digest(), "big") >> 1)
        return found

    def generator(self, *purpose: object) -> torch.Generator:
        """A generator of its own for each `purpose`."""
        return torch.Generator().manual_seed(self.key(*purpose))

    def normals(self, size: int, purpose: Sequence[object], clients: Sequence[int]) -> torch.Tensor:
        """A row of `size` independent standard normal numbers for each client, each its own for `purpose`."""
        rows, generator = torch.empty(len(clients), size), torch.Generator()
        for row, key in zip(rows, self.keys(("noise", *purpose), clients), strict=True):
            torch.randn(size, generator=generator.manual_seed(key), out=row)
        return rows

    def normal(self, size: int, *purpose: object) -> torch.Tensor:
        """`size` independent standard normal numbers for `purpose`."""
        return torch.randn(size, generator=self.generator("noise", *purpose))
