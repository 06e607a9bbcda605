"""Checks of single records, at record level."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from sordino.data import ClientData, FederatedData
from sordino.methods.bases import RecordLevel
from sordino.privacy.gate import SampledGradients, SeparateGradients, StackedGradients
from sordino.privacy.gradients import PrivateRecords
from sordino.privacy.sealed import open_sealed
from sordino.tasks import Classification
from sordino.testing.case import CLIENTS, Case, OneRound
from sordino.testing.exits import SURE

RECORDS = 24
"""Number of records of a client whose every record has a feature of its own."""
CLASSES = 10


@dataclass
class CheckedSum:
    """One noisy gradient on its way through the gate."""

    question: int
    client: int
    step: int
    chosen: Tensor
    """Places of the records that entered the batch."""
    clipped: Tensor
    """Their clipped sum, before noise."""
    noise: Tensor
    charge: tuple[float, float, int]
    """Sampling rate, noise multiplier and number of sums that a record pays for in a question."""
    batches: int
    """Number of batches to which a pass deals the records; zero where each batch is a Poisson sample."""
    scale: float | Tensor
    """Standard deviation of the noise over the charged multiplier: a scalar, or one value per entry."""
    singles: list[float]
    """Norm of what some of these records contribute alone, over the threshold; the largest over parts with noise of
    their own."""
    records: int
    """Number of records that could have entered."""


@contextlib.contextmanager
def observe_gradients() -> Iterator[list[CheckedSum]]:
    """Record every noisy gradient that passes the gate within the context, with its contents."""
    seen: list[CheckedSum] = []
    with (
        mock.patch.object(SampledGradients, "pass_sum", _observing(SampledGradients.pass_sum, seen)),
        mock.patch.object(StackedGradients, "pass_sums", _observing_all(StackedGradients.pass_sums, seen)),
    ):
        yield seen


def _observing(original: Callable[..., Tensor], seen: list[CheckedSum]) -> Callable[..., Tensor]:
    """Make a `pass_sum` that records the sum of one client in `seen`."""

    def observing(self: SampledGradients, records: int, clipped_sum: Callable[[Tensor], Tensor]) -> Tensor:
        inside: dict[str, Any] = {}

        def noted(chosen: Tensor) -> Tensor:
            total = clipped_sum(chosen)
            inside["chosen"], inside["clipped"] = chosen.clone(), total.clone()
            inside["singles"] = [_length(self, clipped_sum(chosen[k : k + 1])) for k in range(min(3, len(chosen)))]
            return total

        step = self.taken
        passed = original(self, records, noted)
        question, client = self.purpose
        noise, (multiplier, scale) = passed.clone() - inside["clipped"], _multiplier_and_scale(self)
        inside.update(charge=_price(self, multiplier), batches=_dealt_to(self), scale=scale, records=records)
        seen.append(CheckedSum(question, client, step, noise=noise, **inside))
        return passed

    return observing


def _observing_all(original: Callable[..., Tensor], seen: list[CheckedSum]) -> Callable[..., Tensor]:
    """Make a `pass_sums` that records the sums of a stack of clients in `seen`."""

    def observing_all(
        self: StackedGradients, records: Sequence[int], clipped_sums: Callable[[Tensor], Tensor]
    ) -> Tensor:
        inside: dict[str, Any] = {}

        def noted(chosen: Tensor) -> Tensor:
            totals = clipped_sums(chosen)
            inside["chosen"], inside["clipped"] = chosen.clone(), totals.clone()
            order = chosen.long().cumsum(dim=1)  # the first chosen record of each client, its second, its third
            single = [clipped_sums(chosen & (order == k)).double().norm(dim=1) for k in (1, 2, 3)]
            inside["singles"] = torch.stack(single, dim=1).tolist()
            return totals

        step = self.exits[0].taken
        passed = original(self, records, noted)
        for place, exit in enumerate(self.exits):
            question, client = exit.purpose
            clipped = inside["clipped"][place]
            seen.append(
                CheckedSum(
                    question,
                    client,
                    step,
                    chosen=inside["chosen"][place].nonzero().flatten(),
                    clipped=clipped,
                    noise=passed[place] - clipped,
                    charge=_price(exit, exit.multiplier),
                    batches=_dealt_to(exit),
                    scale=exit.whole,
                    singles=[norm / exit.whole for norm in inside["singles"][place]],
                    records=records[place],
                )
            )
        return passed

    return observing_all


def _price(exit: SampledGradients, multiplier: float) -> tuple[float, float, int]:
    """Return the sampling rate, noise multiplier and number of sums that a record must pay for: one sum in each pass,
    in full, where passes deal the records."""
    sampled = exit.sampling, multiplier, exit.steps
    return sampled if exit.passes is None else (1.0, multiplier, exit.passes)


def _dealt_to(exit: SampledGradients) -> int:
    """Return the number of batches to which a pass deals the records; zero where each is a Poisson sample."""
    return 0 if exit.passes is None else exit.batches_of_pass


def dealt_records_are_clipped_and_noised_as_charged(case: Case) -> None:
    """Check at record level, with dealt batches, that every record enters one batch of a pass, and that thresholds,
    noise and price are those of the ledger."""
    level = case.method
    if isinstance(level, RecordLevel) and level.varied == "noise" and not level.record_needs().sums:
        dealt = dataclasses.replace(case, method=dataclasses.replace(level, batches="shuffled"))
        records_are_sampled_clipped_and_noised_as_charged(dealt)


def records_are_sampled_clipped_and_noised_as_charged(case: Case) -> None:
    """Check at record level that batches, thresholds, noise and number of steps are those of the ledger, and no draw
    repeats."""
    if not case.method.unit.record_level or not case.method.is_private() or case.method.record_needs().sums:
        return
    seen: list[CheckedSum] = []
    for seed in (0, 1):
        with observe_gradients() as passed:
            once = OneRound(case.prepared(seed=seed), case.folder / str(seed))
        assert passed, "no noisy gradient passed the gate"
        _are_charged(passed, once)
        _are_dealt(passed)
        seen += passed
    for passage in seen:
        assert all(length <= 1 + 1e-9 for length in passage.singles), "a record is not clipped"
    ratio = torch.cat([p.noise.double() / (p.charge[1] * p.scale) for p in seen])
    off = abs(float(ratio.square().mean()) - 1)
    assert off < SURE * math.sqrt(2 / ratio.numel()), f"the noise's variance is off by {off:.1%}"
    for first in range(len(seen)):
        for second in range(first):
            same = torch.equal(seen[first].noise, seen[second].noise)
            assert not same, "two gradients carry the same noise"
    seen = [passage for passage in seen if not passage.batches]
    expected = sum(p.charge[0] * p.records for p in seen)
    spread = math.sqrt(sum(p.charge[0] * (1 - p.charge[0]) * p.records for p in seen))
    entered = sum(len(p.chosen) for p in seen)
    assert abs(entered - expected) <= SURE * spread + 1e-9, f"{entered} records entered, {expected:.0f} are expected"
    batches = [tuple(p.chosen.tolist()) for p in seen if p.charge[0] < 1]
    assert not batches or len(set(batches)) > 0.9 * len(batches), "batches repeat"


def _are_dealt(seen: Sequence[CheckedSum]) -> None:
    """Check that each record enters one batch of each pass, and that batches are equally large, within one record."""
    passes: dict[tuple[int, int, int], list[CheckedSum]] = {}
    for passage in seen:
        if passage.batches:
            key = (passage.question, passage.client, passage.step // passage.batches)
            passes.setdefault(key, []).append(passage)
    for mine in passes.values():
        entered = sorted(place for passage in mine for place in passage.chosen.tolist())
        assert len(set(entered)) == len(entered), "a record enters two batches of one pass"
        if len(mine) == mine[0].batches:
            assert entered == list(range(mine[0].records)), "a record enters no batch of a pass"
        sizes = [len(passage.chosen) for passage in mine]
        assert max(sizes) <= min(sizes) + 1, "the batches of a pass are not equally large"


def _multiplier_and_scale(exit: SampledGradients) -> tuple[float, float | Tensor]:
    """Return the multiplier that an exit's gradients must be charged with, and the standard deviation of their noise
    over it.

    Where L parts have noise of z times their own threshold, mu^2 of a record is L / z^2.
    """
    if not isinstance(exit, SeparateGradients):
        return exit.multiplier, exit.whole
    root = math.sqrt(len(exit.clip))
    return exit.multiplier / root, root * exit.clip.repeat_interleave(exit.sizes)


def _length(exit: SampledGradients, alone: Tensor) -> float:
    """Return the norm of what a record contributes alone, over the threshold; the largest over separate parts."""
    if not isinstance(exit, SeparateGradients):
        return float(alone.double().norm()) / exit.whole
    parts = alone.double().split(exit.sizes.tolist())
    return max(float(part.norm() / clip) for part, clip in zip(parts, exit.clip, strict=True))


def _are_charged(seen: list[CheckedSum], once: OneRound) -> None:
    """Check that each client's gradients of a question have the number, rate and noise of the ledger's row."""
    charged = {}
    for row in once.ledger.rows:
        if once.clients.steps[row.step][row.release].made_of_gradients:
            for client, (rate, z, count) in zip(row.clients().tolist(), row.histories(), strict=True):
                charged[row.question, client] = (rate, z, int(count))
    taken: dict[tuple[int, int], int] = {}
    for passage in seen:
        key = (passage.question, passage.client)
        assert passage.charge == charged.get(key), "a gradient passed with other noise than was charged"
        taken[key] = taken.get(key, 0) + (passage.step % max(1, passage.batches) == 0)
    assert all(count <= charged[key][2] for key, count in taken.items()), "more gradients passed than were charged"


def one_hot() -> FederatedData:
    """Return clients whose every record has a feature of its own, so that a column of weights shows its record."""
    y = torch.arange(RECORDS) % CLASSES
    clients = tuple(
        ClientData(f"client-{number}", torch.eye(RECORDS), y.roll(number), torch.eye(RECORDS), y.roll(number))
        for number in range(CLIENTS)
    )
    return FederatedData("one-hot", clients, Classification.numbered(CLASSES), (RECORDS,), fingerprint="one-hot")


def records_set_aside_are_judged_and_not_trained_on(case: Case) -> None:
    """Check at record level that validation records are not trained on, and are as many as the plan says."""
    if not case.method.unit.record_level:
        return
    data = one_hot()
    prepared = case.prepared(data)
    judged: list[tuple[int, set[int]]] = []
    original = PrivateRecords.judged
    with observe_gradients() as seen:

        def noting(self: PrivateRecords, flat: Tensor) -> Any:
            sealed = original(self, flat)
            x, y = data.train.part(seen[-1].client)
            losses = prepared.data.task.losses(prepared.learner.logits(flat, x), y).detach()
            found = {int((losses - loss).abs().argmin()) for loss in open_sealed(sealed[0])}
            judged.append((seen[-1].client, found))
            return sealed

        with mock.patch.object(PrivateRecords, "judged", noting):
            OneRound(prepared, case.folder)
    plan = prepared.allowance.of_records
    trained: dict[int, set[int]] = {}
    for passage in seen:
        columns = passage.clipped[: CLASSES * RECORDS].reshape(CLASSES, RECORDS)
        trained.setdefault(passage.client, set()).update(columns.any(dim=0).nonzero().flatten().tolist())
    for client, records in trained.items():
        assert len(records) == RECORDS - plan.validation[client], f"client {client} trained on {len(records)} records"
    for client, records in judged:
        assert not records & trained[client], f"client {client} is judged on records that it trained on"
        assert len(records) == plan.validation[client], f"client {client} is judged on {len(records)} records"
