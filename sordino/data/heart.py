"""Fed-Heart-Disease: four hospitals, prepared as in FLamby (Ogier du Terrail et al., NeurIPS 2022).

Of the 14 published columns slope, ca and thal are dropped, then every row with a missing value: 740 rows
stay. The label is 1 for any disease. Chest pain and resting ECG are one-hot coded without their first value,
which gives 13 features. Each hospital is split .66/.34 with seed 43, evenly by labels, and standardised by the mean
and deviation of its own training rows: no number crosses from one hospital to another, but this is not private.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import torch

from sordino.data.dataset import Dataset
from sordino.data.formats import corrupt, read_bytes, reading
from sordino.tasks import Classification

CENTRES = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = 14
DROPPED = (10, 11, 12)
ONE_HOT = {2: (2.0, 3.0, 4.0), 6: (1.0, 2.0)}
"""Column -> the values that become features; the first value of each, 1 and 0, is the one left out."""
MISSING = "?"
FEWEST_ROWS = 4
"""So many rows leave two for training, the fewest that have a deviation."""
LARGEST_VALUE = 1_000_000
"""No published value comes near it; far larger ones have no z-score in float32."""

NORMALISED = (
    "Heart Disease is normalised by each hospital's own mean and deviation, as its publishers do, and its published "
    "test records were chosen by labels. Both follow from what is in the records, without noise; scaling each hospital "
    "by itself also costs a model of all of them 2 to 10 points of AUC (experiments/tables.py scales them alike)."
)


def centre_file(centre: str) -> str:
    """Name of the published file of one hospital."""
    return f"processed.{centre}.data"


def read_heart_disease(folder: Path) -> Dataset:
    """The four hospitals, one owner each, with FLamby's test split."""
    features, labels, owner, test = [], [], [], []
    for index, centre in enumerate(CENTRES):
        path = folder / centre_file(centre)
        rows = read_rows(path)
        y = (rows[:, -1] > 0).astype(np.int64)
        in_test = split(path, y)
        features.append(standardise(encode(rows[:, :-1]), ~in_test))
        labels.append(y)
        owner.append(np.full(len(y), index, np.int64))
        test.append(in_test)
    x = torch.from_numpy(np.concatenate(features).astype(np.float32))
    y_all = torch.from_numpy(np.concatenate(labels))
    owners, tested = np.concatenate(owner), np.concatenate(test)
    task = Classification.numbered(2)
    return Dataset("heart-disease", x, y_all, task, owners, CENTRES, tested, disclosed=(NORMALISED,))


def read_rows(path: Path) -> np.ndarray:
    """The complete rows of one file, without the dropped columns; the last column is the label."""
    rows = []
    contents = read_bytes(path)
    with reading(path, "it is not a table of numbers"):
        for line, row in enumerate(csv.reader(contents.decode("ascii").splitlines()), start=1):
            if len(row) != COLUMNS:
                raise corrupt(path, f"line {line} has {len(row)} values, not {COLUMNS}")
            kept = [value for column, value in enumerate(row) if column not in DROPPED]
            if MISSING not in kept:
                rows.append([float(value) for value in kept])
    if len(rows) < FEWEST_ROWS:
        raise corrupt(path, f"it has fewer than {FEWEST_ROWS} complete rows")
    table = np.array(rows)
    if not (np.abs(table) <= LARGEST_VALUE).all():
        raise corrupt(path, f"a value is no number from -{LARGEST_VALUE:,} to {LARGEST_VALUE:,}")
    return table


def encode(columns: np.ndarray) -> np.ndarray:
    """Numeric columns first, then the one-hot columns in the order of `ONE_HOT`."""
    plain = [column for column in range(columns.shape[1]) if column not in ONE_HOT]
    coded = [columns[:, [column]] == np.array(values) for column, values in ONE_HOT.items()]
    return np.concatenate([columns[:, plain], *coded], axis=1)


def split(path: Path, labels: np.ndarray) -> np.ndarray:
    """bool (rows,): FLamby's choice of test rows, stratified when both classes have more than two rows."""
    from sklearn.model_selection import train_test_split

    counts = np.bincount(labels, minlength=2)
    try:
        _, test = train_test_split(
            np.arange(len(labels)),
            train_size=0.66,
            test_size=1.0 - 0.66,
            random_state=43,
            stratify=labels if counts.min() > 2 else None,
        )
    except ValueError as error:
        raise corrupt(path, f"its {len(labels)} complete rows cannot be split ({error})") from error
    return np.isin(np.arange(len(labels)), test)


def standardise(features: np.ndarray, train: np.ndarray) -> np.ndarray:
    """z-scores by the training rows; the small term keeps a constant feature at 0."""
    return (features - features[train].mean(0)) / (features[train].std(0, ddof=1) + 1e-9)
