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
from sordino.method import Method
from sordino.privacy.unit import Unit

EXTREME_VALUE = 1e6
"""Value of an extreme record in place of ones."""


def _others(data: FederatedData) -> FederatedData:
    return _replace_records(data, *_swap_records(data))


def _extreme(data: FederatedData) -> FederatedData:
    x, y = _swap_records(data)
    return _replace_records(data, EXTREME_VALUE * torch.sign(x - x.mean()), y)


def _silent(data: FederatedData) -> FederatedData:
    """Records of zeros, all of the last label."""
    return _replace_records(data, torch.zeros_like(data.train.x), data.task.shift(torch.zeros_like(data.train.y), -1))


def _one_alone(data: FederatedData) -> FederatedData:
    """Records of the first label, but for one of the last."""
    x, y = _swap_records(data)
    y = torch.zeros_like(y)
    y[int(data.train.starts[-1])] = data.task.shift(y[:1], -1).squeeze(0)
    return _replace_records(data, x, y)


def _one_label(data: FederatedData) -> FederatedData:
    """Clients with one label each, different from the next client's."""
    x, y = _swap_records(data)
    for client, (begin, size) in enumerate(zip(data.train.starts.tolist(), data.train.sizes.tolist(), strict=True)):
        y[begin : begin + size] = data.task.shift(torch.zeros_like(y[:1]), client)
    return _replace_records(data, x, y)


def _other_numbers(data: FederatedData) -> FederatedData:
    """Clients with one record more, with half of theirs, and with a single one, in turn."""
    sizes = enumerate(data.train.sizes.tolist())
    return _resize(data, [(size + 1, max(1, size // 2), 1)[client % 3] for client, size in sizes])


def _single_record(data: FederatedData) -> FederatedData:
    return _resize(data, [1] * len(data.clients))


OF_RECORDS: dict[str, Callable[[FederatedData], FederatedData]] = {
    "other records": _others,
    "a label that one record alone has": _one_alone,
    "records that say nothing": _silent,
    "extreme records": _extreme,
}
OF_CLIENTS = OF_RECORDS | {
    "other numbers of records": _other_numbers,
    "clients of a single record": _single_record,
    "clients of one label each": _one_label,
}
WORLDS: dict[Unit, dict[str, Callable[[FederatedData], FederatedData]]] = {
    Unit.CLIENT: OF_CLIENTS,
    Unit.RECORD: OF_RECORDS,
}
"""Worlds to replay for each unit: a description, and a function that makes the clients' data. Every client keeps a
training record, because clients without any are refused."""
OTHER_COINS, OTHER_SHARES = "other coins", "other shares of the noise"
"""Worlds of sums over all clients' records, with the recorded records: coins fall otherwise, or the clients' shares of
the noise are others, while everybody sees the recorded sums."""
DRAWN_ANEW = {OTHER_COINS: ("coins",), OTHER_SHARES: ("normals", "rows", "words")}
"""Functions of a `Source` that draw anew in such a world."""


def worlds_of(method: Method) -> list[str]:
    """Worlds in which runs of a method are replayed."""
    return [*WORLDS[method.unit], *(DRAWN_ANEW if method.sends_sums() else ())]


def _swap_records(data: FederatedData) -> tuple[Tensor, Tensor]:
    """The records of others, under other labels."""
    return data.train.x.flip(0), data.task.shift(data.train.y.flip(0), 1)


def _replace_records(data: FederatedData, x: Tensor, y: Tensor) -> FederatedData:
    """Replace the training records; every client keeps its number of them."""
    return _deal(data, replace(data.train, x=x, y=y))


def _resize(data: FederatedData, sizes: Sequence[int]) -> FederatedData:
    x, y = _swap_records(data)
    places: Sequence[Tensor] = (torch.arange(sum(sizes)) % len(y)).split(list(sizes))
    return _deal(data, Split.of([(x[part], y[part]) for part in places]))


def _deal(data: FederatedData, train: Split) -> FederatedData:
    return replace(data, clients=Dealt(data.names, train, data.test))
