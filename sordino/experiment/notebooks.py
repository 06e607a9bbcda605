"""Digests of code that stands in no file: classes of a notebook or an interpreter."""

from __future__ import annotations

import dataclasses
import hashlib
import marshal
import secrets
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

WithoutFiles = Callable[[object], list[type]]
"""The classes that a class is made of whose code stands in no file."""


def compiled_code(kind: type, without_files: WithoutFiles) -> str:
    """A digest of a class whose source is not at hand: its functions' compiled code and its constants, with all that
    they name, directly or not. It is another each time where something in that cannot be digested."""
    return _Digest(without_files).of(kind)


class _Digest:
    """Digests of values by what they are, each function and class once."""

    def __init__(self, without_files: WithoutFiles) -> None:
        self._without_files = without_files
        self._seen: set[int] = set()

    def of(self, value: Any) -> str:
        """A digest of a value; one that never comes again for what has none."""
        return hashlib.sha256("\n".join(self._parts(value)).encode()).hexdigest()

    def _parts(self, value: Any) -> list[str]:
        function = getattr(value, "__func__", getattr(value, "fget", value))
        if isinstance(function, FunctionType):
            return self._once(function, self._of_function)
        if isinstance(value, ModuleType):
            return [value.__name__]
        if isinstance(value, type):
            own = value in self._without_files(value)
            return self._once(value, self._of_class) if own else [value.__qualname__]
        return self._of_value(value)

    def _of_value(self, value: Any) -> list[str]:
        kind = type(value).__name__
        if isinstance(value, dict):
            return [kind, *(self.of(item) for pair in value.items() for item in pair)]
        if isinstance(value, list | tuple | set | frozenset):
            items = [self.of(item) for item in value]
            return [kind, *(sorted(items) if isinstance(value, set | frozenset) else items)]
        if isinstance(value, torch.Tensor | np.ndarray):
            array = np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)
            return [str(array.dtype), str(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]
        if value is None or isinstance(value, str | bytes | int | float | complex):
            return [kind, repr(value)]
        return [secrets.token_hex()]

    def _once(self, value: Any, parts: Callable[[Any], list[str]]) -> list[str]:
        if id(value) in self._seen:
            return [value.__qualname__]
        self._seen.add(id(value))
        return parts(value)

    def _of_function(self, function: FunctionType) -> list[str]:
        named = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
        held = [cell.cell_contents for cell in function.__closure__ or ()]
        known = [part for name, value in sorted(named.items()) for part in (name, *self._parts(value))]
        inner = [function.__defaults__, function.__kwdefaults__, held, getattr(function, "releases", None)]
        return [marshal.dumps(function.__code__).hex(), *known, *(part for one in inner for part in self._parts(one))]

    def _of_class(self, kind: type) -> list[str]:
        made = MADE_BY_PYTHON | (MADE_BY_DATACLASSES if dataclasses.is_dataclass(kind) else set())
        members = {name: value for name, value in vars(kind).items() if name not in made}
        return [kind.__qualname__, *(part for name in sorted(members) for part in (name, *self._parts(members[name])))]


def _names(code: CodeType) -> set[str]:
    """The names that compiled code looks up, inner functions included."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*(_names(one) for one in inner))


MADE_BY_PYTHON = {
    *("__module__", "__dict__", "__weakref__", "__doc__", "__annotations__", "__abstractmethods__", "_abc_impl"),
    *("__firstlineno__", "__static_attributes__", "__annotate_func__", "__annotations_cache__"),
}
"""Members of a class that follow from the others, or that say nothing about what it does."""
MADE_BY_DATACLASSES = {
    *("__dataclass_fields__", "__dataclass_params__", "__init__", "__repr__", "__eq__", "__hash__"),
    *("__setattr__", "__delattr__", "__match_args__", "__replace__"),
}
"""What follows from a dataclass's fields, whose defaults are members themselves."""
