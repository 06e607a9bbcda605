"""A user's own data: a folder with one CSV, Parquet or NPZ file per client, named after the client.

Features are float32 as they stand in the files. Nothing is normalised by statistics of the data: a mean over
all clients would carry information from one client to another outside any guarantee.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from sordino.data.dataset import Dataset
from sordino.data.formats import quote, read_npz
from sordino.data.tables import Table, read_csv, read_parquet
from sordino.errors import UserError, quoted

DEFAULT_LABEL = "label"
KINDS = (".csv", ".parquet", ".npz")


@dataclass(frozen=True)
class ClientFile:
    """One client's file as read: features, labels as text, and which records are test records."""

    path: Path
    columns: tuple[str, ...] | None
    """Names of the features in order; None for arrays."""
    x: np.ndarray
    labels: list[str]
    test: np.ndarray | None


UNDECLARED = (
    "The labels that occur were read from the clients' data: a rare one shows in the model's width. Declare them with "
    "the key `labels`."
)


def read_own(
    folder: Path, label: str | None, shape: tuple[int, ...] | None, labels: tuple[str | int, ...] | None = None
) -> Dataset:
    """The records of every file of a folder; the owner of a record is the file it stands in.

    Labels, text or whole numbers, become 0..classes-1 in the order of `labels`, or, where those that may occur are not
    declared, in sorted order over all files. `shape`, when given, is the shape each record is brought into.
    """
    files: list[ClientFile] = []
    for path in client_paths(folder):
        first = files[0] if files else None
        files.append(read_file(path, label or DEFAULT_LABEL, first.columns if first else None))
        check_agreement(files[0], files[-1])
    if labels is None:
        numbers, classes = number_labels([label for file in files for label in file.labels])
    else:
        numbers, classes = declared_labels(files, [str(one) for one in labels]), len(labels)
    x = np.concatenate([file.x for file in files])
    if shape is not None:
        x = reshape(x, shape, folder)
    return Dataset(
        name=folder.resolve().name,
        x=torch.from_numpy(x),
        y=torch.from_numpy(numbers),
        classes=classes,
        owner=np.repeat(np.arange(len(files)), [len(file.labels) for file in files]),
        owner_names=tuple(file.path.stem for file in files),
        test=None if files[0].test is None else np.concatenate([file.test for file in files if file.test is not None]),
        disclosed=() if labels is not None else (UNDECLARED,),
        people=people_of([file.path for file in files]),
    )


def people_of(paths: list[Path]) -> str:
    """A digest of files as they stand there: whichever column is the label, they are about the same people."""
    made = hashlib.sha256()
    for path in paths:
        made.update(hashlib.sha256(path.read_bytes()).digest())
    return made.hexdigest()


def declared_labels(files: list[ClientFile], labels: list[str]) -> np.ndarray:
    """The number of each record's label among the declared ones; a label that is not declared raises."""
    if len(labels) < 2 or len(set(labels)) < len(labels):
        raise UserError(f"labels = {quoted(labels)}: declare at least two, each once.")
    places = {label: place for place, label in enumerate(labels)}
    for file in files:
        for label in file.labels:
            if label not in places:
                raise UserError(
                    f"The file {file.path} has a record with the label {quote(label)!r}, which `labels` lacks."
                )
    return np.array([places[label] for file in files for label in file.labels], dtype=np.int64)


def client_paths(folder: Path) -> list[Path]:
    """The client files of a folder, in order of name. Hidden files and other kinds are not client files."""
    if not os.path.isdir(folder):
        raise UserError(
            f"There is no folder {quote(folder)}; name a folder with one CSV, Parquet or NPZ file per client."
        )
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise UserError(f"The folder {folder} cannot be read: {error.strerror}.") from error
    paths = [path for path in inside if path.suffix.lower() in KINDS and not path.name.startswith(".")]
    if not paths:
        raise UserError(
            f"The folder {folder} holds no {', '.join(KINDS)} file; put one file per client in it, "
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
    return paths


def read_file(path: Path, label: str, order: tuple[str, ...] | None) -> ClientFile:
    """One client's file; `order` is the order of columns of the first table, when there is one."""
    if path.suffix.lower() == ".npz":
        return read_arrays(path)
    table = read_csv(path) if path.suffix.lower() == ".csv" else read_parquet(path)
    if label not in table.columns:
        near = difflib.get_close_matches(label, table.columns, n=max(1, len(table.columns)), cutoff=0.0)
        raise UserError(
            f"The file {path} has no column {label!r} for the label; its columns are: {quote(', '.join(near))}. "
            "Name the right one with --label."
        )
    names = tuple(name for name in table.columns if name != label)
    if not names:
        raise UserError(f"The file {path} has no column besides the label {label!r}; add feature columns.")
    if order is not None and set(order) == set(names):
        names = order
    x = np.stack([table.numbers(name) for name in names], axis=1)
    return ClientFile(path, names, x, [label_text(value, table, label) for value in table.columns[label]], None)


def label_text(value: object, table: Table, label: str) -> str:
    """A label as text, so that 1, 1.0 and "1" are one label in every kind of file."""
    text = "" if value is None else str(value).strip()
    try:
        number = float(text)
    except ValueError:
        number = math.inf
    if not text or math.isnan(number):
        raise UserError(f"The file {table.path} has a missing value in its label column {label!r}; fill or drop it.")
    return str(int(number)) if number.is_integer() else text


def read_arrays(path: Path) -> ClientFile:
    """An NPZ file: x (records, ...) and y, with x_test and y_test when the test split is the user's own."""
    arrays = read_npz(path)
    for name in ("x", "y"):
        if name not in arrays:
            raise UserError(
                f"The file {path} has no array {name!r}; its arrays are: {quote(', '.join(arrays)) or 'none'}. "
                "Save it with np.savez(path, x=..., y=...)."
            )
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise UserError(f"The file {path} has only one of x_test and y_test; give both or neither.")
    parts = [("x", "y")] + ([("x_test", "y_test")] if "x_test" in arrays else [])
    table = Table(path, {})
    features, labels = [], []
    for x_name, y_name in parts:
        x, y = arrays[x_name], arrays[y_name].reshape(-1)
        if x.ndim < 2 or len(x) != len(y) or 0 in x.shape[1:]:
            raise UserError(
                f"The file {path} has {x_name} of shape {x.shape} and {len(y)} labels in {y_name}; "
                "give one row of features per label."
            )
        features.append(table.finite(x_name, x))
        labels += [label_text(value, table, y_name) for value in y.tolist()]
    if len({part.shape[1:] for part in features}) > 1:
        raise UserError(f"The file {path} has records of another shape in x_test than in x; make them equal.")
    test = np.arange(len(labels)) >= len(features[0]) if len(parts) == 2 else None
    return ClientFile(path, None, np.concatenate(features), labels, test)


def check_agreement(first: ClientFile, file: ClientFile) -> None:
    """Refuse a file that differs from the first in columns, shape or in having a test split."""
    if first.columns is not None and file.columns is not None and first.columns != file.columns:
        differing = sorted(set(first.columns) ^ set(file.columns))
        raise UserError(
            f"The files {first.path} and {file.path} do not have the same columns: {differing[0]!r} is in "
            "one of them only; give every client the same columns."
        )
    if first.x.shape[1:] != file.x.shape[1:]:
        raise UserError(
            f"The records of {file.path} have shape {file.x.shape[1:]}, those of {first.path} "
            f"{first.x.shape[1:]}; give every client records of the same shape."
        )
    if (first.test is None) != (file.test is None):
        without = first if first.test is None else file
        raise UserError(f"The file {without.path} has no x_test and y_test, but others have; give all or none.")


def number_labels(labels: list[str]) -> tuple[np.ndarray, int]:
    """Labels as 0..classes-1 in sorted order: by value when all are whole numbers, else by text."""
    try:
        values = sorted(set(labels), key=int)
    except ValueError:
        values = sorted(set(labels))
    numbers = {value: number for number, value in enumerate(values)}
    return np.array([numbers[label] for label in labels], dtype=np.int64), len(values)


def reshape(x: np.ndarray, shape: tuple[int, ...], folder: Path) -> np.ndarray:
    """Records brought into the given shape."""
    features = math.prod(x.shape[1:])
    if math.prod(shape) != features or min(shape, default=0) < 1:
        raise UserError(
            f"The records of {folder} have {features} features, which do not fill the shape {shape}; "
            f"give a shape whose sizes multiply to {features}."
        )
    return x.reshape(-1, *shape)
