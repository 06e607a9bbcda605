"""What data is: records before they are dealt, and each client's records after."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Dataset:
    """Records before they are dealt to clients."""

    name: str
    x: torch.Tensor
    """float32 (records, *shape), already normalised."""
    y: torch.Tensor
    """int64 (records,), each in 0..classes-1."""
    classes: int
    owner: np.ndarray | None
    """int64 (records,): the natural client (writer, hospital, file) of each record, index in owner_names."""
    owner_names: tuple[str, ...]
    """Names of the natural clients; () when owner is None."""
    test: np.ndarray | None
    """bool (records,): record belongs to the published test split; None when none is published."""


@dataclass(frozen=True)
class ClientData:
    """One client's records. The four tensors are contiguous views of tensors shared by all clients."""

    name: str
    x: torch.Tensor
    """Training inputs, float32."""
    y: torch.Tensor
    """Training labels, int64."""
    x_test: torch.Tensor
    """Test inputs; of length 0 when the client has no test records."""
    y_test: torch.Tensor
    """Test labels."""


@dataclass(frozen=True)
class FederatedData:
    """The records of every client of one federation."""

    name: str
    clients: tuple[ClientData, ...]
    classes: int
    shape: tuple[int, ...]
    """Shape of one record."""
    fingerprint: str
    """SHA-256 over the contents and the deal: equal fingerprints mean byte-equal data for each client."""
