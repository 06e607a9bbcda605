"""What a network must be to be trained privately: no memory of its batches, and something to train."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import is_lazy

from sordino.errors import UserError

_INSTEAD = (
    "use GroupNorm: torch.nn.GroupNorm(min(32, channels), channels) norms each example by itself and remembers nothing."
)


def check(module: nn.Module) -> None:
    """Refuses a network that cannot be trained privately, naming the part that is in the way.

    BatchNorm lets one example change every other's gradient, so a per-example clip bounds nothing, and
    running statistics are averages of private data that no mechanism has noised.
    """
    for path, part in module.named_modules():
        kind = type(part).__name__
        if isinstance(part, _BatchNorm):
            raise UserError(
                f"{_place(path)} is a {kind}, which mixes the examples of a batch, so that no example's "
                f"influence can be bounded; {_INSTEAD}"
            )
        if (isinstance(part, _NormBase) and part.track_running_stats) or any(
            name.startswith("running_") for name, _ in part.named_buffers(recurse=False)
        ):
            raise UserError(
                f"{_place(path)} is a {kind} with running statistics, which change in training and are "
                f"covered by no noise; {_INSTEAD}"
            )
    for path, parameter in module.named_parameters():
        if is_lazy(parameter):
            raise UserError(f"{_place(path)} has no size yet; write its layer with sizes instead of a Lazy one.")
    if not any(parameter.requires_grad and parameter.numel() for parameter in module.parameters()):
        raise UserError(
            f"{_place('')} ({type(module).__name__}) has no trainable parameters; assign its layers to "
            "attributes in __init__, and leave requires_grad on where it should learn."
        )


def try_out(name: str, module: nn.Module, shape: tuple[int, ...], classes: int) -> None:
    """Refuses the user's network `name` if it does not give logits, or changes a buffer in a training pass.

    Works on a copy and leaves torch's random state as it was.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            tried = copy.deepcopy(module)
            logits = tried.eval()(torch.zeros(1, *shape))
            before = {path: buffer.clone() for path, buffer in tried.named_buffers()}
            # Two random inputs: an average of zeros would stay zero, and pass for constant.
            tried.train()(torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)))
        except Exception as error:
            raise UserError(
                f"The model {name!r} fails on an input of shape {shape}: {type(error).__name__}: {error}"
            ) from error
    if not isinstance(logits, Tensor) or tuple(logits.shape) != (1, classes):
        got = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise UserError(
            f"The model {name!r} gives {got} for one input of shape {shape}; it must give logits of shape "
            f"(1, {classes}), one per class."
        )
    for path, buffer in tried.named_buffers():
        if path not in before or not torch.equal(before[path], buffer):
            raise UserError(
                f"The buffer {path!r} of the model {name!r} changes in training, and what it learns of the "
                f"data is covered by no noise; make it constant, or, if it serves a norm, {_INSTEAD}"
            )


def _place(path: str) -> str:
    return f"{path!r} in the network" if path else "The network itself"
