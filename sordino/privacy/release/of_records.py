"""Record-level releases (means, second moments, noisy gradients), and releases of any unit that add no noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from sordino.federation.message import tensors
from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.budget.record_level_plan import RecordNeeds
from sordino.privacy.release.base import (
    Bounded,
    Charge,
    Cover,
    Public,
    Release,
    ReleaseError,
    Releases,
    Thresholds,
    check_range,
    hold_to_range,
    lengths,
    shorten,
)
from sordino.privacy.sealed import Form, Pool, Sealed, open_sealed
from sordino.privacy.unit import Unit

if TYPE_CHECKING:
    from sordino.privacy.ledger import Ledger, Row


@dataclass(frozen=True)
class Average(Release):
    """The mean of one number per validation record, each clipped to [low, high]; record level.

    The step hands over the sealed numbers that `data.judged` gives; the gate clips, centres, averages over the public
    count, and noises. `held_out` is the share of a client's training records that is set aside for it.
    """

    low: float
    high: float
    held_out: float = 0.2
    unit: ClassVar[Unit | None] = Unit.RECORD
    pool: ClassVar[Pool] = "validation"

    def check(self) -> None:
        super().check()
        check_range(self, self.low, self.high)
        if not 0 < self.held_out < 1:
            raise ReleaseError(
                f"{self.describe()}: held_out is {self.held_out!r}, but the share of records that is set aside for it "
                "must lie between 0 and 1"
            )

    def needs(self) -> RecordNeeds:
        return RecordNeeds(means=1, held_out=self.held_out)

    def width(self, public: Public) -> int:
        return 1

    def opened(self, value: Any, public: Public) -> Tensor:
        return open_pool(self, value, self.pool).reshape(1, -1)

    def bounded(self, rows: Tensor, public: Public) -> Bounded:
        """Mean of each row held to the range, less the middle of the range."""
        single = hold_to_range(rows, self.low, self.high)
        return Bounded(single.rows.mean(dim=1, keepdim=True), single.rejected)

    def unbounded(self, rows: Tensor, public: Public) -> Bounded:
        """Mean of each row's finite numbers, whatever their range."""
        finite = torch.isfinite(rows)
        total = torch.where(finite, rows, torch.zeros_like(rows)).sum(dim=1, keepdim=True)
        return Bounded(total / finite.sum(dim=1, keepdim=True).clamp(min=1), int((~finite).sum()))

    def cover(self, width: int, allowance: Allowance, public: Public) -> Cover:
        plan, who = allowance.of_records, list(public.clients)
        moved = [self.spread(int(records)) for records in plan.validation[who]]
        bounds = torch.tensor(moved, dtype=torch.float64).reshape(-1, 1)
        deviations = torch.as_tensor(plan.mean_multipliers[who]).reshape(-1, 1) * bounds
        return Cover(deviations, bounds, [width], Unit.RECORD, summed=False)

    def charge(self, allowance: Allowance, public: Public) -> Charge:
        multipliers = allowance.of_records.mean_multipliers
        paid = [(1.0, float(multipliers[client]), 1) for client in public.clients]
        return Charge.of_records(self.pool, paid, 1 if allowance.whole else 0)

    def spread(self, records: int) -> float:
        """Largest change of the mean by one of `records` records."""
        return (self.high - self.low) / 2 / max(1, records)

    def centre(self) -> float:
        return (self.low + self.high) / 2

    def describe(self) -> str:
        return f"mean over validation records in [{self.low}, {self.high}], Gaussian noise"


@dataclass(frozen=True)
class Matrix(Release):
    """The second-moment matrix of a client's training records, each scaled down to norm one; record level, once.

    The step hands over the sealed records that `data.projected` gives; the gate bounds them, multiplies and adds
    symmetric Gaussian noise (AnalyzeGauss, Dwork et al. 2014): one record moves the matrix by at most one. `share` is
    its part of epsilon; `side` how many directions records are projected to at the most: on real machines, where each
    entry is rounded, noise is set aside for so many.
    """

    share: float = field()
    side: int | None = None
    unit: ClassVar[Unit | None] = Unit.RECORD
    pool: ClassVar[Pool] = "training"

    @property
    def once(self) -> bool:
        return True

    def needs(self) -> RecordNeeds:
        return RecordNeeds(matrix_share=self.share, matrices=1, matrix_entries=(self.side or 0) ** 2)

    def opened(self, value: Any, public: Public) -> Tensor:
        rows = open_pool(self, value, self.pool)
        if self.side is not None and rows.shape[-1] > self.side:
            raise ReleaseError(f"{self.describe()}: its side is {rows.shape[-1]}, but at most {self.side} is declared")
        return rows

    def bounded(self, rows: Tensor, public: Public) -> Bounded:
        """X^T X of one client's records (records, dimensions), as one row, in float64: what a float32 sum of many
        records rounds depends on each of them."""
        finite = torch.isfinite(rows).all(dim=1)
        kept = torch.where(finite.unsqueeze(1), rows, torch.zeros_like(rows))
        kept = shorten(kept, lengths(kept), torch.ones((), dtype=torch.float64, device=kept.device)).double()
        return Bounded((kept.t() @ kept).reshape(1, -1), int((~finite).sum()))

    def unbounded(self, rows: Tensor, public: Public) -> Bounded:
        """Matrix of bounded records: that they have a norm of at most one is part of what the matrix is, not only its
        bound."""
        found = self.bounded(rows, public)
        return Bounded(found.rows.float(), found.rejected)

    def cover(self, width: int, allowance: Allowance, public: Public) -> Cover:
        multipliers = torch.as_tensor(allowance.of_records.matrix_multipliers[list(public.clients)]).reshape(-1, 1)
        return Cover(multipliers, torch.ones_like(multipliers), [width], Unit.RECORD, mirrored=True, summed=False)

    def charge(self, allowance: Allowance, public: Public) -> Charge:
        multipliers = allowance.of_records.matrix_multipliers
        paid = [(1.0, float(multipliers[client]), 1) for client in public.clients]
        return Charge.of_records(self.pool, paid, self.most_entries(public) if allowance.whole else 0)

    def most_entries(self, public: Public) -> int:
        """Most entries of the matrix: its side is that of a public tensor of the message, onto whose columns records
        are projected."""
        sides = [value.shape[-1] for value in tensors(public.message) if value.ndim]
        return max(sides, default=1) ** 2

    def describe(self) -> str:
        return "second-moment matrix of projected records, Gaussian noise"


@dataclass(frozen=True)
class Gradients(Release):
    """Model, or another vector, that was computed from noisy gradients alone; record level.

    The step sees no records, only `data.gradient(...)`: each record's gradient scaled down to `clip`, summed over a
    batch, noised, and divided by the expected batch size. `clip` is a number, or the name of a public
    value. What leaves is a function of these, so it leaves as it is; every step was charged.

    Where it is `layered`, there is one threshold for each layer, and one noise for all of them together. Where it is
    `separate`, there is one threshold for each tensor, or for each layer, and each of these has the noise that would do
    if no other left, in proportion to its threshold: what they cost together is charged.
    """

    clip: float | str
    layered: bool = False
    separate: bool = False
    unit: ClassVar[Unit | None] = Unit.RECORD
    pool: ClassVar[Pool] = "training"

    @property
    def made_of_gradients(self) -> bool:
        return True

    @property
    def stackable(self) -> bool:
        return not self.separate

    def thresholds(self, public: Public) -> Thresholds:
        found, wanted = public.rows(self.clip), len(public.layers) if self.layered else 1
        if public.layers and found.shape[1] != wanted and not self.separate:  # separate ones are held against tensors
            raise ReleaseError(f"{self.describe()}: it needs {wanted} thresholds, but there are {found.shape[1]}")
        return Thresholds(found, self.separate)

    def charge(self, allowance: Allowance, public: Public) -> Charge:
        plan = allowance.of_records
        paid = [plan.charge(client) for client in public.clients]
        if self.separate:
            # A record may move every part by as much as its noise covers: mu^2 adds up over them.
            parts = self.thresholds(public).rows.shape[1]
            paid = [(rate, multiplier / math.sqrt(parts), steps) for rate, multiplier, steps in paid]
        return Charge.of_records(self.pool, paid, sum(public.layers) if allowance.whole else 0)

    def known_beforehand(self) -> bool:
        return not self.separate

    def describe(self) -> str:
        return f"model trained on noisy gradients; each record's gradient is limited to length {self.clip}"


@dataclass(frozen=True)
class Follows(Release):
    """Value made of the same noisy gradients as the release `of` of the same step: it costs nothing more; record
    level. `entries` is how many numbers it has; without one, as many as the step hands over, on real machines those of
    the model."""

    of: str
    entries: int | None = None
    unit: ClassVar[Unit | None] = Unit.RECORD

    @property
    def stackable(self) -> bool:
        return True

    def width(self, public: Public) -> int | None:
        return self.entries

    def sources(self) -> tuple[str, ...]:
        return (self.of,)

    def charge(self, allowance: Allowance, public: Public) -> Charge:
        return Charge.nothing()

    def describe(self) -> str:
        return f"made of the same noisy gradients as {self.of}"


SEALED_FORMS: dict[Form, str] = {
    "records": "values of {} records",
    "batch": "values of the batch that the question draws of {} records",
    "sum": "sum that data.gradient_sum(model) gives of {} records",
}
"""Names of the forms of sealed values, for errors."""


def open_pool(release: Release, value: Any, pool: Pool, form: Form = "records") -> Tensor:
    """Open the sealed values of a pool; a value that is not sealed, or is of another pool or form, is refused: bound
    and charge of a release hold for its own kind of value alone.

    Args:
        release: release under which they are sent, named in the error.
        value: what the step handed over.
        pool: pool of records that the release is for.
        form: rows that it is for.
    """
    if not isinstance(value, Sealed) or value.pool != pool or value.form != form:
        wanted = SEALED_FORMS[form].format(pool)
        raise ReleaseError(f"{release.describe()}: hand over the sealed {wanted}, not {value!r}")
    return open_sealed(value).detach()


@dataclass(frozen=True)
class Derived(Release):
    """A client's public state `state`: a function of what it has sent before, so it costs the server nothing new.

    Whoever else learns it learns something about single messages: once the server reads it, everybody pays the server's
    price for all that its owner has sent so far. `bits` is how many bits an entry takes on the wire.
    """

    state: str = field()
    bits: int = 32

    def exposes_history(self) -> bool:
        return True

    def expose(self, ledger: Ledger, row: Row, clients: Sequence[int]) -> list[Row]:
        return ledger.expose_all(clients, (row.question, row.round, row.step))

    def opened(self, value: Any, public: Public) -> Tensor:
        return public.states[self.state].reshape(len(public.clients), -1)

    def unbounded(self, rows: Tensor, public: Public) -> Bounded:
        return Bounded(rows, 0)

    def charge(self, allowance: Allowance, public: Public) -> Charge:
        return Charge.nothing()

    def message_bytes(self, width: int, public: Public) -> int:
        return math.ceil(width * self.bits / 8)

    def describe(self) -> str:
        return "computed from earlier noisy messages; whoever reads it learns of single ones"


@dataclass(frozen=True)
class Bare(Release):
    """A value that leaves without noise although it depends on data: epsilon is infinite, for reason `why`."""

    why: str

    @property
    def private(self) -> bool:
        return False

    def charge(self, allowance: Allowance, public: Public) -> Charge:
        return Charge.infinite(self.why)

    def describe(self) -> str:
        return f"without noise: {self.why}"


@dataclass(frozen=True)
class Unprotected(Release):
    """A release in a run without privacy: as wide and as often as `of`, but neither bounded nor noised.

    A mechanism that has thresholds still has them, and may adapt them: nothing is scaled down to them. Every question
    that this class does not answer itself is answered by `of`, one that is added to a release later included.
    """

    of: Release
    share: ClassVar[float] = 0.0  # type: ignore[misc]
    unit: ClassVar[Unit | None] = None
    private: ClassVar[bool] = False  # type: ignore[misc]
    # By the unit of this class, not by that of `of`.
    summed, record_level, sums_records = Release.summed, Release.record_level, Release.sums_records

    def __getattribute__(self, name: str) -> Any:
        # Not __getattr__, which Python asks only for what no base class has: what `Release` says by default would then
        # stand in the place of what `of` says.
        if name == "of" or name.startswith("_") or name in vars(Unprotected):
            return super().__getattribute__(name)
        return getattr(self.of, name)

    def check(self) -> None:
        Release.check(self)  # without noise, no bound of `of` has to hold

    def bounded(self, rows: Tensor, public: Public) -> Bounded:
        return self.of.unbounded(rows, public)

    def cover(self, width: int, allowance: Allowance, public: Public) -> Cover | None:
        return None

    def charge(self, allowance: Allowance, public: Public) -> Charge:
        return Charge.infinite('privacy = "none": everything leaves as it is, neither clipped nor noised', general=True)

    def deviation(self, allowance: Allowance, public: Public) -> Tensor:
        return torch.zeros(self.width(public) or 1)

    def expose(self, ledger: Ledger, row: Row, clients: Sequence[int]) -> list[Row]:
        return []

    def exposes_history(self) -> bool:
        return False

    def bounded_by(self) -> tuple[str, ...]:
        return ()

    def centre(self) -> float:
        return 0.0  # nothing was centred

    def describe(self) -> str:
        return f"as it is, neither clipped nor noised; in a private run: {self.of.describe()}"


def without_privacy(releases: Releases) -> Releases:
    """Wrap releases for a run without privacy; one that leaves bare anyway keeps its own reason."""
    return {name: Unprotected(release) if release.private else release for name, release in releases.items()}
