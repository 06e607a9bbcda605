"""Figures of the accountant that were worked out before, kept in a file for runs to come.

A figure is filed under SHA-256 of everything that enters it: the function, its arguments to the last bit, the code of
the accountant and the versions of the libraries that it computes with. A line of the file holds such a key, the figure
and a digest of both; lines that are not whole are passed over, and what they said is worked out again. The file is only
ever added to, a line at a time, so that several processes may share it.

It lies in $SORDINO_CACHE, or else in ~/.cache/sordino; where that is set to nothing, or cannot be written, figures are
kept for as long as the process lives.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import scipy

Figure = TypeVar("Figure", bound=Callable[..., float])
CODE = ("accountant.py", "losses.py", "records.py")
"""The files of this folder that decide the figures."""
FILE = "figures.txt"
LARGEST = 2**21
"""How many bytes the file may have: beyond, it is begun anew."""


def remembered(function: Figure) -> Figure:
    """The same function of numbers and recipes, whose results are looked up where they are known."""

    @functools.lru_cache(maxsize=65536)
    def found(*arguments: object) -> float:
        key = _key(function.__name__, arguments)
        known = _book(_folder()).get(key)
        if known is None:
            known = function(*arguments)
            _note(key, known)
        return known

    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapped(*arguments: object, **named: object) -> float:
        if named or len(arguments) < len(signature.parameters):
            bound = signature.bind(*arguments, **named)
            bound.apply_defaults()
            arguments = bound.args
        return found(*(_plain(one) for one in arguments))

    return wrapped  # type: ignore[return-value]


def _plain(argument: object) -> object:
    """An argument as Python's own numbers, which say all of their bits and are equal where those are."""
    if isinstance(argument, tuple):
        return tuple(_plain(one) for one in argument)
    return int(argument) if isinstance(argument, int | np.integer) else float(argument)  # type: ignore[arg-type]


def _key(name: str, arguments: tuple[object, ...]) -> str:
    return hashlib.sha256(f"{_version()} {name}{arguments!r}".encode()).hexdigest()


@functools.cache
def _version() -> str:
    """What decides a figure besides its arguments."""
    code = b"".join((Path(__file__).parent / name).read_bytes() for name in CODE)
    return f"{hashlib.sha256(code).hexdigest()} {np.__version__} {scipy.__version__}"


def _folder() -> Path | None:
    named = os.environ.get("SORDINO_CACHE")
    if named is None:
        with contextlib.suppress(RuntimeError):  # nobody's home
            return Path.home() / ".cache" / "sordino"
        return None
    return Path(os.path.expanduser(named)) if named else None


@functools.lru_cache(maxsize=1)
def _book(folder: Path | None) -> dict[str, float]:
    """The figures in the file of a folder."""
    found: dict[str, float] = {}
    if folder is None:
        return found
    with contextlib.suppress(OSError):
        for line in (folder / FILE).read_text(errors="replace").splitlines():
            key, _, rest = line.partition(" ")
            figure, _, check = rest.partition(" ")
            if check == _check(key, figure):
                with contextlib.suppress(ValueError):
                    found[key] = float.fromhex(figure)
    return found


def _note(key: str, figure: float) -> None:
    """File a figure, if that can be done: it can always be worked out again."""
    folder = _folder()
    _book(folder)[key] = figure
    if folder is None:
        return
    text = figure.hex()
    # Begun on a line of its own, in case that a writer before was cut off.
    line = f"\n{key} {text} {_check(key, text)}\n".encode()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / FILE
        if path.exists() and path.stat().st_size > LARGEST:
            path.unlink()
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)


def _check(key: str, figure: str) -> str:
    return hashlib.sha256(f"{key} {figure}".encode()).hexdigest()[:32]
