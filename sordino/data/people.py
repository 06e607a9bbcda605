"""Fingerprints of the people a data set is about, by which runs on the same people find each other.

It begins with a digest of the files as they stand there. Behind that comes a sketch of their records: for each of
`BITS` orders of all possible records, one bit of the digest of the record that comes first (Li and Koenig, WWW 2010,
"b-bit minwise hashing"). Two sets of which a share J is common to both have the same record first with probability J,
and agree else in half of their bits, so that they agree in (1 + J) / 2 of them. Files that are renamed or written anew,
rows in another order, records or clients that were added or left out thus stay the same people, as long as more than a
fifth of all records stands in both; that two strangers agree in so many bits has a probability below 1e-9. A column
that is added, renamed or left out makes other records of all.

A sketch says next to nothing of any single record: it is 1,024 bits of a whole set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from sordino.data.schema import canonical
from sordino.data.tables import TextTable

BITS = 1024
COMPARED = 32
"""Columns by which records are compared first."""
NAMED = 5
"""Number of clients, and of groups of them, that a sentence names."""
AT_ONCE = 2**15
"""Number of records that are mixed at once: so many stay in a processor's cache."""
ALIKE = 0.6
"""Least share of bits in which sketches of the same people agree."""


def people_of(paths: Sequence[Path]) -> str:
    """A digest of files as they stand there: whichever column is the label, they are about the same people."""
    return hashlib.sha256(b"".join(map(_digest, paths))).hexdigest()


def same_files(paths: Sequence[Path]) -> tuple[str, ...]:
    """A sentence that names clients with the same file, which epsilon takes for different people; () without any."""
    alike: dict[bytes, list[str]] = {}
    for path in paths:
        alike.setdefault(_digest(path), []).append(path.stem)
    groups = [names for names in alike.values() if len(names) > 1]
    if not groups:
        return ()
    shown = [", ".join(names[:NAMED]) + (" and more" if len(names) > NAMED else "") for names in groups[:NAMED]]
    return (
        f"These clients hold the same file: {'; '.join(shown)}{'; and more' if len(groups) > NAMED else ''}. Epsilon "
        "protects each of them, and each of their records, by itself: who stands in several pays several times.",
    )


def rows_at_several(x: np.ndarray, y: np.ndarray, sizes: np.ndarray) -> int:
    """Number of records whose contents and label also stand at another client. In `x` (records, ...) and `y` the
    clients' records lie together, `sizes` of each."""
    flat = np.ascontiguousarray(x).reshape(len(x), -1)
    # A few columns first: reading all of them takes as long as the fingerprint does, and few records agree in these.
    columns = np.unique(np.linspace(0, flat.shape[1] - 1, COMPARED).astype(np.int64))
    factors = np.random.default_rng(0).integers(1, 2**63, len(columns), dtype=np.uint64)
    last = y if y.ndim == 1 else y[:, -1]  # of a sequence of targets
    mixed = (last.view(np.uint32) if last.dtype == np.float32 else last).astype(np.uint64)
    for begin in range(0, len(flat), AT_ONCE):  # whole numbers of twice the size, of a few records at a time
        some = flat[begin : begin + AT_ONCE, columns].view(np.uint32).astype(np.uint64)
        mixed[begin : begin + AT_ONCE] += some @ factors
    _, group, count = np.unique(mixed, return_inverse=True, return_counts=True)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    holders: dict[bytes, list[int]] = {}
    for place in np.flatnonzero(count[group.reshape(-1)] > 1).tolist():
        holders.setdefault(flat[place].tobytes() + y[place].tobytes(), []).append(int(owners[place]))
    return sum(len(who) for who in holders.values() if len(set(who)) > 1)


def same_rows(x: np.ndarray, y: np.ndarray, sizes: np.ndarray) -> tuple[str, ...]:
    """A sentence with the number of training records that stand at several clients; () if there are none."""
    count = rows_at_several(x, y, sizes)
    if not count:
        return ()
    stand, are = ("stand", "are") if count > 1 else ("stands", "is")
    return (
        f"{count:,} training record{'s' if count > 1 else ''} {stand} with equal contents at more than one client, and "
        f"may be of the same people: epsilon protects each row by itself. That there {are} so many was counted in the "
        "records.",
    )


def known_people(paths: Sequence[Path], tables: Iterable[TextTable], arrays: Iterable[np.ndarray]) -> str:
    """The digest of files, with the sketch of the records that stand in them as tables' rows and arrays' rows."""
    rows = (row for table in tables for row in _rows(table))
    records = (np.ascontiguousarray(record).tobytes() for array in arrays for record in array)
    return f"{people_of(paths)} {sketch(chain(rows, records))}"


def same_people(one: str, other: str) -> bool:
    """Whether two data sets are, in part at least, about the same people: the same files, however these are read, or
    records that are for the most part the same."""
    digests, sketches = zip(*(text.partition(" ")[::2] for text in (one, other)), strict=True)
    if digests[0] == digests[1]:
        return True
    if not all(sketches):
        return False
    different = (int(sketches[0], 16) ^ int(sketches[1], 16)).bit_count()
    return BITS - different >= ALIKE * BITS


def sketch(records: Iterable[bytes]) -> str:
    """`BITS` bits in hexadecimal digits; nothing where there are no records."""
    digests = bytearray()
    for record in records:
        digests += hashlib.blake2b(record, digest_size=8).digest()
    if not digests:
        return ""
    known = np.unique(np.frombuffer(digests, dtype="<u8"))
    # An order of all digests is the order of their products with an odd number, whose upper half is well mixed.
    factors = np.frombuffer(hashlib.shake_256(b"orders").digest(16 * BITS), dtype="<u8").reshape(BITS, 2)
    bits = np.empty(BITS, dtype=bool)
    for place, (factor, shift) in enumerate(factors):
        first = min(_mix(known[begin : begin + AT_ONCE], factor, shift) for begin in range(0, len(known), AT_ONCE))
        bits[place] = bool(first & 1)
    return np.packbits(bits).tobytes().hex()


def _mix(known: np.ndarray, factor: np.uint64, shift: np.uint64) -> int:
    """Smallest of some digests in one order."""
    mixed = (known ^ shift) * (factor | np.uint64(1))
    mixed ^= mixed >> np.uint64(32)
    mixed *= factor | np.uint64(1)
    return int(mixed.min())


def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


def _rows(table: TextTable) -> list[bytes]:
    """The records of a table, each as its cells in the order of the columns' names."""
    columns = [[canonical(text) for text in table.texts(name)] for name in sorted(table.columns)]
    head = "\x1f".join(sorted(table.columns))
    return ["\x1f".join((head, *cells)).encode() for cells in zip(*columns, strict=True)]
