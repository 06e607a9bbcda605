"""Checkpoints: a run's state between two rounds in one safetensors file, and the models that it ends with."""

from __future__ import annotations

import json
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialized
from safetensors.torch import save_file
from torch import Tensor, nn

from sordino.errors import UserError
from sordino.federation.transport import MemorySnapshot
from sordino.util.files import KeptFile, keep_file

PLAIN = (type(None), bool, int, float, str)
"""Types that Python's JSON restores exactly, infinity and nan included."""
SEQUENCES: dict[str, type] = {"list": list, "tuple": tuple}
MAPPINGS: dict[str, type] = {"dict": dict, "ordered": OrderedDict}


def encode(state: dict[str, Any]) -> tuple[str, list[Tensor]]:
    """Encode a server's state as text and tensors of bytes; refuse by name what cannot be stored."""
    text, tensors = _structure(state)
    return text, [_bytes(value) for value in tensors]


def check_keepable(state: dict[str, Any]) -> None:
    """Refuse a state that a checkpoint cannot store; copies no tensor."""
    _structure(state)


def decode(text: str, contents: list[Tensor]) -> dict[str, Any]:
    """Decode a server's state: the inverse of `encode`."""
    made: dict[int, Any] = {}

    def value(written: Any) -> Any:
        if not isinstance(written, list):
            return written
        kind, *rest = written
        if kind in SEQUENCES:
            return SEQUENCES[kind](value(one) for one in rest)
        if kind in MAPPINGS:
            return MAPPINGS[kind]((value(key), value(one)) for key, one in rest)
        if kind == "scalar":
            return np.frombuffer(bytes.fromhex(rest[1]), dtype=rest[0])[0]
        number, *about = rest
        if number not in made:
            made[number] = MAKERS[kind](contents[number], *about)
        return made[number]

    return value(json.loads(text))  # type: ignore[no-any-return]


def _structure(state: dict[str, Any]) -> tuple[str, list[Tensor | np.ndarray]]:
    """Return the state's text, and the tensors and arrays that it refers to by number."""
    found: list[Tensor | np.ndarray] = []
    numbers: dict[int, int] = {}

    def number(value: Tensor | np.ndarray) -> int:
        if id(value) not in numbers:
            numbers[id(value)] = len(found)
            found.append(value)
        return numbers[id(value)]

    def written(value: Any, where: str) -> Any:
        kind = type(value)
        if kind in PLAIN:
            return value
        for name, sequence in SEQUENCES.items():
            if kind is sequence:
                return [name, *(written(one, f"{where}[{place}]") for place, one in enumerate(value))]
        for name, mapping in MAPPINGS.items():
            if kind is mapping:
                return [name, *([key(one, where), written(value[one], f"{where}[{one!r}]")] for one in value)]
        if isinstance(value, np.generic) and value.dtype.kind not in "OV":
            return ["scalar", value.dtype.str, value.tobytes().hex()]
        if kind is np.ndarray and value.dtype.kind not in "OV":
            return ["array", number(value), value.dtype.str, list(value.shape), np.isfortran(value)]
        if kind in (Tensor, nn.Parameter) and value.layout is torch.strided and not value.is_quantized:
            return ["tensor" if kind is Tensor else "parameter", number(value), *_about(value)]
        raise refused(where, value)

    def key(value: Any, where: str) -> Any:
        if isinstance(value, (*PLAIN, np.generic, tuple)):
            return written(value, f"{where}[{value!r}]")
        raise refused(f"{where}[{value!r}]", value, "as a key ")

    try:
        return json.dumps(["dict", *([name, written(value, name)] for name, value in state.items())]), found
    except RecursionError as error:
        raise UserError(
            "The server's state is nested too deeply for a checkpoint; perhaps a list or dictionary holds itself."
        ) from error


def refused(where: str, value: Any, role: str = "") -> UserError:
    """Make the error for a value in the server's state that a checkpoint cannot store."""
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, np.ndarray | np.generic | Tensor):
        name += f" ({', '.join(str(getattr(value, key)) for key in ('dtype', 'layout') if hasattr(value, key))})"
    return UserError(
        f"The server's state {where!r} has {role}a value of type {name}, which a checkpoint cannot keep: keep numbers, "
        "texts, tensors and NumPy arrays, and lists, tuples and dictionaries of them."
    )


def _about(value: Tensor) -> list[Any]:
    """Describe a tensor: type, shape, strides and whether it is a leaf. Results may depend on the order in memory, so a
    dense tensor keeps its strides."""
    strides = torch.empty_like(value, device="meta").stride()
    is_leaf = value.requires_grad and value.is_leaf
    return [str(value.dtype).removeprefix("torch."), list(value.shape), list(strides), is_leaf]


def _bytes(value: Tensor | np.ndarray) -> Tensor:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.frombuffer(value.tobytes(), dtype=np.uint8).copy())
    plain = value.detach().cpu().resolve_conj().resolve_neg()
    return plain.contiguous().reshape(-1).view(torch.uint8)


def _array(content: Tensor, dtype: str, shape: list[int], fortran: bool) -> np.ndarray:
    rows = np.frombuffer(content.numpy(), dtype=dtype).reshape(shape)
    return rows.copy(order="F" if fortran else "C")


def _tensor(content: Tensor, dtype: str, shape: list[int], strides: list[int], is_leaf: bool) -> Tensor:
    kind: torch.dtype = getattr(torch, dtype)
    made = torch.empty_strided(shape, strides, dtype=kind).copy_(content.view(kind).reshape(shape))
    return made.requires_grad_(is_leaf)


def _parameter(content: Tensor, dtype: str, shape: list[int], strides: list[int], is_leaf: bool) -> nn.Parameter:
    return nn.Parameter(_tensor(content, dtype, shape, strides, False), requires_grad=is_leaf)


MAKERS: dict[str, Callable[..., Any]] = {"array": _array, "tensor": _tensor, "parameter": _parameter}


MODELS = "models.safetensors"
LEFTOVERS = ("round-*", "memory*", "models*", "ledger-*", "blend-*", ".tmp*")
"""Files that sessions of a run write into its folder, finished or not; safetensors begins its own with `.tmp`."""


@dataclass(frozen=True)
class Checkpoint:
    """State of a run between two rounds, from which it resumes."""

    round: int
    """Number of rounds done."""
    questions: int
    """Number of questions asked."""
    server: dict[str, Any]
    """State of the server."""
    averaged: Tensor | None
    """Means of its models over the rounds, where they are kept."""
    over: bool
    """Whether the method's script has come to its end."""
    memory: MemorySnapshot | None
    """Clients' memory; None where clients keep it themselves. Deployments of Sordino 0.4 name an empty file here."""
    received: int | None = 0
    """Bytes that the server sent to clients in these rounds; None where an earlier version did not count them."""


def save(checkpoint: Checkpoint, path: Path) -> KeptFile:
    """Write a checkpoint to a new file; a crash leaves either nothing or the whole file."""
    structure, contents = encode(checkpoint.server)
    tensors = {f"server/{number}": content for number, content in enumerate(contents)}
    if checkpoint.averaged is not None:
        tensors["averaged"] = checkpoint.averaged
    metadata = {"round": str(checkpoint.round), "questions": str(checkpoint.questions)}
    metadata |= {"over": "yes"} if checkpoint.over else {}
    metadata |= {} if checkpoint.received is None else {"received": str(checkpoint.received)}
    if checkpoint.memory is not None:
        metadata["memory"] = checkpoint.memory.file
        tensors["slots"] = torch.from_numpy(checkpoint.memory.slots)
        tensors["participations"] = torch.from_numpy(checkpoint.memory.participations)
        tensors["checksums"] = torch.from_numpy(checkpoint.memory.checksums.view(np.int64))
    metadata["server"] = structure
    temporary = path.with_suffix(".tmp")
    write_tensors(tensors, temporary, metadata)
    return keep_file(temporary, path)


def write_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write a temporary safetensors file; a full disk raises an `OSError`."""
    try:
        save_file(tensors, path, metadata=metadata)
    except SafetensorError as error:  # how the library tells of a full disk
        raise OSError(str(error)) from error


def load(kept: KeptFile, folder: Path) -> Checkpoint:
    """Read a checkpoint; refuse a missing or damaged one."""
    with safe_open(kept.check(folder, "The checkpoint"), framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    memory = None
    if "memory" in metadata:
        checksums = tensors["checksums"].numpy().view(np.uint64)
        slots, participations = tensors["slots"].numpy(), tensors["participations"].numpy()
        memory = MemorySnapshot(metadata["memory"], slots, participations, checksums)
    contents = [tensors[f"server/{number}"] for number in range(sum(name.startswith("server/") for name in tensors))]
    return Checkpoint(
        round=int(metadata["round"]),
        questions=int(metadata["questions"]),
        server=decode(metadata["server"], contents),
        averaged=tensors.get("averaged"),
        over="over" in metadata,
        memory=memory,
        received=int(metadata["received"]) if "received" in metadata else None,
    )


@dataclass(frozen=True)
class Stream:
    """A float32 tensor whose rows come in pieces, never all in memory at once."""

    rows: int
    width: int
    pieces: Iterable[Tensor]


def write_models(
    tensors: dict[str, Tensor], streams: dict[str, Stream], path: Path, metadata: dict[str, str] | None = None
) -> KeptFile:
    """Write a safetensors file.

    Args:
        tensors: tensors by name.
        streams: rows that are too many to hold in memory together, by the name of their tensor.
        path: the file.
        metadata: texts in the file's header.
    """
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
    """Remove the files of a run's sessions from its folder, except those named `kept`."""
    for pattern in LEFTOVERS:
        for path in folder.glob(pattern):
            if path.name not in kept:
                path.unlink(missing_ok=True)
