"""How noise gets onto what leaves: in floating point, or in whole numbers on a public grid.

Both follow the same `Cover`, so what is charged does not depend on which of them is at work. Floating point is for
simulation: it is quick, and epsilon is what a deployment with the same noise would cost, up to the gap that
`integers.Gap` states. A deployment sends whole numbers, drawn from the operating system; drawn from a seed they let a
simulation agree with a deployment to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from sordino.privacy import integers
from sordino.privacy.integers import CLIENTS, RECORDS
from sordino.privacy.noise import Covered, Source
from sordino.privacy.release.base import Cover, mirror_upper

Purpose = Sequence[object]


class Mechanism(Protocol):
    """A way to noise bounded values."""

    def check(self, cover: Cover) -> None:
        """Refuse noise for whole clients that this mechanism cannot make, before anything is computed or charged."""

    def noised(self, rows: Tensor, cover: Cover, source: Source, purpose: Purpose, clients: Sequence[int]) -> Tensor:
        """What leaves of bounded rows, one for each client; `purpose` and client name a draw."""

    def noised_sum(self, total: Tensor, deviation: float | Tensor, source: Source, purpose: Purpose) -> Tensor:
        """A sum over a client's records with noise of that deviation, or of one for each entry, as float32; `total` may
        change."""

    def noised_sums(
        self, totals: Tensor, deviations: Sequence[float], source: Source, purposes: Sequence[Purpose]
    ) -> Tensor:
        """The same for several clients at once, one row each."""

    def read(self, rows: Tensor, cover: Cover) -> Tensor:
        """What rows that left stand for, as float32."""

    def mean(self, rows: Tensor, cover: Cover) -> Tensor:
        """The mean of rows that left, as float32."""


class Floats:
    """Noise in floating point, for simulation."""

    def check(self, cover: Cover) -> None:
        """Any noise can be made."""

    def noised(self, rows: Tensor, cover: Cover, source: Source, purpose: Purpose, clients: Sequence[int]) -> Tensor:
        width, deviations = rows.shape[1], cover.of_entries(cover.deviations).float()
        if cover.places is not None:
            noise = torch.zeros(len(clients), width)
            drawn = source.normals(len(cover.places), purpose, clients, covered_values(rows, cover))
            noise[:, cover.places] = drawn.mul_(deviations.expand(-1, width)[:, cover.places])
            return noise.to(rows.device).add_(rows)
        noise = source.normals(width, purpose, clients, covered_values(rows, cover))
        if cover.mirrored:
            noise = torch.stack([mirror_upper(row) for row in noise])
        noise.mul_(deviations)
        if cover.at is not None:
            noise.mul_(cover.at.cpu().float())
        return noise.to(rows.device).add_(rows)

    def noised_sum(self, total: Tensor, deviation: float | Tensor, source: Source, purpose: Purpose) -> Tensor:
        noise = source.normals(total.numel(), purpose[:-1], purpose[-1:], covered_sum(total, deviation))[0]
        if isinstance(deviation, Tensor):
            return total.add_(noise.mul_(deviation.float()).to(total.device))
        return total.add_(noise.to(total.device), alpha=deviation)

    def noised_sums(
        self, totals: Tensor, deviations: Sequence[float], source: Source, purposes: Sequence[Purpose]
    ) -> Tensor:
        sized = torch.tensor(deviations).unsqueeze(1)
        covers = Covered(totals, [torch.tensor(deviations, dtype=torch.float64).unsqueeze(1)])
        noise = source.rows(totals.shape[1], purposes, covers).mul_(sized)
        return totals.add_(noise.to(totals.device))

    def read(self, rows: Tensor, cover: Cover) -> Tensor:
        return rows

    def mean(self, rows: Tensor, cover: Cover) -> Tensor:
        return rows.mean(dim=0)


class Integers:
    """Noise in whole numbers. What protects whole clients leaves as int64 in steps of the grid, so that a sum of it can
    be made modulo a power of two; what protects records leaves as what it stands for."""

    def check(self, cover: Cover) -> None:
        for place in range(max(len(cover.deviations), 1 if cover.at is None else len(cover.at))):
            for entries, bound, deviation in cover.blocks(place):
                if len(entries):
                    integers.check_signal(CLIENTS.longest(bound, deviation), len(entries))

    def noised(self, rows: Tensor, cover: Cover, source: Source, purpose: Purpose, clients: Sequence[int]) -> Tensor:
        values, whole = rows.cpu().double().numpy(), np.zeros(rows.shape, dtype=np.int64)
        grid = RECORDS if cover.unit.record_level else CLIENTS
        for place, words in enumerate(source.words(purpose, clients, covered_values(rows, cover))):
            for entries, bound, deviation in cover.blocks(place):
                if not len(entries):
                    continue
                mine = values[place, entries]
                if cover.unit.record_level:
                    whole[place, entries] = integers.round_sum(mine, deviation, grid)
                else:
                    whole[place, entries] = integers.round_contribution(mine, bound, deviation, grid)
                whole[place, entries] += grid.noise(words, len(entries))
        sent = torch.from_numpy(whole)
        if cover.mirrored:
            sent = torch.stack([mirror_upper(row) for row in sent])
        if cover.unit.record_level:
            sent = (sent.double() * cover.of_entries(cover.deviations / grid.deviation)).float()
        return sent.to(rows.device)

    def noised_sum(self, total: Tensor, deviation: float | Tensor, source: Source, purpose: Purpose) -> Tensor:
        if isinstance(deviation, Tensor):
            in_deviations = self.noised_sum(total.detach().cpu().double() / deviation, 1.0, source, purpose)
            return (in_deviations * deviation).to(total)
        (words,) = source.words(purpose[:-1], purpose[-1:], covered_sum(total, deviation))
        whole = integers.round_sum(total.detach().cpu().numpy(), deviation)
        whole += RECORDS.noise(words, whole.size)
        return (torch.from_numpy(whole).double() * RECORDS.step(deviation)).to(total)

    def noised_sums(
        self, totals: Tensor, deviations: Sequence[float], source: Source, purposes: Sequence[Purpose]
    ) -> Tensor:
        every = zip(totals, deviations, purposes, strict=True)
        return torch.stack([self.noised_sum(total, deviation, source, purpose) for total, deviation, purpose in every])

    def read(self, rows: Tensor, cover: Cover) -> Tensor:
        if cover.unit.record_level:
            return rows
        return (rows.double() * grid_steps(cover).to(rows.device)).float()

    def mean(self, rows: Tensor, cover: Cover) -> Tensor:
        if cover.unit.record_level:
            return rows.mean(dim=0)
        if len(cover.deviations) == 1:
            return mean_of_sum(rows.sum(dim=0), len(rows), cover)
        return (rows.double() * grid_steps(cover).to(rows.device)).mean(dim=0).float()


def covered_values(rows: Tensor, cover: Cover) -> Covered:
    """Values that the noise of `cover` depends on: the bounded rows, and all that decides how noise is added to them.
    Equal numbers in another size, or on other entries, would give two equations for one value."""
    leaving = [cover.at] if cover.at is not None else []
    leaving += [cover.places.unsqueeze(0)] if cover.places is not None else []
    return Covered(rows, [cover.deviations, cover.bounds, *leaving], f"{cover.unit} {cover.mirrored} {cover.sizes}")


def covered_sum(total: Tensor, deviation: float | Tensor) -> Covered:
    """Values that the noise on a sum over a client's records depends on."""
    return Covered(total.reshape(1, -1), [torch.as_tensor(deviation, dtype=torch.float64).reshape(1, -1)])


def grid_steps(cover: Cover) -> Tensor:
    """How far apart the grid's points are for each entry of what clients send: (clients or 1, width or 1)."""
    return cover.of_entries(cover.deviations / CLIENTS.deviation)


def mean_of_sum(total: Tensor, count: int, cover: Cover) -> Tensor:
    """The mean over `count` clients from the sum of the whole numbers that they sent, as float32."""
    if len(cover.deviations) > 1:
        raise integers.GridError("Whole numbers of clients with different noise stand for different things: read rows.")
    return (total.double() * grid_steps(cover)[0].to(total.device) / count).float()


MechanismName = Literal["float", "integers"]
FLOATS = Floats()
MECHANISMS: dict[MechanismName, Mechanism] = {"float": FLOATS, "integers": Integers()}
