"""Summary of a federation's data in numbers, and as a picture of who holds which labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sordino.data.dataset import FederatedData
from sordino.errors import UserError


@dataclass(frozen=True)
class Spread:
    """Smallest, middle and largest of a number over clients."""

    smallest: int
    median: float
    largest: int


@dataclass(frozen=True)
class DataSummary:
    """Figures of a federation's records. Sizes and classes of a client are those of its training records."""

    name: str
    clients: int
    classes: int
    shape: tuple[int, ...]
    total: int
    """Training and test records of all clients; a test set shared by all counts once."""
    train: int
    test: int
    sizes: Spread
    classes_per_client: Spread
    labels: dict[str, int]
    """Number of training records of each class, by its name."""
    smallest_client: str
    """The client with the fewest training records; the first of them when there are several."""
    without_test: int
    """Clients that have no test record."""


def label_counts(data: FederatedData) -> np.ndarray:
    """(clients, groups): number of training records of each client in each of the task's groups."""
    sizes = [len(client.y) for client in data.clients]
    targets = np.concatenate([client.y.numpy() for client in data.clients])
    groups = len(data.task.groups)
    cells = np.repeat(np.arange(len(sizes)), sizes) * groups + data.task.group(targets)
    return np.bincount(cells, minlength=len(sizes) * groups).reshape(len(sizes), groups)


def spread(values: np.ndarray) -> Spread:
    """The spread of one number per client."""
    return Spread(int(values.min()), float(np.median(values)), int(values.max()))


def summary(data: FederatedData) -> DataSummary:
    """The numbers of a federation, free of any rendering."""
    counts = label_counts(data)
    sizes = counts.sum(1)
    test_sets = {(client.y_test.data_ptr(), len(client.y_test)) for client in data.clients}
    test = sum(length for _, length in test_sets)
    return DataSummary(
        name=data.name,
        clients=len(data.clients),
        classes=len(data.task.groups),
        shape=data.shape,
        total=int(sizes.sum()) + test,
        train=int(sizes.sum()),
        test=test,
        sizes=spread(sizes),
        classes_per_client=spread((counts > 0).sum(1)),
        labels=dict(zip(data.task.groups, counts.sum(0).tolist(), strict=True)),
        smallest_client=data.clients[int(sizes.argmin())].name,
        without_test=sum(not len(client.y_test) for client in data.clients),
    )


MAX_CLIENTS_DRAWN = 500
"""Columns that can still be told apart; of more clients the first so many are drawn."""
MAX_NAMES_DRAWN = 30


def draw(data: FederatedData, path: Path) -> None:
    """Draw the label distribution into an image file: each client's training records and share per class."""
    try:
        from matplotlib.colors import PowerNorm
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise UserError('Drawing needs matplotlib; install it with: pip install "sordino[report]".') from error

    counts = label_counts(data)[:MAX_CLIENTS_DRAWN]
    sizes = counts.sum(1)
    shown = len(counts)
    size = (min(14.0, 5.0 + 0.12 * shown), 3.6 + min(4.0, 0.12 * counts.shape[1]))
    figure = Figure(figsize=size, layout="constrained")
    bars, shares = figure.subplots(2, 1, sharex=True, height_ratios=[1, 2.5])

    bars.bar(np.arange(shown), sizes, width=0.8 if shown <= MAX_NAMES_DRAWN else 1.0, color="#35608d")
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
    if shown <= MAX_NAMES_DRAWN:
        longest = max(len(client.name) for client in data.clients)
        shares.set_xticks(np.arange(shown), [client.name for client in data.clients])
        shares.tick_params(axis="x", rotation=90 if longest * shown > 60 else 0)
    else:
        shares.set_xlabel("client")
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise UserError(f"The picture cannot be written to {path}: {error}.") from error
