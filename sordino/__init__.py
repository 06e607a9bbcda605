"""Sordino: personalized federated learning under adaptive differential privacy.

`run`, `resume`, `compare`, `plan` and `audit` do what the commands of the same names do; `make_report` what
`report` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sordino.version import VERSION

if TYPE_CHECKING:
    from sordino.api import audit, compare, load_models, make_report, plan, resume, run

__version__ = VERSION
__all__ = ["__version__", "audit", "compare", "load_models", "make_report", "plan", "resume", "run"]


def __getattr__(name: str) -> Any:
    # Imported on first use: torch takes a second, and `sordino --help` should not.
    if name in __all__:
        from sordino import api

        return getattr(api, name)
    raise AttributeError(f"module 'sordino' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
