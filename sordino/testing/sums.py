"""Checks of sums over the records of all clients, whose noise is shared out over the clients' messages."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from sordino.federation.transcript import Exchange
from sordino.privacy.gate import DrawnBatch
from sordino.privacy.gradients import PrivateRecords, Stack
from sordino.privacy.release import Release, Releases
from sordino.privacy.sealed import Sealed, open_sealed
from sordino.testing.case import Case, OneRound
from sordino.testing.exits import DRAWS, SURE

SINGLES = 3
"""Number of a batch's records that are looked at by themselves."""


@dataclass(frozen=True)
class CheckedGradientSum:
    """The sum of one client's gradients for one question, before its noise."""

    total: Tensor
    coins: Tensor
    """Whether each record is in it."""
    rate: float
    """Probability with which each record entered."""
    singles: list[float]
    """Norms of what some of its records bring alone."""


Seen = dict[tuple[int, int], CheckedGradientSum]
"""Sums by question and client."""


@contextlib.contextmanager
def observe_sums() -> Iterator[Seen]:
    """Record every sum of gradients that a step takes within the context, with its contents."""
    seen: Seen = {}
    tossed: dict[tuple[int, int], tuple[Tensor, float]] = {}
    toss, alone, together = DrawnBatch.coins, PrivateRecords.gradient_sum, Stack.gradient_sums

    def tossing(self: DrawnBatch, records: int) -> Tensor:
        coins = toss(self, records)
        tossed[self._purpose] = (coins, self.rate)
        return coins

    def one(self: PrivateRecords, flat: Tensor, weights: Tensor | None = None) -> Sealed:
        sealed = alone(self, flat, weights)
        question, (client,) = sealed.asked  # type: ignore[misc]
        coins, rate = tossed[question, client]
        first = coins.nonzero()[:SINGLES]
        norms = [float(self._clipped_sum(flat, place, weights).double().norm()) for place in first]
        seen[question, client] = CheckedGradientSum(open_sealed(sealed)[0].clone(), coins, rate, norms)
        return sealed

    def several(self: Stack, flat: Tensor, place: Tensor, weights: Tensor | None = None) -> Sealed:
        sealed = together(self, flat, place, weights)
        question, clients = sealed.asked  # type: ignore[misc]
        rows = [tossed[question, client] for client in clients]
        chosen = torch.nn.utils.rnn.pad_sequence([coins for coins, _ in rows], batch_first=True)
        order = chosen.long().cumsum(dim=1)  # the first chosen record of each client, its second, its third
        singles = [self._clipped_sums(flat, chosen & (order == k + 1), weights) for k in range(SINGLES)]
        norms = torch.stack([part.double().norm(dim=1) for part in singles], dim=1).tolist()
        for client, total, (coins, rate), mine in zip(clients, open_sealed(sealed), rows, norms, strict=True):
            seen[question, client] = CheckedGradientSum(total.clone(), coins, rate, mine)
        return sealed

    with (
        mock.patch.object(DrawnBatch, "coins", tossing),
        mock.patch.object(PrivateRecords, "gradient_sum", one),
        mock.patch.object(Stack, "gradient_sums", several),
    ):
        yield seen


def sums_over_records_are_sampled_clipped_and_noised_as_charged(case: Case) -> None:
    """Check that coins, thresholds and noise of sums of gradients are those of the ledger, and no draw repeats."""
    batches: list[tuple[bool, ...]] = []
    ratios: list[Tensor] = []
    expected = entered = variance = 0.0
    for seed in (0, 1):
        with observe_sums() as seen:
            once = OneRound(case.prepared(seed=seed), case.folder / str(seed), rounds=2)
        for asked, name, release in once.releases():
            if not (release.drawn and release.made_of_gradients and release.private):
                continue
            clip = float(release.thresholds(asked.public).rows)  # type: ignore[union-attr]
            left = once.gate.read(release, asked.answer.values[name], asked.public).double()
            charged = charged_multipliers(once, asked, name)
            for place, client in enumerate(asked.public.clients):
                rate, multiplier = charged[place]
                one = seen[asked.question.number, client]
                assert all(norm <= clip * (1 + 1e-9) for norm in one.singles), "a record is not clipped"
                assert one.rate == rate, f"records enter with probability {one.rate}, but {rate} is charged"
                ratios.append((left[place] - one.total.double()) / (multiplier * clip))
                expected, entered = expected + rate * len(one.coins), entered + int(one.coins.sum())
                variance += rate * (1 - rate) * len(one.coins)
                if rate < 1:
                    batches.append(tuple(one.coins.tolist()))
    if not ratios:
        return
    off = abs(float(torch.cat(ratios).square().mean()) - 1)
    assert off < SURE * math.sqrt(2 / torch.cat(ratios).numel()), f"the noise's variance is off by {off:.1%}"
    assert len(torch.stack(ratios).unique(dim=0)) == len(ratios), "two messages carry the same noise"
    assert abs(entered - expected) <= SURE * math.sqrt(variance) + 1e-9, (
        f"{entered:.0f} records entered, {expected:.0f} are expected"
    )
    assert len(set(batches)) >= 0.9 * len(batches), "batches repeat"


def sums_over_records_are_bounded_and_covered(case: Case) -> None:
    """Check that one record moves a sum by no more than its bound, whatever it holds, and that noise on the bound costs
    what is charged."""
    once = OneRound(case.prepared(), case.folder)
    for asked, name, release in once.releases():
        if not release.sums_records:
            continue
        width = asked.answer.values[name].shape[1]
        bound = float(release.cover(width, once.gate.allowance, asked.public).bounds)  # type: ignore[union-attr]
        if not release.made_of_gradients:
            _check_single_records(release, asked, width, bound)
        questions = range(1000, 1000 + min(600, max(100, DRAWS // 10 // width)))
        noise = torch.cat([_null_sum(once, asked, name, number) for number in questions]).double()
        charged = torch.tensor([z for _, z in charged_multipliers(once, asked, name)]).repeat(len(questions))
        off = abs(float((noise / (charged.unsqueeze(1) * bound)).square().mean()) - 1)
        assert off < SURE * math.sqrt(2 / noise.numel()), f"{name}: the noise's variance is off by {off:.1%}"
        repeated = len(noise) - len(noise.unique(dim=0))
        assert repeated == 0 or width == 1, f"{name}: the same noise came {repeated} times"


def charged_multipliers(once: OneRound, asked: Exchange, name: str) -> list[tuple[float, float]]:
    """Return for each client the sampling rate and the noise over its bound of one message that the ledger's rows
    charge for a release.

    Sums over one batch are charged as one: of a step's multiplier z each has z / sqrt(its part of their shares).
    """
    releases: Releases = once.clients.steps[asked.question.step]
    drawn = {one: release.share for one, release in releases.items() if release.drawn}
    charged_as = next(iter(drawn)) if name in drawn else name
    (row,) = (r for r in once.ledger.rows if r.question == asked.question.number and r.release == charged_as)
    part = drawn[name] / sum(drawn.values()) if name in drawn else 1.0
    return [(rate, z / math.sqrt(part)) for rate, z, _ in row.histories().tolist()]


def _check_single_records(release: Release, asked: Exchange, width: int, bound: float) -> None:
    """Check that a sum over records limits each of them."""
    others = torch.full((3, width), 0.1 * bound)
    before = release.bounded(others, asked.public).rows
    for poison in (math.nan, math.inf, -math.inf, 1e38, -1e20, bound):
        both = torch.cat([others, torch.full((1, width), poison)])
        moved = float((release.bounded(both, asked.public).rows - before).norm())
        assert moved <= bound * (1 + 1e-9), f"a record of {poison} moves the sum by {moved}"
        assert math.isfinite(poison) or moved == 0, f"{poison} passes"


def _null_sum(once: OneRound, asked: Exchange, name: str, question: int) -> Tensor:
    """Return what leaves all clients for a question if no record is in the sum: noise."""
    release, public = once.clients.steps[asked.question.step][name], asked.public
    width = asked.answer.values[name].shape[1]
    form: Any = "sum" if release.made_of_gradients else "batch" if release.drawn else "records"
    rows = []
    each = [public] if form == "sum" else [_of_one(asked, place) for place in range(len(public.clients))]
    for some in each:
        null = Sealed(torch.zeros(len(some.clients) if form == "sum" else 1, width), "training", "nothing", form)
        passed = once.gate.passes({name: release}, {name: null}, question, some).values[name]
        rows.append(once.gate.read(release, passed, some))
    return torch.cat(rows)


def _of_one(asked: Exchange, place: int) -> Any:
    """Return the public values of one client alone."""
    public = asked.public
    return type(public)(public.message, [public.clients[place]], {}, public.layers)
