"""Named columns of a user's CSV or Parquet file, with errors that name file and column."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sordino.data.formats import corrupt
from sordino.errors import UserError


@dataclass(frozen=True)
class Table:
    """One file's columns as read, before they are numbers."""

    path: Path
    columns: dict[str, list[Any]]

    def numbers(self, name: str) -> np.ndarray:
        """One column as float32."""
        values = self.columns[name]
        if any(value is None or (isinstance(value, str) and not value.strip()) for value in values):
            raise self.missing(name)
        return self.finite(name, values)

    def finite(self, name: str, values: Any) -> np.ndarray:
        """Values as float32, refused when they are no numbers, missing or infinite."""
        try:
            numbers = np.array(values, dtype=np.float64)
        except (ValueError, TypeError) as error:
            raise UserError(
                f"The column {name!r} of {self.path} is not numeric ({error}); give numbers, or leave it out."
            ) from error
        if np.isnan(numbers).any():
            raise self.missing(name)
        with np.errstate(over="ignore"):
            narrow = numbers.astype(np.float32)
        if np.isinf(narrow).any():
            raise UserError(f"The column {name!r} of {self.path} has an infinite value; replace it or drop its row.")
        return narrow

    def missing(self, name: str) -> UserError:
        """The error for a missing value."""
        return UserError(f"The column {name!r} of {self.path} has a missing value (NaN); fill it or drop its row.")


def read_csv(path: Path) -> Table:
    """A CSV file whose first line names the columns."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            rows = list(csv.reader(stream, strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise corrupt(path, f"it is not a CSV text ({error})") from error
    except OSError as error:
        raise UserError(f"The file {path} cannot be read: {error.strerror}.") from error
    if not rows:
        raise UserError(f"The file {path} is empty; its first line must name the columns.")
    header = [name.strip() for name in rows[0]]
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise UserError(f"The file {path} has two columns {twice!r}; give every column its own name.")
    for line, row in enumerate(rows[1:], start=2):
        if row and len(row) != len(header):
            raise corrupt(path, f"line {line} has {len(row)} values for {len(header)} columns")
    kept = [row for row in rows[1:] if row]
    return Table(path, {name: [row[index] for row in kept] for index, name in enumerate(header)})


def read_parquet(path: Path) -> Table:
    """A Parquet file."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(
            f'Reading the Parquet file {path} needs pyarrow; install it with: pip install "sordino[data]".'
        ) from error
    try:
        table = parquet.ParquetFile(path).read()
    except (pyarrow.ArrowException, OSError) as error:
        raise corrupt(path, f"it is not a readable Parquet file ({error})") from error
    return Table(path, {name: table.column(name).to_pylist() for name in table.column_names})
