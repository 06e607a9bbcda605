"""`Release`, the base class of what a client may send: its clipping, noise (`Cover`) and privacy cost (`Charge`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from sordino.errors import UserError
from sordino.federation.message import Each
from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.budget.record_level_plan import RecordNeeds
from sordino.privacy.budget.shared_noise import Noise
from sordino.privacy.integers import charged_multiplier
from sordino.privacy.sealed import Pool
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS

if TYPE_CHECKING:
    from sordino.privacy.ledger import Ledger, Row

MIN_BOUND, MAX_BOUND = 1e-30, 1e30
"""Least and largest bound: float32 can keep values within it, and hold the noise on them."""


def hold_to_range(rows: Tensor, low: float, high: float) -> Bounded:
    """Clip numbers to a range and centre them on zero, in float64; what is not finite becomes zero, the middle.

    Args:
        rows: numbers of any shape.
        low: lower end of the range.
        high: upper end of the range.
    """
    # Centred first, and not in float32: there, the ends of a narrow range far from zero round to numbers outside of it.
    half, finite = (high - low) / 2, torch.isfinite(rows)
    centred = torch.where(finite, rows.double() - (low + high) / 2, 0.0)
    return Bounded(centred.clamp(-half, half), int((~finite).sum()))


def check_range(release: Release, low: float, high: float) -> None:
    """Refuse a range from `low` to `high` that bounds nothing."""
    if not (math.isfinite(low) and math.isfinite(high) and MIN_BOUND <= high - low <= MAX_BOUND):
        raise ReleaseError(
            f"{release.describe()}: a range goes from a number to a larger one, {MIN_BOUND:g} to {MAX_BOUND:g} apart"
        )


def check_thresholds(thresholds: Tensor, whose: str) -> None:
    """Refuse thresholds to which nothing can be shortened in float32; `whose` names their release in the error."""
    if not all(MIN_BOUND <= threshold <= MAX_BOUND for threshold in thresholds.flatten().tolist()):
        raise ReleaseError(f"{whose}: a threshold must be a finite number above 0, from {MIN_BOUND:g} to {MAX_BOUND:g}")


def lengths(rows: Tensor) -> Tensor:
    """L2 norm of each row, in float64."""
    return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)


def shorten(rows: Tensor, norms: Tensor, threshold: Tensor) -> Tensor:
    """Scale each row down to its threshold where it is longer; `norms` are its `lengths`."""
    if not (norms > threshold).any():
        return rows
    # The shrinking by 2^-22 makes up for float32 rounding: the norm after clipping is never above the threshold.
    scale = torch.where(norms > threshold, threshold / norms * (1 - 2**-22), torch.ones_like(norms))
    clipped = rows * scale.to(rows.dtype).unsqueeze(1)
    extreme = scale < 2**-100  # such a scale is too small for float32 to hold it exactly
    if extreme.any():
        clipped[extreme] = (rows[extreme].double() * scale[extreme].unsqueeze(1)).to(rows.dtype)
    return clipped


SHORTEST = 1e-30
"""Length below which a vector is left as it is where others are normalised: float32 holds it to few digits."""


def part_lengths(rows: Tensor, sizes: list[int]) -> Tensor:
    """L2 norm of each part of each row, in float64: (rows, parts)."""
    if max(sizes) == 1:
        return rows.double().abs()
    if len(sizes) == 1:
        return lengths(rows).unsqueeze(1)
    return torch.stack([lengths(part) for part in rows.split(sizes, dim=1)], dim=1)


def shorten_parts(rows: Tensor, norms: Tensor, thresholds: Tensor, sizes: list[int]) -> Tensor:
    """Scale each part of each row down to its threshold.

    Args:
        rows: values, (rows, width).
        norms: their `part_lengths`, (rows, parts).
        thresholds: (rows or 1, parts).
        sizes: number of entries of each part.
    """
    if max(sizes) == 1:  # as many parts as entries: all of them at once
        flat = shorten(rows.reshape(-1, 1), norms.reshape(-1), thresholds.expand_as(norms).reshape(-1))
        return flat.reshape(rows.shape)
    if len(sizes) == 1:
        return shorten(rows, norms.squeeze(1), thresholds.squeeze(1))
    parts = zip(rows.split(sizes, dim=1), norms.unbind(dim=1), thresholds.unbind(dim=1), strict=True)
    return torch.cat([shorten(part, length, threshold) for part, length, threshold in parts], dim=1)


def lengthen_parts(rows: Tensor, norms: Tensor, thresholds: Tensor, sizes: list[int]) -> Tensor:
    """Scale each part of each row that is shorter than its threshold up to it, but for rounding; arguments are those of
    `shorten_parts`. Parts of zeros stay, and so do parts so short that rounding would decide their direction."""
    far = (thresholds / norms.clamp(min=SHORTEST)).clamp(min=1.0)
    factors = torch.where(norms > SHORTEST, far, 1.0)
    spread = factors.repeat_interleave(torch.tensor(sizes, device=rows.device), dim=1) if len(sizes) > 1 else factors
    return (rows.double() * spread).to(rows.dtype)


def mirror_upper(flat: Tensor) -> Tensor:
    """Mirror the upper triangle of a flat square matrix below its diagonal."""
    size = math.isqrt(flat.numel())
    upper = flat.view(size, size).triu()
    return (upper + upper.triu(1).t()).reshape(-1)


Found = TypeVar("Found")
PROMISED: Literal["promised"] = "promised"
"""Value in place of a pool: all records of a client pay, and of what they pay only epsilon and delta are known."""


class ReleaseError(UserError):
    """A step handed over something that is not what its release declares."""


@dataclass(frozen=True)
class Public:
    """Public values that bounds and noise may depend on."""

    message: Mapping[str, Any]
    """Message that the server broadcast."""
    clients: Sequence[int] = (0,)
    """Numbers of the clients that send."""
    states: Mapping[str, Tensor] = field(default_factory=dict)
    """The clients' public states, one row per client: functions of what they have sent before."""
    layers: Sequence[int] = ()
    """Number of parameters of each layer of the network."""
    _found: dict[tuple[object, ...], tuple[object, Any]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def once(self, what: str | int, asking: tuple[object, ...], found: Callable[[], Found]) -> Found:
        """Compute a value once for those who are `asking`, and return the same value when `what` is asked for again.

        Args:
            what: name of the value.
            asking: objects on whose identity the value depends.
            found: computes it.
        """
        key = (what, *map(id, asking))
        if key not in self._found:
            self._found[key] = (asking, found())  # who asks lives on here, so that nobody else gets its `id`
        result: Found = self._found[key][1]
        return result

    def __getstate__(self) -> dict[str, Any]:
        """State of a copy without remembered values: objects that ask there are others, perhaps with the same `id`."""
        return vars(self) | {"_found": {}}

    def rows(self, name: str | float) -> Tensor:
        """Public value by its name (or the given number), one row per client, or one row for all of them; float64, on
        the processor, where noise is drawn."""
        if not isinstance(name, str):
            return torch.full((1, 1), name, dtype=torch.float64)
        if name in self.states:
            return self.states[name].cpu().double().reshape(len(self.clients), -1)
        if name not in self.message:
            raise ReleaseError(
                f"A release is bounded by {name!r}, which is neither in the message nor a public state of the clients."
            )
        value = self.message[name]
        if isinstance(value, Each):
            return value.of(self.clients).cpu().double().reshape(len(self.clients), -1)
        return torch.as_tensor(value, dtype=torch.float64, device="cpu").reshape(1, -1)

    def common(self, name: str) -> bool:
        """Whether a public value is the same for all clients, by where it comes from."""
        return name not in self.states and not isinstance(self.message[name], Each)


@dataclass(frozen=True)
class Bounded:
    """Values of several clients, one row each, after bounding."""

    rows: Tensor
    rejected: int
    """Number of values that were not finite and became a null contribution."""


@dataclass(frozen=True)
class Cover:
    """The noise on bounded rows. Their entries lie in blocks, each with one bound and one deviation."""

    deviations: Tensor
    """Standard deviation of the noise on each entry of a block: float64, (clients or 1, blocks)."""
    bounds: Tensor
    """Largest L2 norm of a row's block where whole clients are protected; else the largest change of the block by one
    record: float64, (clients or 1, blocks)."""
    sizes: Sequence[int]
    """Number of entries of each block."""
    unit: Unit = Unit.CLIENT
    """Unit that the noise protects."""
    places: Tensor | None = None
    """The entries that leave, where that is fewer than all and the same for all clients."""
    at: Tensor | None = None
    """Whether each entry leaves, where clients differ in that: (clients, width)."""
    mirrored: bool = False
    """Whether a row is a symmetric matrix, whose lower triangle tells nothing new."""
    summed: bool = True
    """Whether rows are added up over clients: noise in whole numbers then leaves as whole numbers."""

    def of_entries(self, by_block: Tensor) -> Tensor:
        """One value for each entry instead of one for each block, where there are several blocks."""
        return by_block.repeat_interleave(torch.tensor(self.sizes), dim=1) if len(self.sizes) > 1 else by_block

    def blocks(self, place: int) -> Iterator[tuple[np.ndarray, float, float]]:
        """Entries that leave, bound and standard deviation of each block of the client at `place`."""
        bounds, deviations = (rows[place if len(rows) > 1 else 0].tolist() for rows in (self.bounds, self.deviations))
        leaving, begin = self._leaving(place), 0
        for size, bound, deviation in zip(self.sizes, bounds, deviations, strict=True):
            low, high = np.searchsorted(leaving, [begin, begin + size])
            yield leaving[low:high], bound, deviation
            begin += size

    def _leaving(self, place: int) -> np.ndarray:
        """The entries that leave the client at `place`, in order."""
        if self.places is not None:
            return self.places.numpy()
        if self.at is not None:
            return self.at[place].cpu().nonzero().squeeze(1).numpy()
        width = sum(self.sizes)
        if not self.mirrored:
            return np.arange(width)
        row, column = np.triu_indices(math.isqrt(width))
        return row * math.isqrt(width) + column


@dataclass(frozen=True)
class Charge:
    """Cost of a release for each client that sends it."""

    sensitivity: np.ndarray
    """Largest change of the sum by one client, in the L2 norm: one value for each client, or one for all."""
    noise: np.ndarray
    """Standard deviation of the noise that each observer meets there: (clients or 1, views in the order of `VIEWS`).
    Where records pay: the noise that each observer meets over that of one message, of which `sampled` tells."""
    pool: Pool | Literal["promised"] | None = None
    """Pool of records that pay; None where whole clients do."""
    sampled: np.ndarray | None = None
    """Sampling rate, noise multiplier of one message and number of times for each client, at record level; of what is
    promised epsilon, delta and one."""
    reason: str = ""
    """Reason why no noise covers it; empty where noise does."""
    general: bool = False
    """Whether the reason holds for everything that leaves, not for this release alone."""
    entries: int = 0
    """Noisy whole numbers that one client sends; zero where noise is in floating point."""
    shares: int = 1
    """Number of draws in each number that an outsider sees, where noise is in whole numbers."""
    drawn: bool = False
    """Whether it is a sum over the batch that its question draws: all such releases of a question cost one sampled
    Gaussian together."""

    @classmethod
    def of_records(
        cls,
        pool: Pool,
        sampled: Sequence[tuple[float, float, int]],
        entries: int = 0,
        shared: Noise | None = None,
        asked: int = 1,
        drawn: bool = False,
    ) -> Charge:
        """Charge of a client's records; the client as a whole is not protected by it.

        Args:
            pool: records that pay.
            sampled: sampling rate, noise multiplier of one message and number of times of each client.
            entries: noisy whole numbers of each release, whose rounding is charged too; zero for floating point.
            shared: noise that adds up in a sum over messages; None where a message's own noise is all that covers it.
            asked: number of messages in that sum.
            drawn: whether it is a sum over the batch that the question draws.
        """
        paid = [(rate, charged_multiplier(z, entries) if entries else z, count) for rate, z, count in sampled]
        most = entries * max((count for _, _, count in sampled), default=0)
        return cls(
            sensitivity=np.zeros(1),
            noise=np.ones((1, len(VIEWS))) if shared is None else np.array([shared.factors(asked)]),
            pool=pool,
            sampled=np.array(paid, "<f8").reshape(-1, 3),
            entries=int(most),
            shares=1 if shared is None else shared.met(asked)[0],
            drawn=drawn,
        )

    @classmethod
    def promised(cls, promises: Sequence[tuple[float, float]]) -> Charge:
        """Charge of all of a client's releases together, of which only an epsilon and the delta at which it holds are
        known: one pair for each client."""
        paid = np.array([(epsilon, delta, 1) for epsilon, delta in promises], "<f8").reshape(-1, 3)
        return cls(np.zeros(1), np.ones((1, len(VIEWS))), PROMISED, paid)

    def known(self, why: str) -> Charge:
        """Charge where observers can subtract the noise, for the reason `why`."""
        if self.sampled is None and not self.sensitivity.any():
            return self
        sampled = self.sampled
        if sampled is not None:
            sampled = sampled * ([np.inf, 1.0, 1.0] if self.pool == PROMISED else [1.0, 0.0, 1.0])
        return replace(self, noise=np.zeros_like(self.noise), sampled=sampled, reason=self.reason or why)

    @classmethod
    def infinite(cls, reason: str, general: bool = False) -> Charge:
        """Charge of what leaves without noise although it depends on data. `general` says that the `reason` holds for
        everything that leaves."""
        return cls(np.ones(1), np.zeros((1, len(VIEWS))), reason=reason, general=general)

    @classmethod
    def nothing(cls) -> Charge:
        """Charge of what follows from releases that have been charged already."""
        return cls(np.zeros(1), np.ones((1, len(VIEWS))))


@dataclass(frozen=True)
class Thresholds:
    """Clipping thresholds of records' gradients."""

    rows: Tensor
    """Each client's thresholds, float64: (clients or 1, one or one for each part)."""
    separate: bool = False
    """Whether each part with a threshold of its own has the noise that would do if no other part left."""
    normalised: bool = False
    """Whether gradients are scaled to the threshold whatever their length, not only scaled down to it."""

    def of(self, place: int) -> Tensor:
        """Thresholds of the client at `place` among those asked: (one or one for each part,)."""
        return self.rows[place if len(self.rows) > 1 else 0]


class Release:
    """One kind of thing that may leave a client; every question about it is a method or property that it answers.

    Subclasses are frozen dataclasses. A field that overrides an attribute of this class and has no default is written
    as `field()`, because dataclasses would take the inherited value for one.
    """

    share: float = 0.0
    """Its part of a round's budget, from 0 to 1."""
    every: int = 1
    """It leaves in the first round and then in every round whose number this divides."""
    state: str | None = None
    """Name of the public state of a client that it sends; None where it sends what the step hands over."""
    unit: ClassVar[Unit | None] = None
    """Unit that its noise protects; None where it carries none of its own."""

    @property
    def private(self) -> bool:
        """Whether noise covers it, its own or that of releases it was made of."""
        return True

    @property
    def summed(self) -> bool:
        """Whether its noise protects its client as a whole, so that its shares add up over the cohort: a sum of enough
        messages is covered even where one message is not."""
        return self.unit is not None and not self.unit.record_level

    @property
    def record_level(self) -> bool:
        """Whether its noise protects single records of its client."""
        return self.unit is not None and self.unit.record_level

    @property
    def sums_records(self) -> bool:
        """Whether it is a sum over all clients' records, whose noise is shared out over the clients' messages."""
        return self.summed and self.record_level

    @property
    def once(self) -> bool:
        """Whether a client may be asked for it once in a run, whatever its turns."""
        return False

    @property
    def made_of_gradients(self) -> bool:
        """Whether the step takes noisy gradients of records for it."""
        return False

    @property
    def drawn(self) -> bool:
        """Whether it is a sum over the batch that its question draws, which the step never sees."""
        return False

    @property
    def stackable(self) -> bool:
        """Whether all that its step sees of records for it are noisy gradients that several clients can take at
        once."""
        return False

    def needs(self) -> RecordNeeds:
        """Demands on a client's records besides noisy gradients."""
        return RecordNeeds()

    def expose(self, ledger: Ledger, row: Row, clients: Sequence[int]) -> list[Row]:
        """Charge everybody for learning single messages of it that had been hidden in sums; the rows that this adds.

        Args:
            ledger: the ledger of the run.
            row: its row for this release and question.
            clients: whose messages become known.
        """
        return ledger.expose(row) if self.summed else []

    def exposes_history(self) -> bool:
        """Whether reading it tells of all messages that its owner has ever sent."""
        return False

    def check(self) -> None:
        """Refuse a declaration that bounds nothing."""
        if not (isinstance(self.every, int) and self.every >= 1):
            raise ReleaseError(f"{self.describe()}: `every` is {self.every!r}, but must be 1, 2, 3, ... rounds")

    def width(self, public: Public) -> int | None:
        """Number of entries of a message; None where any number costs the same."""
        return None

    def opened(self, value: Any, public: Public) -> Tensor:
        """Read the `value` that a step handed over: float32, one row for each client of `public`."""
        if not isinstance(value, Tensor):
            raise ReleaseError(
                f"{self.describe()}: the step must hand over a tensor, not {value!r}; values of raw records leave as a "
                "mean or a matrix that the gate makes of them"
            )
        rows = value.detach().to(torch.float32).reshape(len(public.clients), -1)
        wanted = self.width(public)
        if wanted is not None and rows.shape[1] != wanted:
            raise ReleaseError(f"{self.describe()}: a message has {wanted} entries, but the step sent {rows.shape[1]}")
        return rows

    def bounded(self, rows: Tensor, public: Public) -> Bounded:
        """Hold rows, one for each client, to their bounds; without bounds they stay as they are."""
        return self.unbounded(rows, public)

    def unbounded(self, rows: Tensor, public: Public) -> Bounded:
        """Prepare rows for a run without privacy: as they are; a row that is not finite becomes zero."""
        if math.isfinite(float(rows.sum())):  # a sum is finite only if every entry is
            return Bounded(rows, 0)
        finite = torch.isfinite(rows).all(dim=1)
        return Bounded(torch.where(finite.unsqueeze(1), rows, torch.zeros_like(rows)), int((~finite).sum()))

    def cover(self, width: int, allowance: Allowance, public: Public) -> Cover | None:
        """Noise on bounded rows; None where there is none, or where it is in what was sent.

        Args:
            width: number of entries of a row.
            allowance: what noise was planned, for clients and for records.
            public: public values that bounds are read from, with the clients that send.
        """
        if self.unit is not None and not self.made_of_gradients and not self.sources():
            raise NotImplementedError(f"{type(self).__name__} says that noise protects a {self.unit}, but not which")
        return None

    def charge(self, allowance: Allowance, public: Public) -> Charge:
        """Cost for each of the clients that send it."""
        raise NotImplementedError

    def deviation(self, allowance: Allowance, public: Public) -> Tensor:
        """Standard deviation of the noise on each entry of the sum over the cohort: public."""
        return torch.zeros(1)

    def weight(self, allowance: Allowance, public: Public) -> float:
        """Factor on the mean over clients that gives what `Replies.mean` returns: one, unless that is a mean over
        records."""
        return 1.0

    def known_beforehand(self) -> bool:
        """Whether its share of a round's budget says what it costs, before any message is known."""
        return True

    def thresholds(self, public: Public) -> Thresholds | None:
        """Clipping thresholds of the noisy gradients that its step takes; None where it takes none."""
        return None

    def sources(self) -> tuple[str, ...]:
        """Names of the releases of the same step of whose noisy gradients it is made too."""
        return ()

    def bounded_by(self) -> tuple[str, ...]:
        """Names of the public values that its bounds are read from."""
        return ()

    def message_bytes(self, width: int, public: Public) -> int:
        """Bytes of one message of `width` entries, the largest over clients."""
        return 4 * width

    def centre(self) -> float:
        """Middle of the range, which the server adds to rows and means of rows: these leave centred on zero."""
        return 0.0

    def describe(self) -> str:
        """Describe the release to users."""
        raise NotImplementedError


def cover_of(release: Release, width: int, allowance: Allowance, public: Public) -> Cover | None:
    """Return a release's `cover`, which is computed once for the same public values. Arguments as those of `cover`."""
    return public.once(width, (allowance, release), lambda: release.cover(width, allowance, public))


Releases = Mapping[str, Release]
