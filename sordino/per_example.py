"""Gradients of single records by book-keeping: one forward, one backward, no gradient per record is kept.

A layer's gradient for one record is made of what went into the layer (its activation) and of how the loss depends
on what came out (its output gradient). `Book` keeps these two for a batch. Norms of the records' gradients,
weighted sums and sums of squares follow from them layer by layer: for a linear layer without ever forming a
record's gradient, for a convolution by whichever is smaller, the records' gradients or products of positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_weight

from sordino.errors import UserError
from sordino.training import Batch, Learner, Loss

Norm = nn.GroupNorm | nn.LayerNorm


@dataclass
class Page:
    """One layer: what went in, and the gradient of the summed loss at what came out."""

    layer: nn.Module
    inputs: Tensor
    outputs: Tensor
    slope: Tensor | None = None
    _gradients: list[Tensor] | None = None

    def squared_norms(self) -> Tensor:
        """The squared L2 norm of each record's gradient in this layer."""
        if isinstance(self.layer, nn.Linear):
            assert self.slope is not None
            size, reach = _sums_of_squares(self.slope), _sums_of_squares(self.inputs)
            return size * (reach + 1 if self.layer.bias is not None else reach)
        if isinstance(self.layer, nn.Conv2d) and self._positions_are_fewer():
            parts = [_sums_of_squares(part) for part in self._convolution_bias()]
            return sum(parts, self._norms_by_positions())
        first, *others = (_sums_of_squares(part) for part in self.gradients())
        return sum(others, first)

    def weighted_sum(self, weights: Tensor) -> list[Tensor]:
        """The sum of the records' gradients, each times its weight, for each parameter of the layer."""
        if isinstance(self.layer, nn.Linear):
            assert self.slope is not None
            slope = self.slope * weights.unsqueeze(1)
            whole = [slope.t() @ self.inputs]
            return [*whole, slope.sum(dim=0)] if self.layer.bias is not None else whole
        if isinstance(self.layer, nn.Conv2d) and self._positions_are_fewer():
            assert self.slope is not None
            slope = self.slope * weights.view(-1, 1, 1, 1)
            shape = self.layer.weight.shape
            kernel = conv2d_weight(
                self.inputs,
                list(shape),
                slope,
                self.layer.stride,
                self.layer.padding,  # type: ignore[arg-type]
                self.layer.dilation,
                self.layer.groups,
            )
            return [kernel, slope.sum(dim=(0, 2, 3))] if self.layer.bias is not None else [kernel]
        return [torch.tensordot(weights, part, dims=1) for part in self.gradients()]

    def sum_of_squares(self) -> list[Tensor]:
        """The sum over records of the squared gradient, entry by entry, for each parameter of the layer."""
        if isinstance(self.layer, nn.Linear):
            assert self.slope is not None
            slope = self.slope.square()
            whole = [slope.t() @ self.inputs.square()]
            return [*whole, slope.sum(dim=0)] if self.layer.bias is not None else whole
        if isinstance(self.layer, nn.Conv2d) and self._gradients is None:
            return self._squares_of_a_convolution()
        return [part.square().sum(dim=0) for part in self.gradients()]

    def gradients(self) -> list[Tensor]:
        """Each record's gradient, for each parameter of a convolution or a normalization."""
        if self._gradients is None:
            self._gradients = self._computed_gradients()
            self.slope = None  # the gradients are smaller than what they were made of
        return self._gradients

    def _computed_gradients(self) -> list[Tensor]:
        assert self.slope is not None
        if isinstance(self.layer, nn.Conv2d):
            slope, (outs, ins, _, wide) = self.slope.flatten(2), self.layer.weight.shape
            rows = [torch.bmm(slope, patches.transpose(1, 2)).view(-1, outs, ins, wide) for patches in self._patches()]
            return [torch.stack(rows, dim=3), *self._convolution_bias()]
        assert isinstance(self.layer, nn.GroupNorm | nn.LayerNorm)
        scale, shift = self.layer.weight, self.layer.bias
        # The layer is (x - mean) / deviation * scale + shift: what went in is read off without scale and shift.
        plain = (
            functional.group_norm(self.inputs, self.layer.num_groups, eps=self.layer.eps)
            if isinstance(self.layer, nn.GroupNorm)
            else functional.layer_norm(self.inputs, self.layer.normalized_shape, eps=self.layer.eps)
        )
        if isinstance(self.layer, nn.GroupNorm):
            over = tuple(range(2, self.slope.dim()))
            by_scale, by_shift = self.slope * plain, self.slope
            parts = [by_scale.sum(dim=over), by_shift.sum(dim=over)] if over else [by_scale, by_shift]
        else:
            over = tuple(range(1, self.slope.dim() - len(self.layer.normalized_shape)))
            parts = [self.slope * plain, self.slope]
            parts = [part.sum(dim=over) if over else part for part in parts]
        return [part for part, parameter in zip(parts, (scale, shift), strict=True) if parameter is not None]

    def _squares_of_a_convolution(self) -> list[Tensor]:
        """Record by record: what the output positions of one record see fits into the processor's cache."""
        layer = self.layer
        assert self.slope is not None
        assert isinstance(layer, nn.Conv2d)
        outs, ins, high, wide = layer.weight.shape
        (down, across), (below, beside) = layer.stride, layer.dilation
        lines = self._padded().unfold(2, (high - 1) * below + 1, down)[..., ::below]
        windows = lines.unfold(3, (wide - 1) * beside + 1, across)[..., ::beside].permute(0, 2, 3, 4, 5, 1)
        total = self.slope.new_zeros(outs, high * wide * ins)
        for slope, seen in zip(self.slope.flatten(2), windows, strict=True):
            own = slope @ seen.reshape(slope.shape[1], -1)
            total.addcmul_(own, own)
        kernel = total.view(outs, high, wide, ins).permute(0, 3, 1, 2)
        return [kernel, *(part.square().sum(dim=0) for part in self._convolution_bias())]

    def _padded(self) -> Tensor:
        """What went into a convolution, with its padding."""
        layer = self.layer
        assert isinstance(layer, nn.Conv2d)
        if not any(layer.padding):
            return self.inputs
        top, left = (int(size) for size in layer.padding)
        return functional.pad(self.inputs, (left, left, top, top))

    def _convolution_bias(self) -> list[Tensor]:
        assert self.slope is not None
        return [self.slope.flatten(2).sum(dim=2)] if self.layer.bias is not None else []

    def _patches(self) -> Iterator[Tensor]:
        """What each output position sees, one row of the kernel after the other: together they would not fit into the
        processor's cache. Each is (records, inputs of a position in the row, positions).
        """
        layer = self.layer
        assert isinstance(layer, nn.Conv2d)
        (high, wide), (down, across), (below, beside) = layer.kernel_size, layer.stride, layer.dilation
        inputs = self._padded()
        reach = (self.outputs.shape[2] - 1) * down + 1
        for row in range(high):
            lines = inputs[:, :, row * below : row * below + reach : down]
            # A strided view copied once: several times faster than `unfold` of torch.nn.functional on a CPU.
            windows = lines.unfold(3, (wide - 1) * beside + 1, across)[..., ::beside].permute(0, 1, 4, 2, 3)
            yield windows.reshape(inputs.shape[0], -1, windows.shape[3] * windows.shape[4])

    def _positions_are_fewer(self) -> bool:
        """Whether products of positions are smaller than the records' gradients."""
        positions = self.outputs.shape[2] * self.outputs.shape[3]
        return 2 * positions**2 < self.layer.weight.numel()  # type: ignore[union-attr, operator]

    def _norms_by_positions(self) -> Tensor:
        assert self.slope is not None
        slope = self.slope.flatten(2)
        seen = sum(torch.bmm(patches.transpose(1, 2), patches) for patches in self._patches())
        products = seen * torch.bmm(slope.transpose(1, 2), slope)
        return products.sum(dim=(1, 2), dtype=torch.float64)


def _sums_of_squares(rows: Tensor) -> Tensor:
    """The sum of squares in each row, in double precision: compilers may add up naively, and norms must be right."""
    return rows.flatten(1).square().sum(dim=1, dtype=torch.float64)


class Book:
    """The pages of one batch, one for each layer with parameters, in the order of the flat vector."""

    def __init__(self, pages: list[Page]) -> None:
        self.pages = pages

    def layer_norms(self) -> Tensor:
        """The L2 norm of each record's gradient in each layer, in double precision: (records, layers)."""
        return torch.stack([page.squared_norms() for page in self.pages], dim=1).sqrt()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The flat sum of the records' gradients times their weights: (records,) or (records, layers)."""
        weights = weights.to(self.pages[0].inputs.dtype)
        by_layer = weights.unsqueeze(1).expand(-1, len(self.pages)) if weights.dim() == 1 else weights
        parts = [part for i, page in enumerate(self.pages) for part in page.weighted_sum(by_layer[:, i])]
        return torch.cat([part.reshape(-1) for part in parts])

    def sum_of_squares(self) -> Tensor:
        """The flat sum over records of squared gradients."""
        return torch.cat([part.reshape(-1) for page in self.pages for part in page.sum_of_squares()])


class Bookkeeper:
    """Keeps books for one network."""

    def __init__(self, learner: Learner) -> None:
        """Refuse a network with layers whose gradients for single records are not known."""
        self.learner = learner
        self.layers = supported_layers(learner.module)
        self._pages: dict[nn.Module, Page] = {}
        self._open = False
        for _, layer in self.layers:
            layer.register_forward_hook(self._keep)

    def book(self, flat: Tensor, batch: Batch, loss: Loss) -> Book:
        """One forward and one backward pass at `flat`."""
        self.learner.bind(flat)
        # As it was written: patches of channels-last maps would be copied once more.
        return self._filled(self.learner.written, batch, loss)

    def squares(self, flat: Tensor, batch: Batch, loss: Loss) -> Tensor:
        """The flat sum over a batch of the squared gradients of single records at `flat`."""
        self.learner.bind(flat)
        return self._filled(self.learner.module, batch, loss).sum_of_squares()

    def pure_book(self, flat: Tensor, batch: Batch, loss: Loss) -> Book:
        """The same without touching the network's own parameters: slower, but it can be traced."""
        leaf = flat.detach().requires_grad_()
        return self._filled(lambda x: self.learner.logits(leaf, x), batch, loss)

    def _filled(self, network: Callable[[Tensor], Tensor], batch: Batch, loss: Loss) -> Book:
        self._pages, self._open = {}, True
        try:
            total = loss(network(batch.x), batch).sum()
        finally:
            self._open = False
        pages = [self._pages[layer] for _, layer in self.layers]
        slopes = torch.autograd.grad(total, [page.outputs for page in pages])
        for page, slope in zip(pages, slopes, strict=True):
            page.slope = slope
        self._pages = {}
        return Book(pages)

    def _keep(self, layer: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        if not self._open:
            return
        if layer in self._pages:
            raise UserError("A layer is used twice in one pass: gradients of single records are not kept for it.")
        self._pages[layer] = Page(layer, inputs[0].detach(), outputs)


def supported_layers(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers with parameters, by name; a UserError names one whose gradients for single records are not known."""
    checks: dict[type[nn.Module], Callable[[Any], bool]] = {
        nn.Linear: lambda layer: True,
        nn.Conv2d: lambda layer: layer.groups == 1 and not isinstance(layer.padding, str),
        nn.GroupNorm: lambda layer: True,
        nn.LayerNorm: lambda layer: True,
    }
    found = []
    for name, layer in module.named_modules():
        if not any(True for _ in layer.parameters(recurse=False)):
            continue
        check = checks.get(type(layer))
        if check is None or not check(layer) or any(not p.requires_grad for p in layer.parameters(recurse=False)):
            raise UserError(
                f"Gradients of single records are not known for the layer {name!r} ({type(layer).__name__}): record-"
                "level methods take networks of Linear, Conv2d (one group), GroupNorm and LayerNorm layers."
            )
        found.append((name, layer))
    return found
