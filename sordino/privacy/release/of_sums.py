"""Releases of sums over the records of all clients, whose noise is shared out over the clients' messages.

The mechanism is distributed DP-SGD (Heikkila et al. 2020, arXiv 2007.05553): each client sums its own records'
contributions, each of a bounded norm, and adds its share of the noise; only the sum over the cohort carries all of it.
The step hands over sealed values and gets nothing back: whatever a client computed from its own thinly noised message
would be covered by its own share alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.budget.record_level_plan import RecordNeeds
from sordino.privacy.budget.shared_noise import Noise
from sordino.privacy.release.base import (
    MAX_BOUND,
    MIN_BOUND,
    Bounded,
    Charge,
    Cover,
    Public,
    Release,
    ReleaseError,
    Thresholds,
    check_thresholds,
    cover_of,
    lengths,
    shorten,
)
from sordino.privacy.release.of_records import open_pool
from sordino.privacy.sealed import Pool
from sordino.privacy.unit import Unit

if TYPE_CHECKING:
    from sordino.privacy.ledger import Ledger, Row


class SumOverRecords(Release):
    """Base of the sums over records: only their sum over the cohort may be read, and its noise is shared out."""

    unit: ClassVar[Unit | None] = Unit.RECORD
    pool: ClassVar[Pool] = "training"

    @property
    def summed(self) -> bool:
        return True

    def expose(self, ledger: Ledger, row: Row, clients: Sequence[int]) -> list[Row]:
        raise ReleaseError(
            f"{self.describe()}: a method may read its mean only, as `got.mean`. A single message carries a share of "
            "the noise, and sampled sums have no price for being read one by one after the fact."
        )

    def deviation(self, allowance: Allowance, public: Public) -> Tensor:
        width, clients = self.width(public) or 1, len(public.clients)
        deviations = cover_of(self, width, allowance, public).deviations  # type: ignore[union-attr]
        return torch.full((width,), float(deviations) * math.sqrt(clients))

    @staticmethod
    def _shared(allowance: Allowance) -> Noise:
        """The noise that is shared out over messages."""
        shared = allowance.of_records.shared
        if shared is None:
            raise ValueError("this run has no noise that is shared out over messages: it planned no sums over records")
        return shared


@dataclass(frozen=True)
class GradientSum(SumOverRecords):
    """The sum of a batch's gradients over all clients, each record's scaled down to `clip`; record level.

    The step hands over `data.gradient_sum(model)`, sealed. The gate draws the batch (each record with the public
    probability `rate`), and adds the client's share of the noise. `Replies.mean` divides the sum over the cohort by the
    expected number of records in it, which is public. `clip` is a number, or the name of a public value. Where it is
    `normalised`, each gradient is scaled to `C g / (norm(g) + 0.01)`, whatever its length. `share` is its part of the
    round's budget beside other sums over the same batch.
    """

    clip: float | str
    rate: float = 1.0
    normalised: bool = False
    share: float = 1.0

    @property
    def made_of_gradients(self) -> bool:
        return True

    @property
    def drawn(self) -> bool:
        return True

    @property
    def stackable(self) -> bool:
        return True

    def check(self) -> None:
        super().check()
        if not 0 < self.rate <= 1:
            raise ReleaseError(f"{self.describe()}: rate is {self.rate!r}, but a probability lies above 0, up to 1")

    def needs(self) -> RecordNeeds:
        return RecordNeeds(rate=self.rate)

    def width(self, public: Public) -> int:
        return sum(public.layers)

    def thresholds(self, public: Public) -> Thresholds:
        found = public.once("threshold", (self,), lambda: public.rows(self.clip))
        if found.shape != (1, 1):
            raise ReleaseError(f"{self.describe()}: it needs one threshold, the same for all clients")
        return Thresholds(found, normalised=self.normalised)

    def bounded_by(self) -> tuple[str, ...]:
        return (self.clip,) if isinstance(self.clip, str) else ()

    def opened(self, value: Any, public: Public) -> Tensor:
        rows = open_pool(self, value, self.pool, "sum")
        if rows.shape != (len(public.clients), self.width(public)):
            raise ReleaseError(f"{self.describe()}: hand over what data.gradient_sum(model) gives, not {value!r}")
        return rows

    def bounded(self, rows: Tensor, public: Public) -> Bounded:
        """Sums as they are, in float64: each record's gradient was limited where it was summed."""
        return Release.unbounded(self, rows, public)

    def unbounded(self, rows: Tensor, public: Public) -> Bounded:
        found = self.bounded(rows, public)
        return Bounded(found.rows.float(), found.rejected)

    def cover(self, width: int, allowance: Allowance, public: Public) -> Cover:
        bounds = self.thresholds(public).rows
        check_thresholds(bounds, self.describe())
        return Cover(self._shared(allowance).of_message(self.share) * bounds, bounds, [width], Unit.RECORD)

    def charge(self, allowance: Allowance, public: Public) -> Charge:
        plan, shared = allowance.of_records, self._shared(allowance)
        multiplier = shared.of_message(self.share)
        paid = [(rate, multiplier, 1) for rate in plan.sampling[list(public.clients)].tolist()]
        entries = self.width(public) if allowance.whole else 0
        return Charge.of_records(self.pool, paid, entries, shared, len(public.clients), drawn=True)

    def weight(self, allowance: Allowance, public: Public) -> float:
        return len(public.clients) / max(allowance.of_records.expected_records(public.clients), 1e-9)

    def describe(self) -> str:
        how = "scaled to" if self.normalised else "limited to"
        return (
            f"sum over all clients of a batch's gradients, each record's {how} length {self.clip}, Gaussian noise that "
            "is shared out over the clients"
        )


@dataclass(frozen=True)
class RecordSum(SumOverRecords):
    """The sum over all clients of one vector for each record, scaled down to norm `bound`; record level.

    The step hands over sealed rows, one for each record. By default these are all training records, and the sum leaves
    once: `share` is its part of mu^2. Where it is `drawn`, they are the records of the batch that the question draws,
    beside a `GradientSum` of the same step, and `share` is its part of the round's budget: both are charged as one
    sampled Gaussian. `entries` is the length of a vector, or the name of a public value that says it.
    """

    bound: float
    share: float = field()  # required: without `field()` the base's default would stand for it
    entries: int | str = 1
    drawn: bool = False

    @property
    def once(self) -> bool:
        return not self.drawn

    def check(self) -> None:
        super().check()
        if not (math.isfinite(self.bound) and MIN_BOUND <= self.bound <= MAX_BOUND):
            raise ReleaseError(f"{self.describe()}: its bound must be a number from {MIN_BOUND:g} to {MAX_BOUND:g}")
        if not 0 < self.share <= 1:
            raise ReleaseError(f"{self.describe()}: its share of the budget must lie above 0, up to 1")

    def needs(self) -> RecordNeeds:
        return RecordNeeds() if self.drawn else RecordNeeds(sum_share=self.share)

    def width(self, public: Public) -> int | None:
        if isinstance(self.entries, int):
            return self.entries
        return int(public.rows(self.entries)[0, 0]) if self.entries in public.message else None

    def bounded_by(self) -> tuple[str, ...]:
        return (self.entries,) if isinstance(self.entries, str) else ()

    def opened(self, value: Any, public: Public) -> Tensor:
        rows = open_pool(self, value, self.pool, "batch" if self.drawn else "records")
        if rows.dim() != 2 or rows.shape[1] != self.width(public):
            raise ReleaseError(f"{self.describe()}: a record has {self.width(public)} entries, not {rows.shape[-1]}")
        return rows

    def bounded(self, rows: Tensor, public: Public) -> Bounded:
        """Sum of one client's rows (records, entries), each of norm at most `bound`, in float64: what a float32 sum of
        many records rounds depends on each of them."""
        finite = torch.isfinite(rows).all(dim=1)
        kept = torch.where(finite.unsqueeze(1), rows, torch.zeros_like(rows))
        limit = torch.full((), self.bound, dtype=torch.float64, device=kept.device)
        total = shorten(kept, lengths(kept), limit).double().sum(dim=0, keepdim=True)
        return Bounded(total, int((~finite).sum()))

    def unbounded(self, rows: Tensor, public: Public) -> Bounded:
        """Sum of the rows that are finite, whatever their length."""
        finite = torch.isfinite(rows).all(dim=1)
        return Bounded(rows[finite].sum(dim=0, keepdim=True), int((~finite).sum()))

    def cover(self, width: int, allowance: Allowance, public: Public) -> Cover:
        bounds = torch.full((1, 1), self.bound, dtype=torch.float64)
        return Cover(self._multiplier(allowance) * bounds, bounds, [width], Unit.RECORD)

    def charge(self, allowance: Allowance, public: Public) -> Charge:
        plan, multiplier = allowance.of_records, self._multiplier(allowance)
        rates = [float(plan.sampling[client]) if self.drawn else 1.0 for client in public.clients]
        # Rounding is charged for as many entries as the network has, which is known before any message is, or for
        # more where there are more.
        entries = max(self.width(public) or 0, sum(public.layers)) if allowance.whole else 0
        paid = [(rate, multiplier, 1) for rate in rates]
        asked = len(public.clients)
        return Charge.of_records(self.pool, paid, entries, self._shared(allowance), asked, drawn=self.drawn)

    def weight(self, allowance: Allowance, public: Public) -> float:
        plan, clients = allowance.of_records, list(public.clients)
        records = plan.expected_records(clients) if self.drawn else float(plan.trained[clients].sum())
        return len(clients) / max(records, 1e-9)

    def describe(self) -> str:
        which = "a batch's" if self.drawn else "all training"
        return f"sum over {which} records of all clients, each of norm at most {self.bound:g}, shared Gaussian noise"

    def _multiplier(self, allowance: Allowance) -> float:
        """Noise of one message over the bound."""
        shared = self._shared(allowance)
        if self.drawn:
            return shared.of_message(self.share)
        alone = float(allowance.of_records.sum_multipliers[0])
        return alone / math.sqrt(self.share) / math.sqrt(shared.guaranteed)


@dataclass(frozen=True)
class CellCounts(RecordSum):
    """The number of test records of all clients in each of `entries` cells, into one of which each record falls; record
    level, once.

    What is handed over are sealed rows, one for each test record, of length one at most. Test records are charged as
    training records are, and what both pay is composed: a record that is tested on at one client may be trained on at
    another. `Replies.mean` returns the sum itself.
    """

    pool: ClassVar[Pool] = "test"

    def charge(self, allowance: Allowance, public: Public) -> Charge:
        return replace(super().charge(allowance, public), pool="training")

    def weight(self, allowance: Allowance, public: Public) -> float:
        return float(len(public.clients))

    def describe(self) -> str:
        return f"counts of all clients' test records in {self.entries} cells, one each, shared Gaussian noise"
