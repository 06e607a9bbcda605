"""The kinds of thing that may leave a client, and what each costs.

A release says how its value is bounded (`bounded`), by how much one client can move it (`sensitivity`, in
the L2 norm, against a client that contributes nothing) and which share of the round's budget it takes. The
gate does the rest. Several releases of one round cost one Gaussian of multiplier (sum 1/z_g^2)^(-1/2), so a
release with share a of a round with multiplier z gets the multiplier z_g = z / sqrt(a).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

Public = Mapping[str, Any]
"""What the server broadcast: public names to values. Bounds may be read from here, never from a client."""


@dataclass(frozen=True)
class Bounded:
    """Values of several clients, one row each, after bounding."""

    rows: Tensor
    rejected: int
    """How many values were not finite and became a null contribution."""


@dataclass(frozen=True)
class Update:
    """One vector per client, scaled down to L2 norm `clip` where it is longer, then noised.

    `clip` is a number, or the name of a broadcast value.
    """

    clip: float | str
    share: float = 1.0
    private: ClassVar[bool] = True

    def sensitivity(self, public: Public) -> float:
        return bound(self.clip, public)

    def bounded(self, rows: Tensor, public: Public) -> Bounded:
        clip = self.sensitivity(public)
        norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        finite = torch.isfinite(norms)
        # The shrinking by 2^-22 makes up for float32 rounding: the norm after clipping is never above clip.
        scale = torch.where(norms > clip, clip / norms * (1 - 2**-22), torch.ones_like(norms))
        clipped = rows * scale.to(rows.dtype).unsqueeze(1)
        extreme = scale < 2**-100  # such a scale is too small for float32 to hold it exactly
        if extreme.any():
            clipped[extreme] = (rows[extreme].double() * scale[extreme].unsqueeze(1)).to(rows.dtype)
        clipped[~finite] = 0.0
        return Bounded(clipped, int((~finite).sum()))

    def centre(self) -> float:
        """What the server adds to a mean of rows: an update is centred on zero."""
        return 0.0

    def describe(self) -> str:
        return f"vector, L2 norm at most {self.clip}, Gaussian noise"


@dataclass(frozen=True)
class Number:
    """One number per client, held to [low, high], centred, then noised.

    Centring halves the sensitivity: a client that is not there contributes the middle of the range.
    """

    low: float
    high: float
    share: float
    private: ClassVar[bool] = True

    def sensitivity(self, public: Public) -> float:
        return (self.high - self.low) / 2

    def bounded(self, rows: Tensor, public: Public) -> Bounded:
        finite = torch.isfinite(rows)
        held = torch.where(finite, rows, torch.full_like(rows, self.centre())).clamp(self.low, self.high)
        return Bounded(held - self.centre(), int((~finite).sum()))

    def centre(self) -> float:
        return (self.low + self.high) / 2

    def describe(self) -> str:
        return f"number in [{self.low}, {self.high}], Gaussian noise, {self.share:.0%} of the budget"


@dataclass(frozen=True)
class Bare:
    """A value that leaves without noise although it depends on data: epsilon is infinite, for reason `why`."""

    why: str
    share: float = 0.0
    private: ClassVar[bool] = False

    def sensitivity(self, public: Public) -> float:
        return float("inf")

    def bounded(self, rows: Tensor, public: Public) -> Bounded:
        finite = torch.isfinite(rows).all(dim=1)
        kept = rows.clone()
        kept[~finite] = 0.0
        return Bounded(kept, int((~finite).sum()))

    def centre(self) -> float:
        return 0.0

    def describe(self) -> str:
        return f"without noise: {self.why}"


Release = Update | Number | Bare
Releases = Mapping[str, Release]


def bound(value: float | str, public: Public) -> float:
    """A bound as a number: itself, or the broadcast value it names."""
    return float(public[value]) if isinstance(value, str) else float(value)


Step = TypeVar("Step", bound=Callable[..., Any])


def sends(declare: Callable[[Any], Releases]) -> Callable[[Step], Step]:
    """Declare what leaves a client beside the code that computes it.

    `declare` maps the method (its hyper-parameters) to the releases of the decorated step. A key that the
    step returns and `declare` does not name raises at the gate.
    """

    def decorate(step: Step) -> Step:
        step.releases = declare  # type: ignore[attr-defined]
        return step

    return decorate
