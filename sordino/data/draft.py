"""The draft of a schema, from what a folder's tables look like: every guess is a question to the user in the file."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sordino.data.column_kinds import (
    check_class_labels,
    differ_in_case,
    looks_continuous,
    round_outwards,
    sorted_labels,
    spread_of,
)
from sordino.data.formats import quote, read_bytes, reading
from sordino.data.own import client_paths
from sordino.data.schema import (
    LARGEST_NUMBER,
    MISSING_CELLS,
    Category,
    Column,
    Format,
    Identifier,
    Label,
    NumberColumn,
    Schema,
    canonical,
)
from sordino.data.tables import DELIMITERS, Table, read_table
from sordino.errors import UserError, refuse, unknown
from sordino.util.toml import toml_key, toml_value

ENCODINGS = ("utf-8", "cp1252")
"""Tried in this order: what is no UTF-8 comes from an office program, as a rule."""
MOST_VALUES = 20
"""Texts with more different values than this are no categories, unless most values come often."""
OFTEN_MISSING = 0.05
"""From this share on, that a value is missing may mean something."""
NAMES_OF_IDS = re.compile(r"(^|[_\s.-])(id|ids|uuid|mrn|ssn|nr|no|number|name|email|key)$", re.IGNORECASE)
DATE = re.compile(r"^(\d{4}[./-]\d{1,2}[./-]\d{1,2}|\d{1,2}[./-]\d{1,2}[./-](\d{4}|\d{2}))([ T]\d{1,2}:\d{2}.*)?$")
DECIMAL_COMMA = re.compile(r"^[+-]?\d+,\d+$")


@dataclass(frozen=True)
class Draft:
    """A schema as it was guessed, and as it is written."""

    schema: Schema
    questions: list[str]
    """Sentences on guesses that the user should check."""
    text: str
    files: int


@dataclass(frozen=True)
class _Guess:
    """Guess at one column."""

    column: Column
    seen: str
    """Range or number of values that occur, and the share of missing ones."""
    question: str = ""


def draft(
    folder: Path,
    label: str,
    positive: str | None = None,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
) -> Draft:
    """Guess the schema of a folder's tables.

    Args:
        folder: one CSV or Parquet file per client; arrays are passed over.
        label: name of the label column.
        positive: the label that is looked for; None for the rarer of two.
        drop: columns that are left out.
        categorical: columns that are categories even if they hold numbers.
    """
    paths, notes = client_paths(folder)
    paths = [path for path in paths if path.suffix.lower() != ".npz"]
    if not paths:
        raise UserError(f"The folder {folder} holds arrays only, which need no schema.")
    written, tables, problems = {}, [], []
    for path in paths:
        try:
            written[path.stem] = format_of(path)
            tables.append(read_table(path, written[path.stem]))
        except UserError as error:
            problems.append(str(error))
    names = list(dict.fromkeys(name for table in tables for name in table.columns))
    for name in (label, *drop, *categorical):
        if tables and name not in names:
            raise unknown("column", name, names)
    problems += [
        f"The file {table.path} has no column {name!r}, which others have: add it there, or drop it with --drop {name}."
        for table in tables
        for name in names
        if name not in table.columns and name not in drop
    ]
    refuse(str(folder), problems)
    usual = Counter(written.values()).most_common(1)[0][0]
    guesses = {
        name: _Guess(Identifier(), "dropped, as you said")
        if name in drop
        else _guess(name, tables, label, positive, name in categorical)
        for name in names
    }
    if not any(isinstance(guess.column, NumberColumn | Category) for guess in guesses.values()):
        dropped = "; ".join(
            f"{name}: {guess.question or guess.seen}" for name, guess in guesses.items() if name != label
        )
        raise UserError(
            f"The tables of {folder} have nothing beside the label {label!r} to learn from"
            f"{' (' + quote(dropped) + ')' if dropped else ''}: add a column with numbers or categories."
        )
    schema = Schema(
        **usual.model_dump(),
        files={name: one for name, one in written.items() if one != usual},
        columns={name: guess.column for name, guess in guesses.items()},
    )
    questions = notes + [f"{name}: {guess.question}" for name, guess in guesses.items() if guess.question]
    return Draft(schema, questions, _text(schema, guesses, folder, len(tables)), len(tables))


def format_of(path: Path) -> Format:
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


def _guess(name: str, tables: Sequence[Table], label: str, positive: str | None, categorical: bool) -> _Guess:
    texts = [text for table in tables for text in table.texts(name)]
    there = [canonical(text) for text in texts if text not in MISSING_CELLS]
    missing = (len(texts) - len(there)) / max(1, len(texts))
    if name == label:
        return _label(name, there, missing, positive)
    numbers = _numbers([text for text in texts if text not in MISSING_CELLS])
    if numbers is not None and not categorical:
        return _number(name, numbers, missing)
    return _category(name, there, missing, categorical)


def _numbers(texts: Sequence[str]) -> list[float] | None:
    """Cells as numbers, with a point or a comma before the decimals; None where that fails, one is too large for a
    range, or there are no cells."""
    try:
        found = [float(text.replace(",", ".") if DECIMAL_COMMA.match(text) else text) for text in texts]
    except ValueError:
        return None
    return found if found and all(abs(number) <= LARGEST_NUMBER for number in found) else None


def _label(name: str, there: list[str], missing: float, positive: str | None) -> _Guess:
    if looks_continuous(there):
        check_class_labels(there, name)
    fold = differ_in_case(there) is not None
    counted = Counter(text.casefold() if fold else text for text in there)
    values = sorted_labels(list(counted))
    if positive is not None and canonical(positive, fold) not in values:
        raise unknown("label", positive, values)
    chosen = canonical(positive, fold) if positive is not None else None
    if chosen is None and len(values) == 2:
        chosen = min(reversed(values), key=lambda value: counted[value])
    seen = ", ".join(f"{value}: {counted[value]}" for value in values[:10])
    question = "the labels that occur were read from the records: are these all that may occur?"
    if chosen is not None and positive is None:
        question += f" The one that is looked for (positive) is taken to be the rarer of two, {chosen!r}: is it?"
    if fold:
        question += " Some differ only in case and are taken as one (fold_case)."
    if missing:
        question += f" {missing:.1%} of the records have none and are dropped."
    column = Label(
        values=values or ("none",),
        positive=chosen,
        missing="drop" if missing else "refuse",
        fold_case=fold,
        public=False,
    )
    return _Guess(column, seen, question)


def _number(name: str, numbers: list[float], missing: float) -> _Guess:
    low, high = min(numbers), max(numbers)
    whole = all(number.is_integer() for number in numbers)
    seen = f"{low:g} to {high:g}, {missing:.1%} missing"
    if whole and len(set(numbers)) == len(numbers) > 1 and NAMES_OF_IDS.search(name):
        return _Guess(Identifier(), seen, "every record has another number: dropped as an identifier. Is it one?")
    if high - low < 1 / LARGEST_NUMBER:
        return _Guess(Identifier(), seen, "all records have the same value: dropped.")
    column = NumberColumn(
        range=round_outwards(low, high), spread=spread_of(numbers), missing=_rule(missing), public=False
    )
    return _Guess(column, seen, "which range is public knowledge? The one here was read from the records.")


def _category(name: str, there: list[str], missing: float, wanted: bool) -> _Guess:
    different = Counter(there)
    seen = f"{len(different)} different values, {missing:.1%} missing"
    if not there:
        return _Guess(Identifier(), seen, "no record has a value: dropped.")
    if not wanted and all(DATE.match(text) for text in different):
        return _Guess(
            Identifier(),
            seen,
            "dates: dropped. If they matter, put a number in their place, such as an age or days since a visit.",
        )
    if not wanted and len(different) > MOST_VALUES and len(different) > len(there) / 20:
        return _Guess(Identifier(), seen, "too many different texts for a category: dropped. Is it a name or a text?")
    fold = differ_in_case(there) is not None
    values = sorted_labels([text.casefold() if fold else text for text in there])
    question = "which values may occur? Those here were read from the records."
    if fold:
        question += " Some differ only in case and are taken as one (fold_case)."
    column = Category(
        values=values, missing="flag" if missing else "refuse", fold_case=fold, centred=True, public=False
    )
    return _Guess(column, seen, question)


def _rule(missing: float) -> Literal["refuse", "flag", "centre"]:
    if not missing:
        return "refuse"
    return "flag" if missing >= OFTEN_MISSING else "centre"


def _text(schema: Schema, guesses: dict[str, _Guess], folder: Path, files: int) -> str:
    """The schema as TOML, with comments on what was seen and what the user should check."""
    comments = {name: [guess.seen, *([guess.question] if guess.question else [])] for name, guess in guesses.items()}
    head = f"What the columns of {folder.name} are, as {files} files look. Guesses: read them, and correct them."
    return toml(schema, [head, "", *EXPLANATION], comments)


EXPLANATION = (
    "kind: number, category, id (dropped) or label. What says public = false was read from the records, and a run",
    "with it says that epsilon does not cover it. Put in what is public, and write public = true.",
    "spread: the ends of a number's range become -spread and spread. With 3 most measurements vary by about 1, which",
    "is learned best from. mean and deviation, where they are public, do it better. centred: the same for categories.",
    "missing: refuse the file (where nothing is said), drop the record, or for numbers the centre of the range, flag",
    "(the centre, and a feature of its own) or a number; for categories flag or one of the values.",
    "Comments tell what was seen in the records: take them out before you give this file to anybody.",
)


def toml(schema: Schema, head: Sequence[str], comments: Mapping[str, Sequence[str]]) -> str:
    """A schema as it is written, with lines of comment before all of it and after the names of columns."""
    lines = [
        *(f"# {_line(text)}".rstrip() for text in head),
        "",
        *_assignments(schema, ("delimiter", "encoding", "decimal")),
        f"missing_cells = {toml_value(list(schema.missing_cells))}",
    ]
    for name, one in schema.files.items():
        lines += ["", f"[files.{toml_key(name)}]", *_assignments(one, ("delimiter", "encoding", "decimal"))]
    for name, column in schema.columns.items():
        lines += ["", f"[columns.{toml_key(name)}]", *(f"# {_line(text)}" for text in comments.get(name, ()))]
        lines.append(f"kind = {toml_value(column.kind)}")
        given = column.model_dump(mode="json", exclude_none=True, exclude={"kind"}, exclude_defaults=True)
        lines += [f"{key} = {toml_value(value)}" for key, value in given.items()]
    return "\n".join(lines) + "\n"


def _assignments(part: Format, keys: Sequence[str]) -> list[str]:
    return [f"{key} = {toml_value(getattr(part, key))}" for key in keys]


def _line(text: str) -> str:
    """A text on one line, without what a comment must not hold."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
