"""Tensors that several processes see, and the pipes that tell of them.

A slab lies in memory without a name, whose descriptor travels through the pipe: the system frees it when the last
process that sees it is gone, however that ends. /dev/shm is left alone, because containers keep it small.
"""

from __future__ import annotations

import math
import mmap
import os
import pickle
import tempfile
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import torch
from torch import Tensor

from sordino.errors import WorkerError

Slabs = dict[str, Tensor]


def nameless() -> int:
    """The descriptor of a new file in memory, or of a temporary one where the system has no such thing."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("sordino")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def new(like: Tensor) -> tuple[Tensor, int]:
    """A slab of the shape and type of `like`, and its descriptor, to be closed once it has been given away."""
    shape, dtype = tuple(like.shape), like.dtype
    descriptor = nameless()
    try:
        _reserve(descriptor, _bytes(shape, dtype))
        return _mapped(descriptor, shape, dtype), descriptor
    except BaseException:
        os.close(descriptor)
        raise


def give(pipe: Connection, key: str, slab: Tensor, descriptor: int) -> None:
    """Let whoever is at the other end of the pipe see a slab, and know it as `key`."""
    send(pipe, ("slab", key, tuple(slab.shape), slab.dtype))
    send_handle(pipe, descriptor, None)


def taken(pipe: Connection, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The slab of which the other end of the pipe has just told."""
    descriptor = recv_handle(pipe)
    try:
        return _mapped(descriptor, shape, dtype)
    finally:
        os.close(descriptor)


def send(pipe: Connection, message: Any) -> None:
    """Send a message by value: torch would put tensors within it into /dev/shm."""
    pipe.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


def receive(pipe: Connection) -> Any:
    """The next message."""
    return pickle.loads(pipe.recv_bytes())


def _bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return max(1, math.prod(shape) * dtype.itemsize)


def _reserve(descriptor: int, size: int) -> None:
    """Take the memory now, so that a lack of it is an error; later it would be a crash."""
    try:
        os.ftruncate(descriptor, size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        raise WorkerError(
            f"There is no memory left for the {size / 2**20:,.1f} MB through which processes exchange tensors "
            f"({error.strerror}): free some, or use fewer processes with --workers; the run can be resumed."
        ) from error


def _mapped(descriptor: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    content = torch.frombuffer(mmap.mmap(descriptor, _bytes(shape, dtype)), dtype=torch.uint8)
    return content[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
