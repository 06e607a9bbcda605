"""Kinds of the columns of a user's tables, guessed from their cells: the user confirms them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote

import numpy as np

from sordino.data.schema import (
    MAX_MAGNITUDE,
    MISSING_CELLS,
    Category,
    Column,
    Identifier,
    Label,
    NumberColumn,
    PersonRules,
    Schema,
    canonical,
    list_values,
)
from sordino.data.tables import TextTable
from sordino.errors import UserError, unknown

MOST_CLASSES = 100
"""More different numbers than this, most of them rare, are measurements rather than classes."""
MOST_FRACTIONS = 10
"""So are more different numbers with decimals than this."""
MOST_CODES = 20
"""So are more different whole numbers than this that do not count through from 0 or 1, as codes of classes do."""
INTERVALS, LATEST = 10, 0.9
"""Intervals in which times are cut where nobody says how, and the share of times that these hold."""
MAX_CATEGORY_VALUES = 1000
"""A category with more values than this is an identifier or a text."""
SPREAD, SPREAD_OF_FEW = 3.0, 1.5
"""Numbers that the upper end of a range becomes: the range of a measurement usually has six deviations, that of a few
numbers about three. Two numbers become -1 and 1."""
FEW_NUMBERS = 10
"""Most different numbers that are a few."""
SMALL = 10.0
"""Numbers up to this, up or down, are taken as they stand; where they are larger, their range is read."""
LARGE = 100.0
"""A feature beyond this is not scaled: a network that starts with small weights learns nothing from the others."""

ENOUGH_TO_TELL = 20
"""Fewest records of a client from which one can tell by what its columns were scaled."""


def plain_schema(
    tables: Sequence[TextTable],
    label: str,
    labels: tuple[str | int, ...] | None,
    drop: Sequence[str],
    categorical: Sequence[str],
    pixels: bool = False,
    person: PersonRules | None = None,
    outcome: Mapping[str, Column] | None = None,
) -> Schema:
    """The schema of tables that came without one, in the order of the first table's columns.

    Columns are numbers as they stand there. Where some are large, the column's range is read from the records, and the
    schema says so: unscaled, nothing could be learned from it.

    Args:
        tables: all clients' tables; they have the same columns.
        label: name of the label column.
        labels: labels that may occur; None to read them from the records.
        drop: columns that are left out.
        categorical: columns whose values are categories, which are read from the records.
        pixels: whether numbers are those of images, which are left as they stand.
        person: declaration of whom rows belong to; None where there is none.
        outcome: columns that are predicted, where these are no classes.
    """
    names = list(tables[0].columns)
    drop = [*drop, *([] if person is None else [person.column])]
    for name in (*drop, *categorical):
        if name not in names:
            raise unknown("column", name, names)
    used = next((name for name in (label, *(outcome or ())) if name in drop or name in categorical), None)
    if used is not None:
        raise UserError(
            f"The column {used!r} is the label: it can be neither dropped nor a category, nor say whom a row is about."
        )
    twice = [name for name in categorical if name in drop]
    if twice:
        raise UserError(f"The column {twice[0]!r} cannot be both dropped and a category: leave one out.")
    columns: dict[str, Column] = {}
    for name in names:
        if outcome is not None and name in outcome:
            columns[name] = outcome[name]
        elif name == label:
            columns[name] = _label_column([text for one in tables for text in present_values(one, name)], name, labels)
        elif name in drop:
            columns[name] = Identifier()
        elif name in categorical:
            values = sorted_labels([text for table in tables for text in present_values(table, name)])
            if len(values) > MAX_CATEGORY_VALUES:
                raise UserError(f"The column {name!r} has {len(values):,} different values: drop it (--drop {name}).")
            columns[name] = Category(values=values or ("none",), missing="flag", centred=True, public=False)
        else:
            texts = [] if pixels else [text for table in tables for text in present_values(table, name)]
            columns[name] = _number_column(texts)
    if not any(isinstance(column, NumberColumn | Category) for column in columns.values()):
        raise UserError("No column is left besides the label and those that are dropped: keep at least one.")
    return Schema(columns=columns).with_persons(person)


def _label_column(occurring: Sequence[str], name: str, labels: tuple[str | int, ...] | None) -> Label:
    """A column of classes: those that are declared, or those that occur."""
    if labels is None:
        check_class_labels(occurring, name)
    values = tuple(str(one) for one in labels) if labels is not None else sorted_labels(occurring)
    return Label(values=values or ("none",), public=labels is not None)


def _number_column(texts: Sequence[str]) -> NumberColumn:
    """A column of numbers, with the range of its values where these are large."""
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        return NumberColumn()  # whoever encodes it says which cell is no number
    low, high = min(numbers, default=0.0), max(numbers, default=0.0)
    if not (max(abs(low), abs(high)) > SMALL and 1 / MAX_MAGNITUDE <= high - low < MAX_MAGNITUDE):
        return NumberColumn()
    return NumberColumn(range=round_outwards(low, high), spread=spread_of(numbers), public=False)


def spread_of(numbers: Sequence[float]) -> float:
    """Number that the upper end of a range becomes, so that the numbers in it vary by about one."""
    different = len(set(numbers))
    return 1.0 if different <= 2 else SPREAD_OF_FEW if different <= FEW_NUMBERS else SPREAD


def round_outwards(low: float, high: float) -> tuple[float, float]:
    """The smallest range of round numbers around `low` and `high`: it reveals less of the two extreme records."""
    step = 10.0 ** math.floor(math.log10(high - low))
    ends = math.floor(low / step) * step, math.ceil(high / step) * step
    return float(f"{ends[0]:.12g}"), float(f"{ends[1]:.12g}")


def present_values(table: TextTable, name: str) -> list[str]:
    """Values of a column in canonical form, for the records that have one."""
    return [canonical(text) for text in table.texts(name) if text not in MISSING_CELLS]


def sorted_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Different labels in order: by value when all are whole numbers, else by text."""
    try:
        return tuple(sorted(set(labels), key=int))
    except ValueError:
        return tuple(sorted(set(labels)))


def check_class_labels(labels: Sequence[str], name: str, declare: str = "declare all of them (--labels)") -> None:
    """Refuse labels that are no classes: measurements, and names that differ only in case. `declare` says what to do
    where numbers are classes."""
    if looks_continuous(labels):
        bounds = ",".join(f"{bound:g}" for bound in suggest_bins([float(label) for label in labels]))
        raise UserError(
            f"The label {name!r} looks like a number ({len(set(labels))} different values in {len(labels)} records, "
            f"for example {labels[0]}), but models tell classes apart unless told otherwise: predict the number "
            "itself (--task regression), group its values into a few classes by bounds that you choose (`sordino data "
            f"schema FOLDER --label {quote(name)} --bins {bounds}`), name another column with --label, or, if they "
            f"are classes, {declare}."
        )
    alike = differ_in_case(labels)
    if alike is not None:
        raise UserError(
            f"The labels {alike[0]!r} and {alike[1]!r} of {name!r} differ only in case: write them alike, or use a "
            "schema with fold_case = true (`sordino data schema`)."
        )


def looks_continuous(labels: Sequence[str]) -> bool:
    """Whether labels are measurements rather than classes."""
    different = set(labels)
    try:
        numbers = [float(label) for label in different]
    except ValueError:
        return False
    if len(different) > MOST_FRACTIONS and not all(number.is_integer() for number in numbers):
        return True
    counts_through = min(numbers, default=0) in (0, 1) and max(numbers, default=0) < len(different) + 1
    if len(different) > MOST_CODES and not counts_through:
        return True
    return len(different) > MOST_CLASSES and len(different) > len(labels) / 4


def suggest_bins(numbers: Sequence[float]) -> list[float]:
    """Two round bounds, or one, that divide numbers into classes of about the same size."""
    numbers = [number for number in numbers if abs(number) <= MAX_MAGNITUDE] or [0.0]
    ends = np.quantile(numbers, [0.02, 0.98])
    step = 10.0 ** math.floor(math.log10(max(float(ends[1] - ends[0]), 1e-12) / 2))
    found = [float(f"{round(float(end) / step) * step:.12g}") for end in np.quantile(numbers, [1 / 3, 2 / 3])]
    return sorted(set(found))


def suggest_cuts(numbers: Sequence[float]) -> tuple[float, ...]:
    """Round times that divide these into about ten intervals of about the same number; the last one holds nine tenths
    of them: what comes later is too rare to learn from."""
    numbers = [number for number in numbers if 0 <= number <= MAX_MAGNITUDE]
    high = float(np.quantile(numbers, LATEST)) if numbers else 0.0
    if high <= 0:
        raise UserError("The times to the event are all 0: there is nothing to predict.")
    step = 10.0 ** math.floor(math.log10(high / INTERVALS))
    ends = np.quantile(numbers, np.linspace(0, LATEST, INTERVALS + 1)[1:])
    return tuple(sorted({float(f"{math.ceil(end / step - 1e-9) * step:.12g}") for end in ends.tolist() if end > 0}))


def note_numeric_classes(names: Sequence[str], label: str) -> list[str]:
    """A sentence that many classes are numbers, so that the label may be one; none where they are few, or texts."""
    if len(names) <= MOST_CODES or any(_as_number(name) is None for name in names):
        return []
    return [
        f"The label {label!r} has {len(names)} classes that are all numbers. If it is a number rather than a code, "
        "predict it (--task regression), or group its values into a few classes: `sordino data schema FOLDER "
        f"--label {quote(label)} --bins BOUND,BOUND`."
    ]


def _as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def differ_in_case(values: Sequence[str]) -> tuple[str, str] | None:
    """Two values that differ only in case, the more frequent one first."""
    known: dict[str, str] = {}
    for value, _ in Counter(values).most_common():
        other = known.setdefault(value.casefold(), value)
        if other != value:
            return other, value
    return None


def note_scaled_apart(names: Sequence[str], parts: Sequence[np.ndarray]) -> list[str]:
    """A sentence that each client's columns seem to be scaled by its own mean and deviation; none where they are not.

    A column of a client's records is taken for scaled so where its mean is 0 and its deviation 1, up to a tenth of what
    a client of its size would have by chance. All columns with more than two values must be, at every client that has
    enough records to tell, and at two clients or more.

    Args:
        names: the clients' names.
        parts: (records, features) of each client.
    """
    scaled = [name for name, part in zip(names, parts, strict=True) if len(part) >= ENOUGH_TO_TELL and _own_scale(part)]
    told = sum(len(part) >= ENOUGH_TO_TELL for part in parts)
    if len(scaled) < max(2, told):
        return []
    return [
        f"The columns of each client ({list_values(scaled)}) have mean 0 and deviation 1 there, so they seem to be "
        "scaled by the client's own mean and deviation. These are told by its model without noise, and a model of all "
        "clients fits none of them: this cost 2 to 10 points of AUC in our comparisons. Scale all clients alike, by "
        "declared ranges, or by means that `sordino data normalise` releases with noise."
    ]


def _own_scale(part: np.ndarray) -> bool:
    """Whether all columns with more than two values have mean 0 and deviation 1, nearer than by chance."""
    near, found = 0.1 / math.sqrt(len(part)), False
    for column in part.T:
        values = column.astype(np.float64)
        if abs(values.mean()) < near and abs(values.std() - 1) < near + 1 / len(part):
            found = True
        elif len(np.unique(column)) > 2:
            return False
    return found


def note_ranges_read(schema: Schema) -> str:
    """A sentence that the numbers of tables without a schema were looked at, whatever was found there."""
    scaled = [name for name, one in schema.inputs().items() if isinstance(one, NumberColumn) and one.range is not None]
    which = f"{list_values(scaled)}, and no others" if scaled else "none"
    return (
        f"Which columns have numbers beyond {SMALL:g}, by whose range they are scaled ({which}), was read from the "
        "clients' records: a schema declares it (`sordino data schema`)."
    )


def note_unscaled(schema: Schema, x: np.ndarray, folder: Path) -> list[str]:
    """A sentence that names columns of numbers too large for a network to learn from; none where all are small.

    Which columns these are was read from the records `x`.
    """
    largest = dict(zip(schema.features(), np.abs(x).max(axis=0, initial=0.0).reshape(-1), strict=False))
    large = [
        name for name, column in schema.inputs().items() if isinstance(column, NumberColumn) and largest[name] > LARGE
    ]
    return _unscaled(large, f"give public ranges in a schema (`sordino data schema {folder}`)")


def note_unscaled_arrays(x: np.ndarray) -> list[str]:
    """A sentence that names columns of arrays with numbers too large for a network to learn from, by their places;
    none where all are small, or a record is no row. Which columns these are was read from the records `x`."""
    if x.ndim != 2:
        return []
    large = np.flatnonzero(np.abs(x).max(axis=0, initial=0.0) > LARGE).tolist()
    return _unscaled([f"x[:, {place}]" for place in large], "scale the arrays of all clients alike, by public ranges")


def _unscaled(columns: Sequence[str], advice: str) -> list[str]:
    """Sentence on columns with large numbers, and what to do about them; none where there are no such columns."""
    if not columns:
        return []
    shown = ", ".join(columns[:5]) + (f" and {len(columns) - 5} more" if len(columns) > 5 else "")
    return [
        f"Not scaled: {shown} (beyond {LARGE:g}, as the clients' records show). Networks learn badly from such "
        f"numbers: {advice}."
    ]
