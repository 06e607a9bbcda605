"""Proof that a network works on each record of a batch by itself, as book-keeping presumes.

The network's code is traced once into a graph of layers and functions (`torch.fx`), and every node must be one of those
below that are known to keep record i of what goes in to record i of what comes out, whatever the number of records.
What has been proven is the graph, so the graph is what is run: the network's own code, which may look at the size of a
batch, at a counter or at what it has seen before, is not asked again.

Two sizes of batches are enough to see that reshaping keeps records in the first dimension. The target sizes are whole
numbers or sizes of a tensor of records, so the first of them grows with the number of records only if it is that number
times a constant, and that constant is one if it is right for 2 records and for 3.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from sordino.errors import UserError

SIZES = (2, 3)
"""Numbers of records for which shapes are worked out."""


class UnprovenError(UserError):
    """A network that is not known to work on each record by itself."""


def _always(layer: Any, rank: int) -> bool:
    return True


def _images(layer: Any, rank: int) -> bool:
    # With three dimensions torch takes the first for channels.
    return rank == 4


LAYERS: dict[type[nn.Module], Callable[[Any, int], bool]] = {
    nn.Linear: lambda layer, rank: rank >= 2,
    nn.Conv2d: _images,
    nn.GroupNorm: lambda layer, rank: rank >= 2,
    nn.LayerNorm: lambda layer, rank: rank > len(layer.normalized_shape),
    nn.Flatten: lambda layer, rank: layer.start_dim % rank >= 1,
    **dict.fromkeys((nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool2d, nn.Dropout2d), _images),
    **dict.fromkeys((nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Tanh, nn.Sigmoid), _always),
    **dict.fromkeys((nn.Dropout, nn.Identity), _always),
}
"""Layers that work on each record by itself, by exact type, with a check of the layer and of its inputs' number of
dimensions."""
ENTRYWISE = {
    *(torch.relu, torch.tanh, torch.sigmoid, torch.abs, torch.square, operator.neg, functional.relu),
    *(functional.leaky_relu, functional.elu, functional.gelu, functional.silu, functional.softplus, functional.dropout),
    *("relu", "tanh", "sigmoid", "abs", "square", "contiguous"),
}
"""Functions and methods of one tensor that look at one number at a time."""
POOLS = {functional.max_pool2d, functional.avg_pool2d, functional.adaptive_avg_pool2d, functional.adaptive_max_pool2d}
FLATTENING, RESHAPING = {"flatten", torch.flatten}, {"view", "reshape", torch.reshape}
ALONG = {"squeeze", "unsqueeze", "transpose", "mean", "sum", "amax", torch.mean, torch.sum, torch.amax}
"""Functions and methods that work along the dimensions they are given."""
ARITHMETIC = {operator.add, operator.sub, operator.mul, operator.truediv, torch.add, torch.sub, torch.mul, torch.div}


class _Tracer(fx.Tracer):
    """A tracer that looks into everything but the layers that are known."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in LAYERS


class _Shapes(fx.Interpreter):
    """Shapes of the nodes' outputs; None for nodes that give no tensor."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.shapes: dict[fx.Node, tuple[int, ...] | None] = {}

    def run_node(self, n: fx.Node) -> Any:
        found = super().run_node(n)
        self.shapes[n] = tuple(found.shape) if isinstance(found, Tensor) else None
        return found


def prove_recordwise(
    module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> fx.GraphModule:
    """Trace the network in its present mode into a graph that works on each record of `shape` by itself.

    It shares the layers of `module`; buffers are copied. UnprovenError says what is not known of it.
    """
    if has_hooks(module):
        raise UnprovenError("The network has hooks.")
    try:
        # On a copy: code that is run on stand-ins may leave them behind in the network.
        graph = fx.GraphModule(module, _Tracer().trace(copy.deepcopy(module)))
    except Exception as error:
        raise UnprovenError(f"The network's code cannot be traced: {_first_line(error)}") from error
    for node in graph.graph.find_nodes(op="get_attr"):
        _keep_constant(graph, str(node.target))
    shapes = [_shapes(graph, torch.zeros(records, *shape, dtype=dtype, device=device)) for records in SIZES]
    _Proof(graph, shapes).check()
    return graph


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def has_hooks(layer: nn.Module) -> bool:
    """Whether calling a layer does more than its type's `forward`."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return any(hooks) or "forward" in vars(layer)


def _keep_constant(graph: fx.GraphModule, name: str) -> None:
    """Replace a buffer by a copy of it, which nobody else can change."""
    *path, last = name.split(".")
    owner = graph.get_submodule(".".join(path))
    value = getattr(owner, last)
    if not isinstance(value, Tensor) or isinstance(value, nn.Parameter):
        raise UnprovenError(f"The network uses {name!r} outside of a layer.")
    setattr(owner, last, value.detach().clone())


def _shapes(graph: fx.GraphModule, x: Tensor) -> dict[fx.Node, tuple[int, ...] | None]:
    looked_at = _Shapes(graph)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            looked_at.run(x)
    except Exception as error:
        raise UnprovenError(f"The network fails on {len(x)} records: {_first_line(error)}") from error
    return looked_at.shapes


class _Proof:
    """A walk through a graph that tells nodes with records from sizes and constants."""

    def __init__(self, graph: fx.GraphModule, shapes: list[dict[fx.Node, tuple[int, ...] | None]]) -> None:
        self.graph, self.shapes = graph, shapes
        self.records: set[fx.Node] = set()
        self.sizes: set[fx.Node] = set()
        self.constants: set[fx.Node] = set()

    def check(self) -> None:
        """Raise UnprovenError at the first node that is not known to keep records apart."""
        for node in self.graph.graph.nodes:
            if node.op == "get_attr":
                self.constants.add(node)
            elif self._gives_sizes(node):
                self.sizes.add(node)
            elif node.op == "output":
                if not self._is_of_records(node.args[0]) or self._rank(node.args[0]) != 2:
                    raise UnprovenError("The network does not give one row of numbers for each record.")
            elif self._keeps_records(node) and self._has_rows(node):
                self.records.add(node)
            else:
                raise UnprovenError(f"It is not known whether {node.format_node()} keeps records apart.")

    def _is_of_records(self, value: Any) -> bool:
        return isinstance(value, fx.Node) and value in self.records

    def _rank(self, node: Any) -> int:
        shape = self.shapes[0][node]
        return 0 if shape is None else len(shape)

    def _has_rows(self, node: fx.Node) -> bool:
        """Whether a node has one row for each record, in batches of all sizes that were tried."""
        found = [shapes[node] for shapes in self.shapes]
        return all(shape is not None and shape[:1] == (n,) for shape, n in zip(found, SIZES, strict=True))

    def _gives_sizes(self, node: fx.Node) -> bool:
        first = node.args[0] if node.args else None
        if node.op == "call_method" and node.target == "size":
            return self._is_of_records(first)
        if node.op == "call_function" and node.target is getattr:
            return self._is_of_records(first) and node.args[1:] == ("shape",)
        picked = node.op == "call_function" and node.target is operator.getitem
        return picked and isinstance(first, fx.Node) and first in self.sizes

    def _keeps_records(self, node: fx.Node) -> bool:
        """Whether row i of a node's output follows from row i of its input alone."""
        if node.op == "placeholder":
            return not node.args and not self.records
        if node.op == "call_module":
            layer = self.graph.get_submodule(str(node.target))
            given = node.args[0] if len(node.args) == 1 and not node.kwargs else None
            plain = not has_hooks(layer) and not getattr(layer, "inplace", False)
            return self._is_of_records(given) and plain and LAYERS[type(layer)](layer, self._rank(given))
        if node.op not in ("call_function", "call_method") or self._is_in_place(node):
            return False
        if node.target in ARITHMETIC:
            return len(node.args) == 2 and not node.kwargs and self._may_be_combined(*node.args)
        return bool(node.args) and self._is_of_records(node.args[0]) and self._keeps_first_dimension(node)

    def _keeps_first_dimension(self, node: fx.Node) -> bool:
        """Whether row i of the result of a function or method follows from row i of its one tensor of records alone."""
        rank, target = self._rank(node.args[0]), node.target
        others = _flat([*node.args[1:], *node.kwargs.values()])
        if target in ENTRYWISE or target in POOLS:
            plain = not any(isinstance(one, fx.Node) for one in others)
            return plain and (target in ENTRYWISE or rank == 4)
        if target in FLATTENING:
            start = node.kwargs.get("start_dim", node.args[1] if len(node.args) > 1 else 0)
            return isinstance(start, int) and start % rank >= 1
        if target in ALONG:
            dims, dimensions = [one for one in others if type(one) is int], rank + (target == "unsqueeze")
            plain = all(isinstance(one, int) for one in others) and node.kwargs.keys() <= {"dim", "keepdim"}
            return plain and bool(dims) and all(one % dimensions >= 1 for one in dims)
        if target == "permute":
            return others[:1] == [0]
        sizes = all(isinstance(one, int) or (isinstance(one, fx.Node) and one in self.sizes) for one in others)
        return target in RESHAPING and sizes

    @staticmethod
    def _is_in_place(node: fx.Node) -> bool:
        """Whether a function may overwrite what a page has kept."""
        switch = {functional.dropout: 3, functional.elu: 2, functional.leaky_relu: 2}
        place = switch.get(node.target, 1 if node.target in (functional.relu, functional.silu) else None)  # type: ignore[arg-type]
        return bool(node.kwargs.get("inplace")) or (place is not None and len(node.args) > place)

    def _may_be_combined(self, one: Any, other: Any) -> bool:
        """Whether elementwise arithmetic of two values never combines rows of different records."""
        both = [value for value in (one, other) if self._is_of_records(value)]
        rest = [value for value in (one, other) if not self._is_of_records(value)]
        if not both or any(self._rank(value) != self._rank(both[0]) for value in both):
            return False
        return all(
            isinstance(value, int | float) or (value in self.constants and self._rank(value) < self._rank(both[0]))
            for value in rest
        )


def _flat(values: Any) -> list[Any]:
    """Values in nested lists and tuples, one after the other."""
    if isinstance(values, list | tuple):
        return [one for value in values for one in _flat(value)]
    return [values]
