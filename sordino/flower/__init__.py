"""Carries the bytes of `sordino.deploy` over Flower: the only importer of flwr.

Flower's SuperLink is the post office: sites fetch what is for them and bring what they answer, so that no site needs an
open port. The process of `sordino serve` is the run's server, the process of `sordino join` is a site; no other process
works, and no app that somebody submits is ever run by any of them.
"""

from __future__ import annotations

import importlib.util
import os

from sordino.errors import UserError

__all__ = ["QUIET", "check_installed"]

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_LOG_LEVEL": "ERROR",
}
"""Flower tells nobody of a run, looks for no newer version and installs nothing. It reads these when it is imported."""
os.environ.update(QUIET)


def check_installed() -> None:
    """Refuse where the packages of a deployment are missing, before anything is done."""
    missing = [name for name in ("flwr", "cryptography") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"Deployment needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed: "
            'pip install "sordino[deploy]" installs all of it.'
        )
