"""Clients' memory in a simulation: one file for each session of a run, with two slots per client.

A client's new row goes into the slot that the last checkpoint does not refer to, so that a run that is killed finds
the row of its checkpoint as it was. Rows have checksums against damage on disk; they are no secret, and no defence
against forgery.

A row is a sequence of 64-bit words, each multiplied by an odd weight of its own; the checksum is the sum of the
products modulo 2^64. Because odd weights can be divided by, a change of one word always shows. Changes of several that
know nothing of the weights, among them a lost page and words that change places, stay hidden once in 2^60 times. Rows
are written in every round: this takes a fifth of the time of CRC-32.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sordino.errors import UserError
from sordino.federation.transport import MemorySnapshot
from sordino.util.files import ADVICE, unused_path

CHECKSUM = np.dtype("<u8")
BLOCK = 2**13
"""Number of words with weights of their own; later words have the same weights times a power of `STEP`."""
WEIGHTS = np.random.PCG64(0).random_raw(BLOCK) | np.uint64(1)
STEP = np.uint64(0x9E3779B97F4A7C15)


def checksums(rows: np.ndarray) -> np.ndarray:
    """Checksum of each row of float32 numbers."""
    whole = rows.shape[1] // 2
    words = rows[:, : 2 * whole].view(CHECKSUM)
    found = np.zeros(len(rows), dtype=CHECKSUM)
    for begin in range(0, whole, BLOCK):
        part = words[:, begin : begin + BLOCK]
        found = found * STEP + np.einsum("ij,j->i", part, WEIGHTS[: part.shape[1]])
    if rows.shape[1] % 2:
        found = found * STEP + rows[:, -1].view("<u4").astype(CHECKSUM) * WEIGHTS[-1]
    return found


FILE = "memory.bin"
"""Name of the file; each session of a run has its own, with a number in its name where there are others."""


class Memory:
    """Memory of every client, private and public."""

    def __init__(self, folder: Path, blank: dict[str, Tensor], clients: int) -> None:
        """Make a new file in `folder`, under a name of its own. `blank` is the memory of a client that has not taken
        part yet."""
        self.path = unused_path(folder / FILE)
        self.blank = {name: value.detach().to("cpu", torch.float32) for name, value in blank.items()}
        self.width = sum(value.numel() for value in self.blank.values())
        self._stride = 4 * self.width + CHECKSUM.itemsize
        self.slots = np.zeros(clients, dtype=np.uint8)
        """Slot of each client's current state."""
        self.participations = np.zeros(clients, dtype=np.int32)
        """Number of times that each client has taken part."""
        self.checksums = np.zeros(clients, dtype=CHECKSUM)
        """Checksums of the states that the last checkpoint refers to."""
        self._fresh = np.zeros(clients, dtype=bool)
        """For each client, whether its current state is younger than the last checkpoint."""
        self._blank = torch.cat([value.reshape(-1) for value in self.blank.values()]).numpy()
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)

    def targets(self, who: Sequence[int]) -> list[int]:
        """Slot to which each client's next state must be written."""
        slots: list[int] = np.where(self._fresh[who], self.slots[who], 1 - self.slots[who]).tolist()
        return slots

    def states(self, clients: Sequence[int]) -> States:
        """Clients' memory, one row each, with `participations`; it is read from the file when it is looked at."""
        return States(self, clients)

    def read(self, clients: Sequence[int]) -> dict[str, Tensor]:
        """Clients' memory, one row each."""
        rows = np.empty((len(clients), self.width), dtype=np.float32)
        for row, client, times in zip(rows, clients, self.participations[clients].tolist(), strict=True):
            if times:
                self._fill(row, client)
            else:
                row[:] = self._blank
        return self._unpacked(torch.from_numpy(rows))

    def write(self, clients: Sequence[int], slots: Sequence[int], states: dict[str, Tensor]) -> None:
        """Write clients' new states, one row each, into their `slots`. They count once `advance` has been called."""
        self.check_names(states)
        columns = [states[name].detach().reshape(len(clients), -1) for name in self.blank]
        whole = columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)
        rows = whole.to("cpu", torch.float32).contiguous().numpy()
        offsets = (2 * np.asarray(clients, dtype=np.int64) + np.asarray(slots)) * self._stride
        for row, checksum, offset in zip(rows, checksums(rows), offsets.tolist(), strict=True):
            self._put(row, checksum.tobytes(), offset)

    def check_names(self, states: Mapping[str, Tensor]) -> None:
        """Refuse new states under other names than clients remember theirs by."""
        if set(states) != set(self.blank):
            raise UserError(f"A step must keep exactly {sorted(self.blank)}, not {sorted(states)}: see Method.memory.")

    def advance(self, who: Sequence[int], targets: Sequence[int]) -> None:
        """Make the states in the slots `targets` the clients' current ones."""
        self.slots[who] = targets
        self.participations[who] += 1
        self._fresh[who] = True

    def commit(self) -> MemorySnapshot:
        """Bring everything that clients remember to disk; the snapshot finds it again, whatever is written later."""
        os.fsync(self._file)
        for client in np.flatnonzero(self._fresh).tolist():
            place = self._offset(client, self.slots[client]) + 4 * self.width
            os.preadv(self._file, [self.checksums[client : client + 1].data], place)
        self._fresh[:] = False
        return MemorySnapshot(self.path.name, self.slots.copy(), self.participations.copy(), self.checksums.copy())

    def take_over(self, folder: Path, snapshot: MemorySnapshot) -> None:
        """Copy what clients remembered at a checkpoint from its file in `folder`; a damaged row is refused."""
        old, recorded = folder / snapshot.file, snapshot.checksums
        row = np.empty(self.width, dtype=np.float32)
        try:
            source = os.open(old, os.O_RDONLY)
        except OSError as error:
            raise UserError(f"The clients' memory {old} cannot be read ({error.strerror}): {ADVICE}.") from error
        try:
            for client in np.flatnonzero(snapshot.participations).tolist():
                read = os.preadv(source, [row.data], self._offset(client, snapshot.slots[client]))
                (made,) = checksums(row[None])
                if read < row.nbytes or made != recorded[client]:
                    raise UserError(
                        f"The clients' memory {old} is damaged, it has lost what client {client} remembered: {ADVICE}."
                    )
                self._put(row, made.tobytes(), self._offset(client, 0))
        finally:
            os.close(source)
        self.participations[:], self.checksums[:] = snapshot.participations, recorded

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _offset(self, client: int, slot: int) -> int:
        return (int(client) * 2 + int(slot)) * self._stride

    def _put(self, row: np.ndarray, checksum: bytes, offset: int) -> None:
        """Write a row and its checksum."""
        parts: list[memoryview | bytes] = [row.data, checksum]
        written = os.pwritev(self._file, parts, offset)
        while written < self._stride:  # a disk that is nearly full takes a part first, and only then complains
            written += os.pwrite(self._file, b"".join(parts)[written:], offset + written)

    def _fill(self, row: np.ndarray, client: int) -> None:
        """Read a client's current state into `row`."""
        if os.preadv(self._file, [row.data], self._offset(client, self.slots[client])) < row.nbytes:
            raise UserError(f"The clients' memory {self.path} has lost what client {client} remembered: {ADVICE}.")

    def _unpacked(self, rows: Tensor) -> dict[str, Tensor]:
        pieces = rows.split([value.numel() for value in self.blank.values()], dim=1)
        named = zip(self.blank.items(), pieces, strict=True)
        return {name: piece.reshape(len(rows), *value.shape) for (name, value), piece in named}


class States(Mapping[str, Tensor]):
    """Memory of some clients, one row each, read from the file when it is looked at."""

    def __init__(self, memory: Memory, clients: Sequence[int]) -> None:
        self._memory, self._clients = memory, clients
        self._read: dict[str, Tensor] | None = None
        self._taken = torch.from_numpy(memory.participations[clients].astype(np.float32))

    def __getitem__(self, name: str) -> Tensor:
        if name == "participations":
            return self._taken
        if self._read is None:
            self._read = self._memory.read(self._clients)
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._memory.blank, "participations"])

    def __len__(self) -> int:
        return len(self._memory.blank) + 1
