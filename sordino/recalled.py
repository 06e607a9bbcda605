"""What a client remembers, as its step sees it: a dictionary whose values are fetched when they are looked at.

Many steps never look at what their clients remember of their models, which lies on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor


class Recalled(dict[str, Tensor]):
    """A dictionary that fetches a value when it is asked for it, and all of them for any other use."""

    def __init__(self, names: Iterable[str], fetch: Callable[[str], Tensor]) -> None:
        super().__init__()
        self._left, self._fetch = list(names), fetch

    def __missing__(self, name: str) -> Tensor:
        if name not in self._left:
            raise KeyError(name)
        self._left.remove(name)
        value = self[name] = self._fetch(name)
        return value


def _of_all(name: str) -> Callable[..., Any]:
    """A dictionary's own method, once everything has been fetched."""

    def method(self: Recalled, *arguments: Any, **named: Any) -> Any:
        for left in list(self._left):
            self[left]
        self._left.clear()
        return getattr(dict, name)(self, *arguments, **named)

    method.__name__ = name
    return method


for _name in (
    *("__iter__", "__reversed__", "__len__", "__contains__", "__eq__", "__ne__", "__or__", "__ror__", "__repr__"),
    *("__delitem__", "keys", "values", "items", "get", "copy", "pop", "popitem", "setdefault", "clear"),
):
    setattr(Recalled, _name, _of_all(_name))
