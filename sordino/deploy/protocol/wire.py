"""Messages between a site and the server as bytes: a JSON head and a safetensors body.

Reading a message runs no code, and nothing in it can expand beyond its own size in memory. Bytes that are no message
raise `WireError`. Unpacking gives back what was packed: tensors and arrays with their types, whole and floating-point
numbers, texts, bytes, lists, tuples, tables, and rows of which every client gets its own.

    "sordino1" | length of the head, 8 bytes | head | body

In the head a value is plain JSON, or a list that begins with its kind: ["table", [[key, value], ...]], ["list", ...],
["tuple", ...], ["float", "nan"], ["bytes", base64], and ["array", place] or ["tensor" | "each", [place, type]] for
values in the body.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from safetensors import numpy as safetensors
from torch import Tensor

from sordino.errors import UserError
from sordino.federation.message import Each

MAGIC = b"sordino1"
LENGTH_BYTES = 8
PROTOCOL = 2
"""Version of the protocol; both ends must have the same."""
MAX_MESSAGE_BYTES = 512 * 2**20
"""Size of the largest message that is read, unless a site's rules say otherwise."""
MAX_HEAD_BYTES = 16 * 2**20
MAX_DEPTH = 32
"""Levels to which tables and lists may be nested."""
MAX_INTEGER_BITS = 1024
"""Length of the largest whole number, in bits."""
ARRAYS = {np.dtype(kind) for kind in ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1")}
"""Types of arrays that can be sent."""
CARRIERS: dict[torch.dtype, torch.dtype] = {
    **{kind: kind for kind in (torch.float64, torch.float32, torch.float16)},
    **{kind: kind for kind in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)},
    torch.bfloat16: torch.int16,
    torch.bool: torch.uint8,
}
"""Types of tensors that can be sent, with the type in which entries travel: numpy has no bfloat16, and reading a
boolean that is neither zero nor one would be undefined."""
TYPES = {str(kind).removeprefix("torch."): kind for kind in CARRIERS}
Body = dict[str, np.ndarray]


class WireError(UserError):
    """Bytes are no message, or a value cannot be sent."""


def pack(message: Mapping[str, Any]) -> bytes:
    """Pack a message into bytes."""
    body: Body = {}
    head = json.dumps(_encode(dict(message), body, MAX_DEPTH), allow_nan=False, separators=(",", ":")).encode()
    if len(head) > MAX_HEAD_BYTES:
        raise WireError(f"A message's head has {len(head):,} bytes, but at most {MAX_HEAD_BYTES:,} can be sent.")
    return MAGIC + len(head).to_bytes(LENGTH_BYTES, "little") + head + safetensors.save(body)


def request(kind: str, **content: Any) -> bytes:
    """Pack a server's message to a site, of the given kind."""
    return pack({"kind": kind, "protocol": PROTOCOL, **content})


def unpack(content: bytes, max_bytes: int = MAX_MESSAGE_BYTES) -> dict[str, Any]:
    """Unpack a message of at most `max_bytes` bytes."""
    if len(content) > max_bytes:
        raise WireError(f"A message has {len(content):,} bytes, but at most {max_bytes:,} are accepted.")
    begin = len(MAGIC) + LENGTH_BYTES
    size = int.from_bytes(content[len(MAGIC) : begin], "little")
    if content[: len(MAGIC)] != MAGIC or len(content) < begin + size or size > MAX_HEAD_BYTES:
        raise WireError("These bytes are no message of Sordino.")
    try:
        head = json.loads(content[begin : begin + size], parse_constant=_refuse_constant)
        body = safetensors.load(content[begin + size :])
        found = _decode(head, body, MAX_DEPTH)
    except WireError:
        raise
    except Exception as error:  # libraries raise all kinds of errors on damaged bytes
        raise WireError("A message is damaged: its head or its body cannot be read.") from error
    if body or not isinstance(found, dict):
        raise WireError("A message is damaged: its head and its body do not belong together.")
    return found


def _refuse_constant(constant: str) -> Any:
    raise WireError(f"A message is damaged: {constant} is not a number that a head may hold.")


# ---- writing


def _encode(value: Any, body: Body, depth: int) -> Any:
    """Encode a value as JSON; arrays and tensors go into the body. `depth` more levels of nesting are allowed."""
    if depth < 0:
        raise WireError(f"A message is nested more than {MAX_DEPTH} deep.")
    if isinstance(value, Each):
        return ["each", _store_tensor(value.values, body)]
    if isinstance(value, Tensor):
        return ["tensor", _store_tensor(value, body)]
    if isinstance(value, np.ndarray):
        return ["array", _store_array(value, body)]
    if isinstance(value, Mapping):
        pairs = [[_encode_scalar(key), _encode(one, body, depth - 1)] for key, one in value.items()]
        return ["table", pairs]
    if type(value) in (list, tuple):
        return [type(value).__name__, [_encode(one, body, depth - 1) for one in value]]
    return _encode_scalar(value)


def _encode_scalar(value: Any) -> Any:
    """Encode a single value as JSON."""
    kind = type(value)
    if kind is float and not math.isfinite(value):
        return ["float", repr(value)]
    if kind is bytes:
        return ["bytes", base64.b64encode(value).decode()]
    if kind is int and value.bit_length() > MAX_INTEGER_BITS:
        raise WireError(f"A whole number of {value.bit_length()} bits cannot be sent.")
    if value is None or kind in (bool, int, float, str):
        return value
    raise WireError(f"A {kind.__name__} cannot be sent: a message holds tensors, numbers, texts, lists and tables.")


def _store_tensor(value: Tensor, body: Body) -> list[Any]:
    content = value.detach().cpu().contiguous()
    if content.dtype not in CARRIERS:
        raise WireError(f"A tensor of {content.dtype} cannot be sent.")
    name = str(content.dtype).removeprefix("torch.")
    return [_store_array(content.view(CARRIERS[content.dtype]).numpy(), body), name]


def _store_array(value: np.ndarray, body: Body) -> int:
    """Put an array into the body and return its place there."""
    if value.dtype not in ARRAYS:
        raise WireError(f"An array of {value.dtype} cannot be sent.")
    place = len(body)
    body[str(place)] = np.ascontiguousarray(value).reshape(value.shape)
    return place


# ---- reading


def _decode(value: Any, body: Body, depth: int) -> Any:
    """Decode a value from JSON; arrays and tensors are taken out of the body."""
    if depth < 0:
        raise WireError(f"A message is nested more than {MAX_DEPTH} deep.")
    if not isinstance(value, list):
        return _decode_scalar(value)
    kind, content = value
    if kind == "table":
        pairs = [_as_list(pair) for pair in _as_list(content)]
        found = {_decode_scalar(key): _decode(one, body, depth - 1) for key, one in pairs}
        if len(found) < len(pairs):
            raise WireError("A message is damaged: a table has a key twice.")
        return found
    if kind in ("list", "tuple"):
        items = [_decode(one, body, depth - 1) for one in _as_list(content)]
        return items if kind == "list" else tuple(items)
    if kind == "array":
        return _take_array(content, body)
    if kind in ("tensor", "each"):
        place, name = content
        tensor = _to_tensor(_take_array(place, body), TYPES[name])
        return Each(tensor) if kind == "each" else tensor
    return _decode_scalar(value)


def _decode_scalar(value: Any) -> Any:
    if isinstance(value, list):
        kind, content = value
        if kind == "bytes":
            return base64.b64decode(content, validate=True)
        if kind == "float" and content in ("nan", "inf", "-inf"):
            return float(content)
        raise WireError("A message is damaged: it holds a value of an unknown kind.")
    if isinstance(value, dict):
        raise WireError("A message is damaged: it holds a value of an unknown kind.")
    if type(value) is int and value.bit_length() > MAX_INTEGER_BITS:
        raise WireError(
            f"A whole number of {value.bit_length()} bits is too long: {MAX_INTEGER_BITS} bits are accepted."
        )
    if type(value) is float and not math.isfinite(value):  # such as 1e999, which JSON admits
        raise WireError("A message is damaged: it holds a number that is too large for floating point.")
    return value


def _as_list(content: Any) -> list[Any]:
    if not isinstance(content, list):
        raise WireError("A message is damaged: it holds something else where a list must be.")
    return content


def _take_array(place: Any, body: Body) -> np.ndarray:
    """Remove an array from the body and return a copy of it."""
    array = body.pop(str(place)) if type(place) is int else None
    if array is None or array.dtype not in ARRAYS:
        raise WireError("A message is damaged: its body lacks an array that its head names.")
    return array.copy()


def _to_tensor(array: np.ndarray, kind: torch.dtype) -> Tensor:
    """Tensor of the type `kind` from the array that carried it."""
    content = torch.from_numpy(array)
    if content.dtype != CARRIERS[kind] or (kind is torch.bool and bool((content > 1).any())):
        raise WireError("A message is damaged: a tensor is not of the type that its head names.")
    return content.view(kind)
