"""Charges between two checkpoints: one short file that is written before anything is asked.

The database takes the ledger's rows with each checkpoint. What is charged after it stands in the journal: whoever kills
a run, or never takes it up again, finds there what had been spent. A resumed run asks the same questions again, with
the same noise: its charges must be those of the journal, or it is not the same run.

A journal is there before anything is charged, and the store says so: one that is gone has been lost. It begins with the
link of the last row that the database has, and with whose it is. A record is the length of its content with a checksum
of that length, the content, and the row's link, which chains it to all rows before. A record that ends too early was
being written when its writer was killed, and paid for nothing yet; any other change of a byte shows.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from sordino.errors import UserError
from sordino.files import ADVICE, replace_file
from sordino.privacy.ledger import BLANK, Row

MARK = b"Sordino's journal\n"
"""With what a journal begins, before the link of the last row that the database has."""
LENGTH = struct.Struct("<I")
CHECKED_LENGTH = struct.Struct("<II")
"""A length and its checksum: without that, a changed length would look like a record that was being written."""
LINK = len(BLANK)
"""Bytes of a row's link."""
BLOBS = tuple(field.name for field in fields(Row) if field.type == "bytes")
PLAIN = tuple(field.name for field in fields(Row) if field.type != "bytes")


class Journal:
    """The rows of a run's ledger that its last checkpoint does not know."""

    def __init__(self, folder: Path, position: int, previous: bytes, begun: bool | None) -> None:
        """`position` is how many rows the last checkpoint knows, `previous` the link of the last of them. Its file is
        made, and brought to disk, unless the store says that it has been `begun` before: then it must be there."""
        self.path = _path(folder, position)
        self._folder = folder
        self._owed, self._end = _read(self.path, previous, begun)
        if not begun:
            self._end = _write(self.path, previous, self._owed)
        self._file: int | None = None

    def write(self, rows: Sequence[Row], links: Sequence[bytes]) -> None:
        """Write rows behind those that are there; the first ones of a resumed run must be those that are there."""
        for row, link in zip(rows, links, strict=True):
            if not self._owed:
                self._append(row, link)
            elif self._owed.pop(0)[0] != row:
                raise self._other(row)

    def following(self, position: int, previous: bytes) -> Journal:
        """The journal behind a checkpoint that knows `position` rows, of which the last has the link `previous`. What a
        resumed run has yet to charge again goes over into it: it was asked, whether the run comes so far again or not.
        This one stays, until the database knows of the checkpoint."""
        path = _path(self._folder, position)
        if path == self.path:
            return self
        _write(path, previous, self._owed)
        self.close()
        return Journal(self._folder, position, previous, begun=True)

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
            try:
                self._file = os.open(self.path, os.O_RDWR)
            except FileNotFoundError as error:
                raise _gone(self.path) from error
            os.ftruncate(self._file, self._end)  # a record that was not finished paid for nothing: nothing was asked
            os.lseek(self._file, 0, os.SEEK_END)
        record = _record(row, link)
        while record:
            record = record[os.write(self._file, record) :]

    def _other(self, row: Row) -> UserError:
        return UserError(
            f"The run does not repeat itself: {row.step} of round {row.round + 1} charges otherwise for {row.release} "
            f"than {self.path} says it did before. A method must be a function of its seed, messages and data; start "
            "the run anew with `sordino run`."
        )


def rows_after(
    folder: Path, position: int, previous: bytes, begun: bool | None, lacking: Collection[str] = ()
) -> list[Row]:
    """The rows in a run's journal behind the first `position` ones, which its database has; `begun` is what the store
    says of the journal, `lacking` are fields that rows did not have when it was written."""
    return [row for row, _ in _read(_path(folder, position), previous, begun, lacking)[0]]


def _path(folder: Path, position: int) -> Path:
    return folder / f"ledger-{position:09d}.journal"


def _write(path: Path, previous: bytes, rows: Sequence[tuple[Row, bytes]]) -> int:
    """Put a journal with these rows and links in place, whole and for good; how many bytes it has."""
    content = _head(path, previous) + b"".join(_record(row, link) for row, link in rows)
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(content)
    replace_file(temporary, path)
    return len(content)


def _head(path: Path, previous: bytes) -> bytes:
    """How a journal begins: that it is one, behind which row, and of which run, whose folder has the run's name."""
    return MARK + previous + hashlib.sha256(path.parent.name.encode()).digest()


def _record(row: Row, link: bytes) -> bytes:
    content = _content(row)
    length = LENGTH.pack(len(content))
    return length + LENGTH.pack(zlib.crc32(length)) + content + link


def _content(row: Row, lacking: Collection[str] = ()) -> bytes:
    blobs = [getattr(row, name) for name in BLOBS]
    plain = {name: getattr(row, name) for name in PLAIN if name not in lacking}
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


def _read(
    path: Path, previous: bytes, begun: bool | None, lacking: Collection[str] = ()
) -> tuple[list[tuple[Row, bytes]], int]:
    """The rows of a journal with their links, and where the last whole one ends. One that has been `begun` must be
    there, and begin as it should; else, or where nobody wrote that down, one that is not there has no rows."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        if begun:
            raise _gone(path) from error
        content = b""
    head = _head(path, previous)  # not in those of earlier versions of Sordino
    end = len(head) if content.startswith(head) else 0
    if begun and not end:
        raise damaged(path)
    if head.startswith(content):  # no more than its beginning
        return [], end
    rows = []
    for body, link, behind in _records(content, end, path):
        try:
            row = _row(body)
        except (ValueError, TypeError, struct.error) as error:
            raise damaged(path) from error
        previous = row.link(previous, lacking)
        if previous != link or _content(row, lacking) != body:  # a size too large reads the same row
            raise damaged(path)
        rows.append((row, link))
        end = behind
    return rows, end


def _records(content: bytes, place: int, path: Path) -> Iterator[tuple[bytes, bytes, int]]:
    """The whole records of a journal from a `place` on: content, link, and where each ends."""
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
    """A journal is gone, or its bytes have changed."""


def _gone(path: Path) -> DamagedJournalError:
    return DamagedJournalError(f"The journal {path} is gone: {ADVICE}.")


def damaged(path: Path) -> DamagedJournalError:
    """The error for a journal whose bytes have changed."""
    return DamagedJournalError(f"The journal {path} is damaged, its rows do not fit together: {ADVICE}.")
