"""What the server sends to clients: the same to all of them, or to each its own.

A message is a dictionary of tensors, numbers, lists and dictionaries. Every client gets a copy: what a step changes in
place changes nothing for anybody else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sordino.errors import UserError

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Each:
    """A value of a message of which every client gets its own row, and nobody another's."""

    values: Tensor
    """One row for each client of the federation, by client number."""

    def of(self, clients: Sequence[int]) -> Tensor:
        """The rows of some clients."""
        return self.values[torch.as_tensor(list(clients), dtype=torch.int64)]


def received(message: Message, client: int, device: torch.device) -> dict[str, Any]:
    """A message as one client receives it: a copy of its own."""
    return shared(message, device) | {name: rows[0] for name, rows in own(message, [client], device).items()}


def shared(message: Message, device: torch.device) -> dict[str, Any]:
    """The part of a message that is the same for all clients, as a copy on `device`."""
    return {name: _copied(value, device) for name, value in message.items() if not isinstance(value, Each)}


def own(message: Message, clients: Sequence[int], device: torch.device) -> dict[str, Tensor]:
    """The part of a message of which each client has its own: one row for each of `clients`."""
    return {name: value.of(clients).to(device) for name, value in message.items() if isinstance(value, Each)}


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors that a message holds, at any depth."""
    if isinstance(value, Each):
        value = value.values
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from tensors(one)


def digest(message: Message) -> str:
    """SHA-256 of a message; one that holds anything but tensors, numbers, texts, lists and dictionaries is refused."""
    made = hashlib.sha256()
    for part in _parts(message, "the message"):
        made.update(part)
    return made.hexdigest()


def _parts(value: Any, place: str) -> Iterator[bytes]:
    """What a value of a message is made of, as bytes that say where they end."""
    if isinstance(value, Each):
        yield b"each"
        value = value.values
    if isinstance(value, Tensor):
        content = value.detach().cpu().contiguous()
        yield f"{content.dtype}{tuple(content.shape)}".encode()
        yield content.reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, Mapping):
        yield f"table {len(value)}".encode()
        for key, one in value.items():
            yield repr(key).encode()
            yield from _parts(one, f"{key} of {place}")
    elif isinstance(value, list | tuple):
        yield f"{type(value).__name__} {len(value)}".encode()
        for one in value:
            yield from _parts(one, place)
    elif value is None or isinstance(value, bool | int | float | str):
        yield f"{value!r};".encode()
    else:
        raise UserError(
            f"A method sent a {type(value).__name__} as {place}: a message holds tensors, numbers, texts, lists and "
            "dictionaries, of which every client gets a copy."
        )


def _copied(value: Any, device: torch.device) -> Any:
    """A value that shares nothing with the one given."""
    if isinstance(value, Tensor):
        return value.detach().to(device, copy=True)
    if isinstance(value, Mapping):
        return {key: _copied(one, device) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copied(one, device) for one in value)
    return value
