"""Worlds: other records that clients might hold, under which nothing that anybody sees may change.

Where whole clients are protected, everything about them may be otherwise, how many records they have included. Where
single records are, each keeps its place, and what it says is otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sordino.data.dataset import Dealt, FederatedData, Split
from sordino.privacy.release import Unit

LOUD = 1e6
"""Value of an extreme record in place of ones."""


def _others(data: FederatedData) -> FederatedData:
    return _with(data, *_turned(data))


def _extreme(data: FederatedData) -> FederatedData:
    x, y = _turned(data)
    return _with(data, LOUD * torch.sign(x - x.mean()), y)


def _silent(data: FederatedData) -> FederatedData:
    """Records of zeros, all of the last label."""
    return _with(data, torch.zeros_like(data.train.x), data.task.shift(torch.zeros_like(data.train.y), -1))


def _one_alone(data: FederatedData) -> FederatedData:
    """Records of the first label, but for one of the last."""
    x, y = _turned(data)
    y = torch.zeros_like(y)
    y[int(data.train.starts[-1])] = data.task.shift(y[:1], -1).squeeze(0)
    return _with(data, x, y)


def _one_label(data: FederatedData) -> FederatedData:
    """Clients with one label each, different from the next client's."""
    x, y = _turned(data)
    for client, (begin, size) in enumerate(zip(data.train.starts.tolist(), data.train.sizes.tolist(), strict=True)):
        y[begin : begin + size] = data.task.shift(torch.zeros_like(y[:1]), client)
    return _with(data, x, y)


def _resized(data: FederatedData) -> FederatedData:
    """Clients with one record more, with half of theirs, and with a single one, in turn."""
    sizes = enumerate(data.train.sizes.tolist())
    return _sized(data, [(size + 1, max(1, size // 2), 1)[client % 3] for client, size in sizes])


def _single(data: FederatedData) -> FederatedData:
    return _sized(data, [1] * len(data.clients))


OF_RECORDS: dict[str, Callable[[FederatedData], FederatedData]] = {
    "other records": _others,
    "a label that one record alone has": _one_alone,
    "records that say nothing": _silent,
    "extreme records": _extreme,
}
OF_CLIENTS = OF_RECORDS | {
    "other numbers of records": _resized,
    "clients of a single record": _single,
    "clients of one label each": _one_label,
}
WORLDS: dict[Unit, dict[str, Callable[[FederatedData], FederatedData]]] = {"client": OF_CLIENTS, "record": OF_RECORDS}
"""Worlds to rehearse for each unit: a description, and a function that makes the clients' data. Every client keeps a
training record, because clients without any are refused."""


def _turned(data: FederatedData) -> tuple[Tensor, Tensor]:
    """The records of others, under other labels."""
    return data.train.x.flip(0), data.task.shift(data.train.y.flip(0), 1)


def _with(data: FederatedData, x: Tensor, y: Tensor) -> FederatedData:
    """Replace the training records; every client keeps its number of them."""
    return _dealt(data, replace(data.train, x=x, y=y))


def _sized(data: FederatedData, sizes: Sequence[int]) -> FederatedData:
    x, y = _turned(data)
    places: Sequence[Tensor] = (torch.arange(sum(sizes)) % len(y)).split(list(sizes))
    return _dealt(data, Split.of([(x[part], y[part]) for part in places]))


def _dealt(data: FederatedData, train: Split) -> FederatedData:
    return replace(data, clients=Dealt([client.name for client in data.clients], train, data.test))
