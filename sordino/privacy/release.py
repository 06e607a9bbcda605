"""The kinds of thing that may leave a client, and what each costs.

A release says how its value is bounded (`bounded`), how the noise is spread over its coordinates
(`deviations`) and which share of the round's budget it takes. The gate does the rest. Several releases of one
round cost one Gaussian of multiplier (sum 1/z_g^2)^(-1/2), so a release with share a of a round with multiplier
z gets the multiplier z_g = z / sqrt(a).

Bounds are read from what is public (`Public`): what the server broadcast, and what a client may remember of
what it has already sent. They are never read from a client's data or private state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Public:
    """What bounds and noise may depend on."""

    message: Mapping[str, Any]
    """What the server broadcast."""
    states: Mapping[str, Tensor] = field(default_factory=dict)
    """The clients' public states, one row per client: functions of what they have sent before."""
    layers: Sequence[int] = ()
    """How many parameters each layer of the network has."""

    def rows(self, name: str | float) -> Tensor:
        """A bound by its name (or as it is), one row per client, or one row for all of them; float64."""
        if isinstance(name, str) and name in self.states:
            return self.states[name].double().reshape(len(self.states[name]), -1)
        value = self.message[name] if isinstance(name, str) else name
        return torch.as_tensor(value, dtype=torch.float64).reshape(1, -1)


@dataclass(frozen=True)
class Bounded:
    """Values of several clients, one row each, after bounding."""

    rows: Tensor
    rejected: int
    """How many values were not finite and became a null contribution."""


@dataclass(frozen=True)
class Update:
    """One vector per client, scaled down to L2 norm `clip` where it is longer, then noised.

    `clip` is a number, or the name of a public value: one threshold for the whole vector, or, when `layered`,
    one for each layer of the network. With layers, `spread` says how their noise is weighed at equal cost:
    `energy` makes the noise of all layers together as small as it can be, `proportional` gives each layer noise
    in proportion to its threshold. `at` names a public 0/1 vector: nothing leaves, and no noise is added, where
    it is zero.
    """

    clip: float | str
    share: float = 1.0
    layered: bool = False
    spread: Literal["energy", "proportional"] = "energy"
    at: str | None = None
    private: ClassVar[bool] = True

    def bounded(self, rows: Tensor, public: Public) -> Bounded:
        """Rows whose parts are within their thresholds; a row that is not finite becomes zero."""
        kept = rows if self.at is None else rows * public.states[self.at].to(rows.dtype)
        parts = kept.split(self._sizes(rows.shape[1], public), dim=1)
        norms = torch.stack([lengths(part) for part in parts], dim=1)
        finite = torch.isfinite(norms).all(dim=1)  # no float32 vector is too long for float64
        rejected = int((~finite).sum())
        if rejected:
            kept = torch.where(finite.unsqueeze(1), kept, torch.zeros_like(kept))
            norms = torch.where(finite.unsqueeze(1), norms, torch.zeros_like(norms))
            parts = kept.split(self._sizes(rows.shape[1], public), dim=1)
        thresholds = public.rows(self.clip).to(norms.device)
        pieces = [shortened(part, norms[:, place], thresholds[:, place]) for place, part in enumerate(parts)]
        return Bounded(pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1), rejected)

    def deviations(self, multiplier: float, width: int, public: Public) -> Tensor:
        """The noise on each coordinate, for one message of multiplier `multiplier`: (clients or 1, width or 1)."""
        thresholds = public.rows(self.clip)
        if not self.layered:
            return multiplier * thresholds
        sizes = torch.tensor(self._sizes(width, public), dtype=torch.float64)
        if self.spread == "proportional":
            by_layer = multiplier * math.sqrt(len(sizes)) * thresholds
        else:  # privacy review, section 2, rule 3: s_l^2 = z^2 C_l (sum C_k sqrt(d_k)) / sqrt(d_l)
            weight = (thresholds * sizes.sqrt()).sum(dim=1, keepdim=True)
            by_layer = multiplier * (thresholds * weight / sizes.sqrt()).sqrt()
        return by_layer.repeat_interleave(sizes.long(), dim=1)

    def cost(self, deviations: Tensor, width: int, public: Public) -> float:
        """mu^2 of one message: the sum over layers of (threshold / noise)^2; the largest over clients."""
        sizes = torch.tensor(self._sizes(width, public))
        first = (sizes.cumsum(0) - sizes).clamp(max=deviations.shape[1] - 1)
        return float((public.rows(self.clip) / deviations[:, first]).square().sum(dim=1).max())

    def sensitivity(self, public: Public) -> float:
        """How far one client can move the sum, in the L2 norm; the largest over clients."""
        return float(public.rows(self.clip).square().sum(dim=1).sqrt().max())

    def size(self, width: int, public: Public) -> int:
        """Bytes of one message, the largest over clients: four for each coordinate that leaves."""
        return 4 * (width if self.at is None else int(public.states[self.at].sum(dim=1).max()))

    def centre(self) -> float:
        """What the server adds to a mean of rows: an update is centred on zero."""
        return 0.0

    def describe(self) -> str:
        """In words, for users."""
        parts = "each layer's L2 norm" if self.layered else "L2 norm"
        where = "" if self.at is None else ", on shared positions only"
        return f"vector, {parts} at most {self.clip}, Gaussian noise{where}"

    def _sizes(self, width: int, public: Public) -> list[int]:
        return list(public.layers) if self.layered else [width]


@dataclass(frozen=True)
class Number:
    """One number per client, held to [low, high], centred, then noised.

    Centring halves the sensitivity: a client that is not there contributes the middle of the range.
    """

    low: float
    high: float
    share: float
    every: int = 1
    """It is sent in the first round and then in every so-manyth one."""
    private: ClassVar[bool] = True

    def bounded(self, rows: Tensor, public: Public) -> Bounded:
        """Rows within the range, less its middle; what is not finite becomes the middle."""
        finite = torch.isfinite(rows)
        held = torch.where(finite, rows, torch.full_like(rows, self.centre())).clamp(self.low, self.high)
        return Bounded(held - self.centre(), int((~finite).sum()))

    def deviations(self, multiplier: float, width: int, public: Public) -> Tensor:
        """The noise on the number."""
        return torch.full((1, 1), multiplier * self.sensitivity(public), dtype=torch.float64)

    def cost(self, deviations: Tensor, width: int, public: Public) -> float:
        """mu^2 of one message."""
        return (self.sensitivity(public) / float(deviations)) ** 2

    def sensitivity(self, public: Public) -> float:
        """Half the range."""
        return (self.high - self.low) / 2

    def size(self, width: int, public: Public) -> int:
        """Bytes of one message."""
        return 4 * width

    def centre(self) -> float:
        """The middle of the range."""
        return (self.low + self.high) / 2

    def describe(self) -> str:
        """In words, for users."""
        return f"number in [{self.low}, {self.high}], Gaussian noise, {self.share:.0%} of the budget"


@dataclass(frozen=True)
class Average:
    """The mean of one number per validation record, each held to [low, high]; record level.

    The step hands over the single numbers; the gate holds, centres, averages over the public count, and noises.
    """

    low: float
    high: float
    share: float
    private: ClassVar[bool] = True

    def bounded(self, rows: Tensor, public: Public) -> Bounded:
        """The mean of each row, less the middle of the range."""
        finite = torch.isfinite(rows)
        held = torch.where(finite, rows, torch.full_like(rows, self.centre())).clamp(self.low, self.high)
        return Bounded((held - self.centre()).mean(dim=1, keepdim=True), int((~finite).sum()))

    def spread(self, records: int) -> float:
        """How far one of so many records can move the mean."""
        return (self.high - self.low) / 2 / records

    def size(self, width: int, public: Public) -> int:
        """Bytes of one message."""
        return 4

    def centre(self) -> float:
        """The middle of the range."""
        return (self.low + self.high) / 2

    def describe(self) -> str:
        """In words, for users."""
        return f"mean over validation records in [{self.low}, {self.high}], Gaussian noise"


@dataclass(frozen=True)
class Matrix:
    """The second-moment matrix of a client's records, each scaled down to norm one; record level.

    The step hands over the records (after a public projection); the gate bounds them, multiplies and adds symmetric
    Gaussian noise (AnalyzeGauss, Dwork et al. 2014): one record moves the matrix by at most one.
    """

    share: float
    private: ClassVar[bool] = True

    def bounded(self, rows: Tensor, public: Public) -> Bounded:
        """X^T X of one client's records (records, dimensions), as one row."""
        finite = torch.isfinite(rows).all(dim=1)
        kept = torch.where(finite.unsqueeze(1), rows, torch.zeros_like(rows))
        kept = shortened(kept, lengths(kept), torch.ones((), dtype=torch.float64))
        return Bounded((kept.t() @ kept).reshape(1, -1), int((~finite).sum()))

    def size(self, width: int, public: Public) -> int:
        """Bytes of one message: the matrix is symmetric, but sent whole."""
        return 4 * width

    def centre(self) -> float:
        """It is not centred."""
        return 0.0

    def describe(self) -> str:
        """In words, for users."""
        return "second-moment matrix of projected records, Gaussian noise"


@dataclass(frozen=True)
class Gradients:
    """What was computed from noisy gradients alone; record level.

    The step sees no records, only `data.gradient(...)`: each record's gradient scaled down to `clip` (one threshold,
    or, when `layered`, one for each layer), summed over a Poisson-sampled batch, noised, and divided by the expected
    batch size. `clip` is a number, or the name of a broadcast or of a public value of the client. What leaves is a
    function of these, so it leaves as it is; every step was charged.
    """

    clip: float | str
    layered: bool = False
    by_client: bool = False
    """Whether the broadcast `clip` holds one threshold for each client of the federation, by client number."""
    share: float = 1.0
    private: ClassVar[bool] = True

    def thresholds(self, message: Mapping[str, Any], client: int) -> Tensor:
        """The thresholds of one client: a vector of one, or of one for each layer."""
        value = message[self.clip] if isinstance(self.clip, str) else self.clip
        chosen = torch.as_tensor(value, dtype=torch.float64)
        return (chosen[client] if self.by_client else chosen).reshape(-1)

    def bounded(self, rows: Tensor, public: Public) -> Bounded:
        """Rows as they are; a row that is not finite becomes zero."""
        return as_they_are(rows)

    def size(self, width: int, public: Public) -> int:
        """Bytes of one message."""
        return 4 * width

    def centre(self) -> float:
        """It is not centred."""
        return 0.0

    def describe(self) -> str:
        """In words, for users."""
        return f"model trained on noisy gradients, each record's clipped to {self.clip}"


@dataclass(frozen=True)
class Derived:
    """A client's public state `state`: a function of what it has sent before, so it costs the server nothing new.

    When the server lets it into what it publishes (`published`), everybody learns something about the single
    messages it was computed from, and `of`, which names those releases, is charged to everybody as it is to the
    server. `bits` is how many bits an entry takes on the wire.
    """

    state: str
    of: tuple[str, ...]
    published: bool
    bits: int = 32
    share: float = 0.0
    private: ClassVar[bool] = True

    def size(self, width: int, public: Public) -> int:
        """Bytes of one message."""
        return math.ceil(width * self.bits / 8)

    def centre(self) -> float:
        """It is not centred."""
        return 0.0

    def describe(self) -> str:
        """In words, for users."""
        told = ", and shows in what the server publishes" if self.published else ""
        return f"computed from earlier noisy messages{told}"


@dataclass(frozen=True)
class Bare:
    """A value that leaves without noise although it depends on data: epsilon is infinite, for reason `why`."""

    why: str
    share: float = 0.0
    private: ClassVar[bool] = False

    def bounded(self, rows: Tensor, public: Public) -> Bounded:
        """Rows as they are; a row that is not finite becomes zero."""
        return as_they_are(rows)

    def size(self, width: int, public: Public) -> int:
        """Bytes of one message."""
        return 4 * width

    def centre(self) -> float:
        """It is not centred."""
        return 0.0

    def describe(self) -> str:
        """In words, for users."""
        return f"without noise: {self.why}"


Release = Update | Number | Average | Matrix | Gradients | Derived | Bare
Releases = Mapping[str, Release]


def as_they_are(rows: Tensor) -> Bounded:
    """Rows unchanged; a row that is not finite becomes zero."""
    finite = torch.isfinite(rows).all(dim=1)
    return Bounded(torch.where(finite.unsqueeze(1), rows, torch.zeros_like(rows)), int((~finite).sum()))


def due(releases: Releases, round: int) -> Releases:
    """What leaves in a round. Where something does not, the others share its part of the round's budget."""
    left = {name: release for name, release in releases.items() if round % getattr(release, "every", 1) == 0}
    if len(left) == len(releases):
        return releases
    total = sum(release.share for release in left.values())
    return {n: replace(r, share=r.share / total) if r.share else r for n, r in left.items()}


def lengths(rows: Tensor) -> Tensor:
    """The L2 norm of each row, in float64."""
    return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)


def shortened(rows: Tensor, norms: Tensor, threshold: Tensor) -> Tensor:
    """Each row scaled down to its threshold where it is longer; `norms` are its `lengths`."""
    if not (norms > threshold).any():
        return rows
    # The shrinking by 2^-22 makes up for float32 rounding: the norm after clipping is never above the threshold.
    scale = torch.where(norms > threshold, threshold / norms * (1 - 2**-22), torch.ones_like(norms))
    clipped = rows * scale.to(rows.dtype).unsqueeze(1)
    extreme = scale < 2**-100  # such a scale is too small for float32 to hold it exactly
    if extreme.any():
        clipped[extreme] = (rows[extreme].double() * scale[extreme].unsqueeze(1)).to(rows.dtype)
    return clipped


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
