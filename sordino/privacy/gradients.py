"""Record-level privacy: a step sees its client's records only through clipped and noised gradients."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sordino.errors import UserError
from sordino.learning.network import Batch, Learner
from sordino.learning.parameters import Layout
from sordino.learning.per_record import Keeper
from sordino.learning.stacked import Chain, StackedBook
from sordino.learning.vmapped import under_vmap
from sordino.privacy.budget.record_level_plan import held_out_count
from sordino.privacy.clipping import check_weights, clipped_sum, weighted_factors
from sordino.privacy.gate import DrawnBatch, SampledGradients, StackedGradients
from sordino.privacy.noise import Source, stream_state
from sordino.privacy.sealed import Asked, Form, Pool, Sealed
from sordino.tasks import Task

if TYPE_CHECKING:
    from sordino.privacy.clipping import CompiledSum
RECORDS_MEASURED_TOGETHER = 256
"""Number of records whose gradients are measured at once."""
RECORDS_SUMMED_TOGETHER = 4096
"""Most records that are summed in float32; such sums are added up in float64. One of 100,000 equal gradients moved
their float32 sum by up to 1.0014 times its threshold: with it, all that is added later is rounded otherwise."""


def _remember_failure(method: Callable[..., Any]) -> Callable[..., Any]:
    """Remember a failure on raw records: a step that catches it would know of them."""

    @functools.wraps(method)
    def remembering(self: PrivateRecords, *arguments: Any) -> Any:
        try:
            return method(self, *arguments)
        except Exception as error:
            self.failure = error
            raise

    return remembering


@dataclass(frozen=True)
class Units:
    """The units that a client holds: records, or persons with all of their rows, each of whom contributes once."""

    x: Tensor
    """(units, ...) inputs of records, or (persons, rows, ...) of the rows of persons."""
    y: Tensor
    """(units,) or (persons, rows) targets."""
    shares: Tensor | None = None
    """(persons, rows): share of each row in its person's mean, zero for padding; None where records are the units."""

    def __len__(self) -> int:
        return len(self.y)

    def at(self, places: Tensor) -> Units:
        """Return the units at `places`, which are numbers or booleans."""
        return Units(self.x[places], self.y[places], None if self.shares is None else self.shares[places])

    def blank(self) -> Units:
        """Return as many units that hold nothing."""
        return Units(torch.zeros_like(self.x), torch.zeros_like(self.y), self.shares)

    def single_rows(self) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of all rows, padding included, one after the other."""
        return (self.x, self.y) if self.shares is None else (self.x.flatten(0, 1), self.y.flatten(0, 1))

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over each unit's rows of `values`, which are in the order of `single_rows`."""
        if self.shares is None:
            return values
        shares = self.shares.to(values.dtype)
        return torch.einsum("pr...,pr->p...", values.unflatten(0, shares.shape), shares)

    def batch(self, index: Tensor, weights: Tensor | None = None) -> Batch:
        """Return the units as a batch; `weights` are those of persons' single rows, by which their losses are
        multiplied."""
        shares = self.shares if weights is None or self.shares is None else self.shares * weights
        return Batch(self.x, self.y, index, shares)


class PrivateRecords:
    """A client's records as a record-level step sees them: noisy gradients, and sealed values for the gate."""

    def __init__(
        self,
        units: Units,
        validation: Tensor,
        keeper: Keeper,
        exit: SampledGradients | None,
        bare: bool = False,
        compiled: CompiledSum | None = None,
        batch: DrawnBatch | None = None,
        asked: Asked | None = None,
    ) -> None:
        """Hold a client's records.

        Args:
            units: records, or persons with all of their rows.
            validation: (units,) on the processor, whether each is set aside for judging.
            keeper: takes gradients of single units.
            exit: where noisy gradients leave; None for steps that take none.
            bare: whether records are handed out as they are: only for steps that declare a bare release, whose epsilon
                is infinite.
            compiled: computes clipped sums where it fits.
            batch: what sums with shared noise are made over; None for steps that send none.
            asked: question that the step answers, and the client; None outside of a run.
        """
        # By places and not by booleans: a device would have to be asked how many of these are true.
        self.__judge, self.__units = (
            units.at(chosen.nonzero().squeeze(1).to(units.y.device)) for chosen in (validation, ~validation)
        )
        self.__bare = units if bare else None
        self.__keeper, self.__exit, self.__compiled, self.__batch = keeper, exit, compiled, batch
        self.__asked, self.__norms = asked, list[Tensor]()
        self.failure: Exception | None = None
        """First failure on the records; the step then counts as failed even if it catches it."""

    @property
    def layout(self) -> Layout:
        """The layout of the flat vector."""
        return self.__keeper.learner.layout

    @property
    def steps(self) -> int:
        """Number of noisy gradients that may be taken for this question."""
        return 0 if self.__exit is None else self.__exit.steps

    @property
    def deviation(self) -> float | Tensor:
        """Standard deviation of the noise on `gradient`, public: a scalar, or one value per entry."""
        return self._exit.deviation / self.expected_batch

    @property
    def clip(self) -> float:
        """The threshold of a record's whole gradient: public."""
        return self._exit.whole

    @property
    def expected_batch(self) -> float:
        """Expected number of records in a batch, or their mean number where batches are dealt: public."""
        return self._exit.sampling * max(1, len(self.__units))

    @_remember_failure
    def gradient(self, flat: Tensor) -> Tensor:
        """The noisy mean gradient of the task's loss over the next batch, a Poisson sample, which may be empty, or one
        of those to which a pass deals all records.

        Sum of the records' gradients, each scaled down to the threshold, plus N(0, (z C)^2), divided by the expected
        batch size. With several thresholds C^2 is the sum of their squares, or each part has the noise of its own.
        """
        total = self._exit.pass_sum(len(self.__units), lambda chosen: self._clipped_sum(flat, chosen.to(flat.device)))
        gradient = total.div_(self.expected_batch)
        self.__norms.append(torch.linalg.vector_norm(gradient))
        return gradient

    @property
    def noisy_norms(self) -> Tensor:
        """Norm of each noisy gradient that was taken for this question, in order: (gradients,). They are functions of
        what was paid for, to be sent as a release that `Follows` it."""
        return torch.stack(self.__norms) if self.__norms else torch.zeros(0)

    @_remember_failure
    def gradient_sum(self, flat: Tensor, weights: Tensor | None = None) -> Sealed:
        """The sum of the gradients of the question's batch at a model, each record's scaled down to the threshold,
        sealed, to be sent as a `GradientSum`.

        Args:
            flat: the model.
            weights: public weight of each of the task's groups, by which its records' losses are multiplied before
                their gradients are limited; by default one.
        """
        if weights is not None:
            check_weights(weights, len(self._task.groups))
        total = torch.zeros_like(flat, dtype=torch.float64)
        for some in self._chosen(flat).split(RECORDS_SUMMED_TOGETHER):
            total += self._clipped_sum(flat, some, weights)
        return self._seal(total.reshape(1, -1), "training", "sum of gradients", "sum")

    @_remember_failure
    def batch_within(self, flat: Tensor) -> Sealed:
        """For each record of the question's batch 1/2 where its gradient is within the threshold and -1/2 where it is
        not, sealed, to be sent as a drawn `RecordSum` with a bound of 1/2."""
        chosen = self._chosen(flat)
        with _masks_of(flat.device, self._batch_drawn.mask_words()):
            norms = self._part_norms(flat, self.__units.at(chosen))
        inside = torch.linalg.vector_norm(norms, dim=1) <= float(self._batch_drawn.limit)
        return self._seal((inside.float() - 0.5).reshape(-1, 1), "training", "gradients within the threshold", "batch")

    @_remember_failure
    def label_counts(self) -> Sealed:
        """The task's row of counts of each training record's target (for classes zeros and a one, for a number the
        number over its largest), sealed, to be sent as a `RecordSum` with a bound of 1."""
        rows = self._task.counts(self.__units.single_rows()[1])
        return self._seal(self.__units.mean(rows), "training", "labels")

    @_remember_failure
    def within(self, flat: Tensor) -> Sealed:
        """Whether the gradient of each validation record is within the threshold (0 or 1), sealed, to be sent as an
        `Average`."""
        lengths = torch.linalg.vector_norm(self._part_norms(flat, self.__judge), dim=1)
        return self._seal((lengths <= self.clip).to(flat.dtype), "validation", "gradients within the threshold")

    @_remember_failure
    def judged(self, flat: Tensor) -> tuple[Sealed, Sealed]:
        """Loss and rightness (0 or 1) of each validation record, sealed, to be sent as an `Average`."""
        losses, right = self._judged(flat, self.__judge)
        return self._seal(losses, "validation", "losses"), self._seal(right, "validation", "right answers")

    @_remember_failure
    def projected(self, directions: Tensor) -> Sealed:
        """The training records along public directions (features, dimensions), sealed, to be sent as a `Matrix` or a
        `RecordSum`."""
        along = self.__units.single_rows()[0].flatten(1) @ directions
        return self._seal(self.__units.mean(along), "training", "projected records")

    def raw(self) -> tuple[Tensor, Tensor]:
        """The records as they are, for what a `paper` variant sends bare."""
        return self._bare.single_rows()

    def raw_metrics(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Mean loss and accuracy over all records, for what a `paper` variant sends bare."""
        losses, right = self._judged(flat, self._bare)
        return losses.mean(), right.mean()

    def raw_norms(self, flat: Tensor, tensors: bool = False) -> Tensor:
        """The norm of each record's gradient in each layer (records, layers), or in each tensor, for what leaves
        bare."""
        return self._part_norms(flat, self._bare, parts=len(self.layout.sizes) if tensors else 1)

    def _seal(self, rows: Tensor, pool: Pool, kind: str, form: Form = "records") -> Sealed:
        """Seal rows of this client's records for the question that its step answers."""
        return Sealed(rows, pool, kind, form, self.__asked)

    @property
    def _bare(self) -> Units:
        if self.__bare is None:
            raise UserError("A step without a bare release asked for its client's records as they are.")
        return self.__bare

    @property
    def _task(self) -> Task:
        return self.__keeper.learner.task

    @property
    def _batch_drawn(self) -> DrawnBatch:
        if self.__batch is None:
            raise UserError("A step without a release of summed gradients asked for one: declare `GradientSum`.")
        return self.__batch

    def _chosen(self, flat: Tensor) -> Tensor:
        """Places of the training records in the question's batch."""
        return self._batch_drawn.coins(len(self.__units)).nonzero().squeeze(1).to(flat.device)

    @property
    def _exit(self) -> SampledGradients:
        if self.__exit is None:
            raise UserError("A step without a release of noisy gradients asked for one: declare `Gradients` beside it.")
        return self.__exit

    def _judged(self, flat: Tensor, units: Units) -> tuple[Tensor, Tensor]:
        if len(units) == 0:
            return flat.new_zeros(0), flat.new_zeros(0)
        x, y = units.single_rows()
        logits = self.__keeper.logits(flat, x)
        losses = self._task.losses(logits, y)
        return units.mean(losses), units.mean(self._task.right(logits, y).to(losses.dtype))

    def _part_norms(self, flat: Tensor, units: Units, parts: int = 1) -> Tensor:
        """Norms of each unit's gradient as they are compared with so many thresholds: (units, parts or layers)."""
        if len(units) == 0:
            return torch.zeros(0, max(parts, len(self.layout.layers)), dtype=torch.float64)
        places = torch.arange(len(units), device=units.y.device).split(RECORDS_MEASURED_TOGETHER)
        batches = (units.at(some).batch(torch.empty(0)) for some in places)
        books = (book for batch in batches for book in self.__keeper.books(flat, batch))
        return torch.cat([book.part_norms(parts) for book in books])

    def _clipped_sum(self, flat: Tensor, chosen: Tensor, weights: Tensor | None = None) -> Tensor:
        words = (self._exit if self.__batch is None else self.__batch).mask_words()
        with _masks_of(flat.device, words):
            total = self._sum(flat, chosen, weights)
        if bool(torch.isfinite(total.sum())):  # a sum is finite only if every entry is
            return total
        # Zero times NaN is not zero: records whose gradients are not finite are left out altogether. Dropout draws the
        # same numbers again: with others, what all other records add would depend on whether one of these is there.
        with _masks_of(flat.device, words):
            return self._sum(flat, chosen, weights, spoiled=True)

    def _sum(self, flat: Tensor, chosen: Tensor, weights: Tensor | None = None, spoiled: bool = False) -> Tensor:
        """Sum over the chosen units; `spoiled` says that some have gradients that are not finite."""
        if len(chosen) == 0:
            return torch.zeros_like(flat)
        limit, normalised = self._limits
        clip, units = limit.to(flat.device), self.__units.at(chosen)
        of_records = None if weights is None else weights.to(flat.device)[_groups(self._task, units.y)]
        of_records, of_rows = (of_records, None) if units.shares is None else (None, of_records)
        batch = units.batch(chosen, of_rows)
        plain = not normalised and of_records is None and units.shares is None and not spoiled
        if self.__compiled is not None and plain and self.__compiled.fits(len(chosen), clip):
            return self.__compiled(flat, batch.x, batch.y, clip)
        books = self.__keeper.books(flat, batch)
        if of_records is None and not spoiled:
            return functools.reduce(torch.Tensor.add_, (clipped_sum(book, clip, normalised) for book in books))
        begin, total = 0, torch.zeros_like(flat)
        for book in books:
            norms = book.part_norms(clip.shape[-1])
            if spoiled:
                book.blank(~torch.isfinite(norms).all(dim=1))
            mine = None if of_records is None else of_records[begin : begin + len(norms)]
            total += book.weighted_sum(weighted_factors(norms, clip, mine, normalised))
            begin += len(norms)
        return total

    @property
    def _limits(self) -> tuple[Tensor, bool]:
        """Thresholds of records' gradients, and whether these are scaled to them whatever their length."""
        if self.__batch is not None:
            return self.__batch.limit, self.__batch.normalised
        return self._exit.limit, False


def _groups(task: Task, targets: Tensor) -> Tensor:
    """Place in the task's groups of each target: int64 of the same shape."""
    return torch.from_numpy(task.group(targets.reshape(-1).cpu().numpy())).reshape(targets.shape).to(targets.device)


@contextlib.contextmanager
def _masks_of(device: torch.device, words: np.ndarray) -> Iterator[None]:
    """Draw dropout of these words (`Source.mask_words`), and leave torch's global stream as it was: where it would have
    come to tells how many records were in the batch."""
    outside = _random_state(device)
    if outside is not None and device.type == "cpu":
        torch.default_generator.set_state(stream_state(words))
    elif outside is not None:
        seed = int(words[0]) << 32 | int(words[1])  # other devices' generators heed all 64 bits
        torch.get_device_module(device).manual_seed(seed)
    try:
        yield
    finally:
        _restore_random_state(device, outside)


def _random_state(device: torch.device) -> Tensor | None:
    """State of torch's global stream, from which dropout draws; None for the device `meta`, which computes nothing."""
    if device.type == "cpu":
        return torch.default_generator.get_state()
    state: Tensor | None = None if device.type == "meta" else torch.get_device_module(device).get_rng_state(device)
    return state


def _restore_random_state(device: torch.device, state: Tensor | None) -> None:
    """Set torch's global stream to an earlier `state`, as `_random_state` returned it."""
    if device.type == "cpu" and state is not None:
        torch.default_generator.set_state(state)
    elif state is not None:
        torch.get_device_module(device).set_rng_state(state, device)


class BlankRecords(PrivateRecords):
    """Empty records in place of a client's own, for a step that failed on these: sums of gradients are noise alone, and
    the gate makes null contributions of sealed values, which are NaN."""

    def __init__(self, units: Units, validation: Tensor, keeper: Keeper, *more: Any) -> None:
        super().__init__(units.blank(), validation, keeper, *more)

    def within(self, flat: Tensor) -> Sealed:
        return self.judged(flat)[0]

    def _judged(self, flat: Tensor, units: Units) -> tuple[Tensor, Tensor]:
        unknown = torch.full((len(units),), math.nan, device=flat.device)
        return unknown, unknown

    def _clipped_sum(self, flat: Tensor, chosen: Tensor, weights: Tensor | None = None) -> Tensor:
        return torch.zeros_like(flat)

    def batch_within(self, flat: Tensor) -> Sealed:
        return self._seal(torch.full((1, 1), math.nan), "training", "gradients within the threshold", "batch")

    def label_counts(self) -> Sealed:
        return self._seal(torch.full((1, self._task.counted), math.nan), "training", "labels")


def validation_records(count: int, share: float, source: Source, client: int) -> Tensor:
    """Choose the records of a client that are set aside: a boolean for each of `count`. The choice does not look at
    data and is the same in every round.

    Args:
        count: number of the client's records.
        share: share of them to set aside.
        source: randomness of the run.
        client: number of the client.
    """
    chosen = torch.zeros(count, dtype=torch.bool)
    held = held_out_count(count, share)
    if held:
        chosen[torch.randperm(count, generator=source.generator("validation", client))[:held]] = True
    return chosen


class Stack:
    """The records of several clients, whose noisy gradients are taken together."""

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        sizes: Sequence[int],
        learner: Learner,
        exit: StackedGradients | None,
        batches: Sequence[DrawnBatch] = (),
        reach: Tensor | None = None,
        asked: Asked | None = None,
    ) -> None:
        """`x` is (clients, records, ...) and `y` (clients, records), of which each client has the first of `sizes`.
        Either noisy gradients leave by `exit`, or sums over each client's drawn batch, sealed. `reach` is the
        `Chain.reach` of the records, where it has been computed before; `asked` the question that is answered, and the
        clients."""
        assert learner.chain is not None
        self.__x, self.__y, self.__sizes, self.__exit, self.__batches = x, y, sizes, exit, batches
        self.__asked = asked
        self.__chain: Chain = learner.chain
        self.__reach = learner.chain.reach(x) if reach is None else reach
        self.__task = learner.task
        self.layout, self.steps = learner.layout, 0 if exit is None else exit.steps
        self.__norms: list[Tensor] = []
        self.figures = {"place": torch.arange(len(sizes))}
        """Public figures of each client, one row each: `vmap` hands one of each to `PrivateRows`. Places stay on the
        processor, where they are compared."""
        if exit is None:
            self.__limits, self.__normalised = torch.stack([one.limit for one in batches]), batches[0].normalised
            return
        self.__limits, self.__normalised = exit.limits, False
        self.figures |= {
            "clip": torch.tensor([one.whole for one in exit.exits], device=x.device),
            "deviation": torch.tensor([one.deviation for one in exit.exits], device=x.device),
            "batch": torch.tensor(
                [one.sampling * max(1, size) for one, size in zip(exit.exits, sizes, strict=True)], device=x.device
            ),
        }

    def gradients(self, flat: Tensor, place: Tensor) -> Tensor:
        """The next noisy mean gradient of every client, one row each, at its row of `flat`."""
        self._check_places(place)
        if self.__exit is None:
            raise UserError("A step without a release of noisy gradients asked for one: declare `Gradients` beside it.")
        totals = self.__exit.pass_sums(self.__sizes, lambda chosen: self._clipped_sums(flat, chosen).to(flat.dtype))
        gradients = totals.div_(self.figures["batch"].unsqueeze(1))
        self.__norms.append(torch.linalg.vector_norm(gradients, dim=1))
        return gradients

    def noisy_norms(self, place: Tensor) -> Tensor:
        """Norms of every client's noisy gradients so far: (clients, gradients)."""
        self._check_places(place)
        return torch.stack(self.__norms, dim=1) if self.__norms else torch.zeros(len(self.__sizes), 0)

    def gradient_sums(self, flat: Tensor, place: Tensor, weights: Tensor | None = None) -> Sealed:
        """The sums of all clients' batches' gradients, one row each, at their rows of `flat`, sealed; `weights` are
        those of each client's groups, one row each."""
        self._check_places(place)
        if not self.__batches:
            raise UserError("A step without a release of summed gradients asked for one: declare `GradientSum`.")
        if weights is not None:
            check_weights(weights, len(self.__task.groups), len(self.__sizes))
        totals = self._clipped_sums(flat, self._drawn(), weights)
        return Sealed(totals.double(), "training", "sum of gradients", "sum", self.__asked)

    def _drawn(self) -> Tensor | None:
        """Which of the clients' records are in their batches, (clients, records) booleans; None where all are, and no
        client has fewer than another."""
        coins = [batch.coins(count) for count, batch in zip(self.__sizes, self.__batches, strict=True)]
        if min(self.__sizes) == self.__x.shape[1] and all(batch.whole for batch in self.__batches):
            return None
        return pad_sequence(coins, batch_first=True)

    def _check_places(self, place: Tensor) -> None:
        if not torch.equal(place, self.figures["place"]):
            raise UserError("A step asked for the gradients of some stacked clients alone: take one for each client.")

    def _clipped_sums(self, flat: Tensor, chosen: Tensor | None, weights: Tensor | None = None) -> Tensor:
        """The sum of each client's `chosen` records' gradients, or of all, each scaled down to its threshold: float64
        where they are many. Coins are counted on the processor, where they were drawn."""
        x, y, reach, limits = self.__x, self.__y, self.__reach, self.__limits.to(flat.device)
        # Only as many places as the largest batch has: the chosen ones of each client first.
        most = x.shape[1] if chosen is None else int(chosen.sum(dim=1).max())
        if most == 0:
            return torch.zeros_like(flat)
        counts = None if chosen is None else chosen.to(flat.device, torch.uint8)
        if counts is not None and most < x.shape[1]:
            counts, order = counts.sort(dim=1, descending=True, stable=True)
            counts, order = counts[:, :most], order[:, :most]
            rows = torch.arange(len(flat), device=flat.device).unsqueeze(1)
            x, y, reach = x[rows, order], y[rows, order], None if reach is None else reach[rows, order]
        of_records = None if weights is None else weights.gather(1, _groups(self.__task, y))
        parts = zip(*map(_split_records, (x, y, counts, reach, of_records)), strict=False)
        totals = [self._sums(flat, limits, *part) for part in parts]
        return totals[0] if len(totals) == 1 else torch.stack(totals).double().sum(dim=0)

    def _sums(
        self,
        flat: Tensor,
        limits: Tensor,
        x: Tensor,
        y: Tensor,
        counts: Tensor | None,
        reach: Tensor | None,
        of_records: Tensor | None,
    ) -> Tensor:
        """The sum of some of each client's records' gradients, each scaled down to its threshold.

        Args:
            flat: the clients' models, one row each.
            limits: their thresholds.
            x: records.
            y: their targets.
            counts: one for each record that counts, else zero: (clients, records); None where all count.
            reach: their `Chain.reach`, where it is known.
            of_records: their weights; None for ones.
        """
        book = self._book(flat, x, y, reach)
        norms = book.layer_norms()
        factors = weighted_factors(norms, limits, of_records, self.__normalised)
        if counts is not None:
            factors = factors * (counts if factors.dim() == 2 else counts.unsqueeze(2))
        totals = book.weighted_sum(factors)
        if math.isfinite(float(totals.sum())):  # a sum is finite only if every entry is
            return totals
        # Zero times NaN is not zero: of clients whose sum is not finite, records that are not are left out altogether.
        for client in (~torch.isfinite(totals.sum(dim=1))).nonzero().flatten().tolist():
            known = torch.isfinite(norms[client]).all(dim=1)
            known = known if counts is None else known & (counts[client] > 0)
            totals[client] = 0
            if known.any():
                only = slice(client, client + 1)
                far = None if reach is None else reach[only, known]
                book = self._book(flat[only], x[only, known], y[only, known], far)
                mine = None if of_records is None else of_records[only, known]
                factors = weighted_factors(book.layer_norms(), limits[only], mine, self.__normalised)
                totals[only] = book.weighted_sum(factors)
        return totals

    def _book(self, flat: Tensor, x: Tensor, y: Tensor, reach: Tensor | None) -> StackedBook:
        # Bounded for as many records as there are, which is public: not for as many as were chosen.
        most = min(self.__x.shape[1], RECORDS_SUMMED_TOGETHER)
        return StackedBook.of(self.__chain, flat, x, y, most, reach)


def _split_records(values: Tensor | None) -> Iterable[Any]:
    """Values of stacked clients' records in parts that are summed together, (clients, records, ...); None for each part
    where there are none."""
    return itertools.repeat(None) if values is None else values.split(RECORDS_SUMMED_TOGETHER, dim=1)


class PrivateRows:
    """One of stacked clients as its step sees it under `vmap`: noisy gradients, and nothing else."""

    failure = None
    """Nothing fails on records here alone: only networks of known layers are stacked."""

    def __init__(self, stack: Stack, figures: dict[str, Tensor]) -> None:
        """`figures` are this client's of `Stack.figures`."""
        self.__stack, self.__place = stack, figures["place"]
        if "batch" in figures:
            self.clip, self.deviation = figures["clip"], figures["deviation"] / figures["batch"]
            self.expected_batch = figures["batch"]

    @property
    def layout(self) -> Layout:
        """The layout of the flat vector."""
        return self.__stack.layout

    @property
    def steps(self) -> int:
        """Number of noisy gradients that may be taken for this question: equally many at all clients of a stack."""
        return self.__stack.steps

    def gradient(self, flat: Tensor) -> Tensor:
        """The noisy mean gradient of the task's loss over the next batch, as `PrivateRecords.gradient` gives it."""
        return under_vmap(self.__stack.gradients, flat, self.__place)

    @property
    def noisy_norms(self) -> Tensor:
        """Norm of each noisy gradient that was taken for this question, as `PrivateRecords.noisy_norms` gives it."""
        return under_vmap(self.__stack.noisy_norms, self.__place)

    def gradient_sum(self, flat: Tensor, weights: Tensor | None = None) -> Sealed:
        """The sum of the gradients of the question's batch, sealed: of all stacked clients at once."""
        found: list[Sealed] = []

        def take(rows: Tensor, place: Tensor, weights: Tensor | None) -> Tensor:
            found.append(self.__stack.gradient_sums(rows, place, weights))
            return place

        under_vmap(take, flat, self.__place, weights)
        return found[0]

    def _refuse(self, *_: object) -> NoReturn:
        raise UserError(
            "A step that declares noisy gradients alone looked at single records: declare what it makes of them, or "
            "train clients one by one with `--set engine=one-by-one`."
        )

    within = judged = projected = raw = raw_metrics = raw_norms = batch_within = label_counts = _refuse
