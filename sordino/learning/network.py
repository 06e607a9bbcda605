"""`Learner`: a network as functions of one flat parameter vector. `Records`: a client's data as a training step sees it
(batches, gradients, Fisher information).

Both work for one client, and for many stacked clients under `torch.func.vmap`: steps are written for one client, and
`Records.stacked` decides how gradients are taken. `sordino.learning.descent` makes steps of them.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from sordino.errors import UserError
from sordino.learning.parameters import Layout, places_of
from sordino.learning.stacked import Chain
from sordino.learning.vmapped import under_vmap
from sordino.models.arrangement import arrange
from sordino.tasks import Task

if TYPE_CHECKING:
    from sordino.learning.per_record import Bookkeeper, Keeper
    from sordino.learning.singles import Singles

Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class Batch:
    """Some of a client's records."""

    x: Tensor
    y: Tensor
    index: Tensor
    """Places of these records among the client's own."""
    weight: Tensor | None
    """One for a record, zero for padding; None when all are records. Of persons, the share of each of their rows."""

    def is_real(self) -> Tensor | None:
        """Whether any of these is a record and no padding, a scalar tensor; None when all are."""
        weight = object.__getattribute__(self, "weight")
        return None if weight is None else weight.sum() > 0


class HandedBatch(Batch):
    """A batch that a loop over `Records.batches` is handed, and which notes what the loop looks at.

    Stacked clients are padded to one length with records that do not count: a loss or gradient that is taken by hand,
    without `weight`, would be of them too.
    """

    def __getattribute__(self, name: str) -> Any:
        if name in ("x", "y", "index", "weight"):
            self.__dict__.setdefault("looked_at", set()).add(name)
        return super().__getattribute__(name)

    def check(self) -> None:
        """Refuse to go on where padding was among the records and nobody asked which they are."""
        looked: set[str] = self.__dict__.get("looked_at", set())
        if object.__getattribute__(self, "weight") is not None and looked and "weight" not in looked:
            raise UserError(
                "The step goes through batches() and never looks at `batch.weight`: stacked clients are padded to one "
                "length, and padding would count as records. Take gradients with `data.gradient(model, batch)`, or "
                "multiply each record's loss by `batch.weight` where that is not None and divide by its sum."
            )


Loss = Callable[[Tensor, Batch], Tensor]
"""Function from outputs (records, width) and their batch to the loss of each record (records,)."""
Change = Callable[[Tensor, Tensor], Tensor]
"""Function from records and a random key for each to the records as a step shall see them."""


def mean_loss(losses: Tensor, batch: Batch) -> Tensor:
    """The mean over the records of a batch, padding left out."""
    if batch.weight is None:
        return losses.mean()
    return (losses * batch.weight).sum() / batch.weight.sum().clamp(min=1)


class Learner:
    """A network as functions of its flat parameter vector."""

    def __init__(self, module: nn.Module, task: Task, precision: Precision = "fp32") -> None:
        """Gradients are those of the loss of `task`.

        With `bf16` the network's layers compute in that format when gradients are taken for training; losses,
        parameters and gradients stay in float32, as does everything else."""
        self.written = module
        self.task = task
        self.precision = precision
        self.module = arrange(module)
        """The network as it is run for one client; its layers are those of the network as it was written."""
        self.layout = Layout.of(module)
        self._places = places_of(module)
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._recurrent = [layer for layer in module.modules() if isinstance(layer, nn.RNNBase)]
        self._bound: Tensor | None = None
        self.chain = Chain.of(module, task.slopes)
        self._keepers: dict[tuple[int, ...], Keeper] = {}

    def bind(self, flat: Tensor) -> None:
        """Make the network's parameters views of `flat`, so that changing it in place changes the network."""
        if self._bound is flat:
            return
        for parameter, piece in zip(self._parameters, self.layout.named(flat).values(), strict=True):
            parameter.data = piece
        for layer in self._recurrent:  # they hold on to the tensors that they were run with last
            layer._init_flat_weights()
        self._bound = flat

    def unbind(self, device: torch.device) -> None:
        """Remove the last model from the network, so that nobody finds there what another client has trained."""
        self.bind(torch.zeros(self.layout.size, device=device))

    def copied(self) -> Learner:
        """A learner with a deep copy of the network, which shares nothing with this one."""
        try:
            return Learner(copy.deepcopy(self.written), self.task, self.precision)
        except Exception as error:
            raise UserError(
                f"The network {type(self.written).__name__} cannot be copied ({error}), but clients train a copy, of "
                "which the server knows nothing: let it hold nothing but layers, parameters and plain values."
            ) from error

    def logits(self, flat: Tensor, x: Tensor) -> Tensor:
        """The network's output, as a differentiable function of `flat`."""
        named = self.layout.named(flat)
        parameters = {place: named[name] for place, name in self._places.items()}
        outputs: Tensor = functional_call(self.written, parameters, (x,), tie_weights=False)
        return outputs

    def stacked_logits(self, models: Tensor, x: Tensor) -> Tensor:
        """The outputs of many clients' models (or of one for all) on their records: (clients, records, width)."""
        with torch.no_grad():
            if len(models) == 1:
                return self.logits(models[0], x.flatten(0, 1)).unflatten(0, x.shape[:2])
            return self.chain.logits(models, x) if self.chain is not None else vmap(self.logits)(models, x)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The task's loss of each record of a batch."""
        return self.task.losses(outputs, batch.y)

    def gradient(self, flat: Tensor, batch: Batch, loss: Loss | None = None) -> Tensor:
        """The gradient of the batch's mean loss, for one client; `loss` is the task's unless another is given."""
        self.bind(flat)
        with torch.autocast(flat.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            logits = self.module(batch.x)
        total = mean_loss((loss or self.loss)(logits.to(flat.dtype), batch), batch)
        pieces = torch.autograd.grad(total, self._parameters, materialize_grads=True)  # zeros for what is not used
        return torch.cat([piece.reshape(-1) for piece in pieces])

    def stacked_gradient(self, flat: Tensor, batch: Batch, loss: Loss | None = None) -> Tensor:
        """`gradient` of one client under `vmap` over clients; a chain's task loss takes the faster way."""
        if self.chain is not None and loss is None:
            return self.chain.gradient(flat, batch.x, batch.y, batch.weight)

        def total(flat: Tensor) -> Tensor:
            return mean_loss((loss or self.loss)(self.logits(flat, batch.x), batch), batch)

        return grad(total)(flat)

    def squared_gradients(self, flat: Tensor, batch: Batch) -> Tensor:
        """The sum over the batch's records of the squared gradient of each record's loss."""

        if self.chain is not None:
            return self.chain.squares(flat, batch.x, batch.y, batch.weight)

        def one(flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return self.task.losses(self.logits(flat, x.unsqueeze(0)), y.unsqueeze(0)).squeeze(0)

        squares = vmap(grad(one), in_dims=(None, 0, 0))(flat, batch.x, batch.y).square()
        if batch.weight is not None:
            squares = squares * batch.weight.unsqueeze(1)
        return squares.sum(dim=0)

    def booked_squares(self, flat: Tensor, batch: Batch) -> Tensor:
        """`squared_gradients` for one client, by book-keeping where the network's layers allow it: much faster."""
        return self._squaring.squares(flat, batch)

    @functools.cached_property
    def _squaring(self) -> Bookkeeper | Singles:
        """Keeper for squared gradients, made on first use."""
        from sordino.learning.per_record import Bookkeeper
        from sordino.learning.singles import Singles

        try:
            return Bookkeeper(self)
        except UserError:
            return Singles(self)

    def keeper(self, shape: tuple[int, ...]) -> Keeper:
        """The keeper that takes gradients of single records of `shape`. It is made on first use, and refuses a network
        that cannot be run on one record at a time."""
        from sordino.learning.per_record import keeper_of

        if shape not in self._keepers:
            self._keepers[shape] = keeper_of(self, shape)
        return self._keepers[shape]

    def accuracy(self, flat: Tensor, x: Tensor, y: Tensor) -> float:
        """The task's score of the model `flat`, for classes its accuracy; `nan` when there are no records."""
        return self.loss_and_score(flat, x, y)[1]

    def loss_and_score(self, flat: Tensor, x: Tensor, y: Tensor) -> tuple[float, float]:
        """The mean loss and the task's score; `nan` when there are no records."""
        if len(y) == 0:
            return float("nan"), float("nan")
        self.bind(flat)
        self.module.eval()
        total, said = 0.0, []
        with torch.no_grad():
            for part, targets in zip(x.split(1000), y.split(1000), strict=True):
                outputs = self.module(part)
                total += float(self.task.summed_loss(outputs, targets))
                said.append(outputs)
        self.module.train()
        return total / len(y), float(self.task.scores(torch.cat(said), y))


@dataclass
class Records:
    """One client as its step sees it: its training records and the network's functions."""

    x: Tensor
    y: Tensor
    learner: Learner
    seed: int | Tensor
    """Seed of the order of the batches; one per client under `vmap`."""
    valid: Tensor | None = None
    """One for a record, zero for padding; None when all are records."""
    stacked: bool = False
    """Whether this runs under `vmap` over clients."""
    balanced: bool = False
    """Whether each class counts the same in the task's loss, by this client's own frequencies."""
    failure: ClassVar[None] = None
    """Always None: a step that holds the records themselves learns nothing more from a failure on them."""
    _epochs: int = field(default=0, init=False)

    @property
    def layout(self) -> Layout:
        """The layout of the flat vector."""
        return self.learner.layout

    @property
    def task(self) -> Task:
        """The task: its loss, output width and checks."""
        return self.learner.task

    @functools.cached_property
    def _weights(self) -> Tensor:
        """Weights at which each of the task's groups counts the same here."""
        return self.task.balance(self.y, self.weight)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The task's loss of each record, as it is trained: weighed where classes are `balanced`."""
        if not self.balanced:
            return self.task.losses(outputs, targets)
        return self.task.weighted_losses(outputs, targets, self._weights)

    def _balanced_loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return self.losses(outputs, batch.y)

    @property
    def count(self) -> Tensor:
        """Number of training records of the client, a scalar tensor: padding does not count."""
        if self.valid is None:
            return torch.tensor(float(len(self.y)), device=self.x.device)
        return self.valid.sum()

    @property
    def weight(self) -> Tensor:
        """One for a record, zero for padding."""
        if self.valid is not None:
            return self.valid
        first = self.y if self.y.dim() == 1 else self.y.flatten(1)[:, 0]  # of a sequence of targets
        return torch.ones_like(first, dtype=self.x.dtype)

    def afresh(self) -> Records:
        """A copy whose orders begin again with the first, so that a second model sees the same batches."""
        return replace(self)

    def batches(self, size: int, change: Change | None = None) -> Iterator[Batch]:
        """All records once, in a new order, `size` at a time; the last batch may be smaller.

        Stacked clients are padded to one length. `weight` of a batch is one for a record and zero for padding, or None
        where all are records. Whoever looks at the records of a padded batch must look at it too: `gradient` does.
        """
        order = self._order()
        x, y = self.x[order], self.y[order]
        if change is not None:
            x = change(x, scramble(self._numbers()[order] + 1))
        valid = None if self.valid is None else self.valid[order]
        for begin in range(0, len(self.y), size):
            part = slice(begin, begin + size)
            batch = HandedBatch(x[part], y[part], order[part], None if valid is None else valid[part])
            yield batch
            batch.check()

    def plain_epoch(self, flat: Tensor, size: int, rate: float) -> Tensor | None:
        """The model after an epoch of plain SGD, `size` records a step at the learning `rate`, for all stacked clients
        at once; None for networks with which that cannot be done."""
        chain = self.learner.chain
        if chain is None or self.balanced or not isinstance(self.seed, Tensor):  # under `vmap` every client has its own
            return None
        self._epochs += 1
        number = self._epochs

        def epoch(flat: Tensor, x: Tensor, y: Tensor, valid: Tensor | None, seed: Tensor) -> Tensor:
            order = order_by_keys(draw_keys(seed.unsqueeze(1), y.shape[1], number, y.device), valid)
            return chain.epoch(flat, x, y, valid, order, batch=size, rate=rate)

        return under_vmap(epoch, flat, self.x, self.y, self.valid, self.seed)

    def gradient(self, flat: Tensor, batch: Batch, loss: Loss | None = None) -> Tensor:
        """The gradient of the batch's mean loss at `flat`; `loss` is the task's unless another is given."""
        take = self.learner.stacked_gradient if self.stacked else self.learner.gradient
        return take(flat, batch, self._balanced_loss if loss is None and self.balanced else loss)

    def fisher(self, flat: Tensor, chunk: int | None = None) -> Tensor:
        """The diagonal of the empirical Fisher information: the mean squared gradient of one record's loss.

        `chunk` records are worked on at once: by default fewer for stacked clients, whose gradients may all be held.
        """
        chunk = chunk or (32 if self.stacked else 100)
        self.learner.module.eval()
        squares = self.learner.squared_gradients if self.stacked else self.learner.booked_squares
        total = torch.zeros_like(flat)
        for begin in range(0, len(self.y), chunk):
            part = slice(begin, begin + chunk)
            weight = None if self.valid is None else self.valid[part]
            batch = Batch(self.x[part], self.y[part], torch.empty(0), weight)
            total = total + squares(flat, batch)
        self.learner.module.train()
        return total / self.count

    def logits(self, flat: Tensor) -> Tensor:
        """Outputs of the model `flat` for each record, without dropout and without gradients."""
        self.learner.module.eval()
        if self.stacked:
            found = self.learner.logits(flat.detach(), self.x).detach()
        else:
            self.learner.bind(flat)
            with torch.no_grad():
                found = torch.cat([self.learner.module(part) for part in self.x.split(1000)])
        self.learner.module.train()
        return found

    def normals(self, count: int) -> Tensor:
        """`count` standard normal numbers for what a client draws for itself, equal for equal seeds.

        They follow from the seed and hide nothing: noise that is to protect what leaves is the gate's business.
        """
        places = 2 * torch.arange(count, device=self.x.device) + self.seed * 1_000_003
        first, second = (scramble(scramble(places + odd)).double() * 2.0**-63 for odd in (0, 1))
        radius = (-2 * first.clamp(min=2.0**-63).log()).sqrt()  # Box and Muller
        return (radius * torch.cos(2 * torch.pi * second)).to(self.x.dtype)

    def _order(self) -> Tensor:
        """A permutation that depends on the seed and the epoch; padding comes last."""
        self._epochs += 1
        return order_by_keys(self._numbers(), self.valid)

    def _numbers(self) -> Tensor:
        """A random key for each record, another in each epoch."""
        return draw_keys(self.seed, len(self.y), self._epochs, self.y.device)


def draw_keys(seed: int | Tensor, count: int, epoch: int, device: torch.device) -> Tensor:
    """int64 (count,): a random key for each record in an epoch, a function of the seed; (clients, count) for seeds of
    shape (clients, 1)."""
    return scramble(torch.arange(count, device=device) + seed * 1_000_003 + epoch * 7_919_000_000_003)


def order_by_keys(keys: Tensor, valid: Tensor | None) -> Tensor:
    """Places of records in the order of their keys, padding last; for each row of (clients, records) by itself."""
    if valid is not None:
        keys = torch.where(valid > 0, keys, torch.iinfo(torch.int64).max)
    return keys.argsort(stable=True)


def scramble(numbers: Tensor) -> Tensor:
    """A well-mixed non-negative 63-bit number for each number, equal for one client and for many stacked.

    The multiply-and-shift rounds of splitmix64; int64 products wrap, and the mask makes shifts logical.
    """
    mask = torch.iinfo(torch.int64).max
    mixed = numbers * -7046029254386353131
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        mixed = (mixed ^ ((mixed & mask) >> shift)) * factor
    return (mixed ^ ((mixed & mask) >> 31)) & mask
