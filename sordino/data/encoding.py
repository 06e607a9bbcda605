"""From a table's rows to records, as a schema says. Whatever is wrong in a file is found in one pass."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from sordino.data.column_kinds import LARGE
from sordino.data.formats import quote
from sordino.data.persons import code_of, names_somebody
from sordino.data.schema import Category, Event, Format, Label, NumberColumn, Schema, Target, Time, canonical, unit_key
from sordino.data.tables import TextTable
from sordino.tasks.several import SEPARATOR

SHOWN = 5
"""Number of values that a sentence shows."""
NOT_NOISED = "counted in the records, without noise"
"""End of every sentence with a figure counted in raw records."""
FAR = 10.0
"""Deviations from the mean within which numbers are expected: of all values, one in a hundred at most lies beyond
(Chebyshev)."""
WITH_UNIT = re.compile(
    r"^(?P<number>[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?)\s*(?P<unit>[^\W\d_].*|[%°‰µ].*)$", re.IGNORECASE
)
"""A number with a unit behind it."""
Source = Literal["options", "schema", "model"]
"""Who says what the columns are: the command's options, the user's schema, or a model that is to predict."""
NOT_NUMERIC: dict[Source, str] = {
    "options": "give numbers, drop it (--drop {0}), or take it as a category (--categorical {0})",
    "schema": "give numbers, name a unit that stands behind them (units), or change its kind in the schema",
    "model": "give numbers, as in training",
}
ALIASES: dict[Source, str] = {"options": "", "schema": ": add it, or name it under `aliases`", "model": ""}
"""Advice on values that are not known, for each source."""
MISSING: dict[Source, str] = {
    "options": "fill it, drop its row, or say in a schema what is done (`sordino data schema`)",
    "schema": 'fill it, drop its row, or say in the schema what is done (missing = "centre", for example)',
    "model": 'fill it, or leave its row out: the model\'s schema says missing = "refuse"',
}
"""Advice on a column with missing cells, for each source."""


@dataclass(frozen=True)
class Lacking:
    """Missing cells of a column that must have a value in each row."""

    column: str
    path: Path
    where: str
    """The first line, and how many more there are."""
    sentence: str
    """The problem as it is told of one table alone."""


@dataclass(frozen=True)
class Encoded:
    """The records of one table."""

    x: np.ndarray
    """float32 (rows, features): also of rows that are dropped."""
    labels: list[str]
    """Each row's outcome as `Task.parse` reads it: the name of its class, its number, or its time with a sign for the
    event; empty where it has none."""
    kept: np.ndarray
    """bool (rows,): which rows are records; the others lack a value without which they are dropped."""
    problems: list[str]
    """Sentences on what is wrong with the table."""
    lacking: list[Lacking]
    """Missing cells among the problems."""
    counted: list[str]
    """Sentences on surprising conversions, with counts of the table's cells, which no noise covers."""
    persons: list[str] | None = None
    """Code of each row's person; None where the schema declares none."""
    outside: dict[str, np.ndarray] = field(default_factory=dict)
    """bool (rows,): which rows have a number outside the `expected_range` of a column, for each column with any."""

    @property
    def kept_labels(self) -> list[str]:
        """Outcome of each record: those of rows that are kept."""
        return [label for label, there in zip(self.labels, self.kept.tolist(), strict=True) if there]

    @property
    def kept_persons(self) -> list[str] | None:
        """Code of each record's person: those of rows that are kept."""
        return None if self.persons is None else np.array(self.persons)[self.kept].tolist()


class Encoding:
    """Encoding of one table into records; used once."""

    def __init__(self, table: TextTable, schema: Schema, written: Format, source: Source) -> None:
        """`written` is the format of the table's file; `source` decides what errors advise."""
        self._table, self._schema, self._written, self._source = table, schema, written, source
        self._absent = set(schema.missing_cells) | {""}
        self._kept = np.ones(len(table.lines), dtype=bool)
        self._problems: list[str] = []
        self._lacking: list[Lacking] = []
        self._counted: list[str] = []
        self._outside: dict[str, np.ndarray] = {}

    def result(self) -> Encoded:
        """Encode the table; `problems` holds everything that is wrong. Labels are empty for records to be predicted."""
        training = self._source != "model"
        self._check_columns(training)
        rows = len(self._kept)
        parts = [np.zeros((rows, 0))]
        for name, column in self._schema.inputs().items():
            if name in self._table.columns:
                parts.append(
                    self._numbers(name, column) if isinstance(column, NumberColumn) else self._values(name, column)
                )
        labels = (self.known_labels() if training else None) or [""] * rows
        persons = self._codes(self._schema.person) if training and self._schema.person is not None else None
        if not self._kept.all() and training:
            count = int((~self._kept).sum())
            self._counted.append(
                f"{count} of {rows} rows of {self._table.path} lack a value and were dropped: {NOT_NOISED}."
            )
        with np.errstate(over="ignore"):  # infinite ones are among the problems
            x = np.concatenate(parts, axis=1).astype(np.float32)
        return Encoded(x, labels, self._kept, self._problems, self._lacking, self._counted, persons, self._outside)

    def known_labels(self) -> list[str] | None:
        """Return each row's outcome, as `Encoded.labels`; None without its columns. Nothing is a problem here: whoever
        predicts needs no outcomes."""
        return self._outcomes() if all(name in self._table.columns for name in self._schema.outcomes) else None

    def _check_columns(self, training: bool) -> None:
        """Whether the table has the columns that the schema names, and no others that might be meant."""
        path, there = self._table.path, self._table.columns
        person = [] if self._schema.person is None else [self._schema.person]
        needed = [*self._schema.inputs(), *([*self._schema.outcomes, *person] if training else [])]
        lacking = [name for name in needed if name not in there]
        if lacking:
            self._problems.append(
                f"The file {path} has no column{'s' if len(lacking) > 1 else ''} {_listed(lacking)}, which the schema "
                "names; its columns are: "
                f"{quote(', '.join(there))}."
            )
        more = [name for name in there if name not in (*self._schema.columns, *person)]
        if more and training:
            self._problems.append(
                f"The file {path} has the column {_listed(more)}, which the schema does not name: add it there, with "
                'kind = "id" if it is to be dropped.'
            )

    def _numbers(self, name: str, column: NumberColumn) -> np.ndarray:
        texts = self._table.texts(name)
        absent = np.array([text in self._absent for text in texts], dtype=bool)
        values, wrong = self._parsed(texts, absent, column.units)
        absent |= np.isnan(values) & ~wrong
        if column.missing_codes:
            absent |= ~wrong & np.isin(values, column.missing_codes)
        if wrong.any():
            self._problems.append(
                f"The column {name!r} of {self._table.path} is not numeric ({self._examples(texts, wrong)}); "
                f"{NOT_NUMERIC[self._source].format(name)}."
            )
        if (np.abs(values) > np.finfo(np.float32).max).any():
            self._problems.append(
                f"The column {name!r} of {self._table.path} has an infinite value; replace it or drop its row."
            )
        self._check_missing(name, column.missing, absent)
        outside = _outside(values, absent, expected_range(column))
        if outside.any():
            self._outside[name] = outside
        if column.range is not None:
            self._count_outside(name, values, absent, column.range)
            values = np.clip(values, *column.range)
        centre, size = column.scale
        filled = column.missing if isinstance(column.missing, float) else centre
        scaled = ((np.where(absent | wrong, filled, values) - centre) / size).reshape(-1, 1)
        return np.column_stack([scaled, absent]) if column.missing == "flag" else scaled

    def _parsed(
        self, texts: list[str], absent: np.ndarray, units: Mapping[str, float] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of cells, `nan` where there are none, and which cells are no numbers although they are filled.
        Numbers with one of the `units` behind them are multiplied by its factor."""
        if self._written.decimal == ",":
            texts = [text.replace(".", "x").replace(",", ".") for text in texts]  # 1.000,5 is not understood
        try:
            return np.array([0 if gone else text for text, gone in zip(texts, absent, strict=True)], dtype=float), (
                np.zeros(len(texts), dtype=bool)
            )
        except ValueError:
            factors = {unit_key(unit): factor for unit, factor in (units or {}).items()}
            pairs = [_number(text, factors) for text in texts]
        values = np.array([np.nan if value is None else value for value in pairs], dtype=float)
        return values, np.array([value is None for value in pairs], dtype=bool) & ~absent

    def _values(self, name: str, column: Category) -> np.ndarray:
        found, absent = self._numbered(name, column)
        self._check_missing(name, column.missing, absent)
        if column.missing in column.values:
            found = np.where(absent, column.values.index(column.missing), found)
        centre, size = column.scale
        made = ((found[:, None] == np.arange(len(column.values))) - centre) / size
        if column.missing == "flag":
            made[absent] = 0.0
        return np.column_stack([made, absent]) if column.missing == "flag" else made

    def _outcomes(self) -> list[str]:
        """Outcome of each row, as `Encoded.labels`."""
        (name, first), *more = self._schema.outcomes.items()
        if not isinstance(first, Time):
            each = [self._outcome(name, column) for name, column in self._schema.outcomes.items()]
            return [SEPARATOR.join(row) if all(row) else "" for row in zip(*each, strict=True)]
        values, absent = self._measured(name, ())
        ((event_name, event),) = more
        assert isinstance(event, Event)
        happened, unknown = self._numbered(event_name, event)
        self._check_label(event_name, event.missing, unknown)
        early = ~absent & (values < 0)
        if early.any():
            self._problems.append(
                f"The time {name!r} of {self._table.path} is negative "
                f"({self._examples(self._table.texts(name), early)}): times count from a start at 0."
            )
        rows = zip(values.tolist(), happened.tolist(), (absent | unknown | early).tolist(), strict=True)
        return ["" if gone else f"{value!r} {max(0, sign)}" for value, sign, gone in rows]

    def _outcome(self, name: str, column: Label | Target | Time | Event) -> list[str]:
        """Value of a label or a target in each row; "" where it has none."""
        if isinstance(column, Label):
            return self._labels(name, column)
        assert isinstance(column, Target)
        values, absent = self._measured(name, column.missing_codes)
        self._count_outside(name, values, absent, column.range)
        return ["" if gone else repr(value) for value, gone in zip(values.tolist(), absent.tolist(), strict=True)]

    def _measured(self, name: str, codes: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of an outcome's cells, zero where there are none, and which have none."""
        texts, column = self._table.texts(name), self._schema.outcomes[name]
        absent = np.array([text in self._absent for text in texts], dtype=bool)
        values, wrong = self._parsed(texts, absent)
        absent |= np.isnan(values) & ~wrong
        if codes:
            absent |= ~wrong & np.isin(values, codes)
        wrong |= ~absent & np.isinf(values)
        if wrong.any():
            self._problems.append(
                f"The {column.kind} {name!r} of {self._table.path} is not numeric ({self._examples(texts, wrong)}): "
                "give numbers, or name those texts in missing_cells."
            )
        self._check_label(name, column.missing, absent)
        return np.where(absent | wrong, 0.0, values), absent | wrong

    def _count_outside(self, name: str, values: np.ndarray, absent: np.ndarray, ends: tuple[float, float]) -> None:
        """Count values that lie outside a range and are held to it."""
        outside = int(_outside(values, absent, ends).sum())
        if outside:
            lie, are = ("values of {} lie", "are") if outside > 1 else ("value of {} lies", "is")
            self._counted.append(
                f"{outside} {lie.format(repr(name))} outside {_range(ends)} in {self._table.path} and {are} held to "
                f"it: {NOT_NOISED}."
            )

    def _labels(self, name: str, column: Label) -> list[str]:
        found, absent = self._numbered(name, column) if column.bins is None else self._binned(name, column.bins)
        self._check_label(name, column.missing, absent)
        return [column.values[place] if place >= 0 else "" for place in found.tolist()]

    def _check_label(self, name: str, rule: str, absent: np.ndarray) -> None:
        """Drop rows without an outcome, or refuse them."""
        kind = self._schema.outcomes[name].kind
        if rule == "drop":
            self._kept &= ~absent
        elif absent.any():
            self._problems.append(
                f"The file {self._table.path} has a missing value in its {kind} column {name!r}, "
                f"{self._where(absent)}; fill or drop it."
            )

    def _codes(self, name: str) -> list[str] | None:
        """The code of each row's person; rows without one are dropped."""
        if name not in self._table.columns:
            return None
        texts = self._table.texts(name)
        self._kept &= np.array([text not in self._absent and names_somebody(text) for text in texts], dtype=bool)
        return [code_of(text) for text in texts]

    def _binned(self, name: str, bins: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
        """The class of each cell's number, -1 where it has none, and which have none."""
        texts = self._table.texts(name)
        absent = np.array([text in self._absent for text in texts], dtype=bool)
        values, wrong = self._parsed(texts, absent)
        absent |= np.isnan(values) & ~wrong
        if wrong.any():
            self._problems.append(
                f"The label {name!r} of {self._table.path} is not numeric ({self._examples(texts, wrong)}), but the "
                "schema divides it by `bins`: give numbers."
            )
        return np.where(absent | wrong, -1, np.digitize(values, bins)), absent

    def _numbered(self, name: str, column: Category | Label | Event) -> tuple[np.ndarray, np.ndarray]:
        """The number of each cell's value, -1 where it has none, and which have none."""
        fold_case, label = column.fold_case, not isinstance(column, Category)
        places = {canonical(value, fold_case): place for place, value in enumerate(column.values)}
        if not isinstance(column, Event):
            places |= {canonical(alias, fold_case): column.values.index(one) for alias, one in column.aliases.items()}
        texts = self._table.texts(name)
        absent = np.array([text in self._absent for text in texts], dtype=bool)
        found = np.array([places.get(canonical(text, fold_case), -1) for text in texts], dtype=np.int64)
        found[absent] = -1
        strange = (found < 0) & ~absent
        if strange.any():
            seen = list(dict.fromkeys(canonical(text) for text, odd in zip(texts, strange, strict=True) if odd))
            lacking = f"which {'`labels`' if self._source == 'options' else 'the schema'} lacks."
            if isinstance(column, Event) and self._source == "options":
                lacking = "which is neither 0 nor 1: write 1 for an event, or name its values in a schema."
            self._problems.append(
                f"The file {self._table.path} has a record with the {column.kind} {_listed(seen)}, {lacking}"
                if label
                else f"The column {name!r} of {self._table.path} has the value {_listed(seen)}, which the schema lacks "
                f"({self._where(strange)}){ALIASES[self._source]}."
            )
        return found, absent

    def _check_missing(self, name: str, rule: object, absent: np.ndarray) -> None:
        if rule == "drop":
            self._kept &= ~absent
        elif rule == "refuse" and absent.any():
            where = self._where(absent)
            column = f"The column {name!r} of {self._table.path}"
            told = f"{column} has a missing value (NaN) in {where}; {MISSING[self._source]}."
            self._problems.append(told)
            self._lacking.append(Lacking(name, self._table.path, where, told))

    def _where(self, rows: np.ndarray) -> str:
        """The line of the first such row, and how many there are."""
        first = f"line {self._table.lines[int(np.argmax(rows))]}"
        return first if rows.sum() == 1 else f"{first} and {int(rows.sum()) - 1} more"

    def _examples(self, texts: list[str], rows: np.ndarray) -> str:
        return f"'{quote(texts[int(np.argmax(rows))])}' in {self._where(rows)}"


def problems_of(tables: Sequence[Encoded], source: Source) -> list[str]:
    """Sentences on what is wrong with several tables; missing cells of one column are one sentence for all of them."""
    by_column: dict[str, list[Lacking]] = {}
    for lacking in (one for table in tables for one in table.lacking):
        by_column.setdefault(lacking.column, []).append(lacking)
    several = {name: found for name, found in by_column.items() if len(found) > 1}
    merged = {one.sentence for found in several.values() for one in found}
    sentences = [problem for table in tables for problem in table.problems if problem not in merged]
    for name, found in several.items():
        files = ", ".join(f"{one.path.name} ({one.where})" for one in found[:SHOWN])
        more = f" and {len(found) - SHOWN} more files" if len(found) > SHOWN else ""
        sentences.append(f"The column {name!r} has missing values (NaN) in {files}{more}; {MISSING[source]}.")
    return sentences


def expected_range(column: NumberColumn) -> tuple[float, float]:
    """Smallest and largest number that a model expects: the column's range, else `FAR` deviations around its mean; of a
    column that is taken as it stands, up to `LARGE`, beyond which training calls it not scaled."""
    if column.range is not None:
        return column.range
    centre, size = column.scale
    far = LARGE if column.mean is None else FAR * size
    return centre - far, centre + far


def _outside(values: np.ndarray, absent: np.ndarray, ends: tuple[float, float]) -> np.ndarray:
    """bool (rows,): which numbers lie outside a range."""
    found: np.ndarray = ~absent & ((values < ends[0]) | (values > ends[1]))
    return found


def _range(ends: tuple[float, float]) -> str:
    return f"{ends[0]:g} to {ends[1]:g}"


def _number(text: str, factors: Mapping[str, float]) -> float | None:
    """The number in a cell, times the factor of the unit behind it; None where it is no number."""
    try:
        return float(text)
    except ValueError:
        found = WITH_UNIT.match(text)
        factor = None if found is None else factors.get(unit_key(found["unit"]))
        return None if found is None or factor is None else float(found["number"]) * factor


def _listed(names: Sequence[str]) -> str:
    """Names in quotes, the first few of many."""
    shown = ", ".join(f"'{quote(name)}'" for name in names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"
