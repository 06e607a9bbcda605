"""Records that Python hands over: arrays, torch or Hugging Face data sets, of each client or of all together.

They are written once into a folder of NPZ files, one for each client, which is named after a digest of what it holds.
From there on they are own data like any other: runs find them again when they are resumed, compared or repeated in
other processes, and equal records are the same people. Other packages' data sets are told by what they can do, so none
of these packages has to be installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sordino.data.federate import usual_names
from sordino.data.own import PERSON_ARRAY
from sordino.data.partition import NOBODY, deal, parse
from sordino.data.sequences import TOKENS
from sordino.errors import FAILURES, UserError, quoted, unknown, writing
from sordino.tasks import Classification, Regression, Task

Arrays = dict[str, np.ndarray]
"""Arrays of an NPZ file of one client: x and y, and perhaps x_test, y_test and codes of persons."""
NAMES = ("x", "y", "x_test", "y_test", PERSON_ARRAY, f"{PERSON_ARRAY}_test")
"""Names of the arrays of one client that are handed over by name."""
MOST_CLASSES = 100
"""More different numbers with decimals than this are dealt by tenths of them, not by their values."""
EVERYBODY = "everybody"
"""Name of the one file of records that belong to no client."""
SPLITS = {"train", "test", "validation"}
ACCEPTED = (
    "data is the name of a data set or a folder, a dictionary {client: (x, y)}, a pair of arrays (x, y), or (x, y, "
    "x_test, y_test), for one client also a dictionary of these arrays by name, an array of whole numbers with a "
    "sequence of tokens in each row, a torch data set of pairs, or a Hugging Face data set"
)


@dataclass(frozen=True)
class Handed:
    """Records as arrays."""

    clients: dict[str, Arrays]
    owned: bool
    """Whether each client's records are its own; otherwise they are still to be dealt."""
    names: tuple[str, ...] | None = None
    """Names of the classes, where the data set declares them."""

    def write(self, place: Path) -> Path:
        """Write the records below a folder, unless they are there; returns the folder with a file for each client."""
        digest = hashlib.sha256()
        for client, arrays in sorted(self.clients.items()):
            for name, array in arrays.items():
                digest.update(f"{client!r} {name} {array.dtype.str} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array).tobytes())
        final = place.absolute() / digest.hexdigest()[:16]
        with writing(final):
            if final.exists():
                return final
            temporary = Path(tempfile.mkdtemp(dir=final.parent, prefix=".handed-"))
            try:
                for client, arrays in self.clients.items():
                    np.savez(temporary / f"{client}.npz", **arrays)  # type: ignore[arg-type]
                os.rename(temporary, final)
            except OSError:
                shutil.rmtree(temporary, ignore_errors=True)
                if not final.exists():  # another process was quicker
                    raise
        return final


def take(data: Any, label: str = "label") -> Handed:
    """Records that Python hands over, checked.

    Args:
        data: a dictionary of clients, two or four arrays, or a data set of torch or Hugging Face.
        label: column with the label, in Hugging Face data sets.
    """
    if isinstance(data, Mapping):
        if not data:
            raise UserError(f"data is an empty dictionary: {ACCEPTED}.")
        if set(data) <= SPLITS and "train" in data and all(_has_columns(one) for one in data.values()):
            parts = [_arrays_of(data[name], name, label) for name in ("train", "test") if name in data]
            test = {} if len(parts) == 1 else {"x_test": parts[1]["x"], "y_test": parts[1]["y"]}
            return Handed({EVERYBODY: parts[0] | test}, False, _class_names(data["train"], label))
        clients = {_file_name(name): _arrays_of(one, f"client {name!r}", label) for name, one in data.items()}
        if len(clients) < len(data):
            raise UserError(f"Two clients in data have one name as text: {', '.join(map(repr, data))}.")
        return Handed(clients, True, _class_names(next(iter(data.values())), label))
    return Handed({EVERYBODY: _arrays_of(data, "data", label)}, False, _class_names(data, label))


def partition(
    data: Any, how: str = "dirichlet:0.5", clients: int = 100, seed: int = 0, label: str = "label"
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Deal records to clients by a rule, as `run(data=...)` takes them.

    Args:
        data: Records that belong to no client yet, in any form that `run` takes; a published test set is left out.
        how: "iid", "dirichlet:0.5", "quantity:0.5", "shards:2", "labels:20%" or "package.module:function"; the first
            three with a least number of records for each client if wanted, as in "quantity:0.5,min=20".
        clients: Number of clients.
        seed: Seed of the deal.
        label: Column with the label, in Hugging Face data sets.
    """
    handed, rule = take(data, label), parse(how)
    if handed.owned or rule.kind == "natural":
        raise UserError("These records have clients already: run(data=...) takes them as they are.")
    (arrays,) = handed.clients.values()
    if TOKENS in arrays:
        raise UserError("Sequences of tokens have no labels to be dealt by: run(data=..., partition=...) deals them.")
    names, targets = np.unique(arrays["y"], return_inverse=True)
    task: Task = Classification.of(tuple(map(str, names.tolist())))
    if len(names) > MOST_CLASSES and arrays["y"].dtype.kind == "f":
        task, targets = Regression(0.0, float(len(names))), targets.astype(np.float32)
    dealt = deal(rule, targets.reshape(-1), task, clients, np.random.default_rng([seed, 0]))
    found = {}
    for number, name in enumerate(usual_names(clients)):
        mine = dealt == number
        found[name] = arrays["x"][mine], arrays["y"][mine]
    if (dealt == NOBODY).all():
        raise UserError(f"The partition {how!r} gives no record to anybody.")
    return found


def _file_name(client: object) -> str:
    """Name of a client, which becomes that of its file."""
    name = str(client)
    if not name or name.startswith(".") or "/" in name or "\0" in name or len(name.encode()) > 200:
        raise UserError(f"The client {quoted(name)} in data needs another name: it becomes the name of a file.")
    return name


def _has_columns(data: object) -> bool:
    """Whether this is a data set with named columns, such as Hugging Face's."""
    return hasattr(data, "column_names") and hasattr(data, "__getitem__") and hasattr(data, "__len__")


def _arrays_of(data: Any, where: str, label: str) -> Arrays:
    """Arrays of one set of records."""
    if _has_columns(data):
        return _checked(_from_columns(data, where, label), where)
    if isinstance(data, Mapping):
        return _from_names(data, where)
    if isinstance(data, Sequence) and not isinstance(data, str) and len(data) in (2, 4):
        names = ("x", "y", "x_test", "y_test")
        return _checked(
            {name: _array(one, f"{name} of {where}") for name, one in zip(names, data, strict=False)}, where
        )
    if getattr(data, "ndim", 0) == 2 and _array(data, where).dtype.kind in "iu":
        return {TOKENS: _array(data, where)}
    if not isinstance(data, Sequence) and hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return _checked(_from_pairs(data, where), where)
    if hasattr(data, "__iter__") and not hasattr(data, "__len__"):
        raise UserError(f"{where} is a stream without a length: collect its records into arrays first.")
    raise UserError(f"{where} is of type {type(data).__name__}: {ACCEPTED}.")


def _from_names(data: Mapping[Any, Any], where: str) -> Arrays:
    """Arrays that are handed over by the names that they have in an NPZ file, so that persons may be among them."""
    for name in data:
        if name not in NAMES:
            raise unknown(f"array of {where} named", str(name), NAMES)
    if not {"x", "y"} <= set(data):
        raise UserError(f"{where} needs the arrays 'x' and 'y'; it has: {', '.join(map(str, data)) or 'none'}.")
    arrays = _checked({name: _array(one, f"{name} of {where}") for name, one in data.items()}, where)
    for code, of in ((PERSON_ARRAY, "x"), (f"{PERSON_ARRAY}_test", "x_test")):
        if code in arrays and len(arrays[code].reshape(-1)) != len(arrays.get(of, ())):
            raise UserError(f"{code} of {where} must have one code for each record of {of}.")
    return arrays


def _from_pairs(data: Any, where: str) -> Arrays:
    """Arrays of a torch data set: each item is a record and its target."""
    if hasattr(data, "columns") or hasattr(data, "shape"):
        raise UserError(f"{where} is one {type(data).__name__} without targets beside it: {ACCEPTED}.")
    records, targets = [], []
    for place in range(len(data)):
        try:
            item = data[place]
        except FAILURES as error:
            raise UserError(f"Item {place} of {where} cannot be read ({type(error).__name__}: {error}).") from error
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise UserError(f"Item {place} of {where} is no pair of a record and its target.")
        records.append(_array(item[0], f"record {place} of {where}"))
        targets.append(_array(item[1], f"target {place} of {where}").reshape(()))
    return {"x": _stack(records, where), "y": _stack(targets, where)}


def _from_columns(data: Any, where: str, label: str) -> Arrays:
    """Arrays of a Hugging Face data set: one column is the label, the others are the record."""
    columns = list(data.column_names)
    if label not in columns:
        raise UserError(
            f"{where} has no column {label!r} for the label; its columns are: {', '.join(map(str, columns))}. Name the "
            "right one with label=..."
        )
    others = ["input_ids"] if "input_ids" in columns else [name for name in columns if name != label]
    if not others:
        raise UserError(f"{where} has no column besides the label {label!r}.")
    parts = []
    for name in others:
        values = [np.asarray(value) for value in data[name]]
        if values and values[0].dtype.kind in "OUS":
            raise UserError(
                f"The column {name!r} of {where} holds {type(data[name][0]).__name__} values, not numbers: turn texts "
                "into token ids first (a column `input_ids` of equal lengths), or remove the column."
            )
        if values and values[0].dtype == np.uint8 and values[0].ndim >= 2:  # images: colours last, up to 255
            values = [np.moveaxis(np.atleast_3d(value), -1, 0) / np.float32(255) for value in values]
        parts.append(_stack(values, f"the column {name!r} of {where}"))
    if len(parts) > 1:
        if any(part.ndim > 1 for part in parts):
            raise UserError(f"{where} has several columns besides the label, and not all are single numbers: keep one.")
        parts = [np.stack(parts, axis=1)]
    x = parts[0] if parts[0].ndim > 1 else parts[0].reshape(-1, 1)
    return {"x": x, "y": _stack([np.asarray(value) for value in data[label]], where)}


def _class_names(data: Any, label: str) -> tuple[str, ...] | None:
    """Names of the classes that a Hugging Face data set declares; None where it declares none."""
    names = getattr((getattr(data, "features", None) or {}).get(label), "names", None) if _has_columns(data) else None
    return tuple(map(str, range(len(names)))) if names else None


def _array(value: Any, what: str) -> np.ndarray:
    """An array of numbers or labels; tensors come to the processor."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    try:
        found = np.asarray(value)
    except FAILURES as error:
        raise UserError(f"{what} cannot be read as an array ({error}).") from error
    if found.dtype.kind == "O":
        raise UserError(f"{what} is no array: its rows have different lengths, or hold other things than numbers.")
    return found


def _stack(values: list[np.ndarray], where: str) -> np.ndarray:
    """Values of equal shapes as one array."""
    if not values:
        raise UserError(f"{where} holds no records.")
    different = next((one for one in values if one.shape != values[0].shape), None)
    if different is not None:
        raise UserError(
            f"The records of {where} have different shapes, {values[0].shape} and {different.shape}: bring them to one."
        )
    return np.stack(values)


def _checked(arrays: Arrays, where: str) -> Arrays:
    """Arrays whose records are finite numbers in rows, with one target each."""
    for x_name, y_name in (("x", "y"), ("x_test", "y_test")):
        if x_name not in arrays or y_name not in arrays:
            if x_name in arrays or y_name in arrays:
                raise UserError(f"{where} has only one of {x_name} and {y_name}; give both or neither.")
            continue
        x, y = arrays[x_name], arrays[y_name]
        if x.dtype.kind not in "biuf":
            raise UserError(f"{x_name} of {where} holds {x.dtype} values, not numbers.")
        if x.ndim < 2 or len(x) != len(y.reshape(-1)) or not len(y):
            raise UserError(
                f"{x_name} of {where} has shape {x.shape} and {y_name} has {len(y.reshape(-1))} targets: give one row "
                "of features for each target, and at least one."
            )
        arrays[x_name], arrays[y_name] = x.astype(np.float32), y.reshape(-1)
    return arrays
