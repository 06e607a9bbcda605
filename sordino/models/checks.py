"""Checks that a network can be trained privately: it keeps records apart, remembers none, and has parameters."""

from __future__ import annotations

import array
import collections
import contextlib
import copy
import functools
from collections.abc import Mapping
from types import FunctionType, MemberDescriptorType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import is_lazy

from sordino.errors import UserError
from sordino.models.tokens import examples

_INSTEAD = (
    "use GroupNorm: torch.nn.GroupNorm(min(32, channels), channels) norms each example by itself and remembers nothing."
)


MIXES = (
    "mixes the records of a batch, so that no record's influence can be bounded: its output for one record changes "
    "with the others; keep records in the first dimension, and take means, norms and attention over the other "
    "dimensions only."
)
_TRIED, _MANY = 3, 33
"""Numbers of records on which a network is tried: of a small batch, and of a larger one in which it might mix them."""


def check(module: nn.Module) -> None:
    """Refuse a network that cannot be trained privately, and name the part that is in the way.

    BatchNorm lets one example change every other's gradient, so a per-example clip bounds nothing, and
    running statistics are averages of private data that no mechanism has noised.
    """
    for path, part in module.named_modules():
        kind = type(part).__name__
        if isinstance(part, _BatchNorm):
            raise UserError(
                f"{_place(path)} is a {kind}, which mixes the records of a batch, so that no record's "
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


def try_out(name: str, module: nn.Module, shape: tuple[int, ...], outputs: int) -> None:
    """Refuse a user's network that does not give logits, mixes records, or remembers what it has seen.

    It is tried on a copy, and torch's random state is left as it was.

    Args:
        name: the network's dotted name, for the sentence.
        module: the network.
        shape: shape of one input.
        outputs: number of logits that it must give for each input.
    """
    with torch.random.fork_rng(devices=[]):
        try:
            tried = copy.deepcopy(module)
            with torch.no_grad():
                logits = tried.eval()(torch.zeros(1, *shape))
            _check_logits(name, logits, shape, outputs)
            # Records of random numbers: averages of zeros would stay zero, and pass for constant.
            x = examples(tried, 2 * _TRIED, shape, seed=0)
            changed, mixed = _find_change(tried, *x.split(_TRIED)), _mixes(tried, *x.split(_TRIED))
            many = examples(tried, _MANY, shape, seed=2)
            mixed = mixed or any(_slope_of_others(tried.train(training), many) > 0 for training in (False, True))
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"The model {name!r} fails on an input of shape {shape}: {type(error).__name__}: {error}"
            ) from error
    if changed is not None:
        raise UserError(
            f"The {changed} of the model {name!r} changes in training, and what it learns of the "
            f"data is covered by no noise; make it constant, or, if it serves a norm, {_INSTEAD}"
        )
    if mixed:
        raise UserError(f"The model {name!r} {MIXES}")


def _check_logits(name: str, logits: object, shape: tuple[int, ...], outputs: int) -> None:
    if not isinstance(logits, Tensor) or tuple(logits.shape) != (1, outputs):
        got = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise UserError(
            f"The model {name!r} gives {got} for one input of shape {shape}; it must give logits of shape "
            f"(1, {outputs}), one per output of the task."
        )


def _find_change(module: nn.Module, first: Tensor, second: Tensor) -> str | None:
    """Name of a buffer, parameter or attribute of the network that a training pass changes; None if nothing changes.

    The second pass is watched: what is made once, like a table of positions, is allowed.
    """
    module.train()
    return find_change_in_evaluation(module, first, second)


def find_change_in_evaluation(module: nn.Module, first: Tensor, second: Tensor) -> str | None:
    """`_find_change` for a frozen network, which is never trained."""
    with torch.no_grad():
        module(first)
        before = held_by(module)
        module(second)
    return find_change_since(before, module)


def find_change_since(before: Mapping[str, Any], module: nn.Module) -> str | None:
    """Name of what a network holds otherwise than `before`, when `held_by` looked; None if nothing has changed."""
    after = held_by(module)
    return next((key for key in after if key not in before or not _same(before[key], after[key])), None)


def remembers_first(module: nn.Module, first: Tensor, second: Tensor) -> bool:
    """Whether a frozen network that has run on nothing yet works otherwise ever after for the first records it sees."""
    one, other = copy.deepcopy(module), copy.deepcopy(module)
    with torch.no_grad():
        one(first)
        other(second)
        return not _close(one(first), other(first))


def mixes_in_evaluation(module: nn.Module, x: Tensor, others: Tensor) -> bool:
    """Whether a frozen network's output for the first record depends on the others of its batch, or on their number."""
    many = torch.cat([x] * (_MANY // len(x)))
    return _mixes_in_mode(module, x, others) or _slope_of_others(module, many) > 0


def held_by(module: nn.Module) -> dict[str, Any]:
    """Copies of everything that a network holds, by kind and name; internals of torch's layers are left out."""
    internal = nn.Module().__dict__.keys()
    state: dict[str, Any] = {f"buffer {path!r}": buffer.clone() for path, buffer in module.named_buffers()}
    state |= {f"parameter {path!r}": parameter.detach().clone() for path, parameter in module.named_parameters()}
    for path, part in module.named_modules():
        for key, value in vars(part).items():
            if key not in internal or key.endswith("_hooks"):
                state[f"attribute {f'{path}.{key}'.lstrip('.')!r}"] = _copy_value(value)
    return state


def _copy_value(value: Any, depth: int = 4) -> Any:
    """Copy of the numbers and texts in a value, `depth` containers or objects deep; None for anything else."""
    found: Any = None
    if isinstance(value, Tensor):
        found = value.detach().clone()
    elif isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        found = value.dtype.str, value.shape, value.tobytes()
    elif isinstance(value, bytearray | memoryview | array.array):
        found = bytes(value)
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes):
        found = value
    elif depth and isinstance(value, Mapping):
        found = {key: _copy_value(one, depth - 1) for key, one in value.items()}
    elif depth and isinstance(value, np.ndarray):
        found = [_copy_value(one, depth - 1) for one in value.flat]
    elif depth and isinstance(value, list | tuple | set | frozenset | collections.deque):
        found = [_copy_value(one, depth - 1) for one in value]
    elif depth and isinstance(value, FunctionType | MethodType | functools.partial):
        found = [_copy_value(one, depth - 1) for one in _carried(value)]
    elif depth and not isinstance(value, type):
        found = {name: _copy_value(one, depth - 1) for name, one in attributes(value).items()}
    return found


def _carried(called: FunctionType | MethodType | functools.partial[Any]) -> list[Any]:
    """Values that a function, a method or a partial function carries about."""
    if isinstance(called, functools.partial):
        return [called.func, called.args, called.keywords]
    if isinstance(called, MethodType):
        return [called.__self__]
    held: list[Any] = [called.__defaults__, called.__kwdefaults__, vars(called)]
    for cell in called.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty one
            held.append(cell.cell_contents)
    return held


def attributes(value: object) -> dict[str, Any]:
    """Attributes of an object by name, in slots or not."""
    kinds = [vars(kind) for kind in type(value).__mro__ if "__slots__" in vars(kind)]
    members = [(name, one) for kind in kinds for name, one in kind.items()]
    slots = [name for name, one in members if isinstance(one, MemberDescriptorType) and hasattr(value, name)]
    return {name: getattr(value, name) for name in slots} | getattr(value, "__dict__", {})


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) or one is other


def _mixes(module: nn.Module, x: Tensor, others: Tensor) -> bool:
    """Whether a network's output for the first record depends on the other records of its batch, or on their number."""
    return any(_mixes_in_mode(module.train(training), x, others) for training in (False, True))


def _mixes_in_mode(module: nn.Module, x: Tensor, others: Tensor) -> bool:
    if _slope_of_others(module, x) > 0:
        return True
    own = _first_logits(module, x)
    if not _close(own, _first_logits(module, x)):
        return False  # it draws random numbers that no seed repeats: slopes must do
    exchanged = [torch.cat([x[:1], scale * others[1:]]) for scale in (1.0, 100.0)]
    if any(not _close(own, _first_logits(module, batch)) for batch in exchanged):
        return True
    # Dropout draws other numbers for batches of other sizes.
    random = not _close(own, _first_logits(module, x, seed=1))
    return not random and not _close(own, _first_logits(module, x[:1]))


def _slope_of_others(module: nn.Module, x: Tensor) -> float:
    """The largest derivative of the first record's logits by the other records: exactly zero if none enters."""
    x = x.clone().requires_grad_()
    first = module(x)[0]
    first = (first * torch.randn(first.shape, generator=torch.Generator().manual_seed(1))).sum()
    if not first.requires_grad:
        return 0.0
    (slope,) = torch.autograd.grad(first, x, allow_unused=True)
    return 0.0 if slope is None else float(slope[1:].abs().max())


def _first_logits(module: nn.Module, x: Tensor, seed: int = 0) -> Tensor:
    torch.default_generator.manual_seed(seed)
    with torch.no_grad():
        logits: Tensor = module(x)
    return logits[0]


def _close(one: Tensor, other: Tensor) -> bool:
    """Whether two outputs are equal but for rounding, which may depend on the size of a batch."""
    return torch.allclose(one, other, rtol=1e-4, atol=1e-4 * float(one.abs().max()), equal_nan=True)


def _place(path: str) -> str:
    return f"{path!r} in the network" if path else "The network itself"
