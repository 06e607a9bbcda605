"""Estimated seconds of a training step, by which an engine (stacked or one by one) and compilation are chosen.

They follow from the sizes of the network and its batches alone, not from a clock or the machine, so that the same
command gives the same numbers. The constants were fitted once, on two cores that were busy with other things, to the
processor's time as measured by

    python benchmarks/engine_rule.py --fit

which prints, without `--fit`, how much slower the chosen engine is than the faster one. Only their proportions matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino.learning.network import Learner
from sordino.method import Method

EAGER_LAYER, EAGER_PRODUCT, EAGER_OUTPUT = 5e-4, 1.5e-10, 2e-8
"""Seconds of a record-level step for each layer that has parameters, and for each record's multiplication and output
of these. The same script measures them."""


@dataclass(frozen=True)
class Cost:
    """Seconds that parts of a step take."""

    step: float
    """The step itself, whatever its size."""
    layer: float
    """Each layer."""
    product: float
    """Each parameter, for each record of the batch."""
    parameter: float
    """Each parameter once: it is read, moved and written."""
    number: float
    """Each number of each record of the batch, which is fetched."""

    def seconds(self, size: Size, clients: int = 1) -> float:
        """Seconds per client where `clients` are trained in one stack and share the fixed costs of a step."""
        shared = (self.step + self.layer * size.layers) / clients
        each = self.product * size.parameters + self.number * size.numbers
        return shared + size.batch * each + self.parameter * size.parameters


@dataclass(frozen=True)
class Size:
    """Sizes of a step of local training."""

    parameters: int
    layers: int
    """Layers that compute something."""
    numbers: int
    """In one record."""
    batch: int
    """Records that a step sees."""

    @classmethod
    def of(cls, module: nn.Module, shape: Sequence[int], batch: int) -> Size:
        """That of a network's step on records of `shape`."""
        parameters = sum(p.numel() for p in module.parameters() if p.requires_grad)
        layers = [layer for layer in module.modules() if not list(layer.children())]
        computing = [layer for layer in layers if not isinstance(layer, nn.Flatten)]
        return cls(parameters, len(computing), math.prod(shape), batch)


@dataclass(frozen=True)
class EngineCosts:
    """Costs of the two ways to train clients, for one kind of network and optimizer."""

    alone: Cost
    stacked: Cost


ENGINE_COSTS: dict[tuple[bool, bool], EngineCosts] = {
    (True, True): EngineCosts(
        Cost(3.5e-4, 4.3e-5, 4.8e-11, 2.5e-9, 2.1e-9),
        Cost(3.4e-4, 3.5e-5, 5.3e-11, 1.2e-9, 2.1e-9),
    ),
    (True, False): EngineCosts(
        Cost(3.7e-4, 4.6e-5, 4.9e-11, 3.7e-9, 2.2e-9),
        Cost(9.1e-4, 2.8e-5, 7.0e-11, 1.44e-8, 2.3e-9),
    ),
    (False, True): EngineCosts(
        Cost(3.9e-4, 1.6e-4, 8.9e-11, 2.9e-9, 3.5e-9),
        Cost(2.3e-3, 2.5e-4, 6.4e-11, 3.1e-9, 3.0e-9),
    ),
    (False, False): EngineCosts(
        Cost(5.2e-4, 1.4e-4, 7.2e-11, 3.8e-9, 6.0e-9),
        Cost(2.7e-3, 2.2e-4, 9.9e-11, 1.6e-8, 1.1e-9),
    ),
}
"""By two questions: is the network a chain, whose stacked gradients are a handful of products
(`sordino.learning.stacked`); and is the optimizer plain SGD, which remembers nothing."""


NOISY = Cost(6e-4, 6e-5, 8e-11, 6e-9, 4e-9)
"""Cost of a noisy gradient step of stacked clients whose records are protected, without drawing its noise, which costs
as much either way."""

SUMMED = EngineCosts(Cost(1.5e-3, 1e-4, 2e-10, 6e-9, 2e-9), Cost(2e-3, 1e-4, 1.5e-10, 6e-9, 1e-9))
"""Costs of an answer that is a sum of a client's gradients with a share of the noise: fitted by eye to the fastest of
ten rounds of 5 to 20 clients with 30 to 2,000 records of 10 to 784 numbers, linear models and small networks."""
WORTH_SHARING = 3e-3
"""Seconds of such a sum from which it is made in two stacks. Each of them makes all calls anew, and whoever makes the
other one must be asked: together that takes as long as the arithmetic that is saved."""


def worth_sharing(parameters: int, numbers: int, records: float) -> bool:
    """Return whether a sum of gradients over `records` records of so many `numbers` is made in two stacks instead of
    one, so that two processes share the work. It follows from sizes alone, as results must not depend on processes."""
    return records * (SUMMED.stacked.product * parameters + SUMMED.stacked.number * numbers) >= WORTH_SHARING


def engine_costs(learner: Learner, method: Method) -> EngineCosts:
    """Return the costs of a method's steps with its network, stacked and one by one."""
    return ENGINE_COSTS[learner.chain is not None, method.optimizer == "sgd" and not method.momentum]


def padding(sizes: np.ndarray, cohort: int, stacks: int, batch: int) -> float:
    """Return the steps that stacked clients take for each that they need: all go on until the largest is done.

    `sizes` are the records of all clients, of whom a round has `cohort`, of all sizes alike, in `stacks` stacks.
    """
    places = np.linspace(0, len(sizes) - 1, cohort).round().astype(int)
    steps = -(-np.maximum(np.sort(sizes)[places], 1) // batch)
    return float(sum(part.max() * len(part) for part in np.array_split(steps, stacks)) / steps.sum())


def eager_seconds(module: nn.Module, shape: tuple[int, ...], batch: int) -> float:
    """Estimate the seconds of a noisy step of a record-level method that is not compiled."""
    layers, products, outputs = 0, 0, 0

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        nonlocal layers, products, outputs
        layers += 1
        # Of layers that give several tensors, as recurrent ones and attention do, the first is what goes on.
        first = output[0] if isinstance(output, tuple) else output
        if not isinstance(first, Tensor):
            return
        outputs += first.numel()
        weights = [weight for weight in layer.parameters(recurse=False) if weight.dim() > 1]
        if not isinstance(layer, nn.Embedding | nn.EmbeddingBag):  # which multiply nothing
            # Each number that comes out is a sum of so many products.
            products += sum(weight[0].numel() for weight in weights) * first.numel()

    own = [layer for layer in module.modules() if next(layer.parameters(recurse=False), None) is not None]
    hooks = [layer.register_forward_hook(count) for layer in own]
    training = module.training
    try:
        with torch.no_grad():
            module.eval()(torch.zeros(1, *shape))
    finally:
        module.train(training)
        for hook in hooks:
            hook.remove()
    return EAGER_LAYER * layers + batch * (EAGER_PRODUCT * products + EAGER_OUTPUT * outputs)
