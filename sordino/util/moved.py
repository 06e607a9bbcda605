"""Modules that the documentation of version 0.4.0 showed and that have moved: their old paths work until version 0.6.

Importing one of their names warns (`DeprecationWarning`) and says where it is now.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

MOVED = {
    "sordino.experiment.summary": ("Summary",),
    "sordino.learning.records": ("Records",),
    "sordino.message": ("Each", "Message"),
    "sordino.methods.record_clipped": ("RecordClipped",),
    "sordino.privacy.accountant": ("attack_accuracy", "delta_of", "epsilon_of", "mu_of", "rdp_epsilon"),
    "sordino.privacy.plan": ("Plan", "plan"),
    "sordino.schedule": ("Schedule",),
}
"""Old modules and those of their names that were documented: all are public names of `sordino` now."""
LAST = "0.6"
"""Version in which the old paths end."""


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds old modules, where nothing else did, and makes them without a file."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__

        def fetch(name: str) -> Any:
            if name not in MOVED[old]:
                raise AttributeError(f"module {old!r} has moved, and has no public name {name!r}")
            text = f"{old}.{name} has moved: import {name} from sordino. The old path ends with version {LAST}."
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            return getattr(importlib.import_module("sordino"), name)

        module.__dict__["__getattr__"] = fetch


def install() -> None:
    """Let old module paths be imported; once for a process."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
