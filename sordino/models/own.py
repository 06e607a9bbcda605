"""A user's own network, by dotted name: `package.module:Class` or `package.module.Class`."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import nn

from sordino.errors import UserError, unknown
from sordino.models.checks import check, try_out


def is_dotted(name: str) -> bool:
    """Whether `name` is a dotted name: no built-in network has a dot or a colon."""
    return "." in name or ":" in name


def load(name: str, shape: tuple[int, ...], classes: int, options: dict[str, Any]) -> nn.Module:
    """The network that the class or function `name` builds, tried out and checked."""
    with _current_directory_importable():
        module = _call(name, _find(name), {"shape": shape, "classes": classes}, options)
    if not isinstance(module, nn.Module):
        raise UserError(f"{name!r} gives a {type(module).__name__}; a model must be a torch.nn.Module.")
    check(module)
    try_out(name, module, shape, classes)
    return module


def _find(name: str) -> Callable[..., Any]:
    where, _, what = name.partition(":") if ":" in name else name.rpartition(".")
    if not what.isidentifier() or not all(part.isidentifier() for part in where.split(".")):
        raise UserError(f"{name!r} is not a dotted name; write it as 'package.module:Class'.")
    module = _import(where)
    known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    if not hasattr(module, what):
        if not known:
            raise UserError(f"The module {where!r} has no {what!r}, nor any other class or function.")
        raise unknown(f"class or function in the module {where!r} named", what, known)
    target = getattr(module, what)
    if isinstance(target, nn.Module) or not callable(target):
        raise UserError(
            f"{name!r} is a {type(target).__name__} already made; name the class, or a function that makes "
            "the model, so that a run's seed decides its weights."
        )
    return target


def _import(where: str) -> ModuleType:
    importlib.invalidate_caches()
    try:
        # A module that draws randomness does so on its first import only; the weights must not depend on it.
        with torch.random.fork_rng(devices=[]):
            return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{where}.".startswith(f"{error.name}."):
            raise _failed(f"The module {where!r} cannot be imported", error) from error
        raise UserError(
            f"There is no module {error.name!r} (looking for {where!r}) in the current directory or among "
            "the installed packages."
        ) from error
    except Exception as error:
        raise _failed(f"The module {where!r} cannot be imported", error) from error


def _call(name: str, target: Callable[..., Any], offered: dict[str, Any], options: dict[str, Any]) -> Any:
    """What `target` returns for all of `options` and those of `offered` that it accepts, by keyword."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError) as error:
        raise _failed(f"{name!r} does not say which arguments it takes", error) from error
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
            f"The model {name!r} cannot be made from shape, classes and the options given: {error}; add it "
            "as an option, or give it a default."
        ) from error
    try:
        return target(**arguments)
    except UserError:
        raise
    except Exception as error:
        raise _failed(f"The model {name!r} cannot be made", error) from error


def _failed(what: str, error: Exception) -> UserError:
    return UserError(f"{what}: {type(error).__name__}: {error}")


@contextlib.contextmanager
def _current_directory_importable() -> Iterator[None]:
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        # The imported code may have changed sys.path too.
        with contextlib.suppress(ValueError):
            sys.path.remove(here)
