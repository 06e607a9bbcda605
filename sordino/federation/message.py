"""Messages of the server to clients: values for all of them, or one row for each (`Each`).

A message is a dictionary of tensors, numbers, texts, lists and dictionaries. Every client gets a copy: a step that
changes it in place changes it for nobody else.
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
    """A value of a message of which every client gets its own row only."""

    values: Tensor
    """One row for each client of the federation, by client number."""

    def of(self, clients: Sequence[int]) -> Tensor:
        """Return the rows of some clients."""
        return self.values[torch.as_tensor(list(clients), dtype=torch.int64)]


def for_client(message: Message, client: int, device: torch.device) -> dict[str, Any]:
    """Return a message as one client receives it: a copy of its own."""
    return shared_part(message, device) | {name: rows[0] for name, rows in own_part(message, [client], device).items()}


def shared_part(message: Message, device: torch.device) -> dict[str, Any]:
    """Return a copy on `device` of the values that are the same for all clients."""
    return {name: _copy(value, device) for name, value in message.items() if not isinstance(value, Each)}


def own_part(message: Message, clients: Sequence[int], device: torch.device) -> dict[str, Tensor]:
    """Return the values of which each client has its own: one row for each of `clients`."""
    return {name: value.of(clients).to(device) for name, value in message.items() if isinstance(value, Each)}


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a message, at any depth."""
    if isinstance(value, Each):
        value = value.values
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from tensors(one)


def bytes_for(message: Message, clients: int) -> int:
    """Return the bytes that reach `clients` clients together: values without names, numbers as eight bytes."""
    return clients * sum(_bytes(one.values[0] if isinstance(one, Each) else one) for one in message.values())


def _bytes(value: Any) -> int:
    """Return the bytes of a value that every client gets as a whole."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Mapping | list | tuple):
        return sum(_bytes(one) for one in (value.values() if isinstance(value, Mapping) else value))
    return len(value.encode()) if isinstance(value, str) else 8


def digest(message: Message) -> str:
    """Return the SHA-256 of a message; refuse values other than tensors, numbers, texts, lists and dictionaries."""
    made = hashlib.sha256()
    for part in _parts(message, "the message"):
        made.update(part)
    return made.hexdigest()


def _parts(value: Any, place: str) -> Iterator[bytes]:
    """Yield the bytes of a message's value, with lengths, so that different values have different bytes."""
    if isinstance(value, Each):
        yield b"each"
        value = value.values
    if isinstance(value, Tensor):
        content = value.detach().cpu()
        yield f"{content.dtype}{tuple(content.shape)}".encode()
        if content.dtype == torch.bfloat16:  # numpy has no such numbers
            content = content.view(torch.int16)
        yield content.numpy().tobytes()
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


def _copy(value: Any, device: torch.device) -> Any:
    """Return a deep copy of a value on `device`."""
    if isinstance(value, Tensor):
        return value.detach().to(device, copy=True)
    if isinstance(value, Mapping):
        return {key: _copy(one, device) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copy(one, device) for one in value)
    return value
