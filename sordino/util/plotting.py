"""matplotlib, an optional dependency: imported when the first picture is drawn."""

from __future__ import annotations

from typing import Any

from sordino.errors import UserError


def pyplot() -> Any:
    """Return `matplotlib.pyplot` set to draw into files; refuse where it is not installed."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise UserError('Pictures need matplotlib: pip install "sordino[report]".') from error
    mpl.use("Agg")
    from matplotlib import pyplot as drawing

    return drawing
