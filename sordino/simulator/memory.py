"""What simulated clients remember between rounds.

One file holds two slots for each client. A round writes to the slot that the last checkpoint does not point
to, so that a run killed between two checkpoints finds the clients as the last checkpoint left them. The file
is sparse: clients that have not taken part cost nothing, and worker processes write their clients' rows in
place. It is written with plain writes, not mapped, so that a full disk is an error and not a crash.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sordino.errors import UserError


class Memory:
    """The private state of every client."""

    def __init__(self, path: Path, blank: dict[str, Tensor], clients: int) -> None:
        """`blank` is what a client remembers before it has taken part."""
        self.path = path
        self.blank = {name: value.detach().to("cpu", torch.float32) for name, value in blank.items()}
        self.width = sum(value.numel() for value in self.blank.values())
        self.slots = np.zeros(clients, dtype=np.uint8)
        """Where each client's current state lies."""
        self.participations = np.zeros(clients, dtype=np.int32)
        """How often each client has taken part."""
        self._fresh: set[int] = set()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)

    def targets(self, who: Sequence[int]) -> list[int]:
        """The slot to which each client's next state shall be written."""
        return [int(self.slots[c]) if c in self._fresh else 1 - int(self.slots[c]) for c in who]

    def read(self, client: int) -> dict[str, Tensor]:
        """What a client remembers, with `participations`."""
        taken = int(self.participations[client])
        values = self._unpacked(self._row(client)) if taken else dict(self.blank)
        return values | {"participations": torch.tensor(float(taken))}

    def write(self, client: int, slot: int, state: dict[str, Tensor]) -> None:
        """Put a client's new state into `slot`. It counts once `advance` has been called."""
        if set(state) != set(self.blank):
            raise ValueError(f"A step must keep exactly {sorted(self.blank)}, not {sorted(state)}.")
        row = np.concatenate([state[name].detach().reshape(-1).cpu().numpy() for name in self.blank])
        content, offset = row.tobytes(), self._offset(client, slot)
        while content:  # a disk that is nearly full takes a part first, and only then complains
            written = os.pwrite(self._file, content, offset)
            content, offset = content[written:], offset + written

    def advance(self, who: Sequence[int], targets: Sequence[int]) -> None:
        """Make what was written the clients' current state."""
        for client, slot in zip(who, targets, strict=True):
            self.slots[client] = slot
            self.participations[client] += 1
        self._fresh.update(who)

    def commit(self) -> None:
        """Bring everything written to disk: from now on it is what a resumed run finds."""
        os.fsync(self._file)
        self._fresh.clear()

    def restore(self, slots: np.ndarray, participations: np.ndarray) -> None:
        """Return to the state that a checkpoint recorded."""
        self.slots[:], self.participations[:] = slots, participations
        self._fresh.clear()

    def models(self) -> tuple[np.ndarray, Tensor]:
        """The clients that have taken part, and the model of each, one row each."""
        who = np.flatnonzero(self.participations)
        models = torch.empty(len(who), self.blank["model"].numel())
        for place, client in enumerate(who):
            models[place] = self._unpacked(self._row(int(client)))["model"]
        return who, models

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _offset(self, client: int, slot: int) -> int:
        return (client * 2 + slot) * self.width * 4

    def _row(self, client: int) -> Tensor:
        size = self.width * 4
        content = bytearray(os.pread(self._file, size, self._offset(client, int(self.slots[client]))))
        if len(content) < size:
            raise UserError(
                f"The file {self.path} has lost what client {client} remembered: start the run anew with `sordino run`."
            )
        return torch.frombuffer(content, dtype=torch.float32)

    def _unpacked(self, row: Tensor) -> dict[str, Tensor]:
        pieces = row.split([value.numel() for value in self.blank.values()])
        named = zip(self.blank.items(), pieces, strict=True)
        return {name: piece.reshape(value.shape) for (name, value), piece in named}
