"""Other records that clients might hold, under which nothing that anybody sees may change.

Where whole clients are protected, everything about them may be otherwise, how many records they have included. Where
single records are, each keeps its place, and what it says is otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sordino.data.dataset import Dealt, FederatedData, Split
from sordino.privacy.release import Unit

LOUD = 1e6
"""What an extreme record holds in place of ones."""


def worlds(data: FederatedData, unit: Unit) -> Iterator[tuple[str, FederatedData]]:
    """Other records for all clients, each time with words for what they are."""
    x, y, last = data.train.x.flip(0), (data.train.y.flip(0) + 1) % data.classes, data.classes - 1
    yield "other records", _with(data, x, y)
    if unit == "client":
        yield "other numbers of records", _resized(data, x, y)
        yield "clients of one label each", _with(data, x, _each_one_label(data))
    alone = torch.zeros_like(y)
    alone[int(data.train.starts[-1])] = last
    yield "a label that one record alone has", _with(data, x, alone)
    yield "records that say nothing", _with(data, torch.zeros_like(x), torch.full_like(y, last))
    yield "extreme records", _with(data, LOUD * torch.sign(x - x.mean()), y)


def _with(data: FederatedData, x: Tensor, y: Tensor) -> FederatedData:
    """As many records for each client as before."""
    return _dealt(data, replace(data.train, x=x, y=y))


def _resized(data: FederatedData, x: Tensor, y: Tensor) -> FederatedData:
    """One client after the other with one record more, half of them, or a single one."""
    sizes = [int(size) for size in data.train.sizes]
    wanted = [(size + 1, max(1, size // 2), 1)[client % 3] for client, size in enumerate(sizes)]
    places = torch.arange(sum(wanted)) % len(y)
    parts: Sequence[Tensor] = places.split(wanted)
    return _dealt(data, Split.of([(x[part], y[part]) for part in parts]))


def _each_one_label(data: FederatedData) -> Tensor:
    """Labels of which each client has one, another than the next client."""
    y = torch.zeros_like(data.train.y)
    for client in range(len(data.clients)):
        begin = int(data.train.starts[client])
        y[begin : begin + int(data.train.sizes[client])] = client % data.classes
    return y


def _dealt(data: FederatedData, train: Split) -> FederatedData:
    return replace(data, clients=Dealt([client.name for client in data.clients], train, data.test))
