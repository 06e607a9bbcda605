"""Charges between two checkpoints: one short file that is written before anything is asked.

The database takes the ledger's rows with each checkpoint. What is charged after it stands in the journal: whoever kills
a run, or never takes it up again, finds there what had been spent. A resumed run asks the same questions again, with
the same noise: its charges must be those of the journal, or it is not the same run.

A record is the length of its content, the content, and the row's link, which chains it to all rows before.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from sordino.errors import UserError
from sordino.experiment.files import ADVICE
from sordino.privacy.ledger import Row

LINK = 32
"""Bytes of a row's link."""
BLOBS = tuple(field.name for field in fields(Row) if field.type == "bytes")
PLAIN = tuple(field.name for field in fields(Row) if field.type != "bytes")


class Journal:
    """The rows of a run's ledger that its last checkpoint does not know."""

    def __init__(self, folder: Path, position: int, previous: bytes) -> None:
        """`position` is how many rows the last checkpoint knows, `previous` the link of the last of them."""
        self.path = folder / f"ledger-{position:09d}.journal"
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        content = self.path.read_bytes()
        self._owed, end = _read(content, previous, self.path)
        os.ftruncate(self._file, end)  # a record that was not finished paid for nothing: nothing was asked
        os.lseek(self._file, 0, os.SEEK_END)

    def write(self, rows: Sequence[Row], links: Sequence[bytes]) -> None:
        """Write rows behind those that are there; the first ones of a resumed run must be those that are there."""
        for row, link in zip(rows, links, strict=True):
            if self._owed:
                if self._owed.pop(0) != row:
                    raise UserError(
                        f"The run does not repeat itself: what {row.step} of round {row.round + 1} charges for "
                        f"{row.release} is not what {self.path} says it did before. A method must be a function of its "
                        "seed, messages and data; start the run anew with `sordino run`."
                    )
                continue
            content = _content(row)
            record = struct.pack("<I", len(content)) + content + link
            while record:
                record = record[os.write(self._file, record) :]

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def rows_after(folder: Path, position: int, previous: bytes) -> list[Row]:
    """The rows in a run's journal behind the first `position` ones, which its database has; none without a journal."""
    path = folder / f"ledger-{position:09d}.journal"
    return _read(path.read_bytes(), previous, path)[0] if path.exists() else []


def _content(row: Row) -> bytes:
    blobs = [getattr(row, name) for name in BLOBS]
    plain = {name: getattr(row, name) for name in PLAIN}
    head = json.dumps([plain, [len(blob) for blob in blobs]]).encode()
    return struct.pack("<I", len(head)) + head + b"".join(blobs)


def _read(content: bytes, previous: bytes, path: Path) -> tuple[list[Row], int]:
    """The rows of a journal, and where the last whole one ends; a row that does not fit to its link raises."""
    rows, end = [], 0
    for row, link, behind in _records(content, path):
        previous = row.link(previous)
        if previous != link:
            raise damaged(path)
        rows.append(row)
        end = behind
    return rows, end


def _records(content: bytes, path: Path) -> Iterator[tuple[Row, bytes, int]]:
    place = 0
    while place + 4 <= len(content):
        (length,) = struct.unpack_from("<I", content, place)
        behind = place + 4 + length + LINK
        if behind > len(content):
            return
        body, link = content[place + 4 : behind - LINK], content[behind - LINK : behind]
        try:
            (head,) = struct.unpack_from("<I", body)
            plain, sizes = json.loads(body[4 : 4 + head])
            blobs, start = {}, 4 + head
            for name, size in zip(BLOBS, sizes, strict=True):
                blobs[name] = body[start : start + size]
                start += size
            row = Row(**{**plain, **blobs})
        except (ValueError, TypeError, struct.error) as error:
            raise damaged(path) from error
        yield row, link, behind
        place = behind


def damaged(path: Path) -> UserError:
    """The error for a journal whose bytes have changed."""
    return UserError(f"The journal {path} is damaged, its rows do not fit together: {ADVICE}.")
