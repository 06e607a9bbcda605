"""Sum of records' gradients, each scaled down to the clipping threshold, interpreted or compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino.errors import UserError
from sordino.learning.network import Batch, Learner
from sordino.learning.pages import UNDERFLOW
from sordino.learning.parameters import flatten
from sordino.learning.per_record import Bookkeeper, Contributions
from sordino.tasks import Task
from sordino.util.processes import in_child

GAMMA = 0.01
"""Amount added to the length of a gradient that is normalised, so that short ones stay short (Bu, Wang, Zha, Karypis,
"Automatic Clipping", NeurIPS 2023: 0.01)."""
MIN_FACTOR = 2.0**-100
"""Smallest factor that is applied: below it float32 no longer holds the factor to its last bit."""
MAX_WEIGHT = 1e9
"""Largest weight of a record: more would be a way to write a threshold, and larger numbers may overflow."""


def clipped_sum(book: Contributions, clip: Tensor, normalised: bool = False) -> Tensor:
    """Flat sum of the records' gradients, each scaled down to the threshold, or in parts to one for each layer or
    tensor; `normalised` as for `clipping_factors`."""
    return book.weighted_sum(clipping_factors(book.part_norms(clip.shape[-1]), clip, normalised))


def clipping_factors(norms: Tensor, clip: Tensor, normalised: bool = False) -> Tensor:
    """Factor on each record's gradient: (records,) for one threshold, (records, parts) for one for each layer or
    tensor.

    `norms` holds what a record brings at the most, in each part: (records, parts). A record of which that is not known
    to be finite counts nothing, and neither does one that is 2^100 times too long. Of stacked clients both have one
    more dimension, the first: thresholds are (clients, 1) or (clients, parts). Where they are `normalised`, gradients
    are scaled to C g / (|g| + GAMMA), below the threshold whatever their length.
    """
    known, several = norms.double(), clip.shape[-1] > 1
    lengths = known if several else torch.linalg.vector_norm(known, dim=-1, keepdim=True)
    allowed = (clip.double() * (1 - 2**-23) - UNDERFLOW).clamp(min=0)  # factors are rounded to float32
    if normalised:
        factors = allowed.unsqueeze(-2) / (lengths + GAMMA)
    else:
        factors = (allowed.unsqueeze(-2) / lengths.clamp(min=1e-300)).clamp(max=1)
    counts = factors >= MIN_FACTOR  # not where a length is infinite, or not a number
    if several:
        counts &= torch.isfinite(known).all(dim=-1, keepdim=True)
    factors = torch.where(counts, factors, 0.0)
    return factors if several else factors.squeeze(-1)


def weighted_factors(norms: Tensor, clip: Tensor, weights: Tensor | None, normalised: bool = False) -> Tensor:
    """Factor on each record's gradient where its loss is multiplied by a public weight before it is limited.

    Args:
        norms: as for `clipping_factors`, of the unweighted gradients.
        clip: thresholds.
        weights: weight of each record: (records,), or (clients, records) where clients are stacked; None for ones. A
            record with a weight that is not finite counts nothing.
        normalised: as for `clipping_factors`.
    """
    if weights is None:
        return clipping_factors(norms, clip, normalised)
    weights = weights.double()
    factors = clipping_factors(norms.double() * weights.abs().unsqueeze(-1), clip, normalised)
    factors = factors * (weights if factors.dim() == weights.dim() else weights.unsqueeze(-1))
    return torch.where(factors.abs() >= MIN_FACTOR, factors, 0.0)


def check_weights(weights: Tensor, groups: int, stacked: int | None = None) -> None:
    """Refuse public weights of records that no sum can be made with. Applied, they would make a whole sum infinite, or
    fail, where one record has a certain label; with one more dimension, one record's length would limit another's.

    Args:
        weights: one for each group, or (clients, groups) where clients are stacked.
        groups: number of the task's groups.
        stacked: number of clients that are stacked; None where there is one by itself.
    """
    shape = (groups,) if stacked is None else (stacked, groups)
    if weights.shape != shape or not bool((weights.abs() <= MAX_WEIGHT).all()):
        raise UserError(
            f"Weights of records must be {groups} numbers, one for each group of labels, between -{MAX_WEIGHT:g} and "
            f"{MAX_WEIGHT:g}."
        )


Inputs = tuple[Tensor, Tensor, Tensor, Tensor]
"""The model, the records, their labels, and the thresholds in double precision."""
Function = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Function from `Inputs` to the flat sum of clipped gradients."""
COMPILER_OPTIONS: dict[str, Any] = {"compile_threads": 1, "layout_optimization": False}
"""Processes that compile side by side would not survive the fork of workers. Channels-last layouts cost more than they
gain in networks as small as those trained privately: activations are copied back and forth."""
COMPILER_SECONDS = 900.0
"""Seconds after which compiling counts as hung."""


@dataclass(frozen=True)
class CompiledSum:
    """The sum of a batch's clipped gradients of the task's loss, compiled for one network."""

    function: Function
    thresholds: int
    """Number of thresholds it was compiled for: one, or one for each layer or tensor."""

    def fits(self, records: int, clip: Tensor) -> bool:
        """Whether it was compiled for this number of records, these thresholds and this loss. For single records it is
        not: torch takes a size of one for fixed."""
        return records > 1 and clip.numel() == self.thresholds

    def __call__(self, flat: Tensor, x: Tensor, y: Tensor, clip: Tensor) -> Tensor:
        # Through one dimension and back: another stride of a dimension of size one would be compiled for anew.
        x = x.reshape(-1).view(x.shape)
        with torch.no_grad():
            return self.function(flat, x, y, clip.double())


def compile_sum(module: nn.Module, shape: tuple[int, ...], task: Task, thresholds: int = 1) -> CompiledSum:
    """Compile the clipped sum for a network and records of `shape`; a UserError says why that is not possible.

    Args:
        module: the network.
        shape: shape of one record.
        task: what is predicted, with its loss.
        thresholds: one, or one for each layer or tensor.

    It takes ten to forty seconds, a few when the same was compiled before on this machine.
    """
    try:
        keeper = Bookkeeper(Learner(copy.deepcopy(module).cpu().train(), task))
        examples = [_example(keeper, records, shape, thresholds) for records in (13, 2, 61)]
        made = CompiledSum(_compile(trace(keeper, examples[0]), examples[0]), thresholds)
        agree = all(_agrees(made, keeper, example) for example in examples)
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
        raise UserError(f"The training step of this network cannot be compiled here: {reason}.") from error
    if not agree:
        raise UserError("The training step of this network cannot be compiled here: compiled, its results differ.")
    return made


def trace(keeper: Bookkeeper, example: Inputs) -> Function:
    """Trace the whole computation into one graph of tensor operations, in which the number of records is a symbol."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    keeper.prove(tuple(example[1].shape[1:]))

    def total(flat: Tensor, x: Tensor, y: Tensor, clip: Tensor) -> Tensor:
        return clipped_sum(keeper.pure_book(flat, Batch(x, y, y, None)), clip)

    # Stand-ins without values: code that looks at values cannot be traced, instead of being traced wrongly.
    stand_ins = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)

    def stand_in(tensor: Tensor, first: DimDynamic) -> Tensor:
        sizes = [first, *(DimDynamic.STATIC for _ in tensor.shape[1:])]
        return stand_ins.from_tensor(tensor, symbolic_context=StatelessSymbolicContext(sizes))

    fixed, free = DimDynamic.STATIC, DimDynamic.DYNAMIC
    inputs = [stand_in(tensor, first) for tensor, first in zip(example, (fixed, free, free, fixed), strict=True)]
    graph = make_fx(total, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*inputs)
    if any(torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) for node in graph.graph.nodes):
        raise UserError("it draws random numbers, as dropout does")
    return graph


def _compile(graph: Function, example: Inputs) -> Function:
    from torch._dynamo import mark_dynamic

    function = torch.compile(graph, fullgraph=True, options=COMPILER_OPTIONS)
    _, x, y, _ = example
    for tensor in (x, y):
        mark_dynamic(tensor, 0)
    # First in a child, which may die of it: compiled for all that the processor says it can do, the code may use an
    # instruction that nothing else here uses. What the child compiled is found again in the compiler's cache.
    in_child(lambda: _run(function, example), COMPILER_SECONDS)
    _run(function, example)
    return function


def _run(function: Function, example: Inputs) -> None:
    with torch.no_grad():
        function(*example)


def _example(keeper: Bookkeeper, records: int, shape: tuple[int, ...], thresholds: int) -> Inputs:
    generator = torch.Generator().manual_seed(records)
    x = torch.randn(records, *shape, generator=generator)
    y = keeper.learner.task.draw(records, np.random.default_rng(records))
    return flatten(keeper.learner.module), x, y, torch.full((thresholds,), 0.1, dtype=torch.float64)


def _agrees(made: CompiledSum, keeper: Bookkeeper, example: Inputs) -> bool:
    """Whether the compiled sum is the eager one, for a batch of another size too: compilers have faults."""
    flat, x, y, clip = example
    expected = clipped_sum(keeper.book(flat, Batch(x, y, y, None)), clip)
    return torch.allclose(made(flat, x, y, clip), expected, rtol=1e-3, atol=1e-5)
