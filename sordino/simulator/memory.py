"""What simulated clients remember between rounds.

One file holds two slots for each client. A round writes to the slot that the last checkpoint does not point
to, so that a run killed between two checkpoints finds the clients as the last checkpoint left them. The file
is sparse: clients that have not taken part cost nothing, and worker processes write their clients' rows in
place. It is written with plain writes, not mapped, so that a full disk is an error and not a crash.

Behind each row stands its checksum, made by the process that wrote the row. Checkpoints collect the checksums of the
current rows; a resumed run compares the rows with them while it copies them to a file of its own. What a forgotten
process of the killed run still writes thus reaches a file that nobody reads. The checksum is CRC-32: rows are written
in every round, and BLAKE2b would take a tenth of a small network's round where CRC-32 takes a fiftieth.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sordino.errors import UserError
from sordino.files import ADVICE

CHECKSUM = np.dtype("<u4")


class Memory:
    """What every client remembers, private and public."""

    def __init__(self, path: Path, blank: dict[str, Tensor], clients: int) -> None:
        """A new file, in place of any of that name. `blank` is what a client remembers before it has taken part."""
        self.path = path
        self.blank = {name: value.detach().to("cpu", torch.float32) for name, value in blank.items()}
        self.width = sum(value.numel() for value in self.blank.values())
        self.slots = np.zeros(clients, dtype=np.uint8)
        """Where each client's current state lies."""
        self.participations = np.zeros(clients, dtype=np.int32)
        """How often each client has taken part."""
        self.checksums = np.zeros(clients, dtype=CHECKSUM)
        """Of the states that the last checkpoint points to."""
        self._fresh = np.zeros(clients, dtype=bool)
        """Whose current state is younger than the last checkpoint."""
        self._blank = torch.cat([value.reshape(-1) for value in self.blank.values()]).numpy()
        path.unlink(missing_ok=True)  # whoever has it open goes on writing to it, and not to this one
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)

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
            raise UserError(f"A step must keep exactly {sorted(self.blank)}, not {sorted(states)}: see Method.memory.")
        columns = [states[name].detach().reshape(len(clients), -1) for name in self.blank]
        whole = columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)
        rows = whole.to("cpu", torch.float32).contiguous().numpy()
        for row, client, slot in zip(rows, clients, slots, strict=True):
            self._put(row, zlib.crc32(row.data), client, slot)

    def advance(self, who: Sequence[int], targets: Sequence[int]) -> None:
        """Make what was written the clients' current state."""
        self.slots[who] = targets
        self.participations[who] += 1
        self._fresh[who] = True

    def commit(self) -> None:
        """Bring everything written to disk: from now on it is what a resumed run finds."""
        os.fsync(self._file)
        for client in np.flatnonzero(self._fresh).tolist():
            place = self._offset(client, self.slots[client]) + 4 * self.width
            os.preadv(self._file, [self.checksums[client : client + 1].data], place)
        self._fresh[:] = False

    def take_over(self, old: Path, slots: np.ndarray, participations: np.ndarray, checksums: np.ndarray) -> None:
        """Copy from another file the state that a checkpoint recorded; a row that is not as it was written raises."""
        row = np.empty(self.width, dtype=np.float32)
        try:
            source = os.open(old, os.O_RDONLY)
        except OSError as error:
            raise UserError(f"The clients' memory {old} cannot be read ({error.strerror}): {ADVICE}.") from error
        try:
            for client in np.flatnonzero(participations).tolist():
                read = os.preadv(source, [row.data], self._offset(client, slots[client]))
                made = zlib.crc32(row.data)
                if read < row.nbytes or made != int(checksums[client]):
                    raise UserError(
                        f"The clients' memory {old} is damaged, it has lost what client {client} remembered: {ADVICE}."
                    )
                self._put(row, made, client, 0)
        finally:
            os.close(source)
        self.participations[:], self.checksums[:] = participations, checksums

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _offset(self, client: int, slot: int) -> int:
        return (int(client) * 2 + int(slot)) * (self.width * 4 + CHECKSUM.itemsize)

    def _put(self, row: np.ndarray, checksum: int, client: int, slot: int) -> None:
        """Write a row and its checksum."""
        offset, behind = self._offset(client, slot), checksum.to_bytes(CHECKSUM.itemsize, "little")
        written = os.pwritev(self._file, [row.data, behind], offset)
        whole = row.nbytes + len(behind)
        while written < whole:  # a disk that is nearly full takes a part first, and only then complains
            left = (row.tobytes() + behind)[written:]
            written += os.pwrite(self._file, left, offset + written)

    def _fill(self, row: np.ndarray, client: int) -> None:
        """Read a client's current state into `row`."""
        if os.preadv(self._file, [row.data], self._offset(client, self.slots[client])) < row.nbytes:
            raise UserError(f"The clients' memory {self.path} has lost what client {client} remembered: {ADVICE}.")

    def _unpacked(self, rows: Tensor) -> dict[str, Tensor]:
        pieces = rows.split([value.numel() for value in self.blank.values()], dim=1)
        named = zip(self.blank.items(), pieces, strict=True)
        return {name: piece.reshape(len(rows), *value.shape) for (name, value), piece in named}


def unused(folder: Path) -> Path:
    """A name for a new memory file: each session of a run has a file of its own."""
    taken = {path.name for path in folder.glob("memory-*")}
    return folder / next(name for number in count(1) if (name := f"memory-{number}.bin") not in taken)
