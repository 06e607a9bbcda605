"""Control variates: what a client's drift away from everybody's direction is corrected by (SCAFFOLD)."""

from __future__ import annotations

from torch import Tensor


def reach(steps: Tensor | int, rate: float, momentum: float) -> Tensor | float:
    """How far a constant gradient of length one takes a model in so many steps of SGD: K eta without momentum.

    With momentum the k-th last gradient counts (1 - m^k) / (1 - m) times. The way that a model went, divided by this,
    is a weighted mean of the gradients on the way.
    """
    repeated = momentum * (1 - momentum**steps) / (1 - momentum)
    return rate * (steps - repeated) / (1 - momentum)
