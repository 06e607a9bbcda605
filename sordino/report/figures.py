"""Pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sordino.errors import UserError, writing

PANELS = {
    "personal": "personal model, after training",
    "start": "model at round start",
    "global": "global model",
}


def curves(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the accuracies of compared methods over the rounds: mean over seeds, and the range as a band."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise UserError('Pictures need matplotlib: pip install "sordino[report]".') from error
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(13, 4), sharey=True, layout="constrained")
    for axis, (key, title) in zip(axes, PANELS.items(), strict=True):
        for number, row in enumerate(rows):
            series = [[(r["round"] + 1, r[key]) for r in curve if r[key] is not None] for curve in row["curves"]]
            if not all(series):
                continue
            rounds = [point[0] for point in series[0]]
            values = np.array([[point[1] for point in one] for one in series])
            mark = "o" if len(rounds) == 1 else None
            axis.plot(rounds, values.mean(axis=0), label=row["method"], color=f"C{number}", marker=mark)
            axis.fill_between(rounds, values.min(axis=0), values.max(axis=0), color=f"C{number}", alpha=0.15, lw=0)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("round")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("accuracy on clients' own test records")
    axes[0].yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1.0, decimals=0))
    axes[0].legend(frameon=False)
    with writing(path):
        figure.savefig(path, dpi=120)
    pyplot.close(figure)


def check_picture(path: Path) -> None:
    """Refuse a place where no picture can be written, before the work that it is to show."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        return  # told when the picture is drawn: the results are worth having without it
    with writing(path):
        if path.is_dir():
            raise ValueError("it is a folder")
        kinds = FigureCanvasBase.get_supported_filetypes()
        if path.suffix.removeprefix(".").lower() not in {"", *kinds}:
            raise ValueError(f"{path.suffix!r} is no kind of picture; .png is")
