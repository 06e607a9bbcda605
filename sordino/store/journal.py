"""Charges between two checkpoints: one short file that is written before anything is asked.

The database gets the ledger's rows with each checkpoint. Later charges stand in the journal: if a run is killed, or
never resumed, the journal says what had been spent. A resumed run asks the same questions again, with the same noise:
its charges must be those of the journal, or it is not the same run.

Where noise depends on the values that it covers, the journal also gets a digest of a question's noise
(`Source.take_drawn`) before anybody sees the answer. A resumed run whose clients compute other values would make a
second release. It is therefore given up: all that the journal has stays spent, and what was asked since the last
checkpoint is asked, drawn and charged anew under other numbers. The answer to a question without a digest here was seen
by nobody.

Where noise does not depend on values, a repeated computation must give the same bits, and another machine may round
differently. The journal therefore describes the machine that wrote its rows (`describe_machine`). A run that is resumed
on another machine, or whose machine is unknown, is given up in the same way before it asks anything.

A journal is created before anything is charged, and the store says so: a missing one has been lost. It begins with the
link of the database's last row and a digest of the run's name. A record is the length of its content with a checksum of
that length, the content, and the row's link, which chains it to all rows before. A truncated record was being written
when its writer was killed, and nothing had been asked for it yet; any other changed byte is detected. Records of noise,
of giving up, and of a machine have the same form; their link chains their content to the last row's.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from sordino.errors import UserError
from sordino.privacy.ledger import FIRST_LINK, Row
from sordino.util.files import ADVICE, replace_file

MARK = b"Sordino's journal\n"
"""First bytes of a journal, before the link of the database's last row."""
LENGTH = struct.Struct("<I")
CHECKED_LENGTH = struct.Struct("<II")
"""A length and its checksum: without it, a changed length would look like a truncated record."""
LINK = len(FIRST_LINK)
"""Length of a row's link, in bytes."""
Linked = tuple[Row, bytes]
"""A row and its link."""
BLOBS = tuple(field.name for field in fields(Row) if field.type == "bytes")
PLAIN = tuple(field.name for field in fields(Row) if field.type != "bytes")


ANSWER = b"answer"
"""First bytes of the content of a record of noise; a row's content begins with a length, whose first byte is
another."""
GIVEN_UP = b"given up"
"""Content of the record after which all earlier rows stay spent and are not charged again."""
MACHINE = b"machine"
"""First bytes of the record that describes the machine on which all later rows were written."""


class OtherValuesError(BaseException):
    """A resumed run computed other values than before for a question that had been answered.

    Not an `Exception`, which a method's script might catch: the answer must not be used.
    """


class Journal:
    """Rows of a run's ledger since its last checkpoint."""

    def __init__(self, folder: Path, position: int, previous: bytes, begun: bool | None, machine: str = "") -> None:
        """Open a journal, or create it durably.

        Args:
            folder: Folder of the run.
            position: Number of rows of the last checkpoint.
            previous: Link of the last of these rows.
            begun: Whether the store says that the journal exists; then a missing one is refused.
            machine: Description of the machine that computes values; empty where sites compute them.
        """
        self.path = _path(folder, position)
        self._folder, self._machine = folder, machine
        found = _read(self.path, previous, begun)
        moved = found.machine != machine
        if moved:  # the same noise would cover other values
            found = _Found([*found.given_up, *found.rows], [], {}, machine, found.end)
        self.given_up, self._owed, self._answers, self._end = found.given_up, found.rows, found.answers, found.end
        """Rows that stay spent and are not charged again; rows that a resumed run charges again; digests of the noise
        of their answers."""
        if moved or not begun:
            self._end = _write(self.path, previous, found)
        self._last = ([previous] + [link for _, link in found.given_up + found.rows])[-1]
        self._gives_up = False
        self._file: int | None = None

    def write(self, rows: Sequence[Row], links: Sequence[bytes]) -> None:
        """Append rows; a resumed run must first repeat the rows that are there."""
        self._check_going_on()
        for row, link in zip(rows, links, strict=True):
            if not self._owed:
                self._append(_record(row, link))
                self._last = link
            elif self._owed.pop(0)[0] != row:
                raise self._other(row)

    def answered(self, question: int, drawn: int) -> None:
        """Append the digest `drawn` of an answer's noise before anybody sees the answer. If a resumed run has another
        digest, everything since the last checkpoint is given up."""
        known = self._answers.pop(question, None)
        if known is None:
            self._append(_sealed(_answer(question, drawn), self._last))
        elif known != drawn:
            self._gives_up = True
            self._append(_sealed(GIVEN_UP, self._last))
            raise OtherValuesError

    def following(self, position: int, previous: bytes) -> Journal:
        """Return the journal after a new checkpoint of `position` rows, the last of which has the link `previous`.

        Rows that a resumed run has not repeated yet are carried over: they were asked, whether or not the run gets
        there again. This journal's file stays until the database has the checkpoint.
        """
        self._check_going_on()
        path = _path(self._folder, position)
        if path == self.path:
            return self
        _write(path, previous, _Found([], self._owed, self._answers, self._machine))
        self.close()
        return Journal(self._folder, position, previous, begun=True, machine=self._machine)

    def check_settled(self) -> None:
        """Refuse the end of a resumed run that has not repeated all charges of the journal."""
        self._check_going_on()
        if self._owed:
            raise self._other(self._owed[0][0])

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _check_going_on(self) -> None:
        """Raise again the error that ended the session, in case a script has caught it."""
        if self._gives_up:
            raise OtherValuesError

    def _append(self, record: bytes) -> None:
        if self._file is None:
            try:
                self._file = os.open(self.path, os.O_RDWR)
            except FileNotFoundError as error:
                raise _gone(self.path) from error
            os.ftruncate(self._file, self._end)  # a record that was not finished paid for nothing: nothing was asked
            os.lseek(self._file, 0, os.SEEK_END)
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
    """Return the rows of a run's journal that its database does not have.

    Args:
        folder: Folder of the run.
        position: Number of rows in the database.
        previous: Link of the last of these rows.
        begun: Whether the store says that the journal exists; None where it does not say.
        lacking: Fields that rows did not have when the journal was written.
    """
    found = _read(_path(folder, position), previous, begun, lacking)
    return [row for row, _ in found.given_up + found.rows]


def _path(folder: Path, position: int) -> Path:
    return folder / f"ledger-{position:09d}.journal"


def _write(path: Path, previous: bytes, found: _Found) -> int:
    """Write a whole journal durably; returns its length in bytes."""
    content, last = _head(path, previous), previous
    for row, last in found.given_up:
        content += _record(row, last)
    if found.given_up:
        content += _sealed(GIVEN_UP, last)
    if found.machine:
        content += _sealed(MACHINE + found.machine.encode(), last)
    for row, last in found.rows:
        content += _record(row, last)
    content += b"".join(_sealed(_answer(question, drawn), last) for question, drawn in found.answers.items())
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(content)
    replace_file(temporary, path)
    return len(content)


def _head(path: Path, previous: bytes) -> bytes:
    """Return the first bytes of a journal: its mark, the previous link, and a digest of the run's name."""
    return MARK + previous + hashlib.sha256(path.parent.name.encode()).digest()


def _record(row: Row, link: bytes) -> bytes:
    return _frame(_content(row), link)


def _sealed(content: bytes, last: bytes) -> bytes:
    """Return a record that is not a row, after a row with the link `last`."""
    return _frame(content, _seal(content, last))


def _seal(content: bytes, last: bytes) -> bytes:
    return hashlib.sha256(last + content).digest()


def _answer(question: int, drawn: int) -> bytes:
    """Content of the record of a question's digest of noise."""
    return ANSWER + json.dumps([question, drawn]).encode()


def _frame(content: bytes, link: bytes) -> bytes:
    length = LENGTH.pack(len(content))
    return length + LENGTH.pack(zlib.crc32(length)) + content + link


def _content(row: Row, lacking: Collection[str] = ()) -> bytes:
    blobs = [getattr(row, name) for name in BLOBS]
    plain = {name: getattr(row, name) for name in PLAIN if name not in lacking}
    head = json.dumps([plain, [len(blob) for blob in blobs]]).encode()
    return LENGTH.pack(len(head)) + head + b"".join(blobs)


def _row(content: bytes) -> Row:
    """Decode a row: the inverse of `_content`."""
    (head,) = LENGTH.unpack_from(content)
    plain, sizes = json.loads(content[LENGTH.size : LENGTH.size + head])
    blobs, start = {}, LENGTH.size + head
    for name, size in zip(BLOBS, sizes, strict=True):
        blobs[name] = content[start : start + size]
        start += size
    return Row(**{**plain, **blobs})


@dataclass(frozen=True)
class _Found:
    """Contents of a journal."""

    given_up: list[Linked]
    rows: list[Linked]
    answers: dict[int, int]
    machine: str = ""
    """Description of the machine on which the rows were written; empty where it is not known."""
    end: int = 0
    """Offset in bytes at which the last whole record ends."""


def _read(path: Path, previous: bytes, begun: bool | None, lacking: Collection[str] = ()) -> _Found:
    """Read a journal. One that was `begun` must exist and begin as it should; if it was not, or if that is unknown, a
    missing one has no rows."""
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
        return _Found([], [], {}, end=end)
    given_up: list[Linked] = []
    rows: list[Linked] = []
    answers: dict[int, int] = {}
    machine = ""
    for body, link, behind in _records(content, end, path):
        end = behind
        if body == GIVEN_UP or body.startswith((ANSWER, MACHINE)):
            if link != _seal(body, previous):
                raise damaged(path)
            if body == GIVEN_UP:
                given_up, rows, answers = [*given_up, *rows], [], {}
            elif body.startswith(MACHINE):
                machine = body.removeprefix(MACHINE).decode()
            else:
                question, drawn = json.loads(body.removeprefix(ANSWER))
                answers[question] = drawn
            continue
        try:
            row = _row(body)
        except (ValueError, TypeError, struct.error) as error:
            raise damaged(path) from error
        previous = row.link(previous, lacking)
        if previous != link or _content(row, lacking) != body:  # a size too large reads the same row
            raise damaged(path)
        rows.append((row, link))
    return _Found(given_up, rows, answers, machine, end)


def _records(content: bytes, place: int, path: Path) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield content, link and end of each whole record of a journal, from the offset `place` on."""
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
    """Make the error for a journal whose bytes have changed."""
    return DamagedJournalError(f"The journal {path} is damaged, its rows do not fit together: {ADVICE}.")
