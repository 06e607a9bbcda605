"""Imports of a user's own classes and functions by name: `package.module:Class` or `package.module.Class`."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from sordino.errors import FAILURES, UserError, unknown


def is_dotted(name: str) -> bool:
    """Whether `name` means a user's own code: no built-in name has a dot or a colon."""
    return "." in name or ":" in name


def find(name: str) -> Callable[..., Any]:
    """Import the class or function called `name`; the current directory is searched first."""
    where, _, what = name.partition(":") if ":" in name else name.rpartition(".")
    if not what.isidentifier() or not all(part.isidentifier() for part in where.split(".")):
        raise UserError(f"{name!r} is not a dotted name; write it as 'package.module:Class'.")
    if where.endswith(".py") and ":" in name:
        raise UserError(f"{name!r} names a file; write the module, '{where.removesuffix('.py')}:{what}'.")
    module = _import(where)
    known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    if not hasattr(module, what):
        if not known:
            raise UserError(f"The module {where!r} has no {what!r}, nor any other class or function.")
        raise unknown(f"class or function in the module {where!r} named", what, known)
    target: Callable[..., Any] = getattr(module, what)
    return target


def user_code_error(what: str, error: BaseException) -> UserError:
    """Make the error for a user's code that raised `error`; `what` says what failed."""
    return UserError(f"{what}: {type(error).__name__}: {error}")


@contextlib.contextmanager
def current_directory_importable() -> Iterator[None]:
    """Search the current directory first for imported modules."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        # The imported code may have changed sys.path too.
        with contextlib.suppress(ValueError):
            sys.path.remove(here)


def _import(where: str) -> ModuleType:
    importlib.invalidate_caches()
    try:
        # A module that draws randomness does so on its first import only; the weights must not depend on it.
        with current_directory_importable(), torch.random.fork_rng(devices=[]):
            return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{where}.".startswith(f"{error.name}."):
            raise user_code_error(f"The module {where!r} cannot be imported", error) from error
        raise UserError(
            f"There is no module {error.name!r} (looking for {where!r}) in the current directory or among "
            "the installed packages."
        ) from error
    except FAILURES as error:
        raise user_code_error(f"The module {where!r} cannot be imported", error) from error
