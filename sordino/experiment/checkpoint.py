"""A run's state between two rounds, in one safetensors file, and the models that it ends with."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialized
from safetensors.torch import save_file
from torch import Tensor

from sordino.experiment.state import decoded, encoded
from sordino.files import KeptFile, keep_file

MODELS = "models.safetensors"
LEFTOVERS = ("round-*", "memory*", "models*", "ledger-*", "blend-*")
"""What sessions of a run write into its folder, finished or not."""


@dataclass(frozen=True)
class Checkpoint:
    """Everything that is needed to go on."""

    round: int
    """How many rounds are done."""
    questions: int
    """How many questions have been asked."""
    server: dict[str, Any]
    """What the server keeps."""
    averaged: Tensor | None
    """The means of its models over the rounds, where they are kept."""
    over: bool
    """Whether the method's script has come to its end."""
    memory: str
    """The name of the file in which the clients' memory lies."""
    slots: np.ndarray
    participations: np.ndarray
    checksums: np.ndarray
    """Of each client's current row in that file."""


def save(checkpoint: Checkpoint, path: Path) -> KeptFile:
    """Write a checkpoint beside all others; a crash leaves either nothing or the whole file."""
    structure, contents = encoded(checkpoint.server)
    tensors = {f"server/{number}": content for number, content in enumerate(contents)}
    if checkpoint.averaged is not None:
        tensors["averaged"] = checkpoint.averaged
    tensors["slots"] = torch.from_numpy(checkpoint.slots.copy())
    tensors["participations"] = torch.from_numpy(checkpoint.participations.copy())
    tensors["checksums"] = torch.from_numpy(checkpoint.checksums.view(np.int64).copy())
    numbers = {"round": str(checkpoint.round), "questions": str(checkpoint.questions)}
    numbers |= {"over": "yes"} if checkpoint.over else {}
    metadata = {**numbers, "memory": checkpoint.memory, "server": structure}
    temporary = path.with_suffix(".tmp")
    write_tensors(tensors, temporary, metadata)
    return keep_file(temporary, path)


def write_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """A safetensors file that is not in place yet."""
    try:
        save_file(tensors, path, metadata=metadata)
    except SafetensorError as error:  # how the library tells of a full disk
        raise OSError(str(error)) from error


def load(kept: KeptFile, folder: Path) -> Checkpoint:
    """Read a checkpoint, if it is as it was written."""
    with safe_open(kept.check(folder, "The checkpoint"), framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    contents = [tensors[f"server/{number}"] for number in range(sum(name.startswith("server/") for name in tensors))]
    return Checkpoint(
        round=int(metadata["round"]),
        questions=int(metadata["questions"]),
        server=decoded(metadata["server"], contents),
        averaged=tensors.get("averaged"),
        over="over" in metadata,
        memory=metadata["memory"],
        slots=tensors["slots"].numpy(),
        participations=tensors["participations"].numpy(),
        checksums=tensors["checksums"].numpy().view(np.uint64),
    )


@dataclass(frozen=True)
class Stream:
    """A float32 tensor whose rows come in pieces and are never all in memory."""

    rows: int
    width: int
    pieces: Iterable[Tensor]


def write_models(
    tensors: dict[str, Tensor], streams: dict[str, Stream], path: Path, metadata: dict[str, str] | None = None
) -> KeptFile:
    """A safetensors file of `tensors` and of `streams`."""
    content = serialized(tensors, metadata)
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    end = len(data)
    for name, stream in streams.items():
        begin, end = end, end + 4 * stream.rows * stream.width
        header[name] = {"dtype": "F32", "shape": [stream.rows, stream.width], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight bytes
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
        for stream in streams.values():
            for piece in stream.pieces:
                file.write(piece.contiguous().numpy().data)
    return keep_file(temporary, path)


def remove_leftovers(folder: Path, *kept: str) -> None:
    """Remove what sessions of a run have written into its folder, except for the files named `kept`."""
    for pattern in LEFTOVERS:
        for path in folder.glob(pattern):
            if path.name not in kept:
                path.unlink(missing_ok=True)
