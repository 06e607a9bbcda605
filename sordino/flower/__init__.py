"""Carries the bytes of `sordino.deploy` over Flower; the only importer of flwr.

Flower's SuperLink works like a post office: sites fetch their messages and bring their answers, so that no site needs
an open port. The process of `sordino serve` is the run's server and the process of `sordino join` is a site. No other
process works, and none of them ever runs an app that somebody submits.
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
"""Settings that keep Flower from sending telemetry, checking for updates and installing packages. Flower reads them
when it is imported."""
os.environ.update(QUIET)


def check_installed() -> None:
    """Refuse to start where packages that a deployment needs are not installed."""
    missing = [name for name in ("flwr", "cryptography") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"Deployment needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed: "
            'pip install "sordino[deploy]" installs all of it.'
        )
