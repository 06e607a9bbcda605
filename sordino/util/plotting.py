"""Pictures by matplotlib, which is an extra: imported when the first one is drawn."""

from __future__ import annotations

from typing import Any

from sordino.errors import UserError


def pyplot() -> Any:
    """The part of matplotlib that draws, into files; a sentence where it is not installed."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise UserError('Pictures need matplotlib: pip install "sordino[report]".') from error
    mpl.use("Agg")
    from matplotlib import pyplot as drawing

    return drawing
