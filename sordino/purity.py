"""Steps are pure functions: what they leave in objects that outlive them reaches others past the gate.

In a simulation a method's clients and its script run in one process. Clients have a copy of the method and of the
network, so that nothing which a step writes there reaches the script. What it writes there, into a class or a module
would still reach the next client: after every step the method, and the classes and modules in which the user wrote it,
must be as they were. This finds mistakes. Code that is meant to get round it can: files, other modules, the garbage
collector.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor

from sordino.errors import UserError
from sordino.method import Method

OURS = ("sordino", "builtins", "abc", "typing", "dataclasses")
"""Packages whose classes and modules are not compared."""
DEPTH, ENTRIES = 6, 2000
"""Depth to which tables and lists are compared, and entries of each: datasets may lie in a user's module."""
SMALL = 2**16
"""Arrays of at most so many bytes are compared by value."""


class Same:
    """An object that equals itself alone; it lives on here, so that no other gets its place in memory."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    __hash__ = None  # type: ignore[assignment]


class Surroundings:
    """A method, and the classes and modules in which a user wrote it, which steps must not change."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self._classes = [kind for kind in type(method).__mro__ if kind.__module__.partition(".")[0] not in OURS]
        names = dict.fromkeys(kind.__module__ for kind in self._classes)
        self._modules = [sys.modules[name] for name in names if name in sys.modules]

    @contextlib.contextmanager
    def unchanged(self, step: str) -> Iterator[None]:
        """Refuse a step that changes any of it."""
        before = self._seen()
        yield
        after = self._seen()
        changed = [name for name in {**before, **after} if before.get(name, Same(before)) != after.get(name)]
        if changed:
            raise UserError(
                f"The step {step} changed {changed[0]}, by which others would learn of its client's records past the "
                "gate: let a step return what it sends and keeps, and change nothing that outlives it."
            )

    def _seen(self) -> dict[str, Any]:
        """Snapshots of everything that a step must not change, by name."""
        found = {f"self.{name}": value for name, value in vars(self._method).items()}
        for kind in self._classes:
            lazy = {name for name, value in vars(kind).items() if isinstance(value, functools.cached_property)}
            found = {name: value for name, value in found.items() if name.partition(".")[2] not in lazy}
            found |= {f"{kind.__qualname__}.{name}": value for name, value in _own(vars(kind))}
        for module in self._modules:
            found |= {f"{module.__name__}.{name}": value for name, value in _own(vars(module))}
        homes = {module.__name__ for module in self._modules}
        return {name: _looked_at(value, homes, DEPTH) for name, value in found.items()}


def _own(names: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Values under names that a user chose: dunder names, which Python itself writes, and modules, which may be
    imported at any time, are left out."""
    return [(name, value) for name, value in names.items() if name[:2] != "__" and not isinstance(value, ModuleType)]


def _looked_at(value: Any, homes: set[str], depth: int) -> Any:
    """A snapshot of a value that compares equal until somebody changes it; `homes` are the modules whose objects are
    opened."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    found: Any = Same(value)
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        found = type(value), repr(value)  # a number that is none equals itself so
    elif isinstance(value, Tensor):
        found = Same(value), 0 if value.is_inference() else value._version
    elif isinstance(value, np.ndarray):
        found = Same(value), value.tobytes() if value.nbytes <= SMALL and not value.dtype.hasobject else None
    elif isinstance(value, set | frozenset):
        found = frozenset(value)
    elif depth and isinstance(value, FunctionType) and value.__module__ in homes:
        found = Same(value), [_looked_at(one, homes, depth - 1) for one in _carried(value)]
    elif depth and isinstance(value, Mapping):
        entries = itertools.islice(value.items(), ENTRIES)
        found = len(value), [(Same(key), _looked_at(one, homes, depth - 1)) for key, one in entries]
    elif depth and isinstance(value, list | tuple):
        found = len(value), [_looked_at(one, homes, depth - 1) for one in value[:ENTRIES]]
    elif depth and type(value).__module__ in homes and not isinstance(value, type) and hasattr(value, "__dict__"):
        found = Same(value), _looked_at(vars(value), homes, depth - 1)
    return found


def _carried(function: FunctionType) -> tuple[Any, ...]:
    """Values that a function holds: defaults, closure, attributes."""
    closed = []
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty one
            closed.append(cell.cell_contents)
    return function.__defaults__, function.__kwdefaults__, closed, vars(function)
