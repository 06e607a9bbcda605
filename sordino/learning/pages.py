"""Pages: activations and output gradients of a layer for a batch, from which each record's gradient follows.

A layer's gradient for one record is made of what went into the layer (its activation) and of how the loss depends
on what came out (its output gradient). `Page` keeps these two for a batch. Bounds on the records' gradients, weighted
sums and sums of squares follow from them: for a linear layer without ever forming a record's gradient, for layers over
positions (convolutions, linear layers along a sequence) by whichever is smaller, the records' gradients or products of
positions.

## What a record adds, and why its bound holds

Activations a and output gradients g are float32 numbers, taken as they are: they are the record. G is its gradient in
a layer and w its weight. Three ways of adding up occur:

1. *Formed*: G is computed in float32 and then used both for the norm and for the sum. The formed G is the gradient by
   definition, and only weighing and adding it are left to round.
2. *Products*, without positions: G = g a^T, so |G| = |g| |a|.
3. *Products* of T positions: G = sum_t g_t a_t^T, and |G|^2 = sum_{s,t} (a_s . a_t) (g_s . g_t). Large terms may cancel
   in both, so the error is measured against S = sum_t |a_t| |g_t|, which does not cancel.

Sums may be added in any order and with or without fused operations, as libraries and compilers like. A number that is
made by at most k roundings of relative size u, in whatever order, is off by at most (1 + u)^k - 1 <= expm1(k u) of the
same sum of absolute values: `rounding(k)`. From this follow

- in the norms, computed in double precision (u = 2^-53; products of two float32 numbers are exact there): the computed
  square is off by at most rounding(k) S^2, where k counts the entries of a_t and g_t and the T^2 products. It is added.
- in the sum, computed in float32 (u = 2^-24): every entry of sum_i sum_t (w_i g_it) a_it for n records goes through at
  most n T + 2 roundings. The matrices |g_t| |a_t|^T have norm |g_t| |a_t|, so the error of the whole sum has norm at
  most rounding(n T + 2) sum_i w_i S_i. Each record is charged its own term: rounding(n T + 2) S_i is added to its norm.
  For formed gradients and without positions S is |G|, and the count n + 2.

So the sum as computed is sum_i w_i G_i + E with |E| <= sum_i e_i, and `Book.layer_norms` is never below
|G_i| + e_i / w_i: with weights of at most threshold / norm, no record brings more than the threshold into the sum,
rounding included.
A bias is one more entry of every a_t, equal to one; all of this holds for weight and bias by themselves too. Numbers
too large for the argument (|a| > 2^64, where an output gradient could lose its last bits to underflow) have norm
infinity; what underflow does below is less than `UNDERFLOW`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_weight

Norm = nn.GroupNorm | nn.LayerNorm
LARGEST_NORM = 2.0**64
"""The largest norm of a layer's inputs for which the bounds are proven."""
UNDERFLOW = 2.0**-70
"""More than what rounding of denormal numbers (2^-150 for each entry, times `LARGEST_NORM`) adds to a record's norm."""


@dataclass
class Page:
    """One layer: its inputs, and the gradient of the summed loss at its outputs (`slope`)."""

    layer: nn.Module
    inputs: Tensor
    outputs: Tensor
    slope: Tensor | None = None
    _gradients: list[Tensor] | None = None

    def norms(self) -> Tensor:
        """Upper bound of the L2 norm of each record's gradient in this layer, rounding in sums over positions included:
        (records,), in double precision."""
        if self._is_plain():
            assert self.slope is not None
            return _lengths(self.slope) * self._reach(_lengths(self.inputs).square()).sqrt()
        if self._products_are_smaller():
            return self._norms_by_positions(self._reach(self._seen()))
        return torch.linalg.vector_norm(torch.stack([_lengths(part) for part in self.gradients()]), dim=0)

    def tensor_norms(self) -> list[Tensor]:
        """`norms` for each parameter of the layer by itself; a bias counts as a weight on an activation of one."""
        if self._is_plain():
            assert self.slope is not None
            slopes = _lengths(self.slope)
            found = [slopes * _limit_to_proof(_lengths(self.inputs).square()).sqrt(), slopes]
        elif self._products_are_smaller():
            seen = _limit_to_proof(self._seen())
            found = [self._norms_by_positions(seen), self._norms_by_positions(torch.ones_like(seen))]
        else:
            return [_lengths(part) for part in self.gradients()]
        return found if self.layer.bias is not None else found[:1]

    def weighted_sum(self, weights: Tensor) -> list[Tensor]:
        """The sum of the records' gradients, each times its weight, for each parameter of the layer: weights are
        (records,), or (records, parameters)."""
        each = weights.unbind(dim=1) if weights.dim() == 2 else [weights] * self.parameters
        if not self._is_plain() and not self._products_are_smaller():
            return [torch.tensordot(mine, part, dims=1) for mine, part in zip(each, self.gradients(), strict=True)]
        slope = self._weighed(each[0])
        if isinstance(self.layer, nn.Linear):
            whole = slope.flatten(0, -2).t() @ self.inputs.flatten(0, -2)
        else:
            whole = self._convolved(slope)
        if self.layer.bias is None:
            return [whole]
        slope = slope if weights.dim() == 1 else self._weighed(each[1])
        return [whole, slope.flatten(0, -2).sum(dim=0) if isinstance(self.layer, nn.Linear) else slope.sum((0, 2, 3))]

    @property
    def parameters(self) -> int:
        """Number of parameter tensors of the layer."""
        return sum(1 for _ in self.layer.parameters())

    def blank(self, records: Tensor) -> None:
        """Put zeros in place of what is kept of some records, a boolean for each: numbers that are not finite stay so
        whatever they are multiplied by."""

        def blanked(rows: Tensor) -> Tensor:
            return torch.where(records.view(-1, *(1 for _ in rows.shape[1:])), 0.0, rows)

        self.inputs = blanked(self.inputs)
        self.slope = None if self.slope is None else blanked(self.slope)
        self._gradients = None if self._gradients is None else [blanked(part) for part in self._gradients]

    def sum_of_squares(self) -> list[Tensor]:
        """The sum over records of the squared gradient, entry by entry, for each parameter of the layer."""
        if self._is_plain():
            assert self.slope is not None
            slope = self.slope.square()
            whole = [slope.t() @ self.inputs.square()]
            return [*whole, slope.sum(dim=0)] if self.layer.bias is not None else whole
        if isinstance(self.layer, nn.Conv2d) and self._gradients is None:
            return self._squares_of_a_convolution()
        return [part.square().sum(dim=0) for part in self.gradients()]

    def gradients(self) -> list[Tensor]:
        """Each record's gradient, for each parameter of a layer over positions or a normalization."""
        if self._gradients is None:
            self._gradients = self._computed_gradients()
            self.slope = None  # the gradients are smaller than what they were made of
        return self._gradients

    def _computed_gradients(self) -> list[Tensor]:
        assert self.slope is not None
        if isinstance(self.layer, nn.GroupNorm | nn.LayerNorm):
            return self._gradients_of_a_normalization(self.layer, self.slope)
        slopes = self._slopes()
        rows = [torch.bmm(slopes, patches.transpose(1, 2)) for patches in self._patches()]
        bias = [slopes.sum(dim=2)] if self.layer.bias is not None else []
        if isinstance(self.layer, nn.Linear):
            return [*rows, *bias]
        outs, ins, _, wide = self.layer.weight.shape  # type: ignore[union-attr, misc]
        return [torch.stack([row.view(-1, outs, ins, wide) for row in rows], dim=3), *bias]

    def _gradients_of_a_normalization(self, layer: Norm, slope: Tensor) -> list[Tensor]:
        # The layer is (x - mean) / deviation * scale + shift: what went in is read off without scale and shift.
        if isinstance(layer, nn.GroupNorm):
            plain = functional.group_norm(self.inputs, layer.num_groups, eps=layer.eps)
            over = tuple(range(2, slope.dim()))
        else:
            plain = functional.layer_norm(self.inputs, layer.normalized_shape, eps=layer.eps)
            over = tuple(range(1, slope.dim() - len(layer.normalized_shape)))
        parts = [part.sum(dim=over) if over else part for part in (slope * plain, slope)]
        return [part for part, owned in zip(parts, (layer.weight, layer.bias), strict=True) if owned is not None]

    def _squares_of_a_convolution(self) -> list[Tensor]:
        """`sum_of_squares` of a convolution, record by record: one record's patches fit into the processor's cache."""
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
        bias = [self.slope.flatten(2).sum(dim=2).square().sum(dim=0)] if layer.bias is not None else []
        return [kernel, *bias]

    def _convolved(self, slope: Tensor) -> Tensor:
        """The gradient of a convolution's kernel, summed over the records, for these output gradients."""
        layer = self.layer
        assert isinstance(layer, nn.Conv2d)
        sizes, padding = list(layer.weight.shape), layer.padding
        return conv2d_weight(self.inputs, sizes, slope, layer.stride, padding, layer.dilation)  # type: ignore[arg-type]

    def _padded(self) -> Tensor:
        """Inputs of a convolution, with its padding."""
        layer = self.layer
        assert isinstance(layer, nn.Conv2d)
        if not any(layer.padding):
            return self.inputs
        top, left = (int(size) for size in layer.padding)
        return functional.pad(self.inputs, (left, left, top, top))

    def _slopes(self) -> Tensor:
        """The output gradients of a layer over positions: (records, outputs of a position, positions)."""
        assert self.slope is not None
        if isinstance(self.layer, nn.Linear):
            return self.slope.flatten(1, -2).transpose(1, 2)
        return self.slope.flatten(2)

    def _patches(self) -> Iterator[Tensor]:
        """Inputs that each output position sees, one row of the kernel after the other, each (records, inputs of a
        position in the row, positions). All rows together would not fit into the processor's cache.
        """
        layer = self.layer
        if isinstance(layer, nn.Linear):
            yield self.inputs.flatten(1, -2).transpose(1, 2)
            return
        assert isinstance(layer, nn.Conv2d)
        (high, wide), (down, across), (below, beside) = layer.kernel_size, layer.stride, layer.dilation
        inputs = self._padded()
        reach = (self.outputs.shape[2] - 1) * down + 1
        for row in range(high):
            lines = inputs[:, :, row * below : row * below + reach : down]
            # A strided view copied once: several times faster than `unfold` of torch.nn.functional on a CPU.
            windows = lines.unfold(3, (wide - 1) * beside + 1, across)[..., ::beside].permute(0, 1, 4, 2, 3)
            yield windows.reshape(inputs.shape[0], -1, windows.shape[3] * windows.shape[4])

    def _is_plain(self) -> bool:
        """Whether this is a linear layer of whole records, without positions."""
        return isinstance(self.layer, nn.Linear) and self.inputs.dim() == 2

    def _positions(self) -> int:
        """Number of positions of a record at which the layer is applied."""
        if isinstance(self.layer, nn.Linear):
            return math.prod(self.outputs.shape[1:-1])
        return math.prod(self.outputs.shape[2:])

    def _products_are_smaller(self) -> bool:
        """Whether products of positions, in double precision, and their factors take less memory than gradients."""
        if isinstance(self.layer, nn.GroupNorm | nn.LayerNorm):
            return False
        weight, positions = self.layer.weight, self._positions()
        assert isinstance(weight, Tensor)
        return 4 * positions**2 + positions * (weight.numel() // len(weight)) < weight.numel()

    def _weighed(self, weights: Tensor) -> Tensor:
        """The output gradients, each record's times its weight."""
        assert self.slope is not None
        return self.slope * weights.view(-1, *(1 for _ in self.slope.shape[1:]))

    def _seen(self) -> Tensor:
        """Products of the layer's inputs over pairs of positions, in double: (records, positions, positions)."""
        seen = sum(torch.bmm(rows.transpose(1, 2), rows) for rows in (part.double() for part in self._patches()))
        assert isinstance(seen, Tensor)
        return seen

    def _norms_by_positions(self, seen: Tensor) -> Tensor:
        """The root of the sum of products over pairs of positions, with the bounds on both its errors and the sum's."""
        weight, slopes = self.layer.weight, self._slopes().double()
        assert isinstance(weight, Tensor)
        shown = torch.bmm(slopes.transpose(1, 2), slopes)
        squares = (seen * shown).sum(dim=(1, 2))
        apart = (seen.diagonal(dim1=1, dim2=2) * shown.diagonal(dim1=1, dim2=2)).sqrt().sum(dim=1)
        operations = weight.numel() // len(weight) + len(weight) + self._positions() ** 2 + 8
        squares = (squares + rounding(operations, slopes) * apart.square()).clamp(min=0)
        return squares.sqrt() + rounding(slopes.shape[0] * self._positions() + 2, self.inputs) * apart

    def _reach(self, products: Tensor) -> Tensor:
        """Products of inputs, with the one that stands for the bias; infinite where they are too large."""
        return _limit_to_proof(products + 1 if self.layer.bias is not None else products)


def _limit_to_proof(products: Tensor) -> Tensor:
    """Products of inputs; infinite where they are too large for the argument above."""
    return torch.where(products <= LARGEST_NORM**2, products, torch.inf)


def rounding(operations: int, numbers: Tensor) -> Tensor:
    """Largest relative error of a sum of products of such `numbers` after `operations` roundings, in any order.

    Devices and settings that shorten what they multiply (to 8 bits at the least) are granted that for each factor.
    """
    exact = numbers.device.type == "cpu" and torch.get_float32_matmul_precision() == "highest"
    shortened = 0.0 if exact or numbers.dtype == torch.float64 else 4 * 2.0**-8
    count = torch.full((), operations, dtype=torch.float64, device=numbers.device)
    return torch.expm1(count * (torch.finfo(numbers.dtype).eps / 2) + shortened)


def _lengths(rows: Tensor) -> Tensor:
    """The L2 norm of each row, squared in double precision: squares of float32 numbers overflow and vanish."""
    return torch.linalg.vector_norm(rows.flatten(1), dim=1, dtype=torch.float64)
