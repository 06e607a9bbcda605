"""Named columns of a user's CSV or Parquet file, with errors that name file and column."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sordino.data.formats import corrupt, quote, reading
from sordino.errors import UserError

REAL = "biuf"
"""numpy's kinds of real numbers: bool, signed, unsigned, floating."""


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
        numbers = self.finite(name, values)
        if numbers.ndim != 1:
            raise self.not_numeric(name, "its cells are lists")
        return numbers

    def finite(self, name: str, values: Any) -> np.ndarray:
        """Values as float32, refused when they are no numbers, missing or infinite."""
        if isinstance(values, np.ndarray) and values.dtype.kind not in REAL:
            raise self.not_numeric(name, f"its type is {values.dtype}")
        with np.errstate(over="ignore"):
            try:
                numbers = np.array(values, dtype=np.float64)
            except (ValueError, TypeError, OverflowError) as error:
                raise self.not_numeric(name, error) from error
            narrow = numbers.astype(np.float32)
        if np.isnan(numbers).any():
            raise self.missing(name)
        if np.isinf(narrow).any():
            raise UserError(f"The column {name!r} of {self.path} has an infinite value; replace it or drop its row.")
        return narrow

    def not_numeric(self, name: str, why: object) -> UserError:
        """The error for values that are no numbers."""
        return UserError(
            f"The column {name!r} of {self.path} is not numeric ({quote(why)}); give numbers, or leave it out."
        )

    def missing(self, name: str) -> UserError:
        """The error for a missing value."""
        return UserError(f"The column {name!r} of {self.path} has a missing value (NaN); fill it or drop its row.")


def check_names(path: Path, names: list[str]) -> None:
    """Refuse two columns of one name."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise UserError(f"The file {path} has two columns {twice!r}; give every column its own name.")


def read_csv(path: Path) -> Table:
    """A CSV file whose first line names the columns."""
    with reading(path, "it is not a CSV text"), path.open(newline="", encoding="utf-8-sig") as stream:
        rows = list(csv.reader(stream, strict=True))
    if not rows:
        raise UserError(f"The file {path} is empty; its first line must name the columns.")
    header = [name.strip() for name in rows[0]]
    check_names(path, header)
    for line, row in enumerate(rows[1:], start=2):
        if row and len(row) != len(header):
            raise corrupt(path, f"line {line} has {len(row)} values for {len(header)} columns")
    kept = [row for row in rows[1:] if row]
    return Table(path, {name: [row[index] for row in kept] for index, name in enumerate(header)})


def read_parquet(path: Path) -> Table:
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
        return Table(path, {name: table.column(name).to_pylist() for name in table.column_names})
