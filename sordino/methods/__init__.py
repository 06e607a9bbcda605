"""Methods, one file each, found by name through the entry points `sordino.methods`."""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint, entry_points

from sordino.errors import UserError, unknown
from sordino.method import Method
from sordino.util import import_by_name

__all__ = ["find", "names"]


def names() -> list[str]:
    """Return the names of all installed methods."""
    return list(_points())


@functools.cache
def _points() -> dict[str, EntryPoint]:
    """Return the entry points by name; cached, because all installed packages are searched for them."""
    return {point.name: point for point in entry_points(group="sordino.methods")}


def find(name: str) -> type[Method]:
    """Return the method class called `name`: an installed one, or a user's as `package.module:Class`."""
    if import_by_name.is_dotted(name):
        return _find_dotted(name)
    if name not in _points():
        raise unknown("method", name, names())
    found: type[Method] = _points()[name].load()
    return found


def _find_dotted(name: str) -> type[Method]:
    found = import_by_name.find(name)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UserError(f"{name!r} is not a method: it must be a subclass of sordino.Method.")
    if found.run is Method.run:
        raise UserError(f"{name!r} is not a method that can be run: it has no `run`, the server's side.")
    return found
