"""A user's own data: a folder with one CSV, Parquet or NPZ file per client, named after the client.

A schema says what the columns of tables are. Without one, features are float32 as they stand in the files. Nothing is
normalised by statistics of the data: a mean over all clients would carry information from one client to another
outside any guarantee.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from sordino.data.column_kinds import (
    check_class_labels,
    note_numeric_classes,
    note_ranges_read,
    note_scaled_apart,
    note_unscaled,
    note_unscaled_arrays,
    plain_schema,
    present_values,
    round_outwards,
    sorted_labels,
    suggest_cuts,
)
from sordino.data.dataset import Dataset
from sordino.data.encoding import Encoding, Source, problems_of
from sordino.data.formats import quote, read_npz
from sordino.data.people import known_people, same_files
from sordino.data.persons import code_of, names_somebody, number_codes
from sordino.data.schema import MAX_MAGNITUDE, Column, Event, PersonRules, Schema, Target, Time, canonical
from sordino.data.sequences import NO_SEQUENCES, holds, read_sequences, sequence_parts
from sordino.data.tables import TextTable, check_finite, read_table
from sordino.errors import UserError, quoted, refuse, unknown
from sordino.tasks import TASKS, Classification, Regression, SeveralLabels, Survival, Task
from sordino.tasks.next_token import TOKENS, write_sequences
from sordino.tasks.regression import USUAL_LOSS

DEFAULT_LABEL = "label"
KINDS = (".csv", ".parquet", ".npz")
PERSON_ARRAY = "person"
"""Array of an NPZ file with a code of the person that each record is about."""
UNDECLARED = (
    "The labels that occur were read from the clients' data: a rare one shows in the model's width. Declare them with "
    "the key `labels`."
)


@dataclass(frozen=True)
class Reading:
    """Options for reading a user's own files."""

    label: str | None = None
    """The label column of tables."""
    labels: tuple[str | int, ...] | None = None
    """The labels that may occur, in the order of the classes."""
    shape: tuple[int, ...] | None = None
    """The shape that each record is brought into."""
    schema: Schema | None = None
    """Schema of the tables' columns."""
    drop: tuple[str, ...] = ()
    """Without a schema: columns of tables that are left out."""
    categorical: tuple[str, ...] = ()
    """Without a schema: columns of tables whose values have no order; those that occur are read from the records."""
    person: PersonRules | None = None
    """Declaration of whom records belong to, where the schema has none."""
    task: str | None = None
    """Kind of task; None for the one that a schema declares, and for classes where there is no schema."""
    target_range: tuple[float, float] | None = None
    """Without a schema, for a regression: range to which the target is held."""
    event: str | None = None
    """Without a schema, for survival: column that says whether the event happened; the label is the time's."""
    cuts: tuple[float, ...] | None = None
    """Without a schema, for survival: ends of the intervals of time."""
    loss: str | None = None
    """Loss of a regression, where it is not the usual one."""
    vocabulary: int | None = None
    """Number of tokens, where records are sequences of which the next token is predicted."""

    @property
    def person_rules(self) -> PersonRules | None:
        """Declaration of whom records belong to, wherever it stands; None where there is none."""
        return self.person or (None if self.schema is None else self.schema.person_rules)

    def given(self) -> list[str]:
        """Names of the options that are not at their defaults."""
        return [name for name, value in vars(self).items() if value]

    @property
    def kind(self) -> str:
        """Kind of the task."""
        if self.task is not None:
            return self.task
        return Classification.name if self.schema is None else self.schema.task().name


@dataclass(frozen=True)
class ClientFile:
    """One client's records: features, labels as text, and which records are test records."""

    path: Path
    x: np.ndarray
    labels: list[str]
    """Task, as `Task.parse` reads it."""
    test: np.ndarray | None
    features: tuple[str, ...] | None = None
    """Their names in order; None for arrays."""
    persons: list[str] | None = None
    """Code of each record's person; None where there is none."""


def read_own(folder: Path, how: Reading) -> Dataset:
    """The records of every file of a folder; the owner of a record is the file it stands in.

    Labels, text or whole numbers, become 0..classes-1 in the declared order, or, where those that may occur are not
    declared, in sorted order over all files. Whatever is wrong in any of the files is told at once.
    """
    check_reading(how)
    if how.schema is not None:
        how = replace(how, schema=how.schema.with_persons(how.person))
    paths, notes = client_paths(folder)
    if holds(paths[0], TOKENS):
        return _read_sequences(folder, paths, how, notes)
    if how.vocabulary is not None:
        raise UserError(
            f"`vocabulary` declares tokens, but {paths[0]} has no array {TOKENS!r} of sequences: leave it out, or give "
            "every client an NPZ file with one."
        )
    tables, arrays = _read_files(folder, paths, how)
    schema = how.schema
    if schema is None and tables:
        schema = plain_schema(
            tables,
            how.label or DEFAULT_LABEL,
            how.labels,
            how.drop,
            how.categorical,
            pixels=how.shape is not None,
            person=how.person,
            outcome=None if how.kind == Classification.name else _outcome_of(tables, how),
        )
    files, counted = _encode(tables, schema, how, folder) if schema is not None else ([], [])
    together = sorted([*files, *arrays], key=lambda file: paths.index(file.path))
    check_agreement(together)
    task, observed = find_task(together, schema, how)
    x = together[0].x if len(together) == 1 else np.concatenate([file.x for file in together])
    counted += note_unscaled_arrays(x) if schema is None else note_unscaled(schema, x, folder)
    if how.shape is None and x.ndim == 2:
        counted += note_scaled_apart([file.path.stem for file in together], [file.x for file in together])
    undeclared = how.labels is None and how.schema is None and how.kind == Classification.name
    if how.schema is None and schema is not None and how.shape is None:
        counted.append(note_ranges_read(schema))
    tests = [file.test for file in together]
    owner = np.repeat(np.arange(len(together)), [len(file.labels) for file in together])
    person, rules = name_persons(together, owner, how.person_rules)
    return Dataset(
        name=folder.resolve().name,
        x=torch.from_numpy(x if how.shape is None else reshape(x, how.shape, folder)),
        y=torch.from_numpy(number_labels(together, task)),
        task=task,
        owner=owner,
        owner_names=tuple(file.path.stem for file in together),
        test=None if tests[0] is None else np.concatenate([test for test in tests if test is not None]),
        disclosed=same_files(paths)
        + ((UNDECLARED,) if undeclared else ())
        + observed
        + (() if schema is None else schema.disclosed())
        + tuple(counted),
        people=known_people(paths, tables, [file.x for file in arrays]),
        schema=schema,
        notes=(
            *notes,
            *(note_numeric_classes(task.groups, how.label or DEFAULT_LABEL) if undeclared and schema else ()),
        ),
        person=person,
        person_rules=rules,
    )


def _read_files(folder: Path, paths: Sequence[Path], how: Reading) -> tuple[list[TextTable], list[ClientFile]]:
    """Read every file: tables as texts, and arrays; refuse all that cannot be read at once."""
    problems: list[str] = []
    tables: list[TextTable] = []
    arrays: list[ClientFile] = []
    for path in paths:
        try:
            if path.suffix.lower() == ".npz":
                arrays.append(read_arrays(path, how.person_rules))
            else:
                tables.append(read_table(path, how.schema.format_of(path.stem) if how.schema else None))
        except UserError as error:
            problems.append(str(error))
    if how.schema is None and tables:
        problems += check_columns(tables, how.label or DEFAULT_LABEL)
    refuse(str(folder), problems)
    return tables, arrays


def _read_sequences(folder: Path, paths: Sequence[Path], how: Reading, notes: Sequence[str]) -> Dataset:
    """The sequences of every file of a folder, with their persons where those are declared."""
    if how.task is not None:
        raise UserError(f"{folder} holds sequences of tokens, of which the next one is predicted: leave out `task`.")
    found = read_sequences(folder, paths, how.labels, how.vocabulary, notes)
    if how.person_rules is None and not any(holds(path, PERSON_ARRAY) for path in paths):
        return found
    files = [read_arrays(path, how.person_rules) for path in paths]
    assert found.owner is not None
    person, rules = name_persons(files, found.owner, how.person_rules)
    return replace(found, person=person, person_rules=rules)


def name_persons(
    files: Sequence[ClientFile], owner: np.ndarray, rules: PersonRules | None
) -> tuple[np.ndarray | None, PersonRules | None]:
    """Number the persons of all files' records, and return the declaration by which that was done; None for both where
    nobody says whom records are about.

    Args:
        files: records of each client.
        owner: int64 (records,): the client of each.
        rules: what is declared; arrays of persons in files declare it too.
    """
    with_codes = [file for file in files if file.persons is not None]
    if not with_codes:
        return None, None
    if len(with_codes) < len(files):
        without = next(file for file in files if file.persons is None)
        raise UserError(
            f"The file {without.path} does not say whom its records are about, but others do: name persons in all."
        )
    codes = [code for file in with_codes for code in file.persons or ()]
    return number_codes(codes, owner), rules or PersonRules(PERSON_ARRAY)


def _check_vocabulary(how: Reading) -> None:
    """Refuse tokens that are declared beside another task."""
    given = next((name for name in ("task", "labels", "schema") if getattr(how, name) is not None), None)
    if how.vocabulary is not None and given is not None:
        raise UserError(
            f"`vocabulary` says that the next token of sequences is predicted: leave out either it or `{given}`."
        )


def check_reading(how: Reading) -> None:
    """Refuse reading options that contradict each other."""
    if how.labels is not None and (
        len(how.labels) < 2 or len({canonical(str(one)) for one in how.labels}) < len(how.labels)
    ):
        raise UserError(f"labels = {quoted([str(one) for one in how.labels])}: declare at least two, each once.")
    if how.task not in (None, *TASKS):
        raise unknown("task", str(how.task), TASKS)
    _check_vocabulary(how)
    if how.kind != Classification.name and how.labels is not None:
        raise UserError(f"`labels` are classes, and this is a {how.kind} task: leave them out.")
    if how.kind != Regression.name and (how.target_range is not None or how.loss is not None):
        given = "target_range" if how.target_range is not None else "loss"
        raise UserError(f"`{given}` is for a number to be predicted: add task = {Regression.name!r}, or leave it out.")
    if how.kind != Survival.name and (how.event is not None or how.cuts is not None):
        raise UserError(f"`event` and `cuts` are for a time to an event: add task = {Survival.name!r}.")
    if how.target_range is not None and not how.target_range[0] < how.target_range[1]:
        raise UserError("target_range must be two numbers, the smaller one first, as in --set target_range=[0,200].")
    if how.schema is None:
        _check_without_schema(how)
        return
    declared = how.schema.task().name
    if how.task not in (None, declared):
        raise UserError(
            f"The schema declares {describe_outcomes(how.schema)} ({declared}), but the task is to be {how.task}: "
            f"{HOW_TO_DECLARE[str(how.task)]} (`sordino data schema FOLDER --task {how.task}` writes such a schema)."
        )
    if how.target_range is not None or how.event is not None or how.cuts is not None:
        raise UserError("`target_range`, `event` and `cuts` cannot be given beside a schema: put them into it.")
    if how.drop or how.categorical or how.labels is not None:
        raise UserError("`drop`, `categorical` and `labels` cannot be given beside a schema: put them into it.")
    if how.label is not None and how.label not in how.schema.label_names:
        names = " and ".join(map(repr, how.schema.label_names))
        raise UserError(f"label = {how.label!r}, but the schema's label is {names}: leave one out.")


def _check_without_schema(how: Reading) -> None:
    """Refuse tasks of which a schema, or another option, must say more."""
    if how.kind == SeveralLabels.name:
        raise UserError(
            "Several labels at once are declared in a schema: `sordino data schema FOLDER --task multi-label --label "
            "COLUMN,COLUMN` writes one."
        )
    if how.kind == Survival.name and how.event is None:
        raise UserError(
            "A time to an event needs a column that says whether it happened (1) or the record was last seen then (0): "
            "name it with --event, beside --label for the time's column."
        )


def _encode(
    tables: Sequence[TextTable], schema: Schema, how: Reading, folder: Path
) -> tuple[list[ClientFile], list[str]]:
    """The records of all tables, and sentences with what was counted in them."""
    source: Source = "options" if how.schema is None else "schema"
    found = [Encoding(table, schema, schema.format_of(table.path.stem), source).result() for table in tables]
    refuse(str(folder), problems_of(found, source))
    features = tuple(schema.features())
    files = []
    for table, one in zip(tables, found, strict=True):
        files.append(ClientFile(table.path, one.x[one.kept], one.kept_labels, None, features, one.kept_persons))
    return files, [sentence for one in found for sentence in one.counted]


HOW_TO_DECLARE = {
    "classification": 'give the column kind = "label" and `values`, or `bins` too where it is a number',
    "regression": 'give the column kind = "target" and a `range`',
    "multi-label": 'give several columns kind = "label", each with two `values`',
    "survival": 'give two columns kind = "time", with `cuts`, and kind = "event"',
}


def describe_outcomes(schema: Schema) -> str:
    """The columns that a schema predicts, in words."""
    return " and ".join(f"the {column.kind} {name!r}" for name, column in schema.outcomes.items())


def _outcome_of(tables: Sequence[TextTable], how: Reading) -> dict[str, Column]:
    """Columns of what is predicted where there is no schema; what nobody declares is read from the records."""
    name = how.label or DEFAULT_LABEL
    if how.kind == Regression.name:
        ends = how.target_range or _range_of(name, [cell for one in tables for cell in present_values(one, name)])
        return {name: Target(range=ends, public=how.target_range is not None)}
    assert how.event is not None
    for table in tables:
        if how.event not in table.columns:
            raise unknown("column", how.event, list(table.columns))
    if how.event == name:
        raise UserError(f"The column {name!r} cannot be both the time and the event: name the time's with --label.")
    cuts = how.cuts or suggest_cuts(_numbers_of(name, [cell for one in tables for cell in present_values(one, name)]))
    return {name: Time(cuts=cuts, public=how.cuts is not None), how.event: Event()}


def _numbers_of(name: str, texts: Sequence[str]) -> list[float]:
    """Cells of an outcome as numbers; a text is refused."""
    try:
        return [float(text) for text in texts]
    except ValueError:
        wrong = next(text for text in texts if not _is_number(text))
        raise UserError(
            f"The column {name!r} is to be predicted as a number, but has the value '{quote(wrong)}': give numbers, or "
            "name another column with --label."
        ) from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _range_of(name: str, texts: Sequence[str]) -> tuple[float, float]:
    """Range of the numbers that occur, with round ends."""
    numbers = [number for number in _numbers_of(name, texts) if math.isfinite(number)]
    low, high = min(numbers, default=0.0), max(numbers, default=0.0)
    if not 1 / MAX_MAGNITUDE < high - low < MAX_MAGNITUDE:
        raise UserError(f"The column {name!r} has the same value in all records, {low:g}: there is nothing to predict.")
    return round_outwards(low, high)


def find_task(files: Sequence[ClientFile], schema: Schema | None, how: Reading) -> tuple[Task, tuple[str, ...]]:
    """The task, as declared or as the records show, and sentences on what was read from the records of arrays; what was
    read from tables stands in their schema."""
    if how.kind == Classification.name:
        names = class_names(files, schema, how)
        return Classification.of(names, None if schema is None or how.schema is None else schema.label.positive), ()
    if schema is not None:
        return schema.task(how.loss, how.label), ()
    if how.kind == Survival.name:
        raise UserError("A time to an event takes tables with two columns, not arrays: use CSV or Parquet files.")
    ends = how.target_range or _range_of("y", [label for file in files for label in file.labels])
    told = () if how.target_range else (RANGE_READ.format(*ends),)
    return Regression(*ends, loss=how.loss or USUAL_LOSS), told


RANGE_READ = (
    "The target's range, {0:g} to {1:g}, was read from the clients' records: declare it with the key `target_range`."
)


def class_names(files: Sequence[ClientFile], schema: Schema | None, how: Reading) -> tuple[str, ...]:
    """The names of the classes: as declared, or those that occur."""
    if how.labels is not None:
        return tuple(str(one) for one in how.labels)
    if how.schema is not None:
        return how.schema.label.values
    occurring = [label for file in files for label in file.labels]
    check_class_labels(occurring, how.label or DEFAULT_LABEL)
    return sorted_labels(occurring)


def number_labels(files: Sequence[ClientFile], task: Task) -> np.ndarray:
    """(records,): target of each record; a label that says none is refused."""
    found = task.parse([label for file in files for label in file.labels])
    strange = np.isnan(found) if found.dtype.kind == "f" else found < 0
    if strange.any():
        places = iter([bool(np.any(row)) for row in strange])
        lacking = {file.path: label for file in files for label in file.labels if next(places)}
        refuse(
            "the labels",
            [
                f"The file {path} has a record with the label '{quote(label)}', {task.strange}."
                for path, label in lacking.items()
            ],
        )
    return found


def client_paths(folder: Path) -> tuple[list[Path], list[str]]:
    """The client files of a folder, in order of name, and what else in it is not read. Hidden files do not count."""
    if not os.path.isdir(folder):
        raise UserError(
            f"There is no folder {quote(folder)}; name a folder with one CSV, Parquet or NPZ file per client."
        )
    try:
        inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise UserError(f"The folder {folder} cannot be read: {error.strerror}.") from error
    paths = [path for path in inside if path.suffix.lower() in KINDS and not path.is_dir()]
    others = [f"{path.name}/" if path.is_dir() else path.name for path in inside if path not in paths]
    strange = [path for path in paths if path.exists() and not path.is_file()]
    if strange:  # reading it might never end
        raise UserError(f"{strange[0]} is a pipe or a device, not a file: put the client's records into a file.")
    if not paths:
        beside = f" (there is {quote(', '.join(others))})" if others else ""
        raise UserError(
            f"The folder {folder} holds no {', '.join(KINDS)} file{beside}; put one file per client in it, "
            "named after the client."
        )
    by_stem: dict[str, Path] = {}
    for path in paths:
        other = by_stem.setdefault(path.stem, path)
        if other != path:
            raise UserError(
                f"Two files in {folder} are named after the client {path.stem!r}: {other.name} and "
                f"{path.name}; keep one."
            )
    notes = [f"Not read (a client is one {', '.join(KINDS)} file in {folder}): {quote(', '.join(others))}."]
    return paths, notes if others else []


def check_columns(tables: Sequence[TextTable], label: str) -> list[str]:
    """Sentences on what keeps tables from being read without a schema: no label, nothing besides it, other columns."""
    problems = []
    unlabelled = [table for table in tables if label not in table.columns]
    if unlabelled:
        first, more = unlabelled[0], len(unlabelled) - 1
        near = difflib.get_close_matches(label, first.columns, n=1)
        hint = f"Did you mean --label {quote(near[0])}?" if near else "Name the right one with --label."
        files = f"The file {first.path} has" if not more else f"The file {first.path} and {more} more have"
        problems.append(
            f"{files} no column {label!r} for the label; its columns are: {quote(', '.join(first.columns))}. {hint}"
        )
    for table in tables:
        if label in table.columns and len(table.columns) == 1:
            problems.append(f"The file {table.path} has no column besides the label {label!r}; add feature columns.")
        names = dict.fromkeys((*tables[0].columns, *table.columns))
        differing = [name for name in names if (name in tables[0].columns) != (name in table.columns)]
        if differing and label in table.columns:
            are = "is" if len(differing) == 1 else "are"
            problems.append(
                f"The files {tables[0].path} and {table.path} do not have the same columns: "
                f"{quote(', '.join(map(repr, differing)))} {are} in one of them only; give every client the same ones."
            )
    return problems


def read_arrays(path: Path, rules: PersonRules | None = None) -> ClientFile:
    """An NPZ file: x (records, ...) and y, with x_test and y_test when the test split is the user's own, and `person`
    where it says whom records are about.

    Args:
        path: the file.
        rules: declaration of persons, which names their array.
    """
    arrays = read_npz(path)
    if TOKENS in arrays:
        return _sequences(path, arrays, rules)
    for name in ("x", "y"):
        if name not in arrays:
            raise UserError(
                f"The file {path} has no array {name!r}; its arrays are: {quote(', '.join(arrays)) or 'none'}. "
                "Save it with np.savez(path, x=..., y=...)."
            )
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise UserError(f"The file {path} has only one of x_test and y_test; give both or neither.")
    parts = [("x", "y")] + ([("x_test", "y_test")] if "x_test" in arrays else [])
    features, labels = [], list[str]()
    texts: dict[object, str] = {}  # of millions of labels, a few are different
    for x_name, y_name in parts:
        x, y = arrays[x_name], arrays[y_name].reshape(-1)
        if x.ndim < 2 or len(x) != len(y) or 0 in x.shape[1:]:
            raise UserError(
                f"The file {path} has {x_name} of shape {x.shape} and {len(y)} labels in {y_name}; "
                "give one row of features per label."
            )
        features.append(check_finite(path, x_name, x))
        values = y.tolist()
        for value in values:
            if value not in texts:
                texts[value] = array_label(value, path, y_name)
        labels += [texts[value] for value in values]
    if len({part.shape[1:] for part in features}) > 1:
        raise UserError(f"The file {path} has records of another shape in x_test than in x; make them equal.")
    test = np.arange(len(labels)) >= len(features[0]) if len(parts) == 2 else None
    persons = _array_codes(path, arrays, [len(part) for part in features], rules)
    x = np.ascontiguousarray(features[0]) if len(features) == 1 else np.concatenate(features)
    return ClientFile(path, x, labels, test, persons=persons)


def _sequences(path: Path, arrays: Mapping[str, np.ndarray], rules: PersonRules | None) -> ClientFile:
    """Sequences of tokens: all but the last token of each, and behind that, as text, all but the first."""
    parts = sequence_parts(arrays)
    if parts is None:
        raise UserError(f"The file {path} {NO_SEQUENCES}.")
    tokens = np.concatenate(parts)
    test = np.arange(len(tokens)) >= len(parts[0]) if len(parts) == 2 else None
    persons = _array_codes(path, arrays, [len(part) for part in parts], rules)
    x = tokens[:, :-1].astype(np.float32)
    return ClientFile(path, x, write_sequences(tokens[:, 1:]), test, persons=persons)


def _array_codes(
    path: Path, arrays: Mapping[str, np.ndarray], sizes: Sequence[int], rules: PersonRules | None
) -> list[str] | None:
    """The code of each record's person, of training records first; None where the file has none. `sizes` are the
    numbers of training and, where the file has them, of test records."""
    name = PERSON_ARRAY if rules is None else rules.column
    if name not in arrays:
        if rules is not None:
            raise UserError(f"The file {path} has no array {rules.column!r} with the code of each record's person.")
        return None
    found: list[str] = []
    for key, size, of in zip((name, f"{name}_test"), sizes, ("x", "x_test"), strict=False):
        if key not in arrays or arrays[key].reshape(-1).shape != (size,):
            raise UserError(
                f"The file {path} needs one code in the array {key!r} for each of its {size} records in {of}."
            )
        codes = [code_of("" if value is None else str(value)) for value in arrays[key].reshape(-1).tolist()]
        if not all(map(names_somebody, codes)):
            raise UserError(f"The file {path} has a record without a code in its array {key!r}; fill or drop it.")
        found += codes
    return found


def array_label(value: object, path: Path, name: str) -> str:
    """A label of an array as text, so that 1, 1.0 and "1" are one label in every kind of file."""
    text = "" if value is None else canonical(str(value))
    if text in ("", "nan"):
        raise UserError(f"The file {path} has a missing value in its label column {name!r}; fill or drop it.")
    return text


def check_agreement(files: Sequence[ClientFile]) -> None:
    """Refuse files that differ from the first in shape or in having a test split."""
    first = files[0]
    for file in files:
        if first.x.shape[1:] != file.x.shape[1:]:
            raise UserError(
                f"The records of {file.path} have shape {file.x.shape[1:]}, those of {first.path} "
                f"{first.x.shape[1:]}; give every client records of the same shape."
            )
        if (first.test is None) != (file.test is None):
            without = first if first.test is None else file
            raise UserError(f"The file {without.path} has no x_test and y_test, but others have; give all or none.")


def reshape(x: np.ndarray, shape: tuple[int, ...], folder: Path) -> np.ndarray:
    """Records brought into the given shape."""
    features = math.prod(x.shape[1:])
    if math.prod(shape) != features or min(shape, default=0) < 1:
        raise UserError(
            f"The records of {folder} have {features} features, which do not fill the shape {shape}; "
            f"give a shape whose sizes multiply to {features}."
        )
    return x.reshape(-1, *shape)
