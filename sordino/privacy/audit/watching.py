"""What passes the mechanism and the source of a run's gate, written down on its way: nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sordino.privacy.integers import Words
from sordino.privacy.mechanism import Mechanism, Purpose
from sordino.privacy.noise import Source
from sordino.privacy.release import Cover


@dataclass(frozen=True)
class Passage:
    """Values of one client on their way out: as they were bounded, and with noise."""

    purpose: tuple[Any, ...]
    """Question and release, or `gradient` and question."""
    client: int
    number: int
    """Of the gradient within its question; 0 for what leaves once."""
    before: Tensor
    after: Tensor
    deviations: Tensor
    """Of the noise on each entry: declared; zero where nothing leaves."""
    bound: float
    """The norm that `before` may have, where whole clients are protected; infinite where single records are."""

    def residual(self) -> Tensor:
        """The noise in units of what was declared, on the entries that leave."""
        leaves = self.deviations > 0
        return (self.after.double() - self.before.double())[leaves] / self.deviations[leaves]


@dataclass
class Watching:
    """A mechanism that lets another do the work."""

    of: Mechanism
    passages: list[Passage] = field(default_factory=list)

    def check(self, cover: Cover) -> None:
        self.of.check(cover)

    def noised(self, rows: Tensor, cover: Cover, source: Source, purpose: Purpose, clients: Sequence[int]) -> Tensor:
        before = rows.clone()
        sent = self.of.noised(rows, cover, source, purpose, clients)
        read = self.of.read(sent, cover)
        width = rows.shape[1]
        deviations = cover.of_entries(cover.deviations).expand(len(clients), width)
        for place, client in enumerate(clients):
            leaving = torch.zeros(width, dtype=torch.bool)
            for entries, _, _ in cover.blocks(place):
                leaving[torch.as_tensor(entries)] = True
            squares = cover.bounds[place if len(cover.bounds) > 1 else 0].square().sum()
            bound = float(squares.sqrt()) if cover.unit == "client" else float("inf")
            noise = deviations[place].clone() * leaving
            self.passages.append(
                Passage(tuple(purpose), int(client), 0, before[place].cpu(), read[place].cpu(), noise, bound)
            )
        return sent

    def noised_sum(self, total: Tensor, deviation: float, source: Source, purpose: Purpose) -> Tensor:
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

    def _note(self, before: Tensor, sent: Tensor, deviation: float, purpose: Purpose) -> None:
        """Write down one client's sum."""
        kind, question, client, number = purpose
        noise = torch.full((before.numel(),), float(deviation), dtype=torch.float64)
        after = sent.detach().clone().cpu().reshape(-1)
        self.passages.append(
            Passage((kind, question), int(client), int(number), before.cpu().reshape(-1), after, noise, float("inf"))  # type: ignore[call-overload]
        )

    def read(self, rows: Tensor, cover: Cover) -> Tensor:
        return self.of.read(rows, cover)

    def mean(self, rows: Tensor, cover: Cover) -> Tensor:
        return self.of.mean(rows, cover)


@dataclass(frozen=True)
class Tosses:
    """The coins of one batch."""

    purpose: tuple[Any, ...]
    rate: float
    fallen: Tensor


@dataclass
class WatchingSource:
    """A source whose coins are written down."""

    of: Source
    tosses: list[Tosses] = field(default_factory=list)

    def key(self, *purpose: object) -> int:
        return self.of.key(*purpose)

    def keys(self, purpose: Sequence[object], last: Sequence[object]) -> list[int]:
        return self.of.keys(purpose, last)

    def generator(self, *purpose: object) -> torch.Generator:
        return self.of.generator(*purpose)

    def normals(self, size: int, purpose: Sequence[object], clients: Sequence[Any]) -> Tensor:
        return self.of.normals(size, purpose, clients)

    def rows(self, size: int, purposes: Sequence[Sequence[object]]) -> Tensor:
        return self.of.rows(size, purposes)

    def words(self, purpose: Sequence[object], clients: Sequence[Any]) -> list[Words]:
        return self.of.words(purpose, clients)

    def coins(self, count: int, rate: float, *purpose: object) -> Tensor:
        fallen = self.of.coins(count, rate, *purpose)
        self.tosses.append(Tosses(purpose, rate, fallen.clone()))
        return fallen
