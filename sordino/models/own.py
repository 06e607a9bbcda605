"""A user's own network, loaded and checked by its dotted name: `package.module:Class` or `package.module.Class`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from sordino.errors import FAILURES, UserError, unknown
from sordino.models.checks import check, try_out
from sordino.models.tokens import declare_tokens
from sordino.util.import_by_name import current_directory_importable, find, user_code_error


def load(name: str, shape: tuple[int, ...], outputs: int, options: dict[str, Any]) -> nn.Module:
    """The network that the class or function `name` builds, tried out and checked.

    It is called with those of `shape`, `classes` (the number of `outputs`) and `options` that it accepts.
    """
    target = find(name)
    if isinstance(target, nn.Module) or not callable(target):
        raise UserError(
            f"{name!r} is a {type(target).__name__} object; name the class, or a function that makes "
            "the model, so that a run's seed decides its weights."
        )
    with current_directory_importable():
        module = call(name, target, {"shape": shape, "classes": outputs}, options)
    if not isinstance(module, nn.Module):
        raise UserError(f"{name!r} gives a {type(module).__name__}; a model must be a torch.nn.Module.")
    for layer in module.modules():
        if getattr(layer, "inplace", False) is True:
            layer.inplace = False  # type: ignore[assignment]  # book-keeping needs a layer's output as the layer left it
    check(module)
    declare_tokens(module, shape)
    try_out(name, module, shape, outputs)
    return module


def call(name: str, target: Callable[..., Any], offered: dict[str, Any], options: dict[str, Any]) -> Any:
    """Call the user's `target`, by keyword, with all of `options` and those of `offered` that it accepts.

    `name` is its dotted name, for the sentences that refuse it.
    """
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError) as error:
        raise user_code_error(f"{name!r} does not say which arguments it takes", error) from error
    parameters = signature.parameters.values()
    accepted = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    # A class without __init__ shows nn.Module's, whose **kwargs accepts nothing.
    if any(p.kind is p.VAR_KEYWORD for p in parameters) and (
        getattr(target, "__init__", None) is not nn.Module.__init__
    ):
        accepted |= {*offered, *options}
    for option in options:
        if option not in accepted:
            known = accepted - set(offered)
            if not known:
                raise UserError(f"The model {name!r} has no options; leave {option!r} out.")
            raise unknown(f"option of the model {name!r} called", option, known)
    arguments = {key: value for key, value in offered.items() if key in accepted} | options
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise UserError(
            f"The model {name!r} cannot be made from shape, classes and the options given: {error}; pass the "
            "missing argument as an option, or give it a default."
        ) from error
    try:
        return target(**arguments)
    except UserError:
        raise
    except FAILURES as error:
        raise user_code_error(f"The model {name!r} cannot be made", error) from error
