"""A network's parameters as one flat vector, and its `Layout`: the names and shapes of the tensors in it."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sordino.errors import UserError


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a network's parameter tensors, in the order in which they lie in the flat vector."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """The layout of a network's trainable parameters."""
        named = [(name, tuple(p.shape)) for name, p in module.named_parameters() if p.requires_grad]
        return cls(tuple(name for name, _ in named), tuple(shape for _, shape in named))

    @functools.cached_property
    def sizes(self) -> list[int]:
        """The number of entries of each tensor."""
        return [math.prod(shape) for shape in self.shapes]

    @functools.cached_property
    def size(self) -> int:
        """The number of entries of the flat vector."""
        return sum(self.sizes)

    @functools.cached_property
    def layers(self) -> list[int]:
        """The number of entries of each layer: the tensors of one module (weight and bias) are one layer."""
        sizes: dict[str, int] = {}
        for name, size in zip(self.names, self.sizes, strict=True):
            module = name.rpartition(".")[0]
            sizes[module] = sizes.get(module, 0) + size
        return list(sizes.values())

    def parts(self, count: int) -> list[int]:
        """Number of entries of each of `count` parts: the whole vector, its layers, or its tensors."""
        for sizes in ([self.size], self.layers, self.sizes):
            if len(sizes) == count:
                return sizes
        known = f"{len(self.layers)} layers and {len(self.sizes)} tensors"
        raise UserError(f"There are {count} thresholds, but the network has {known}: give one in all, or one for each.")

    def tensors(self, flat: Tensor) -> list[Tensor]:
        """The tensors of a flat vector, as flat slices: views, no copies."""
        return list(flat.split(self.sizes, dim=-1))

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """The tensors of a flat vector by name, each in its shape: views, no copies."""
        pieces = zip(self.names, self.shapes, self.tensors(flat), strict=True)
        return {name: piece.reshape(shape) for name, shape, piece in pieces}


def places_of(module: nn.Module) -> dict[str, str]:
    """Name in the `Layout` of a network's trainable parameters by each place where they are found. Layers may share a
    parameter; a layer that is found at two places has one, so that whoever puts others in their place puts back what
    was there."""
    names = {id(parameter): name for name, parameter in module.named_parameters() if parameter.requires_grad}
    found = {}
    for path, layer in module.named_modules():
        for name, parameter in layer.named_parameters(prefix=path, recurse=False):
            if id(parameter) in names:
                found[name] = names[id(parameter)]
    return found


def flatten(module: nn.Module) -> Tensor:
    """A network's trainable parameters as one vector, copied."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters() if p.requires_grad])
