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

A journal is created before anything is charged, and the store says so: a missing one has been lost. It begins with a
head (`_Head`). A record is the length of its content with a checksum of that length, the content, and the row's link,
which chains it to all rows before. Records of noise, of giving up, and of a machine have the same form; their link
chains their content to the last row's.

The head says where the last record ends. It is updated in place after each record: a file that ends earlier has lost
its last records. What lies behind that place was being written when its writer was killed, and nothing had been asked
for it yet. Any other changed byte is detected.

A power cut may take away both the records and the head that tells of them. A run that does not repeat itself therefore
flushes each record to disk (`durable`). A run that repeats itself does not: lost charges are paid when the same
questions are asked again, with the same noise and values. Its head names the boot of the machine under which records
may stand in memory alone. Under another boot they may be lost, for good: such a run, and one whose journal is
truncated, is only resumed on a machine of the same kind, where it repeats itself.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import struct
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from sordino.errors import UserError
from sordino.privacy.ledger import FIRST_LINK, Row
from sordino.util.files import ADVICE, replace_file

MARK = b"Journal of a run of Sordino, with its length\n"
"""First bytes of a journal."""
EARLIER_MARK = b"Sordino's journal\n"
"""First bytes of a journal whose head does not say where its last record ends (up to Sordino 0.4)."""
LENGTH = struct.Struct("<I")
CHECKED_LENGTH = struct.Struct("<II")
"""A length and its checksum: without it, a changed length would look like a truncated record."""
LINK = len(FIRST_LINK)
"""Length of a row's link, in bytes."""
ON_DISK = bytes(LINK)
"""Boot in the head of a journal all of whose records are on disk."""
LOST = b"\xff" * LINK
"""Boot in the head of a journal that was truncated."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
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

    def __init__(
        self,
        folder: Path,
        position: int,
        previous: bytes,
        begun: bool | None,
        machine: str = "",
        durable: bool = True,
    ) -> None:
        """Open a journal, or create it durably.

        Args:
            folder: Folder of the run.
            position: Number of rows of the last checkpoint.
            previous: Link of the last of these rows.
            begun: Whether the store says that the journal exists; then a missing one is refused.
            machine: Description of the machine that computes values; empty where sites compute them.
            durable: Whether to flush every record to disk: needed unless a resumed run repeats its values.
        """
        self.path = _path(folder, position)
        self._folder, self._machine, self._durable = folder, machine, durable
        found = _read(self.path, previous, begun)
        moved = found.machine != machine
        if found.truncated and (moved or durable):
            raise _truncated(self.path)
        if found.may_lack_rows and (moved or durable):
            raise _unsure(self.path)
        if moved:  # the same noise would cover other values
            found = replace(found, given_up=[*found.given_up, *found.rows], rows=[], answers={}, machine=machine)
        self.given_up, self._owed, self._answers = found.given_up, found.rows, found.answers
        """Rows that stay spent and are not charged again; rows that a resumed run charges again; digests of the noise
        of their answers."""
        # That rows may be lost stays known until the run has ended: a later session may be on another machine.
        boot = LOST if found.truncated else found.head.boot if found.may_lack_rows else ON_DISK if durable else _boot()
        self._head = replace(found.head, boot=boot)
        if moved or not begun or found.earlier or self._head != found.head:
            self._head = _write(self.path, self._head, found)
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
        head = replace(self._head, previous=previous)
        _write(path, head, _Found([], self._owed, self._answers, head, self._machine))
        self._close_file()
        return Journal(self._folder, position, previous, True, self._machine, self._durable)

    def check_settled(self) -> None:
        """Refuse the end of a resumed run that has not repeated all charges of the journal."""
        self._check_going_on()
        if self._owed:
            raise self._other(self._owed[0][0])

    def close(self) -> None:
        """Close the file, with all of its records on disk."""
        if self._head.boot == _boot() and self.path.exists():  # the journal of a finished run is gone
            file = self._opened()
            os.fsync(file)  # before the head says so
            self._head = replace(self._head, boot=ON_DISK)
            os.pwrite(file, self._head.encode(), 0)
            os.fsync(file)
        self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _check_going_on(self) -> None:
        """Raise again the error that ended the session, in case a script has caught it."""
        if self._gives_up:
            raise OtherValuesError

    def _append(self, record: bytes) -> None:
        file, left = self._opened(), record
        os.lseek(file, self._head.end, os.SEEK_SET)  # not behind a part that an error left
        while left:
            left = left[os.write(file, left) :]
        if self._durable:
            os.fsync(file)  # before the head says that it is there
        self._head = replace(self._head, end=self._head.end + len(record), tail=record[-LINK:])
        os.pwrite(file, self._head.encode(), 0)

    def _opened(self) -> int:
        """Return the descriptor of the file, without a record at its end that was not finished: it paid for nothing."""
        if self._file is None:
            try:
                self._file = os.open(self.path, os.O_RDWR)
            except FileNotFoundError as error:
                raise _gone(self.path) from error
            os.ftruncate(self._file, self._head.end)
        return self._file

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
    path = _path(folder, position)
    found = _read(path, previous, begun, lacking)
    rows = [row for row, _ in found.given_up + found.rows]
    if found.truncated:
        raise _truncated(path)
    if found.may_lack_rows and (found.given_up or not rows):  # the plan does not cover what was asked again
        raise _unsure(path)
    return rows


def renamed(content: bytes, name: str) -> bytes:
    """Return a journal's content for a run that is called `name` from now on; its records stay as they are."""
    head = _Head.decode(content)
    if head is None:
        return content
    return replace(head, run=hashlib.sha256(name.encode()).digest()).encode() + content[HEAD:]


def has_journal(folder: Path, position: int) -> bool:
    """Whether a run has a journal of the rows after so many."""
    return _path(folder, position).exists()


def _path(folder: Path, position: int) -> Path:
    return folder / f"ledger-{position:09d}.journal"


@dataclass(frozen=True)
class _Head:
    """Beginning of a journal: which rows it follows, whose it is, and where its last record ends."""

    previous: bytes
    """Link of the database's last row."""
    run: bytes
    """SHA-256 of the run's name."""
    boot: bytes
    """Boot under which the last records may stand in memory alone (`_boot`), ON_DISK or LOST."""
    end: int
    """Offset in bytes at which the last record ends."""
    tail: bytes
    """Last bytes of that record; `previous` where there is none."""

    def encode(self) -> bytes:
        """Bytes of the head, the last of which are a digest of the others."""
        content = MARK + self.previous + self.run + self.boot + self.tail + END.pack(self.end)
        return content + hashlib.sha256(content).digest()

    @classmethod
    def decode(cls, content: bytes) -> _Head | None:
        """Read the head at the beginning of a journal's content; None if it is not as it was written."""
        if len(content) < HEAD:
            return None
        places = range(len(MARK), len(MARK) + 4 * LINK, LINK)
        previous, run, boot, tail = (content[place : place + LINK] for place in places)
        (end,) = END.unpack_from(content, len(MARK) + 4 * LINK)
        head = cls(previous, run, boot, end, tail)
        return head if content.startswith(head.encode()) else None


END = struct.Struct("<Q")
HEAD = len(MARK) + 5 * LINK + END.size
"""Length of a head, in bytes."""


def _name(path: Path) -> bytes:
    """Digest of the name of the run whose journal this is."""
    return hashlib.sha256(path.parent.name.encode()).digest()


@functools.cache
def _boot() -> bytes:
    """Digest that identifies this boot of the machine, whose end in a power cut loses what is not on disk. Where the
    system does not name it, every process counts as a boot of its own."""
    try:
        return hashlib.sha256(BOOT_ID.read_bytes()).digest()
    except OSError:
        return os.urandom(LINK)


def _write(path: Path, head: _Head, found: _Found) -> _Head:
    """Write a whole journal durably; returns its head."""
    content, last = b"", head.previous
    for row, last in found.given_up:
        content += _record(row, last)
    if found.given_up:
        content += _sealed(GIVEN_UP, last)
    if found.machine:
        content += _sealed(MACHINE + found.machine.encode(), last)
    for row, last in found.rows:
        content += _record(row, last)
    content += b"".join(_sealed(_answer(question, drawn), last) for question, drawn in found.answers.items())
    head = replace(head, end=HEAD + len(content), tail=content[-LINK:] or head.previous)
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(head.encode() + content)
    replace_file(temporary, path)
    return head


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
    head: _Head
    """Its head, with the end of the last whole record; that of an empty journal where it has none."""
    machine: str = ""
    """Description of the machine on which the rows were written; empty where it is not known."""
    truncated: bool = False
    """Whether the last records are lost."""
    earlier: bool = False
    """Whether the file has no head, or that of an earlier version of Sordino."""

    @property
    def may_lack_rows(self) -> bool:
        """Whether the last records may be lost, or are."""
        return self.truncated or self.head.boot not in (ON_DISK, _boot())


def _read(path: Path, previous: bytes, begun: bool | None, lacking: Collection[str] = ()) -> _Found:
    """Read a journal. One that was `begun` must exist and begin as it should; if it was not, or if that is unknown, a
    missing one has no rows."""
    content, said = _read_head(path, previous, begun)
    earlier, place = EARLIER_MARK + previous + _name(path), HEAD
    if said is None:
        place = len(earlier) if content.startswith(earlier) else 0
        if begun and not place:
            raise damaged(path)
        if earlier.startswith(content) or MARK.startswith(content[: len(MARK)]):  # no more than a beginning
            content = content[:place]
    head, ends = said or _Head(previous, _name(path), ON_DISK, place, previous), {place: previous}
    given_up: list[Linked] = []
    rows: list[Linked] = []
    answers: dict[int, int] = {}
    machine = ""
    for body, link, end in _records(content, place, path):
        ends[end] = link
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
    end = max(ends)
    if head.end <= end and ends.get(head.end) != head.tail:
        raise damaged(path)
    truncated, head = end < head.end, replace(head, end=end, tail=ends[end])
    return _Found(given_up, rows, answers, head, machine, truncated, said is None)


def _read_head(path: Path, previous: bytes, begun: bool | None) -> tuple[bytes, _Head | None]:
    """Read a journal's content and its head; None where it has none, or that of an earlier version."""
    for _ in range(2):  # whoever reads while a head is being written tries again
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            if begun:
                raise _gone(path) from error
            return b"", None
        if not content.startswith(MARK) or (len(content) < HEAD and not begun):
            return content, None
        head = _Head.decode(content)
        if head is not None and (head.previous, head.run) == (previous, _name(path)):
            return content, head
    raise damaged(path)


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
    """A journal is gone, has lost its last rows or may have, or its bytes have changed."""


def _gone(path: Path) -> DamagedJournalError:
    return DamagedJournalError(f"The journal {path} is gone: {ADVICE}.")


def _truncated(path: Path) -> DamagedJournalError:
    return DamagedJournalError(f"The journal {path} is damaged, its last rows are lost: {ADVICE}.")


def _unsure(path: Path) -> DamagedJournalError:
    return DamagedJournalError(
        f"The journal {path} may have lost its last rows: the run was killed, and the machine was started anew or is "
        "another one. Resume the run on a machine of the kind that it ran on, where it repeats itself, or start it "
        "anew with `sordino run`."
    )


def damaged(path: Path) -> DamagedJournalError:
    """Make the error for a journal whose bytes have changed."""
    return DamagedJournalError(f"The journal {path} is damaged, its rows do not fit together: {ADVICE}.")
