"""Where searches of the accountant ended before, kept in a file for runs to come.

A search goes along a scale to the first place whose epsilon is within a budget, and may begin anywhere. One that begins
where it will end looks at that place and at its neighbour, and is done. What the file says is where to begin, and
nothing else: no figure is ever read from it, so that whoever can write there, or damages it, can make searches slower
and cannot make any of them end elsewhere.

A place is filed under SHA-256 of everything that enters the search: its kind, its arguments to the last bit, the code
of the accountant and the versions of the libraries that it computes with. The file is only ever added to, a line at a
time, so that several processes may share it.

It lies in $SORDINO_CACHE, or else in ~/.cache/sordino; where that is set to nothing, or cannot be written, places are
kept for as long as the process lives.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from pathlib import Path

import numpy as np
import scipy

CODE = ("accountant.py", "losses.py", "records.py")
"""The files of this folder that decide where a search ends."""
FILE = "places.txt"
LARGEST = 2**21
"""How many bytes the file may have: beyond, it is begun anew."""


def place(search: tuple[object, ...]) -> int | None:
    """Where a search is said to have ended before; None where nothing is said."""
    return _book(_folder()).get(_key(search))


def note(search: tuple[object, ...], found: int) -> None:
    """File where a search ended, if that can be done: it can always be made again."""
    folder, key = _folder(), _key(search)
    _book(folder)[key] = found
    if folder is None:
        return
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / FILE
        if path.exists() and path.stat().st_size > LARGEST:
            path.unlink()
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            # Begun on a line of its own, in case that a writer before was cut off.
            os.write(handle, f"\n{key} {found}\n".encode())
        finally:
            os.close(handle)


def _key(search: tuple[object, ...]) -> str:
    return hashlib.sha256(f"{_version()} {_plain(search)!r}".encode()).hexdigest()


def _plain(argument: object) -> object:
    """An argument as Python's own numbers, which say all of their bits and are equal where those are."""
    if isinstance(argument, tuple):
        return tuple(_plain(one) for one in argument)
    if isinstance(argument, str):
        return argument
    return int(argument) if isinstance(argument, int | np.integer) else float(argument)  # type: ignore[arg-type]


@functools.cache
def _version() -> str:
    """What decides where a search ends besides its arguments."""
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
def _book(folder: Path | None) -> dict[str, int]:
    """The places in the file of a folder."""
    found: dict[str, int] = {}
    if folder is None:
        return found
    with contextlib.suppress(OSError):
        for line in (folder / FILE).read_text(errors="replace").splitlines():
            key, _, said = line.partition(" ")
            with contextlib.suppress(ValueError):
                found[key] = int(said)
    return found
