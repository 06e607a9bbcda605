"""Charges between two checkpoints: one short file that is written before anything is asked.

The database takes the ledger's rows with each checkpoint. What is charged after it stands in the journal: whoever kills
a run, or never takes it up again, finds there what had been spent. A resumed run asks the same questions again, with
the same noise: its charges must be those of the journal, or it is not the same run.

A record is the length of its content with a checksum of that length, the content, and the row's link, which chains it
to all rows before. A record that ends too early was being written when its writer was killed, and paid for nothing yet;
any other change of a byte shows.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from sordino.errors import UserError
from sordino.files import ADVICE
from sordino.privacy.ledger import BLANK, Row

LENGTH = struct.Struct("<I")
CHECKED_LENGTH = struct.Struct("<II")
"""A length and its checksum: without that, a changed length would look like a record that was being written."""
LINK = len(BLANK)
"""Bytes of a row's link."""
BLOBS = tuple(field.name for field in fields(Row) if field.type == "bytes")
PLAIN = tuple(field.name for field in fields(Row) if field.type != "bytes")


class Journal:
    """The rows of a run's ledger that its last checkpoint does not know. Its file is made with the first of them."""

    def __init__(self, folder: Path, position: int, previous: bytes) -> None:
        """`position` is how many rows the last checkpoint knows, `previous` the link of the last of them."""
        self.path = _path(folder, position)
        self._folder = folder
        self._owed, self._end = _read(self.path, previous)
        self._file: int | None = None

    def write(self, rows: Sequence[Row], links: Sequence[bytes]) -> None:
        """Write rows behind those that are there; the first ones of a resumed run must be those that are there."""
        for row, link in zip(rows, links, strict=True):
            if not self._owed:
                self._append(row, link)
            elif self._owed.pop(0)[0] != row:
                raise self._other(row)

    def following(self, position: int) -> Journal:
        """The journal behind a checkpoint that knows `position` rows. What a resumed run has yet to charge again goes
        over into it: it was asked, whether the run comes so far again or not."""
        path = _path(self._folder, position)
        if path == self.path:
            return self
        path.unlink(missing_ok=True)
        made = Journal(self._folder, position, BLANK)
        for row, link in self._owed:
            made._append(row, link)
        made._owed = self._owed
        self.close()
        return made

    def check_settled(self) -> None:
        """Refuse the end of a resumed run that has not charged everything again that it had charged."""
        if self._owed:
            raise self._other(self._owed[0][0])

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, row: Row, link: bytes) -> None:
        if self._file is None:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            os.ftruncate(self._file, self._end)  # a record that was not finished paid for nothing: nothing was asked
            os.lseek(self._file, 0, os.SEEK_END)
        content = _content(row)
        length = LENGTH.pack(len(content))
        record = length + LENGTH.pack(zlib.crc32(length)) + content + link
        while record:
            record = record[os.write(self._file, record) :]

    def _other(self, row: Row) -> UserError:
        return UserError(
            f"The run does not repeat itself: {row.step} of round {row.round + 1} charges otherwise for {row.release} "
            f"than {self.path} says it did before. A method must be a function of its seed, messages and data; start "
            "the run anew with `sordino run`."
        )


def rows_after(folder: Path, position: int, previous: bytes) -> list[Row]:
    """The rows in a run's journal behind the first `position` ones, which its database has; none without a journal."""
    return [row for row, _ in _read(_path(folder, position), previous)[0]]


def _path(folder: Path, position: int) -> Path:
    return folder / f"ledger-{position:09d}.journal"


def _content(row: Row) -> bytes:
    blobs = [getattr(row, name) for name in BLOBS]
    plain = {name: getattr(row, name) for name in PLAIN}
    head = json.dumps([plain, [len(blob) for blob in blobs]]).encode()
    return LENGTH.pack(len(head)) + head + b"".join(blobs)


def _row(content: bytes) -> Row:
    """The inverse of `_content`."""
    (head,) = LENGTH.unpack_from(content)
    plain, sizes = json.loads(content[LENGTH.size : LENGTH.size + head])
    blobs, start = {}, LENGTH.size + head
    for name, size in zip(BLOBS, sizes, strict=True):
        blobs[name] = content[start : start + size]
        start += size
    return Row(**{**plain, **blobs})


def _read(path: Path, previous: bytes) -> tuple[list[tuple[Row, bytes]], int]:
    """The rows of a journal with their links, and where the last whole one ends; none where there is no journal."""
    rows, end = [], 0
    content = path.read_bytes() if path.exists() else b""
    for body, link, behind in _records(content, path):
        try:
            row = _row(body)
        except (ValueError, TypeError, struct.error) as error:
            raise damaged(path) from error
        previous = row.link(previous)
        if previous != link or _content(row) != body:  # a size too large reads the same row
            raise damaged(path)
        rows.append((row, link))
        end = behind
    return rows, end


def _records(content: bytes, path: Path) -> Iterator[tuple[bytes, bytes, int]]:
    """The whole records of a journal: content, link, and where each ends."""
    place = 0
    while place + CHECKED_LENGTH.size <= len(content):
        length, checksum = CHECKED_LENGTH.unpack_from(content, place)
        if checksum != zlib.crc32(LENGTH.pack(length)):
            raise damaged(path)
        start = place + CHECKED_LENGTH.size
        place = start + length + LINK
        if place > len(content):
            return
        yield content[start : place - LINK], content[place - LINK : place], place


class DamagedJournalError(UserError):
    """A journal's bytes have changed."""


def damaged(path: Path) -> DamagedJournalError:
    """The error for a journal whose bytes have changed."""
    return DamagedJournalError(f"The journal {path} is damaged, its rows do not fit together: {ADVICE}.")
