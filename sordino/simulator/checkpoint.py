"""A run's state between two rounds, in one safetensors file."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialized
from safetensors.torch import save_file
from torch import Tensor

from sordino.errors import UserError
from sordino.store import replace_file


@dataclass(frozen=True)
class Checkpoint:
    """Everything that is needed to go on."""

    round: int
    """How many rounds are done."""
    experiment: str
    """SHA-256 of the experiment to which it belongs."""
    server: dict[str, Any]
    """What the server keeps: tensors, numbers, and dictionaries of them."""
    slots: np.ndarray
    participations: np.ndarray


def save(checkpoint: Checkpoint, path: Path) -> None:
    """Write a checkpoint; a crash leaves either nothing or the whole file."""
    tensors, numbers = flat(checkpoint.server)
    tensors = {f"server/{name}": value.detach().cpu().contiguous() for name, value in tensors.items()}
    tensors["slots"] = torch.from_numpy(checkpoint.slots.copy())
    tensors["participations"] = torch.from_numpy(checkpoint.participations.copy())
    metadata = {
        "round": str(checkpoint.round),
        "experiment": checkpoint.experiment,
        "numbers": json.dumps(numbers, sort_keys=True),
    }
    write(tensors, path, metadata)


def write(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file; a crash leaves either what was there or the whole file."""
    temporary = path.with_suffix(".tmp")
    try:
        save_file(tensors, temporary, metadata=metadata)
    except SafetensorError as error:  # how the library tells of a full disk
        raise OSError(str(error)) from error
    replace_file(temporary, path)


def write_models(tensors: dict[str, Tensor], width: int, personal: Iterable[Tensor], path: Path) -> None:
    """A safetensors file of `tensors` and of `personal`, whose rows come in pieces and are never all in memory.

    `tensors["clients"]` says how many rows there are.
    """
    content = serialized(tensors)
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    rows = len(tensors["clients"])
    offsets = [len(data), len(data) + 4 * rows * width]
    header["personal"] = {"dtype": "F32", "shape": [rows, width], "data_offsets": offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight bytes
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
        for piece in personal:
            file.write(piece.contiguous().numpy().data)
    replace_file(temporary, path)


def load(path: Path, experiment: str) -> Checkpoint:
    """Read a checkpoint of the given experiment."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"The checkpoint {path} cannot be read ({error}): start the run anew with `sordino run`."
        ) from error
    if metadata.get("experiment") != experiment:
        raise UserError(
            f"The checkpoint {path} belongs to another experiment: its data, model, method or settings differ. "
            "Resume with what the run was started with, or start a new run."
        )
    server = {n.removeprefix("server/"): value for n, value in tensors.items() if n.startswith("server/")}
    return Checkpoint(
        round=int(metadata["round"]),
        experiment=experiment,
        server=nested({**server, **json.loads(metadata["numbers"])}),
        slots=tensors["slots"].numpy(),
        participations=tensors["participations"].numpy(),
    )


def flat(values: Mapping[str, Any], prefix: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Nested dictionaries as tensors and as numbers, by dotted names."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            deeper = flat(value, f"{prefix}{name}.")
            tensors |= deeper[0]
            numbers |= deeper[1]
        elif isinstance(value, Tensor):
            tensors[prefix + name] = value
        else:
            numbers[prefix + name] = value
    return tensors, numbers


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flat`."""
    whole: dict[str, Any] = {}
    for name, value in values.items():
        *above, last = name.split(".")
        place = whole
        for part in above:
            place = place.setdefault(part, {})
        place[last] = value
    return whole
