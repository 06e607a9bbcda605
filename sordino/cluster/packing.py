"""Values on their way between nodes: tensors travel as arrays, which all processes of a node read in place.

Ray keeps arrays in a store that a node's processes share; a tensor in its own format would be copied into each of them.
"""

from __future__ import annotations

import importlib
import io
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Packed:
    """A value without its arrays, and the arrays."""

    content: bytes
    arrays: list[np.ndarray]
    """Bytes of the value's arrays and tensors, in the order in which they occur."""

    @property
    def size(self) -> int:
        """Size in bytes."""
        return len(self.content) + sum(array.nbytes for array in self.arrays)


def pack(value: Any) -> Packed:
    """Pack a value; classes that are defined in a script or a notebook travel with it."""
    pickler = importlib.import_module("ray.cloudpickle").CloudPickler
    arrays: list[np.ndarray] = []

    class Packing(pickler):  # type: ignore[misc,valid-type]
        def reducer_override(self, one: Any) -> Any:
            plain = type(one) is Tensor and one.device.type == "cpu" and one.layout is torch.strided
            if plain and not one.requires_grad and one.dtype not in (torch.bfloat16, torch.float16):
                return _tensor, (np.ascontiguousarray(one.resolve_conj().resolve_neg().numpy()),)
            return super().reducer_override(one)

    def keep(buffer: pickle.PickleBuffer) -> None:
        arrays.append(np.frombuffer(buffer.raw(), dtype=np.uint8))

    content = io.BytesIO()
    callback: Callable[[pickle.PickleBuffer], None] = keep
    Packing(content, protocol=5, buffer_callback=callback).dump(value)
    return Packed(content.getvalue(), arrays)


def unpack(packed: Packed) -> Any:
    """The value that was packed. Its tensors may lie in memory that others read: nobody writes to them."""
    return pickle.loads(packed.content, buffers=packed.arrays)


def _tensor(array: np.ndarray) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch fears that somebody writes to it
        return torch.from_numpy(array)
