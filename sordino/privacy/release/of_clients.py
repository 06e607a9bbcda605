"""Releases whose noise protects whole clients: vectors and numbers that are summed over the cohort."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from sordino.privacy.budget.allowance import Allowance
from sordino.privacy.release.base import (
    Bounded,
    Charge,
    Cover,
    Public,
    Release,
    ReleaseError,
    check_range,
    check_thresholds,
    hold_to_range,
    lengthen_parts,
    part_lengths,
    shorten_parts,
)
from sordino.privacy.unit import Unit
from sordino.privacy.views import VIEWS, View, unknown_variance


@dataclass(frozen=True)
class Update(Release):
    """One vector per client, scaled down to L2 norm `clip` where it is longer, then noised.

    `clip` is a number, or the name of a public value: one threshold for the whole vector, or, when `layered`, one for
    each layer of the network. With layers, `spread` says how their noise is weighed at equal cost: `energy` makes the
    noise of all layers together as small as it can be, `proportional` gives each layer noise in proportion to its
    threshold, and `alone` gives each of them the noise that would do if no other left, times the public `excess`: the
    threshold is then one for all, and what they cost together is charged. `sizes` names a public list of the parts'
    sizes where these are not the network's layers. `at` names a public 0/1 vector, one for all clients or one for each:
    nothing leaves, and no noise is added, where it is zero. `entries` is how many the vector has where that is not the
    number of the network's parameters, or `times` as many: one part for each of several models, each with its layers.
    Where it is `normalised`, a vector that is shorter than its threshold is scaled up to it: its length, which then
    tells nothing, is the same for all clients. The sensitivity is the threshold as before.
    """

    clip: float | str
    share: float = 1.0
    layered: bool = False
    spread: Literal["energy", "proportional", "alone"] = "energy"
    sizes: str | None = None
    excess: float | str = 1.0
    at: str | None = None
    entries: int | None = None
    times: int = 1
    normalised: bool = False
    unit: ClassVar[Unit | None] = Unit.CLIENT

    def width(self, public: Public) -> int:
        return self.times * sum(public.layers) if self.entries is None else self.entries

    def bounded(self, rows: Tensor, public: Public) -> Bounded:
        """Rows whose parts are within their thresholds; a row that is not finite becomes zero."""
        kept = rows if self.at is None else rows * self._mask(public).to(rows)
        sizes = self._sizes(public)
        norms = part_lengths(kept, sizes)
        finite = torch.isfinite(norms).all(dim=1)  # no float32 vector is too long for float64
        rejected = int((~finite).sum())
        if rejected:
            kept = torch.where(finite.unsqueeze(1), kept, torch.zeros_like(kept))
            norms = torch.where(finite.unsqueeze(1), norms, torch.zeros_like(norms))
        thresholds = self._thresholds(public).to(norms.device)
        if self.normalised:
            kept = lengthen_parts(kept, norms, thresholds, sizes)
            norms = part_lengths(kept, sizes)  # of the rounded values, which are shortened like any others
        return Bounded(shorten_parts(kept, norms, thresholds, sizes), rejected)

    def known_beforehand(self) -> bool:
        return self.spread != "alone"

    def unbounded(self, rows: Tensor, public: Public) -> Bounded:
        """Rows of any length; what `at` leaves out does not leave without privacy either."""
        return super().unbounded(rows if self.at is None else rows * self._mask(public).to(rows), public)

    def cover(self, width: int, allowance: Allowance, public: Public) -> Cover:
        everywhere = Cover(self._deviations(allowance, public), self._thresholds(public), self._sizes(public))
        if self.at is None:
            return everywhere
        mask = self._mask(public)
        if not public.common(self.at):
            return replace(everywhere, at=mask)
        return replace(everywhere, places=mask[0].cpu().nonzero().squeeze(1))

    def charge(self, allowance: Allowance, public: Public) -> Charge:
        """The sum over layers of (threshold / noise)^2 for each client, in the noise that each observer meets.

        Where clients leave out different coordinates, a coordinate that few contribute to carries little noise: each
        client is charged as if all of its change lay in its worst one.
        """
        bounds = self._thresholds(public).numpy()
        deviations = self._deviations(allowance, public).numpy()
        spending = allowance.of_clients
        cohort, colluders = spending.met(len(public.clients))
        leaving = self._leaving(public).numpy()
        squares, variances = np.where(leaving > 0, np.square(bounds), 0.0), np.square(deviations)
        sensitivity = np.sqrt(squares.sum(axis=1))
        columns = []
        for view in VIEWS:
            if self.at is None or public.common(self.at) or view == "server" or spending.shares is not None:
                met = unknown_variance(variances, view, cohort, colluders)
            else:
                met = self._least_met(variances, view, public, colluders)
            with np.errstate(invalid="ignore"):  # nothing leaves, and what that costs is nothing
                columns.append(sensitivity / np.sqrt((squares / met).sum(axis=1)))
        entries = self.width(public) if allowance.whole else 0
        rows = max(len(column) for column in columns)
        noise = np.stack([column if len(column) == rows else np.repeat(column, rows) for column in columns], axis=1)
        return Charge(sensitivity, noise, entries=entries, shares=cohort)

    def deviation(self, allowance: Allowance, public: Public) -> Tensor:
        variances = self._spread_out(self._deviations(allowance, public), public).square()
        if self.at is not None:
            variances = variances * self._mask(public).cpu().double()
        total = variances * len(public.clients) if len(variances) == 1 else variances.sum(dim=0, keepdim=True)
        return total.squeeze(0).sqrt().float()

    def bounded_by(self) -> tuple[str, ...]:
        return tuple(name for name in (self.clip, self.at, self.sizes, self.excess) if isinstance(name, str))

    def message_bytes(self, width: int, public: Public) -> int:
        """Bytes of one message: four for each entry that leaves."""
        return 4 * (width if self.at is None else int(self._mask(public).sum(dim=1).max()))

    def describe(self) -> str:
        parts = f"each {'layer' if self.sizes is None else 'part'}'s L2 norm" if self.layered else "L2 norm"
        where = "" if self.at is None else ", on shared positions only"
        return f"vector, {parts} {'scaled to' if self.normalised else 'at most'} {self.clip}, Gaussian noise{where}"

    def _sizes(self, public: Public) -> list[int]:
        if not self.layered:
            return [self.width(public)]
        if self.sizes is None:
            layers = self.times * list(public.layers)
            if sum(layers) != self.width(public):
                raise ReleaseError(
                    f"{self.describe()}: the network's layers have {sum(layers)} entries, but a message has "
                    f"{self.width(public)}: name its parts' sizes with `sizes`"
                )
            return layers
        sizes = public.rows(self.sizes)[0].long()
        if not public.common(self.sizes) or int(sizes.min()) < 1 or int(sizes.sum()) != self.width(public):
            raise ReleaseError(
                f"{self.describe()}: {self.sizes} must be the same for all clients, and sizes that sum to the "
                f"{self.width(public)} entries of a message"
            )
        return list(sizes.tolist())

    def _thresholds(self, public: Public) -> Tensor:
        """Thresholds of each part, checked: (clients or 1, parts)."""
        return public.once("thresholds", (self,), lambda: self._checked_thresholds(public))

    def _checked_thresholds(self, public: Public) -> Tensor:
        thresholds, parts = public.rows(self.clip), len(self._sizes(public))
        given = 1 if self.spread == "alone" else parts
        if thresholds.shape[1] != given:
            raise ReleaseError(f"{self.describe()}: it needs {given} thresholds, but there are {thresholds.shape[1]}")
        check_thresholds(thresholds, self.describe())
        return thresholds.expand(-1, parts)

    def _leaving(self, public: Public) -> Tensor:
        """Number of entries of each part that leave a client, by what is public of all of them: float64, (parts,)."""
        sizes = self._sizes(public)
        if self.at is None or not public.common(self.at):
            return torch.tensor(sizes, dtype=torch.float64)
        return torch.stack([part.sum() for part in self._mask(public)[0].split(sizes)]).double()

    def _mask(self, public: Public) -> Tensor:
        """Mask of the entries that leave: (clients or 1, width)."""
        assert self.at is not None
        mask = public.rows(self.at) != 0
        if mask.shape[1] != self.width(public):
            raise ReleaseError(f"{self.describe()}: {self.at} has {mask.shape[1]} entries, not {self.width(public)}")
        return mask

    def _deviations(self, allowance: Allowance, public: Public) -> Tensor:
        """Standard deviation of the noise of one message on each of its parts: (clients or 1, parts)."""
        thresholds, multiplier = self._thresholds(public), allowance.of_clients.of_message(self.share)
        if not self.layered:
            return multiplier * thresholds
        if self.spread == "alone":
            return multiplier * self._excess(public) * thresholds
        if self.spread == "proportional":
            return multiplier * math.sqrt(int((self._leaving(public) > 0).sum())) * thresholds
        # The least noise energy at equal cost (by Lagrange): s_l^2 = z^2 C_l (sum C_k sqrt(d_k)) / sqrt(d_l).
        roots = self._leaving(public).sqrt()
        weight = (thresholds * roots).sum(dim=1, keepdim=True)
        return multiplier * (thresholds * weight / roots.clamp(min=1)).sqrt()

    def _excess(self, public: Public) -> Tensor:
        """Factor of noise that each part gets above what it would need alone: (clients or 1, 1)."""
        excess = public.rows(self.excess)
        if excess.shape[1] != 1 or not bool((torch.isfinite(excess) & (excess > 0)).all()):
            raise ReleaseError(f"{self.describe()}: its excess of noise must be one finite number above 0")
        return excess

    def _spread_out(self, by_part: Tensor, public: Public) -> Tensor:
        """Spread values of parts over their entries, where there are several parts: (rows, width)."""
        return by_part.repeat_interleave(torch.tensor(self._sizes(public)), dim=1) if self.layered else by_part

    def _least_met(self, variances: np.ndarray, view: View, public: Public, colluders: int) -> np.ndarray:
        """Least noise variance of the sum on any entry that the client contributes to: (clients, parts)."""
        mask = self._mask(public).cpu()
        rows = torch.as_tensor(variances)
        spread = self._spread_out(rows, public).expand(len(mask), mask.shape[1])
        total = (spread * mask).sum(dim=0)
        known = max(colluders, 1 if view == "peer" else 0)
        lost = known * rows.max(dim=0).values
        found = []
        for part, mine, own in zip(
            total.split(self._sizes(public)), mask.split(self._sizes(public), dim=1), range(rows.shape[1]), strict=True
        ):
            least = torch.where(mine, part, torch.inf).min(dim=1).values - lost[own]
            found.append(torch.maximum(least, rows[:, own].expand(len(mask))))
        return torch.stack(found, dim=1).numpy()


@dataclass(frozen=True)
class Number(Release):
    """`entries` numbers per client, each held to [low, high], centred, then noised.

    Centring halves the sensitivity: a client that is not there contributes the middle of the range.
    """

    low: float
    high: float
    share: float = field()
    every: int = 1
    entries: int = 1
    unit: ClassVar[Unit | None] = Unit.CLIENT

    def check(self) -> None:
        super().check()
        check_range(self, self.low, self.high)

    def width(self, public: Public) -> int:
        return self.entries

    def bounded(self, rows: Tensor, public: Public) -> Bounded:
        """Rows within the range, less its middle; what is not finite becomes the middle."""
        return hold_to_range(rows, self.low, self.high)

    def cover(self, width: int, allowance: Allowance, public: Public) -> Cover:
        deviation, bound = (
            torch.full((1, 1), one, dtype=torch.float64) for one in (self._deviation(allowance), self.sensitivity())
        )
        return Cover(deviation, bound, [width])

    def charge(self, allowance: Allowance, public: Public) -> Charge:
        cohort, colluders = allowance.of_clients.met(len(public.clients))
        variance = np.full((1, 1), self._deviation(allowance) ** 2)
        met = [unknown_variance(variance, view, cohort, colluders)[0, 0] for view in VIEWS]
        entries = self.entries if allowance.whole else 0
        return Charge(np.array([self.sensitivity()]), np.sqrt(np.array([met])), entries=entries, shares=cohort)

    def deviation(self, allowance: Allowance, public: Public) -> Tensor:
        return torch.full((self.entries,), self._deviation(allowance) * math.sqrt(len(public.clients)))

    def sensitivity(self) -> float:
        """Largest change of the sum of all entries together by one client: sqrt(entries) times half the range."""
        return math.sqrt(self.entries) * (self.high - self.low) / 2

    def centre(self) -> float:
        return (self.low + self.high) / 2

    def describe(self) -> str:
        what = "number" if self.entries == 1 else f"{self.entries} numbers"
        return f"{what} in [{self.low}, {self.high}], Gaussian noise, {self.share:.0%} of the budget"

    def _deviation(self, allowance: Allowance) -> float:
        return allowance.of_clients.of_message(self.share) * self.sensitivity()
