"""What carries no noise of its own: functions of earlier messages, and values that leave as they are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from sordino.privacy.allowance import Allowance
from sordino.privacy.release.base import Bounded, Charge, Public, Release
from sordino.privacy.views import VIEWS


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

    def bounded(self, rows: Tensor, public: Public) -> Bounded:
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
        return Charge(np.ones(1), np.zeros((1, len(VIEWS))), reason=self.why)

    def describe(self) -> str:
        return f"without noise: {self.why}"
