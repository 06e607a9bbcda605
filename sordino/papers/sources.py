"""Digests of the code that figures were measured with, so that a page can refuse figures of code that has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from sordino.errors import UserError
from sordino.experiment.identity import source_files
from sordino.methods import find


def source_digests(methods: Iterable[str]) -> dict[str, str]:
    """SHA-256 of the source files of each method and of the classes it is made of, by the method's name; empty for a
    method that there is no more."""
    return {name: _digest(name) for name in sorted(methods)}


def changed_methods(recorded: dict[str, str]) -> list[str]:
    """Methods whose code is not what it was when figures were measured."""
    return [name for name, digest in source_digests(recorded).items() if digest != recorded[name]]


def _digest(name: str) -> str:
    try:
        files = sorted(source_files(find(name)))
    except UserError:
        return ""
    return hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in files)).hexdigest()
