"""The gradient of many clients' networks at once: batched matrix products instead of automatic differentiation.

Under `torch.func.vmap` a step still sees one client. Where the network is a chain of linear layers and simple
activations and the loss is the task's, `Chain.gradient` takes the gradients of all stacked clients in a handful of
products; written for the whole stack it costs a fraction of what differentiating under `vmap` does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sordino.learning.pages import LARGEST_NORM, rounding
from sordino.learning.recordwise import has_hooks
from sordino.learning.vmapped import under_vmap

ACTIVATIONS: dict[type[nn.Module], tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    nn.ReLU: (torch.relu, lambda slope, out: torch.ops.aten.threshold_backward(slope, out, 0)),
    nn.Tanh: (torch.tanh, torch.ops.aten.tanh_backward),
    nn.Sigmoid: (torch.sigmoid, torch.ops.aten.sigmoid_backward),
}
"""Each activation, and the gradient at its input from the gradient at its output and that output."""

NARROW, CACHED = 16, 2**21
"""Records for each output from which a linear layer's outputs may lie in memory output by output, not record by record,
and numbers in its inputs up to which they do. All that follows then works through long rows, in half of the time; but
where the inputs fit into no cache, the product takes longer than that."""


@dataclass(frozen=True)
class Linear:
    """Place of a linear layer in the flat vector."""

    begin: int
    inputs: int
    outputs: int
    bias: bool

    @property
    def middle(self) -> int:
        """Place in the flat vector at which the weights end and the bias begins."""
        return self.begin + self.inputs * self.outputs

    def of(self, flat: Tensor) -> Parameters:
        """The layer's parameters in stacked flat vectors, as views."""
        weight = flat[:, self.begin : self.middle].view(len(flat), self.outputs, self.inputs)
        return weight, flat[:, self.middle : self.middle + self.outputs] if self.bias else None


Slopes = Callable[[Tensor, Tensor], Tensor]
"""The outputs of stacked clients and their targets to the gradient of each record's loss at its outputs."""
Parameters = tuple[Tensor, Tensor | None]
"""The weights (clients, outputs, inputs) and biases (clients, outputs) of a linear layer."""


class Chain:
    """A network of linear layers and activations, as functions of stacked flat vectors."""

    def __init__(self, layers: list[Linear | type[nn.Module]], slopes: Slopes) -> None:
        """`slopes` are the gradients of the task's loss at the network's outputs."""
        self.layers, self._slopes = layers, slopes

    @classmethod
    def of(cls, module: nn.Module, slopes: Slopes) -> Chain | None:
        """The network as a chain; None where it is anything else."""
        if not isinstance(module, nn.Sequential) or type(module).forward is not nn.Sequential.forward:
            return None
        if any(map(has_hooks, module.modules())):
            return None  # what it computes is not what its layers do one after the other
        if len(list(module.parameters())) < sum(len(list(layer.parameters())) for layer in module):
            return None  # layers share parameters
        layers: list[Linear | type[nn.Module]] = []
        begin = 0
        for layer in module:
            if type(layer) is nn.Linear and all(p.requires_grad for p in layer.parameters()):
                bias = layer.bias is not None
                layers.append(Linear(begin, layer.in_features, layer.out_features, bias))
                begin += layer.in_features * layer.out_features + (layer.out_features if bias else 0)
            elif type(layer) in ACTIVATIONS:
                layers.append(type(layer))
            elif not (type(layer) is nn.Flatten and layer.start_dim == 1 and layer.end_dim == -1 and not layers):
                return None
        return cls(layers, slopes) if layers and isinstance(layers[-1], Linear) else None

    def gradient(self, flat: Tensor, x: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
        """The gradient of the batch's mean loss at one client's `flat`; for use under `vmap`."""
        return under_vmap(self.gradients, flat, x, y, weight)

    def squares(self, flat: Tensor, x: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
        """The sum over a batch of the squared gradients of single records; for use under `vmap`."""
        return under_vmap(self.sums_of_squares, flat, x, y, weight)

    def gradients(self, flat: Tensor, x: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
        """Gradients of the batches' mean losses, (clients, parameters).

        Args:
            flat: the clients' models, (clients, parameters).
            x: their batches, (clients, records, ...).
            y: the targets, (clients, records).
            weight: one for a record, zero for padding, (clients, records); None where all are records.
        """
        found = flat.new_empty(flat.shape)
        for place, below, slope in self._backward(self._parameters(flat), x, y, shares(y, weight)):
            by_weight, by_bias = self._linear(place).of(found)
            by_weight.copy_(torch.bmm(slope.transpose(1, 2), below))
            if by_bias is not None:
                torch.sum(slope, dim=1, out=by_bias)
        return found

    def pages(self, flat: Tensor, x: Tensor, y: Tensor) -> list[tuple[Linear, Tensor, Tensor]]:
        """The linear layers in their order, each with its inputs (clients, records, inputs) and the slope of each
        record's loss at its outputs (clients, records, outputs)."""
        found = self._backward(self._parameters(flat), x, y, None, by_output=True)
        return [(self._linear(place), below, slope) for place, below, slope in found][::-1]

    def sums_of_squares(self, flat: Tensor, x: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
        """`squares` of all clients, (clients, parameters): a record's gradient is the product of its slope and its
        input, so the squared gradient is the product of their squares."""
        found = flat.new_empty(flat.shape)
        share = None if weight is None else weight.unsqueeze(2)
        for place, below, slope in self._backward(self._parameters(flat), x, y, share):
            by_weight, by_bias = self._linear(place).of(found)
            squared = slope.square()
            by_weight.copy_(torch.bmm(squared.transpose(1, 2), below.square()))
            if by_bias is not None:
                torch.sum(squared, dim=1, out=by_bias)
        return found

    def epoch(
        self, flat: Tensor, x: Tensor, y: Tensor, valid: Tensor | None, order: Tensor, *, batch: int, rate: float
    ) -> Tensor:
        """Each client's model after one pass of SGD over its records in its `order`, `batch` at a time.

        Layers move as soon as their slopes are known: no gradient is ever put together.
        """
        parameters = {
            place: (copy_contiguous(weight), None if bias is None else copy_contiguous(bias))
            for place, (weight, bias) in self._parameters(flat).items()
        }
        begins = torch.arange(len(order), device=order.device).unsqueeze(1) * order.shape[1]
        for places in (begins + order).split(batch, dim=1):
            chosen, labels = take_records(x, places), take_records(y, places)
            share = shares(labels, None if valid is None else take_records(valid, places))
            for place, below, slope in self._backward(parameters, chosen, labels, share):
                matrix, bias = parameters[place]
                matrix.baddbmm_(slope.transpose(1, 2), below, alpha=-rate)
                if bias is not None:
                    bias.add_(slope.sum(dim=1), alpha=-rate)
        pieces = [part.flatten(1) for parts in parameters.values() for part in parts if part is not None]
        return torch.cat(pieces, dim=1)

    def reach(self, x: Tensor) -> Tensor | None:
        """The `reach` of records, whatever the model; None where they are not themselves inputs of a linear layer."""
        first = self.layers[0]
        return reach(x, first.bias) if isinstance(first, Linear) else None

    def logits(self, flat: Tensor, x: Tensor) -> Tensor:
        """(clients, records, outputs)."""
        return self._forward(self._parameters(flat), x)[-1]

    def _linear(self, place: int) -> Linear:
        layer = self.layers[place]
        assert isinstance(layer, Linear)
        return layer

    def _parameters(self, flat: Tensor) -> dict[int, Parameters]:
        """The parameters of the layers that have some, by place in the chain: views."""
        return {place: layer.of(flat) for place, layer in enumerate(self.layers) if isinstance(layer, Linear)}

    def _backward(
        self,
        parameters: dict[int, Parameters],
        x: Tensor,
        y: Tensor,
        share: float | Tensor | None,
        by_output: bool = False,
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """The linear layers from last to first: place, inputs, and the slope of the loss at the outputs.

        The loss is the sum of the records' losses, each times its `share`; None for one. A layer's parameters may be
        changed as soon as it has been handed out.
        """
        outs = self._forward(parameters, x, by_output)
        slope = self._slopes(outs[-1], y)
        if share is not None:
            slope *= share
        for place in range(len(self.layers) - 1, -1, -1):
            layer = self.layers[place]
            if not isinstance(layer, Linear):
                slope = ACTIVATIONS[layer][1](slope, outs[place + 1])
                continue
            lower = torch.bmm(slope, parameters[place][0]) if place else slope
            yield place, outs[place], slope
            slope = lower

    def _forward(self, parameters: dict[int, Parameters], x: Tensor, by_output: bool = False) -> list[Tensor]:
        """Inputs of each layer, then the outputs of the last; `by_output` as for `linear`."""
        outs = [x.flatten(2)]
        for place, layer in enumerate(self.layers):
            if isinstance(layer, Linear):
                outs.append(linear(outs[-1], *parameters[place], by_output))
            else:
                outs.append(ACTIVATIONS[layer][0](outs[-1]))
        return outs


def linear(below: Tensor, weight: Tensor, bias: Tensor | None, by_output: bool = False) -> Tensor:
    """Outputs of stacked linear layers on their inputs `below`: (clients, records, outputs). Those of narrow layers may
    lie in memory `by_output` (`NARROW`), which rounds them otherwise."""
    if by_output and below.shape[1] >= NARROW * weight.shape[1] and below.numel() <= CACHED:
        found = torch.bmm(weight, below.transpose(1, 2))
        return (found if bias is None else found.add_(bias.unsqueeze(2))).transpose(1, 2)
    turned = weight.transpose(1, 2)
    return torch.bmm(below, turned) if bias is None else torch.baddbmm(bias.unsqueeze(1), below, turned)


def row_lengths(rows: Tensor) -> Tensor:
    """L2 norm of each row, in double precision: (clients, records) of (clients, records, numbers)."""
    if rows.stride(2) == 1:
        return torch.linalg.vector_norm(rows, dim=2, dtype=torch.float64)
    return rows.double().square_().sum(dim=2).sqrt_()  # where numbers of a row lie apart torch's norm is slow


def copy_contiguous(tensor: Tensor) -> Tensor:
    """A contiguous copy."""
    return tensor.clone(memory_format=torch.contiguous_format)


def shares(y: Tensor, weight: Tensor | None) -> float | Tensor:
    """Share of each record in its batch's mean: one number, or (clients, records, 1) where `weight` (one for records,
    zero for padding) is given."""
    if weight is None:
        return 1 / y.shape[1]
    return (weight / weight.sum(dim=1, keepdim=True).clamp(min=1)).unsqueeze(2)


def take_records(rows: Tensor, places: Tensor) -> Tensor:
    """The records at `places`, counted through all clients: (clients, places, ...) of (clients, records, ...)."""
    return rows.flatten(0, 1).index_select(0, places.reshape(-1)).unflatten(0, places.shape)


@functools.lru_cache
def _growth(most: int, size: int, dtype: torch.dtype, device: torch.device, precision: str) -> float:
    """Factor by which rounding may enlarge a sum of `most` such numbers and the norm of `size` double ones; `precision`
    is torch's setting for products, on which it depends."""
    numbers, norms = (torch.empty(0, dtype=kind, device=device) for kind in (dtype, torch.float64))
    return 1 + float(rounding(most + 8, numbers)) + float(rounding(size, norms))


def reach(rows: Tensor, bias: bool) -> Tensor:
    """Length of each record's inputs of a linear layer, with a one behind them where it has a `bias`, in double
    precision: (clients, records). Infinite where they are too long for a bound."""
    squared = row_lengths(rows.flatten(2)).square() + (1 if bias else 0)
    return torch.where(squared <= LARGEST_NORM**2, squared, torch.inf).sqrt()


class StackedBook:
    """Gradients of single records of stacked clients: their norms, and weighted sums for each client."""

    def __init__(
        self, pages: list[tuple[Linear, Tensor, Tensor]], most: int, size: int, reach: Tensor | None = None
    ) -> None:
        """`most` is how many records a sum may have, `size` the number of parameters, `reach` that of the first layer's
        inputs where it is known."""
        self.pages, self.most, self.size, self._reach = pages, most, size, reach

    @classmethod
    def of(
        cls, chain: Chain, flat: Tensor, x: Tensor, y: Tensor, most: int, reach: Tensor | None = None
    ) -> StackedBook:
        """Run one forward and one backward pass.

        Args:
            chain: the network.
            flat: the clients' models, (clients, parameters).
            x: records, (clients, records, ...).
            y: their targets, (clients, records).
            most: the largest number of records that a sum may have.
            reach: `Chain.reach` of the records, where it has been computed before.
        """
        return cls(chain.pages(flat, x, y), most, flat.shape[1], reach)

    def layer_norms(self) -> Tensor:
        """Upper bounds of each record's contribution to a weighted sum, over its weight, by layer, in double precision:
        (clients, records, layers). Not finite where no bound is known."""
        norms = []
        for place, (layer, below, slope) in enumerate(self.pages):
            known = self._reach if place == 0 else None
            inputs = reach(below, layer.bias) if known is None else known
            norms.append(row_lengths(slope) * inputs)
        return (norms[0].unsqueeze(2) if len(norms) == 1 else torch.stack(norms, dim=2)) * self._growth()

    def _growth(self) -> float:
        """Factor by which rounding may enlarge sums and norms."""
        inputs = self.pages[0][1]
        return _growth(self.most, self.size, inputs.dtype, inputs.device, torch.get_float32_matmul_precision())

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The sum of the records' gradients times their weights, one row for each client: weights are
        (clients, records) or (clients, records, layers)."""
        first = self.pages[0][1]
        weights = weights.to(first.dtype)
        by_layer = weights.unsqueeze(2).expand(-1, -1, len(self.pages)) if weights.dim() == 2 else weights
        found = first.new_empty(len(first), self.size)
        for place, (layer, below, slope) in enumerate(self.pages):
            weighed = slope * by_layer[:, :, place : place + 1]
            by_weight, by_bias = layer.of(found)
            by_weight.copy_(torch.bmm(weighed.transpose(1, 2), below))
            if by_bias is not None:
                torch.sum(weighed, dim=1, out=by_bias)
        return found
