"""A federation in numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sordino.data.dataset import FederatedData


@dataclass(frozen=True)
class Spread:
    """Smallest, middle and largest of a number over clients."""

    smallest: int
    median: float
    largest: int


@dataclass(frozen=True)
class Summary:
    """What the clients hold. Sizes and classes of a client are those of its training records."""

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
    """How many training records have each class, by its name."""
    smallest_client: str
    """The client with the fewest training records; the first of them when there are several."""
    without_test: int
    """Clients that have no test record."""


def label_counts(data: FederatedData) -> np.ndarray:
    """(clients, classes): how many training records of each class each client has."""
    sizes = [len(client.y) for client in data.clients]
    labels = np.concatenate([client.y.numpy() for client in data.clients])
    cells = np.repeat(np.arange(len(sizes)), sizes) * data.classes + labels
    return np.bincount(cells, minlength=len(sizes) * data.classes).reshape(len(sizes), data.classes)


def spread(values: np.ndarray) -> Spread:
    """The spread of one number per client."""
    return Spread(int(values.min()), float(np.median(values)), int(values.max()))


def summary(data: FederatedData) -> Summary:
    """The numbers of a federation, free of any rendering."""
    counts = label_counts(data)
    sizes = counts.sum(1)
    test_sets = {(client.y_test.data_ptr(), len(client.y_test)) for client in data.clients}
    test = sum(length for _, length in test_sets)
    return Summary(
        name=data.name,
        clients=len(data.clients),
        classes=data.classes,
        shape=data.shape,
        total=int(sizes.sum()) + test,
        train=int(sizes.sum()),
        test=test,
        sizes=spread(sizes),
        classes_per_client=spread((counts > 0).sum(1)),
        labels=dict(zip(data.meaning.classes, counts.sum(0).tolist(), strict=True)),
        smallest_client=data.clients[int(sizes.argmin())].name,
        without_test=sum(not len(client.y_test) for client in data.clients),
    )
