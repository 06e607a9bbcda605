"""Gradients of single records of any network: the gradient of one record as a graph, run for many under `vmap`.

The network's code is run once, on one record without values, and what it computes is written down as a graph of tensor
operations: forward pass, loss and backward pass. Under `torch.func.vmap` that graph is a function of one record and the
model and of nothing else. Whatever the code does with a batch (attention over it, sums along it, a look at its size),
with a cache or with a branch on values, it meets one record at a time here or cannot be written down, which is told.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vmap

from sordino.errors import UserError
from sordino.learning.network import Batch, Learner
from sordino.learning.pages import rounding
from sordino.learning.parameters import Layout
from sordino.learning.vmapped import obstacle

HELD = 2**24
"""Most numbers of gradients held at once: 64 MiB."""
TOGETHER = 256
"""Most records worked on at once."""


@dataclass(frozen=True)
class FormedBook:
    """The gradients of some records of a batch, each formed (the first way of adding up in `pages`)."""

    layout: Layout
    gradients: Tensor
    """(records, parameters), of one precision."""
    most: int
    """Number of records of the whole batch: each adds one more rounding to its sum."""

    def part_norms(self, thresholds: int) -> Tensor:
        """Upper bounds of each record's contribution to a weighted sum, over its weight: for each tensor (records,
        tensors) where `thresholds` is the number of tensors, otherwise for each layer (records, layers)."""
        layers = self.layout.layers
        sizes = self.layout.sizes if thresholds > len(layers) else layers
        parts = self.gradients.split(sizes, dim=1)
        norms = torch.stack([torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in parts], dim=1)
        return norms * (1 + rounding(self.most + 8, self.gradients) + rounding(self.layout.size, norms))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The flat sum of the records' gradients times their weights: (records,), (records, layers) or
        (records, tensors)."""
        weights = weights.to(self.gradients.dtype)
        by_part = weights.unsqueeze(1) if weights.dim() == 1 else weights
        parts = self.gradients.split(self.layout.parts(by_part.shape[1]), dim=1)
        found = []
        for weight, part in zip(by_part.unbind(dim=1), parts, strict=True):
            # Zero times NaN is not zero.
            found.append(weight @ torch.where(weight.unsqueeze(1) != 0, part, 0.0))
        return torch.cat(found)

    def blank(self, records: Tensor) -> None:
        """Forget the gradients of some records, a boolean for each: they are zero from now on."""
        self.gradients[records] = 0.0

    def sum_of_squares(self) -> Tensor:
        """The flat sum over records of squared gradients."""
        return self.gradients.square().sum(dim=0)


class Singles:
    """Forms the gradients of single records of one network."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self._graphs: dict[tuple[object, ...], Callable[..., Tensor]] = {}

    def books(self, flat: Tensor, batch: Batch) -> Iterator[FormedBook]:
        """The gradients of a batch at `flat`, of as many records at once as fit into memory."""
        one, layout = self._gradient(flat, batch), self.learner.layout
        size = max(1, min(TOGETHER, HELD // layout.size))
        for x, y in zip(batch.x.split(size), batch.y.split(size), strict=True):
            with torch.no_grad():
                gradients = vmap(one, in_dims=(None, 0, 0), randomness="different")(flat, x, y)
            yield FormedBook(layout, gradients, len(batch.y))

    def squares(self, flat: Tensor, batch: Batch) -> Tensor:
        """The flat sum over a batch of the squared gradients of single records at `flat`."""
        return torch.stack([book.sum_of_squares() for book in self.books(flat, batch)]).sum(dim=0)

    def logits(self, flat: Tensor, x: Tensor) -> Tensor:
        """Logits of the model `flat` for each record, without dropout and without gradients."""
        self.learner.module.eval()
        try:
            one = self._logits(flat, x)
            with torch.no_grad():
                each = vmap(one, in_dims=(None, 0), randomness="different")
                return torch.cat([each(flat, part) for part in x.split(TOGETHER)])
        finally:
            self.learner.module.train()

    def _gradient(self, flat: Tensor, batch: Batch) -> Callable[..., Tensor]:
        """The gradient of one record's loss, as a function of the model, the record and its target."""

        def one(flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
            leaf = flat.detach().requires_grad_()
            alone = Batch(x.unsqueeze(0), y.unsqueeze(0), y.unsqueeze(0), None)
            total = self.learner.loss(self.learner.logits(leaf, alone.x), alone).sum()
            return torch.autograd.grad(total, leaf)[0]

        return self._graph(one, "gradient", flat, batch.x[0], batch.y[0])

    def _logits(self, flat: Tensor, x: Tensor) -> Callable[..., Tensor]:
        def one(flat: Tensor, x: Tensor) -> Tensor:
            return self.learner.logits(flat, x.unsqueeze(0)).squeeze(0)

        return self._graph(one, "logits", flat, x[0])

    def _graph(self, function: Callable[..., Tensor], purpose: str, *example: Tensor) -> Callable[..., Tensor]:
        """A function as a graph, traced on first use."""
        looks = [(tuple(one.shape), one.dtype, one.device) for one in example]
        key = (purpose, self.learner.module.training, *looks)
        if key not in self._graphs:
            self._graphs[key] = _trace(self.learner.written, function, example)
        return self._graphs[key]


class PersonKeeper(Singles):
    """Forms the gradients of persons: of the mean loss over the rows of each, so that all of them together are limited
    once. Batches hold (persons, rows, ...) records and (persons, rows) targets; `weight` holds the share of each row in
    its person's mean, zero for padding."""

    def books(self, flat: Tensor, batch: Batch) -> Iterator[FormedBook]:
        """The gradients of a batch at `flat`, of as many persons at once as fit into memory."""
        assert batch.weight is not None
        one, layout = self._gradient(flat, batch), self.learner.layout
        size = max(1, min(TOGETHER, HELD // layout.size))
        for x, y, shares in zip(*(part.split(size) for part in (batch.x, batch.y, batch.weight)), strict=True):
            with torch.no_grad():
                gradients = vmap(one, in_dims=(None, 0, 0, 0), randomness="different")(flat, x, y, shares)
            yield FormedBook(layout, gradients, len(batch.y))

    def _gradient(self, flat: Tensor, batch: Batch) -> Callable[..., Tensor]:
        """The gradient of one person's loss, as a function of the model, its rows, their targets and shares."""
        assert batch.weight is not None

        def one(flat: Tensor, x: Tensor, y: Tensor, shares: Tensor) -> Tensor:
            leaf = flat.detach().requires_grad_()
            rows = Batch(x, y, y, None)
            losses = self.learner.loss(self.learner.logits(leaf, x), rows)
            return torch.autograd.grad((losses * shares).sum(), leaf)[0]

        return self._graph(one, "gradient", flat, batch.x[0], batch.y[0], batch.weight[0])


def _trace(module: nn.Module, function: Callable[..., Tensor], example: tuple[Tensor, ...]) -> Callable[..., Tensor]:
    """Trace a function of a network into a graph of tensor operations; UserError where it depends on values."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # Stand-ins without values: code that looks at values cannot be written down, instead of being written down wrongly.
    stand_ins = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    inputs = [stand_ins.from_tensor(tensor.detach(), static_shapes=True) for tensor in example]
    try:
        with _plain_kernels(), torch.random.fork_rng(devices=[]):
            graph = make_fx(function, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*inputs)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"The network {type(module).__name__} cannot be run for one record at a time, as it must be where records "
            f"are protected: {obstacle(error)}."
        ) from error
    # A record among others may lie in memory otherwise than a record alone.
    for node in graph.graph.nodes:
        if node.target in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
            node.target = torch.ops.aten.reshape.default
    graph.recompile()
    # What the network holds besides its trainable parameters, as it was at this moment.
    for node in graph.graph.find_nodes(op="get_attr"):
        constant = getattr(graph, node.target)
        delattr(graph, node.target)
        graph.register_buffer(node.target, constant.detach().clone())
    return graph


@contextlib.contextmanager
def _plain_kernels() -> Iterator[None]:
    """Run plain operations, which `vmap` batches, instead of fused ones, which it would run record by record."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    fast, fused = torch.backends.mha.get_fastpath_enabled(), torch._C._get_mkldnn_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    torch._C._set_mkldnn_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        torch._C._set_mkldnn_enabled(fused)
