"""Wrappers that record, for an audit, values before and after noise (mechanism) and sampling draws (random source)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.privacy.integers import Words
from sordino.privacy.mechanism import Mechanism, Purpose
from sordino.privacy.noise import Covered, Source
from sordino.privacy.release import Cover


@dataclass(frozen=True)
class RecordedRelease:
    """Values of one client on their way out: as they were bounded, and with noise."""

    purpose: tuple[Any, ...]
    """Question and release, or `gradient` and question."""
    client: int
    number: int
    """Number of the gradient within its question; 0 for what leaves once."""
    before: Tensor
    after: Tensor
    deviations: Tensor
    """Declared standard deviation of the noise on each entry; zero where nothing leaves."""
    bound: float
    """The norm that `before` may have, where whole clients are protected; infinite where single records are."""
    price: float = 0.0
    """Cost for a whole client against the server, in units of mu^2: the sum over its blocks of (bound /
    deviation)^2."""

    def bare(self) -> bool:
        """Whether an entry without noise was sent with a value other than zero."""
        return bool((self.after[self.deviations == 0] != 0).any())

    def squares(self) -> np.ndarray:
        """The squared noise in units of what was declared on each entry, zero where nothing leaves."""
        found = np.zeros(len(self.before))
        found[(self.deviations > 0).numpy()] = np.square(self.residual().numpy())
        return found

    def residual(self) -> Tensor:
        """The noise in units of what was declared, on the entries that leave."""
        leaves = self.deviations > 0
        return (self.after.double() - self.before.double())[leaves] / self.deviations[leaves]


def noise_under(cover: Cover, place: int, width: int) -> tuple[Tensor, float, float]:
    """Noise on each entry of the client at `place` (zero where nothing leaves), the largest norm of its message, and
    its price in units of mu^2. Where single records are protected the norm is infinite, and the price zero.

    Args:
        cover: noise of the message.
        place: place of the client among those that send.
        width: number of entries of the message.
    """
    deviations, price = torch.zeros(width, dtype=torch.float64), 0.0
    for entries, bound, deviation in cover.blocks(place):
        deviations[torch.as_tensor(entries)] = deviation
        if len(entries) and bound:
            price += (bound / deviation) ** 2 if deviation else float("inf")
    if cover.unit.record_level:
        return deviations, float("inf"), 0.0
    return deviations, float(cover.bounds[place if len(cover.bounds) > 1 else 0].square().sum().sqrt()), price


def noise_on_each(deviation: float | Tensor, width: int) -> Tensor:
    """Standard deviation of the noise on each entry of a sum, from a scalar or one value per entry: (width,)."""
    return torch.as_tensor(deviation, dtype=torch.float64).expand(width).clone()


def _without_mirror(row: Tensor, mirrored: bool) -> Tensor:
    """Row without the lower triangle of a symmetric matrix, which says nothing new."""
    side = math.isqrt(len(row))
    return row.reshape(side, side).triu().reshape(-1) if mirrored else row


@dataclass
class Watching:
    """Mechanism that lets another do the work and records what passes."""

    of: Mechanism
    passages: list[RecordedRelease] = field(default_factory=list)

    def check(self, cover: Cover) -> None:
        self.of.check(cover)

    def noised(self, rows: Tensor, cover: Cover, source: Source, purpose: Purpose, clients: Sequence[int]) -> Tensor:
        before = rows.clone()
        sent = self.of.noised(rows, cover, source, purpose, clients)
        read = self.of.read(sent, cover)
        for place, client in enumerate(clients):
            noise, bound, price = noise_under(cover, place, rows.shape[1])
            went, came = (_without_mirror(one[place].cpu(), cover.mirrored) for one in (before, read))
            self.passages.append(RecordedRelease(tuple(purpose), int(client), 0, went, came, noise, bound, price))
        return sent

    def noised_sum(self, total: Tensor, deviation: float | Tensor, source: Source, purpose: Purpose) -> Tensor:
        before = total.clone()
        sent = self.of.noised_sum(total, deviation, source, purpose)
        self._note(before, sent, deviation, purpose)
        return sent

    def noised_sums(
        self, totals: Tensor, deviations: Sequence[float], source: Source, purposes: Sequence[Purpose]
    ) -> Tensor:
        before = totals.clone()
        sent = self.of.noised_sums(totals, deviations, source, purposes)
        for place, (deviation, purpose) in enumerate(zip(deviations, purposes, strict=True)):
            self._note(before[place], sent[place], deviation, purpose)
        return sent

    def _note(self, before: Tensor, sent: Tensor, deviation: float | Tensor, purpose: Purpose) -> None:
        """Write down one client's sum."""
        kind, question, client, number = purpose
        noise = noise_on_each(deviation, before.numel())
        after = sent.detach().clone().cpu().reshape(-1)
        place = int(client), int(number)  # type: ignore[call-overload]
        row = before.cpu().reshape(-1)
        self.passages.append(RecordedRelease((kind, question), *place, row, after, noise, float("inf")))

    def read(self, rows: Tensor, cover: Cover) -> Tensor:
        return self.of.read(rows, cover)

    def mean(self, rows: Tensor, cover: Cover) -> Tensor:
        return self.of.mean(rows, cover)


@dataclass(frozen=True)
class Tosses:
    """Poisson sampling of one batch: its rate, and whether each record entered (`fallen`)."""

    purpose: tuple[Any, ...]
    rate: float
    fallen: Tensor


@dataclass(frozen=True)
class Deal:
    """One pass over a client's records: question, client and number of the pass, and each record's batch."""

    purpose: tuple[Any, ...]
    batches: int
    batch_of: Tensor


@dataclass
class WatchingSource:
    """A source whose coins and deals are written down."""

    of: Source
    tosses: list[Tosses] = field(default_factory=list)
    deals: list[Deal] = field(default_factory=list)

    def key(self, *purpose: object) -> int:
        return self.of.key(*purpose)

    def keys(self, purpose: Sequence[object], last: Sequence[object]) -> list[int]:
        return self.of.keys(purpose, last)

    def generator(self, *purpose: object) -> torch.Generator:
        return self.of.generator(*purpose)

    def normals(self, size: int, purpose: Sequence[object], clients: Sequence[Any], covered: Covered) -> Tensor:
        return self.of.normals(size, purpose, clients, covered)

    def rows(self, size: int, purposes: Sequence[Sequence[object]], covered: Covered) -> Tensor:
        return self.of.rows(size, purposes, covered)

    def words(self, purpose: Sequence[object], clients: Sequence[Any], covered: Covered) -> list[Words]:
        return self.of.words(purpose, clients, covered)

    def mask_words(self, *purpose: object) -> np.ndarray:
        return self.of.mask_words(*purpose)

    def take_drawn(self) -> int:
        return self.of.take_drawn()

    def coins(self, count: int, rate: float, *purpose: object) -> Tensor:
        fallen = self.of.coins(count, rate, *purpose)
        self.tosses.append(Tosses(purpose, rate, fallen.clone()))
        return fallen

    def deal(self, count: int, batches: int, *purpose: object) -> Tensor:
        batch_of = self.of.deal(count, batches, *purpose)
        self.deals.append(Deal(purpose, batches, batch_of.clone()))
        return batch_of
