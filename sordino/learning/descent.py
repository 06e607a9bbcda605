"""Local gradient descent: SGD or Adam on a flat vector, for one client in place and for many stacked ones."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from sordino.learning.network import Batch, Change, Loss, Records

Optimizer = Literal["sgd", "adam"]


@dataclass
class InPlace:
    """An optimizer's steps on one flat vector, fused and without temporaries."""

    optimizer: Optimizer
    rate: float
    momentum: float = 0.0
    memory: tuple[Tensor, ...] | None = field(default=None, init=False)

    def step(self, flat: Tensor, gradient: Tensor) -> Tensor:
        """`flat` after one step, changed in place."""
        if self.memory is None:
            self.memory = blank_memory(self.optimizer, self.momentum, gradient)
        if self.optimizer == "adam":
            adam(flat, gradient, self.memory, self.rate)
            return flat
        if self.memory:
            gradient = self.memory[0].mul_(self.momentum).add_(gradient)
        return flat.add_(gradient, alpha=-self.rate)

    def narrowed(self, flat: Tensor, places: Tensor) -> InPlace:
        """An optimizer for the entries of `flat` at `places` alone, with this one's memory of them."""
        if self.memory is None:
            self.memory = blank_memory(self.optimizer, self.momentum, flat)
        narrow = InPlace(self.optimizer, self.rate, self.momentum)
        narrow.memory = tuple(part[places] if part.dim() else part for part in self.memory)
        return narrow

    def take_back(self, narrow: InPlace, places: Tensor) -> None:
        """Copy the memory of the optimizer for the entries at `places` back into this one."""
        for whole, part in zip(self.memory or (), narrow.memory or (), strict=True):
            if whole.dim():
                whole[places] = part


def blank_memory(optimizer: Optimizer, momentum: float, gradient: Tensor) -> tuple[Tensor, ...]:
    """Optimizer state before the first step: zeros like `gradient` for each moment, and Adam's count of steps."""
    if optimizer == "adam":
        return torch.zeros_like(gradient), torch.zeros_like(gradient), torch.zeros_like(gradient.sum())
    return (torch.zeros_like(gradient),) if momentum else ()


@dataclass(frozen=True)
class Tether:
    """The gradient of a proximal penalty: on the distance of some entries from where they started.

    It points away from the start and has the length `force(distance)`; at the start itself it is zero.
    """

    start: Tensor
    mask: Tensor
    """One for the entries that count, zero for the others."""
    force: Callable[[Tensor], Tensor | float]

    def __call__(self, model: Tensor) -> Tensor:
        difference = (model - self.start) * self.mask
        return difference * self._factor(difference)

    def add_to(self, gradient: Tensor, model: Tensor) -> None:
        """Add it to `gradient` in place, for one client."""
        difference = model - self.start
        difference.index_fill_(0, self._others, 0)
        factor = self._factor(difference)
        if gradient.device.type == "cpu":
            gradient.add_(difference, alpha=float(factor))
        else:  # reading the number would wait for all that the device has to do
            gradient.addcmul_(difference, factor)

    def at(self, places: Tensor) -> Tether:
        """The penalty on the entries at `places` alone; all that the mask counts must be among them."""
        return Tether(self.start[places], self.mask[places], self.force)

    @functools.cached_property
    def _others(self) -> Tensor:
        return (self.mask == 0).nonzero().squeeze(1)

    def _factor(self, difference: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(difference)
        return self.force(length) / length.clamp(min=1e-12)


Pull = Callable[[Tensor], Tensor]
"""A model to the gradient of a penalty on it."""
Probe = Callable[[Tensor, Tensor], Tensor]
"""A model and its gradient to the point at which the step's gradient is taken instead."""


@dataclass
class Descent:
    """Local gradient descent at one client. It remembers momentum from one epoch to the next."""

    records: Records
    optimizer: Optimizer
    rate: float
    """The learning rate."""
    batch: int
    """Number of records that a step sees."""
    momentum: float = 0.0
    """Momentum of SGD; Adam has its own decays, 0.9 and 0.999."""
    change: Change | None = None
    """Change of records before a step sees them; None for none."""
    memory: tuple[Tensor, ...] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._alone = InPlace(self.optimizer, self.rate, self.momentum)

    def epoch(
        self,
        flat: Tensor,
        loss: Loss | None = None,
        mask: Tensor | None = None,
        pull: Pull | None = None,
        probe: Probe | None = None,
    ) -> Tensor:
        """The model after one pass over the records from `flat`, which is left as it is.

        Args:
            flat: the model to start from, (parameters,).
            loss: the loss of each record; None for the task's, for which stacked clients have a faster way.
            mask: one for the entries that may move, zero for the others; None where all may.
            pull: gradient of a penalty on the model, added to that of the loss.
            probe: the point at which the loss's gradient is taken, if not at the model itself.
        """
        if not self.records.stacked:
            return self._epoch_alone(flat.clone(), loss, mask, pull, probe)
        if loss is mask is pull is probe is self.change is None and self._is_plain():
            whole = self.records.plain_epoch(flat, self.batch, self.rate)
            if whole is not None:
                return whole
        for batch in self.batches():
            gradient = self._gradient(flat, batch, loss, probe)
            if pull is not None:
                gradient = gradient + pull(flat)
            if mask is not None:
                gradient = gradient * mask
            flat = self._step(flat, gradient, batch)
        return flat

    def batches(self) -> Iterator[Batch]:
        """All records once, in a new order, as steps shall see them, `batch` at a time.

        A batch has `x`, `y`, the places of its records (`index`) and their `weight`: one for a record and zero for the
        padding of stacked clients, or None where all are records. `data.gradient(model, batch)` is the gradient of the
        mean loss, padding left out; a loss or gradient taken by hand must use `weight` itself, and a loop that looks at
        the records of a padded batch but never at `weight` is refused.
        """
        return self.records.batches(self.batch, self.change)

    def step(self, flat: Tensor, gradient: Tensor, batch: Batch) -> Tensor:
        """The model after one step with a gradient taken on `batch`; `flat` may be changed in place.

        For methods whose models are trained side by side, batch by batch.
        """
        return self._step(flat, gradient, batch) if self.records.stacked else self._alone.step(flat, gradient)

    def _is_plain(self) -> bool:
        return self.optimizer == "sgd" and not self.momentum

    def _epoch_alone(
        self, flat: Tensor, loss: Loss | None, mask: Tensor | None, pull: Pull | None, probe: Probe | None
    ) -> Tensor:
        """`epoch` for one client: `flat` is changed in place, and entries that do not move are not touched."""
        moving = None if mask is None else mask.nonzero().squeeze(1)
        if moving is not None and 2 * len(moving) < len(flat) and (pull is None or isinstance(pull, Tether)):
            return self._epoch_of_few(flat, loss, moving, pull, probe)
        still = None if mask is None else (mask == 0).nonzero().squeeze(1)
        for batch in self.batches():
            gradient = self._gradient(flat, batch, loss, probe)
            if isinstance(pull, Tether):
                pull.add_to(gradient, flat)
            elif pull is not None:
                gradient += pull(flat)
            if still is not None:
                gradient.index_fill_(0, still, 0)
            flat = self._alone.step(flat, gradient)
        return flat

    def _epoch_of_few(
        self, flat: Tensor, loss: Loss | None, moving: Tensor, pull: Tether | None, probe: Probe | None
    ) -> Tensor:
        """`_epoch_alone` where few entries move: the optimizer and the penalty see only those at `moving`."""
        few, tether = flat[moving], None if pull is None else pull.at(moving)
        narrow = self._alone.narrowed(flat, moving)
        for batch in self.batches():
            gradient = self._gradient(flat, batch, loss, probe)[moving]
            if tether is not None:
                tether.add_to(gradient, few)
            few = narrow.step(few, gradient)
            flat[moving] = few
        self._alone.take_back(narrow, moving)
        return flat

    def _gradient(self, flat: Tensor, batch: Batch, loss: Loss | None, probe: Probe | None) -> Tensor:
        """The gradient of the batch's mean loss at the model, or at the point to which `probe` goes from there."""
        gradient = self.records.gradient(flat, batch, loss)
        return gradient if probe is None else self.records.gradient(probe(flat, gradient), batch, loss)

    def _step(self, flat: Tensor, gradient: Tensor, batch: Batch) -> Tensor:
        """One step of stacked clients."""
        if self.memory is None:
            self.memory = blank_memory(self.optimizer, self.momentum, gradient)
        moved, memory = self._stacked(flat, gradient)
        active = batch.is_real()
        if active is not None:  # a client whose records are used up stands still
            moved = torch.where(active, moved, flat)
            memory = tuple(torch.where(active, new, old) for new, old in zip(memory, self.memory, strict=True))
        self.memory = memory
        return moved

    def _stacked(self, flat: Tensor, gradient: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Model and memory after one step, nothing changed in place: `vmap` demands that."""
        memory = self.memory or ()
        if self.optimizer == "adam":
            first, second, count = memory
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient.square()
            count = count + 1
            scale = (second / (1 - 0.999**count)).sqrt() + 1e-8
            return flat - self.rate * (first / (1 - 0.9**count)) / scale, (first, second, count)
        if memory:
            gradient = torch.add(gradient, memory[0], alpha=self.momentum)
        return torch.add(flat, gradient, alpha=-self.rate), (gradient,) if memory else ()


def adam(flat: Tensor, gradient: Tensor, memory: tuple[Tensor, ...], rate: float) -> None:
    """One step of Adam (betas 0.9 and 0.999) on a flat vector and its memory (first, second, count), in place."""
    first, second, count = memory
    if torch._C._functorch.is_batchedtensor(flat):  # many clients under `vmap`, which knows no fused step
        count.add_(1)
        first.mul_(0.9).add_(gradient, alpha=0.1)
        second.mul_(0.999).add_(gradient.square(), alpha=0.001)
        grown, squared = (-torch.expm1(count * math.log(beta)) for beta in (0.9, 0.999))
        flat.sub_((first / grown).div_((second / squared).sqrt_().add_(1e-8)).mul_(rate))
        return
    torch._fused_adam_(
        [flat],
        [gradient],
        [first],
        [second],
        [],
        [count.add_(1)],
        lr=rate,
        beta1=0.9,
        beta2=0.999,
        weight_decay=0.0,
        eps=1e-8,
        amsgrad=False,
        maximize=False,
    )
