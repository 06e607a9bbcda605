"""The gate: all that a client sends is clipped and noised here, and so are the gradients of record-level steps.

Everything that a step wants to send goes through `Gate.passes`. At record level the step itself sees nothing but what
`SampledGradients` lets through: sums of clipped gradients over Poisson-sampled or dealt batches, noised; or it hands
over sealed sums over a `DrawnBatch`, which only the gate opens. What passes is charged by the ledger from the same
releases and the same allowance, so that the noise that was added and the noise that is paid for cannot differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.errors import UserError
from sordino.privacy.accounting.loss_distribution import Sampled
from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.mechanism import FLOATS, Mechanism, mean_of_sum
from sordino.privacy.noise import Source
from sordino.privacy.release import Cover, Public, Release, Releases
from sordino.privacy.release.base import ReleaseError, check_thresholds, cover_of
from sordino.privacy.sealed import Asked, Sealed


class UndeclaredReleaseError(UserError):
    """A step tried to send something that is not declared beside it, or left out what is."""


@dataclass(frozen=True)
class Passed:
    """Values of several clients after the gate."""

    values: dict[str, Tensor]
    """Release name to one row per client, bounded and noised, centred on zero; `Gate.read` says what they stand for."""
    rejected: int
    """Values that were not finite and were replaced by a null contribution."""
    bytes: int
    """Bytes that leave all clients together."""


@dataclass(frozen=True)
class Gate:
    """The exit of the clients of one run."""

    allowance: Allowance
    source: Source
    mechanism: Mechanism = FLOATS

    def check(self, releases: Releases, public: Public) -> None:
        """Refuse what noise could not cover, before anything is computed or charged."""
        for release in releases.values():
            width = release.width(public) if release.summed else None
            cover = None if width is None else self._cover(release, width, public)
            if cover is not None:
                self.mechanism.check(cover)

    def passes(self, releases: Releases, wanted: Mapping[str, Any], question: int, public: Public) -> Passed:
        """Bound and noise what clients want to send.

        Args:
            releases: releases that the step declares, by name.
            wanted: what the step handed over for each of them.
            question: number of the question within the run: no two of them share noise.
            public: public values of the question, with its clients.
        """
        values: dict[str, Tensor] = {}
        rejected = size = 0
        for name, release in releases.items():
            value = wanted.get(name)
            check_asked(value, name, (question, tuple(public.clients)))
            bounded = release.bounded(release.opened(value, public), public)
            values[name], cover = bounded.rows, self._cover(release, bounded.rows.shape[1], public)
            if cover is not None:
                values[name] = self.mechanism.noised(bounded.rows, cover, self.source, (question, name), public.clients)
            rejected += bounded.rejected
            size += len(public.clients) * release.message_bytes(values[name].shape[1], public)
        return Passed(values, rejected, size)

    def gradients(
        self, question: int, client: int, clip: Tensor, separate: Sequence[int] | None = None
    ) -> SampledGradients:
        """Open the exit of one client's gradients for one question.

        Args:
            question: number of the question within the run.
            client: number of the client.
            clip: one threshold, or one for each part.
            separate: sizes of the parts where each of them has noise of its own.

        Where no noise is planned, epsilon is infinite whatever the threshold, and gradients leave as they are.
        """
        plan, purpose = self.allowance.of_records, (question, client)
        drawn = plan.gradients(client)
        if drawn[1] > 0 and separate is not None:
            return SeparateGradients(self.source, purpose, drawn, clip, self.mechanism, separate, plan.passes)
        exit = SampledGradients if drawn[1] > 0 else BareGradients
        return exit(self.source, purpose, drawn, clip, self.mechanism, plan.passes)

    def batches(self, question: int, clients: Sequence[int], clips: Tensor, normalised: bool) -> list[DrawnBatch]:
        """The batch of each client for a question whose sums leave sealed, with shared noise.

        Args:
            question: number of the question within the run.
            clients: numbers of the clients.
            clips: threshold of each record's gradient: (clients, 1).
            normalised: whether gradients are scaled to the threshold whatever their length.

        Where no noise is planned, epsilon is infinite whatever the threshold, and gradients leave as they are.
        """
        plan = self.allowance.of_records
        if plan.shared is None:
            clips, normalised = torch.full_like(clips, torch.inf), False
        else:
            check_thresholds(clips, "sums of gradients")
        return [
            DrawnBatch(self.source, (question, client), float(plan.sampling[client]), clip, normalised)
            for client, clip in zip(clients, clips.double(), strict=True)
        ]

    def stacked_gradients(self, question: int, clients: Sequence[int], clips: Tensor) -> StackedGradients:
        """The exits of several clients that take their gradients together; `clips` has one row for each."""
        exits = [self.gradients(question, client, clip) for client, clip in zip(clients, clips, strict=True)]
        return StackedGradients(exits, self.source, self.mechanism)

    def read(self, release: Release, rows: Tensor, public: Public) -> Tensor:
        """Read rows that left: the values they stand for, centred on zero."""
        cover = self._cover(release, rows.shape[1], public)
        return rows if cover is None else self.mechanism.read(rows, cover)

    def mean(self, release: Release, rows: Tensor, public: Public) -> Tensor:
        """The mean of rows that left, centred on zero."""
        cover = self._cover(release, rows.shape[1], public)
        found = rows.mean(dim=0) if cover is None else self.mechanism.mean(rows, cover)
        return self._weighted(found, release, public)

    def mean_of_sum(self, release: Release, total: Tensor, public: Public) -> Tensor:
        """The mean over the clients of `public` from the sum of the whole numbers that they sent."""
        cover = self._cover(release, len(total), public)
        if cover is None:
            raise ValueError(f"{release.describe()}: nothing covers it, so it cannot have been summed")
        return self._weighted(mean_of_sum(total, len(public.clients), cover), release, public)

    def _weighted(self, mean: Tensor, release: Release, public: Public) -> Tensor:
        """Mean as `Replies.mean` returns it, from the mean over clients."""
        weight = release.weight(self.allowance, public)
        return mean if weight == 1 else mean * weight

    def _cover(self, release: Release, width: int, public: Public) -> Cover | None:
        return cover_of(release, width, self.allowance, public)


class DrawnBatch:
    """The Poisson-sampled batch of one client for one question, of which only sums leave, sealed.

    It is drawn once, whatever is summed over it: everything that leaves of it is charged as one sampled Gaussian.
    """

    def __init__(
        self, source: Source, purpose: tuple[int, int], rate: float, clip: Tensor, normalised: bool = False
    ) -> None:
        """`purpose` is the question's number and the client."""
        self._source, self._purpose, self.rate = source, purpose, rate
        self.limit = clip
        """Threshold that each record's gradient is scaled down to: float64, one number."""
        self.normalised = normalised
        self._coins: Tensor | None = None
        self._masked = 0

    @property
    def whole(self) -> bool:
        """Whether every record is in the batch: nothing is drawn, and nothing hidden."""
        return self.rate == 1

    def coins(self, records: int) -> Tensor:
        """Whether each of `records` is in the batch: booleans."""
        if self._coins is None:
            if self.whole:
                self._coins = everyone(records)
            else:
                self._coins = self._source.coins(records, self.rate, *self._purpose, 0)
        return self._coins

    def mask_words(self) -> np.ndarray:
        """Secret words of which the next gradients' dropout is drawn."""
        self._masked += 1
        return self._source.mask_words(*self._purpose, 0, self._masked)


class SampledGradients:
    """Noisy sums of clipped gradients over Poisson-sampled or dealt batches: as many as were charged, and not one
    more."""

    def __init__(
        self,
        source: Source,
        purpose: tuple[int, int],
        drawn: Sampled,
        clip: Tensor,
        mechanism: Mechanism = FLOATS,
        passes: int | None = None,
    ) -> None:
        """Open the exit for one question.

        Args:
            source: randomness of the run.
            purpose: number of the question, and the client.
            drawn: share of the records in one batch, noise multiplier, and number of sums that were paid for.
            clip: one threshold, or one for each part.
            mechanism: adds the noise.
            passes: number of passes that deal all records to the batches; None where each is a Poisson sample.
        """
        check_thresholds(clip, "noisy gradients")
        self._source, self.purpose, self._mechanism = source, purpose, mechanism
        (self.sampling, self.multiplier, self.steps), self.passes = drawn, passes
        self._dealt = torch.zeros(0, dtype=torch.int64)
        self.clip = clip.double().reshape(-1)
        self.whole = float(torch.linalg.vector_norm(self.clip))
        """The threshold of all parts together."""
        self.limit = self.clip
        """Thresholds that each record's gradient is scaled down to."""
        self.taken = 0

    def pass_sum(self, records: int, clipped_sum: Callable[[Tensor], Tensor]) -> Tensor:
        """Sum clipped gradients over the next batch and add noise: `clipped_sum` maps the places of the chosen records
        to their sum.

        Each of `records` enters with the sampling rate, or is in one batch of a pass; the noise is N(0, (z C)^2) on
        each coordinate, where C^2 is the sum of the squared thresholds.
        """
        coins, purpose = self.draw(records)
        total, deviation = clipped_sum(coins.nonzero().squeeze(1)), self.deviation
        bare = not isinstance(deviation, Tensor) and deviation == 0
        return total if bare else self._mechanism.noised_sum(total, deviation, self._source, purpose)

    def draw(self, records: int) -> tuple[Tensor, tuple[object, ...]]:
        """Draw the next batch: a boolean for each of `records`, and the key of the noise on its sum. Refused once all
        charged sums were taken."""
        if self.taken >= self.steps:
            raise UserError(
                f"A step asked for more noisy gradients than the {self.steps} that were charged for a round."
            )
        purpose = (*self.purpose, self.taken)
        self.taken += 1  # first: a step that fails behind this and asks again gets another draw
        if self.passes is not None:
            return self._batch_of_pass(records, purpose[-1]), ("gradient", *purpose)
        return self._source.coins(records, self.sampling, *purpose), ("gradient", *purpose)

    def mask_words(self) -> np.ndarray:
        """Secret words of which the dropout of the last batch's gradients is drawn."""
        return self._source.mask_words(*self.purpose, self.taken)

    @property
    def batches_of_pass(self) -> int:
        """Number of batches to which a pass deals the records; one where each batch is a Poisson sample."""
        return 1 if self.passes is None else self.steps // self.passes

    def _batch_of_pass(self, records: int, step: int) -> Tensor:
        """Which of `records` are in the batch of a step: each is in one batch of a pass."""
        number, batch = divmod(step, self.batches_of_pass)
        if batch == 0:  # a pass begins
            self._dealt = self._source.deal(records, self.batches_of_pass, *self.purpose, number)
        return self._dealt == batch

    @property
    def deviation(self) -> float | Tensor:
        """Standard deviation of the noise on a sum: a scalar, or one value per entry."""
        return self.multiplier * self.whole


class SeparateGradients(SampledGradients):
    """Noisy sums in which each part has the noise that would do if no other part left: N(0, (z C_l)^2) on part l.

    Together they cost as much as one sum whose noise is smaller by the root of their number.
    """

    def __init__(
        self,
        source: Source,
        purpose: tuple[int, int],
        drawn: Sampled,
        clip: Tensor,
        mechanism: Mechanism,
        sizes: Sequence[int],
        passes: int | None = None,
    ) -> None:
        super().__init__(source, purpose, drawn, clip, mechanism, passes)
        if len(sizes) != len(self.clip):
            raise ValueError(f"{len(self.clip)} thresholds are not for {len(sizes)} parts.")
        self.sizes = torch.tensor(sizes)

    @property
    def deviation(self) -> Tensor:
        return self.multiplier * self.clip.repeat_interleave(self.sizes)


class BareGradients(SampledGradients):
    """Sums of gradients of any length, without noise, for a run without privacy."""

    def __init__(
        self,
        source: Source,
        purpose: tuple[int, int],
        drawn: Sampled,
        clip: Tensor,
        mechanism: Mechanism = FLOATS,
        passes: int | None = None,
    ) -> None:
        super().__init__(source, purpose, drawn, clip, mechanism, passes)
        self.limit = torch.full_like(self.clip, torch.inf)

    @property
    def deviation(self) -> float:
        return 0.0


class StackedGradients:
    """Noisy gradients of several clients in one computation; all take the same number of steps.

    Batches, thresholds and noise of each client are those that its own `SampledGradients` would give.
    """

    def __init__(self, exits: Sequence[SampledGradients], source: Source, mechanism: Mechanism = FLOATS) -> None:
        if len({exit.steps for exit in exits}) != 1:
            raise ValueError("Clients that take gradients together must take equally many.")
        self.exits, self._source, self._mechanism = exits, source, mechanism
        self.steps = exits[0].steps
        self.limits = torch.stack([exit.limit for exit in exits])
        """Thresholds that each record's gradient is scaled down to: (clients, thresholds)."""

    def pass_sums(self, records: Sequence[int], clipped_sums: Callable[[Tensor], Tensor]) -> Tensor:
        """Sum clipped gradients over the next batch of each client and add noise: one row for each client.

        `clipped_sums` maps which of the clients' records are chosen, (clients, records) booleans, to their sums.
        """
        chosen = torch.zeros(len(records), max(records), dtype=torch.bool)
        purposes = []
        for row, count, exit in zip(chosen, records, self.exits, strict=True):
            row[:count], purpose = exit.draw(count)
            purposes.append(purpose)
        totals, deviations = clipped_sums(chosen), [float(exit.deviation) for exit in self.exits]
        if not any(deviations):
            return totals
        return self._mechanism.noised_sums(totals, deviations, self._source, purposes)


@functools.lru_cache(maxsize=256)
def everyone(records: int) -> Tensor:
    """Coins that choose every record: the same tensor each time, to be read only."""
    return torch.ones(records, dtype=torch.bool)


def check_asked(value: Any, name: str, asked: Asked) -> None:
    """Raise if a sealed value was computed for another question, or of another client's records: a record that is in
    two messages counts twice, and one that is in another question's batch was drawn by coins that were used before.

    Args:
        value: what the step handed over.
        name: name of its release.
        asked: the question that is answered, and the clients that answer it.
    """
    if isinstance(value, Sealed) and value.asked not in (None, asked):
        raise ReleaseError(
            f"{name}: {value!r} was computed for another question or of another client's records: hand over what "
            "`data` gives in the same step."
        )


def check_declared(releases: Releases, wanted: Mapping[str, Any], step: str) -> None:
    """Raise unless a step sends exactly what is declared beside it.

    Args:
        releases: declaration of the step.
        wanted: what the step wants to send, by name.
        step: name of the step.
    """
    undeclared = sorted(set(wanted) - set(releases))
    if undeclared:
        raise UndeclaredReleaseError(
            f"{step} tried to send {', '.join(undeclared)}, which @sends does not declare: "
            "declare it beside the step, or keep it at the client."
        )
    missing = sorted(name for name, release in releases.items() if release.state is None and name not in wanted)
    if missing:
        raise UndeclaredReleaseError(f"{step} declares {', '.join(missing)} but did not send it.")
