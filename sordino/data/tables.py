"""Reading of a user's CSV or Parquet file into named columns, with errors that name file and column, and guesses of how
a CSV file is written."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sordino.data.formats import corrupt, quote, read_bytes, reading
from sordino.data.schema import Format
from sordino.errors import UserError

REAL = "biuf"
"""numpy's kinds of real numbers: bool, signed, unsigned, floating."""


DELIMITERS = (",", ";", "\t", "|")
"""Usual characters between cells."""
ENCODINGS = ("utf-8", "cp1252")
"""Tried in this order: what is no UTF-8 comes from an office program, as a rule."""
DECIMAL_COMMA = re.compile(r"^[+-]?\d+,\d+$")


@dataclass(frozen=True)
class TextTable:
    """One file's columns as read, before they are numbers."""

    path: Path
    columns: dict[str, list[Any]]
    lines: tuple[int, ...]
    """The line of the file, or the number of the row, in which each record stands."""

    def texts(self, name: str) -> list[str]:
        """A column's cells as text; an empty string where a value is missing."""
        return [_text(value) for value in self.columns[name]]


def _text(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return str(int(value)) if isinstance(value, bool) else str(value).strip()


def check_finite(path: Path, name: str, values: np.ndarray) -> np.ndarray:
    """An array of `path` as float32; refused when it holds no numbers, or missing or infinite ones."""
    if values.dtype.kind not in REAL:
        raise UserError(
            f"The array {name!r} of {path} is not numeric (its type is {quote(values.dtype)}); give numbers."
        )
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    if np.isnan(values).any():
        raise UserError(f"The array {name!r} of {path} has a missing value (NaN); fill it or drop its row.")
    if np.isinf(narrow).any():
        raise UserError(f"The array {name!r} of {path} has an infinite value; replace it or drop its row.")
    return narrow


def check_names(path: Path, names: list[str]) -> None:
    """Refuse two columns of one name."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise UserError(f"The file {path} has two columns {twice!r}; give every column its own name.")


NOTED = "`sordino data schema` notes down the delimiter and encoding of files"


def read_table(path: Path, written: Format | None = None, otherwise: str = NOTED) -> TextTable:
    """Read a CSV or Parquet file, by the ending of its name.

    Args:
        path: the file.
        written: format of a CSV file; None for the usual one.
        otherwise: advice in the sentence that refuses a file of another format.
    """
    return read_parquet(path) if path.suffix.lower() == ".parquet" else read_csv(path, written or Format(), otherwise)


def read_csv(path: Path, written: Format, otherwise: str = NOTED) -> TextTable:
    """A CSV file whose first line names the columns."""
    encoding = "utf-8-sig" if written.encoding.lower().replace("_", "-") in ("utf-8", "utf8") else written.encoding
    with reading(path, "it is not a CSV text"), path.open(newline="", encoding=encoding) as stream:
        reader = csv.reader(stream, delimiter=written.delimiter, strict=True)
        rows = [(reader.line_num, row) for row in reader]
    if not rows or not rows[0][1]:
        what = "is empty" if not rows else "begins with an empty line"
        raise UserError(f"The file {path} {what}; its first line must name the columns.")
    header = [name.strip() for name in rows[0][1]]
    check_names(path, header)
    other = [one for one in DELIMITERS if one != written.delimiter and one in header[0]]
    if len(header) == 1 and other:
        raise UserError(
            f"The file {path} seems to have {other[0]!r} between its cells, not {written.delimiter!r}: {otherwise}."
        )
    for line, row in rows[1:]:
        if row and len(row) != len(header):
            raise corrupt(path, f"line {line} has {len(row)} values for {len(header)} columns")
    kept = [(line, row) for line, row in rows[1:] if row]
    columns = {name: [row[index] for _, row in kept] for index, name in enumerate(header)}
    return TextTable(path, columns, tuple(line for line, _ in kept))


def read_parquet(path: Path) -> TextTable:
    """A Parquet file."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(
            f'Reading the Parquet file {path} needs pyarrow; install it with: pip install "sordino[data]".'
        ) from error
    with reading(path, "it is not a readable Parquet file"):
        table = parquet.ParquetFile(path).read()
        check_names(path, table.column_names)
        columns = {name: table.column(name).to_pylist() for name in table.column_names}
        return TextTable(path, columns, tuple(range(1, table.num_rows + 1)))


def guess_format(path: Path) -> Format:
    """Guess the delimiter, encoding and decimal mark of a CSV file."""
    if path.suffix.lower() == ".parquet":
        return Format()
    with reading(path, "it is not a CSV text"):
        contents = read_bytes(path)
        encoding = next((name for name in ENCODINGS if _decodes(contents, name)), "latin-1")
        text = contents.decode(encoding)
        lines = [line for line in text.splitlines()[:20] if line.strip()]
        if not lines:
            raise UserError(f"The file {path} is empty; its first line must name the columns.")
        delimiter = max(DELIMITERS, key=lambda one: (_cells_per_line(lines, one), -DELIMITERS.index(one)))
        cells = [cell.strip() for row in csv.reader(io.StringIO(text, ""), delimiter=delimiter) for cell in row]
    comma = delimiter != "," and any(DECIMAL_COMMA.match(cell) for cell in cells)
    return Format(delimiter=delimiter, encoding=encoding, decimal="," if comma else ".")


def _decodes(contents: bytes, encoding: str) -> bool:
    try:
        contents.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _cells_per_line(lines: list[str], delimiter: str) -> int:
    """Number of cells into which a delimiter divides every line; 1 where lines differ."""
    try:
        counts = {len(row) for row in csv.reader(lines, delimiter=delimiter)}
    except csv.Error:  # whole lines as one cell may be longer than a cell can be
        return 1
    return counts.pop() if len(counts) == 1 else 1
