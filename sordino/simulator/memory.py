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
        self._fresh = np.zeros(clients, dtype=bool)
        """Whose current state is younger than the last checkpoint."""
        self._blank = torch.cat([value.reshape(-1) for value in self.blank.values()]).numpy()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)

    def targets(self, who: Sequence[int]) -> list[int]:
        """The slot to which each client's next state shall be written."""
        slots: list[int] = np.where(self._fresh[who], self.slots[who], 1 - self.slots[who]).tolist()
        return slots

    def states(self, clients: Sequence[int]) -> dict[str, Tensor]:
        """What clients remember, one row each, with `participations`."""
        taken = self.participations[clients]
        rows = np.empty((len(clients), self.width), dtype=np.float32)
        for row, client, times in zip(rows, clients, taken.tolist(), strict=True):
            if times:
                self._fill(row, client)
            else:
                row[:] = self._blank
        return self._unpacked(torch.from_numpy(rows)) | {"participations": torch.from_numpy(taken.astype(np.float32))}

    def write(self, clients: Sequence[int], slots: Sequence[int], states: dict[str, Tensor]) -> None:
        """Put clients' new states, one row each, into their `slots`. They count once `advance` has been called."""
        if set(states) != set(self.blank):
            raise ValueError(f"A step must keep exactly {sorted(self.blank)}, not {sorted(states)}.")
        columns = [states[name].detach().reshape(len(clients), -1) for name in self.blank]
        rows = (columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)).cpu().contiguous().numpy()
        for row, client, slot in zip(rows, clients, slots, strict=True):
            offset = self._offset(client, slot)
            written = os.pwrite(self._file, row, offset)
            content = row.view(np.uint8)
            while written < len(content):  # a disk that is nearly full takes a part first, and only then complains
                written += os.pwrite(self._file, content[written:], offset + written)

    def advance(self, who: Sequence[int], targets: Sequence[int]) -> None:
        """Make what was written the clients' current state."""
        self.slots[who] = targets
        self.participations[who] += 1
        self._fresh[who] = True

    def commit(self) -> None:
        """Bring everything written to disk: from now on it is what a resumed run finds."""
        os.fsync(self._file)
        self._fresh[:] = False

    def restore(self, slots: np.ndarray, participations: np.ndarray) -> None:
        """Return to the state that a checkpoint recorded."""
        self.slots[:], self.participations[:] = slots, participations
        self._fresh[:] = False

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _offset(self, client: int, slot: int) -> int:
        return (int(client) * 2 + int(slot)) * self.width * 4

    def _fill(self, row: np.ndarray, client: int) -> None:
        """Read a client's current state into `row`."""
        if os.preadv(self._file, [row.data], self._offset(client, self.slots[client])) < row.nbytes:
            raise UserError(
                f"The file {self.path} has lost what client {client} remembered: start the run anew with `sordino run`."
            )

    def _unpacked(self, rows: Tensor) -> dict[str, Tensor]:
        pieces = rows.split([value.numel() for value in self.blank.values()], dim=1)
        named = zip(self.blank.items(), pieces, strict=True)
        return {name: piece.reshape(len(rows), *value.shape) for (name, value), piece in named}
