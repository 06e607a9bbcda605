"""What decides a run's results: its configuration, its data, this version of Sordino, and the user's own code."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any

from sordino.version import VERSION

PACKAGE = Path(__file__).resolve().parent.parent


def identity_of(configuration: dict[str, Any], data_fingerprint: str, *code: object) -> str:
    """SHA-256 of everything that decides a run; `code` are the classes of its method and network."""
    sources = sorted({path for one in code for path in source_files(one)})
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sources]
    decided = {**configuration, "data": data_fingerprint, "version": VERSION, "code": digests}
    return hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()


def source_files(kind: object) -> set[Path]:
    """The files of a class and of the classes it is made of; of a user's own, also the loaded modules beside them."""
    found = set()
    for one in inspect.getmro(kind) if inspect.isclass(kind) else (kind,):
        module = inspect.getmodule(one)
        file = getattr(module, "__file__", None)
        if module is None or file is None or module.__name__.partition(".")[0] in NOT_OURS:
            continue
        path = Path(file).resolve()
        found.add(path)
        if not path.is_relative_to(PACKAGE):
            found |= {other for other in loaded_files() if other.is_relative_to(path.parent)}
    return {path for path in found if path.suffix == ".py" and path.exists()}


NOT_OURS = {*sys.stdlib_module_names, "builtins", "torch", "numpy"}
"""Whose code is known by its version."""


def loaded_files() -> set[Path]:
    """The source files of all loaded modules that were not installed."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    paths = {Path(file).resolve() for file in files if file}
    return {path for path in paths if not {"site-packages", "dist-packages"} & set(path.parts)}
