"""Mechanisms: noise in floating point, or in whole numbers on a public grid.

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
from sordino.privacy.integers import CLIENTS, RECORDS, Grid
from sordino.privacy.noise import Covered, Source
from sordino.privacy.release.base import Cover, mirror_upper

Purpose = Sequence[object]


class Mechanism(Protocol):
    """A way to noise bounded values."""

    def check(self, cover: Cover) -> None:
        """Refuse noise for whole clients that this mechanism cannot make, before anything is computed or charged."""

    def noised(self, rows: Tensor, cover: Cover, source: Source, purpose: Purpose, clients: Sequence[int]) -> Tensor:
        """Add noise to bounded rows, one for each client.

        Args:
            rows: bounded values, (clients, width).
            cover: noise of each block.
            source: randomness of the run.
            purpose: names the draw, together with the client.
            clients: numbers of the clients.
        """

    def noised_sum(self, total: Tensor, deviation: float | Tensor, source: Source, purpose: Purpose) -> Tensor:
        """Add noise to a sum over a client's records.

        Args:
            total: the sum; it may be changed.
            deviation: standard deviation of the noise: a scalar, or one value per entry.
            source: randomness of the run.
            purpose: names the draw.

        Returns:
            The noisy sum, as float32.
        """

    def noised_sums(
        self, totals: Tensor, deviations: Sequence[float], source: Source, purposes: Sequence[Purpose]
    ) -> Tensor:
        """Add noise to sums of several clients at once.

        Args:
            totals: (clients, entries).
            deviations: standard deviation of the noise on each row.
            source: randomness of the run.
            purposes: names of the draws, one for each row.

        Returns:
            The noisy sums (clients, entries), as float32.
        """

    def read(self, rows: Tensor, cover: Cover) -> Tensor:
        """Values that rows which left stand for, as float32."""

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
    """Noise in whole numbers. What is added up over clients leaves as int64 in steps of the grid, so that its sum can
    be made modulo a power of two; anything else leaves as what it stands for."""

    def check(self, cover: Cover) -> None:
        if cover.unit.record_level:  # sums over records have no bound of their own
            return
        for place in range(max(len(cover.deviations), 1 if cover.at is None else len(cover.at))):
            for entries, bound, deviation in cover.blocks(place):
                if len(entries):
                    integers.check_signal(CLIENTS.longest(bound, deviation), len(entries))

    def noised(self, rows: Tensor, cover: Cover, source: Source, purpose: Purpose, clients: Sequence[int]) -> Tensor:
        values, whole = rows.cpu().double().numpy(), np.zeros(rows.shape, dtype=np.int64)
        grid = grid_of(cover)
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
        if not cover.summed:
            sent = (sent.double() * grid_steps(cover)).float()
        return sent.to(rows.device)

    def noised_sum(self, total: Tensor, deviation: float | Tensor, source: Source, purpose: Purpose) -> Tensor:
        if isinstance(deviation, Tensor):
            # A grid has one step: entries are counted in their own deviations, of which all have one.
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
        if not cover.summed:
            return rows
        return (rows.double() * grid_steps(cover).to(rows.device)).float()

    def mean(self, rows: Tensor, cover: Cover) -> Tensor:
        if not cover.summed:
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
    """Distance of the grid's points for each entry of what clients send: (clients or 1, width or 1)."""
    return cover.of_entries(cover.deviations / grid_of(cover).deviation)


def grid_of(cover: Cover) -> Grid:
    """Grid of the whole numbers that leave under a cover."""
    return RECORDS if cover.unit.record_level else CLIENTS


def mean_of_sum(total: Tensor, count: int, cover: Cover) -> Tensor:
    """The mean over `count` clients from the sum of the whole numbers that they sent, as float32.

    Args:
        total: sum of the whole numbers that clients sent, one value per entry.
        count: number of clients in it.
        cover: noise of their messages, which says what a step of the grid is.
    """
    if len(cover.deviations) > 1:
        raise integers.GridError("Whole numbers of clients with different noise stand for different things: read rows.")
    return (total.double() * grid_steps(cover)[0].to(total.device) / count).float()


MechanismName = Literal["float", "integers"]
FLOATS = Floats()
MECHANISMS: dict[MechanismName, Mechanism] = {"float": FLOATS, "integers": Integers()}
