"""Selection of records: a random part of a data set, and public records that belong to no client."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from sordino.data.dataset import Dataset
from sordino.data.federate import random_stream
from sordino.data.own import Reading
from sordino.data.sources import load
from sordino.errors import UserError

DEFAULT_SHARE = 0.1
MOSTLY = 0.5
"""From this share on, public records that equal a client's are no chance."""


@dataclass(frozen=True)
class PublicChoice:
    """Choice of the public records, and options for reading those of a named data set."""

    name: str | None
    """A data set, a folder, or `holdout:0.1`; None for what is usual."""
    data_dir: Path | None
    how: Reading
    test: Literal["own", "official"]
    seed: int


def set_aside(dataset: Dataset, choice: PublicChoice) -> tuple[Dataset, Dataset]:
    """Split a data set into the clients' records and the public ones.

    By default these are the published test set, which is dealt to no client, else a tenth of the records: they stand in
    for data that are public anyway. Records that have owners cannot stand in for anything: they belong to somebody.
    """
    held_out = choice.name is None or choice.name.startswith("holdout")
    if held_out and dataset.owner is not None:
        raise UserError(
            f"Every record of {dataset.name!r} belongs to somebody, so none can be public: name other data of the same "
            "shape with the key `public`, for example --set public=FOLDER, or choose a method or rule that needs none."
        )
    if choice.name is None and dataset.test is not None and choice.test == "own":
        return dataset, _part(dataset, dataset.test)
    if held_out:
        return _hold_out(dataset, _share(choice.name), choice.seed)
    assert choice.name is not None
    other = load(choice.name, choice.data_dir, choice.how)
    shared = _count_shared(dataset, other)
    if shared >= MOSTLY * len(other.y):
        raise UserError(
            f"The public data {choice.name!r} are the clients' own: public records must belong to none of them."
        )
    if other.x.shape[1:] != dataset.x.shape[1:] or not dataset.task.admits(other.task):
        raise UserError(
            f"The public data {choice.name!r} do not fit: their records have shape {tuple(other.x.shape[1:])} and "
            f"{other.task}, those of {dataset.name!r} {tuple(dataset.x.shape[1:])} and {dataset.task.width}."
        )
    if shared:
        dataset = replace(dataset, disclosed=(*dataset.disclosed, _disclose_shared(shared, len(other.y))))
    return dataset, other


def _disclose_shared(shared: int, records: int) -> str:
    """A sentence that some of the public records are a client's, and so not public."""
    return (
        f"{shared} of the {records} public records equal{'s' if shared == 1 else ''} a client's: what is computed from "
        "public records tells of these without noise. Take them out."
    )


def _count_shared(dataset: Dataset, other: Dataset) -> int:
    """Number of records of `other` that equal a record of `dataset`, labels apart."""
    theirs = {hash(row.tobytes()) for row in dataset.x.numpy()}
    return sum(hash(row.tobytes()) in theirs for row in other.x.numpy())


def _share(chosen: str | None) -> float:
    if chosen is None or chosen == "holdout":
        return DEFAULT_SHARE
    try:
        share = float(chosen.removeprefix("holdout:"))
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise UserError(f"public = {chosen!r} is not understood; write a share between 0 and 1, as in holdout:0.1.")
    return share


def fewer(dataset: Dataset, records: int, seed: int) -> Dataset:
    """At most `records` of the training records, chosen at random; a published test set stays whole."""
    picked = _choose(dataset, records, random_stream(seed, 21))
    return _part(dataset, picked if dataset.test is None else picked | dataset.test)


def _hold_out(dataset: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    training = len(dataset.y) if dataset.test is None else int((~dataset.test).sum())
    public = _choose(dataset, max(1, round(share * training)), random_stream(seed, 20))
    told = (
        f"{int(public.sum()):,} of the records were set aside and are taken for public: nothing covers what is "
        "computed from them, and with another seed they are clients'."
    )
    return _part(replace(dataset, disclosed=(*dataset.disclosed, told)), ~public), _part(dataset, public)


def _choose(dataset: Dataset, count: int, random: np.random.Generator) -> np.ndarray:
    """bool (records,): `count` of the training records, chosen at random; or, where persons are declared, all training
    records of persons who have about so many together."""
    candidates = np.arange(len(dataset.y)) if dataset.test is None else np.flatnonzero(~dataset.test)
    chosen = np.zeros(len(dataset.y), dtype=bool)
    if dataset.person is None:
        chosen[random.permutation(candidates)[:count]] = True
        return chosen
    _, member, rows = np.unique(dataset.person[candidates], return_inverse=True, return_counts=True)
    order = random.permutation(len(rows))
    taken = np.zeros(len(rows), dtype=bool)
    taken[order[np.append(0, rows[order].cumsum()[:-1]) < count]] = True
    chosen[candidates[taken[member.reshape(-1)]]] = True
    return chosen


def _part(dataset: Dataset, chosen: np.ndarray) -> Dataset:
    places = torch.from_numpy(np.flatnonzero(chosen))
    return replace(
        dataset,
        x=dataset.x[places],
        y=dataset.y[places],
        owner=None if dataset.owner is None else dataset.owner[chosen],
        test=None if dataset.test is None else dataset.test[chosen],
        person=None if dataset.person is None else dataset.person[chosen],
    )
