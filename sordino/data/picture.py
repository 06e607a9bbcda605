"""A picture of who holds which labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sordino.data.dataset import FederatedData
from sordino.data.summary import label_counts
from sordino.errors import UserError

MOST_CLIENTS = 500
"""Columns that can still be told apart; of more clients the first so many are drawn."""
MOST_NAMES = 30


def draw(data: FederatedData, path: Path) -> None:
    """Draw the label distribution into an image file: each client's training records and share per class."""
    try:
        from matplotlib.colors import PowerNorm
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise UserError('Drawing needs matplotlib; install it with: pip install "sordino[report]".') from error

    counts = label_counts(data)[:MOST_CLIENTS]
    sizes = counts.sum(1)
    shown = len(counts)
    figure = Figure(figsize=(min(14.0, 5.0 + 0.12 * shown), 3.6 + min(4.0, 0.12 * data.classes)), layout="constrained")
    bars, shares = figure.subplots(2, 1, sharex=True, height_ratios=[1, 2.5])

    bars.bar(np.arange(shown), sizes, width=0.8 if shown <= MOST_NAMES else 1.0, color="#35608d")
    bars.set_ylabel("training records")
    bars.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    bars.spines[["top", "right"]].set_visible(False)
    whole = len(data.clients)
    part = f"{whole} clients" if whole == shown else f"first {shown} of {whole} clients"
    bars.set_title(f"{data.name}: labels of the {part}")

    # A square-root scale keeps a share of a few percent apart from none at all.
    picture = shares.imshow(counts.T / sizes, norm=PowerNorm(0.5, 0, 1), aspect="auto", origin="lower", cmap="Blues")
    figure.colorbar(picture, ax=shares, label="share of the client's records")
    shares.set_ylabel("class")
    shares.yaxis.set_major_locator(MaxNLocator(10, integer=True))
    if shown <= MOST_NAMES:
        longest = max(len(client.name) for client in data.clients)
        shares.set_xticks(np.arange(shown), [client.name for client in data.clients])
        shares.tick_params(axis="x", rotation=90 if longest * shown > 60 else 0)
    else:
        shares.set_xlabel("client")
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise UserError(f"The picture cannot be written to {path}: {error}.") from error
