"""Server optimizers: rules by which the server moves a model along the mean of the clients' updates.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2 (FedAdagrad, FedAdam, FedYogi); Hsu, Qi, Brown,
"Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification", 2019 (FedAvgM). Any
averaging method takes one: `--set server=adam`, and its settings as `--set server.rate=0.03`.

A server optimizer reads means that were noised and charged, and never data: it is post-processing and costs no privacy.
Its state is a dictionary of tensors shaped like the model, within the server's state, so that a run resumes with it.
All rules work entry by entry: several models, one row each, have one state each.

As in the papers, moments are not corrected for their bias towards their start; squares start at tau^2, the least that
Reddi et al. allow.

| paper | code |
|---|---|
| x_t, Delta_t | `model`, `change` |
| m_t, v_t | `state["momentum"]`, `state["squares"]` |
| eta, beta_1, beta_2, tau | `rate`, `beta1`, `beta2`, `tau` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from sordino.method import Positive
from sordino.util.selectable import Named

State = dict[str, Tensor]
Decay = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class ServerOptimizer:
    """A rule for the server's steps."""

    proportional: ClassVar[bool] = True
    """Whether a step is proportional to the changes, so that its length can be limited by their noise."""

    rate: Positive = 1.0
    """The server's learning rate, without unit: the length of a step relative to the mean update."""

    def begin(self, model: Tensor) -> State:
        """Return the state before the first step of `model`: a flat vector, or several models, one row each."""
        return {}

    def step(self, model: Tensor, change: Tensor, state: State, factor: float = 1.0) -> tuple[Tensor, State]:
        """Return the model after one step, and the state for the next one; nothing is changed in place.

        Args:
            model: A flat vector, or several models, one row each.
            change: Direction to move in, shaped like `model`: the noisy mean of updates, or minus a mean gradient.
            state: State after the last step, or from `begin`.
            factor: Factor of the rate in this step, where the rate has a schedule.
        """
        direction, state = self.direct(change, state)
        return model + self.rate * factor * direction, state

    def step_row(self, models: Tensor, row: int, change: Tensor, state: State) -> tuple[Tensor, State]:
        """Return several models and their state after a step of one of them; the others, and their state, stay.

        Args:
            models: Models, one row each.
            row: Row of the model that moves.
            change: Direction in which it moves: a flat vector.
            state: State of all models.
        """
        moved, own = self.step(models[row], change, {name: rows[row] for name, rows in state.items()})
        return _with_row(models, row, moved), {name: _with_row(state[name], row, own[name]) for name in state}

    def direct(self, change: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the direction of a step, which the rate multiplies, and the next state."""
        raise NotImplementedError


@dataclass(frozen=True)
class SGD(ServerOptimizer):
    """Plain averaging with a server rate; at a rate of 1 the model moves by the mean update itself."""

    def direct(self, change: Tensor, state: State) -> tuple[Tensor, State]:
        return change, state


@dataclass(frozen=True)
class Momentum(ServerOptimizer):
    """Momentum at the server: FedAvgM (Hsu et al. 2019), m_t = beta m_{t-1} + Delta_t."""

    rate: Positive = 0.3
    """The server's learning rate, without unit: in the long run a mean update moves the model by rate / (1 - beta)
    times itself, its noise included. Paper: 1."""
    beta: Decay = 0.9
    """Share of its momentum that the server keeps from round to round. Paper: tuned, from 0 to 0.997; Reddi et al.:
    0.9."""

    def begin(self, model: Tensor) -> State:
        return {"momentum": torch.zeros_like(model)}

    def direct(self, change: Tensor, state: State) -> tuple[Tensor, State]:
        momentum = self.beta * state["momentum"] + change
        return momentum, {"momentum": momentum}


@dataclass(frozen=True)
class Adaptive(ServerOptimizer):
    """A step length for each entry, from the squares of its changes: m_t / (sqrt(v_t) + tau) (Reddi et al. 2021)."""

    proportional: ClassVar[bool] = False

    beta1: Decay = 0.9
    """Decay of the mean of changes m_t, per round. Paper: 0.9."""
    tau: Positive = 1e-3
    """Degree of adaptivity, in the unit of a change: entries that change by much less share one step length. Paper:
    1e-3."""

    def begin(self, model: Tensor) -> State:
        return {"momentum": torch.zeros_like(model), "squares": torch.full_like(model, self.tau**2)}

    def direct(self, change: Tensor, state: State) -> tuple[Tensor, State]:
        momentum = self.beta1 * state["momentum"] + (1 - self.beta1) * change
        squares = self.accumulate(state["squares"], change.square())
        return momentum / (squares.sqrt() + self.tau), {"momentum": momentum, "squares": squares}

    def accumulate(self, squares: Tensor, square: Tensor) -> Tensor:
        """Return v_t from v_{t-1} (`squares`) and the `square` of the change."""
        raise NotImplementedError


@dataclass(frozen=True)
class Adagrad(Adaptive):
    """FedAdagrad: squares add up, so that steps shorten over the rounds."""

    rate: Positive = 0.1
    """The server's learning rate, in the unit of a parameter: about the length of an entry's first step. Paper: tuned,
    from 0.001 to 10."""
    beta1: Decay = 0.0
    """Decay of the mean of changes m_t, per round. Paper: 0."""

    def accumulate(self, squares: Tensor, square: Tensor) -> Tensor:
        return squares + square


@dataclass(frozen=True)
class Adam(Adaptive):
    """FedAdam: a running mean of squares."""

    rate: Positive = 0.03
    """The server's learning rate, in the unit of a parameter: about the length of an entry's step while its changes
    agree. Paper: tuned, from 0.001 to 10."""
    beta2: Decay = 0.99
    """Decay of the mean of squares v_t, per round. Paper: 0.99."""

    def accumulate(self, squares: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * squares + (1 - self.beta2) * square


@dataclass(frozen=True)
class Yogi(Adaptive):
    """FedYogi: squares move towards the last one by a share of that one, so that they fall slowly after large ones."""

    rate: Positive = 0.03
    """The server's learning rate, in the unit of a parameter: about the length of an entry's step while its changes
    agree. Paper: tuned, from 0.001 to 10."""
    beta2: Decay = 0.99
    """One less the share of a square by which v_t moves, per round. Paper: 0.99."""

    def accumulate(self, squares: Tensor, square: Tensor) -> Tensor:
        return squares - (1 - self.beta2) * square * torch.sign(squares - square)


OPTIMIZERS = {"sgd": SGD, "momentum": Momentum, "adagrad": Adagrad, "adam": Adam, "yogi": Yogi}
ServerRule = Annotated[ServerOptimizer, Named(OPTIMIZERS)]
"""Rule for the server's steps: `sgd` (averaging with a rate), `momentum` (FedAvgM), `adagrad`, `adam`, `yogi`."""


def _with_row(rows: Tensor, row: int, value: Tensor) -> Tensor:
    """Return a copy of `rows` with `value` as one of them."""
    return rows.index_copy(0, torch.tensor([row], device=rows.device), value.unsqueeze(0))
