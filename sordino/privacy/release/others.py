"""What carries no noise of its own: functions of earlier messages, and values that leave as they are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from sordino.privacy.allowance import Allowance
from sordino.privacy.release.base import Bounded, Charge, Public, Release, Releases


@dataclass(frozen=True)
class Derived(Release):
    """A client's public state `state`: a function of what it has sent before, so it costs the server nothing new.

    Whoever else learns it learns something about single messages: once the server reads it, everybody pays the server's
    price for all that its owner has sent so far. `bits` is how many bits an entry takes on the wire.
    """

    state: str = field()
    bits: int = 32
    tells: ClassVar[Literal["nothing", "itself", "everything"]] = "everything"

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
    private: ClassVar[bool] = False

    def charge(self, allowance: Allowance, public: Public) -> Charge:
        return Charge.infinite(self.why)

    def describe(self) -> str:
        return f"without noise: {self.why}"


@dataclass(frozen=True)
class Unprotected(Release):
    """What a release is in a run without privacy: as wide and as often, but neither bounded nor noised.

    A mechanism that has thresholds still has them, and may adapt them: nothing is scaled down to them.
    """

    of: Release
    private: ClassVar[bool] = False

    @property
    def every(self) -> int:  # type: ignore[override]
        return self.of.every

    @property
    def once(self) -> bool:  # type: ignore[override]
        return self.of.once

    @property
    def made_of_gradients(self) -> bool:  # type: ignore[override]
        return self.of.made_of_gradients

    @property
    def state(self) -> str | None:  # type: ignore[override]
        return self.of.state

    @property
    def held_out(self) -> float:  # type: ignore[override]
        return self.of.held_out

    @property
    def separate(self) -> bool:  # type: ignore[override]
        return self.of.separate

    def width(self, public: Public) -> int | None:
        return self.of.width(public)

    def opened(self, value: Any, public: Public) -> Tensor:
        return self.of.opened(value, public)

    def unbounded(self, rows: Tensor, public: Public) -> Bounded:
        return self.of.unbounded(rows, public)

    def charge(self, allowance: Allowance, public: Public) -> Charge:
        return Charge.infinite('privacy = "none": everything leaves as it is, neither clipped nor noised', general=True)

    def deviation(self, allowance: Allowance, public: Public) -> Tensor:
        return torch.zeros(self.width(public) or 1)

    def thresholds(self, public: Public) -> Tensor | None:
        return self.of.thresholds(public)

    def sources(self) -> tuple[str, ...]:
        return self.of.sources()

    def message_bytes(self, width: int, public: Public) -> int:
        return self.of.message_bytes(width, public)

    def describe(self) -> str:
        return f"as it is, neither clipped nor noised; in a private run: {self.of.describe()}"


def unprotected(releases: Releases) -> Releases:
    """What leaves in a run without privacy; what leaves bare anyway keeps its own reason."""
    return {name: Unprotected(release) if release.private else release for name, release in releases.items()}
