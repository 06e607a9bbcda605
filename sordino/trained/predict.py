"""Prediction on new records: a table with predictions and class probabilities."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sordino.data.encoding import Encoding, expected_range
from sordino.data.formats import read_npz
from sordino.data.schema import Category, NumberColumn, Schema, canonical
from sordino.data.tables import check_finite, read_table
from sordino.errors import UserError, refuse, writing
from sordino.tasks import Task
from sordino.tasks.judgement import Judgement, judge
from sordino.trained.models import Description, Models

AT_ONCE = 1000
"""Number of records that are predicted together."""
NAMED = 5
"""Number of columns that a sentence names."""


@dataclass(frozen=True)
class Outside:
    """Records with numbers in a column that the model does not expect there."""

    rows: np.ndarray
    """bool (records,): which records these are."""
    range: tuple[float, float]
    """Smallest and largest number that the model expects."""
    held: bool
    """Whether numbers outside are replaced by the nearest end of the range; otherwise they are taken as they stand."""

    @property
    def records(self) -> int:
        """Number of records."""
        return int(self.rows.sum())

    def to_dict(self) -> dict[str, Any]:
        """Counts and range for JSON."""
        return {"records": self.records, "range": list(self.range), "held": self.held}


@dataclass(frozen=True)
class NewRecords:
    """Records to predict on, as they stand in a file and as a network takes them."""

    columns: dict[str, list[str]]
    """Columns of the file; the number of each record where it holds arrays."""
    x: np.ndarray
    usable: np.ndarray
    """bool (records,): whether a record has all values without which the schema drops it."""
    labels: np.ndarray | None = None
    """(records,): target of each record where the file says it, else -1 or `nan` (`Task.parse`); None where it has
    none."""
    outside: dict[str, Outside] | None = None
    """Usable records outside the range of a column, for each column with any; None for arrays, whose columns have no
    declared range."""

    def rows_outside(self) -> int:
        """Number of usable records that are outside the range of any column."""
        return int(np.any([one.rows for one in (self.outside or {}).values()], axis=0).sum()) if self.outside else 0

    def note_outside(self) -> str | None:
        """Sentence on records outside the ranges; None where there are none."""
        if not self.outside:
            return None
        worst = sorted(self.outside.items(), key=lambda item: -item[1].records)
        listed = [
            f"{name!r} in {one.records} (beyond {one.range[0]:g} to {one.range[1]:g}, "
            f"{'held to it' if one.held else 'taken as it stands'})"
            for name, one in worst[:NAMED]
        ]
        more = f" and {len(worst) - NAMED} more columns" if len(worst) > NAMED else ""
        return (
            f"{self.rows_outside()} of {int(self.usable.sum())} records have numbers for which the model was not "
            f"trained; their predictions may be wrong: {', '.join(listed)}{more}. Check the units there, and the codes "
            "of missing values."
        )


@dataclass(frozen=True)
class Predictions:
    """Predictions of a model for each record."""

    records: NewRecords
    task: Task
    probabilities: np.ndarray
    """(records, predicted), as `Task.predict` gives them; `nan` for records that cannot be used."""
    threshold: float | None = None
    """Probability from which on the class that is looked for is predicted; None for the most probable class."""

    def labels(self) -> list[str]:
        """The prediction for each record in words; nothing for one that cannot be used."""
        told = self.task.tell(np.nan_to_num(self.probabilities), self.threshold)
        return [one if there else "" for one, there in zip(told, self.records.usable, strict=True)]

    def counts(self) -> dict[str, int]:
        """Number of records with each prediction."""
        return self.task.count(self.labels())

    def judged(self, schema: Schema | None) -> Judgement | None:
        """Judgement on those records whose class the file says; None where it says none."""
        labels = self.records.labels
        if labels is None or not self.task.judged:
            return None
        said = ~np.isnan(labels) if labels.dtype.kind == "f" else labels >= 0
        known = self.records.usable & said.reshape(len(said), -1).all(axis=1)
        if not known.any():
            return None
        groups = group_columns(self.records.columns, schema, known)
        return judge(self.task, self.probabilities[known], labels[known], groups, self.threshold)

    def write(self, path: Path) -> None:
        """Write one line per record: its own columns, then the task's `heads` and `columns`."""
        own = self.records.columns
        with writing(path), path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow([*own, *self.task.heads, *self.task.columns])
            rows, usable = zip(*own.values(), strict=True), self.records.usable
            told = self.task.tell_each(np.nan_to_num(self.probabilities), self.threshold)
            nothing = ("",) * len(self.task.heads)
            for row, words, there, said in zip(rows, told, usable, self.task.shown(self.probabilities), strict=True):
                numbers = ("" if math.isnan(one) else self.task.write(one) for one in said)
                writer.writerow([*row, *(words if there else nothing), *numbers])


def predict(models: Models, client: str | int | None, file: Path) -> Predictions:
    """Predict for the records of a file with a client's model, or, where `client` is None, with the server's."""
    network = models.predictor(client)
    name = None if client is None else models.about.clients[models.about.number(client)]
    records = read_records(file, models.about, name)
    if not len(records.x):
        raise UserError(f"{file} has no records to predict.")
    task = models.about.meaning.task
    said = np.full((len(records.x), task.predicted), np.nan)
    if records.usable.any():
        said[records.usable] = probabilities(task, network, records.x[records.usable])
    return Predictions(records, task, said, None if client is None else models.threshold)


def group_columns(columns: Mapping[str, list[str]], schema: Schema | None, chosen: np.ndarray) -> dict[str, list[str]]:
    """Values of the chosen records in those columns that the schema declares as categories."""
    names = [] if schema is None else [name for name, one in schema.inputs().items() if isinstance(one, Category)]
    return {
        name: [canonical(columns[name][place]) for place in np.flatnonzero(chosen)] for name in names if name in columns
    }


def probabilities(task: Task, network: nn.Module, x: np.ndarray) -> np.ndarray:
    """Predict for records `x` with a network: (records, predicted), float64."""
    with torch.no_grad():
        parts = [task.predict(network(part).double()) for part in torch.from_numpy(x).split(AT_ONCE)]
    return torch.cat(parts).numpy()


def read_records(file: Path, about: Description, client: str | None) -> NewRecords:
    """Read the records of a table, by the schema that the models carry, or of the array `x` of an NPZ file.

    A table is read like the client's own in training, unless its name is that of another client's table; where no
    client is named, as the schema says for tables of no client in particular.
    """
    if not file.is_file():
        raise UserError(f"There is no file {file} with records to predict on.")
    if file.suffix.lower() == ".npz":
        return _arrays(file, about)
    schema = about.meaning.schema
    if schema is None:
        shape = ", ".join(str(size) for size in about.shape)
        raise UserError(
            f"The models of {about.run!r} take arrays, not tables: give an NPZ file with x of shape (records, {shape}) "
            "and scaled as in training."
        )
    like = file.stem if file.stem in about.clients or client is None else client
    written = schema.format_of(like)
    whose = f"the file of {like!r} was" if like in about.clients else "files were"
    table = read_table(file, written, f"write it as {whose} in training, decimals after {written.decimal!r}")
    found = Encoding(table, schema, written, "model").result()
    refuse(str(file), found.problems)
    columns = {name: [str(cell) for cell in table.texts(name)] for name in table.columns}
    outcomes = Encoding(table, schema, written, "model").known_labels()
    labels = None if outcomes is None else about.meaning.task.parse(outcomes)
    outside = _outside(schema, {name: rows & found.kept for name, rows in found.outside.items()})
    return NewRecords(columns, found.x.reshape(-1, *about.shape), found.kept, labels, outside)


def _outside(schema: Schema, rows: Mapping[str, np.ndarray]) -> dict[str, Outside]:
    """Records outside the ranges of columns, for those columns with any."""
    numbers = {name: one for name, one in schema.inputs().items() if isinstance(one, NumberColumn)}
    return {
        name: Outside(there, expected_range(numbers[name]), held=numbers[name].range is not None)
        for name, there in rows.items()
        if there.any()
    }


def _arrays(file: Path, about: Description) -> NewRecords:
    arrays = read_npz(file)
    if "x" not in arrays:
        raise UserError(f"The file {file} has no array 'x': save it with np.savez(path, x=...).")
    x = check_finite(file, "x", arrays["x"])
    if x.ndim < 2 or math.prod(x.shape[1:]) != math.prod(about.shape):
        raise UserError(f"The file {file} has x of shape {x.shape}, but the models take {about.shape}.")
    numbers = [str(number) for number in range(len(x))]
    labels, task = None, about.meaning.task
    if "y" in arrays and task.judged and len(arrays["y"].reshape(-1)) == len(x):
        labels = task.parse([str(one) for one in arrays["y"].reshape(-1).tolist()])
    x = x.reshape(-1, *about.shape)
    return NewRecords({"record": numbers}, x, np.ones(len(x), dtype=bool), labels, outside=None)
