"""Faster replacements for `torch.func.vmap` over clients (`over_clients`) and for a custom vmap rule (`under_vmap`, to
call functions of whole stacks from within), built on private functions of functorch.

The public ways, `torch.func.vmap` and the `vmap` of a `torch.autograd.Function` (`_Stacked`), take five and eight times
as long to begin (75 and 120 microseconds on one core), several times in every round of a hundred small clients and in
every step at record level. Private names tie this module to the versions of torch that it was tested with.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sordino.errors import UserError

TESTED = ("2.6", "2.15")
"""First and last version of torch that the tests have passed with: `pyproject.toml` admits no other."""
FUNCTORCH = (
    *("CVmapInterpreterPtr", "TransformType", "_add_batch_dim", "_remove_batch_dim", "current_level"),
    *("get_interpreter_stack", "get_unwrapped", "is_batchedtensor", "maybe_get_bdim", "peek_interpreter_stack"),
)
"""Names of `torch._C._functorch` that are used here."""

try:
    from torch._C import _functorch
    from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
    from torch._functorch.vmap import lazy_load_decompositions, vmap_increment_nesting

    for _name in FUNCTORCH:
        getattr(_functorch, _name)
except (ImportError, AttributeError) as error:
    raise UserError(
        f"Sordino needs torch {TESTED[0]} to {TESTED[1]}; the installed version {torch.__version__} lacks something "
        f"that Sordino uses ({error}). Install a version between them."
    ) from error


def over_clients(function: Callable[..., Any], count: int, *arguments: Any) -> Any:
    """Return what `vmap(function)(*arguments)` returns.

    Args:
        function: Written for one client.
        count: Number of clients.
        arguments: Tensors with one row for each client, dictionaries of these, or None.

    Tensors among the results, also in tuples and dictionaries, have one row for each client. Anything else is returned
    as it is.
    """
    lazy_load_decompositions()
    with vmap_increment_nesting(count, "error") as level:
        return _remove_level(function(*(_add_level(argument, level) for argument in arguments)), level, count)


def as_one(stacked: Callable[[str], Tensor]) -> Callable[[str], Tensor]:
    """Turn a function that returns one row for each client into one that returns this client's own row.

    Call it where the client's function begins: later another transformation may be the innermost.
    """
    level = _functorch.current_level()
    return lambda name: _functorch._add_batch_dim(stacked(name), 0, level)


def _add_level(argument: Any, level: int) -> Any:
    if isinstance(argument, dict):
        return {name: _add_level(one, level) for name, one in argument.items()}
    return None if argument is None else _functorch._add_batch_dim(argument, 0, level)


def _remove_level(found: Any, level: int, count: int) -> Any:
    if isinstance(found, dict):
        return {name: _remove_level(one, level, count) for name, one in found.items()}
    if isinstance(found, tuple):
        return tuple(_remove_level(one, level, count) for one in found)
    return _functorch._remove_batch_dim(found, level, count, 0) if isinstance(found, Tensor) else found


def under_vmap(function: Callable[..., Tensor], *tensors: Tensor | None) -> Tensor:
    """Call `function` on whole stacks (one row for each client) from one client's function under `vmap`.

    Args:
        function: Of tensors with one row for each client; returns one such tensor.
        tensors: The client's own, without the dimension of clients; None stays None.
    """
    if len(_functorch.get_interpreter_stack() or ()) == 1:
        top = _functorch.peek_interpreter_stack()
        if top.key() == _functorch.TransformType.Vmap:
            return _within(top, function, tensors)
    found: Tensor = _Stacked.apply(function, *tensors)
    return found


def _within(vmap: Any, function: Callable[..., Tensor], tensors: tuple[Tensor | None, ...]) -> Tensor:
    """Do what `_Stacked` does, in an eighth of the time, where one `vmap` is the only transformation."""
    count, level = _functorch.CVmapInterpreterPtr(vmap).batchSize(), vmap.level()

    def whole(tensor: Tensor | None) -> Tensor | None:
        if tensor is None:
            return None
        if not _functorch.is_batchedtensor(tensor):
            return tensor.expand(count, *tensor.shape)
        return _functorch.get_unwrapped(tensor).movedim(_functorch.maybe_get_bdim(tensor), 0)

    stacks = [whole(tensor) for tensor in tensors]
    with temporarily_pop_interpreter_stack(), torch.no_grad():
        found = function(*stacks)
    return _functorch._add_batch_dim(found, 0, level)


class _Stacked(torch.autograd.Function):
    """The public way to `under_vmap`, for nested transformations. It is not differentiated itself."""

    @staticmethod
    def forward(function: Callable[..., Tensor], *tensors: Tensor | None) -> Tensor:
        return function(*(None if tensor is None else tensor.unsqueeze(0) for tensor in tensors)).squeeze(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return

    @staticmethod
    def vmap(info: Any, dims: Any, function: Callable[..., Tensor], *tensors: Any) -> tuple[Tensor, int]:
        def whole(tensor: Tensor | None, dim: int | None) -> Tensor | None:
            if tensor is None or dim is not None:
                return tensor if tensor is None else tensor.movedim(dim, 0)  # type: ignore[arg-type]
            return tensor.expand(info.batch_size, *tensor.shape)

        return function(*map(whole, tensors, dims[1:])), 0


def obstacle(error: Exception) -> str:
    """Explain where and why `vmap` gave up, and what to write instead; the place is the last one outside of torch and
    Sordino."""
    inside = (Path(torch.__file__).parent, Path(__file__).parent.parent, Path(contextlib.__file__))
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not (frame.filename.startswith("<") or any(Path(frame.filename).is_relative_to(one) for one in inside))
    ]
    place = f"line {frames[-1].lineno} of {frames[-1].filename} (`{frames[-1].line}`)" if frames else "a line of it"
    if "data-dependent" in str(error):
        return f"{place} decides by the value of a tensor; write it with torch.where"
    said = next(iter(str(error).split(". ")[0].splitlines()), type(error).__name__)
    return f"torch.func.vmap failed at {place}: {said}; rewrite this line without that operation"
