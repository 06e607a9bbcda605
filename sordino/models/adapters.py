"""Low-rank adapters (LoRA; Hu et al., 2022, arXiv 2106.09685) in the linear layers of a frozen network.

    def network(shape, classes, rank=4):
        backbone = Encoder(shape)
        backbone.load_state_dict(load_file("encoder.safetensors"))
        return sordino.adapt(backbone, shape, classes, rank=rank, trained_on="a public archive")

A frozen layer W x becomes W x + (alpha / rank) B A x. A, B and a linear head are all that is trained, clipped, noised
and sent: noise grows with the number of these parameters, not with that of the backbone. B is zero at the beginning,
so that training begins with the backbone as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sordino.errors import FAILURES, UserError
from sordino.models.tokens import find_vocabulary
from sordino.util.import_by_name import user_code_error

NOTHING = "nothing"
"""Declaration of weights that no data have trained."""


class LowRank(nn.Module):
    """A frozen linear layer with an adapter of low rank beside it."""

    def __init__(self, layer: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.layer = layer
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        self.scale = alpha / rank
        nn.init.zeros_(self.up.weight)

    @property
    def weight(self) -> Tensor:
        """The adapted weights, for layers of torch that read those of a linear layer inside them."""
        return self.layer.weight + self.scale * (self.up.weight @ self.down.weight)

    @property
    def bias(self) -> Tensor | None:
        """The frozen bias."""
        return self.layer.bias

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = self.layer(x) + self.scale * self.up(self.down(x))
        return changed


class FrozenNorm(nn.Module):
    """A BatchNorm layer in evaluation mode: one factor and one offset for each channel, whatever else is in a batch."""

    factor: Tensor
    offset: Tensor

    def __init__(self, layer: _BatchNorm) -> None:
        super().__init__()
        if layer.running_mean is None or layer.running_var is None:
            raise UserError(
                f"A {type(layer).__name__} of the backbone has no running statistics, so that it would mix the records "
                "of a batch: give it some, or use GroupNorm."
            )
        factor = (layer.running_var + layer.eps).rsqrt()
        if layer.weight is not None:
            factor = factor * layer.weight.detach()
        offset = -layer.running_mean * factor
        if layer.bias is not None:
            offset = offset + layer.bias.detach()
        self.register_buffer("factor", factor.clone())
        self.register_buffer("offset", offset.clone())

    def forward(self, x: Tensor) -> Tensor:
        along = (1, -1) + (1,) * (x.dim() - 2)
        return x * self.factor.view(along) + self.offset.view(along)


class Adapted(nn.Module):
    """A frozen backbone, always in evaluation mode, with adapters in its linear layers; then a linear head."""

    def __init__(self, backbone: nn.Module, head: nn.Linear, trained_on: str, tokens: int | None) -> None:
        super().__init__()
        self.backbone, self.head, self.trained_on = backbone, head, trained_on
        self.inputs = None if tokens is None else f"tokens:{tokens}"
        self.train()

    def train(self, mode: bool = True) -> Adapted:
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.backbone(x).flatten(1))
        return outputs

    @property
    def origin(self) -> str:
        """Sentence on the data that the frozen weights were trained on, for the statement."""
        trained = "which no data have trained" if self.trained_on == NOTHING else f"trained on {self.trained_on}"
        return (
            f"The network is a frozen one, {trained}, as its author declares, with low-rank adapters: adapters and "
            "head are all that is trained."
        )


def adapt(
    backbone: nn.Module,
    shape: tuple[int, ...],
    classes: int,
    *,
    rank: int = 4,
    alpha: float | None = None,
    trained_on: str,
    only: Callable[[str], bool] | None = None,
) -> Adapted:
    """Freeze `backbone`, put adapters into its linear layers and a linear head behind it, and return the whole network.

    Args:
        backbone: network with its weights, from records to features, which are flattened. It is changed. BatchNorm
            layers keep the statistics that they have.
        shape: shape of one record.
        classes: number of outputs of the head.
        rank: number of columns of A and B. An adapter has rank (inputs + outputs) parameters.
        alpha: adapters are multiplied by alpha / rank; by default `rank`, so that the factor is one.
        trained_on: public data that the backbone's weights were trained on, for the statement; `nothing` where they are
            random. Weights that were trained on clients' records tell of these without any noise.
        only: chooses the layers that are adapted by their names; by default all linear layers.
    """
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise UserError(f"The rank of adapters is a whole number from 1 on, not {rank!r}.")
    if alpha is not None and not (math.isfinite(alpha) and alpha > 0):
        raise UserError(f"alpha, the size of adapters, is a positive number, not {alpha!r}.")
    if not isinstance(trained_on, str) or not trained_on.strip():
        raise UserError(
            'Say which public data the backbone was trained on, as in trained_on="ImageNet"; "nothing" where its '
            "weights are random."
        )
    if not isinstance(backbone, nn.Module):
        raise UserError(f"The backbone is a torch.nn.Module, not a {type(backbone).__name__}.")
    backbone.eval().requires_grad_(False)
    # A layer that stands in several places has several names, and one adapter.
    places = list(backbone.named_modules(remove_duplicate=False))
    instead: dict[nn.Module, nn.Module] = {}
    for name, layer in places:
        if layer not in instead and _is_linear(layer) and (only is None or only(name)):
            assert isinstance(layer, nn.Linear)
            instead[layer] = LowRank(layer, min(rank, *layer.weight.shape), float(alpha or rank))
    if not instead:
        raise UserError(
            "The backbone has no linear layers to put adapters into: use it as features (`features = "
            '"backbone.py:factory"`), with a head behind it.'
        )
    instead |= {layer: FrozenNorm(layer) for layer in backbone.modules() if isinstance(layer, _BatchNorm)}
    whole = nn.ModuleDict({"backbone": backbone})  # the backbone may be a linear layer itself
    for name, layer in places:
        if layer in instead:
            _replace(whole, name, instead[layer])
    tokens = find_vocabulary(whole["backbone"], shape)
    width = _features_of(whole["backbone"], shape, tokens)
    return Adapted(whole["backbone"], nn.Linear(width, classes), trained_on, tokens)


def _features_of(backbone: nn.Module, shape: tuple[int, ...], tokens: int | None) -> int:
    """Number of features that a backbone makes of one record."""
    record = torch.zeros(1, *shape, dtype=torch.float32 if tokens is None else torch.int64)
    try:
        with torch.no_grad():
            found = backbone(record)
    except FAILURES as error:
        raise user_code_error(f"The backbone fails on records of shape {shape}", error) from error
    if not isinstance(found, Tensor) or found.dim() < 2 or len(found) != 1 or not found.is_floating_point():
        got = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise UserError(
            f"The backbone's features of one record of shape {shape} have {got}; they must be floating-point numbers "
            "of shape (1, ...), one row for each record."
        )
    return found.flatten(1).shape[1]


def _is_linear(layer: nn.Module) -> bool:
    """Whether a layer computes what `nn.Linear` does."""
    return isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward


def _replace(whole: nn.ModuleDict, name: str, layer: nn.Module) -> None:
    """Put `layer` in the place of the layer of this name of the backbone."""
    *path, last = ["backbone", *name.split(".")] if name else ["backbone"]
    owner: nn.Module = whole.get_submodule(".".join(path))
    owner._modules[last] = layer
