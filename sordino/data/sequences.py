"""A user's own sequences: a folder with one NPZ file per client, whose array `tokens` has one sequence in each row.

Tokens are whole numbers from 0 to V - 1. All sequences have one length T + 1: the first T tokens are the inputs, the
last T the targets. V is declared by the labels that may occur; otherwise it is read from the records.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from sordino.data.dataset import Dataset
from sordino.data.formats import read_npz
from sordino.data.people import known_people, same_files
from sordino.errors import UserError, refuse
from sordino.tasks.next_token import TOKENS, NextToken

UNDECLARED = (
    "The largest token that occurs was read from the clients' data: a rare one shows in the model's width. Declare the "
    "number of tokens with the key `vocabulary`."
)


def holds(path: Path, name: str) -> bool:
    """Whether a client's file holds an array of that name; not where it cannot be read, which its reader tells."""
    if path.suffix.lower() != ".npz":
        return False
    try:
        with zipfile.ZipFile(path) as packed:
            return f"{name}.npy" in packed.namelist()
    except (OSError, zipfile.BadZipFile, NotImplementedError):  # the last for a version of the format that is not known
        return False


NO_SEQUENCES = (
    f"needs an array {TOKENS!r} of whole numbers from 0, one sequence of at least two tokens in each row, all of one "
    "length"
)


def sequence_parts(arrays: Mapping[str, np.ndarray]) -> list[np.ndarray] | None:
    """A client's sequences for training and, where it has chosen some itself, for testing; None where its arrays are no
    such sequences."""
    found = [arrays[name] for name in (TOKENS, f"{TOKENS}_test") if name in arrays]
    wrong = [one for one in found if one.ndim != 2 or one.shape[1] < 2 or one.dtype.kind not in "iu"]
    if TOKENS not in arrays or wrong or len({one.shape[1] for one in found}) > 1:
        return None
    return None if min(one.min(initial=0) for one in found) < 0 else found


def read_sequences(
    folder: Path,
    paths: Sequence[Path],
    labels: tuple[str | int, ...] | None,
    vocabulary: int | None,
    notes: Sequence[str],
) -> Dataset:
    """The sequences of every file of a folder; the owner of a sequence is the file it stands in.

    Args:
        folder: the folder.
        paths: its files, in the order of their names.
        labels: all tokens that may occur, where they are declared by name.
        vocabulary: number of tokens, where that is declared.
        notes: notes on how the folder was read.
    """
    if labels is not None and [str(one) for one in labels] != [str(number) for number in range(len(labels))]:
        raise UserError(
            f"Tokens are numbers from 0: declare how many there are with `vocabulary` for the files in {folder}."
        )
    declared = vocabulary if labels is None else len(labels)
    parts: list[np.ndarray] = []
    tested: list[np.ndarray] = []
    problems: list[str] = []
    for path in paths:
        arrays = read_npz(path)
        given = sequence_parts(arrays)
        if given is None:
            problems.append(f"The file {path} {NO_SEQUENCES}, as the others have.")
            continue
        parts.append(np.concatenate(given).astype(np.int64))
        tested.append(np.arange(len(parts[-1])) >= len(given[0]))
        if (len(given) == 2) != (f"{TOKENS}_test" in read_npz(paths[0])):
            problems.append(f"The file {path} differs from {paths[0]} in having {TOKENS}_test: give all or none.")
        if parts[-1].shape[1] != parts[0].shape[1]:
            problems.append(
                f"The sequences of {path} have {parts[-1].shape[1]} tokens, those of {paths[0]} {parts[0].shape[1]}: "
                "cut or pad them to one length."
            )
    refuse(str(folder), problems)
    tokens = np.concatenate(parts)
    largest = int(tokens.max(initial=0))
    if declared is not None and largest >= declared:
        raise UserError(f"The token {largest} occurs in {folder}, but those from 0 to {declared - 1} are declared.")
    own_test = np.concatenate(tested)
    return Dataset(
        name=folder.resolve().name,
        x=torch.from_numpy(tokens[:, :-1].astype(np.float32)),
        y=torch.from_numpy(np.ascontiguousarray(tokens[:, 1:])),
        task=NextToken(largest + 1 if declared is None else declared, tokens.shape[1] - 1),
        owner=np.repeat(np.arange(len(paths)), [len(part) for part in parts]),
        owner_names=tuple(path.stem for path in paths),
        test=own_test if own_test.any() else None,
        disclosed=same_files(paths) + (() if declared is not None else (UNDECLARED,)),
        people=known_people(paths, [], parts),
        notes=tuple(notes),
    )
